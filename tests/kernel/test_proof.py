"""Proof of namespaces, on real processes in real cgroups."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from cni_agent.backends import backend
from cni_agent.capture import Capture
from cni_agent.kernel import netns as netns_module
from cni_agent.kernel.netns import Identity, Netns
from cni_agent.node import processes, proof
from cni_agent.node.processes import FromCgroups, FromHostProc, Process
from cni_agent.node.proof import Prover, Refusal, Refused
from tests.kernel.rulesets import rules
from tests.kernel.sandbox import LIBC, Node, Sandbox, eventually, in_node

pytestmark = pytest.mark.kernel


def prover(owners: dict[Identity, str] | None = None, addresses: Collection[str] = ()) -> Prover:
    known = owners or {}
    host = netns_module.host_identity()
    return Prover("/proc", {host}, known.get, lambda _: addresses)


def pids(sandbox: Sandbox) -> list[int]:
    return FromCgroups().of_pod(sandbox.uid, [str(sandbox.container)])


def inodes(sandbox: Sandbox) -> set[int]:
    """Of the namespaces that its processes are in."""
    return {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in pids(sandbox)}


def refusal(check: Prover, sandbox: Sandbox, reported: Collection[str] = ()) -> Refusal:
    with pytest.raises(Refused) as refused:
        check.prove(sandbox.uid, pids(sandbox), reported).close()
    return refused.value.reason


@in_node
def test_a_pod_is_refused_until_it_has_left_the_hosts_namespace(cgroups: Node) -> None:
    sandbox = Sandbox(cgroups.kubepods)
    sandbox.make_pod()
    sandbox.make_container()
    assert refusal(prover(), sandbox) == Refusal.NO_PROCESS
    parent = sandbox.start(stay_in_host=True)
    eventually(lambda: pids(sandbox))
    assert refusal(prover(), sandbox) == Refusal.HOST_NAMESPACE
    sandbox.start()
    eventually(sandbox.in_namespace)
    with prover().prove(sandbox.uid, pids(sandbox)) as proven:  # the parent, or conmon, is still in the host's
        assert parent in pids(sandbox)
        assert proven.identity == sandbox.netns.identity
    sandbox.stop()


@in_node
def test_two_namespaces_need_the_pods_address_to_be_told_apart(cgroups: Node) -> None:
    sandbox, other = Sandbox(cgroups.kubepods), Sandbox(cgroups.kubepods, "10.9.0.2")
    sandbox.run()
    sandbox.start(other=other)
    eventually(lambda: inodes(sandbox) == {sandbox.netns.identity.inode, other.netns.identity.inode})
    assert refusal(prover(), sandbox) == Refusal.TWO_NAMESPACES
    held = {sandbox.netns.identity: ["10.9.0.1"], other.netns.identity: ["10.9.0.2"]}
    check = Prover("/proc", {netns_module.host_identity()}, lambda _: None, lambda found: held[found.identity])
    assert refusal(check, sandbox) == Refusal.TWO_NAMESPACES
    with check.prove(sandbox.uid, pids(sandbox), ["10.9.0.1"]) as proven:
        assert proven.identity == sandbox.netns.identity
    assert refusal(check, sandbox, ["10.9.0.9"]) == Refusal.TWO_NAMESPACES


@in_node
def test_a_namespace_that_another_pod_owns_is_refused(cgroups: Node) -> None:
    sandbox, other = Sandbox(cgroups.kubepods), Sandbox(cgroups.kubepods)
    sandbox.make_pod()
    sandbox.make_container()
    sandbox.start(other=other)
    eventually(lambda: pids(sandbox) and os.stat(f"/proc/{pids(sandbox)[0]}/ns/net").st_ino == other.netns.identity[1])
    assert refusal(prover({other.netns.identity: other.uid}), sandbox) == Refusal.OTHER_OWNER
    prover({other.netns.identity: sandbox.uid}).prove(sandbox.uid, pids(sandbox)).close()


@in_node
def test_reported_addresses_must_be_in_the_namespace(cgroups: Node) -> None:
    sandbox = Sandbox(cgroups.kubepods)
    sandbox.run()
    eventually(sandbox.in_namespace)
    check = prover(addresses=["127.0.0.1", "::ffff:10.9.0.1", "fd00::1"])
    assert refusal(check, sandbox, ["10.9.0.7"]) == Refusal.WRONG_ADDRESS
    for reported in (["10.9.0.1"], ["fd00::9", "fd00::1"], []):
        check.prove(sandbox.uid, pids(sandbox), reported).close()


@in_node
def test_a_process_of_another_pod_is_refused(cgroups: Node) -> None:
    sandbox, other = Sandbox(cgroups.kubepods), Sandbox(cgroups.kubepods)
    other.run()
    eventually(other.in_namespace)
    with pytest.raises(Refused) as refused:
        prover().prove(sandbox.uid, other.processes)
    assert refused.value.reason == Refusal.OTHER_CGROUP
    with pytest.raises(Refused) as refused:
        prover().prove(sandbox.uid, [1, os.getpid()])
    assert refused.value.reason == Refusal.OTHER_CGROUP


@in_node
def test_a_reused_pid_is_another_process(cgroups: Node) -> None:
    """The kernel is made to give the same pid again; what was opened before knows only the first process."""
    sandbox, other = Sandbox(cgroups.kubepods), Sandbox(cgroups.kubepods)
    sandbox.run()
    eventually(sandbox.in_namespace)
    pid = sandbox.processes[0]
    with Process("/proc", pid) as process:
        assert sandbox.uid in process.cgroup()
        sandbox.stop()
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        other.run()
        assert other.processes == [pid]
        with pytest.raises(ProcessLookupError):
            process.cgroup()
        with pytest.raises(ProcessLookupError):
            process.open_network()
    eventually(other.in_namespace)
    with pytest.raises(Refused) as refused:
        prover().prove(sandbox.uid, [pid])
    assert refused.value.reason == Refusal.OTHER_CGROUP


@in_node
def test_a_mounted_proc_finds_the_same_processes(cgroups: Node) -> None:
    sandboxes = [Sandbox(cgroups.kubepods, f"10.9.0.{number}") for number in range(1, 6)]
    finder = FromHostProc("/proc")
    assert finder.of_pod(sandboxes[0].uid, []) == []
    for sandbox in sandboxes:
        sandbox.run()
        eventually(lambda found=sandbox: finder.of_pod(found.uid, []) == found.processes)
    sandboxes[0].stop()
    eventually(lambda: finder.of_pod(sandboxes[0].uid, []) == [])


@in_node
def test_a_mounted_proc_shows_a_reused_pid_as_new(cgroups: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose number belonged to a settled process is read, and one that had it before is not taken for the pod's."""
    monkeypatch.setattr(processes, "_UNSETTLED_SECONDS", 0.01)
    stranger = subprocess.Popen(["sleep", "60"])
    finder, sandbox, other = FromHostProc("/proc"), Sandbox(cgroups.kubepods), Sandbox(cgroups.kubepods)
    assert finder.of_pod(sandbox.uid, []) == []
    stranger.kill()
    stranger.wait()
    for pod, pid in ((sandbox, stranger.pid), (other, stranger.pid)):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        pod.run()
        eventually(pod.in_namespace)
        assert pod.processes == [pid]
        time.sleep(0.02)  # what was seen before has settled
        assert finder.of_pod(pod.uid, []) == [pid]
        pod.stop()
    assert finder.of_pod(sandbox.uid, []) == []


