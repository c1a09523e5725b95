"""Tells the world what became of a pod, in the log, the metrics and an Event: the same words everywhere."""

import logging
from collections.abc import Callable

from cni_agent.node.metrics import Metrics
from cni_agent.node.nodepod import NodePod
from cni_agent.node.outcome import ALARMING, Outcome, Verdict
from cni_agent.podview import PodView

logger = logging.getLogger(__name__)


class Teller:
    """`events` is set once there is an API to send them to."""

    def __init__(self, metrics: Metrics) -> None:
        self.events: Callable[[PodView, Verdict], None] | None = None
        self._metrics = metrics

    def tell(self, record: NodePod, verdict: Verdict) -> None:
        """Of one verdict about one pod."""
        self._metrics.outcomes.labels(verdict.outcome, verdict.reason).inc()
        if verdict.outcome in (Outcome.REPAIRED, Outcome.DRIFTED):
            self._metrics.drifts.labels(verdict.outcome).inc()
        if verdict.outcome in (Outcome.CAPTURED, Outcome.CAPTURED_LATE) and record.seen and record.proven:
            self._measure(record.seen, record.proven, record.compared)
        level = logging.WARNING if verdict.outcome in ALARMING else logging.INFO
        took = None if record.milliseconds is None else round(record.milliseconds, 3)
        values = {"reason": verdict.reason, "why": verdict.sentence, "ms": took}
        logger.log(level, verdict.outcome, extra={**record.fields(), **values})
        if self.events is not None and record.pod is not None:
            self.events(record.pod, verdict)

    def _measure(self, seen: float, proven: float, verified: float) -> None:
        self._metrics.seconds.labels("seen_to_proven").observe(proven - seen)
        self._metrics.seconds.labels("proven_to_verified").observe(verified - proven)
        self._metrics.seconds.labels("seen_to_verified").observe(verified - seen)
