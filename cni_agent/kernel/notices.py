"""Changes that are made to the rules of a namespace, as the kernel announces them.

nf_tables tells of each committed transaction by multicast inside its network namespace. A socket costs nothing while
nothing happens, so changes are seen when they are made and not at the next poll. Legacy iptables announces nothing.
"""

import errno
import socket
from typing import Final

from cni_agent.kernel.netlink import NETLINK_NETFILTER, messages

NFNLGRP_NFTABLES: Final = 7
NEW_GENERATION: Final = 10 << 8 | 15  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWGEN: closes each transaction
_RECEIVE: Final = 65536
_OVERRUN: Final = 1000  # stands for "more than we could count"


class Notices:
    """Of one namespace. `cni_agent.kernel.inside` opens its socket there; `renew` is where it begins to listen."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._listening = False

    @property
    def is_open(self) -> bool:
        """Whether it has its socket."""
        return self._socket is not None

    def open(self) -> None:
        """Opens the socket, in the namespace that this thread is in."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, NETLINK_NETFILTER)

    def renew(self) -> None:
        """What was announced so far is of no interest, for the rules will be read after this; what comes later is.

        Before the first time the kernel has nobody to tell, and announces nothing: a fifth of what a commit takes.
        """
        if self._listening:
            self.transactions()
        else:
            self._opened.bind((0, 1 << (NFNLGRP_NFTABLES - 1)))
            self._listening = True

    def transactions(self) -> int:
        """How many transactions were announced since the last call; a few are enough to know."""
        count = 0
        while True:
            try:
                data = self._opened.recv(_RECEIVE)
            except BlockingIOError:
                return count
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # too many to hold: something did change
                    raise
                count += _OVERRUN
                continue
            count += sum(kind == NEW_GENERATION for kind, _, _ in messages(data))

    def fileno(self) -> int:
        """Readable when something was announced."""
        return self._opened.fileno()

    def close(self) -> None:
        """Closes the socket; a second call does nothing."""
        if self._socket is not None:
            self._socket.close()

    @property
    def _opened(self) -> socket.socket:
        assert self._socket is not None, "opened by Inside"
        return self._socket
