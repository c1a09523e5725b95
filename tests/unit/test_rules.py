"""Properties of the ruleset itself, for any valid settings."""

import doctest

import pytest
from hypothesis import given, settings

from cni_agent import addresses, invalid, values
from cni_agent.build import build
from cni_agent.capture import Capture
from cni_agent.names import BUILT_IN_CHAINS
from cni_agent.rules import from_json, to_json
from tests.strategies import captures


@settings(max_examples=200, deadline=None)
@given(captures)
def test_json_gives_the_same_ruleset_back(capture: Capture) -> None:
    for dialect in ("iptables", "nftables"):
        ruleset = build(capture, dialect)
        assert from_json(to_json(ruleset)) == ruleset


@settings(max_examples=200, deadline=None)
@given(captures)
def test_no_native_jump_leads_to_a_chain_without_rules(capture: Capture) -> None:
    ruleset = build(capture, "nftables")
    with_rules = {(rule.table, rule.chain) for rule in ruleset.rules}
    for rule in ruleset.rules:
        if rule.target.verb == "jump":
            assert (rule.table, str(rule.target.argument)) in with_rules


@settings(max_examples=200, deadline=None)
@given(captures)
def test_every_chain_of_ours_is_named_istio(capture: Capture) -> None:
    assert all(rule.chain in BUILT_IN_CHAINS or rule.chain.startswith("ISTIO_") for rule in build(capture).rules)


@settings(max_examples=100, deadline=None)
@given(captures)
def test_failing_closed_only_adds_drops_behind_tproxy(capture: Capture) -> None:
    plain, closed = build(capture, "nftables"), build(capture, "nftables", fail_closed=True)
    added = [rule for rule in closed.rules if rule not in plain.rules]
    assert [rule for rule in closed.rules if rule in plain.rules] == list(plain.rules)
    tproxy = capture.mode == "TPROXY" and bool(capture.include_inbound_ports)
    assert len(added) == (len(capture.families) if tproxy else 0)
    assert all(rule.target.verb == "drop" and rule.chain == "ISTIO_TPROXY" for rule in added)


@pytest.mark.parametrize("module", [addresses, invalid, values], ids=lambda module: module.__name__)
def test_examples_in_the_documentation_are_true(module: object) -> None:
    results = doctest.testmod(module)  # type: ignore[arg-type]
    assert results.attempted > 0
    assert results.failed == 0
