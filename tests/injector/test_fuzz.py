"""Whatever the bytes and whatever the pod: one well-formed AdmissionReview, never an exception.

A few seconds in a normal run. A million inputs, for hours, and other ones each time:
INITLESS_FUZZ=1000000 scripts/test tests/injector/test_fuzz.py --timeout 0
"""

import base64
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonpatch
import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from injector.admission import Answer, review
from injector.settings import load_settings
from tests.injector.any_pod import PATHS, make_pod
from tests.injector.serving import review as as_review

EXAMPLES = int(os.environ.get("INITLESS_FUZZ", "0"))
ALL_SETTINGS = [
    load_settings(),
    load_settings(native_sidecars="true"),
    load_settings(compatibility="istio"),
    load_settings({"global": {"platform": "openshift"}}, native_sidecars="true", compatibility="istio"),
]
fuzzing = settings(
    max_examples=EXAMPLES // 5 or 150,
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def cases() -> Iterator[tuple[int, Any]]:
    """Seeds of pods, and settings. Pods come from our own generator: drawing each choice from hypothesis is a hundred
    times slower, and a seed is enough to repeat what failed."""
    start = time.time_ns() if EXAMPLES else 0
    for seed in range(start, start + (EXAMPLES // 5 or 300)):
        yield seed, ALL_SETTINGS[seed % len(ALL_SETTINGS)]


@contextmanager
def chance_of(seed: int) -> Iterator[random.Random]:
    """The choices of one case; a failure names its seed."""
    try:
        yield random.Random(seed)
    except Exception as error:
        error.add_note(f"the seed was {seed}")
        raise


def check(answer: Answer, pod: Any = None, *, unique: bool = True) -> None:
    """The reply is what an API server can read, and its patch applies by someone else's reading of RFC 6902."""
    reply = msgspec.json.decode(answer.body)
    assert ("apiVersion" in reply) == ("kind" in reply)
    response = reply["response"]
    assert isinstance(response["allowed"], bool)
    assert isinstance(response.get("uid", ""), str)
    assert all(isinstance(warning, str) for warning in response.get("warnings", []))
    assert (answer.outcome == "failure") == (not response["allowed"])
    if not response["allowed"]:
        message = response["status"]["message"]
        assert message
        assert "Traceback" not in message
    if answer.outcome != "success":
        assert "patch" not in response
        return
    if "patch" not in response:  # nothing to change, as when it was injected before
        return
    assert response["patchType"] == "JSONPatch"
    operations = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert all(operation["op"] in ("add", "replace", "remove", "move") for operation in operations)
    if pod is not None:
        patched = jsonpatch.JsonPatch(operations).apply(pod)
        spec = patched["spec"]
        names = [item["name"] for key in ("initContainers", "containers") for item in spec.get(key) or []]
        assert "istio-proxy" in names
        if unique:
            assert len(names) == len(set(names))


def is_strict(chosen: Any, pod: Any) -> bool:
    """Two istio-proxy containers can be what was asked for: by two templates, or by Istio's own ways with
    nativeSidecar that is neither true nor false, which `--compatibility istio` repeats."""
    templates = (pod["metadata"].get("annotations") or {}).get("inject.istio.io/templates", "")
    return chosen.compatibility == "initless" and "," not in templates


@fuzzing
@given(st.binary(max_size=400), st.sampled_from(ALL_SETTINGS))
@example(b"", ALL_SETTINGS[0])
@example(b'{"request":null}', ALL_SETTINGS[0])
@example(b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', ALL_SETTINGS[0])
@example(b"[" * 200_000, ALL_SETTINGS[0])
@example(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, ALL_SETTINGS[0])
def test_any_bytes(body: bytes, chosen: Any) -> None:
    check(review(body, chosen, "/inject"))


def test_damaged_reviews() -> None:
    """A good review with bytes changed, cut, doubled: past the first line of defence more often than any bytes are."""
    for seed, chosen in cases():
        with chance_of(seed) as chance:
            body = damaged(bytearray(as_review(make_pod(chance))), chance)
            check(review(body, chosen, chance.choice(PATHS)))


def damaged(body: bytearray, chance: random.Random) -> bytes:
    """The body after a few accidents."""
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(body) + 1)
        how = chance.randrange(4)
        if how == 0:
            body[at : at + 1] = bytes([chance.randrange(256)])
        elif how == 1:
            del body[at : at + chance.randint(1, 30)]
        elif how == 2:
            body[at:at] = body[at : at + chance.randint(1, 60)]
        else:
            body[at:at] = chance.choice([b"null", b'""', b"[]", b"{}", b"-1", b"1e999", b"true", b"\\u0000", b"\xff"])
    return bytes(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)


@fuzzing
@given(st.integers(0, 2**63), json_values, st.sampled_from(ALL_SETTINGS))
def test_a_value_of_a_wrong_type_anywhere(seed: int, value: Any, chosen: Any) -> None:
    chance = random.Random(seed)
    pod = make_pod(chance)
    place: Any = pod
    while True:  # walk to a random node, and put the value there
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.2:
            place[key] = value
            break
        place = place[key]
    check(review(as_review(pod), chosen, "/inject"))


def test_valid_pods_with_random_annotations() -> None:
    for seed, chosen in cases():
        with chance_of(seed) as chance:
            pod = make_pod(chance)
            answer = review(as_review(pod), chosen, chance.choice(PATHS))
            check(answer, {"apiVersion": "v1", "kind": "Pod", **pod}, unique=is_strict(chosen, pod))


def test_injecting_twice_is_well_formed_too() -> None:
    for seed, chosen in cases():
        with chance_of(seed) as chance:
            pod = {"apiVersion": "v1", "kind": "Pod", **make_pod(chance)}
            first = review(as_review(pod), chosen, "/inject")
            check(first, pod, unique=is_strict(chosen, pod))
            patch = msgspec.json.decode(first.body)["response"].get("patch")
            if patch:
                again = jsonpatch.JsonPatch(msgspec.json.decode(base64.b64decode(patch))).apply(pod)
                check(review(as_review(again), chosen, "/inject"), again, unique=is_strict(chosen, pod))
