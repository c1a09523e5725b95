"""The walk through the rules agrees with the kernel: random settings, random packets, sent for real."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from cni_agent import names
from cni_agent.backends import BACKENDS, Name
from cni_agent.build import build
from cni_agent.capture import Capture, Family
from cni_agent.explaining.packet import Packet, inbound, outbound
from cni_agent.explaining.trace import Ending, Trace, arranged, trace
from cni_agent.nft import nft_text
from cni_agent.restore import restore_text
from cni_agent.rules import Dialect, Rule, Ruleset
from tests.kernel.lab import CLIENT, EXCLUDED, FAMILIES, OUTSIDE, POD, POD_NET1, VIA_NET1, Lab, Place
from tests.kernel.landings import Landing, Shot, Wire

pytestmark = pytest.mark.kernel

RULESETS, PACKETS = 50, 40  # for each backend, and for each ruleset: 2000 a backend
OUTBOUND_PORTS, INBOUND_PORTS = (15001, 15101), (15006, 15106)
APP_PORTS = (53, 80, 3306, 8080, 9090, names.TUNNEL_PORT, names.STATUS_PORT)
ALL_PORTS = (*APP_PORTS, *OUTBOUND_PORTS, *INBOUND_PORTS, names.DNS_PROXY_PORT)
USERS, GROUPS = (0, 1000, 1337, 1338), ("0", "1000", "1337", "2000")
CIDRS = (
    "10.77.3.0/24", "10.77.0.0/16", "10.77.5.2/32", "10.77.1.2/32", "10.77.6.9/24", "127.0.0.0/8", "127.0.0.6/32",
    "0.0.0.0/0", "fd77:3::/64", "fd77::/16", "fd77:5::2/128", "fd77:1::2/128", "::1/128", "::/0",
)  # fmt: skip
OUTSIDES = (OUTSIDE, EXCLUDED, VIA_NET1, CLIENT)
HOMES: dict[Family, tuple[str, ...]] = {4: ("127.0.0.1", "127.0.0.6", "127.8.8.8"), 6: ("::1",)}
PASSTHROUGH: dict[Family, str] = {4: "127.0.0.6", 6: "::6"}


class Case(NamedTuple):
    """One packet through one ruleset: where it was seen."""

    ruleset: Ruleset
    packet: Packet
    landing: Landing | None


def random_capture(dice: random.Random) -> Capture:
    def some(items: tuple[object, ...], most: int = 3) -> tuple[object, ...]:
        return tuple(dice.sample(items, dice.randint(0, min(most, len(items)))))

    return Capture(
        outbound_port=dice.choice(OUTBOUND_PORTS),
        inbound_port=dice.choice(INBOUND_PORTS),
        tunnel_port=dice.choice((names.TUNNEL_PORT, names.TUNNEL_PORT, 8080)),
        proxy_uids=dice.choice(((1337,), (1337,), (1337, 1338), (1000,))),
        proxy_gids=dice.choice(((1337,), (1337,), (2000,), (1337, 1000))),
        mode=dice.choice(("REDIRECT", "TPROXY")),
        tproxy_mark=dice.choice((names.TPROXY_MARK, names.TPROXY_MARK, names.LOOP_MARK)),
        include_inbound_ports=dice.choice(("*", "*", some(APP_PORTS, 5))),
        exclude_inbound_ports=some(APP_PORTS),
        include_outbound_ports=some(APP_PORTS, 2),
        exclude_outbound_ports=some(APP_PORTS, 2),
        include_outbound_cidrs=dice.choice(("*", "*", some(CIDRS, 4))),
        exclude_outbound_cidrs=some(CIDRS, 2),
        reroute_interfaces=dice.choice(((), (), ("net1",), ("net1", "eth0"))),
        exclude_interfaces=dice.choice(((), (), (), (), (), ("net1",), ("eth0", "net1"), ("lo",))),
        owner_groups_include=dice.choice(("*", "*", "*", "*", "*", "*", ("1000",), ("0", "2000"), ())),
        owner_groups_exclude=some(GROUPS, 1),
        loopback_v4=dice.choice(("127.0.0.1/32", "127.0.0.1/32", "127.0.0.1/8", "127.0.0.6/32")),
        redirect_dns=dice.random() < 0.6,
        capture_all_dns=dice.random() < 0.5,
        resolvers_v4=some((OUTSIDE[4], "127.0.0.1"), 2),
        resolvers_v6=some((OUTSIDE[6], POD[6]), 2),
        drop_invalid=dice.random() < 0.2,
        ipv6=dice.random() < 0.75,
    )


def random_shot(dice: random.Random, capture: Capture) -> Shot:
    family: Family = dice.choice((4, 4, 6))
    protocol = dice.choice(("tcp", "tcp", "tcp", "udp"))
    port = dice.choice((*APP_PORTS, 53, dice.choice(ALL_PORTS)))
    own = (POD[family], POD_NET1[family], *(("::6",) if family == 6 else ()))
    if dice.random() < 0.3:
        interface, destination = dice.choice((("eth0", POD[family]), ("eth0", POD[family]), ("net1", POD_NET1[family])))
        arriving = inbound(CLIENT[family], port, protocol, destination=destination, interface=interface)
        return Shot("client", arriving)
    inside = dice.random() < 0.4
    if inside:
        destination = dice.choice((POD[family], POD_NET1[family], *HOMES[family], PASSTHROUGH[family]))
    else:
        destination = dice.choice(OUTSIDES)[family]
    bound = inside and dice.random() < 0.2
    # a handshake whose packets are routed by mark alone gets no further than its first: only datagrams show the way
    marked = inside or protocol == "udp"
    leaving = outbound(
        destination,
        port,
        protocol,
        local=own,
        source=PASSTHROUGH[family] if bound else None,
        interface="net1" if destination == VIA_NET1[family] else "eth0",
        uid=dice.choice(USERS),
        gid=dice.choice(GROUPS),
        mark=dice.choice((0, 0, 0, 0, 0, 0, capture.tproxy_mark, names.LOOP_MARK)) if marked else 0,
    )
    # routed to lo by its mark alone, IPv6 would take ::6 for its source, the only address that lo has beside ::1
    return Shot("pod", leaving, bound or (not inside and leaving.mark != 0))


class Programmed:
    """The rules of one ruleset after the other in the lab's pod, each with its routes, none with what was before."""

    def __init__(self, lab: Lab, backend: Name) -> None:
        self.lab = lab
        self.backend = backend
        self.routes: list[str] = []
        lab.run("pod", "ip", "-6", "address", "add", "::6/128", "dev", "lo")

    def put(self, ruleset: Ruleset) -> None:
        self._clear()
        if ruleset.tproxy:
            for family in ruleset.families:
                rule = f"-{family} rule %s fwmark {ruleset.tproxy.mark} lookup {ruleset.tproxy.table}"
                route = f"-{family} route %s local default dev lo table {ruleset.tproxy.table}"
                for command in (rule, route):
                    self._ip(command % "add")
                    self.routes.append(command % "del")
        if self.backend == "nftables":
            self.lab.run("pod", "nft", "-f", "-", text=nft_text(ruleset))
            return
        for family in ruleset.families:
            self.lab.run("pod", self._restore(family), "--noflush", text=restore_text(ruleset, family))

    def _clear(self) -> None:
        while self.routes:
            self._ip(self.routes.pop())
        if self.backend == "iptables-legacy":
            for family in FAMILIES:
                empty = "".join(f"*{table}\nCOMMIT\n" for table in ("raw", "mangle", "nat"))
                self.lab.run("pod", self._restore(family), text=empty)
        else:
            self.lab.run("pod", "nft", "flush", "ruleset")

    def _restore(self, family: Family) -> str:
        tool = "iptables" if family == 4 else "ip6tables"
        return f"{tool}-{self.backend.partition('-')[2]}-restore"

    def _ip(self, command: str) -> None:
        self.lab.run("pod", "ip", *command.split())


