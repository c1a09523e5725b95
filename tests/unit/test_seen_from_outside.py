"""What the agent shows: pages, the status socket, the log, Events, and the settings it prints."""

import asyncio
import io
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import pytest

from cni_agent import log
from cni_agent.apiserver import ApiServer
from cni_agent.capture import Capture
from cni_agent.invalid import Invalid
from cni_agent.node import health as health_module
from cni_agent.node import status
from cni_agent.node.events import Events, event
from cni_agent.node.health import Answer, Health, verdict
from cni_agent.node.metrics import Metrics
from cni_agent.node.nodepod import NodePod
from cni_agent.node.outcome import ALARMING, IN_PLACE, QUIET, Outcome, Verdict
from cni_agent.node.settings import Settings, host_and_port
from cni_agent.node.telling import Teller
from cni_agent.podview import PodView
from cni_agent.values import Refused

POD = PodView(name="web-0", namespace="shop", uid="u1")


def exchange(request: bytes) -> bytes:
    """What a server with three pages answers."""

    async def main() -> bytes:
        def broken() -> Answer:
            return verdict(["the cat is on the keyboard"])

        health = Health({"/healthz": lambda: verdict([]), "/readyz": broken})
        [(host, port)] = await health.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        if not request.endswith(b"\r\n\r\n"):
            writer.write_eof()
        answer = await reader.read()
        writer.close()
        await health.close()
        return answer

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("request_", "status_", "body"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 200, b"ok\n"),
        (b"GET /healthz?verbose=1 HTTP/1.0\r\n\r\n", 200, b"ok\n"),
        (b"GET /readyz HTTP/1.1\r\n\r\n", 503, b"the cat is on the keyboard\n"),
        (b"GET / HTTP/1.1\r\n\r\n", 404, b"there are /healthz, /readyz\n"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405, b"only GET\n"),
        (b"\x16\x03\x01 hello\r\n\r\n", 400, b"not an HTTP request\n"),
    ],
)
def test_pages(request_: bytes, status_: int, body: bytes) -> None:
    answer = exchange(request_)
    assert answer.startswith(f"HTTP/1.1 {status_} {HTTPStatus(status_).phrase}\r\n".encode())
    assert answer.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("noise", [b"", b"GET", b"x" * 100_000, b"\r\n" * 3])
def test_noise_is_not_answered_and_does_no_harm(noise: bytes) -> None:
    assert exchange(noise) in (b"",) or exchange(noise).startswith(b"HTTP/1.1 400")


