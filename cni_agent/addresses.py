"""Which family a pod lives in, by the walk of tools/common/config (getLocalIP)."""

import functools
import ipaddress
from collections.abc import Iterable

_BYTES = frozenset(map(str, range(256)))
_ASIDE = ("127.", "169.254.", "224.0.0.")  # loopback, link-local, and multicast on the link
_LINK_LOCAL_MULTICAST = ipaddress.IPv6Network("ff02::/16")


class NoAddress(ValueError):
    """The pod has no address beside loopback and link-local ones, so nothing can be decided."""


def has_ipv6(addresses: Iterable[str], *, dual_stack: bool) -> bool:
    """Whether the v6 rules are wanted, from the pod's addresses in the kernel's order.

    Without dual stack the first address decides; with it, any IPv6 address does.

    >>> has_ipv6(["10.0.0.5", "fd00::5"], dual_stack=False), has_ipv6(["10.0.0.5", "fd00::5"], dual_stack=True)
    (False, True)
    """
    usable = [version for version in map(_version, addresses) if version]
    if not usable:
        raise NoAddress("no address beside loopback and link-local ones")
    return 6 in (usable if dual_stack else usable[:1])


@functools.lru_cache(256)  # every pod has the same loopback addresses
def _version(text: str) -> int | None:
    """4 or 6 for an address that others can reach, None for any other."""
    if ":" not in text:  # every pod that starts waits for this, and its address is new: ipaddress takes its time
        if len(parts := text.split(".")) != 4 or not all(part in _BYTES for part in parts):
            raise ValueError(f"not an IP address: {text}")
        return None if text.startswith(_ASIDE) else 4
    address = ipaddress.IPv6Address(text.partition("%")[0])
    if address.ipv4_mapped:
        return _version(str(address.ipv4_mapped))
    return None if address.is_loopback or address.is_link_local or address in _LINK_LOCAL_MULTICAST else 6
