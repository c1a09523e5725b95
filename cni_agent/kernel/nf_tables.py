"""The kernel's nf_tables objects (linux/netfilter/nf_tables.h), read from dumps.

Nothing here knows what a rule means, but for counters, which no comparison looks at, the chain that a rule jumps to,
whether it ends there, and the anonymous sets that it looks up, whose names differ and whose contents count.
"""

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cni_agent.kernel import endings
from cni_agent.kernel.failure import KernelRefused
from cni_agent.kernel.netlink import HEADER, NESTED, Channel, Span, attribute, attributes, messages
from cni_agent.kernel.netlink import text as text_attribute

SUBSYSTEM: Final = 10 << 8
(NEW_TABLE, GET_TABLE, DELETE_TABLE, NEW_CHAIN, GET_CHAIN, DELETE_CHAIN, NEW_RULE, GET_RULE, DELETE_RULE, NEW_SET,
 GET_SET, _, NEW_ELEMENTS, GET_ELEMENTS) = range(SUBSYSTEM, SUBSYSTEM + 14)  # fmt: skip
GET_GENERATION: Final = SUBSYSTEM + 16

INET, IPV4, IPV6 = 1, 2, 10
FAMILY_NAMES: Final = {INET: "inet", IPV4: "ip", IPV6: "ip6"}

TABLE_NAME, TABLE_FLAGS, TABLE_USE, TABLE_HANDLE, TABLE_USERDATA = 1, 2, 3, 4, 6
CHAIN_TABLE, CHAIN_HANDLE, CHAIN_NAME, CHAIN_HOOK, CHAIN_POLICY, CHAIN_USE, CHAIN_TYPE, CHAIN_COUNTERS = range(1, 9)
RULE_TABLE, RULE_CHAIN, RULE_HANDLE, RULE_EXPRESSIONS, RULE_COMPAT, RULE_POSITION, RULE_USERDATA = range(1, 8)
SET_TABLE, SET_NAME, SET_ID, SET_HANDLE = 1, 2, 10, 16
ELEMENTS_TABLE, ELEMENTS_SET, ELEMENTS, ELEMENTS_SET_ID = 1, 2, 3, 4
EXPRESSION_NAME, EXPRESSION_DATA = 1, 2
LOOKUP_SET, LOOKUP_RESULT, LOOKUP_SET_ID = 1, 3, 4
ACCEPT: Final = 1
DORMANT: Final = 1  # the flag of a table whose chains are not hooked
ANY_GENERATION: Final = 0
_ENDINGS: Final[dict[int, endings.Ending]] = {
    ACCEPT: "table",
    3: "table",
    -4: "chain",
    -5: "chain",
}  # queue, goto, return

# A private entry of a rule's userdata says that the rule is ours; iptables and nft pass over kinds they do not know.
MARK: Final = bytes([0x69, 8]) + b"initless"

_NFGENMSG: Final = struct.Struct("!BBH")
START: Final = HEADER.size + _NFGENMSG.size  # of the attributes in a message

TableKey = tuple[int, str]
ChainKey = tuple[int, str, str]


class Table(NamedTuple):
    """A table, but for what is in it."""

    flags: int
    userdata: bytes


