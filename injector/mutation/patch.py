"""The JSON patch (RFC 6902) from a pod as it came to a draft of it.

Elements are inserted, moved and removed by index in the JSON as it is; the user's own are not printed again, so fields
that nobody here knows stay with the element they belong to.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from injector.mutation.draft import LISTS, Draft, ListName, Slot
from injector.mutation.pod import Pod
from injector.mutation.probes import Operation


def operations(pod: Pod, draft: Draft, edits: list[Operation]) -> list[Operation]:
    """The patch. `edits` are changes to probes of containers that are otherwise as they came."""
    result = list(edits)
    metadata, spec = pod.metadata, pod.spec
    if metadata is None:
        result.append({"op": "add", "path": "/metadata", "value": {}})
    if spec is None:
        result.append({"op": "add", "path": "/spec", "value": {}})
    for where in LISTS:
        original = getattr(spec, where) if spec else None
        _list(result, where, None if original is None else len(original), draft)
    _pairs(result, "labels", metadata.labels if metadata else None, draft.labels)
    _pairs(result, "annotations", metadata.annotations if metadata else None, draft.annotations)
    for part, changed in (("spec", draft.spec), ("metadata", draft.metadata)):
        if changed:
            before = draft.original("spec" if part == "spec" else "metadata")
            for name, value in changed.items():
                _value(result, (part, name), before.get(name), value, there=name in before)
    return result


def pointer(path: Sequence[str]) -> str:
    """A JSON pointer (RFC 6901).

    >>> pointer(("metadata", "labels", "a/b~c"))
    '/metadata/labels/a~1b~0c'
    """
    return "/" + "/".join([_escaped(part) for part in path])


@lru_cache(maxsize=1024)  # the same few annotations and labels in every pod
def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def difference(result: list[Operation], path: tuple[str, ...], old: Any, new: Any) -> None:
    """Appends what turns `old` into `new`, object by object; a list changes in its differing middle part."""
    if _same(old, new):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in old:
            if name not in new:
                result.append({"op": "remove", "path": pointer((*path, name))})
        for name, value in new.items():
            _value(result, (*path, name), old.get(name), value, there=name in old)
    elif isinstance(old, list) and isinstance(new, list):
        _middle(result, path, old, new)
    else:
        result.append({"op": "replace", "path": pointer(path), "value": new})


def _value(result: list[Operation], path: tuple[str, ...], old: Any, new: Any, *, there: bool) -> None:
    if new is None:
        if there:
            result.append({"op": "remove", "path": pointer(path)})
    elif there:
        difference(result, path, old, new)
    else:
        result.append({"op": "add", "path": pointer(path), "value": new})


def _same(old: Any, new: Any) -> bool:
    """Equality as JSON has it: for Python 1 == True, at any depth."""
    if type(old) is not type(new) or old != new:
        return False
    if isinstance(old, dict):
        return all(_same(value, new[key]) for key, value in old.items())
    return not isinstance(old, list) or all(map(_same, old, new))


def _middle(result: list[Operation], path: tuple[str, ...], old: list[Any], new: list[Any]) -> None:
    shorter = min(len(old), len(new))
    start = 0
    while start < shorter and _same(old[start], new[start]):
        start += 1
    end = 0
    while end < shorter - start and _same(old[-1 - end], new[-1 - end]):
        end += 1
    shared = shorter - start - end
    for index in range(start, start + shared):
        difference(result, (*path, str(index)), old[index], new[index])
    for index in range(len(old) - end - 1, start + shared - 1, -1):
        result.append({"op": "remove", "path": pointer((*path, str(index)))})
    for index in range(start + shared, len(new) - end):
        result.append({"op": "add", "path": pointer((*path, str(index))), "value": new[index]})


def _pairs(result: list[Operation], name: str, old: Mapping[str, str | None] | None, new: Mapping[str, str]) -> None:
    if old is None:
        if new:
            result.append({"op": "add", "path": f"/metadata/{name}", "value": new})
        return
    for key in old:
        if key not in new:
            result.append({"op": "remove", "path": f"/metadata/{name}/{_escaped(key)}"})
    for key, value in new.items():
        if key not in old:
            result.append({"op": "add", "path": f"/metadata/{name}/{_escaped(key)}", "value": value})
        elif (old[key] or "") != value:
            result.append({"op": "replace", "path": f"/metadata/{name}/{_escaped(key)}", "value": value})


def _list(result: list[Operation], where: ListName, length: int | None, draft: Draft) -> None:
    slots = draft.lists[where]
    path = ("spec", where)
    if length is None:
        if slots:
            result.append({"op": "add", "path": pointer(path), "value": [slot.content for slot in slots]})
        return
    for slot in slots:
        if slot.index is not None and slot.content is not None:
            before = draft.original_item(where, slot.index)
            difference(result, (*path, str(slot.index)), before, slot.content)
    _sequence(result, f"/spec/{where}", length, slots)


def _sequence(result: list[Operation], path: str, length: int, slots: list[Slot]) -> None:
    """Removes what is gone, last first, then walks the wanted order and inserts or moves what is not in place."""
    kept = {slot.index for slot in slots if slot.index is not None}
    for index in range(length - 1, -1, -1):
        if index not in kept:
            result.append({"op": "remove", "path": f"{path}/{index}"})
    current: list[int | None] = [index for index in range(length) if index in kept]
    for position, slot in enumerate(slots):
        if slot.index is None:
            result.append({"op": "add", "path": f"{path}/{position}", "value": slot.content})
            current.insert(position, None)
        elif current[position] != slot.index:
            origin = current.index(slot.index, position)
            result.append({"op": "move", "from": f"{path}/{origin}", "path": f"{path}/{position}"})
            current.insert(position, current.pop(origin))
