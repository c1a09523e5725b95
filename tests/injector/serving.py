"""`injector serve` as a real process for tests, its certificates, and a client that speaks HTTP over real TLS."""

import asyncio
import dataclasses
import datetime
import functools
import os
import queue
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from injector.certificates.certs import Lifetimes, Material, renew
from injector.certificates.keep import DirectoryKeep

ROOT = Path(__file__).parents[2]
NAMES = ("localhost", "127.0.0.1")
PATIENCE = 60.0  # seconds until a test gives up on something that should happen soon; never asserted on


def make_certificates(directory: Path, material: Material | None = None) -> Material:
    """A CA and a serving certificate in `directory`; given `material`, a new certificate of the same CA."""
    if material:
        material = dataclasses.replace(material, certificate=b"", key=b"")
    made = renew(material, NAMES, Lifetimes(), datetime.datetime.now(datetime.UTC), announced=False).material
    asyncio.run(DirectoryKeep(str(directory)).save(made))
    return made


class Reply(NamedTuple):
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)


@functools.cache
def _trusting(bundle: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=bundle)


class Client:
    """One keep-alive connection. Deliberately not aiohttp's client: the server should not be tested by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, trust: Path | None) -> "Client":
        """TLS verified against `trust`; plain HTTP without it."""
        context = _trusting(str(trust)) if trust else None
        name = "localhost" if context else None
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name))

    async def request(self, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Reply:
        """Sends one request and reads its answer."""
        self.send(path, body, method, **headers)
        await self.writer.drain()
        return await self.reply()

    def send(self, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> None:
        """Writes a request; `Content_Type` and the like are header names."""
        fields = {"Host": "injector", "Content-Type": "application/json", "Content-Length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)

    async def reply(self) -> Reply:
        """Reads one answer; fails when the connection ends before it is whole."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(int(status_line.split()[1]), headers, body)

    def serial(self) -> bytes:
        """Serial number of the certificate that the server showed on this connection."""
        shown = self.writer.get_extra_info("ssl_object").getpeercert()
        return str(shown["serialNumber"]).encode()

    async def close(self) -> None:
        """Ends the connection, whatever state it is in."""
        self.writer.close()
        with suppress(OSError, ssl.SSLError):
            await self.writer.wait_closed()


class Injector:
    """A running `injector serve`. Ports are the kernel's choice; the log tells them."""

    def __init__(self, process: subprocess.Popen[str], trust: Path) -> None:
        self.process = process
        self.trust = trust
        self.log: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        ports = re.search(r"port=(\d+) metrics_port=(\d+)", self.wait_for("serving "))
        assert ports
        self.port, self.metrics_port = int(ports[1]), int(ports[2])

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put("")

    def wait_for(self, text: str) -> str:
        """The next log line with `text` in it; fails when the process ends without."""
        while True:
            line = self._lines.get(timeout=PATIENCE)
            self.log.append(line)
            if text in line:
                return line
            if not line:
                raise AssertionError(f"no {text!r} in the log:\n{''.join(self.log)}")

    def drain_log(self) -> str:
        """What the log has said so far."""
        while not self._lines.empty():
            self.log.append(self._lines.get())
        return "".join(self.log)

    async def connect(self) -> Client:
        """A connection to the webhook."""
        return await Client.connect(self.port, self.trust)

    async def metrics(self) -> dict[str, float]:
        """All samples by their name with labels."""
        client = await Client.connect(self.metrics_port, None)
        text = (await client.request("/metrics", method="GET")).body.decode()
        await client.close()
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def resident(self, pid: int | None = None) -> int:
        """Resident bytes of the process, or of one of its workers."""
        with open(f"/proc/{pid or self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def workers(self) -> list[int]:
        """Process ids of the children."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as children:
            return [int(pid) for pid in children.read().split()]


@contextmanager
def serving(certificates: Path, *arguments: str, program: tuple[str, ...] = ("-m", "injector")) -> Iterator[Injector]:
    """Starts `injector serve` on free ports of loopback, and ends it."""
    command = [sys.executable, *program, "serve", "--address", "127.0.0.1:0"]
    command += ["--metrics-address", "127.0.0.1:0", "--drain-delay", "0"]
    command += ["--tls-cert", str(certificates / "tls.crt"), "--tls-key", str(certificates / "tls.key")]
    command += ["--log-format", "text", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield Injector(process, certificates / "ca.crt")
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()


def review(pod: dict[str, Any] | None = None, *, version: str = "v1", uid: str = "7f0b2c") -> bytes:
    """An AdmissionReview as the API server sends it."""
    if pod is None:
        pod = {"metadata": {"name": "web"}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}}
    request = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "demo",
        "operation": "CREATE",
        "object": {"apiVersion": "v1", "kind": "Pod", **pod},
    }
    return msgspec.json.encode(
        {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview", "request": request}
    )


SKIPPED: dict[str, Any] = {
    "metadata": {"name": "web", "labels": {"sidecar.istio.io/inject": "false"}},
    "spec": {"containers": [{"name": "app", "image": "app:1"}]},
}
