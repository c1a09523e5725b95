"""Each backend leaves in the kernel what the ordinary tool would, for every setting, from every earlier state."""

import socket
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cni_agent.backends import Backend, Name, backend
from cni_agent.capture import Capture
from cni_agent.kernel.netns import Netns
from tests.conformance import cases
from tests.kernel.sandbox import LIBC, run_in_node
from tests.kernel.tools import (
    DEFAULT,
    NAMES,
    TPROXY,
    everything,
    legacy_tables,
    sh,
    shown,
    write_with_tool,
)
from tests.strategies import captures
from tests.unit.test_goldens import capture_of

pytestmark = pytest.mark.kernel
MS_BIND: Final = 0x1000
few = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes with a kernel in the loop
)


@pytest.fixture(params=NAMES)
def program(request: pytest.FixtureRequest) -> Backend:
    return backend(request.param)


def by_tool(program: Backend, capture: Capture) -> str:
    with Netns.scratch() as scratch:
        write_with_tool(scratch, program.name, program.ruleset(capture))
        return shown(scratch, program.name)


@pytest.mark.parametrize("case", cases("iptables"))
def test_conformance_cases_equal_the_ordinary_tool(case: dict[str, Any], program: Backend, tmp_path: Path) -> None:
    capture = capture_of(case["config"])
    named = [g for g in (*capture.owner_groups_include, *capture.owner_groups_exclude) if not g.isdigit() and g != "*"]
    if not named:
        equals_the_ordinary_tool(program, capture)
        return
    groups = tmp_path / "group"  # of a node that knows them; seen only inside the mount namespace of `run_in_node`
    groups.write_text("".join(f"{name}:x:{7000 + number}:\n" for number, name in enumerate(named)))

    def on_that_node() -> None:
        assert LIBC.mount(str(groups).encode(), b"/etc/group", None, MS_BIND, None) == 0
        equals_the_ordinary_tool(program, capture)

    verdict, trace = run_in_node(on_that_node)
    assert verdict == "passed", trace


def equals_the_ordinary_tool(program: Backend, capture: Capture) -> None:
    ruleset = program.ruleset(capture)
    with Netns.scratch() as pod:
        assert program.apply(pod, ruleset) == "applied"
        assert shown(pod, program.name) == by_tool(program, capture)
        before = everything(pod)
        assert program.check(pod, ruleset) == ()
        assert program.apply(pod, ruleset) == "unchanged"
        assert everything(pod) == before
        assert all(backend(name).holds(pod) for name in NAMES)
        assert program.remove(pod)
        assert not any(backend(name).holds(pod) for name in NAMES)
        assert not program.remove(pod)


@pytest.mark.parametrize("name", NAMES)
@few
@given(captures, captures)
def test_any_settings_replace_any_others(name: Name, old: Capture, new: Capture) -> None:
    program = backend(name)
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        bare = everything(pod)
        program.apply(pod, program.ruleset(old))
        program.apply(pod, program.ruleset(new))
        assert program.check(pod, program.ruleset(new)) == ()
        assert shown(pod, name) == by_tool(program, new)
        with Netns.scratch() as fresh:
            sh(fresh, "ip link set lo up")
            program.apply(fresh, program.ruleset(new))
            assert everything(pod) == everything(fresh)
        program.remove(pod)
        assert everything(pod) == bare


@pytest.mark.parametrize("old", NAMES)
@pytest.mark.parametrize("capture", [DEFAULT, TPROXY], ids=["redirect", "tproxy"])
def test_switching_the_backend_leaves_nothing_of_the_old_one(old: Name, capture: Capture, program: Backend) -> None:
    with Netns.scratch() as pod, Netns.scratch() as fresh:
        for netns in (pod, fresh):
            sh(netns, "ip link set lo up")
        before = backend(old)
        before.apply(pod, before.ruleset(TPROXY))
        if old != program.name:
            assert program.check(pod, program.ruleset(capture))
        program.apply(pod, program.ruleset(capture))
        assert program.check(pod, program.ruleset(capture)) == ()
        program.apply(fresh, program.ruleset(capture))
        assert everything(pod) == everything(fresh)


@pytest.mark.parametrize("name", ["iptables-nft", "nftables"])
def test_no_legacy_table_is_created_beside_nf_tables(name: Name) -> None:
    program = backend(name)
    with Netns.scratch() as pod:
        for capture in (DEFAULT, TPROXY):
            program.apply(pod, program.ruleset(capture))
            program.check(pod, program.ruleset(DEFAULT))
        program.remove(pod)
        assert legacy_tables(pod) == []


