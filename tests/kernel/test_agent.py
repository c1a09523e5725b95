"""The agent on a node of real cgroups, namespaces and processes, its pods from a folder."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_agent.netns import Netns
from tests.kernel.running_agent import RunningAgent
from tests.kernel.sandbox import Node, Sandbox, eventually, in_node, node, write_manifest

pytestmark = pytest.mark.kernel


@pytest.fixture(params=["v1", "v2"])
def cgroups(request: pytest.FixtureRequest) -> Iterator[Node]:
    with node(request.param) as made:
        yield made


@pytest.fixture
def cgroup() -> Iterator[Node]:
    with node("v1") as made:
        yield made


def rules(netns: Netns | None = None) -> str:
    """All rules of a namespace, as the tools show them; of the node's without one."""

    def show() -> str:
        return subprocess.run(["nft", "list", "ruleset"], capture_output=True, text=True, check=True).stdout

    return netns.run_inside(show) if netns else show()


def chains(sandbox: Sandbox) -> int:
    return rules(sandbox.netns).count("chain ISTIO_")


@in_node
def test_a_pod_is_captured_as_its_sandbox_starts(cgroups: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroups, tmp_path) as agent:
        sandbox = Sandbox(cgroups.kubepods)
        write_manifest(agent.pods, sandbox.manifest())
        eventually(lambda: agent.state(sandbox.uid) == "WaitingForSandbox")
        sandbox.make_pod()
        sandbox.make_container()
        sandbox.start(host_seconds=0.03)
        eventually(lambda: agent.state(sandbox.uid) == "Captured")
        assert chains(sandbox) > 3
        assert rules() == ""
        [line] = agent.said("Captured")
        assert line["uid"] == sandbox.uid
        assert line["netns"] == sandbox.netns.identity.inode
        sandbox.stop()
        eventually(lambda: agent.state(sandbox.uid) == "WaitingForSandbox")
