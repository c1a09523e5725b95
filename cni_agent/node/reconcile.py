"""Brings each pod from what is to what should be, whatever event came.

Level-based: a turn looks at everything anew and does what is missing, so a lost, doubled or late event costs time and
never correctness. One turn per pod at a time, pods beside each other. Decisions and proofs are made on the event loop,
where nothing else changes meanwhile; work in a namespace goes to a thread, with a descriptor that stays proven. Not so
for a pod that starts: it is programmed on the spot, for to hand it to a thread and back would take as long again. Where
containers of the pod may run already, one of them could keep the kernel, and so the other pods, waiting.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Final

from cni_agent.backends import Backend
from cni_agent.capture import Capture
from cni_agent.invalid import Invalid
from cni_agent.kernel.failure import Failure, NetnsRefused
from cni_agent.node import patience
from cni_agent.node.drift import Following, Mode
from cni_agent.node.holding import Holding
from cni_agent.node.nodepod import NodePod
from cni_agent.node.outcome import IN_PLACE, Outcome, Verdict
from cni_agent.node.owners import Owners
from cni_agent.node.preparing import Preparing
from cni_agent.node.programming import Programmed, Unready, program
from cni_agent.node.proof import Prover, Refused
from cni_agent.node.wanted import wanted
from cni_agent.node.whereabouts import Whereabouts
from cni_agent.podview import PodView

_STARTING: Final = "starting"

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
        preparing: Preparing,
        executor: Executor,
        told: Callable[[NodePod, Verdict], None],
    ) -> None:
        self.pods: dict[str, NodePod] = {}
        self._backend = backend
        self._drift = drift
        self._whereabouts = whereabouts
        self._prover = prover
        self._holding = Holding(whereabouts, prover, owners)
        self._preparing = preparing
        self._executor = executor
        self._listener = told
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def pod_changed(self, pod: PodView) -> None:
        """The API, or the folder, has this version of a pod."""
        record = self.pods.setdefault(pod.uid, NodePod(pod.uid))
        record.become(pod)
        self.wake(pod.uid)

    def pod_gone(self, uid: str) -> None:
        """The pod was deleted."""
        if uid in self.pods:
            self.pods[uid].become(None)
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

    async def close(self) -> None:
        """Takes no more turns, waits for the work that is under way, and lets go of everything."""
        self._closed = True
        while any(record.busy for record in self.pods.values()):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # until the last is told of, with all that is known of it
        for record in self.pods.values():
            if record.timer is not None:
                record.timer.cancel()
            record.release()

    def _turn(self, record: NodePod) -> None:
        if self._closed:
            return
        if record.timer is not None:
            record.timer.cancel()
            record.timer = None
        if record.pod is None:
            self._holding.release(record)
            if not self._whereabouts.present(record.uid):
                self.pods.pop(record.uid, None)
            return
        present = self._whereabouts.present(record.uid)
        pod = self._holding.present_pod(record)
        try:
            goal = wanted(pod, record.decided(), present=present, captured=record.applied is not None)
            if isinstance(goal, Verdict):
                self._holding.release(record)
                record.starting = None
                self._settle(record, goal)
                if goal.outcome == Outcome.WAITING_FOR_SANDBOX:
                    self._preparing.pod(pod)
                return
            if record.seen is not None and record.verdict.outcome == Outcome.WAITING_FOR_INIT:
                record.seen = time.monotonic()  # its init containers are none of our time
            if self._holding.hold(record, pod):
                return self._turn(record)  # of a new sandbox, for which all is to be asked anew
        except Invalid as invalid:
            self._holding.release(record)
            self._settle(record, Verdict(Outcome.INVALID, "invalid", str(invalid)))
        except Failure as failure:
            self._failed(record, failure)
        except OSError as error:  # no descriptor left, for one
            self._failed(record, Failure("system", str(error)))
        else:
            self._tell_of_change(record)
            if not self._is_in_place(record, pod, goal):
                self._program(record, pod, goal)

    def _is_in_place(self, record: NodePod, pod: PodView, goal: Capture) -> bool:
        return (
            record.applied == goal
            and not record.compare
            and (not pod.addresses or record.own_addresses == pod.addresses)
            and record.verdict.outcome in IN_PLACE | {Outcome.DRIFTED}
        )

    def _program(self, record: NodePod, pod: PodView, goal: Capture) -> None:
        assert record.netns is not None
        job = partial(
            program,
            self._backend,
            record.netns,
            goal,
            known=record.applied,
            fresh=record.seen is not None,
            notices=record.following.notices if record.following else None,
            reported=pod.addresses,
            prover=self._prover,
            drift=self._drift,
        )

        def work() -> Programmed | Exception:
            record.working_since = time.monotonic()
            return _outcome(partial(job, minting=True))

        record.busy, record.again, record.compare = True, False, False
        if record.seen is not None and record.applied is None and self._whereabouts.alone(record.uid):
            done = _outcome(partial(job, minting=False))
            if not isinstance(done, Unready):
                self._programmed(record, pod, done)
                return
        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(partial(self._worked, record, pod))

    def _worked(self, record: NodePod, pod: PodView, future: "asyncio.Future[Programmed | Exception]") -> None:
        record.working_since = None
        if future.cancelled():  # before it began: we are being stopped
            record.busy = False
        else:
            self._programmed(record, pod, future.result())

    def _programmed(self, record: NodePod, pod: PodView, done: Programmed | Exception) -> None:
        record.busy = False
        if isinstance(done, Programmed):
            self._succeeded(record, pod, done)
        elif isinstance(done, Failure):
            self._failed(record, done)
        else:  # a bug of ours must not stop the other pods, nor this one for good
            logger.error("unexpected error", exc_info=done, extra=record.fields())
            self._failed(record, Failure("unexpected", repr(done)))
        if record.again and record.timer is None:
            self._turn(record)

    def _succeeded(self, record: NodePod, pod: PodView, done: Programmed) -> None:
        """`pod`: as it was when the work began."""
        if record.following is None and done.notices is not None:
            record.following = Following(done.notices, self._loop, partial(self._rules_changed, record.uid))
        first = record.applied is None
        if record.pod is None:  # deleted meanwhile; one more turn lets go of it
            record.again = True
            return
        self._preparing.ipv6 = done.capture.ipv6
        record.applied, record.own_addresses = done.capture, done.own_addresses
        record.fixed = record.fixed or (replace(done.capture, ipv6=False) if done.capture.ipv6 else done.capture)
        record.failures, record.starting, record.compared = 0, None, done.moment
        if first and record.seen is not None:
            record.milliseconds = (done.moment - record.seen) * 1000
        if done.result == "unchanged" and not first and record.verdict.outcome in IN_PLACE:
            return
        verdict = done.verdict(pod, first=first)
        if verdict.outcome in (Outcome.REPAIRED, Outcome.DRIFTED):
            record.drifted(done.moment)
        self._settle(record, verdict, done.moment)
        if first:
            self._loop.call_soon(self._whereabouts.sandboxes.neglect, record.uid)
        if first and record.lacks_validation:
            sentence = "it has no istio-validation container: its application does not wait until it is captured"
            self._tell(record, Verdict(Outcome.VALIDATION_MISSING, "stripped", sentence))
        self._tell_of_change(record)

    def _tell_of_change(self, record: NodePod) -> None:
        """Of annotations of a captured pod that were changed, once for each change."""
        if record.applied is None or record.ignored == record.told_ignored:
            return
        record.told_ignored = record.ignored
        if record.ignored:
            self._tell(record, Verdict(Outcome.CHANGE_IGNORED, "annotations", record.ignored))

    def _rules_changed(self, uid: str) -> None:
        """The kernel announced a change in the pod's namespace that was not ours."""
        record = self.pods.get(uid)
        if record is None:
            return
        now = time.monotonic()
        record.undone = record.undone or now
        wait = record.compared + patience.between_repairs(record.repairs) - now
        if wait <= 0:
            self.wake(uid, compare=True)
        elif record.timer is None and not record.busy:
            record.compare = True
            self._later(record, wait)
        else:
            record.compare = record.again = True

    def _failed(self, record: NodePod, failure: Failure) -> None:
        now = time.monotonic()
        record.failures += 1
        record.starting = (record.starting or now) if patience.is_starting(failure) else None
        if record.starting is not None and not patience.is_over(now - record.starting):
            verdict = Verdict(Outcome.WAITING_FOR_SANDBOX, _STARTING, str(failure))
        elif isinstance(failure, Refused | NetnsRefused):
            self._holding.release(record)
            verdict = Verdict(Outcome.REFUSED, failure.reason, str(failure))
        else:
            verdict = Verdict(Outcome.FAILED, failure.reason, str(failure))
        self._settle(record, verdict)
        self._later(record, patience.wait(failure, record.failures))

    def _later(self, record: NodePod, seconds: float) -> None:
        if record.timer is not None:
            record.timer.cancel()
        record.timer = self._loop.call_later(seconds, self._due, record)

    def _due(self, record: NodePod) -> None:
        record.timer = None
        self.wake(record.uid)

    def _settle(self, record: NodePod, verdict: Verdict, moment: float | None = None) -> None:
        """Remembers a verdict, and tells of it when it says something new."""
        previous = record.verdict
        changed = (verdict.outcome, verdict.reason) != (previous.outcome, previous.reason)
        record.verdict = verdict
        if changed:
            now = time.monotonic()
            record.settled = now if moment is None else moment
            record.since = time.time() - (now - record.settled)
        if verdict.reason == _STARTING:
            return  # every pod is that for a few milliseconds
        if changed or verdict.outcome in (Outcome.REPAIRED, Outcome.DRIFTED, Outcome.UPDATED):
            self._tell(record, verdict)

    def _tell(self, record: NodePod, verdict: Verdict) -> None:
        """In a moment: of a burst of pods all are captured first, and told of then."""
        self._loop.call_soon(self._listener, record, verdict)


def _outcome(work: Callable[[], Programmed]) -> Programmed | Exception:
    """What it gives or raises."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 -- told by who asked
        return error
