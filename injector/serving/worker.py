"""One worker's life: settings and certificate first, then serve, follow changes, and drain when told to stop."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, Protocol

from injector.serving.certificate import Certificate
from injector.serving.listen import Listener
from injector.serving.memory import keep_freed_memory
from injector.serving.scoreboard import Scoreboard
from injector.serving.server import Health, Monitoring, Webhook
from injector.serving.source import Current, Options

log = logging.getLogger(__name__)

BEAT: Final = 1.0  # seconds between two signs of life
IN_FLIGHT: Final = 20.0  # seconds that a request in progress is given when draining


class Source(Protocol):
    """Keeps `Current` up to date, forever."""

    async def follow(self, current: Current) -> None:
        """Loads the settings, then again at each change."""


@dataclass(frozen=True)
class Plan:
    """What all workers have in common."""

    source: Source
    options: Options
    certificate_file: str
    key_file: str
    drain_delay: float  # seconds that a worker goes on serving after SIGTERM, until endpoints are updated


class Worker:
    """Serves on its own two sockets. `parent`, when given, is a pipe whose end means that the supervisor is gone."""

    def __init__(
        self,
        plan: Plan,
        scoreboard: Scoreboard,
        number: int,
        webhook: socket.socket,
        monitoring: socket.socket,
        parent: int | None = None,
    ) -> None:
        self._plan = plan
        self._scoreboard = scoreboard
        self._number = number
        self._row = scoreboard.rows[number]
        self._webhook_socket = webhook
        self._monitoring_socket = monitoring
        self._parent = parent
        self._current = Current(plan.options, self._row)
        self._certificate = Certificate(plan.certificate_file, plan.key_file)
        self._draining = False

    async def run(self) -> None:
        """Returns when drained; raises when a part failed in a way that only a new worker mends."""
        keep_freed_memory()
        self._row["pid"] = os.getpid()
        self._row["ready"] = 0
        stopping = self._stop_signal()
        monitoring = Listener(Monitoring(self._scoreboard, self._health))
        await monitoring.start(self._monitoring_socket)
        try:
            await _first(
                self._serve(stopping),
                self._plan.source.follow(self._current),
                self._certificate.follow(self._row),
                self._beat(),
            )
        finally:
            self._row["ready"] = 0
            await monitoring.close(1.0)

    async def _serve(self, stopping: asyncio.Event) -> None:
        await _first(stopping.wait(), self._prepared())
        if stopping.is_set():
            return
        assert self._certificate.serving
        webhook = Webhook(self._current, self._row, self._health)
        listener = Listener(webhook)
        await listener.start(self._webhook_socket, self._certificate.serving.context)
        self._row["ready"] = 1
        ports = {
            "port": self._webhook_socket.getsockname()[1],
            "metrics_port": self._monitoring_socket.getsockname()[1],
        }
        log.info("serving", extra={"worker": self._number, **ports})
        try:
            await stopping.wait()
            self._draining = webhook.draining = True
            self._row["ready"] = 0
            log.info("draining", extra={"worker": self._number, "seconds": self._plan.drain_delay})
            await asyncio.sleep(self._plan.drain_delay)
        finally:
            await listener.close(IN_FLIGHT)
            log.info("drained", extra={"worker": self._number})

    async def _prepared(self) -> None:
        await asyncio.gather(self._current.applied.wait(), self._certificate.loaded.wait())

    async def _beat(self) -> None:
        while True:
            self._row.add("beats")
            await asyncio.sleep(BEAT)

    def _stop_signal(self) -> asyncio.Event:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        if self._parent is not None:
            parent = self._parent

            def orphaned() -> None:
                loop.remove_reader(parent)
                stopping.set()

            loop.add_reader(parent, orphaned)
        return stopping

    def _health(self) -> Health:
        settings = {"problem": self._current.problem} if self._current.problem else {}
        detail: dict[str, object] = {
            "worker": self._number,
            "draining": self._draining,
            "settings": {"applied": self._current.live is not None, **settings, **self._current.notes},
            "certificate": self._certificate.detail(),
        }
        return Health(bool(self._row["ready"]), detail)


async def _first(*parts: Coroutine[Any, Any, object]) -> None:
    """Runs all until the first ends, ends the others, and raises what that first one raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
