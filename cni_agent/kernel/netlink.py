"""Netlink at the level of bytes: messages, attributes, dumps, and batches that the kernel commits whole or not at all.

Small on purpose: a general library decodes every attribute into an object, which takes several times as long as the
kernel needs to give them (pyroute2: 2 ms to open and ask; here 0.02 ms).
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cni_agent.kernel.failure import KernelRefused

NETLINK_NETFILTER: Final = 12

HEADER: Final = struct.Struct("=IHHII")  # length, kind, flags, sequence, port
ATTRIBUTE: Final = struct.Struct("=HH")  # length, kind
ERROR_KIND: Final = 2
DONE_KIND: Final = 3

REQUEST: Final = 0x1
ACK: Final = 0x4
DUMP: Final = 0x300
DUMP_INTERRUPTED: Final = 0x10
CAPPED: Final = 0x100  # the answer to a failed request repeats only its header
EXTENDED: Final = 0x200  # ... and attributes with the kernel's own words follow
CREATE: Final = 0x400
EXCLUSIVE: Final = 0x200
APPEND: Final = 0x800
NESTED: Final = 0x8000
KIND_MASK: Final = 0x3FFF

SOL_NETLINK: Final = 270
NETLINK_CAP_ACK: Final = 10
NETLINK_EXT_ACK: Final = 11
SO_SNDBUFFORCE: Final = 32
RECEIVE: Final = 65536
DEFAULT_SEND: Final = 100_000  # bytes that fit into a socket's send buffer as it comes
ALONG: Final = 1  # the sequence number of questions sent along with a dump, which has 0
ATTEMPTS: Final = 10  # dumps that other writers may interrupt before we give up


def question(kind: int, payload: bytes) -> bytes:
    """Asks for a single object along with a dump."""
    return message(kind, REQUEST, payload, ALONG)


def pad(length: int) -> int:
    """Rounded up to netlink's alignment."""
    return (length + 3) & ~3


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute; give `kind | NESTED` for one that holds attributes."""
    length = 4 + len(value)
    return ATTRIBUTE.pack(length, kind) + value + bytes(-length & 3)


def text(kind: int, value: str) -> bytes:
    """A string attribute."""
    return attribute(kind, value.encode() + b"\0")


def message(kind: int, flags: int, payload: bytes, sequence: int = 0) -> bytes:
    """One message; the payload is already padded, as attributes are."""
    return HEADER.pack(HEADER.size + len(payload), kind, flags, sequence, 0) + payload


class Span(NamedTuple):
    """An attribute found in a buffer: its kind, where its value is, and where the next attribute starts."""

    kind: int
    start: int
    end: int
    after: int


def attributes(buffer: bytes, start: int, end: int) -> Iterator[Span]:
    """The attributes in a part of a buffer."""
    while start + 4 <= end:
        length, kind = ATTRIBUTE.unpack_from(buffer, start)
        after = start + ((length + 3) & ~3)
        yield Span(kind & KIND_MASK, start + 4, start + length, after)
        start = after


def messages(buffer: bytes) -> Iterator[tuple[int, int, int]]:
    """The messages in a buffer: kind, start and end."""
    start = 0
    while start + HEADER.size <= len(buffer):
        length, kind, _, _, _ = HEADER.unpack_from(buffer, start)
        yield kind, start, start + length
        start += (length + 3) & ~3


class Channel:
    """One netlink socket, already open in the namespace it speaks to."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.send_as_owner: Callable[[bytes], None] | None = None  # where the namespace is not our user namespace's
        opened.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        opened.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)

    def dump(self, kind: int, payload: bytes, along: bytes = b"") -> bytes:
        """All messages that answer a dump request, one behind the other. Taken anew when a writer got in between.

        `along`: questions for single objects, sent along to spare a turn. Their answers come first; none means no.
        """
        request = along + message(kind, REQUEST | DUMP, payload)
        for _ in range(ATTEMPTS):
            self._send(request)
            answer, interrupted = self._collect()
            if not interrupted:
                return answer
        raise KernelRefused("busy", "the rules change faster than they can be read", errno.EBUSY)

    def ask(self, kind: int, payload: bytes) -> bytes:
        """The single message that answers a request."""
        self._send(message(kind, REQUEST, payload))
        answer = self._receive()
        for refusal in _errors(answer):
            raise refused("asking the kernel", refusal)
        return answer

    def tell(self, kind: int, flags: int, payload: bytes) -> int:
        """Sends one request for something to be done; gives the kernel's error number, 0 when it was done."""
        self._send(message(kind, REQUEST | ACK | flags, payload))
        return next((refusal.errno for refusal in _errors(self._receive())), 0)

    def commit(self, batch: bytes, last: int) -> "Refusal | None":
        """Sends a batch whose message number `last` asks for an answer; the first refusal, if any."""
        if len(batch) > DEFAULT_SEND:
            self._make_room(len(batch))
        refusal = self._committed(batch, last, self._send)
        if refusal and refusal.errno == errno.EINVAL and self.send_as_owner:
            return self._committed(batch, last, self.send_as_owner)
        return refusal

    def _committed(self, batch: bytes, last: int, send: Callable[[bytes], None]) -> "Refusal | None":
        """The answers are there when sending returns; only a batch refused whole leaves its last message without."""
        send(batch)
        first: Refusal | None = None
        while True:
            try:
                answer = self.socket.recv(RECEIVE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return first or Refusal(errno.ENOBUFS, last, "the kernel did not answer")
            except OSError as error:
                return first or Refusal(error.errno or errno.EIO, last, "")
            for kind, start, _ in messages(answer):
                refusal = _error(answer, start) if kind == ERROR_KIND else None
                first = first or refusal
                if HEADER.unpack_from(answer, start)[3] == last:
                    return first

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()

    def _make_room(self, size: int) -> None:
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 2 * size)
        except PermissionError:  # in a user namespace of our own: as much as the node allows
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * size)

    def _send(self, request: bytes) -> None:
        try:
            self.socket.send(request)
        except OSError as error:
            raise refused("sending to the kernel", Refusal(error.errno or errno.EIO, 0, "")) from None

    def _receive(self) -> bytes:
        try:
            return self.socket.recv(RECEIVE)
        except OSError as error:
            raise refused("reading from the kernel", Refusal(error.errno or errno.EIO, 0, "")) from None

    def _collect(self) -> tuple[bytes, bool]:
        parts: list[bytes] = []
        interrupted = False
        while True:
            part = self._receive()
            start = 0
            while start < len(part):
                length, kind, flags, sequence, _ = HEADER.unpack_from(part, start)
                if flags & DUMP_INTERRUPTED:
                    interrupted = True
                if kind == ERROR_KIND and sequence == ALONG:
                    part = b""
                elif kind in (DONE_KIND, ERROR_KIND):
                    if refusal := _error(part, start):
                        raise refused("reading from the kernel", refusal)
                    parts.append(part[:start])
                    return b"".join(parts), interrupted
                start += (length + 3) & ~3
            parts.append(part)


