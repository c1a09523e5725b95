"""What should be in place for a pod now. Pure: from the pod, the decision on it, and whether it has a sandbox."""

from typing import Final

from cni_agent.capture import Capture
from cni_agent.decision import NotCaptured
from cni_agent.node import capture_point
from cni_agent.node.outcome import Outcome, Verdict
from cni_agent.podview import PodView

_ENDED: Final = ("Succeeded", "Failed")


def wanted(
    pod: PodView, decision: Capture | NotCaptured, *, present: bool, captured: bool = False
) -> Capture | Verdict:
    """The settings to be in place, or why there is nothing to do (yet). Raises `Invalid`.

    `present`: it has a sandbox; `captured`: that has been captured already.
    """
    if pod.phase in _ENDED:
        return Verdict(Outcome.ENDED, pod.phase.lower(), f"the pod's phase is {pod.phase}")
    if isinstance(decision, NotCaptured):
        return Verdict(Outcome.NOT_IN_MESH, decision.reason, decision.sentence)
    if not present and pod.deleting:
        return Verdict(Outcome.ENDED, "deleted", "it is being deleted, and has no container any more")
    if not present:
        return Verdict(Outcome.WAITING_FOR_SANDBOX, "no-sandbox", "it has no container on this node yet")
    running = None if captured else capture_point.still_running(pod)
    if running is not None:
        return Verdict(Outcome.WAITING_FOR_INIT, "init-container", f"its init container {running} has not ended")
    return decision
