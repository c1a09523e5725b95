"""A pod of this node by its name, as the running agent knows it: for people who have a name and no namespace."""

import contextlib
from pathlib import Path

from cni_agent.kernel.failure import Failure
from cni_agent.node import status


def namespace_path(socket: str, name: str, proc: str = "/proc") -> str:
    """The path of a pod's network namespace. `name`: NAME or NAMESPACE/NAME. Raises `Failure`."""
    try:
        pods = status.ask(socket)["pods"]
    except (OSError, ValueError, KeyError) as error:
        raise Failure("no-agent", f"no agent answers on {socket}: {error}; run this where the agent runs") from None
    found = [pod for pod in pods if name in (pod["name"], f"{pod['namespace']}/{pod['name']}")]
    if len(found) != 1:
        told = ", ".join(f"{pod['namespace']}/{pod['name']}" for pod in found) or "none of that name on this node"
        raise Failure("which-pod", f"{name} must be one pod of this node: {told}")
    inode = found[0]["netns"]
    if inode is None:
        raise Failure("no-namespace", f"{name} is {found[0]['state']}: {found[0]['sentence']}")
    for path in Path(proc).glob("[0-9]*/ns/net"):
        with contextlib.suppress(OSError):
            if path.stat().st_ino == inode:
                return str(path)
    raise Failure("gone", f"no process of {name} is left")
