"""Settings from an API server that forgets, hangs up, refuses and comes back."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cni_agent.apiserver import ApiServer
from injector.serving import mirror
from injector.serving.cluster import PROXY_CONFIGS, ClusterSource
from injector.serving.scoreboard import Scoreboard
from injector.serving.source import Current, FileSource, Options
from tests.injector.fake_apiserver import FakeApiServer, fake_apiserver
from tests.injector.following import DEFAULTS, VALUES, current, hub, running, until

MAPS = "/api/v1/namespaces/istio-system/configmaps"
NODES = "/api/v1/nodes"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "FIRST_DELAY", 0.02)
    monkeypatch.setattr(mirror, "LONGEST_DELAY", 0.1)


async def stock(api: FakeApiServer, hub: str = "one", suffix: str = "") -> None:
    """What istiod's chart installs."""
    data = {"values": VALUES % hub, "config": "policy: enabled\n"}
    await api.put(MAPS, f"istio-sidecar-injector{suffix}", data=data)
    await api.put(MAPS, f"istio{suffix}", data={"mesh": "trustDomain: cluster.local\n"})
    api.collections.setdefault(NODES, {})
    api.collections.setdefault(PROXY_CONFIGS, {})


def with_server(test: Callable[[FakeApiServer], Awaitable[None]]) -> Callable[[], None]:
    """Runs a test beside an API server that has what istiod's chart installs."""

    async def talk() -> None:
        async with fake_apiserver() as api:
            await stock(api)
            await test(api)

    return lambda: asyncio.run(talk())


def follow(
    api: FakeApiServer, settings: Current, options: Options = DEFAULTS, **given: str
) -> Coroutine[Any, Any, None]:
    files_given = FileSource(given.get("values"), given.get("mesh"), given.get("config"))
    return ClusterSource(api.access(), "istio-system", options, files_given).follow(settings)


@with_server
async def test_the_config_maps_are_followed(api: FakeApiServer) -> None:
    settings = current()
    async with running(follow(api, settings)):
        await until(lambda: "one" in hub(settings))
        await stock(api, "two")
        await until(lambda: "two" in hub(settings))


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


@with_server
async def test_streams_that_end_are_resumed_without_a_new_list(api: FakeApiServer) -> None:
    settings = current()
    async with running(follow(api, settings)):
        await until(lambda: settings.live and api.watching == 4)
        lists = sum("watch" not in query for _, _, query in api.requests)
        for turn in range(3):
            await api.cut()
            await stock(api, f"turn-{turn}")
            await until(lambda: f"turn-{turn}" in hub(settings))  # noqa: B023 - awaited at once
        assert sum("watch" not in query for _, _, query in api.requests) == lists


@with_server
async def test_a_server_that_forgot_is_listed_again(api: FakeApiServer) -> None:
    settings = current()
    async with running(follow(api, settings)):
        await until(lambda: settings.live and api.watching == 4)
        await api.cut()
        await stock(api, "two")
        api.forget()
        await until(lambda: "two" in hub(settings))
        await stock(api, "three")
        await until(lambda: "three" in hub(settings))


@with_server
async def test_a_server_that_is_away_leaves_the_settings_in_use(api: FakeApiServer) -> None:
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


@with_server
async def test_bad_settings_are_refused_whole(api: FakeApiServer) -> None:
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


@with_server
async def test_nodes_are_asked_for_only_when_they_matter(api: FakeApiServer) -> None:
    options = Options(native_sidecars="true")
    settings = current(options)
    async with running(follow(api, settings, options)):
        await until(lambda: settings.live)
    assert not [path for _, path, _ in api.requests if path == NODES]


@with_server
async def test_proxy_configs_come_oldest_first_and_may_be_missing(api: FakeApiServer) -> None:
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


@with_server
async def test_namespaces_are_followed_on_openshift_only(api: FakeApiServer) -> None:
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


NAMESPACES = "/api/v1/namespaces"
RANGE = {"openshift.io/sa.scc.uid-range": "1000620000/10000"}


async def asked(api: FakeApiServer, path: str, times: int = 8) -> None:
    """Waits until we have tried a few times more."""
    already = len(api.requests)
    await until(lambda: sum(found == path for _, found, _ in api.requests[already:]) >= times)


@with_server
async def test_a_list_that_fails_for_a_moment_is_not_an_empty_one(api: FakeApiServer) -> None:
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


@with_server
async def test_what_we_may_not_read_is_told_and_does_not_stop_pods(api: FakeApiServer) -> None:
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


@with_server
async def test_on_openshift_namespaces_are_known_before_the_first_answer(api: FakeApiServer) -> None:
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


@with_server
async def test_settings_that_need_namespaces_wait_for_them(api: FakeApiServer) -> None:
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


def test_the_token_is_read_again_for_each_request() -> None:
    async def talk() -> None:
        async with fake_apiserver() as api, ApiServer(api.access(), "test") as client:
            api.collections[NODES] = {}
            for token in ("first", "second"):
                api.token = token
                assert b"items" in await client.get(NODES)

    asyncio.run(talk())
