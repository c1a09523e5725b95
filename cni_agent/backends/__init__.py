"""Three ways to hold the same rules in the kernel, behind one protocol.

Whatever the backend, `apply` leaves the namespace with this ruleset and nothing else of ours: artefacts of other
settings, of another mode and of the other backends are gone, and what other programs put there is as it was.
"""

import importlib
from typing import Final, Literal, Protocol

from cni_agent.capture import Capture
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netns import Netns
from cni_agent.rules import Ruleset

Name = Literal["iptables-nft", "iptables-legacy", "nftables"]
Outcome = Literal["applied", "replaced", "unchanged"]

# in the order of preference: what operators know first, what the kernel always has last
BACKENDS: Final[dict[Name, tuple[str, str]]] = {
    "iptables-nft": ("cni_agent.backends.iptables_nft", "IptablesNft"),
    "iptables-legacy": ("cni_agent.backends.iptables_legacy", "IptablesLegacy"),
    "nftables": ("cni_agent.backends.nftables", "Nftables"),
}


class Backend(Protocol):
    """Safe to share between threads; one namespace must not be worked on by two at a time. `where`: a namespace, or one
    that is worked on already.

    Every method raises `cni_agent.kernel.failure.Failure` of some kind, and nothing else on purpose.
    """

    name: Name

    def ruleset(self, capture: Capture) -> Ruleset:
        """The rules for these settings in the form that this backend programs."""

    def is_ready(self, ruleset: Ruleset) -> bool:
        """Whether `apply` writes this to a new namespace within about a millisecond, with no program to run first."""

    def apply(self, where: Netns | Inside, ruleset: Ruleset) -> Outcome:
        """Makes the namespace hold exactly this ruleset of ours, with its routes; reads back what it wrote."""

    def check(self, where: Netns | Inside, ruleset: Ruleset) -> tuple[Difference, ...]:
        """What differs from this ruleset, in order; nothing when all is right. Writes nothing."""

    def holds(self, where: Netns | Inside) -> bool:
        """Whether there is anything of ours, of any backend and settings. Writes nothing."""

    def remove(self, where: Netns | Inside) -> bool:
        """Takes away everything of ours, of any backend. Whether there was anything."""


def backend(name: Name) -> Backend:
    """A new backend. Its mint is its own: keep it, so that each ruleset is minted once."""
    module, attribute = BACKENDS[name]
    made: Backend = getattr(importlib.import_module(module), attribute)()
    return made
