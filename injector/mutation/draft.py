"""A pod being put together: the user's own parts as numbers of where they stand, ours as content.

The user's containers and volumes are never copied or printed again, unless something has to be merged into one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final, Literal

from injector.mutation.merge import DIRECTIVE, interleaved, merged, without_nulls
from injector.mutation.pod import Container, Pod, Spec, container

ListName = Literal["containers", "initContainers", "volumes", "imagePullSecrets"]
LISTS: Final[tuple[ListName, ...]] = ("initContainers", "containers", "volumes", "imagePullSecrets")
CONTAINER_LISTS: Final[tuple[ListName, ...]] = ("containers", "initContainers")  # the order in which Istio looks


class Slot:
    """One element of a list: of the user's at `index`, with `content` once it is more than that."""

    __slots__ = ("content", "index", "name", "view")

    def __init__(
        self, name: str, index: int | None, view: Container | None = None, content: dict[str, Any] | None = None
    ) -> None:
        self.name = name
        self.index = index
        self.view = view
        self.content = content


class Names:
    """The names that templates define, list by list, as if they were merged into an empty pod."""

    def __init__(self) -> None:
        self.lists: dict[ListName, list[str]] = {where: [] for where in LISTS}

    def add(self, overlay: Mapping[str, Any]) -> None:
        """Merges the names of one more template."""
        spec = overlay.get("spec") or {}
        for where in LISTS:
            items = spec.get(where) or []
            named = [item.get("name", "") for item in items if DIRECTIVE not in item]
            before = self.lists[where]
            if before and named:
                order = interleaved(before, named)
                self.lists[where] = [named[index] if added else before[index] for added, index in order]
            elif named:
                self.lists[where] = named


class Draft:
    """The pod as it will be. `whole` gives the pod's whole JSON, which is decoded only when something needs it."""

    def __init__(self, pod: Pod, whole: Callable[[], dict[str, Any]]) -> None:
        spec = pod.spec or Spec()
        metadata = pod.metadata
        self.labels: dict[str, str] = _texts(metadata.labels if metadata else None)
        self.annotations: dict[str, str] = _texts(metadata.annotations if metadata else None)
        self.lists: dict[ListName, list[Slot]] = {
            "containers": _viewed(spec.containers),
            "initContainers": _viewed(spec.initContainers),
            "volumes": [Slot(item.name, index) for index, item in enumerate(spec.volumes or ())],
            "imagePullSecrets": [Slot(item.name, index) for index, item in enumerate(spec.imagePullSecrets or ())],
        }
        self.spec: dict[str, Any] = {}  # other fields of the spec that changed
        self.metadata: dict[str, Any] = {}  # and of the metadata
        self._whole = whole
        self._cached: dict[str, Any] | None = None

    def original(self, part: Literal["spec", "metadata"]) -> Mapping[str, Any]:
        """A part of the pod's JSON."""
        if self._cached is None:
            self._cached = self._whole()
        value = self._cached.get(part)
        return value if isinstance(value, Mapping) else {}

    def original_item(self, where: ListName, index: int) -> Mapping[str, Any]:
        """One element of one of the lists, as it came."""
        item: Mapping[str, Any] = self.original("spec")[where][index]
        return item

    def content(self, where: ListName, slot: Slot) -> dict[str, Any]:
        """The element's content, for changing it."""
        if slot.content is None:
            assert slot.index is not None
            slot.content = deepcopy(dict(self.original_item(where, slot.index)))
        return slot.content

    def seen(self, slot: Slot) -> Container:
        """The view of a container as it is now."""
        if slot.content is not None:
            return container(slot.content)
        assert slot.view is not None
        return slot.view

    def find(self, name: str, where: Iterable[ListName] = CONTAINER_LISTS) -> tuple[ListName, Slot] | None:
        """The first container of that name."""
        return next(((place, slot) for place in where for slot in self.lists[place] if slot.name == name), None)

    def containers(self) -> Iterator[tuple[ListName, Slot]]:
        """All containers, init containers first."""
        for where in LISTS[:2]:
            for slot in self.lists[where]:
                yield where, slot

    def apply(self, overlay: Mapping[str, Any], *, keep_sources: bool) -> None:
        """Merges a template. `keep_sources`: a volume's null source says nothing about a volume that is there."""
        metadata = overlay.get("metadata") or {}
        self.labels = _pairs(self.labels, metadata.get("labels"))
        self.annotations = _pairs(self.annotations, metadata.get("annotations"))
        spec = overlay.get("spec") or {}
        for where in LISTS:
            items = spec.get(where) or []
            if items:
                self.lists[where] = self._merged(where, items, heed_nulls=where != "volumes" or not keep_sources)
        self._apply_rest("metadata", self.metadata, metadata, ("labels", "annotations"))
        self._apply_rest("spec", self.spec, spec, LISTS)

    def put(self, where: ListName, item: dict[str, Any]) -> None:
        """Merges one container on top."""
        self.lists[where] = self._merged(where, [item], heed_nulls=True)

    def _merged(self, where: ListName, items: list[dict[str, Any]], *, heed_nulls: bool) -> list[Slot]:
        slots = self.lists[where]
        if not slots or any(item.get(DIRECTIVE) == "replace" for item in items):
            return [_fresh(item) for item in items if DIRECTIVE not in item]
        dropped = {item["name"] for item in items if item.get(DIRECTIVE) == "delete" and "name" in item}
        slots = [slot for slot in slots if slot.name not in dropped]
        items = [item for item in items if item.get(DIRECTIVE) != "delete"]
        there = {slot.name: slot for slot in reversed(slots)}
        for item in items:
            name = item.get("name", "")
            if name in there:
                overlay = item if heed_nulls else without_nulls(item)
                there[name].content = merged(self.content(where, there[name]), overlay)
            else:
                there[name] = _fresh(item)
        order = interleaved([slot.name for slot in slots], [item.get("name", "") for item in items])
        return [there[items[index].get("name", "")] if added else slots[index] for added, index in order]

    def _apply_rest(
        self,
        part: Literal["spec", "metadata"],
        changed: dict[str, Any],
        overlay: Mapping[str, Any],
        known: tuple[str, ...],
    ) -> None:
        for name in overlay.keys() - set(known):
            base = changed[name] if name in changed else self.original(part).get(name)
            changed[name] = merged({} if base is None else {name: base}, {name: overlay[name]}).get(name)


def _fresh(item: Mapping[str, Any]) -> Slot:
    content = without_nulls(item)
    return Slot(content.get("name", ""), None, content=content)


def _viewed(containers: list[Container] | None) -> list[Slot]:
    return [Slot(view.name, index, view) for index, view in enumerate(containers or ())]


def _texts(written: Mapping[str, str | None] | None) -> dict[str, str]:
    """Go reads a null as an empty text."""
    return {key: value or "" for key, value in (written or {}).items()}


def _pairs(base: dict[str, str], overlay: Mapping[str, str | None] | None) -> dict[str, str]:
    if not overlay:
        return base
    result = dict(base)
    for key, value in overlay.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = value
    return result
