"""Which nf_tables messages lead from what a namespace holds to a stamp, or to nothing of ours. Pure.

Rules of other programs stay where they are. In a built-in chain that we share with them, our new rules take the place
of our old ones, or before what came later and takes packets past them; where there were none, they go where
iptables-restore would put them.
"""

from collections.abc import Iterator, Mapping, Sequence

from cni_agent.kernel import nf_changes
from cni_agent.kernel import nf_tables as nf
from cni_agent.kernel.failure import Failure
from cni_agent.kernel.holdings import (
    OUR_TABLES,
    Held,
    HeldChain,
    HeldRule,
    changed_tables,
    is_ours,
    ours,
    residents,
    successor,
)
from cni_agent.kernel.stamp import Stamp, hook_name, place, policy_name
from cni_agent.names import BUILT_IN_CHAINS, NFT_TABLES


def held(current: nf.Objects) -> Held:
    """What a namespace holds in the tables that concern us."""
    return {
        place(key): HeldChain(
            policy_name(chain.policy),
            [
                HeldRule(rule.key(current.contents(key[:2])), rule.marked, rule.jump, rule.ends, born=rule.handle)
                for rule in current.rules[key]
            ],
            hook_name(chain),
        )
        for key, chain in current.chains.items()
    }


def concerns_us(table: nf.TableKey) -> bool:
    """Whether a table may hold something of ours."""
    return _is_native(table) or _is_iptables(table)


def transition(current: nf.Objects, stamp: Stamp | None) -> list[bytes]:
    """The messages; none when the stamp is there already."""
    wanted = stamp.wanted() if stamp else {}
    holding = held(current)
    changed = changed_tables(wanted, holding)
    parts: list[bytes] = []
    tables = dict.fromkeys([*current.tables, *(stamp.tables if stamp else ())])
    for table in filter(_is_iptables, tables):
        if (nf.FAMILY_NAMES[table[0]], table[1]) in changed:
            parts += _iptables_table(table, current, holding, stamp)
    native = [table for table in current.tables if _is_native(table)]
    unwanted = any(stamp is None or table not in stamp.tables for table in native)
    if unwanted or any(family == "inet" for family, _ in changed):
        parts += map(nf_changes.delete_table, native)
        parts += stamp.parts if stamp and any(map(_is_native, stamp.tables)) else ()
    return parts


def dormant(current: nf.Objects, stamp: Stamp) -> list[nf.TableKey]:
    """Tables of the stamp that are there and whose chains no packet gets to."""
    return [key for key in stamp.tables if key in current.tables and current.tables[key].flags & nf.DORMANT]


def _iptables_table(table: nf.TableKey, current: nf.Objects, holding: Held, stamp: Stamp | None) -> Iterator[bytes]:
    chains = [key for key in current.chains if key[:2] == table]
    wanted = {key: chain for key, chain in stamp.chains.items() if key[:2] == table} if stamp else {}
    adopt = nf.FAMILY_NAMES[table[0]] in residents(holding)
    own = {key: ours(place(key), holding[place(key)], _keys(stamp, key) if adopt else ()) for key in chains}
    if not wanted and _nothing_foreign(chains, own, current):
        yield nf_changes.delete_table(table)
        return
    if stamp and wanted:
        yield from _wanted_chains(table, wanted, current, stamp)
    yield from (nf_changes.flush_chain(key) for key in chains if is_ours(place(key)))
    anew = [key for key in wanted if stamp and _hangs_elsewhere(key, stamp, current) and not is_ours(place(key))]
    for key in wanted:
        assert stamp is not None
        following = successor(place(key), holding, own.get(key, ()))
        if key in anew:
            yield from _anew(key, stamp, current.rules[key], own[key], following)
        else:
            yield from _rules(key, stamp, before=0 if following is None else current.rules[key][following].handle)
    for key in chains:
        if not is_ours(place(key)) and key not in anew:
            yield from (nf_changes.delete_rule(key, current.rules[key][index].handle) for index in own[key])
    for key in chains:
        emptied = bool(own[key]) and _nothing_foreign([key], own, current)
        if key not in wanted and (is_ours(place(key)) or emptied):
            yield nf_changes.delete_chain(key)


