"""What a rule is there for, in words, and the settings that it comes from.

Told from the shape of the rule, so that it can be said of rules found in a kernel as well. A test holds it to its word:
without one of the settings named here, `build` does not give that rule.
"""

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final, NamedTuple

from cni_agent import names
from cni_agent.capture import Capture
from cni_agent.explaining.packet import LOOPBACK, Packet
from cni_agent.rules import Match, Rule

Setting = str  # the name of a field of `Capture`
_PROXY_PORTS: Final = (names.STATUS_PORT, names.READINESS_PORT, names.ENVOY_METRICS_PORT)
_OWNERS: Final = {"uid": "proxy_uids", "gid": "proxy_gids"}


class Purpose(NamedTuple):
    """Completes "Captured, because …" and its like."""

    words: str
    settings: tuple[Setting, ...] = ()


def purpose(rule: Rule, capture: Capture) -> Purpose | None:
    """Why a rule that decided was written; None for a rule that is not ours."""
    if rule.target.verb not in ("return", "jump", "redirect"):
        return None
    if rule.chain in names.BUILT_IN_CHAINS:
        return _of_built_in(rule, capture)
    if rule.chain == names.ISTIO_INBOUND:
        return _of_inbound(rule, capture)
    if rule.chain == names.ISTIO_OUTPUT:
        return _of_output(rule, capture)
    if rule.chain == names.ISTIO_OUTPUT_DNS:
        resolver = rule.match("destination")
        if resolver:
            return Purpose(f"it is a DNS query to {_host(resolver)}, a resolver of the pod", ("redirect_dns",))
        return Purpose("it is a DNS query", ("redirect_dns", "capture_all_dns"))
    return None


def unclaimed(packet: Packet, capture: Capture) -> Purpose:
    """Why no rule takes a packet."""
    if packet.family not in capture.families:
        return Purpose("the pod is not known to have IPv6, and has rules for IPv4 only", ("ipv6",))
    if packet.protocol == "udp":
        if packet.hook == "PREROUTING":
            return Purpose("only TCP is captured of what arrives")
        why = "it is not to a resolver of the pod" if packet.port == names.DNS_PORT else "this is another port"
        why = why if capture.dns else "DNS capture is off"
        return Purpose(f"only DNS is captured of UDP, and {why}", ("redirect_dns",))
    if packet.hook == "PREROUTING":
        if packet.interface in capture.reroute_interfaces:
            return Purpose("no included range has its address", ("include_outbound_cidrs",))
        return Purpose(f"{packet.port} is not among the included inbound ports", ("include_inbound_ports",))
    return Purpose(
        "no included range has its address, and no included port is its own",
        ("include_outbound_cidrs", "include_outbound_ports"),
    )


def _of_built_in(rule: Rule, capture: Capture) -> Purpose | None:
    interface = rule.match("in-interface") or rule.match("out-interface")
    mark = rule.match("mark")
    if interface is None:
        return None
    if mark:
        return _of_mark(mark)
    if rule.target.verb == "jump" and rule.target.argument == names.ISTIO_REDIRECT:
        words = f"it comes from a virtual machine behind {interface.value}, so it is outbound traffic"
        return Purpose(words, ("reroute_interfaces", "include_outbound_cidrs"))
    if rule.target.verb != "return" or len(rule.matches) != 1:
        return None
    # the rules of both settings look alike; those of rerouted interfaces stand before the excluded ones
    if rule.chain == "PREROUTING" and rule.table == "nat" and interface.value in capture.reroute_interfaces:
        words = f"it comes from a virtual machine behind {interface.value}, and is not captured as outbound traffic"
        return Purpose(words, ("reroute_interfaces",))
    return Purpose(f"{interface.value} is an excluded interface", ("exclude_interfaces",))


def _of_inbound(rule: Rule, capture: Capture) -> Purpose | None:
    port, mark = rule.match("destination-port"), rule.match("mark")
    if rule.target.verb == "jump":
        included = f"{port.value} is an included inbound port" if port else "all inbound ports are captured"
        return Purpose(included, ("include_inbound_ports",))
    if port:
        if rule.table == "nat" and port.value == capture.tunnel_port:
            return Purpose(f"{port.value} is the tunnel port (HBONE)", ("tunnel_port",))
        whose = (
            "an excluded inbound port, the proxy's own" if port.value in _PROXY_PORTS else "an excluded inbound port"
        )
        return Purpose(f"{port.value} is {whose}", ("exclude_inbound_ports",))
    if rule.match("source"):
        return _PASSTHROUGH
    if mark and mark.inverted:
        return Purpose("it stays inside the pod, and is not the proxy calling its own pod", ("mode",))
    return _of_mark(mark) if mark else None


def _of_output(rule: Rule, capture: Capture) -> Purpose | None:
    if rule.target.verb == "jump":
        return _of_output_jump(rule)
    owner = rule.match("uid") or rule.match("gid")
    destination = rule.match("destination")
    port = rule.match("destination-port")
    if rule.match("out-interface"):
        if rule.match("source"):
            return _PASSTHROUGH
        if owner and owner.inverted:
            return Purpose("it is the application calling its own pod", (_OWNERS[owner.kind],))
        return None
    if owner:
        return _of_owner(owner, capture)
    if destination:
        if _network(destination.value) in (_network(capture.loopback_v4), _network(names.LOOPBACK_V6)):
            return Purpose(f"{destination.value} is loopback", ("loopback_v4",) if rule.family == 4 else ())
        return Purpose(f"{destination.value} is an excluded outbound range", ("exclude_outbound_cidrs",))
    if port:
        return Purpose(f"{port.value} is an excluded outbound port", ("exclude_outbound_ports",))
    return Purpose("no group is one whose traffic is captured", ("owner_groups_include",)) if not rule.matches else None


def _of_output_jump(rule: Rule) -> Purpose | None:
    port, destination = rule.match("destination-port"), rule.match("destination")
    if rule.target.argument == names.ISTIO_IN_REDIRECT:
        owner = rule.match("uid") or rule.match("gid")
        settings = (_OWNERS[owner.kind],) if owner else ()
        return Purpose("it is the proxy calling its own pod, which goes the way of inbound traffic", settings)
    if rule.target.argument != names.ISTIO_REDIRECT:
        return None
    if port:
        return Purpose(f"{port.value} is an included outbound port", ("include_outbound_ports",))
    included = f"{destination.value} is an included outbound range" if destination else "all addresses are captured"
    return Purpose(included, ("include_outbound_cidrs",))


def _of_owner(owner: Match, capture: Capture) -> Purpose:
    if owner.inverted:
        return Purpose("its group is not one whose traffic is captured", ("owner_groups_include",))
    if owner.kind == "uid" or owner.value in capture.proxy_gids:
        return Purpose(f"it is the proxy's own traffic ({owner.kind} {owner.value})", (_OWNERS[owner.kind],))
    return Purpose(f"{owner.value} is an excluded group", ("owner_groups_exclude",))


def _of_mark(mark: Match) -> Purpose:
    return Purpose(f"it has mark {mark.value}, as the proxy's own connections to the application", ("tproxy_mark",))


def _network(prefix: object) -> IPv4Network | IPv6Network:
    """A range as the kernel keeps it, without host bits."""
    return ip_network(str(prefix), strict=False)


def _host(match: Match) -> str:
    return str(match.value).partition("/")[0]


_PASSTHROUGH: Final = Purpose(f"it is what the proxy passes through to its own pod over {LOOPBACK}")