class Refusal(NamedTuple):
    """The kernel's no: its error number, the sequence number of the message, and its own words, if it had any."""

    errno: int
    sequence: int
    words: str


def refused(doing: str, refusal: Refusal, reason: str = "", hint: str = "") -> KernelRefused:
    """A refusal as the error that a caller sees; `reason` and `hint` where it is known what the number stands for."""
    reasons = {
        errno.EPERM: "not-permitted",
        errno.EACCES: "not-permitted",
        errno.ENOBUFS: "no-memory",
        errno.ENOMEM: "no-memory",
        errno.EMSGSIZE: "too-large",
        errno.ENODEV: "gone",
        errno.EOPNOTSUPP: "missing-in-kernel",
    }
    reason = reason or reasons.get(refusal.errno, "kernel-refused")
    said = f" ({refusal.words})" if refusal.words else ""
    hints = {
        "not-permitted": "needs CAP_NET_ADMIN over the namespace",
        "missing-in-kernel": "this kernel does not have it",
    }
    hint = hint or hints.get(reason, "")
    sentence = f"{doing}: {os.strerror(refusal.errno)}{said}{hint and '; '}{hint}"
    return KernelRefused(reason, sentence, refusal.errno)


def _errors(answer: bytes) -> Iterator[Refusal]:
    for kind, start, _ in messages(answer):
        if kind == ERROR_KIND and (refusal := _error(answer, start)):
            yield refusal


def _error(buffer: bytes, start: int) -> Refusal | None:
    length, _, flags, sequence, _ = HEADER.unpack_from(buffer, start)
    (number,) = struct.unpack_from("=i", buffer, start + HEADER.size)
    if number == 0:
        return None
    words = ""
    if flags & EXTENDED:
        inside = start + HEADER.size + 4 + (HEADER.size if flags & CAPPED else 0)
        for span in attributes(buffer, inside, start + length):
            if span.kind == 1:
                words = buffer[span.start : span.end].rstrip(b"\0").decode(errors="replace")
    return Refusal(-number, sequence, words)
