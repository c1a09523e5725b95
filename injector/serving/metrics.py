"""The scoreboard as Prometheus text, under the names that Istio's dashboards and alerts know.

One deliberate difference: `sidecar_injection_success_total` counts successes. Istio counts every reply there.
"""

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from injector.mutation.decision import SKIPS
from injector.serving.scoreboard import BUCKETS, READ, REFUSALS, Scoreboard

CONTENT_TYPE = CONTENT_TYPE_LATEST
_PAGE = os.sysconf("SC_PAGE_SIZE")


def exposition(scoreboard: Scoreboard) -> bytes:
    """What a scrape gets: the sum over all workers, whichever of them answers."""
    registry = CollectorRegistry()
    registry.register(_ScoreboardCollector(scoreboard))
    return generate_latest(registry)


class _ScoreboardCollector(Collector):
    def __init__(self, scoreboard: Scoreboard) -> None:
        self._board = scoreboard

    def collect(self) -> Iterator[Metric]:
        yield from self._injection()
        yield from self._reloads()
        yield self._unread()
        yield from self._workers()

    def _injection(self) -> Iterator[Metric]:
        total = self._board.total
        for name, field, text in (
            ("requests", "requests", "Requests that reached /inject."),
            ("success", "success", "Pods that were injected."),
            ("skip", "skip", "Pods that were let through unchanged."),
            ("failure", "failure", "Reviews that were denied: bad pod, bad annotation, bad review."),
        ):
            yield CounterMetricFamily(f"sidecar_injection_{name}", text, total(field))
        skips = CounterMetricFamily(
            "initless_injector_skips", "Pods that were let through unchanged, by reason.", labels=["reason"]
        )
        for skipped in SKIPS:
            skips.add_metric([skipped], total(f"skip_{skipped}"))
        yield skips
        refused = CounterMetricFamily(
            "initless_injector_refused",
            "HTTP requests answered without a review.",
            labels=["reason"],
        )
        for reason in REFUSALS:
            refused.add_metric([reason], total(f"refused_{reason}"))
        yield refused
        yield CounterMetricFamily(
            "initless_injector_errors", "Bugs: exceptions that reached the server.", total("errors")
        )
        yield self._latency()

    def _latency(self) -> Metric:
        buckets: list[tuple[str, float]] = []
        seen = 0
        for index, bound in enumerate((*BUCKETS, float("inf"))):
            seen += self._board.total(f"bucket_{index}")
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), seen))
        return HistogramMetricFamily(
            "sidecar_injection_time_seconds",
            "Time from the last byte of a review to its answer.",
            buckets=buckets,
            sum_value=self._board.total("nanoseconds") / 1e9,
        )

    def _reloads(self) -> Iterator[Metric]:
        for what, good in (("settings", "applied"), ("certificate", "loaded")):
            family = CounterMetricFamily(
                f"initless_injector_{what}_reloads",
                f"Changes of the {what}, by result; a refused change leaves the old {what} in use.",
                labels=["result"],
            )
            family.add_metric([good], self._board.total(f"{what}_{good}"))
            family.add_metric(["refused"], self._board.total(f"{what}_refused"))
            yield family
            yield GaugeMetricFamily(
                f"initless_injector_{what}_stale",
                f"1 while the newest {what} are refused and older ones are in use.",
                max(row[f"{what}_stale"] for row in self._board.rows),
            )
        times = [row["settings_time"] for row in self._board.rows if row["settings_time"]]
        yield GaugeMetricFamily(
            "initless_injector_settings_applied_timestamp_seconds",
            "When the settings in use were applied; the oldest of all workers.",
            min(times, default=0),
        )
        expiries = [row["certificate_expiry"] for row in self._board.rows if row["certificate_expiry"]]
        yield GaugeMetricFamily(
            "initless_injector_certificate_expiry_timestamp_seconds",
            "When the serving certificate in use expires; the earliest of all workers.",
            min(expiries, default=0),
        )

    def _unread(self) -> Metric:
        family = GaugeMetricFamily(
            "initless_injector_cluster_unread",
            "1 while a resource cannot be read from the API server; what was read last stays in use.",
            labels=["what"],
        )
        for what in READ:
            family.add_metric([what], max(row[f"unread_{what}"] for row in self._board.rows))
        return family

    def _workers(self) -> Iterator[Metric]:
        ready = GaugeMetricFamily("initless_injector_worker_ready", "1 while a worker serves.", labels=["worker"])
        memory = GaugeMetricFamily(
            "initless_injector_worker_resident_memory_bytes", "Resident memory.", labels=["worker"]
        )
        requests = CounterMetricFamily(
            "initless_injector_worker_requests", "Requests to /inject, by worker.", labels=["worker"]
        )
        for number, row in enumerate(self._board.rows):
            ready.add_metric([str(number)], row["ready"])
            memory.add_metric([str(number)], _resident(row["pid"]))
            requests.add_metric([str(number)], row["requests"])
        yield from (ready, memory, requests)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:  # not started, or just gone
        return 0
