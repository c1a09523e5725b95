"""Settings from files and from an API server that forgets, hangs up, refuses and comes back."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cni_agent.apiserver import ApiServer
from cni_agent.invalid import Invalid
from injector.serving import files, mirror
from injector.serving.cluster import PROXY_CONFIGS, ClusterSource
from injector.serving.scoreboard import Scoreboard
from injector.serving.source import Current, Documents, FileSource, Options, read_settings
from tests.injector.fake_apiserver import FakeApiServer, fake_apiserver

MAPS = "/api/v1/namespaces/istio-system/configmaps"
NODES = "/api/v1/nodes"
VALUES = '{"global": {"hub": "example.org/%s"}}'
PATIENCE = 30.0
DEFAULTS = Options()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(mirror, "LONGEST_DELAY", 0.1)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def current(options: Options = DEFAULTS) -> Current:
    return Current(options, Scoreboard(1).rows[0])


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def stock(api: FakeApiServer, hub: str = "one", suffix: str = "") -> None:
    """What istiod's chart installs."""
    data = {"values": VALUES % hub, "config": "policy: enabled\n"}
    await api.put(MAPS, f"istio-sidecar-injector{suffix}", data=data)
    await api.put(MAPS, f"istio{suffix}", data={"mesh": "trustDomain: cluster.local\n"})
    api.collections.setdefault(NODES, {})
    api.collections.setdefault(PROXY_CONFIGS, {})


def hub(settings: Current) -> str:
    return settings.live.settings.chart.hub if settings.live else ""


# Files


def test_no_files_mean_our_defaults() -> None:
    assert FileSource(None, None, None).read() == Documents()
    assert read_settings(Documents(), Options())


@pytest.mark.parametrize("text", ["a: [", "- 1", "just text", "{1: 2}", "a: &a [*a]\nb: !!python/object:os.system x"])
def test_a_text_that_is_no_mapping_is_refused_by_name(text: str) -> None:
    with pytest.raises(Invalid, match="my-values"):
        read_settings(Documents(values=text, names={"values": "my-values"}), Options())


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        read_settings(Documents(values="a: [", mesh="- 1"), Options())
    assert [violation.field for violation in caught.value.violations] == ["values", "mesh"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="--mesh"):
        FileSource(None, str(tmp_path / "absent"), None).read()


@pytest.mark.parametrize("how", ["rewrite", "rename", "symlink"])
def test_every_way_to_change_a_file_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "values.yaml"

    async def talk() -> None:
        settings = current()
        async with running(FileSource(str(path), None, None).follow(settings, 0.02)):
            await until(lambda: "one" in hub(settings))
            if how == "rewrite":
                path.write_text(VALUES % "two")
            elif how == "rename":
                (tmp_path / "new").write_text(VALUES % "two")
                (tmp_path / "new").rename(path)
            else:
                (tmp_path / "b").mkdir()
                (tmp_path / "b/values.yaml").write_text(VALUES % "two")
                (tmp_path / "..tmp").symlink_to("b")
                (tmp_path / "..tmp").rename(tmp_path / "..data")
            await until(lambda: "two" in hub(settings))

    if how == "symlink":
        (tmp_path / "a").mkdir()
        (tmp_path / "a/values.yaml").write_text(VALUES % "one")
        (tmp_path / "..data").symlink_to("a")
        path.symlink_to("..data/values.yaml")
    else:
        path.write_text(VALUES % "one")
    asyncio.run(talk())


def test_a_file_is_read_only_when_it_rests(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("0")

    async def talk() -> list[str]:
        seen: list[str] = []

        async def follow() -> None:
            async for _ in files.changes([str(path)], files.signature([str(path)]), 0.1):
                seen.append(path.read_text())

        async with running(follow()):
            for size in range(1, 40):  # a slow writer: changed at each look
                path.write_text("x" * size)
                await asyncio.sleep(0.02)
            path.write_text("done")
            await until(lambda: "done" in seen)
        return seen

    assert asyncio.run(talk()) == ["done"]


def test_notes_on_the_settings_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        settings = current()
        values = "{global: {hub: h, tag: t}, sidecarInjectorWebhook: {reinvocationPolicy: IfNeeded}}"
        await settings.offer(Documents(values=values))
        assert settings.live

    asyncio.run(talk())
    (said,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "reinvocationPolicy" in vars(said)["note"]


# The cluster


def follow(
    api: FakeApiServer, settings: Current, options: Options = DEFAULTS, **given: str
) -> Coroutine[Any, Any, None]:
    files_given = FileSource(given.get("values"), given.get("mesh"), given.get("config"))
    return ClusterSource(api.access(), "istio-system", options, files_given).follow(settings)


def test_the_config_maps_are_followed() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: "one" in hub(settings))
                await stock(api, "two")
                await until(lambda: "two" in hub(settings))

    asyncio.run(talk())


def test_a_revision_has_config_maps_of_its_own() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api, "default")
            await stock(api, "canary", "-canary")
            options = Options(revision="canary")
            settings = current(options)
            async with running(follow(api, settings, options)):
                await until(lambda: settings.live)
                assert "canary" in hub(settings)

    asyncio.run(talk())


