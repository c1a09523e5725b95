"""How long the agent waits before it tries again."""

import asyncio
import itertools

import pytest

from cni_agent.kernel.failure import Failure
from cni_agent.node import patience
from cni_agent.node.proof import Refusal, Refused
from cni_agent.node.reconcile import Reconciler
from tests.unit.node_world import World, pod, scenario, until


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_two_agents_that_want_different_rules_do_not_race(seconds: float) -> None:
    """But who only flushes now and then never waits for the repair."""

    async def test(world: World, reconciler: Reconciler) -> None:
        world.inodes = {"a": 1}
        reconciler.pod_changed(pod())
        await until(lambda: world.outcomes() == ["Captured"])
        record = reconciler.pods["a"]
        for number in range(1, 9):
            world.held[1] = "theirs"
            record.repaired -= seconds
            reconciler._rules_changed("a")
            reconciler.wake("a", compare=True)
            await until(lambda count=number: record.drifts == count)
        assert record.repairs == (8 if seconds == 0 else 1)
        reconciler._rules_changed("a")
        assert record.timer is not None
        patient = record.timer.when() - asyncio.get_running_loop().time() > 2 * patience.between_repairs(1)
        assert patient == (seconds == 0)

    scenario(test, "repair")()


def test_waits_between_repairs_grow_and_end() -> None:
    waits = [patience.between_repairs(count) for count in range(100)]
    assert waits[0] == waits[5] < waits[6] and waits == sorted(waits)
    assert waits[-1] == 5


@pytest.mark.parametrize("why", [Refusal.NO_PROCESS, Refusal.HOST_NAMESPACE])
def test_a_start_that_does_not_end_is_told_in_time(monkeypatch: pytest.MonkeyPatch, why: Refusal) -> None:
    """However seldom it is looked at, and whatever containers come and go meanwhile."""
    monkeypatch.setattr(patience, "_STARTS", 0.3)

    @scenario
    async def test(world: World, reconciler: Reconciler) -> None:
        world.inodes, world.refuse = {"a": 1}, {"a": why}
        reconciler.pod_changed(pod())
        async with asyncio.timeout(20):
            while not world.told:
                await asyncio.sleep(0.05)
                reconciler.sandbox_changed("a")
        assert world.told == [("a", "Refused", why)]

    test()


def test_waits_grow_and_end() -> None:
    starting, broken = Refused(Refusal.HOST_NAMESPACE, ""), Failure("x", "")
    looks = [patience.wait(starting, count) for count in range(1, 200)]
    assert looks[:3] == [0, 0, 0], "most are through within a moment"
    assert looks[3] < 0.001
    assert all(later <= sooner * 1.26 for sooner, later in itertools.pairwise(looks[3:]))
    assert looks[-1] == max(looks) == 10
    retries = [patience.wait(broken, count) for count in range(1, 200)]
    assert max(retries) <= 36 and retries[0] < 0.1
    assert patience.is_starting(starting) and not patience.is_starting(broken)
    assert patience.wait(Refused(Refusal.NO_PROCESS, ""), 10) > 10 * looks[9] / 2  # inotify tells of those
