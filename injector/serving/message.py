"""What a connection hands to a service, and what it gets back: a request that is whole or refused, and an answer."""

import time
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

MAX_BODY: Final = 6 << 20  # bytes, as Istio's handler
TIMEOUT: Final = 30.0  # seconds for a whole request; the API server gives no webhook longer
TEXT: Final = "text/plain; charset=utf-8"


class Refusal(NamedTuple):
    """No request that can be answered; `reason` is a metric's label."""

    status: int
    reason: str
    message: str


TOO_LARGE: Final = Refusal(400, "too_large", f"http: request body too large: at most {MAX_BODY} bytes")
SLOW: Final = Refusal(408, "slow", f"the body did not arrive within {TIMEOUT:.0f} seconds")
INCOMPLETE: Final = Refusal(400, "incomplete", "the body ended early or is malformed")


class Request:
    """One request while it arrives. `body` is there once it is whole, `refusal` when it will never be."""

    __slots__ = ("body", "content_type", "expects", "head_only", "keep_alive", "length", "refusal", "size", "target")

    def __init__(self) -> None:
        self.target = b""
        self.content_type = b""
        self.length = 0  # as announced
        self.expects = False  # whether the client waits for a word before it sends the body
        self.head_only = False
        self.keep_alive = False
        self.size = 0  # of the body so far
        self.body = b""
        self.refusal: Refusal | None = None


class Response(NamedTuple):
    """One answer."""

    status: int
    body: bytes
    content_type: str = TEXT

    def head(self, *, close: bool) -> bytes:
        """Its first lines. `close` asks the client to take another connection next time."""
        last = "Connection: close\r\n" if close else ""
        return (
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nDate: {_date(int(time.time()))}\r\n{last}\r\n"
        ).encode()


class Service(Protocol):
    """What answers requests. Both methods return quickly: they run on the event loop."""

    draining: bool

    def begun(self, request: Request) -> None:
        """The request's head is there, its body may take a while."""

    def answer(self, request: Request) -> Response:
        """The answer to a whole request, or to a refused one."""


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
