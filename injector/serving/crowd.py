"""The open connections of a listener: so many and no more, and the newcomer is not the one that has to go."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar

log = logging.getLogger(__name__)

# A worker's. API servers need as many as they ask at once: tens, hundreds in a storm (each has 200 mutating requests
# in flight at most, by default). With what each may hold, the worst case fits into the container: a test adds it up.
MAX_CONNECTIONS: Final = 512
SAY_AGAIN: Final = 60.0  # seconds


class Member(Protocol):
    """A connection, as far as it matters here."""

    transport: asyncio.Transport
    proven: bool  # whether it ever sent a whole request
    since: float  # when it last began or ended one, by the loop's clock


M = TypeVar("M", bound=Member)


class Crowd(Generic[M]):
    """Anybody in the cluster can connect and say nothing; the API server's next connection must still be served."""

    def __init__(self) -> None:
        self._members: set[M] = set()
        self._now = asyncio.get_running_loop().time
        self._said = -SAY_AGAIN

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[M]:
        return iter(tuple(self._members))

    def add(self, newcomer: M) -> None:
        """Lets it in. When there are too many, the one goes that never asked, or else the longest idle one."""
        if len(self._members) >= MAX_CONNECTIONS:
            least = min(self._members, key=lambda member: (member.proven, member.since))
            self._members.discard(least)
            least.transport.abort()  # closing would wait for a client that does not speak
            if self._now() - self._said >= SAY_AGAIN:
                self._said = self._now()
                log.warning("too many connections: the longest idle are closed", extra={"limit": MAX_CONNECTIONS})
        self._members.add(newcomer)

    def discard(self, gone: M) -> None:
        """It has ended."""
        self._members.discard(gone)
