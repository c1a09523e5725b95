"""Carries out a JSON patch: the operations that `patch` writes."""

from copy import deepcopy
from typing import Any

from injector.mutation.probes import Operation


def applied(document: Any, operations: list[Operation]) -> Any:
    """The document with the patch; the one given stays as it is."""
    result = deepcopy(document)
    for operation in operations:
        if operation["op"] == "move":
            value = _taken(result, operation["from"])
            _add(result, operation["path"], value)
        elif operation["op"] == "remove":
            _taken(result, operation["path"])
        elif operation["op"] == "replace":
            _taken(result, operation["path"])
            _add(result, operation["path"], deepcopy(operation["value"]))
        else:
            _add(result, operation["path"], deepcopy(operation["value"]))
    return result


def _holder(document: Any, pointer: str) -> tuple[Any, str]:
    *outer, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for name in outer:
        document = document[int(name)] if isinstance(document, list) else document[name]
    return document, last


def _taken(document: Any, pointer: str) -> Any:
    holder, last = _holder(document, pointer)
    return holder.pop(int(last) if isinstance(holder, list) else last)


def _add(document: Any, pointer: str, value: Any) -> None:
    holder, last = _holder(document, pointer)
    if isinstance(holder, list):
        holder.insert(int(last), value)
    else:
        holder[last] = value
