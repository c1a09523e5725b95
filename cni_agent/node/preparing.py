"""Has the rules of pods ready before their sandboxes are.

The first time that rules are wanted, the ordinary tools are run to write them, which takes tens of milliseconds: half
of what a sandbox takes to start. The API tells of a pod long before that. One thread does it, one ruleset behind the
other, so that the threads that program pods are free for those whose rules are known.
"""

import logging
from concurrent.futures import Executor, Future
from typing import Final

from cni_agent import names
from cni_agent.backends import Backend
from cni_agent.capture import Capture
from cni_agent.decision import NotCaptured, decide
from cni_agent.invalid import Invalid
from cni_agent.kernel.failure import Failure
from cni_agent.kernel.netns import Netns
from cni_agent.node.admitted import decide_as_admitted
from cni_agent.podview import PodView, Proxy

_MOST: Final = 512
_USUAL_POD: Final = PodView("", "", "", annotations={names.STATUS: ""}, proxy=Proxy())

logger = logging.getLogger(__name__)


class Preparing:
    """`ipv6`: whether the last pod had it; the next one most likely has it too."""

    def __init__(self, backend: Backend, executor: Executor) -> None:
        self.ipv6 = False
        self._backend = backend
        self._executor = executor
        self._done: set[Capture] = set()

    def usual(self) -> list[Future[None]]:
        """The rules of pods without annotations, for both cases of IPv6."""
        pods = [decide(_USUAL_POD, ipv6=ipv6) for ipv6 in (False, True)]
        return [self._submit(capture) for capture in pods if isinstance(capture, Capture)]

    def pod(self, pod: PodView) -> None:
        """The rules of a pod that will come."""
        try:
            capture = decide_as_admitted(pod, ipv6=self.ipv6)
        except Invalid:
            return
        if not isinstance(capture, NotCaptured) and capture not in self._done:
            self._submit(capture)

    def _submit(self, capture: Capture) -> Future[None]:
        if len(self._done) >= _MOST:
            self._done.clear()
        self._done.add(capture)
        return self._executor.submit(self._prepare, capture)

    def _prepare(self, capture: Capture) -> None:
        """Once, in a namespace that nobody uses: from then on the backend has them."""
        try:
            with Netns.scratch() as scratch:
                self._backend.apply(scratch, self._backend.ruleset(capture))
        except Failure as failure:  # it will be told when it concerns a pod
            logger.warning("cannot prepare rules", extra={"reason": failure.reason, "error": str(failure)})
