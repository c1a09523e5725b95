"""The peer's unit tables, each through the function of ours that answers it."""

import json
from typing import Any

import msgspec
import pytest

from cni_agent.values import Refused
from injector.config import proxyconfig
from injector.config.chart import resources
from injector.facts import ClusterFacts
from injector.mutation import annotations, probes, prometheus, urlpath
from injector.mutation.draft import Draft
from injector.mutation.images import proxy_image
from injector.mutation.multus import with_network
from injector.mutation.native import cluster_native
from injector.mutation.otel import resource_attributes
from injector.mutation.pod import Container, Pod
from injector.mutation.previous import previous
from injector.mutation.quantity import canonical
from injector.mutation.rewrite import Rewrite, rewrite
from injector.settings import load_settings
from tests.injector.conformance import load, needs_conformance, patched

UNIT: dict[str, Any] = load("unit_cases.json") or {}
pytestmark = needs_conformance


def rows(name: str) -> Any:
    return pytest.mark.parametrize("row", UNIT.get(name, []))


def with_proxy(containers: list[Any], note: dict[str, str] | None = None) -> tuple[Draft, Any]:
    pod = {"metadata": {"annotations": note or {}}, "spec": {"containers": [*containers, {"name": "istio-proxy"}]}}
    return Draft(msgspec.convert(pod, Pod), lambda: pod), pod


@rows("should_rewrite_probers")
def test_whether_probes_are_rewritten(row: Any) -> None:
    settings = load_settings({"sidecarInjectorWebhook": {"rewriteAppHTTPProbe": row["values_setting"]}})
    probed = {"name": "a", "livenessProbe": {"httpGet": {"port": 80}}}
    draft, _ = with_proxy([probed], row["annotations"])
    assert (rewrite(draft, settings, None).variable is not None) is row["want"]


@rows("dump_app_probers(status_port=15020)")
def test_table_of_probes(row: Any) -> None:
    draft, _ = with_proxy(row["containers"])
    variable = rewrite(draft, load_settings(compatibility="istio"), None).variable
    assert (json.loads(variable) if variable else None) == row["want"]


@rows("patch_rewrite_probe(status_port=15020)")
def test_rewritten_probes(row: Any) -> None:
    pod = {"metadata": {"name": "x"}, "spec": {"containers": row["containers"]}}
    result = patched(pod, load_settings(native_sidecars="true", compatibility="istio"))
    assert result["spec"]["containers"] == row["want"]


@rows("merge_or_append_probers")
def test_table_beside_an_earlier_one(row: Any) -> None:
    result = Rewrite(variable=row["probers"], in_place=row["previously_injected"]).with_table(row["env"])
    assert result == row["want"]


@rows("parse_inject_path")
def test_variables_of_the_url(row: Any) -> None:
    assert urlpath.variables(row["path"]) == row["want"]


@rows("append_multus_network(istio-cni)")
def test_multus_networks(row: Any) -> None:
    assert with_network(row["in"], "istio-cni") == row["want"]
    assert with_network(row["want"], "istio-cni") == row["want"]


@rows("proxy_image")
def test_image(row: Any) -> None:
    settings = load_settings({"global": {"hub": row["hub"], "tag": row["tag"]}})
    said = row["annotation proxyImageType"]
    note = {"sidecar.istio.io/proxyImageType": said} if said is not None else {}
    assert proxy_image(settings, row["proxyConfig.image.imageType"] or "", note) == row["want"]


@rows("clean_proxy_config_json")
def test_printed_proxy_config(row: Any) -> None:
    config = proxyconfig.layered([proxyconfig.CODE_DEFAULTS, proxyconfig.read(row["proxyConfig"])])
    assert proxyconfig.printed(config) == row["want"] + "\n"


@rows("enable_prometheus_merge")
def test_whether_metrics_are_merged(row: Any) -> None:
    said = row["annotation merge-metrics"]
    note = {"prometheus.istio.io/merge-metrics": said} if said is not None else {}
    mesh = {"enablePrometheusMerge": row["mesh.enablePrometheusMerge"]}
    prometheus.merge(note, load_settings(None, mesh))
    assert ("prometheus.io/port" in note) is row["want"]


@rows("prometheus_scrape_config")
def test_scrape_annotations(row: Any) -> None:
    said = prometheus.scrape(row["annotations"])
    assert (said.port, said.path) == (row["port"], row["path"])
    assert [list(target) for target in said.targets] == (row["targets"] or [])


@rows("prometheus_merge")
def test_merged_annotations(row: Any) -> None:
    note = dict(row["annotations"])
    if row["error"]:
        with pytest.raises(Refused) as refused:
            prometheus.merge(note, load_settings())
        assert all(word in str(refused.value) for word in row.get("message_has", []))
        return
    prometheus.merge(note, load_settings())
    assert note == (row["annotations"] if row.get("unchanged") else row["want_annotations"])


