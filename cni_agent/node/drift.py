"""What to do when somebody else changes a pod's rules, and how the event loop hears of it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal

from cni_agent.kernel.notices import Notices

Mode = Literal["repair", "report", "off"]


class Following:
    """Calls `changed` after each transaction that the kernel announces, until it is closed, the notices with it."""

    def __init__(self, notices: Notices, loop: asyncio.AbstractEventLoop, changed: Callable[[], None]) -> None:
        self.notices = notices
        self._loop = loop
        self._changed = changed
        loop.add_reader(notices, self._readable)

    def close(self) -> None:
        self._loop.remove_reader(self.notices)
        self.notices.close()

    def _readable(self) -> None:
        with contextlib.suppress(OSError):
            if self.notices.transactions():
                self._changed()
