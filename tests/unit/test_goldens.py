"""The rules, word for word those of Istio, for every case of the conformance data."""

from typing import Any

import pytest

from cni_agent.build import build
from cni_agent.capture import Capture
from cni_agent.decision import decide
from cni_agent.flag_table import FLAGS
from cni_agent.flags import capture_from_flags
from cni_agent.nft import nft_text
from cni_agent.podview import pod_view
from cni_agent.restore import restore_text
from tests.conformance import cases, golden


def capture_of(config: dict[str, Any]) -> Capture:
    """The settings of a case, read as our own flags are."""
    given = {}
    for flag in FLAGS:
        if flag.istio in config:
            value = config[flag.istio]
            given[flag.key] = str(value).lower() if isinstance(value, bool) else str(value)
    resolvers = [*config["DNSServersV4"], *config["DNSServersV6"]]
    return capture_from_flags(given, {}, ipv6=config["EnableIPv6"], resolvers=lambda: resolvers)


@pytest.mark.parametrize("case", cases("iptables"))
def test_restore_text_equals_istio_iptables(case: dict[str, Any]) -> None:
    ruleset = build(capture_of(case["config"]))
    text = "".join(restore_text(ruleset, family) for family in ruleset.families)
    assert text.strip() == golden("iptables", case)


@pytest.mark.parametrize("case", cases("nftables"))
def test_nft_text_equals_istio_nftables(case: dict[str, Any]) -> None:
    assert nft_text(build(capture_of(case["config"]), "nftables")).strip() == golden("nftables", case)


@pytest.mark.parametrize("case", cases("plugin"))
def test_rules_of_a_pod_equal_istio_cni(case: dict[str, Any]) -> None:
    given = case["pod"]
    lists = {key: given[key] for key in ("containers", "initContainers")}
    capture = decide(pod_view({"metadata": given["metadata"], "spec": lists}), ipv6=False)
    assert isinstance(capture, Capture)
    assert restore_text(build(capture), 4).strip() == golden("plugin", case)
