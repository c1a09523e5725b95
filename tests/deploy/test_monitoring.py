"""Alerts and dashboard ask for metrics that the programs really have, in the words that they really use."""

import json
import re
from collections.abc import Iterator

import yaml

from cni_agent.node.metrics import Metrics
from cni_agent.node.outcome import Outcome
from injector.serving.metrics import exposition
from injector.serving.scoreboard import Scoreboard
from tests import vocabulary
from tests.deploy.rendering import DAEMONSET, ROOT, helm
from tests.documents import TROUBLESHOOTING, anchors

TARGET = ("node", "instance", "job", "pod")  # labels that Prometheus adds
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


def first_scrape() -> list[tuple[str, dict[str, str]]]:
    """Every series of either program, with its labels, before anything has happened."""
    text = (Metrics("iptables-nft", list).text() + exposition(Scoreboard(1))).decode()
    found = re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE)
    return [(name, dict(re.findall(r'(\w+)="([^"]*)"', labels))) for name, labels in found]


def matches(selector: str, labels: dict[str, str]) -> bool:
    """Whether a series is one of those that `{outcome=~"A|B"}` means; labels of the target are not in question."""
    for label, operator, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', selector):
        if label not in TARGET:
            found = re.fullmatch(value, labels.get(label, "")) is not None
            if found == (operator == "!="):
                return False
    return True


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


def test_every_alternative_that_is_asked_for_has_a_series() -> None:
    """A label that no series has makes an alert that never fires and a panel that is always empty."""
    series = first_scrape()
    for where, name, selector in used():
        own = [labels for found, labels in series if found == name]
        for alternative in alternatives(selector):
            assert not own or any(matches(alternative, labels) for labels in own), f"{where}: {name}{alternative}"


def alternatives(selector: str) -> list[str]:
    """`{outcome=~"A|B"}` as `{outcome=~"A"}` and `{outcome=~"B"}`: each must be there."""
    listed = re.search(r'outcome=~"([^"]*)"', selector)
    if not listed:
        return [selector]
    return [selector.replace(listed[1], word) for word in listed[1].split("|")]


def test_alerts_see_the_first_occurrence() -> None:
    """increase() of a series that begins at 1 is 0: what an alert asks for is there, at 0, at the first scrape."""
    series = first_scrape()
    for where, expression in alerts().items():
        for name, selector in METRIC.findall(expression):
            assert any(found == name and matches(selector, labels) for found, labels in series), where


def test_alerts_are_grouped_by_labels_that_there_are() -> None:
    labels = vocabulary.metrics()
    for where, expression in alerts().items():
        for grouped, name in re.findall(r"by \(([^)]*)\)\s*\(+\s*(?:\w+\()?((?:initless|sidecar)\w+)", expression):
            known = {*TARGET, "le", *labels[name.removesuffix("_bucket")]}
            assert set(grouped.split(", ")) <= known, where


def test_every_outcome_that_calls_for_somebody_has_an_alert() -> None:
    told = " ".join(alerts().values())
    for outcome in (Outcome.REFUSED, Outcome.FAILED, Outcome.INVALID, Outcome.DRIFTED, Outcome.CAPTURED_LATE):
        assert outcome in told


def test_every_state_of_the_injector_that_calls_for_somebody_has_an_alert() -> None:
    told = " ".join(alerts().values())
    for state in ("worker_ready", "certificate_stale", "settings_stale", "cluster_unread"):
        assert f"initless_injector_{state}" in told


def test_every_alert_leads_to_a_section_of_troubleshooting() -> None:
    rules = yaml.safe_load((DAEMONSET / "chart/files/alerts/alerts.yaml").read_text())
    for rule in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert ROOT / path == TROUBLESHOOTING and anchor in anchors(TROUBLESHOOTING), rule["alert"]


def test_what_is_not_installed_is_not_watched() -> None:
    """absent() would fire for ever."""
    for part in ("agent", "injector"):
        monitored = "monitoring.rules.enabled=true,monitoring.serviceMonitor.enabled=true"
        objects = helm("--set", f"{monitored},{part}.enabled=false")
        (group,) = objects["PrometheusRule", "initless-system", "initless"]["spec"]["groups"]
        assert group["name"] != f"initless-{part}"
