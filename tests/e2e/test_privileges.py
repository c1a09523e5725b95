"""Nothing is asked for in vain: each right of the manifests is taken away, and something stops working."""

import contextlib
import json
import time
from collections.abc import Iterator

import pytest

from tests.e2e import agent, deployment
from tests.e2e.cluster import Cluster, Object, status_of, until
from tests.e2e.deployment import SYSTEM
from tests.e2e.meshed import Mesh, address, assert_captured, pod

CAPABILITIES = ["NET_ADMIN", "NET_RAW", "SETUID", "SYS_ADMIN", "SYS_PTRACE"]
CONTAINER = "/spec/template/spec/containers/0"
INJECTOR = "app.kubernetes.io/name=injector"


def without(kube: Cluster, capability: str) -> list[Object]:
    container = kube.get("daemonset", "cni-agent", SYSTEM)["spec"]["template"]["spec"]["containers"][0]
    added = container["securityContext"]["capabilities"]["add"]
    assert added == CAPABILITIES
    changes: list[Object] = [
        {"op": "remove", "path": f"{CONTAINER}/securityContext/capabilities/add/{added.index(capability)}"}
    ]
    if capability == "NET_RAW":  # which only this backend needs
        changes.append(backend(container, "iptables-legacy"))
    return changes


def backend(container: Object, name: str) -> Object:
    place = container["args"].index("--backend=auto")
    return {"op": "replace", "path": f"{CONTAINER}/args/{place}", "value": f"--backend={name}"}


def is_held(kube: Cluster, one: Object) -> bool:
    """Its istio-validation runs, since nothing is captured."""
    metadata = one["metadata"]
    found = kube.get("pod", metadata["name"], metadata["namespace"])
    return "running" in status_of(found, "istio-validation").get("state", {})


def assert_nothing_is_captured(kube: Cluster, mesh: Mesh, changes: list[Object], outside: Object) -> None:
    namespace = mesh.meshed()
    with agent.changed(kube, changes, starts=False):
        mesh.create(namespace, pod("web"))
        (one,) = until("a pod", lambda: kube.pods(namespace))
        until("istio-validation waits", lambda: is_held(kube, one), 30)
        time.sleep(4)
        assert is_held(kube, one), "it was captured all the same"
    (one,) = mesh.ready(namespace)
    assert_captured(kube, one, outside)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_each_capability_is_needed(kube: Cluster, mesh: Mesh, outside: Object, capability: str) -> None:
    assert_nothing_is_captured(kube, mesh, without(kube, capability), outside)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "replace", "path": "/spec/template/spec/hostPID", "value": False},
        {"op": "replace", "path": "/spec/template/spec/volumes/0", "value": {"name": "cgroup", "emptyDir": {}}},
    ],
    ids=["hostPID", "cgroups of the node"],
)
def test_each_view_of_the_node_is_needed(kube: Cluster, mesh: Mesh, outside: Object, change: Object) -> None:
    assert_nothing_is_captured(kube, mesh, [change], outside)


@pytest.mark.parametrize("name", ["iptables-legacy", "nftables"])
def test_the_capabilities_suffice_for_other_backends(kube: Cluster, mesh: Mesh, outside: Object, name: str) -> None:
    """The default one is what all other tests use."""
    container = kube.get("daemonset", "cni-agent", SYSTEM)["spec"]["template"]["spec"]["containers"][0]
    (before,) = mesh.start(mesh.meshed(), pod("web"))
    with agent.changed(kube, [backend(container, name)]):
        (one,) = mesh.start(mesh.meshed(), pod("web"))
        for found in (one, before):
            assert_captured(kube, found, outside)
    for found in (one, before):
        until("back to the first backend, and captured", lambda: is_captured(kube, found, outside), 15)  # noqa: B023


def is_captured(kube: Cluster, one: Object, outside: Object) -> bool:
    return bool(kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == "127.0.0.6")


@contextlib.contextmanager
def forbidden(kube: Cluster, role: str, resource: str, verb: str) -> Iterator[None]:
    """A role less one verb of one resource. `role`: kind/name, or kind/name@namespace."""
    name, _, namespace = role.partition("@")
    kind, _, name = name.partition("/")
    before = kube.get(kind, name, namespace)["rules"]
    rules = [
        {**rule, "verbs": [found for found in rule["verbs"] if found != verb]}
        if resource in rule["resources"]
        else rule
        for rule in before
    ]
    assert rules != before
    write(kube, kind, name, namespace, rules)
    try:
        yield
    finally:
        write(kube, kind, name, namespace, before)


