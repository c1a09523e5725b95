"""The agent on all kinds of nodes, and what it says of itself there."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.rulesets import rules
from tests.kernel.running_agent import RunningAgent, run
from tests.kernel.sandbox import DRIVERS, Node, Sandbox, eventually, in_node, node, write_manifest

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("driver", DRIVERS)
@in_node
def test_drivers_and_runtimes(cgroups: Node, tmp_path: Path, driver: str) -> None:
    with RunningAgent(cgroups, tmp_path) as agent:
        run(Sandbox(cgroups.kubepods, driver=driver), agent)


@in_node
def test_a_pid_namespace_of_its_own_without_the_hosts_proc_is_told(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    agent.prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    agent.start(wait=False)
    eventually(lambda: any("hostPID" in reason for reason in agent.not_ready()))


@in_node
def test_a_kubelet_with_its_own_cgroup_root(tmp_path: Path, nested: Node) -> None:
    with RunningAgent(nested, tmp_path) as agent:
        assert agent.said("watching")[0]["kubepods"] == [str(nested.kubepods)]
        run(Sandbox(nested.kubepods), agent)


@pytest.fixture
def nested() -> Iterator[Node]:
    with node("v1", kubelet_root="kc") as made:
        yield made


@in_node
def test_a_mounted_host_proc_serves_an_agent_with_a_pid_namespace_of_its_own(cgroups: Node, tmp_path: Path) -> None:
    host_proc = tmp_path / "host-proc"
    host_proc.mkdir()
    subprocess.run(["mount", "--bind", "/proc", str(host_proc)], check=True)
    agent = RunningAgent(cgroups, tmp_path, "--host-proc", str(host_proc))
    agent.prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    agent.start()
    assert "of its own" in agent.said("finding processes")[0]["how"]
    for number in range(1, 4):
        sandbox = Sandbox(cgroups.kubepods, f"10.9.0.{number}")
        write_manifest(agent.pods, sandbox.manifest())
        sandbox.make_pod()
        sandbox.make_container()
        sandbox.start(host_seconds=0.01)
        eventually(lambda found=sandbox: agent.state(found.uid) == "Captured")
    assert rules() == ""


@in_node
def test_what_events_missed_a_scan_finds(cgroup: Node, tmp_path: Path) -> None:
    """A pod whose cgroup is where nobody looks: beside the tree that was found."""
    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.root / "elsewhere")
        write_manifest(agent.pods, sandbox.manifest())
        sandbox.run()
        eventually(lambda: agent.state(sandbox.uid) == "Captured", 40)
        assert "initless_scan_found_pods_total 1.0" in agent.page("/metrics")
        assert agent.said("found by a scan of /proc, not by events")


@in_node
def test_not_ready_says_why(cgroup: Node, tmp_path: Path) -> None:
    cgroup.kubepods.rmdir()
    agent = RunningAgent(cgroup, tmp_path)
    agent.start(wait=False)
    eventually(lambda: agent.said("watching"))
    with pytest.raises(OSError, match="503"):
        agent.page("/readyz")
    cgroup.kubepods.mkdir()
    eventually(agent.ready)
    assert agent.stop() == 0


@in_node
def test_bad_settings_are_named(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    for options, named in (
        (["--metrics-address", "x"], "--metrics-address"),
        (["--backend", "ebpf"], "--backend"),
        (["--pods-from", str(tmp_path / "absent")], "absent"),
    ):
        done = subprocess.run([*agent.command, *options], capture_output=True, text=True, check=False, timeout=20)
        assert done.returncode in (1, 2)
        assert named in done.stderr
        assert "Traceback" not in done.stderr


@in_node
def test_work_that_does_not_end_fails_the_health_check(cgroup: Node, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "from cni_agent.node import agent, programming\n"
        "agent._STUCK_SECONDS = 0.5\n"
        "programming.has_ipv6 = lambda *_, **__: time.sleep(3)\n"
    )
    with RunningAgent(cgroup, tmp_path, environment={"PYTHONPATH": str(tmp_path)}) as agent:
        assert agent.page("/healthz") == "ok\n"
        sandbox = Sandbox(cgroup.kubepods)
        write_manifest(agent.pods, sandbox.manifest())
        (sandbox.directory / "app").mkdir(parents=True)  # a container beside the sandbox, whose program may do anything
        sandbox.run()
        eventually(lambda: unhealthy(agent))
        eventually(lambda: not unhealthy(agent))


def unhealthy(agent: RunningAgent) -> bool:
    try:
        return agent.page("/healthz") != "ok\n"
    except OSError as error:
        return "503" in str(error)


@in_node
def test_rules_being_written_for_other_pods_do_not_delay_a_pod_whose_rules_are_known(
    cgroup: Node, tmp_path: Path
) -> None:
    """Ten pods with annotations of their own, and a tool that takes its time for each of them."""
    done = tmp_path / "done"
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "iptables-nft-restore"
    tool.write_text(
        "#!/bin/sh\ntext=$(cat)\n"
        f"case $text in *4000*) sleep 1; echo >> {done};; esac\n"
        'printf "%s\\n" "$text" | exec /usr/sbin/iptables-nft-restore "$@"\n'
    )
    tool.chmod(0o755)
    with RunningAgent(cgroup, tmp_path, environment={"PATH": f"{tool.parent}:{os.environ['PATH']}"}) as agent:
        for number in range(10):
            own = {"sidecar.istio.io/status": "{}", "traffic.sidecar.istio.io/excludeOutboundPorts": f"4000{number}"}
            write_manifest(agent.pods, Sandbox(cgroup.kubepods).manifest(metadata={"annotations": own}))
        eventually(lambda: len(agent.snapshot()) == 10)
        run(Sandbox(cgroup.kubepods), agent)
        assert not done.exists() or len(done.read_text()) < 5
