"""What became of a pod, in one closed set of words: the same in the log, as a metric's label, as the reason of an Event
and in `cni-agent status`. They are written the way Kubernetes writes reasons."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """The word."""

    CAPTURED = "Captured"  # programmed and verified before the application could run
    ADOPTED = "Adopted"  # all was right when the agent came; nothing was touched
    UPDATED = "Updated"  # the pod got IPv6, or its rules were another agent's: they are as they should be now
    CAPTURED_LATE = "CapturedLate"  # the application had been running outside the mesh
    REPAIRED = "Repaired"  # somebody had changed the rules while we watched; they are right again
    DRIFTED = "Drifted"  # somebody has changed the rules, and we were told only to report it
    NOT_IN_MESH = "NotInMesh"
    ENDED = "Ended"  # the pod has finished or is being deleted
    WAITING_FOR_SANDBOX = "WaitingForSandbox"
    WAITING_FOR_INIT = "WaitingForInit"  # initless.io/capture: before-app
    REFUSED = "Refused"  # its namespace could not be proven to be its own
    INVALID = "InvalidAnnotation"
    FAILED = "Failed"  # the kernel, or a program, said no
    VALIDATION_MISSING = "ValidationMissing"  # captured, but nothing holds its application back until it is
    CHANGE_IGNORED = "ChangeIgnored"  # captured as ever, whatever its annotations say by now


IN_PLACE: Final = frozenset(
    {Outcome.CAPTURED, Outcome.ADOPTED, Outcome.UPDATED, Outcome.CAPTURED_LATE, Outcome.REPAIRED}
)
# Nothing is wrong, and nothing is worth an Event.
QUIET: Final = frozenset(
    {Outcome.ADOPTED, Outcome.NOT_IN_MESH, Outcome.ENDED, Outcome.WAITING_FOR_SANDBOX, Outcome.WAITING_FOR_INIT}
)
# Somebody should look. The others that are not quiet are good news.
ALARMING: Final = frozenset(
    {
        Outcome.CAPTURED_LATE,
        Outcome.REPAIRED,
        Outcome.DRIFTED,
        Outcome.REFUSED,
        Outcome.INVALID,
        Outcome.FAILED,
        Outcome.VALIDATION_MISSING,
        Outcome.CHANGE_IGNORED,
    }
)
# Told beside another outcome, which stays that of the pod.
BESIDE: Final = frozenset({Outcome.VALIDATION_MISSING, Outcome.CHANGE_IGNORED})


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome with its reason: a second word, for machines, and a sentence, for people."""

    outcome: Outcome
    reason: str = ""
    sentence: str = ""
