"""What we do differently from stock, and only where we say so."""

import copy
import json
from typing import Any

import pytest
import yaml

from cni_agent.invalid import Invalid
from injector.settings import load_settings
from tests.injector.conformance import ask, patched

POD = {
    "metadata": {"name": "web", "labels": {"app": "web"}},
    "spec": {
        "initContainers": [{"name": "migrate", "image": "m"}],
        "containers": [{"name": "app", "image": "a"}],
    },
}


def pod(**annotations: str) -> Any:
    made: Any = copy.deepcopy(POD)
    made["metadata"]["annotations"] = {
        name.replace("__", "/").replace("_", "."): text for name, text in annotations.items()
    }
    return made


def named(result: Any, where: str, name: str) -> Any:
    return next(container for container in result["spec"][where] if container["name"] == name)


def names(result: Any, where: str) -> list[str]:
    return [container["name"] for container in result["spec"][where]]


@pytest.mark.parametrize("native", ["true", "false"])
def test_only_three_things_differ_from_stock(native: Any) -> None:
    ours = patched(POD, load_settings(native_sidecars=native))
    stock = patched(POD, load_settings(native_sidecars=native, compatibility="istio"))
    proxy_list = "initContainers" if native == "true" else "containers"
    validation = named(ours, "initContainers", "istio-validation")
    validation["args"].remove("--probe-timeout=600s")
    validation["resources"] = named(stock, "initContainers", "istio-validation")["resources"]
    for container in (validation, named(ours, proxy_list, "istio-proxy")):
        assert container["securityContext"].pop("seccompProfile") == {"type": "RuntimeDefault"}
    assert ours == stock


def test_the_hold_is_a_setting() -> None:
    settings = load_settings({"initless": {"holdTimeout": "1m30s", "validation": {"resources": {"limits": None}}}})
    validation = named(patched(POD, settings), "initContainers", "istio-validation")
    assert "--probe-timeout=90s" in validation["args"]
    assert validation["resources"] == {"requests": {"cpu": "10m", "memory": "40Mi"}}


def test_the_operators_seccomp_profile_wins() -> None:
    settings = load_settings({"global": {"proxy": {"seccompProfile": {"type": "Unconfined"}}}})
    proxy = named(patched(POD, settings), "containers", "istio-proxy")
    assert proxy["securityContext"]["seccompProfile"] == {"type": "Unconfined"}


