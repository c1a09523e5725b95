"""The tables of legacy iptables (linux/netfilter_ipv4/ip_tables.h), taken apart and put together. Pure.

A table is one block of entries in which jumps are offsets. libiptc does this work for iptables; python-iptables, which
wraps it, costs 18 MB and half a second to import and keeps global state, so the little that is needed is here.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cni_agent.capture import Family
from cni_agent.kernel import endings

HOOKS: Final = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
VERDICTS: Final = {-2: "ACCEPT", -1: "DROP", -5: "RETURN"}
FALL_THROUGH: Final = ""  # the jump of a rule without a target: on to the next one
# In `nfcache`, a word that the kernel keeps and nobody reads: the rule is ours; it was there when we last wrote.
MARK: Final = 0x1A17
KNOWN: Final = 0x1A18
_ENDINGS: Final[dict[int, endings.Ending]] = {-2: "table", -4: "table", -5: "chain"}  # accept, queue, return

_TARGET: Final = struct.Struct("=H29sB")  # size, name, revision
_STANDARD_SIZE: Final = 40
_ERROR_SIZE: Final = 64


class Layout(NamedTuple):
    """Where the fields of an entry are, which differs by family."""

    level: int
    nfcache: int
    offsets: int  # of the target, then of the next entry
    comefrom: int
    counters: int
    size: int
    flags: int
    goto: int  # the flag


LAYOUTS: Final[dict[Family, Layout]] = {
    4: Layout(socket.SOL_IP, 84, 88, 92, 96, 112, 82, 2),
    6: Layout(socket.IPPROTO_IPV6, 136, 140, 144, 152, 168, 131, 4),
}


class Entry(NamedTuple):
    """A rule: its bytes without counters, mark and jump offset; a jump by the name of its chain."""

    body: bytes
    jump: str | None
    marked: bool
    counters: bytes = bytes(16)
    known: bool = False
    ends: endings.Ending | None = None

    @property
    def key(self) -> tuple[bytes, str | None]:
        """What makes two rules the same."""
        return self.body, self.jump


@dataclass(slots=True)
class Chain:
    """A chain; only built-in ones have a policy."""

    policy: str | None
    rules: list[Entry] = field(default_factory=list)


class Block(NamedTuple):
    """A table in the kernel's form."""

    hooks: int
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    number: int  # of entries
    entries: bytes


Chains = dict[str, Chain]  # built-in ones first, in the order of their hooks


def variable_spans(block: Block, family: Family) -> Iterator[tuple[int, int]]:
    """The bytes of a block that differ between namespaces with the same rules."""
    layout = LAYOUTS[family]
    for start, _ in _walk(block.entries, layout):
        yield start + layout.comefrom, start + layout.comefrom + 4
        yield start + layout.counters, start + layout.counters + 16


def parse(block: Block, family: Family) -> Chains:
    """Takes a table apart."""
    layout = LAYOUTS[family]
    starts = {block.starts[hook]: hook for hook in range(5) if block.hooks >> hook & 1}
    heads: dict[int, str] = {}  # by the offset of the first rule, as jumps have it
    for start, end in _walk(block.entries, layout):
        name = _error_name(block.entries, start, layout)
        if name is not None:
            heads[end] = name
    chains: Chains = {}
    name = ""
    for start, end in _walk(block.entries, layout):
        if start in starts:
            name = HOOKS[starts[start]]
            chains[name] = Chain("ACCEPT")
        if start in heads:
            name = heads[start]
            chains[name] = Chain(None)
        if _error_name(block.entries, start, layout) is None:
            chains[name].rules.append(_entry(block.entries, start, end, layout, heads))
    for chain in chains.values():
        last = chain.rules.pop()  # the policy of a built-in chain, the way back from any other
        if chain.policy is not None:
            chain.policy = VERDICTS.get(_verdict(last.body, 0, layout), "ACCEPT")
    return chains


