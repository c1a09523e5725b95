"""`cni-agent explain` as people and scripts call it."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cni_agent import names
from cni_agent.cli import cli
from tests.pods import pod

POD_IP = "10.244.1.9"


def explain(*args: str, manifest: dict[str, Any] | None = None, **environ: str) -> Result:
    given = [] if manifest is None else ["--pod", "-"]
    stdin = json.dumps(manifest) if manifest else ""
    return CliRunner().invoke(cli, ["explain", *given, *args], input=stdin, env=environ)


def web(annotations: dict[str, str] | None = None, *addresses: str, **proxy: Any) -> dict[str, Any]:
    manifest = pod({names.STATUS: "{}", **(annotations or {})}, proxy=proxy or None)
    manifest["status"] = {"podIPs": [{"ip": address} for address in addresses or (POD_IP,)]}
    return manifest


DNS = {"env": [{"name": names.DNS_CAPTURE, "value": "true"}]}
SAID: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("--to 10.96.0.7:443", web(), "captured",
     ["Envoy's outbound listener 15001", "includeOutboundIPRanges: * (default)"]),
    ("--to 10.96.0.7:3306", web({names.EXCLUDE_OUTBOUND_PORTS: "3306, 6379"}), "not-captured",
     ["3306 is an excluded outbound port", "excludeOutboundPorts: 3306,6379\n"]),
    ("--to 10.96.0.7:443", web({names.EXCLUDE_OUTBOUND_IP_RANGES: "10.96.0.0/16"}), "not-captured",
     ["10.96.0.0/16 is an excluded outbound range", "excludeOutboundIPRanges: 10.96.0.0/16\n"]),
    ("--to 10.96.0.7:443", web({names.INCLUDE_OUTBOUND_IP_RANGES: "10.1.0.0/16"}), "not-captured",
     ["no included range has its address", "includeOutboundIPRanges: 10.1.0.0/16\n"]),
    ("--to 10.96.0.7:443", web({names.EXCLUDE_INTERFACES: "eth0"}), "not-captured",
     ["eth0 is an excluded interface", "excludeInterfaces: eth0\n"]),
    ("--to 10.96.0.7:443 --uid 1337", web(), "not-captured",
     ["the proxy's own traffic (uid 1337)", "runAsUser of istio-proxy: 1337 (default)"]),
    (f"--to {POD_IP}:8080 --uid 1337", web(), "looped-back",
     ["Looped back: goes to Envoy's inbound listener 15006", "the proxy calling its own pod"]),
    (f"--to {POD_IP}:8080", web(), "not-captured", ["the application calling its own pod", "stays in the pod"]),
    ("--to 10.0.0.3:80 --local 10.0.0.3", web(), "not-captured", ["the application calling its own pod"]),
    ("--to [::1]:80", web(None, "fd00::9"), "not-captured", ["the application calling its own pod"]),
    (f"--to {POD_IP}:80 --from 127.0.0.6", web(), "not-captured", ["what the proxy passes through"]),
    ("--to 10.96.0.10:53 --proto udp", web(**DNS), "dns",
     ["DNS: goes to pilot-agent's resolver 15053", "ISTIO_META_DNS_CAPTURE of istio-proxy: true\n"]),
    ("--to 10.96.0.10:53 --proto udp", web(), "not-captured", ["DNS capture is off"]),
    ("--from 10.0.0.1 --port 8080", web(), "captured", ["Envoy's inbound listener 15006", "includeInboundPorts: *"]),
    ("--from 10.0.0.1 --port 15021", web({names.EXCLUDE_INBOUND_PORTS: "81"}), "not-captured",
     ["15021 is an excluded inbound port, the proxy's own", "excludeInboundPorts: 81,15020,15021,15090\n"]),
    ("--from 10.0.0.1 --port 81", web({names.INCLUDE_INBOUND_PORTS: "80"}), "not-captured",
     ["81 is not among the included inbound ports", "includeInboundPorts: 80\n"]),
    ("--from 10.0.0.1 --port 80", web({names.INTERCEPTION_MODE: "TPROXY"}), "captured",
     ["Envoy's inbound listener 15006", "else it is dropped"]),
    ("--machine --interface vm0 --from 10.0.0.8 --to 10.96.0.7:443", web({names.KUBEVIRT_INTERFACES: "vm0"}),
     "captured", ["outbound listener 15001", "virtual machine behind vm0", "kubevirtInterfaces: vm0\n"]),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["iptables-nft", "nftables"])
@pytest.mark.parametrize(("args", "manifest", "verdict", "words"), SAID, ids=[said[0] for said in SAID])
def test_what_is_said(args: str, manifest: dict[str, Any], verdict: str, words: list[str], backend: str) -> None:
    result = explain(*args.split(), "--backend", backend, manifest=manifest)
    assert result.exit_code == 0, result.output
    assert [word for word in words if word not in result.stdout] == []
    data = json.loads(explain(*args.split(), "--backend", backend, "--json", manifest=manifest).stdout)
    assert data["verdict"] == verdict
    deciding = [line for line in result.stdout.splitlines() if line.startswith("  decides  ")]
    assert deciding == ([f"  decides  {data['decision']['rule']}"] if data["decision"] else [])


def test_ipv6_of_a_pod_that_is_not_known_to_have_it() -> None:
    """The tables of iptables are then empty for it, while inet tables hold for it all the same."""
    said = explain("--to", "[2001:db8::1]:443", manifest=web()).stdout
    assert "not known to have IPv6" in said
    assert f"Set by status.podIPs: {POD_IP}\n" in said
    assert "listener 15001" in explain("--to", "[2001:db8::1]:443", "--backend", "nftables", manifest=web()).stdout


def test_an_address_of_the_pod_that_names_no_host_is_passed_over() -> None:
    result = explain("--to", "10.96.0.7:443", manifest=web(None, POD_IP, "fe80::1%eth0"))
    assert (result.exit_code, "listener 15001" in result.stdout) == (0, True), result.output


def test_verbose_shows_what_did_not_match() -> None:
    short, long = (explain("--to", "10.96.0.7:443", *more, manifest=web()).stdout for more in ([], ["-v"]))
    assert "  no       " not in short
    assert "  no       -A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN\n" in long
    assert set(short.splitlines()) < set(long.splitlines())


def test_flags_instead_of_a_pod() -> None:
    result = explain("-i", "*", "-b", "*", "-o", "3306", "--to", "10.0.0.7:3306")
    assert "Set by -o/--istio-local-outbound-ports-exclude: 3306\n" in result.stdout
    from_environment = explain("-i", "*", "--to", "10.0.0.7:3306", ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE="3306")
    assert "Set by ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE: 3306\n" in from_environment.stdout
    assert "--istio-service-cidr: (nothing) (default)\n" in explain("--to", "10.0.0.7:3306").stdout


def test_json_holds_the_whole_walk() -> None:
    data = json.loads(explain("--to", "10.96.0.7:443", "--json", manifest=web()).stdout)
    assert data["receiver"] == "outbound listener"
    assert data["port"] == 15001
    assert data["decision"]["chain"] == "ISTIO_OUTPUT"
    assert data["settings"] == [{"name": names.INCLUDE_OUTBOUND_IP_RANGES, "value": "*", "default": True}]
    assert {step["matched"] for step in data["steps"]} == {True, False}
    assert data["differences"] is None


@pytest.mark.parametrize("manifest", [pod(hostNetwork=True), pod({})])
def test_a_pod_that_is_not_captured(manifest: dict[str, Any]) -> None:
    result = explain("--to", "10.0.0.7:80", manifest=manifest)
    assert (result.exit_code, result.stdout) == (3, "")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("", "--to ADDR:PORT"),
        ("--to 10.0.0.7:80 --port 80", "--to ADDR:PORT"),
        ("--port 80", "--from ADDR --port PORT"),
        ("--from 10.0.0.7", "--from ADDR --port PORT"),
        ("--from 10.0.0.7 --port 80 --machine", "--machine goes with --to"),
        ("--from 10.0.0.7 --port 80 --uid 1", "no such process"),
        ("--to 10.0.0.7:80 --no-socket --gid 1", "no such process"),
        ("--to 10.0.0.7:80 --from fd00::1", "different families"),
        (f"--from {POD_IP} --port 80", "with --to"),
        ("--from 127.0.0.1 --port 80", "with --to"),
        ("--to 10.0.0.7:80 --live", "--live needs --netns"),
        ("--to 10.0.0.7:80 --netns /x", "--netns goes with --live"),
    ],
)
def test_wrong_usage(args: str, words: str) -> None:
    result = explain(*args.split(), manifest=web())
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


BAD: dict[str, list[str]] = {
    "--to": ["10.0.0.7", "10.0.0.7:", ":80", "10.0.0.7:0", "10.0.0.7:65536", "10.0.0.7:http", "web:80", "fd00::1:80",
             "[fd00::1]", "[10.0.0.7]:80", "[fd00::1:80", "0.0.0.0:80", "[::]:80", "224.0.0.1:80", "10.0.0.7:٨٠",
             "10.0.0.7:80\n", "9" * 100_000, "[fe80::1%eth0]:80", "10.0.0.256:80", "010.0.0.1:80"],
    "--from": ["", "web", "10.0.0.0/8", "fd00::1%eth0", "::", "255.255.255.255.1", "1" * 100_000, "ff02::1"],
    "--uid": ["", "-1", "root", "4294967295", "1.0", "01", "9" * 100_000],
    "--gid": ["", "-1", "a,b", "A", "4294967295"],
    "--mark": ["", "-1", "0x539", "4294967296"],
    "--interface": ["", "eth0,eth1", "0eth", "e" * 16, "eth0;x"],
    "--local": ["", "10.0.0.0/8", "web"],
}  # fmt: skip


@pytest.mark.parametrize("option", BAD)
def test_bad_values_are_named(option: str) -> None:
    for value in BAD[option]:
        given = {"--to": "10.0.0.7:80", option: value}
        result = explain(*(part for pair in given.items() for part in pair), manifest=web())
        assert result.exit_code == 2, (value[:50], result.output[:500])
        assert result.stderr.startswith(f"Error: {option}: "), result.stderr[:500]
        assert len(result.stderr) < 400
