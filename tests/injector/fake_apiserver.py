"""A small API server that keeps state: real HTTP, real watches, resourceVersions, conflicts and field managers.

It knows just enough for what the injector asks of one, and can be told to misbehave as real ones do: forget history
(410), end streams, refuse, go away and come back on the same port.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from cni_agent.apiserver import Access

Object = dict[str, Any]


class FakeApiServer:
    """Objects by collection path and name."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, Object]] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.refusals: list[tuple[int, str]] = []  # answered, first to last, instead of the next requests
        self.failing: dict[str, int] = {}  # path: the status of every request for it
        self.token: str | None = None
        self._history: list[tuple[int, str, str, Object]] = []  # version, collection, type, object
        self._version = 100
        self._oldest = 0
        self._news = asyncio.Condition()
        self._streams: set[asyncio.Task[Any]] = set()
        self._runner: web.AppRunner | None = None
        self._port = 0

    # What tests do

    async def put(self, path: str, name: str, **content: Any) -> None:
        """Creates or replaces an object."""
        kind = "MODIFIED" if name in self.collections.setdefault(path, {}) else "ADDED"
        metadata = {"name": name, **content.pop("metadata", {})}
        await self._store(path, kind, {**content, "metadata": metadata})

    async def delete(self, path: str, name: str) -> None:
        """Deletes an object."""
        await self._store(path, "DELETED", self.collections[path][name])

    def forget(self) -> None:
        """Drops history, as etcd's compaction does; a watch from before gets 410."""
        self._version += 1
        self._oldest = self._version

    async def cut(self) -> None:
        """Ends every open watch."""
        streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    @property
    def watching(self) -> int:
        """How many watches are open."""
        return len(self._streams)

    def access(self) -> Access:
        """How to reach it."""
        return Access(f"http://127.0.0.1:{self._port}", None, lambda: self.token)

    async def start(self) -> None:
        """Serves, on the same port again after `stop`."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Goes away."""
        await self.cut()
        assert self._runner
        await self._runner.cleanup()

    # What clients get

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append((request.method, request.path, query))
        if self.refusals:
            code, message = self.refusals.pop(0)
            return _status(code, message)
        if request.path in self.failing:
            return _status(self.failing[request.path], "as the test says")
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        collection, _, name = request.path.rpartition("/")
        if request.method == "POST":
            return await self._create(request.path, await request.json())
        if request.method == "PATCH":
            return await self._patch(request, collection, name, query)
        if request.path in self.collections:
            return await (self._watch if "watch" in query else self._list)(request, query)
        found = self.collections.get(collection, {}).get(name)
        return web.json_response(found) if found else _status(404, f'"{name}" not found')

    async def _list(self, request: web.Request, query: dict[str, str]) -> web.Response:
        items = [item for item in self.collections[request.path].values() if _selected(item, query)]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 500))
        rest = str(start + limit) if start + limit < len(items) else ""
        metadata = {"resourceVersion": str(self._version), "continue": rest}
        return web.json_response({"metadata": metadata, "items": items[start : start + limit]})

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        task = asyncio.ensure_future(self._stream(request.path, query, response))
        self._streams.add(task)
        try:
            await asyncio.gather(task, return_exceptions=True)
        finally:
            self._streams.discard(task)
            task.cancel()
        return response

    async def _stream(self, path: str, query: dict[str, str], response: web.StreamResponse) -> None:
        seen = int(query["resourceVersion"])
        while True:
            if seen < self._oldest:
                gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
                await response.write(_line("ERROR", gone))
                return
            for version, collection, kind, item in list(self._history):
                if version > seen and collection == path and _selected(item, query):
                    await response.write(_line(kind, item))
                seen = max(seen, version)
            bookmark = {"metadata": {"resourceVersion": str(seen)}}
            await response.write(_line("BOOKMARK", bookmark))
            async with self._news:
                await self._news.wait_for(lambda: self._version > seen)  # noqa: B023 - awaited at once

    async def _create(self, path: str, item: Object) -> web.Response:
        name = item["metadata"]["name"]
        if name in self.collections.get(path, {}):
            return _status(409, f'"{name}" already exists')
        await self._store(path, "ADDED", item)
        return web.json_response(item, status=201)

    async def _patch(self, request: web.Request, path: str, name: str, query: dict[str, str]) -> web.Response:
        old = self.collections.get(path, {}).get(name)
        if old is None:
            return _status(404, f'"{name}" not found')
        patch = json.loads(await request.text())
        if "apply" in request.content_type:
            conflict = self._apply(old, patch, query)
            if conflict:
                return _status(409, f'Apply failed with 1 conflict: conflict with "{conflict}": .caBundle')
        else:
            wanted = patch["metadata"].get("resourceVersion", "")
            if wanted and wanted != old["metadata"]["resourceVersion"]:
                return _status(409, "the object has been modified; please apply your changes to the latest version")
            data = {**old.get("data", {}), **patch["data"]}
            old = {**old, "data": {key: value for key, value in data.items() if value is not None}}
        await self._store(path, "MODIFIED", old)
        return web.json_response(old)

    @staticmethod
    def _apply(old: Object, patch: Object, query: dict[str, str]) -> str | None:
        """Server-side apply of `clientConfig.caBundle`, the only field whose manager is kept."""
        manager = query["fieldManager"]
        for entry in patch["webhooks"]:
            found = next(item for item in old["webhooks"] if item["name"] == entry["name"])
            bundle = entry["clientConfig"]["caBundle"]
            owner = found.get("caBundleManager", manager)
            if owner != manager and found["clientConfig"].get("caBundle") != bundle and "force" not in query:
                return str(owner)
            found["clientConfig"]["caBundle"] = bundle
            found["caBundleManager"] = manager
        return None

    async def _store(self, path: str, kind: str, item: Object) -> None:
        self._version += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._version)}}
        if kind == "DELETED":
            del self.collections[path][item["metadata"]["name"]]
        else:
            self.collections.setdefault(path, {})[item["metadata"]["name"]] = item
        self._history.append((self._version, path, kind, item))
        async with self._news:
            self._news.notify_all()


@asynccontextmanager
async def fake_apiserver() -> AsyncIterator[FakeApiServer]:
    """A running one."""
    server = FakeApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def _selected(item: Object, query: dict[str, str]) -> bool:
    wanted = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return wanted in ("", item["metadata"]["name"])


def _line(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)
