"""Somebody changes the rules by hand: every change is found, told in order, and mended."""

import random
import re
from collections.abc import Callable

import pytest

from cni_agent.backends import Name, backend
from cni_agent.kernel import nf_tables as nf
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.netlink import Channel
from cni_agent.kernel.netns import Netns
from tests.kernel.tools import DEFAULT, NAMES, TPROXY, everything, sh, shown

pytestmark = pytest.mark.kernel
EDITS = 50
Edit = Callable[[Netns, Name, random.Random], str]


def command(name: Name, family: str) -> str:
    return f"{'ip6tables' if family == 'ip6' else 'iptables'}-{name.removeprefix('iptables-')}"


def our_rules(netns: Netns, name: Name) -> list[tuple[str, str, str]]:
    """Family, table and text of each rule."""
    found = []
    for family in ("ip", "ip6"):
        table = ""
        for line in sh(netns, f"{command(name, family)}-save").splitlines():
            if line.startswith("*"):
                table = line[1:]
            elif line.startswith("-A"):
                found.append((family, table, line))
    return found


def delete(netns: Netns, name: Name, dice: random.Random) -> str:
    family, table, rule = dice.choice(our_rules(netns, name))
    sh(netns, f"{command(name, family)} -t {table} {rule.replace('-A', '-D', 1)}")
    return f"delete {rule}"


def insert(netns: Netns, name: Name, dice: random.Random) -> str:
    family, table, rule = dice.choice([item for item in our_rules(netns, name) if item[2].startswith("-A ISTIO")])
    chain = rule.split()[1]
    sh(netns, f"{command(name, family)} -t {table} -I {chain} 1 -p udp --dport {dice.randint(1, 65535)} -j RETURN")
    return f"insert into {chain}"


def duplicate(netns: Netns, name: Name, dice: random.Random) -> str:
    jumps = [item for item in our_rules(netns, name) if "-j ISTIO_" in item[2]]
    family, table, rule = dice.choice(jumps)
    sh(netns, f"{command(name, family)} -t {table} {rule}")
    return f"again {rule}"


def reorder(netns: Netns, name: Name, dice: random.Random) -> str:
    rules = our_rules(netns, name)
    last = {(family, table, rule.split()[1]): rule for family, table, rule in rules}
    movable = [item for item in rules if last[item[0], item[1], item[2].split()[1]] != item[2]]
    family, table, rule = dice.choice(movable)
    tool = f"{command(name, family)} -t {table}"
    sh(netns, f"{tool} {rule.replace('-A', '-D', 1)} && {tool} {rule}")
    return f"reorder {rule}"


def flush(netns: Netns, name: Name, dice: random.Random) -> str:
    family, table, rule = dice.choice(our_rules(netns, name))
    chain = dice.choice(["", rule.split()[1]])
    sh(netns, f"{command(name, family)} -t {table} -F {chain}")
    return f"flush {family} {table} {chain}"


def policy(netns: Netns, name: Name, dice: random.Random) -> str:
    family, chain = dice.choice(["ip", "ip6"]), dice.choice(["PREROUTING", "OUTPUT"])
    sh(netns, f"{command(name, family)} -t mangle -P {chain} DROP")
    return f"policy {family} mangle {chain}"


def unroute(netns: Netns, _: Name, dice: random.Random) -> str:
    line = dice.choice(
        [
            "ip rule del fwmark 1337 lookup 133",
            "ip -6 rule del fwmark 1337 lookup 133",
            "ip addr del ::6/128 dev lo",
            "ip route flush table 133",
            "ip -6 rule add fwmark 1337 lookup 133",
        ]
    )
    sh(netns, line)
    return line


@pytest.mark.parametrize("name", ["iptables-nft", "iptables-legacy"])
def test_every_random_edit_is_found_and_mended(name: Name) -> None:
    dice = random.Random(20260822)
    program = backend(name)
    ruleset = program.ruleset(TPROXY)
    edits: list[Edit] = [delete, insert, duplicate, reorder, flush, policy, unroute]
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        program.apply(pod, ruleset)
        right = everything(pod)
        for number in range(EDITS):
            did = edits[number % len(edits)](pod, name, dice)
            assert program.check(pod, ruleset), f"not found: {did}"
            assert program.apply(pod, ruleset) == "replaced", did
            assert program.check(pod, ruleset) == (), did
            assert everything(pod) == right, did


