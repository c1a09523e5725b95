"""The Kubernetes API as raw JSON over aiohttp: the few verbs we need, and errors that carry the server's words.

The kubernetes package is used for kubeconfig files only, and imported only then: it costs 18 MB and half a second, its
models 30 MB more. What a pod's service account gives is three files.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Self

import aiohttp
import msgspec

SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"  # YAML is what every server version knows; JSON is YAML
REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=30)
_LONGEST_RETRY_AFTER: Final = 60.0
MOST_LINE: Final = 16 << 20  # bytes of one event; etcd holds no object of a tenth of it


class NoCluster(RuntimeError):
    """There is no API server to talk to; the message says what is missing."""


class ApiError(RuntimeError):
    """The server said no. `code` is the HTTP status, the text what it said.

    `retry_after`: seconds for which it asked to be left alone; busy servers do (429, 503).
    """

    def __init__(self, code: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(f"{message} (HTTP {code})")
        self.code = code
        self.retry_after = retry_after


# What a request may fail with besides `ApiError`; all of it passes, so all of it is tried again.
UNREACHABLE: Final = (aiohttp.ClientError, TimeoutError, OSError)


class Status(msgspec.Struct):
    """The server's error object."""

    message: str = ""
    code: int = 0


@dataclass(frozen=True)
class Access:
    """Where the server is and how to be let in; `token` is asked for at each request, since tokens rotate."""

    url: str
    tls: ssl.SSLContext | None
    token: Callable[[], str | None]


def in_cluster() -> Access:
    """Access by the pod's service account."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise NoCluster("KUBERNETES_SERVICE_HOST is not set: this is no pod; give --kubeconfig FILE")
    try:
        context = ssl.create_default_context(cafile=f"{SERVICE_ACCOUNT}/ca.crt")
    except OSError as error:
        raise NoCluster(f"{SERVICE_ACCOUNT}/ca.crt: {error.strerror}; set automountServiceAccountToken: true") from None

    def token() -> str:
        with open(f"{SERVICE_ACCOUNT}/token", encoding="ascii") as file:
            return file.read().strip()

    return Access(f"https://{f'[{host}]' if ':' in host else host}:{port}", context, token)


def from_kubeconfig(path: str) -> Access:
    """Access as kubectl has it: client certificates, tokens, exec plugins."""
    from kubernetes import config
    from kubernetes.client import Configuration

    configuration = Configuration()
    try:
        config.load_kube_config(config_file=path, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise NoCluster(f"--kubeconfig {path}: {error}") from None
    context = None
    if configuration.host.startswith("https"):
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        if not configuration.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE

    def token() -> str | None:
        key: str | None = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return key.removeprefix("Bearer ") if key else None

    return Access(configuration.host, context, token)


def find_access(kubeconfig: str | None) -> Access:
    """The kubeconfig that was given, else the pod's service account. Raises `NoCluster`."""
    return from_kubeconfig(kubeconfig) if kubeconfig else in_cluster()


class ApiServer:
    """A session with one API server. Use as a context manager."""

    def __init__(self, access: Access, user_agent: str) -> None:
        self._access = access
        self._user_agent = user_agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._access.tls if self._access.tls else True)
        self._session = aiohttp.ClientSession(connector=connector, headers={"User-Agent": self._user_agent})
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    async def get(self, path: str, query: Mapping[str, str] = MappingProxyType({})) -> bytes:
        """The body of a GET; `ApiError` when the answer is no success."""
        async with self._open("GET", path, query, REQUEST_TIMEOUT) as response:
            return await response.read()

    async def send(self, method: str, path: str, body: Any, content_type: str = JSON, **query: str) -> bytes:
        """POST or PATCH of an object."""
        data = msgspec.json.encode(body)
        async with self._open(method, path, query, REQUEST_TIMEOUT, data, content_type) as response:
            return await response.read()

    async def lines(self, path: str, query: Mapping[str, str], silence: float) -> AsyncIterator[bytes]:
        """The lines of a watch as they come, after an empty one that says that the server agreed to it.

        `silence`: seconds without a byte after which the connection is taken for dead (TimeoutError). One event may be
        a megabyte, so aiohttp's own line reader will not do.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence)
        async with self._open("GET", path, query, limits) as response:
            yield b""
            rest = bytearray()
            async for chunk in response.content.iter_any():
                *lines, last = chunk.split(b"\n")
                for line in lines:
                    yield bytes(rest) + line
                    rest.clear()
                rest += last
                if len(rest) > MOST_LINE:
                    raise ApiError(200, f"an event of more than {MOST_LINE} bytes")

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        data: bytes | None = None,
        content_type: str = JSON,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session, "use ApiServer as a context manager"
        token = await asyncio.to_thread(self._access.token)  # an exec plugin may take seconds
        headers = {"Accept": JSON, "Content-Type": content_type}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        url = self._access.url + path
        async with self._session.request(
            method, url, params=query, data=data, headers=headers, timeout=timeout
        ) as response:
            if response.status >= 300:
                message = _message(await response.read()) or str(response.reason)
                raise ApiError(response.status, message, _seconds(response.headers.get("Retry-After", "")))
            yield response


def _seconds(retry_after: str) -> float:
    """What the header says; Kubernetes never gives a date, which HTTP allows too."""
    return min(float(retry_after), _LONGEST_RETRY_AFTER) if retry_after.isdecimal() else 0.0


def _message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=Status).message
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace")
