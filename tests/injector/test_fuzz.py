"""Whatever the bytes and whatever the pod: one well-formed AdmissionReview, never an exception.

A few seconds in a normal run. A million inputs, other ones each time, take about a quarter of an hour of CPU:
INITLESS_FUZZ=1000000 scripts/test tests/injector/test_fuzz.py --timeout 0
What failed is named by its seed, which repeats it: case(SEED), valid_pod(SEED) or twice(SEED).
"""

import base64
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import jsonpatch
import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from injector.admission import Answer, review
from injector.settings import load_settings
from tests.injector.any_pod import PATHS, make_pod
from tests.injector.mutations import any_body
from tests.injector.serving import review as as_review

EXAMPLES = int(os.environ.get("INITLESS_FUZZ", "0"))
ALL_SETTINGS = [
    load_settings(),
    load_settings(native_sidecars="true"),
    load_settings(compatibility="istio"),
    load_settings({"global": {"platform": "openshift"}}, native_sidecars="true", compatibility="istio"),
]
HANG = 20.0  # seconds of CPU; what takes that long would never end


def run(one: Callable[[int], None], share: float, few: int) -> None:
    """Many cases: `few`, always the same ones, or of a long run its share. Prints what the long run saw."""
    count = int(EXAMPLES * share) or few
    start = time.time_ns() if EXAMPLES else 0
    slowest = (0.0, 0)
    for seed in range(start, start + count):
        before = time.process_time()
        with named(seed):
            one(seed)
        slowest = max(slowest, (time.process_time() - before, seed))
    print(f"{one.__name__}: {count} cases from seed {start}; the slowest {slowest[0]:.2f} s of CPU, seed {slowest[1]}")


@contextmanager
def named(seed: int) -> Iterator[None]:
    """A failure names the seed that repeats it; what hangs is a failure too."""

    def hung(number: int, frame: FrameType | None) -> NoReturn:
        raise AssertionError(f"no answer after {HANG:.0f} s of CPU")

    before = signal.signal(signal.SIGVTALRM, hung)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG)
    try:
        yield
    except Exception as error:
        error.add_note(f"the seed was {seed}")
        raise
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def chosen_settings(seed: int) -> Any:
    """Each of them in turn."""
    return ALL_SETTINGS[seed % len(ALL_SETTINGS)]


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


@settings(max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400), st.sampled_from(ALL_SETTINGS))
@example(b"", ALL_SETTINGS[0])
@example(b'{"request":null}', ALL_SETTINGS[0])
@example(b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', ALL_SETTINGS[0])
@example(b"[" * 200_000, ALL_SETTINGS[0])
@example(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, ALL_SETTINGS[0])
def test_any_bytes(body: bytes, chosen: Any) -> None:
    check(review(body, chosen, "/inject"))


def test_damaged_and_mutated_reviews() -> None:
    run(case, 0.85, 1500)


def case(seed: int) -> None:
    """A body that gets past the first line of defence more often than any bytes do. Ours are drawn from a seed:
    drawing each choice from hypothesis is a hundred times slower."""
    chance = random.Random(seed)
    check(review(any_body(chance), chosen_settings(seed), chance.choice(PATHS)))


def test_valid_pods_with_random_annotations() -> None:
    run(valid_pod, 0.1, 300)


def valid_pod(seed: int) -> None:
    """Its patch applies."""
    chance, chosen = random.Random(seed), chosen_settings(seed)
    pod = make_pod(chance)
    answer = review(as_review(pod), chosen, chance.choice(PATHS))
    check(answer, {"apiVersion": "v1", "kind": "Pod", **pod}, unique=is_strict(chosen, pod))


def test_injecting_twice_is_well_formed_too() -> None:
    run(twice, 0.05, 300)


def twice(seed: int) -> None:
    """The patch of a pod that has the first patch applies too."""
    chosen = chosen_settings(seed)
    pod = {"apiVersion": "v1", "kind": "Pod", **make_pod(random.Random(seed))}
    first = review(as_review(pod), chosen, "/inject")
    check(first, pod, unique=is_strict(chosen, pod))
    patch = msgspec.json.decode(first.body)["response"].get("patch")
    if patch:
        again = jsonpatch.JsonPatch(msgspec.json.decode(base64.b64decode(patch))).apply(pod)
        check(review(as_review(again), chosen, "/inject"), again, unique=is_strict(chosen, pod))


@pytest.mark.parametrize("name", ['{"a":1}', "[]", "7", "null"])
@pytest.mark.parametrize("annotation", ["sidecar.istio.io/userVolume", "sidecar.istio.io/userVolumeMount"])
def test_a_users_volume_whose_name_is_no_text_is_refused(annotation: str, name: str) -> None:
    pod = {
        "metadata": {"annotations": {annotation: f'[{{"name":{name}}}]'}},
        "spec": {"containers": [{"name": "app"}], "volumes": [{"name": "data"}]},
    }
    response = msgspec.json.decode(review(as_review(pod), ALL_SETTINGS[0], "/inject").body)["response"]
    assert f"annotation {annotation}: expected a text as name" in response["status"]["message"]


def test_a_container_without_a_name_gets_an_answer() -> None:
    """Of the grpc-agent template, which adds to each of the application's containers. The API server refuses it."""
    pod = {
        "metadata": {"annotations": {"inject.istio.io/templates": "grpc-agent"}},
        "spec": {"containers": [{"name": "app"}, {"image": "app:1", "env": [{"name": "A", "value": "b"}]}]},
    }
    for chosen in ALL_SETTINGS:
        check(review(as_review(pod), chosen, "/inject"))
