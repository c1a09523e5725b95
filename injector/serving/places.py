"""Places for large bodies: only so many are in memory at once, however many clients push."""

import asyncio
from collections import deque
from typing import Final

LARGE_AT_ONCE: Final = 8


class Places:
    """The places of one listener. Who has none is not read from until it gets one."""

    def __init__(self) -> None:
        self._holders: set[asyncio.Transport] = set()
        self._waiting: deque[asyncio.Transport] = deque()

    def ask(self, transport: asyncio.Transport) -> None:
        """For a connection whose body turned out to be large; more than once does no harm."""
        if transport in self._holders or transport in self._waiting:
            return
        if len(self._holders) < LARGE_AT_ONCE:
            self._holders.add(transport)
        else:
            self._waiting.append(transport)
            transport.pause_reading()

    def leave(self, transport: asyncio.Transport) -> None:
        """Gives the place to the next one; for a connection that has none, nothing."""
        if transport in self._waiting:
            self._waiting.remove(transport)
            transport.resume_reading()
        elif transport in self._holders:
            self._holders.remove(transport)
            if self._waiting:
                following = self._waiting.popleft()
                self._holders.add(following)
                following.resume_reading()
