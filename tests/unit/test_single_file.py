"""Work in single file: in order and in one thread, unless what is ahead takes long."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from cni_agent.node.single_file import SingleFile


@contextmanager
def single_file(threads: int = 4) -> Iterator[SingleFile]:
    executor = SingleFile(asyncio.get_running_loop(), threads)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def looping(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def limited() -> None:
            async with asyncio.timeout(20):
                await test()

        asyncio.run(limited())

    run.__name__ = test.__name__  # type: ignore[attr-defined]
    return run


@looping
async def test_one_piece_behind_the_other() -> None:
    order: list[int] = []
    at_work = threading.Semaphore(1)

    def piece(number: int) -> None:
        assert at_work.acquire(blocking=False), "two at a time"
        order.append(number)
        time.sleep(0.0002)
        at_work.release()

    with single_file() as executor:
        await asyncio.gather(*(asyncio.wrap_future(executor.submit(piece, number)) for number in range(200)))
    assert order == list(range(200))


@looping
async def test_pieces_that_do_not_end_are_overtaken_by_all_the_others() -> None:
    gate = threading.Event()
    with single_file() as executor:
        stuck = [executor.submit(gate.wait) for _ in range(3)]
        others = [executor.submit(int, number) for number in range(50)]
        assert await asyncio.gather(*map(asyncio.wrap_future, others)) == list(range(50))
        assert not any(future.done() for future in stuck)
        gate.set()
        assert await asyncio.gather(*map(asyncio.wrap_future, stuck)) == [True] * 3
        assert await asyncio.wrap_future(executor.submit(int, "7")) == 7
        while executor._files:
            await asyncio.sleep(0.001)


@looping
async def test_an_error_reaches_who_asked_and_the_next_piece_goes_on() -> None:
    with single_file() as executor:
        failing, after = executor.submit(int, "x"), executor.submit(int, "1")
        with pytest.raises(ValueError, match="invalid literal"):
            await asyncio.wrap_future(failing)
        assert await asyncio.wrap_future(after) == 1


@looping
async def test_what_was_not_begun_is_cancelled_when_it_ends() -> None:
    gate = threading.Event()
    with single_file(1) as executor:
        begun, waiting = executor.submit(gate.wait), executor.submit(int, "1")
        while not begun.running():
            await asyncio.sleep(0.001)
    assert waiting.cancelled()
    gate.set()
    assert await asyncio.wrap_future(begun)


@looping
async def test_without_a_thread_to_be_had_it_is_tried_again() -> None:
    real, refusals = threading.Thread.start, 2

    def refuse(thread: threading.Thread) -> None:
        nonlocal refusals
        if thread.name.startswith("backend") and refusals:
            refusals -= 1
            raise RuntimeError("can't start new thread")
        real(thread)

    with pytest.MonkeyPatch.context() as patched, single_file() as executor:
        patched.setattr(threading.Thread, "start", refuse)
        assert await asyncio.wrap_future(executor.submit(int, "5")) == 5
    assert refusals == 0
