"""The watch of pods against a server that restarts, forgets, falls silent and lies."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from cni_agent import apiserver
from cni_agent.apiserver import Access, ApiServer
from cni_agent.node import podwatch
from cni_agent.podview import PodView
from tests.fake_api import FakeApi


def pod(uid: str, name: str = "app", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "shop", "uid": uid}, "spec": {"nodeName": "n1", **spec}}


class Seen:
    def __init__(self) -> None:
        self.pods: dict[str, PodView] = {}
        self.ends: list[str] = []

    def changed(self, view: PodView) -> None:
        self.pods[view.uid] = view

    def gone(self, uid: str) -> None:
        self.pods.pop(uid, None)


@asynccontextmanager
async def watching(api: FakeApi, silence: float = 60.0) -> AsyncIterator[tuple[Seen, podwatch.PodWatch]]:
    seen = Seen()
    tokens = iter(f"token-{number}" for number in range(1000))
    async with ApiServer(Access(api.url, None, lambda: next(tokens)), "test") as server:
        watch = podwatch.PodWatch(
            server, "n1", changed=seen.changed, gone=seen.gone, ended=seen.ends.append, silence=silence
        )
        task = asyncio.create_task(watch.run())
        try:
            yield seen, watch
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def scenario(test: Callable[[FakeApi], Awaitable[None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """A test as a coroutine with a server; waits are shortened, not left out."""

    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(podwatch, "_FIRST_WAIT", 0.01)
        monkeypatch.setattr(podwatch, "_LONGEST_WAIT", 0.1)

        async def main() -> None:
            api = FakeApi()
            await api.start()
            try:
                await test(api)
            finally:
                await api.stop()

        asyncio.run(main())

    run.__doc__ = test.__doc__
    return run


@scenario
async def test_list_from_cache_then_watch(api: FakeApi) -> None:
    await api.put(pod("a"))
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed)
        assert seen.pods.keys() == {"a"}
        await api.put(pod("b"))
        await api.put(pod("a", hostNetwork=True))
        await until(lambda: "b" in seen.pods and seen.pods["a"].host_network)
        await api.delete("a")
        await until(lambda: seen.pods.keys() == {"b"})
    listing, watched = api.requests
    assert listing == {"fieldSelector": "spec.nodeName=n1", "resourceVersion": "0"}
    assert watched["allowWatchBookmarks"] == "true" and int(watched["timeoutSeconds"]) > 60


@scenario
async def test_a_closed_watch_goes_on_from_its_place(api: FakeApi) -> None:
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed and len(api.requests) == 2)
        await api.put(pod("a"))
        await until(lambda: "a" in seen.pods)
        await api.drop()
        await api.put(pod("b"))
        await until(lambda: "b" in seen.pods)
        assert [query.get("watch") for query in api.requests].count(None) == 1  # listed once
        assert api.requests[-1]["resourceVersion"] == "2"


@scenario
async def test_bookmarks_move_the_place(api: FakeApi) -> None:
    async with watching(api) as (_, watch):
        await until(lambda: watch.listed and len(api.requests) == 2)
        api.version = 77
        await api.say("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "77"}})
        await until(lambda: watch._place == "77")
        await api.drop()
        await until(lambda: len(api.requests) == 3)
        assert api.requests[-1]["resourceVersion"] == "77"


@scenario
async def test_a_forgotten_place_lists_the_newest_state(api: FakeApi) -> None:
    """410 inside the stream; the pod deleted meanwhile is found missing."""
    await api.put(pod("a"))
    await api.put(pod("b"))
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed and len(api.requests) == 2)
        api.pods.pop("a")
        api.version += 10
        api.forgotten = api.version
        await api.drop()
        await until(lambda: seen.pods.keys() == {"b"})
        assert "expired" in seen.ends
        assert [query for query in api.requests if "watch" not in query][-1] == {"fieldSelector": "spec.nodeName=n1"}


@scenario
async def test_410_as_the_answer_itself(api: FakeApi) -> None:
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed and len(api.requests) == 2)
        api.fail = [410]
        await api.drop()
        await until(lambda: "expired" in seen.ends and [q.get("watch") for q in api.requests].count(None) == 2)


@scenario
async def test_a_server_that_is_away_and_comes_back(api: FakeApi) -> None:
    port = int(api.url.rpartition(":")[2])
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed)
        await api.stop()
        await until(lambda: seen.ends.count("unreachable") >= 3)
        await api.start(port)
        await api.put(pod("a"))
        await until(lambda: "a" in seen.pods)


@scenario
async def test_a_silent_watch_is_taken_for_dead(api: FakeApi) -> None:
    async with watching(api, silence=0.2) as (seen, watch):
        await until(lambda: watch.listed and len(api.requests) == 2)
        api.mute = True
        await api.put(pod("a"))
        await until(lambda: "silent" in seen.ends)
        api.mute = False
        await until(lambda: "a" in seen.pods)


@scenario
async def test_a_server_that_does_not_answer_is_not_a_silent_watch(api: FakeApi) -> None:
    """Silence is what befalls a watch that had begun; a list or a watch without an answer is told as what it is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(apiserver, "REQUEST_TIMEOUT", aiohttp.ClientTimeout(total=0.2))
        api.stalled = True
        async with watching(api, silence=0.2) as (seen, watch):
            await until(lambda: len(seen.ends) == 2)
            api.stalled = False
            await until(lambda: watch.listed and len(api.requests) > 3)
            api.stalled = True
            await api.drop()
            count = len(api.requests)
            await until(lambda: len(api.requests) > count + 1)
            api.stalled = False
    assert seen.ends[:2] == ["unreachable"] * 2
    assert seen.ends[-1] == "unreachable"


