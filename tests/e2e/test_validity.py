"""Whatever pod the API server takes, it takes injected as well: random pods, validated by the real thing."""

import base64
import json
import re
import urllib.error
import urllib.request
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from injector.admission import review
from injector.settings import load_settings
from tests.e2e.cluster import Cluster
from tests.injector.pods import pods

PODS = 150


def refusal(server: str, pod: dict[str, Any]) -> str:
    """What the API server has against a pod; nothing when it would create it. Nothing is created."""
    url = f"{server}/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict"
    body = json.dumps(pod).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30):
            return ""
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read())["message"])


def likely(value: Any) -> Any:
    """A random pod made more like a valid one: only known fields, an image, and volumes for what is mounted."""
    if isinstance(value, list):
        return [likely(item) for item in value]
    if not isinstance(value, dict):
        return value
    value = {key: likely(item) for key, item in value.items() if key not in ("xUnknown", "ownerReferences")}
    if "containers" in value:
        value.pop("serviceAccountName", None)
        # what a user writes into istio-proxy is merged as it stands, valid or not; the API server then names the field
        value["containers"] = [container for container in value["containers"] if container["name"] != "istio-proxy"]
        value.setdefault("volumes", [])
        if not any(volume["name"] == "v1" for volume in value["volumes"]):
            value["volumes"].append({"name": "v1", "emptyDir": {}})
        for container in (*value["containers"], *value.get("initContainers", [])):
            container.setdefault("image", "auto")
    return value


@pytest.mark.parametrize("native", ["true", "false"])
def test_an_injected_pod_is_valid_when_the_pod_was(kube: Cluster, native: Any) -> None:
    chosen = load_settings(native_sidecars=native)
    injected: list[str] = []

    with kube.background("proxy", "--port=0") as proxy:
        assert proxy.stdout
        found = re.search(r"127\.0\.0\.1:\d+", proxy.stdout.readline())
        assert found
        server = f"http://{found[0]}"

        @settings(max_examples=PODS, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        @given(pods(plain=True))
        def try_one(drawn: dict[str, Any]) -> None:
            pod = likely(drawn)
            pod["metadata"]["namespace"] = "default"
            pod["metadata"].get("annotations", {}).pop("sidecar.istio.io/userVolumeMount", None)  # of a volume it lacks
            request = {"uid": "u", "namespace": "default", "object": pod}
            body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
            response = json.loads(review(json.dumps(body).encode(), chosen, "/inject").body)["response"]
            if "patch" in response and not refusal(server, pod):
                patched = jsonpatch.apply_patch(pod, json.loads(base64.b64decode(response["patch"])))
                why = refusal(server, patched)
                assert why == "", f"{why}: {json.dumps(pod)}"
                injected.append(pod["metadata"]["name"])

        try_one()
    assert len(injected) > PODS // 10, f"only {len(injected)} of {PODS} random pods were valid and injected"
