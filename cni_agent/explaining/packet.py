"""A connection as a person describes it: its first packet, before any rule has seen it."""

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from cni_agent.capture import Family
from cni_agent.values import Refused

Protocol = Literal["tcp", "udp"]
Hook = Literal["OUTPUT", "PREROUTING"]

LOOPBACK: Final = "lo"
PRIMARY: Final = "eth0"  # what container runtimes call the pod's interface
HOME: Final[dict[Family, str]] = {4: "127.0.0.1", 6: "::1"}
ADDRESS_ALLOWED: Final = "an IPv4 or IPv6 address such as 10.0.0.7 or 2001:db8::7"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """What rules can look at. An address is None where it is not known: then it lies in no range that a rule names.

    `hook`: where the packet meets the rules first. `interface`: by which it leaves (OUTPUT) or came (PREROUTING).
    `uid`, `gid`: of the process whose socket sends it; None when no socket does, as for what the kernel itself sends.
    """

    hook: Hook
    family: Family
    protocol: Protocol
    source: str | None = None
    destination: str | None = None
    port: int
    interface: str
    uid: int | None = None
    gid: str | None = None  # text: rules may name groups
    mark: int = 0


def outbound(
    destination: str,
    port: int,
    protocol: Protocol,
    *,
    local: Collection[str] = (),
    source: str | None = None,
    interface: str = PRIMARY,
    uid: int | None = None,
    gid: str | None = None,
    mark: int = 0,
) -> Packet:
    """What a process of the pod sends. `local`: the pod's addresses, loopback apart; to these it goes over lo."""
    family = family_of(destination)
    own = [one for one in local if family_of(one) == family]
    loops = is_home(destination) or destination in own
    return Packet(
        hook="OUTPUT",
        family=family,
        protocol=protocol,
        source=source or _chosen_source(destination, family, own),
        destination=destination,
        port=port,
        interface=LOOPBACK if loops else interface,
        uid=uid,
        gid=gid,
        mark=mark,
    )


def inbound(
    source: str | None,
    port: int,
    protocol: Protocol,
    *,
    local: Collection[str] = (),
    destination: str | None = None,
    interface: str = PRIMARY,
    mark: int = 0,
) -> Packet:
    """What arrives from outside: for the pod, or for `destination` when a virtual machine of the pod sends it.

    One of the two addresses must be known.
    """
    known = source or destination
    assert known is not None
    family = family_of(known)
    own = next((one for one in local if family_of(one) == family), None)
    return Packet(
        hook="PREROUTING",
        family=family,
        protocol=protocol,
        source=source,
        destination=destination or own,
        port=port,
        interface=interface,
        mark=mark,
    )


def read_address(text: str) -> str:
    """One address in its canonical spelling; a v4-mapped one is the IPv4 that is sent. Raises `Refused`.

    >>> read_address("::FFFF:10.0.0.7"), read_address("2001:DB8:0::7")
    ('10.0.0.7', '2001:db8::7')
    """
    try:
        if len(text) > 45 or not text.isascii() or "%" in text:
            raise ValueError
        address = ipaddress.ip_address(text)
    except ValueError:
        raise Refused(ADDRESS_ALLOWED) from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if address.is_unspecified or address.is_multicast:
        raise Refused(f"{ADDRESS_ALLOWED}, of one host")
    return str(address)


def family_of(address: str) -> Family:
    """4 or 6, of an address in canonical spelling."""
    return 6 if ":" in address else 4


def is_home(address: str) -> bool:
    """Whether every host delivers it to itself: 127/8 and ::1."""
    return ipaddress.ip_address(address).is_loopback


def _chosen_source(destination: str, family: Family, own: Collection[str]) -> str | None:
    """The source that the kernel picks for a socket that was not bound to one."""
    if is_home(destination):
        return HOME[family]
    if destination in own:
        return destination
    return next(iter(own), None)
