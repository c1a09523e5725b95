"""OpenShift gives each namespace a range of user ids; the proxy takes the last one, away from the applications'."""

import re
from collections.abc import Mapping
from typing import Final

from cni_agent import names
from injector.mutation.draft import CONTAINER_LISTS, Draft

UID_RANGE: Final = "openshift.io/sa.scc.uid-range"
GROUPS: Final = "openshift.io/sa.scc.supplemental-groups"
_BLOCK = re.compile(r"([0-9]{1,10})(/|-)([0-9]{1,10})", re.ASCII)
_ID_LIMIT: Final = 2**32


def proxy_ids(annotations: Mapping[str, str]) -> tuple[int, int]:
    """The proxy's user and group id in a namespace with these annotations.

    >>> proxy_ids({UID_RANGE: "1000620000/10000"}), proxy_ids({})
    ((1000629999, 1000629999), (1337, 1337))
    """
    users = annotations.get(UID_RANGE, "")
    groups = annotations.get(GROUPS, users)
    blocks = [_last(block) for block in groups.split(",")]
    gid = blocks[0] if None not in blocks else None
    return _last(users) or names.PROXY_ID, gid or names.PROXY_ID


def forget_assigned_ids(draft: Draft) -> None:
    """OpenShift gives every container the same user; on istio-proxy that is no wish of anybody's."""
    place = draft.find(names.PROXY_CONTAINER)
    context = draft.content(*place).get("securityContext") if place else None
    if place is None or not isinstance(context, dict):
        return
    proxy_user = application_user = 0  # unset counts as 0, and the last container as the application, as in Istio
    for where in CONTAINER_LISTS:
        for slot in draft.lists[where]:
            ids = draft.seen(slot).securityContext
            if ids is None or ids.runAsUser is None:
                continue
            if slot.name == names.PROXY_CONTAINER:
                proxy_user = ids.runAsUser
            elif slot.name not in (names.VALIDATION_CONTAINER, names.INIT_CONTAINER):
                application_user = ids.runAsUser
    if proxy_user == application_user:
        kept = {name: value for name, value in context.items() if name not in ("runAsUser", "runAsGroup")}
        draft.content(*place)["securityContext"] = kept


def _last(block: str) -> int | None:
    parts = _BLOCK.match(block)
    if not parts:
        return None
    first, second = int(parts[1]), int(parts[3])
    last = first + second - 1 if parts[2] == "/" else second
    return last if 0 <= last < _ID_LIMIT else None
