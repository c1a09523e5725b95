"""Brings a namespace's nf_tables from whatever it holds to a stamp, or to nothing of ours, in one transaction.

The kernel makes all of a batch visible at once, for both families and for native tables as well: no packet ever meets
half of a ruleset, nor, when one replaces another, none. A batch names the generation that it was made for, so that a
change by somebody else in between is noticed and the work done anew.
"""

import errno
import socket
from collections.abc import Callable
from typing import Final, Literal

from cni_agent.kernel import nf_changes
from cni_agent.kernel import nf_tables as nf
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.failure import Failure, KernelRefused, NotAsWritten
from cni_agent.kernel.holdings import Texts, differences, holds_ours, is_ours, ours
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netlink import Channel
from cni_agent.kernel.stamp import Stamp
from cni_agent.kernel.transition import concerns_us, dormant, held, transition

ATTEMPTS: Final = 5  # commits that other writers may outrun before we give up
UNTOUCHED: Final = 1  # the generation of a namespace in which nothing was ever committed
EVERY: Final = nf.header(socket.AF_UNSPEC)

Outcome = Literal["applied", "replaced", "unchanged"]


def begin(inside: Inside, stamp: Stamp) -> bool:
    """Writes the stamp to a namespace in which there never were nf_tables rules; False when this is not one.

    As almost every pod's is. Nothing has to be asked first: the kernel refuses a batch for another generation.
    """
    if not _commit(inside.firewall, stamp.fresh, UNTOUCHED):
        return False
    _verify(inside, stamp)
    return True


def apply(inside: Inside, stamp: Stamp) -> Outcome:
    """Makes the namespace hold the stamp, and reads back what was written."""
    channel = inside.firewall
    for _ in range(ATTEMPTS):
        inside.looking()
        generation = nf.generation(channel)
        outcome: Outcome = "applied"
        batches = [stamp.fresh]
        if channel.dump(nf.GET_TABLE, EVERY):
            if stamp.matches(channel):
                return "unchanged"
            current = _read(channel)
            batches = _batches(current, stamp)
            if not batches:
                return "unchanged"
            outcome = "replaced" if holds_ours(held(current)) else "applied"
        if _commit(channel, batches[0], generation):
            for batch in batches[1:]:
                _commit(channel, batch, nf.ANY_GENERATION)
            _verify(inside, stamp)
            return outcome
    raise _outrun()


def check(inside: Inside, stamp: Stamp, texts: Callable[[], Texts]) -> tuple[Difference, ...]:
    """What differs from the stamp. `texts` gives the rules that are there as their tool writes them."""
    inside.looking()
    if stamp.matches(inside.firewall):
        return ()
    return _differences(_read(inside.firewall), stamp, texts)


def clear(channel: Channel) -> bool:
    """Takes away all that is ours. Whether there was anything."""
    for _ in range(ATTEMPTS):
        generation = nf.generation(channel)
        if not channel.dump(nf.GET_TABLE, EVERY):
            return False
        parts = transition(_read(channel), None)
        if not parts:
            return False
        if _commit(channel, nf_changes.batch(parts), generation):
            if holds_ours(held(_read(channel))):
                raise NotAsWritten("not-as-written", "rules of ours are still there after they were removed")
            return True
    raise _outrun()


def leftovers(channel: Channel) -> tuple[Difference, ...]:
    """What is ours in nf_tables of a namespace that should have it elsewhere."""
    holding = held(_read(channel))
    tables = dict.fromkeys(where[:2] for where, chain in holding.items() if is_ours(where) or ours(where, chain))
    return tuple(Difference("extra", " ".join(table), "rules of another backend") for table in tables)


def _batches(current: nf.Objects, stamp: Stamp) -> list[nf_changes.Batch]:
    """The transactions that lead to the stamp: one, unless a table is dormant and something else is wrong as well.

    Newer kernels (6.18, for one) refuse to wake a table in a transaction that has deleted a base chain of it. To wake
    comes last, so that what wakes is right.
    """
    waking = [nf_changes.wake_table(key, current.tables[key]) for key in dormant(current, stamp)]
    return [nf_changes.batch(parts) for parts in (transition(current, stamp), waking) if parts]


def _commit(channel: Channel, batch: nf_changes.Batch, generation: int) -> bool:
    """Whether the batch was committed; not when somebody else committed first."""
    refusal = channel.commit(batch.framed(generation), batch.last)
    if refusal is None:
        return True
    if refusal.errno == errno.ERESTART:
        return False
    raise batch.refused(refusal)


def _verify(inside: Inside, stamp: Stamp) -> None:
    inside.looking()
    if stamp.matches(inside.firewall):
        return
    left = _differences(_read(inside.firewall), stamp, dict)
    if left:
        raise NotAsWritten("not-as-written", f"read back {len(left)} differences, the first: {left[0]}")


def _differences(current: nf.Objects, stamp: Stamp, texts: Callable[[], Texts]) -> tuple[Difference, ...]:
    sentence = "it is dormant: no packet gets to its chains"
    asleep = [
        Difference("changed", f"{nf.FAMILY_NAMES[family]} {table}", sentence)
        for family, table in dormant(current, stamp)
    ]
    return (*asleep, *differences(stamp.wanted(), held(current), texts))


def _outrun() -> Failure:
    return KernelRefused("busy", "another program keeps changing the rules of this namespace", errno.ERESTART)


def _read(channel: Channel) -> nf.Objects:
    """All of one generation: what chains one dump has and what rules the next are else those of different rulesets."""
    before = nf.generation(channel)
    for _ in range(ATTEMPTS):
        found = nf.read(channel, concerns_us)
        after = nf.generation(channel)
        if after == before:
            return found
        before = after
    raise _outrun()
