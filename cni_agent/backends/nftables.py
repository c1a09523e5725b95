"""Native tables, `inet istio-proxy-*`, for nodes without the xtables extensions. One table serves both families.

Unlike Istio's, TPROXY fails closed: the kernel's `tproxy` statement lets a packet pass when nobody listens, so a rule
behind it drops what it did not take.
"""

from typing import Final

from cni_agent.backends import Name
from cni_agent.backends.stamping import StampingBackend
from cni_agent.build import build
from cni_agent.capture import Capture
from cni_agent.kernel.holdings import Texts
from cni_agent.kernel.mint import listed_texts
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.runner import run
from cni_agent.nft import nft_text
from cni_agent.rules import Ruleset


class Nftables(StampingBackend):
    """See `cni_agent.backends.Backend`."""

    name: Final[Name] = "nftables"

    def ruleset(self, capture: Capture) -> Ruleset:
        """The rules that istio-iptables --native-nftables would write, failing closed."""
        return build(capture, "nftables", fail_closed=True)

    def _write(self, netns: Netns, ruleset: Ruleset) -> None:
        run(["nft", "-f", "-"], netns=netns, text=nft_text(ruleset))

    def _texts(self, netns: Netns, ruleset: Ruleset) -> Texts:
        return listed_texts(run(["nft", "list", "ruleset"], netns=netns))
