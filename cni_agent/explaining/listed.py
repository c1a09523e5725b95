"""Reads rules back from the JSON of `nft -j list ruleset`. A rule with words that ours never have stays unread."""

import json
from typing import Any, Final, cast

from cni_agent import nft
from cni_agent.capture import Family
from cni_agent.explaining.trace import Chains, Entry
from cni_agent.names import BUILT_IN_CHAINS, NFT_TABLES
from cni_agent.rules import Match, MatchKind, Rule, Table, Target, Value

_TABLES: Final = {name: table for table, name in NFT_TABLES.items()}
_META: Final[dict[str, MatchKind]] = {
    "iifname": "in-interface",
    "oifname": "out-interface",
    "l4proto": "protocol",
    "skuid": "uid",
    "skgid": "gid",
    "mark": "mark",
}
_PAYLOAD: Final[dict[str, MatchKind]] = {
    "saddr": "source",
    "daddr": "destination",
    "dport": "destination-port",
    "sport": "source-port",
}
_CONNECTION: Final[dict[str, MatchKind]] = {"state": "state", "mark": "connection-mark"}
_FAMILIES: Final[dict[str, Family]] = {"ip": 4, "ip6": 6}
_MARK: Final = {"meta": {"key": "mark"}}
_CONNECTION_MARK: Final = {"ct": {"key": "mark"}}
_ZONE: Final = {"ct": {"key": "zone"}}


class _Unread(Exception):
    """A rule has something that ours never have."""


def read(text: str, family: Family) -> Chains:
    """The chains of our native tables that hold for a family, each rule with its packet counter."""
    chains: dict[tuple[Table, str], list[Entry]] = {}
    for item in json.loads(text)["nftables"]:
        held = item.get("rule")
        if held is None or held["family"] != "inet" or held["table"] not in _TABLES:
            continue
        table, chain = _TABLES[held["table"]], _chain(held["chain"])
        rule = _rule(table, chain, held["expr"])
        if rule is None or rule.family in (None, family):
            said = nft.rule_text(rule) if rule else json.dumps(held["expr"])
            packets = next((one["counter"]["packets"] for one in held["expr"] if "counter" in one), None)
            entry = Entry(table, chain, f"{held['chain']} {said}", rule, packets)
            chains.setdefault((table, chain), []).append(entry)
    return chains


def _chain(name: str) -> str:
    """A chain's name as iptables has it; a stranger keeps the name that it has."""
    found = name.upper().replace("-", "_")
    return found if found in BUILT_IN_CHAINS or found.startswith("ISTIO_") else name


def _rule(table: Table, chain: str, expressions: list[dict[str, Any]]) -> Rule | None:
    matches: list[Match] = []
    actions: list[tuple[str, Any]] = []
    family: Family | None = None
    try:
        for expression in expressions:
            ((kind, content),) = expression.items()
            if kind == "match":
                payload = content["left"].get("payload", {})
                family = _FAMILIES.get(payload.get("protocol"), family)
                matches += _matches(content, payload)
            elif kind != "counter":
                actions.append((kind, content))
                if kind == "tproxy":
                    family = _FAMILIES[content["family"]]
        return Rule(table, chain, tuple(dict.fromkeys(matches)), _target(actions), family)
    except (_Unread, KeyError, ValueError, AttributeError, TypeError):  # shapes that only other rules have
        return None


def _matches(content: dict[str, Any], payload: dict[str, str]) -> list[Match]:
    """One condition; a port implies its protocol, which nft then leaves out."""
    left, inverted = content["left"], content["op"] == "!="
    if content["op"] not in ("==", "!=", "in"):
        raise _Unread
    if "meta" in left:
        kind = _META[left["meta"]["key"]]
    elif "ct" in left:
        kind = _CONNECTION[left["ct"]["key"]]
    else:
        kind = _PAYLOAD[payload["field"]]
    implied = [Match("protocol", payload["protocol"])] if kind in ("destination-port", "source-port") else []
    return [*implied, Match(kind, _value(kind, content["right"]), inverted)]


def _value(kind: MatchKind, right: Any) -> Value:
    if kind == "state":
        states = [right] if isinstance(right, str) else right
        return tuple(str(state).upper() for state in states)
    if isinstance(right, dict) and "prefix" in right:
        return f"{right['prefix']['addr']}/{right['prefix']['len']}"
    if isinstance(right, dict):
        return tuple(right["set"])
    if kind in ("source", "destination"):
        return f"{right}/{128 if ':' in right else 32}"
    return cast(Value, right)


def _target(actions: list[tuple[str, Any]]) -> Target:
    match actions:
        case [("return" | "accept" | "drop" as verb, None)]:
            return Target(verb)
        case [("jump", {"target": chain})]:
            return Target("jump", _chain(chain))
        case [("redirect", {"port": int(port)})]:
            return Target("redirect", port)
        case [("tproxy", {"port": int(port)}), ("mangle", {"key": key, "value": int(mark)}), ("accept", None)] if (
            key == _MARK
        ):
            return Target("tproxy", port, mark)
        case [("mangle", {"key": key, "value": value})]:
            return _mangled(key, value)
    raise _Unread


def _mangled(key: Any, value: Any) -> Target:
    if key == _MARK and value == _CONNECTION_MARK:
        return Target("restore-mark")
    if key == _CONNECTION_MARK and value == _MARK:
        return Target("save-mark")
    if key == _MARK and isinstance(value, int):
        return Target("set-mark", value)
    if key == _ZONE and isinstance(value, int):
        return Target("zone", value)
    raise _Unread
