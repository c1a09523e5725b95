"""The order of containers, which is the order in which they start."""

from typing import Final

from cni_agent import names
from injector.mutation.draft import Draft, Slot

CORE_DUMP: Final = "enable-core-dump"


def order(draft: Draft, *, hold: bool, before_app: bool) -> None:
    """istio-proxy last, or first when the application waits for it; the others as their work needs (reorderPod)."""
    containers, initial = draft.lists["containers"], draft.lists["initContainers"]
    draft.lists["containers"] = (
        _first(containers, names.PROXY_CONTAINER) if hold else _last(containers, names.PROXY_CONTAINER)
    )
    if any(slot.name == names.PROXY_CONTAINER for slot in initial):
        # A native sidecar starts before the application's init containers, so that they are in the mesh
        for name in (CORE_DUMP, names.PROXY_CONTAINER, names.VALIDATION_CONTAINER, names.INIT_CONTAINER):
            initial = _first(initial, name)
    else:
        initial = _first(initial, names.VALIDATION_CONTAINER)
        for name in (names.INIT_CONTAINER, CORE_DUMP):
            initial = _last(initial, name)
    if before_app:
        # The application's init containers run uncaptured, then the rules are written and validated
        for name in (names.VALIDATION_CONTAINER, names.PROXY_CONTAINER):
            initial = _last(initial, name)
    draft.lists["initContainers"] = initial


def _first(slots: list[Slot], name: str) -> list[Slot]:
    named = [slot for slot in slots if slot.name == name]
    return [*named, *(slot for slot in slots if slot.name != name)]


def _last(slots: list[Slot], name: str) -> list[Slot]:
    named = [slot for slot in slots if slot.name == name]
    return [*(slot for slot in slots if slot.name != name), *named]
