"""Sends probes and watches where they land, until each has landed where the rules should bring it."""

import errno
import os
import select
import socket
import struct
import time

from cni_agent.validation.landing import Packet
from cni_agent.validation.plan import DNS_UDP, NOBODYS, Probe

POLL = 0.05  # seconds between tries; a proof costs a few packets on loopback
_SO_ORIGINAL_DST = 80  # linux/netfilter_ipv4.h, and IP6T_SO_ORIGINAL_DST
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}
_QUERY = (  # a harmless question, should it reach a real resolver: A initless.invalid
    b"\x1e\x55\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x08initless\x07invalid\x00\x00\x01\x00\x01"
)


class Prover:
    """Listens where the proxy will, and sends each probe anew every 50 ms until it has landed.

    `unproven` maps each probe that has not landed to what last became of it.
    """

    def __init__(self, probes: list[Probe]) -> None:
        self.unproven: dict[Probe, str] = dict.fromkeys(probes, "not tried")
        self._listeners: dict[int, socket.socket] = {}
        self._places: set[tuple[str, tuple[str, int]]] = set()  # where they listen
        self._held: dict[Probe, socket.socket] = {}  # ports of probes that the running proxy will answer
        self._attempts: dict[Probe, socket.socket] = {}  # of this round, as are the next two
        self._clients: dict[tuple[str, int], Probe] = {}
        self._failed: dict[Probe, str] = {}
        self._poll = select.poll()

    def __enter__(self) -> "Prover":
        return self

    def __exit__(self, *_: object) -> None:
        for held in (*self._listeners.values(), *self._held.values(), *self._attempts.values()):
            held.close()

    def run(self, seconds: float) -> bool:
        """Tries until all is proven or the time is over; the last try, like the others, has its full time."""
        deadline = time.monotonic() + seconds
        while True:
            self._try_all()
            self._wait(time.monotonic() + POLL)
            self._settle()
            if not self.unproven or time.monotonic() >= deadline:
                return not self.unproven

    def _listen(self, probe: Probe) -> None:
        """Where the probe must land, or, if it must vanish, where it would be seen not to.

        Without SO_REUSEPORT: should the proxy be running already (kubelet may run init containers again), joining its
        ports would take its traffic. Then an answer to the probe is the proof, while holding the port that it is sent
        to shows that nobody but the proxy gave it.
        """
        packet = probe.packet
        here = probe.target if probe.lands is None else (_LOOPBACK[packet.family], probe.lands)
        if (packet.protocol, here) in self._places:
            return
        listener = _socket(packet.family, packet.protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(here)
            if packet.protocol == "tcp":
                listener.listen()
        except OSError as error:
            listener.close()
            if probe not in self._held and not self._hold(probe):
                self._failed[probe] = f"cannot listen on {here[0]} port {here[1]}: {error.strerror}"
        else:
            self._places.add((packet.protocol, here))
            self._listeners[listener.fileno()] = listener
            self._poll.register(listener, select.POLLIN)

    def _hold(self, probe: Probe) -> bool:
        """Whether nobody but the proxy can answer the probe: its address is nobody's, or its port is now ours."""
        if probe.packet.protocol != "tcp" or probe.lands is None:
            return False
        held = _socket(probe.packet.family, "tcp")
        try:
            if probe.packet.address not in NOBODYS[probe.packet.family]:
                held.bind(probe.target)
        except OSError:
            held.close()
            return False
        self._held[probe] = held
        return True

    def _try_all(self) -> None:
        for probe in self.unproven:
            self._listen(probe)
            client = self._attempts[probe] = _owned_socket(probe)
            try:
                if probe.source:
                    client.bind((probe.source, 0))
                result = client.connect_ex(probe.target)
                if result not in (0, errno.EINPROGRESS):
                    raise OSError(result, os.strerror(result))
                if probe.path == DNS_UDP:
                    client.send(_QUERY)
                self._clients[client.getsockname()[:2]] = probe
            except OSError as error:
                self._failed[probe] = error.strerror or str(error)

    def _wait(self, until: float) -> None:
        """Takes what arrives. Ends early when all has; a probe that must vanish needs the whole time to do so."""
        while self.unproven and (left := until - time.monotonic()) > 0:
            for descriptor, _ in self._poll.poll(left * 1000):
                try:
                    self._take(self._listeners[descriptor])
                except (BlockingIOError, ConnectionAbortedError):  # gone before it was taken
                    continue

    def _take(self, listener: socket.socket) -> None:
        if listener.type == socket.SOCK_DGRAM:
            data, peer = listener.recvfrom(512)
            probe = self._clients.get(peer[:2])
            if probe in self.unproven and data == _QUERY:
                del self.unproven[probe]
            return
        connection, peer = listener.accept()
        with connection:
            probe = self._clients.get(peer[:2])
            landed, sent_to = listener.getsockname()[:2], _original_destination(connection)
        if probe not in self.unproven:
            return
        if landed[1] == probe.lands and sent_to == probe.target:
            del self.unproven[probe]
        else:
            self._failed[probe] = f"arrived at {landed[0]} port {landed[1]}"

    def _settle(self) -> None:
        """Ends the round: what did not arrive was refused, was lost, was answered by the proxy, or has vanished."""
        for probe in list(self.unproven):
            client = self._attempts[probe]
            error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if probe.source and not _is_own(probe.packet):
                self.unproven[probe] = f"{probe.packet.address} is not on lo, where it is put together with the rules"
            elif probe in self._failed:
                self.unproven[probe] = self._failed[probe]
            elif error:
                self.unproven[probe] = os.strerror(error)
            elif probe.lands is None or (probe in self._held and _is_connected(client)):
                del self.unproven[probe]
            else:
                self.unproven[probe] = "no answer"
        for client in self._attempts.values():
            client.close()
        self._attempts.clear()
        self._clients.clear()
        self._failed.clear()


def _socket(version: int, protocol: str) -> socket.socket:
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    return socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, kind | socket.SOCK_NONBLOCK)


def _owned_socket(probe: Probe) -> socket.socket:
    """A socket of the probe's user. Rules match the user that created a socket, so root need not fork for it."""
    packet = probe.packet
    if (packet.uid, packet.gid) == (os.geteuid(), os.getegid()):
        return _socket(packet.family, packet.protocol)
    own_uid, own_gid = os.geteuid(), os.getegid()
    try:
        os.setegid(packet.gid)
        os.seteuid(packet.uid)
        return _socket(packet.family, packet.protocol)
    finally:
        os.seteuid(own_uid)
        os.setegid(own_gid)


def _original_destination(connection: socket.socket) -> tuple[str, int]:
    """Where the connection was sent before a redirect, or ("", 0) where there was none."""
    try:
        if connection.family == socket.AF_INET:
            raw = connection.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, 16)
            return socket.inet_ntop(socket.AF_INET, raw[4:8]), struct.unpack_from("!H", raw, 2)[0]
        raw = connection.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
        return socket.inet_ntop(socket.AF_INET6, raw[8:24]), struct.unpack_from("!H", raw, 2)[0]
    except OSError:  # no connection tracking here: then no rule either
        return "", 0


def _is_connected(client: socket.socket) -> bool:
    try:
        client.getpeername()
    except OSError:
        return False
    return True


def _is_own(packet: Packet) -> bool:
    with _socket(packet.family, packet.protocol) as unused:
        try:
            unused.bind((packet.address, 0))
        except OSError:
            return False
    return True
