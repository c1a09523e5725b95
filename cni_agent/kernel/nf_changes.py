"""Messages that change nf_tables objects, and the batches that they are committed in."""

import errno
import itertools
import socket
from typing import Final, NamedTuple

from cni_agent.kernel import nf_tables as nf
from cni_agent.kernel.failure import KernelRefused
from cni_agent.kernel.netlink import (
    ACK,
    APPEND,
    CREATE,
    HEADER,
    NESTED,
    REQUEST,
    Refusal,
    attribute,
    attributes,
    message,
    messages,
    refused,
)
from cni_agent.kernel.netlink import text as text_attribute
from cni_agent.kernel.nf_tables import Chain, ChainKey, Rule, Table, TableKey

BATCH_BEGIN: Final = 16
BATCH_END: Final = 17
L4PROTO: Final = 16  # key of a `meta` expression
NOT_EQUAL: Final = 1  # operation of a `cmp` expression
_VERBS: Final = {
    nf.NEW_TABLE: "adding table",
    nf.DELETE_TABLE: "deleting table",
    nf.NEW_CHAIN: "adding chain",
    nf.DELETE_CHAIN: "deleting chain",
    nf.NEW_RULE: "adding a rule to",
    nf.DELETE_RULE: "deleting a rule from",
    nf.NEW_SET: "adding a set to",
    nf.NEW_ELEMENTS: "filling a set of",
}
_ADDING: Final = (nf.NEW_TABLE, nf.NEW_CHAIN, nf.NEW_RULE, nf.NEW_SET, nf.NEW_ELEMENTS)
_CHAIN_NAMES: Final = {
    nf.NEW_CHAIN: nf.CHAIN_NAME,
    nf.DELETE_CHAIN: nf.CHAIN_NAME,
    nf.NEW_RULE: nf.RULE_CHAIN,
    nf.DELETE_RULE: nf.RULE_CHAIN,
}


class Batch(NamedTuple):
    """Messages, numbered from 1, that are committed together; the last one asks for an answer."""

    body: bytes
    last: int  # number of the last message

    def framed(self, expected_generation: int) -> bytes:
        """As it is sent: refused by the kernel if anything was committed since that generation."""
        begin = nf.header(socket.AF_UNSPEC, nf.SUBSYSTEM >> 8) + attribute(1, expected_generation.to_bytes(4))
        end = nf.header(socket.AF_UNSPEC, nf.SUBSYSTEM >> 8)
        return (
            message(BATCH_BEGIN, REQUEST, begin) + self.body + message(BATCH_END, REQUEST, end, sequence=self.last + 1)
        )

    def describe(self, number: int) -> str:
        """What one of its messages does, for an error."""
        found = self._message(number)
        return _description(self.body, *found) if found else "committing the rules"

    def refused(self, refusal: Refusal) -> KernelRefused:
        """A refusal as the error that a caller sees."""
        doing = self.describe(refusal.sequence)
        kind = next(iter(self._message(refusal.sequence) or ()), None)
        if refusal.errno == errno.ENOENT and kind in _ADDING:
            return refused(doing, refusal, "missing-in-kernel", "the kernel lacks a module for it (modprobe)")
        if refusal.errno == errno.EOPNOTSUPP and kind in (nf.NEW_CHAIN, nf.NEW_RULE):
            hint = "the chain that is there has another type or hook, or the kernel lacks a module (modprobe)"
            return refused(doing, refusal, "kernel-refused", hint)
        return refused(doing, refusal)

    def _message(self, number: int) -> tuple[int, int, int] | None:
        return next(itertools.islice(messages(self.body), number - 1, None), None) if number > 0 else None


def batch(parts: list[bytes]) -> Batch:
    """Numbers the messages and asks for an answer to the last."""
    numbered = []
    for number, part in enumerate(parts, 1):
        length, kind, flags, _, _ = HEADER.unpack_from(part)
        flags |= ACK if number == len(parts) else 0
        numbered.append(HEADER.pack(length, kind, flags, number, 0) + part[HEADER.size :])
    return Batch(b"".join(numbered), len(parts))


def _description(body: bytes, kind: int, start: int, end: int) -> str:
    names = [nf.FAMILY_NAMES.get(body[start + HEADER.size], "?")]
    extensions: list[str] = []
    for span in attributes(body, start + nf.START, end):
        if span.kind in (1, _CHAIN_NAMES.get(kind)):  # 1 names the table in all of them
            names.append(nf.string_at(body, span.start, span.end))
        elif kind == nf.NEW_RULE and span.kind == nf.RULE_EXPRESSIONS:
            extensions = [
                f"xt_{nf.extension(data)}"
                for name, data in nf.expressions(body, span.start, span.end)
                if name in ("match", "target")
            ]
    using = f" (it uses {', '.join(extensions)})" if extensions else ""
    return f"{_VERBS.get(kind, 'changing')} {' '.join(names)}{using}"


def new_table(key: TableKey, table: Table) -> bytes:
    """Adds a table, or does nothing if it is there."""
    extra = attribute(nf.TABLE_USERDATA, table.userdata) if table.userdata else b""
    return _change(nf.NEW_TABLE, CREATE, key[0], _table_with_flags(key, table.flags) + extra)


def wake_table(key: TableKey, table: Table) -> bytes:
    """Hooks the chains of a dormant table again. Its other flags cannot be changed."""
    return _change(nf.NEW_TABLE, 0, key[0], _table_with_flags(key, table.flags & ~nf.DORMANT))


def _table_with_flags(key: TableKey, flags: int) -> bytes:
    return text_attribute(nf.TABLE_NAME, key[1]) + attribute(nf.TABLE_FLAGS, flags.to_bytes(4))


