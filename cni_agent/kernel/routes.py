"""The routing beside the rules: where TPROXY's marked packets go, and the address that passthrough traffic comes from.

Rules and routes of ours carry a protocol number of our own, which is how the kernel wants to be told who made them; so
they are found again after a restart and under other settings. Written over netlink directly: opening pyroute2's socket
alone takes longer than all the rest of an apply.
"""

import errno
import functools
import socket
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from cni_agent.capture import Family
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.failure import KernelRefused
from cni_agent.kernel.netlink import (
    CREATE,
    EXCLUSIVE,
    HEADER,
    Channel,
    Refusal,
    attribute,
    attributes,
    messages,
    refused,
)
from cni_agent.names import PASSTHROUGH
from cni_agent.rules import Ruleset

NEW_LINK, NEW_ADDRESS, DELETE_ADDRESS, GET_ADDRESS = 16, 20, 21, 22
NEW_ROUTE, DELETE_ROUTE, GET_ROUTE = 24, 25, 26
NEW_RULE, DELETE_RULE, GET_RULE = 32, 33, 34
OURS: Final = 137  # rtm_protocol and FRA_PROTOCOL; free in iproute2's rt_protos
LOOPBACK_INDEX: Final = 1  # in every namespace

_ADDRESS: Final = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ROUTE: Final = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, protocol, scope, type, flags
_RULE: Final = struct.Struct("=BBBBBBBBI")  # family, lengths, tos, table, -, -, action, flags
_LOCAL_ROUTE, _HOST_SCOPE, _TO_TABLE = 2, 254, 1
_ADDRESS_ADDRESS, _ADDRESS_LOCAL = 1, 2
_ROUTE_INTERFACE, _ROUTE_TABLE = 4, 15
_RULE_MARK, _RULE_TABLE, _RULE_MASK, _RULE_PROTOCOL = 10, 15, 16, 21
_MARK_ATTRIBUTE: Final = struct.pack("=HH", 8, _RULE_MARK)
_OURS_ATTRIBUTE: Final = attribute(_RULE_PROTOCOL, bytes([OURS]))
_FAMILIES: Final[dict[Family, int]] = {4: socket.AF_INET, 6: socket.AF_INET6}
_EXISTS: Final = (0, errno.EEXIST)
_GONE: Final = (0, errno.ENOENT, errno.ESRCH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EOPNOTSUPP, errno.ENODEV)


Target = tuple[Family, int, int]  # family, mark, table


class Found(NamedTuple):
    """A rule `fwmark MARK lookup TABLE` that the kernel has."""

    target: Target
    ours: bool


class Step(NamedTuple):
    """One thing that the ruleset needs: how to add it, how to take it away, how a person would."""

    new: int
    delete: int
    payload: bytes
    text: str


# A pod's loopback is up before we see it. In a bare namespace we raise it: no route through it can exist otherwise.
_LOOPBACK_UP: Final = Step(
    NEW_LINK, NEW_LINK, struct.pack("=BBHiII", 0, 0, 0, LOOPBACK_INDEX, 1, 1), "ip link set lo up"
)


def ensure(channel: Channel, ruleset: Ruleset) -> list[Step]:
    """Adds what is missing, each once; what was added, for `undo`. When it fails it has undone all of it."""
    added: list[Step] = []
    present = _present(channel, ruleset)
    for step in _steps(ruleset):
        if step.payload in present:
            continue
        number = channel.tell(step.new, CREATE | EXCLUSIVE, step.payload)
        if number == errno.ENETDOWN and channel.tell(_LOOPBACK_UP.new, 0, _LOOPBACK_UP.payload) == 0:
            number = channel.tell(step.new, CREATE | EXCLUSIVE, step.payload)
        if number == 0:
            added.append(step)
        elif number not in _EXISTS:
            undo(channel, added)
            raise _failed(step, number)
    return added


def _present(channel: Channel, ruleset: Ruleset) -> set[bytes]:
    """The rules that are there already: the kernel would add the same one again and again."""
    return {_tproxy(*found.target)[0].payload for found in _rules(channel)} if ruleset.tproxy else set()


def undo(channel: Channel, added: list[Step]) -> None:
    """Takes away again what `ensure` added."""
    for step in reversed(added):
        channel.tell(step.delete, 0, step.payload)


def drop_others(channel: Channel, ruleset: Ruleset | None) -> bool:
    """Takes away what is ours and not of this ruleset, all of it for None, and repetitions of what is. Whether any."""
    kept = {step.payload for step in _steps(ruleset)} if ruleset else set()
    address = _passthrough()
    # asked for first: deleting waits for a lock that the kernel may hold for milliseconds to take other pods down
    dropped = address.payload not in kept and _has_passthrough(channel) and _delete(channel, address, kept=kept)
    seen: set[bytes] = set()
    for found in _rules(channel):
        rule, route = _tproxy(*found.target)
        if rule.payload in seen:  # which of the two the kernel deletes does not matter
            dropped |= channel.tell(rule.delete, 0, rule.payload.removesuffix(_OURS_ATTRIBUTE)) == 0
        elif found.ours:
            dropped |= _delete(channel, route, rule, kept=kept)
        if rule.payload in kept:
            seen.add(rule.payload)
    return dropped


def differences(channel: Channel, ruleset: Ruleset) -> tuple[Difference, ...]:
    """What is missing, what is there twice, and what of ours is not of this ruleset."""
    rules = list(_rules(channel))
    route = ruleset.tproxy
    wanted = [(family, route.mark, route.table) for family in ruleset.families] if route else []
    found = [item for target in wanted for item in _tproxy_differences(channel, rules, target)]
    for rule in rules:
        if rule.ours and rule.target not in wanted:
            found.append(Difference("extra", "rule", _tproxy(*rule.target)[0].text))
    if _has_passthrough(channel) != (6 in ruleset.families):
        found.append(Difference("missing" if 6 in ruleset.families else "extra", "address", _passthrough().text))
    return tuple(found)


