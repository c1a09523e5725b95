"""The tables of legacy iptables, for nodes whose other users are there, or whose kernel lacks nf_tables.

One table of one family is swapped at a time, so two families are not one transaction: see `cni_agent.kernel.legacy`.
"""

from typing import Final

from cni_agent.backends import Name, Outcome
from cni_agent.build import build
from cni_agent.capture import Capture, Family
from cni_agent.kernel import as_owner, legacy, routes, transaction, xtables, xtables_socket
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.failure import Failure, KernelRefused
from cni_agent.kernel.holdings import Place, Texts
from cni_agent.kernel.inside import Inside, entered
from cni_agent.kernel.legacy_stamp import FAMILY_NAMES, LegacyStamp, MintedTable, TableKey, minted_table
from cni_agent.kernel.mint import IPTABLES, Mint, heads, saved_texts
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.runner import run
from cni_agent.names import BUILT_IN_CHAINS
from cni_agent.restore import restore_text
from cni_agent.rules import Ruleset


class IptablesLegacy:
    """See `cni_agent.backends.Backend`."""

    name: Final[Name] = "iptables-legacy"

    def __init__(self) -> None:
        self._mint = Mint(_mint)

    def ruleset(self, capture: Capture) -> Ruleset:
        """The rules that istio-iptables would write."""
        return build(capture, "iptables")

    def is_ready(self, ruleset: Ruleset) -> bool:
        """See `Backend`. Never: the kernel makes each table on first use, which takes its time."""
        return False

    def apply(self, where: Netns | Inside, ruleset: Ruleset) -> Outcome:
        """See `Backend`. New rules first, then leftovers in nf_tables: never a moment without."""
        stamp = self._mint(ruleset)
        with entered(where) as inside:
            added = routes.ensure(inside.routes, ruleset)
            try:
                outcome = legacy.apply(inside, stamp)
            except Failure as error:
                routes.undo(inside.routes, added)
                raise as_owner.explained(error, inside.netns) from None
            dropped = [_clear_nf_tables(inside), routes.drop_others(inside.routes, ruleset)]
        return "replaced" if any(dropped) or (added and outcome == "unchanged") else outcome

    def check(self, where: Netns | Inside, ruleset: Ruleset) -> tuple[Difference, ...]:
        """See `Backend`."""
        stamp = self._mint(ruleset)
        with entered(where) as inside:
            found = legacy.check(inside, stamp, lambda: _texts(inside.netns, (4, 6)))
            return found + _nf_tables_leftovers(inside) + routes.differences(inside.routes, ruleset)

    def holds(self, where: Netns | Inside) -> bool:
        """See `Backend`."""
        with entered(where) as inside:
            return bool(legacy.leftovers(inside) or _nf_tables_leftovers(inside))

    def remove(self, where: Netns | Inside) -> bool:
        """See `Backend`."""
        with entered(where) as inside:
            return any([legacy.clear(inside), _clear_nf_tables(inside), routes.drop_others(inside.routes, None)])


def _clear_nf_tables(inside: Inside) -> bool:
    try:
        return transaction.clear(inside.firewall)
    except KernelRefused as error:
        if error.reason == "no-nf-tables":  # then nothing of ours can be there
            return False
        raise


def _nf_tables_leftovers(inside: Inside) -> tuple[Difference, ...]:
    try:
        return transaction.leftovers(inside.firewall)
    except KernelRefused as error:
        if error.reason == "no-nf-tables":
            return ()
        raise


def _mint(ruleset: Ruleset) -> LegacyStamp:
    with Netns.scratch() as scratch:
        for family in ruleset.families:
            command = [f"{IPTABLES[family]}-legacy-restore", "--noflush"]
            run(command, netns=scratch, text=restore_text(ruleset, family), environment=scratch.lock_environment())
        texts = _texts(scratch, ruleset.families)
        with Inside(scratch) as inside:
            marked = {key: _marked(block, key[0]) for key, block in _blocks(inside).items()}
    with Netns.scratch() as proof, Inside(proof) as inside:
        minted = {key: _proven(inside, key, block) for key, block in marked.items()}
    places = {Place(FAMILY_NAMES[family], table, chain): n for (family, table, chain), n in heads(ruleset).items()}
    return LegacyStamp(minted, texts, places)


def _blocks(inside: Inside) -> dict[TableKey, xtables.Block]:
    found: dict[TableKey, xtables.Block] = {}
    for family, tables in inside.legacy_tables.items():
        with inside.raw_socket(family) as opened:
            found |= {(family, table): xtables_socket.read(opened, family, table) for table in tables}
    return found


def _marked(block: xtables.Block, family: Family) -> xtables.Block:
    chains = xtables.parse(block, family)
    for name, chain in chains.items():
        if name in BUILT_IN_CHAINS:
            chain.rules = [rule._replace(marked=True) for rule in chain.rules]
    return xtables.compile_block(chains, family)


def _proven(inside: Inside, key: TableKey, block: xtables.Block) -> MintedTable:
    """The table as the kernel gives it back once it was written; its entries without what varies are the same."""
    family, table = key
    with inside.raw_socket(family) as opened:
        old = xtables_socket.read(opened, family, table)
        xtables_socket.replace(opened, family, table, block, old.number)
        return minted_table(xtables_socket.read(opened, family, table), family)


def _texts(netns: Netns, families: tuple[Family, ...]) -> Texts:
    return saved_texts(lambda family: run([f"{IPTABLES[family]}-legacy-save"], netns=netns), families)
