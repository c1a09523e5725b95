"""The agent on a node of real cgroups, namespaces and processes, its pods from a folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cni_agent.node import status
from tests.kernel.rulesets import chains, handles, rules
from tests.kernel.running_agent import RunningAgent, in_namespace, run
from tests.kernel.sandbox import Node, Sandbox, eventually, in_node, write_manifest

pytestmark = pytest.mark.kernel


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
