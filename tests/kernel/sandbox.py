"""A node and its pods for tests, of real processes, namespaces and cgroups, built the way runtimes build them.

`in_node` runs a test inside a pid, mount and network namespace of its own: process 1 there is the node's, its network
namespace is what an agent must never touch, and a bug in what is tested cannot reach the machine's. When the test ends
the kernel ends everything inside. `Sandbox` is one pod: its cgroup, then a container cgroup, then a process that starts
in the *node's* network namespace inside that cgroup (`runc:[0:PARENT]`) and only then moves into the pod's.
"""

import ctypes
import fcntl
import functools
import json
import os
import pickle
import select
import signal
import socket
import struct
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from cni_agent.kernel.netns import CLONE_NEWNET, Netns

P = ParamSpec("P")
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_PRIVATE_ALL = 0x44000  # MS_REC | MS_PRIVATE
PR_SET_PDEATHSIG = 1
HIERARCHIES = {"v1": Path("/sys/fs/cgroup/pids"), "v2": Path("/sys/fs/cgroup/unified")}


def in_node(test: Callable[P, None]) -> Callable[P, None]:
    """Runs a test inside a node of its own."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        kind, text = run_in_node(lambda: test(*args, **kwargs))
        if kind == "skipped":
            pytest.skip(text)
        assert kind == "passed", text

    return wrapper


def run_in_node(scenario: Callable[[], None], timeout: float = 580.0) -> tuple[str, str]:
    """Runs a scenario in new namespaces; what became of it, and the traceback."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    read, write = os.pipe()
    outer = os.fork()
    if outer == 0:
        os.close(read)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if LIBC.unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) != 0:
            os.write(write, pickle.dumps(("skipped", "needs the right to make namespaces")))
            os._exit(0)
        first = os.fork()
        if first == 0:
            _first_process(scenario, write)
        os.waitpid(first, 0)
        os._exit(0)
    os.close(write)
    try:
        return _verdict(read, outer, time.monotonic() + timeout)
    finally:
        os.close(read)
        with suppress(ProcessLookupError):
            os.kill(outer, signal.SIGKILL)
        os.waitpid(outer, 0)


def _verdict(read: int, outer: int, deadline: float) -> tuple[str, str]:
    data = b""
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return "failed", "the scenario did not end in time"
        chunk = os.read(read, 65536)
        if not chunk:
            break
        data += chunk
        with suppress(pickle.UnpicklingError, EOFError):
            verdict: tuple[str, str] = pickle.loads(data)
            return verdict
    return "failed", "the scenario died without a word"


def _first_process(scenario: Callable[[], None], write: int) -> None:
    """Process 1 of the node: reaps, and ends with the scenario; the kernel then ends all that is left."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    LIBC.mount(b"none", b"/", None, MS_PRIVATE_ALL, None)
    if LIBC.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        os._exit(1)
    _loopback_up()
    main = os.fork()
    if main == 0:
        try:
            scenario()
            verdict = ("passed", "")
        except pytest.skip.Exception as skipped:
            verdict = ("skipped", str(skipped))
        except BaseException:  # noqa: BLE001 -- reported by the parent
            verdict = ("failed", traceback.format_exc())
        os.write(write, pickle.dumps(verdict))
        os._exit(0)
    while True:
        ended, _ = os.wait()
        if ended == main:
            os._exit(0)


def _loopback_up(address: str | None = None) -> None:
    """Brings lo up in the current namespace, with a second address, without starting a program."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh22x", b"lo", 0x49))  # SIOCSIFFLAGS, UP|LOOPBACK|RUNNING
        if address is not None:
            packed = struct.pack("16sHH4s16x", b"lo:1", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, 0x8916, packed)  # SIOCSIFADDR


class Node:
    """A kubepods tree of this test's own, below one hierarchy of the machine's cgroups."""

    def __init__(self, hierarchy: Path, kubelet_root: str = "") -> None:
        self.root = hierarchy / f"initless-test-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.kubepods = self.root / kubelet_root / "kubepods"
        self.kubepods.mkdir(parents=True)

    def remove(self) -> None:
        """Once all processes have ended: directories of cgroups go one by one, deepest first."""
        for directory in sorted((Path(path) for path, _, _ in os.walk(self.root)), reverse=True):
            for _ in range(200):
                try:
                    directory.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)


@contextmanager
def node(version: str = "v1", kubelet_root: str = "") -> Iterator[Node]:
    """A node's cgroups; made outside `in_node`, so that they can be removed when all processes are gone."""
    hierarchy = HIERARCHIES[version]
    if not (hierarchy / "cgroup.procs").exists() or not os.access(hierarchy, os.W_OK) or os.geteuid() != 0:
        pytest.skip(f"needs root and cgroup {version} at {hierarchy}")
    made = Node(hierarchy, kubelet_root)
    try:
        yield made
    finally:
        made.remove()