class Chain(NamedTuple):
    """A chain; base chains have a hook and a policy."""

    hook: bytes
    kind: str
    policy: int | None

    @property
    def seat(self) -> tuple[bytes, str]:
        """Where a base chain hangs; as long as it lives, it cannot be moved. Nothing for other chains."""
        return self.hook, self.kind


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as it is compared: without handle and counters, a set by its content and not by its name."""

    handle: int
    expressions: bytes
    userdata: bytes
    marked: bool
    jump: str | None
    ends: endings.Ending | None
    sets: tuple[str, ...]
    raw: tuple[bytes, bytes]  # expressions and userdata as they were read: to write it again, if it is not ours

    def key(self, contents: dict[str, bytes]) -> tuple[bytes, ...]:
        """What makes two rules the same."""
        return (self.expressions, self.userdata, *(contents.get(name, b"") for name in self.sets))


@dataclass(slots=True)
class Objects:
    """All that a namespace holds in nf_tables. Sets are read for the tables that are asked for."""

    tables: dict[TableKey, Table] = field(default_factory=dict)
    chains: dict[ChainKey, Chain] = field(default_factory=dict)
    rules: dict[ChainKey, list[Rule]] = field(default_factory=dict)
    sets: dict[TableKey, dict[str, tuple[bytes, bytes]]] = field(default_factory=dict)  # to declaration and elements

    def contents(self, table: TableKey) -> dict[str, bytes]:
        """The elements of each set of a table."""
        return {name: elements for name, (_, elements) in self.sets.get(table, {}).items()}


def header(family: int, resource: int = 0) -> bytes:
    """The header that every nf_tables message has."""
    return _NFGENMSG.pack(family, 0, resource)


def generation(channel: Channel) -> int:
    """The number of the ruleset's generation: each commit in the namespace makes a new one."""
    try:
        answer = channel.ask(GET_GENERATION, header(socket.AF_UNSPEC))
    except KernelRefused as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # nfnetlink knows no such subsystem
            message = "the kernel has no nf_tables; run: modprobe nf_tables"
            raise KernelRefused("no-nf-tables", message, error.errno) from None
        raise
    span = next(attributes(answer, START, len(answer)))
    return int.from_bytes(answer[span.start : span.end])


def read(channel: Channel, concerns: Callable[[TableKey], bool]) -> Objects:
    """Reads all tables, and what is inside of those that concern the caller."""
    found = Objects()
    every = header(socket.AF_UNSPEC)
    dump = channel.dump(GET_TABLE, every)
    for _, start, end in messages(dump):
        values = {span.kind: dump[span.start : span.end] for span in attributes(dump, start + START, end)}
        flags = int.from_bytes(values.get(TABLE_FLAGS, b""))
        found.tables[dump[start + HEADER.size], _text(values[TABLE_NAME])] = Table(
            flags, values.get(TABLE_USERDATA, b"")
        )
    if not any(map(concerns, found.tables)):
        return found
    _add_chains(found, channel.dump(GET_CHAIN, every), concerns)
    _add_rules(found, channel.dump(GET_RULE, every))
    if any(table[0] == INET and concerns(table) for table in found.tables):
        for key, name, declaration in _set_declarations(channel.dump(GET_SET, every)):
            if concerns(key):
                elements = _elements(channel.dump(GET_ELEMENTS, elements_request(key, name)))
                found.sets.setdefault(key, {})[name] = (declaration, elements)
    return found


def _add_chains(found: Objects, dump: bytes, concerns: Callable[[TableKey], bool]) -> None:
    for _, start, end in messages(dump):
        values = {span.kind: dump[span.start : span.end] for span in attributes(dump, start + START, end)}
        key = (dump[start + HEADER.size], _text(values[CHAIN_TABLE]), _text(values[CHAIN_NAME]))
        if concerns(key[:2]):
            hook = values.get(CHAIN_HOOK, b"")
            policy = int.from_bytes(values.get(CHAIN_POLICY, b"\1")) if hook else None
            found.chains[key] = Chain(hook, _text(values.get(CHAIN_TYPE, b"\0")), policy)
            found.rules[key] = []


def _add_rules(found: Objects, dump: bytes) -> None:
    for _, start, end in messages(dump):
        spans = {span.kind: span for span in attributes(dump, start + START, end)}
        table, chain, handle = spans[RULE_TABLE], spans[RULE_CHAIN], spans[RULE_HANDLE]
        key = (
            dump[start + HEADER.size],
            string_at(dump, table.start, table.end),
            string_at(dump, chain.start, chain.end),
        )
        rules = found.rules.get(key)
        if rules is None:
            continue
        userdata = spans.get(RULE_USERDATA)
        data = dump[userdata.start : userdata.end] if userdata else b""
        rules.append(_rule(dump, int.from_bytes(dump[handle.start : handle.end]), data, spans.get(RULE_EXPRESSIONS)))