def dialect_of(backend: Name) -> Dialect:
    return "nftables" if backend == "nftables" else "iptables"


@contextmanager
def wired() -> Iterator[tuple[Lab, Wire]]:
    """A lab whose places beyond the pod listen, and can be reached."""
    with Lab() as lab, Wire(lab) as wire:
        wire.listen("outside", ALL_PORTS)
        wire.listen("client", ALL_PORTS)
        wire.settle([
            Shot("pod", outbound(place[family], 80, "udp", local=POD.values()))
            for place in OUTSIDES for family in FAMILIES
        ])  # fmt: skip
        yield lab, wire


@pytest.fixture(scope="module", params=BACKENDS)
def cases(request: pytest.FixtureRequest) -> list[Case]:
    """What the kernel did with every packet."""
    backend: Name = request.param
    seen: list[Case] = []
    with wired() as (lab, wire):
        wire.listen("pod", ALL_PORTS, transparent=INBOUND_PORTS)
        programmed = Programmed(lab, backend)
        for number in range(RULESETS):
            dice = random.Random(f"{backend} {number}")
            capture = random_capture(dice)
            ruleset = build(capture, dialect_of(backend), fail_closed=backend == "nftables")
            programmed.put(ruleset)
            shots = [random_shot(dice, capture) for _ in range(PACKETS)]
            for shot, landing in zip(shots, wire.send(shots), strict=True):
                seen.append(Case(ruleset, shot.packet, landing))
    return seen


def walk(ruleset: Ruleset, packet: Packet) -> Trace:
    return trace(arranged(ruleset, packet.family), packet, ruleset.dialect)


