"""The patch itself: indexes, moves, pointers, and nothing that need not change."""

import random
from typing import Any

import jsonpatch
import msgspec
import pytest

from injector.admission import review
from injector.mutation import templates
from injector.mutation.apply import applied
from injector.mutation.draft import Draft, Slot
from injector.mutation.patch import difference, operations
from injector.mutation.pod import Pod
from injector.settings import load_settings
from tests.injector.any_pod import make_pod
from tests.injector.serving import review as as_review


def drafted(pod: Any) -> tuple[Pod, Draft]:
    view = msgspec.convert(pod, Pod)
    return view, Draft(view, lambda: pod)


def containers(*names: str) -> Any:
    return {"metadata": {}, "spec": {"containers": [{"name": name, "x": name} for name in names]}}


@pytest.mark.parametrize("wanted", ["abc", "cab", "bca", "cba", "b", "", "naobc", "abcn", "cna"])
def test_any_order_of_kept_gone_and_new(wanted: str) -> None:
    pod = containers("a", "b", "c")
    view, draft = drafted(pod)
    slots = {slot.name: slot for slot in draft.lists["containers"]}
    draft.lists["containers"] = [
        slots.get(name) or Slot(name, None, content={"name": name, "x": name}) for name in wanted
    ]
    patch = operations(view, draft, [])
    assert jsonpatch.apply_patch(pod, patch) == containers(*wanted)
    assert all("value" not in operation or operation["value"]["name"] in "no" for operation in patch)
    assert applied(pod, patch) == containers(*wanted)


def test_nothing_changed_is_an_empty_patch() -> None:
    assert operations(*drafted(containers("a", "b")), []) == []


def test_a_pod_without_anything_gets_everything() -> None:
    view, draft = drafted({})
    draft.labels = {"a": "b"}
    draft.lists["volumes"] = [Slot("v", None, content={"name": "v"})]
    result = jsonpatch.apply_patch({}, operations(view, draft, []))
    assert result == {"metadata": {"labels": {"a": "b"}}, "spec": {"volumes": [{"name": "v"}]}}


def test_keys_are_escaped() -> None:
    pod = {"metadata": {"annotations": {"a/b~c": "1", "gone/x": "2", "null": None}}, "spec": {}}
    view, draft = drafted(pod)
    draft.annotations = {"a/b~c": "3", "new/~": "4", "null": ""}
    result = jsonpatch.apply_patch(pod, operations(view, draft, []))
    assert result["metadata"]["annotations"] == {"a/b~c": "3", "new/~": "4", "null": None}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, {"b": {"c": [0, 1, 2], "d": None}}),
        ({"a": [1, 2, 3, 4]}, {"a": [1, 4]}),
        ({"a": [{"n": 1, "x": 1}, {"n": 2}]}, {"a": [{"n": 1}, {"n": 2}, {"n": 3}]}),
        ({"a": 1}, {"a": True}),
        ({"a": []}, {"a": {}}),
        ({"a": [True]}, {"a": [1]}),
    ],
)
def test_difference(old: Any, new: Any) -> None:
    patch: list[Any] = []
    difference(patch, (), old, new)
    expected = {key: value for key, value in new.items() if value is not None}
    expected = {key: _without_none(value) for key, value in expected.items()}
    assert repr(jsonpatch.apply_patch(old, patch)) == repr(expected)


def _without_none(value: Any) -> Any:
    return {key: inner for key, inner in value.items() if inner is not None} if isinstance(value, dict) else value


def test_pods_that_were_seen_before_leave_nothing_in_others() -> None:
    """What templates give is shared by pods that are alike. Were it changed for one, the next would show it."""
    chance = random.Random(7)
    bodies = [as_review(make_pod(chance)) for _ in range(150)]
    for chosen in (load_settings(native_sidecars="true"), load_settings(compatibility="istio")):
        alone = []
        for body in bodies:
            templates._kept.cache_clear()
            alone.append(review(body, chosen, "/inject").body)
        shuffled = [*enumerate(bodies)] * 2
        chance.shuffle(shuffled)
        for number, body in shuffled:
            assert review(body, chosen, "/inject").body == alone[number]
