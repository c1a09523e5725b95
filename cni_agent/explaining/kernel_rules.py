"""The rules that a kernel has, with their counters, read with the ordinary tools."""

from cni_agent.backends import BACKENDS, Name
from cni_agent.capture import Family
from cni_agent.explaining import listed, saved
from cni_agent.explaining.trace import Chains
from cni_agent.kernel.failure import CommandError
from cni_agent.kernel.holdings import OUR_CHAINS
from cni_agent.kernel.mint import IPTABLES
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.runner import run
from cni_agent.rules import Dialect


def holder(netns: Netns) -> Name:
    """The backend that has rules of ours in a namespace; the first one if none has."""
    for backend in BACKENDS:
        try:
            if any(chain in OUR_CHAINS for _, chain in chains(netns, backend, 4)):
                return backend
        except CommandError as error:
            if error.reason != "no-program":
                raise
    return next(iter(BACKENDS))


def chains(netns: Netns, backend: Name, family: Family) -> Chains:
    """The rules of one backend that hold for a family. Raises `CommandError`."""
    if backend == "nftables":
        return listed.read(run(["nft", "-j", "list", "ruleset"], netns=netns), family)
    variant = backend.removeprefix("iptables-")
    # legacy-save without a table shows those that exist, and does not bring others into being
    return saved.read(run([f"{IPTABLES[family]}-{variant}-save", "--counters"], netns=netns), family)


def dialect(backend: Name) -> Dialect:
    """How its rules are meant."""
    return "nftables" if backend == "nftables" else "iptables"
