"""Sixty pods at once: each captured before its istio-validation looked, and what that costs in starting time."""

import json
import statistics
import time

import pytest

from tests.e2e import agent
from tests.e2e.agent import validation_began
from tests.e2e.cluster import Cluster, Object, containers, is_ready, status_of, until
from tests.e2e.meshed import Mesh, pod

COUNT = 60
# Sixty Envoys starting on two cores would be all that is measured.
LIGHT = {"proxy.istio.io/config": json.dumps({"proxyMetadata": {"STAND_IN_PROXY": "light"}})}


@pytest.mark.timeout(900)
def test_sixty_pods_at_once(kube: Cluster, mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    meshed, plain = mesh.meshed(), mesh.namespace()
    same = uninjected(kube, meshed)
    without = start(kube, plain, [named(same, f"web-{number}") for number in range(COUNT)])
    # these stay, idle: taking sixty pods away would cost more than they do
    log_begins = agent.now()
    with_initless = start(kube, meshed, [pod(f"web-{number}", annotations=LIGHT) for number in range(COUNT)])

    pods = kube.pods(meshed)
    assert len(pods) == COUNT
    captured = agent.capture_times(kube, log_begins)
    ahead = {one["metadata"]["name"]: validation_began(kube, one) - captured[one["metadata"]["uid"]] for one in pods}
    with capsys.disabled():  # the figure is what this test is run for
        print(
            f"\n{COUNT} pods at once, seconds until all are ready: {with_initless:.1f} with Initless, {without:.1f} the"
            f" same pods without (ratio {with_initless / without:.2f}); captured {min(ahead.values()) * 1000:.0f} ms"
            f" (least) and {statistics.median(ahead.values()) * 1000:.0f} ms (median) before istio-validation spoke"
        )
    assert {name: early for name, early in ahead.items() if early <= 0} == {}, "istio-validation was there first"
    restarts = {status_of(one, found["name"])["restartCount"] for one in pods for found in containers(one)}
    assert restarts == {0}
    for namespace in (meshed, plain):  # a kubelet that has 120 pods to stop is late for whoever comes next
        kube.kubectl("delete", "pods", "--all", "-n", namespace, "--wait=false")
    until("they are gone", lambda: not kube.pods(meshed) and not kube.pods(plain), 300, pause=1)


def start(kube: Cluster, namespace: str, pods: list[Object]) -> float:
    """Creates them all in one go; the seconds until the last is ready."""
    for one in pods:
        one["metadata"]["namespace"] = namespace
    began = time.monotonic()
    kube.apply(*pods)

    def look() -> bool:
        waiting = [one["metadata"]["name"] for one in kube.pods(namespace) if not is_ready(one)]
        assert not waiting, f"not ready: {len(waiting)}"
        return True

    until("all pods are ready", look, 300, pause=0.5)
    return time.monotonic() - began


def uninjected(kube: Cluster, meshed: str) -> Object:
    """The same pod as the injector makes it, less istio-validation, for a namespace that is not in the mesh."""
    one = pod("web", annotations=LIGHT)
    one["metadata"]["namespace"] = meshed
    text = kube.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(one))
    spec = json.loads(text)["spec"]
    spec["initContainers"] = [found for found in spec["initContainers"] if found["name"] != "istio-validation"]
    generated = [found["name"] for found in spec["volumes"] if found["name"].startswith("kube-api-access-")]
    spec["volumes"] = [found for found in spec["volumes"] if found["name"] not in generated]
    for found in (*spec["initContainers"], *spec["containers"]):
        found["volumeMounts"] = [mount for mount in found["volumeMounts"] if mount["name"] not in generated]
    metadata = {"labels": {"sidecar.istio.io/inject": "false"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def named(one: Object, name: str) -> Object:
    return {**one, "metadata": {**one["metadata"], "name": name}}
