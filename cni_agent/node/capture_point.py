"""When a pod is captured: with its sandbox, or after its application's own init containers (`initless.io/capture`)."""

from cni_agent import names
from cni_agent.invalid import Invalid, Violation
from cni_agent.podview import PodView

SANDBOX = "sandbox"
BEFORE_APP = "before-app"
_OURS = (names.VALIDATION_CONTAINER, names.PROXY_CONTAINER, names.INIT_CONTAINER)


def still_running(pod: PodView) -> str | None:
    """The first of the application's init containers that must end before the pod is captured; None: capture now.

    The injector puts istio-validation behind them. When that one has begun, or ended, they are done, whatever their own
    statuses say; a status may be missing for an instant. Raises `Invalid` for an unknown capture point.
    """
    point = pod.annotations.get(names.CAPTURE_POINT, SANDBOX)
    if point not in (SANDBOX, BEFORE_APP):
        raise Invalid([Violation(names.CAPTURE_POINT, point, f"{SANDBOX} or {BEFORE_APP}")])
    if point == SANDBOX:
        return None
    statuses = {status.name: status for status in pod.init_statuses}
    validation = statuses.get(names.VALIDATION_CONTAINER)
    if validation and (validation.running or validation.exit_code is not None or validation.restarts):
        return None
    if pod.phase == "Running":
        return None
    for name in pod.init_containers:
        if name == names.VALIDATION_CONTAINER:
            break
        if name not in _OURS and (name not in statuses or statuses[name].exit_code != 0):
            return name
    return None