# where drivers put a pod's cgroup, and how runtimes name a container's below it
DRIVERS = {
    "cgroupfs": ("burstable/pod{uid}", "{id}"),
    "cgroupfs, guaranteed": ("pod{uid}", "{id}"),
    "systemd, containerd": (
        "kubepods-besteffort.slice/kubepods-besteffort-pod{uid_}.slice",
        "cri-containerd-{id}.scope",
    ),
    "systemd, CRI-O": ("kubepods-burstable.slice/kubepods-burstable-pod{uid_}.slice", "crio-{id}.scope"),
    "systemd, Docker": ("kubepods-pod{uid_}.slice", "docker-{id}.scope"),
}


class Sandbox:
    """One pod. Everything happens when it is asked for, in the order of a runtime."""

    def __init__(
        self, kubepods: Path, address: str = "10.9.0.1", uid: str | None = None, driver: str = "cgroupfs"
    ) -> None:
        self.uid = uid or str(uuid.uuid4())
        self.address = address
        pod, container = DRIVERS[driver]
        names = {"uid": self.uid, "uid_": self.uid.replace("-", "_"), "id": uuid.uuid4().hex * 2}
        self.directory = kubepods / pod.format(**names)
        self.container = self.directory / container.format(**names)
        self.netns = Netns.scratch()
        self.netns.open_inside(lambda: _loopback_up(address))
        self.processes: list[int] = []

    def make_pod(self) -> None:
        """The kubelet: the pod's cgroup."""
        self.directory.mkdir(parents=True, exist_ok=True)

    def make_container(self) -> None:
        """The runtime: the cgroup of the sandbox container."""
        self.container.mkdir()

    def start(
        self,
        *,
        host_seconds: float = 0.0,
        stay_in_host: bool = False,
        other: "Sandbox | None" = None,
        gate: int = -1,
        report: int = -1,
    ) -> int:
        """The runtime: a process that enters the container's cgroup, and then the pod's namespace.

        It waits in the node's namespace for `host_seconds`, or stays there (`conmon`), or goes to another pod's. With a
        `gate`, a descriptor, nothing happens before a byte can be read from it; to `report` goes the time of arrival.
        """
        target = (other or self).netns.fd
        pid = os.fork()
        if pid == 0:
            self._be_a_process(gate, report, host_seconds, None if stay_in_host else target)
        self.processes.append(pid)
        return pid

    def _be_a_process(self, gate: int, report: int, host_seconds: float, target: int | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in range(3, 1024):  # nothing of the test's own, a listening socket least of all
            if descriptor not in (gate, report, target):
                with suppress(OSError):
                    os.close(descriptor)
        if gate >= 0:
            os.read(gate, 1)
        try:
            descriptor = os.open(self.container / "cgroup.procs", os.O_WRONLY)
            os.write(descriptor, b"0")  # 0: the writer itself
            os.close(descriptor)
            if host_seconds:
                time.sleep(host_seconds)
            if target is not None and LIBC.setns(target, CLONE_NEWNET) != 0:
                os._exit(3)
            if report >= 0:
                os.write(report, struct.pack("d", time.time()))
        except OSError:
            os._exit(2)
        while True:
            signal.pause()

    def run(self) -> None:
        """All of it, at once."""
        self.make_pod()
        self.make_container()
        self.start()

    def stop(self) -> None:
        """The runtime and the kubelet, when a pod ends."""
        for pid in self.processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.processes.clear()
        for directory in (self.container, self.directory):
            for _ in range(500):  # the last process leaves its cgroup a little after it was reaped
                try:
                    directory.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.002)
        self.netns.close()

    def in_namespace(self) -> bool:
        """Whether the last process made has arrived in the pod's namespace."""
        with suppress(OSError):
            status = os.stat(f"/proc/{self.processes[-1]}/ns/net")
            return (status.st_dev, status.st_ino) == self.netns.identity
        return False

    def manifest(self, **changes: Any) -> dict[str, Any]:
        """The pod as an injector left it. `changes` go to metadata.annotations, unless they name a part of the pod."""
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"app-{self.uid[:8]}",
                "namespace": "shop",
                "uid": self.uid,
                "annotations": {"sidecar.istio.io/status": "{}"},
            },
            "spec": {
                "nodeName": "node-1",
                "initContainers": [{"name": "istio-validation"}],
                "containers": [{"name": "app"}, {"name": "istio-proxy", "args": ["proxy", "sidecar"]}],
            },
            "status": {"phase": "Pending"},
        }
        for part, value in changes.items():
            pod[part].update(value)
        return pod


def write_manifest(folder: Path, pod: dict[str, Any]) -> None:
    """Puts a pod into a folder that an agent follows, the way files should be replaced."""
    path = folder / f"{pod['metadata']['uid']}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(pod))
    temporary.rename(path)


def eventually(condition: Callable[[], object], seconds: float = 20.0, what: str = "") -> None:
    """Waits for something to become true; the limit is for a broken build, not a measurement."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what or condition}"
        time.sleep(0.005)