@in_node
def test_one_process_is_enough_for_a_namespace_that_is_held(cgroups: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    class Counted(Process):
        def __init__(self, proc: str, pid: int) -> None:
            opened.append(pid)
            super().__init__(proc, pid)

    monkeypatch.setattr(proof, "Process", Counted)
    sandbox, other = Sandbox(cgroups.kubepods), Sandbox(cgroups.kubepods)
    sandbox.run()
    other.run()
    eventually(sandbox.in_namespace)
    held = sandbox.netns.identity
    for _ in range(3):
        sandbox.start()
    eventually(lambda: len(pids(sandbox)) == 4)
    assert prover().inhabited(sandbox.uid, [sandbox.processes[0], *pids(sandbox)], held)
    assert len(opened) == 1
    wanderer = other.start(other=sandbox)
    eventually(lambda: len(pids(other)) == 2)
    assert not prover().inhabited(sandbox.uid, [wanderer, *pids(other), 999_999], held)
    sandbox.stop()
    assert not prover().inhabited(sandbox.uid, sandbox.processes, held)


@in_node
def test_no_descriptor_is_left_open(cgroups: Node) -> None:
    sandbox, other = Sandbox(cgroups.kubepods), Sandbox(cgroups.kubepods)
    sandbox.run()
    other.run()
    sandbox.start(other=other)
    sandbox.start(stay_in_host=True)
    eventually(lambda: len(inodes(sandbox)) == 3 and inodes(other) == {other.netns.identity.inode})
    before = len(list(Path("/proc/self/fd").iterdir()))
    for check in (prover(), prover({sandbox.netns.identity: "x"}), prover(addresses=["10.9.0.1"])):
        for reported in ([], ["10.9.0.1"]):
            for offered in (pids(sandbox), pids(other), [*pids(sandbox), 999_999], []):
                with pytest.raises(Refused):
                    check.prove(sandbox.uid, [*offered, 1], reported)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


class Chaos:
    """Pods that start, lie, move, die and hand on their pids, one random step at a time; it knows the truth."""

    def __init__(self, cgroups: Node, seed: int) -> None:
        self.random = random.Random(seed)
        self.pods = [Sandbox(cgroups.kubepods, f"10.9.0.{number}") for number in range(1, 5)]
        for pod in self.pods:
            pod.make_pod()
            pod.make_container()
        # names that look like a pod's and are none, or another's
        self.misleading = [
            cgroups.root / f"pod{self.pods[0].uid}" / self.pods[1].container.name,
            cgroups.kubepods / f"tripod{self.pods[1].uid}" / self.pods[1].container.name,
            self.pods[2].container / f"pod{self.pods[3].uid}" / "x",
        ]
        for directory in self.misleading:
            directory.mkdir(parents=True)
        self.alive: dict[int, int] = {}  # pid to the end of a pipe that steers it

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.08 or not self.alive:
            self.born()
        elif choice < 0.93:
            os.write(
                self.alive[self.random.choice(list(self.alive))], self.random.choice(b"ccnnhmo").to_bytes(1, "big")
            )
        else:
            self.dies(self.random.choice(list(self.alive)))

    def born(self) -> None:
        if len(self.alive) > 12:
            self.dies(next(iter(self.alive)))
        if self.random.random() < 0.7:  # reuse a low pid again and again
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(self.random.randrange(300, 310)))
        read, write = os.pipe()
        pod = self.random.choice(self.pods)
        pid = os.fork()
        if pid == 0:
            os.close(write)
            self.live(pod, read, random.Random(self.random.random()))
        os.close(read)
        self.alive[pid] = write

    def live(self, pod: Sandbox, read: int, choices: random.Random) -> None:
        """Each byte is a move: to its own cgroup, its own, any pod's or the host's namespace, a misleading cgroup."""
        host = os.open("/proc/1/ns/net", os.O_RDONLY)
        while move := os.read(read, 1):
            try:
                if move == b"c":
                    (pod.container / "cgroup.procs").write_text("0")
                elif move == b"n":
                    LIBC.setns(pod.netns.fd, netns_module.CLONE_NEWNET)
                elif move == b"o":
                    LIBC.setns(choices.choice(self.pods).netns.fd, netns_module.CLONE_NEWNET)
                elif move == b"h":
                    LIBC.setns(host, netns_module.CLONE_NEWNET)
                else:
                    # a liar is never in a pod's namespace: a misleading name must not make it somebody's
                    LIBC.setns(host, netns_module.CLONE_NEWNET)
                    (choices.choice(self.misleading) / "cgroup.procs").write_text("0")
            except OSError:
                pass
        os._exit(0)

    def dies(self, pid: int) -> None:
        os.close(self.alive.pop(pid))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@in_node
