"""Reads single values, of flags and annotations alike: ports, CIDRs, interface names, ids, booleans.

Each reader takes text and returns a value, or raises `Refused` with what is allowed. None of them is slower than
linear in its input, and none accepts what iptables-restore or nft would later read differently than the writer meant
(Unicode digits, octal, ranges).
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, TypeVar

WILDCARD: Final = "*"
MAX_LIST: Final = 4096  # elements of one list; far above any real pod, below what makes a kernel batch too long

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_INTERFACE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,14}", re.ASCII)  # pkg/util/net ValidateInterfaceNames; IFNAMSIZ
_GROUP = re.compile(r"[a-z_][a-z0-9_-]{0,31}", re.ASCII)
_PREFIX_LENGTH = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)

PORTS_ALLOWED: Final = "ports 0 to 65535 in plain decimal, separated by commas"
CIDRS_ALLOWED: Final = "CIDRs such as 10.0.0.0/8 or 2001:db8::/32, separated by commas, without spaces"
INTERFACES_ALLOWED: Final = (
    "interface names (a letter, then letters, digits, '_', '.', '-'; at most 15), separated by commas"
)

T = TypeVar("T")


class Refused(ValueError):
    """A value that is not allowed; the message says what is."""


def go_bool(text: str) -> bool | None:
    """Go's strconv.ParseBool, which Istio reads booleans with; None when it would fail.

    >>> go_bool("T"), go_bool("0"), go_bool("yes")
    (True, False, None)
    """
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if text in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    return None


def number(text: str, lowest: int, highest: int) -> int:
    """A plain decimal number: no sign, no leading zero (iptables would read octal), ASCII digits only."""
    if not _DECIMAL.fullmatch(text) or not lowest <= int(text) <= highest:
        raise Refused(f"a number from {lowest} to {highest} in plain decimal")
    return int(text)


def port(text: str) -> int:
    """One of the proxy's own ports."""
    return number(text, 1, 65535)


def ports(text: str, *, strict: bool = True) -> tuple[int, ...]:
    """A list of ports; spaces around each are tolerated. Not strict: empty elements are dropped, as flags do."""
    return _each(text, lambda item: number(item, 0, 65535), PORTS_ALLOWED, strict=strict)


def ports_or_all(text: str, *, strict: bool = True) -> tuple[int, ...] | Literal["*"]:
    """A list of ports, or `*` alone for all of them."""
    if text == WILDCARD:
        return "*"
    try:
        return ports(text, strict=strict)
    except Refused:
        raise Refused(f"'*', or {PORTS_ALLOWED}") from None


def cidr(text: str) -> str:
    """One `address/length` by the rules of Go's netip.ParsePrefix, in its canonical spelling; host bits are kept.

    >>> cidr("2001:DB8:0::/32"), cidr("10.1.2.3/8"), cidr("::ffff:10.0.0.0/104")
    ('2001:db8::/32', '10.1.2.3/8', '::ffff:10.0.0.0/104')
    """
    address, slash, length = text.partition("/")
    try:
        if not slash or len(address) > 45 or not address.isascii() or "%" in address:
            raise ValueError
        parsed = ipaddress.ip_address(address)
    except ValueError:
        raise Refused(CIDRS_ALLOWED) from None
    if not _PREFIX_LENGTH.fullmatch(length) or int(length) > parsed.max_prefixlen:
        raise Refused(CIDRS_ALLOWED)
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        return f"::ffff:{parsed.ipv4_mapped}/{length}"
    return f"{parsed}/{length}"


def cidrs(text: str, *, strict: bool = True) -> tuple[str, ...]:
    """A list of CIDRs. Spaces are refused: the peer refuses them too."""
    return _each(text, cidr, CIDRS_ALLOWED, strict=strict, trim=False)


def cidrs_or_all(text: str, *, strict: bool = True) -> tuple[str, ...] | Literal["*"]:
    """A list of CIDRs, or `*` alone for every address."""
    if text == WILDCARD:
        return "*"
    try:
        return cidrs(text, strict=strict)
    except Refused:
        raise Refused(f"'*', or {CIDRS_ALLOWED}") from None


def family(address_or_cidr: str) -> Literal[4, 6]:
    """4 or 6; a v4-mapped v6 prefix is v6, as for the kernel's ip6tables."""
    return 6 if ":" in address_or_cidr else 4


def is_loopback(prefix: str) -> bool:
    """Whether the address part of a CIDR is loopback: 127/8, also in v4-mapped form as Go's netip has it, or ::1."""
    address = ipaddress.ip_address(prefix.partition("/")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def loopback_cidr(text: str) -> str:
    """HostIPv4LoopbackCidr (tools/common/config/validation.go): an IPv4 loopback address with a mask of 8 to 32."""
    allowed = "an IPv4 loopback CIDR such as 127.0.0.1/32, with a mask of 8 to 32"
    try:
        value = cidr(text)
    except Refused:
        raise Refused(allowed) from None
    if family(value) == 6 or not is_loopback(value) or int(value.partition("/")[2]) < 8:
        raise Refused(allowed)
    return value


def interfaces(text: str, *, strict: bool = True) -> tuple[str, ...]:
    """A list of interface names; spaces around each are tolerated."""

    def interface(item: str) -> str:
        if not _INTERFACE.fullmatch(item):
            raise Refused(INTERFACES_ALLOWED)
        return item

    return _each(text, interface, INTERFACES_ALLOWED, strict=strict)


def ids(text: str, *, strict: bool = False) -> tuple[int, ...]:
    """A list of numeric user or group ids."""
    allowed = "user or group ids 0 to 4294967294 in plain decimal, separated by commas"
    return _each(text, lambda item: number(item, 0, 2**32 - 2), allowed, strict=strict)


def groups(text: str) -> tuple[str, ...]:
    """A list of groups, by id or by name."""
    allowed = "group ids or names, separated by commas"

    def group(item: str) -> str:
        if _GROUP.fullmatch(item):
            return item
        return str(number(item, 0, 2**32 - 2))

    return _each(text, group, allowed, strict=False, trim=False)


def choice(text: str, allowed: Sequence[str]) -> str:
    """One of a few words, exactly."""
    if text not in allowed:
        raise Refused(" or ".join(allowed))
    return text


def unique(items: Iterable[T]) -> tuple[T, ...]:
    """Without repetition, first occurrence kept.

    >>> unique([80, 15020, 80])
    (80, 15020)
    """
    return tuple(dict.fromkeys(items))


def _each(text: str, read: Callable[[str], T], allowed: str, *, strict: bool, trim: bool = True) -> tuple[T, ...]:
    """Reads a comma-separated list. Strict (annotations): an empty element is refused unless the whole is empty."""
    if text == "":
        return ()
    elements = text.split(",", MAX_LIST)
    if len(elements) > MAX_LIST:
        raise Refused(f"at most {MAX_LIST} elements: {allowed}")
    values = []
    for element in elements:
        item = element.strip(" \t") if trim else element
        if item == "" and not strict:
            continue
        try:
            values.append(read(item))
        except Refused:
            raise Refused(allowed) from None
    return tuple(values)