def test_streams_that_end_are_resumed_without_a_new_list() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: settings.live and api.watching == 4)
                lists = sum("watch" not in query for _, _, query in api.requests)
                for turn in range(3):
                    await api.cut()
                    await stock(api, f"turn-{turn}")
                    await until(lambda: f"turn-{turn}" in hub(settings))  # noqa: B023 - awaited at once
                assert sum("watch" not in query for _, _, query in api.requests) == lists

    asyncio.run(talk())


def test_a_server_that_forgot_is_listed_again() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: settings.live and api.watching == 4)
                await api.cut()
                await stock(api, "two")
                api.forget()
                await until(lambda: "two" in hub(settings))
                await stock(api, "three")
                await until(lambda: "three" in hub(settings))

    asyncio.run(talk())


def test_a_server_that_is_away_leaves_the_settings_in_use() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: "one" in hub(settings))
                await api.stop()
                await until(lambda: settings.notes)
                assert settings.live
                assert not settings.problem
                await stock(api, "two")
                await api.start()
                await until(lambda: "two" in hub(settings) and not settings.notes)

    asyncio.run(talk())


def test_what_is_missing_is_named_and_picked_up_when_it_comes() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            api.collections |= {MAPS: {}, NODES: {}, PROXY_CONFIGS: {}}
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: "istio-system/istio-sidecar-injector" in settings.problem)
                assert "--mesh FILE" in settings.problem
                assert "istio-system/istio, whose key mesh is needed, does not exist" in settings.problem
                await api.put(MAPS, "istio", data={"other": ""})
                await until(lambda: "istio-system/istio has no key mesh" in settings.problem)
                await stock(api)
                await until(lambda: settings.live)
                await api.delete(MAPS, "istio-sidecar-injector")
                await until(lambda: settings.problem)
                assert settings.live  # deleting the ConfigMap does not stop injection

    asyncio.run(talk())


def test_bad_settings_are_refused_whole() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: settings.live)
                before = settings.live
                assert before
                await api.put(MAPS, "istio", data={"mesh": "trustDomain: other\n"})
                await api.put(MAPS, "istio-sidecar-injector", data={"values": "global: [", "config": ""})
                await until(lambda: settings.problem)
                assert settings.live
                assert settings.live.settings is before.settings  # not even the good half was applied

    asyncio.run(talk())


def test_a_file_is_merged_over_its_key(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("initless: {holdTimeout: 42s}")

    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            settings = current()
            async with running(follow(api, settings, values=str(values))):
                await until(lambda: "one" in hub(settings))
                assert settings.live
                assert settings.live.settings.hold_timeout == "42s"
                values.write_text(VALUES % "newer")
                await until(lambda: "newer" in hub(settings))

    asyncio.run(talk())


def node(version: str) -> dict[str, Any]:
    return {"status": {"nodeInfo": {"kubeletVersion": version, "osImage": "x"}, "images": [{"names": ["y"]}]}}


def test_nodes_are_known_page_by_page_before_the_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "PAGE", "7")

    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            for number in range(30):
                await api.put(NODES, f"node-{number}", **node("v1.33.1"))
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: settings.live)
                assert settings.live
                assert settings.live.facts.node_versions == {f"node-{number}": "v1.33.1" for number in range(30)}
                await api.put(NODES, "node-3", **node("v1.32.9"))
                await api.delete(NODES, "node-4")
                await until(lambda: len((settings.live and settings.live.facts.node_versions) or ()) == 29)
                assert (settings.live.facts.node_versions or {})["node-3"] == "v1.32.9"

    asyncio.run(talk())


def test_nodes_are_asked_for_only_when_they_matter() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            options = Options(native_sidecars="true")
            settings = current(options)
            async with running(follow(api, settings, options)):
                await until(lambda: settings.live)
            assert not [path for _, path, _ in api.requests if path == NODES]

    asyncio.run(talk())


