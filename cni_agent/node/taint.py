"""Takes a taint from the agent's own node once the agent is ready, so that no pod is put there before.

The cluster sets the taint when a node joins (the kubelet's `--register-with-taints`, a machine template); nobody but us
takes it away, and we never set one. It is looked for once, after each start of the agent: a node that starts again
keeps its place in the API, and with it the taints that it has then.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cni_agent.apiserver import UNREACHABLE, ApiError, ApiServer

_PATCH: Final = "application/json-patch+json"
_LOOK_SECONDS: Final = 0.5
_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 60.0
_CHANGED: Final = (409, 422)  # somebody else changed the node's taints between our reading and our writing

logger = logging.getLogger(__name__)


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None


class _Node(msgspec.Struct):
    spec: _Spec = msgspec.field(default_factory=_Spec)


_NODE: Final = msgspec.json.Decoder(_Node)


async def remove(server: ApiServer, node: str, key: str, ready: Callable[[], bool]) -> None:
    """Waits until the agent is ready, then tries until the node has no taint of this key, whatever its effect."""
    while not ready():
        await asyncio.sleep(_LOOK_SECONDS)
    told, wait = "", _FIRST_WAIT
    while True:
        try:
            if await _remove(server, f"/api/v1/nodes/{node}", key):
                logger.info("taint removed", extra={"node": node, "taint": key})
            return
        except (ApiError, *UNREACHABLE) as error:
            why = _hint(error)
            if why != told:  # a state that goes on is told when it begins
                logger.warning("cannot remove the taint", extra={"node": node, "taint": key, "error": why})
            told = why
        await asyncio.sleep(wait)
        wait = min(_LONGEST_WAIT, wait * 2)


async def _remove(server: ApiServer, path: str, key: str) -> bool:
    """Whether there was one."""
    taints = _NODE.decode(await server.get(path)).spec.taints or []
    kept = [taint for taint in taints if taint.get("key") != key]
    if kept == taints:
        return False
    # refused when the taints are no longer those that we have read: a list has no names to patch by
    patch = [
        {"op": "test", "path": "/spec/taints", "value": taints},
        {"op": "replace", "path": "/spec/taints", "value": kept},
    ]
    await server.send("PATCH", path, patch, _PATCH)
    return True


def _hint(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if isinstance(error, ApiError) and error.code == 403:
        return f"{text}; the ClusterRole must allow get and patch of nodes"
    if isinstance(error, ApiError) and error.code in _CHANGED:
        return f"{text}; the node was changed meanwhile"
    return text
