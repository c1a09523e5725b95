"""A ruleset minted for the legacy tables: blocks ready to be swapped in, and recognised where they are."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from cni_agent.capture import Family
from cni_agent.kernel import xtables
from cni_agent.kernel.holdings import Place, Texts, WantedChain

TableKey = tuple[Family, str]
FAMILY_NAMES: Final[dict[Family, str]] = {4: "ip", 6: "ip6"}


class MintedTable(NamedTuple):
    """One table as it should be, and how to see at a glance that it is."""

    chains: xtables.Chains
    block: xtables.Block
    fixed: struct.Struct
    expected: tuple[bytes, ...]

    def matches(self, block: xtables.Block) -> bool:
        """Whether a table holds this, and nothing else at all."""
        return len(block.entries) == self.fixed.size and self.fixed.unpack(block.entries) == self.expected


@dataclass(frozen=True, slots=True)
class LegacyStamp:
    """A minted ruleset for the legacy tables."""

    tables: dict[TableKey, MintedTable]
    texts: Texts
    heads: dict[Place, int]

    def wanted(self, key: TableKey) -> dict[Place, WantedChain]:
        """For comparing chain by chain; nothing for a table that this ruleset does not use."""
        table = self.tables.get(key)
        return {
            where: WantedChain(chain.policy, [rule.key for rule in chain.rules], self.texts.get(where, ()))
            for where, chain in (places(key, table.chains) if table else ())
        }


def minted_table(block: xtables.Block, family: Family) -> MintedTable:
    """A table read from the kernel, as something to recognise."""
    form, at = ["="], 0
    for start, end in xtables.variable_spans(block, family):
        form.append(f"{start - at}s{end - start}x")
        at = end
    fixed = struct.Struct("".join(form) + f"{len(block.entries) - at}s")
    return MintedTable(xtables.parse(block, family), block, fixed, fixed.unpack(block.entries))


def places(key: TableKey, chains: xtables.Chains) -> Iterator[tuple[Place, xtables.Chain]]:
    """The chains of a table as the tools name them."""
    for name, chain in chains.items():
        yield Place(FAMILY_NAMES[key[0]], key[1], name), chain
