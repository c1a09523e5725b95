"""Everything the agent knows about one pod of its node, in one place."""

import asyncio
import time
from dataclasses import dataclass, field, replace

from cni_agent import names
from cni_agent.capture import Capture
from cni_agent.decision import NotCaptured
from cni_agent.kernel.netns import Netns
from cni_agent.node import patience
from cni_agent.node.admitted import decide_as_admitted, ignored_change
from cni_agent.node.drift import Following
from cni_agent.node.earlier import Earlier
from cni_agent.node.outcome import Outcome, Verdict
from cni_agent.podview import PodView

_NEW = Verdict(Outcome.WAITING_FOR_SANDBOX, "no-sandbox", "it has no container on this node yet")


@dataclass(slots=True, eq=False)
class NodePod:
    """One pod. `pod` is what should be, `netns` and `applied` are what is, `verdict` is how they compare."""

    uid: str
    pod: PodView | None = None
    decision: Capture | NotCaptured | None = None  # on this version of the pod, once it was wanted
    fixed: Capture | None = None  # what it was captured with, from then on; whether it has IPv6 is left open
    ignored: str = ""  # what its annotations say by now, to no effect
    told_ignored: str = ""
    earlier: Earlier | None = None  # what is told of sandboxes before the present one; None before the first look
    netns: Netns | None = None  # proven to be its own, held open
    applied: Capture | None = None  # read back from that namespace
    own_addresses: tuple[str, ...] = ()  # reported ones, of which one was found in that namespace
    following: Following | None = None  # changes of its rules, told by the kernel
    verdict: Verdict = _NEW
    since: float = field(
        default_factory=time.time
    )  # wall clock, of the verdict: to be shown, never to be reckoned with
    settled: float = field(default_factory=time.monotonic)  # the same moment, for reckoning
    # monotonic, of its first container, or of the end of the init containers that it waited for; None when it was there
    # before us
    seen: float | None = None
    proven: float | None = None  # monotonic, of its namespace
    milliseconds: float | None = None  # from seen to verified
    drifts: int = 0
    repairs: int = 0  # in a row
    repaired: float = float("-inf")  # monotonic, of the last one
    undone: float | None = None  # monotonic, when the kernel first told of a change after that
    failures: int = 0  # in a row
    starting: float | None = None  # monotonic, of the first look that found it so, while it is
    # its turn: one at a time
    busy: bool = False  # a thread works in its namespace, or will when its turn comes
    working_since: float | None = None  # monotonic, once a thread works
    again: bool = False
    compare: bool = False  # ask the kernel, even if nothing of ours has changed
    compared: float = 0.0  # monotonic
    timer: asyncio.TimerHandle | None = None

    def become(self, pod: PodView | None) -> None:
        """There is a new version of the pod, or none any more."""
        self.pod, self.decision = pod, None

    def decided(self) -> Capture | NotCaptured:
        """The decision on the pod, made once for each version of it, until it is fixed. Raises `Invalid`."""
        assert self.pod is not None
        if self.decision is None:
            self.decision = self.fixed or decide_as_admitted(self.pod)
            self.ignored = "" if isinstance(self.decision, NotCaptured) else ignored_change(self.pod, self.decision)
        if self.applied is None or isinstance(self.decision, NotCaptured):
            return self.decision
        return replace(self.decision, ipv6=self.applied.ipv6)

    @property
    def lacks_validation(self) -> bool:
        """Whether it is captured, and nothing would hold its application back if it were not."""
        if self.pod is None or self.applied is None:
            return False
        return names.VALIDATION_CONTAINER not in self.pod.init_containers

    def drifted(self, moment: float) -> None:
        """Its rules were found changed."""
        self.drifts += 1
        answered = self.undone is not None and self.undone - self.repaired < patience.ANSWER
        self.repairs = self.repairs + 1 if answered else 1
        self.repaired, self.undone = moment, None

    def fields(self) -> dict[str, object]:
        """What every line about it says."""
        return {
            "pod": f"{self.pod.namespace}/{self.pod.name}" if self.pod else "",
            "uid": self.uid,
            "netns": self.netns.identity.inode if self.netns else None,
        }

    def release(self) -> None:
        """Lets go of its namespace, which would otherwise live on without the pod. Nothing in it is touched."""
        if self.following is not None:
            self.following.close()
        if self.netns is not None:
            self.netns.close()
        self.netns = self.applied = self.following = self.milliseconds = None
        self.own_addresses = ()
