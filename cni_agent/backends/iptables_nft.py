"""The default: rules in the tables that `iptables` (its nf_tables variant) has, so that operators see what they know.

Both families go into one transaction, which the tool itself cannot do: it is two programs.
"""

from typing import Final

from cni_agent.backends import Name
from cni_agent.backends.stamping import StampingBackend
from cni_agent.build import build
from cni_agent.capture import Capture
from cni_agent.kernel.holdings import Texts
from cni_agent.kernel.mint import IPTABLES, saved_texts
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.runner import run
from cni_agent.restore import restore_text
from cni_agent.rules import Ruleset


class IptablesNft(StampingBackend):
    """See `cni_agent.backends.Backend`."""

    name: Final[Name] = "iptables-nft"

    def ruleset(self, capture: Capture) -> Ruleset:
        """The rules that istio-iptables would write."""
        return build(capture, "iptables")

    def _write(self, netns: Netns, ruleset: Ruleset) -> None:
        for family in ruleset.families:
            command = [f"{IPTABLES[family]}-nft-restore", "--noflush"]
            run(command, netns=netns, text=restore_text(ruleset, family))

    def _texts(self, netns: Netns, ruleset: Ruleset) -> Texts:
        return saved_texts(lambda family: run([f"{IPTABLES[family]}-nft-save"], netns=netns), (4, 6))
