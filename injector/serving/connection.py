"""One client's connection: requests are parsed (by Node's parser), bounded in size and time, and answered in order.

aiohttp's server takes twice the CPU for the same, for what nothing here needs: a task, a stream, a router and two
turns of the event loop a request. An answer takes less than a millisecond, so each is given where its request ends.
"""

import asyncio
import logging
from typing import Final, cast

import httptools

from cni_agent.invalid import shown
from injector.serving.crowd import Crowd
from injector.serving.message import (
    INCOMPLETE,
    MAX_BODY,
    SLOW,
    TIMEOUT,
    TOO_LARGE,
    Refusal,
    Request,
    Response,
    Service,
)
from injector.serving.places import Places

log = logging.getLogger(__name__)

MAX_HEAD: Final = 16 << 10  # bytes of the request line and all headers
MAX_REQUEST: Final = 2 * MAX_BODY  # bytes of a request with the framing of its chunks
LARGE: Final = 32 << 10  # bytes; a body above this needs one of the few places for large ones; few reviews do
# Longer than the 90 seconds after which the API server closes an idle connection (apimachinery util/net takes the
# IdleConnTimeout of Go's http.DefaultTransport), so that it is never we who close
# one at the moment that it is being used again.
KEEP_ALIVE: Final = 180.0
# Seconds for which the rest of a refused body is read and dropped: closing at once would reset the connection, and the
# client would see that instead of our answer.
LINGER: Final = 10.0


class Connection(asyncio.Protocol):
    """`open_connections` has it while it lives; whoever sweeps them calls `expire` when `deadline` has passed."""

    transport: asyncio.Transport

    def __init__(self, service: Service, open_connections: Crowd["Connection"], places: Places) -> None:
        self._service = service
        self._open = open_connections
        self._places = places
        self._now = asyncio.get_running_loop().time
        self._parser = httptools.HttpRequestParser(self)
        self._request: Request | None = None  # the one that is arriving
        self._head_done = False
        self._parts: list[bytes] = []
        self._received = 0  # bytes of a request that came in several pieces
        self._whole: list[Request] = []
        self._deaf = False  # what still comes is dropped
        self.proven = False
        self.since = self._now()
        self.deadline = self.since + TIMEOUT

    @property
    def in_progress(self) -> bool:
        """Whether a request was begun and not answered."""
        return self._head_done

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        before = len(self._parts)
        problem: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            problem = error
        if self._whole:
            self._answer_whole()
        if problem is not None:
            self._malformed(str(problem))
        elif self._request is not None:
            self._go_on(len(data), before)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._request is not None and self._head_done and not self._deaf:
            self._request.refusal = INCOMPLETE
            self._service.answer(self._request)  # so that it is counted; nobody is there to hear it
        self._deaf = True
        self._places.leave(self.transport)
        self._open.discard(self)

    def pause_writing(self) -> None:
        """The client does not read its answers: it gets no more of them."""
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # the parser's side

    def on_message_begin(self) -> None:
        self._request = Request()
        self._head_done = False
        self._parts = []
        self._received = 0

    def on_url(self, url: bytes) -> None:
        if self._request:
            self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._request
        if request is None or self._head_done:  # a trailer
            return
        name = name.lower()
        if name == b"content-type":
            request.content_type = value
        elif name == b"content-length":
            request.length = int(value)
        elif name == b"expect":
            request.expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        request = self._request
        if request is None:
            return
        self._head_done = True
        request.head_only = self._parser.get_method() == b"HEAD"
        if request.length > MAX_BODY:
            request.refusal = TOO_LARGE
        self._service.begun(request)

    def on_body(self, body: bytes) -> None:
        request = self._request
        if request is None or request.refusal:
            return
        self._parts.append(body)
        request.size += len(body)
        if request.size > MAX_BODY:
            request.refusal = TOO_LARGE
            self._parts = []

    def on_message_complete(self) -> None:
        request = self._request
        if request is None:
            return
        request.body = b"".join(self._parts)
        # Another protocol is never taken up; the parser, which would make room for it, is of no use after that
        request.keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self._whole.append(request)
        self._request, self._parts, self._head_done = None, [], False

    # requests that end, well or not

    def _answer_whole(self) -> None:
        whole, self._whole = self._whole, []
        self._places.leave(self.transport)
        self.proven = True
        self.since = self._now()
        self.deadline = self.since + KEEP_ALIVE
        for request in whole:
            close = not request.keep_alive or self._service.draining
            self._write(request, self._service.answer(request), close=close)
            if close:
                self._deaf = True
                self.transport.close()
                return

    def _go_on(self, received: int, before: int) -> None:
        """A part of a request is there; what comes next depends on how much."""
        request = self._request
        assert request is not None
        if not self._received:
            self.since = self._now()
            self.deadline = self.since + TIMEOUT
        self._received += received
        if not self._head_done:
            if self._received > MAX_HEAD:
                self._malformed(f"the head is longer than {MAX_HEAD} bytes")
        elif request.refusal or self._received > MAX_REQUEST:
            self._give_up(request.refusal or TOO_LARGE)
        else:
            if len(self._parts) - before > 1:  # many small chunks: an object each would take more than they do
                self._parts[before:] = [b"".join(self._parts[before:])]
            if request.expects and not request.size:
                request.expects = False
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if request.size > LARGE:
                self._places.ask(self.transport)

    def expire(self) -> None:
        """The deadline has passed."""
        if self._head_done and not self._deaf:
            self._give_up(SLOW)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _give_up(self, refusal: Refusal) -> None:
        """Answers a request that never became whole. The client may still be sending: what comes is dropped."""
        request = self._request
        assert request is not None
        request.refusal = refusal
        self._request, self._parts, self._head_done = None, [], False
        self._linger(request, self._service.answer(request))

    def _malformed(self, problem: str) -> None:
        if self._deaf:
            return
        log.warning("malformed HTTP request", extra={"error": shown(problem)})
        if self._head_done:
            self._give_up(INCOMPLETE)
        else:
            self._linger(Request(), Response(400, b"malformed HTTP request\n"))

    def _linger(self, request: Request, response: Response) -> None:
        self._deaf = True
        self._places.leave(self.transport)
        self._write(request, response, close=True)
        self.deadline = self._now() + LINGER

    def _write(self, request: Request, response: Response, *, close: bool) -> None:
        head = response.head(close=close)
        self.transport.write(head if request.head_only else head + response.body)
