"""The layers of ProxyConfig, and which objects of the cluster have a say."""

from typing import Any

import pytest

from injector.config import proxyconfig
from injector.facts import ClusterFacts
from injector.mutation.effective import effective, hold
from injector.mutation.native import cluster_native
from injector.mutation.openshift import proxy_ids
from injector.settings import load_settings


def config(namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace}, "spec": spec}


FACTS = ClusterFacts(
    proxy_configs=(
        config("istio-system", {"concurrency": 1, "environmentVariables": {"A": "root", "B": "root"}}),
        config("istio-system", {"concurrency": 9}),
        config("demo", {"environmentVariables": {"B": "namespace"}, "selector": None}),
        config("demo", {"concurrency": 8, "selector": {}}),
        config(
            "demo", {"concurrency": 4, "selector": {"matchLabels": {"app": "web"}}, "image": {"imageType": "debug"}}
        ),
    )
)


@pytest.mark.parametrize(
    ("namespace", "labels", "concurrency", "metadata"),
    [
        ("other", {}, 1, {"A": "root", "B": "root"}),
        ("demo", {}, 1, {"A": "root", "B": "namespace"}),
        ("demo", {"app": "web", "x": "y"}, 4, {"A": "root", "B": "namespace"}),
    ],
)
def test_objects_of_the_cluster(namespace: str, labels: Any, concurrency: int, metadata: Any) -> None:
    result = effective(load_settings(), FACTS, namespace, labels, {})
    assert result["concurrency"] == concurrency
    assert result["proxyMetadata"] == metadata


def test_the_annotation_stands_between_namespace_and_workload() -> None:
    note = {"proxy.istio.io/config": "concurrency: 7\nproxyMetadata: {B: note}\n"}
    assert effective(load_settings(), FACTS, "demo", {}, note)["concurrency"] == 7
    web = effective(load_settings(), FACTS, "demo", {"app": "web"}, note)
    assert web["concurrency"] == 4
    assert web["proxyMetadata"] == {"A": "root", "B": "note"}
    assert web["image"] == {"imageType": "debug"}


def test_zero_values_do_not_undo_a_lower_layer() -> None:
    """Istio passes printed configs from layer to layer, and they have no zeros; wrapped zeros are there."""
    mesh = {"defaultConfig": {"interceptionMode": "TPROXY", "concurrency": 2}}
    note = {"proxy.istio.io/config": "interceptionMode: REDIRECT\nconcurrency: 0\n"}
    result = effective(load_settings(None, mesh), ClusterFacts(), "demo", {}, note)
    assert result["interceptionMode"] == "TPROXY"
    assert result["concurrency"] == 0


def test_hold_is_the_operators_or_the_pods() -> None:
    off = {"proxy.istio.io/config": "holdApplicationUntilProxyStarts: false"}
    assert not hold(load_settings(None, {"defaultConfig": {"holdApplicationUntilProxyStarts": True}}), off)
    assert hold(load_settings({"global": {"proxy": {"holdApplicationUntilProxyStarts": True}}}), off)


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ({"tracing": {}}, '{"tracing":{}}'),
        (
            {"tracing": {"sampling": 1, "customTags": {"b": {}, "a": {}}}},
            '{"tracing":{"customTags":{"a":{},"b":{}},"sampling":1}}',
        ),
        ({"discovery_address": "a:1", "drainDuration": "1m"}, '{"drainDuration":"60s","discoveryAddress":"a:1"}'),
        ({"tracingServiceName": "APP_LABEL_AND_NAMESPACE"}, '{"tracingServiceName":"APP_LABEL_AND_NAMESPACE"}'),
        ({"statusPort": "15030", "unknown": 1}, '{"statusPort":15030}'),
        ({"holdApplicationUntilProxyStarts": False}, '{"holdApplicationUntilProxyStarts":false}'),
    ],
)
def test_printed_as_protobuf_prints_it(written: Any, printed: str) -> None:
    config = proxyconfig.layered([proxyconfig.CODE_DEFAULTS, proxyconfig.read(written)])
    assert proxyconfig.printed(config) == printed + "\n"


@pytest.mark.parametrize(
    ("node", "versions", "native"),
    [
        ("a", {"a": "v1.33.0", "b": "v1.28.0"}, True),
        ("b", {"a": "v1.33.0", "b": "v1.28.0"}, False),
        ("gone", {"a": "v1.33.0", "b": "v1.34.1-eks-1"}, True),
        ("", {"a": "v1.33.0+rke2r1", "b": "what"}, False),
        ("", {}, True),
        ("", None, False),
    ],
)
def test_native_sidecars_by_node(node: str, versions: Any, native: bool) -> None:
    assert cluster_native(load_settings(), ClusterFacts(node_versions=versions), node) is native


@pytest.mark.parametrize(
    ("users", "groups", "ids"),
    [
        ("1000/10", "2000/5,3000/5", (1009, 2004)),
        ("1000-1999", None, (1999, 1999)),
        ("bad", "2000/5", (1337, 2004)),
        ("1000/10", "2000/5,bad", (1009, 1337)),
        (None, None, (1337, 1337)),
    ],
)
def test_openshift_ids(users: str | None, groups: str | None, ids: tuple[int, int]) -> None:
    named = {"openshift.io/sa.scc.uid-range": users, "openshift.io/sa.scc.supplemental-groups": groups}
    assert proxy_ids({name: text for name, text in named.items() if text is not None}) == ids
