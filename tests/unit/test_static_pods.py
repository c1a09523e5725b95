"""Static pods: the kubelet runs them from a file, the API has a mirror with another uid."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cni_agent.decision import NotCaptured, decide
from cni_agent.node.events import event
from cni_agent.node.outcome import Outcome, Verdict
from cni_agent.podview import pod_view
from tests.fake_api import FakeApi
from tests.unit.test_podwatch import scenario, until, watching

HASH = "a5363f4f31e043bdae3c93aca4991903"
API_UID = "7c4837d4-a568-47f4-aef1-7b0b82b27877"
PROXY = {"containerStatuses": [{"name": "app"}, {"name": "istio-proxy"}]}


def mirror(uid: str = API_UID, *, status: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    given = {"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH, "sidecar.istio.io/status": ""}
    return {
        "metadata": {"name": "web-node-1", "namespace": "shop", "uid": uid, "annotations": {**given, **annotations}},
        "spec": {"nodeName": "n1", "containers": [{"name": "app"}, {"name": "istio-proxy"}]},
        "status": PROXY if status is None else status,
    }


def test_its_uid_is_that_of_its_cgroup_and_events_are_about_the_mirror() -> None:
    view = pod_view(mirror())
    assert (view.uid, view.mirror) == (HASH, API_UID)
    assert not isinstance(decide(view, ipv6=False), NotCaptured)
    told = event(view, Verdict(Outcome.CAPTURED), "n1", datetime.now(UTC))
    assert told["involvedObject"]["uid"] == API_UID


def test_a_proxy_that_only_the_mirror_has_does_not_count() -> None:
    """A webhook injected the mirror; the kubelet runs the pod of the file, which nobody can inject."""
    for status in ({}, {"containerStatuses": [{"name": "app"}]}, {"initContainerStatuses": [{"name": "setup"}]}):
        assert isinstance(decide(pod_view(mirror(status=status)), ipv6=False), NotCaptured), status
    native = {"initContainerStatuses": [{"name": "istio-proxy"}]}
    assert not isinstance(decide(pod_view(mirror(status=native)), ipv6=False), NotCaptured)


@pytest.mark.parametrize("name", ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"])
def test_half_a_mirror_is_a_pod_like_any_other(name: str) -> None:
    pod = mirror(status={})
    del pod["metadata"]["annotations"][name]
    view = pod_view(pod)
    assert (view.uid, view.mirror) == (API_UID, "")
    assert not isinstance(decide(view, ipv6=False), NotCaptured)


@pytest.mark.parametrize("claimed", ["", "true", "0b5e1ad6-0e43-4d5c-8bd8-9a9ed5d4b0f3", HASH.upper(), HASH + "0"])
def test_a_hash_that_could_be_the_uid_of_another_pod_is_none(claimed: str) -> None:
    assert pod_view(mirror(**{"kubernetes.io/config.hash": claimed})).uid == API_UID


@scenario
async def test_a_mirror_that_is_deleted_and_made_anew(api: FakeApi) -> None:
    await api.put(mirror("first"))
    async with watching(api) as (seen, watch):
        await until(lambda: watch.listed)
        assert seen.pods.keys() == {HASH}
        await api.delete("first")
        await until(lambda: not seen.pods)
        await api.put(mirror("second"))
        await until(lambda: seen.pods)
        # the same while nobody looks: the list has the pod, under another uid of the API
        await api.stop()
        del api.pods["second"]
        await api.put(mirror("third"))
        api.forgotten = api.version
        await api.start(int(api.url.rpartition(":")[2]))
        await until(lambda: seen.pods[HASH].mirror == "third")
        await api.delete("third")
        await until(lambda: not seen.pods)
