"""Capture settings to rules: the order of istio-iptables, step by step (tools/istio-iptables/pkg/capture/run.go).

The native nftables rules are the same steps with three differences in meaning: invalid packets are dropped for TCP
only, one inet table serves both families, and, when asked to fail closed, TCP that finds no TPROXY listener is dropped
as xt_TPROXY does.
"""

import functools
from collections.abc import Iterator

from cni_agent import names
from cni_agent.capture import Capture, Family
from cni_agent.names import (
    ISTIO_DIVERT,
    ISTIO_DROP,
    ISTIO_IN_REDIRECT,
    ISTIO_INBOUND,
    ISTIO_OUTPUT,
    ISTIO_OUTPUT_DNS,
    ISTIO_REDIRECT,
    ISTIO_TPROXY,
)
from cni_agent.rules import Dialect, Match, MatchKind, Rule, Ruleset, Table, Target, TproxyRoute, Value
from cni_agent.values import WILDCARD, family

RETURN = Target("return")
LOOPBACK_OUT = Match("out-interface", "lo")
LOOPBACK_IN = Match("in-interface", "lo")
TCP = Match("protocol", "tcp")
UDP = Match("protocol", "udp")
ESTABLISHED = Match("state", ("RELATED", "ESTABLISHED"))
BOTH: tuple[Family, Family] = (4, 6)


@functools.lru_cache(256)  # a node's pods share a handful; the same object is found at once where things are kept by it
def build(capture: Capture, dialect: Dialect = "iptables", *, fail_closed: bool = False) -> Ruleset:
    """All rules for these settings. `fail_closed` concerns TPROXY in the nftables dialect, see above."""
    steps = (
        _excluded_interfaces(capture),
        _rerouted_interfaces(capture),
        _invalid_packets(capture, dialect),
        _redirect_chains(capture),
        _inbound(capture, drop_unclaimed=fail_closed and dialect == "nftables"),
        _outbound_exclusions(capture),
        _proxy_itself(capture),
        _owner_groups(capture),
        _dns(capture) if capture.dns else iter(()),
        _outbound_inclusions(capture),
        _tproxy_marks(capture) if capture.mode == "TPROXY" else iter(()),
    )
    rules = tuple(rule for step in steps for rule in step if rule.family in (None, *capture.families))
    routed = capture.mode == "TPROXY" and bool(capture.include_inbound_ports)
    route = TproxyRoute(capture.tproxy_mark, capture.tproxy_table) if routed else None
    return Ruleset(dialect, capture.families, rules, route)


def _not(kind: MatchKind, value: Value) -> Match:
    return Match(kind, value, inverted=True)


def _jump(chain: str) -> Target:
    return Target("jump", chain)


def _dport(port: int) -> Match:
    return Match("destination-port", port)


def _sport(port: int) -> Match:
    return Match("source-port", port)


def _owners(capture: Capture) -> list[Match]:
    """Whose traffic is the proxy's own: its users, then its groups."""
    return [Match("uid", uid) for uid in capture.proxy_uids] + [Match("gid", gid) for gid in capture.proxy_gids]


def _excluded_interfaces(capture: Capture) -> Iterator[Rule]:
    tables: tuple[Table, ...] = ("nat", "mangle") if capture.mode == "TPROXY" else ("nat",)
    for table in tables:
        for name in capture.exclude_interfaces:
            yield Rule(table, "PREROUTING", (Match("in-interface", name),), RETURN)
            yield Rule(table, "OUTPUT", (Match("out-interface", name),), RETURN)


def _rerouted_interfaces(capture: Capture) -> Iterator[Rule]:
    """What comes from a virtual machine is outbound traffic: it must not fall into ISTIO_INBOUND."""
    for name in capture.reroute_interfaces:
        yield Rule("nat", "PREROUTING", (Match("in-interface", name),), RETURN, position=1)


def _invalid_packets(capture: Capture, dialect: Dialect) -> Iterator[Rule]:
    if capture.drop_invalid:
        invalid = Match("state", ("INVALID",))
        matches = (TCP, invalid) if dialect == "nftables" else (invalid,)
        yield Rule("mangle", "PREROUTING", matches, _jump(ISTIO_DROP))
        yield Rule("mangle", ISTIO_DROP, (), Target("drop"))


def _redirect_chains(capture: Capture) -> Iterator[Rule]:
    yield Rule("nat", ISTIO_INBOUND, (TCP, _dport(capture.tunnel_port)), RETURN)
    yield Rule("nat", ISTIO_REDIRECT, (TCP,), Target("redirect", capture.outbound_port))
    yield Rule("nat", ISTIO_IN_REDIRECT, (TCP,), Target("redirect", capture.inbound_port))


