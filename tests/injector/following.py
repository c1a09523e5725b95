"""What tests of the injector's settings have in common: a place for them, and something that follows them meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from injector.serving.scoreboard import Scoreboard
from injector.serving.source import Current, Options

VALUES = '{"global": {"hub": "example.org/%s"}}'
PATIENCE = 30.0
DEFAULTS = Options()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def current(options: Options = DEFAULTS) -> Current:
    return Current(options, Scoreboard(1).rows[0])


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def hub(settings: Current) -> str:
    return settings.live.settings.chart.hub if settings.live else ""
