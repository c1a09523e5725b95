"""Kubernetes Events about pods, so that `kubectl describe pod` tells what became of it, and whom to ask.

They are sent in the background, at most a few a second; what does not fit is counted and dropped, since the log and
the metrics have it too. The same words about the same pod are sent once in ten minutes.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

from cni_agent.apiserver import UNREACHABLE, ApiError, ApiServer
from cni_agent.node.outcome import ALARMING, QUIET, Verdict
from cni_agent.podview import PodView

COMPONENT: Final = "initless-cni-agent"
_WAITING: Final = 256
_AGAIN_SECONDS: Final = 600.0
_BETWEEN: Final = 0.1  # seconds
_LONGEST: Final = 1024  # characters of a message that the API takes

Result = Literal["sent", "repeated", "dropped", "failed"]
logger = logging.getLogger(__name__)


class Events:
    """A queue of Events. `counted` hears what became of each."""

    def __init__(self, server: ApiServer, node: str, *, successes: bool, counted: Callable[[Result], None]) -> None:
        self._server = server
        self._node = node
        self._successes = successes
        self._counted = counted
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(_WAITING)
        self._sent: dict[tuple[str, str, str], float] = {}

    def tell(self, pod: PodView, verdict: Verdict) -> None:
        """Queues an Event, if the verdict is worth one."""
        if verdict.outcome in QUIET or (verdict.outcome not in ALARMING and not self._successes):
            return
        now = time.monotonic()
        key = (pod.uid, verdict.outcome, verdict.reason)
        self._sent = {known: sent for known, sent in self._sent.items() if now - sent < _AGAIN_SECONDS}
        if key in self._sent:
            self._counted("repeated")
            return
        try:
            self._queue.put_nowait((pod.namespace, event(pod, verdict, self._node, datetime.now(UTC))))
            self._sent[key] = now
        except asyncio.QueueFull:
            self._counted("dropped")

    async def run(self) -> None:
        """Sends what is queued, for ever."""
        while True:
            namespace, body = await self._queue.get()
            wait = _BETWEEN
            try:
                await self._server.send("POST", f"/api/v1/namespaces/{namespace}/events", body)
                self._counted("sent")
            except (ApiError, *UNREACHABLE) as error:
                self._counted("failed")
                logger.warning("cannot send an Event", extra={"reason": body["reason"], "error": str(error)})
                if isinstance(error, ApiError):
                    wait = max(wait, error.retry_after)
            await asyncio.sleep(wait)


def event(pod: PodView, verdict: Verdict, node: str, now: datetime) -> dict[str, Any]:
    """The Event as the API takes it."""
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{pod.name[:50]}.", "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.mirror or pod.uid,
        },
        "reason": str(verdict.outcome),
        "message": f"{verdict.sentence} [{verdict.reason}]"[:_LONGEST],
        "type": "Warning" if verdict.outcome in ALARMING else "Normal",
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
