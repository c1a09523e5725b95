"""Clients that are slow, greedy, many or gone, and workers that die: served or refused, never stuck."""

import asyncio
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from injector.serving.connection import LARGE
from injector.serving.crowd import MAX_CONNECTIONS
from injector.serving.message import MAX_BODY
from tests.injector.serving import PATIENCE, ROOT, SKIPPED, Client, Injector, make_certificates, review, serving

MIB = 1 << 20
RESET = 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    return directory


@pytest.fixture
def injector(certificates: Path) -> Iterator[Injector]:
    with serving(certificates) as running:
        yield running
        assert "Traceback" not in running.drain_log()


async def served(injector: Injector) -> None:
    """One more client gets its answer."""
    client = await injector.connect()
    reply = await asyncio.wait_for(client.request("/inject", review(SKIPPED)), PATIENCE)
    assert reply.json()["response"]["allowed"] is True
    await client.close()


def test_large_bodies_are_refused_and_cost_no_memory(injector: Injector) -> None:
    async def push(chunked: bool) -> int:
        client = await injector.connect()
        fields = {"Transfer_Encoding": "chunked", "Content_Length": ""} if chunked else {}
        client.send("/inject", b"", **({"Content_Length": str(8 * MIB)} | fields))
        piece = (b"%x\r\n" % MIB + b" " * MIB + b"\r\n") if chunked else b" " * MIB
        try:
            for _ in range(8):
                client.writer.write(piece)
                await client.writer.drain()
            client.writer.write(b"0\r\n\r\n" if chunked else b"")
            return (await client.reply()).status
        except (OSError, asyncio.IncompleteReadError):
            return RESET  # also a refusal: the machine was too slow to send all of it before the server gave up
        finally:
            await client.close()

    async def crowd() -> list[int]:
        statuses = await asyncio.gather(*(push(chunked) for chunked in (False, True) for _ in range(40)))
        await served(injector)
        return statuses

    before = injector.resident()
    statuses = set(asyncio.run(crowd()))
    assert 400 in statuses
    assert statuses <= {400, RESET}
    # 80 bodies of 8 MiB are 640 MiB; 8 places of 6 MiB are 48
    assert injector.resident() - before < 250 * MIB


def test_slow_clients_do_not_hold_up_others(injector: Injector) -> None:
    async def crowd() -> None:
        slow = [await injector.connect() for _ in range(150)]
        for number, client in enumerate(slow):
            if number % 3 == 0:
                client.writer.write(b"POST /inject HT")
            elif number % 3 == 1:
                client.send("/inject", b"", Content_Length="3000")
            else:  # a large one that never ends, of which only few may be in memory
                client.send("/inject", b" " * (300 << 10), Content_Length=str(5 * MIB))
        await asyncio.gather(*(client.writer.drain() for client in slow if not client.writer.is_closing()))
        for _ in range(20):
            await served(injector)
        await asyncio.gather(*(client.close() for client in slow))
        await served(injector)

    asyncio.run(asyncio.wait_for(crowd(), PATIENCE))
    assert injector.resident() < container_limit()


def test_half_closed_and_aborted_connections_are_let_go(injector: Injector) -> None:
    def descriptors() -> int:
        return len(list(Path(f"/proc/{injector.process.pid}/fd").iterdir()))

    async def crowd() -> None:
        for number in range(100):
            client = await injector.connect()
            if number % 2:
                client.send("/inject", b"{", Content_Length="3000")  # half a body
            else:
                client.send("/inject", review(SKIPPED))
            await client.writer.drain()
            if number % 4 < 2:
                client.writer.transport.abort()
            else:
                client.writer.close()
        await served(injector)
        deadline = time.monotonic() + PATIENCE
        while descriptors() > before + 5 and time.monotonic() < deadline:
            await asyncio.sleep(0.05)

    before = descriptors()
    asyncio.run(crowd())
    assert descriptors() <= before + 5


def test_a_half_closed_request_over_plain_tcp_is_answered(injector: Injector) -> None:
    async def talk() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", injector.metrics_port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        await writer.wait_closed()
        return answer

    answer = asyncio.run(talk())
    assert answer == b"" or b" 200 OK" in answer


def container_limit() -> int:
    """Bytes of memory that the manifest allows the server."""
    manifest = yaml.safe_load((ROOT / "daemonset/base/injector-deployment.yaml").read_text())
    containers = manifest["spec"]["template"]["spec"]["containers"]
    (limit,) = (found["resources"]["limits"]["memory"] for found in containers if found["name"] == "injector")
    return int(limit.removesuffix("Mi")) * MIB


