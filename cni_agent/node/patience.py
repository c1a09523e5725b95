"""How long to wait before a pod is tried again."""

import random
from typing import Final

from cni_agent.kernel.failure import Failure
from cni_agent.node.proof import STARTING, Refusal, Refused

# A process leaves the node's namespace about a millisecond after it entered its container's cgroup, sometimes thirty;
# nothing tells of it. The wait grows with the time waited, so that a look is never late by more than a quarter of it.
# That a process enters is told by inotify; looks for it are for the case that it was not.
_AT_ONCE: Final = 3  # looks; then a timer, which here is a millisecond late or more
_FIRST_LOOK: Final = 0.0005
_LOOKS_GROW: Final = 1.25
_UNTOLD_GROW: Final = 2.0
_LONGEST_LOOK: Final = 10.0
_STARTS: Final = 10.0  # seconds that a start may take
_FIRST_RETRY: Final = 0.05
_LONGEST_RETRY: Final = 30.0
# Two agents that want different rules, the old and the new one of an upgrade, undo each other's work.
_BETWEEN_REPAIRS: Final = 0.2
_PROMPT_REPAIRS: Final = 5
_LONGEST_BETWEEN: Final = 5.0  # not more: what undoes it may be no agent
ANSWER: Final = 0.25  # seconds; who undoes a repair sooner than that does so because of it


def is_starting(failure: Failure) -> bool:
    """Whether this is how every pod begins: it passes by itself."""
    return isinstance(failure, Refused) and failure.reason in STARTING


def is_over(seconds: float) -> bool:
    """Whether a pod has been starting for so long that something must be wrong."""
    return seconds > _STARTS


def wait(failure: Failure, failures: int) -> float:
    """Seconds until the next try, after so many in a row failed. Real failures are spread, so that pods do not retry
    in step."""
    if is_starting(failure):
        if failures <= _AT_ONCE and failure.reason == Refusal.HOST_NAMESPACE:
            return 0.0  # once whatever else has happened is seen to
        grow = _UNTOLD_GROW if failure.reason == Refusal.NO_PROCESS else _LOOKS_GROW
        return float(min(_LONGEST_LOOK, _FIRST_LOOK * grow ** min(failures - 1, 60)))
    return float(min(_LONGEST_RETRY, _FIRST_RETRY * 2 ** min(failures - 1, 20)) * random.uniform(0.8, 1.2))


def between_repairs(repairs: int) -> float:
    """Seconds from one look at a pod's rules to the next, when so many in a row have found them changed."""
    return float(min(_LONGEST_BETWEEN, _BETWEEN_REPAIRS * 2 ** min(max(0, repairs - _PROMPT_REPAIRS), 20)))
