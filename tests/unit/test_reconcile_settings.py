"""What a pod is captured with: as it was made, with the families that it has; and rules from before the agent."""

import pytest

from cni_agent.node.drift import Mode
from cni_agent.node.outcome import Outcome
from cni_agent.node.reconcile import Reconciler
from cni_agent.podview import ContainerStatus, Proxy
from tests.unit.node_world import STATUS, World, pod, scenario, until


@scenario
async def test_ipv6_is_decided_by_the_addresses_inside(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1, "b": 2, "c": 3, "d": 4}
    world.addresses_of = {1: ["127.0.0.1", "fd00::1"], 2: ["10.0.0.1", "fd00::2"], 3: ["127.0.0.1"], 4: []}
    for uid in "abcd":
        reconciler.pod_changed(pod(uid))
    await until(lambda: {1, 2} <= world.held.keys())
    assert (world.held[1].ipv6, world.held[2].ipv6) == (True, False)
    assert not {3, 4} & world.held.keys()  # no address yet: their network is still being set up
    world.addresses_of |= {3: ["10.0.0.3"], 4: ["10.0.0.4"]}
    await until(lambda: {3, 4} <= world.held.keys())


@scenario
async def test_ipv6_that_comes_a_moment_later_is_captured_too(world: World, reconciler: Reconciler) -> None:
    world.inodes, world.addresses_of = {"a": 1}, {1: ["10.0.0.1"]}
    dual = Proxy(environment={"ISTIO_DUAL_STACK": "true"})
    reconciler.pod_changed(pod(proxy=dual))
    await until(lambda: world.outcomes() == ["Captured"])
    assert world.held[1].ipv6 is False
    world.addresses_of[1].append("fd00::1")
    reconciler.pod_changed(pod(proxy=dual, addresses=("10.0.0.1", "fd00::1")))
    await until(lambda: world.outcomes() == ["Captured", "Updated"])
    assert world.held[1].ipv6 is True
    world.addresses_of[1].pop()
    reconciler.pod_changed(pod(proxy=dual, addresses=("10.0.0.1",)))
    await until(lambda: reconciler.pods["a"].own_addresses == ("10.0.0.1",))
    assert world.held[1].ipv6 is True  # for good: an address that went may come again


