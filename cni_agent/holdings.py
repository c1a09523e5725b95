"""What a namespace holds, chain by chain, in a form that all backends share; which of it is ours; how it differs.

Ours are: all rules in `ISTIO_*` chains; all rules that jump to one; and, in built-in chains, rules that carry our mark
(a private userdata entry in nf_tables, the unused `nfcache` word in xtables: neither tool shows it, both keep it).
The mark is what tells an interface exclusion of ours from a like rule of somebody else, when settings change and after
a restart. A rule without it that is just what we want (someone saved and restored the tables, or istio-init wrote it)
counts as ours too, as often as it is wanted.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cni_agent import names
from cni_agent.differences import Difference, compare

OUR_CHAINS: Final = frozenset(
    {
        names.ISTIO_INBOUND,
        names.ISTIO_OUTPUT,
        names.ISTIO_OUTPUT_DNS,
        names.ISTIO_REDIRECT,
        names.ISTIO_IN_REDIRECT,
        names.ISTIO_DIVERT,
        names.ISTIO_TPROXY,
        names.ISTIO_DROP,
    }
)
OUR_TABLES: Final = frozenset(names.NFT_TABLES.values())


class Place(NamedTuple):
    """A chain: family as the tools name it (`ip`, `ip6`, `inet`), table and chain."""

    family: str
    table: str
    chain: str

    def __str__(self) -> str:
        return " ".join(self)


class HeldRule(NamedTuple):
    """A rule found in the kernel. Rules with equal keys are the same rule."""

    key: Hashable
    marked: bool
    jump: str | None


class HeldChain(NamedTuple):
    """A chain found in the kernel; only built-in ones have a policy."""

    policy: str | None
    rules: Sequence[HeldRule]


class WantedChain(NamedTuple):
    """A chain as it should be, each rule with its text."""

    policy: str | None
    keys: Sequence[Hashable]
    texts: Sequence[str]


Held = Mapping[Place, HeldChain]
Wanted = Mapping[Place, WantedChain]
Texts = Mapping[Place, Sequence[str]]


def is_ours(place: Place) -> bool:
    """Whether a whole chain is ours: an `ISTIO_*` one, or any in a native table of ours."""
    return place.chain in OUR_CHAINS or (place.family == "inet" and place.table in OUR_TABLES)


def ours(place: Place, chain: HeldChain, wanted: Sequence[Hashable] = ()) -> list[int]:
    """Which rules of a chain are ours, as indexes in ascending order."""
    if is_ours(place):
        return list(range(len(chain.rules)))
    certain = [index for index, rule in enumerate(chain.rules) if rule.marked or rule.jump in OUR_CHAINS]
    lacking = Counter(wanted) - Counter(chain.rules[index].key for index in certain)
    if not lacking:
        return certain
    known = set(certain)
    for index, rule in enumerate(chain.rules):
        if index not in known and lacking[rule.key] > 0:
            lacking[rule.key] -= 1
            known.add(index)
    return sorted(known)


def holds_ours(held: Held) -> bool:
    """Whether there is anything of ours."""
    return any(is_ours(place) or ours(place, chain) for place, chain in held.items())


def differences(wanted: Wanted, held: Held, texts: Callable[[], Texts]) -> tuple[Difference, ...]:
    """How what is held differs from what is wanted, in order. `texts`, for rules that we did not write, is costly."""
    found = [item for place, chain in wanted.items() for item in _of_chain(place, chain, held.get(place))]
    for place, kept in held.items():
        if place not in wanted:
            found += [(Difference("extra", str(place), ""), place, index) for index in ours(place, kept)]
            if is_ours(place):
                found.append((Difference("extra", str(place), "the chain"), place, None))
    if not any(difference.kind == "extra" and index is not None for difference, _, index in found):
        return tuple(difference for difference, _, _ in found)
    known = texts()
    return tuple(
        difference if index is None else Difference(difference.kind, difference.where, _text(known, place, index))
        for difference, place, index in found
    )


def _of_chain(
    place: Place, wanted: WantedChain, held: HeldChain | None
) -> Iterator[tuple[Difference, Place, int | None]]:
    where = str(place)
    if held is None:
        if is_ours(place) or wanted.keys:
            yield Difference("missing", where, "the chain"), place, None
        held = HeldChain(wanted.policy, ())
    elif held.policy != wanted.policy:
        yield Difference("changed", where, f"policy is {held.policy}, expected {wanted.policy}"), place, None
    positions = ours(place, held, wanted.keys)
    for kind, index in compare(list(wanted.keys), [held.rules[position].key for position in positions]):
        if kind == "extra":
            yield Difference("extra", where, ""), place, positions[index]
        else:
            yield Difference(kind, where, wanted.texts[index]), place, None


def _text(texts: Texts, place: Place, index: int) -> str:
    lines = texts.get(place, ())
    return lines[index] if index < len(lines) else f"rule {index + 1} of the chain"