@pytest.mark.parametrize("what", ["nothing", "bodies"])
def test_more_connections_than_we_keep(injector: Injector, what: str) -> None:
    """They cannot keep the API server out, and all that they can make us hold fits into the container."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"needs 4096 file descriptors for the client, the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))

    async def crowd() -> None:
        known = await injector.connect()
        assert (await known.request("/inject", review(SKIPPED))).status == 200
        idle: list[Client] = []
        while len(idle) < MAX_CONNECTIONS + 100:
            some = await asyncio.gather(*(injector.connect() for _ in range(20)))
            idle += some
            for number, client in enumerate(some if what == "bodies" else ()):  # of each kind the most that is read
                size = MAX_BODY - 1 if number == 0 else LARGE - 1
                client.send("/inject", b" " * size, Content_Length=str(MAX_BODY))
                if number:
                    with suppress(OSError):
                        await client.writer.drain()
        for _ in range(10):
            await served(injector)
        assert (await known.request("/inject", review(SKIPPED))).status == 200  # one that is used is not given up
        assert injector.resident() < container_limit()
        for client in idle:
            client.writer.transport.abort()
        await asyncio.gather(*(client.close() for client in (known, *idle)))
        await served(injector)

    asyncio.run(asyncio.wait_for(crowd(), 2 * PATIENCE))
    injector.wait_for("too many connections: the longest idle are closed")


def test_handshakes_that_never_end_keep_nobody_out_and_cost_no_memory(injector: Injector) -> None:
    async def crowd() -> None:
        before = injector.resident()
        mute = [await asyncio.open_connection("127.0.0.1", injector.port) for _ in range(800)]
        for _ in range(10):
            await served(injector)
        assert injector.resident() - before < 40 * MIB  # all of them would take 52
        ended = [reader.at_eof() or reader.exception() for reader, _ in mute]
        assert sum(map(bool, ended)) >= 500  # the oldest ones
        for _, writer in mute:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    asyncio.run(asyncio.wait_for(crowd(), PATIENCE))


def test_sigterm_answers_what_was_begun(certificates: Path) -> None:
    async def talk(injector: Injector) -> None:
        idle = await injector.connect()
        busy = await injector.connect()
        body = review(SKIPPED)
        busy.send("/inject", body[:100], Content_Length=str(len(body)))
        await busy.writer.drain()
        await busy_is_seen(injector)
        injector.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(injector.wait_for, "draining")
        busy.writer.write(body[100:])
        reply = await asyncio.wait_for(busy.reply(), PATIENCE)
        assert reply.json()["response"]["allowed"] is True
        assert await busy.reader.read() == b""
        assert await asyncio.wait_for(idle.reader.read(), PATIENCE) == b""
        await asyncio.gather(idle.close(), busy.close())
        with pytest.raises(OSError):
            await injector.connect()

    async def busy_is_seen(injector: Injector) -> None:
        while (await injector.metrics())["sidecar_injection_requests_total"] < 1:
            await asyncio.sleep(0.02)

    with serving(certificates) as injector:
        asyncio.run(talk(injector))
        assert injector.process.wait(PATIENCE) == 0


def test_while_draining_clients_are_sent_elsewhere(certificates: Path) -> None:
    async def talk(injector: Injector) -> None:
        client = await injector.connect()
        injector.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(injector.wait_for, "draining")
        late = await injector.connect()  # endpoints are not updated everywhere yet
        assert (await late.request("/ready", method="GET")).status == 503
        reply = await client.request("/inject", review(SKIPPED))
        assert reply.headers["connection"] == "close"
        await asyncio.gather(client.close(), late.close())

    with serving(certificates, "--drain-delay", "3") as injector:
        asyncio.run(talk(injector))
        assert injector.process.wait(PATIENCE) == 0


def test_a_worker_that_dies_is_replaced_and_counts_go_on(certificates: Path) -> None:
    async def ask(injector: Injector, times: int) -> None:
        for _ in range(times):
            await served(injector)

    with serving(certificates, "--workers", "2") as injector:
        injector.wait_for("serving ")
        first = set(injector.workers())
        asyncio.run(ask(injector, 40))
        victim = first.pop()
        os.kill(victim, signal.SIGKILL)
        injector.wait_for("worker ended")
        asyncio.run(ask(injector, 40))  # some of these wait for the successor on the socket of the dead one
        second = set(injector.workers())
        assert len(second) == 2
        assert first < second
        assert victim not in second
        metrics = asyncio.run(injector.metrics())
        assert metrics["sidecar_injection_requests_total"] == 80
        assert all(metrics[f'initless_injector_worker_requests_total{{worker="{number}"}}'] for number in (0, 1))
        injector.process.terminate()
        assert injector.process.wait(PATIENCE) == 0


IMPATIENT = """
import runpy
import injector.serving.workers
injector.serving.workers.LOOK = 1.0
runpy.run_module("injector", run_name="__main__")
"""


def test_a_worker_that_hangs_is_replaced(certificates: Path) -> None:
    with serving(certificates, "--workers", "2", program=("-c", IMPATIENT)) as injector:
        injector.wait_for("serving ")
        victim, other = injector.workers()
        os.kill(victim, signal.SIGSTOP)
        try:
            assert f"pid={victim}" in injector.wait_for("worker hangs, and is ended")
        except BaseException:
            os.kill(victim, signal.SIGKILL)  # it would outlive us
            raise
        injector.wait_for("worker ended")
        injector.wait_for("serving ")
        assert victim not in injector.workers()
        assert other in injector.workers()
        asyncio.run(served(injector))
        injector.process.terminate()
        assert injector.process.wait(PATIENCE) == 0


def test_workers_go_when_their_supervisor_is_killed(certificates: Path) -> None:
    with serving(certificates, "--workers", "2") as injector:
        injector.wait_for("serving ")
        workers = injector.workers()
        injector.process.kill()
        injector.process.wait()
        deadline = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
