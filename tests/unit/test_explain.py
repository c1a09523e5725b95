"""What explain says of any packet and any settings: every decision has a reason, and the setting named is the one."""

import dataclasses
import doctest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_agent.build import build
from cni_agent.capture import Capture
from cni_agent.explaining import packet as packets
from cni_agent.explaining.explain import explain
from cni_agent.explaining.origins import ORIGINS
from cni_agent.explaining.packet import Packet, inbound, outbound
from cni_agent.explaining.purpose import purpose
from cni_agent.explaining.trace import Ending, Trace, arranged, trace
from cni_agent.rules import Dialect, Rule
from tests.strategies import captures

POD = "10.244.1.9"
OUT, IN = Ending("outbound listener", 15001), Ending("inbound listener", 15006)
DEFAULT = Capture(include_inbound_ports="*", include_outbound_cidrs="*", exclude_inbound_ports=(15020,))


@st.composite
def situations(draw: st.DrawFn) -> tuple[Capture, Dialect, Packet]:
    """Settings, and a packet made of the values that they name, so that its rules have something to match."""
    capture = draw(captures)
    family = draw(st.sampled_from([4, 6]))
    prefixes = [*capture.exclude_outbound_cidrs, *capture.resolvers_v4, *capture.resolvers_v6, "10.9.9.9", "fd00::9"]
    prefixes += ["127.0.0.1", "::1", POD, "fd00::1"]
    prefixes += [] if capture.include_outbound_cidrs == "*" else capture.include_outbound_cidrs
    addresses = [prefix.partition("/")[0] for prefix in prefixes]
    address = draw(st.sampled_from([one for one in addresses if packets.family_of(one) == family]))
    ports = [53, 80, capture.tunnel_port, *capture.exclude_outbound_ports, *capture.include_outbound_ports]
    ports += [*capture.exclude_inbound_ports, *(p for p in capture.include_inbound_ports if isinstance(p, int))]
    port, protocol = draw(st.sampled_from(ports)), draw(st.sampled_from(["tcp", "udp"]))
    interface = draw(st.sampled_from(["eth0", *capture.exclude_interfaces, *capture.reroute_interfaces]))
    mark = draw(st.sampled_from([0, 0, capture.tproxy_mark]))
    dialect = draw(st.sampled_from(["iptables", "nftables"]))
    local = [POD, "fd00::1"]
    if draw(st.booleans()):
        return capture, dialect, inbound(address, port, protocol, local=local, interface=interface, mark=mark)
    groups = [*capture.proxy_gids, *capture.owner_groups_exclude, 0, None]
    groups += [] if capture.owner_groups_include == "*" else capture.owner_groups_include
    uid, gid = draw(st.sampled_from([*capture.proxy_uids, 0])), draw(st.sampled_from(groups))
    source = draw(st.sampled_from([None, {4: "127.0.0.6", 6: "::6"}[family]]))
    return capture, dialect, outbound(
        address, port, protocol, local=local, interface=interface, source=source, mark=mark,
        uid=None if gid is None else uid, gid=None if gid is None else str(gid),
    )  # fmt: skip


def walked(capture: Capture, dialect: Dialect, packet: Packet) -> Trace:
    return trace(arranged(build(capture, dialect, fail_closed=True), packet.family), packet, dialect)


def without(capture: Capture, setting: str) -> Capture:
    """The settings, but for one that is off, empty or another."""
    other: dict[str, Any] = {
        "mode": "REDIRECT",
        "loopback_v4": "127.99.0.1/32",
        "owner_groups_include": "*",
        "proxy_uids": (max(capture.proxy_uids) + 1,),
        "proxy_gids": (max(capture.proxy_gids) + 1,),
        "tunnel_port": capture.tunnel_port % 65535 + 1,
        "tproxy_mark": capture.tproxy_mark % (2**32 - 1) + 1,
        "redirect_dns": False,
        "capture_all_dns": False,
    }
    return dataclasses.replace(capture, **{setting: other.get(setting, ())})


def rule_of(found: Trace) -> Rule | None:
    return found.decision.rule if found.decision else None


@settings(max_examples=300, deadline=None)
@given(situations())
def test_every_decision_has_a_reason(situation: tuple[Capture, Dialect, Packet]) -> None:
    capture, dialect, packet = situation
    rule = rule_of(walked(capture, dialect, packet))
    assert rule is None or purpose(rule, capture) is not None, rule


