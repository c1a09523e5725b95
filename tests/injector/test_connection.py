"""Whatever a client sends, in whatever pieces: each answer is whole, and the server goes on."""

import asyncio
import contextlib
import random

import pytest

from injector.serving import connection, listen
from injector.serving.listen import Address, Listener, bind
from injector.serving.message import Request, Response

GOOD = (
    b"POST /inject?timeout=10s HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /inject HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nA: b\r\n\r\n",
    b"GET /ready HTTP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 9999999\r\n\r\n",
    b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
PIECES = (b"\r\n", b"\r\n\r\n", b"\x00", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"A" * 20_000)
STATUSES = (200, 400)


class Echo:
    """Says what it got."""

    draining = False

    def begun(self, request: Request) -> None:
        """Nothing to count."""

    def answer(self, request: Request) -> Response:
        """The body, or why there is none."""
        if request.refusal:
            return Response(request.refusal.status, request.refusal.message.encode())
        return Response(200, b"%b %b" % (request.target, request.body))


def stream(chance: random.Random) -> bytes:
    """A few requests in a row, with accidents in half of them."""
    sent = bytearray(b"".join(chance.choices(GOOD, k=chance.randint(1, 4))))
    for _ in range(chance.choice((0, 0, 1, 4))):
        at = chance.randrange(len(sent))
        sent[at : at + chance.randint(0, 4)] = chance.choice((chance.choice(PIECES), chance.randbytes(3)))
    return bytes(sent)


async def talk(port: int, chance: random.Random) -> bytes:
    """Sends it in pieces, ends its side, and reads all that comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = stream(chance)
    with contextlib.closing(writer), contextlib.suppress(ConnectionError):
        while sent:
            size = chance.choice((1, 7, 100, len(sent)))
            writer.write(sent[:size])
            await writer.drain()
            sent = sent[size:]
        writer.write_eof()
        return await reader.read()
    return b""


def well_formed(received: bytes) -> bool:
    """Nothing but whole answers."""
    while received:
        head, _, received = received.partition(b"\r\n\r\n")
        version, status, *_ = head.split(b" ")
        if version != b"HTTP/1.1" or int(status) not in (100, *STATUSES):
            return False
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or 0)
        if len(received) < length:
            return False
        received = received[length:]
    return True


def test_any_stream_gets_whole_answers() -> None:
    async def run() -> None:
        [bound] = bind("--address", Address("127.0.0.1", 0), 1)
        listener = Listener(Echo())
        await listener.start(bound)
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        for seed in range(400):
            received = await asyncio.wait_for(talk(bound.getsockname()[1], random.Random(seed)), 60)
            assert well_formed(received), (seed, received)
            assert not failures, (seed, failures)
        await listener.close(1.0)

    asyncio.run(run())


async def once(sent: bytes, size: int) -> bytes:
    """All that a server of its own says to this, sent in pieces of that size."""
    [bound] = bind("--address", Address("127.0.0.1", 0), 1)
    listener = Listener(Echo())
    await listener.start(bound)
    reader, writer = await asyncio.open_connection(*bound.getsockname())
    for at in range(0, len(sent), size):
        writer.write(sent[at : at + size])
        await writer.drain()
    received = await reader.read()
    writer.close()
    await writer.wait_closed()
    await listener.close(1.0)
    return received


def test_a_head_has_no_body() -> None:
    received = asyncio.run(once(b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n", 1000))
    assert b"Content-Length: 2\r\n" in received
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("size", [1, 2, 3, 50, 10_000])
def test_answers_come_in_order_however_the_requests_are_cut(size: int) -> None:
    sent = (GOOD[0] + GOOD[1]) * 3 + GOOD[3]
    assert asyncio.run(once(sent, size)).count(b" hello") == 6


@pytest.mark.parametrize(
    "sent", [b"", b"POST /inject HTTP/1.1\r\nHost: a", b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhe"]
)
def test_a_request_has_only_so_long_to_come(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first one, of a client that has said nothing yet; who has asked before may be idle for longer."""
    monkeypatch.setattr(connection, "TIMEOUT", 0.3)
    monkeypatch.setattr(connection, "LINGER", 0.3)
    monkeypatch.setattr(listen, "SWEEP", 0.05)

    async def run() -> None:
        [bound] = bind("--address", Address("127.0.0.1", 0), 1)
        listener = Listener(Echo())
        await listener.start(bound)
        known_reader, known = await asyncio.open_connection(*bound.getsockname())
        known.write(GOOD[0])
        await known_reader.readuntil(b" hello")
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(sent)
        received = await asyncio.wait_for(reader.read(), 60)
        assert received.startswith(b"HTTP/1.1 408") if b"\r\n\r\n" in sent else not received
        known.write(GOOD[0])
        await known_reader.readuntil(b" hello")
        for open_one in (writer, known):
            open_one.close()
            await open_one.wait_closed()
        await listener.close(1.0)

    asyncio.run(run())
