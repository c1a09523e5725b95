"""Brings a namespace's legacy tables from whatever they hold to a minted ruleset, or to nothing of ours.

The kernel swaps one table of one family in one step, and that is all it offers: a ruleset of several tables, or of two
families, needs several steps. Each step is safe by itself, since it takes a whole table from old to new. They are done
back to back with everything prepared before; IPv4's nat table, where istio-validation looks, comes last, so a pod does
not start on half of them. Killed in between, a namespace holds some tables of the old and some of the new ruleset,
until the next apply, which compares them table by table, mends it.
"""

import errno
import fcntl
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Literal, NamedTuple

from cni_agent.capture import Family
from cni_agent.kernel import xtables, xtables_socket
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.failure import KernelRefused, NotAsWritten
from cni_agent.kernel.holdings import (
    Held,
    HeldChain,
    HeldRule,
    Texts,
    changed_tables,
    differences,
    holds_ours,
    is_ours,
    ours,
    residents,
    successor,
)
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.legacy_stamp import FAMILY_NAMES, LegacyStamp, TableKey, places
from cni_agent.kernel.netns import Netns
from cni_agent.names import NFT_TABLES

Outcome = Literal["applied", "replaced", "unchanged"]
ORDER: Final[tuple[TableKey, ...]] = ((6, "raw"), (6, "mangle"), (6, "nat"), (4, "raw"), (4, "mangle"), (4, "nat"))
ATTEMPTS: Final = 5
LOCK_WAIT: Final = 1.0  # seconds


class Step(NamedTuple):
    """The swap of one table."""

    key: TableKey
    old: xtables.Block
    new: xtables.Block
    counters: list[bytes]


def apply(inside: Inside, stamp: LegacyStamp) -> Outcome:
    """Makes the legacy tables hold the stamp, and reads back what was written."""
    with _locked(inside) as sockets:
        for _ in range(ATTEMPTS):
            steps, had_ours = _steps(_read(inside, sockets, set(stamp.tables)), stamp)
            if not steps:
                return "unchanged"
            if _swap(inside, sockets, steps):
                _verify(sockets, stamp)
                return "replaced" if had_ours else "applied"
    raise _outrun()


def check(inside: Inside, stamp: LegacyStamp, texts: Callable[[], Texts]) -> tuple[Difference, ...]:
    """What differs from the stamp; no table is created by looking."""
    with _locked(inside) as sockets:
        existing = _read(inside, sockets, set())
    if existing.keys() == stamp.tables.keys() and all(stamp.tables[key].matches(existing[key]) for key in existing):
        return ()
    wanted = {where: chain for key in stamp.tables for where, chain in stamp.wanted(key).items()}
    return differences(wanted, _all_held(existing), texts)


def leftovers(inside: Inside) -> tuple[Difference, ...]:
    """What is ours in the legacy tables of a namespace that should have it elsewhere."""
    if not any(inside.legacy_tables.values()):
        return ()
    with _locked(inside) as sockets:
        return tuple(
            Difference("extra", f"legacy {FAMILY_NAMES[family]} {table}", "rules of the iptables-legacy backend")
            for (family, table), block in _read(inside, sockets, set()).items()
            if holds_ours(_held((family, table), xtables.parse(block, family)))
        )


def clear(inside: Inside) -> bool:
    """Takes away all that is ours. Whether there was anything."""
    if not any(inside.legacy_tables.values()):
        return False
    nothing = LegacyStamp({}, {}, {})
    with _locked(inside) as sockets:
        for _ in range(ATTEMPTS):
            steps, _ = _steps(_read(inside, sockets, set()), nothing)
            if not steps:
                return False
            if _swap(inside, sockets, list(reversed(steps))):
                return True
    raise _outrun()


Sockets = Callable[[Family], socket.socket]


@contextmanager
def _locked(inside: Inside) -> Iterator[Sockets]:
    """Sockets by family, opened when needed, while we hold the lock that Istio's tools take for a pod: its namespace.

    Any process of the pod could hold it for ever, so it is waited for briefly and then done without. The kernel
    refuses a swap if the table changed its size since it was read.
    """
    with ExitStack() as stack:
        deadline = time.monotonic() + LOCK_WAIT
        while not _lock(inside.netns.fd) and time.monotonic() < deadline:
            time.sleep(0.01)
        stack.callback(fcntl.flock, inside.netns.fd, fcntl.LOCK_UN)
        opened: dict[Family, socket.socket] = {}

        def of_family(family: Family) -> socket.socket:
            if family not in opened:
                opened[family] = stack.enter_context(inside.raw_socket(family))
            return opened[family]

        yield of_family


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(inside: Inside, sockets: Sockets, wanted: set[TableKey]) -> dict[TableKey, xtables.Block]:
    """The tables that exist, and those that are wanted, in the order of writing."""
    there = {(family, table) for family, tables in inside.legacy_tables.items() for table in tables}
    return {
        key: xtables_socket.read(sockets(key[0]), *key)
        for key in ORDER
        if key in wanted or (key in there and key[1] in NFT_TABLES)
    }


