"""A rule of somebody else stands before ours: packets go past the proxy until ours are first again, and it stays."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from cni_agent.backends import Name
from cni_agent.capture import Capture
from cni_agent.cli import cli
from cni_agent.explaining.packet import inbound, outbound
from cni_agent.kernel.differences import Difference
from tests.kernel.lab import CLIENT, EXCLUDED, FAMILIES, OUTSIDE, POD, Lab, shared_backend
from tests.kernel.landings import Shot, Wire
from tests.kernel.tools import sh

pytestmark = pytest.mark.kernel
PORT = 8080
CAPTURE = Capture(include_inbound_ports="*", include_outbound_cidrs="*", ipv6=True)
OUT = [Shot("pod", outbound(OUTSIDE[one], PORT, "tcp", local=POD.values(), uid=1000, gid="1000")) for one in FAMILIES]
IN = [Shot("client", inbound(CLIENT[one], PORT, "tcp", destination=POD[one])) for one in FAMILIES]


class Scene(NamedTuple):
    """A captured pod and who receives what."""

    lab: Lab
    wire: Wire
    name: Name

    def tool(self, line: str, *, lenient: bool = False) -> None:
        """What somebody does in the pod with iptables and ip6tables; a line that begins with 4 or 6 is for one."""
        for family in FAMILIES:
            if line[0] in "46" and line[0] != str(family):
                continue
            command = f"ip{'6' * (family == 6)}tables-{self.name.removeprefix('iptables-')} {line.lstrip('46 ')}"
            sh(self.lab.netns["pod"], command + (" || true" if lenient else ""))

    def saved(self) -> str:
        variant = self.name.removeprefix("iptables-")
        return sh(self.lab.netns["pod"], f"iptables-{variant}-save; ip6tables-{variant}-save")

    def apply(self) -> str:
        program = shared_backend(self.name)
        return program.apply(self.lab.netns["pod"], program.ruleset(CAPTURE))

    def check(self) -> tuple[Difference, ...]:
        program = shared_backend(self.name)
        return program.check(self.lab.netns["pod"], program.ruleset(CAPTURE))

    def landings(self, shots: list[Shot]) -> set[tuple[str, int] | None]:
        return {landing and (landing.place, landing.port) for landing in self.wire.send(shots)}


@pytest.fixture(params=["iptables-nft", "iptables-legacy"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with Lab() as lab, Wire(lab) as wire:
        wire.listen("pod", (15001, 15006, PORT, 9999))
        wire.listen("outside", (PORT,))
        wire.settle(OUT + IN)
        yield Scene(lab, wire, request.param)


# what somebody writes first, the rule before ours, and where packets then go
AWAY = [
    ("", "-j ACCEPT", ("outside", PORT)),
    ("", "-p tcp --dport 8080 -j RETURN", ("outside", PORT)),
    ("-N AWAY", "-g AWAY", ("outside", PORT)),
    ("-A AWAY -j ACCEPT", "-j AWAY", ("outside", PORT)),
    ("", "-p tcp -j NFQUEUE --queue-num 7 --queue-bypass", ("outside", PORT)),
    ("", "-p tcp -j REDIRECT --to-ports 9999", ("pod", 9999)),
]


def test_what_came_later_and_takes_packets_away_is_found_and_outdone(scene: Scene) -> None:
    scene.apply()
    assert scene.landings(OUT) == {("pod", 15001)}
    for first, rule, lands in AWAY:
        if first:
            scene.tool(f"-t nat {first}")
        scene.tool(f"-t nat -I OUTPUT 1 {rule}")
        assert scene.landings(OUT) == {lands}, rule
        text = next(line for line in scene.saved().splitlines() if line.startswith("-A OUTPUT"))
        assert scene.check() == tuple(
            Difference("bypass", f"{family} nat OUTPUT", f"{text} stands before -A OUTPUT -j ISTIO_OUTPUT")
            for family in ("ip", "ip6")
        )
        assert scene.apply() == "replaced"
        assert scene.check() == ()
        assert scene.apply() == "unchanged", "one repair is enough"
        assert scene.landings(OUT) == {("pod", 15001)}, rule
        assert scene.saved().count(text) == 2, "what is not ours stays"
        scene.tool(f"-t nat -D OUTPUT {rule}")


def test_inbound_traffic_too(scene: Scene) -> None:
    scene.apply()
    assert scene.landings(IN) == {("pod", 15006)}
    scene.tool("-t nat -I PREROUTING 1 -p tcp --dport 8080 -j ACCEPT")
    assert scene.landings(IN) == {("pod", PORT)}
    assert {found.where for found in scene.check()} == {"ip nat PREROUTING", "ip6 nat PREROUTING"}
    assert scene.apply() == "replaced"
    assert scene.landings(IN) == {("pod", 15006)}


def test_what_was_there_before_us_stays_before_us(scene: Scene) -> None:
    """Istio appends its jumps: an exception that was made first is one that somebody wanted."""
    spared = [Shot("pod", outbound(EXCLUDED[4], PORT, "tcp", local=POD.values(), uid=1000, gid="1000"))]
    scene.tool(f"4 -t nat -A OUTPUT -d {EXCLUDED[4]} -j ACCEPT")
    scene.tool("-t nat -N THEIRS")
    scene.tool("-t nat -A OUTPUT -j THEIRS")
    assert scene.apply() == "applied"
    assert (scene.check(), scene.apply()) == ((), "unchanged")
    assert scene.landings(spared) == {("outside", PORT)}
    assert scene.landings(OUT) == {("pod", 15001)}
    scene.tool("-t nat -A THEIRS -p tcp -j ACCEPT")  # an old jump, a young rule
    assert scene.landings(OUT) == {("outside", PORT)}
    assert [found.kind for found in scene.check()] == ["bypass", "bypass"]
    assert scene.apply() == "replaced"
    assert scene.landings(OUT) == {("pod", 15001)}
    assert scene.landings(spared) == {("outside", PORT)}, "ours go before what takes packets past them, no further"


def test_what_takes_nothing_past_the_proxy_is_no_drift(scene: Scene) -> None:
    scene.apply()
    scene.tool("-t nat -N QUIET")
    for rule in ("-j LOG", "-p tcp", "-j MARK --set-mark 7", "-j QUIET", "-j QUIET -p udp"):
        scene.tool(f"-t nat -I OUTPUT 1 {rule}")
        scene.tool(f"-t mangle -I PREROUTING 1 {rule}", lenient="QUIET" in rule)
    scene.tool("-t nat -A QUIET -j RETURN")
    scene.tool("-t nat -A OUTPUT -j ACCEPT")  # behind ours
    scene.tool("-t nat -A POSTROUTING -j ACCEPT")
    scene.tool("-t mangle -I OUTPUT -j ACCEPT")
    scene.tool("-t filter -I OUTPUT -j ACCEPT")
    assert (scene.check(), scene.apply()) == ((), "unchanged")
    assert scene.landings(OUT) == {("pod", 15001)}


def test_changed_settings_do_not_put_our_rules_behind_it_again(scene: Scene) -> None:
    scene.apply()
    scene.tool("-t nat -I OUTPUT 1 -j ACCEPT")
    program = shared_backend(scene.name)
    other = program.ruleset(Capture(include_outbound_cidrs="*", exclude_outbound_ports=(3306,), ipv6=True))
    program.apply(scene.lab.netns["pod"], other)
    assert scene.landings(OUT) == {("pod", 15001)}


def test_explain_says_who_takes_it(scene: Scene) -> None:
    scene.apply()
    scene.tool("-t nat -I OUTPUT 1 -p tcp --dport 8080 -j ACCEPT")
    path = f"/proc/self/fd/{scene.lab.netns['pod'].fd}"
    where = ["--netns", path, "--backend", scene.name, "-i", "*", "-b", "*", "--dual-stack"]
    said = CliRunner().invoke(cli, ["explain", "--live", *where, "--to", f"{OUTSIDE[4]}:{PORT}"])
    assert "decides  [0] -A OUTPUT -p tcp -m tcp --dport 8080 -j ACCEPT" in said.stdout
    assert "Not captured, because a rule that is not of Istio's making says so." in said.stdout
    assert "bypass  ip nat OUTPUT: -A OUTPUT -p tcp -m tcp --dport 8080 -j ACCEPT stands before" in said.stdout
    checked = CliRunner().invoke(cli, ["check", *where])
    assert checked.exit_code == 1
    assert checked.stdout.startswith("bypass  ip nat OUTPUT: ")
