"""Rules as the text that `nft -f` reads, word for word as istio-nftables writes it."""

from collections import Counter
from typing import Final

from cni_agent.names import ISTIO_OUTPUT, ISTIO_OUTPUT_DNS, NFT_TABLES
from cni_agent.rules import Match, MatchKind, Rule, Ruleset, Table

_BASE_CHAINS: Final[dict[Table, dict[str, str]]] = {
    "nat": {
        "prerouting": "type nat hook prerouting priority -100",
        "output": "type nat hook output priority -100",
    },
    "mangle": {
        "prerouting": "type filter hook prerouting priority -150",
        "output": "type route hook output priority -150",  # a changed mark must be routed anew
    },
    "raw": {
        "prerouting": "type filter hook prerouting priority -300",
        "output": "type filter hook output priority -300",
    },
}
_CHAINS: Final[dict[Table, tuple[str, ...]]] = {
    "nat": ("istio-inbound", "istio-redirect", "istio-in-redirect", "istio-output", "istio-output-dns"),
    "mangle": ("istio-divert", "istio-tproxy", "istio-inbound", "istio-drop"),
    "raw": ("istio-inbound", "istio-output-dns"),
}
# the order in which a rule's conditions are written
_ORDER: Final[tuple[MatchKind, ...]] = (
    "in-interface",
    "out-interface",
    "protocol",
    "source",
    "destination",
    "state",
    "destination-port",
    "source-port",
    "uid",
    "gid",
    "mark",
    "connection-mark",
)
_ORDER_RAW: Final[tuple[MatchKind, ...]] = (
    "protocol",
    "destination-port",
    "source-port",
    "source",
    "destination",
    "uid",
    "gid",
)
_WORDS: Final = {
    "in-interface": "iifname",
    "out-interface": "oifname",
    "protocol": "meta l4proto",
    "state": "ct state",
    "uid": "skuid",
    "gid": "skgid",
    "mark": "mark",
    "connection-mark": "ct mark",
}


def nft_text(ruleset: Ruleset) -> str:
    """The whole ruleset as one transaction; one text covers both families."""
    lines: list[str] = []
    for table, name in NFT_TABLES.items():
        rules = [rule for rule in ruleset.rules if rule.table == table]
        if not rules:
            continue
        used = {chain_name(rule.chain) for rule in rules}
        lines += [f"add table inet {name}", f"flush table inet {name}"]
        for chain, hook in _BASE_CHAINS[table].items():
            if chain in used:
                lines.append(f"add chain inet {name} {chain} {{ {hook} ; }}")
        lines += [f"add chain inet {name} {chain}" for chain in _CHAINS[table] if chain in used]
        lines += _rule_lines(name, rules)
    return "\n".join(lines) + "\n"


def _rule_lines(table: str, rules: list[Rule]) -> list[str]:
    lines = []
    queued: Counter[str] = Counter()
    for rule in rules:
        chain = chain_name(rule.chain)
        place = f"add rule inet {table} {chain}"
        if rule.position is not None and rule.position <= queued[chain]:  # nft refuses an index that is not there yet
            place = f"insert rule inet {table} {chain} index {rule.position - 1}"
        queued[chain] += 1
        lines.append(f"{place} {rule_text(rule)}")
    return lines


def rule_text(rule: Rule) -> str:
    """The conditions and the verdict of one rule, with the counter that each has."""
    order = _ORDER_RAW if rule.table == "raw" else _ORDER
    matches = sorted(rule.matches, key=lambda match: order.index(match.kind))
    words = [_match_text(rule, match) for match in matches if match.kind != "protocol" or _spelled(rule)]
    return " ".join([*words, _target_text(rule)])


def chain_name(chain: str) -> str:
    """What a chain is called in our native tables."""
    return chain.lower().replace("_", "-")


def _spelled(rule: Rule) -> bool:
    """Whether the protocol is written out; where a port follows it is implied, and Istio's text is not of one mind."""
    if not (rule.match("destination-port") or rule.match("source-port")):
        return True
    protocol = rule.match("protocol")
    if protocol is None or protocol.value == "udp":
        return False
    if rule.chain == ISTIO_OUTPUT:
        return rule.match("out-interface") is not None
    return not (rule.chain == ISTIO_OUTPUT_DNS and rule.family)


def _match_text(rule: Rule, match: Match) -> str:
    value = match.value
    if isinstance(value, tuple):
        listed = ", ".join(map(str, value))
        value = listed.replace(" ", "").lower() if match.kind == "state" else f"{{ {listed} }}"
    return f"{_word(rule, match)}{' !=' if match.inverted else ''} {value}"


def _word(rule: Rule, match: Match) -> str:
    ip = "ip6" if rule.family == 6 else "ip"
    match match.kind:
        case "source":
            return f"{ip} saddr"
        case "destination":
            return f"{ip} daddr"
        case "destination-port" | "source-port":
            protocol = rule.match("protocol")
            assert protocol is not None, "a port without its protocol"
            return f"{protocol.value} {'dport' if match.kind == 'destination-port' else 'sport'}"
        case "uid" | "gid" if rule.table == "raw":
            return f"meta {_WORDS[match.kind]}"
        case _:
            return _WORDS[match.kind]


def _target_text(rule: Rule) -> str:
    target = rule.target
    match target.verb:
        case "return" | "accept" | "drop":
            return f"counter {target.verb}"
        case "jump":
            return f"counter jump {chain_name(str(target.argument))}"
        case "redirect":
            return f"counter redirect to :{target.argument}"
        case "tproxy":
            ip = "ip6" if rule.family == 6 else "ip"
            return f"tproxy {ip} to :{target.argument} meta mark set {target.mark} counter accept"
        case "set-mark":
            return f"counter meta mark set {target.argument}"
        case "save-mark":
            return "counter ct mark set mark"
        case "restore-mark":
            return "counter meta mark set ct mark"
        case "zone":
            return f"counter ct zone set {target.argument}"
