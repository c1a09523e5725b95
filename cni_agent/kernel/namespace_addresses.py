"""The addresses that a network namespace has, in the order in which the kernel gives them."""

import socket
import struct
from typing import Final

from cni_agent.kernel.inside import Inside, entered
from cni_agent.kernel.netlink import HEADER, attributes, messages
from cni_agent.kernel.netns import Netns

RTM_GETADDR: Final = 22
RTM_NEWADDR: Final = 20
IFA_ADDRESS: Final = 1
IFA_LOCAL: Final = 2
_IFADDRMSG: Final = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, index
_EVERY: Final = _IFADDRMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)


def addresses(where: Netns | Inside) -> list[str]:
    """All of them, loopback included. Raises `KernelRefused`."""
    with entered(where) as inside:
        return parse(inside.routes.dump(RTM_GETADDR, _EVERY))


def parse(dump: bytes) -> list[str]:
    """The addresses in an answer. On a point-to-point link IFA_LOCAL is ours and IFA_ADDRESS the other end's."""
    found = []
    for kind, start, end in messages(dump):
        if kind != RTM_NEWADDR:
            continue
        family = _IFADDRMSG.unpack_from(dump, start + HEADER.size)[0]
        packed = b""
        for span in attributes(dump, start + HEADER.size + _IFADDRMSG.size, end):
            if span.kind == IFA_LOCAL or (span.kind == IFA_ADDRESS and not packed):
                packed = dump[span.start : span.end]
            if span.kind == IFA_LOCAL:
                break
        if packed:
            found.append(socket.inet_ntop(family, packed))
    return found
