"""Threads that end with the one piece of work they were started for."""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from cni_agent.kernel.failure import Failure

T = TypeVar("T")


def in_own_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a new thread that ends with it, and gives its result or raises its exception."""
    answers: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
    thread = threading.Thread(target=_answer, args=(work, answers), name="netns", daemon=True)
    start(thread)
    result, error = answers.get()
    thread.join()
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # no error: it is the result


def start(thread: threading.Thread) -> None:
    """Starts it. Raises `Failure`."""
    try:
        thread.start()
    except RuntimeError:  # what Python makes of EAGAIN
        message = "cannot start a thread: the limit of processes, of the node or of this program's cgroup, is reached"
        raise Failure("system", message) from None


def _answer(work: Callable[[], T], answers: "SimpleQueue[tuple[T | None, BaseException | None]]") -> None:
    try:
        answers.put((work(), None))
    except BaseException as error:  # noqa: BLE001 -- raised again in the thread that asked
        answers.put((None, error))