def _inbound(capture: Capture, *, drop_unclaimed: bool) -> Iterator[Rule]:
    if not capture.include_inbound_ports:
        return
    tproxy = capture.mode == "TPROXY"
    table: Table = "mangle" if tproxy else "nat"
    if tproxy:
        yield from _tproxy_chains(capture, drop_unclaimed=drop_unclaimed)
    yield Rule(table, "PREROUTING", (TCP,), _jump(ISTIO_INBOUND))
    if capture.include_inbound_ports == WILDCARD:
        for port in capture.exclude_inbound_ports:
            yield Rule(table, ISTIO_INBOUND, (TCP, _dport(port)), RETURN)
        selections: list[tuple[Match, ...]] = [(TCP,)]
    else:  # a list of ports: the exclusions are not looked at, as with istio-iptables
        selections = [(TCP, _dport(port)) for port in capture.include_inbound_ports]
    for selection in selections:
        if tproxy:
            yield Rule(table, ISTIO_INBOUND, (*selection, ESTABLISHED), _jump(ISTIO_DIVERT))
            yield Rule(table, ISTIO_INBOUND, selection, _jump(ISTIO_TPROXY))
        else:
            yield Rule(table, ISTIO_INBOUND, selection, _jump(ISTIO_IN_REDIRECT))


def _tproxy_chains(capture: Capture, *, drop_unclaimed: bool) -> Iterator[Rule]:
    yield Rule("mangle", ISTIO_DIVERT, (), Target("set-mark", capture.tproxy_mark))
    yield Rule("mangle", ISTIO_DIVERT, (), Target("accept"))
    targets = [Target("tproxy", capture.inbound_port, capture.tproxy_mark)]
    if drop_unclaimed:
        targets.append(Target("drop"))
    for target in targets:
        for ip in BOTH:
            matches = (_not("destination", capture.loopback(ip)), TCP)
            yield Rule("mangle", ISTIO_TPROXY, matches, target, ip)


def _outbound_exclusions(capture: Capture) -> Iterator[Rule]:
    yield Rule("nat", "OUTPUT", (), _jump(ISTIO_OUTPUT))
    for port in capture.exclude_outbound_ports:
        yield Rule("nat", ISTIO_OUTPUT, (TCP, _dport(port)), RETURN)
        yield Rule("nat", ISTIO_OUTPUT, (UDP, _dport(port)), RETURN)


def _proxy_itself(capture: Capture) -> Iterator[Rule]:
    """The proxy calling its own pod goes inbound; the application over lo, and the proxy elsewhere, are let go."""
    for ip in BOTH:
        yield Rule("nat", ISTIO_OUTPUT, (LOOPBACK_OUT, Match("source", names.PASSTHROUGH[ip])), RETURN, ip)
    for owner in _owners(capture):
        spared: Value = capture.tunnel_port
        if capture.dns and owner.kind == "uid":  # the gid rule never spares 53: as istio-iptables has it
            spared = (names.DNS_PORT, capture.tunnel_port)
        for ip in BOTH:
            away = (LOOPBACK_OUT, _not("destination", capture.loopback(ip)), TCP)
            matches = (*away, _not("destination-port", spared), owner)
            yield Rule("nat", ISTIO_OUTPUT, matches, _jump(ISTIO_IN_REDIRECT), ip)
        if not capture.captures_loopback:
            but_dns = (TCP, _not("destination-port", names.DNS_PORT)) if capture.dns else ()
            yield Rule("nat", ISTIO_OUTPUT, (LOOPBACK_OUT, *but_dns, _not(owner.kind, owner.value)), RETURN)
        yield Rule("nat", ISTIO_OUTPUT, (owner,), RETURN)


def _owner_groups(capture: Capture) -> Iterator[Rule]:
    if capture.owner_groups_include == WILDCARD:
        for group in capture.owner_groups_exclude:
            yield Rule("nat", ISTIO_OUTPUT, (Match("gid", group),), RETURN)
    else:
        strangers = tuple(_not("gid", group) for group in capture.owner_groups_include)
        yield Rule("nat", ISTIO_OUTPUT, strangers, RETURN)


