"""Hands bytes to the kernel from within the user namespace that owns a pod's network namespace (`hostUsers: false`).

xt_owner refuses a rule with EINVAL unless its writer lives in the very user namespace that owns the network namespace,
whatever rights he has. A process with threads cannot enter one, so this is the single case in which one is started for
a pod: this file, run by its path and with the standard library only. It inherits a socket that is already open in the
pod; the answers are read by who asked.
"""

import ctypes
import errno
import os
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cni_agent.kernel.failure import Failure
    from cni_agent.kernel.netns import Netns

CLONE_NEWUSER: Final = 0x10000000
COUNTERS_AT: Final = 88  # in struct ipt_replace: the address that old counters are copied to


def send(netns: "Netns", opened: socket.socket, data: bytes) -> int:
    """Sends over a netlink socket. The error number, 0 when sent."""
    return _start(netns, opened, data, ["send"])


def set_option(netns: "Netns", opened: socket.socket, level: int, option: int, data: bytes, counters: int) -> int:
    """Replaces a legacy table with room for so many old counters. The error number, 0 when done."""
    return _start(netns, opened, data, [str(level), str(option), str(counters)])


def explained(error: "Failure", netns: "Netns") -> "Failure":
    """The failure of a write, with the reason where it is that the pod's user namespace lacks the proxy's ids."""
    from cni_agent.kernel.failure import KernelRefused, NetnsRefused

    if netns.foreign_owner and isinstance(error, KernelRefused) and error.errno == errno.EINVAL:
        message = f"{netns.name} belongs to a user namespace in which an id of the rules is not mapped: {error}"
        return NetnsRefused("user-namespace", message)
    return error


def _start(netns: "Netns", opened: socket.socket, data: bytes, arguments: list[str]) -> int:
    from cni_agent.kernel.runner import run

    owner = netns.owner()
    try:
        command = [sys.executable, "-I", str(Path(__file__).resolve()), str(owner), str(opened.fileno()), *arguments]
        return int(run(command, netns=netns, text=data, descriptors=(owner, opened.fileno())))
    finally:
        os.close(owner)


def main(arguments: list[str]) -> int:
    """Runs in the started process; prints the error number."""
    owner, descriptor = int(arguments[0]), int(arguments[1])
    if ctypes.CDLL(None, use_errno=True).setns(owner, CLONE_NEWUSER) != 0:
        return ctypes.get_errno()
    data = sys.stdin.buffer.read()
    with socket.socket(fileno=descriptor) as opened:
        try:
            if arguments[2] == "send":
                opened.send(data)
            else:
                level, option, counters = map(int, arguments[2:])
                room = ctypes.create_string_buffer(16 * counters)
                address = struct.pack("=Q", ctypes.addressof(room))
                opened.setsockopt(level, option, data[:COUNTERS_AT] + address + data[COUNTERS_AT + 8 :])
        except OSError as error:
            return error.errno or errno.EIO
    return 0


if __name__ == "__main__":
    print(main(sys.argv[1:]))
