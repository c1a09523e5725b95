"""Notices that mounted files changed: the kubelet's symlink swap, an editor's rename, a plain rewrite.

By asking, not by inotify: the kubelet replaces the `..data` symlink above the files, so a watch on the file sees
nothing, and some volume drivers report no events at all. A few stats a second are cheaper than being wrong.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Final

INTERVAL: Final = 0.25  # seconds

Signature = tuple[tuple[int, ...] | None, ...]


def signature(paths: Sequence[str]) -> Signature:
    """Differs when the content may: device, inode, size and time of what each path leads to; None when absent."""
    return tuple(_stat(path) for path in paths)


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


async def changes(paths: Sequence[str], since: Signature, interval: float = INTERVAL) -> AsyncIterator[Signature]:
    """Yields the new signature whenever the files changed and then stayed the same for one interval.

    The wait keeps us from reading a file that is half written, or a certificate whose key is yet to come.
    """
    previous = since
    while True:
        await asyncio.sleep(interval)
        now = signature(paths)
        if now != since and now == previous:
            since = now
            yield now
        previous = now