@pytest.mark.parametrize("native", ["true", "false"])
def test_injected_containers_are_restricted(native: Any) -> None:
    """What Pod Security's `restricted` asks of every container."""
    result = patched(POD, load_settings(native_sidecars=native))
    injected = [c for where in ("initContainers", "containers") for c in result["spec"][where] if "istio" in c["name"]]
    assert len(injected) == 2
    for container in injected:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["runAsNonRoot"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")


def test_an_empty_list_of_included_ranges_is_written_out() -> None:
    settings = load_settings({"global": {"proxy": {"includeIPRanges": ""}}})
    assert patched(POD, settings)["metadata"]["annotations"]["traffic.sidecar.istio.io/includeOutboundIPRanges"] == ""
    stock = load_settings({"global": {"proxy": {"includeIPRanges": ""}}}, compatibility="istio")
    assert "traffic.sidecar.istio.io/includeOutboundIPRanges" not in patched(POD, stock)["metadata"]["annotations"]


@pytest.mark.parametrize("native", ["true", "false"])
def test_mode_none_has_no_validation(native: Any) -> None:
    result = patched(pod(sidecar_istio_io__interceptionMode="NONE"), load_settings(native_sidecars=native))
    assert "istio-validation" not in names(result, "initContainers")
    assert result["metadata"]["annotations"]["sidecar.istio.io/interceptionMode"] == "NONE"


@pytest.mark.parametrize(
    ("point", "native", "order"),
    [
        ("sandbox", "false", ["istio-validation", "migrate"]),
        ("sandbox", "true", ["istio-validation", "istio-proxy", "migrate"]),
        ("before-app", "false", ["migrate", "istio-validation"]),
        ("before-app", "true", ["migrate", "istio-validation", "istio-proxy"]),
    ],
)
def test_capture_point(point: str, native: Any, order: list[str]) -> None:
    settings = load_settings(native_sidecars=native)
    once = patched(pod(initless_io__capture=point), settings)
    assert names(once, "initContainers") == order
    assert patched(once, settings) == once


def test_another_capture_point_is_refused() -> None:
    response = ask(pod(initless_io__capture="later"), load_settings())
    assert not response["allowed"]
    assert "initless.io/capture" in response["status"]["message"]
    assert "sandbox or before-app" in response["status"]["message"]


def test_stock_injection_before_us_is_taken_over() -> None:
    """A pod that istiod injected with istio-init: its init container goes, ours comes."""
    settings = load_settings(native_sidecars="true")
    given = copy.deepcopy(POD)
    given["metadata"]["annotations"] = {
        "sidecar.istio.io/status": '{"initContainers":["istio-init"],"containers":["istio-proxy"]}'
    }
    given["spec"]["initContainers"].append(
        {"name": "istio-init", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}
    )
    given["spec"]["containers"].append(
        {"name": "istio-proxy", "lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}
    )
    result = patched(given, settings)
    assert names(result, "initContainers") == ["istio-validation", "istio-proxy", "migrate"]
    assert names(result, "containers") == ["app"]
    assert "postStart" not in named(result, "initContainers", "istio-proxy")["lifecycle"]


def test_a_copied_status_costs_no_container() -> None:
    status = json.dumps({"containers": ["app"], "initContainers": ["migrate"]})
    result = patched(pod(sidecar_istio_io__status=status), load_settings())
    assert names(result, "containers") == ["app", "istio-proxy"]
    assert named(result, "containers", "istio-proxy")["env"][10] == {
        "name": "ISTIO_META_APP_CONTAINERS",
        "value": "app",
    }


@pytest.mark.parametrize("compatibility", ["initless", "istio"])
def test_text_is_not_parsed_again(compatibility: Any) -> None:
    """Quotes and newlines in settings stay what they are; stock's text templates break on them."""
    mesh = {"defaultConfig": {"proxyMetadata": {"A": 'x"\n  - name: injected', "B": ""}}}
    result = patched(POD, load_settings(None, mesh, compatibility=compatibility))
    env = named(result, "containers", "istio-proxy")["env"]
    assert {"name": "A", "value": 'x"\n  - name: injected'} in env
    assert {"name": "B"} in env


OVERLAY = """
metadata:
  annotations: {added: "yes", gone: null}
spec:
  terminationGracePeriodSeconds: 60
  nodeSelector: {disk: ssd}
  containers:
  - name: istio-proxy
    env: [{name: EXTRA, value: "1"}]
    volumeMounts: [{name: workload-socket, mountPath: /var/run/secrets/workload-spiffe-uds, readOnly: true}]
  volumes:
  - name: workload-socket
    csi: {driver: csi.spiffe.io}
"""


@pytest.mark.parametrize("overlay", [OVERLAY, yaml.safe_load(OVERLAY)], ids=["text", "mapping"])
def test_plain_overlays_merge_by_the_same_rules(overlay: Any) -> None:
    settings = load_settings(
        {"sidecarInjectorWebhook": {"templates": {"spire": overlay}, "defaultTemplates": ["sidecar", "spire"]}}
    )
    result = patched(pod(gone="1"), settings)
    proxy = named(result, "containers", "istio-proxy")
    assert proxy["env"][0] == {"name": "EXTRA", "value": "1"}
    assert proxy["volumeMounts"][0]["readOnly"] is True
    assert proxy["image"] == "registry.istio.io/testing/proxyv2:latest"
    assert named({"spec": result["spec"]}, "volumes", "workload-socket")["csi"] == {"driver": "csi.spiffe.io"}
    assert result["spec"]["terminationGracePeriodSeconds"] == 60
    assert result["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert result["metadata"]["annotations"]["added"] == "yes"
    assert "gone" not in result["metadata"]["annotations"]
    assert patched(result, settings) == result


def test_a_go_template_is_refused_where_it_is_asked_for() -> None:
    values = {"sidecarInjectorWebhook": {"templates": {"custom": "spec: {{ .Spec }}"}}}
    settings = load_settings(values)
    assert "istio-proxy" in names(patched(POD, settings), "containers")
    response = ask(pod(inject_istio_io__templates="sidecar,custom"), settings)
    assert not response["allowed"]
    assert "plain YAML overlay" in response["status"]["message"]
    values["sidecarInjectorWebhook"]["defaultTemplates"] = ["custom"]  # type: ignore[assignment]
    with pytest.raises(Invalid, match="plain YAML overlay"):
        load_settings(values)


def test_an_unknown_template_names_the_known_ones() -> None:
    response = ask(pod(inject_istio_io__templates="nope"), load_settings())
    assert "'nope' not found; have gateway, grpc-agent, sidecar" in response["status"]["message"]


def test_templates_that_disagree_are_refused() -> None:
    settings = load_settings(native_sidecars="true")
    message = ask(pod(inject_istio_io__templates="sidecar,gateway"), settings)["status"]["message"]
    assert "templates sidecar, gateway make istio-proxy an init container and not one" in message


def test_all_that_is_wrong_with_settings_is_said_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        load_settings(
            {"global": {"proxy": {"statusPort": "x", "privileged": 1, "resources": {"limits": {"cpu": "much"}}}}},
            {"defaultConfig": {"drainDuration": "soon"}, "proxyListenPort": 70000},
        )
    assert {violation.field for violation in refused.value.violations} == {
        "values.global.proxy.statusPort",
        "values.global.proxy.privileged",
        "values.global.proxy.resources",
        "mesh.defaultConfig",
        "mesh.proxyListenPort",
    }


def test_all_bad_annotations_are_said_at_once() -> None:
    bad = pod(
        sidecar_istio_io__proxyCPU="much",
        traffic_sidecar_istio_io__excludeInterfaces="1",
        proxy_istio_io__config="statusPort: 0",
    )
    message = ask(bad, load_settings())["status"]["message"]
    assert all(name in message for name in ("proxyCPU", "excludeInterfaces", "statusPort must be"))


def test_without_a_status_port_probes_stay_as_they_are() -> None:
    probe = {"httpGet": {"port": 8080, "path": "/ready"}}
    given = {
        "metadata": {"name": "web", "annotations": {"status.sidecar.istio.io/port": "0"}},
        "spec": {"containers": [{"name": "app", "image": "app", "readinessProbe": probe}]},
    }
    result = patched(given, load_settings())
    [app] = [container for container in result["spec"]["containers"] if container["name"] == "app"]
    assert app["readinessProbe"] == probe


def test_a_volume_that_has_the_name_of_ours_is_refused_by_name() -> None:
    given = {
        "metadata": {"name": "web"},
        "spec": {
            "containers": [{"name": "app", "image": "app"}],
            "volumes": [{"name": "istio-token", "secret": {"secretName": "mine"}}],
        },
    }
    response = ask(given, load_settings())
    assert not response["allowed"]
    assert "volume 'istio-token'" in response["status"]["message"]


NETWORKS = "k8s.v1.cni.cncf.io/networks"
MULTUS = {"global": {"platform": "openshift"}, "pilot": {"cni": {"provider": "multus"}}}


def test_multus_is_not_sent_to_a_plugin_that_is_not_there() -> None:
    """What istiod's OpenShift profile sets; without istio-cni, Multus would fail every sandbox."""
    ours, stock = load_settings(MULTUS), load_settings(MULTUS, compatibility="istio")
    assert NETWORKS not in patched(POD, ours)["metadata"]["annotations"]
    assert patched(POD, stock)["metadata"]["annotations"][NETWORKS] == "default/istio-cni"
    given = pod(k8s_v1_cni_cncf_io__networks="sriov")
    assert patched(given, ours)["metadata"]["annotations"][NETWORKS] == "sriov"


@pytest.mark.parametrize(
    ("own", "left"),
    [
        ("", None),
        ("sriov", "sriov"),
        ('[{"name": "sriov"}]', '[{"name":"sriov"}]'),
    ],
)
def test_istio_cni_of_an_earlier_injection_is_taken_out(own: str, left: str | None) -> None:
    given = pod(**({"k8s_v1_cni_cncf_io__networks": own} if own else {}))
    before = patched(given, load_settings(MULTUS, compatibility="istio"))
    assert "istio-cni" in before["metadata"]["annotations"][NETWORKS]
    after = patched(before, load_settings(MULTUS))
    assert after["metadata"]["annotations"].get(NETWORKS) == left


def with_native_sidecar(**probes: Any) -> Any:
    given = pod()
    sidecar = {"name": "cloud-sql-proxy", "image": "x", "restartPolicy": "Always", **json.loads(json.dumps(probes))}
    given["spec"]["initContainers"].insert(0, sidecar)
    return given


HTTP = {"httpGet": {"path": "/startup", "port": 9090}}
SQL = {"startupProbe": HTTP, "livenessProbe": HTTP, "lifecycle": {"postStart": HTTP, "preStop": HTTP}}


def asks_the_agent(handler: Any) -> bool:
    return bool(handler["httpGet"]["port"] == 15020)


@pytest.mark.parametrize(
    ("native", "capture", "early", "stuck"),
    [
        ("true", "sandbox", False, False),
        ("true", "before-app", True, False),
        ("false", "before-app", True, False),
        ("false", "sandbox", True, True),
    ],
)
def test_a_native_sidecar_that_starts_before_the_proxy_does_not_wait_for_it(
    native: Any, capture: str, early: bool, stuck: bool
) -> None:
    """The kubelet goes on only when its startupProbe and postStart succeed, and the agent is yet to come."""
    settings = load_settings(native_sidecars=native)
    given = with_native_sidecar(**SQL)
    given["metadata"]["annotations"] = {"initless.io/capture": capture}
    result = patched(given, settings)
    sidecar = named(result, "initContainers", "cloud-sql-proxy")
    assert asks_the_agent(sidecar["startupProbe"]) is not early
    assert asks_the_agent(sidecar["lifecycle"]["postStart"]) is not early
    assert asks_the_agent(sidecar["livenessProbe"])
    assert asks_the_agent(sidecar["lifecycle"]["preStop"])
    said = ask(given, settings).get("warnings", [])
    assert any("livenessProbe fails until istio-proxy runs" in warning for warning in said) is early
    assert any("startupProbe would be answered by istio-proxy" in warning for warning in said) is stuck
    assert all(len(warning) < 250 for warning in said)
    assert patched(result, settings) == result


@pytest.mark.parametrize(
    ("annotations", "stuck"),
    [
        ({"traffic.sidecar.istio.io/excludeInboundPorts": "80, 9090"}, False),
        ({"traffic.sidecar.istio.io/excludeInboundPorts": "909"}, True),
        ({"traffic.sidecar.istio.io/includeInboundPorts": "80"}, False),
        ({"traffic.sidecar.istio.io/includeInboundPorts": "80,9090"}, True),
        ({"sidecar.istio.io/interceptionMode": "NONE"}, False),
    ],
)
def test_a_startup_probe_outside_of_capture_is_no_reason_to_warn(annotations: dict[str, str], stuck: bool) -> None:
    given = with_native_sidecar(startupProbe=HTTP)
    given["metadata"]["annotations"] = annotations
    said = ask(given, load_settings(native_sidecars="false")).get("warnings", [])
    assert any("the pod will not start" in warning for warning in said) is stuck


@pytest.mark.parametrize(
    "probe",
    [
        {"httpGet": {"path": "/ready", "port": 8080, "host": "1.2.3.4"}},
        {"httpGet": {"path": "/ready", "port": "nope"}},
        {"tcpSocket": {"port": "nope"}},
    ],
)
def test_a_probe_that_the_agent_cannot_answer_stays_as_it_is(probe: Any) -> None:
    """It would ask the agent's port at another host, or for a path that the agent does not know."""
    given = pod()
    given["spec"]["containers"][0] |= {"readinessProbe": copy.deepcopy(probe), "livenessProbe": copy.deepcopy(HTTP)}
    app = named(patched(given, load_settings()), "containers", "app")
    assert app["readinessProbe"] == probe
    assert asks_the_agent(app["livenessProbe"])
    stock = patched(given, load_settings(compatibility="istio"))
    assert asks_the_agent(named(stock, "containers", "app")["readinessProbe"])


WINDOWS = {"os": {"name": "windows"}}
BY_SELECTOR = {"nodeSelector": {"kubernetes.io/os": "windows"}}


@pytest.mark.parametrize(
    ("spec", "left"),
    [
        (WINDOWS, True),
        (BY_SELECTOR, True),
        ({**BY_SELECTOR, "os": {"name": "linux"}}, False),
        ({"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": None}}, False),
        ({"os": None, "nodeSelector": None}, False),
    ],
)
def test_pods_for_windows_are_left_alone(spec: Any, left: bool) -> None:
    given = pod()
    given["spec"] |= spec
    assert ("patch" not in ask(given, load_settings())) is left
    assert "patch" in ask(given, load_settings(compatibility="istio"))


def test_a_pod_for_windows_that_asks_for_injection_is_told() -> None:
    given = pod(sidecar_istio_io__inject="true")
    given["spec"] |= WINDOWS
    response = ask(given, load_settings())
    assert response["allowed"]
    assert "the pod is for Windows" in response["warnings"][0]
