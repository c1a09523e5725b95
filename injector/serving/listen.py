"""Listening sockets: one a worker on one port, bound before the workers start so that a busy port is said at once."""

import asyncio
import contextlib
import logging
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Final, NamedTuple

from cni_agent.invalid import Invalid, Violation
from cni_agent.values import Refused, number
from injector.serving.connection import Connection
from injector.serving.crowd import Crowd
from injector.serving.message import Service
from injector.serving.places import Places

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
HANDSHAKE_TIMEOUT: Final = 10.0  # seconds; a client that does not finish TLS by then is cut off
MAX_HANDSHAKES: Final = 256  # at once; each takes as much memory as a connection
ACCEPT_DELAY: Final = 1.0  # seconds until the next try when the system is out of descriptors or memory
SWEEP: Final = 1.0  # seconds between two looks at what has taken too long
GOODBYE: Final = 1.0  # seconds for a client to hear that the connection ends
# asyncio gives every TLS connection a read buffer of 256 KiB, filled with zeros and so resident: a thousand idle
# clients would take all the memory that we have. A TLS record has at most 16 KiB: this takes four of them at once.
TLS_BUFFER: Final = 64 << 10


class Address(NamedTuple):
    """HOST:PORT; an empty host means every address, IPv6 too where there is any."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(option: str, text: str) -> Address:
    """Reads `:15017`, `127.0.0.1:15017` or `[::1]:15017`; raises `Invalid`."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        if not colon or (":" in host and not bracketed):
            raise Refused
        return Address(host.strip("[]"), number(port, 0, 65535))
    except Refused:
        allowed = "HOST:PORT such as :15017, 127.0.0.1:15017 or [::1]:15017"
        raise Invalid([Violation(option, text, allowed)]) from None


def bind(option: str, address: Address, count: int) -> list[socket.socket]:
    """`count` sockets on one port, bound but not yet listening; raises `Invalid` when the port cannot be had.

    The kernel spreads connections over the sockets. They stay open in the parent: what queues up on the socket of a
    worker that died waits there for its successor.
    """
    if count > 1 and address.port:
        # SO_REUSEPORT would let us join the port of somebody else's process; a plain bind tells.
        _bind(option, address, shared=False).close()
    sockets = [_bind(option, address, shared=count > 1)]
    for _ in range(count - 1):
        sockets.append(_bind(option, address._replace(port=sockets[0].getsockname()[1]), shared=True))
    return sockets


def _bind(option: str, address: Address, *, shared: bool) -> socket.socket:
    dual_stack = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack or ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual_stack else 1)
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        allowed = f"an address and port that can be bound ({error.strerror or error}); choose another one"
        raise Invalid([Violation(option, str(address), allowed)]) from None
    return bound


class Listener:
    """An HTTP server on one socket: accepts until it is closed, then lets what was begun come to its end."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._connections: Crowd[Connection] = Crowd()
        self._arriving: dict[asyncio.Task[None], None] = {}  # oldest first
        self._places = Places()

    async def start(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Begins to accept on a bound socket."""
        SSLProtocol.max_size = TLS_BUFFER
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._bound = bound
        self._accepting = asyncio.ensure_future(self._accept(tls))
        self._sweeping = asyncio.ensure_future(self._sweep())

    async def _accept(self, tls: ssl.SSLContext | None) -> None:
        """asyncio's own server does not bound handshakes, and clients that never end theirs would fill our memory."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._bound)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                log.warning("cannot accept a connection", extra={"error": str(error)})
                await asyncio.sleep(ACCEPT_DELAY)
                continue
            arriving = asyncio.ensure_future(self._welcome(accepted, tls))
            self._arriving[arriving] = None
            arriving.add_done_callback(lambda done: self._arriving.pop(done, None))
            if len(self._arriving) > MAX_HANDSHAKES:
                oldest = next(iter(self._arriving))
                del self._arriving[oldest]
                oldest.cancel()
            await asyncio.sleep(0)  # accepting does not wait while there is somebody in the queue

    async def _welcome(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        with contextlib.suppress(OSError):  # it left, spoke no TLS, or took too long
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self._service, self._connections, self._places),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT if tls else None,
                ssl_shutdown_timeout=GOODBYE if tls else None,
            )

    async def _sweep(self) -> None:
        """One look at all connections now and then is cheaper than a timer for each request."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP)
            now = loop.time()
            for connection in [connection for connection in self._connections if connection.deadline < now]:
                connection.expire()

    async def close(self, timeout: float) -> None:
        """Accepts no more, gives requests in progress `timeout` seconds, and closes all connections."""
        self._accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._accepting
        self._bound.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while any(connection.in_progress for connection in self._connections):
                    await asyncio.sleep(0.05)
        self._sweeping.cancel()
        for arriving in tuple(self._arriving):
            arriving.cancel()
        for connection in self._connections:
            connection.transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE):
                while self._connections:
                    await asyncio.sleep(0.01)