@settings(max_examples=300, deadline=None)
@given(situations())
def test_the_setting_that_is_named_is_responsible(situation: tuple[Capture, Dialect, Packet]) -> None:
    capture, dialect, packet = situation
    rule = rule_of(walked(capture, dialect, packet))
    rules = build(capture, dialect).rules
    if rule is None or rules.count(rule) != 1:  # two settings may give the same rule
        return
    found = purpose(rule, capture)
    assert found is not None
    for setting in found.settings:
        assert rule not in build(without(capture, setting), dialect).rules, f"{setting} does not give {rule}"


@settings(max_examples=200, deadline=None)
@given(situations())
def test_every_setting_that_is_named_has_an_origin(situation: tuple[Capture, Dialect, Packet]) -> None:
    capture, dialect, packet = situation
    chains = arranged(build(capture, dialect, fail_closed=True), packet.family)
    said = explain(chains, packet, dialect, capture)
    assert set(said.settings) <= ORIGINS.keys()
    assert (said.verdict == "not-captured") == (said.trace.ending == Ending())
    assert said.reason
    assert said.where


def test_every_field_of_the_settings_has_an_origin() -> None:
    computed = {"resolvers_v4", "resolvers_v6"}  # from resolv.conf
    assert ORIGINS.keys() == {field.name for field in dataclasses.fields(Capture)} - computed


@pytest.mark.parametrize(
    ("packet", "changes", "dialect", "ending"),
    [
        # the proxy to its own pod, the application to its own pod, and both elsewhere
        (outbound(POD, 80, "tcp", local=[POD], uid=1337, gid="1"), {}, "iptables", IN),
        (outbound(POD, 80, "tcp", local=[POD], uid=1, gid="1"), {}, "iptables", Ending()),
        (outbound("10.9.9.9", 80, "tcp", uid=1337, gid="1"), {}, "iptables", Ending()),
        (outbound("10.9.9.9", 80, "tcp", uid=1, gid="1"), {}, "iptables", OUT),
        # gid 1337 with another uid is not looped back, and is let go elsewhere
        (outbound(POD, 80, "tcp", local=[POD], uid=1, gid="1337"), {}, "iptables", Ending()),
        (outbound("10.9.9.9", 80, "tcp", uid=1, gid="1337"), {}, "iptables", Ending()),
        # an inverted owner match, for what has no socket
        (outbound("10.9.9.9", 80, "tcp"), {"owner_groups_include": ("7",)}, "iptables", Ending()),
        (outbound("10.9.9.9", 80, "tcp"), {"owner_groups_include": ("7",)}, "nftables", OUT),
        # IPv6 of a pod that was not known to have it: the inet tables hold for it all the same
        (outbound("fd00::9", 80, "tcp", uid=1, gid="1"), {}, "iptables", Ending()),
        (outbound("fd00::9", 80, "tcp", uid=1, gid="1"), {}, "nftables", OUT),
        (inbound("10.9.9.9", 80, "tcp", local=[POD]), {}, "iptables", IN),
        (inbound("10.9.9.9", 80, "tcp", local=[POD]), {"mode": "TPROXY"}, "iptables", IN),
        (inbound("10.9.9.9", 15020, "tcp", local=[POD]), {"mode": "TPROXY"}, "nftables", Ending()),
        (inbound("10.9.9.9", 80, "udp", local=[POD]), {}, "iptables", Ending()),
    ],
)  # fmt: skip
def test_where_packets_end(packet: Packet, changes: dict[str, Any], dialect: Dialect, ending: Ending) -> None:
    assert walked(dataclasses.replace(DEFAULT, **changes), dialect, packet).ending == ending


def test_a_rule_that_cannot_be_read_is_told_and_not_followed() -> None:
    packet = outbound("10.9.9.9", 80, "tcp", uid=1, gid="1")
    chains = dict(arranged(build(DEFAULT), 4))
    stranger = dataclasses.replace(chains["nat", "OUTPUT"][0], rule=None, text="-A OUTPUT -m statistic -j DNAT")
    chains["nat", "OUTPUT"] = (stranger, *chains["nat", "OUTPUT"])
    said = explain(chains, packet, "iptables", None)
    assert said.trace.ending == OUT
    assert any("-m statistic" in caveat for caveat in said.caveats)


def test_examples_in_the_documentation_are_true() -> None:
    results = doctest.testmod(packets)
    assert (results.attempted > 0, results.failed) == (True, 0)
