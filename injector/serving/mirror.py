"""A list of API objects, mirrored: list, then watch; resume after the stream ends, list again when told to (410)."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from cni_agent.apiserver import UNREACHABLE, ApiError, ApiServer, Status

log = logging.getLogger(__name__)

PAGE: Final = "500"
GONE: Final = 410
NO_USE: Final = (403, 404)  # not allowed, or no such resource: waiting will not help
HELD: Final = 240  # seconds that we ask the server to hold a watch open
FIRST_DELAY: Final = 0.5  # seconds, doubled at each failure
LONGEST_DELAY: Final = 30.0

T = TypeVar("T")


class Metadata(msgspec.Struct):
    """The part of an object's metadata that we use."""

    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""
    creationTimestamp: str = ""
    annotations: dict[str, str] = {}


class _Named(msgspec.Struct):
    metadata: Metadata


class _ListMetadata(msgspec.Struct):
    resourceVersion: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Mirror(Generic[T]):
    """`objects` by (namespace, name), each decoded as `kind`, which names only the fields that we need."""

    def __init__(self, api: ApiServer, path: str, kind: type[T], changed: Callable[[], None], **query: str) -> None:
        self._api = api
        self._path = path
        self._kind = kind
        self._changed = changed
        self._query = query
        self._version = ""  # of the last event; empty means that a list is due
        self._delay = FIRST_DELAY
        self.objects: Mapping[tuple[str, str], T] = {}
        self.synced = False
        self.settled = False  # whether the server has said what there is, or that we shall not know it
        self.absent = False  # it has no such resource, as without the CRD
        self.problem = ""

    @property
    def resource(self) -> str:
        """What is mirrored, such as `nodes`."""
        return self._path.rpartition("/")[2]

    async def run(self) -> None:
        """Forever. What fails is said once, kept in `problem`, and tried again."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                self._delay = FIRST_DELAY  # the stream ended as it should: resume where it was
            except ApiError as error:
                if error.code == GONE:
                    self._version = ""
                    continue
                self.settled |= error.code in NO_USE
                self.absent = error.code == 404
                await self._wait(str(error))
            except (*UNREACHABLE, msgspec.DecodeError) as error:
                await self._wait(f"{type(error).__name__}: {error}")

    async def _list(self) -> None:
        found: dict[tuple[str, str], T] = {}
        page = {"limit": PAGE}
        while True:
            listed = msgspec.json.decode(await self._api.get(self._path, {**self._query, **page}), type=_List)
            for item in listed.items or []:
                found[self._key(item)] = msgspec.json.decode(item, type=self._kind)
            if not listed.metadata.continue_:
                break
            page["continue"] = listed.metadata.continue_
        self._version = listed.metadata.resourceVersion
        self._replace(found)

    async def _watch(self) -> None:
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(HELD),
        }
        async for line in self._api.lines(self._path, query, HELD + 30):
            if line:
                self._take(msgspec.json.decode(line, type=_Event))
            else:
                self._replace(self.objects)

    def _take(self, event: _Event) -> None:
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=Status)
            raise ApiError(status.code, status.message)
        self._version = msgspec.json.decode(event.object, type=_Named).metadata.resourceVersion
        if event.type == "BOOKMARK":
            return
        objects = dict(self.objects)
        if event.type == "DELETED":
            objects.pop(self._key(event.object), None)
        else:
            objects[self._key(event.object)] = msgspec.json.decode(event.object, type=self._kind)
        self._replace(objects)

    def _replace(self, objects: Mapping[tuple[str, str], T]) -> None:
        recovered = bool(self.problem)
        self.problem = ""
        self.settled, self.absent = True, False
        self._delay = FIRST_DELAY
        if objects != self.objects or not self.synced or recovered:
            self.objects = objects
            self.synced = True
            self._changed()

    async def _wait(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            log.warning("cannot read from the API server", extra={"path": self._path, "error": problem})
            self._changed()
        await asyncio.sleep(self._delay * random.uniform(0.8, 1.2))
        self._delay = min(LONGEST_DELAY, 2 * self._delay)

    @staticmethod
    def _key(raw: Any) -> tuple[str, str]:
        metadata = msgspec.json.decode(raw, type=_Named).metadata
        return (metadata.namespace, metadata.name)
