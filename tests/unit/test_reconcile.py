"""Turns of pods, with a kernel that can be told to be slow, to refuse or to fail."""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from cni_agent.backends import Backend
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.failure import Failure, KernelRefused
from cni_agent.kernel.netns import Identity
from cni_agent.node import patience, programming
from cni_agent.node.drift import Mode
from cni_agent.node.nodepod import NodePod
from cni_agent.node.outcome import Outcome, Verdict
from cni_agent.node.owners import Owners
from cni_agent.node.preparing import Preparing
from cni_agent.node.proof import Prover, Refusal, Refused
from cni_agent.node.reconcile import Reconciler
from cni_agent.node.whereabouts import Whereabouts
from cni_agent.podview import ContainerStatus, PodView, Proxy

STATUS = {"sidecar.istio.io/status": ""}


def pod(uid: str = "a", **changes: Any) -> PodView:
    values: dict[str, Any] = {
        "annotations": STATUS,
        "proxy": Proxy(),
        "init_containers": ("istio-validation",),
        **changes,
    }
    return PodView(name=f"pod-{uid}", namespace="shop", uid=uid, **values)


class FakeNetns:
    def __init__(self, inode: int) -> None:
        self.identity, self.name, self.closed = Identity(4, inode), f"net:[{inode}]", 0

    def close(self) -> None:
        self.closed += 1


@contextmanager
def entered(netns: FakeNetns, notices: None) -> Iterator[FakeNetns]:
    """Stands for `Inside`."""
    yield netns


class World:
    """Everything around a reconciler. It is the backend, the prover, the whereabouts and the listener at once."""

    name = "iptables-legacy"  # which announces no changes

    def __init__(self) -> None:
        self.inodes: dict[str, int] = {}  # by uid: pods that have a sandbox
        self.refuse: dict[str, Refusal] = {}
        self.beside: dict[str, list[int]] = {}  # by uid: namespaces that a refusal says its processes are in
        self.failures: dict[int, list[Exception]] = {}  # by inode: what the next applications end with
        self.company = False  # whether pods have containers beside their sandbox
        self.living: set[str] = set()  # ids of containers that have a cgroup
        self.held: dict[int, Any] = {}
        self.ready = False  # whether rules can be written without a program
        self.addresses_of: dict[int, list[str]] = {}
        self.opened: list[FakeNetns] = []
        self.gate: threading.Event | None = None
        self.working: list[int] = []
        self.most_at_once: dict[int, int] = {}
        self.most_together = 0
        self.told: list[tuple[str, str, str]] = []
        self.lock = threading.Lock()

    # backend
    def is_ready(self, ruleset: Any) -> bool:
        return self.ready

    def ruleset(self, capture: Any) -> Any:
        return capture

    def apply(self, where: Any, ruleset: Any) -> str:
        inode = where.identity.inode
        with self.lock:
            self.working.append(inode)
            self.most_at_once[inode] = max(self.most_at_once.get(inode, 0), self.working.count(inode))
            self.most_together = max(self.most_together, len(self.working))
        try:
            if self.gate is not None:
                assert self.gate.wait(10)
            if self.failures.get(inode):
                raise self.failures[inode].pop(0)
            before, self.held[inode] = self.held.get(inode), ruleset
            return "applied" if before is None else "unchanged" if before == ruleset else "replaced"
        finally:
            with self.lock:
                self.working.remove(inode)

    def check(self, where: Any, ruleset: Any) -> tuple[Difference, ...]:
        return () if self.held.get(where.identity.inode) == ruleset else (Difference("missing", "nat", "rules"),)

    def holds(self, where: Any) -> bool:
        return where.identity.inode in self.held

    # whereabouts, and the sandboxes behind them
    @property
    def sandboxes(self) -> "World":
        return self

    def attend(self, uid: str) -> None:
        pass

    def neglect(self, uid: str) -> None:
        pass

    def present(self, uid: str) -> bool:
        return uid in self.inodes

    def alone(self, uid: str) -> bool:
        return not self.company

    def lives(self, uid: str, container_id: str) -> bool:
        return uid in self.inodes and container_id in self.living

    def pids(self, uid: str) -> list[int]:
        return [self.inodes[uid]] if uid in self.inodes else []

    # prover
    def prove(self, uid: str, pids: Collection[int], reported: Collection[str] = ()) -> FakeNetns:
        if uid in self.refuse:
            refused = Refused(self.refuse[uid], "told to")
            refused.seen = frozenset(Identity(4, inode) for inode in self.beside.get(uid, ()))
            raise refused
        if not pids:
            raise Refused(Refusal.NO_PROCESS, "none")
        netns = FakeNetns(next(iter(pids)))
        self.check_address(netns, reported, self.addresses(netns))
        self.opened.append(netns)
        return netns

    def inhabited(self, uid: str, pids: Collection[int], namespace: Identity) -> bool:
        seen = self.beside.get(uid, ()) if uid in self.refuse else pids
        return namespace.inode in seen

    def addresses(self, where: Any) -> list[str]:
        return self.addresses_of.get(where.identity.inode, ["10.0.0.1"])

    def check_address(self, netns: Any, reported: Collection[str], held: Collection[str]) -> None:
        Prover.check_address(cast(Prover, self), netns, reported, held)

    def tell(self, record: NodePod, verdict: Verdict) -> None:
        self.told.append((record.uid, str(verdict.outcome), verdict.reason))

    def outcomes(self, uid: str = "a") -> list[str]:
        return [outcome for told, outcome, _ in self.told if told == uid]


class Nothing:
    """Preparing that prepares nothing."""

    ipv6 = False

    def pod(self, pod: PodView) -> None:
        pass


Test = Callable[[World, Reconciler], Awaitable[None]]


def scenario(test: Test, drift: Mode = "off") -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            world = World()
            with ThreadPoolExecutor(4) as executor, pytest.MonkeyPatch.context() as patched:
                patched.setattr(programming, "Inside", entered)
                owners = Owners("/nonexistent", (), cast(Whereabouts, world), list)
                reconciler = Reconciler(
                    backend=cast(Backend, world),
                    drift=drift,
                    whereabouts=cast(Whereabouts, world),
                    prover=cast(Prover, world),
                    owners=owners,
                    preparing=cast(Preparing, Nothing()),
                    executor=executor,
                    told=world.tell,
                )
                try:
                    await test(world, reconciler)
                finally:
                    if world.gate:
                        world.gate.set()
                    await reconciler.close()
            assert all(netns.closed == 1 for netns in world.opened)  # none left open, none closed twice

        asyncio.run(main())

    return run


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


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


@scenario
async def test_a_starting_pod_is_programmed_on_the_spot(world: World, reconciler: Reconciler) -> None:
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
    nobody = [patience.wait(Refused(Refusal.NO_PROCESS, ""), count) for count in range(1, 200)]
    assert nobody[3:11] == looks[3:11], "the process comes next"
    assert nobody[12] > 10 * looks[12], "inotify tells of it"
    assert nobody[-1] == max(nobody) == 10
