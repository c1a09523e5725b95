"""What is allowed but probably not meant; the API server shows it to whoever creates the pod."""

from collections.abc import Iterable, Iterator

from cni_agent import names, values
from cni_agent.invalid import shown
from injector.mutation.annotations import NATIVE, REWRITE_PROBES
from injector.mutation.draft import Draft
from injector.mutation.pod import Pod, Spec
from injector.mutation.previous import Previous
from injector.mutation.workload import Workload

_AT_MOST = 10  # the API server cuts the total at 4096 characters


def of_injection(pod: Pod, draft: Draft, workload: Workload, before: Previous, of_probes: Iterable[str]) -> list[str]:
    """Sentences about one injected pod."""
    said = [*_same_user(pod, workload), *_values(draft), *_status(before), *of_probes]
    return said[:_AT_MOST]


def _same_user(pod: Pod, workload: Workload) -> Iterator[str]:
    """Traffic of the proxy's own user is not captured."""
    spec = pod.spec or Spec()
    default = spec.securityContext.runAsUser if spec.securityContext else None
    for container in spec.containers or ():
        own = container.securityContext.runAsUser if container.securityContext else None
        user = default if own is None else own
        if container.name not in (names.PROXY_CONTAINER, names.INIT_CONTAINER) and user == workload.uid:
            yield f"container {shown(container.name)} runs as user {user}, the proxy's: its traffic is not captured"


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
