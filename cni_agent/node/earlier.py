"""What the API still tells of a pod's earlier sandbox.

When a sandbox is killed, or its node restarts, the same pod gets a new one, and all its init containers run again.
Until the kubelet has reported anew, the pod's status is that of the old one, and nothing in it says so: validation has
ended well, the phase is Running, the address is another's by now. What does tell is the id of each container: one that
was known before the sandbox began, and has no cgroup, is of an earlier one. No clock is asked.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cni_agent.podview import PodView


@dataclass(frozen=True, slots=True)
class Earlier:
    """The ids of containers that are not of the present sandbox."""

    containers: frozenset[str] = frozenset()

    def but(self, lives: Callable[[str], bool]) -> "Earlier":
        """Without those that have a cgroup after all: from then on they are of the present sandbox."""
        living = frozenset(filter(lives, self.containers))
        return replace(self, containers=self.containers - living) if living else self

    def left_out_of(self, pod: PodView) -> PodView:
        """The pod with only what is told of its present sandbox."""
        if not self.containers:
            return pod
        statuses = tuple(status for status in pod.statuses if status.container_id not in self.containers)
        initial = tuple(status for status in pod.init_statuses if status.container_id not in self.containers)
        over = len(statuses) < len(pod.statuses) and not any(status.running for status in statuses)
        phase = "Pending" if over and pod.phase == "Running" else pod.phase
        return replace(pod, init_statuses=initial, statuses=statuses, phase=phase)


def earlier(pod: PodView) -> Earlier:
    """For a sandbox that begins, or is seen for the first time: all that is told so far."""
    told = (*pod.init_statuses, *pod.statuses)
    return Earlier(frozenset(status.container_id for status in told if status.container_id))
