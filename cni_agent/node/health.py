"""`/metrics`, `/healthz` and `/readyz`: as much HTTP as a probe and a scrape need, on the agent's own event loop.

On the loop on purpose: when it is stuck nothing answers, and the probe fails as it should. A web framework would cost a
quarter of the agent's memory for three GETs.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

_MOST: Final = 32  # connections at a time; a probe and a scrape are two
_SECONDS: Final = 5.0
_LIMIT: Final = 16384  # bytes of a request's head


class Answer(NamedTuple):
    """A status and a body."""

    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"


class Health:
    """A server of a few pages, each made by a function when it is asked for."""

    def __init__(self, pages: Mapping[str, Callable[[], Answer]]) -> None:
        self._pages = pages
        self._turns = asyncio.Semaphore(_MOST)
        self._server: asyncio.Server | None = None

    async def start(self, host: str | None, port: int) -> list[tuple[str, int]]:
        """Begins to listen; the addresses, with the port that the kernel chose for 0."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LIMIT)
        return [listening.getsockname()[:2] for listening in self._server.sockets]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._turns, asyncio.timeout(_SECONDS):
                answer = self._answer(await reader.readuntil(b"\r\n\r\n"))
                writer.write(_head(answer) + answer.body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, slow or no HTTP client
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

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
