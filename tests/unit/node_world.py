"""A node that exists only in memory, around a real reconciler."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import pytest

from cni_agent.backends import Backend
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.netns import Identity
from cni_agent.node import programming
from cni_agent.node.drift import Mode
from cni_agent.node.nodepod import NodePod
from cni_agent.node.outcome import Verdict
from cni_agent.node.owners import Owners
from cni_agent.node.preparing import Preparing
from cni_agent.node.proof import Prover, Refusal, Refused
from cni_agent.node.reconcile import Reconciler
from cni_agent.node.whereabouts import Whereabouts
from cni_agent.podview import PodView, Proxy

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


def scenario(test: Test, drift: Mode = "off", *, at_once: bool = True) -> Callable[[], None]:
    """Runs a test. `at_once`: verdicts are told when they are made, so that it can be seen when there is none."""

    def run() -> None:
        async def main() -> None:
            world = World()
            with ThreadPoolExecutor(4) as executor, pytest.MonkeyPatch.context() as patched:
                patched.setattr(programming, "Inside", entered)
                if at_once:
                    patched.setattr(Reconciler, "_tell", lambda _, record, verdict: world.tell(record, verdict))
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
