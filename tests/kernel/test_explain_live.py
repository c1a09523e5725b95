"""`explain --live`: the kernel's own rules, read back with their counters."""

import json
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, Phase, given, settings

from cni_agent.backends import BACKENDS, Name, backend
from cni_agent.capture import Capture, Family
from cni_agent.cli import cli
from cni_agent.explaining import kernel_rules
from cni_agent.explaining.packet import outbound
from cni_agent.explaining.trace import Chains, arranged
from cni_agent.kernel.netns import Netns
from cni_agent.rules import Match, Rule
from tests.kernel.lab import OUTSIDE, POD, Lab
from tests.kernel.landings import Shot, Wire
from tests.strategies import captures

pytestmark = pytest.mark.kernel
every_backend = pytest.mark.parametrize("name", BACKENDS)


def plain(chains: Chains) -> dict[Any, list[Any]]:
    """The rules of all chains, without what the tools do not keep: order of conditions, host bits, ranges of all."""
    return {place: [_plain(entry.rule) for entry in chain] for place, chain in chains.items() if chain}


def _plain(rule: Rule | None) -> Any:
    assert rule is not None, "every rule of ours can be read"
    return frozenset(filter(None, map(_plain_match, rule.matches))), rule.target


def _plain_match(match: Match) -> Match | None:
    if match.kind in ("source", "destination"):
        network = ip_network(str(match.value), strict=False)
        return None if network.prefixlen == 0 and not match.inverted else replace(match, value=str(network))
    if isinstance(match.value, tuple):
        return replace(match, value=tuple(sorted(match.value)))
    return replace(match, value=str(match.value)) if match.kind == "gid" else match


@every_backend
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate])
@given(capture=captures)
def test_the_kernels_rules_are_read_as_they_were_written(name: Name, capture: Capture) -> None:
    programmed = backend(name)
    ruleset = programmed.ruleset(capture)
    with Netns.scratch() as netns:
        programmed.apply(netns, ruleset)
        families: tuple[Family, ...] = (4, 6)
        for family in families:
            assert plain(kernel_rules.chains(netns, name, family)) == plain(arranged(ruleset, family))


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def explain(lab: Lab, *args: str) -> Result:
    path = f"/proc/self/fd/{lab.netns['pod'].fd}"
    return CliRunner().invoke(cli, ["explain", "--live", "--netns", path, *args])


SETTINGS = ["-i", "*", "-b", "*", "-o", "3306", "--dual-stack"]
CAPTURE = Capture(
    include_outbound_cidrs="*", include_inbound_ports="*", exclude_outbound_ports=(3306,), ipv6=True, dual_stack=True
)


@every_backend
@pytest.mark.parametrize("family", [4, 6])
def test_counters_of_the_deciding_rule(lab: Lab, name: Name, family: Family) -> None:
    programmed = backend(name)
    programmed.apply(lab.netns["pod"], programmed.ruleset(CAPTURE))
    destination = OUTSIDE[family]
    to = f"[{destination}]:3306" if family == 6 else f"{destination}:3306"
    with Wire(lab) as wire:
        wire.listen("outside", (3306,))
        shot = Shot("pod", outbound(destination, 3306, "tcp", local=POD.values(), uid=1000, gid="1000"))
        wire.settle([shot])
        before = json.loads(explain(lab, "--to", to, "--json", *SETTINGS).stdout)
        assert all(wire.send([shot, shot, shot]))
    after = json.loads(explain(lab, "--to", to, "--json", *SETTINGS).stdout)
    assert after["verdict"] == "not-captured"
    assert after["reason"] == "3306 is an excluded outbound port"
    assert after["settings"][0]["value"] == "3306"
    assert after["decision"]["packets"] - before["decision"]["packets"] == 3
    assert after["differences"] == []


@every_backend
def test_rules_that_are_not_those_of_the_settings(lab: Lab, name: Name) -> None:
    programmed = backend(name)
    programmed.apply(lab.netns["pod"], programmed.ruleset(replace(CAPTURE, exclude_outbound_ports=())))
    result = explain(lab, "--to", f"{OUTSIDE[4]}:3306", *SETTINGS)
    assert "Captured: goes to Envoy's outbound listener 15001" in result.stdout  # by what the kernel has
    assert "The kernel's rules are not those that the settings give:\n" in result.stdout
    assert "3306" in result.stdout.partition("settings give:")[2]
    assert "Set by" not in result.stdout


@every_backend
def test_without_settings_the_kernel_alone_is_asked(lab: Lab, name: Name) -> None:
    programmed = backend(name)
    programmed.apply(lab.netns["pod"], programmed.ruleset(CAPTURE))
    result = explain(lab, "--to", f"{OUTSIDE[4]}:3306")
    assert result.exit_code == 0, result.output
    assert "3306 is an excluded outbound port" in result.stdout
    assert "settings give" not in result.stdout


def test_a_namespace_without_rules(lab: Lab) -> None:
    result = explain(lab, "--to", f"{OUTSIDE[4]}:3306")
    assert "No rule matches it." in result.stdout
    assert "Not captured, because no rule takes it." in result.stdout
    compared = explain(lab, "--to", f"{OUTSIDE[4]}:3306", *SETTINGS)
    assert "missing" in compared.stdout


def test_a_rule_of_somebody_else(lab: Lab) -> None:
    programmed = backend("iptables-nft")
    programmed.apply(lab.netns["pod"], programmed.ruleset(CAPTURE))
    foreign = (
        "-t mangle -A OUTPUT -m statistic --mode random --probability 0.5 -j MARK --set-mark 7",
        "-t nat -I OUTPUT -p tcp --dport 9 -j RETURN",
    )
    for rule in foreign:
        lab.run("pod", "iptables-nft", *rule.split())
    result = explain(lab, "--to", f"{OUTSIDE[4]}:9", "-v")
    assert "not understood" in result.stdout
    assert "-m statistic" in result.stdout
    assert "Not captured, because a rule that is not of Istio's making says so." in result.stdout


def test_the_nodes_own_namespace_is_refused() -> None:
    result = CliRunner().invoke(cli, ["explain", "--live", "--netns", "/proc/self/ns/net", "--to", "10.0.0.7:80"])
    assert result.exit_code == 4
    assert "host-namespace" in result.stderr