def test_every_random_edit_of_native_tables_is_found_and_mended() -> None:
    dice = random.Random(20260822)
    program = backend("nftables")
    ruleset = program.ruleset(TPROXY)
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        program.apply(pod, ruleset)
        right = everything(pod)
        for _ in range(EDITS):
            line = _native_edit(sh(pod, "nft -a list ruleset"), dice)
            sh(pod, f"nft '{line}'")
            assert program.check(pod, ruleset), f"not found: {line}"
            assert program.apply(pod, ruleset) == "replaced", line
            assert everything(pod) == right, line


def _native_edit(listing: str, dice: random.Random) -> str:
    table = chain = ""
    rules = []
    for line in listing.splitlines():
        words = line.split()
        if line.startswith("table"):
            table = words[2]
        elif line.startswith("\tchain"):
            chain = words[1]
        elif match := re.fullmatch(r"\t\t(.*) # handle (\d+)", line):
            rules.append((table, chain, match[1], match[2]))
    table, chain, _, handle = dice.choice(rules)
    bases = [(t, c) for t, c, *_ in rules if c in ("prerouting", "output") and t != "istio-proxy-nat"]
    base_table, base_chain = dice.choice(bases)
    return dice.choice(
        [
            f"delete rule inet {table} {chain} handle {handle}",
            f"insert rule inet {table} {chain} udp dport {dice.randint(1, 65535)} return",
            f"replace rule inet {table} {chain} handle {handle} tcp dport {dice.randint(1, 65535)} return",
            f"flush chain inet {table} {chain}",
            f"flush table inet {table}",
            f"delete table inet {table}",
            f"chain inet {base_table} {base_chain} {{ policy drop; }}",
        ]
    )


def test_differences_are_told_in_the_order_of_the_rules() -> None:
    program = backend("iptables-nft")
    ruleset = program.ruleset(DEFAULT)
    tool = "iptables-nft -t nat"
    with Netns.scratch() as pod:
        program.apply(pod, ruleset)
        sh(pod, f"{tool} -D ISTIO_OUTPUT -j ISTIO_REDIRECT")
        sh(pod, f"{tool} -D ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN && {tool} -I ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN")
        sh(pod, f"{tool} -I ISTIO_OUTPUT 3 -p udp --dport 9 -j RETURN")
        sh(pod, "ip addr del ::6/128 dev lo")
        place = "ip nat ISTIO_OUTPUT"
        assert program.check(pod, ruleset) == (
            Difference("extra", place, "-A ISTIO_OUTPUT -p udp -m udp --dport 9 -j RETURN"),
            Difference("moved", place, "-A ISTIO_OUTPUT -d 127.0.0.1/32 -j RETURN"),
            Difference("missing", place, "-A ISTIO_OUTPUT -j ISTIO_REDIRECT"),
            Difference("missing", "address", "ip -6 addr add ::6/128 dev lo"),
        )


@pytest.mark.parametrize("name", NAMES)
def test_checking_changes_nothing(name: Name) -> None:
    program = backend(name)
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        before = everything(pod)
        assert program.check(pod, program.ruleset(TPROXY))
        assert everything(pod) == before
        assert sh(pod, "cat /proc/thread-self/net/ip_tables_names") == ""


def test_counting_packets_is_no_drift() -> None:
    program = backend("iptables-nft")
    ruleset = program.ruleset(DEFAULT)
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        program.apply(pod, ruleset)
        sh(pod, "python3 -c 'import socket; socket.socket().connect_ex((\"127.0.0.1\", 80))'")
        assert re.search(r"\[[1-9]\d*:\d+\] -A OUTPUT", sh(pod, "iptables-nft-save -c"))
        assert program.check(pod, ruleset) == ()
        assert program.apply(pod, ruleset) == "unchanged"
        assert shown(pod, "iptables-nft")


@pytest.mark.parametrize("name", ["iptables-nft", "nftables"])
def test_a_change_between_two_dumps_is_no_drift(name: Name, monkeypatch: pytest.MonkeyPatch) -> None:
    """While we read, somebody brings the rules to what they should be: chains of before, rules of after."""
    program = backend(name)
    ruleset = program.ruleset(TPROXY)
    real = Channel.dump
    asked: list[int] = []

    def dump(channel: Channel, kind: int, *request: bytes) -> bytes:
        answer = real(channel, kind, *request)
        asked.append(kind)
        if asked.count(nf.GET_CHAIN) == 2 and kind == nf.GET_CHAIN:  # the first is for a look at a glance
            monkeypatch.setattr(Channel, "dump", real)
            program.apply(pod, ruleset)
        return answer

    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        program.apply(pod, ruleset)
        program.apply(pod, program.ruleset(DEFAULT))
        monkeypatch.setattr(Channel, "dump", dump)
        assert program.check(pod, ruleset) == ()
        assert asked.count(nf.GET_CHAIN) == 2
