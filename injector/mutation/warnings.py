"""What is allowed but probably not meant; the API server shows it to whoever creates the pod."""

from collections.abc import Iterable, Iterator

from cni_agent import names, values
from cni_agent.invalid import shown
from injector.mutation.annotations import NATIVE, REWRITE_PROBES
from injector.mutation.draft import Draft
from injector.mutation.pod import Pod, SecurityContext, Spec
from injector.mutation.previous import OURS, Previous

_NETWORK_OF_THEIR_OWN = ("kata", "gvisor", "runsc")
_AT_MOST = 10  # the API server cuts the total at 4096 characters


def of_injection(pod: Pod, draft: Draft, before: Previous, of_probes: Iterable[str]) -> list[str]:
    """Sentences about one injected pod."""
    said = [*_own_network_stack(pod), *_same_ids(pod, draft), *_values(draft), *_status(before), *of_probes]
    return said[:_AT_MOST]


def _own_network_stack(pod: Pod) -> Iterator[str]:
    """Rules of the node's kernel do not reach into a virtual machine. Names are free: those that are usual are told."""
    name = (pod.spec and pod.spec.runtimeClassName) or ""
    if name.startswith(_NETWORK_OF_THEIR_OWN):
        yield (
            f"spec.runtimeClassName {shown(name)}: if that is a sandbox with a network stack of its own, the pod "
            f"cannot be captured from the node and waits in {names.VALIDATION_CONTAINER}"
        )


def _same_ids(pod: Pod, draft: Draft) -> Iterator[str]:
    """Traffic of the proxy's own user, and of its group, is not captured.

    Of init containers only native sidecars are looked at: the others may want the plain network while they run.
    """
    place = draft.find(names.PROXY_CONTAINER)
    proxy = (draft.content(*place).get("securityContext") if place else None) or {}
    user, group = proxy.get("runAsUser") or names.PROXY_ID, proxy.get("runAsGroup") or names.PROXY_ID
    spec = pod.spec or Spec()
    default = spec.securityContext or SecurityContext()
    native = [container for container in spec.initContainers or () if container.restartPolicy == "Always"]
    for container in (*(spec.containers or ()), *native):
        if container.name in OURS:
            continue
        own = container.securityContext or default
        runs_as = (
            ("user", default.runAsUser if own.runAsUser is None else own.runAsUser, user),
            ("group", default.runAsGroup if own.runAsGroup is None else own.runAsGroup, group),
        )
        for kind, number, of_proxy in runs_as:
            if number == of_proxy:
                called = f"container {shown(container.name)} runs as {kind} {number}"
                yield f"{called}, the proxy's: its traffic is not captured"


def _values(draft: Draft) -> Iterator[str]:
    rewrite = draft.annotations.get(REWRITE_PROBES)
    if rewrite is not None and values.go_bool(rewrite) is None:
        yield f"annotation {REWRITE_PROBES}: {shown(rewrite)} is neither true nor false, and ignored"
    native = draft.annotations.get(NATIVE, "")
    if native not in ("", "true", "false"):
        yield f"annotation {NATIVE}: {shown(native)} is neither true nor false, and taken for true"


def _status(before: Previous) -> Iterator[str]:
    if before.marked and not before.readable:
        yield f"annotation {names.STATUS} is not what an injector writes, and ignored"
