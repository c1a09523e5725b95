"""`scripts/bench inject`: what one answer of the webhook costs, over HTTPS, by kind of pod.

Both servers run on one core, the client on another. Beside the injector, in the same run and taking turns with it, a
bare aiohttp server over TLS that reads the body and says a constant: the floor of what any Python server here costs.
The figures of Istio's own handler are recorded ones (no HTTPS in them), not measured in this run.
"""

import argparse
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from injector.settings import load_settings
from tests.bench import reviews
from tests.injector.serving import ROOT, make_certificates, serving

# CPU ms a request of Istio's handler: one core of the machine that these were recorded on, plain HTTP, CNI mode
PEER = {"typical": 5.6, "skipped": 0.29, "env 2000": 25.0, "managedFields 1 MB": 39.0, "20 containers × 5 probes": 11.8}
AIMS = {"typical": 10, "skipped": 1, "env 2000": 10, "managedFields 1 MB": 10, "20 containers × 5 probes": 10}
CONNECTIONS = 4
ROUNDS = 12


class Sample(NamedTuple):
    """One round with one body."""

    cpu: float  # ms of the server, a request
    rate: float  # requests a second
    latencies: list[float]  # ms, one connection


class Connection:
    """A blocking client that does as little as possible."""

    def __init__(self, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain)

    def send(self, request: bytes) -> None:
        """Writes a whole request."""
        self._socket.sendall(request)

    def receive(self) -> bytes:
        """Reads a whole answer, which must be a 200."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        parts, missing = [body], length - len(body)
        while missing > 0:
            parts.append(self._receive())
            missing -= len(parts[-1])
        return b"".join(parts)

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 18)
        assert data, "the server hung up"
        return data

    def close(self) -> None:
        """Ends it."""
        self._socket.close()


class Server(NamedTuple):
    """One of the two that take turns."""

    pid: int
    port: int

    def cpu(self) -> float:
        """Seconds on a core so far, of all threads, to the nanosecond."""
        total = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def resident(self) -> float:
        """Resident MB."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(server: Server, body: bytes, count: int) -> Sample:
    """`count` requests one after the other, then as many over several connections."""
    head = "POST /inject HTTP/1.1\r\nHost: injector\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    connections = [Connection(server.port) for _ in range(CONNECTIONS)]
    first = connections[0]
    for _ in range(5):
        first.send(request)
        first.receive()
    latencies = []
    cpu = server.cpu()
    for _ in range(count):
        start = time.perf_counter()
        first.send(request)
        first.receive()
        latencies.append((time.perf_counter() - start) * 1e3)
    cpu = server.cpu() - cpu
    start = time.perf_counter()
    for _ in range(max(1, count // CONNECTIONS)):
        for connection in connections:
            connection.send(request)
        for connection in connections:
            connection.receive()
    rate = max(1, count // CONNECTIONS) * CONNECTIONS / (time.perf_counter() - start)
    for connection in connections:
        connection.close()
    return Sample(cpu / count * 1e3, rate, latencies)


def compare(injector: Server, floor: Server, body: bytes, count: int) -> dict[str, float]:
    """Both servers in turn; medians over the rounds, the best round (least disturbed by others), all latencies."""
    ours, bare = [], []
    for _ in range(ROUNDS):
        bare.append(measure(floor, body, count))
        ours.append(measure(injector, body, count))
    latencies = sorted(value for sample in ours for value in sample.latencies)
    cpu, least = (statistics.median(sample.cpu for sample in samples) for samples in (ours, bare))
    return {
        "body_bytes": len(body),
        "cpu_ms": cpu,
        "best_cpu_ms": min(sample.cpu for sample in ours),
        "best_floor_cpu_ms": min(sample.cpu for sample in bare),
        "floor_cpu_ms": least,
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[int(len(latencies) * 0.99)],
        "requests_per_second": statistics.median(sample.rate for sample in ours),
    }


def flatness(injector: Server, bodies: list[bytes], count: int) -> dict[str, float]:
    """Resident memory after a tenth and after all of `count` requests of every kind."""
    connection = Connection(injector.port)
    early = 0.0
    for number in range(count):
        body = bodies[number % len(bodies)]
        head = f"POST /inject HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        connection.send(f"{head}\r\n\r\n".encode() + body)
        connection.receive()
        if number == count // 10:
            early = injector.resident()
    connection.close()
    return {"requests": count, "early_mb": early, "late_mb": injector.resident()}


@contextmanager
def floor_server(certificates: Path) -> Iterator[Server]:
    """The bare one, as a process of its own."""
    command = [sys.executable, "-m", "tests.bench.floor", str(certificates)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout
            yield Server(process.pid, int(process.stdout.readline()))
        finally:
            process.terminate()


def run(count: int, flat: int) -> dict[str, object]:
    """All measurements."""
    bodies = {
        "typical": reviews.typical(),
        "skipped": reviews.skipped(),
        "env 2000": reviews.environment(2000),
        "managedFields 1 MB": reviews.managed_fields(1_000_000),
        "20 containers × 5 probes": reviews.containers(20),
        "own istio-proxy": reviews.overridden(),
        "injected before": reviews.injected(load_settings(native_sidecars="true")),
        "env 4000": reviews.environment(4000),
        "env 8000": reviews.environment(8000),
    }
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as directory:
        make_certificates(Path(directory))
        with (
            serving(Path(directory), "--native-sidecars", "true") as process,
            floor_server(Path(directory)) as floor,
        ):
            injector = Server(process.process.pid, process.port)
            if len(cores) > 1:
                os.sched_setaffinity(injector.pid, {cores[0]})
                os.sched_setaffinity(floor.pid, {cores[0]})
                os.sched_setaffinity(0, set(cores[1:]))
            start_mb = injector.resident()
            rows = {}
            for name, pod in bodies.items():
                body = reviews.review(pod)
                rows[name] = compare(injector, floor, body, max(20, count * 3000 // max(3000, len(body))))
                rows[name]["resident_mb"] = injector.resident()
            small = [
                reviews.review(bodies[name]) for name in ("typical", "skipped", "own istio-proxy", "injected before")
            ]
            memory = flatness(injector, small, flat) if flat else {}
    return {"rows": rows, "start_mb": start_mb, "memory": memory, "load_average": os.getloadavg()[0]}


def show(found: dict[str, object]) -> None:
    """A table, and what it means beside the peer's recorded figures."""
    rows: dict[str, dict[str, float]] = found["rows"]  # type: ignore[assignment]
    heads = f"{'kB':>6} {'CPU ms':>7} {'best':>6} {'floor':>6} {'best':>6} {'p50':>6} {'p99':>6} {'req/s':>6} {'MB':>4}"
    print(f"{'pod':26} {heads}  peer*  ratio")
    for name, row in rows.items():
        peer = PEER.get(name)
        ratio = f"{peer:6.2f} {peer / row['cpu_ms']:5.1f}× (aim {AIMS[name]})" if peer else ""
        figures = (
            f"{row['cpu_ms']:7.3f} {row['best_cpu_ms']:6.3f} {row['floor_cpu_ms']:6.3f} {row['best_floor_cpu_ms']:6.3f}"
            f" {row['p50_ms']:6.2f} {row['p99_ms']:6.2f} {row['requests_per_second']:6.0f} {row['resident_mb']:4.0f}"
        )
        print(f"{name:26} {row['body_bytes'] / 1000:6.1f} {figures}  {ratio}")
    growth = rows["env 8000"]["cpu_ms"] / rows["env 2000"]["cpu_ms"]
    print(f"\n4 times the variables cost {growth:.1f} times as much. Resident: {found['start_mb']:.0f} MB when idle.")
    memory: dict[str, float] = found["memory"]  # type: ignore[assignment]
    if memory:
        requests, early, late = memory["requests"], memory["early_mb"], memory["late_mb"]
        print(f"After {requests // 10:.0f} requests {early:.1f} MB, after {requests:.0f} {late:.1f} MB.")
    print("CPU ms: of the server process, a request, HTTPS included: median of the rounds, and the best round.")
    print(f"Load average {found['load_average']:.1f}; above 1.0 others disturb the figures.")
    print("* recorded figures of Istio's handler without HTTPS, on a machine of this kind; not measured in this run")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="scripts/bench inject", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--count", type=int, default=150, help="requests a round, for 3 kB; fewer for larger ones")
    parser.add_argument("--flat", type=int, default=10_000, help="requests of the memory run; 0 leaves it out")
    arguments = parser.parse_args()
    found = run(arguments.count, arguments.flat)
    if arguments.json:
        print(json.dumps({**found, "peer_recorded_cpu_ms": PEER}, indent=2))
    else:
        show(found)


if __name__ == "__main__":
    main()