def test_ten_thousand_interleavings_never_prove_the_host_or_a_stranger(cgroups: Node) -> None:
    """A random step happens before each single look that the proof takes, so that it happens in between, too."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    print(f"SEED={seed}")
    chaos = Chaos(cgroups, seed)
    *meshed, outside = chaos.pods
    kernel = backend("iptables-nft")
    ports = {pod.uid: 4000 + number for number, pod in enumerate(meshed)}  # each pod's rules are told by one
    rulesets = {
        uid: kernel.ruleset(Capture(include_outbound_cidrs="*", exclude_outbound_ports=(port,)))
        for uid, port in ports.items()
    }
    before = rules()
    truth = {pod.uid: pod.netns.identity for pod in chaos.pods}
    host = netns_module.host_identity()
    ordinary = {name: getattr(Process, name) for name in ("cgroup", "network", "open_network")}

    def disturbed(name: str) -> object:
        def look(process: Process) -> object:
            if chaos.random.random() < 0.3:
                chaos.step()
            return ordinary[name](process)

        return look

    for name in ordinary:
        setattr(Process, name, disturbed(name))
    proven = 0
    refused: dict[Refusal, int] = {}
    check = Prover("/proc", {host}, {identity: uid for uid, identity in truth.items()}.get, lambda _: [])
    tries = 10_000 if "pids" in cgroups.root.parts else 1_000  # moving between cgroups is slower in v2
    for _ in range(tries):
        chaos.step()
        pod = chaos.random.choice(meshed)
        offered = pids(pod) if chaos.random.random() < 0.5 else list(chaos.alive)
        try:
            with check.prove(pod.uid, offered) as found:
                assert found.identity == truth[pod.uid] != host, f"SEED={seed}"
                kernel.apply(found, rulesets[pod.uid])
                proven += 1
        except Refused as refusal:
            refused[refusal.reason] = refused.get(refusal.reason, 0) + 1
    print(proven, refused)
    # the test is worth something only if both happened, for many reasons
    assert proven > tries // 50, (proven, refused)
    rare = {Refusal.PROCESS_CHANGED} if tries == 10_000 else set()
    assert refused.keys() >= {Refusal.HOST_NAMESPACE, Refusal.OTHER_CGROUP, Refusal.OTHER_OWNER} | rare, refused
    for pid in list(chaos.alive):
        chaos.dies(pid)
    assert rules() == before
    assert rules(outside.netns) == ""
    for pod in meshed:
        assert [port for port in ports.values() if str(port) in rules(pod.netns)] == [ports[pod.uid]]


@in_node
def test_the_nodes_own_namespace_cannot_be_held() -> None:
    """The last line of defence, below all proofs: the type that every backend takes refuses it."""
    for path in ("/proc/self/ns/net", "/proc/1/ns/net"):
        for known in (None, netns_module.never_a_pods()):
            with pytest.raises(netns_module.NetnsRefused):
                Netns(os.open(path, os.O_RDONLY), "own", known)