@scenario
async def test_addresses_reported_later_are_compared(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    reconciler.pod_changed(pod())
    await until(lambda: world.outcomes() == ["Captured"])
    reconciler.pod_changed(pod(addresses=("10.0.0.1",)))
    await until(lambda: reconciler.pods["a"].own_addresses == ("10.0.0.1",))
    assert world.outcomes() == ["Captured"]
    reconciler.pod_changed(pod(addresses=("10.0.0.99",)))
    await until(lambda: world.outcomes()[-1] == "Refused")
    assert world.told[-1][2] == "wrong-address"


@scenario
async def test_an_agent_that_comes_after_the_sandbox_and_before_its_address(
    world: World, reconciler: Reconciler
) -> None:
    """A node that restarts: none of the containers that the API tells of is there any more."""
    world.inodes, world.addresses_of = {"a": 1}, {1: ["10.0.0.2"]}
    old = ContainerStatus("app", "a1", running=True)
    reconciler.pod_changed(pod(addresses=("10.0.0.1",), statuses=(old,), phase="Running"))
    await until(lambda: world.outcomes() == ["Captured"])


@scenario
async def test_late_is_who_ran_before_it_was_captured(world: World, reconciler: Reconciler) -> None:
    """Whether or not the agent saw its sandbox start: what it was told of the pod may have come late."""
    world.inodes = {"a": 1, "b": 2, "c": 3, "d": 4}
    world.living = {"c1", "d1"}
    for uid in "abcd":
        reconciler.sandbox_changed(uid, fresh=uid != "a")
    reconciler.pod_changed(pod("a", phase="Running", started="2026-01-01T00:00:00Z"))
    reconciler.pod_changed(pod("b", phase="Running"))
    application = ContainerStatus("app", "c1", running=True, started="2026-01-02T00:00:00Z")
    reconciler.pod_changed(pod("c", phase="Pending", statuses=(application,)))
    reconciler.pod_changed(pod("d", phase="Pending", statuses=(ContainerStatus("istio-proxy", "d1", running=True),)))
    await until(lambda: len(world.told) == 4)
    assert {uid: world.outcomes(uid)[-1] for uid in "abcd"} == {
        **dict.fromkeys("abc", "CapturedLate"),
        "d": "Captured",
    }
    assert reconciler.pods["c"].verdict.sentence.endswith("since 2026-01-02T00:00:00Z")


CHANGES = {
    "TPROXY": {**STATUS, "sidecar.istio.io/interceptionMode": "TPROXY"},
    "NONE": {**STATUS, "sidecar.istio.io/interceptionMode": "NONE"},
    "out of the mesh": {**STATUS, "sidecar.istio.io/inject": "false"},
    "never injected": {},
    "nothing captured": {**STATUS, "traffic.sidecar.istio.io/excludeOutboundIPRanges": "0.0.0.0/0"},
    "not allowed": {**STATUS, "traffic.sidecar.istio.io/includeInboundPorts": "http"},
    "unknown capture point": {**STATUS, "initless.io/capture": "never"},
}


FLAGS = ("istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*")


VALIDATION = (*FLAGS, "-d", "15090,15021,15020", "--log_output_level=info", "--run-validation", "--skip-rule-apply")


@pytest.mark.parametrize("change", CHANGES)
def test_a_captured_pod_stays_as_it_was_made(change: str) -> None:
    @scenario
    async def test(world: World, reconciler: Reconciler) -> None:
        world.inodes = {"a": 1}
        reconciler.pod_changed(pod())
        await until(lambda: world.outcomes() == ["Captured"])
        before = world.held[1]
        for _ in range(3):
            reconciler.pod_changed(pod(annotations=CHANGES[change]))
            reconciler.wake("a", compare=True)
            await until(lambda: not reconciler.pods["a"].busy)
        assert world.held[1] == before
        assert reconciler.pods["a"].verdict.outcome == Outcome.CAPTURED
        assert reconciler.pods["a"].netns is not None
        if change == "unknown capture point":  # for its next sandbox
            return
        assert world.outcomes() == ["Captured", "ChangeIgnored"]
        world.inodes = {"a": 2}  # nor with its next sandbox
        reconciler.sandbox_changed("a")
        await until(lambda: world.held.get(2) == before)
        reconciler.pod_changed(pod())
        assert reconciler.pods["a"].ignored == ""

    test()


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "unknown capture point"])
def test_a_new_agent_captures_a_pod_as_it_was_made(change: str) -> None:
    """Its istio-validation tells how: nobody can change that."""

    @scenario
    async def test(world: World, reconciler: Reconciler) -> None:
        world.inodes = {"a": 1, "b": 2}
        reconciler.pod_changed(pod("a", validation=VALIDATION))
        reconciler.pod_changed(pod("b", validation=VALIDATION, annotations=CHANGES[change], inject_label="false"))
        await until(lambda: world.outcomes("a") and len(world.outcomes("b")) == 2)
        assert world.outcomes("b") == ["Captured", "ChangeIgnored"]
        assert world.outcomes("a") == ["Captured"]
        assert world.held[1] == world.held[2]

    test()


@scenario
async def test_a_pod_without_validation_is_told_of_beside(world: World, reconciler: Reconciler) -> None:
    world.inodes = {"a": 1}
    reconciler.pod_changed(pod("a", init_containers=()))
    await until(lambda: world.outcomes() == ["Captured", "ValidationMissing"])


def test_rules_from_before_the_agent_are_renewed_without_alarm() -> None:
    """Another version of the agent wrote them, most likely."""

    async def test(world: World, reconciler: Reconciler) -> None:
        world.inodes, world.held = {"a": 1}, {1: "rules of another version"}
        reconciler.pod_changed(pod(phase="Running"))
        await until(lambda: world.told == [("a", "Updated", "renewed")])
        assert reconciler.pods["a"].drifts == 0

    scenario(test, "repair")()


@pytest.mark.parametrize("drift", ["report", "off"])
def test_rules_from_before_the_agent_are_only_told_of_when_told_so(drift: Mode) -> None:
    async def test(world: World, reconciler: Reconciler) -> None:
        world.inodes, world.held = {"a": 1, "b": 2}, {1: "other rules"}
        for uid in "ab":
            reconciler.pod_changed(pod(uid, phase="Running"))
        await until(lambda: len(world.told) == 2)
        assert set(world.told) == {("a", "Drifted", "reported"), ("b", "CapturedLate", "late")}
        assert world.held[1] == "other rules"

    scenario(test, drift)()
