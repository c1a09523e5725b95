"""What the two backends that live in nf_tables have in common: all but the words of their tool."""

from abc import ABC, abstractmethod

from cni_agent.backends import Outcome
from cni_agent.kernel import as_owner, legacy, routes, transaction
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.failure import Failure
from cni_agent.kernel.holdings import Texts
from cni_agent.kernel.inside import Inside, entered
from cni_agent.kernel.mint import Mint, mint_stamp
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.stamp import Stamp
from cni_agent.rules import Ruleset


class StampingBackend(ABC):
    """`apply`, `check`, `holds` and `remove` of `cni_agent.backends.Backend`."""

    def __init__(self) -> None:
        self._mint = Mint(self._minted)

    @abstractmethod
    def _write(self, netns: Netns, ruleset: Ruleset) -> None:
        """Has the tool write a ruleset into an empty namespace."""

    @abstractmethod
    def _texts(self, netns: Netns, ruleset: Ruleset) -> Texts:
        """The rules of a namespace in the tool's own words."""

    def _minted(self, ruleset: Ruleset) -> Stamp:
        return mint_stamp(
            ruleset,
            write=lambda netns: self._write(netns, ruleset),
            texts=lambda netns: self._texts(netns, ruleset),
        )

    def is_ready(self, ruleset: Ruleset) -> bool:
        """See `Backend`."""
        return ruleset in self._mint

    def apply(self, where: Netns | Inside, ruleset: Ruleset) -> Outcome:
        """See `Backend`. New rules first, then leftovers of the legacy tables: never a moment without."""
        stamp = self._mint(ruleset)
        with entered(where) as inside:
            added = routes.ensure(inside.routes, ruleset)
            try:
                # most pods: no rules were ever there, and no routes are wanted, so there is nothing to take away
                if not (inside.has_legacy_tables or ruleset.tproxy) and transaction.begin(inside, stamp):
                    return "applied"
                outcome = transaction.apply(inside, stamp)
            except Failure as error:
                routes.undo(inside.routes, added)
                raise as_owner.explained(error, inside.netns) from None
            dropped = [legacy.clear(inside), routes.drop_others(inside.routes, ruleset)]
        return "replaced" if any(dropped) or (added and outcome == "unchanged") else outcome

    def check(self, where: Netns | Inside, ruleset: Ruleset) -> tuple[Difference, ...]:
        """See `Backend`."""
        stamp = self._mint(ruleset)
        with entered(where) as inside:
            found = transaction.check(inside, stamp, lambda: self._texts(inside.netns, ruleset))
            return found + legacy.leftovers(inside) + routes.differences(inside.routes, ruleset)

    def holds(self, where: Netns | Inside) -> bool:
        """See `Backend`."""
        with entered(where) as inside:
            return bool(transaction.leftovers(inside.firewall) or legacy.leftovers(inside))

    def remove(self, where: Netns | Inside) -> bool:
        """See `Backend`."""
        with entered(where) as inside:
            return any(
                [transaction.clear(inside.firewall), legacy.clear(inside), routes.drop_others(inside.routes, None)]
            )
