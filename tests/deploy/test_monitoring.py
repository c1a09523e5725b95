"""Alerts and dashboard ask for metrics that the programs really have, in the words that they really use."""

import json
import re
from collections.abc import Iterator

import yaml

from cni_agent.node.metrics import Metrics
from cni_agent.node.outcome import Outcome
from injector.serving.metrics import exposition
from injector.serving.scoreboard import Scoreboard
from tests.deploy.rendering import DAEMONSET

METRIC = re.compile(r"\b((?:initless|sidecar_injection|process)_[a-z_]+)(\{[^}]*\})?")


def alerts() -> dict[str, str]:
    rules = yaml.safe_load((DAEMONSET / "chart/files/alerts/alerts.yaml").read_text())
    return {rule["alert"]: rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]}


def panels() -> dict[str, str]:
    dashboard = json.loads((DAEMONSET / "chart/files/dashboard/initless.json").read_text())
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }


def exported() -> set[str]:
    """Names of series, as a scrape of either program has them."""
    text = (Metrics("iptables-nft", list).text() + exposition(Scoreboard(1))).decode()
    names: set[str] = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return names


def used() -> Iterator[tuple[str, str, str]]:
    for where, expression in (alerts() | panels()).items():
        for name, labels in METRIC.findall(expression):
            yield where, name, labels


def test_every_metric_that_is_asked_for_is_exported() -> None:
    names = exported()
    assert {(where, name) for where, name, _ in used() if name not in names} == set()


def test_outcomes_are_called_by_their_words() -> None:
    words = {
        (where, word)
        for where, _, labels in used()
        for matched in re.findall(r'outcome(?:=|=~)"([^"]*)"', labels)
        for word in matched.split("|")
    }
    assert words
    assert {found for found in words if found[1] not in set(Outcome)} == set()


def test_every_outcome_that_calls_for_somebody_has_an_alert() -> None:
    told = " ".join(alerts().values())
    for outcome in (Outcome.REFUSED, Outcome.FAILED, Outcome.INVALID, Outcome.DRIFTED, Outcome.VALIDATION_MISSING):
        assert outcome in told
