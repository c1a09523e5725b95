"""Which namespaces are opened and which refused, whatever path leads to them; and threads that come back."""

import os
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_agent.backends import Backend, backend
from cni_agent.kernel import netns as netns_module
from cni_agent.kernel.failure import NetnsRefused
from cni_agent.kernel.netns import Identity, Netns, host_identity, identity
from cni_agent.kernel.own_thread import in_own_thread
from tests.kernel.tools import DEFAULT, NAMES, everything, sh, shown

pytestmark = pytest.mark.kernel
OWN = "/proc/self/ns/net"
ROOT = Path(__file__).parents[2]


def refusal(path: str) -> str:
    with pytest.raises(NetnsRefused) as caught:
        Netns.open(path).close()
    return caught.value.reason


@pytest.fixture
def bind_mount(tmp_path: Path) -> Iterator[str]:
    """This program's own namespace behind an innocent path, as `ip netns attach` makes it."""
    path = tmp_path / "innocent"
    path.touch()
    subprocess.run(["mount", "--bind", OWN, path], check=True)
    yield str(path)
    subprocess.run(["umount", path], check=True)


def test_our_own_namespace_is_refused_by_every_path(tmp_path: Path, bind_mount: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(OWN)
    descriptor = os.open(OWN, os.O_RDONLY)
    try:
        for path in (OWN, f"/proc/{os.getpid()}/ns/net", "/proc/thread-self/ns/net", str(link), bind_mount,
                     f"/proc/self/fd/{descriptor}", f"/proc/{os.getppid()}/ns/net"):  # fmt: skip
            assert refusal(path) == "host-namespace", path
        with pytest.raises(NetnsRefused, match="node or of this program"):
            Netns(os.dup(descriptor), "a descriptor")
    finally:
        os.close(descriptor)


def test_namespaces_that_the_caller_names_are_refused_too() -> None:
    with Netns.scratch() as other:
        path = f"/proc/self/fd/{other.fd}"
        with pytest.raises(NetnsRefused, match="refused"):
            Netns.open(path, hosts=[other.identity])
        with Netns.open(path, hosts=[Identity(other.identity.device, other.identity.inode + 1)]) as again:
            assert again.identity == other.identity


def test_what_is_no_network_namespace_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # opening it would wait for a writer for ever
    for path in ("/etc/passwd", "/dev/null", "/proc/self/ns/user", "/proc/self/ns/mnt", str(tmp_path), str(fifo)):
        assert refusal(path) == "not-a-namespace", path
    for path in ("/nowhere", "/proc/999999999/ns/net", "nul\0byte", "", "x" * 5000):
        assert refusal(path) == "gone", path


def test_the_host_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(NetnsRefused) as caught:
        host_identity(str(tmp_path))
    assert caught.value.reason == "host-unknown"


def test_descriptors_are_closed_when_refused() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in (OWN, "/etc/passwd", "/dev/null", "/nowhere", "/proc/self/ns/user"):
        refusal(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_namespace_outlives_its_path_and_its_processes() -> None:
    program = backend("iptables-nft")
    with subprocess.Popen(["unshare", "-n", "sleep", "60"]) as process:
        path = f"/proc/{process.pid}/ns/net"
        while identity(path) == identity(OWN):
            time.sleep(0.01)
        pod = Netns.open(path)
        process.kill()
    with pod:
        assert not Path(path).exists()
        assert program.apply(pod, program.ruleset(DEFAULT)) == "applied"


@pytest.mark.parametrize("thread", ["main", "worker"])
def test_work_is_done_inside_and_the_thread_comes_back(thread: str) -> None:
    def try_it() -> None:
        home = identity("/proc/thread-self/ns/net")
        with Netns.scratch() as pod:
            assert pod.open_inside(lambda: identity("/proc/thread-self/ns/net")) == pod.identity
            assert pod.run_inside(lambda: identity("/proc/thread-self/ns/net")) == pod.identity
            for enter in (pod.open_inside, pod.run_inside):
                with pytest.raises(ZeroDivisionError):
                    enter(lambda: 1 / 0)
            assert identity("/proc/thread-self/ns/net") == home
            with pod.open_inside(lambda: socket.create_server(("127.0.0.1", 0))) as server:
                assert server.getsockname()[1]

    if thread == "main":
        try_it()
    else:
        in_own_thread(try_it)


def test_a_thread_that_cannot_come_back_is_never_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way home fails once: the next job must get a new thread, and it must be at home."""
    doorway = netns_module._Doorway()
    monkeypatch.setattr(netns_module, "_doorway", doorway)
    real = netns_module._setns

    def broken(descriptor: int, kind: int) -> int:
        there = os.fstat(descriptor)
        if Identity(there.st_dev, there.st_ino) == identity(OWN):
            monkeypatch.setattr(netns_module, "_setns", real)
            return -1
        return int(real(descriptor, kind))

    with Netns.scratch() as pod:
        monkeypatch.setattr(netns_module, "_setns", broken)
        first = pod.open_inside(threading.get_native_id)
        assert pod.open_inside(threading.get_native_id) != first
        assert pod.open_inside(lambda: 1) == 1


def test_a_worker_that_cannot_come_back_ends_the_program() -> None:
    script = """
import threading
from cni_agent.kernel import netns
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.own_thread import in_own_thread
pod = Netns.scratch()
def broken(descriptor, kind, real=netns._setns):
    return real(descriptor, kind) if descriptor == pod.fd else -1
netns._setns = broken
in_own_thread(lambda: pod.open_inside(int))
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (70, "")
    assert "could not leave" in done.stderr


def entered(process: subprocess.Popen[bytes], path: str, own: str) -> None:
    """Waits until a process is in a namespace of its own."""
    while identity(path) == identity(own):
        assert process.poll() is None, "it could not make a namespace; in a chroot, for one, nobody can"
        time.sleep(0.01)


class Owned:
    """A network namespace that belongs to another user namespace, as pods with `hostUsers: false` have."""

    def __init__(self, mapping: str) -> None:
        self.process = subprocess.Popen(["unshare", "-Un", "sleep", "60"])
        path = Path(f"/proc/{self.process.pid}")
        entered(self.process, f"{path}/ns/user", "/proc/self/ns/user")
        (path / "uid_map").write_text(mapping)
        (path / "gid_map").write_text(mapping)
        self.path = f"{path}/ns/net"
        entered(self.process, self.path, OWN)

    def __enter__(self) -> Netns:
        return Netns.open(self.path)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(params=NAMES)
def program(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param)


def test_namespaces_of_another_user_namespace_work(program: Backend) -> None:
    ruleset = program.ruleset(DEFAULT)
    with Owned("0 100000 65536") as pod, pod, Netns.scratch() as ordinary:
        assert pod.foreign_owner
        assert not ordinary.foreign_owner
        assert program.apply(pod, ruleset) == "applied"
        program.apply(ordinary, ruleset)
        assert shown(pod, program.name) == shown(ordinary, program.name)
        assert program.check(pod, ruleset) == ()
        assert program.apply(pod, ruleset) == "unchanged"
        assert program.remove(pod)


@pytest.mark.parametrize("name", ["iptables-nft", "iptables-legacy"])
def test_a_user_namespace_without_the_proxy_id_is_refused(name: str) -> None:
    program = backend(name)  # type: ignore[arg-type]
    with Owned("0 100000 1") as pod, pod:
        before = everything(pod)
        with pytest.raises(NetnsRefused, match="not mapped") as caught:
            program.apply(pod, program.ruleset(DEFAULT))
        assert caught.value.reason == "user-namespace"
        assert everything(pod) == before


@pytest.mark.parametrize("user", [100000, 2594308096])  # the kubelet gives ids beyond 2**31, too
@pytest.mark.parametrize("lacking", ["", ",-setuid"])
def test_what_only_the_pods_own_root_may_read_is_read_as_that(user: int, lacking: str) -> None:
    """The legacy tables; or the lacking capability is named, and sockets are closed all the same."""
    script = """
import os, sys
from cni_agent.kernel.failure import Failure
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netns import Netns
pod = Netns.open(sys.argv[1])
pod.open_inside(int)  # whatever that opens for good
before = os.listdir("/proc/self/fd")
try:
    print("opened", Inside(pod).legacy_tables)
except Failure as error:  # its frames, and what they hold, are still there
    print(error.reason, len(os.listdir("/proc/self/fd")) - len(before), error)
"""
    owner = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "unshare", "-rU"]
    if subprocess.run([*owner, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a kernel that lets ordinary users make user namespaces")
    agent = ["setpriv", f"--bounding-set=-dac_override,-dac_read_search{lacking}", sys.executable, "-c", script]
    with subprocess.Popen([*owner, "unshare", "-n", "sleep", "60"]) as process:
        path = f"/proc/{process.pid}/ns/net"
        entered(process, path, OWN)
        done = subprocess.run([*agent, path], capture_output=True, text=True, timeout=30)
        process.kill()
    if lacking:
        assert done.stdout.startswith("not-permitted 0 "), done.stdout + done.stderr
        assert f"as its owner, user {user}; needs CAP_SETUID" in done.stdout
    else:
        assert done.stdout.startswith("opened"), done.stdout + done.stderr


def test_unprivileged_in_a_user_namespace_of_its_own() -> None:
    """What `unshare -rn` gives an ordinary user: all backends work in namespaces that it makes itself."""
    script = """
from cni_agent.backends import backend
from cni_agent.kernel.netns import Netns
from tests.kernel.tools import DEFAULT, NAMES, TPROXY, shown, write_with_tool
import dataclasses
for name in NAMES:
    program = backend(name)
    for capture in (DEFAULT, TPROXY):
        ours = dataclasses.replace(capture, proxy_uids=(0,), proxy_gids=(0,))
        with Netns.scratch() as pod, Netns.scratch() as tool:
            assert program.apply(pod, program.ruleset(ours)) == "applied"
            write_with_tool(tool, name, program.ruleset(ours))
            assert shown(pod, name) == shown(tool, name), name
            assert program.check(pod, program.ruleset(ours)) == ()
            assert program.remove(pod)
print("all of them")
"""
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-rn"]
    if subprocess.run([*nobody, "true"], capture_output=True).returncode != 0:
        pytest.skip("needs a kernel that lets ordinary users make user namespaces")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    runs = [*nobody, "env", f"PYTHONPATH={ROOT}:{sysconfig.get_path('purelib')}", "XTABLES_LOCKFILE=/dev/null"]
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if subprocess.run([*runs, python, "-c", "import cni_agent.rules"], capture_output=True).returncode == 0:
            break
    else:
        pytest.skip(f"needs a {version} and this project where an ordinary user may read them")
    done = subprocess.run([*runs, python, "-c", script], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.stdout == "all of them\n", done.stderr


def test_sh_is_inside(tmp_path: Path) -> None:
    """The other tests rely on it."""
    with Netns.scratch() as pod:
        assert sh(pod, "readlink /proc/self/ns/net").strip() == f"net:[{pod.identity.inode}]"
