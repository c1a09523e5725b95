"""Changes that somebody else makes to a pod's rules, as the kernel announces them.

nf_tables tells of each committed transaction by multicast inside its network namespace. A socket costs nothing while
nothing happens, so changes are seen when they are made and not at the next poll. Legacy iptables announces nothing;
there, and for routes, the slow comparison has to do.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import Final, Literal

from cni_agent.kernel.failure import KernelRefused
from cni_agent.kernel.inside import NETLINK_NETFILTER
from cni_agent.kernel.netlink import messages
from cni_agent.kernel.netns import Netns

Mode = Literal["repair", "report", "off"]
NFNLGRP_NFTABLES: Final = 7
NEW_GENERATION: Final = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN: closes each transaction
_RECEIVE: Final = 65536
_OVERRUN: Final = 1000  # stands for "more than we could count"


class Notices:
    """A socket in a pod's namespace on which the kernel announces changes of nf_tables rules."""

    def __init__(self, netns: Netns) -> None:
        def listen() -> socket.socket:
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            opened = socket.socket(socket.AF_NETLINK, kind, NETLINK_NETFILTER)
            try:
                opened.bind((0, 1 << (NFNLGRP_NFTABLES - 1)))
            except OSError:
                opened.close()
                raise
            return opened

        try:
            self._socket = netns.open_inside(listen)
        except OSError as error:
            message = f"cannot listen for changes in {netns.name}: {error.strerror}"
            raise KernelRefused("no-socket", message, error.errno or 0) from None
        self._loop: asyncio.AbstractEventLoop | None = None

    def transactions(self) -> int:
        """How many transactions were announced since the last call; a few are enough to know."""
        count = 0
        while True:
            try:
                data = self._socket.recv(_RECEIVE)
            except BlockingIOError:
                return count
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # too many to hold: something did change
                    raise
                count += _OVERRUN
                continue
            count += sum(kind == NEW_GENERATION for kind, _, _ in messages(data))

    def follow(self, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        """Calls `changed` after each transaction from now on."""

        def readable() -> None:
            with contextlib.suppress(OSError):
                if self.transactions():
                    changed()

        self._loop = loop
        loop.add_reader(self._socket, readable)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
        self._socket.close()