def test_a_probe_is_answered_whoever_else_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that connect and say nothing, and pods that ask and never read: liveness must not kill the agent for it."""
    monkeypatch.setattr(health_module, "_SECONDS", 3600.0)  # nothing is freed by waiting
    big = Answer(HTTPStatus.OK, b"x" * 4_000_000)  # more than a socket takes when nobody reads

    async def main() -> int:
        health = Health({"/healthz": lambda: verdict([]), "/metrics": lambda: big})
        [(host, port)] = await health.start("127.0.0.1", 0)
        idle: list[asyncio.StreamWriter] = []
        async with asyncio.timeout(30):
            for number in range(health_module._MOST + 40):
                _, writer = await asyncio.open_connection(host, port)
                idle.append(writer)
                if number % 10 == 0:
                    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
                    await asyncio.sleep(0.001)
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert (await reader.read()).endswith(b"ok\n")
            held = len(health._connected)
            await health.close()
            for connected in [*idle, writer]:
                connected.close()
        return held

    assert asyncio.run(main()) <= health_module._MOST


def records() -> list[NodePod]:
    captured = NodePod("u1", pod=POD, verdict=Verdict(Outcome.CAPTURED, "programmed", "its rules are in place"))
    captured.milliseconds, captured.drifts = 3.14159, 2
    outside = NodePod("u2", pod=PodView(name="db", namespace="data", uid="u2"))
    outside.verdict = Verdict(Outcome.NOT_IN_MESH, "no-proxy", "the pod has no container named istio-proxy")
    return [captured, outside, NodePod("u3")]


def snapshot() -> dict[str, Any]:
    return {
        "node": "n1",
        "backend": "iptables-nft",
        "drift": "repair",
        "not_ready": [],
        "pods": status.pods(records()),
    }


def test_status_over_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"

    async def main() -> dict[str, Any]:
        server = status.StatusServer(str(path), snapshot)
        await server.start()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        answer = await asyncio.to_thread(status.ask, str(path))
        await server.close()
        return answer

    answer = asyncio.run(main())
    assert answer == snapshot() | {"pods": answer["pods"]}
    assert [pod["name"] for pod in answer["pods"]] == ["db", "web-0"]  # sorted, and only what the API knows
    assert answer["pods"][1]["milliseconds"] == 3.142
    assert not path.exists()
    with pytest.raises(OSError):
        status.ask(str(path))


def test_status_as_a_table() -> None:
    summary, head, first, second = status.table(snapshot()).splitlines()
    assert summary == "n1: ready, backend iptables-nft, drift repair"
    assert head.split() == ["POD", "STATE", "BACKEND", "SINCE", "MS", "DRIFTS", "WHY"]
    assert first.split() == ["data/db", "NotInMesh", "0s", "0", "no-proxy"]
    assert second.split() == ["shop/web-0", "Captured", "0s", "3.1", "2", "programmed"]
    assert "not ready: no kubepods" in status.table(snapshot() | {"not_ready": ["no kubepods"]})


def logged(form: log.Format, write: Callable[[logging.Logger], None]) -> str:
    stream = io.StringIO()
    root = logging.getLogger("cni_agent")
    before, asyncio_before = root.handlers[:], logging.getLogger("asyncio").handlers[:]
    log.set_up(form, stream=stream)
    try:
        write(logging.getLogger("cni_agent.test"))
    finally:
        root.handlers[:], logging.getLogger("asyncio").handlers[:] = before, asyncio_before
    return stream.getvalue()


def test_log_lines_as_json_and_text() -> None:
    def write(logger: logging.Logger) -> None:
        logger.warning("Repaired", extra={"pod": "shop/web-0", "why": "two\nlines", "netns": None})

    line = json.loads(logged("json", write))
    assert (line["level"], line["message"], line["pod"], line["why"]) == (
        "warning",
        "Repaired",
        "shop/web-0",
        "two\nlines",
    )
    assert "netns" not in line
    text = logged("text", write)
    assert text.count("\n") == 1  # a value cannot forge a line
    assert text.endswith(' warning Repaired pod=shop/web-0 why="two\\nlines"\n')


def test_log_of_an_error_has_its_traceback() -> None:
    def write(logger: logging.Logger) -> None:
        try:
            raise ZeroDivisionError("a bug")
        except ZeroDivisionError as error:
            logger.error("unexpected error", exc_info=error)

    assert "ZeroDivisionError: a bug" in json.loads(logged("json", write))["traceback"]
    assert "ZeroDivisionError: a bug" in logged("text", write)


def test_every_word_is_quiet_alarming_or_good_news() -> None:
    assert not QUIET & ALARMING
    assert set(Outcome) - QUIET - ALARMING == {Outcome.CAPTURED, Outcome.UPDATED}
    assert set(Outcome) > IN_PLACE
    assert all(word[0].isupper() and word.isalpha() for word in Outcome)  # as the API wants reasons


def test_the_same_word_everywhere() -> None:
    metrics = Metrics("nftables", records)
    teller = Teller(metrics)
    sent: list[Verdict] = []
    teller.events = lambda _, said: sent.append(said)
    [record, *_] = records()
    said = Verdict(Outcome.REPAIRED, "drift", "a rule was missing")
    line = json.loads(logged("json", lambda _: teller.tell(record, said)))
    assert line["message"] == event(POD, sent[0], "n1", datetime.now(UTC))["reason"] == "Repaired"
    text = metrics.text().decode()
    assert 'initless_outcomes_total{outcome="Repaired",reason="drift"} 1.0' in text
    assert 'initless_drifts_total{action="Repaired"} 1.0' in text
    assert 'initless_pods{outcome="Captured"} 1.0' in text
    assert 'initless_pods{outcome="Repaired"} 0.0' in text
    assert 'initless_backend_info{backend="nftables"} 1.0' in text


def test_captured_pods_without_validation_are_counted_as_long_as_they_are_there() -> None:
    held = PodView(name="held", namespace="shop", uid="u4", init_containers=("istio-validation",))
    bare, uncaptured = NodePod("u1", pod=POD, applied=Capture()), NodePod("u2", pod=POD)
    pods = [bare, uncaptured, NodePod("u3"), NodePod("u4", pod=held, applied=Capture())]
    metrics = Metrics("nftables", lambda: pods)
    assert "initless_pods_without_validation 1.0\n" in metrics.text().decode()
    pods.remove(bare)
    assert "initless_pods_without_validation 0.0\n" in metrics.text().decode()


class Posted:
    """An API server that only takes Events, or does not."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.error: Exception | None = None

    async def send(self, method: str, path: str, body: dict[str, Any]) -> bytes:
        if self.error:
            raise self.error
        assert path == f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        self.bodies.append(body)
        return b""