@rows("secure_prometheus_annotation")
def test_secure_port(row: Any) -> None:
    env = [{"name": name, "value": value} for name, value in row["env"] or []]
    port = prometheus.secure_port(row["annotations"], env)
    assert row["annotations"].get("prometheus.istio.io/secure-port", port) == row["want"]


@rows("detect_native_sidecar")
def test_native_sidecars(row: Any) -> None:
    facts = ClusterFacts(node_versions={str(n): version for n, version in enumerate(row["kubelet_versions"])})
    assert cluster_native(load_settings(native_sidecars=row["mode"]), facts, "") is row["want"]


@rows("native_annotation_override")
def test_native_annotation(row: Any) -> None:
    settings = load_settings(native_sidecars="true" if row["cluster_native"] else "false")
    said = row["annotation"]
    note = {"sidecar.istio.io/nativeSidecar": said} if said is not None else {}
    pod = {"metadata": {"annotations": note}, "spec": {"containers": [{"name": "a"}]}}
    spec = patched(pod, settings)["spec"]
    assert "istio-proxy" in [container["name"] for container in spec[row["istio-proxy in"]]]


@rows("parse_status")
def test_status_annotation(row: Any) -> None:
    before = previous({"sidecar.istio.io/status": row["status"]})
    assert list(before.injected["containers"]) == row["containers"]
    assert list(before.injected["initContainers"]) == row["initContainers"]


@rows("validate_resource_quantity")
def test_quantity(row: Any) -> None:
    try:
        canonical(row["value"])
    except Refused:
        assert row["error"]
    else:
        assert not row["error"]


@rows("validate_annotations")
def test_annotations_are_checked(row: Any) -> None:
    try:
        annotations.check(row["annotations"], stock=True)
    except ValueError:
        assert row["error"]
    else:
        assert not row["error"]


@rows("otel_resource_attributes")
def test_resource_attributes(row: Any) -> None:
    containers = [msgspec.convert(container, Container) for container in row["containers"]]
    said = resource_attributes(row["annotations"], row["labels"], row["namespace"], containers)
    assert (said if row["enabled"] else "") == row["want"]


@rows("update_cluster_envs")
def test_variables_are_appended_sorted(row: Any) -> None:
    assert [{"name": name, "value": value} for name, value in sorted(urlpath.variables(row["path"]).items())] == row[
        "want"
    ]


def test_null_resources_are_left_out() -> None:
    assert resources({"limits": {"cpu": None, "memory": "500Mi"}, "requests": {"cpu": None}}) == {
        "limits": {"memory": "500Mi"}
    }


def test_reserved_ports_are_the_peers() -> None:
    for port in UNIT["reserved_scrape_ports"]:
        with pytest.raises(Refused):
            prometheus.merge({"prometheus.istio.io/scrape-targets": port}, load_settings())


def test_an_unreadable_table_is_kept() -> None:
    env = [{"name": probes.VARIABLE, "value": "not JSON"}]
    assert Rewrite(variable="{}", in_place=True).with_table(env) == env


@pytest.mark.parametrize(
    ("written", "option", "native", "noted"),
    [
        (None, "auto", "auto", False),
        ("auto", "auto", "auto", False),
        ("true", "auto", "true", False),
        (True, "auto", "true", False),
        ("false", "auto", "false", False),
        ("ja", "auto", "false", True),
        ("true", "false", "false", False),
        ("false", "true", "true", False),
    ],
)
def test_native_sidecars_as_istiod_was_told(written: Any, option: Any, native: str, noted: bool) -> None:
    """Our own option goes before istiod's variable."""
    settings = load_settings({"pilot": {"env": {"ENABLE_NATIVE_SIDECARS": written}}}, native_sidecars=option)
    assert settings.native_sidecars == native
    assert any("ENABLE_NATIVE_SIDECARS" in note for note in settings.notes) is noted


@pytest.mark.parametrize(
    ("name", "value", "noted"),
    [
        ("reinvocationPolicy", "IfNeeded", True),
        ("reinvocationPolicy", "Never", False),
        ("enableNamespacesByDefault", True, True),
        ("enableNamespacesByDefault", False, False),
    ],
)
def test_settings_of_the_webhooks_configuration_are_noted(name: str, value: Any, noted: bool) -> None:
    notes = load_settings({"sidecarInjectorWebhook": {name: value}}).notes
    assert any(name in note and "injector webhook --" in note for note in notes) is noted


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "registry.istio.io/testing/proxyv2:latest"),
        ({"hub": "h"}, "h/proxyv2:latest"),
        ({"tag": "1.29.0"}, "registry.istio.io/testing/proxyv2:1.29.0"),
        ({"hub": "h", "tag": "1.29.0"}, None),
        ({"hub": "h", "tag": 1.29}, None),
        ({"proxy": {"image": "h/proxyv2:1.29.0"}}, None),
    ],
)
def test_the_image_of_the_main_branch_is_not_used_in_silence(values: Any, image: str | None) -> None:
    notes = [note for note in load_settings({"global": values}).notes if "global.hub" in note]
    assert len(notes) == (image is not None)
    assert all(f"the proxy is {image};" in note for note in notes)
