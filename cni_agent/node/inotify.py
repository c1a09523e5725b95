"""inotify, as much of it as following directories needs. Its descriptor never blocks: an event loop waits on it."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

# linux/inotify.h
MODIFY: Final = 0x2
CLOSE_WRITE: Final = 0x8
MOVED_FROM: Final = 0x40
MOVED_TO: Final = 0x80
CREATE: Final = 0x100
DELETE: Final = 0x200
DELETE_SELF: Final = 0x400
Q_OVERFLOW: Final = 0x4000
IGNORED: Final = 0x8000
ONLYDIR: Final = 0x1000000
ISDIR: Final = 0x40000000

_HEADER: Final = struct.Struct("iIII")
_BUFFER: Final = 16 * 1024  # a hundred events or more; what is larger is mapped and unmapped for each read
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class LimitReached(OSError):
    """The user has no watches or instances left; the message names the setting to raise."""


class Event(NamedTuple):
    """`name` is the entry below the watched directory, or empty for the directory itself."""

    watch: int
    mask: int
    name: str

    @property
    def overflow(self) -> bool:
        """The kernel dropped events: everything watched must be looked at again."""
        return bool(self.mask & Q_OVERFLOW)


class Inotify:
    """One inotify instance."""

    def __init__(self) -> None:
        self._fd = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error("inotify_init1", limit="fs.inotify.max_user_instances", limits=(errno.EMFILE,))

    def fileno(self) -> int:
        return int(self._fd)

    def add(self, path: str, mask: int) -> int:
        """Watches a path; the number returned marks its events. Watching it again replaces the mask."""
        watch = _LIBC.inotify_add_watch(self._fd, os.fsencode(path), mask)
        if watch < 0:
            raise _error(path, limit="fs.inotify.max_user_watches", limits=(errno.ENOSPC, errno.ENOMEM))
        return int(watch)

    def remove(self, watch: int) -> None:
        """Stops watching. A watch that the kernel has dropped already, with its directory, is no error."""
        _LIBC.inotify_rm_watch(self._fd, watch)

    def read(self) -> Iterator[Event]:
        """Everything that happened since the last call."""
        while True:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                return
            yield from parse(data)
            if len(data) < _BUFFER // 2:
                return

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def parse(data: bytes) -> Iterator[Event]:
    """The events in what the kernel wrote; names are padded with zeros."""
    offset = 0
    while offset < len(data):
        watch, mask, _, length = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        name = data[offset : offset + length].partition(b"\0")[0]
        offset += length
        yield Event(watch, mask, os.fsdecode(name))


def _error(what: str, *, limit: str, limits: tuple[int, ...]) -> OSError:
    number = ctypes.get_errno()
    if number in limits:
        return LimitReached(number, f"{os.strerror(number)}; raise the sysctl {limit}", what)
    return OSError(number, os.strerror(number), what)
