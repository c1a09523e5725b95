"""Comparing what should be with what is: order, ownership, and what is told of it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cni_agent.kernel.differences import Difference, compare
from cni_agent.kernel.holdings import (
    HeldChain,
    HeldRule,
    Place,
    WantedChain,
    changed_tables,
    differences,
    holds_ours,
    ours,
)

OUTPUT = Place("ip", "nat", "OUTPUT")
ISTIO_OUTPUT = Place("ip", "nat", "ISTIO_OUTPUT")
JUMP = HeldRule("jump", marked=False, jump="ISTIO_OUTPUT")


def rule(key: str, *, marked: bool = False) -> HeldRule:
    return HeldRule(key, marked, None)


def built_in(*rules: HeldRule, policy: str = "ACCEPT") -> HeldChain:
    return HeldChain(policy, rules)


def wanted(*keys: str, policy: str | None = "ACCEPT") -> WantedChain:
    return WantedChain(policy, keys, [f"text of {key}" for key in keys])


@given(st.lists(st.sampled_from("abcde")), st.lists(st.sampled_from("abcde")))
def test_compare_accounts_for_every_rule(should: list[str], actual: list[str]) -> None:
    found = list(compare(should, actual))
    assert bool(found) == (should != actual)
    missing = Counter(should[index] for kind, index in found if kind == "missing")
    extra = Counter(actual[index] for kind, index in found if kind == "extra")
    assert Counter(should) - missing == Counter(actual) - extra
    assert not missing & extra, "a rule that is there was told as missing and as extra, not as moved"


def test_rules_of_others_in_a_built_in_chain_are_not_ours() -> None:
    chain = built_in(rule("theirs"), rule("ours", marked=True), JUMP, rule("theirs"))
    assert ours(OUTPUT, chain) == [1, 2]
    assert ours(ISTIO_OUTPUT, HeldChain(None, [rule("anything")])) == [0]


def test_an_unmarked_rule_is_ours_as_often_as_it_is_wanted_and_lacking() -> None:
    assert ours(OUTPUT, built_in(rule("a"), rule("a"), rule("b")), wanted=["a"]) == [0]
    assert ours(OUTPUT, built_in(rule("a"), rule("a", marked=True)), wanted=["a"]) == [1]


def test_a_look_alike_is_adopted_only_where_chains_of_ours_are() -> None:
    """Before our first write, a rule that is just like one of ours is somebody else's."""
    should = {OUTPUT: wanted("a")}
    alone = {OUTPUT: built_in(rule("a"))}
    assert [found.kind for found in differences(should, alone, dict)] == ["missing"]
    resident = {**alone, Place("ip", "mangle", "ISTIO_DROP"): HeldChain(None, ())}
    assert not any(found.where == str(OUTPUT) for found in differences(should, resident, dict))


def test_texts_are_asked_for_only_when_a_strange_rule_is_to_be_told() -> None:
    def never() -> dict[Place, list[str]]:
        raise AssertionError("a program would have been started")

    should = {ISTIO_OUTPUT: wanted("a", "b", policy=None)}
    held = {ISTIO_OUTPUT: HeldChain(None, [rule("a")])}
    assert differences(should, held, never) == (Difference("missing", "ip nat ISTIO_OUTPUT", "text of b"),)
    held = {ISTIO_OUTPUT: HeldChain(None, [rule("a"), rule("x"), rule("b")])}
    texts = {ISTIO_OUTPUT: ["first", "second", "third"]}
    assert differences(should, held, lambda: texts) == (Difference("extra", "ip nat ISTIO_OUTPUT", "second"),)
    assert differences(should, held, dict)[0].text == "rule 2 of the chain"


def test_policies_chains_and_leftovers_are_told() -> None:
    should = {OUTPUT: wanted(), ISTIO_OUTPUT: wanted("a", policy=None)}
    held = {OUTPUT: built_in(policy="DROP"), Place("ip6", "raw", "ISTIO_INBOUND"): HeldChain(None, [rule("x")])}
    assert [(found.kind, found.where) for found in differences(should, held, dict)] == [
        ("changed", "ip nat OUTPUT"),
        ("missing", "ip nat ISTIO_OUTPUT"),
        ("missing", "ip nat ISTIO_OUTPUT"),
        ("extra", "ip6 raw ISTIO_INBOUND"),
        ("extra", "ip6 raw ISTIO_INBOUND"),
    ]
    assert changed_tables(should, held) == {("ip", "nat"), ("ip6", "raw")}
    assert holds_ours(held)
    assert not holds_ours({OUTPUT: built_in(rule("theirs"))})


def test_native_tables_are_ours_as_a_whole() -> None:
    place = Place("inet", "istio-proxy-nat", "output")
    assert ours(place, built_in(rule("a"), rule("b"))) == [0, 1]
    assert ours(Place("inet", "theirs", "output"), built_in(rule("a"))) == []