def _tproxy_differences(channel: Channel, rules: list[Found], target: Target) -> Iterator[Difference]:
    rule, route = _tproxy(*target)
    count = sum(found.target == target for found in rules)
    if count != 1:
        yield Difference("extra" if count else "missing", "rule", rule.text)
    if not _has_route(channel, target):
        yield Difference("missing", "route", route.text)


def _steps(ruleset: Ruleset) -> Iterator[Step]:
    if 6 in ruleset.families:
        yield _passthrough()
    if ruleset.tproxy:
        for family in ruleset.families:
            # the rule first, and away last: it is by the rule that a route is found again, wherever we were killed
            yield from _tproxy(family, ruleset.tproxy.mark, ruleset.tproxy.table)


@functools.cache
def _passthrough() -> Step:
    address, _, length = PASSTHROUGH[6].partition("/")
    packed = socket.inet_pton(socket.AF_INET6, address)
    payload = _ADDRESS.pack(socket.AF_INET6, int(length), 0, 0, LOOPBACK_INDEX)
    payload += attribute(_ADDRESS_LOCAL, packed) + attribute(_ADDRESS_ADDRESS, packed)
    return Step(NEW_ADDRESS, DELETE_ADDRESS, payload, f"ip -6 addr add {PASSTHROUGH[6]} dev lo")


def _tproxy(family: Family, mark: int, table: int) -> tuple[Step, Step]:
    kind = _FAMILIES[family]
    number = attribute(_RULE_TABLE, struct.pack("=I", table))
    rule = _RULE.pack(kind, 0, 0, 0, 0, 0, 0, _TO_TABLE, 0) + attribute(_RULE_MARK, struct.pack("=I", mark)) + number
    rule += _OURS_ATTRIBUTE
    # the kernel keeps a table number above 255 in the attribute only
    route = _ROUTE.pack(kind, 0, 0, 0, 0, OURS, _HOST_SCOPE, _LOCAL_ROUTE, 0)
    route += attribute(_ROUTE_INTERFACE, struct.pack("=I", LOOPBACK_INDEX))
    route += attribute(_ROUTE_TABLE, struct.pack("=I", table))
    return (
        Step(NEW_RULE, DELETE_RULE, rule, f"ip -{family} rule add fwmark {mark} lookup {table}"),
        Step(NEW_ROUTE, DELETE_ROUTE, route, f"ip -{family} route add local default dev lo table {table}"),
    )


def _delete(channel: Channel, *steps: Step, kept: set[bytes]) -> bool:
    dropped = False
    for step in steps:
        if step.payload not in kept:
            number = channel.tell(step.delete, 0, step.payload)
            if number not in _GONE:
                raise refused(f"undoing {step.text}", Refusal(number, 0, ""))
            dropped |= number == 0
    return dropped


def _rules(channel: Channel) -> Iterator[Found]:
    dump = channel.dump(GET_RULE, _RULE.pack(0, 0, 0, 0, 0, 0, 0, 0, 0))
    if _MARK_ATTRIBUTE not in dump:  # no need to look closer, as in nearly every pod
        return
    for _, start, end in messages(dump):
        values = _values(dump, start + HEADER.size + _RULE.size, end)
        family: Family = 4 if dump[start + HEADER.size] == socket.AF_INET else 6
        if _RULE_MARK in values and _number(values.get(_RULE_MASK, b"\xff" * 4)) == 0xFFFFFFFF:
            target = (family, _number(values[_RULE_MARK]), _number(values.get(_RULE_TABLE, bytes(4))))
            yield Found(target, values.get(_RULE_PROTOCOL) == bytes([OURS]))


def _has_route(channel: Channel, target: Target) -> bool:
    family, _, table = target
    dump = channel.dump(GET_ROUTE, _ROUTE.pack(_FAMILIES[family], 0, 0, 0, 0, 0, 0, 0, 0))
    for _, start, end in messages(dump):
        _, length, _, _, _, _, _, kind, _ = _ROUTE.unpack_from(dump, start + HEADER.size)
        values = _values(dump, start + HEADER.size + _ROUTE.size, end)
        if (
            (length, kind) == (0, _LOCAL_ROUTE)
            and _number(values.get(_ROUTE_TABLE, bytes(4))) == table
            and _number(values.get(_ROUTE_INTERFACE, bytes(4))) == LOOPBACK_INDEX
        ):
            return True
    return False


def _has_passthrough(channel: Channel) -> bool:
    """Asks for the one address; the kernel refuses when there is none, or no IPv6."""
    try:
        channel.ask(GET_ADDRESS, _passthrough().payload)
    except KernelRefused:
        return False
    return True


def _values(dump: bytes, start: int, end: int) -> dict[int, bytes]:
    return {span.kind: dump[span.start : span.end] for span in attributes(dump, start, end)}


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little" if struct.pack("=H", 1)[0] else "big")


def _failed(step: Step, number: int) -> KernelRefused:
    if step.new == NEW_ADDRESS and number in (errno.EACCES, errno.EPERM, errno.EOPNOTSUPP, errno.EAFNOSUPPORT):
        sentence = "IPv6 is off here, so ::6 cannot be added to lo; run: sysctl -w net.ipv6.conf.all.disable_ipv6=0"
        return KernelRefused("no-ipv6", sentence, number)
    return refused(step.text, Refusal(number, 0, ""))
