"""The agent comes late, dies, is upgraded and evicted: nobody loses capture, nobody else notices."""

import json
import time

from tests.e2e import agent
from tests.e2e.cluster import Cluster, Object, containers, status_of, until
from tests.e2e.deployment import SYSTEM
from tests.e2e.meshed import Mesh, address, assert_captured, container, deployment, pod, server


def restarts(one: Object) -> int:
    return sum(status_of(one, found["name"]).get("restartCount", 0) for found in containers(one))


class Asking:
    """A pod outside the mesh that asks a meshed one again and again: each answer tells whether it was captured."""

    def __init__(self, kube: Cluster, mesh: Mesh, asked: Object) -> None:
        url = f"http://{address(asked)}:8080/"
        self._kube = kube
        self._namespace = mesh.namespace()
        mesh.start(self._namespace, pod("asking", container("application", "get-every", "0.02", url)))

    def answers(self) -> list[Object]:
        lines = self._kube.kubectl("logs", "-n", self._namespace, "asking", "-c", "app").splitlines()
        return [json.loads(line.split(" ", 1)[1]) for line in lines]

    def assert_always_captured(self, at_least: int) -> None:
        answers = self.answers()
        assert len(answers) >= at_least
        assert [found for found in answers if found.get("peer") != "127.0.0.6"] == []


def test_pods_wait_for_a_late_agent_and_nothing_restarts(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    namespace = mesh.meshed()
    with agent.absent(kube):
        mesh.create(namespace, deployment(pod("web"), replicas=2), pod("once", restartPolicy="Never"))
        waiting = until("istio-validation runs in all", lambda: held(kube, namespace, 3))
        time.sleep(7)  # longer than the five seconds after which the stock container gives up
        assert held(kube, namespace, 3)
        assert sum(map(restarts, waiting)) == 0
    for one in mesh.ready(namespace, count=3):
        assert restarts(one) == 0
        assert status_of(one, "istio-validation")["state"]["terminated"]["exitCode"] == 0
        assert_captured(kube, one, outside)


def held(kube: Cluster, namespace: str, count: int) -> list[Object]:
    pods = kube.pods(namespace)
    assert len(pods) == count
    states = [status_of(one, "istio-validation").get("state", {}) for one in pods]
    assert all("running" in state for state in states), states
    return pods


def test_without_an_agent_other_pods_come_and_go(kube: Cluster, mesh: Mesh) -> None:
    meshed, plain = mesh.meshed(), mesh.namespace()
    (kept,) = mesh.start(meshed, pod("kept"))
    with agent.absent(kube):
        mesh.start(plain, pod("web"))
        mesh.create(meshed, pod("waiting"))
        until("it waits", lambda: kube.pods(meshed, "app=waiting"))
        for namespace, name in ((plain, "web"), (meshed, "waiting"), (meshed, "kept")):
            kube.delete("pod", name, namespace, "--timeout=30s")
    assert kept and not kube.pods(plain)


def test_a_killed_agent_leaves_capture_as_it_is(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    asking = Asking(kube, mesh, one)
    for _ in range(3):
        for found in agent.pods(kube):
            kube.kubectl("delete", "pod", "-n", SYSTEM, found["metadata"]["name"], "--grace-period=0", "--force")
        agent.ready(kube)
    asking.assert_always_captured(at_least=50)
    assert_captured(kube, one, outside)


def test_an_upgrade_leaves_no_gap(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    """Pods are created all the time while the DaemonSet is rolled; each is captured, none restarts."""
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    asking = Asking(kube, mesh, one)
    namespace = mesh.meshed()
    before = {found["metadata"]["name"] for found in agent.pods(kube)}
    kube.kubectl("-n", SYSTEM, "rollout", "restart", "daemonset/cni-agent")
    created = 0
    while before & {found["metadata"]["name"] for found in agent.pods(kube)}:
        ready = [found for found in agent.pods(kube) if status_of(found, "cni-agent").get("ready")]
        assert ready, "there is an agent at any time"
        mesh.create(namespace, pod(f"web-{created}"))
        created += 1
    agent.ready(kube)
    assert created > 0
    for found in mesh.ready(namespace, count=created):
        assert restarts(found) == 0
        assert_captured(kube, found, outside)
    asking.assert_always_captured(at_least=50)


def test_an_evicted_agent_comes_back(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    (one,) = mesh.start(mesh.meshed(), pod("web", server(8080)))
    asking = Asking(kube, mesh, one)
    (found,) = agent.pods(kube)
    name = found["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": SYSTEM}}
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{name}/eviction"
    kube.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    until("another agent", lambda: [new for new in agent.pods(kube) if new["metadata"]["name"] != name])
    agent.ready(kube)
    asking.assert_always_captured(at_least=20)
    assert_captured(kube, one, outside)
