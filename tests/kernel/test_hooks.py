"""All rules are in place and no packet gets to them: their table sleeps, or their chain hangs on another hook."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from cni_agent.backends import Name
from cni_agent.capture import Capture
from cni_agent.explaining.packet import inbound, outbound
from cni_agent.kernel import nf_changes, transaction
from cni_agent.kernel import nf_tables as nf
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.failure import Failure, NotAsWritten
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netlink import Channel
from cni_agent.kernel.notices import Notices
from tests.kernel.lab import CLIENT, FAMILIES, OUTSIDE, POD, Lab, shared_backend
from tests.kernel.landings import Shot, Wire
from tests.kernel.tools import everything, sh

pytestmark = pytest.mark.kernel
PORT = 8080
CAPTURE = Capture(include_inbound_ports="*", include_outbound_cidrs="*", ipv6=True)
OUT = [Shot("pod", outbound(OUTSIDE[one], PORT, "tcp", local=POD.values(), uid=1000, gid="1000")) for one in FAMILIES]
IN = [Shot("client", inbound(CLIENT[one], PORT, "tcp", destination=POD[one])) for one in FAMILIES]
CAPTURED, PAST = {("pod", 15001), ("pod", 15006)}, {("outside", PORT), ("pod", PORT)}
DORMANT = "it is dormant: no packet gets to its chains"


class Scene(NamedTuple):
    """A captured pod and who receives what."""

    lab: Lab
    wire: Wire
    name: Name

    @property
    def tables(self) -> list[str]:
        return ["inet istio-proxy-nat"] if self.name == "nftables" else ["ip nat", "ip6 nat"]

    @property
    def output(self) -> str:
        return "output" if self.name == "nftables" else "OUTPUT"

    def nft(self, line: str) -> None:
        """What somebody does in the pod, to each of our tables."""
        for table in self.tables:
            self.sh("nft -f -", line.replace("TABLE", table).replace("OUTPUT", self.output))

    def sh(self, command: str, text: str = "") -> str:
        return sh(self.lab.netns["pod"], command, text)

    def everything(self) -> str:
        return everything(self.lab.netns["pod"])

    def apply(self) -> str:
        """It is one transaction that mends it: the kernel announces each."""
        program = shared_backend(self.name)
        notices = Notices()
        with Inside(self.lab.netns["pod"], notices) as inside:
            inside.looking()
        try:
            outcome = program.apply(self.lab.netns["pod"], program.ruleset(CAPTURE))
            assert notices.transactions() == (outcome != "unchanged")
        finally:
            notices.close()
        return outcome

    def check(self) -> tuple[Difference, ...]:
        program = shared_backend(self.name)
        return program.check(self.lab.netns["pod"], program.ruleset(CAPTURE))

    def landings(self) -> set[tuple[str, int] | None]:
        return {landing and (landing.place, landing.port) for landing in self.wire.send(OUT + IN)}

    def mended(self, right: str) -> None:
        """Packets are captured again, by what was there from the beginning."""
        assert self.apply() == "replaced"
        assert (self.check(), self.apply()) == ((), "unchanged")
        assert self.landings() == CAPTURED
        assert self.everything() == right


@pytest.fixture(params=["iptables-nft", "nftables"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with Lab() as lab, Wire(lab) as wire:
        wire.listen("pod", (15001, 15006, PORT))
        wire.listen("outside", (PORT,))
        wire.settle(OUT + IN)
        yield Scene(lab, wire, request.param)


def test_a_dormant_table_is_found_and_woken(scene: Scene) -> None:
    scene.apply()
    right = scene.everything()
    assert scene.landings() == CAPTURED
    scene.nft("add table TABLE { flags dormant; }")
    assert scene.landings() == PAST
    assert scene.check() == tuple(Difference("changed", table, DORMANT) for table in scene.tables)
    scene.mended(right)


@pytest.mark.parametrize(
    ("hook", "found"),
    [
        ("{ type nat hook output priority 300; }", "type nat hook output priority 300"),
        ("{ type nat hook input priority -100; }", "type nat hook input priority -100"),
        ("{ type filter hook output priority -100; }", "type filter hook output priority -100"),
        ("", "no hook"),
    ],
)
def test_a_chain_on_another_hook_is_found_and_made_anew(scene: Scene, hook: str, found: str) -> None:
    """Somebody deleted it and made it again; for a chain of another type, without the jump."""
    scene.apply()
    right = scene.everything()
    ours = "istio-output" if scene.name == "nftables" else "ISTIO_OUTPUT"
    jump = "" if "filter" in hook or "input" in hook else f"\nadd rule TABLE OUTPUT jump {ours}"
    scene.nft(f"delete chain TABLE OUTPUT\nadd chain TABLE OUTPUT {hook}{jump}")
    changed = [difference for difference in scene.check() if difference.kind == "changed"]
    assert changed == [
        Difference("changed", f"{table} {scene.output}", f"{found}, expected type nat hook output priority -100")
        for table in scene.tables
    ]
    if "priority 300" not in hook:  # a connection may be redirected there as well, but after others had their say
        assert ("outside", PORT) in scene.landings()
    scene.mended(right)


def test_a_chain_of_ours_on_a_hook_is_made_anew(scene: Scene) -> None:
    if scene.name == "nftables":
        pytest.skip("native tables are written anew as a whole")
    scene.apply()
    right = scene.everything()
    scene.nft(
        "flush chain TABLE OUTPUT\nflush chain TABLE ISTIO_OUTPUT\ndelete chain TABLE ISTIO_OUTPUT\n"
        "add chain TABLE ISTIO_OUTPUT { type nat hook output priority 5; }\nadd rule TABLE ISTIO_OUTPUT accept"
    )
    sentence = "type nat hook output priority 5, expected no hook"
    assert Difference("changed", "ip nat ISTIO_OUTPUT", sentence) in scene.check()
    scene.mended(right)


def test_rules_of_others_in_a_chain_made_anew_are_kept(scene: Scene) -> None:
    """In place and order, with their counts."""
    if scene.name == "nftables":
        pytest.skip("native tables are ours alone")
    scene.apply()
    scene.nft(
        "delete chain TABLE OUTPUT\n"
        "add chain TABLE THEIRS\nadd set TABLE ports { type inet_service; elements = { 7, 8 }; }\n"
        "add chain TABLE OUTPUT { type nat hook output priority 300; }\n"
        "add rule TABLE OUTPUT udp dport @ports counter packets 5 bytes 55 accept\n"
        "add rule TABLE OUTPUT udp dport 9 jump THEIRS\n"
        "add rule TABLE OUTPUT jump ISTIO_OUTPUT\n"
        'add rule TABLE OUTPUT limit rate 3/second tcp dport 1 log prefix "x" comment "theirs"\n'
    )
    before = {table: scene.sh(f"nft list chain {table} OUTPUT").splitlines()[3:] for table in scene.tables}
    assert scene.apply() == "replaced"
    for table, rules in before.items():
        now = scene.sh(f"nft list chain {table} OUTPUT").splitlines()
        assert "priority dstnat" in now[2] or "priority -100" in now[2]
        assert [line.replace("counter packets 0 bytes 0 jump I", "jump I") for line in now[3:]] == rules
    assert (scene.check(), scene.apply()) == ((), "unchanged")
    assert scene.landings() == CAPTURED


def test_rules_of_the_tool_itself_in_a_chain_made_anew_are_kept(scene: Scene) -> None:
    if scene.name == "nftables":
        pytest.skip("native tables are ours alone")
    tools = ("iptables-nft", "ip6tables-nft")
    rules = (
        "-p udp -m multiport --dports 1,2 -m comment --comment y -j ACCEPT",
        "-p udp -m owner --uid-owner 7 -j REDIRECT --to-ports 9",
        "-m conntrack --ctstate NEW -m limit --limit 5/min -j LOG",
    )
    for tool in tools:
        for rule in rules:
            scene.sh(f"{tool} -t nat -A OUTPUT {rule}")
    assert scene.apply() == "applied"
    right = scene.everything()
    _rehook(scene)
    assert [found.kind for found in scene.check()] == ["changed", "changed"]
    scene.mended(right)


def _rehook(scene: Scene) -> None:
    """What no tool does that writes rules of iptables: the chain as it is, with another priority."""
    with Inside(scene.lab.netns["pod"]) as inside:
        found = nf.read(inside.firewall, lambda table: table[1] == "nat")
        parts: list[bytes] = []
        for key, chain in found.chains.items():
            if key[2] == "OUTPUT":
                other = chain._replace(hook=chain.hook[:-4] + (300).to_bytes(4))
                parts += [nf_changes.flush_chain(key), nf_changes.delete_chain(key), nf_changes.new_chain(key, other)]
                parts += [nf_changes.new_rule(key, nf_changes.copied(rule)) for rule in found.rules[key]]
        batch = nf_changes.batch(parts)
        assert inside.firewall.commit(batch.framed(0), batch.last) is None


def test_rules_of_others_that_cannot_be_written_again_are_not_lost(scene: Scene) -> None:
    """A set without a name goes with its rule; then nothing is done, and it is said what to do."""
    if scene.name == "nftables":
        pytest.skip("native tables are ours alone")
    scene.apply()
    scene.nft(
        "delete chain TABLE OUTPUT\nadd chain TABLE OUTPUT { type nat hook output priority 300; }\n"
        "add rule TABLE OUTPUT udp dport { 7, 8 } accept"
    )
    before = scene.everything()
    with pytest.raises(Failure, match="ip nat OUTPUT") as caught:
        shared_backend(scene.name).apply(scene.lab.netns["pod"], shared_backend(scene.name).ruleset(CAPTURE))
    assert caught.value.reason == "foreign-chain"
    assert scene.everything() == before
    scene.nft("delete chain TABLE OUTPUT")
    assert scene.apply() == "replaced"
    assert scene.landings() == CAPTURED


def test_a_dormant_table_with_a_chain_on_another_hook(scene: Scene) -> None:
    """Newer kernels refuse to do both in one transaction: it is woken at last, when all else is right."""
    scene.apply()
    right = scene.everything()
    scene.nft("delete chain TABLE OUTPUT\nadd chain TABLE OUTPUT { type nat hook output priority 300; }")
    scene.nft("add table TABLE { flags dormant; }")
    assert {found.kind for found in scene.check()} == {"changed", "missing"}
    program = shared_backend(scene.name)
    assert program.apply(scene.lab.netns["pod"], program.ruleset(CAPTURE)) == "replaced"
    assert scene.check() == ()
    assert scene.landings() == CAPTURED
    assert scene.everything() == right


def test_what_somebody_does_between_writing_and_reading_back_is_noticed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Channel.commit

    def committed(channel: Channel, *batch: Any) -> Any:
        refusal = commit(channel, *batch)
        scene.nft("add table TABLE { flags dormant; }")
        return refusal

    monkeypatch.setattr(transaction.Channel, "commit", committed)
    program = shared_backend(scene.name)
    ruleset = program.ruleset(CAPTURE)
    program._mint(ruleset)  # type: ignore[attr-defined]
    with pytest.raises(NotAsWritten, match="dormant"):
        program.apply(scene.lab.netns["pod"], ruleset)


def test_tables_and_chains_that_are_not_ours_may_sleep_and_hang_where_they_like(scene: Scene) -> None:
    scene.sh(
        "nft -f -",
        "add table ip filter { flags dormant; }\nadd table ip6 mine { flags dormant; }\nadd table ip nat\n"
        "add chain ip nat POSTROUTING { type nat hook postrouting priority 7; }\nadd chain ip nat INPUT\n",
    )
    assert scene.apply() == "applied"
    assert (scene.check(), scene.apply()) == ((), "unchanged")
    assert scene.landings() == CAPTURED
    assert scene.sh("nft list ruleset").count("flags dormant") == 2
    assert "priority filter + 7" in scene.sh("nft list chain ip nat POSTROUTING")
