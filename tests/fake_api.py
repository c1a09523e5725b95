"""An API server as far as one node's pods and Events go, over real HTTP or HTTPS, that misbehaves when told to."""

import asyncio
import json
import ssl
from typing import Any

from aiohttp import web


class FakeApi:
    """Pods by uid with a resourceVersion that counts up. `requests` are the queries it saw, in order."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 1
        self.requests: list[dict[str, str]] = []
        self.tokens: list[str | None] = []
        self.events: list[dict[str, Any]] = []
        self.nodes: dict[str, dict[str, Any]] = {}
        self.patched: list[Any] = []  # what was asked of nodes, refused or not
        self.fail: list[int] = []  # status codes for the next requests
        self.retry_after: str | None = None  # said with each of them
        self.stalled = False  # requests are taken and not answered
        self.mute = False  # connections stay open, nothing is sent
        self.forgotten = 0  # watches from before this version are answered with 410
        self.url = ""
        self._log: list[tuple[int, str]] = []
        self._news = asyncio.Condition()
        self._watches: set[web.StreamResponse] = set()
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        application = web.Application()
        application.router.add_get("/api/v1/pods", self._get)
        application.router.add_get("/api/v1/nodes/{name}", self._node)
        application.router.add_patch("/api/v1/nodes/{name}", self._patch_node)
        application.router.add_post("/api/v1/namespaces/{namespace}/events", self._event)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=self._tls)
        await site.start()
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self.drop()
            await self._runner.cleanup()
            self._runner = None

    async def put(self, pod: dict[str, Any], kind: str | None = None) -> None:
        uid = pod["metadata"]["uid"]
        kind = kind or ("MODIFIED" if uid in self.pods else "ADDED")
        self.version += 1
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self.version)}}
        self.pods[uid] = pod
        await self.say(kind, pod)

    async def delete(self, uid: str) -> None:
        self.version += 1
        pod = self.pods.pop(uid)
        await self.say("DELETED", {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self.version)}})

    async def say(self, kind: str, body: Any) -> None:
        async with self._news:
            self._log.append((self.version, json.dumps({"type": kind, "object": body})))
            self._news.notify_all()

    async def drop(self) -> None:
        """Ends every watch, as a server does that is restarted."""
        for response in list(self._watches):
            if (transport := response._req.transport) is not None:  # type: ignore[union-attr]
                transport.close()

    async def _get(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization"))
        if self.fail:
            return self._refused(self.fail.pop(0))
        while self.stalled:
            await asyncio.sleep(0.01)
        if "watch" not in request.query:
            metadata = {"resourceVersion": str(self.version)}
            return web.json_response({"kind": "PodList", "metadata": metadata, "items": list(self.pods.values())})
        return await self._watch(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        place = int(request.query["resourceVersion"])
        sent = 0
        try:
            await response.prepare(request)
            self._watches.add(response)
            if place < self.forgotten:
                status = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
                await response.write(json.dumps(status).encode() + b"\n")
                return response
            while True:
                for version, line in self._log[sent:]:
                    sent += 1
                    if version > place and not self.mute:
                        await response.write(line.encode() + b"\n")
                async with self._news:
                    await self._news.wait_for(lambda told=sent: len(self._log) > told)
        except (ConnectionError, asyncio.CancelledError):
            return response
        finally:
            self._watches.discard(response)

    async def _node(self, request: web.Request) -> web.Response:
        if self.fail:
            return self._refused(self.fail.pop(0))
        return web.json_response(self.nodes[request.match_info["name"]])

    async def _patch_node(self, request: web.Request) -> web.Response:
        """A JSON patch of whole lists, as far as `test` and `replace` go."""
        assert request.content_type == "application/json-patch+json"
        steps = await request.json()
        self.patched.append(steps)
        if self.fail:
            return self._refused(self.fail.pop(0))
        spec = self.nodes[request.match_info["name"]]["spec"]
        for step in steps:
            place = step["path"].removeprefix("/spec/")
            if step["op"] == "test" and spec.get(place) != step["value"]:
                return self._refused(422)
            if step["op"] == "replace":
                spec[place] = step["value"]
        return web.json_response({})

    async def _event(self, request: web.Request) -> web.Response:
        self.events.append(await request.json())
        return web.json_response({}, status=201)

    def _refused(self, code: int) -> web.Response:
        headers = {"Retry-After": self.retry_after} if self.retry_after else {}
        body = {"kind": "Status", "code": code, "message": f"no ({code})"}
        return web.json_response(body, status=code, headers=headers)
