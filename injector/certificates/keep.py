"""Where certificates are kept: a Secret, whose resourceVersion decides between two writers, or a directory."""

import base64
import shutil
import tempfile
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cni_agent.apiserver import MERGE_PATCH, ApiError, ApiServer
from injector.certificates.certs import Material
from injector.serving.mirror import Metadata

# file in the directory, key in the Secret: attribute of Material
FIELDS: Final = {
    "ca.crt": "bundle",
    "ca.key": "authority_key",
    "ca-next.key": "next_key",
    "tls.crt": "certificate",
    "tls.key": "key",
}
SERVING: Final = ("ca.crt", "tls.crt", "tls.key")  # what a server needs; the CA's keys stay where they are
LABELS: Final = {"app.kubernetes.io/name": "initless-injector", "app.kubernetes.io/managed-by": "injector-certs"}


class Conflict(RuntimeError):
    """Somebody else wrote first; read again."""


class Keep(Protocol):
    """Holds one `Material`."""

    async def load(self) -> Material | None:
        """What is there; None when nothing is."""

    async def save(self, material: Material) -> None:
        """Replaces what was loaded; `Conflict` when it is no longer that."""


class _Secret(msgspec.Struct):
    metadata: Metadata
    data: dict[str, str] | None = None


class SecretKeep:
    """A Secret of type Opaque; other keys in it are left alone."""

    def __init__(self, api: ApiServer, namespace: str, name: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/secrets"
        self._name = name
        self._version = ""

    async def load(self) -> Material | None:
        """Remembers the version that `save` replaces."""
        self._version = ""
        try:
            secret = msgspec.json.decode(await self._api.get(f"{self._path}/{self._name}"), type=_Secret)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        self._version = secret.metadata.resourceVersion
        try:
            found = {attribute: base64.b64decode((secret.data or {}).get(key, "")) for key, attribute in FIELDS.items()}
        except ValueError:
            return None
        return Material(**found) if found["bundle"] else None

    async def save(self, material: Material) -> None:
        """Creates the Secret, or replaces our keys in the version that was loaded."""
        data = {
            key: base64.b64encode(getattr(material, attribute)).decode() or None  # null removes the key
            for key, attribute in FIELDS.items()
        }
        body: dict[str, object] = {"apiVersion": "v1", "kind": "Secret", "data": data}
        try:
            if self._version:
                body |= {"metadata": {"resourceVersion": self._version}}
                await self._api.send("PATCH", f"{self._path}/{self._name}", body, MERGE_PATCH)
            else:
                body |= {"metadata": {"name": self._name, "labels": LABELS}, "type": "Opaque"}
                body["data"] = {key: value for key, value in data.items() if value}
                await self._api.send("POST", self._path, body, "application/json")
        except ApiError as error:
            if error.code == 409:
                raise Conflict(str(error)) from None
            raise


class DirectoryKeep:
    """A directory in the kubelet's manner: files are links through `..data`, which one rename replaces for all."""

    def __init__(self, directory: str, names: tuple[str, ...] = tuple(FIELDS)) -> None:
        self._directory = Path(directory)
        self._names = names

    async def load(self) -> Material | None:
        """One writer is assumed: a directory has no versions."""
        found = {FIELDS[name]: _content(self._directory / name) for name in FIELDS}
        return Material(**found) if found["bundle"] else None

    async def save(self, material: Material) -> None:
        """A reader sees all the old files or all the new ones."""
        self._directory.mkdir(parents=True, exist_ok=True)
        version = Path(tempfile.mkdtemp(prefix="..", dir=self._directory))
        version.chmod(0o755)
        wanted = {name: content for name in self._names if (content := getattr(material, FIELDS[name]))}
        for name, content in wanted.items():
            file = version / name
            file.touch(0o600 if name.endswith(".key") else 0o644)
            file.write_bytes(content)
        data = self._directory / "..data"
        old = data.readlink() if data.is_symlink() else None
        _link(data, version.name)
        for name in self._names:
            if name in wanted:
                _link(self._directory / name, f"..data/{name}")
            else:
                (self._directory / name).unlink(missing_ok=True)
        if old:
            shutil.rmtree(self._directory / old, ignore_errors=True)

    async def mirror(self, material: Material) -> None:
        """Saves when the files differ."""
        wanted = {name: getattr(material, FIELDS[name]) for name in self._names}
        if {name: _content(self._directory / name) for name in self._names} != wanted:
            await self.save(material)


def _link(link: Path, target: str) -> None:
    if link.is_symlink() and str(link.readlink()) == target:
        return
    temporary = link.with_name(f"{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.rename(link)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
