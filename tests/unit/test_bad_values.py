"""Twenty bad values of each kind: refused with the field, the value and what is allowed; no traceback, bounded."""

import time

import pytest
from click.testing import CliRunner

from cni_agent import names
from cni_agent.cli import cli
from cni_agent.decision import decide
from cni_agent.invalid import Invalid
from cni_agent.podview import pod_view
from tests.pods import pod

LONG = "9" * 100_000
NOT_NUMBERS = [
    "-1", "+80", "080", "00", "0x50", "8_0", "80.0", "8e1", "٨٠", "８０", "²", "80\n", "\n80", "80\r", "80;", "'80'",
    '"80"', "80 443", "80:90", "80-90", "http", "NaN", "\x00", "80\x00", LONG, "65536", "4294967296",
]  # fmt: skip
BAD_PORT_LISTS = [bad for bad in NOT_NUMBERS if bad.strip(" \t") != "80"] + ["80,,x", "80,-1", "*,80", "80,*", "80/tcp"]
BAD_OWN_PORTS = [*NOT_NUMBERS, "0", "", "80,81", "*"]
BAD_CIDRS = [
    "10.0.0.0", "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/-1", "10.0.0.0/255.0.0.0", "10.0.0/8", "010.0.0.0/8",
    "10.0.0.256/8", " 10.0.0.0/8", "10.0.0.0/8 ", "10.0.0.0 /8", "10.0.0.0/ 8", "1٠.0.0.0/8", "10.0.0.0/٨",
    "fe80::1%eth0/64", "::/129", ":::/8", "2001:db8::/32\n", "10.0.0.0/8\n-A OUTPUT -j DROP", "'10.0.0.0/8'",
    "*,10.0.0.0/8", "/8", "10.0.0.0/", "any", "\x00", LONG, "1." * 50_000, ":" * 100_000,
]  # fmt: skip
BAD_INTERFACES = [
    "0eth", "_eth0", "-eth0", ".eth", "eth0 -j DROP", "eth0;echo", "eth0|cat", "eth0:1", "veth@if1", "eth0\n", "e\nth0",
    "eth/0", "é", "ｅth0", "eth0+", "a" * 16, LONG, "e" * 100_000, "'eth0'", '"eth0"', "$(id)", "eth0\x00", "!eth0",
]  # fmt: skip
BAD_IDS = [*[bad for bad in NOT_NUMBERS if bad not in ("65536",)], "4294967295", "root", ",", "*", "1337,x"]
BAD_MODES = [
    "redirect", " REDIRECT", "REDIRECT ", "TPROXY\n", "tproxy", "DNAT", "*", "0", "REDIRECT,TPROXY", "'REDIRECT'",
    "NONE ", "none", "\x00", "ＲEDIRECT", LONG, "R" * 100_000, "-", "REDIRECT\x00", "true", "$MODE",
]  # fmt: skip
BAD_MARKS = [*[bad for bad in NOT_NUMBERS if bad not in ("65536",)], "0", "", "1337/0xff", "0x539"]
BAD_TABLES = [*[bad for bad in NOT_NUMBERS if bad not in ("65536",)], "0", "", "253", "254", "255", "main"]
BAD_GROUPS = [
    "Java", "ftp group", "-ftp", "1-5", "+1", "-1", "010", "0x1", "٣", "é", "java\n", "'java'", "java;id", "a" * 33,
    LONG, "g" * 100_000, "\x00", "*,java", "java,*", " java", "4294967295", "$(id)",
]  # fmt: skip
BAD_BOOLS = ["yes", "no", "on", "TrUe", "2", "-", "", " true", "true ", "true\n", "١", "\x00", LONG, "t" * 9, "0.0"]

KINDS = {
    "-b": BAD_PORT_LISTS, "-d": BAD_PORT_LISTS, "-q": BAD_PORT_LISTS, "-o": BAD_PORT_LISTS,
    "-p": BAD_OWN_PORTS, "-z": BAD_OWN_PORTS, "-e": BAD_OWN_PORTS,
    "-i": BAD_CIDRS, "-x": [*BAD_CIDRS, "*"], "-k": BAD_INTERFACES, "-c": BAD_INTERFACES,
    "-u": BAD_IDS, "-g": BAD_IDS, "-m": BAD_MODES, "-t": BAD_MARKS, "-r": BAD_TABLES,
    "ISTIO_OUTBOUND_OWNER_GROUPS": BAD_GROUPS, "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": [*BAD_GROUPS, "*"],
    "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": [*BAD_CIDRS, "", "10.0.0.0/8", "127.0.0.1/7", "::1/128", "127.0.0.1"],
    "--redirect-dns": BAD_BOOLS, "--drop-invalid": BAD_BOOLS, "--capture-all-dns": BAD_BOOLS, "--dual-stack": BAD_BOOLS,
}  # fmt: skip


