"""Proof that a network namespace is a certain pod's, before anything is written to it.

Programming the node itself, or somebody else's pod, is the one unforgivable bug. A starting container's first process,
`runc:[0:PARENT]`, is in the pod's cgroup and still in the node's namespace; CRI-O's `conmon` stays there; a debugging
tool may have entered another pod. So a namespace is taken from an open process whose cgroup names the pod both before
and after, only if it is not the node's, no other pod's, and the only one in question. When in doubt: refused, with a
word that says why.
"""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cni_agent.kernel.failure import Failure, NetnsRefused
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netns import Identity, Netns, identity
from cni_agent.node import cgroup
from cni_agent.node.processes import GONE, Process


class Refusal(StrEnum):
    """Why a namespace was not taken."""

    NO_PROCESS = "no-process"
    HOST_NAMESPACE = "host-namespace"
    PROCESS_CHANGED = "process-changed"
    OTHER_CGROUP = "other-cgroup"
    TWO_NAMESPACES = "two-namespaces"
    OTHER_OWNER = "other-owner"
    NO_ADDRESS = "no-address"
    WRONG_ADDRESS = "wrong-address"
    UNREADABLE = "unreadable"


# What a starting pod looks like: it passes by itself within milliseconds.
STARTING: Final = frozenset({Refusal.NO_PROCESS, Refusal.HOST_NAMESPACE, Refusal.PROCESS_CHANGED, Refusal.NO_ADDRESS})
# When several processes were refused for different reasons, the one that tells most comes first.
_TELLING: Final = (
    Refusal.UNREADABLE,
    Refusal.OTHER_CGROUP,
    Refusal.HOST_NAMESPACE,
    Refusal.PROCESS_CHANGED,
)


class Refused(Failure):
    """The namespace was not proven to be the pod's, so nothing was written. `seen`: those its processes are in."""

    reason: Refusal

    def __init__(self, reason: Refusal, sentence: str) -> None:
        super().__init__(reason, sentence)
        self.seen: frozenset[Identity] = frozenset()


@dataclass(frozen=True, slots=True)
class Prover:
    """What is the same for all pods of a node. `protected`: namespaces that are never a pod's, the node's above all.

    `owner` names the live pod that a namespace is known to belong to; `addresses` reads those of a namespace.
    """

    proc: str
    protected: Collection[Identity]
    owner: Callable[[Identity], str | None]
    addresses: Callable[[Netns | Inside], Collection[str]]

    def prove(self, uid: str, pids: Iterable[int], reported: Collection[str] = ()) -> Netns:
        """The pod's namespace, found through its processes. `reported`: the pod's IPs as far as the API has them."""
        candidates, refusals = self._candidates(uid, pids)
        chosen = None
        try:
            if not candidates:
                raise _most_telling(refusals)
            only = self._only_one(candidates, reported)
            owner = self.owner(only.identity)
            if owner is not None and owner != uid:
                raise Refused(Refusal.OTHER_OWNER, f"{only.name} is that of pod {owner}")
            self.check_address(only, reported, self.addresses(only) if reported else ())
            chosen = only
        except Refused as refused:
            refused.seen = frozenset(candidates)
            raise
        finally:
            for netns in candidates.values():
                if netns is not chosen:
                    netns.close()
        return chosen

    def inhabited(self, uid: str, pids: Iterable[int], namespace: Identity) -> bool:
        """Whether a process of the pod is in this namespace, which is proven already. It looks no further than that:
        a pod may have thousands of processes, and each costs some 30 µs of the event loop."""
        for pid in pids:
            try:
                with Process(self.proc, pid) as process:
                    if process.network() == namespace and _pod_in(process.cgroup(), process) == uid:
                        return True
            except (Refused, PermissionError, *GONE):
                continue
        return False

    def check_address(self, netns: Netns, reported: Collection[str], held: Collection[str]) -> None:
        """Once the API has reported the pod's IPs, one of them must be in its namespace."""
        if reported and not _meet(held, reported):
            raise Refused(Refusal.WRONG_ADDRESS, f"{netns.name} has none of the pod's addresses {', '.join(reported)}")

    def _candidates(self, uid: str, pids: Iterable[int]) -> tuple[dict[Identity, Netns], dict[Refusal, Refused]]:
        """Each namespace that processes of the pod are in."""
        candidates: dict[Identity, Netns] = {}
        refusals: dict[Refusal, Refused] = {}
        for pid in pids:
            try:
                with Process(self.proc, pid) as process:
                    found = self._of_process(uid, process, candidates)
            except Refused as refused:
                refusals[refused.reason] = refused
            except GONE:
                refusals[Refusal.PROCESS_CHANGED] = Refused(Refusal.PROCESS_CHANGED, f"process {pid} ended")
            except PermissionError as error:
                sentence = f"process {pid}: {error.strerror}; CAP_SYS_PTRACE is needed"
                refusals[Refusal.UNREADABLE] = Refused(Refusal.UNREADABLE, sentence)
            else:
                if found is not None:
                    candidates[found.identity] = found
        return candidates, refusals

    def _of_process(self, uid: str, process: Process, known: Collection[Identity]) -> Netns | None:
        """The namespace of a process of this pod; None when it is one of those known already."""
        text = process.cgroup()
        before = _pod_in(text, process)
        if before != uid:
            raise Refused(Refusal.OTHER_CGROUP, f"process {process.pid} is in the cgroup of pod {before or '(none)'}")
        descriptor = process.open_network()
        seen = identity(descriptor)
        if seen in known:
            os.close(descriptor)
            return None
        try:
            netns = Netns(descriptor, f"net:[{seen.inode}]", self.protected)
        except NetnsRefused:
            raise _host(process) from None
        try:
            again = process.cgroup()
            if again != text and _pod_in(again, process) != uid:
                raise Refused(Refusal.PROCESS_CHANGED, f"process {process.pid} left the pod's cgroup meanwhile")
        except BaseException:
            netns.close()
            raise
        return netns

    def _only_one(self, candidates: dict[Identity, Netns], reported: Collection[str]) -> Netns:
        """Containers may make namespaces of their own (Docker in a pod); the pod's is the one with its address."""
        if len(candidates) == 1:
            return next(iter(candidates.values()))
        if reported:
            holding = [netns for netns in candidates.values() if _meet(self.addresses(netns), reported)]
            if len(holding) == 1:
                return holding[0]
        named = ", ".join(netns.name for netns in candidates.values())
        raise Refused(Refusal.TWO_NAMESPACES, f"its processes are in {len(candidates)} network namespaces: {named}")


def _pod_in(text: str, process: Process) -> str:
    try:
        return cgroup.membership(text).pod_uid
    except cgroup.CgroupError as error:
        raise Refused(Refusal.OTHER_CGROUP, f"process {process.pid}: {error}") from None


def _host(process: Process) -> Refused:
    return Refused(Refusal.HOST_NAMESPACE, f"process {process.pid} is in the node's own network namespace")


def _meet(held: Collection[str], reported: Collection[str]) -> bool:
    return not set(map(_unmapped, held)).isdisjoint(map(_unmapped, reported))


def _unmapped(address: str) -> str:
    """An IPv4 address that an interface carries in its IPv6 form is the same address."""
    return address.removeprefix("::ffff:") if "." in address else address


def _most_telling(refusals: dict[Refusal, Refused]) -> Refused:
    for reason in _TELLING:
        if reason in refusals:
            return refusals[reason]
    return Refused(Refusal.NO_PROCESS, "there is no process in the pod's cgroup")
