"""The kubepods cgroup tree: which pods have containers on this node, as it changes.

The kubelet makes `kubepods[/tier]/pod<uid>` and the runtime makes one directory per container below it, the sandbox
first; inotify tells of both at once. Only names are kept here: what runs inside is read from /proc when it is wanted.
Watches are bounded by the number of pods; a full queue or a missing watch costs a look at the whole tree, not a pod.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from cni_agent.node import cgroup, inotify

_MASK: Final = inotify.CREATE | inotify.DELETE | inotify.MOVED_TO | inotify.MOVED_FROM | inotify.ONLYDIR
_GONE: Final = inotify.DELETE | inotify.MOVED_FROM
# A kubelet may have its own cgroup root, and node images nest: /kc/kubepods, /kubelet.slice/kubelet-kubepods.slice
_DEPTH: Final = 4
_MOST_ABOVE: Final = 512  # directories looked at above kubepods; a node has a few dozen
_NEVER_ABOVE: Final = (".service", ".mount", ".socket", ".swap", ".device", ".automount")  # systemd's leaves
# cgroup v1: any controller will do, the kubelet uses all of them; these are never compiled out
_PREFERRED: Final = ("", "memory", "pids", "cpu", "devices", "name=systemd")


class _Place(NamedTuple):
    """A watched directory: `depth` counts the levels above kubepods, `uid` is set for a pod's own."""

    path: str
    depth: int
    below_kubepods: bool
    uid: str | None