def delete_table(key: TableKey) -> bytes:
    """Deletes a table with all that it holds."""
    return _change(nf.DELETE_TABLE, 0, key[0], text_attribute(nf.TABLE_NAME, key[1]))


def new_chain(key: ChainKey, chain: Chain) -> bytes:
    """Adds a chain; for a base chain that is there, sets the policy."""
    payload = text_attribute(nf.CHAIN_TABLE, key[1]) + text_attribute(nf.CHAIN_NAME, key[2])
    if chain.policy is not None:
        payload += attribute(nf.CHAIN_HOOK | NESTED, chain.hook)
        payload += attribute(nf.CHAIN_POLICY, chain.policy.to_bytes(4)) + text_attribute(nf.CHAIN_TYPE, chain.kind)
    return _change(nf.NEW_CHAIN, CREATE, key[0], payload)


def delete_chain(key: ChainKey) -> bytes:
    """Deletes a chain, which must be empty and jumped to by nobody."""
    return _change(
        nf.DELETE_CHAIN, 0, key[0], text_attribute(nf.CHAIN_TABLE, key[1]) + text_attribute(nf.CHAIN_NAME, key[2])
    )


def new_rule(key: ChainKey, payload: bytes, *, append: bool = True, before: int = 0) -> bytes:
    """Adds a rule at the end, at the head, or before the rule with a given handle."""
    place = attribute(nf.RULE_POSITION, before.to_bytes(8)) if before else b""
    start = text_attribute(nf.RULE_TABLE, key[1]) + text_attribute(nf.RULE_CHAIN, key[2])
    return _change(nf.NEW_RULE, CREATE | (APPEND if append and not before else 0), key[0], start + payload + place)


def delete_rule(key: ChainKey, handle: int) -> bytes:
    """Deletes one rule."""
    start = text_attribute(nf.RULE_TABLE, key[1]) + text_attribute(nf.RULE_CHAIN, key[2])
    return _change(nf.DELETE_RULE, 0, key[0], start + attribute(nf.RULE_HANDLE, handle.to_bytes(8)))


def flush_chain(key: ChainKey) -> bytes:
    """Deletes all rules of a chain."""
    return _change(
        nf.DELETE_RULE, 0, key[0], text_attribute(nf.RULE_TABLE, key[1]) + text_attribute(nf.RULE_CHAIN, key[2])
    )


def new_set(key: TableKey, declaration: bytes, elements: bytes, number: int) -> list[bytes]:
    """Adds an anonymous set with its elements; rules of the same batch refer to it by number."""
    name, identifier = text_attribute(nf.SET_NAME, "__set%d"), number.to_bytes(4)
    table = text_attribute(nf.SET_TABLE, key[1])
    return [
        _change(nf.NEW_SET, CREATE, key[0], table + name + declaration + attribute(nf.SET_ID, identifier)),
        _change(
            nf.NEW_ELEMENTS, CREATE, key[0],
            text_attribute(nf.ELEMENTS_TABLE, key[1]) + text_attribute(nf.ELEMENTS_SET, "__set%d")
            + attribute(nf.ELEMENTS_SET_ID, identifier) + attribute(nf.ELEMENTS | NESTED, elements),
        ),
    ]  # fmt: skip


def rule_payload(rule: Rule, *, mark: bool, set_numbers: dict[str, int]) -> bytes:
    """A rule that was read, as the attributes that write it again."""
    names = iter(rule.sets)

    def refer(name: str, data: bytes) -> bytes:
        if name != "lookup":
            return data
        number = set_numbers[next(names)]
        rest = b"".join(
            data[span.start - 4 : span.after]
            for span in attributes(data, 0, len(data))
            if span.kind not in (nf.LOOKUP_SET, nf.LOOKUP_SET_ID)
        )
        return text_attribute(nf.LOOKUP_SET, "__set%d") + rest + attribute(nf.LOOKUP_SET_ID, number.to_bytes(4))

    expressions = nf.rewritten(rule.expressions, 0, len(rule.expressions), refer)
    payload = attribute(nf.RULE_EXPRESSIONS | NESTED, expressions) + _compatibility(expressions)
    userdata = rule.userdata + (nf.MARK if mark else b"")
    return payload + (attribute(nf.RULE_USERDATA, userdata) if userdata else b"")


def copied(rule: Rule) -> bytes:
    """A rule of somebody else, as the attributes that write it again, counts included."""
    expressions, userdata = rule.raw
    payload = attribute(nf.RULE_EXPRESSIONS | NESTED, expressions) + _compatibility(expressions)
    return payload + (attribute(nf.RULE_USERDATA, userdata) if userdata else b"")


def _change(kind: int, flags: int, family: int, payload: bytes) -> bytes:
    return message(kind, REQUEST | flags, nf.header(family) + payload)


def _compatibility(expressions: bytes) -> bytes:
    """The protocol of a rule with xtables extensions: a dump leaves it out, TPROXY and multiport insist on it."""
    parts = list(nf.expressions(expressions, 0, len(expressions)))
    if not any(name in ("match", "target") for name, _ in parts):
        return b""
    protocol = inverted = 0
    for (name, data), (following, compared) in itertools.pairwise(parts):
        if name == "meta" and following == "cmp" and _number(data, 2) == L4PROTO:
            inverted = 2 if _number(compared, 2) == NOT_EQUAL else 0
            protocol = compared[-4]  # the only byte of the value, padded
    return attribute(nf.RULE_COMPAT | NESTED, attribute(1, protocol.to_bytes(4)) + attribute(2, inverted.to_bytes(4)))


def _number(data: bytes, kind: int) -> int:
    return next((int.from_bytes(data[s.start : s.end]) for s in attributes(data, 0, len(data)) if s.kind == kind), -1)
