"""Whether a pod is injected."""

from typing import Any

import pytest

from injector.mutation.decision import SKIPS, decide
from injector.settings import load_settings
from tests.injector.conformance import load, needs_conformance


@needs_conformance
@pytest.mark.parametrize("case", load("inject_required_cases.json"), ids=lambda case: case["name"])
def test_required(case: Any) -> None:
    config = {name: case[name] for name in ("policy", "neverInjectSelector", "alwaysInjectSelector")}
    metadata = case["metadata"]
    decision = decide(
        load_settings(config=config),
        case["podSpec"].get("hostNetwork") is True,
        metadata.get("namespace", ""),
        metadata.get("labels") or {},
        metadata.get("annotations") or {},
    )
    assert decision.inject is case["want"], decision
    assert decision.inject or decision.reason in SKIPS


@pytest.mark.parametrize(
    ("labels", "host_network", "reason", "warns"),
    [
        ({"sidecar.istio.io/inject": "yes"}, False, "policy", "neither true nor false"),
        ({"sidecar.istio.io/inject": "true"}, True, "host-network", "shares the node's network"),
        ({}, True, "host-network", None),
        ({"sidecar.istio.io/inject": "true"}, False, "asked-for", None),
    ],
)
def test_what_is_suspicious_is_said(labels: dict[str, str], host_network: bool, reason: str, warns: str | None) -> None:
    decision = decide(load_settings(), host_network, "demo", labels, {})
    assert decision.reason == reason
    assert (warns in (decision.warning or "")) if warns else decision.warning is None
