"""A minted ruleset: the kernel's own objects, ready to be written into any namespace and recognised there."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from cni_agent.kernel import nf_changes
from cni_agent.kernel import nf_tables as nf
from cni_agent.kernel.holdings import Place, WantedChain
from cni_agent.kernel.netlink import HEADER, Channel, attributes, messages

_RESOURCE: Final = (HEADER.size + 2, HEADER.size + 4)  # low bits of the generation, in every nf_tables message
_HOOKS: Final = ("prerouting", "input", "forward", "output", "postrouting", "ingress")
_NUMBERS: Final = (8, 16)  # sequence and port, in every message
# attributes that differ from namespace to namespace, by the kind of message: handles, positions, use counts, counters
_VARIABLE: Final = {
    nf.NEW_TABLE: (nf.TABLE_USE, nf.TABLE_HANDLE),
    nf.NEW_CHAIN: (nf.CHAIN_HANDLE, nf.CHAIN_USE, nf.CHAIN_COUNTERS),
    nf.NEW_RULE: (nf.RULE_HANDLE, nf.RULE_POSITION),
    nf.NEW_SET: (nf.SET_HANDLE,),
    nf.NEW_ELEMENTS: (),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """What the kernel answers to one dump request when a namespace is right.

    The fields that vary are the pad bytes of a struct, so that one call in C cuts them out and one compares the rest.
    """

    kind: int
    request: bytes
    along: bytes
    fixed: struct.Struct
    expected: tuple[bytes, ...]

    @classmethod
    def of(cls, channel: Channel, kind: int, request: bytes, along: bytes = b"") -> Self:
        """The layout of the dump of a namespace that is known to be right."""
        dump = channel.dump(kind, request, along)
        form, at = ["="], 0
        for start, end in _variable_spans(dump):
            form.append(f"{start - at}s{end - start}x")
            at = end
        fixed = struct.Struct("".join(form) + f"{len(dump) - at}s")
        return cls(kind, request, along, fixed, fixed.unpack(dump))

    def matches(self, channel: Channel) -> bool:
        """Whether the kernel's answer now is the same."""
        dump = channel.dump(self.kind, self.request, self.along)
        return len(dump) == self.fixed.size and self.fixed.unpack(dump) == self.expected


class StampedRule(NamedTuple):
    """One rule, ready to be written."""

    payload: bytes
    key: tuple[bytes, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Stamp:
    """A minted ruleset for nf_tables."""

    tables: dict[nf.TableKey, nf.Table]
    chains: dict[nf.ChainKey, nf.Chain]
    rules: dict[nf.ChainKey, tuple[StampedRule, ...]]
    heads: dict[nf.ChainKey, int]  # how many rules of a built-in chain stand at its head; the others at its end
    parts: tuple[bytes, ...]  # the messages that write all of it where there is nothing of it
    fresh: nf_changes.Batch  # the same, ready to be sent
    layouts: tuple[Layout, ...]

    def matches(self, channel: Channel) -> bool:
        """Whether the namespace holds these chains and no others. False does not say that it lacks any of them."""
        return all(layout.matches(channel) for layout in self.layouts)

    def wanted(self) -> dict[Place, WantedChain]:
        """For comparing chain by chain."""
        return {
            place(key): WantedChain(
                policy_name(chain.policy),
                [rule.key for rule in self.rules[key]],
                [rule.text for rule in self.rules[key]],
                hook_name(chain),
            )
            for key, chain in self.chains.items()
        }


def place(key: nf.ChainKey) -> Place:
    """A chain as the tools name it."""
    return Place(nf.FAMILY_NAMES.get(key[0], str(key[0])), key[1], key[2])


def policy_name(policy: int | None) -> str | None:
    """A policy as the tools name it."""
    return None if policy is None else "ACCEPT" if policy == nf.ACCEPT else "DROP"


def hook_name(chain: nf.Chain) -> str | None:
    """Where a base chain hangs, as nft writes it."""
    if not chain.hook:
        return None
    values = {span.kind: chain.hook[span.start : span.end] for span in attributes(chain.hook, 0, len(chain.hook))}
    number, priority = (int.from_bytes(values.get(kind, b""), signed=True) for kind in (1, 2))
    hook = _HOOKS[number] if number < len(_HOOKS) else number
    return f"type {chain.kind} hook {hook} priority {priority}"


def _variable_spans(dump: bytes) -> Iterator[tuple[int, int]]:
    for kind, start, end in messages(dump):
        yield start + _NUMBERS[0], start + _NUMBERS[1]
        yield start + _RESOURCE[0], start + _RESOURCE[1]
        for span in attributes(dump, start + HEADER.size + 4, end):
            if span.kind in _VARIABLE[kind]:
                yield span.start, span.end
            elif kind == nf.NEW_RULE and span.kind == nf.RULE_EXPRESSIONS:
                yield from _counters(dump, span.start, span.end)


def _counters(dump: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    for element in attributes(dump, start, end):
        name = b""
        for span in attributes(dump, element.start, element.end):
            if span.kind == nf.EXPRESSION_NAME:
                name = dump[span.start : span.end]
            elif name == b"counter\0":
                yield from ((value.start, value.end) for value in attributes(dump, span.start, span.end))
