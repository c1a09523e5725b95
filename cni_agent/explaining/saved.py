"""Reads rules back from the text of `iptables-save --counters`. A rule with words that ours never have stays unread."""

import re
import shlex
from collections.abc import Iterator
from typing import Final, cast, get_args

from cni_agent.capture import Family
from cni_agent.explaining.trace import Chains, Entry
from cni_agent.rules import Match, MatchKind, Rule, Table, Target, Value

_LINE: Final = re.compile(r"\[(\d+):\d+\] (-A (\S+) ?(.*))")
_ALL_BITS: Final = "0xffffffff"
_KINDS: Final[dict[str, MatchKind]] = {
    "-i": "in-interface",
    "-o": "out-interface",
    "-s": "source",
    "-d": "destination",
    "-p": "protocol",
    "--dport": "destination-port",
    "--dports": "destination-port",
    "--sport": "source-port",
    "--uid-owner": "uid",
    "--gid-owner": "gid",
    "--ctstate": "state",
}
_MODULES: Final = ("tcp", "udp", "multiport", "owner", "conntrack", "mark", "connmark")


class _Unread(Exception):
    """A rule has something that ours never have."""


def read(text: str, family: Family) -> Chains:
    """The chains of raw, mangle and nat, each rule with its packet counter."""
    chains: dict[tuple[Table, str], list[Entry]] = {}
    table: Table | None = None
    for line in text.splitlines():
        if line.startswith("*"):
            table = cast(Table, line[1:]) if line[1:] in get_args(Table) else None
        elif table and line.startswith(":"):
            chains[table, line[1:].split(" ")[0]] = []
        elif table and (found := _LINE.fullmatch(line)):
            packets, command, chain, words = found.groups()
            known = {name for in_table, name in chains if in_table == table}
            entry = Entry(table, chain, command, _rule(table, chain, words, family, known), int(packets))
            chains.setdefault((table, chain), []).append(entry)
    return chains


def _rule(table: Table, chain: str, words: str, family: Family, chains: set[str]) -> Rule | None:
    try:
        tokens = iter(shlex.split(words))
        matches = tuple(_matches(tokens))
        target = _target(next(tokens, ""), list(tokens), chains)
    except (_Unread, ValueError):  # ValueError: a number, or a quote, that is none
        return None
    named = any(match.kind in ("source", "destination") for match in matches)
    return Rule(table, chain, matches, target, family if named else None)


def _matches(tokens: Iterator[str]) -> Iterator[Match]:
    """Up to and including `-j`."""
    module, inverted = "", False
    for token in tokens:
        if token == "-j":
            return
        if token == "!":
            inverted = True
            continue
        value = next(tokens, "")
        if token == "-m":
            module = value
            if module not in _MODULES:
                raise _Unread
            continue
        yield _match(token, value, module, inverted)
        inverted = False
    raise _Unread  # a rule without a target only counts


def _match(option: str, value: str, module: str, inverted: bool) -> Match:
    if option == "--mark" and "/" not in value:
        return Match("connection-mark" if module == "connmark" else "mark", int(value, 16), inverted)
    if option not in _KINDS or value.endswith("+"):  # eth+: any interface whose name begins so
        raise _Unread
    kind = _KINDS[option]
    read: Value = value
    if kind == "state":
        read = tuple(value.split(","))
    elif option == "--dports":
        read = tuple(map(int, value.split(",")))
    elif kind in ("destination-port", "source-port", "uid", "gid"):
        read = int(value)
    return Match(kind, read, inverted)


def _target(verb: str, words: list[str], chains: set[str]) -> Target:
    match verb, words:
        case ("RETURN", []):
            return Target("return")
        case ("ACCEPT", []):
            return Target("accept")
        case ("DROP", []):
            return Target("drop")
        case ("REDIRECT", ["--to-ports", port]):
            return Target("redirect", int(port))
        case ("TPROXY", ["--on-port", port, "--on-ip", "0.0.0.0" | "::", "--tproxy-mark", mark]):
            return Target("tproxy", int(port), _whole(mark))
        case ("MARK", ["--set-xmark", mark]):
            return Target("set-mark", _whole(mark))
        case ("CONNMARK", ["--save-mark", "--nfmask", str(here), "--ctmask", str(there)]) if here == there == _ALL_BITS:
            return Target("save-mark")
        case ("CONNMARK", ["--restore-mark", "--nfmask", str(here), "--ctmask", str(there)]) if (
            here == there == _ALL_BITS
        ):
            return Target("restore-mark")
        case ("CT", ["--zone", zone]):
            return Target("zone", int(zone))
        case (chain, []) if chain in chains:
            return Target("jump", chain)
    raise _Unread


def _whole(mark: str) -> int:
    """A mark that is set as a whole, every bit of it."""
    value, _, mask = mark.partition("/")
    if mask != _ALL_BITS:
        raise _Unread
    return int(value, 16)
