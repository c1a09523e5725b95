"""Comparing what should be with what is: order, ownership, and what is told of it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cni_agent.kernel.differences import Difference, compare
from cni_agent.kernel.endings import Ending
from cni_agent.kernel.holdings import (
    HeldChain,
    HeldRule,
    Place,
    WantedChain,
    changed_tables,
    differences,
    holds_ours,
    intruders,
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


def foreign(born: int, ends: Ending | None = None, jump: str | None = None) -> HeldRule:
    return HeldRule(f"foreign {born}", marked=False, jump=jump, ends=ends, born=born)


def test_a_younger_rule_that_ends_before_ours_is_an_intruder() -> None:
    mine = JUMP._replace(born=5)
    found = {
        name: intruders(OUTPUT, {OUTPUT: built_in(rule, mine, foreign(9, "table"))}, [1])
        for name, rule in {
            "older": foreign(3, "table"),
            "accepts": foreign(8, "table"),
            "returns": foreign(8, "chain"),
            "counts": foreign(8),
            "jumps to nowhere": foreign(8, jump="GONE"),
        }.items()
    }
    assert found == {"older": [], "accepts": [0], "returns": [0], "counts": [], "jumps to nowhere": []}


def test_where_a_jump_leads_counts_and_a_return_from_there_does_not() -> None:
    mine, old_jump = JUMP._replace(born=5), foreign(2, jump="A")
    a, b = Place("ip", "nat", "A"), Place("ip", "nat", "B")

    def found(*in_b: HeldRule, jump: HeldRule = old_jump) -> list[int]:
        back = foreign(3, jump="A")  # the kernel forbids a loop; it must not catch us if it is there
        chains = {a: HeldChain(None, [foreign(3, jump="B"), back]), b: HeldChain(None, in_b)}
        return intruders(OUTPUT, {OUTPUT: built_in(jump, mine), **chains}, [1])

    assert found() == found(foreign(9, "chain")) == found(foreign(4, "table")) == []
    assert found(foreign(9, "table")) == found(foreign(4, "table"), jump=foreign(9, jump="A")) == [0]


def test_an_intruder_is_told_with_the_rule_that_it_stands_before() -> None:
    should = {OUTPUT: WantedChain("ACCEPT", ["jump"], ["-A OUTPUT -j ISTIO_OUTPUT"])}
    held = {OUTPUT: built_in(foreign(8, "table"), JUMP._replace(born=5))}
    [told] = differences(should, held, lambda: {OUTPUT: ["-A OUTPUT -j ACCEPT", "-A OUTPUT -j ISTIO_OUTPUT"]})
    assert str(told) == "bypass  ip nat OUTPUT: -A OUTPUT -j ACCEPT stands before -A OUTPUT -j ISTIO_OUTPUT"
    assert changed_tables(should, held) == {("ip", "nat")}
