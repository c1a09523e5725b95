"""The HTTP contract of the webhook: /inject, /inject/…, /ready over TLS; and, elsewhere, metrics and health.

On aiohttp's low-level server: no router, no middleware and no access log stand between a review and its answer.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from injector.admission import review
from injector.serving import body
from injector.serving.scoreboard import Row, Scoreboard
from injector.serving.source import Current

log = logging.getLogger(__name__)

JSON: Final = "application/json"


class Health(NamedTuple):
    """Whether this worker should get requests, and what an operator wants to know about it."""

    ready: bool
    detail: dict[str, object]


class Webhook:
    """Answers the API server."""

    def __init__(self, current: Current, row: Row, health: Callable[[], Health], bodies: body.BodyReader) -> None:
        self._current = current
        self._row = row
        self._health = health
        self._bodies = bodies
        self.draining = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request. While draining, each answer asks the client to use another connection next time."""
        path = request.raw_path.partition("?")[0]
        if "%" in path:
            path = request.path  # decoded; kept from the usual request because it takes a URL parser
        if path == "/inject" or path.startswith("/inject/"):
            response = await self._inject(request, path)
        elif path == "/ready":
            response = ready(self._health())
        else:
            self._row.add("refused_not_found")
            response = web.Response(status=404, text="no such path; this server has /inject and /ready\n")
        if self.draining:
            response.force_close()
        return response

    async def _inject(self, request: web.BaseRequest, path: str) -> web.Response:
        row = self._row
        row.add("requests")
        try:
            content = await self._bodies.read(request)
            content_type = request.headers.get("Content-Type", "")
            if content_type != JSON:
                raise body.Refused(415, "media_type", f"invalid Content-Type, expect `{JSON}`")
        except body.Refused as refused:
            row.add(f"refused_{refused.reason}")
            return web.Response(status=refused.status, text=f"{refused}\n")
        live = self._current.live
        if live is None:
            return web.Response(status=503, text=f"no settings: {self._current.problem}\n")
        started = time.perf_counter_ns()
        try:
            answer = review(content, live.settings, path, live.facts)
        except Exception:
            row.add("errors")
            log.exception("a review raised; please report this", extra={"bytes": len(content)})
            return web.Response(status=500, text="internal error; see the injector's log\n")
        row.observe(answer.outcome, time.perf_counter_ns() - started)
        if answer.outcome == "failure":
            log.warning("review denied", extra={"reason": answer.reason, **answer.denied})
        elif answer.outcome == "skip":
            row.add(f"skip_{answer.reason}")
        return web.Response(body=answer.body, headers={"Content-Type": JSON})


class Monitoring:
    """Answers Prometheus and the kubelet, over plain HTTP."""

    def __init__(self, scoreboard: Scoreboard, health: Callable[[], Health]) -> None:
        self._scoreboard = scoreboard
        self._health = health

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """/metrics for all workers; /ready for the one that answers; /healthz as long as it answers at all."""
        if request.path == "/metrics":
            from injector.serving import metrics

            text = metrics.exposition(self._scoreboard)
            return web.Response(body=text, headers={"Content-Type": metrics.CONTENT_TYPE})
        if request.path == "/ready":
            return ready(self._health())
        if request.path == "/healthz":
            return web.Response(text="ok\n")
        return web.Response(status=404, text="no such path; this server has /metrics, /ready and /healthz\n")


def ready(health: Health) -> web.Response:
    """200 or 503, with the detail as JSON either way."""
    text = msgspec.json.format(msgspec.json.encode({"ready": health.ready, **health.detail}), indent=2)
    return web.Response(status=200 if health.ready else 503, body=text + b"\n", content_type=JSON)
