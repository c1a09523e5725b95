"""`cni-agent doctor`: what this node can do, found by trying."""

import json
import subprocess
import sys

import pytest

from cni_agent.kernel.netns import Netns
from cni_agent.kernel.probe import Verdict, choose, probe
from tests.kernel.tools import sh

pytestmark = pytest.mark.kernel


def doctor(*arguments: str, wrapper: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*wrapper, sys.executable, "-m", "cni_agent", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_this_node_can_do_all_of_it() -> None:
    done = doctor("--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["chosen"] == "iptables-nft"
    assert {(item["backend"], item["family"]) for item in found["backends"] if item["works"]} == {
        (name, family) for name in ("iptables-nft", "iptables-legacy", "nftables") for family in (4, 6)
    }


def test_it_says_so_in_words() -> None:
    done = doctor()
    assert done.returncode == 0
    assert "iptables-legacy IPv6  ok" in done.stdout
    assert done.stdout.rstrip().endswith("iptables-nft")


def test_without_rights_it_says_what_is_needed() -> None:
    done = doctor(wrapper=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    assert done.returncode == 1
    assert "none: no backend works" in done.stdout
    assert "run as root with CAP_NET_ADMIN" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_node_without_ipv6_is_said_to_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Netns.scratch

    def without() -> Netns:
        made = whole()
        sh(made, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
        return made

    monkeypatch.setattr(Netns, "scratch", without)
    four, six = probe("iptables-nft")
    assert four.works
    assert not six.works
    assert "IPv6" in six.detail
    assert six.mend == "sysctl -w net.ipv6.conf.all.disable_ipv6=0"
    assert choose([four, six]) == "iptables-nft"


def test_the_choice_prefers_both_families_then_what_operators_know() -> None:
    def verdict(name: str, family: int, works: bool) -> Verdict:
        return Verdict(name, family, works, "")  # type: ignore[arg-type]

    only_four = [verdict("iptables-nft", 4, True), verdict("iptables-nft", 6, False)]
    both = [verdict("nftables", 4, True), verdict("nftables", 6, True)]
    assert choose(only_four + both) == "nftables"
    assert choose(only_four) == "iptables-nft"
    assert choose([]) is None
