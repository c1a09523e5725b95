"""Pods whose sandbox is made anew, and those that are captured after their own init containers."""

import asyncio
import time
from typing import Any

import pytest

from cni_agent.node.outcome import Outcome
from cni_agent.node.proof import Refusal
from cni_agent.node.reconcile import Reconciler
from cni_agent.podview import ContainerStatus, PodView
from tests.unit.node_world import STATUS, World, pod, scenario, until


@scenario
async def test_a_new_sandbox_is_a_new_namespace(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    reconciler.pod_changed(pod())
    await until(lambda: world.held.keys() == {1})
    world.inodes = {"a": 2}
    reconciler.sandbox_changed("a")
    await until(lambda: world.held.keys() == {1, 2})
    await until(lambda: world.opened[0].closed == 1)


@scenario
async def test_a_doubtful_look_does_not_let_go_of_what_was_proven(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    reconciler.pod_changed(pod())
    await until(lambda: world.outcomes() == ["Captured"])
    world.refuse["a"], world.beside["a"] = Refusal.TWO_NAMESPACES, [1, 2]
    reconciler.sandbox_changed("a")
    assert reconciler.pods["a"].netns is not None
    assert world.outcomes() == ["Captured"]


@scenario
async def test_a_namespace_without_its_pod_is_let_go(world: World, reconciler: Reconciler) -> None:
    """The sandbox is being replaced: all that is left in the pod's cgroup is a process in the host's namespace."""
    world.inodes = {"a": 1}
    reconciler.pod_changed(pod())
    await until(lambda: world.outcomes() == ["Captured"])
    world.refuse["a"] = Refusal.HOST_NAMESPACE
    reconciler.sandbox_changed("a")
    assert reconciler.pods["a"].netns is None
    world.inodes["a"] = 2
    del world.refuse["a"]
    await until(lambda: 2 in world.held)  # without another event


@pytest.mark.parametrize("absent", [True, False], ids=["ended", "replaced"])
def test_a_new_sandbox_has_another_address_than_the_api_tells(absent: bool) -> None:
    @scenario
    async def test(world: World, reconciler: Reconciler) -> None:
        world.inodes, world.addresses_of = {"a": 1}, {1: ["10.0.0.1"], 2: ["10.0.0.2"]}
        reconciler.pod_changed(pod(addresses=("10.0.0.1",)))
        await until(lambda: world.outcomes() == ["Captured"])
        if absent:
            world.inodes = {}
            reconciler.sandbox_changed("a")
        world.inodes = {"a": 2}
        reconciler.sandbox_changed("a")
        await until(lambda: 2 in world.held and not reconciler.pods["a"].busy)
        reconciler.pod_changed(pod(addresses=("10.0.0.2",)))
        await until(lambda: reconciler.pods["a"].own_addresses == ("10.0.0.2",))
        assert "Refused" not in world.outcomes()
        reconciler.pod_changed(pod(addresses=("10.0.0.3",)))
        await until(lambda: world.outcomes()[-1] == "Refused")

    test()


def before_app(*initial: ContainerStatus, **changes: Any) -> PodView:
    annotations = {**STATUS, "initless.io/capture": "before-app"}
    containers = ("migrate", "istio-validation")
    return pod(annotations=annotations, init_containers=containers, init_statuses=initial, **changes)


ENDED = ContainerStatus("migrate", "m1", exit_code=0), ContainerStatus("istio-validation", "v1", exit_code=0)


@scenario
async def test_before_app_begins_anew_with_a_new_sandbox(world: World, reconciler: Reconciler) -> None:
    """The API goes on telling that all init containers have ended, and that the pod runs, for seconds."""
    world.inodes, world.living = {"a": 1}, {"m1"}
    reconciler.pod_changed(before_app(ContainerStatus("migrate", "m1", running=True)))
    assert reconciler.pods["a"].verdict.outcome == Outcome.WAITING_FOR_INIT
    reconciler.pod_changed(before_app(ENDED[0]))
    await until(lambda: world.outcomes()[-1:] == ["Captured"])
    runs = before_app(*ENDED, phase="Running", statuses=(ContainerStatus("app", "a1", running=True),))
    world.living = {"a1"}
    reconciler.pod_changed(runs)
    world.inodes, world.living = {}, set()
    reconciler.sandbox_changed("a")
    world.inodes, world.living = {"a": 2}, {"m2"}
    reconciler.sandbox_changed("a")
    assert reconciler.pods["a"].verdict.outcome == Outcome.WAITING_FOR_INIT
    running = ContainerStatus("migrate", "m2", running=True, restarts=1)
    reconciler.pod_changed(before_app(running, ENDED[1], phase="Running", statuses=runs.statuses))
    assert reconciler.pods["a"].verdict.outcome == Outcome.WAITING_FOR_INIT
    assert 2 not in world.held
    ended = ContainerStatus("migrate", "m2", exit_code=0, restarts=1)
    reconciler.pod_changed(before_app(ended, ENDED[1], phase="Running", statuses=runs.statuses))
    await until(lambda: 2 in world.held)


@scenario
async def test_the_applications_init_containers_are_none_of_our_time(world: World, reconciler: Reconciler) -> None:
    world.inodes, world.living = {"a": 1}, {"m1"}
    reconciler.sandbox_changed("a")
    reconciler.pod_changed(before_app(ContainerStatus("migrate", "m1", running=True)))
    seen = reconciler.pods["a"].seen
    assert seen is not None
    await asyncio.sleep(0.01)
    due = time.monotonic()
    reconciler.pod_changed(before_app(ENDED[0]))
    await until(lambda: world.outcomes()[-1:] == ["Captured"])
    assert (reconciler.pods["a"].seen or 0) >= due > seen


@scenario
async def test_before_app_when_a_sandbox_is_replaced_unseen(world: World, reconciler: Reconciler) -> None:
    """One look finds the old namespace, the next one a new one: there was never a moment without."""
    world.inodes, world.living = {"a": 1}, {"m1"}
    reconciler.pod_changed(before_app(ContainerStatus("migrate", "m1", running=True)))
    reconciler.pod_changed(before_app(*ENDED))
    await until(lambda: world.outcomes()[-1:] == ["Captured"])
    world.inodes, world.living = {"a": 2}, {"m2"}
    reconciler.sandbox_changed("a")
    assert reconciler.pods["a"].verdict.outcome == Outcome.WAITING_FOR_INIT
    assert reconciler.pods["a"].netns is None


@scenario
async def test_before_app_after_a_restart_of_the_node(world: World, reconciler: Reconciler) -> None:
    """The first that a new agent hears of the pod is from before; of a running one it is the truth."""
    old = before_app(*ENDED, phase="Running", statuses=(ContainerStatus("app", "a1", running=True),))
    world.inodes, world.living = {"a": 1}, {"m2"}
    reconciler.pod_changed(old)
    assert reconciler.pods["a"].verdict.outcome == Outcome.WAITING_FOR_INIT
    world.living = {"v2"}
    validating = ContainerStatus("istio-validation", "v2", running=True, restarts=1)
    reconciler.pod_changed(before_app(ENDED[0], validating, phase="Running", statuses=old.statuses))
    await until(lambda: 1 in world.held)


@scenario
async def test_before_app_after_a_restart_of_the_agent(world: World, reconciler: Reconciler) -> None:
    world.inodes, world.living = {"a": 1}, {"a1"}
    running = before_app(*ENDED, phase="Running", statuses=(ContainerStatus("app", "a1", running=True),))
    reconciler.pod_changed(running)
    await until(lambda: world.outcomes())
    world.living = set()  # its container ended, and is started anew
    reconciler.sandbox_changed("a")
    reconciler.pod_changed(before_app(*ENDED, phase="Running", statuses=(ContainerStatus("app", "a1", exit_code=1),)))
    assert reconciler.pods["a"].netns is not None
