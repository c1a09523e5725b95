"""Every row of the annotation data: what is accepted, refused, skipped or captured, as istio-cni has it."""

from typing import Any

import pytest

from cni_agent import names, values
from cni_agent.addresses import NoAddress, has_ipv6
from cni_agent.capture import Capture
from cni_agent.decision import NotCaptured, decide
from cni_agent.flags import capture_from_flags
from cni_agent.invalid import Invalid
from cni_agent.podview import pod_view
from tests.conformance import cases
from tests.pods import pod

# Rows where the peer lets a value through that breaks later in iptables-restore: we refuse it at once.
WILDCARD_REFUSED = {
    f"{key}='*'" for key in (names.EXCLUDE_INBOUND_PORTS, names.EXCLUDE_OUTBOUND_PORTS, names.INCLUDE_OUTBOUND_PORTS)
}
# Rows about machinery that Initless does not have, or has elsewhere, each with where the question went.
ELSEWHERE = {
    "injector_validation": "what the injector refuses is tested with the injector",
    "repair_filter": "broken pods are tested with the node agent",
    "plugin_is_own_agent_pod": "there is no CNI ADD that could block the agent's own pod",
    "iptables_version_parse": "a backend is chosen by programming it, never by its version",
    "iptables_binary_detect": "a backend is chosen by programming it, never by its version",
}


def of(group: str) -> list[Any]:
    """The rows of one group, or the one skipped parameter when there is no data."""
    return [param for param in cases("annotations") if param.values[0] is None or param.values[0]["group"] == group]


def test_every_group_of_rows_is_tested_or_said_to_be_elsewhere() -> None:
    groups = {param.values[0]["group"] for param in cases("annotations") if param.values[0]}
    tested = {
        "annotation_values", "plugin_redirect", "plugin_eligibility", "interface_names", "owner_groups",
        "host_ipv4_loopback_cidr", "force_iptables_binary", "local_ip_family", "separate_v4_v6", "dedup_ports",
    }  # fmt: skip
    assert groups <= tested | ELSEWHERE.keys()


@pytest.mark.parametrize("case", of("annotation_values"))
def test_annotation_values(case: dict[str, Any]) -> None:
    view = pod_view(pod({names.STATUS: "{}", **case["input"]}))
    if case["name"] in WILDCARD_REFUSED or not case["expect"]["plugin_valid"]:
        if case["input"].get(names.INTERCEPTION_MODE) == "NONE":  # the peer's ADD fails; we leave the pod alone
            decision = decide(view)
            assert isinstance(decision, NotCaptured)
            assert decision.reason == "mode-none"
            return
        with pytest.raises(Invalid) as caught:
            decide(view)
        assert [violation.field for violation in caught.value.violations] == list(case["input"])
    else:
        assert isinstance(decide(view), Capture)


def eligible_pod(data: dict[str, Any]) -> dict[str, Any]:
    """The pod of a row, which says only what matters to it."""
    environment = [{"name": name, "value": value} for name, value in data.get("proxy_env", {}).items()]
    return pod(
        data["annotations"],
        containers=tuple(data["containers"]),
        init_containers=tuple(data.get("init_containers", ())),
        labels=data.get("labels"),
        proxy={"args": data.get("proxy_args", []), "env": environment},
    )


@pytest.mark.parametrize("case", [*of("plugin_eligibility"), *of("plugin_redirect")])
def test_eligibility(case: dict[str, Any]) -> None:
    decision = decide(pod_view(eligible_pod(case["input"])))
    assert isinstance(decision, Capture) == case["expect"]["redirected"]
    if isinstance(decision, Capture):
        for key, field in {
            "includeInboundPorts": "include_inbound_ports",
            "excludeInboundPorts": "exclude_inbound_ports",
        }.items():
            if key in case["expect"]:
                assert ",".join(map(str, getattr(decision, field))) == case["expect"][key]


@pytest.mark.parametrize("case", of("interface_names"))
def test_interface_names(case: dict[str, Any]) -> None:
    assert accepts(lambda: values.interfaces(case["input"])) == case["expect"]["valid"]


@pytest.mark.parametrize("case", of("owner_groups"))
def test_owner_groups(case: dict[str, Any]) -> None:
    environ = {
        "ISTIO_OUTBOUND_OWNER_GROUPS": case["input"]["include"],
        "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": case["input"]["exclude"],
    }
    assert accepts(lambda: flags(environ)) == case["expect"]["valid"]


@pytest.mark.parametrize("case", of("host_ipv4_loopback_cidr"))
def test_loopback_cidr(case: dict[str, Any]) -> None:
    assert accepts(lambda: flags({"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": case["input"]})) == case["expect"]["valid"]


@pytest.mark.parametrize("case", of("force_iptables_binary"))
def test_forced_binary(case: dict[str, Any]) -> None:
    assert accepts(lambda: flags({"FORCE_IPTABLES_BINARY": case["input"]})) == case["expect"]["valid"]


@pytest.mark.parametrize("case", of("local_ip_family"))
def test_local_ip_family(case: dict[str, Any]) -> None:
    addresses, dual_stack = case["input"]["addrs"], case["input"]["dualStack"]
    if "error" in case["expect"]:
        with pytest.raises(NoAddress):
            has_ipv6(addresses, dual_stack=dual_stack)
    else:
        assert has_ipv6(addresses, dual_stack=dual_stack) == case["expect"]["enable_ipv6"]


@pytest.mark.parametrize("case", of("separate_v4_v6"))
def test_cidrs_by_family(case: dict[str, Any]) -> None:
    read = values.cidrs_or_all(case["input"])
    for family in (4, 6):
        expected = case["expect"][f"v{family}"]
        if expected.get("wildcard"):
            assert read == "*"
        else:
            assert [cidr for cidr in read if values.family(cidr) == family] == expected["cidrs"]


@pytest.mark.parametrize("case", of("dedup_ports"))
def test_repeated_ports(case: dict[str, Any]) -> None:
    assert list(values.unique(case["input"])) == case["expect"]


def flags(environ: dict[str, str]) -> Capture:
    return capture_from_flags({}, environ, ipv6=False, resolvers=list)


def accepts(read: Any) -> bool:
    try:
        read()
    except (values.Refused, Invalid):
        return False
    return True
