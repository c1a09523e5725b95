"""Containers that users define under a template's name: their fields win over the template's."""

from collections.abc import Mapping
from typing import Any, Final

from cni_agent import names
from injector.annotations import OVERRIDES
from injector.draft import CONTAINER_LISTS, Draft, ListName, Names
from injector.golang import compact_json
from injector.merge import merged
from injector.previous import Previous
from injector.typed import typed, with_canonical_resources

AUTO: Final = "auto"  # `image` is a required field; this one means "the template's"

Found = dict[str, Any]


class Overrides:
    """The users' containers of one pod, taken before a template is merged over them."""

    def __init__(self, draft: Draft, before: Previous, *, stock: bool) -> None:
        self._before = before
        self._stock = stock
        self._original: dict[tuple[ListName, str], Found] = {}
        self._draft = draft
        self._places = {where: {slot.name: slot for slot in reversed(draft.lists[where])} for where in CONTAINER_LISTS}

    def remember(self, template: Names) -> None:
        """Copies the users' containers that this template is about to change."""
        for where in CONTAINER_LISTS:
            for name in template.lists[where]:
                for place in CONTAINER_LISTS:
                    mine = self._places[place].get(name)
                    if mine is not None and (place, name) not in self._original:
                        self._original[place, name] = typed(self._draft.content(place, mine))

    def reapply(self, template: Names) -> None:
        """Merges them back on top, and notes them in the pod for the next time."""
        found: dict[ListName, list[Found]] = {"containers": [], "initContainers": []}
        for where in CONTAINER_LISTS:
            for name in template.lists[where]:
                overlay = self._wanted(where, name)
                if overlay is None:
                    continue
                overlay = dict(overlay)
                if overlay.get("image") == AUTO:
                    del overlay["image"]
                found[where].append(overlay)
                self._put(where, overlay)
        if not self._before.marked and any(found.values()):
            noted = {where: containers for where, containers in found.items() if containers}
            self._draft.annotations[OVERRIDES] = compact_json(noted)

    def proxy(self) -> Mapping[str, Any] | None:
        """The istio-proxy of the pod as it came, in stock mode; the user's own, in ours."""
        for where in CONTAINER_LISTS:
            if (where, names.PROXY_CONTAINER) in self._original:
                return self._original[where, names.PROXY_CONTAINER]
        return None if self._stock else self._before.override_anywhere(names.PROXY_CONTAINER)

    def _wanted(self, where: ListName, name: str) -> Found | None:
        if self._stock:
            if name in self._before.injected[where]:
                return None
            stored = self._before.override(name, where)
        else:
            stored = self._before.override_anywhere(name)
        if stored is not None:
            return typed(stored)
        if not self._stock and name in self._before.injected[where]:
            return None
        places: tuple[ListName, ...] = ("containers",) if where == "containers" else CONTAINER_LISTS
        if not self._stock:
            places = CONTAINER_LISTS
        return next((self._original[place, name] for place in places if (place, name) in self._original), None)

    def _put(self, where: ListName, overlay: Found) -> None:
        if not self._stock and where == "containers":  # a user's native sidecar that is none any more
            overlay = {key: value for key, value in overlay.items() if key != "restartPolicy"}
        self._draft.put(where, overlay)
        place = self._draft.find(overlay["name"], (where,))
        assert place is not None
        content = self._draft.content(*place)
        place[1].content = with_canonical_resources(dict(content))


def relocate(draft: Draft, template: Names, *, native: bool, stock: bool) -> None:
    """Moves the user's istio-proxy to the list in which the template has it.

    Stock moves it only towards the init containers, and only if the pod or the cluster says `native` in so many words.
    """
    name = names.PROXY_CONTAINER
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
