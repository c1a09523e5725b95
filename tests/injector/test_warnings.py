"""What is allowed but probably not meant is said to whoever creates the pod."""

import copy
from typing import Any

import pytest

from injector.settings import load_settings
from tests.injector.conformance import ask

POD: Any = {
    "metadata": {"name": "web", "labels": {}, "annotations": {}},
    "spec": {"containers": [{"name": "app", "image": "a", "ports": [{"name": "http", "containerPort": 80}]}]},
}

SIDECAR = {"name": "side", "image": "a", "securityContext": {"runAsUser": 1337}}


def changed(path: str, value: Any) -> Any:
    pod = copy.deepcopy(POD)
    *outer, last = path.split("|")
    holder = pod
    for name in outer:
        holder = holder[int(name)] if isinstance(holder, list) else holder.setdefault(name, {})
    holder[last] = value
    return pod


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("metadata|labels|sidecar.istio.io/inject", "yes", "neither true nor false"),
        ("spec|containers|0|securityContext", {"runAsUser": 1337}, "its traffic is not captured"),
        ("spec|securityContext", {"runAsUser": 1337}, "'app' runs as user 1337, the proxy's"),
        ("spec|containers|0|securityContext", {"runAsGroup": 1337}, "'app' runs as group 1337, the proxy's"),
        ("spec|securityContext", {"runAsGroup": 1337}, "'app' runs as group 1337, the proxy's"),
        ("spec|initContainers", [{**SIDECAR, "restartPolicy": "Always"}], "'side' runs as user 1337, the proxy's"),
        ("spec|containers|0|livenessProbe", {"httpGet": {"port": "nope"}}, "app.livenessProbe names a port"),
        ("spec|containers|0|livenessProbe", {"httpGet": {"port": 80, "host": "1.2.3.4"}}, "asks host '1.2.3.4'"),
        ("spec|runtimeClassName", "kata-qemu", "cannot be captured from the node"),
        ("spec|runtimeClassName", "gvisor", "cannot be captured from the node"),
        ("metadata|annotations|sidecar.istio.io/nativeSidecar", "ja", "taken for true"),
        ("metadata|annotations|sidecar.istio.io/rewriteAppHTTPProbers", "ja", "ignored"),
        ("metadata|annotations|sidecar.istio.io/status", "ja", "ignored"),
    ],
)
def test_warned(path: str, value: Any, word: str) -> None:
    response = ask(changed(path, value), load_settings())
    assert response["allowed"]
    assert [warning for warning in response["warnings"] if word in warning], response["warnings"]
    assert all(len(warning) < 250 for warning in response["warnings"])


def test_host_network_that_asks_for_injection_is_told() -> None:
    pod = changed("metadata|labels|sidecar.istio.io/inject", "true")
    pod["spec"]["hostNetwork"] = True
    response = ask(pod, load_settings())
    assert response["allowed"]
    assert "patch" not in response
    assert "node's network" in response["warnings"][0]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata|labels|app", "web"),
        ("spec|containers|0|livenessProbe", {"httpGet": {"port": "http"}}),
        ("spec|containers|0|securityContext", {"runAsUser": 1000}),
        ("spec|runtimeClassName", "nvidia"),
        ("spec|initContainers", [SIDECAR]),  # the usual way to have the network before the proxy
    ],
)
def test_nothing_is_said_about_ordinary_pods(path: str, value: Any) -> None:
    assert "warnings" not in ask(changed(path, value), load_settings())


def test_the_ids_of_the_users_own_proxy_count() -> None:
    pod = changed("spec|securityContext", {"runAsUser": 2000, "runAsGroup": 3000})
    proxy = {"name": "istio-proxy", "image": "auto", "securityContext": {"runAsUser": 2000, "runAsGroup": 3000}}
    pod["spec"]["containers"].append(proxy)
    said = ask(pod, load_settings())["warnings"]
    assert ["as user 2000" in said[0], "as group 3000" in said[1]] == [True, True]
    del pod["spec"]["containers"][1]
    assert "warnings" not in ask(pod, load_settings())
