"""OpenShift gives each namespace a range of user ids; the proxy takes the last one, away from the applications'."""

import re
from collections.abc import Mapping
from typing import Final

from cni_agent import names

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


def _last(block: str) -> int | None:
    parts = _BLOCK.match(block)
    if not parts:
        return None
    first, second = int(parts[1]), int(parts[3])
    last = first + second - 1 if parts[2] == "/" else second
    return last if 0 <= last < _ID_LIMIT else None
