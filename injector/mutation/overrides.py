"""Containers that users define under a template's name: their fields win over the template's."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any, Final

from cni_agent import names
from injector.mutation.annotations import OVERRIDES
from injector.mutation.draft import CONTAINER_LISTS, Draft, ListName, Names, Slot
from injector.mutation.golang import compact_json
from injector.mutation.merge import merged
from injector.mutation.previous import OURS, Previous
from injector.mutation.typed import typed, with_canonical_resources

AUTO: Final = "auto"  # `image` is a required field; this one means "the template's"

Found = dict[str, Any]
_PROXY: Final = names.PROXY_CONTAINER


class Overrides:
    """The users' containers of one pod, taken before a template is merged over them."""

    def __init__(self, draft: Draft, before: Previous, taken: Collection[str], *, stock: bool) -> None:
        self._before = before
        self._taken = taken  # what of an earlier injection is out of the draft
        self._stock = stock
        self._draft = draft
        self._original: dict[tuple[ListName, str], Found] = {}
        self._places = {where: {slot.name: slot for slot in reversed(draft.lists[where])} for where in CONTAINER_LISTS}

    def remember(self, template: Names) -> None:
        """Copies the users' containers that this template is about to change."""
        for where in CONTAINER_LISTS:
            for name in template.lists[where]:
                if not self._stock:
                    self._put_back(where, name)
                for place in CONTAINER_LISTS:
                    mine = self._places[place].get(name)
                    if mine is not None and (place, name) not in self._original:
                        self._original[place, name] = typed(self._draft.content(place, mine))

    def reapply(self, template: Names) -> None:
        """Merges them back on top, and notes them in the pod for the next time."""
        found: dict[ListName, list[Found]] = {"containers": [], "initContainers": []}
        for where in CONTAINER_LISTS:
            for name in template.lists[where]:
                overlay = self._stock_choice(where, name) if self._stock else self._choice(name)
                if overlay is None:
                    continue
                overlay = {key: value for key, value in overlay.items() if (key, value) != ("image", AUTO)}
                found[where].append(overlay)
                self._put(where, overlay)
        noted = {where: containers for where, containers in found.items() if containers}
        if noted and not (self._stock and self._before.marked):
            self._draft.annotations = {**self._draft.annotations, OVERRIDES: compact_json(noted)}
        elif not self._stock and OVERRIDES in self._draft.annotations:
            self._draft.annotations = {
                name: value for name, value in self._draft.annotations.items() if name != OVERRIDES
            }

    def proxy(self) -> Mapping[str, Any] | None:
        """The user's istio-proxy; in stock mode also one that an earlier injection put in."""
        return next(
            (self._original[where, _PROXY] for where in CONTAINER_LISTS if (where, _PROXY) in self._original), None
        )

    def _put_back(self, where: ListName, name: str) -> None:
        """Where an earlier injection had an override, what the user wrote stands in the pod again, as it did then."""
        stored = self._before.override_anywhere(name)
        if stored is not None and not any(name in self._places[place] for place in CONTAINER_LISTS):
            slot = Slot(name, None, content=deepcopy(stored))
            self._draft.lists[where] = [*self._draft.lists[where], slot]
            self._places[where][name] = slot

    def _choice(self, name: str) -> Found | None:
        """What was noted, where an injection has changed the container since; else the container itself."""
        stored = self._before.override_anywhere(name)
        touched = name not in OURS and any(name in injected for injected in self._before.injected.values())
        if touched or name in self._taken:
            return typed(stored) if stored else None
        return next((self._original[place, name] for place in CONTAINER_LISTS if (place, name) in self._original), None)

    def _stock_choice(self, where: ListName, name: str) -> Found | None:
        if name in self._before.injected[where]:
            return None
        stored = self._before.override(name, where)
        if stored is not None:
            return typed(stored)
        places: tuple[ListName, ...] = ("containers",) if where == "containers" else CONTAINER_LISTS
        return next((self._original[place, name] for place in places if (place, name) in self._original), None)

    def _put(self, where: ListName, overlay: Found) -> None:
        if not self._stock and where == "containers":  # a user's native sidecar that is none any more
            overlay = {key: value for key, value in overlay.items() if key != "restartPolicy"}
        self._draft.put(where, overlay)
        place = self._draft.find(overlay.get("name", ""), (where,))
        assert place is not None
        place[1].content = with_canonical_resources(dict(self._draft.content(*place)))


def relocate(draft: Draft, template: Names, *, native: bool, stock: bool) -> None:
    """Moves the user's istio-proxy to the list in which the template has it.

    Stock moves it only towards the init containers, and only if the pod or the cluster says `native` in so many words.
    """
    name = _PROXY
    target = next((where for where in CONTAINER_LISTS if name in template.lists[where]), None)
    if target is None:
        return
    source: ListName = "containers" if target == "initContainers" else "initContainers"
    if stock and not (native and target == "initContainers"):
        return
    place = draft.find(name, (source,))
    if place is None or (not stock and draft.find(name, (target,))):
        return
    slot = place[1]
    draft.content(source, slot)
    draft.lists[source] = [other for other in draft.lists[source] if other is not slot]
    slot.index = None
    draft.lists[target] = [*draft.lists[target], slot]


def align_ids(draft: Draft, user: Mapping[str, Any] | None, *, tproxy: bool, stock: bool) -> None:
    """istio-validation runs as the user's istio-proxy does, and checks that id (adjustInitContainerUser)."""
    context = (user or {}).get("securityContext") or {}
    uid, gid = context.get("runAsUser"), context.get("runAsGroup")
    if uid is None and gid is None:
        return
    # Stock looks at a user's own istio-init first, and then edits that one
    searched = (names.INIT_CONTAINER, names.VALIDATION_CONTAINER) if stock else (names.VALIDATION_CONTAINER,)
    place = next((place for name in searched if (place := draft.find(name, ("initContainers",)))), None)
    if place is None:
        return
    proxy = draft.find(names.PROXY_CONTAINER)
    if tproxy and uid is not None and proxy is not None:
        content = draft.content(*proxy)
        content["securityContext"] = merged(content.get("securityContext") or {}, {"runAsUser": 0})
    validation = draft.content(*place)
    if not tproxy and place[1].name == names.VALIDATION_CONTAINER:
        ids = {name: value for name, value in (("runAsUser", uid), ("runAsGroup", gid)) if value is not None}
        validation["securityContext"] = merged(validation.get("securityContext") or {}, ids)
    args = validation.get("args")
    if uid and isinstance(args, list) and "-u" in args[:-1]:
        number = args.index("-u") + 1
        validation["args"] = [*args[:number], str(uid), *args[number + 1 :]]
