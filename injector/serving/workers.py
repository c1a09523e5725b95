"""Several workers on one port: started by fork, replaced when they die, told to drain when we are."""

import gc
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

log = logging.getLogger(__name__)

STEADY: Final = 5.0  # seconds; a worker that lived shorter is replaced with growing delay
LONGEST_DELAY: Final = 5.0
LOOK: Final = 5.0  # seconds between two looks at whether workers live
HUNG: Final = 6  # looks without a beat; looks and not seconds, since a frozen container freezes us too
_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


class Supervisor:
    """Keeps `count` workers alive. Has no threads and no event loop, so that forking is safe at any time."""

    def __init__(
        self, count: int, run: Callable[[int, int], int], patience: float, beats: Callable[[int], int]
    ) -> None:
        """`run(number, parent)` is a worker's whole life and gives its exit code; `patience` bounds the drain.

        `beats(number)` counts up for as long as the worker's event loop turns.
        """
        self._run = run
        self._patience = patience
        self._beats = beats
        self._silent: dict[int, tuple[int, int]] = {}  # pid: beats at the last look, looks since they changed
        self._next_look = 0.0
        self._running: dict[int, tuple[int, float]] = {}  # pid: number, start
        self._due: dict[int, float] = dict.fromkeys(range(count), 0.0)  # number: when to start it
        self._delay = dict.fromkeys(range(count), 0.0)
        self._lifeline, self._held = os.pipe()  # workers read it; only we hold the other end

    def run(self) -> int:
        """Until SIGTERM or SIGINT, then drains; 1 when a worker had to be killed."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        gc.collect()
        gc.freeze()  # what is imported by now is not touched by collections in workers, and so stays shared
        while True:
            self._start_due()
            waiting = min((*self._due.values(), self._next_look)) - time.monotonic()
            received = signal.sigtimedwait(_SIGNALS, max(0.0, waiting))
            for pid, code in self._ended():
                self._replace(pid, code)
            if time.monotonic() >= self._next_look:
                self._end_hung()
                self._next_look = time.monotonic() + LOOK
            if received and received.si_signo != signal.SIGCHLD:
                return self._drain()

    def _start_due(self) -> None:
        for number in [number for number, due in self._due.items() if due <= time.monotonic()]:
            del self._due[number]
            pid = os.fork()
            if pid == 0:
                self._become_worker(number)
            self._running[pid] = (number, time.monotonic())

    def _become_worker(self, number: int) -> NoReturn:
        os.close(self._held)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = 1
        try:
            code = self._run(number, self._lifeline)
        except BaseException:
            log.exception("worker failed", extra={"worker": number})
        finally:
            logging.shutdown()
            os._exit(code)

    def _ended(self) -> Iterator[tuple[int, int]]:
        """Workers that are gone, with their exit codes; other children are orphans of a container's process 1."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self._running:
                yield pid, os.waitstatus_to_exitcode(status)

    def _end_hung(self) -> None:
        """Kills workers whose event loop stands still: the kernel would go on to give them connections."""
        before, self._silent = self._silent, {}
        for pid, (number, _) in self._running.items():
            beats = self._beats(number)
            at_last_look, looks = before.get(pid, (beats, 0))
            self._silent[pid] = (beats, looks + 1 if beats == at_last_look else 0)
            if self._silent[pid][1] >= HUNG:
                log.error("worker hangs, and is ended", extra={"worker": number, "pid": pid})
                os.kill(pid, signal.SIGKILL)

    def _replace(self, pid: int, code: int) -> None:
        number, started = self._running.pop(pid)
        steady = time.monotonic() - started > STEADY
        delay = 0.0 if steady else min(LONGEST_DELAY, max(0.1, 2 * self._delay[number]))
        self._delay[number] = delay
        self._due[number] = time.monotonic() + delay
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        log.error("worker ended", extra={"worker": number, "pid": pid, "how": how, "restart_seconds": delay})

    def _drain(self) -> int:
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)
        end = time.monotonic() + self._patience
        while self._running and time.monotonic() < end:
            signal.sigtimedwait({signal.SIGCHLD}, max(0.0, end - time.monotonic()))
            for pid, _ in self._ended():
                del self._running[pid]
        for pid in self._running:
            log.error("worker did not drain in time", extra={"pid": pid})
            os.kill(pid, signal.SIGKILL)
        return 1 if self._running else 0