def _steps(existing: dict[TableKey, xtables.Block], stamp: LegacyStamp) -> tuple[list[Step], bool]:
    """The swaps that lead to the stamp, and whether there was anything of ours."""
    right = {key for key, block in existing.items() if key in stamp.tables and stamp.tables[key].matches(block)}
    others = {key: xtables.parse(block, key[0]) for key, block in existing.items() if key not in right}
    held = {where: chain for key, chains in others.items() for where, chain in _held(key, chains).items()}
    wanted = {where: chain for key in others for where, chain in stamp.wanted(key).items()}
    resident = frozenset(FAMILY_NAMES[family] for family, _ in right) | residents(held)
    changed = changed_tables(wanted, held, resident)
    steps = [
        _step(key, existing[key], chains, stamp, adopt=FAMILY_NAMES[key[0]] in resident)
        for key, chains in others.items()
        if (FAMILY_NAMES[key[0]], key[1]) in changed
    ]
    return steps, bool(right) or holds_ours(held)


def _step(key: TableKey, block: xtables.Block, chains: xtables.Chains, stamp: LegacyStamp, *, adopt: bool) -> Step:
    table = stamp.tables.get(key)
    if table and all(chain.policy == "ACCEPT" and not chain.rules for chain in chains.values()):
        return Step(key, block, table.block, [])
    merged = _merged(key, chains, stamp, adopt=adopt)
    return Step(key, block, xtables.compile_block(merged, key[0]), xtables.counters_of(merged))


def _merged(key: TableKey, current: xtables.Chains, stamp: LegacyStamp, *, adopt: bool) -> xtables.Chains:
    """The table with our rules in it instead of the old ones, and everything else as it is."""
    wanted = stamp.tables[key].chains if key in stamp.tables else {}
    merged: xtables.Chains = {}
    holding = _held(key, current)
    for where, held in holding.items():
        if is_ours(where):
            continue
        chain, new = current[where.chain], wanted.get(where.chain)
        rules = new.rules if new else []
        old = ours(where, held, [rule.key for rule in rules] if adopt else ())
        merged[where.chain] = xtables.Chain(
            new.policy if new else chain.policy,
            _shared_rules(chain.rules, old, rules, stamp.heads.get(where, 0), successor(where, holding, old)),
        )
    merged |= {name: chain for name, chain in wanted.items() if name not in merged}
    # libiptc keeps chains of users in the order of their names, and so do we
    return dict(sorted(merged.items(), key=lambda item: (item[1].policy is None, item[0] * (item[1].policy is None))))


def _shared_rules(
    there: list[xtables.Entry], old: list[int], new: list[xtables.Entry], at_head: int, following: int | None
) -> list[xtables.Entry]:
    """A chain that we share with others: our new rules before one that follows them, or where iptables-restore puts
    them; those of others are known from now on, which tells them from what comes later."""
    kept: list[xtables.Entry] = []
    for index, rule in enumerate(there):
        if index == following:
            kept += new[at_head:]
        if index not in old:
            kept.append(rule._replace(known=True))
    return new[:at_head] + kept + (new[at_head:] if following is None else [])


def _swap(inside: Inside, sockets: Sockets, steps: list[Step]) -> bool:
    """Does all steps; when one is refused, puts back what the others took away. False if another writer was first."""
    done: list[Step] = []
    owned = inside.netns if inside.netns.foreign_owner else None
    try:
        for step in steps:
            family, table = step.key
            xtables_socket.replace(sockets(family), family, table, step.new, step.old.number, owned)
            done.append(step)
            if any(map(any, step.counters)):
                xtables_socket.add_counters(sockets(family), family, table, step.counters)
    except KernelRefused as error:
        stuck = [step for step in reversed(done) if not _put_back(sockets, step, owned)]
        if stuck:
            tables = ", ".join(f"{FAMILY_NAMES[family]} {table}" for family, table in (step.key for step in stuck))
            raise KernelRefused(error.reason, f"{error}; not put back: {tables}", error.errno) from None
        if error.errno == errno.EAGAIN:
            return False
        raise
    return True


def _put_back(sockets: Sockets, step: Step, owned: Netns | None) -> bool:
    try:
        xtables_socket.replace(sockets(step.key[0]), *step.key, step.old, step.new.number, owned)
    except KernelRefused:
        return False
    return True


def _verify(sockets: Sockets, stamp: LegacyStamp) -> None:
    written = {key: xtables_socket.read(sockets(key[0]), *key) for key in stamp.tables}
    wrong = {key: block for key, block in written.items() if not stamp.tables[key].matches(block)}
    wanted = {where: chain for key in wrong for where, chain in stamp.wanted(key).items()}
    left = differences(wanted, _all_held(wrong), dict)
    if left:
        raise NotAsWritten("not-as-written", f"read back {len(left)} differences, the first: {left[0]}")


def _held(key: TableKey, chains: xtables.Chains) -> Held:
    return {
        where: HeldChain(
            chain.policy,
            [
                HeldRule(rule.key, rule.marked, rule.jump, rule.ends, born=0 if rule.marked or rule.known else 1)
                for rule in chain.rules
            ],
        )
        for where, chain in places(key, chains)
    }


def _all_held(blocks: dict[TableKey, xtables.Block]) -> Held:
    return {
        where: chain
        for key, block in blocks.items()
        for where, chain in _held(key, xtables.parse(block, key[0])).items()
    }


def _outrun() -> KernelRefused:
    return KernelRefused("busy", "another program keeps changing the legacy tables of this namespace", errno.EAGAIN)
