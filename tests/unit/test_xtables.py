"""Legacy tables, taken apart and put together without a kernel."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_agent.capture import Family
from cni_agent.kernel.xtables import FALL_THROUGH, LAYOUTS, Chain, Chains, Entry, compile_block, counters_of, parse

NAMES = ["ISTIO_A", "ISTIO_B", "OTHER"]


def entry(family: Family, jump: str | None, payload: bytes, *, marked: bool) -> Entry:
    """A rule with one match, and a standard target or one of an extension, which ends the table."""
    size = LAYOUTS[family].size
    match = struct.pack("=H29sB", 32 + 8, b"mark", 1) + payload.ljust(8, b"\0")
    name = b"REDIRECT" if jump is None else b""
    target = struct.pack("=H29sB", 40, name, 0) + bytes(8)
    body = bytearray(size) + match + target
    struct.pack_into("=HH", body, LAYOUTS[family].offsets, size + len(match), len(body))
    return Entry(bytes(body), jump, marked, ends="table" if name else None)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Family, Chains]:
    family: Family = draw(st.sampled_from([4, 6]))
    users = sorted(draw(st.sets(st.sampled_from(NAMES))))
    jumps = st.sampled_from([None, FALL_THROUGH, *users])
    rules = st.lists(
        st.builds(
            lambda jump, payload, marked: entry(family, jump, payload, marked=marked),
            jumps,
            st.binary(min_size=1, max_size=8),
            st.booleans(),
        ),
        max_size=4,
    )
    chains = {name: Chain(draw(st.sampled_from(["ACCEPT", "DROP"])), draw(rules)) for name in ("PREROUTING", "OUTPUT")}
    return family, chains | {name: Chain(None, draw(rules)) for name in users}


@given(tables())
def test_what_is_put_together_comes_apart_the_same(table: tuple[Family, Chains]) -> None:
    family, chains = table
    block = compile_block(chains, family)
    assert parse(block, family) == chains
    assert compile_block(parse(block, family), family) == block
    assert len(counters_of(chains)) == block.number


@pytest.mark.parametrize("family", [4, 6])
def test_jumps_are_offsets_of_the_first_rule_behind_the_head(family: Family) -> None:
    chains = {
        "OUTPUT": Chain("ACCEPT", [entry(family, "ISTIO_A", b"x", marked=True)]),
        "ISTIO_A": Chain(None, [entry(family, None, b"y", marked=False)]),
    }
    block = compile_block(chains, family)
    first = len(chains["OUTPUT"].rules[0].body)
    (verdict,) = struct.unpack_from("=i", block.entries, first - 8)
    (length,) = struct.unpack_from("=H", block.entries, verdict + LAYOUTS[family].offsets + 2)
    assert block.entries[verdict : verdict + length] == chains["ISTIO_A"].rules[0].body
    assert block.hooks == 1 << 3
    assert (block.starts[3], block.ends[3]) == (0, first)
