"""Which pod a network namespace belongs to, pods outside the mesh included.

Captured pods claim theirs when they are proven. The others are looked at when somebody asks, each once: a process that
wandered from a pod of the mesh into theirs must not make that namespace the mesh's.
"""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from cni_agent.kernel.netns import Identity
from cni_agent.node import cgroup
from cni_agent.node.processes import GONE, Process
from cni_agent.node.whereabouts import Whereabouts

_LOOK_SECONDS: Final = 0.005  # one look serves a burst
_RETRY_SECONDS: Final = 1.0  # for pods without a namespace of their own to be seen: starting, or hostNetwork


class Owners:
    """`outside` tells the pods that nobody will claim for."""

    def __init__(
        self,
        proc: str,
        protected: Collection[Identity],
        whereabouts: Whereabouts,
        outside: Callable[[], Iterable[str]],
    ) -> None:
        self._proc = proc
        self._protected = protected
        self._whereabouts = whereabouts
        self._outside = outside
        self._claims: dict[Identity, str] = {}
        self._bystanders: dict[str, Identity] = {}
        self._unresolved: dict[str, float] = {}
        self._looked = -_LOOK_SECONDS

    def claim(self, namespace: Identity, uid: str) -> None:
        """From now on this namespace is that pod's."""
        self._claims[namespace] = uid

    def release(self, namespace: Identity) -> None:
        """It is nobody's any more."""
        self._claims.pop(namespace, None)

    def owner(self, namespace: Identity) -> str | None:
        """The pod that it belongs to, as far as anybody can tell."""
        claimed = self._claims.get(namespace)
        if claimed is not None:
            return claimed
        self._look_around()
        for uid, known in self._bystanders.items():
            if known == namespace and self._look_at(uid) == namespace:  # inodes are reused: look once more
                return uid
        return None

    def _look_around(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        outside = [uid for uid in self._outside() if self._whereabouts.present(uid)]
        self._bystanders = {uid: self._bystanders[uid] for uid in outside if uid in self._bystanders}
        self._unresolved = {uid: self._unresolved[uid] for uid in outside if uid in self._unresolved}
        for uid in outside:
            if uid in self._bystanders or now - self._unresolved.get(uid, -_RETRY_SECONDS) < _RETRY_SECONDS:
                continue
            found = self._look_at(uid)
            if found is None:
                self._unresolved[uid] = now
            else:
                self._bystanders[uid] = found

    def _look_at(self, uid: str) -> Identity | None:
        """The one namespace that a pod's processes are in, beside the node's; None when it is not just one."""
        found: set[Identity] = set()
        for pid in self._whereabouts.pids(uid):
            try:
                with Process(self._proc, pid) as process:
                    if cgroup.membership(process.cgroup()).pod_uid == uid:
                        found.add(process.network())
            except (*GONE, PermissionError, cgroup.CgroupError):
                continue
        found.difference_update(self._protected)
        return found.pop() if len(found) == 1 else None
