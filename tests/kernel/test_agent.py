"""The agent on a node of real cgroups, namespaces and processes, its pods from a folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_agent.node import status
from tests.kernel.rulesets import handles, rules
from tests.kernel.running_agent import RunningAgent, in_namespace, run
from tests.kernel.sandbox import DRIVERS, Node, Sandbox, eventually, in_node, node, write_manifest

pytestmark = pytest.mark.kernel


def chains(sandbox: Sandbox) -> int:
    return rules(sandbox.netns).count("chain ISTIO_")


@in_node
def test_a_pod_is_captured_as_its_sandbox_starts(cgroups: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroups, tmp_path) as agent:
        sandbox = Sandbox(cgroups.kubepods)
        write_manifest(agent.pods, sandbox.manifest())
        eventually(lambda: agent.state(sandbox.uid) == "WaitingForSandbox")
        sandbox.make_pod()
        sandbox.make_container()
        sandbox.start(host_seconds=0.03)
        eventually(lambda: agent.state(sandbox.uid) == "Captured")
        assert chains(sandbox) > 3
        assert rules() == ""
        [line] = agent.said("Captured")
        assert line["uid"] == sandbox.uid
        assert line["netns"] == sandbox.netns.identity.inode
        sandbox.stop()
        eventually(lambda: agent.state(sandbox.uid) == "WaitingForSandbox")


@in_node
def test_pods_outside_the_mesh_and_on_the_hosts_network_are_left_alone(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        plain, host = Sandbox(cgroup.kubepods), Sandbox(cgroup.kubepods, "10.9.0.2")
        run(plain, agent, "NotInMesh", spec={"containers": [{"name": "app"}]})
        write_manifest(agent.pods, host.manifest(spec={"hostNetwork": True}))
        host.make_pod()
        host.make_container()
        host.start(stay_in_host=True)
        eventually(lambda: agent.state(host.uid) == "NotInMesh")
        assert agent.snapshot()[host.uid]["reason"] == "host-network"
        assert rules() == rules(plain.netns) == ""


@in_node
def test_a_process_that_stays_in_the_hosts_namespace_is_never_taken(cgroup: Node, tmp_path: Path) -> None:
    """`conmon`: in the pod's cgroup for good, in the node's namespace for good."""
    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        write_manifest(agent.pods, sandbox.manifest())
        sandbox.make_pod()
        sandbox.make_container()
        sandbox.start(stay_in_host=True)
        eventually(lambda: "node's own" in agent.snapshot().get(sandbox.uid, {}).get("sentence", ""))
        assert rules() == ""
        sandbox.start()
        eventually(lambda: agent.state(sandbox.uid) == "Captured")
        assert rules() == ""


@in_node
def test_a_mesh_process_in_a_namespace_of_a_pod_outside_the_mesh(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        plain, meshed = Sandbox(cgroup.kubepods), Sandbox(cgroup.kubepods, "10.9.0.2")
        run(plain, agent, "NotInMesh", spec={"containers": [{"name": "app"}]})
        eventually(plain.in_namespace)
        write_manifest(agent.pods, meshed.manifest())
        meshed.make_pod()
        meshed.make_container()
        meshed.start(other=plain)
        eventually(lambda: agent.state(meshed.uid) == "Refused")
        assert agent.snapshot()[meshed.uid]["reason"] == "other-owner"
        assert rules(plain.netns) == ""


@in_node
def test_reported_addresses_that_are_not_in_the_namespace_raise_an_alarm(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods, "10.9.0.7")
        run(sandbox, agent)
        write_manifest(agent.pods, sandbox.manifest(status={"podIPs": [{"ip": "10.9.0.7"}]}))
        eventually(lambda: not agent.said("Refused"))
        write_manifest(agent.pods, sandbox.manifest(status={"podIPs": [{"ip": "10.9.0.8"}]}))
        eventually(lambda: agent.state(sandbox.uid) == "Refused")
        assert agent.snapshot()[sandbox.uid]["reason"] == "wrong-address"
        assert agent.said("Refused")[0]["level"] == "warning"


@in_node
def test_a_second_family_that_comes_late_is_captured_too(cgroup: Node, tmp_path: Path) -> None:
    def pod(*addresses: str) -> dict[str, object]:
        proxy = {"name": "istio-proxy", "env": [{"name": "ISTIO_DUAL_STACK", "value": "true"}]}
        return sandbox.manifest(spec={"containers": [proxy]}, status={"podIPs": [{"ip": ip} for ip in addresses]})

    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods, "10.9.0.7")
        write_manifest(agent.pods, pod())
        sandbox.run()
        eventually(lambda: agent.state(sandbox.uid) == "Captured")
        assert "table ip6" not in rules(sandbox.netns)
        in_namespace(sandbox, "ip -6 address add fd00::7/128 dev lo")
        write_manifest(agent.pods, pod("10.9.0.7", "fd00::7"))
        eventually(lambda: agent.state(sandbox.uid) == "Updated")
        assert "ISTIO_OUTPUT" in rules(sandbox.netns).partition("table ip6 nat")[2]


@in_node
def test_a_restarted_agent_adopts_what_is_right_and_touches_nothing(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    sandbox = Sandbox(cgroup.kubepods)
    with agent:
        run(sandbox, agent)
    before = handles(sandbox.netns)
    assert "ISTIO_OUTPUT" in before
    with agent:
        eventually(lambda: agent.state(sandbox.uid) == "Adopted")
    assert handles(sandbox.netns) == before


@in_node
def test_a_pod_that_ran_before_the_agent_is_captured_in_place_and_told(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    sandbox = Sandbox(cgroup.kubepods)
    sandbox.run()
    eventually(sandbox.in_namespace)
    started = "2026-01-02T03:04:05Z"
    write_manifest(agent.pods, sandbox.manifest(status={"phase": "Running", "startTime": started}))
    with agent:
        eventually(lambda: agent.state(sandbox.uid) == "CapturedLate")
        assert chains(sandbox) > 3
        [line] = agent.said("CapturedLate")
        assert started in line["why"]
        assert line["level"] == "warning"


@in_node
def test_before_app_waits_for_the_applications_init_containers(cgroup: Node, tmp_path: Path) -> None:
    def pod(*statuses: dict[str, object]) -> dict[str, object]:
        return sandbox.manifest(
            metadata={"annotations": {"sidecar.istio.io/status": "{}", "initless.io/capture": "before-app"}},
            spec={"initContainers": [{"name": "migrate"}, {"name": "istio-validation"}]},
            status={"initContainerStatuses": list(statuses)},
        )

    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        write_manifest(agent.pods, pod({"name": "migrate", "state": {"running": {}}}))
        sandbox.run()
        eventually(lambda: agent.state(sandbox.uid) == "WaitingForInit")
        eventually(sandbox.in_namespace)
        assert rules(sandbox.netns) == ""
        write_manifest(agent.pods, pod({"name": "migrate", "state": {"terminated": {"exitCode": 0}}}))
        eventually(lambda: agent.state(sandbox.uid) == "Captured")
        assert chains(sandbox) > 3


@in_node
def test_before_app_waits_again_in_a_new_sandbox(cgroup: Node, tmp_path: Path) -> None:
    """The API tells of the old one: all its init containers have ended, and the pod runs."""

    def pod(migrate: dict[str, object]) -> dict[str, object]:
        ended = {"terminated": {"exitCode": 0}}
        runs = {"name": "app", "state": {"running": {}}, "containerID": f"containerd://{first.container.name}"}
        validated = {"name": "istio-validation", "state": ended, "containerID": f"containerd://{'b' * 64}"}
        return first.manifest(
            metadata={"annotations": {"sidecar.istio.io/status": "{}", "initless.io/capture": "before-app"}},
            spec={"initContainers": [{"name": "migrate"}, {"name": "istio-validation"}]},
            status={
                "phase": "Running",
                "initContainerStatuses": [{"name": "migrate", **migrate}, validated],
                "containerStatuses": [runs],
            },
        )

    old = {"state": {"terminated": {"exitCode": 0}}, "containerID": f"containerd://{'a' * 64}"}
    agent = RunningAgent(cgroup, tmp_path)
    first = Sandbox(cgroup.kubepods)
    with agent:
        write_manifest(agent.pods, pod(old))
        first.run()
        eventually(lambda: agent.state(first.uid).startswith("Captured"))
        first.stop()
        eventually(lambda: agent.state(first.uid) == "WaitingForSandbox")
        second = Sandbox(cgroup.kubepods, uid=first.uid)
        second.run()
        eventually(lambda: agent.state(first.uid) == "WaitingForInit")
        eventually(second.in_namespace)
    with agent:  # it is the same for an agent that was not there
        eventually(lambda: agent.state(first.uid) == "WaitingForInit")
        assert rules(second.netns) == ""
        new = {"state": {"terminated": {"exitCode": 0}}, "containerID": f"containerd://{'c' * 64}"}
        write_manifest(agent.pods, pod(new))
        eventually(lambda: agent.state(first.uid) == "Captured")
        assert chains(second) > 3


@in_node
def test_a_pod_without_validation_raises_an_alarm(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent, spec={"initContainers": []})
        eventually(lambda: agent.said("ValidationMissing"))
        assert agent.state(sandbox.uid) == "Captured"


@in_node
def test_a_bad_annotation_is_named_and_nothing_is_written(cgroup: Node, tmp_path: Path) -> None:
    bad = {"sidecar.istio.io/status": "{}", "traffic.sidecar.istio.io/includeInboundPorts": "80,http"}
    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent, "InvalidAnnotation", metadata={"annotations": bad})
        assert "includeInboundPorts" in agent.snapshot()[sandbox.uid]["sentence"]
        eventually(sandbox.in_namespace)
        assert rules(sandbox.netns) == ""
        write_manifest(agent.pods, sandbox.manifest())
        eventually(lambda: agent.state(sandbox.uid) == "Captured")


@in_node
def test_annotations_changed_on_a_captured_pod_have_no_effect_and_are_told(cgroup: Node, tmp_path: Path) -> None:
    """Not even by an agent that is started later: the arguments of istio-validation cannot be changed."""
    flags = ["-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020"]
    validation = {"name": "istio-validation", "args": ["istio-iptables", *flags, "--run-validation"]}
    spec = {"initContainers": [validation]}
    left = {"sidecar.istio.io/status": "{}", "sidecar.istio.io/inject": "false"}
    agent = RunningAgent(cgroup, tmp_path)
    sandbox = Sandbox(cgroup.kubepods)
    with agent:
        run(sandbox, agent, spec=spec)
        before = handles(sandbox.netns)
        excluded = {"sidecar.istio.io/status": "{}", "traffic.sidecar.istio.io/excludeOutboundIPRanges": "0.0.0.0/0"}
        write_manifest(agent.pods, sandbox.manifest(spec=spec, metadata={"annotations": excluded}))
        eventually(lambda: agent.said("ChangeIgnored"))
        [line] = agent.said("ChangeIgnored")
        assert "excludeOutboundIPRanges" in line["why"]
        write_manifest(agent.pods, sandbox.manifest(spec=spec, metadata={"annotations": left}))
        eventually(lambda: len(agent.said("ChangeIgnored")) == 2)
        assert agent.state(sandbox.uid) == "Captured"
        assert "inject" in agent.snapshot()[sandbox.uid]["ignored"]
        assert handles(sandbox.netns) == before
    with agent:
        eventually(lambda: agent.state(sandbox.uid) == "Adopted")
        eventually(lambda: agent.said("ChangeIgnored"))
        in_namespace(sandbox, "nft flush ruleset")
        eventually(lambda: agent.state(sandbox.uid) == "Repaired")


@in_node
def test_a_sandbox_that_is_made_anew_is_captured_anew(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        first = Sandbox(cgroup.kubepods)
        run(first, agent)
        first.stop()
        second = Sandbox(cgroup.kubepods, uid=first.uid)
        second.run()
        eventually(lambda: agent.snapshot()[first.uid]["netns"] == second.netns.identity.inode)
        eventually(lambda: agent.state(first.uid) == "Captured")
        assert chains(second) > 3


@in_node
def test_a_sandbox_replaced_while_its_pod_lives_on(cgroup: Node, tmp_path: Path) -> None:
    """The old one ends when the new one's process is still in the node's namespace; no event tells when it leaves."""
    with RunningAgent(cgroup, tmp_path) as agent:
        first = Sandbox(cgroup.kubepods)
        run(first, agent)
        second = Sandbox(cgroup.kubepods, uid=first.uid)
        second.make_container()
        second.start(host_seconds=0.5)
        for pid in first.processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        eventually(lambda: _gone(first.container))
        eventually(lambda: agent.snapshot()[first.uid]["netns"] == second.netns.identity.inode)
        eventually(lambda: agent.state(first.uid) == "Captured")
        assert chains(second) > 3


@in_node
def test_a_new_sandbox_is_not_blamed_for_the_old_ones_address(cgroup: Node, tmp_path: Path) -> None:
    """The kubelet reports the new address seconds later."""
    with RunningAgent(cgroup, tmp_path) as agent:
        first = Sandbox(cgroup.kubepods, "10.9.0.7")
        write_manifest(agent.pods, first.manifest(status={"podIPs": [{"ip": "10.9.0.7"}]}))
        first.run()
        eventually(lambda: agent.state(first.uid) == "Captured")
        second = Sandbox(cgroup.kubepods, "10.9.0.8", uid=first.uid)
        first.stop()
        second.run()
        eventually(lambda: agent.snapshot()[first.uid]["netns"] == second.netns.identity.inode)
        eventually(lambda: agent.state(first.uid) == "Captured")
        third = Sandbox(cgroup.kubepods, "10.9.0.9", uid=first.uid)  # never a moment without one
        third.make_container()
        third.start()
        eventually(third.in_namespace)
        for pid in second.processes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        eventually(lambda: _gone(second.container))
        eventually(lambda: agent.snapshot()[first.uid]["netns"] == third.netns.identity.inode)
        write_manifest(agent.pods, first.manifest(status={"podIPs": [{"ip": "10.9.0.9"}]}))
        eventually(lambda: agent.state(first.uid) == "Captured")
        assert chains(second) > 3 and chains(third) > 3
        assert not agent.said("Refused")
        write_manifest(agent.pods, first.manifest(status={"podIPs": [{"ip": "10.9.0.1"}]}))
        eventually(lambda: agent.state(first.uid) == "Refused")


def _gone(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return not directory.exists()
    return True


@pytest.mark.parametrize("driver", DRIVERS)
@in_node
def test_drivers_and_runtimes(cgroups: Node, tmp_path: Path, driver: str) -> None:
    with RunningAgent(cgroups, tmp_path) as agent:
        run(Sandbox(cgroups.kubepods, driver=driver), agent)


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


def unhealthy(agent: RunningAgent) -> bool:
    try:
        return agent.page("/healthz") != "ok\n"
    except OSError as error:
        return "503" in str(error)


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
def test_sigterm_leaves_pods_as_they_are(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    sandbox = Sandbox(cgroup.kubepods)
    with agent:
        run(sandbox, agent)
        right = rules(sandbox.netns)
    assert rules(sandbox.netns) == right
    assert agent.said("stopping; pods are left as they are")
    assert not Path(agent.socket).exists()


def refused_as_nobody(path: str) -> bool:
    """Whether the kernel keeps an ordinary user from a socket, whose folder is open to all."""
    folder = Path(path).parent
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        folder.chmod(0o755)
        os.setuid(65534)
        try:
            status.ask(Path(path).name)
        except PermissionError:
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


@in_node
def test_seen_from_outside(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path, environment={"INITLESS_DRIFT": "report"}) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent)
        assert agent.page("/healthz") == agent.page("/readyz") == "ok\n"
        metrics = agent.page("/metrics")
        assert 'initless_pods{outcome="Captured"} 1.0' in metrics
        assert 'initless_capture_seconds_count{phase="seen_to_verified"} 1.0' in metrics
        assert 'initless_backend_info{backend="iptables-nft"} 1.0' in metrics
        assert Path(agent.socket).stat().st_mode & 0o777 == 0o600
        assert agent.said("settings")[0]["drift"] == "report"
        command = [*agent.command[:3], "status", "--socket", agent.socket]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"shop/app-{sandbox.uid[:8]}" in shown and "Captured" in shown
        assert refused_as_nobody(agent.socket)


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
def test_explain_knows_a_pod_by_its_name(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    sandbox = Sandbox(cgroup.kubepods, "10.9.0.1")
    with agent:
        run(sandbox, agent)
        name = sandbox.manifest()["metadata"]["name"]
        program = [sys.executable, "-m", "cni_agent", "explain", "--live", "--socket", agent.socket]
        for pod in (name, f"shop/{name}"):
            done = subprocess.run([*program, "--pod", pod, "--to", "10.96.0.7:80"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "15001" in done.stdout
        unknown = subprocess.run([*program, "--pod", "nobody", "--to", "10.96.0.7:80"], capture_output=True, text=True)
        assert unknown.returncode == 5
        assert "none of that name on this node" in unknown.stderr
