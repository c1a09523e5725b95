"""The namespace of each pod, found, proven, held open, and let go when its sandbox has ended."""

import time
from functools import partial

from cni_agent.node.earlier import earlier
from cni_agent.node.nodepod import NodePod
from cni_agent.node.owners import Owners
from cni_agent.node.proof import Prover, Refused
from cni_agent.node.whereabouts import Whereabouts
from cni_agent.podview import PodView


class Holding:
    """For all pods of the node; what is held is in their records."""

    def __init__(self, whereabouts: Whereabouts, prover: Prover, owners: Owners) -> None:
        self._whereabouts = whereabouts
        self._prover = prover
        self._owners = owners

    def present_pod(self, record: NodePod) -> PodView:
        """The pod without what the API still tells of an earlier sandbox."""
        assert record.pod is not None
        present = self._whereabouts.present(record.uid)
        if record.earlier is None or not present:
            record.earlier = earlier(record.pod, ended=not present)
        record.earlier = record.earlier.but(partial(self._whereabouts.lives, record.uid))
        return record.earlier.left_out_of(record.pod)

    def hold(self, record: NodePod, pod: PodView) -> bool:
        """Finds and proves the pod's namespace, or proves anew the one that is held. True: that one was replaced.

        Raises `Refused`, and OSError when there is no descriptor left.
        """
        if record.netns is None:  # before looking: who enters in between is told of
            self._whereabouts.sandboxes.attend(record.uid)
        pids = self._whereabouts.pids(record.uid)
        if record.netns is not None and self._prover.inhabited(record.uid, pids, record.netns.identity):
            return False
        try:
            netns = self._prover.prove(record.uid, pids, pod.addresses if record.netns is None else ())
        except Refused as refused:
            if record.netns is not None and record.netns.identity in refused.seen:
                return False  # it made namespaces of its own, beside the one that is proven
            if record.netns is not None:
                self._sandbox_ended(record)
            raise
        if record.netns is not None and record.netns.identity == netns.identity:
            netns.close()
            return False
        replaced = record.netns is not None
        if replaced:
            self._sandbox_ended(record)
        record.netns, record.proven = netns, time.monotonic()
        self._owners.claim(netns.identity, record.uid)
        return replaced

    def release(self, record: NodePod) -> None:
        """Lets go of a pod's namespace."""
        if record.netns is not None:
            self._owners.release(record.netns.identity)
            record.release()

    def _sandbox_ended(self, record: NodePod) -> None:
        """Nobody is left in the namespace that was held; the next one is a new sandbox's."""
        assert record.pod is not None
        self.release(record)
        record.seen, record.earlier = time.monotonic(), earlier(record.pod, ended=True)
