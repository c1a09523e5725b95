"""Which family a pod lives in, by the walk of tools/common/config (getLocalIP)."""

import ipaddress
from collections.abc import Iterable


class NoAddress(ValueError):
    """The pod has no address beside loopback and link-local ones, so nothing can be decided."""


def has_ipv6(addresses: Iterable[str], *, dual_stack: bool) -> bool:
    """Whether the v6 rules are wanted, from the pod's addresses in the kernel's order.

    Without dual stack the first address decides; with it, any IPv6 address does.

    >>> has_ipv6(["10.0.0.5", "fd00::5"], dual_stack=False), has_ipv6(["10.0.0.5", "fd00::5"], dual_stack=True)
    (False, True)
    """
    usable = []
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        link_local_multicast = address in ipaddress.ip_network("224.0.0.0/24") or (
            address in ipaddress.ip_network("ff02::/16")
        )
        if not (address.is_loopback or address.is_link_local or link_local_multicast):
            usable.append(address)
    if not usable:
        raise NoAddress("no address beside loopback and link-local ones")
    return any(address.version == 6 for address in (usable if dual_stack else usable[:1]))