class Sandboxes:
    """Follows the tree below `hierarchies`; calls `changed` with the uid of each pod that got or lost a container.

    `overflowed` hears of each time that the kernel dropped events.
    """

    def __init__(
        self, hierarchies: Iterable[str], changed: Callable[[str], None], overflowed: Callable[[], None]
    ) -> None:
        self.hierarchies = tuple(hierarchies)
        self.containers: dict[str, set[str]] = {}
        self.kubepods: set[str] = set()
        self.unwatched: set[str] = set()  # directories for which no watch was to be had
        self._changed = changed
        self._overflowed = overflowed
        self._inotify = inotify.Inotify()
        self._places: dict[int, _Place] = {}
        self._attended: dict[int, str] = {}  # by watch: the pod whose processes are waited for
        self._attending: dict[str, dict[str, list[int]]] = {}  # the same by pod and container
        self._above = 0

    def fileno(self) -> int:
        """Readable when the tree has changed."""
        return self._inotify.fileno()

    def close(self) -> None:
        self._inotify.close()

    def look(self) -> None:
        """Walks the whole tree: at start, after lost events, and when watches were missing."""
        before = self.containers
        self.containers, self.kubepods, self.unwatched, self._above = {}, set(), set(), 0
        for hierarchy in self.hierarchies:
            self._enter(_Place(hierarchy, 0, below_kubepods=False, uid=None))
            if self.kubepods:
                break  # every hierarchy of cgroup v1 shows the same pods
        self._leave_the_rest()
        for uid in before.keys() | self.containers.keys():
            if before.get(uid) != self.containers.get(uid):
                self._changed(uid)

    def attend(self, uid: str) -> None:
        """Tells of processes that enter the pod's containers, too, until `neglect`.

        Runtimes write them to `cgroup.procs`; those that clone straight into a cgroup (v2) flip `populated` in
        `cgroup.events`. Neither tells when a process then changes its network namespace: nothing does.
        """
        attending = self._attending.setdefault(uid, {})
        for directory in self.containers.get(uid, set()).difference(attending):
            watches = attending.setdefault(directory, [])
            for name in ("cgroup.procs", "cgroup.events"):
                with contextlib.suppress(OSError):  # v1 has no cgroup.events; without a watch there are looks
                    watches.append(self._inotify.add(f"{directory}/{name}", inotify.MODIFY))
            self._attended.update(dict.fromkeys(watches, uid))

    def neglect(self, uid: str) -> None:
        """The pod is captured, or its containers are gone."""
        for watches in self._attending.pop(uid, {}).values():
            for watch in watches:
                if self._attended.pop(watch, None) is not None:
                    self._inotify.remove(watch)

    def read(self) -> None:
        """Takes in what happened since the last call."""
        changed: dict[str, None] = {}
        again = False
        for event in self._inotify.read():
            if event.overflow:
                self._overflowed()
                again = True
            elif event.mask & inotify.IGNORED:
                self._places.pop(event.watch, None)
                self._attended.pop(event.watch, None)
            elif event.watch in self._attended:
                changed[self._attended[event.watch]] = None
            elif event.watch in self._places and event.mask & inotify.ISDIR:
                again |= self._happened(self._places[event.watch], event, changed)
        for uid in changed:
            if not self.containers.get(uid):
                self.neglect(uid)
            self._changed(uid)
        if again:
            self.look()

    def _happened(self, place: _Place, event: inotify.Event, changed: dict[str, None]) -> bool:
        """One directory came or went; True when the tree must be looked for anew."""
        path = f"{place.path}/{event.name}"
        if not event.mask & _GONE:
            found_before = bool(self.kubepods)
            changed.update(dict.fromkeys(self._found(place, event.name)))
            return bool(self.kubepods) and not found_before
        if path in self.kubepods:
            return True
        if place.uid is not None:
            self.containers.get(place.uid, set()).discard(path)
            changed[place.uid] = None
        else:
            uid = cgroup.pod_uid(event.name)
            if uid is not None and self.containers.pop(uid, None) is not None:
                changed[uid] = None
        return False

    def _enter(self, place: _Place) -> Iterable[str]:
        """Watches a directory, then reads it: what was made in between is seen twice rather than not at all."""
        try:
            self._places[self._inotify.add(place.path, _MASK)] = place
        except inotify.LimitReached:
            self.unwatched.add(place.path)
        except OSError:
            return []  # removed meanwhile, or no directory
        if place.uid is not None:
            self.containers.setdefault(place.uid, set())
        uids: list[str] = [] if place.uid is None else [place.uid]
        for name in _directories(place.path):
            uids.extend(self._found(place, name))
        return uids

    def _found(self, place: _Place, name: str) -> Iterable[str]:
        """Takes in one directory below a watched one; returns the pods that it concerns."""
        path = f"{place.path}/{name}"
        if place.uid is not None:
            self.containers.setdefault(place.uid, set()).add(path)
            return [place.uid]
        uid = cgroup.pod_uid(name)
        if uid is not None and ":" in name:
            # A runtime set to cgroupfs under a kubelet set to systemd makes one directory of slice, prefix and id.
            self.containers.setdefault(uid, set()).add(path)
            return [uid]
        if place.below_kubepods:
            if uid is not None or cgroup.is_tier(name):
                return self._enter(_Place(path, place.depth, below_kubepods=True, uid=uid))
            return []
        if cgroup.is_kubepods(name):
            self.kubepods.add(path)
            return self._enter(_Place(path, place.depth, below_kubepods=True, uid=None))
        if place.depth < _DEPTH and self._above < _MOST_ABOVE and not name.endswith(_NEVER_ABOVE):
            self._above += 1
            return self._enter(_Place(path, place.depth + 1, below_kubepods=False, uid=None))
        return []

    def _leave_the_rest(self) -> None:
        """Once kubepods is found, only its own ancestors are worth a watch: there it would be made anew."""
        if not self.kubepods:
            return
        for watch, place in list(self._places.items()):
            if not place.below_kubepods and not any(f"{path}/".startswith(place.path + "/") for path in self.kubepods):
                self._inotify.remove(watch)


def hierarchies(cgroup_root: str | None, mountinfo: str) -> list[str]:
    """The cgroup hierarchies to look for kubepods in, the best first.

    `cgroup_root` may be a hierarchy, a folder of them (/sys/fs/cgroup with cgroup v1), or any folder inside one.
    """
    if cgroup_root is not None:
        root = Path(cgroup_root)
        if (root / "cgroup.procs").exists():
            return [str(root)]
        below = [root / name for name in _directories(str(root))]
        found = [
            str(path) for path in sorted(below, key=lambda path: _rank(path.name)) if (path / "cgroup.procs").exists()
        ]
        return found or [str(root)]
    return [mount for _, mount in sorted(_mounts(mountinfo))]


def _mounts(mountinfo: str) -> Iterator[tuple[int, str]]:
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if kind[0] == "cgroup2":
            yield 0, _unescaped(fields[4])
        elif kind[0] == "cgroup":
            yield min(map(_rank, kind[2].split(","))), _unescaped(fields[4])


def _rank(controller: str) -> int:
    return _PREFERRED.index(controller) if controller in _PREFERRED else len(_PREFERRED)


def _unescaped(path: str) -> str:
    """A path of mountinfo, in which the kernel writes blanks as octal."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")


def _directories(path: str) -> list[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