def test_proxy_configs_come_oldest_first_and_may_be_missing() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            del api.collections[PROXY_CONFIGS]  # the CRD is not installed
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: settings.live)
                assert "ProxyConfigs" in settings.notes
                for name, stamp in (
                    ("b", "2026-01-02T00:00:00Z"),
                    ("a", "2026-01-01T00:00:00Z"),
                    ("c", "2026-01-01T00:00:00Z"),
                ):
                    metadata = {"namespace": "demo", "creationTimestamp": stamp}
                    await api.put(PROXY_CONFIGS, name, metadata=metadata, spec={"concurrency": 2})
                await until(lambda: settings.live and len(settings.live.facts.proxy_configs) == 3)
                assert settings.live
                assert [found["metadata"]["name"] for found in settings.live.facts.proxy_configs] == ["a", "c", "b"]

    asyncio.run(talk())


def test_namespaces_are_followed_on_openshift_only() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            annotations = {"openshift.io/sa.scc.uid-range": "1000620000/10000", "other": "x" * 1000}
            await api.put("/api/v1/namespaces", "demo", metadata={"annotations": annotations})
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: settings.live)
                assert not [path for _, path, _ in api.requests if path == "/api/v1/namespaces"]
                data = {"values": '{"global": {"platform": "openshift"}}', "config": "policy: enabled"}
                await api.put(MAPS, "istio-sidecar-injector", data=data)
                await until(lambda: settings.live and settings.live.facts.namespace_annotations)
                assert settings.live
                found = settings.live.facts.namespace_annotations["demo"]
                assert found == {"openshift.io/sa.scc.uid-range": "1000620000/10000"}

    asyncio.run(talk())


NAMESPACES = "/api/v1/namespaces"
RANGE = {"openshift.io/sa.scc.uid-range": "1000620000/10000"}


async def asked(api: FakeApiServer, path: str, times: int = 8) -> None:
    """Waits until we have tried a few times more."""
    already = len(api.requests)
    await until(lambda: sum(found == path for _, found, _ in api.requests[already:]) >= times)


def test_a_list_that_fails_for_a_moment_is_not_an_empty_one() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            await api.put(NODES, "n1", **node("v1.34.0"))
            await api.put(PROXY_CONFIGS, "p", metadata={"namespace": "istio-system"}, spec={"concurrency": 7})
            api.failing = {NODES: 503, PROXY_CONFIGS: 503}
            settings = current()
            async with running(follow(api, settings)):
                await asked(api, NODES)
                await asked(api, PROXY_CONFIGS)
                assert settings.live is None
                assert {"Nodes", "ProxyConfigs"} <= set(settings.notes)
                api.failing = {}
                await until(lambda: settings.live)
                assert settings.live
                assert settings.live.facts.node_versions == {"n1": "v1.34.0"}
                assert len(settings.live.facts.proxy_configs) == 1

    asyncio.run(talk())


def test_what_we_may_not_read_is_told_and_does_not_stop_pods() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            api.failing = {NODES: 403}
            row = Scoreboard(1).rows[0]
            settings = Current(DEFAULTS, row)
            async with running(follow(api, settings)):
                await until(lambda: settings.live)
                assert row["unread_nodes"] == 1
                assert row["unread_proxyconfigs"] == 0
                assert "as the test says (HTTP 403)" in settings.notes["Nodes"]
                api.failing = {}
                await until(lambda: not row["unread_nodes"])
                assert settings.live
                assert settings.live.facts.node_versions == {}

    asyncio.run(talk())


def test_on_openshift_namespaces_are_known_before_the_first_answer() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            data = {"values": '{"global": {"platform": "openshift"}}', "config": "policy: enabled"}
            await api.put(MAPS, "istio-sidecar-injector", data=data)
            await api.put(NAMESPACES, "demo", metadata={"annotations": RANGE})
            api.failing = {NAMESPACES: 503}
            settings = current()
            async with running(follow(api, settings)):
                await asked(api, NAMESPACES)
                assert settings.live is None
                api.failing = {}
                await until(lambda: settings.live)
                assert settings.live
                assert settings.live.facts.namespace_annotations == {"demo": RANGE}

    asyncio.run(talk())


def test_settings_that_need_namespaces_wait_for_them() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            await api.put(NAMESPACES, "demo", metadata={"annotations": RANGE})
            api.failing = {NAMESPACES: 503}
            settings = current()
            async with running(follow(api, settings)):
                await until(lambda: settings.live)
                data = {"values": '{"global": {"platform": "openshift"}}', "config": "policy: enabled"}
                await api.put(MAPS, "istio-sidecar-injector", data=data)
                await asked(api, NAMESPACES)
                assert settings.live
                assert not settings.live.settings.chart.openshift
                api.failing = {}
                await until(lambda: settings.live and settings.live.settings.chart.openshift)
                assert settings.live.facts.namespace_annotations == {"demo": RANGE}

    asyncio.run(talk())


def test_the_token_is_read_again_for_each_request() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            api.collections[NODES] = {}
            for token in ("first", "second"):
                api.token = token
                assert b"items" in await client.get(NODES)

    asyncio.run(talk())
