"""A node that joins with a taint takes no pod before its agent is ready, which then removes that taint and no other."""

from tests.e2e import deployment
from tests.e2e.cluster import Cluster, until
from tests.e2e.meshed import Mesh, pod

KEY = "cni.istio.io/not-ready"
OTHER = "e2e.initless.io/other"
RIGHTS = "initless-cni-agent-taint"


def taints(kube: Cluster) -> set[str]:
    return {taint["key"] for node in kube.get("nodes") for taint in node["spec"].get("taints", [])}


def test_the_taint_goes_when_the_agent_is_ready(kube: Cluster, mesh: Mesh) -> None:
    namespace = mesh.namespace()
    kube.kubectl("taint", "nodes", "--all", f"{KEY}=true:NoSchedule", f"{OTHER}=:PreferNoSchedule")
    try:
        mesh.create(namespace, pod("early"))
        until("the pod cannot be scheduled", lambda: unschedulable(kube, namespace))
        deployment.install(kube, components=["remove-taint"])
        until("the taint is gone", lambda: KEY not in taints(kube))
        mesh.ready(namespace, count=1)
        assert OTHER in taints(kube)
    finally:
        for key in (KEY, OTHER):
            kube.try_kubectl("taint", "nodes", "--all", f"{key}-")
        deployment.install(kube)
        kube.delete("clusterrolebinding", RIGHTS)
        kube.delete("clusterrole", RIGHTS)


def unschedulable(kube: Cluster, namespace: str) -> bool:
    (one,) = kube.pods(namespace)
    return any(found.get("reason") == "Unschedulable" for found in one["status"].get("conditions", []))