@scenario
async def test_a_server_that_says_when_to_come_back_is_heeded(api: FakeApi) -> None:
    api.fail, api.retry_after = [429], "1"
    started = time.monotonic()
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed)
        assert time.monotonic() - started >= 1  # without it, after some 10 ms
        api.fail, api.retry_after = [429], "Fri, 31 Dec 1999 23:59:59 GMT"  # the other form that HTTP allows
        await api.drop()
        await until(lambda: seen.ends.count("refused") == 2)
        await api.put(pod("a"))
        await until(lambda: "a" in seen.pods)


@scenario
async def test_refusals_are_tried_again_with_a_new_token(api: FakeApi) -> None:
    api.fail = [401, 403, 500]
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed)
        assert seen.ends == ["refused"] * 3
        assert len(set(api.tokens)) == len(api.tokens)


@scenario
async def test_one_unreadable_pod_does_not_stop_the_others(api: FakeApi) -> None:
    await api.put(pod("bad", hostNetwork="maybe"))
    await api.put(pod("good"))
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed and len(api.requests) == 2)
        assert seen.pods.keys() == {"good"}
        await api.put(pod("bad", hostNetwork=7))
        await api.put(pod("other"))
        await until(lambda: seen.pods.keys() == {"good", "other"})
        await api.delete("bad")
        await api.put(pod("last"))
        await until(lambda: "last" in seen.pods)
        assert seen.ends == []


@scenario
async def test_noise_in_the_stream_lists_anew(api: FakeApi) -> None:
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed and len(api.requests) == 2)
        api.version += 1
        await api.say("ADDED", "no object")
        await until(lambda: "unreadable" in seen.ends)
        api._log.clear()
        await until(lambda: [query.get("watch") for query in api.requests].count(None) == 2)
        # the server's cache may be behind the watch: from it, pods that came since would seem gone
        assert [query for query in api.requests if "watch" not in query][-1] == {"fieldSelector": "spec.nodeName=n1"}


@scenario
async def test_an_event_of_a_megabyte_in_many_pieces(api: FakeApi) -> None:
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed)
        big = pod("big")
        big["metadata"]["annotations"] = {"x": "y" * 1_500_000}
        await api.put(big)
        await until(lambda: "big" in seen.pods)
        assert seen.pods["big"].annotations == {}