def _dns(capture: Capture) -> Iterator[Rule]:
    """Port 53 to the agent's resolver; the two halves of each exchange in conntrack zones of their own."""
    yield Rule("raw", "OUTPUT", (), _jump(ISTIO_OUTPUT_DNS))
    jumping = [ip for ip in capture.families if capture.capture_all_dns or capture.resolvers(ip)]
    # one rule for both families, or one for the only family that has a resolver
    only = None if len(jumping) == len(capture.families) else next(iter(jumping), None)
    if jumping:
        yield Rule("nat", ISTIO_OUTPUT, (), _jump(ISTIO_OUTPUT_DNS), only)
    to_agent = Target("redirect", names.DNS_PROXY_PORT)
    query, answer = _dport(names.DNS_PORT), _sport(names.DNS_PORT)
    for protocol in (TCP, UDP):
        for ip, address in _resolver_matches(capture, "destination"):
            yield Rule("nat", ISTIO_OUTPUT_DNS, (protocol, query, *address), to_agent, ip)
    proxy_zone = Target("zone", names.DNS_ZONE_PROXY)
    app_zone = Target("zone", names.DNS_ZONE_APP)
    for owner in _owners(capture):
        yield Rule("raw", ISTIO_OUTPUT_DNS, (UDP, query, owner), proxy_zone)
        yield Rule("raw", ISTIO_OUTPUT_DNS, (UDP, _sport(names.DNS_PROXY_PORT), owner), app_zone)
    if jumping:
        yield Rule("raw", "PREROUTING", (), _jump(ISTIO_INBOUND), only)
    sources = _resolver_matches(capture, "source")
    for (ip, to), (_, back) in zip(_resolver_matches(capture, "destination"), sources, strict=True):
        yield Rule("raw", ISTIO_OUTPUT_DNS, (UDP, query, *to), app_zone, ip)
        yield Rule("raw", ISTIO_INBOUND, (UDP, answer, *back), proxy_zone, ip)


def _resolver_matches(capture: Capture, kind: MatchKind) -> list[tuple[Family | None, tuple[Match, ...]]]:
    """Which addresses count as resolvers: any, or each known one with its family."""
    if capture.capture_all_dns:
        return [(None, ())]
    found: list[tuple[Family | None, tuple[Match, ...]]] = []
    found += [(4, (Match(kind, f"{address}/32"),)) for address in capture.resolvers_v4]
    found += [(6, (Match(kind, f"{address}/128"),)) for address in capture.resolvers_v6]
    return found


def _outbound_inclusions(capture: Capture) -> Iterator[Rule]:
    redirect = _jump(ISTIO_REDIRECT)
    for ip in BOTH:
        yield Rule("nat", ISTIO_OUTPUT, (Match("destination", capture.loopback(ip)),), RETURN, ip)
    for cidr in _by_family(capture.exclude_outbound_cidrs):
        yield Rule("nat", ISTIO_OUTPUT, (Match("destination", cidr),), RETURN, family(cidr))
    for port in capture.include_outbound_ports:
        yield Rule("nat", ISTIO_OUTPUT, (TCP, _dport(port)), redirect)
    from_machines = [Match("in-interface", name) for name in capture.reroute_interfaces]
    if capture.include_outbound_cidrs == WILDCARD:
        yield Rule("nat", ISTIO_OUTPUT, (), redirect)
        for machine in from_machines:
            yield Rule("nat", "PREROUTING", (machine,), redirect, position=1)
        return
    for cidr in _by_family(capture.include_outbound_cidrs):
        destination, ip = Match("destination", cidr), family(cidr)
        for machine in from_machines:
            yield Rule("nat", "PREROUTING", (machine, destination), redirect, ip, position=1)
        yield Rule("nat", ISTIO_OUTPUT, (destination,), redirect, ip)


def _by_family(cidrs: tuple[str, ...]) -> list[str]:
    return sorted(cidrs, key=family)  # stable: v4 first, each family in the order it was written


def _tproxy_marks(capture: Capture) -> Iterator[Rule]:
    """Keeps the client's source address on the way to the application and back (original_src), without a loop."""
    mark = Match("mark", capture.tproxy_mark)
    yield Rule("mangle", "PREROUTING", (TCP, mark), Target("save-mark"))
    yield Rule("mangle", "OUTPUT", (TCP, LOOPBACK_OUT, mark), RETURN)
    for owner in _owners(capture):
        for ip in BOTH:
            away = (_not("destination", capture.loopback(ip)), TCP, LOOPBACK_OUT, owner)
            yield Rule("mangle", "OUTPUT", away, Target("set-mark", names.LOOP_MARK), ip)
    connection = (TCP, Match("connection-mark", capture.tproxy_mark))
    yield Rule("mangle", "OUTPUT", connection, Target("restore-mark"))
    yield Rule("mangle", ISTIO_INBOUND, (TCP, mark), RETURN, position=1)
    for ip in BOTH:
        passed = (TCP, Match("source", names.PASSTHROUGH[ip]), LOOPBACK_IN)
        yield Rule("mangle", ISTIO_INBOUND, passed, RETURN, ip, position=2)
    yield Rule("mangle", ISTIO_INBOUND, (TCP, LOOPBACK_IN, _not("mark", names.LOOP_MARK)), RETURN, position=3)
