"""Rules as the text that iptables-restore reads, word for word as istio-iptables writes it."""

from typing import Final

from cni_agent.capture import Family
from cni_agent.names import BUILT_IN_CHAINS
from cni_agent.rules import Match, Rule, Ruleset, Target

_OPTIONS: Final = {
    "in-interface": "-i",
    "out-interface": "-o",
    "source": "-s",
    "destination": "-d",
    "protocol": "-p",
    "destination-port": "--dport",
    "source-port": "--sport",
    "uid": "--uid-owner",
    "gid": "--gid-owner",
    "state": "--ctstate",
    "mark": "--mark",
    "connection-mark": "--mark",
}
_MODULES: Final = {
    "uid": "-m owner ",
    "gid": "-m owner ",
    "state": "-m conntrack ",
    "mark": "-m mark ",
    "connection-mark": "-m connmark ",
}


def restore_text(ruleset: Ruleset, family: Family) -> str:
    """One family's rules, for `iptables-restore --noflush` or its ip6 twin."""
    rules = ruleset.of_family(family)
    blocks = []
    for table in sorted({rule.table for rule in rules}):
        inside = [rule for rule in rules if rule.table == table]
        chains = [f"-N {chain}" for chain in _new_chains(inside)]
        blocks += [f"* {table}", *chains, *map(rule_text, inside), "COMMIT"]
    return "\n".join(blocks) + "\n"


def rule_text(rule: Rule) -> str:
    """One rule as an iptables command without the table."""
    place = f"-A {rule.chain}" if rule.position is None else f"-I {rule.chain} {rule.position}"
    return " ".join([place, *map(_match_text, rule.matches), _target_text(rule)])


def _new_chains(rules: list[Rule]) -> list[str]:
    """Our chains in the order of their first rule, then those that are only jumped to."""
    with_rules = [rule.chain for rule in rules]
    jumped_to = [str(rule.target.argument) for rule in rules if rule.target.verb == "jump"]
    return [chain for chain in dict.fromkeys(with_rules + jumped_to) if chain not in BUILT_IN_CHAINS]


def _match_text(match: Match) -> str:
    option = _OPTIONS[match.kind]
    module = _MODULES.get(match.kind, "")
    value = match.value
    if isinstance(value, tuple):
        if match.kind == "destination-port":
            option, module = "--dports", "-m multiport "
        value = ",".join(map(str, value))
    return f"{module}{'! ' if match.inverted else ''}{option} {value}"


def _target_text(rule: Rule) -> str:
    target: Target = rule.target
    match target.verb:
        case "return" | "accept" | "drop":
            return f"-j {target.verb.upper()}"
        case "jump":
            return f"-j {target.argument}"
        case "redirect":
            # Istio writes the singular form for UDP; iptables reads both alike
            protocol = rule.match("protocol")
            option = "--to-port" if protocol and protocol.value == "udp" else "--to-ports"
            return f"-j REDIRECT {option} {target.argument}"
        case "tproxy":
            return f"-j TPROXY --tproxy-mark {target.mark}/0xffffffff --on-port {target.argument}"
        case "set-mark":
            return f"-j MARK --set-mark {target.argument}"
        case "save-mark" | "restore-mark":
            return f"-j CONNMARK --{target.verb}"
        case "zone":
            return f"-j CT --zone {target.argument}"
