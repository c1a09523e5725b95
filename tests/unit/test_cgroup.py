"""Reading cgroups: all known cases, the names of directories, and hostile text in linear time."""

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_agent.node import cgroup
from tests.conformance import cases

UID = "2c48913c-b29f-11e7-9350-020968147796"
ID = "9bca8d63d5fa610783847915bcff0ecac1273e5b4bed3f6fa1b07350e0135961"


@pytest.mark.parametrize("case", cases("cgroup"))
def test_membership_equals_istio(case: dict[str, Any]) -> None:
    def read() -> cgroup.Membership:
        if case["input_kind"] == "cgroup_text":
            return cgroup.membership(case["cgroup_text"])
        return cgroup.membership_of_paths(case["cgroup_paths"])

    if case["expect_error"]:
        with pytest.raises(cgroup.CgroupError) as error:
            read()
        assert str(error.value) == case["expect_error"]
    else:
        assert read() == (case["expect_pod_uid"], case["expect_container_id"])


PUNCT = r"""[!-/:-@\[-`{-~]"""
WORD = r"""[^!-/:-@\[-`{-~]"""
HEX = f"[0-9A-Fa-f]{{8}}{PUNCT}?" + f"[0-9A-Fa-f]{{4}}{PUNCT}?" * 3 + "[0-9A-Fa-f]{12}"
# Istio's two expressions, word for word but for the inner loop of the second, which needs no nesting to mean the same.
WITH_POD = re.compile(f"{PUNCT}pod({HEX}){PUNCT}(?:{WORD}+{PUNCT})*({WORD}+)\\Z")
WITHOUT_POD = re.compile(f"(pod{HEX}{PUNCT})?(?:{WORD}|/)*crio{PUNCT}({WORD}+)\\Z")


def reference(path: str) -> tuple[str, str]:
    path = path.removesuffix(".scope")
    one, two = WITH_POD.search(path), WITHOUT_POD.search(path)
    if two and two[1]:
        two = None
    if one and not two:
        return re.sub(PUNCT, "-", one[1]), one[2]
    return ("", two[2]) if two and not one else ("", "")


PIECE = st.sampled_from(
    [
        *"/.-_:",
        "crio",
        "pod",
        UID,
        UID.replace("-", "_"),
        UID.replace("-", ""),
        "pod" + UID,
        "pod" + UID.replace("-", ""),
        "/crio-",
        "slice",
        "kubepods",
        ID[:8],
        ".scope",
        "é",
        "\n",
    ]
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(PIECE, max_size=9).map("".join))
def test_one_pass_reads_what_the_expressions_read(path: str) -> None:
    assert cgroup.membership_of_paths([path]) == reference(path)


@pytest.mark.parametrize(
    "pattern",
    ["crio/", "/crio-", f"/pod{UID}", f"/pod{UID}//", "a", "/", f"pod{UID.replace('-', '')}/crio-"],
)
def test_time_is_linear_in_the_text(pattern: str) -> None:
    def seconds(size: int) -> float:
        path = (pattern * size)[:size] + "x"
        best = 1.0
        for _ in range(5):
            started = time.perf_counter()
            cgroup.membership_of_paths([path])
            best = min(best, time.perf_counter() - started)
        return best

    seconds(1000)
    # 16 times the text: linear is 16 times the time, quadratic 256
    assert seconds(160_000) < 100 * seconds(10_000)


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"pod{UID}", UID),
        (f"kubepods-pod{UID.replace('-', '_')}.slice", UID),
        (f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice", UID),
        (f"kubelet-kubepods-burstable-pod{UID.replace('-', '_')}.slice", UID),
        (f"pod{UID.replace('-', '')}", UID.replace("-", "")),  # a static pod: its uid is a hash
        (f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}", UID),
        (f"tripod{UID}", None),
        (f"pod{UID}0", None),
        ("pod", None),
        ("podsandbox", None),
        (ID, None),
        (f"cri-containerd-{ID}.scope", None),
        ("kubepods.slice", None),
        ("", None),
    ],
)
def test_pod_directories(name: str, uid: str | None) -> None:
    assert cgroup.pod_uid(name) == uid


def test_directories_above_the_pods() -> None:
    above = ["kubepods", "kubepods.slice", "kubelet-kubepods.slice", "my-root-kubepods.slice"]
    tiers = [
        "burstable",
        "besteffort",
        "kubepods-burstable.slice",
        "kubepods-besteffort.slice",
        "kubelet-kubepods-besteffort.slice",
    ]
    neither = ["system.slice", "init.scope", "kubepods2", "notkubepods.slice", f"pod{UID}", "docker", ""]
    assert [cgroup.is_kubepods(name) for name in above + tiers + neither] == [True] * 4 + [False] * 12
    assert [cgroup.is_tier(name) for name in above + tiers + neither] == [False] * 4 + [True] * 5 + [False] * 7
