"""The work on one pod's namespace: from settings to rules that were read back."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from cni_agent import names
from cni_agent.addresses import NoAddress, has_ipv6
from cni_agent.backends import Backend
from cni_agent.capture import Capture
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.notices import Notices
from cni_agent.node.drift import Mode
from cni_agent.node.outcome import Outcome, Verdict
from cni_agent.node.proof import Prover, Refusal, Refused
from cni_agent.podview import PodView

Result = Literal["applied", "replaced", "unchanged", "drifted"]
_SHOWN: Final = 3  # differences that a sentence repeats


@dataclass(frozen=True, slots=True)
class Programmed:
    """What the namespace now holds, and what had to be done."""

    result: Result
    capture: Capture
    own_addresses: tuple[str, ...]  # reported ones, of which one was found inside
    notices: Notices | None
    differences: tuple[Difference, ...] = ()
    moment: float = field(default_factory=time.monotonic)  # when it was read back

    def verdict(self, pod: PodView, *, first: bool) -> Verdict:
        """What this means for a pod, as it was before. `first`: nothing was known of its namespace."""
        if self.result == "drifted":
            return Verdict(Outcome.DRIFTED, "reported", self._told())
        if self.result == "unchanged":
            return Verdict(Outcome.ADOPTED, "in-place", "all its rules were in place")
        if first and self.result == "replaced" and not any(found.kind == "bypass" for found in self.differences):
            sentence = f"rules from before this agent differed, and were replaced: {self._told()}"
            return Verdict(Outcome.UPDATED, "renewed", sentence.removesuffix(": "))
        if self.differences and (not first or self.result == "replaced"):
            return Verdict(Outcome.REPAIRED, "drift", self._told())
        if not first:
            return Verdict(Outcome.UPDATED, "ipv6", "it got an IPv6 address, and rules for it")
        since = _running_since(pod)
        if since is not None:
            return Verdict(Outcome.CAPTURED_LATE, "late", f"it had been running outside the mesh since {since}")
        return Verdict(Outcome.CAPTURED, "programmed", "its rules are in place")

    def _told(self) -> str:
        rest = f"; and {len(self.differences) - _SHOWN} more" if self.differences[_SHOWN:] else ""
        return "; ".join(map(str, self.differences[:_SHOWN])) + rest


class Unready(Exception):
    """These rules were never written by this program, so it does not have them ready."""


def program(
    backend: Backend,
    netns: Netns,
    capture: Capture,
    *,
    known: Capture | None,
    fresh: bool,
    notices: Notices | None,
    reported: tuple[str, ...],
    prover: Prover,
    drift: Mode,
    minting: bool,
) -> Programmed:
    """Makes the namespace hold these settings, or, when it is `known` to hold them, compares. Raises `Failure`.

    `fresh`: its sandbox was seen to start; otherwise there may be rules from before this agent, and they are compared.
    Without `minting`, raises `Unready` where programs would have to be run first; then nothing was done.
    """
    opened = None
    if notices is None and drift != "off" and backend.name != "iptables-legacy":
        opened = notices = Notices()
    try:
        with Inside(netns, notices) as inside:
            held = prover.addresses(inside) if known is None or reported else ()
            prover.check_address(netns, reported, held)
            # its second family may come a moment after the first
            if (known is None or held) and not capture.ipv6 and _has_ipv6(held, capture, netns):
                capture = replace(capture, ipv6=True)
            ruleset = backend.ruleset(capture)
            if not minting and not backend.is_ready(ruleset):
                raise Unready
            found: tuple[Difference, ...] = ()
            if known == capture or (known is None and not fresh):
                found = backend.check(inside, ruleset)
                if not found:
                    return Programmed("unchanged", capture, reported, notices)
                if drift != "repair" and (known is not None or backend.holds(inside)):
                    return Programmed("drifted", capture, reported, notices, found)
            return Programmed(backend.apply(inside, ruleset), capture, reported, notices, found)
    except BaseException:
        if opened is not None:
            opened.close()
        raise


def _running_since(pod: PodView) -> str | None:
    """When the application began to run; None if it has not. The phase alone is late by its slowest container."""
    application = [status for status in pod.statuses if status.running and status.name != names.PROXY_CONTAINER]
    if not application and pod.phase != "Running":
        return None
    return min((status.started for status in application), default="") or pod.started or "its start"


def _has_ipv6(held: Collection[str], capture: Capture, netns: Netns) -> bool:
    """Whether the pod has IPv6. Where the sandbox starts before its network is set up, it has no address yet."""
    try:
        return has_ipv6(held, dual_stack=capture.dual_stack)
    except NoAddress:
        raise Refused(Refusal.NO_ADDRESS, f"{netns.name} has no address yet") from None