def _wanted_chains(
    table: nf.TableKey, wanted: Mapping[nf.ChainKey, nf.Chain], current: nf.Objects, stamp: Stamp
) -> Iterator[bytes]:
    if table not in current.tables:
        yield nf_changes.new_table(table, stamp.tables[table])
    for key, chain in wanted.items():
        there = current.chains.get(key)
        if there is None or (there.seat == chain.seat and there.policy != chain.policy):
            yield nf_changes.new_chain(key, chain)
        elif there.seat != chain.seat and is_ours(place(key)):
            yield from (nf_changes.flush_chain(key), nf_changes.delete_chain(key), nf_changes.new_chain(key, chain))


def _hangs_elsewhere(key: nf.ChainKey, stamp: Stamp, current: nf.Objects) -> bool:
    """Whether a chain in which rules of ours belong is there, but not on its hook."""
    there = current.chains.get(key)
    return there is not None and bool(stamp.rules[key]) and there.seat != stamp.chains[key].seat


def _anew(
    key: nf.ChainKey, stamp: Stamp, there: Sequence[nf.Rule], own: Sequence[int], following: int | None
) -> Iterator[bytes]:
    """A chain that we share with others, on its hook: their rules are written again, ours before one that follows."""
    if any(name.startswith("__") for index, rule in enumerate(there) if index not in own for name in rule.sets):
        message = (
            f"{place(key)} hangs on another hook and has a rule with a set of its own, which cannot be written again"
        )
        raise Failure("foreign-chain", f"{message}; take that rule away: nft -a list chain {place(key)}")
    yield from (nf_changes.flush_chain(key), nf_changes.delete_chain(key), nf_changes.new_chain(key, stamp.chains[key]))
    payloads, at_head = [rule.payload for rule in stamp.rules[key]], stamp.heads.get(key, 0)
    rules = payloads[:at_head]
    for index, rule in enumerate(there):
        if index == following:
            rules += payloads[at_head:]
        if index not in own:
            rules.append(nf_changes.copied(rule))
    rules += payloads[at_head:] if following is None else []
    yield from (nf_changes.new_rule(key, payload) for payload in rules)


def _rules(key: nf.ChainKey, stamp: Stamp, *, before: int) -> Iterator[bytes]:
    """The rules of one chain. `before`: the handle of the rule that follows ours, 0 when none does."""
    payloads = [rule.payload for rule in stamp.rules[key]]
    if is_ours(place(key)):
        yield from (nf_changes.new_rule(key, payload) for payload in payloads)
        return
    at_head = stamp.heads.get(key, 0)
    yield from (nf_changes.new_rule(key, payload, append=False) for payload in reversed(payloads[:at_head]))
    yield from (nf_changes.new_rule(key, payload, before=before) for payload in payloads[at_head:])


def _nothing_foreign(chains: list[nf.ChainKey], own: Mapping[nf.ChainKey, list[int]], current: nf.Objects) -> bool:
    """Whether a table without our rules would be as empty as iptables makes it."""
    return all(
        is_ours(place(key))
        or (
            len(own[key]) == len(current.rules[key])
            and key[2] in BUILT_IN_CHAINS
            and current.chains[key].policy == nf.ACCEPT
        )
        for key in chains
    )


def _keys(stamp: Stamp | None, key: nf.ChainKey) -> list[tuple[bytes, ...]]:
    return [rule.key for rule in stamp.rules.get(key, ())] if stamp else []


def _is_native(table: nf.TableKey) -> bool:
    return table[0] == nf.INET and table[1] in OUR_TABLES


def _is_iptables(table: nf.TableKey) -> bool:
    return table[0] in (nf.IPV4, nf.IPV6) and table[1] in NFT_TABLES