def compile_block(chains: Chains, family: Family) -> Block:
    """Puts a table together."""
    layout = LAYOUTS[family]
    parts: list[bytes] = []
    first_rules: dict[str, int] = {}
    starts, ends, hooks, at = [0] * 5, [0] * 5, 0, 0
    jumps: list[tuple[int, int, str]] = []  # index into `parts`, offset, chain

    def add(part: bytes) -> None:
        nonlocal at
        parts.append(part)
        at += len(part)

    for name, chain in chains.items():
        if chain.policy is None:
            add(_error_entry(name, layout))
        first_rules[name] = at
        for rule in chain.rules:
            if rule.jump is not None:
                jumps.append((len(parts), at, rule.jump))
            mark = MARK if rule.marked else KNOWN if rule.known else 0
            add(rule.body[: layout.nfcache] + struct.pack("=I", mark) + rule.body[layout.nfcache + 4 :])
        if chain.policy is not None:
            hook = HOOKS.index(name)
            hooks |= 1 << hook
            starts[hook], ends[hook] = first_rules[name], at
        add(_standard_entry(chain.policy or "RETURN", layout))
    add(_error_entry("ERROR", layout))
    for index, offset, target in jumps:
        part = bytearray(parts[index])
        verdict = offset + len(part) if target == FALL_THROUGH else first_rules[target]
        struct.pack_into("=i", part, _target_offset(part, 0, layout) + _TARGET.size, verdict)
        parts[index] = bytes(part)
    return Block(hooks, tuple(starts), tuple(ends), len(parts), b"".join(parts))


def counters_of(chains: Chains) -> list[bytes]:
    """The counters of every entry that `compile_block` makes of these chains, in its order."""
    found: list[bytes] = []
    for chain in chains.values():
        found += [bytes(16)] * (chain.policy is None)
        found += [rule.counters for rule in chain.rules] + [bytes(16)]
    return [*found, bytes(16)]


def _walk(entries: bytes, layout: Layout) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(entries):
        (length,) = struct.unpack_from("=H", entries, start + layout.offsets + 2)
        yield start, start + length
        start += length


def _target_offset(entries: bytes | bytearray, start: int, layout: Layout) -> int:
    (offset,) = struct.unpack_from("=H", entries, start + layout.offsets)
    return start + int(offset)


def _target_name(entries: bytes, at: int) -> bytes:
    _, name, _ = _TARGET.unpack_from(entries, at)
    return bytes(name).partition(b"\0")[0]


def _verdict(entries: bytes, start: int, layout: Layout) -> int:
    (verdict,) = struct.unpack_from("=i", entries, _target_offset(entries, start, layout) + _TARGET.size)
    return int(verdict)


def _error_name(entries: bytes, start: int, layout: Layout) -> str | None:
    at = _target_offset(entries, start, layout)
    if _target_name(entries, at) != b"ERROR":
        return None
    return entries[at + _TARGET.size : at + _TARGET.size + 30].partition(b"\0")[0].decode(errors="replace")


def _entry(entries: bytes, start: int, end: int, layout: Layout, heads: dict[int, str]) -> Entry:
    body = bytearray(entries[start:end])
    counters = bytes(body[layout.counters : layout.counters + 16])
    (mark,) = struct.unpack_from("=I", body, layout.nfcache)
    body[layout.counters : layout.counters + 16] = bytes(16)
    body[layout.comefrom : layout.comefrom + 4] = bytes(4)
    body[layout.nfcache : layout.nfcache + 4] = bytes(4)
    jump: str | None = None
    ends: endings.Ending | None = None
    at = _target_offset(body, 0, layout)
    if target := _target_name(bytes(body), at):
        ends = "table" if target.decode(errors="replace") in endings.TARGETS else None
    else:
        (verdict,) = struct.unpack_from("=i", body, at + _TARGET.size)
        ends = "chain" if body[layout.flags] & layout.goto else _ENDINGS.get(verdict)
        if verdict >= 0:
            jump = FALL_THROUGH if verdict == end else heads.get(verdict, FALL_THROUGH)
            struct.pack_into("=i", body, at + _TARGET.size, 0)
    return Entry(bytes(body), jump, mark == MARK, counters, mark == KNOWN, ends)


def _bare_entry(layout: Layout, target: bytes) -> bytes:
    entry = bytearray(layout.size)
    struct.pack_into("=HH", entry, layout.offsets, layout.size, layout.size + len(target))
    return bytes(entry) + target


def _error_entry(name: str, layout: Layout) -> bytes:
    target = _TARGET.pack(_ERROR_SIZE, b"ERROR", 0) + name.encode()
    return _bare_entry(layout, target.ljust(_ERROR_SIZE, b"\0"))


def _standard_entry(verdict: str, layout: Layout) -> bytes:
    number = next(number for number, name in VERDICTS.items() if name == verdict)
    target = _TARGET.pack(_STANDARD_SIZE, b"", 0) + struct.pack("=i", number)
    return _bare_entry(layout, target.ljust(_STANDARD_SIZE, b"\0"))
