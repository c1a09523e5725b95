"""Where the processes of a pod are: from its cgroups, as inotify tells of them, or from a scan of /proc.

The scan is a safety net for what events missed: a tree where nobody looked, or no watches to be had. It runs only while
a pod of the mesh is nowhere to be found, a slice at a time.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable
from typing import Final

from cni_agent.node.processes import Finder, by_pod, pids
from cni_agent.node.sandboxes import Sandboxes

_SLICE: Final = 64  # processes read in one go, some 2 ms
_PAUSE: Final = 0.02  # between slices: a scan takes a tenth of a core, and only while it lasts


class Whereabouts:
    """Asked by pod uid. What it answers is where to look; the proof decides what is there."""

    def __init__(self, proc: str, sandboxes: Sandboxes, finder: Finder) -> None:
        self.sandboxes = sandboxes
        self.found_by_scan = 0
        self._proc = proc
        self._finder = finder
        self._scanned: dict[str, set[int]] = {}

    def present(self, uid: str) -> bool:
        """Whether the pod has a container on this node."""
        return bool(self.sandboxes.containers.get(uid)) or uid in self._scanned

    def alone(self, uid: str) -> bool:
        """Whether the pod has a sandbox and no other container: nobody's program runs in it yet."""
        return len(self.sandboxes.containers.get(uid, ())) == 1

    def lives(self, uid: str, container_id: str) -> bool:
        """Whether a container of the pod has its cgroup. Of what only a scan has found nothing is known: it may."""
        known = self.sandboxes.containers.get(uid)
        return any(container_id in directory for directory in known) if known else uid in self._scanned

    def pids(self, uid: str) -> list[int]:
        """Its processes."""
        known = self.sandboxes.containers.get(uid)
        if known:
            self._scanned.pop(uid, None)
            return self._finder.of_pod(uid, known)
        alive = {pid for pid in self._scanned.get(uid, ()) if os.access(f"{self._proc}/{pid}", os.F_OK)}
        if alive:
            self._scanned[uid] = alive
        else:
            self._scanned.pop(uid, None)
        return sorted(alive)

    async def scan(self, wanted: Collection[str], found: Callable[[str], None]) -> None:
        """Looks through all processes for pods that no event told of; calls `found` for each."""
        everything = pids(self._proc)
        for start in range(0, len(everything), _SLICE):
            self._take(by_pod(self._proc, everything[start : start + _SLICE]), wanted, found)
            await asyncio.sleep(_PAUSE)

    def _take(self, some: Iterable[tuple[str, int]], wanted: Collection[str], found: Callable[[str], None]) -> None:
        for uid, pid in some:
            if uid not in wanted or self.sandboxes.containers.get(uid):
                continue
            new = uid not in self._scanned
            self._scanned.setdefault(uid, set()).add(pid)
            if new:
                self.found_by_scan += 1
                found(uid)
