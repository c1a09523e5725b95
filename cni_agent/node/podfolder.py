"""Pods from a folder of manifests, one a file, instead of from the API: nodes without a cluster, demos, tests."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cni_agent.invalid import Invalid, Violation
from cni_agent.manifest import read_pod
from cni_agent.node import inotify
from cni_agent.podview import PodView

_MASK: Final = (
    inotify.CLOSE_WRITE | inotify.MOVED_TO | inotify.MOVED_FROM | inotify.DELETE | inotify.DELETE_SELF | inotify.ONLYDIR
)
SUFFIXES: Final = (".json", ".yaml", ".yml")

logger = logging.getLogger(__name__)


class PodFolder:
    """Reads all manifests, then follows their changes. A file that cannot be read keeps its last good version."""

    def __init__(self, folder: str, changed: Callable[[PodView], None], gone: Callable[[str], None]) -> None:
        self._folder = Path(folder)
        self._changed = changed
        self._gone = gone
        self._uids: dict[str, str] = {}  # by file name
        self._inotify = inotify.Inotify()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError when there is no such folder."""
        self._inotify.add(str(self._folder), _MASK)  # first: what changes while we read is then seen again
        self._read_all()
        loop.add_reader(self._inotify, self._happened)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._inotify)
        self._inotify.close()

    def _happened(self) -> None:
        names: dict[str, None] = {}
        for event in self._inotify.read():
            if event.overflow:
                self._read_all()
            elif event.mask & inotify.DELETE_SELF:
                logger.error("the folder of pods is gone", extra={"folder": str(self._folder)})
            else:
                names[event.name] = None
        for name in names:
            self._read(name)

    def _read_all(self) -> None:
        for name in sorted({*self._uids, *os.listdir(self._folder)}):  # noqa: PTH208 -- names, not paths
            self._read(name)

    def _read(self, name: str) -> None:
        if not name.endswith(SUFFIXES) or name.startswith("."):
            return
        try:
            pod = read_pod((self._folder / name).read_bytes(), name)
            if not pod.uid:
                raise Invalid([Violation(f"{name}: metadata.uid", "", "the uid that the pod's cgroup has")])
        except FileNotFoundError:
            self._forget(name)
            return
        except (OSError, Invalid) as error:
            logger.error("cannot read a pod", extra={"file": name, "error": str(error)})
            return
        if self._uids.get(name) not in (None, pod.uid):
            self._forget(name)
        self._uids[name] = pod.uid
        self._changed(pod)

    def _forget(self, name: str) -> None:
        uid = self._uids.pop(name, None)
        if uid is not None and uid not in self._uids.values():
            self._gone(uid)
