"""Sends packets of any kind in a lab, and sees who receives each: a batch at a time, in one process.

A socket belongs to the namespace and to the effective ids of the thread that opened it, for as long as it lives; so all
clients and servers of all places can live here, in one loop.
"""

import errno
import os
import selectors
import socket
import struct
import time
from contextlib import ExitStack
from typing import NamedTuple

from cni_agent.capture import Family
from cni_agent.explaining.packet import Packet, Protocol
from tests.kernel.lab import Lab, Place

SO_ORIGINAL_DST = 80
SO_MARK = 36
TRANSPARENT = {4: (socket.IPPROTO_IP, 19), 6: (socket.IPPROTO_IPV6, 75)}
BATCH_SECONDS = 3.0  # how long the last packet of a batch is waited for; all but lost ones take milliseconds
SOURCE_PORTS = range(20_000, 60_000)
KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
DOMAINS = {4: socket.AF_INET, 6: socket.AF_INET6}
ANYWHERE = {4: "0.0.0.0", 6: "::"}
TOKEN = struct.Struct("!I")


class Landing(NamedTuple):
    """Who received a packet, and, for TCP, where it had been sent to as the kernel remembers it."""

    place: Place
    port: int
    original: tuple[str, int] | None = None


class Shot(NamedTuple):
    """A packet to send from a place. `bound`: whether to its source, or to none so that the kernel must choose it."""

    place: Place
    packet: Packet
    bound: bool = False


class Listener(NamedTuple):
    place: Place
    port: int
    protocol: Protocol


class Accepted(NamedTuple):
    landing: Landing


class Calling(NamedTuple):
    number: int


class Wire:
    """Servers in some places of a lab, and clients made on demand. A context manager."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._stack = ExitStack()
        self._selector = selectors.DefaultSelector()
        self._stack.callback(self._selector.close)
        self._source_ports = iter(SOURCE_PORTS)  # none twice: conntrack remembers what it has translated

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def listen(self, place: Place, ports: tuple[int, ...], *, transparent: tuple[int, ...] = ()) -> None:
        """Opens TCP and UDP servers on all addresses of a place; `transparent`: those that TPROXY may find."""
        for port in ports:
            for family in DOMAINS:
                for protocol in KINDS:
                    server = self._opened(place, family, protocol)
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if port in transparent:
                        server.setsockopt(*TRANSPARENT[family], 1)
                    server.bind((ANYWHERE[family], port))
                    if protocol == "tcp":
                        server.listen(64)
                    self._selector.register(server, selectors.EVENT_READ, Listener(place, port, protocol))
                    self._stack.enter_context(server)

    def settle(self, shots: list[Shot]) -> None:
        """Sends until all arrive: a link that has just come up loses what it cannot resolve yet."""
        for _ in range(20):
            if all(self.send(shots, seconds=0.5)):
                return
        raise TimeoutError(f"not all of these ever arrive: {shots}")

    def send(self, shots: list[Shot], *, seconds: float = BATCH_SECONDS) -> list[Landing | None]:
        """Sends all of them at once from their places; the landing of each, None where it landed nowhere."""
        landings: dict[int, Landing] = {}
        with ExitStack() as batch:
            for number, shot in enumerate(shots):
                self._call(batch, shot, number)
            deadline = time.monotonic() + seconds
            while len(landings) < len(shots) and time.monotonic() < deadline:
                for key, _ in self._selector.select(0.1):
                    assert isinstance(key.fileobj, socket.socket)
                    self._progress(batch, key.fileobj, key.data, landings)
        return [landings.get(number) for number in range(len(shots))]

    def provoke(self, shot: Shot) -> Landing:
        """Sends a packet that makes the kernel send others; where the first of these, a datagram, lands."""
        with ExitStack() as batch:
            self._call(batch, shot, 0)
            for key, _ in self._selector.select(BATCH_SECONDS):
                assert isinstance(key.data, Listener), key.data
                return Landing(key.data.place, key.data.port)
        raise TimeoutError("nothing arrived")

    def _call(self, batch: ExitStack, shot: Shot, number: int) -> None:
        place, packet, bound = shot
        client = batch.enter_context(self._opened(place, packet.family, packet.protocol, packet.uid, packet.gid))
        if packet.mark:
            client.setsockopt(socket.SOL_SOCKET, SO_MARK, packet.mark)
        assert packet.source is not None and packet.destination is not None
        client.bind((packet.source if bound else ANYWHERE[packet.family], next(self._source_ports)))
        if packet.protocol == "udp":
            client.sendto(TOKEN.pack(number), (packet.destination, packet.port))
            return
        result = client.connect_ex((packet.destination, packet.port))
        assert result in (0, errno.EINPROGRESS), f"{os.strerror(result)}: {packet}"
        self._watch(batch, client, selectors.EVENT_WRITE, Calling(number))

    def _progress(self, batch: ExitStack, one: socket.socket, data: object, landings: dict[int, Landing]) -> None:
        match data:
            case Listener(place, port, "tcp"):
                connection, _ = one.accept()
                connection.setblocking(False)
                batch.enter_context(connection)
                landing = Landing(place, port, original_destination(connection))
                self._watch(batch, connection, selectors.EVENT_READ, Accepted(landing))
            case Listener(place, port, "udp"):
                landings[TOKEN.unpack(one.recv(TOKEN.size))[0]] = Landing(place, port)
            case Accepted(landing):
                self._selector.unregister(one)
                received = one.recv(TOKEN.size)
                if received:
                    landings[TOKEN.unpack(received)[0]] = landing
            case Calling(number):
                self._selector.unregister(one)
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    one.send(TOKEN.pack(number))

    def _watch(self, batch: ExitStack, one: socket.socket, event: int, data: object) -> None:
        self._selector.register(one, event, data)
        batch.callback(lambda: one in self._selector.get_map() and self._selector.unregister(one))

    def _opened(
        self, place: Place, family: Family, protocol: Protocol, uid: int | None = None, gid: str | None = None
    ) -> socket.socket:
        def open_as_owner() -> socket.socket:
            os.setegid(int(gid or 0))
            os.seteuid(uid or 0)
            try:
                return socket.socket(DOMAINS[family], KINDS[protocol])
            finally:
                os.seteuid(0)
                os.setegid(0)

        opened = self.lab.netns[place].open_inside(open_as_owner)
        opened.setblocking(False)
        if family == 6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        return opened


def original_destination(connection: socket.socket) -> tuple[str, int] | None:
    """The destination before any translation, as proxies ask for it; None for what is not tracked."""
    level, length, start = (
        (socket.IPPROTO_IP, 16, 4) if connection.family == socket.AF_INET else (socket.IPPROTO_IPV6, 28, 8)
    )
    try:
        raw = connection.getsockopt(level, SO_ORIGINAL_DST, length)
    except FileNotFoundError:
        return None
    address = raw[start : start + (4 if connection.family == socket.AF_INET else 16)]
    return socket.inet_ntop(connection.family, address), struct.unpack_from("!H", raw, 2)[0]
