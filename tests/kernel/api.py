"""A fake API server in a thread of its own, reached as a pod of the cluster reaches the real one: over TLS, with the
files of a service account. For tests inside a node, whose mounts are its own."""

import asyncio
import datetime
import ipaddress
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cni_agent.apiserver import SERVICE_ACCOUNT
from tests.fake_api import FakeApi
from tests.kernel.running_agent import RunningAgent
from tests.kernel.sandbox import Node


class Api:
    """Its pods are put and deleted from the test's own thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        subprocess.run(["mount", "-t", "tmpfs", "none", str(Path("/var/run").resolve())], check=True)
        self.token = Path(SERVICE_ACCOUNT) / "token"
        self.token.parent.mkdir(parents=True)
        self.token.write_text("first\n")
        certificate, key = _certificate()
        (self.token.parent / "ca.crt").write_bytes(certificate)
        (folder / "tls").write_bytes(key + certificate)
        self.api: FakeApi
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.call(self._make)
        self._port = int(self.api.url.rpartition(":")[2])

    async def _make(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self._folder / "tls")
        self.api = FakeApi(context)
        await self.api.start()

    def call(self, coroutine: Callable[..., Any], *arguments: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine(*arguments), self._loop).result(20)

    def put(self, pod: dict[str, Any]) -> None:
        self.call(self.api.put, pod)

    def delete(self, uid: str) -> None:
        self.call(self.api.delete, uid)

    def stop(self) -> None:
        self.call(self.api.stop)

    def start(self) -> None:
        """Again, where it was."""
        self.call(self.api.start, self._port)

    def agent(self, cgroups: Node, *options: str) -> RunningAgent:
        """An agent of this cluster; not started yet."""
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._port)}
        return RunningAgent(cgroups, self._folder, "--node-name", "node-1", *options, environment=environment)


def _certificate() -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake API server")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(encoding), private
