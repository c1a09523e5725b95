"""The peer's expected results, where they are beside the project; and how two pods are compared."""

import base64
import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest

from cni_agent.values import Refused
from injector.admission import review
from injector.facts import NO_FACTS, ClusterFacts
from injector.mutation.quantity import canonical
from injector.settings import Settings

FOLDER = Path(__file__).parents[3] / "shared" / "conformance" / "inject"
needs_conformance = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs ../shared/conformance/inject")


def load(name: str) -> Any:
    """A file of the conformance data; nothing when it is not there, so that collecting tests works."""
    path = FOLDER / name
    return json.loads(path.read_text()) if path.exists() else []


def ask(
    pod: Any, settings: Settings, *, namespace: str = "", path: str = "/inject", facts: ClusterFacts = NO_FACTS
) -> Any:
    """Sends a pod through the webhook's code; the response."""
    request = {"uid": "u", "namespace": namespace, "object": pod}
    body = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}
    answer = review(json.dumps(body).encode(), settings, path, facts)
    return json.loads(answer.body)["response"]


def patched(pod: Any, settings: Settings, **options: Any) -> Any:
    """The pod with our patch, applied by someone else's reading of RFC 6902."""
    response = ask(pod, settings, **options)
    assert response["allowed"], response
    if "patch" not in response:
        return pod
    return jsonpatch.apply_patch(pod, json.loads(base64.b64decode(response["patch"])))


def normal(pod: Any) -> Any:
    """As the typed API would print it: no nulls, `resources` on every container, canonical quantities, parsed JSON."""
    pod = _normal(pod, ())
    for where in ("containers", "initContainers"):
        for container in pod.get("spec", {}).get(where) or []:
            container.setdefault("resources", {})
    pod.pop("status", None)
    annotations = pod.get("metadata", {}).get("annotations", {})
    if "proxy.istio.io/overrides" in annotations:
        annotations["proxy.istio.io/overrides"] = json.loads(annotations["proxy.istio.io/overrides"])
    return pod


def _normal(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_normal(item, path) for item in value]
    if not isinstance(value, dict):
        return value
    if path[-1:] in (("limits",), ("requests",)):
        return {name: _amount(amount) for name, amount in value.items()}
    return {
        name: _normal(inner, (*path, name)) for name, inner in value.items() if inner not in (None, []) and inner != ""
    }


def _amount(amount: Any) -> Any:
    try:
        return canonical(str(amount))
    except Refused:
        return amount
