"""The state of the node's pods, given to whoever opens a unix socket; only root can."""

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from cni_agent.node.nodepod import NodePod

_SECONDS: Final = 5.0
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


class StatusServer:
    """Answers each connection with one JSON document, and closes it."""

    def __init__(self, path: str, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._path = Path(path)
        self._snapshot = snapshot
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Raises OSError when the socket cannot be made."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mask = os.umask(0o177)  # the socket is made with the mode that the mask leaves
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        finally:
            os.umask(mask)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer(writer) == os.geteuid():
                writer.write(json.dumps(self._snapshot()).encode())
                async with asyncio.timeout(_SECONDS):
                    await writer.drain()
        except (OSError, TimeoutError):
            pass  # whoever asked is gone
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def _peer(writer: asyncio.StreamWriter) -> int:
    """The user at the other end, as the kernel knows it."""
    connection = writer.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def pods(records: Iterable[NodePod]) -> list[dict[str, Any]]:
    """The pods as a snapshot has them, by namespace and name."""
    known = [record for record in records if record.pod is not None]
    return sorted(map(_pod, known), key=lambda pod: (pod["namespace"], pod["name"], pod["uid"]))


def _pod(record: NodePod) -> dict[str, Any]:
    assert record.pod is not None
    return {
        "namespace": record.pod.namespace,
        "name": record.pod.name,
        "uid": record.uid,
        "state": record.verdict.outcome,
        "reason": record.verdict.reason,
        "sentence": record.verdict.sentence,
        "ignored": record.ignored if record.applied else "",
        "since": record.since,
        "milliseconds": None if record.milliseconds is None else round(record.milliseconds, 3),
        "drifts": record.drifts,
        "netns": record.netns.identity.inode if record.netns else None,
    }


def ask(path: str) -> dict[str, Any]:
    """The snapshot of the agent that listens there. Raises OSError, or ValueError for an answer that is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(path)
        chunks = []
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    document = json.loads(b"".join(chunks))
    if not isinstance(document, dict):
        raise ValueError("not a snapshot")
    return document


def table(snapshot: dict[str, Any]) -> str:
    """A snapshot for people."""
    rows = [("POD", "STATE", "BACKEND", "SINCE", "MS", "DRIFTS", "WHY")]
    for pod in snapshot["pods"]:
        milliseconds = "" if pod["milliseconds"] is None else f"{pod['milliseconds']:.1f}"
        backend = snapshot["backend"] if pod["netns"] else ""
        name = f"{pod['namespace']}/{pod['name']}"
        why = f"{pod['reason']}, change ignored" if pod.get("ignored") else pod["reason"]
        rows.append((name, pod["state"], backend, _ago(pod["since"]), milliseconds, str(pod["drifts"]), why))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    ready = "ready" if not snapshot["not_ready"] else "not ready: " + "; ".join(snapshot["not_ready"])
    summary = f"{snapshot['node'] or 'this node'}: {ready}, backend {snapshot['backend']}, drift {snapshot['drift']}"
    return "\n".join([summary, *lines])


def _ago(since: float) -> str:
    seconds = max(0, int(time.time() - since))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"
