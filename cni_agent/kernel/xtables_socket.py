"""Exchanges the tables of legacy iptables with the kernel, through a raw socket that is open in the namespace."""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

from cni_agent.capture import Family
from cni_agent.kernel import as_owner
from cni_agent.kernel.failure import KernelRefused
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.xtables import LAYOUTS, Block

_GET_INFO = _SET_REPLACE = 64
_GET_ENTRIES = _ADD_COUNTERS = 65
_INFO: Final = struct.Struct("=32sI5I5III")
_REPLACE: Final = struct.Struct("=32sIII5I5IIQ")
_ENTRIES_HEADER: Final = 40
_libc = ctypes.CDLL(None, use_errno=True)


def read(opened: socket.socket, family: Family, table: str) -> Block:
    """Reads a table. If the namespace does not have it yet, the kernel creates it."""
    level = LAYOUTS[family].level
    info = ctypes.create_string_buffer(_INFO.pack(table.encode(), *[0] * 13), _INFO.size)
    _get(opened, level, _GET_INFO, info, table)
    _, hooks, *rest = _INFO.unpack(info.raw)
    size = rest[11]
    wanted = struct.pack("=32sI", table.encode(), size).ljust(_ENTRIES_HEADER + size, b"\0")
    entries = ctypes.create_string_buffer(wanted, len(wanted))
    _get(opened, level, _GET_ENTRIES, entries, table)
    return Block(hooks, tuple(rest[:5]), tuple(rest[5:10]), rest[10], entries.raw[_ENTRIES_HEADER:])


def replace(
    opened: socket.socket, family: Family, table: str, block: Block, old_number: int, owned: Netns | None = None
) -> None:
    """Swaps a table for another. Refused with EAGAIN if it no longer has `old_number` entries.

    `owned`: the namespace, if another user namespace owns it.
    """
    counters = ctypes.create_string_buffer(16 * old_number)  # the kernel gives the old ones back and insists on it
    request = _REPLACE.pack(
        table.encode(), block.hooks, block.number, len(block.entries), *block.starts, *block.ends, old_number,
        ctypes.addressof(counters),
    ) + block.entries  # fmt: skip
    level = LAYOUTS[family].level
    number = 0
    try:
        opened.setsockopt(level, _SET_REPLACE, request)
    except OSError as error:
        number = error.errno or errno.EIO
    if number == errno.EINVAL and owned:
        number = as_owner.set_option(owned, opened, level, _SET_REPLACE, request, old_number)
    if number:
        raise _refused(f"replacing the legacy table {table}", number)


def add_counters(opened: socket.socket, family: Family, table: str, counters: Sequence[bytes]) -> None:
    """Gives the entries of a new table the counts that they had; all entries, in order."""
    request = struct.pack("=32sII", table.encode(), len(counters), 0) + b"".join(counters)
    try:
        opened.setsockopt(LAYOUTS[family].level, _ADD_COUNTERS, request)
    except OSError as error:
        raise _refused(f"keeping the counters of the legacy table {table}", error.errno or errno.EIO) from None


def _get(opened: socket.socket, level: int, option: int, buffer: "ctypes.Array[ctypes.c_char]", table: str) -> None:
    """`getsockopt` with something in the buffer on the way in, which Python's cannot do."""
    length = ctypes.c_uint32(len(buffer))
    if _libc.getsockopt(opened.fileno(), level, option, buffer, ctypes.byref(length)) != 0:
        raise _refused(f"reading the legacy table {table}", ctypes.get_errno())


def _refused(doing: str, number: int) -> KernelRefused:
    if number in (errno.ENOPROTOOPT, errno.ENOENT):
        table = doing.rpartition(" ")[2]
        mends = f"the kernel lacks it or an extension; run: modprobe -a iptable_{table} ip6table_{table} xt_owner"
        return KernelRefused("no-legacy", f"{doing}: {os.strerror(number)}; {mends}", number)
    reasons = {errno.EPERM: "not-permitted", errno.ENOMEM: "no-memory", errno.EAGAIN: "busy"}
    return KernelRefused(reasons.get(number, "kernel-refused"), f"{doing}: {os.strerror(number)}", number)
