"""A container as the typed API prints it again: zero values that say nothing are gone, quantities are canonical.

The stock injector passes what users wrote through Go's types before it merges. So must we, for the same result: an
`env` with an empty value does not override a template's, a `runAsUser: 0` does.
"""

from collections.abc import Mapping
from typing import Any, Final

from cni_agent.values import Refused
from injector.mutation.quantity import canonical

# Pointers and required fields of v1.Container and below: printed even when zero
_SAYS_SOMETHING: Final = frozenset(
    [
        "allowPrivilegeEscalation",
        "containerPort",
        "devicePath",
        "fieldPath",
        "hostProcess",
        "key",
        "localhostProfile",
        "mountPath",
        "mountPropagation",
        "name",
        "optional",
        "port",
        "privileged",
        "procMount",
        "readOnlyRootFilesystem",
        "recursiveReadOnly",
        "resource",
        "restartPolicy",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "runAsUserName",
        "seconds",
        "service",
        "terminationGracePeriodSeconds",
        "type",
    ]
)
_AMOUNTS: Final = ("limits", "requests")


def typed(container: Mapping[str, Any]) -> dict[str, Any]:
    """The container; fields that we do not know are kept as they are."""
    printed: dict[str, Any] = _printed(container, ())
    printed.setdefault("resources", {})
    return printed


def with_canonical_resources(container: dict[str, Any]) -> dict[str, Any]:
    """Its quantities as the API prints them."""
    resources = container.get("resources")
    if isinstance(resources, Mapping):
        container["resources"] = {
            kind: _amounts(amounts) if kind in _AMOUNTS and isinstance(amounts, Mapping) else amounts
            for kind, amounts in resources.items()
        }
    return container


def _printed(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_printed(item, path) for item in value]
    if not isinstance(value, Mapping):
        return value
    if path and path[-1] in _AMOUNTS:
        return _amounts(value)
    kept = {}
    for name, inner in value.items():
        printed = _printed(inner, (*path, name))
        if _is_printed(name, printed, path):
            kept[name] = printed
    if path and path[-1] == "resourceFieldRef":
        kept["divisor"] = _amount(kept.get("divisor", "0"))
    if path and path[-1] == "grpc":  # a required pointer: printed as null
        kept.setdefault("service", None)
    return kept


def _is_printed(name: str, value: Any, path: tuple[str, ...]) -> bool:
    if value is None:
        return False
    if isinstance(value, Mapping):
        return bool(value) or name not in _AMOUNTS  # an empty struct is something, an empty map is not
    if name in _SAYS_SOMETHING or (name == "value" and path[-1:] == ("httpHeaders",)):
        return True
    return bool(value)


def _amounts(amounts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _amount(amount) for name, amount in amounts.items() if amount is not None}


def _amount(amount: Any) -> Any:
    try:
        return canonical(str(amount))
    except Refused:  # the API server will say so
        return amount
