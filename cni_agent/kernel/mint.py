"""Mints rulesets: the ordinary tools write each distinct one once, in a scratch namespace, and the kernel's own objects
are read back from there. So what is stamped into pods is what the tools would have written, byte for byte, whatever
their version; and no program is started for a pod.
"""

import re
import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from cni_agent.capture import Family
from cni_agent.kernel import nf_changes
from cni_agent.kernel import nf_tables as nf
from cni_agent.kernel.failure import NotAsWritten
from cni_agent.kernel.holdings import Place, Texts
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netlink import Channel, question
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.stamp import Layout, Stamp, StampedRule, place
from cni_agent.names import BUILT_IN_CHAINS
from cni_agent.rules import Ruleset

# Distinct rulesets kept, at up to 100 kB each. A node's pods share a handful; but if each had its own and one did not
# fit, a patrol over all of them would mint every one anew, each time. Nodes have up to 250 pods.
CAPACITY: Final = 256
IPTABLES: Final[dict[Family, str]] = {4: "iptables", 6: "ip6tables"}
FAMILIES: Final[dict[Family, int]] = {4: nf.IPV4, 6: nf.IPV6}
_EVERY: Final = nf.header(socket.AF_UNSPEC)

S = TypeVar("S")


class Mint(Generic[S]):
    """Keeps what was minted, the least recently used of it goes first. Safe to share between threads."""

    def __init__(self, make: Callable[[Ruleset], S], capacity: int = CAPACITY) -> None:
        self._make = make
        self._capacity = capacity
        self._minting = threading.Lock()  # one at a time: two pods that want the same ruleset want one minting
        self._looking = threading.Lock()  # whose ruleset is there does not wait for a minting
        self._kept: OrderedDict[Ruleset, S] = OrderedDict()

    def __call__(self, ruleset: Ruleset) -> S:
        made = self._find(ruleset)
        if made is not None:
            return made
        with self._minting:
            made = self._find(ruleset)
            if made is None:
                made = self._make(ruleset)
                with self._looking:
                    self._kept[ruleset] = made
                    if len(self._kept) > self._capacity:
                        self._kept.popitem(last=False)
            return made

    def __contains__(self, ruleset: Ruleset) -> bool:
        with self._looking:
            return ruleset in self._kept

    def _find(self, ruleset: Ruleset) -> S | None:
        with self._looking:
            made = self._kept.get(ruleset)
            if made is not None:
                self._kept.move_to_end(ruleset)
            return made


def mint_stamp(ruleset: Ruleset, write: Callable[[Netns], None], texts: Callable[[Netns], Texts]) -> Stamp:
    """Mints for nf_tables. `write` has a tool write the ruleset, `texts` has it say what it then sees."""
    with Netns.scratch() as scratch, Inside(scratch) as inside:
        write(scratch)
        objects = nf.read(inside.firewall, lambda _: True)
        lines = texts(scratch)
    parts = list(_parts(objects))
    batch = nf_changes.batch(parts)
    with Netns.scratch() as proof, Inside(proof) as inside:
        refusal = inside.firewall.commit(batch.framed(nf.generation(inside.firewall)), batch.last)
        if refusal:
            raise batch.refused(refusal)
        _prove_same(objects, nf.read(inside.firewall, lambda _: True))
        layouts = tuple(_layouts(inside.firewall, objects))
    rules = {key: tuple(_stamped(key, objects, lines.get(place(key), ()))) for key in objects.chains}
    at_head = {(FAMILIES[family], table, chain): count for (family, table, chain), count in heads(ruleset).items()}
    return Stamp(objects.tables, objects.chains, rules, at_head, tuple(parts), batch, layouts)


