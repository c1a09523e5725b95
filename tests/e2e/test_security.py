"""Least privilege, of the pods and of Initless itself."""

import pytest
import yaml

from tests.e2e.cluster import Cluster, Object
from tests.e2e.deployment import ROOT, SYSTEM
from tests.e2e.meshed import Mesh, assert_captured, container, deployment, pod, server

RESTRICTED = {"pod_security.kubernetes.io__enforce": "restricted"}
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


def test_the_policy_forbids_init_containers_with_net_admin(kube: Cluster, mesh: Mesh) -> None:
    """The optional ValidatingAdmissionPolicy: whatever the container is called."""
    policy = ROOT / "daemonset/components/admission-policy/policy.yaml"
    kube.kubectl("apply", "-f", str(policy))
    try:
        namespace = mesh.meshed()
        asking = {"capabilities": {"add": ["NET_ADMIN"]}}
        for name, context in (("istio-init", asking), ("other", {"privileged": True})):
            one = pod("web", initContainers=[container("true", name=name) | {"securityContext": context}])
            one["metadata"]["namespace"] = namespace
            mesh.until_denied(one, f"init container {name} asks for NET_ADMIN, SYS_ADMIN or privileged")
        mesh.start(namespace, pod("web"))
        plain = pod("plain", initContainers=[container("true", name="init") | {"securityContext": asking}])
        mesh.create(mesh.namespace(), plain)
    finally:
        kube.kubectl("delete", "-f", str(policy))
