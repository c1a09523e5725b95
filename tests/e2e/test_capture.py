"""A Deployment in a labelled namespace: injected by the real API server, captured by the agent, served by Envoy."""

from tests.e2e.cluster import Cluster, containers, status_of
from tests.e2e.meshed import Mesh, deployment, pod, server, service


def test_a_deployment_is_injected_captured_and_served(kube: Cluster, mesh: Mesh) -> None:
    namespace = mesh.meshed()
    (one,) = mesh.start(namespace, deployment(pod("web", server(8080))), service("web", 8080))
    names = [found["name"] for found in containers(one)]
    assert names[0] == "istio-validation" and "istio-proxy" in names

    validation = status_of(one, "istio-validation")
    assert validation["restartCount"] == 0
    assert validation["state"]["terminated"]["exitCode"] == 0

    before = kube.stats(one)
    answer = kube.ask(one, f"http://web.{namespace}.svc.cluster.local:8080/")
    after = kube.stats(one)
    assert answer["peer"] == "127.0.0.6", "the server sees the sidecar, not the client"
    for listener in ("outbound", "inbound4"):
        name = f"tcp.{listener}.downstream_cx_total"
        assert after[name] > before.get(name, 0)
