"""The rules of a namespace as the tools show them."""

import subprocess

from cni_agent.kernel.netns import Netns
from tests.kernel.sandbox import Sandbox


def rules(netns: Netns | None = None, *options: str) -> str:
    """All of them; of the node's own namespace without one."""

    def show() -> str:
        return subprocess.run(["nft", *options, "list", "ruleset"], capture_output=True, text=True, check=True).stdout

    return netns.run_inside(show) if netns else show()


def handles(netns: Netns) -> str:
    """With the numbers that the kernel gave them: equal means that nothing was written anew."""
    return rules(netns, "-a")


def chains(sandbox: Sandbox) -> int:
    """How many chains of ours a pod has."""
    return rules(sandbox.netns).count("chain ISTIO_")
