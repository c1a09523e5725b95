"""What is counted and measured, for Prometheus. Words are those of `cni_agent.node.outcome`."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cni_agent import __version__
from cni_agent.node.nodepod import NodePod
from cni_agent.node.outcome import BESIDE, Outcome

# Proof takes tens of microseconds, programming about a millisecond; a pod's first program runs after about 100.
BUCKETS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
PHASES: Final = ("seen_to_proven", "proven_to_verified", "seen_to_verified")


class Metrics:
    """All of them, in a registry of their own.

    What is asked for by rate or increase is there, at 0, from the start: Prometheus cannot see a first occurrence in a
    series that begins with it.
    """

    def __init__(self, backend: str, pods: Callable[[], Iterable[NodePod]]) -> None:
        self.registry = CollectorRegistry()
        self.outcomes = Counter(
            "initless_outcomes",
            "What became of pods, each time it changed.",
            ["outcome", "reason"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "initless_capture_seconds",
            "Capture of a starting pod: from its container seen to its namespace proven, from there to its rules "
            "programmed and read back, and both together.",
            ["phase"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        for phase in PHASES:
            self.seconds.labels(phase)
        self.drifts = Counter(
            "initless_drifts", "Rules found changed by somebody else.", ["action"], registry=self.registry
        )
        for action in (Outcome.REPAIRED, Outcome.DRIFTED):
            self.drifts.labels(action)
        self.scan_found = Counter(
            "initless_scan_found_pods", "Pods that only the scan of /proc found.", registry=self.registry
        )
        self.overflows = Counter(
            "initless_inotify_overflows", "Times the kernel dropped inotify events.", registry=self.registry
        )
        self.unwatched = Gauge(
            "initless_inotify_unwatched_directories", "Cgroups for which no watch was left.", registry=self.registry
        )
        self.watch_age = Gauge("initless_watch_age_seconds", "Since the API was last heard of.", registry=self.registry)
        self.watch_ends = Counter(
            "initless_watch_ends", "Watches of pods that ended, by why.", ["reason"], registry=self.registry
        )
        self.events = Counter("initless_events", "Kubernetes Events sent.", ["result"], registry=self.registry)
        Gauge("initless_backend_info", "The backend in use.", ["backend"], registry=self.registry).labels(backend).set(
            1
        )
        Gauge("initless_build_info", "This build.", ["version"], registry=self.registry).labels(__version__).set(1)
        self.registry.register(_Pods(pods))
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        """All of them as a scrape gets them."""
        return generate_latest(self.registry)


class _Pods(Collector):
    """Pods by their present state, counted when asked."""

    def __init__(self, pods: Callable[[], Iterable[NodePod]]) -> None:
        self._pods = pods

    def collect(self) -> Iterator[Metric]:
        known = [record for record in self._pods() if record.pod is not None]
        tally = Tally(record.verdict.outcome for record in known)
        family = GaugeMetricFamily("initless_pods", "Pods of this node by what became of them.", labels=["outcome"])
        for outcome in Outcome:
            if outcome not in BESIDE:
                family.add_metric([outcome], tally[outcome])
        yield family
        yield GaugeMetricFamily(
            "initless_pods_without_validation",
            "Captured pods that have no istio-validation to hold their application back.",
            sum(record.lacks_validation for record in known),
        )
