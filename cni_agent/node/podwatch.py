"""Pods of this node from the API: listed from the server's cache, then watched. No polling, no writes.

A watch may end in many ways: the server closes it in its own time, is restarted, has forgotten our place (410), or the
connection dies without a word. Bookmarks come about every minute, so a long silence means the last. Whatever ends it,
it goes on from the last known place, and lists anew only when that place is lost.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import msgspec

from cni_agent.apiserver import UNREACHABLE, ApiError, ApiServer, Status
from cni_agent.invalid import Invalid
from cni_agent.podview import PodView, pod_view

PATH: Final = "/api/v1/pods"
SILENCE: Final = 150.0  # seconds; more than two bookmarks
HELD: Final = 300  # seconds that we ask the server to hold a watch open, give or take a fifth
GONE: Final = 410
_FIRST_WAIT: Final = 0.2
_LONGEST_WAIT: Final = 10.0

End = Literal["closed", "expired", "silent", "unreachable", "refused", "unreadable"]
logger = logging.getLogger(__name__)


class _Ended(NamedTuple):
    """How a watch ended and why; `asked`: seconds for which the server wants to be left alone."""

    end: End
    why: str = ""
    asked: float = 0.0


class _Metadata(msgspec.Struct):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    uid: str = ""


class _List(msgspec.Struct):
    metadata: _Metadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Object(msgspec.Struct):
    metadata: _Metadata


_LIST: Final = msgspec.json.Decoder(_List)
_EVENT: Final = msgspec.json.Decoder(_Event)
_OBJECT: Final = msgspec.json.Decoder(_Object)


async def listed(server: ApiServer, node: str) -> list[PodView]:
    """A node's pods, once. Raises `ApiError` or one of `UNREACHABLE`."""
    answer = _LIST.decode(await server.get(PATH, {"fieldSelector": f"spec.nodeName={node}", "resourceVersion": "0"}))
    return [pod_view(bytes(item)) for item in answer.items or ()]


class PodWatch:
    """Keeps `changed` and `gone` told of one node's pods. `ended` hears of each end of a watch."""

    def __init__(
        self,
        server: ApiServer,
        node: str,
        *,
        changed: Callable[[PodView], None],
        gone: Callable[[str], None],
        ended: Callable[[End], None],
        silence: float = SILENCE,
    ) -> None:
        self.listed = False
        self.heard = time.monotonic()  # when the server last said anything
        self._server = server
        self._selector = f"spec.nodeName={node}"
        self._changed = changed
        self._gone = gone
        self._ended = ended
        self._silence = silence
        self._known: dict[str, str] = {}  # from the uid in the API to that of the cgroup
        self._place = ""  # the resourceVersion to go on from; empty: list first
        self._fresh = False  # the server's cache may be behind us: ask for the newest state
        self._agreed = False  # the server has begun to answer the watch

    async def run(self) -> None:
        """For ever."""
        wait = _FIRST_WAIT
        while True:
            started = time.monotonic()
            end, why, asked = await self._once()
            self._ended(end)
            if end != "closed":
                logger.warning("watch ended", extra={"reason": end, "why": why})
            if time.monotonic() - started > _LONGEST_WAIT:
                wait = _FIRST_WAIT  # it had been working
            await asyncio.sleep(max(asked, wait * random.uniform(0.5, 1.5)))
            wait = min(_LONGEST_WAIT, wait * 2)

    async def _once(self) -> _Ended:
        """Lists if need be, then watches until that ends."""
        self._agreed = False
        try:
            if not self._place:
                await self._list()
            await self._watch()
        except ApiError as error:
            if error.code != GONE:
                return _Ended("refused", _hint(error), error.retry_after)
            self._place, self._fresh = "", True
            return _Ended("expired", str(error))
        except TimeoutError as error:
            if self._agreed:
                return _Ended("silent", f"not a word for {self._silence:g} s")
            return _Ended("unreachable", str(error) or "no answer in time")
        except UNREACHABLE as error:
            return _Ended("unreachable", str(error) or type(error).__name__)
        except msgspec.DecodeError as error:
            self._place, self._fresh = "", True
            return _Ended("unreadable", str(error))
        return _Ended("closed")

    async def _list(self) -> None:
        """Version 0 means any that the server has in memory; asking etcd costs two hundred times as much."""
        version = "" if self._fresh else "0"
        query = {"fieldSelector": self._selector, "resourceVersion": version}
        answer = _LIST.decode(await self._server.get(PATH, {name: value for name, value in query.items() if value}))
        self.heard = time.monotonic()
        before, self._known = self._known, {}
        for item in answer.items or ():
            self._take(bytes(item))
        for uid in set(before.values()) - set(self._known.values()):
            self._gone(uid)
        self._place, self._fresh, self.listed = answer.metadata.resource_version, False, True

    async def _watch(self) -> None:
        query = {
            "fieldSelector": self._selector,
            "resourceVersion": self._place,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(HELD * random.uniform(0.8, 1.2))),
        }
        async for line in self._server.lines(PATH, query, self._silence):
            self.heard = time.monotonic()
            self._agreed = True
            if line:
                self._happened(_EVENT.decode(line))

    def _happened(self, event: _Event) -> None:
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise ApiError(status.code, status.message)
        metadata = _OBJECT.decode(event.object).metadata
        self._place = metadata.resource_version
        if event.type == "DELETED":
            self._gone(self._known.pop(metadata.uid, metadata.uid))
        elif event.type != "BOOKMARK":
            self._take(bytes(event.object))

    def _take(self, pod: bytes) -> None:
        """Hands on one pod; one that cannot be read is told of and does not stop the others."""
        try:
            view = pod_view(pod)
        except Invalid as invalid:
            logger.error("cannot read a pod", extra={"error": str(invalid)})
            return
        self._known[view.mirror or view.uid] = view.uid
        self._changed(view)


def _hint(error: ApiError) -> str:
    if error.code == 403:
        return f"{error}; the ClusterRole must allow get, list and watch of pods"
    return str(error)