def saved_texts(save: Callable[[Family], str], families: tuple[Family, ...]) -> dict[Place, list[str]]:
    """The rules in the output of iptables-save, chain by chain."""
    found: dict[Place, list[str]] = {}
    for family in families:
        table = ""
        for line in save(family).splitlines():
            if line.startswith("*"):
                table = line[1:]
            elif line.startswith("-A "):
                where = Place("ip" if family == 4 else "ip6", table, line.split(maxsplit=2)[1])
                found.setdefault(where, []).append(line)
    return found


def listed_texts(listing: str) -> dict[Place, list[str]]:
    """The rules in the output of `nft list ruleset`, chain by chain."""
    found: dict[Place, list[str]] = {}
    family = table = chain = ""
    for line in map(str.strip, listing.splitlines()):
        words = line.split()
        if line.startswith("table "):
            family, table = words[1:3]
        elif line.startswith("chain "):
            chain = words[1]
        elif line == "}":
            chain = ""
        elif chain and not (line.startswith("type ") and " hook " in line):
            rule = re.sub(r"counter packets \d+ bytes \d+", "counter", line)
            found.setdefault(Place(family, table, chain), []).append(rule)
    return found


def _parts(objects: nf.Objects) -> Iterator[bytes]:
    yield from (nf_changes.new_table(key, table) for key, table in objects.tables.items())
    yield from (nf_changes.new_chain(key, chain) for key, chain in objects.chains.items())
    for table, numbers in _set_numbers(objects).items():
        for name, number in numbers.items():
            yield from nf_changes.new_set(table, *objects.sets[table][name], number)
    for key in objects.chains:
        yield from (nf_changes.new_rule(key, rule.payload) for rule in _stamped(key, objects, ()))


def _stamped(key: nf.ChainKey, objects: nf.Objects, lines: Sequence[str]) -> Iterator[StampedRule]:
    contents = objects.contents(key[:2])
    numbers = _set_numbers(objects).get(key[:2], {})
    for index, rule in enumerate(objects.rules[key]):
        payload = nf_changes.rule_payload(rule, mark=key[2] in BUILT_IN_CHAINS, set_numbers=numbers)
        yield StampedRule(payload, rule.key(contents), lines[index] if index < len(lines) else "")


def _set_numbers(objects: nf.Objects) -> dict[nf.TableKey, dict[str, int]]:
    """Numbers by which the rules of a batch refer to its sets."""
    number = 0
    found: dict[nf.TableKey, dict[str, int]] = {}
    for table, sets in objects.sets.items():
        for name in sets:
            number += 1
            found.setdefault(table, {})[name] = number
    return found


def _prove_same(tool: nf.Objects, stamped: nf.Objects) -> None:
    """The stamp, written once, is what the tool wrote: the one thing that everything else rests on."""
    same = tool.tables == stamped.tables and tool.chains == stamped.chains
    for key, rules in tool.rules.items():
        written = stamped.rules.get(key, [])
        contents, again = tool.contents(key[:2]), stamped.contents(key[:2])
        same = same and [rule.key(contents) for rule in rules] == [rule.key(again) for rule in written]
    if not same:
        raise NotAsWritten("not-as-minted", "the kernel gives other rules back than its own tool wrote")


def _layouts(channel: Channel, objects: nf.Objects) -> Iterator[Layout]:
    tables = b"".join(question(nf.GET_TABLE, nf.table_request(key)) for key in objects.tables)
    yield Layout.of(channel, nf.GET_CHAIN, _EVERY, along=tables)
    yield Layout.of(channel, nf.GET_RULE, _EVERY)
    for table, sets in objects.sets.items():
        yield from (Layout.of(channel, nf.GET_ELEMENTS, nf.elements_request(table, name)) for name in sets)


def heads(ruleset: Ruleset) -> Counter[tuple[Family, str, str]]:
    """How many rules stand at the head of a built-in chain: Istio inserts them at position 1."""
    return Counter(
        (family, rule.table, rule.chain)
        for family in ruleset.families
        for rule in ruleset.of_family(family)
        if rule.position is not None and rule.chain in BUILT_IN_CHAINS
    )
