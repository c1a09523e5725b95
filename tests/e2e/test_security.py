"""Least privilege, of the pods and of Initless itself."""

import contextlib
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.cluster import Cluster, Object
from tests.e2e.deployment import ROOT, SYSTEM
from tests.e2e.meshed import Mesh, address, assert_captured, container, deployment, pod, server

RESTRICTED = {"pod_security.kubernetes.io__enforce": "restricted"}
NET_ADMIN = {"capabilities": {"add": ["NET_ADMIN"]}}
ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.fixture
def restricted(kube: Cluster, mesh: Mesh) -> str:
    """A meshed namespace with Pod Security `enforce: restricted`."""
    namespace = mesh.meshed()
    kube.kubectl("label", "namespace", namespace, f"{ENFORCE}=restricted")
    return namespace


def test_injected_pods_are_admitted_by_restricted(kube: Cluster, mesh: Mesh, restricted: str, outside: Object) -> None:
    (one,) = mesh.start(restricted, deployment(pod("web", server(8080))))
    assert_captured(kube, one, outside)


def test_restricted_does_refuse_what_stock_istio_injects(kube: Cluster, mesh: Mesh, restricted: str) -> None:
    """Else the test above would show nothing."""
    context = {"capabilities": {"add": ["NET_ADMIN", "NET_RAW"]}, "runAsUser": 0}
    privileged = container("true", name="istio-init") | {"securityContext": context}
    one = pod("web", initContainers=[privileged])
    one["metadata"]["namespace"] = restricted
    assert 'violates PodSecurity "restricted:latest"' in kube.try_apply(one)


def test_no_process_of_an_injected_pod_has_a_capability(kube: Cluster, mesh: Mesh) -> None:
    if not kube.has_node:
        pytest.skip("needs a shell on the node")
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    script = 'for f in $(grep -ls "pod$1" /proc/[0-9]*/cgroup); do cat ${f%cgroup}status; done'
    text = kube.node("sh", "-c", script, "sh", one["metadata"]["uid"])
    names = [line.split()[1] for line in text.splitlines() if line.startswith("Name:")]
    assert {"envoy", "application"} <= {name[:15] for name in names} or {"envoy", "python3"} <= set(names), names
    sets = {line for line in text.splitlines() if line.startswith(("CapPrm", "CapEff", "CapInh", "CapAmb"))}
    of_ours = [line for line in sets if not line.endswith("0000000000000000")]
    assert of_ours == []


def test_the_injector_itself_passes_restricted(kube: Cluster, mesh: Mesh) -> None:
    namespace = mesh.namespace()
    kube.kubectl("label", "namespace", namespace, f"{ENFORCE}=restricted")
    template = kube.get("deployment", "initless-injector", SYSTEM)["spec"]["template"]
    template["spec"].pop("serviceAccountName")
    template["spec"].pop("serviceAccount", None)
    template["spec"].pop("priorityClassName")
    one = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "injector", "namespace": namespace}}
    kube.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(one | {"spec": template["spec"]}))


@contextlib.contextmanager
def policy(kube: Cluster) -> Iterator[None]:
    """With the optional ValidatingAdmissionPolicy."""
    file = str(ROOT / "daemonset/components/admission-policy/policy.yaml")
    kube.kubectl("apply", "-f", file)
    try:
        yield
    finally:
        kube.kubectl("delete", "-f", file)


def asking(namespace: str, name: str, context: Object) -> Object:
    """A pod with an init container that asks for this."""
    one = pod("web", initContainers=[container("true", name=name) | {"securityContext": context}])
    one["metadata"]["namespace"] = namespace
    return one


def test_the_policy_forbids_init_containers_with_net_admin(kube: Cluster, mesh: Mesh) -> None:
    """Whatever the container is called."""
    namespace = mesh.meshed()
    with policy(kube):
        for name, context in (("istio-init", NET_ADMIN), ("other", {"privileged": True})):
            one = asking(namespace, name, context)
            mesh.until_denied(one, f"init container {name} asks for NET_ADMIN, SYS_ADMIN or privileged")
        mesh.start(namespace, pod("web"))
        kube.apply(asking(mesh.namespace(), "init", NET_ADMIN))


def test_the_policy_admits_a_native_sidecar_in_tproxy_mode(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    """Which is an init container with NET_ADMIN, to the API server."""
    namespace = mesh.meshed()
    annotations = {"sidecar.istio.io/interceptionMode": "TPROXY", "sidecar.istio.io/nativeSidecar": "true"}
    with policy(kube):
        mesh.until_denied(asking(namespace, "istio-init", NET_ADMIN), "init container istio-init asks for NET_ADMIN")
        (one,) = mesh.start(namespace, pod("web", annotations=annotations))
    (proxy,) = [found for found in one["spec"]["initContainers"] if found["name"] == "istio-proxy"]
    assert "NET_ADMIN" in proxy["securityContext"]["capabilities"]["add"], "else this would show nothing"
    before = kube.connections(one)["inbound"]
    assert kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == address(outside)
    assert kube.connections(one)["inbound"] == before + 1


def test_the_policy_lets_pods_from_before_it_be_changed(kube: Cluster, mesh: Mesh) -> None:
    """The finalizers of a Job's pods are taken away by an update; a Job whose pods had istio-init must end."""
    namespace = mesh.meshed()
    old = asking(namespace, "istio-init", NET_ADMIN)
    old["metadata"]["annotations"] = {"sidecar.istio.io/inject": "false"}
    kube.apply(old)
    with policy(kube):
        denied = asking(namespace, "istio-init", NET_ADMIN)
        denied["metadata"]["name"] = "another"
        mesh.until_denied(denied, "init container istio-init asks for NET_ADMIN")
        kube.kubectl("label", "pod", "web", "-n", namespace, "changed=true")
