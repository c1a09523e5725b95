"""When a pod is captured."""

from typing import Any

import pytest

from cni_agent.invalid import Invalid
from cni_agent.node.capture_point import still_running
from cni_agent.podview import ContainerStatus, PodView

CONTAINERS = ("istio-proxy", "fetch", "migrate", "istio-validation", "late")


def pod(point: str = "before-app", *statuses: ContainerStatus, **changes: Any) -> PodView:
    annotations = {"initless.io/capture": point} if point else {}
    values = {"annotations": annotations, "init_containers": CONTAINERS, "init_statuses": statuses, **changes}
    return PodView(name="p", namespace="n", uid="u", **values)


DONE = ContainerStatus("fetch", exit_code=0), ContainerStatus("migrate", exit_code=0)


@pytest.mark.parametrize(
    ("view", "waits_for"),
    [
        (pod(""), None),
        (pod("sandbox"), None),
        (pod(), "fetch"),
        (pod("before-app", ContainerStatus("fetch", running=True)), "fetch"),
        (pod("before-app", ContainerStatus("fetch", exit_code=0)), "migrate"),
        (pod("before-app", ContainerStatus("fetch", exit_code=1), DONE[1]), "fetch"),
        (pod("before-app", *DONE), None),
        (pod("before-app", ContainerStatus("istio-validation", running=True)), None),  # it comes after them
        (pod("before-app", ContainerStatus("istio-validation", exit_code=126)), None),
        (pod("before-app", ContainerStatus("istio-validation", restarts=1)), None),
        (pod("before-app", ContainerStatus("istio-validation")), "fetch"),
        (pod("before-app", phase="Running"), None),
        (pod("before-app", init_containers=("istio-validation", "fetch")), None),
        (pod("before-app", init_containers=()), None),
    ],
)
def test_which_init_container_is_waited_for(view: PodView, waits_for: str | None) -> None:
    assert still_running(view) == waits_for


def test_an_unknown_point_is_refused_by_name() -> None:
    with pytest.raises(
        Invalid, match=r"initless.io/capture: 'sometime' is not allowed; expected sandbox or before-app"
    ):
        still_running(pod("sometime"))
