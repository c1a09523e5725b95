"""Somebody changes the rules of a pod that the agent has captured."""

from pathlib import Path

import pytest

from tests.kernel.rulesets import rules
from tests.kernel.running_agent import RunningAgent, in_namespace, run
from tests.kernel.sandbox import Node, Sandbox, eventually, in_node, write_manifest

pytestmark = pytest.mark.kernel


@in_node
def test_rules_changed_while_the_agent_was_away_are_replaced_without_alarm(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    sandbox = Sandbox(cgroup.kubepods)
    with agent:
        run(sandbox, agent)
    right = rules(sandbox.netns)
    in_namespace(sandbox, "iptables-nft -t nat -F ISTIO_OUTPUT")
    assert rules(sandbox.netns) != right
    with agent:
        eventually(lambda: agent.state(sandbox.uid) == "Updated")
        assert "ISTIO_OUTPUT" in agent.said("Updated")[0]["why"]
    assert rules(sandbox.netns) == right


@in_node
def test_an_upgrade_that_changes_the_backend_is_no_drift(cgroup: Node, tmp_path: Path) -> None:
    sandbox = Sandbox(cgroup.kubepods)
    with RunningAgent(cgroup, tmp_path, "--backend", "iptables-nft") as agent:
        run(sandbox, agent)
    with RunningAgent(cgroup, tmp_path, "--backend", "nftables") as agent:
        eventually(lambda: agent.state(sandbox.uid) == "Updated")
        assert agent.snapshot()[sandbox.uid]["reason"] == "renewed"
        assert 'initless_drifts_total{action="Repaired"} 0.0' in agent.page("/metrics")
    assert "istio-proxy-nat" in rules(sandbox.netns) and "chain ISTIO_" not in rules(sandbox.netns)


@pytest.mark.parametrize(
    "damage",
    [
        "nft flush ruleset",
        "iptables-nft -t nat -F ISTIO_OUTPUT",
        "iptables-nft -t nat -I ISTIO_OUTPUT -j RETURN",
        "nft 'add table ip nat { flags dormant; }'",
    ],
)
@in_node
def test_drift_is_repaired_when_it_happens(cgroup: Node, tmp_path: Path, damage: str) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent)
        right = rules(sandbox.netns)
        for number in range(1, 4):
            in_namespace(sandbox, damage)
            eventually(lambda: rules(sandbox.netns) == right, what=f"repair {number}")
            eventually(lambda count=number: agent.snapshot()[sandbox.uid]["drifts"] == count)
        assert agent.state(sandbox.uid) == "Repaired"
        assert 'initless_drifts_total{action="Repaired"} 3.0' in agent.page("/metrics")
        assert agent.said("Repaired")[0]["level"] == "warning"


@in_node
def test_changes_of_others_in_the_pod_are_no_drift(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent)
        in_namespace(sandbox, "nft add table inet theirs")
        in_namespace(sandbox, "nft add chain inet theirs c")
        in_namespace(sandbox, "nft flush ruleset")  # seen after the ones above, so those had their turn
        eventually(lambda: agent.snapshot()[sandbox.uid]["drifts"] == 1)
        assert len(agent.said("Repaired")) == 1


@in_node
def test_drift_is_only_reported_when_told_so(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path, "--drift", "report") as agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent)
        in_namespace(sandbox, "nft flush ruleset")
        eventually(lambda: agent.state(sandbox.uid) == "Drifted")
        assert rules(sandbox.netns) == ""
        assert 'initless_pods{outcome="Drifted"} 1.0' in agent.page("/metrics")


@pytest.mark.parametrize("backend", ["iptables-nft", "iptables-legacy", "nftables"])
@in_node
def test_drift_is_only_reported_by_a_new_agent_too(cgroup: Node, tmp_path: Path, backend: str) -> None:
    agent = RunningAgent(cgroup, tmp_path, "--drift", "report", "--backend", backend)
    sandbox, untouched = Sandbox(cgroup.kubepods), Sandbox(cgroup.kubepods, "10.9.0.2")
    with agent:
        run(sandbox, agent)
    native = "nft flush chain inet istio-proxy-nat istio-output"
    in_namespace(sandbox, native if backend == "nftables" else f"{backend} -t nat -F ISTIO_OUTPUT")
    untouched.run()
    eventually(untouched.in_namespace)
    write_manifest(agent.pods, untouched.manifest())
    before = rules(sandbox.netns)
    with agent:
        eventually(lambda: agent.state(sandbox.uid) == "Drifted")
        eventually(lambda: agent.state(untouched.uid) == "Captured")
        assert rules(sandbox.netns) == before


