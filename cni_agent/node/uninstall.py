"""Un-programs the pods of this node, for taking Initless away (`cni-agent remove --all`).

Only pods that we would capture are touched, and only namespaces that are proven to be theirs: another pod's ISTIO_
chains, those of its own istio-init for one, are not ours to remove. Stop the agent first, or it will put them back.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cni_agent.backends import Backend
from cni_agent.decision import NotCaptured
from cni_agent.invalid import Invalid
from cni_agent.kernel.failure import Failure
from cni_agent.kernel.namespace_addresses import addresses
from cni_agent.kernel.netns import never_a_pods
from cni_agent.node import processes
from cni_agent.node.admitted import decide_as_admitted
from cni_agent.node.proof import Prover, Refusal, Refused
from cni_agent.podview import PodView


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of one pod. `reason` is empty when it is clean now; `removed`: whether there was anything."""

    pod: PodView
    removed: bool = False
    reason: str = ""
    sentence: str = ""


def remove_all(backend: Backend, pods: Iterable[PodView], proc: str = "/proc") -> Iterator[Removal]:
    """Cleans each pod of the mesh that has a sandbox here, and tells of each. Raises nothing for a single pod."""
    ours = {pod.uid: pod for pod in pods if _is_captured(pod)}
    found: dict[str, list[int]] = {}
    for uid, pid in processes.by_pod(proc, processes.pids(proc)):
        if uid in ours:
            found.setdefault(uid, []).append(pid)
    prover = Prover(proc, never_a_pods(proc), lambda _: None, addresses)
    for uid, pod in ours.items():
        yield _remove(backend, prover, pod, found.get(uid, ()))


def _remove(backend: Backend, prover: Prover, pod: PodView, pids: Collection[int]) -> Removal:
    try:
        if not pids:
            raise Refused(Refusal.NO_PROCESS, "it has no process here")
        with prover.prove(pod.uid, pids, pod.addresses) as netns:
            return Removal(pod, removed=backend.remove(netns))
    except Failure as failure:
        return Removal(pod, reason=failure.reason, sentence=str(failure))


def _is_captured(pod: PodView) -> bool:
    try:
        return not isinstance(decide_as_admitted(pod), NotCaptured)
    except Invalid:  # it was captured before its annotation went bad, or never
        return True


def pods_of_folder(folder: str) -> list[PodView]:
    """The pods of a folder, as `cni-agent run --pods-from` reads them; what cannot be read is an error here."""
    from cni_agent.manifest import read_pod
    from cni_agent.node.podfolder import SUFFIXES

    paths = sorted(path for path in Path(folder).iterdir() if path.suffix in SUFFIXES)
    return [read_pod(path.read_bytes(), path.name) for path in paths]


async def pods_of_api(node: str, kubeconfig: str | None) -> list[PodView]:
    """The pods of a node, listed once."""
    from cni_agent.apiserver import ApiServer, find_access
    from cni_agent.node.podwatch import listed

    async with ApiServer(find_access(kubeconfig), "initless-cni-agent") as server:
        return await listed(server, node)
