"""Packs folders into an image archive that `docker load`, `ctr images import` and `kind load image-archive` read.

    python daemonset/image/archive.py OUT.tar NAME:TAG FOLDER... [--user U] [--entrypoint WORD]...

One layer a folder, lowest first; everything belongs to root, in the order of names and with one time, so the same
folders give the same bytes and so the same image id.
"""

import argparse
import hashlib
import io
import json
import os
import platform
import tarfile
from pathlib import Path
from typing import Any

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--user", default="65532:65532")
    parser.add_argument("--entrypoint", action="append", default=[])
    options = parser.parse_args()
    partial = options.out.with_suffix(".partial")
    with tarfile.open(partial, "w") as archive:
        layers = [add_layer(archive, folder) for folder in options.folders]
        config = json.dumps(configuration(layers, options.user, options.entrypoint)).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        add(archive, name, config)
        parts = [{"Config": name, "RepoTags": [options.name], "Layers": [f"{digest}.tar" for digest in layers]}]
        add(archive, "manifest.json", json.dumps(parts).encode())
    partial.rename(options.out)


def add_layer(archive: tarfile.TarFile, folder: Path) -> str:
    """Appends a folder as one layer; returns its digest. A layer is held in memory: the largest has 60 MB."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as layer:
        for path in sorted(folder.rglob("*")):
            layer.add(path, arcname=str(path.relative_to(folder)), recursive=False, filter=anonymous)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    add(archive, f"{digest}.tar", content)
    return digest


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The member without a trace of who packed it, and when."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = EPOCH
    if member.isfile() or member.isdir():  # a umask of 077 must not lock the image's own user out
        member.mode |= 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def configuration(layers: list[str], user: str, entrypoint: list[str]) -> dict[str, Any]:
    return {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"User": user, "Env": [PATH], "Entrypoint": entrypoint, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in layers]},
    }


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mtime = EPOCH
    archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