def _rule(dump: bytes, handle: int, userdata: bytes, span: Span | None) -> Rule:
    jump: str | None = None
    ends: endings.Ending | None = None
    sets: list[str] = []

    def neutral(name: str, data: bytes) -> bytes:
        nonlocal jump, ends
        if name == "counter":
            return bytes(len(data))
        if name == "immediate":
            code, chain = _verdict(data)
            jump, ends = chain or jump, _ENDINGS.get(code, ends)
        elif name in endings.EXPRESSIONS or (name == "target" and extension(data) in endings.TARGETS):
            ends = "table"
        elif name == "lookup":
            found = {s.kind: data[s.start : s.end] for s in attributes(data, 0, len(data))}
            sets.append(_text(found.pop(LOOKUP_SET)))
            if found.get(LOOKUP_RESULT) == bytes(4):  # a map to verdicts, of which any may end
                ends = "table"
            return b"".join(attribute(kind, value) for kind, value in found.items())
        return data

    expressions = rewritten(dump, span.start, span.end, neutral) if span else b""
    raw = (dump[span.start : span.end] if span else b"", userdata)
    return Rule(handle, expressions, userdata.replace(MARK, b""), MARK in userdata, jump, ends, tuple(sets), raw)


def _verdict(data: bytes) -> tuple[int, str | None]:
    """The verdict of an `immediate` expression, without the number of a queue, and the chain of a jump or a goto."""
    code, chain = 0, None
    for span in attributes(data, 0, len(data)):
        if span.kind == 2:
            for value in attributes(data, span.start, span.end):
                if value.kind == 2:
                    for verdict in attributes(data, value.start, value.end):
                        if verdict.kind == 1:
                            code = int.from_bytes(data[verdict.start : verdict.end], signed=True)
                        elif verdict.kind == 2:
                            chain = string_at(data, verdict.start, verdict.end)
    return (code & 0xFF if code > 0 else code), chain


def extension(data: bytes) -> str:
    """The name of the xtables extension that a `match` or `target` expression uses."""
    span = next(attributes(data, 0, len(data)))  # the name comes first
    return string_at(data, span.start, span.end)


def expressions(buffer: bytes, start: int, end: int) -> Iterator[tuple[str, bytes]]:
    """The expressions of a rule: name and data."""
    for element in attributes(buffer, start, end):
        name, data = "", b""
        for span in attributes(buffer, element.start, element.end):
            if span.kind == EXPRESSION_NAME:
                name = string_at(buffer, span.start, span.end)
            elif span.kind == EXPRESSION_DATA:
                data = buffer[span.start : span.end]
        yield name, data


def rewritten(buffer: bytes, start: int, end: int, change: Callable[[str, bytes], bytes]) -> bytes:
    """A list of expressions with the data of some changed."""
    return b"".join(
        attribute(
            1 | NESTED, text_attribute(EXPRESSION_NAME, name) + attribute(EXPRESSION_DATA | NESTED, change(name, data))
        )
        for name, data in expressions(buffer, start, end)
    )


def _set_declarations(dump: bytes) -> Iterator[tuple[TableKey, str, bytes]]:
    """The sets of a dump: table, name, and the attributes that declare it anew."""
    for _, start, end in messages(dump):
        table = name = ""
        rest = []
        for span in attributes(dump, start + START, end):
            if span.kind == SET_TABLE:
                table = string_at(dump, span.start, span.end)
            elif span.kind == SET_NAME:
                name = string_at(dump, span.start, span.end)
            elif span.kind in (3, 4, 5, 9, 13):  # flags, type and length of the key, description, userdata
                rest.append(dump[span.start - 4 : span.after])
        yield (dump[start + HEADER.size], table), name, b"".join(rest)


def table_request(key: TableKey) -> bytes:
    """The payload that asks for one table."""
    return header(key[0]) + text_attribute(TABLE_NAME, key[1])


def elements_request(key: TableKey, name: str) -> bytes:
    """The payload that asks for the elements of one set."""
    return header(key[0]) + text_attribute(ELEMENTS_TABLE, key[1]) + text_attribute(ELEMENTS_SET, name)


def _elements(dump: bytes) -> bytes:
    return b"".join(
        dump[span.start : span.end]
        for _, start, end in messages(dump)
        for span in attributes(dump, start + START, end)
        if span.kind == ELEMENTS
    )


def string_at(buffer: bytes, start: int, end: int) -> str:
    """The value of a string attribute."""
    return buffer[start : end - 1].decode(errors="replace")


def _text(value: bytes) -> str:
    return value[:-1].decode(errors="replace")
