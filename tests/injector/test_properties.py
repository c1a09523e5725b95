"""What holds for every pod: the patch applies, users' data stays, twice is once, and there is always an answer."""

import base64
import copy
import json
import os
from typing import Any

import jsonpatch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from injector.admission import review
from injector.mutation.apply import applied
from injector.settings import load_settings
from tests.injector.conformance import ask
from tests.injector.pods import OURS, defaulted, pods

MODES = {
    (native, compatibility): load_settings(native_sidecars=native, compatibility=compatibility)
    for native in ("true", "false")
    for compatibility in ("initless", "istio")
}
HOLDING = load_settings(
    {
        "global": {
            "network": "n9",
            "multiCluster": {"clusterName": "c9"},
            "imagePullSecrets": ["s0"],
            "proxy": {"holdApplicationUntilProxyStarts": True},
        },
        "pilot": {"cni": {"provider": "multus"}},
    },
    {"defaultConfig": {"proxyMetadata": {"A": "x", "ENVOY_SECURE_MERGED_METRICS_PORT": "15092"}}},
    native_sidecars="false",
)
EXAMPLES = int(os.environ.get("INITLESS_EXAMPLES", "60"))
every_pod = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODES["holding", "initless"] = HOLDING
modes = st.sampled_from(list(MODES))
ours = st.sampled_from([mode for mode in MODES if mode[1] == "initless"])


def patch_of(pod: Any, mode: tuple[str, str], path: str = "/inject") -> Any:
    response = ask(pod, MODES[mode], namespace="demo", path=path)
    if not response["allowed"]:
        assert response["status"]["message"]
        return None
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


@every_pod
@given(pods(), modes)
def test_the_patch_applies_and_our_reading_of_it_is_theirs(pod: Any, mode: tuple[str, str]) -> None:
    patch = patch_of(pod, mode)
    assume(patch)
    before = copy.deepcopy(pod)
    assert applied(pod, patch) == jsonpatch.apply_patch(pod, patch)
    assert pod == before


def without_probes(container: Any) -> Any:
    """What no injection may touch, in place."""
    kept = {
        key: value for key, value in container.items() if key not in ("readinessProbe", "livenessProbe", "lifecycle")
    }
    return json.dumps(kept)


def untouched(pod: Any, where: str) -> list[str]:
    return [without_probes(item) for item in pod["spec"].get(where) or [] if item["name"] not in OURS]


@every_pod
@given(pods(plain=True), ours)
def test_what_users_wrote_stays_letter_by_letter_and_in_order(pod: Any, mode: tuple[str, str]) -> None:
    """Keys in their order too: a user's element that was printed again would have lost it."""
    assume("grpc-agent" not in pod["metadata"].get("annotations", {}).get("inject.istio.io/templates", ""))
    patch = patch_of(pod, mode)
    assume(patch)
    result = jsonpatch.apply_patch(pod, patch)
    for where in ("containers", "initContainers"):
        assert untouched(result, where) == untouched(pod, where)
    known = {volume["name"] for volume in pod["spec"].get("volumes") or []}
    for volume in result["spec"].get("volumes") or []:
        assert volume["name"] not in known or volume["xUnknown"] == 1
    assert result["spec"].get("xUnknown") == pod["spec"].get("xUnknown")
    assert result["metadata"]["xUnknown"] == 2


@every_pod
@given(pods(), ours)
def test_injecting_twice_is_injecting_once(pod: Any, mode: tuple[str, str]) -> None:
    path = "/inject/cluster/c1/x/y"
    patch = patch_of(pod, mode, path)
    assume(patch)
    once = jsonpatch.apply_patch(pod, patch)
    assert patch_of(once, mode, path) == []
    assert patch_of(defaulted(once), mode, path) == []


@every_pod
@given(st.binary(max_size=200))
@example(b"")
@example(b"null")
@example(b"[" * 100_000)
@example(b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}')
@example(b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"\\ud800"}}')
def test_any_bytes_get_an_answer(body: bytes) -> None:
    answer = json.loads(review(body, MODES["true", "initless"], "/inject\udcff/a/b").body)
    assert answer["response"]["allowed"] is False
    assert answer["response"]["status"]["message"]


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PLACES = [
    ("metadata",),
    ("metadata", "annotations"),
    ("metadata", "labels"),
    ("metadata", "ownerReferences"),
    ("spec",),
    ("spec", "containers"),
    ("spec", "initContainers"),
    ("spec", "volumes"),
    *(("spec", "containers", 0, name) for name in ("name", "env", "ports", "lifecycle", "readinessProbe", "resources")),
    *(("spec", "containers", 0, name) for name in ("args", "securityContext", "volumeMounts")),
]


@every_pod
@given(pods(), st.sampled_from(PLACES), anything, modes)
def test_anything_anywhere_gets_an_answer(pod: Any, place: Any, value: Any, mode: tuple[str, str]) -> None:
    pod["spec"]["containers"][0]["name"] = "istio-proxy"
    holder = pod
    for name in place[:-1]:
        holder = holder[name]
    holder[place[-1]] = value
    patch_of(pod, mode)


@every_pod
@given(
    pods(),
    st.sampled_from(["proxy.istio.io/config", "proxy.istio.io/overrides", "sidecar.istio.io/status"]),
    anything,
    modes,
)
def test_any_json_in_annotations_gets_an_answer(pod: Any, name: str, value: Any, mode: tuple[str, str]) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    pod["metadata"]["annotations"] = {name: text, "sidecar.istio.io/userVolume": text}
    patch_of(pod, mode)
    pod["metadata"]["annotations"] = {name: json.dumps({"containers": value, "tracing": value, "proxyMetadata": value})}
    patch_of(pod, mode)
