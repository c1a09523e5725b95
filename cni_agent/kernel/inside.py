"""The sockets through which a namespace is worked on, opened inside in one step."""

import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self

from cni_agent.capture import Family
from cni_agent.kernel import as_owner
from cni_agent.kernel.failure import KernelRefused
from cni_agent.kernel.netlink import NETLINK_NETFILTER, Channel, Refusal, refused
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.notices import Notices

_setfsuid = ctypes.CDLL(None).setfsuid
_setfsuid.argtypes, _setfsuid.restype = [ctypes.c_uint], ctypes.c_uint  # ids of pods go beyond 2**31
_NOBODY: Final = 2**32 - 1  # (uid_t) -1, which changes nothing: the only way to learn who one is
# The tables that legacy iptables has in a namespace; asking iptables-legacy itself would create them.
_LEGACY: Final[dict[Family, str]] = {
    4: "/proc/thread-self/net/ip_tables_names",
    6: "/proc/thread-self/net/ip6_tables_names",
}


class _Opened(NamedTuple):
    firewall: socket.socket | None
    routes: socket.socket
    legacy: dict[Family, tuple[str, ...]]


class Inside:
    """A namespace that is being worked on. A context manager: leaving it closes the sockets, not the namespace.

    `notices` get their socket along with the others, which stays open, and are renewed before each look at the rules.
    """

    def __init__(self, netns: Netns, notices: Notices | None = None) -> None:
        self.netns = netns
        self._notices = notices
        try:
            opened = netns.open_inside(lambda: _open(notices))
        except OSError as error:
            raise _no_socket(netns, error) from None
        self._firewall = Channel(opened.firewall) if opened.firewall else None
        if self._firewall and netns.foreign_owner:
            self._firewall.send_as_owner = self._send_as_owner
        self.routes = Channel(opened.routes)
        self.legacy_tables = opened.legacy

    @property
    def firewall(self) -> Channel:
        """The channel to nf_tables."""
        if self._firewall is None:
            raise KernelRefused(
                "no-nf-tables", "the kernel has no nfnetlink; run: modprobe nf_tables", errno.EPROTONOSUPPORT
            )
        return self._firewall

    @property
    def has_legacy_tables(self) -> bool:
        """Whether iptables-legacy was ever used here; its tables stay, empty or not."""
        return any(self.legacy_tables.values())

    def looking(self) -> None:
        """To be called before rules are read: of what changes after that, notices will tell."""
        if self._notices is not None:
            try:
                self._notices.renew()
            except OSError as error:
                message = f"cannot listen for changes in {self.netns.name}: {error.strerror}"
                raise KernelRefused("no-socket", message, error.errno or 0) from None

    def _send_as_owner(self, batch: bytes) -> None:
        number = as_owner.send(self.netns, self.firewall.socket, batch)
        if number:
            raise refused("writing as the owner of the namespace", Refusal(number, 0, ""))

    def raw_socket(self, family: Family) -> socket.socket:
        """The kind of socket that legacy iptables is programmed through. The caller closes it."""
        kind = socket.AF_INET if family == 4 else socket.AF_INET6
        try:
            return self.netns.open_inside(lambda: socket.socket(kind, socket.SOCK_RAW, socket.IPPROTO_RAW))
        except OSError as error:
            raise _no_socket(self.netns, error) from None

    def close(self) -> None:
        """Closes the sockets."""
        self.routes.close()
        if self._firewall:
            self._firewall.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def entered(where: Netns | Inside) -> Iterator[Inside]:
    """A namespace to work on, opened and closed unless that is done already by who works there."""
    if isinstance(where, Inside):
        yield where
    else:
        with Inside(where) as inside:
            yield inside


def _open(notices: Notices | None) -> _Opened:
    routes = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    firewall = None
    try:
        firewall = _open_firewall()
        if firewall and notices is not None and not notices.is_open:
            notices.open()
        return _Opened(firewall, routes, {family: _names(path) for family, path in _LEGACY.items()})
    except BaseException:
        routes.close()
        if firewall:
            firewall.close()
        raise


def _open_firewall() -> socket.socket | None:
    try:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    except OSError as error:
        if error.errno != errno.EPROTONOSUPPORT:
            raise
        return None


def _no_socket(netns: Netns, error: OSError) -> KernelRefused:
    return KernelRefused("no-socket", f"cannot open sockets in {netns.name}: {error.strerror}", error.errno or 0)


def _names(path: str) -> tuple[str, ...]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # this kernel has no legacy iptables
        return ()
    except PermissionError:
        descriptor = _open_as_owner(path)
    try:
        return tuple(os.read(descriptor, 4096).decode().split())
    finally:
        os.close(descriptor)


def _open_as_owner(path: str) -> int:
    """Opens a file that only the root of the pod's own user namespace may read (`hostUsers: false`).

    As that user, for this one call of this one thread: the right to read any file of the node would do too. From then
    on the kernel counts the whole program among those that changed their user: no core dump, and /proc/PID belongs to
    root, which it does anyway.
    """
    owner = os.stat(path).st_uid
    try:
        _setfsuid(owner)
        if _setfsuid(_NOBODY) != owner:
            message = f"cannot read {path} as its owner, user {owner}; needs CAP_SETUID"
            raise KernelRefused("not-permitted", message, errno.EPERM)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        _setfsuid(os.geteuid())