FOREIGN = """*nat
:CUSTOM - [0:0]
-A PREROUTING -i eth9 -j RETURN
-A PREROUTING -p udp --dport 999 -j CUSTOM
-A OUTPUT -o eth9 -j RETURN
-A CUSTOM -p udp -m comment --comment "not ours" -j ACCEPT
COMMIT
*mangle
-A PREROUTING -i eth7 -j RETURN
-A OUTPUT -p icmp -j MARK --set-mark 7
COMMIT
"""


@pytest.mark.parametrize("name", ["iptables-nft", "iptables-legacy"])
def test_rules_of_others_stay_in_place_and_order(name: Name) -> None:
    """Among them one that looks just like an exclusion of ours (`-i eth7 -j RETURN`) and one added behind ours."""
    program = backend(name)
    variant = name.removeprefix("iptables-")
    with Netns.scratch() as pod, Netns.scratch() as tool:
        for netns in (pod, tool):
            sh(netns, "ip link set lo up")
            sh(netns, f"iptables-{variant}-restore --noflush", FOREIGN)
        before = shown(pod, name)
        assert program.apply(pod, program.ruleset(TPROXY)) == "applied"
        write_with_tool(tool, name, program.ruleset(TPROXY))
        assert shown(pod, name) == shown(tool, name)

        late = f"iptables-{variant} -t nat -A OUTPUT -p udp --dport 77 -j ACCEPT"
        sh(pod, late)
        assert program.check(pod, program.ruleset(TPROXY)) == ()
        assert program.apply(pod, program.ruleset(DEFAULT)) == "replaced"
        assert program.check(pod, program.ruleset(DEFAULT)) == ()
        lines = [line for line in shown(pod, name).splitlines() if line.startswith("-A OUTPUT")]
        nat = [line for line in lines if "MARK" not in line]
        assert nat == ["-A OUTPUT -o eth9 -j RETURN", "-A OUTPUT -j ISTIO_OUTPUT",
                       "-A OUTPUT -p udp -m udp --dport 77 -j ACCEPT", "-A OUTPUT -j ISTIO_OUTPUT"]  # fmt: skip

        assert program.remove(pod)
        sh(pod, late.replace("-A", "-D"))
        assert _rules(shown(pod, name)) == _rules(before)


@pytest.mark.parametrize("name", ["iptables-nft", "iptables-legacy"])
def test_counters_of_others_survive(name: Name) -> None:
    program = backend(name)
    variant = name.removeprefix("iptables-")
    count = f"iptables-{variant}-save -c -t mangle"
    with Netns.scratch() as pod:
        sh(pod, f"ip link set lo up; iptables-{variant} -t mangle -A OUTPUT -p udp -j MARK --set-mark 7")
        pod.run_inside(_two_datagrams)
        assert "[2:60] -A OUTPUT -p udp" in sh(pod, count)
        program.apply(pod, program.ruleset(TPROXY))
        assert "[2:60] -A OUTPUT -p udp" in sh(pod, count)


def test_a_namespace_that_the_ordinary_tool_wrote_is_taken_as_it_is(program: Backend) -> None:
    """istio-init, or somebody's save and restore: equal rules are equal, whoever wrote them."""
    ruleset = program.ruleset(DEFAULT)
    with Netns.scratch() as pod:
        sh(pod, "ip addr add ::6/128 dev lo")
        write_with_tool(pod, program.name, ruleset)
        assert program.check(pod, ruleset) == ()
        assert program.apply(pod, ruleset) == "unchanged"


def test_long_lists_fit_into_one_transaction(program: Backend) -> None:
    """Ten times the send buffer of a socket."""
    cidrs = tuple(f"10.{high}.{low}.0/24" for high in range(8) for low in range(256))
    capture = Capture(include_inbound_ports="*", exclude_outbound_cidrs=cidrs, include_outbound_cidrs="*")
    with Netns.scratch() as pod:
        assert program.apply(pod, program.ruleset(capture)) == "applied"
        assert shown(pod, program.name).count("10.7.") == 256
        assert program.apply(pod, program.ruleset(DEFAULT)) == "replaced"


def _two_datagrams() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(2):
            sender.sendto(b"xx", ("127.0.0.1", 9))


def _rules(save: str) -> list[str]:
    return [line for line in save.splitlines() if line.startswith(("-A", "*", ":CUSTOM"))]
