"""A pod's network namespace: opened once, proven, then used by its descriptor and never again by its path.

A worker thread enters it just long enough to open sockets; what is done through those happens in the namespace from
any thread. The main thread never does: /proc/self stands for it, and signal handlers run in it. For the main thread, a
thread of its own goes; handing over to that costs more than the rest on a busy node, so worker threads go themselves.
One that could not come back must never do ordinary work again, which would be done to the wrong namespace.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import stat
import threading
from collections.abc import Callable, Collection
from queue import SimpleQueue
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from cni_agent.invalid import shown
from cni_agent.kernel.failure import Failure, NetnsRefused
from cni_agent.kernel.own_thread import in_own_thread, start

CLONE_NEWNET: Final = 0x40000000
NS_GET_USERNS: Final = 0xB701
NS_GET_NSTYPE: Final = 0xB703
INITIAL_INODE: Final = 0xEFFFFFF9  # the node's own network namespace since Linux 6.18; no other ever had this number

T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)  # os.setns and os.unshare come with Python 3.12
_setns = ctypes.PyDLL(None, use_errno=True).setns  # too short to let other threads of the interpreter in


class Identity(NamedTuple):
    """What tells one namespace from every other that exists now, whatever path leads to it."""

    device: int
    inode: int


class Netns:
    """An open network namespace that is not the node's. A context manager: leaving it closes the descriptor."""

    def __init__(self, descriptor: int, name: str, hosts: Collection[Identity] | None = None) -> None:
        """Takes over `descriptor`, and closes it when refused.

        `hosts`: what is refused, by who knows it all along; else our own and that of process 1, as they are now.
        """
        self.fd = descriptor
        self.name = name
        try:
            self.identity = _proven(descriptor, name, hosts)
            self.foreign_owner = _is_foreign(descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: str, hosts: Collection[Identity] | None = None) -> Self:
        """Opens by path. Raises `Failure`."""
        try:
            # O_PATH first: opening a device or a FIFO for reading has effects of its own
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            raise _unopenable(path, error) from None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise _not_a_namespace(path)
            descriptor = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _unopenable(path, error) from None
        finally:
            os.close(handle)
        return cls(descriptor, path, hosts)

    @classmethod
    def scratch(cls) -> Self:
        """A new, empty namespace that nobody else sees; it is gone when closed."""

        def unshare() -> int:
            if _libc.unshare(CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        try:
            return cls(in_own_thread(unshare), "scratch")
        except OSError as error:
            message = f"cannot make a scratch namespace: {error.strerror}"
            if error.errno == errno.EPERM:
                raise NetnsRefused("not-permitted", message) from None
            raise Failure("system", message) from None

    def open_inside(self, work: Callable[[], T]) -> T:
        """Runs `work`, which must be short and open sockets or files only, inside. Raises `NetnsRefused`."""
        if threading.current_thread() is threading.main_thread():
            return _doorway.run(self, work)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(self)
            return work()
        finally:
            if _setns(home, CLONE_NEWNET) != 0:
                _stranded()
            os.close(home)

    def run_inside(self, work: Callable[[], T]) -> T:
        """Runs `work` inside in a thread that ends with it; a program that it starts lives in the namespace too."""

        def enter() -> T:
            _enter(self)
            return work()

        return in_own_thread(enter)

    def owner(self) -> int:
        """A descriptor of the user namespace that owns this one. The caller closes it."""
        try:
            return fcntl.ioctl(self.fd, NS_GET_USERNS)
        except OSError as error:
            raise _unopenable(self.name, error) from None

    def lock_environment(self) -> dict[str, str]:
        """Makes legacy iptables lock this namespace instead of the whole node."""
        return {"XTABLES_LOCKFILE": f"/proc/{os.getpid()}/fd/{self.fd}"}

    def close(self) -> None:
        """Closes the descriptor; a second call does nothing."""
        descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def identity(where: str | int) -> Identity:
    """The identity of the namespace behind a path, or of an open one."""
    found = os.stat(where)
    return Identity(found.st_dev, found.st_ino)


def host_identity(proc: str = "/proc") -> Identity:
    """The node's namespace, that of process 1 of this procfs. Raises `NetnsRefused` when it cannot be known."""
    try:
        return identity(f"{proc}/1/ns/net")
    except OSError as error:
        message = f"cannot tell the node's own namespace from {proc}/1/ns/net: {error.strerror}; needs CAP_SYS_PTRACE"
        raise NetnsRefused("host-unknown", message) from None


def never_a_pods(proc: str = "/proc") -> frozenset[Identity]:
    """The node's namespace and the one that this program lives in. Raises `NetnsRefused` when they cannot be known."""
    return frozenset({host_identity(proc), identity("/proc/self/ns/net")})


class _Doorway:
    """The one thread that goes into namespaces and comes back. Made anew when it could not come back."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._jobs: SimpleQueue[tuple[Netns, Callable[[], object]]] | None = None
        self._answers: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        self._process = 0

    def run(self, netns: Netns, work: Callable[[], T]) -> T:
        with self._turn:
            if self._jobs is None or self._process != os.getpid():  # a forked child has no threads
                jobs: SimpleQueue[tuple[Netns, Callable[[], object]]] = SimpleQueue()
                self._answers = SimpleQueue()
                home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)  # here, where it can be told
                arguments = (home, jobs, self._answers)
                try:
                    start(threading.Thread(target=self._serve, args=arguments, name="netns-doorway", daemon=True))
                except Failure:
                    os.close(home)
                    raise
                self._jobs, self._process = jobs, os.getpid()
            self._jobs.put((netns, work))
            result, error = self._answers.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # what `work` gave

    def _serve(
        self,
        home: int,
        jobs: "SimpleQueue[tuple[Netns, Callable[[], object]]]",
        answers: "SimpleQueue[tuple[object, BaseException | None]]",
    ) -> None:
        while True:
            netns, work = jobs.get()
            result: object = None
            failure: BaseException | None = None
            try:
                _enter(netns)
                result = work()
            except BaseException as error:  # noqa: BLE001 -- raised again in the thread that asked
                failure = error
            if _setns(home, CLONE_NEWNET) != 0:
                self._jobs = None
                os.close(home)
                answers.put((result, failure))
                return
            answers.put((result, failure))
            del netns, work, result, failure  # or they would live until the next job


_doorway = _Doorway()


def _stranded() -> None:
    """A thread of a pool cannot be discarded and must not go on: the program ends, which is safe at any instruction."""
    os.write(2, b"cni-agent: a thread could not leave a pod's network namespace: ending the program\n")
    os._exit(70)


def _enter(netns: Netns) -> None:
    if _setns(netns.fd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise NetnsRefused(
            "not-permitted" if number == errno.EPERM else "gone",
            f"cannot enter {shown(netns.name)}: {os.strerror(number)}"
            + ("; needs CAP_SYS_ADMIN over it" if number == errno.EPERM else ""),
        )


def _proven(descriptor: int, name: str, hosts: Collection[Identity] | None) -> Identity:
    found = os.fstat(descriptor)
    try:
        kind = fcntl.ioctl(descriptor, NS_GET_NSTYPE) if stat.S_ISREG(found.st_mode) else 0
    except OSError:  # ENOTTY: some other kind of file
        kind = 0
    if kind != CLONE_NEWNET:
        raise _not_a_namespace(name)
    proven = Identity(found.st_dev, found.st_ino)
    if proven.inode == INITIAL_INODE or proven in (_own_and_first() if hosts is None else hosts):
        message = f"{shown(name)} is the network namespace of the node or of this program: refused"
        raise NetnsRefused("host-namespace", message)
    return proven


def _own_and_first() -> set[Identity]:
    """The namespace this program lives in, and that of process 1 where it may be seen."""
    refused = {identity("/proc/self/ns/net")}
    with contextlib.suppress(OSError):  # hidden without CAP_SYS_PTRACE; who has the node's procfs passes `hosts`
        refused.add(identity("/proc/1/ns/net"))
    return refused


def _is_foreign(descriptor: int) -> bool:
    """Whether another user namespace owns it (`hostUsers: false`): some matches are then refused to us."""
    try:
        owner = fcntl.ioctl(descriptor, NS_GET_USERNS)
    except OSError as error:
        if error.errno == errno.EPERM:  # owned above us, where we have no rights anyway; the kernel will say so
            return False
        raise Failure("system", f"cannot tell whose network namespace it is: {error.strerror}") from None
    try:
        return identity(owner) != _own_users(os.getpid())
    finally:
        os.close(owner)


@functools.lru_cache(1)
def _own_users(process: int) -> Identity:
    """The user namespace that this program lives in, for as long as it does."""
    return identity("/proc/self/ns/user")


def _not_a_namespace(name: str) -> NetnsRefused:
    return NetnsRefused("not-a-namespace", f"{shown(name)} is not a network namespace: refused")


def _unopenable(name: str, error: OSError | ValueError) -> Failure:
    path = shown(name)
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
        return NetnsRefused("not-permitted", f"cannot open {path}: {error.strerror}; needs root (CAP_SYS_PTRACE)")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return Failure("system", f"cannot open {path}: {error.strerror}")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return NetnsRefused("gone", f"cannot open {path}: {reason}")
