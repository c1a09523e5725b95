"""What breaks below us, and around us: recovered, and told in Events."""

import time

import pytest

from tests.e2e import agent, deployment
from tests.e2e.cluster import Cluster, Object, is_ready, status_of, until
from tests.e2e.meshed import Mesh, address, assert_captured, pod
from tests.e2e.meshed import deployment as deployment_of

# Stops a component of the node as a crash would, and starts it again as it was.
RESTART = """
    if [ -d /run/systemd/system ]; then exec systemctl restart "$1"; fi
    for process in /proc/[0-9]*; do
        name=$(tr '\\0' '\\n' <$process/cmdline 2>/dev/null | head -n 1)
        [ "${name##*/}" = "$1" ] || continue
        command=$(mktemp)
        cat $process/cmdline >$command
        kill -KILL ${process#/proc/}
        while [ -d $process ]; do sleep 0.05; done
        setsid xargs -0 -a $command env </dev/null >>/var/log/$1.log 2>&1 &
        exit
    done
    echo "no process $1" >&2
    exit 1"""

# Kills the sandbox of a pod: its process in the pod's namespace that is in none of the containers the API tells of.
KILL_SANDBOX = """
    uid=$1; shift
    for cgroup in $(grep -ls "pod$uid" /proc/[0-9]*/cgroup); do
        process=${cgroup%/cgroup}
        [ "$(readlink $process/ns/net)" != "$(readlink /proc/1/ns/net)" ] || continue
        for container; do
            ! grep -q "$container" $cgroup || continue 2
        done
        kill -KILL ${process#/proc/} && exit
    done
    echo "no sandbox of pod $uid" >&2
    exit 1"""


@pytest.fixture(autouse=True)
def node(kube: Cluster) -> None:
    if not kube.has_node:
        pytest.skip("needs a shell on the node")


def restart(kube: Cluster, component: str) -> None:
    kube.node("sh", "-c", RESTART, "sh", component)


def reasons(kube: Cluster, one: Object) -> set[str]:
    metadata = one["metadata"]
    return {found["reason"] for found in kube.events(metadata["namespace"], metadata["name"])}


@pytest.mark.parametrize(
    "damage",
    [
        ["iptables-nft", "-t", "nat", "-F"],
        ["iptables-nft", "-t", "nat", "-D", "PREROUTING", "1"],
        ["nft", "flush", "ruleset"],
    ],
    ids=["all rules flushed", "jump deleted", "ruleset flushed"],
)
def test_damaged_rules_come_back(kube: Cluster, mesh: Mesh, outside: Object, damage: list[str]) -> None:
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    sane = kube.in_namespace_of(one, "iptables-nft", "-t", "nat", "-S")
    kube.in_namespace_of(one, *damage)
    until("the rules are back", lambda: kube.in_namespace_of(one, "iptables-nft", "-t", "nat", "-S") == sane, 10)
    assert_captured(kube, one, outside)
    until("an Event tells", lambda: "Repaired" in reasons(kube, one), 10)


def test_somebody_elses_rules_stay(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    theirs = ["iptables-nft", "-t", "filter", "-A", "INPUT", "-p", "tcp", "--dport", "7", "-j", "DROP"]
    kube.in_namespace_of(one, *theirs)
    kube.in_namespace_of(one, "iptables-nft", "-t", "nat", "-F")
    until("an Event tells of ours", lambda: "Repaired" in reasons(kube, one), 10)
    assert "--dport 7 -j DROP" in kube.in_namespace_of(one, "iptables-nft", "-t", "filter", "-S")
    assert_captured(kube, one, outside)


@pytest.mark.parametrize("component", ["containerd", "kubelet", "kube-apiserver"])
def test_a_component_is_restarted(kube: Cluster, mesh: Mesh, outside: Object, component: str) -> None:
    """Who was captured stays so, and the next pod is captured as ever."""
    namespace = mesh.meshed()
    (one,) = mesh.start(namespace, pod("before"))
    restart(kube, component)
    assert kube.node("true") == ""
    until("the API server is ready", lambda: kube.try_kubectl("get", "--raw", "/readyz").returncode == 0, 60)
    until("the node is ready", lambda: node_is_ready(kube), 60)
    for found in (outside, one):
        until("its kubelet lets us in", lambda: kube.run(found, "application", "resolve", "localhost"), 30)  # noqa: B023
    assert_captured(kube, one, outside)
    mesh.create(namespace, pod("after"))
    for found in mesh.ready(namespace, count=2, seconds=90):
        assert_captured(kube, found, outside)
    deployment.ready(kube)


def node_is_ready(kube: Cluster) -> bool:
    conditions = {found["type"]: found["status"] for one in kube.get("nodes") for found in one["status"]["conditions"]}
    return conditions["Ready"] == "True"


def test_a_node_is_drained(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    namespace = mesh.meshed()
    (one,) = mesh.start(namespace, deployment_of(pod("web")))
    node = one["spec"]["nodeName"]
    try:
        kube.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=app=web")
        until("the pod is gone", lambda: not [found for found in kube.pods(namespace) if found["spec"].get("nodeName")])
    finally:
        kube.kubectl("uncordon", node)
    (new,) = mesh.ready(namespace)
    assert new["metadata"]["uid"] != one["metadata"]["uid"]
    assert_captured(kube, new, outside)


def test_a_pod_of_the_same_name_is_another_pod(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    namespace = mesh.meshed()
    for _ in range(2):
        (one,) = mesh.start(namespace, pod("web"))
        assert_captured(kube, one, outside)
        kube.delete("pod", "web", namespace)


def test_a_sandbox_is_killed(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    """The same pod gets another namespace and another address; the API tells of the old ones for a while."""
    namespace = mesh.meshed()
    (before,) = mesh.start(namespace, pod("web"))
    listed = [*before["status"]["initContainerStatuses"], *before["status"]["containerStatuses"]]
    ids = [found["containerID"].rpartition("//")[2] for found in listed]
    kube.node("sh", "-c", KILL_SANDBOX, "sh", before["metadata"]["uid"], *ids)

    def look() -> Object:
        found: Object = kube.get("pod", "web", namespace)
        assert status_of(found, "app").get("containerID") != status_of(before, "app")["containerID"], "the old one"
        assert is_ready(found), "not ready"
        return found

    after = until("the pod is ready in its new sandbox", look, 120)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert_captured(kube, after, outside)
    assert not reasons(kube, after) & {"Refused", "CapturedLate", "Failed"}


def test_an_uncaptured_pod_is_captured_where_it_is(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    """Its rules went while no agent was there to see it."""
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    with agent.absent(kube):
        kube.in_namespace_of(one, "nft", "flush", "ruleset")
        time.sleep(0.5)
        assert kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == address(outside), "not captured"
    assert_captured(kube, one, outside)
    until("an Event tells", lambda: reasons(kube, one) & {"Repaired", "CapturedLate"}, 15)