@pytest.mark.parametrize("backend", ["iptables-nft", "iptables-legacy", "nftables"])
@in_node
def test_every_backend_captures_and_repairs(cgroup: Node, tmp_path: Path, backend: str) -> None:
    """Legacy iptables announces no changes: the slow comparison has to find them, here a faster one."""
    (tmp_path / "sitecustomize.py").write_text("from cni_agent.node import upkeep; upkeep.LEGACY_PERIOD = 1.0")
    flush = "nft flush ruleset" if backend != "iptables-legacy" else "iptables-legacy -t nat -F"
    with RunningAgent(cgroup, tmp_path, "--backend", backend, environment={"PYTHONPATH": str(tmp_path)}) as agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent)
        in_namespace(sandbox, flush)
        eventually(lambda: agent.state(sandbox.uid) == "Repaired")
        assert f'initless_backend_info{{backend="{backend}"}} 1.0' in agent.page("/metrics")


@pytest.mark.parametrize("backend", ["iptables-nft", "iptables-legacy"])
@in_node
def test_a_rule_before_ours_is_outdone_once_and_stays(cgroup: Node, tmp_path: Path, backend: str) -> None:
    (tmp_path / "sitecustomize.py").write_text("from cni_agent.node import upkeep; upkeep.LEGACY_PERIOD = 1.0")
    tool = f"{backend} -t nat"
    agent = RunningAgent(cgroup, tmp_path, "--backend", backend, environment={"PYTHONPATH": str(tmp_path)})
    with agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent)
        in_namespace(sandbox, f"{tool} -I OUTPUT 1 -j ACCEPT")
        eventually(lambda: agent.state(sandbox.uid) == "Repaired")
        saved = in_namespace(sandbox, f"{tool} -S OUTPUT")
        assert saved.splitlines()[1:] == ["-A OUTPUT -j ISTIO_OUTPUT", "-A OUTPUT -j ACCEPT"]
        [line] = agent.said("Repaired")
        assert "-A OUTPUT -j ACCEPT stands before -A OUTPUT -j ISTIO_OUTPUT" in line["why"]
        in_namespace(sandbox, f"{tool} -I OUTPUT 1 -j LOG")  # takes nothing away
        in_namespace(sandbox, f"{tool} -F ISTIO_OUTPUT")  # compared after the one above, so that one had its turn
        eventually(lambda: agent.snapshot()[sandbox.uid]["drifts"] == 2)
        assert "ISTIO_OUTPUT" in agent.said("Repaired")[1]["why"]
        assert "stands before" not in agent.said("Repaired")[1]["why"]
    with agent:
        eventually(lambda: agent.state(sandbox.uid) == "Adopted")


@in_node
def test_a_rule_put_before_ours_while_the_agent_was_away(cgroup: Node, tmp_path: Path) -> None:
    agent = RunningAgent(cgroup, tmp_path)
    sandbox = Sandbox(cgroup.kubepods)
    with agent:
        run(sandbox, agent)
    in_namespace(sandbox, "iptables-nft -t nat -I OUTPUT 1 -j ACCEPT")
    with agent:
        eventually(lambda: agent.state(sandbox.uid) == "Repaired")
    saved = in_namespace(sandbox, "iptables-nft -t nat -S OUTPUT")
    assert saved.splitlines()[1:] == ["-A OUTPUT -j ISTIO_OUTPUT", "-A OUTPUT -j ACCEPT"]


@in_node
def test_a_rule_before_ours_is_only_reported_when_told_so(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path, "--drift", "report") as agent:
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent)
        in_namespace(sandbox, "iptables-nft -t nat -I OUTPUT 1 -j ACCEPT")
        eventually(lambda: agent.state(sandbox.uid) == "Drifted")
        assert "stands before" in agent.snapshot()[sandbox.uid]["sentence"]
        saved = in_namespace(sandbox, "iptables-nft -t nat -S OUTPUT")
        assert saved.splitlines()[1:] == ["-A OUTPUT -j ACCEPT", "-A OUTPUT -j ISTIO_OUTPUT"]
