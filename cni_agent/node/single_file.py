"""Work done by threads in single file: one piece behind the other, and the next beside it only when it takes long.

Work in a namespace is dozens of short system calls with a little Python between. Threads of one interpreter that do
such work at the same time take its lock from each other at every call: with four of them a burst of pods takes nearly
twice as long as with one. But a pod whose rules have yet to be minted, or that the kernel keeps waiting, must not hold
up the others: it is overtaken.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

_LONG: Final = 0.05  # seconds; a pod takes one or two thousandths

P = ParamSpec("P")
T = TypeVar("T")


class SingleFile(Executor):
    """Used from the thread of the event loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self._loop = loop
        self._most = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="backend")
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._files = 0  # threads at work
        self._taken = 0.0  # monotonic, when the last piece was begun
        self._watch: asyncio.TimerHandle | None = None

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor`."""
        future: Future[T] = Future()
        with self._lock:
            self._waiting.append((future, lambda: work(*args, **kwargs)))
            idle = self._files == 0
        if idle:
            self._open()
        if self._watch is None:
            self._watch = self._loop.call_later(_LONG, self._look)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`."""
        if self._watch is not None:
            self._watch.cancel()
        with self._lock:
            while cancel_futures and self._waiting:
                self._waiting.popleft()[0].cancel()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _look(self) -> None:
        """Another thread, if something waits and nothing was begun for long."""
        if not self._waiting:
            self._watch = None
            return
        if self._files < self._most and time.monotonic() - self._taken >= _LONG:
            self._open()
        self._watch = self._loop.call_later(_LONG, self._look)

    def _open(self) -> None:
        with self._lock:
            self._files += 1
            self._taken = time.monotonic()
        with contextlib.suppress(RuntimeError):  # no thread to be had: it is tried again at the next look
            self._pool.submit(self._work_off)

    def _work_off(self) -> None:
        begun = math.inf
        while True:
            with self._lock:
                overtaken = self._files > 1 and time.monotonic() - begun >= _LONG
                if overtaken or not self._waiting:
                    self._files -= 1
                    return
                future, work = self._waiting.popleft()
                self._taken = begun = time.monotonic()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 -- raised again by who asks for the result
                future.set_exception(error)
            del future, work  # or they would live until the next piece
