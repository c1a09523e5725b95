"""The taint of the agent's own node, taken away once the agent is ready, through whatever the API server says."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cni_agent.apiserver import Access, ApiServer
from cni_agent.invalid import Invalid
from cni_agent.node import taint
from cni_agent.node.settings import Settings
from tests.fake_api import FakeApi

KEY = "cni.istio.io/not-ready"
OURS = {"key": KEY, "effect": "NoSchedule"}
ALSO_OURS = {"key": KEY, "value": "true", "effect": "NoExecute"}
OTHER = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_SECONDS", "_FIRST_WAIT", "_LONGEST_WAIT"):
        monkeypatch.setattr(taint, name, 0.01)


def with_node(taints: list[dict[str, Any]] | None, test: Callable[[FakeApi, ApiServer], Awaitable[None]]) -> FakeApi:
    async def main() -> FakeApi:
        api = FakeApi()
        api.nodes["n1"] = {"metadata": {"name": "n1"}, "spec": {} if taints is None else {"taints": taints}}
        await api.start()
        try:
            async with ApiServer(Access(api.url, None, lambda: None), "test") as server, asyncio.timeout(20):
                await test(api, server)
        finally:
            await api.stop()
        return api

    return asyncio.run(main())


async def removed(_: FakeApi, server: ApiServer) -> None:
    await taint.remove(server, "n1", KEY, lambda: True)


def test_only_this_key_goes_whatever_its_effect() -> None:
    api = with_node([OURS, OTHER, ALSO_OURS], removed)
    assert api.nodes["n1"]["spec"]["taints"] == [OTHER]
    assert len(api.patched) == 1


@pytest.mark.parametrize("taints", [None, [], [OTHER]])
def test_without_it_nothing_is_written(taints: list[dict[str, Any]] | None) -> None:
    assert with_node(taints, removed).patched == []


def test_nothing_is_asked_before_the_agent_is_ready() -> None:
    async def test(api: FakeApi, server: ApiServer) -> None:
        ready = asyncio.Event()
        task = asyncio.create_task(taint.remove(server, "n1", KEY, ready.is_set))
        await asyncio.sleep(0.1)
        assert api.nodes["n1"]["spec"]["taints"] == [OURS]
        ready.set()
        await task
        assert api.nodes["n1"]["spec"]["taints"] == []

    with_node([OURS], test)


def test_a_taint_that_comes_between_reading_and_writing_is_kept() -> None:
    async def test(api: FakeApi, server: ApiServer) -> None:
        class Interrupted(ApiServer):
            async def send(self, *arguments: Any, **query: str) -> bytes:
                if not api.patched:
                    api.nodes["n1"]["spec"]["taints"] = [OTHER, OURS]
                return await server.send(*arguments, **query)

            async def get(self, *arguments: Any) -> bytes:
                return await server.get(*arguments)

        await taint.remove(Interrupted(Access("", None, lambda: None), "test"), "n1", KEY, lambda: True)

    api = with_node([OURS], test)
    assert len(api.patched) == 2
    assert api.nodes["n1"]["spec"]["taints"] == [OTHER]


def test_refusals_are_told_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cni_agent")

    async def test(api: FakeApi, server: ApiServer) -> None:
        api.fail += [403, 403, 403, 500]
        await removed(api, server)

    assert with_node([OURS], test).nodes["n1"]["spec"]["taints"] == []
    said = [(record.message, getattr(record, "error", "")) for record in caplog.records]
    assert [message for message, _ in said] == ["cannot remove the taint", "cannot remove the taint", "taint removed"]
    assert "get and patch of nodes" in said[0][1]


def test_a_server_that_is_away() -> None:
    async def test(api: FakeApi, server: ApiServer) -> None:
        port = int(api.url.rpartition(":")[2])
        await api.stop()
        task = asyncio.create_task(removed(api, server))
        await asyncio.sleep(0.1)
        assert not task.done()
        await api.start(port)
        await task

    assert with_node([OURS], test).nodes["n1"]["spec"]["taints"] == []


@pytest.mark.parametrize("key", ["", "not ready", "a/b/c", "key=value:NoSchedule", "x" * 64])
def test_a_key_that_is_none_is_named(key: str) -> None:
    with pytest.raises(Invalid, match="--remove-taint"):
        Settings(node_name="n1", remove_taint=key)


def test_a_folder_knows_no_nodes() -> None:
    with pytest.raises(Invalid, match="not with --pods-from"):
        Settings(pods_from="/pods", remove_taint=KEY)
    assert Settings(node_name="n1", remove_taint=KEY).remove_taint == KEY
