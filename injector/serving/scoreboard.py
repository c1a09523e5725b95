"""Counts of every worker, in memory that all of them share: any worker can answer a scrape with the sum.

One row of 64-bit numbers a worker. Only the worker itself writes its row, so no lock is needed; a row outlives its
worker, so that counters never go down when a worker is replaced. Nothing is sent anywhere and nothing is on disk.
"""

import bisect
import mmap
from typing import Final

from injector.mutation.decision import SKIPS

# seconds; Istio's first bucket is 100 ms, above everything that a healthy injector does
BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0
)  # fmt: skip
REFUSALS: Final = ("too_large", "empty", "media_type", "slow", "incomplete", "not_found")
READ: Final = ("configmaps", "proxyconfigs", "nodes", "namespaces")  # resources that --settings cluster reads

FIELDS: Final = (
    "pid",
    "beats",  # counts up while the worker's event loop turns
    "ready",  # 1 while the worker serves with settings and a certificate
    "requests",
    "success",
    "skip",
    *(f"skip_{reason}" for reason in SKIPS),
    "failure",
    "errors",  # bugs: exceptions that reached the server's boundary
    "nanoseconds",
    *(f"refused_{reason}" for reason in REFUSALS),
    *(f"bucket_{index}" for index in range(len(BUCKETS) + 1)),
    "settings_applied",
    "settings_refused",
    "settings_stale",  # 1 while the newest settings are bad and older ones are in use
    "settings_time",  # Unix seconds of the last change that was applied
    *(f"unread_{what}" for what in READ),  # 1 while it cannot be read
    "certificate_loaded",
    "certificate_refused",
    "certificate_stale",
    "certificate_expiry",  # Unix seconds
)
_COLUMN: Final = {name: index for index, name in enumerate(FIELDS)}
_FIRST_BUCKET: Final = _COLUMN["bucket_0"]


class Row:
    """One worker's counts."""

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells

    def __getitem__(self, name: str) -> int:
        return int(self._cells[_COLUMN[name]])

    def __setitem__(self, name: str, value: int) -> None:
        self._cells[_COLUMN[name]] = value

    def add(self, name: str, amount: int = 1) -> None:
        """Counts up."""
        self._cells[_COLUMN[name]] += amount

    def observe(self, outcome: str, nanoseconds: int) -> None:
        """Counts one answered review and how long it took."""
        self.add(outcome)
        self.add("nanoseconds", nanoseconds)
        self._cells[_FIRST_BUCKET + bisect.bisect_left(BUCKETS, nanoseconds / 1e9)] += 1


class Scoreboard:
    """The rows of all workers. Make it before forking."""

    def __init__(self, workers: int) -> None:
        width = len(FIELDS)
        self._memory = mmap.mmap(-1, workers * width * 8)  # anonymous and shared with forked children
        cells = memoryview(self._memory).cast("Q")
        self.rows = tuple(Row(cells[at : at + width]) for at in range(0, workers * width, width))

    def total(self, name: str) -> int:
        """The sum over all workers."""
        return sum(row[name] for row in self.rows)
