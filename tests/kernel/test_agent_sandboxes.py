"""Sandboxes that are made anew while their pod lives on, and pods that are captured after their init containers."""

import os
import signal
from pathlib import Path

import pytest

from tests.kernel.rulesets import chains, rules
from tests.kernel.running_agent import RunningAgent, run
from tests.kernel.sandbox import Node, Sandbox, eventually, in_node, write_manifest

pytestmark = pytest.mark.kernel


@in_node
def test_before_app_waits_for_the_applications_init_containers(cgroup: Node, tmp_path: Path) -> None:
    def pod(*statuses: dict[str, object]) -> dict[str, object]:
        return sandbox.manifest(
            metadata={"annotations": {"sidecar.istio.io/status": "{}", "initless.io/capture": "before-app"}},
            spec={"initContainers": [{"name": "migrate"}, {"name": "istio-validation"}]},
            status={"initContainerStatuses": list(statuses)},
        )

    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        write_manifest(agent.pods, pod({"name": "migrate", "state": {"running": {}}}))
        sandbox.run()
        eventually(lambda: agent.state(sandbox.uid) == "WaitingForInit")
        eventually(sandbox.in_namespace)
        assert rules(sandbox.netns) == ""
        write_manifest(agent.pods, pod({"name": "migrate", "state": {"terminated": {"exitCode": 0}}}))
        eventually(lambda: agent.state(sandbox.uid) == "Captured")
        assert chains(sandbox) > 3


@in_node
def test_before_app_waits_again_in_a_new_sandbox(cgroup: Node, tmp_path: Path) -> None:
    """The API tells of the old one: all its init containers have ended, and the pod runs."""

    def pod(migrate: dict[str, object]) -> dict[str, object]:
        ended = {"terminated": {"exitCode": 0}}
        runs = {"name": "app", "state": {"running": {}}, "containerID": f"containerd://{first.container.name}"}
        validated = {"name": "istio-validation", "state": ended, "containerID": f"containerd://{'b' * 64}"}
        return first.manifest(
            metadata={"annotations": {"sidecar.istio.io/status": "{}", "initless.io/capture": "before-app"}},
            spec={"initContainers": [{"name": "migrate"}, {"name": "istio-validation"}]},
            status={
                "phase": "Running",
                "initContainerStatuses": [{"name": "migrate", **migrate}, validated],
                "containerStatuses": [runs],
            },
        )

    old = {"state": {"terminated": {"exitCode": 0}}, "containerID": f"containerd://{'a' * 64}"}
    agent = RunningAgent(cgroup, tmp_path)
    first = Sandbox(cgroup.kubepods)
    with agent:
        write_manifest(agent.pods, pod(old))
        first.run()
        eventually(lambda: agent.state(first.uid).startswith("Captured"))
        first.stop()
        eventually(lambda: agent.state(first.uid) == "WaitingForSandbox")
        second = Sandbox(cgroup.kubepods, uid=first.uid)
        second.run()
        eventually(lambda: agent.state(first.uid) == "WaitingForInit")
        eventually(second.in_namespace)
    with agent:  # it is the same for an agent that was not there
        eventually(lambda: agent.state(first.uid) == "WaitingForInit")
        assert rules(second.netns) == ""
        new = {"state": {"terminated": {"exitCode": 0}}, "containerID": f"containerd://{'c' * 64}"}
        write_manifest(agent.pods, pod(new))
        eventually(lambda: agent.state(first.uid) == "Captured")
        assert chains(second) > 3


@in_node
def test_a_sandbox_that_is_made_anew_is_captured_anew(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        first = Sandbox(cgroup.kubepods)
        run(first, agent)
        first.stop()
        second = Sandbox(cgroup.kubepods, uid=first.uid)
        second.run()
        eventually(lambda: agent.snapshot()[first.uid]["netns"] == second.netns.identity.inode)
        eventually(lambda: agent.state(first.uid) == "Captured")
        assert chains(second) > 3


@in_node
def test_a_sandbox_replaced_while_its_pod_lives_on(cgroup: Node, tmp_path: Path) -> None:
    """The old one ends when the new one's process is still in the node's namespace; no event tells when it leaves."""
    with RunningAgent(cgroup, tmp_path) as agent:
        first = Sandbox(cgroup.kubepods)
        run(first, agent)
        second = Sandbox(cgroup.kubepods, uid=first.uid)
        second.make_container()
        second.start(host_seconds=0.5)
        for pid in first.processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        eventually(lambda: _gone(first.container))
        eventually(lambda: agent.snapshot()[first.uid]["netns"] == second.netns.identity.inode)
        eventually(lambda: agent.state(first.uid) == "Captured")
        assert chains(second) > 3


@in_node
def test_a_new_sandbox_is_not_blamed_for_the_old_ones_address(cgroup: Node, tmp_path: Path) -> None:
    """The kubelet reports the new address seconds later."""
    with RunningAgent(cgroup, tmp_path) as agent:
        first = Sandbox(cgroup.kubepods, "10.9.0.7")
        write_manifest(agent.pods, first.manifest(status={"podIPs": [{"ip": "10.9.0.7"}]}))
        first.run()
        eventually(lambda: agent.state(first.uid) == "Captured")
        second = Sandbox(cgroup.kubepods, "10.9.0.8", uid=first.uid)
        first.stop()
        second.run()
        eventually(lambda: agent.snapshot()[first.uid]["netns"] == second.netns.identity.inode)
        eventually(lambda: agent.state(first.uid) == "Captured")
        third = Sandbox(cgroup.kubepods, "10.9.0.9", uid=first.uid)  # never a moment without one
        third.make_container()
        third.start()
        eventually(third.in_namespace)
        for pid in second.processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        eventually(lambda: _gone(second.container))
        eventually(lambda: agent.snapshot()[first.uid]["netns"] == third.netns.identity.inode)
        write_manifest(agent.pods, first.manifest(status={"podIPs": [{"ip": "10.9.0.9"}]}))
        eventually(lambda: agent.state(first.uid) == "Captured")
        assert chains(second) > 3 and chains(third) > 3
        assert not agent.said("Refused")
        write_manifest(agent.pods, first.manifest(status={"podIPs": [{"ip": "10.9.0.1"}]}))
        eventually(lambda: agent.state(first.uid) == "Refused")


def _gone(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return not directory.exists()
    return True
