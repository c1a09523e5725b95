"""Quantities as apimachinery prints them again: every canonical row agrees with the peer's own answer."""

import pytest

from cni_agent.values import Refused
from injector.mutation.quantity import canonical


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("2000m", "2"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("5.", "5."),
        ("1000", "1k"),
        ("100000k", "100M"),
        ("1024Mi", "1Gi"),
        ("1000Ki", "1000Ki"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1e3", "1e3"),
        ("1000e3", "1e6"),
        ("2000e18", "2e21"),
        ("0", "0"),
        ("-0Gi", "0"),
        ("007G", "007G"),
        ("+1E", "+1E"),
        ("1.10", "1100m"),
        ("0.0000000001", "1n"),
        ("99999999999999999999", "99999999999999999999"),
        ("99999999999999999999Ei", "9223372036854775807"),
    ],
)
def test_canonical(written: str, printed: str) -> None:
    assert canonical(written) == printed


@pytest.mark.parametrize(
    "written", ["", "m", ".", "1K", "1 ", "1e", "1x", "１", "1e99999999", "9" * 200, "--1", "1.2.3"]
)
def test_refused(written: str) -> None:
    """Of these the peer takes a bare suffix or dot, and numbers that no machine has; nobody means them."""
    with pytest.raises(Refused):
        canonical(written)
