"""Processes as /proc shows them, held so that a reused pid cannot be mistaken for its predecessor.

A directory of /proc, once opened, belongs to that one process: when it ends, everything below the descriptor fails with
ESRCH, whoever has its number by then. So there is no need for pidfds (which know no process outside our own pid
namespace) nor for comparing start times.
"""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from cni_agent.kernel.netns import Identity
from cni_agent.node import cgroup

GONE: Final = (FileNotFoundError, ProcessLookupError)  # no such entry; ended after it was opened
_DIRECTORY: Final = os.O_DIRECTORY | os.O_PATH | os.O_CLOEXEC
_MOST_PIDS: Final = 4096  # of one pod; a namespace shows in the first few
_MOST_BYTES: Final = 65536
_UNSETTLED_SECONDS: Final = 3.0  # runtimes move a process to its cgroup within milliseconds of making it


class Process:
    """One process, for as long as it is open here."""

    def __init__(self, proc: str, pid: int) -> None:
        self.pid = pid
        self._directory = os.open(f"{proc}/{pid}", _DIRECTORY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._directory)

    def cgroup(self) -> str:
        """Its /proc/PID/cgroup. Names of cgroups are bytes to the kernel; odd ones must not stop us."""
        descriptor = os.open("cgroup", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
        try:
            chunks = []
            while chunk := os.read(descriptor, 65536):
                chunks.append(chunk)
        finally:
            os.close(descriptor)
        return b"".join(chunks).decode("utf-8", "surrogateescape")

    def network(self) -> Identity:
        """Which network namespace it is in right now."""
        status = os.stat("ns/net", dir_fd=self._directory)
        return Identity(status.st_dev, status.st_ino)

    def open_network(self) -> int:
        """A descriptor of its network namespace; it stays valid whatever becomes of the process."""
        return os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)


class _Entry(NamedTuple):
    """A directory of /proc, told apart from a later one of the same name."""

    pid: int
    inode: int


def pids(proc: str) -> list[int]:
    """All processes that this /proc shows."""
    return [entry.pid for entry in _entries(proc)]


def _entries(proc: str) -> list[_Entry]:
    with os.scandir(proc) as found:
        return [_Entry(int(entry.name), entry.inode()) for entry in found if entry.name.isdecimal()]


def by_pod(proc: str, among: Iterable[int]) -> Iterator[tuple[str, int]]:
    """The pod uid of each process that is in a pod's cgroup. Some 30 µs a process."""
    for pid in among:
        try:
            with Process(proc, pid) as process:
                uid = cgroup.membership(process.cgroup()).pod_uid
        except (*GONE, PermissionError, cgroup.CgroupError):
            continue
        if uid:
            yield uid, pid


class Finder(Protocol):
    """Which processes may be in a pod; what they really are is for the proof to say."""

    blind: bool  # there are processes that it cannot see

    def of_pod(self, uid: str, containers: Iterable[str]) -> list[int]:
        """Processes of a pod, from its uid and the cgroup directories of its containers."""


class FromCgroups:
    """Reads `cgroup.procs`. It speaks in pids of the reader's pid namespace, so it needs the host's: v2 shows 0 for
    processes of another, v1 nothing."""

    def __init__(self) -> None:
        self.blind = os.getpid() == 1  # the first process of a container, not of a node

    def of_pod(self, uid: str, containers: Iterable[str]) -> list[int]:
        found: list[int] = []
        for directory in containers:
            found.extend(_pids_below(directory))
        self.blind |= 0 in found
        return [pid for pid in found if pid > 0][:_MOST_PIDS]


class FromHostProc:
    """Looks for new entries of a mounted host /proc, for an agent in a pid namespace of its own.

    An entry is read again for a few seconds, since runtimes move a process to its cgroup after making it. Numbers are
    given again, inodes of /proc/PID are not: a new process has a new one (the listing has it, so it costs nothing). The
    same process may get a new one too, when the kernel is short of memory; then it is read once more.
    """

    def __init__(self, proc: str) -> None:
        self.blind = False
        self._proc = proc
        self._first_seen: dict[_Entry, float] = {}
        self._of_pod: dict[_Entry, str] = {}
        self._looked = 0.0

    def of_pod(self, uid: str, containers: Iterable[str]) -> list[int]:
        now = time.monotonic()
        if now - self._looked > 0.001:  # one look serves all pods of a burst
            self._look(now)
            self._looked = time.monotonic()
        return [entry.pid for entry, owner in self._of_pod.items() if owner == uid]

    def _look(self, now: float) -> None:
        self._first_seen = {entry: self._first_seen.get(entry, now) for entry in _entries(self._proc)}
        unsettled = {entry.pid: entry for entry, seen in self._first_seen.items() if now - seen < _UNSETTLED_SECONDS}
        self._of_pod = {entry: uid for entry, uid in self._of_pod.items() if entry in self._first_seen}
        self._of_pod.update((unsettled[pid], uid) for uid, pid in by_pod(self._proc, unsettled))


def finder(proc: str) -> tuple[Finder, str]:
    """The finder that works from here, and a sentence that says which it is and why."""
    if shares_pid_namespace(proc):
        return FromCgroups(), f"cgroup.procs: this agent is in the pid namespace that {proc} shows"
    return FromHostProc(proc), f"new entries of {proc}: this agent has a pid namespace of its own"


def shares_pid_namespace(proc: str) -> bool:
    """Whether pids mean the same to us as to this /proc: then it gives us one number only (NSpid)."""
    for line in Path(proc, "self", "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return len(line.split()) == 2
    return True  # kernels before 4.1, where NSpid is missing, are older than all that we support


def _pids_below(directory: str) -> Iterator[int]:
    """The processes of a container; when there are none directly, those of cgroups that it made below its own."""
    try:
        descriptor = os.open(f"{directory}/cgroup.procs", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # removed meanwhile
    try:
        found = [int(word) for word in os.read(descriptor, _MOST_BYTES).split()]
    except OSError:
        return  # ENODEV while it is being removed
    finally:
        os.close(descriptor)
    yield from found
    if not found:
        try:
            with os.scandir(directory) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return
        for path in below:
            yield from _pids_below(path)
