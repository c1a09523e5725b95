"""Kubernetes' strategic merge of plain JSON: maps merge, null deletes, keyed lists merge by key, other lists replace.

The order of a merged list is part of the contract (apimachinery strategicpatch: mergeSortedSlice), see `interleaved`.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

DIRECTIVE: Final = "$patch"
# patchMergeKey of the lists in v1.PodSpec and metav1.ObjectMeta that have one, by the field's name
KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "ownerReferences": "uid",
}


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the overlay on top; neither is changed, but parts of both are shared."""
    directive = overlay.get(DIRECTIVE)
    if directive == "replace":
        return {key: value for key, value in overlay.items() if key != DIRECTIVE and value is not None}
    if directive == "delete":
        return {}
    result = dict(base)
    for key, value in overlay.items():
        if value is None:
            result.pop(key, None)
        elif key != DIRECTIVE:
            result[key] = _value(key, result.get(key), value)
    return result


def without_nulls(item: Mapping[str, Any]) -> dict[str, Any]:
    """An overlay's item as it starts out: a null says nothing where nothing was. Deeper ones the API server drops.

    What has none is shared, not copied.
    """
    return {
        key: _without_nulls(value) if type(value) is dict or type(value) is list else value
        for key, value in item.items()
        if value is not None and key != DIRECTIVE
    }


def _without_nulls(value: Any) -> Any:
    if type(value) is dict:
        return {name: inner for name, inner in value.items() if inner is not None} if None in value.values() else value
    if type(value) is list:
        return [_without_nulls(item) if type(item) is dict and None in item.values() else item for item in value]
    return value


def interleaved(base: Sequence[Hashable], overlay: Sequence[Hashable]) -> Iterator[tuple[bool, int]]:
    """The order of a merged list: (from the overlay?, index there), for every key once.

    Two queues: what only the base has, and the overlay. The base's head goes first only if both heads are in the base
    and it stands earlier there. So what the overlay adds comes before what was there.

    >>> [("overlay" if new else "base", index) for new, index in interleaved(["a", "x", "b"], ["n", "x"])]
    [('overlay', 0), ('base', 0), ('overlay', 1), ('base', 2)]
    """
    wanted = dict.fromkeys(overlay)
    position: dict[Hashable, int] = {}
    for index, key in enumerate(base):
        position.setdefault(key, index)
    first: dict[Hashable, int] = {}
    for index, key in enumerate(overlay):
        first.setdefault(key, index)
    left = [index for index, key in enumerate(base) if key not in wanted]
    i = 0
    for key in wanted:
        while i < len(left) and key in position and left[i] < position[key]:
            yield False, left[i]
            i += 1
        yield True, first[key]
    for index in left[i:]:
        yield False, index


def _value(key: str, old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        return merged(old, new) if isinstance(old, dict) else without_nulls(new)
    if isinstance(old, list) and old and isinstance(new, list) and key in KEYS:
        return _merged_list(old, new, KEYS[key])
    return _without_nulls(new)


def _merged_list(base: list[Any], overlay: list[Any], key: str) -> list[Any]:
    if not all(isinstance(item, dict) for item in (*base, *overlay)):
        return overlay
    if any(item.get(DIRECTIVE) == "replace" for item in overlay):
        return [without_nulls(item) for item in overlay if DIRECTIVE not in item]
    dropped = {_key(item, key) for item in overlay if item.get(DIRECTIVE) == "delete"}
    base = [item for item in base if _key(item, key) not in dropped]
    overlay = [item for item in overlay if item.get(DIRECTIVE) != "delete"]
    were = [_key(item, key) for item in base]
    names = [_key(item, key) for item in overlay]
    if len(set(were)) < len(were):
        were, names = _apart(were, names)
    before: dict[Hashable, Any] = dict(zip(were, base, strict=True))
    after: dict[Hashable, Any] = {}
    for name, item in zip(names, overlay, strict=True):
        old = after.get(name, before.get(name))
        after[name] = without_nulls(item) if old is None else merged(old, item)
    return [after[names[index]] if added else base[index] for added, index in interleaved(were, names)]


def _apart(base: list[Hashable], overlay: list[Hashable]) -> tuple[list[Hashable], list[Hashable]]:
    """Keys of a base that has some of them twice (53/TCP and 53/UDP), numbered: the second of an overlay is put on the
    second there. The library puts both on the first, and so loses what that was."""
    counts = Counter(base)
    seen: Counter[Hashable] = Counter()
    mine: Counter[Hashable] = Counter()

    def numbered(key: Hashable, among: Counter[Hashable]) -> Hashable:
        among[key] += 1
        return key, min(among[key], counts[key])

    return [numbered(key, seen) for key in base], [numbered(key, mine) for key in overlay]


def _key(item: Mapping[str, Any], key: str) -> Hashable:
    """The key's value; users' JSON may have anything there."""
    value = item.get(key)
    return value if isinstance(value, str | int | None) else repr(value)
