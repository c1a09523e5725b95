"""Turns of pods, with a kernel that can be told to be slow, to refuse or to fail."""

import asyncio
import threading
from functools import partial

import pytest

from cni_agent.kernel.failure import KernelRefused
from cni_agent.node.outcome import Outcome
from cni_agent.node.proof import Refusal
from cni_agent.node.reconcile import Reconciler
from tests.unit.node_world import World, pod, scenario, until


@scenario
async def test_whatever_comes_first_the_pod_is_captured(world: World, reconciler: Reconciler) -> None:
    reconciler.pod_changed(pod("a"))
    assert reconciler.pods["a"].verdict.outcome == Outcome.WAITING_FOR_SANDBOX
    world.inodes = {"a": 1, "b": 2}
    reconciler.sandbox_changed("a")
    reconciler.sandbox_changed("b")
    await until(lambda: "Captured" in world.outcomes("a"))
    assert "b" in reconciler.pods and world.outcomes("b") == []
    reconciler.pod_changed(pod("b"))
    await until(lambda: world.outcomes("b") == ["Captured"])


@partial(scenario, at_once=False)
async def test_a_starting_pod_is_programmed_on_the_spot_and_told_of_after(world: World, reconciler: Reconciler) -> None:
    world.ready = True
    for uid in ("a", "b", "c"):
        reconciler.pod_changed(pod(uid))
    world.inodes = {"a": 1, "b": 2, "c": 3}
    world.failures = {2: [KernelRefused("busy", "told to", 16)], 3: [RuntimeError("a bug")]}
    for uid in world.inodes:
        reconciler.sandbox_changed(uid)
    assert reconciler.pods["a"].verdict.outcome == "Captured"  # nothing was waited for in this test
    assert not any(record.busy or record.working_since for record in reconciler.pods.values())
    assert world.told == []  # there are pods to be seen to
    await asyncio.sleep(0)
    assert world.outcomes("a") == ["Captured"]
    assert world.outcomes("b") == world.outcomes("c") == ["Failed"]
    await until(lambda: world.outcomes("b") == world.outcomes("c") == ["Failed", "Captured"])


@scenario
async def test_rules_that_are_not_ready_hold_up_nobody(world: World, reconciler: Reconciler) -> None:
    world.gate = threading.Event()
    reconciler.pod_changed(pod())
    world.inodes = {"a": 1}
    reconciler.sandbox_changed("a")
    await until(lambda: world.working)
    assert reconciler.pods["a"].busy
    assert reconciler.pods["a"].working_since
    world.gate.set()
    await until(lambda: world.outcomes() == ["Captured"])


@pytest.mark.parametrize(("fresh", "company"), [(False, False), (True, True)])
def test_pods_whose_own_programs_may_run_are_left_to_a_thread(fresh: bool, company: bool) -> None:
    async def test(world: World, reconciler: Reconciler) -> None:
        world.ready, world.company = True, company
        reconciler.pod_changed(pod())
        world.inodes = {"a": 1}
        reconciler.sandbox_changed("a", fresh=fresh)
        assert reconciler.pods["a"].busy
        await until(lambda: world.outcomes() == ["Captured"])

    scenario(test)()


@scenario
async def test_events_without_a_change_do_nothing(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    reconciler.pod_changed(pod())
    await until(lambda: world.outcomes() == ["Captured"])
    world.held.clear()
    for _ in range(5):
        reconciler.pod_changed(pod())
        reconciler.sandbox_changed("a")
    assert not reconciler.pods["a"].busy
    assert world.held == {}
    reconciler.wake("a", compare=True)
    await until(lambda: world.outcomes()[-1] == "Drifted")  # drift is off: told, not mended


@scenario
async def test_a_held_namespace_is_not_proven_from_all_processes_again(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    reconciler.pod_changed(pod())
    await until(lambda: world.outcomes() == ["Captured"])
    for number in range(5):
        reconciler.pod_changed(pod(started=str(number)))
    assert len(world.opened) == 1
    world.inodes = {"a": 2}  # another sandbox
    reconciler.pod_changed(pod())
    await until(lambda: 2 in world.held)
    assert len(world.opened) == 2


@scenario
async def test_waiting_for_a_thread_is_not_being_stuck_in_one(world: World, reconciler: Reconciler) -> None:
    world.gate = threading.Event()
    world.inodes = {str(number): number for number in range(10)}
    for uid in world.inodes:
        reconciler.pod_changed(pod(uid))
    await until(lambda: len(world.working) == 4)  # as many as there are threads
    records = reconciler.pods.values()
    assert all(record.busy for record in records)
    assert {str(inode) for inode in world.working} == {record.uid for record in records if record.working_since}
    world.gate.set()
    await until(lambda: all(world.outcomes(uid) == ["Captured"] for uid in world.inodes))
    assert not any(record.busy or record.working_since for record in records)


@scenario
async def test_one_turn_per_pod_and_pods_beside_each_other(world: World, reconciler: Reconciler) -> None:
    world.gate = threading.Event()
    world.inodes = {"a": 1, "b": 2, "c": 3}
    for uid in "abc":
        reconciler.pod_changed(pod(uid))
    await until(lambda: world.most_together == 3)
    for number in range(20):
        reconciler.pod_changed(pod("a", addresses=("10.0.0.1", f"10.0.1.{number}")))
    world.gate.set()
    await until(lambda: reconciler.pods["a"].own_addresses == ("10.0.0.1", "10.0.1.19"))
    assert world.most_at_once == {1: 1, 2: 1, 3: 1}


@scenario
async def test_a_failure_is_tried_again_and_told_once(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    world.failures[1] = [KernelRefused("busy", "no", 16) for _ in range(3)]
    reconciler.pod_changed(pod())
    await until(lambda: "Captured" in world.outcomes())
    assert world.outcomes() == ["Failed", "Captured"]
    assert reconciler.pods["a"].failures == 0


@scenario
async def test_a_bug_in_a_thread_stops_nobody(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1, "b": 2}
    world.failures[1] = [ZeroDivisionError("a bug")]
    reconciler.pod_changed(pod("a"))
    reconciler.pod_changed(pod("b"))
    await until(lambda: "Captured" in world.outcomes("a") and "Captured" in world.outcomes("b"))
    assert world.told[0][2] == "unexpected" or ("a", "Failed", "unexpected") in world.told


@scenario
async def test_a_refusal_lets_go_and_tries_again(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    world.refuse["a"] = Refusal.TWO_NAMESPACES
    reconciler.pod_changed(pod())
    await until(lambda: world.outcomes() == ["Refused"])
    del world.refuse["a"]
    await until(lambda: world.outcomes()[-1:] == ["Captured"])


@scenario
async def test_a_starting_pod_is_not_worth_a_word(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    world.refuse["a"] = Refusal.HOST_NAMESPACE
    reconciler.pod_changed(pod())
    await until(lambda: reconciler.pods["a"].failures > 10)
    assert world.told == []
    del world.refuse["a"]
    await until(lambda: world.outcomes() == ["Captured"])


@scenario
async def test_deleted_while_being_worked_on(world: World, reconciler: Reconciler) -> None:
    world.gate = threading.Event()
    world.inodes = {"a": 1}
    reconciler.pod_changed(pod())
    await until(lambda: world.working)
    del world.inodes["a"]
    reconciler.pod_gone("a")
    reconciler.sandbox_changed("a")
    assert world.opened[0].closed == 0  # a thread is working in it
    world.gate.set()
    await until(lambda: "a" not in reconciler.pods)
    assert world.opened[0].closed == 1
