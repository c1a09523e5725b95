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
    """The ids of containers that are not of the present sandbox, and the addresses that were the pod's before it."""

    containers: frozenset[str] = frozenset()
    addresses: tuple[str, ...] = ()

    def but(self, lives: Callable[[str], bool]) -> "Earlier":
        """Without containers that have a cgroup after all: what was told is of the present sandbox, then."""
        if not self.containers:
            return self
        living = frozenset(filter(lives, self.containers))
        return Earlier(self.containers - living) if living else self

    def left_out_of(self, pod: PodView) -> PodView:
        """The pod with only what is told of its present sandbox."""
        if not self.containers and not self.addresses:
            return pod
        statuses = tuple(status for status in pod.statuses if status.container_id not in self.containers)
        initial = tuple(status for status in pod.init_statuses if status.container_id not in self.containers)
        over = len(statuses) < len(pod.statuses) and not any(status.running for status in statuses)
        phase = "Pending" if over and pod.phase == "Running" else pod.phase
        addresses = () if pod.addresses == self.addresses else pod.addresses
        return replace(pod, init_statuses=initial, statuses=statuses, phase=phase, addresses=addresses)


def earlier(pod: PodView, *, ended: bool) -> Earlier:
    """All that is told so far, when a sandbox has `ended`, or when one is seen for the first time.

    A pod of which no container was ever told is at its beginning: what is told of it is not from before.
    """
    told = (*pod.init_statuses, *pod.statuses)
    containers = frozenset(status.container_id for status in told if status.container_id)
    return Earlier(containers, pod.addresses if ended or containers else ())
