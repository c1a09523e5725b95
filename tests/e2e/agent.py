"""The agent's DaemonSet, taken away, brought back and changed."""

import contextlib
import datetime
import json
from collections.abc import Iterator
from typing import Any

from tests.e2e.cluster import Cluster, Object, until
from tests.e2e.deployment import SYSTEM

AGENT = "app.kubernetes.io/name=cni-agent"


def pods(kube: Cluster) -> list[Object]:
    return kube.pods(SYSTEM, AGENT)


def ready(kube: Cluster) -> None:
    kube.kubectl("-n", SYSTEM, "rollout", "status", "daemonset/cni-agent", "--timeout=90s")


def patch(kube: Cluster, changes: Any, kind: str = "strategic") -> None:
    kube.kubectl("-n", SYSTEM, "patch", "daemonset", "cni-agent", f"--type={kind}", "-p", json.dumps(changes))


def select(kube: Cluster, label: Any) -> None:
    """Where the agent runs, by one more label; None for everywhere."""
    patch(kube, {"spec": {"template": {"spec": {"nodeSelector": {"e2e.initless.io/absent": label}}}}})


@contextlib.contextmanager
def absent(kube: Cluster) -> Iterator[None]:
    """No agent on any node."""
    select(kube, "yes")
    until("the agent is gone", lambda: not pods(kube))
    try:
        yield
    finally:
        select(kube, None)
        until("the agent is back", lambda: pods(kube))
        ready(kube)


@contextlib.contextmanager
def changed(kube: Cluster, changes: list[Object], *, starts: bool = True) -> Iterator[None]:
    """The agent with changes (JSON patch) of its DaemonSet. `starts`: it becomes ready with them."""
    before = kube.get("daemonset", "cni-agent", SYSTEM)["spec"]
    # one that cannot start would never replace the old one, which is what maxUnavailable 0 is for
    strategy = {"op": "replace", "path": "/spec/updateStrategy", "value": {"type": "OnDelete"}}
    patch(kube, [*changes, strategy], "json")
    replaced = pods(kube)[0]["metadata"]["name"]
    kube.delete("pod", replaced, SYSTEM)
    try:
        if starts:
            until("the changed agent is ready", lambda: running(kube, replaced))
        yield
    finally:
        patch(kube, [{"op": "replace", "path": "/spec", "value": before}], "json")
        for found in pods(kube):
            kube.delete("pod", found["metadata"]["name"], SYSTEM)
        ready(kube)


def running(kube: Cluster, replaced: str) -> bool:
    found = [one for one in pods(kube) if one["metadata"]["name"] != replaced]
    return bool(found) and all(
        status["ready"] for one in found for status in one["status"].get("containerStatuses", [{"ready": False}])
    )


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def capture_times(kube: Cluster, since: str) -> dict[str, float]:
    """When the agent had each pod's rules written and read back, by uid."""
    (one,) = pods(kube)
    text = kube.kubectl("logs", "-n", SYSTEM, one["metadata"]["name"], f"--since-time={since}")
    lines = [json.loads(line) for line in text.splitlines()]
    return {line["uid"]: seconds(line["time"]) for line in lines if line["message"] == "Captured"}


def validation_began(kube: Cluster, one: Object) -> float:
    """When istio-validation said its first word, which is before its first probe."""
    metadata = one["metadata"]
    log = kube.kubectl("logs", "-n", metadata["namespace"], metadata["name"], "-c", "istio-validation", "--timestamps")
    return seconds(log.split(" ", 1)[0])


def seconds(moment: str) -> float:
    return datetime.datetime.fromisoformat(moment[:26].rstrip("Z") + "+00:00").timestamp()
