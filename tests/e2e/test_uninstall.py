"""Runs last: nothing is left when Initless goes, and the node is as it was before all the other tests."""

import os
import signal
import subprocess

import pytest

from tests.e2e import deployment
from tests.e2e.cluster import Cluster, Object, status_of, until
from tests.e2e.deployment import ISTIO, ROOT, SYSTEM
from tests.e2e.meshed import Mesh, address, pod, service
from tests.e2e.node import node_rules

KINDS = (
    "mutatingwebhookconfiguration,validatingadmissionpolicy,validatingadmissionpolicybinding,clusterrole,clusterrolebinding,"
    "role,rolebinding,all,secret"
)
SCRIPT = ROOT / "daemonset/uninstall"


@pytest.fixture
def everything(kube: Cluster, shell: dict[str, str]) -> None:
    """Also what is optional: a policy, and a second revision that Helm has installed."""
    deployment.install(kube, components=["admission-policy"])
    settings = "revision=canary,agent.enabled=false,resourceQuota.enabled=false"
    command = ["helm", "install", "canary", ROOT / "daemonset/chart", "-n", SYSTEM, "--set", settings]
    subprocess.run(command, env=shell, check=True, timeout=120)


def interrupted(shell: dict[str, str]) -> None:
    """Stops it half way: the agents have been told, and nothing waits for them."""
    with subprocess.Popen([SCRIPT], env=shell, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert any("daemonset.apps/cni-agent patched" in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.usefixtures("everything")
def test_uninstall_leaves_nothing_and_pods_run_on(
    kube: Cluster, mesh: Mesh, outside: Object, node_before: list[str] | None, shell: dict[str, str]
) -> None:
    namespace = mesh.meshed()
    (one,) = mesh.start(namespace, pod("web"))
    interrupted(shell)
    for _ in range(2):  # the second finds nothing to do
        done = subprocess.run([SCRIPT], env=shell, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        print(done.stdout)

    assert kube.kubectl("get", KINDS, "-A", "-l", "app.kubernetes.io/part-of=initless") == ""
    assert not subprocess.check_output(["helm", "list", "-A", "--all", "--short"], env=shell, text=True)
    assert SYSTEM not in [found["metadata"]["name"] for found in kube.get("namespaces")]
    (still,) = kube.pods(namespace)
    assert status_of(still, "app")["restartCount"] == 0 and "running" in status_of(still, "app")["state"]
    assert kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == address(outside), "it is not captured any more"
    mesh.start(namespace, pod("next"))  # as if the namespace had no label

    if node_before is None:
        pytest.skip("what follows needs a shell on the node")
    rules = kube.in_namespace_of(one, "nft", "list", "ruleset")
    assert "istio" not in rules.lower(), rules
    tests = [found["metadata"]["name"] for found in kube.get("namespaces")]
    for name in (*(found for found in tests if found.startswith("e2e-")), ISTIO):
        kube.kubectl("delete", "namespace", name, "--ignore-not-found")
    until("the node's rules are what they were before all tests", lambda: is_as_before(kube, node_before), 90)


def is_as_before(kube: Cluster, before: list[str]) -> bool:
    """kube-proxy removes chains of endpoints that are gone when next it has something to do: here it is."""
    nudge = service("e2e-nudge", 80)
    nudge["metadata"]["namespace"] = "default"
    kube.apply(nudge)
    kube.delete("service", "e2e-nudge", "default")
    now = node_rules(kube)
    assert sorted(set(now) ^ set(before)) == []
    return now == before
