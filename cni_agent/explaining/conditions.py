"""Whether a packet meets a condition of a rule, as the kernel judges it."""

import ipaddress
from typing import Final

from cni_agent.explaining.packet import Hook, Packet
from cni_agent.rules import Dialect, Match

NEW: Final = "NEW"  # what conntrack calls the first packet of a connection


def meets(match: Match, packet: Packet, hook: Hook, connection_mark: int, dialect: Dialect) -> bool:
    """Judges the first packet of a connection, at a hook."""
    match match.kind:
        case "uid" | "gid":
            return _meets_owner(match, packet, dialect)
        case "source":
            met = _within(packet.source, match)
        case "destination":
            met = _within(packet.destination, match)
        case "in-interface":
            met = hook == "PREROUTING" and packet.interface == match.value
        case "out-interface":
            met = hook == "OUTPUT" and packet.interface == match.value
        case "protocol":
            met = packet.protocol == match.value
        case "destination-port":
            met = _one_of(packet.port, match)
        case "source-port":
            met = False  # who connects does so from some free port, and rules name only ports of servers
        case "state":
            met = _one_of(NEW, match)
        case "mark":
            met = packet.mark == match.value
        case "connection-mark":
            met = connection_mark == match.value
    return met != match.inverted


def _meets_owner(match: Match, packet: Packet, dialect: Dialect) -> bool:
    """Without a socket xt_owner meets what is inverted, and nft's skuid and skgid meet nothing at all."""
    owner = packet.uid if match.kind == "uid" else packet.gid
    if owner is None:
        return match.inverted and dialect == "iptables"
    return (str(owner) == str(match.value)) != match.inverted


def _one_of(value: int | str, match: Match) -> bool:
    return value in match.value if isinstance(match.value, tuple) else value == match.value


def _within(address: str | None, match: Match) -> bool:
    network = ipaddress.ip_network(str(match.value), strict=False)  # the kernel masks host bits away
    return address is not None and ipaddress.ip_address(address) in network
