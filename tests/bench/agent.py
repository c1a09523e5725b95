"""`scripts/bench agent`: the node agent on a node of real cgroups, namespaces and processes.

Times end when a pod's rules are read back, and stand beside a floor in the same run, which only sends them.
Absolute values depend on the machine; ratios carry over.
"""

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cni_agent.backends import backend
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.probe import DEFAULT
from tests.kernel.api import Api
from tests.kernel.running_agent import ROOT, RunningAgent
from tests.kernel.sandbox import Node, Sandbox, eventually, node, run_in_node, write_manifest

ROUNDS = 3
PAUSE = 0.2  # seconds: on a node, a pod starts now and then, when nothing of the last one is in any cache
PEERS = "peers ask the scheduler for 75 to 100 MiB (istio-cni, kuma-cni, consul-cni)"


def percentiles(milliseconds: list[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    return {
        "p50": round(statistics.median(ordered), 2),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
        "n": len(ordered),
    }


class Floor:
    """The floor, as a process in the agent's place."""

    def __init__(self, cgroups: Node) -> None:
        command = [sys.executable, "-m", "tests.bench.agent_floor", str(cgroups.root)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def expect(self, sandbox: Sandbox) -> None:
        """It knows no pods."""

    def done(self, uids: list[str]) -> dict[str, float]:
        """When each pod's rules were sent."""
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline().split() for _ in uids]
        return {uid: float(when) for uid, when in lines}

    def forget(self, sandbox: Sandbox) -> None:
        """It knows no pods."""

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Capturing:
    """The agent, asked what the floor is asked."""

    def __init__(self, cgroups: Node, folder: Path) -> None:
        self._agent = RunningAgent(cgroups, folder)
        self._agent.start()

    def expect(self, sandbox: Sandbox) -> None:
        """The API tells of a pod some hundred milliseconds before its sandbox starts."""
        write_manifest(self._agent.pods, sandbox.manifest())
        eventually(lambda: sandbox.uid in self._agent.snapshot())

    def done(self, uids: list[str]) -> dict[str, float]:
        """When each pod's rules were read back."""
        return agent_done(self._agent, uids)

    def forget(self, sandbox: Sandbox) -> None:
        """And the API tells when it is deleted."""
        (self._agent.pods / f"{sandbox.uid}.json").unlink()

    def stop(self) -> None:
        self._agent.stop()


def agent_done(agent: RunningAgent, uids: list[str]) -> dict[str, float]:
    """When each pod was captured; waits until all are, and does not keep the agent busy with questions meanwhile."""
    time.sleep(0.1 + len(uids) / 50)
    snapshot: dict[str, dict[str, Any]] = {}

    def all_captured() -> bool:
        nonlocal snapshot
        snapshot = agent.snapshot()
        return all(snapshot[uid]["state"] == "Captured" for uid in uids)

    eventually(all_captured, 60)
    return {uid: snapshot[uid]["since"] for uid in uids}


def pods(cgroups: Node, count: int) -> list[Sandbox]:
    made = [Sandbox(cgroups.kubepods, f"10.9.{number // 250}.{number % 250 + 1}") for number in range(count)]
    for sandbox in made:
        sandbox.make_pod()
    return made


def one_at_a_time(cgroups: Node, count: int, who: Floor | Capturing) -> list[float]:
    """Each pod a while after the one before is done: from its process being in the pod's namespace."""
    took = []
    for sandbox in pods(cgroups, count):
        time.sleep(PAUSE)
        read, write = os.pipe()
        arrived, report = os.pipe()
        who.expect(sandbox)
        sandbox.start(gate=read, report=report)
        time.sleep(0.02)
        sandbox.make_container()
        os.write(write, b"x")
        (started,) = struct.unpack("d", os.read(arrived, 8))
        took.append((who.done([sandbox.uid])[sandbox.uid] - started) * 1000)
        for descriptor in (read, write, arrived, report):
            os.close(descriptor)
        who.forget(sandbox)
        sandbox.stop()
    return took


def burst(cgroups: Node, count: int, who: Floor | Capturing) -> list[float]:
    """All processes are told to enter their cgroups at the same instant, from which the time counts."""
    read, write = os.pipe()
    made = pods(cgroups, count)
    for sandbox in made:
        who.expect(sandbox)
        sandbox.make_container()
        sandbox.start(gate=read)
    time.sleep(1.0)
    started = time.time()
    os.write(write, b"x" * count)
    finished = who.done([sandbox.uid for sandbox in made])
    os.close(read)
    os.close(write)
    for sandbox in made:
        who.forget(sandbox)
        sandbox.stop()
    return [(when - started) * 1000 for when in finished.values()]


def latency(cgroups: Node, folder: Path, count: int) -> dict[str, Any]:
    """Floor and agent take turns, so that whatever else the machine does hits both.

    Somewhere on a node there are always rules (kube-proxy's, for one). The kernel rewrites its own code when the first
    come and the last go, which takes as long as all the rest and would hit the one or the other.
    """
    took: dict[str, list[float]] = {}
    rules = backend("iptables-nft")
    with Netns.scratch() as elsewhere:
        rules.apply(elsewhere, rules.ruleset(DEFAULT))
        for _ in range(ROUNDS):
            for name, begin in (("floor", lambda: Floor(cgroups)), ("agent", lambda: Capturing(cgroups, folder))):
                who: Floor | Capturing = begin()
                took.setdefault(f"one at a time, {name}", []).extend(one_at_a_time(cgroups, -(-count // ROUNDS), who))
                took.setdefault(f"burst, {name}", []).extend(burst(cgroups, count, who))
                who.stop()
    result: dict[str, Any] = {name: percentiles(milliseconds) for name, milliseconds in took.items()}
    for kind in ("one at a time", "burst"):
        result[f"{kind}, ratio"] = {
            key: round(result[f"{kind}, agent"][key] / result[f"{kind}, floor"][key], 2) for key in ("p50", "p99")
        }
    return result


def resident(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def processor(pid: int) -> float:
    """Seconds used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(cgroups: Node, folder: Path, count: int, idle: float, churn: int) -> dict[str, Any]:
    """What many pods cost, and whether those that are gone cost anything. Pods come from an API server."""
    result: dict[str, Any] = {}
    api = Api(folder)
    with api.agent(cgroups) as agent:
        assert agent.process is not None
        pid = agent.process.pid
        result["MiB, no pods"] = resident(pid)
        made = pods(cgroups, count)
        for sandbox in made:
            api.put(sandbox.manifest())
            sandbox.make_container()
            sandbox.start()
        agent_done(agent, [sandbox.uid for sandbox in made])
        result[f"MiB, {count} pods"] = resident(pid)
        result[f"descriptors, {count} pods"] = descriptors(pid)
        before = processor(pid)
        time.sleep(idle)
        result["idle CPU, % of a core"] = round((processor(pid) - before) / idle * 100, 3)
        for sandbox in made:
            api.delete(sandbox.uid)
            sandbox.stop()
        eventually(lambda: not agent.snapshot(), 60)
        result["churn"] = churned(cgroups, agent, api, pid, churn)
    return result


def churned(cgroups: Node, agent: RunningAgent, api: Api, pid: int, churn: int) -> dict[str, Any]:
    marks = {}
    for number in range(1, churn + 1):
        sandbox = Sandbox(cgroups.kubepods, "10.9.0.1")
        api.put(sandbox.manifest())
        sandbox.run()
        eventually(lambda found=sandbox: agent.state(found.uid) == "Captured")
        api.delete(sandbox.uid)
        sandbox.stop()
        if number in (churn // 10, churn // 2, churn):
            eventually(lambda: not agent.snapshot())
            marks[f"MiB after {number}"] = resident(pid)
            marks[f"descriptors after {number}"] = descriptors(pid)
    return marks


def repair(cgroups: Node, folder: Path, count: int) -> dict[str, Any]:
    """Rules flushed in a running pod: until a connection lands in its proxy again."""
    took = []
    with RunningAgent(cgroups, folder) as agent:
        sandbox = Sandbox(cgroups.kubepods)
        sandbox.netns.run_inside(reachable)
        write_manifest(agent.pods, sandbox.manifest())
        sandbox.run()
        agent_done(agent, [sandbox.uid])
        listener = sandbox.netns.open_inside(lambda: socket.create_server(("0.0.0.0", 15001), backlog=1024))
        assert lands(sandbox), "a captured connection does not land in the proxy"
        for _ in range(count):
            time.sleep(0.3)
            sandbox.netns.run_inside(lambda: subprocess.run(["nft", "flush", "ruleset"], check=True))
            flushed = time.monotonic()
            while not lands(sandbox):
                assert time.monotonic() - flushed < 30
            took.append((time.monotonic() - flushed) * 1000)
        listener.close()
    return percentiles(took)


def reachable() -> None:
    """An interface and a default route, so that a connection to the world has somewhere to go."""
    for command in (
        "ip link add eth0 type veth peer name eth1",
        "ip addr add 10.8.0.2/24 dev eth0",
        "ip link set eth0 up",
        "ip link set eth1 up",
        "ip route add default via 10.8.0.1 dev eth0",
    ):
        subprocess.run(command.split(), check=True)


def lands(sandbox: Sandbox) -> bool:
    """Whether a connection to the world ends in the proxy: nobody else would answer it within a moment."""
    client = sandbox.netns.open_inside(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    with client:
        client.settimeout(0.005)
        try:
            client.connect(("192.0.2.1", 80))
        except OSError:
            return False
        return True


def start(cgroups: Node, folder: Path, count: int) -> dict[str, Any]:
    """From the command to being ready, the choice of a backend included."""
    api = Api(folder)
    result = {}
    for source, agent in (("from a folder", RunningAgent(cgroups, folder)), ("from the API", api.agent(cgroups))):
        took = []
        for _ in range(count):
            began = time.monotonic()
            agent.start()
            took.append((time.monotonic() - began) * 1000)
            agent.stop()
        result[source] = percentiles(took)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench agent", description=__doc__)
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    parser.add_argument("--pods", type=int, default=100, help="pods of the latency measurements")
    parser.add_argument("--many", type=int, default=250, help="pods held at once")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of idling")
    parser.add_argument("--churn", type=int, default=500, help="pods that come and go")
    parser.add_argument("--only", choices=["latency", "load", "repair", "start"], help="one part")
    options = parser.parse_args()
    parts: dict[str, Callable[[Node, Path], dict[str, Any]]] = {
        "latency": lambda cgroups, folder: latency(cgroups, folder, options.pods),
        "repair": lambda cgroups, folder: repair(cgroups, folder, 20),
        "start": lambda cgroups, folder: start(cgroups, folder, 10),
        "load": lambda cgroups, folder: load(cgroups, folder, options.many, options.idle, options.churn),
    }
    results: dict[str, Any] = {}
    for name, part in parts.items():
        if options.only in (None, name):
            results[name] = measured(part)
    print(json.dumps(results, indent=2) if options.json else shown(results))


def measured(part: Callable[[Node, Path], dict[str, Any]]) -> dict[str, Any]:
    """Runs one part in a node of its own."""
    with node("v1") as cgroups, tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "result"
        kind, text = run_in_node(lambda: answer.write_text(json.dumps(part(cgroups, Path(folder)))) and None, 3000)
        if kind != "passed":
            sys.exit(text)
        result: dict[str, Any] = json.loads(answer.read_text())
        return result


def shown(results: dict[str, Any]) -> str:
    """The results as lines."""
    return "\n".join([line for part in results.items() for line in table(*part)] + [PEERS])


def table(name: str, part: dict[str, Any]) -> Iterator[str]:
    """One part: percentiles in columns, other figures one a line."""
    rows = {name: part} if "p50" in part else part
    if name == "load":
        yield name
    else:
        yield f"{name + ', ms':32}{'p50':>9}{'p99':>9}{'n':>6}"
    for key, value in rows.items():
        if not isinstance(value, dict):
            yield f"  {key:30}{value:9}"
        elif "n" in value:
            yield f"  {key:30}{value['p50']:9.2f}{value['p99']:9.2f}{value['n']:6}"
        elif "p50" in value:
            yield f"  {key:30}{value['p50']:9.2f}{value['p99']:9.2f}   (aim: 2 or less)"
        else:
            yield from (f"  {key + ', ' + name:30}{figure:9}" for name, figure in value.items())


if __name__ == "__main__":
    main()