def predicted(ruleset: Ruleset, packet: Packet) -> Landing | None:
    """Where the walk says that the packet lands."""
    result = walk(ruleset, packet)
    if result.ending.dropped:
        return None
    original = (str(packet.destination), packet.port) if packet.protocol == "tcp" else None
    if result.ending.receiver:
        assert result.ending.port is not None
        return Landing("pod", result.ending.port, original)
    inside = packet.hook == "PREROUTING" or result.last.interface == "lo"
    place: Place = "pod" if inside else "client" if packet.destination in CLIENT.values() else "outside"
    return Landing(place, packet.port, original)


def agrees(expected: Landing | None, seen: Landing | None) -> bool:
    """A place beyond the pod tracks nothing, so it remembers no original destination."""
    if expected is None or seen is None:
        return expected is seen
    return expected[:2] == seen[:2] and seen.original in (None, expected.original)


def described(case: Case) -> str:
    result = walk(case.ruleset, case.packet)
    matched = "\n  ".join(f"{step.hook} {step.entry.table} {step.entry.text}" for step in result.steps if step.matched)
    return f"{case.packet}\nexpected {predicted(case.ruleset, case.packet)}\nseen {case.landing}\n  {matched}"


def disagreeing(cases: list[Case], change: Callable[[Ruleset], Ruleset] = lambda ruleset: ruleset) -> list[Case]:
    """The cases that the walk gets wrong, when it walks rules changed in this way."""
    return [case for case in cases if not agrees(predicted(change(case.ruleset), case.packet), case.landing)]


def test_the_walk_agrees_with_the_kernel(cases: list[Case]) -> None:
    wrong = disagreeing(cases)
    assert not wrong, f"{len(wrong)} of {len(cases)}\n" + "\n\n".join(map(described, wrong[:10]))


def test_the_packets_met_every_fate(cases: list[Case]) -> None:
    """Else the agreement would say little."""
    fates = Counter((case.packet.family, walk(case.ruleset, case.packet).ending.receiver) for case in cases)
    receivers = ("outbound listener", "inbound listener", "resolver", None)
    assert all(fates[family, receiver] >= 3 for family in FAMILIES for receiver in receivers), fates
    assert {case.landing.place for case in cases if case.landing} == {"pod", "outside", "client"}


@pytest.mark.parametrize("order", ["reversed", "exclusions last", *range(5)])
def test_a_wrong_order_of_the_rules_is_noticed(cases: list[Case], order: str | int) -> None:
    def change(rules: list[Rule]) -> list[Rule]:
        if order == "reversed":
            return rules[::-1]
        if order == "exclusions last":
            return sorted(rules, key=lambda rule: rule.chain == "ISTIO_OUTPUT" and rule.target.verb == "return")
        return random.Random(order).sample(rules, len(rules))

    assert disagreeing(cases, lambda ruleset: replace(ruleset, rules=tuple(change(list(ruleset.rules)))))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("backend", "fail_closed", "landing"),
    [
        ("iptables-nft", False, None),
        ("iptables-legacy", False, None),
        ("nftables", False, 8080),
        ("nftables", True, None),
    ],
)
def test_tproxy_while_no_proxy_listens(backend: Name, fail_closed: bool, landing: int | None, family: Family) -> None:
    capture = Capture(mode="TPROXY", include_inbound_ports="*", ipv6=True)
    ruleset = build(capture, dialect_of(backend), fail_closed=fail_closed)
    packet = inbound(CLIENT[family], 8080, "tcp", destination=POD[family])
    chains = arranged(ruleset, family)
    ending = trace(chains, packet, ruleset.dialect, listening=False).ending
    assert ending == Ending(dropped=landing is None)
    with wired() as (lab, wire):
        wire.listen("pod", (8080,))
        Programmed(lab, backend).put(ruleset)
        (seen,) = wire.send([Shot("client", packet)], seconds=1.0)
    assert (seen and seen.port) == landing


@pytest.mark.parametrize(("backend", "port"), [("iptables-nft", 53), ("iptables-legacy", 53), ("nftables", 15053)])
def test_packets_without_a_socket(backend: Name, port: int) -> None:
    """A tunnel's ARP requests are the kernel's own: whom an inverted owner match takes them for differs."""
    capture = Capture(redirect_dns=True, capture_all_dns=True, owner_groups_include=("1000",))
    ruleset = build(capture, dialect_of(backend))
    packet = outbound(OUTSIDE[4], 53, "udp", local=[POD[4]])
    ending = walk(ruleset, packet).ending
    assert (ending.port or packet.port) == port
    with wired() as (lab, wire):
        wire.listen("pod", (15053,))
        Programmed(lab, backend).put(ruleset)
        tunnel = f"link add tunnel type vxlan id 7 remote {OUTSIDE[4]} dstport 53 dev eth0"
        for command in (tunnel, "address add 10.99.0.1/24 dev tunnel", "link set tunnel up"):
            lab.run("pod", "ip", *command.split())
        seen = wire.provoke(Shot("pod", outbound("10.99.0.2", 9090, "udp", local=["10.99.0.1"])))
    assert (seen.place, seen.port) == ("outside" if port == 53 else "pod", port)
