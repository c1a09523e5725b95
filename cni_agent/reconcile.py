"""Brings each pod from what is to what should be, whatever event came.

Level-based: a turn looks at everything anew and does what is missing, so a lost, doubled or late event costs time and
never correctness. One turn per pod at a time, pods beside each other. Decisions and proofs are made on the event loop,
where nothing else changes meanwhile; only work in a namespace goes to a thread, with a descriptor that stays proven.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Final

from cni_agent import capture_point, names
from cni_agent.backends import Backend
from cni_agent.capture import Capture
from cni_agent.decision import NotCaptured, decide
from cni_agent.drift import Mode
from cni_agent.failure import Failure, NetnsRefused
from cni_agent.invalid import Invalid
from cni_agent.nodepod import NodePod
from cni_agent.outcome import IN_PLACE, Outcome, Verdict
from cni_agent.owners import Owners
from cni_agent.podview import PodView
from cni_agent.programming import Programmed, program
from cni_agent.proof import STARTING, Prover, Refusal, Refused
from cni_agent.whereabouts import Whereabouts

# A starting container's process leaves the node's namespace about a millisecond after its cgroup appears, now and then
# thirty. The wait grows with the time waited, so that a look is never late by more than a quarter of it.
_FIRST_LOOK: Final = 0.001
_LOOKS_GROW: Final = 1.25
_PATIENCE: Final = 45  # looks, some 10 s in all, until a pod that is still starting is called refused
_LONGEST_WAIT: Final = 10.0
_FIRST_RETRY: Final = 0.05
_LONGEST_RETRY: Final = 30.0
_BETWEEN_COMPARISONS: Final = 0.2  # of one pod, when somebody changes its rules again and again
_ENDED: Final = ("Succeeded", "Failed")

logger = logging.getLogger(__name__)


class Reconciler:
    """All pods of the node. `told` hears of each verdict that says something new."""

    def __init__(
        self,
        *,
        backend: Backend,
        drift: Mode,
        whereabouts: Whereabouts,
        prover: Prover,
        owners: Owners,
        executor: Executor,
        told: Callable[[NodePod, Verdict], None],
    ) -> None:
        self.pods: dict[str, NodePod] = {}
        self._backend = backend
        self._drift = drift
        self._whereabouts = whereabouts
        self._prover = prover
        self._owners = owners
        self._executor = executor
        self._told = told
        self._loop = asyncio.get_running_loop()

    def pod_changed(self, pod: PodView) -> None:
        """The API, or the folder, has this version of a pod."""
        record = self.pods.setdefault(pod.uid, NodePod(pod.uid))
        record.pod = pod
        self.wake(pod.uid)

    def pod_gone(self, uid: str) -> None:
        """The pod was deleted."""
        if uid in self.pods:
            self.pods[uid].pod = None
            self.wake(uid)

    def sandbox_changed(self, uid: str, *, fresh: bool = True) -> None:
        """A container came or went. `fresh`: it happened just now; otherwise we only found out."""
        record = self.pods.get(uid)
        if record is None:
            if not self._whereabouts.present(uid):
                return
            record = self.pods.setdefault(uid, NodePod(uid))
        if not self._whereabouts.present(uid):
            record.seen = None
        elif record.seen is None and fresh and record.netns is None:
            record.seen = time.monotonic()
        record.failures = 0
        self.wake(uid)

    def wake(self, uid: str, *, compare: bool = False) -> None:
        """Gives a pod its turn: now, or after the one it has. `compare`: look into the kernel in any case."""
        record = self.pods.get(uid)
        if record is None:
            return
        record.compare |= compare
        if record.busy:
            record.again = True
        else:
            self._turn(record)

    def close(self) -> None:
        """Lets go of everything and touches nothing."""
        for record in self.pods.values():
            if record.timer is not None:
                record.timer.cancel()
            if not record.busy:
                record.release()

    def _turn(self, record: NodePod) -> None:
        if record.timer is not None:
            record.timer.cancel()
            record.timer = None
        if record.pod is None:
            self._release(record)
            if not self._whereabouts.present(record.uid):
                self.pods.pop(record.uid, None)
            return
        try:
            wanted = self._wanted(record, record.pod)
            if isinstance(wanted, Verdict):
                self._release(record)
                self._settle(record, wanted)
                return
            self._hold(record, record.pod)
        except Invalid as invalid:
            self._release(record)
            self._settle(record, Verdict(Outcome.INVALID, "invalid", str(invalid)))
        except Failure as failure:
            self._failed(record, failure)
        except OSError as error:  # no descriptor left, for one
            self._failed(record, Failure("system", str(error)))
        else:
            if not self._is_in_place(record, record.pod, wanted):
                self._program(record, record.pod, wanted)

    def _wanted(self, record: NodePod, pod: PodView) -> Capture | Verdict:
        """The settings to be in place, or why there is nothing to do."""
        if pod.phase in _ENDED:
            return Verdict(Outcome.ENDED, pod.phase.lower(), f"the pod's phase is {pod.phase}")
        decision = decide(pod, ipv6=record.applied.ipv6 if record.applied else False)
        if isinstance(decision, NotCaptured):
            return Verdict(Outcome.NOT_IN_MESH, decision.reason, decision.sentence)
        running = capture_point.still_running(pod)
        if running is not None:
            return Verdict(Outcome.WAITING_FOR_INIT, "init-container", f"its init container {running} has not ended")
        if not self._whereabouts.present(record.uid):
            return Verdict(Outcome.WAITING_FOR_SANDBOX, "no-sandbox", "it has no container on this node yet")
        return decision

    def _hold(self, record: NodePod, pod: PodView) -> None:
        """Finds and proves the pod's namespace, or proves anew the one that is held: sandboxes are replaced."""
        pids = self._whereabouts.pids(record.uid)
        try:
            netns = self._prover.prove(record.uid, pids, pod.addresses if record.netns is None else ())
        except Refused as refused:
            if record.netns is None or refused.reason == Refusal.NO_PROCESS:
                self._release(record)
                raise
            return  # a container's own namespaces, or a process on its way out, do not make ours another's
        if record.netns is not None and record.netns.identity == netns.identity:
            netns.close()
            return
        self._release(record)
        record.netns, record.proven = netns, time.monotonic()
        self._owners.claim(netns.identity, record.uid)

    def _release(self, record: NodePod) -> None:
        if record.netns is not None:
            self._owners.release(record.netns.identity)
            record.release()

    def _is_in_place(self, record: NodePod, pod: PodView, wanted: Capture) -> bool:
        return (
            record.applied == wanted
            and not record.compare
            and (not pod.addresses or record.own_addresses == pod.addresses)
            and record.verdict.outcome in IN_PLACE | {Outcome.DRIFTED}
        )

    def _program(self, record: NodePod, pod: PodView, wanted: Capture) -> None:
        assert record.netns is not None
        job = partial(
            program,
            self._backend,
            record.netns,
            wanted,
            known=record.applied,
            notices=record.notices,
            reported=pod.addresses,
            prover=self._prover,
            drift=self._drift,
        )
        record.busy_since, record.again, record.compare = time.monotonic(), False, False
        future = self._loop.run_in_executor(self._executor, job)
        future.add_done_callback(partial(self._programmed, record))

    def _programmed(self, record: NodePod, future: "asyncio.Future[Programmed]") -> None:
        record.busy_since = None
        if future.cancelled():
            record.release()
            return
        error = future.exception()
        if isinstance(error, Failure):
            self._failed(record, error)
        elif error is not None:  # a bug of ours must not stop the other pods, nor this one for good
            logger.error("unexpected error", exc_info=error, extra=record.fields())
            self._failed(record, Failure("unexpected", repr(error)))
        else:
            self._succeeded(record, future.result())
        if record.again and record.timer is None:
            self._turn(record)

    def _succeeded(self, record: NodePod, done: Programmed) -> None:
        pod, first = record.pod, record.applied is None
        if pod is None or record.netns is None:  # deleted meanwhile; its own turn comes
            record.again = True
            return
        if record.notices is None and done.notices is not None:
            record.notices = done.notices
            record.notices.follow(self._loop, partial(self._rules_changed, record.uid))
        now = time.monotonic()
        record.applied, record.own_addresses = done.capture, done.own_addresses
        record.failures, record.compared = 0, now
        if first and record.seen is not None:
            record.milliseconds = (now - record.seen) * 1000
        if done.result == "unchanged" and not first and record.verdict.outcome in IN_PLACE:
            return
        verdict = _verdict(done, record, first=first)
        if verdict.outcome in (Outcome.REPAIRED, Outcome.DRIFTED):
            record.drifts += 1
        self._settle(record, verdict)
        if first and names.VALIDATION_CONTAINER not in pod.init_containers:
            sentence = "it has no istio-validation container: its application does not wait until it is captured"
            self._told(record, Verdict(Outcome.VALIDATION_MISSING, "stripped", sentence))
        if done.disturbed:
            self.wake(record.uid, compare=True)

    def _rules_changed(self, uid: str) -> None:
        """The kernel announced a change in the pod's namespace that was not ours."""
        record = self.pods.get(uid)
        if record is None:
            return
        wait = record.compared + _BETWEEN_COMPARISONS - time.monotonic()
        if wait <= 0:
            self.wake(uid, compare=True)
        elif record.timer is None and not record.busy:
            record.compare = True
            record.timer = self._loop.call_later(wait, self._due, record)
        else:
            record.compare = record.again = True

    def _failed(self, record: NodePod, failure: Failure) -> None:
        record.failures += 1
        if isinstance(failure, Refused) and failure.reason in STARTING:
            wait = min(_LONGEST_WAIT, _FIRST_LOOK * _LOOKS_GROW ** min(record.failures - 1, 60))
            if record.failures > _PATIENCE:
                self._settle(record, Verdict(Outcome.REFUSED, failure.reason, str(failure)))
            else:
                self._settle(record, Verdict(Outcome.WAITING_FOR_SANDBOX, "starting", str(failure)))
        else:
            refused = isinstance(failure, Refused | NetnsRefused)
            if refused:
                self._release(record)
            wait = min(_LONGEST_RETRY, _FIRST_RETRY * 2 ** min(record.failures - 1, 20))
            self._settle(record, Verdict(Outcome.REFUSED if refused else Outcome.FAILED, failure.reason, str(failure)))
            wait *= random.uniform(0.8, 1.2)
        record.timer = self._loop.call_later(wait, self._due, record)

    def _due(self, record: NodePod) -> None:
        record.timer = None
        self.wake(record.uid)

    def _settle(self, record: NodePod, verdict: Verdict) -> None:
        """Remembers a verdict, and tells of it when it says something new."""
        previous = record.verdict
        changed = (verdict.outcome, verdict.reason) != (previous.outcome, previous.reason)
        record.verdict = verdict
        if changed:
            record.since, record.settled = time.time(), time.monotonic()
        if changed or verdict.outcome in (Outcome.REPAIRED, Outcome.DRIFTED, Outcome.UPDATED):
            self._told(record, verdict)


def _verdict(done: Programmed, record: NodePod, *, first: bool) -> Verdict:
    assert record.pod is not None
    if done.result == "drifted":
        return Verdict(Outcome.DRIFTED, "reported", done.differences)
    if done.result == "unchanged":
        return Verdict(Outcome.ADOPTED, "in-place", "all its rules were in place")
    if done.differences or (first and done.result == "replaced"):
        return Verdict(Outcome.REPAIRED, "drift", done.differences or "rules that differed were replaced")
    if not first:
        return Verdict(Outcome.UPDATED, "settings", "its settings changed, and its rules with them")
    if record.pod.phase == "Running" and record.seen is None:
        since = record.pod.started or "its start"
        return Verdict(Outcome.CAPTURED_LATE, "late", f"it had been running outside the mesh since {since}")
    return Verdict(Outcome.CAPTURED, "programmed", "its rules are in place")
