"""The agent: wires pods, sandboxes, proof and backend together, and keeps them going until it is told to stop."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from cni_agent import __version__
from cni_agent.backends import Backend
from cni_agent.kernel import namespace_addresses
from cni_agent.kernel.failure import Failure
from cni_agent.kernel.netns import never_a_pods
from cni_agent.node import processes, status, upkeep
from cni_agent.node.health import Answer, Health, verdict
from cni_agent.node.metrics import Metrics
from cni_agent.node.outcome import Outcome
from cni_agent.node.owners import Owners
from cni_agent.node.podfolder import PodFolder
from cni_agent.node.preparing import Preparing
from cni_agent.node.proof import Prover
from cni_agent.node.reconcile import Reconciler
from cni_agent.node.sandboxes import Sandboxes, hierarchies
from cni_agent.node.settings import Settings, host_and_port
from cni_agent.node.single_file import SingleFile
from cni_agent.node.telling import Teller
from cni_agent.node.whereabouts import Whereabouts

_THREADS: Final = 4
_STUCK_SECONDS: Final = 60.0  # one pod's work takes a millisecond, its first a few hundred


logger = logging.getLogger(__name__)


class Agent:
    """One node's agent."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self._settings = settings
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._executor = SingleFile(self._loop, _THREADS)
        self._preparers = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._started = time.time()
        self._listed: Callable[[], bool] = lambda: False
        self._warmed = False
        self._watching = False
        self._metrics = Metrics(backend.name, lambda: self._reconciler.pods.values())
        self._teller = Teller(self._metrics)
        self._finder, how = processes.finder(settings.host_proc)
        logger.info("finding processes", extra={"how": how})
        roots = hierarchies(settings.cgroup_root, Path("/proc/self/mountinfo").read_text())
        self._sandboxes = Sandboxes(roots, self._sandbox_changed, self._metrics.overflows.inc)
        self._whereabouts = Whereabouts(settings.host_proc, self._sandboxes, self._finder)
        protected = never_a_pods(settings.host_proc)
        owners = Owners(settings.host_proc, protected, self._whereabouts, self._outside)
        self._preparing = Preparing(backend, self._preparers)
        self._reconciler = Reconciler(
            backend=backend,
            drift=settings.drift,
            whereabouts=self._whereabouts,
            prover=Prover(settings.host_proc, protected, owners.owner, namespace_addresses.addresses),
            owners=owners,
            preparing=self._preparing,
            executor=self._executor,
            told=self._teller.tell,
        )
        self._metrics.unwatched.set_function(lambda: len(self._sandboxes.unwatched))
        self._health = Health({"/metrics": self._page, "/healthz": self._healthy, "/readyz": self._ready})
        self._status = status.StatusServer(settings.socket, self._snapshot)

    async def run(self, stop: Future[None]) -> None:
        """Until `stop` is set. Pods are left as they are."""
        _raise_file_limit()
        self._sandboxes.look()
        self._watching = True
        self._loop.add_reader(self._sandboxes, self._sandboxes.read)
        await self._status.start()
        addresses = await self._health.start(*host_and_port(self._settings.metrics_address))
        logger.info(
            "watching", extra={"kubepods": sorted(self._sandboxes.kubepods), "metrics": addresses, "pid": os.getpid()}
        )
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(work) for work in self._work()]
            await asyncio.wrap_future(stop)
            for task in background:
                task.cancel()
        await self._close()

    def _work(self) -> Iterator[Coroutine[Any, Any, None]]:
        """All that goes on at once."""
        yield self._warm_up()
        yield self._pods()
        yield upkeep.safety_net(self._reconciler, self._whereabouts, self._metrics.scan_found.inc)
        if self._settings.drift != "off":
            legacy = self._backend.name == "iptables-legacy"
            yield upkeep.patrol(self._reconciler, upkeep.LEGACY_PERIOD if legacy else upkeep.ANNOUNCED_PERIOD)

    async def _close(self) -> None:
        logger.info("stopping; pods are left as they are")
        self._loop.remove_reader(self._sandboxes)
        self._sandboxes.close()
        await self._health.close()
        await self._status.close()
        for executor in (self._executor, self._preparers):
            executor.shutdown(wait=False, cancel_futures=True)
        await self._reconciler.close()

    async def _pods(self) -> None:
        """Where pods come from."""
        if self._settings.pods_from is not None:
            await self._pods_of_folder(self._settings.pods_from)
        else:
            assert self._settings.node_name is not None
            await self._pods_of_api(self._settings.node_name)

    async def _pods_of_folder(self, path: str) -> None:
        folder = PodFolder(path, self._reconciler.pod_changed, self._reconciler.pod_gone)
        folder.start(self._loop)
        self._listed = lambda: True
        try:
            await asyncio.Event().wait()
        finally:
            folder.close(self._loop)

    async def _pods_of_api(self, node: str) -> None:
        from cni_agent.apiserver import ApiServer, NoCluster, find_access  # aiohttp: 10 MB that a folder does not need
        from cni_agent.node import taint
        from cni_agent.node.events import Events
        from cni_agent.node.podwatch import PodWatch

        try:
            access = find_access(self._settings.kubeconfig)
        except NoCluster as error:
            raise Failure("no-cluster", str(error)) from None
        async with ApiServer(access, f"initless-cni-agent/{__version__}") as server:
            watch = PodWatch(
                server,
                node,
                changed=self._reconciler.pod_changed,
                gone=self._reconciler.pod_gone,
                ended=lambda end: self._metrics.watch_ends.labels(end).inc(),
            )
            self._listed = lambda: watch.listed
            self._metrics.watch_age.set_function(lambda: time.monotonic() - watch.heard)
            events = Events(
                server,
                node,
                successes=self._settings.success_events,
                counted=lambda result: self._metrics.events.labels(result).inc(),
            )
            self._teller.events = events.tell
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(watch.run())
                tasks.create_task(events.run())
                if key := self._settings.remove_taint:
                    tasks.create_task(taint.remove(server, node, key, lambda: not self._not_ready()))

    async def _warm_up(self) -> None:
        """Prepares the rules of pods without annotations, so that the first pod need not wait for programs to run."""

        await asyncio.gather(*map(asyncio.wrap_future, self._preparing.usual()))
        gc.freeze()  # what is there now stays: looking through all of it would hold pods up for tens of milliseconds
        self._warmed = True

    def _sandbox_changed(self, uid: str) -> None:
        # until the loop reads events, what the first look finds was there before us
        self._reconciler.sandbox_changed(uid, fresh=self._watching)

    def _outside(self) -> Iterable[str]:
        """Pods that have a namespace of their own and will not be captured."""
        for uid, record in self._reconciler.pods.items():
            if record.pod is None or (record.verdict.outcome == Outcome.NOT_IN_MESH and not record.pod.host_network):
                yield uid

    def _page(self) -> Answer:
        return Answer(verdict([]).status, self._metrics.text(), "text/plain; version=0.0.4; charset=utf-8")

    def _healthy(self) -> Answer:
        now = time.monotonic()
        stuck = [
            f"work on pod {record.uid} has not ended for {now - since:.0f} s"
            for record in self._reconciler.pods.values()
            if (since := record.working_since) is not None and now - since > _STUCK_SECONDS
        ]
        return verdict(stuck)

    def _ready(self) -> Answer:
        return verdict(self._not_ready())

    def _not_ready(self) -> list[str]:
        reasons = []
        if not self._listed():
            reasons.append("pods have not been listed yet")
        if not self._warmed:
            reasons.append("rules are being prepared")
        if self._finder.blind:
            reasons.append(
                "processes of pods cannot be seen: give the agent hostPID: true, or the node's /proc by --host-proc"
            )
        if not self._sandboxes.kubepods:
            reasons.append(f"no kubepods cgroup below {', '.join(self._sandboxes.hierarchies)}")
        return reasons

    def _snapshot(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "node": self._settings.node_name,
            "backend": self._backend.name,
            "drift": self._settings.drift,
            "started": self._started,
            "not_ready": self._not_ready(),
            "pods": status.pods(self._reconciler.pods.values()),
        }


def _raise_file_limit() -> None:
    """Two descriptors a pod; the usual soft limit of 1024 is below 500 pods, the hard one far above."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
