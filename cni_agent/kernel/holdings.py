"""What a namespace holds, chain by chain, in a form that all backends share; which of it is ours; how it differs.

Ours are: all rules in `ISTIO_*` chains; all rules that jump to one; and, in built-in chains, rules that carry our mark
(a private userdata entry in nf_tables, the unused `nfcache` word in xtables: neither tool shows it, both keep it).
The mark is what tells an interface exclusion of ours from a like rule of somebody else, when settings change and after
a restart. Where `ISTIO_*` chains are, a rule without it that is just what we want counts as ours too, as often as it is
wanted: someone saved and restored the tables, or istio-init wrote them.

Istio appends its jumps, and so do we: what stands before them when we come stays there. A rule that came later, stands
before ours and ends what becomes of the packets that it matches takes them past the proxy. It is told as a `bypass`;
ours then go before it, and it stays.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from cni_agent import names
from cni_agent.kernel.differences import Difference, compare
from cni_agent.kernel.endings import Ending

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
    """A rule found in the kernel. Rules with equal keys are the same rule. Of two, the one that came later is younger:
    its `born` is higher."""

    key: Hashable
    marked: bool
    jump: str | None
    ends: Ending | None = None
    born: int = 0


class HeldChain(NamedTuple):
    """A chain found in the kernel; only built-in ones have a policy, and, where it can be another one, a hook."""

    policy: str | None
    rules: Sequence[HeldRule]
    hook: str | None = None


class WantedChain(NamedTuple):
    """A chain as it should be, each rule with its text."""

    policy: str | None
    keys: Sequence[Hashable]
    texts: Sequence[str]
    hook: str | None = None


Held = Mapping[Place, HeldChain]
Wanted = Mapping[Place, WantedChain]
Texts = Mapping[Place, Sequence[str]]


def is_ours(place: Place) -> bool:
    """Whether a whole chain is ours: an `ISTIO_*` one, or any in a native table of ours."""
    return place.chain in OUR_CHAINS or (place.family == "inet" and place.table in OUR_TABLES)


def residents(held: Held) -> frozenset[str]:
    """The families in which chains of ours are."""
    return frozenset(place.family for place in held if is_ours(place))


def ours(place: Place, chain: HeldChain, wanted: Sequence[Hashable] = ()) -> list[int]:
    """Which rules of a chain are ours, as indexes in ascending order. `wanted`: rules that need no mark to be ours."""
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


def intruders(place: Place, held: Held, own: Sequence[int]) -> list[int]:
    """Rules of others that take packets past rules of ours (`own`) that are older than they, as indexes."""
    rules = held[place].rules
    youngest: dict[str, int | None] = {}
    found = []
    for index, rule in enumerate(rules[: own[-1]] if own else ()):
        if index in own:
            continue
        born = rule.born if rule.ends else None
        if rule.jump is not None:
            if rule.jump not in youngest:
                youngest[rule.jump] = _youngest_ending(place._replace(chain=rule.jump), held)
            inside = youngest[rule.jump]
            born = born if inside is None else max(inside, rule.born)
        if born is not None and born > min(rules[other].born for other in own if other > index):
            found.append(index)
    return found


def _youngest_ending(start: Place, held: Held) -> int | None:
    """When the youngest rule came by which packets leave the table from this chain or one that it leads to, if any."""
    seen, ahead = {start}, [start]
    ends, led = [], []
    while ahead:
        chain = held.get(ahead.pop())
        for rule in chain.rules if chain else ():
            if rule.ends == "table":
                ends.append(rule.born)
            if rule.jump is not None:
                led.append(rule.born)
                place = start._replace(chain=rule.jump)
                if place not in seen:
                    seen.add(place)
                    ahead.append(place)
    return max(ends + led) if ends else None


def successor(place: Place, held: Held, own: Sequence[int]) -> int | None:
    """The index of the rule before which ours belong in a chain that is shared with others; None: at its end."""
    return min([own[-1], *intruders(place, held, own)]) if own else None


def holds_ours(held: Held) -> bool:
    """Whether there is anything of ours."""
    return any(is_ours(place) or ours(place, chain) for place, chain in held.items())


class _Finding(NamedTuple):
    """A difference; for a rule that we did not write, where that is whose text comes before the difference's own."""

    difference: Difference
    place: Place
    position: int | None = None  # of the rule in its chain


def differences(
    wanted: Wanted, held: Held, texts: Callable[[], Texts], resident: frozenset[str] = frozenset()
) -> tuple[Difference, ...]:
    """How what is held differs from what is wanted, in order. `texts`, for rules that we did not write, is costly.

    `resident`: families of which it is known that chains of ours are there, beside those in `held`.
    """
    found = _findings(wanted, held, resident)
    known = texts() if any(finding.position is not None for finding in found) else {}
    return tuple(
        finding.difference
        if finding.position is None
        else replace(finding.difference, text=_text(known, finding.place, finding.position) + finding.difference.text)
        for finding in found
    )


def changed_tables(wanted: Wanted, held: Held, resident: frozenset[str] = frozenset()) -> frozenset[tuple[str, str]]:
    """The tables, by family and name, that are not as they should be."""
    return frozenset(finding.place[:2] for finding in _findings(wanted, held, resident))


def _findings(wanted: Wanted, held: Held, resident: frozenset[str]) -> list[_Finding]:
    adopting = resident | residents(held)
    found = [
        finding
        for place, chain in wanted.items()
        for finding in _of_chain(place, chain, held, adopt=place.family in adopting)
    ]
    for place, chain in held.items():
        if place not in wanted:
            extra = Difference("extra", str(place), "")
            found += [_Finding(extra, place, index) for index in ours(place, chain)]
            if is_ours(place):
                found.append(_Finding(Difference("extra", str(place), "the chain"), place))
    return found


def _of_chain(place: Place, wanted: WantedChain, held: Held, *, adopt: bool) -> Iterator[_Finding]:
    where = str(place)
    chain = held.get(place)
    if chain is None:
        if is_ours(place) or wanted.keys:
            yield _Finding(Difference("missing", where, "the chain"), place)
        chain = HeldChain(wanted.policy, ())
    elif chain.hook != wanted.hook:
        if wanted.keys:  # without rules of ours, it may hang where it likes
            sentence = f"{chain.hook or 'no hook'}, expected {wanted.hook or 'no hook'}"
            yield _Finding(Difference("changed", where, sentence), place)
    elif chain.policy != wanted.policy:
        yield _Finding(Difference("changed", where, f"policy is {chain.policy}, expected {wanted.policy}"), place)
    positions = ours(place, chain, wanted.keys if adopt else ())
    if wanted.texts and positions:
        past = Difference("bypass", where, f" stands before {wanted.texts[-1]}")
        yield from (_Finding(past, place, position) for position in intruders(place, held, positions))
    for kind, index in compare(list(wanted.keys), [chain.rules[position].key for position in positions]):
        if kind == "extra":
            yield _Finding(Difference("extra", where, ""), place, positions[index])
        else:
            yield _Finding(Difference(kind, where, wanted.texts[index]), place)


def _text(texts: Texts, place: Place, index: int) -> str:
    lines = texts.get(place, ())
    return lines[index] if index < len(lines) else f"rule {index + 1} of the chain"
