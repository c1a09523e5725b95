"""The routing that TPROXY and IPv6 need: there once, with any numbers, and gone afterwards."""

import json

import pytest

from cni_agent.backends import Name, backend
from cni_agent.capture import Capture
from cni_agent.kernel.netns import Netns
from tests.kernel.tools import DEFAULT, NAMES, sh

pytestmark = pytest.mark.kernel


def tproxy(mark: int = 1337, table: int = 133, *, ipv6: bool = True) -> Capture:
    return Capture(mode="TPROXY", include_inbound_ports="*", tproxy_mark=mark, tproxy_table=table, ipv6=ipv6)


def marks(netns: Netns, family: int) -> list[tuple[int, str]]:
    """Mark and table of the rules, as iproute2 reads them."""
    rules = json.loads(sh(netns, f"ip -{family} -j rule"))
    return [(int(rule["fwmark"], 16), rule["table"]) for rule in rules if "fwmark" in rule]


def routes(netns: Netns, family: int, table: int) -> list[tuple[str, str, str]]:
    found = json.loads(sh(netns, f"ip -{family} -j route show table all type local") or "[]")
    return [(r["type"], r["dst"], r["dev"]) for r in found if r.get("table") == str(table)]


def addresses(netns: Netns) -> list[str]:
    found = json.loads(sh(netns, "ip -6 -j addr show dev lo"))
    return [f"{a['local']}/{a['prefixlen']}" for link in found for a in link.get("addr_info", [])]


@pytest.mark.parametrize("name", NAMES)
def test_rule_route_and_address_of_both_families_once(name: Name) -> None:
    program = backend(name)
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        for _ in range(3):
            program.apply(pod, program.ruleset(tproxy()))
        for family in (4, 6):
            assert marks(pod, family) == [(1337, "133")]
            assert routes(pod, family, 133) == [("local", "default", "lo")]
        assert addresses(pod) == ["::6/128", "::1/128"] or set(addresses(pod)) == {"::6/128", "::1/128"}
        assert program.remove(pod)
        for family in (4, 6):
            assert marks(pod, family) == []
            assert routes(pod, family, 133) == []
        assert addresses(pod) == ["::1/128"]


def test_other_numbers_replace_the_old_ones() -> None:
    program = backend("iptables-nft")
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        for mark, table in ((1337, 133), (7, 1000), (0xFFFFFFFF, 252)):
            assert program.apply(pod, program.ruleset(tproxy(mark, table))) != "unchanged"
            assert marks(pod, 4) == marks(pod, 6) == [(mark, str(table))]
            assert routes(pod, 6, table) == [("local", "default", "lo")]
        assert routes(pod, 4, 133) == routes(pod, 4, 1000) == []
        program.apply(pod, program.ruleset(tproxy(ipv6=False)))
        assert (marks(pod, 4), marks(pod, 6)) == ([(1337, "133")], [])
        assert addresses(pod) == ["::1/128"]
        program.apply(pod, program.ruleset(DEFAULT))
        assert marks(pod, 4) == []


def test_duplicates_of_earlier_programs_are_reduced_to_one() -> None:
    """istio-init adds one more of the same at each run."""
    program = backend("iptables-nft")
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up; for i in 1 2 3; do ip rule add fwmark 1337 lookup 133; done")
        program.apply(pod, program.ruleset(tproxy()))
        assert marks(pod, 4) == [(1337, "133")]
        assert program.check(pod, program.ruleset(tproxy())) == ()


def test_routes_of_others_stay() -> None:
    program = backend("nftables")
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up; ip rule add fwmark 9 lookup 99; ip route add local default dev lo table 99")
        program.apply(pod, program.ruleset(tproxy()))
        program.apply(pod, program.ruleset(DEFAULT))
        program.remove(pod)
        assert marks(pod, 4) == [(9, "99")]
        assert routes(pod, 4, 99) == [("local", "default", "lo")]


def test_a_bare_loopback_is_raised_for_tproxy_only() -> None:
    program = backend("iptables-nft")
    with Netns.scratch() as pod:
        program.apply(pod, program.ruleset(DEFAULT))
        assert "DOWN" in sh(pod, "ip link show lo")
        program.apply(pod, program.ruleset(tproxy()))
        assert "LOOPBACK,UP" in sh(pod, "ip link show lo")
        assert program.check(pod, program.ruleset(tproxy())) == ()
