"""What an earlier injection left in a pod: the status annotation, and the containers that users had overridden."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from cni_agent import names
from cni_agent.invalid import Invalid, Violation
from cni_agent.values import Refused
from injector.mutation.annotations import OVERRIDES
from injector.mutation.draft import CONTAINER_LISTS, Draft, ListName, Slot
from injector.mutation.merge import merged
from injector.mutation.pod import container

# What a proxy has by template or not at all: an earlier injection's must not outlive it
_BY_TEMPLATE_ONLY: Final = ("lifecycle", "startupProbe", "readinessProbe", "restartPolicy")
OURS: Final = (names.PROXY_CONTAINER, names.VALIDATION_CONTAINER, names.INIT_CONTAINER)


class _Status(msgspec.Struct, frozen=True):
    initContainers: list[str] | None = None
    containers: list[str] | None = None


class _Overrides(msgspec.Struct, frozen=True):
    containers: list[dict[str, Any]] | None = None
    initContainers: list[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Previous:
    """What is known of earlier injections. `marked`: the annotation is there, whatever it says."""

    marked: bool
    readable: bool
    injected: Mapping[ListName, tuple[str, ...]]
    overrides: Mapping[ListName, tuple[dict[str, Any], ...]]

    def override(self, name: str, where: ListName) -> dict[str, Any] | None:
        """The user's container of that name."""
        return next((container for container in self.overrides[where] if container.get("name") == name), None)

    def override_anywhere(self, name: str) -> dict[str, Any] | None:
        """The same, whichever list it was in."""
        return next((found for where in CONTAINER_LISTS if (found := self.override(name, where))), None)


def previous(annotations: Mapping[str, str]) -> Previous:
    """Reads the two annotations. A malformed status is no status; malformed overrides refuse the pod."""
    status, readable = _Status(), False
    if names.STATUS in annotations:
        with suppress(msgspec.DecodeError):
            status, readable = msgspec.json.decode(annotations[names.STATUS], type=_Status), True
    overrides = _Overrides()
    if OVERRIDES in annotations:
        overrides = _overrides(annotations[OVERRIDES])
    return Previous(
        marked=names.STATUS in annotations,
        readable=readable,
        injected={
            "containers": tuple(status.containers or ()),
            "initContainers": tuple(status.initContainers or ()),
        },
        overrides={
            "containers": tuple(overrides.containers or ()),
            "initContainers": tuple(overrides.initContainers or ()),
        },
    )


def _overrides(text: str) -> _Overrides:
    try:
        overrides = msgspec.json.decode(text, type=_Overrides)
        for written in (*(overrides.containers or ()), *(overrides.initContainers or ())):
            container(written)
    except (msgspec.DecodeError, Refused) as error:
        allowed = f"JSON with containers and initContainers ({error})"
        raise Invalid([Violation(f"annotation {OVERRIDES}", text, allowed)]) from None
    return overrides


def take_out(draft: Draft, before: Previous) -> dict[str, tuple[ListName, Slot]]:
    """Takes the containers of an earlier injection out of the draft, and gives them back by name.

    Only names that are ours: a status annotation copied from elsewhere must not cost a user's container.
    """
    taken: dict[str, tuple[ListName, Slot]] = {}
    for where in CONTAINER_LISTS:
        kept = []
        for slot in draft.lists[where]:
            if slot.name in OURS and slot.name in before.injected[where] and slot.name not in taken:
                taken[slot.name] = (where, slot)
            else:
                kept.append(slot)
        draft.lists[where] = kept
    return taken


def carry_over(draft: Draft, taken: Mapping[str, tuple[ListName, Slot]]) -> None:
    """Merges new containers onto those that an earlier injection left, with what others have added since.

    The API server's defaults, its token mount, variables of other webhooks: they stay, so nothing changes.
    """
    for name, (where, former) in taken.items():
        place = draft.find(name)
        if place is None or place[1].index is not None:
            continue
        fresh = draft.content(*place)
        place[1].content = merged(_without_stale(draft.content(where, former), fresh), fresh)
        place[1].index = former.index if place[0] == where else None


def _without_stale(former: Mapping[str, Any], fresh: Mapping[str, Any]) -> dict[str, Any]:
    """What may stay of a container that is injected anew."""
    kept = {key: value for key, value in former.items() if key in fresh or key not in _BY_TEMPLATE_ONLY}
    if isinstance(kept.get("lifecycle"), dict):
        kept["lifecycle"] = {name: value for name, value in kept["lifecycle"].items() if name in fresh["lifecycle"]}
    return kept
