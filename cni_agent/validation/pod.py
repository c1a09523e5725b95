"""What this process can learn without any right: the pod's addresses, routes, resolvers, and whom it may act as."""

import os
import socket
import struct

from cni_agent import names
from cni_agent.validation.landing import family, inside
from cni_agent.validation.settings import Settings

_RTM_GETADDR = 22
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NOT_THE_PODS = ("127.0.0.0/8", "::1/128", "169.254.0.0/16", "fe80::/10", names.PASSTHROUGH[6])


_NOBODY = 65534


def owners(settings: Settings) -> list[tuple[int, int]]:
    """The users that sockets may be created as: this one, or, with root's rights, the proxy and somebody else."""
    own = (os.geteuid(), os.getegid())
    if own[0] != 0:
        return [own]
    try:
        os.setegid(_NOBODY)
        os.seteuid(_NOBODY)
    except PermissionError:  # a container's root without capabilities
        return [own]
    finally:
        os.seteuid(own[0])
        os.setegid(own[1])
    taken = {*settings.uids, *settings.gids}
    nobody = next(number for number in range(_NOBODY, 0, -1) if number not in taken)
    return [(settings.uids[0], settings.gids[0]), (nobody, nobody)]


def addresses() -> dict[str, str]:
    """The pod's addresses with their interfaces, in the kernel's order; loopback and link-local ones are left out."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        # nlmsghdr and ifaddrmsg: all families
        netlink.send(struct.pack("=IHHIIBBBBI", 24, _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0, 0, 0, 0, 0, 0))
        while True:
            reply = memoryview(netlink.recv(65536))
            while len(reply) >= 16:
                length, kind = struct.unpack_from("=IH", reply)
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    return found
                address, index = _address(reply[16:length])
                if address and not any(inside(address, cidr) for cidr in _NOT_THE_PODS):
                    found[address] = socket.if_indextoname(index)
                reply = reply[(length + 3) & ~3 :]


def _address(message: memoryview) -> tuple[str, int]:
    """The address of one ifaddrmsg. IFA_LOCAL is the own end of a point-to-point link; IPv6 has only IFA_ADDRESS."""
    kind, index = message[0], struct.unpack_from("=I", message, 4)[0]
    attributes: dict[int, bytes] = {}
    message = message[8:]
    while len(message) >= 4:
        length, attribute = struct.unpack_from("=HH", message)
        attributes[attribute] = bytes(message[4:length])
        message = message[(length + 3) & ~3 :]
    packed = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    return (socket.inet_ntop(kind, packed), index) if packed else ("", index)


def interface_towards(address: str, own: dict[str, str]) -> str:
    """The interface by which packets to the address leave, or "" when there is no route. Sends nothing."""
    if address in own:
        return "lo"
    kind = socket.AF_INET6 if family(address) == 6 else socket.AF_INET
    with socket.socket(kind, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect((address, names.DNS_PORT))
        except OSError:
            return ""
        source: str = unsent.getsockname()[0]
    return own.get(source, "lo")


def resolvers(path: str = "/etc/resolv.conf") -> list[str]:
    """The nameservers that are addresses; none when the file cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file]
    except OSError:
        return []
    return [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver" and _is_address(words[1])]


def _is_address(text: str) -> bool:
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except OSError:
        return False
    return True
