"""Where a connection of this pod's own lands: the OUTPUT side of the rules, for one first packet.

A small restatement of `cni_agent.build` for the one question that validation has: which probe, sent by which owner,
must arrive on which of the proxy's ports. Kernel tests send packets through real rules and compare.
"""

import socket

from cni_agent import names
from cni_agent.validation.settings import Settings


class Packet:
    """The first packet of a connection: who sends what where, and over which interface."""

    def __init__(self, uid: int, gid: int, protocol: str, address: str, port: int, interface: str = "lo") -> None:
        self.uid, self.gid = uid, gid
        self.protocol, self.address, self.port = protocol, address, port
        self.interface = interface
        self.family = family(address)


def family(address: str) -> int:
    """4 or 6."""
    return 6 if ":" in address else 4


def inside(address: str, cidr: str) -> bool:
    """Whether the address lies in the range; never across families.

    >>> inside("127.0.0.6", "127.0.0.1/8"), inside("::6", "::1/128"), inside("10.0.0.1", "::/0")
    (True, False, False)
    """
    network, _, length = cidr.partition("/")
    if family(address) != family(network):
        return False
    kind, bits = (socket.AF_INET6, 128) if ":" in address else (socket.AF_INET, 32)
    difference = int.from_bytes(socket.inet_pton(kind, address)) ^ int.from_bytes(socket.inet_pton(kind, network))
    return difference >> (bits - int(length)) == 0


def landing(settings: Settings, resolvers: list[str], packet: Packet) -> int | None:
    """The proxy's port that the connection is redirected to, or None when it goes where it was sent.

    >>> settings = Settings(["-i", "*", "-b", "*"], {})
    >>> landing(settings, [], Packet(1337, 1337, "tcp", "127.0.0.6", 15002))
    15006
    >>> landing(settings, [], Packet(1000, 1000, "tcp", "192.0.2.1", 80, "eth0"))
    15001
    """
    if packet.interface in settings.exclude_interfaces or packet.port in settings.exclude_outbound_ports:
        return None
    dns = captures_dns(settings, resolvers)
    for matches, is_user in [(packet.uid == uid, True) for uid in settings.uids] + [
        (packet.gid == gid, False) for gid in settings.gids
    ]:
        if matches:
            return settings.inbound_port if _loops_back(settings, packet, dns and is_user) else None
        if packet.interface == "lo" and _spared_on_loopback(settings, packet, dns):
            return None
    if not _group_is_captured(settings, packet.gid):
        return None
    if dns and packet.port == names.DNS_PORT and (settings.capture_all_dns or packet.address in resolvers):
        return names.DNS_PROXY_PORT
    if inside(packet.address, settings.loopback(packet.family)):
        return None
    if any(inside(packet.address, cidr) for cidr in settings.exclude_cidrs) or packet.protocol != "tcp":
        return None
    included = settings.all_addresses or any(inside(packet.address, cidr) for cidr in settings.include_cidrs)
    return settings.outbound_port if included or packet.port in settings.include_outbound_ports else None


def captures_dns(settings: Settings, resolvers: list[str]) -> bool:
    """DNS capture, still on: it needs a resolver to look for, or the will to take all of port 53."""
    return settings.redirect_dns and bool(settings.capture_all_dns or resolvers)


def taken_by_tproxy(settings: Settings, port: int) -> bool:
    """Whether the mangle rules take a connection of the proxy to its own pod that the nat rules spare."""
    if settings.mode != "TPROXY" or "lo" in settings.exclude_interfaces:
        return False
    if settings.all_inbound:
        return port not in settings.exclude_inbound_ports
    return port in settings.include_inbound_ports


def _loops_back(settings: Settings, packet: Packet, spare_dns: bool) -> bool:
    """The proxy calling its own pod: to the inbound port. HBONE, and for the user rule DNS, are spared."""
    spared = (settings.tunnel_port, names.DNS_PORT) if spare_dns else (settings.tunnel_port,)
    return (
        packet.interface == "lo"
        and packet.protocol == "tcp"
        and packet.port not in spared
        and not inside(packet.address, settings.loopback(packet.family))
    )


def _spared_on_loopback(settings: Settings, packet: Packet, dns: bool) -> bool:
    """The application calling itself, unless an included range is loopback."""
    if any(inside(cidr.partition("/")[0], "127.0.0.0/8") or cidr.startswith("::1/") for cidr in settings.include_cidrs):
        return False
    return not dns or (packet.protocol == "tcp" and packet.port != names.DNS_PORT)


def _group_is_captured(settings: Settings, gid: int) -> bool:
    """Groups by name are resolved on the node, so here they count as not captured."""
    if settings.all_groups:
        return all(group.isdigit() and int(group) != gid for group in settings.exclude_groups)
    return str(gid) in settings.include_groups
