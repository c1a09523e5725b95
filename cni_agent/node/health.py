"""`/metrics`, `/healthz` and `/readyz`: as much HTTP as a probe and a scrape need, on the agent's own event loop.

On the loop on purpose: when it is stuck nothing answers, and the probe fails as it should. A web framework would cost a
quarter of the agent's memory for three GETs.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

_MOST: Final = 512  # connections at a time; a probe and a scrape are two
_ACCEPTED: Final = (
    128  # in one round of the event loop; far fewer than _MOST, so a probe is read before it is the oldest
)
_SECONDS: Final = 5.0
_LIMIT: Final = 8192  # bytes of a request's head


class Answer(NamedTuple):
    """A status and a body."""

    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"


class Health:
    """A server of a few pages, each made by a function when it is asked for.

    Any pod may connect, and say nothing. So nobody waits for a turn: when there are too many, the oldest goes, and that
    is never a probe, which speaks at once.
    """

    def __init__(self, pages: Mapping[str, Callable[[], Answer]]) -> None:
        self._pages = pages
        self._connected: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    async def start(self, host: str | None, port: int) -> list[tuple[str, int]]:
        """Begins to listen; the addresses, with the port that the kernel chose for 0."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LIMIT, backlog=_ACCEPTED)
        return [listening.getsockname()[:2] for listening in self._server.sockets]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            while self._connected:
                for writer in self._connected:
                    writer.transport.abort()
                await asyncio.sleep(0)
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connected[writer] = None
        if len(self._connected) > _MOST:
            oldest = next(iter(self._connected))
            del self._connected[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(_SECONDS):
                answer = self._answer(await reader.readuntil(b"\r\n\r\n"))
                writer.write(_head(answer) + answer.body)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, slow or no HTTP client
        finally:
            self._connected.pop(writer, None)
            writer.transport.abort()

    def _answer(self, request: bytes) -> Answer:
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return Answer(HTTPStatus.BAD_REQUEST, b"not an HTTP request\n")
        if words[0] != b"GET":
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n")
        page = self._pages.get(words[1].partition(b"?")[0].decode("latin-1"))
        if page is None:
            return Answer(HTTPStatus.NOT_FOUND, f"there are {', '.join(self._pages)}\n".encode())
        return page()


def verdict(reasons: list[str]) -> Answer:
    """A probe's answer: 200 when there is nothing to say against it, else 503 and the reasons."""
    if not reasons:
        return Answer(HTTPStatus.OK, b"ok\n")
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, "".join(f"{reason}\n" for reason in reasons).encode())


def _head(answer: Answer) -> bytes:
    return (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.kind}\r\nContent-Length: {len(answer.body)}\r\nConnection: close\r\n\r\n"
    ).encode()
