"""Every conformance case in CNI mode, field by field and in order."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cni_agent.capture import Capture
from cni_agent.decision import decide
from cni_agent.node.admitted import decide_as_admitted, ignored_change
from cni_agent.podview import pod_view
from injector.config.defaults import over
from injector.facts import ClusterFacts
from injector.settings import Settings, load_settings
from tests.injector.conformance import FOLDER, ask, load, needs_conformance, normal, patched

OPENSHIFT = {
    "test-ns": {
        "openshift.io/sa.scc.uid-range": "1000620000/10000",
        "openshift.io/sa.scc.supplemental-groups": "1000620000/10000",
    }
}
CASES = [
    pytest.param(case, pod, id=f"{case['name']}-{number}")
    for case in load("cases.json")
    for number, pod in enumerate(case["pods"])
]
pytestmark = needs_conformance


def settings_of(case: Any, **options: Any) -> Settings:
    """The settings that a case's flags mean."""
    values: dict[str, Any] = dict(case["values_overrides"].get("iop") or {})
    mesh: dict[str, Any] = dict(case["mesh"] or {})
    for flag in case["setFlags"]:
        path, _, text = flag.partition("=")
        root, _, rest = path.partition(".")
        if root == "values":
            values = over(values, _nested(rest.replace("cni.provider", "pilot.cni.provider"), _scalar(text)))
        elif root == "meshConfig":
            mesh = over(mesh, _nested(rest, _scalar(text)))
        else:
            assert path == "components.cni.enabled", path
    for name in ("PLATFORM", "COMPLIANCE_POLICY"):
        if name in case["env"]:
            values = over(values, {"pilot": {"env": {name: case["env"][name]}}})
    native = "true" if case["native_sidecar"] else "false"
    return load_settings(values, mesh, **{"native_sidecars": native, "compatibility": "istio", **options})


def _nested(path: str, value: Any) -> Any:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize(("case", "pod"), CASES)
def test_case(case: Any, pod: Any) -> None:
    settings = settings_of(case)
    given = json.loads((FOLDER / pod["input"]).read_text())
    facts = ClusterFacts(namespace_annotations=OPENSHIFT)
    options = {"namespace": pod["namespace"], "facts": facts}
    if "error_contains" in pod:
        response = ask(given, settings, **options)
        assert not response["allowed"]
        assert pod["error_contains"] in response["status"]["message"].lower()
    elif settings.overlays.go:
        response = ask(given, settings, **options)
        assert not response["allowed"]
        assert "plain YAML overlay" in response["status"]["message"]
    else:
        expected = json.loads((FOLDER / (pod.get("cni_expected") or pod["expected"])).read_text())
        assert normal(patched(given, settings, **options)) == normal(expected)


@pytest.mark.parametrize(("case", "pod"), CASES)
def test_case_twice_changes_nothing(case: Any, pod: Any) -> None:
    settings = settings_of(case, compatibility="initless")
    given = json.loads((FOLDER / pod["input"]).read_text())
    options: Any = {"namespace": pod["namespace"], "facts": ClusterFacts(namespace_annotations=OPENSHIFT)}
    if "error_contains" in pod or settings.overlays.go:
        assert ask(given, settings, **options) == ask(given, settings, **options)
        return
    once = patched(given, settings, **options)
    assert patched(once, settings, **options) == once


@pytest.mark.parametrize(("case", "pod"), CASES)
@pytest.mark.parametrize("compatibility", ["istio", "initless"])
def test_an_injected_pod_says_twice_how_it_is_captured(case: Any, pod: Any, compatibility: str) -> None:
    """By its annotations, and by the arguments of its istio-validation, which nobody can change."""
    settings = settings_of(case, compatibility=compatibility)
    if "error_contains" in pod or settings.overlays.go:
        return
    given = json.loads((FOLDER / pod["input"]).read_text())
    facts = ClusterFacts(namespace_annotations=OPENSHIFT)
    made = pod_view(patched(given, settings, namespace=pod["namespace"], facts=facts))
    decision = decide(made, ipv6=False)
    assert decide_as_admitted(made) == decision
    if isinstance(decision, Capture):
        empty = {name: text for name, text in made.annotations.items() if not text}  # an argument cannot tell from none
        assert decide_as_admitted(replace(made, annotations=empty, inject_label="false")) == decision
        assert ignored_change(made, decision) == ""


def test_review_as_the_api_server_sends_it() -> None:
    request = load("admission_reviews/review_v1_apiserver_like.json")["request"]
    expected = load("admission_reviews/review_v1_apiserver_like.expected_cni_pod.json")
    settings = load_settings(native_sidecars="true", compatibility="istio")
    result = patched(request["object"], settings, namespace=request["namespace"])
    expected.get("metadata", {}).pop("managedFields", None)
    result["metadata"].pop("managedFields", None)
    assert normal(result) == normal(expected)