def write(kube: Cluster, kind: str, name: str, namespace: str, rules: list[Object]) -> None:
    wanted = [rule for rule in rules if rule["verbs"]]
    change = json.dumps([{"op": "replace", "path": "/rules", "value": wanted}])
    kube.kubectl("patch", kind, name, "--type=json", "-p", change, *(["-n", namespace] if namespace else []))


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_the_agent_needs_to_see_pods(kube: Cluster, mesh: Mesh, outside: Object, verb: str) -> None:
    namespace = mesh.meshed()
    with forbidden(kube, "clusterrole/initless-cni-agent", "pods", verb):
        name = another(kube, agent.AGENT)
        words = f'cannot {verb} resource "pods"'
        until("it says what it may not do", lambda: said(kube, name, "cni-agent", words), 30)
        mesh.create(namespace, pod("web"))
        (one,) = until("a pod", lambda: kube.pods(namespace))
        until("istio-validation waits", lambda: is_held(kube, one), 30)
    (one,) = mesh.ready(namespace)
    assert_captured(kube, one, outside)
    agent.ready(kube)


def test_the_agent_needs_to_send_events(kube: Cluster, mesh: Mesh) -> None:
    if not kube.has_node:
        pytest.skip("needs a shell on the node")
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    with forbidden(kube, "clusterrole/initless-cni-agent", "events", "create"):
        time.sleep(1)  # the authorizer reads roles from a cache
        kube.in_namespace_of(one, "nft", "flush", "ruleset")
        (name,) = (found["metadata"]["name"] for found in agent.pods(kube))
        until("it says that it could not", lambda: said(kube, name, "cni-agent", "cannot send an Event"), 15)


def another(kube: Cluster, selector: str) -> str:
    """Has a pod replaced; the name of the new one."""
    before = {found["metadata"]["name"]: found for found in kube.pods(SYSTEM, selector)}
    alive = [name for name, found in before.items() if "deletionTimestamp" not in found["metadata"]]
    kube.kubectl("delete", "pod", "-n", SYSTEM, alive[0], "--wait=false")

    def look() -> str:
        return next(iter({found["metadata"]["name"] for found in kube.pods(SYSTEM, selector)} - set(before)), "")

    return until("another pod", look, 30)


def said(kube: Cluster, name: str, container: str, words: str) -> bool:
    """Whether a pod has these words in its log, quotation marks as they were before the log was JSON."""
    done = kube.try_kubectl("logs", "-n", SYSTEM, name, "-c", container)
    return words in done.stdout.replace('\\"', '"')


@pytest.fixture(scope="module")
def proxy_configs(kube: Cluster) -> Iterator[None]:
    """Istio's resource, as far as it takes to be listed."""
    names = {"kind": "ProxyConfig", "listKind": "ProxyConfigList", "plural": "proxyconfigs", "singular": "proxyconfig"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema}
    name = "proxyconfigs.networking.istio.io"
    spec = {"group": "networking.istio.io", "scope": "Namespaced", "names": names, "versions": [version]}
    kind = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": name}}
    kube.apply({**kind, "spec": spec})
    until("it is served", lambda: kube.try_kubectl("get", name, "-A").returncode == 0)
    yield
    kube.delete("customresourcedefinition", name)


@pytest.mark.parametrize(
    ("role", "container", "resource", "verb"),
    [
        ("clusterrole/initless-injector", "injector", "nodes", "list"),
        ("clusterrole/initless-injector", "injector", "nodes", "watch"),
        ("clusterrole/initless-injector", "injector", "proxyconfigs", "list"),
        ("clusterrole/initless-injector", "injector", "proxyconfigs", "watch"),
        ("role/initless-injector@istio-system", "injector", "configmaps", "list"),
        ("role/initless-injector@istio-system", "injector", "configmaps", "watch"),
        ("clusterrole/initless-injector", "certs", "mutatingwebhookconfigurations", "get"),
        ("clusterrole/initless-injector", "certs", "mutatingwebhookconfigurations", "patch"),
        ("role/initless-injector@initless-system", "certs", "secrets", "get"),
        ("role/initless-injector@initless-system", "certs", "secrets", "patch"),
    ],
)
def test_the_injector_needs_each_of_its_rights(
    kube: Cluster, proxy_configs: None, role: str, container: str, resource: str, verb: str
) -> None:
    with forbidden(kube, role, resource, verb):
        if resource == "secrets" and verb == "patch":  # with nothing in it, a new CA is made
            kube.kubectl("-n", SYSTEM, "patch", "secret", "initless-injector-certs", "-p", '{"data": null}')
        if resource == "mutatingwebhookconfigurations":  # whose CA bundle was lost
            bundle = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
            kube.kubectl("patch", resource, "initless-injector", "--type=json", "-p", json.dumps(bundle))
        name = another(kube, INJECTOR)
        words = f'cannot {verb} resource "{resource}"'
        until("it says what it may not do", lambda: said(kube, name, container, words), 45)
    deployment.ready(kube)
