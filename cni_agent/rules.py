"""Rules as data: what a packet must match, and what then becomes of it.

One `Ruleset` feeds printing, programming, comparing and explaining. It is ordered as it is emitted; a rule with a
position is inserted there (1 is the head of the chain), any other is appended.

Its JSON form (`to_json`, `from_json`) is stable: these dataclasses, field by field, with `version` beside them.
"""

import functools
from dataclasses import dataclass
from typing import Literal

import msgspec

from cni_agent.capture import Family

Table = Literal["mangle", "nat", "raw"]
Dialect = Literal["iptables", "nftables"]
MatchKind = Literal[
    "in-interface",
    "out-interface",
    "source",
    "destination",
    "protocol",
    "destination-port",
    "source-port",
    "uid",
    "gid",
    "state",
    "mark",
    "connection-mark",
]
Verb = Literal[
    "return", "accept", "drop", "jump", "redirect", "tproxy", "set-mark", "save-mark", "restore-mark", "zone"
]
Value = str | int | tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """One condition. A tuple means any of its values."""

    kind: MatchKind
    value: Value
    inverted: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """What becomes of a packet that matches. `argument`: the chain, port, mark or zone; `mark`: TPROXY's mark."""

    verb: Verb
    argument: str | int | None = None
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `family` None means both families alike."""

    table: Table
    chain: str
    matches: tuple[Match, ...]
    target: Target
    family: Family | None = None
    position: int | None = None

    def match(self, kind: MatchKind) -> Match | None:
        """The first condition of a kind, if there is one."""
        return next((match for match in self.matches if match.kind == kind), None)


@dataclass(frozen=True, slots=True)
class TproxyRoute:
    """The routing that TPROXY needs beside its rules: packets with this mark are delivered locally."""

    mark: int
    table: int


@dataclass(frozen=True)
class Ruleset:
    """All rules of one pod in the order of their emission, for one dialect."""

    dialect: Dialect
    families: tuple[Family, ...]
    rules: tuple[Rule, ...]
    tproxy: TproxyRoute | None = None
    version: Literal[1] = 1  # of the JSON form

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Reckoned once: every pod looks for what is kept by ruleset, and there are dozens of rules to go through."""
        return hash((self.dialect, self.families, self.rules, self.tproxy))

    def of_family(self, family: Family) -> tuple[Rule, ...]:
        """The rules that hold for one family."""
        return tuple(rule for rule in self.rules if rule.family in (None, family))


def to_json(ruleset: Ruleset) -> bytes:
    """The ruleset as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(ruleset), indent=2)


def from_json(text: bytes) -> Ruleset:
    """The ruleset that `to_json` wrote. Raises `msgspec.ValidationError`, which names the path."""
    return msgspec.json.decode(text, type=Ruleset)
