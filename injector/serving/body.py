"""Reads a request's body within bounds of size, time and, over all connections together, memory."""

import asyncio
from typing import Final

from aiohttp import web

MAX_BODY: Final = 6 << 20  # bytes, as Istio's handler
TIMEOUT: Final = 30.0  # seconds; the API server gives no webhook longer
LARGE: Final = 256 << 10  # bytes; a body above this needs one of the few places for large ones
LARGE_AT_ONCE: Final = 16


class Refused(Exception):
    """No body that can be answered; `reason` is a metric's label."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


TOO_LARGE: Final = (400, "too_large", f"http: request body too large: at most {MAX_BODY} bytes")
SLOW: Final = (408, "slow", f"the body did not arrive within {TIMEOUT:.0f} seconds")
INCOMPLETE: Final = (400, "incomplete", "the body ended early or is malformed")
EMPTY: Final = (400, "empty", "no body found")


class BodyReader:
    """The bodies of one worker. At most LARGE_AT_ONCE × MAX_BODY bytes are in memory, however many clients push."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self._timeout = timeout
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def read(self, request: web.BaseRequest) -> bytes:
        """The whole body, or `Refused`."""
        if (request.content_length or 0) > MAX_BODY:
            raise Refused(*TOO_LARGE)
        try:
            if request.content.is_eof():  # arrived with its headers: the usual case, without a timer
                body = request.content.read_nowait()
            else:
                async with asyncio.timeout(self._timeout):
                    body = await self._gather(request)
        except TimeoutError:
            raise Refused(*SLOW) from None
        except (web.RequestPayloadError, ConnectionError):
            raise Refused(*INCOMPLETE) from None
        if not body:
            raise Refused(*EMPTY)
        return body

    async def _gather(self, request: web.BaseRequest) -> bytes:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts: list[bytes] = []
        size = 0
        while size <= LARGE:
            if not (part := await request.content.readany()):
                return b"".join(parts)
            parts.append(part)
            size += len(part)
        async with self._large:
            while part := await request.content.readany():
                parts.append(part)
                size += len(part)
                if size > MAX_BODY:
                    raise Refused(*TOO_LARGE)
            return b"".join(parts)
