"""Taking Initless away: pods of the mesh are clean afterwards, everything else is as it was."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cni_agent.backends import backend
from cni_agent.node.uninstall import pods_of_folder, remove_all
from cni_agent.podview import pod_view
from tests.kernel.rulesets import rules
from tests.kernel.running_agent import RunningAgent, in_namespace, run
from tests.kernel.sandbox import Node, Sandbox, eventually, in_node, write_manifest

pytestmark = pytest.mark.kernel


@in_node
def test_remove_all(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    captured, own_init, absent = (Sandbox(cgroup.kubepods, f"10.9.0.{number}") for number in (1, 2, 3))
    with agent:
        run(captured, agent)
        run(own_init, agent, "NotInMesh", spec={"initContainers": [{"name": "istio-init"}]})
        write_manifest(agent.pods, absent.manifest())
    in_namespace(captured, "nft add table inet theirs")
    in_namespace(own_init, "iptables-nft -t nat -N ISTIO_OUTPUT")  # as its own istio-init would
    before = rules(own_init.netns)
    done = {
        removal.pod.uid: removal for removal in remove_all(backend("iptables-nft"), pods_of_folder(str(agent.pods)))
    }
    assert done.keys() == {captured.uid, absent.uid}
    assert done[captured.uid].removed and not done[captured.uid].reason
    assert done[absent.uid].reason == "no-process"
    assert "ISTIO" not in rules(captured.netns) and "table inet theirs" in rules(captured.netns)
    assert rules(own_init.netns) == before
    assert rules() == ""
    [again] = remove_all(backend("iptables-nft"), [pod_view(captured.manifest())])
    assert not again.removed and not again.reason


@in_node
def test_a_process_in_the_hosts_namespace_is_not_cleaned(cgroup: Node) -> None:
    subprocess.run(["iptables-nft", "-t", "nat", "-N", "ISTIO_OUTPUT"], check=True)  # the node's, in this test
    before = rules()
    sandbox = Sandbox(cgroup.kubepods)
    sandbox.make_pod()
    sandbox.make_container()
    pid = sandbox.start(stay_in_host=True)
    eventually(lambda: sandbox.uid in Path(f"/proc/{pid}/cgroup").read_text())
    [removal] = remove_all(backend("iptables-nft"), [pod_view(sandbox.manifest())])
    assert removal.reason == "host-namespace"
    assert rules() == before


@in_node
def test_the_command_cleans_every_pod_and_tells_of_each(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    sandboxes = [Sandbox(cgroup.kubepods, f"10.9.0.{number}") for number in (1, 2)]
    with agent:
        for sandbox in sandboxes:
            run(sandbox, agent)
    command = [sys.executable, "-m", "cni_agent", "remove", "--all", "--pods-from", str(agent.pods)]
    for outcome in ("removed", "unchanged"):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert {line["uid"]: line["outcome"] for line in lines} == {sandbox.uid: outcome for sandbox in sandboxes}
    assert all("ISTIO" not in rules(sandbox.netns) for sandbox in sandboxes)
