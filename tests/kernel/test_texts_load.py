"""Any valid settings give text that the ordinary tools accept, in a namespace made for each try."""

import subprocess

import pytest
from hypothesis import HealthCheck, given, settings

from cni_agent.build import build
from cni_agent.capture import Capture
from cni_agent.nft import nft_text
from cni_agent.restore import restore_text
from tests.strategies import captures

pytestmark = pytest.mark.kernel

few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def accepted(text: str, *command: str) -> None:
    """Feeds a tool in a throw-away namespace; the assertion shows the text that it refused."""
    result = subprocess.run(["unshare", "-n", *command], input=text, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, f"{' '.join(command)}: {result.stderr}\n{text}"


@few
@given(captures)
@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_restore_text_loads(variant: str, capture: Capture) -> None:
    ruleset = build(capture)
    accepted(restore_text(ruleset, 4), f"iptables-{variant}-restore", "--noflush", "--test")
    if capture.ipv6:
        accepted(restore_text(ruleset, 6), f"ip6tables-{variant}-restore", "--noflush", "--test")


@few
@given(captures)
@pytest.mark.parametrize("fail_closed", [False, True], ids=["as-istio", "fail-closed"])
def test_nft_text_loads(fail_closed: bool, capture: Capture) -> None:
    accepted(nft_text(build(capture, "nftables", fail_closed=fail_closed)), "nft", "-c", "-f", "-")
