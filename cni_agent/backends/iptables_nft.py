"""The default: rules in the tables that `iptables` (its nf_tables variant) has, so that operators see what they know.

Both families go into one transaction, which the tool itself cannot do: it is two programs.
"""

from typing import Final

from cni_agent import legacy, routes, transaction
from cni_agent.backends import Name, Outcome
from cni_agent.build import build
from cni_agent.capture import Capture
from cni_agent.differences import Difference
from cni_agent.failure import Failure
from cni_agent.holdings import Texts
from cni_agent.inside import Inside
from cni_agent.mint import IPTABLES, Mint, mint_stamp, run_in, saved_texts
from cni_agent.netns import Netns
from cni_agent.restore import restore_text
from cni_agent.rules import Ruleset
from cni_agent.stamp import Stamp


class IptablesNft:
    """See `cni_agent.backends.Backend`."""

    name: Final[Name] = "iptables-nft"

    def __init__(self) -> None:
        self._mint = Mint(_mint)

    def ruleset(self, capture: Capture) -> Ruleset:
        """The rules that istio-iptables would write."""
        return build(capture, "iptables")

    def apply(self, netns: Netns, ruleset: Ruleset) -> Outcome:
        """See `Backend`. New rules first, then leftovers of the legacy tables: never a moment without."""
        stamp = self._mint(ruleset)
        with Inside(netns) as inside:
            added = routes.ensure(inside.routes, ruleset)
            try:
                outcome = transaction.apply(inside.firewall, stamp)
            except Failure:
                routes.undo(inside.routes, added)
                raise
            dropped = [legacy.clear(inside), routes.drop_others(inside.routes, ruleset)]
        return "replaced" if any(dropped) or (added and outcome == "unchanged") else outcome

    def check(self, netns: Netns, ruleset: Ruleset) -> tuple[Difference, ...]:
        """See `Backend`."""
        stamp = self._mint(ruleset)
        with Inside(netns) as inside:
            found = transaction.check(inside.firewall, stamp, lambda: _texts(netns, ruleset))
            return found + legacy.leftovers(inside) + routes.differences(inside.routes, ruleset)

    def remove(self, netns: Netns) -> bool:
        """See `Backend`."""
        with Inside(netns) as inside:
            return any(
                [transaction.clear(inside.firewall), legacy.clear(inside), routes.drop_others(inside.routes, None)]
            )


def _mint(ruleset: Ruleset) -> Stamp:
    def write(netns: Netns) -> None:
        for family in ruleset.families:
            text = restore_text(ruleset, family)
            run_in(netns, f"{IPTABLES[family]}-nft-restore", "--noflush", text=text)

    return mint_stamp(ruleset, write, lambda netns: _texts(netns, ruleset))


def _texts(netns: Netns, ruleset: Ruleset) -> Texts:
    return saved_texts(lambda family: run_in(netns, f"{IPTABLES[family]}-nft-save"), ruleset.families)