@pytest.mark.parametrize("field", KINDS)
def test_bad_values_are_refused(field: str) -> None:
    assert len(KINDS[field]) >= 15
    for value in KINDS[field]:
        began = time.process_time()
        if field.startswith("--"):
            result = CliRunner().invoke(cli, ["rules", f"{field}={value}"])
        elif field.startswith("-"):
            result = CliRunner().invoke(cli, ["rules", field, value])
        else:
            if "\x00" in value:
                continue  # no environment can hold it
            result = CliRunner().invoke(cli, ["rules"], env={field: value})
        assert (result.exit_code, result.stdout) == (2, ""), f"{field} {value[:40]!r}: {result.output[:300]}"
        assert field in result.stderr
        assert "expected" in result.stderr
        assert "Traceback" not in result.stderr
        assert len(result.stderr) < 600
        assert time.process_time() - began < 2  # of a few milliseconds: the bound is against blow-up, not a figure


def test_all_violations_are_told_at_once() -> None:
    result = CliRunner().invoke(cli, ["rules", "-p", "0", "-b", "x", "-i", "10.0.0.1", "-m", "NO", "-u", "root"])
    lines = result.stderr.splitlines()
    assert [line.split(":")[1].split("/")[0].strip() for line in lines] == ["-u", "-p", "-m", "-b", "-i"]
    assert lines[3] == (
        "Error: -b/--istio-inbound-ports: 'x' is not allowed; "
        "expected '*', or ports 0 to 65535 in plain decimal, separated by commas"
    )


ANNOTATIONS = {
    names.INCLUDE_INBOUND_PORTS: BAD_PORT_LISTS,
    names.EXCLUDE_INBOUND_PORTS: [*BAD_PORT_LISTS, "*", "80,", ",80"],
    names.INCLUDE_OUTBOUND_PORTS: [*BAD_PORT_LISTS, "*", "80,", ",80"],
    names.EXCLUDE_OUTBOUND_PORTS: [*BAD_PORT_LISTS, "*", "80,", ",80"],
    names.INCLUDE_OUTBOUND_IP_RANGES: [*BAD_CIDRS, "10.0.0.0/8,"],
    names.EXCLUDE_OUTBOUND_IP_RANGES: [*BAD_CIDRS, "*", "10.0.0.0/8,"],
    names.EXCLUDE_INTERFACES: [*BAD_INTERFACES, "eth0,,eth1"],
    names.REROUTE_INTERFACES: [*BAD_INTERFACES, "eth0,,eth1"],
    names.KUBEVIRT_INTERFACES: [*BAD_INTERFACES, "eth0,,eth1"],
    names.INTERCEPTION_MODE: [*BAD_MODES, ""],
}


@pytest.mark.parametrize("annotation", ANNOTATIONS)
def test_bad_annotations_are_refused(annotation: str) -> None:
    for value in ANNOTATIONS[annotation]:
        with pytest.raises(Invalid) as caught:
            decide(pod_view(pod({names.STATUS: "", annotation: value})))
        assert [violation.field for violation in caught.value.violations] == [annotation]
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize("field", ["runAsUser", "runAsGroup"])
@pytest.mark.parametrize("value", [-1, 2**32 - 1, 2**63 - 1])
def test_bad_ids_of_the_proxy_are_refused(field: str, value: int) -> None:
    with pytest.raises(Invalid, match=field):
        decide(pod_view(pod(proxy={"securityContext": {field: value}})))


@pytest.mark.parametrize("address", ["", "10.0.0", "10.0.0.1/24", "host", "١٠.0.0.1", "9" * 100_000])
def test_what_is_no_address_in_a_pods_status_is_refused(address: str) -> None:
    manifest = pod()
    manifest["status"] = {"podIPs": [{"ip": "10.0.0.1"}, {"ip": address}]}
    if address == "":
        assert decide(pod_view(manifest))
        return
    with pytest.raises(Invalid, match=r"status\.podIPs") as caught:
        decide(pod_view(manifest))
    assert len(str(caught.value)) < 600
