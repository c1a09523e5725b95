"""The HTTP contract of the webhook: /inject, /inject/…, /ready over TLS; and, elsewhere, metrics and health."""

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec

from injector.admission import review
from injector.serving.message import Refusal, Request, Response
from injector.serving.scoreboard import Row, Scoreboard
from injector.serving.source import Current

log = logging.getLogger(__name__)

JSON: Final = "application/json"
EMPTY: Final = Refusal(400, "empty", "no body found")
MEDIA_TYPE: Final = Refusal(415, "media_type", f"invalid Content-Type, expect `{JSON}`")


class Health(NamedTuple):
    """Whether this worker should get requests, and what an operator wants to know about it."""

    ready: bool
    detail: dict[str, object]


class Webhook:
    """Answers the API server."""

    def __init__(self, current: Current, row: Row, health: Callable[[], Health]) -> None:
        self._current = current
        self._row = row
        self._health = health
        self.draining = False  # then each answer asks the client to use another connection next time

    def begun(self, request: Request) -> None:
        """Counts it, answered or not."""
        if _is_inject(_path(request)):
            self._row.add("requests")

    def answer(self, request: Request) -> Response:
        """One request."""
        path = _path(request)
        if _is_inject(path):
            return self._inject(request, path)
        if path == "/ready":
            return ready(self._health())
        self._row.add("refused_not_found")
        return Response(404, b"no such path; this server has /inject and /ready\n")

    def _inject(self, request: Request, path: str) -> Response:
        refusal = request.refusal
        if refusal is None and not request.body:
            refusal = EMPTY
        elif refusal is None and request.content_type != b"application/json":
            refusal = MEDIA_TYPE
        if refusal is not None:
            self._row.add(f"refused_{refusal.reason}")
            return Response(refusal.status, f"{refusal.message}\n".encode())
        live = self._current.live
        if live is None:
            return Response(503, f"no settings: {self._current.problem}\n".encode())
        started = time.perf_counter_ns()
        try:
            answer = review(request.body, live.settings, path, live.facts)
        except Exception:
            self._row.add("errors")
            log.exception("a review raised; please report this", extra={"bytes": len(request.body)})
            return Response(500, b"internal error; see the injector's log\n")
        self._row.observe(answer.outcome, time.perf_counter_ns() - started)
        if answer.outcome == "failure":
            log.warning("review denied", extra={"reason": answer.reason, **answer.denied})
        elif answer.outcome == "skip":
            self._row.add(f"skip_{answer.reason}")
        return Response(200, answer.body, JSON)


class Monitoring:
    """Answers Prometheus and the kubelet, over plain HTTP."""

    draining = False

    def __init__(self, scoreboard: Scoreboard, health: Callable[[], Health]) -> None:
        self._scoreboard = scoreboard
        self._health = health

    def begun(self, request: Request) -> None:
        """Nothing is counted here."""

    def answer(self, request: Request) -> Response:
        """/metrics for all workers; /ready for the one that answers; /healthz as long as it answers at all."""
        path = _path(request)
        if path == "/metrics":
            from injector.serving import metrics

            return Response(200, metrics.exposition(self._scoreboard), metrics.CONTENT_TYPE)
        if path == "/ready":
            return ready(self._health())
        if path == "/healthz":
            return Response(200, b"ok\n")
        return Response(404, b"no such path; this server has /metrics, /ready and /healthz\n")


def ready(health: Health) -> Response:
    """200 or 503, with the detail as JSON either way."""
    text = msgspec.json.format(msgspec.json.encode({"ready": health.ready, **health.detail}), indent=2)
    return Response(200 if health.ready else 503, text + b"\n", JSON)


def _path(request: Request) -> str:
    path = request.target.partition(b"?")[0].decode(errors="replace")
    return unquote(path) if "%" in path else path


def _is_inject(path: str) -> bool:
    return path == "/inject" or path.startswith("/inject/")