def test_events_are_sent_once_and_only_when_worth_it() -> None:
    async def main(*, successes: bool) -> tuple[list[str], list[str]]:
        server, counted = Posted(), []
        events = Events(cast(ApiServer, server), "n1", successes=successes, counted=counted.append)
        for outcome in (Outcome.CAPTURED, Outcome.NOT_IN_MESH, Outcome.FAILED, Outcome.FAILED, Outcome.ADOPTED):
            events.tell(POD, Verdict(outcome, "r", "s" * 5000))
        task = asyncio.create_task(events.run())
        async with asyncio.timeout(10):
            while len(counted) < (3 if successes else 2):
                await asyncio.sleep(0.01)
        server.error = OSError("away")
        events.tell(POD, Verdict(Outcome.REFUSED, "r", "s"))
        async with asyncio.timeout(10):
            while "failed" not in counted:
                await asyncio.sleep(0.01)
        task.cancel()
        assert all(len(body["message"]) <= 1024 for body in server.bodies)
        return [body["reason"] for body in server.bodies], counted

    assert asyncio.run(main(successes=False)) == (["Failed"], ["repeated", "sent", "failed"])
    assert asyncio.run(main(successes=True)) == (["Captured", "Failed"], ["repeated", "sent", "sent", "failed"])


def test_a_flood_of_events_is_dropped_and_counted() -> None:
    async def main() -> list[str]:
        counted: list[str] = []
        events = Events(cast(ApiServer, Posted()), "n1", successes=False, counted=counted.append)
        for number in range(300):
            events.tell(PodView(name="p", namespace="n", uid=str(number)), Verdict(Outcome.FAILED, "r", "s"))
        return counted

    assert asyncio.run(main()) == ["dropped"] * 44


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"node_name": None}, "--node-name"),
        ({"metrics_address": "15014"}, "--metrics-address"),
        ({"metrics_address": "::1:15014"}, "--metrics-address"),
        ({"metrics_address": "x:99999"}, "--metrics-address"),
        ({"backend": "ebpf"}, "--backend"),
    ],
)
def test_bad_settings_are_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as invalid:
        Settings(**{"node_name": "n1", **changes})
    assert [violation.field for violation in invalid.value.violations] == [field]


def test_settings_are_shown_whole() -> None:
    shown = Settings(node_name="n1").shown()
    assert shown["node_name"] == "n1" and shown["socket"] == "/run/initless/agent.sock"
    assert shown.keys() == set(Settings.__dataclass_fields__)


def test_addresses_to_listen_on() -> None:
    assert host_and_port("[fd00::1]:80") == ("fd00::1", 80)
    with pytest.raises(Refused):
        host_and_port("")
