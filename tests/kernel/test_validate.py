"""istio-validation in real namespaces, as the proxy's user without any capability, against real rules."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cni_agent.backends import BACKENDS, Name
from cni_agent.capture import Family, Mode
from cni_agent.flags import capture_from_flags
from cni_agent.kernel.netns import Netns
from cni_agent.validation.landing import Packet, landing
from cni_agent.validation.settings import Settings
from tests.kernel.lab import Actor, shared_backend

pytestmark = pytest.mark.kernel

ROOT = Path(__file__).parents[2]
STOCK = [
    "istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*",
    "-d", "15090,15021,15020", "--log_output_level=default:info", "--run-validation", "--skip-rule-apply",
]  # fmt: skip
STOCK_DUAL = [*STOCK, "--dual-stack"]
PROXY, APP, ROOT_USER = (1337, 1337), (1000, 1000), (0, 0)
RESOLVER = "10.88.0.53"
# loads everything first: the files of this project need not be readable by the uid that it then takes
PROGRAM = """
import os, sys
from cni_agent import invalid, validate, values
from cni_agent.validation import pod
uid, gid = map(int, sys.argv[1:3])
if uid or gid:
    os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
resolvers = os.environ["TEST_RESOLVERS"].split()
pod.resolvers = lambda: resolvers
sys.exit(validate.main(sys.argv[3:]))
"""


class Result(NamedTuple):
    code: int
    text: str
    message: str  # what kubelet would show


class Pod:
    """A namespace with an interface whose other end nobody answers, and what runs in it."""

    def __init__(self, netns: Netns, folder: Path) -> None:
        self.netns = netns
        self._log = folder / "termination-log"

    def tool(self, *command: str, text: str = "") -> None:
        result = self.netns.run_inside(
            lambda: subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
        )
        assert result.returncode == 0, f"{command}: {result.stderr}\n{text}"

    def program(
        self, argv: list[str], environ: dict[str, str] | None = None, *, name: Name = "iptables-nft", ipv6: bool = True
    ) -> None:
        """Rules for this command line, as the node agent puts them there."""
        given = dict(_long_flags(Settings(argv, {})))
        capture = capture_from_flags(given, environ or {}, ipv6=ipv6, resolvers=lambda: [RESOLVER])
        backend = shared_backend(name)
        backend.apply(self.netns, backend.ruleset(capture))

    def start(
        self, argv: list[str], user: tuple[int, int] = PROXY, environ: dict[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
    ) -> "subprocess.Popen[str]":  # fmt: skip
        self._log.write_text("")
        self._log.chmod(0o666)
        command = [*wrapper, sys.executable, "-c", PROGRAM, *map(str, user), *argv, "--termination-log", str(self._log)]
        variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "TEST_RESOLVERS": RESOLVER, **(environ or {})}
        return self.netns.run_inside(
            lambda: subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
        )

    def finish(self, process: "subprocess.Popen[str]") -> Result:
        _, text = process.communicate(timeout=60)
        return Result(process.returncode, text, self._log.read_text())

    def validate(self, argv: list[str], user: tuple[int, int] = PROXY, environ: dict[str, str] | None = None) -> Result:
        return self.finish(self.start(argv, user, environ))


def _long_flags(settings: Settings) -> Iterator[tuple[str, str]]:
    for name, text in settings._given.items():
        if not name.startswith("log_"):
            yield f"--{name}", text


@contextmanager
def new_pod(families: tuple[Family, ...] = (4, 6)) -> Iterator[Pod]:
    with Netns.scratch() as netns, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        pod = Pod(netns, Path(folder))
        pod.tool("ip", "link", "set", "lo", "up")
        pod.tool("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "nobody")
        if 4 in families:
            pod.tool("ip", "address", "add", "10.88.0.2/24", "dev", "eth0")
        if 6 in families:
            pod.tool("ip", "-6", "address", "add", "fd88::2/64", "dev", "eth0", "nodad")
        for interface in ("nobody", "eth0"):
            pod.tool("ip", "link", "set", interface, "up")
        if 4 in families:
            pod.tool("ip", "route", "add", "default", "via", "10.88.0.1")
        if 6 in families:
            pod.tool("ip", "-6", "route", "add", "default", "via", "fd88::1")
        yield pod


@pytest.fixture
def pod() -> Iterator[Pod]:
    with new_pod() as made:
        yield made


@pytest.mark.parametrize("mode", ["REDIRECT", "TPROXY"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_captured(pod: Pod, backend: Name, mode: Mode) -> None:
    argv = [*STOCK_DUAL, "-m", mode]
    pod.program(argv, name=backend)
    result = pod.validate(argv)
    assert (result.code, result.message) == (0, ""), result
    assert "inbound, IPv4; " in result.text
    assert "inbound, IPv6" in result.text
    assert ("inbound by TPROXY, IPv6" in result.text) == (mode == "TPROXY")


def test_not_captured(pod: Pod) -> None:
    """The exit code that repair controllers look for, and a message that says what to do."""
    environ = {"NODE_NAME": "worker-7", "POD_NAME": "web-0", "POD_NAMESPACE": "shop"}
    result = pod.validate([*STOCK_DUAL, "--probe-timeout", "200ms"], environ=environ)
    assert result.code == 126
    assert "inbound, IPv4 (uid 1337 to 127.0.0.6:15002 must land on port 15006): Connection refused" in result.message
    assert "inbound, IPv6 (uid 1337 to [::6]:15002 must land on port 15006): ::6 is not on lo" in result.message
    assert "cni-agent on node worker-7" in result.message
    assert "kubectl get events -n shop --field-selector involvedObject.name=web-0" in result.message
    assert result.message in result.text


def test_holds_until_the_rules_are_there(pod: Pod) -> None:
    process = pod.start([*STOCK_DUAL, "--probe-timeout=1m"])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    pod.program(STOCK_DUAL)
    assert pod.finish(process).code == 0


@pytest.mark.parametrize("family", [4, 6])
def test_one_family_is_not_enough(pod: Pod, family: Family) -> None:
    pod.program(STOCK_DUAL)
    pod.tool("iptables-nft" if family == 6 else "ip6tables-nft", "-t", "nat", "-F", "ISTIO_OUTPUT")
    result = pod.validate([*STOCK_DUAL, "--probe-timeout=200ms"])
    assert result.code == 126
    assert f"inbound, IPv{10 - family}" in result.message
    assert f"inbound, IPv{family}" not in result.message


def test_one_family_is_enough_without_dual_stack(pod: Pod) -> None:
    pod.program(STOCK, ipv6=False)
    assert "the pod's IPv6 is not captured" in pod.validate(STOCK).text
    for argv in (STOCK, [*STOCK_DUAL, "--compatibility", "istio"]):
        assert pod.validate(argv).code == 0


@pytest.mark.parametrize("family", [4, 6])
def test_pods_of_one_family(family: Family) -> None:
    with new_pod((family,)) as pod:
        assert pod.validate([*STOCK, "--probe-timeout=100ms"]).code == 126
        pod.program(STOCK)
        result = pod.validate(STOCK)
        assert result.code == 0
        assert f"IPv{10 - family}" not in result.text


def test_a_pod_without_an_address() -> None:
    with new_pod(()) as pod:
        result = pod.validate(STOCK_DUAL)
        assert result.code == 1
        assert "no address" in result.message


@pytest.mark.parametrize(
    ("more", "environ", "user"),
    [
        ([], {"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": "127.0.0.1/8"}, PROXY),
        (["-o", "15002"], {}, PROXY),
        (["-u", "4242"], {}, (4242, 4242)),
        (["-u", "4242", "-g", "4343"], {}, (4242, 4343)),
        (["-z", "16006"], {}, PROXY),
        (["-i", "10.0.0.0/8,127.0.0.1/32"], {}, PROXY),
        (["-i", "", "-b", ""], {}, PROXY),
        (["--redirect-dns", "--capture-all-dns"], {}, PROXY),
        (["-m", "TPROXY", "-t", "99", "-r", "98"], {}, PROXY),
        (["-m", "TPROXY", "-b", "8080"], {}, PROXY),
        (["-m", "TPROXY", "-d", "15008"], {}, PROXY),
        (["-c", "net1"], {}, PROXY),
        (["-x", "10.88.0.0/16"], {}, PROXY),
        (["--drop-invalid"], {}, PROXY),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings(pod: Pod, more: list[str], environ: dict[str, str], user: tuple[int, int]) -> None:
    """Fails before and passes after, whatever the settings are."""
    argv = [*STOCK_DUAL, *more]
    assert pod.validate([*argv, "--probe-timeout=100ms"], user, environ).code == 126
    pod.program(argv, environ)
    assert pod.validate(argv, user, environ).code == 0


def test_another_user_proves_outbound_and_dns(pod: Pod) -> None:
    argv = [*STOCK_DUAL, "--redirect-dns", "--capture-all-dns"]
    assert pod.validate([*argv, "--probe-timeout=100ms"], APP).code == 126
    pod.program(STOCK_DUAL)
    result = pod.validate([*argv, "--probe-timeout=200ms"], APP)
    assert result.code == 126
    assert "DNS over udp, IPv4" in result.message
    assert "DNS over tcp, IPv6" in result.message
    assert "outbound, IPv4" not in result.message
    with new_pod() as other:
        other.program(argv)
        result = other.validate(argv, APP)
        assert result.code == 0
        assert "DNS over udp, IPv4" in result.text


def test_root_on_the_node_proves_all_paths(pod: Pod) -> None:
    argv = [*STOCK_DUAL, "-m", "TPROXY", "--redirect-dns"]
    pod.program(argv)
    result = pod.validate(argv, ROOT_USER)
    assert result.code == 0
    for path in ("inbound", "outbound", "inbound by TPROXY"):
        assert f"{path}, IPv4" in result.text
        assert f"{path}, IPv6" in result.text
    assert "DNS over udp, IPv4; DNS over tcp, IPv4" in result.text
    assert "DNS over udp, IPv6" not in result.text  # no resolver is captured there


def test_root_without_capabilities_is_another_user(pod: Pod) -> None:
    pod.program(STOCK_DUAL)
    drop = ("setpriv", "--bounding-set=-setuid,-setgid", "--inh-caps=-setuid,-setgid")
    result = pod.finish(pod.start(STOCK_DUAL, ROOT_USER, wrapper=drop))
    assert result.code == 0, result
    assert "outbound, IPv4; outbound, IPv6" in result.text


def test_rules_to_another_port_are_no_proof(pod: Pod) -> None:
    pod.program([*STOCK_DUAL, "-p", "16001"])
    result = pod.validate([*STOCK_DUAL, "--probe-timeout=200ms"], ROOT_USER)
    assert result.code == 126
    assert "outbound, IPv4" in result.message
    assert "inbound" not in result.message


def test_redirect_rules_are_no_proof_of_tproxy(pod: Pod) -> None:
    pod.program(STOCK_DUAL)
    result = pod.validate([*STOCK_DUAL, "-m", "TPROXY", "--probe-timeout=200ms"])
    assert result.code == 126
    assert "inbound by TPROXY, IPv4 (uid 1337 to 10.88.0.2:15008 must be taken by TPROXY): arrived" in result.message
    assert "- inbound, IPv4" not in result.message


def test_somebody_on_the_probe_port_is_no_proof(pod: Pod) -> None:
    """What makes a validator that only looks whether its connection succeeds pass without rules."""
    actor = Actor(pod.netns, *PROXY)
    try:
        actor.serve("somebody", tcp=(15002,))
        assert pod.validate([*STOCK_DUAL, "--probe-timeout=200ms"]).code == 126
        actor.serve("somebody", tcp=(15006,))
        assert pod.validate([*STOCK_DUAL, "--probe-timeout=200ms"]).code == 126
    finally:
        actor.close()


def test_run_again_beside_the_running_proxy(pod: Pod) -> None:
    """kubelet may run init containers again in a living pod: the ports are then taken, and stay the proxy's."""
    actor = Actor(pod.netns, *PROXY)
    try:
        actor.serve("proxy", tcp=(15001, 15006))
        assert pod.validate([*STOCK_DUAL, "--probe-timeout=200ms"]).code == 126
        pod.program(STOCK_DUAL)
        assert pod.validate(STOCK_DUAL).code == 0
        assert "outbound, IPv6" in pod.validate(STOCK_DUAL, ROOT_USER).text
    finally:
        actor.close()


def test_nothing_to_prove_is_no_proof(pod: Pod) -> None:
    pod.program(STOCK_DUAL)
    result = pod.validate(STOCK_DUAL, (1000, 1337))
    assert result.code == 1
    assert "Run it as the proxy's user" in result.message


def test_sigterm_ends_it_even_as_process_1(pod: Pod) -> None:
    process = pod.start([*STOCK_DUAL, "--probe-timeout=1m"], wrapper=("unshare", "--pid", "--fork", "--kill-child"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    assert process.stderr
    while "left to the node agent" not in process.stderr.readline():  # then it is past its start
        assert process.poll() is None
    time.sleep(0.2)
    started = time.monotonic()
    os.kill(int(children.read_text()), signal.SIGTERM)
    result = pod.finish(process)
    assert result.code == 128 + signal.SIGTERM
    assert time.monotonic() - started < 30  # not by its own deadline
    assert "stopped after" in result.message


LANDING_PROGRAM = """
import json, sys
from cni_agent.validation.landing import Packet
from cni_agent.validation.plan import DNS_UDP, INBOUND, Probe
from cni_agent.validation.probing import Prover
work = json.load(sys.stdin)
probes = {}
for number, fields in enumerate(work["packets"]):
    packet = Packet(*fields)
    path = DNS_UDP if packet.protocol == "udp" else INBOUND
    for port in work["ports"] if packet.protocol == "tcp" else [15053]:
        probes[Probe(path, packet, port)] = number
landed = [[] for packet in work["packets"]]
with Prover(list(probes)) as prover:
    prover.run(0.2)
    for probe, number in probes.items():
        if probe not in prover.unproven:
            landed[number].append(probe.lands)
print(json.dumps(landed))
"""


def random_settings(chance: random.Random) -> tuple[list[str], dict[str, str]]:
    """Settings in which the few addresses, ports and ids of `random_packet` occur often."""
    pick = chance.choice
    ranges = pick(["*", "*", "*", "", "192.0.2.0/24,2001:db8::/32", "127.0.0.1/32,198.51.100.0/24", "::1/128"])
    argv = [
        f"--proxy-uid={pick(['1337', '1337', '1337,1000', '1000'])}",
        f"--proxy-gid={pick(['', '', '1337', '2000,1337'])}",
        f"--istio-service-cidr={ranges}",
        f"--istio-service-exclude-cidr={pick(['', '192.0.2.1/32', '2001:db8::/64,10.88.0.0/16'])}",
        f"--istio-outbound-ports={pick(['', '', '80', '53,8080'])}",
        f"--istio-local-outbound-ports-exclude={pick(['', '', '', '', '', '80', '8080', '53'])}",
        f"--istio-exclude-interfaces={pick(['', '', '', '', '', 'lo', 'eth0'])}",
        f"--redirect-dns={pick(['true', 'true', 'true', 'false'])}",
        f"--capture-all-dns={pick(['true', 'true', 'false'])}",
        f"--istio-inbound-interception-mode={pick(['REDIRECT', 'TPROXY'])}", "--istio-inbound-ports=*",
    ]  # fmt: skip
    environ = {
        "ISTIO_OUTBOUND_OWNER_GROUPS": pick(["*", "*", "*", "*", "1000,3000", ""]),
        "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": pick(["", "", "2000"]),
        "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": pick(["127.0.0.1/32", "127.0.0.1/32", "127.0.0.1/8"]),
    }
    return argv, environ


SEEDS = range(16)
PACKETS = 100
OWNERS = [(1337, 1337), (1337, 3000), (1000, 1000), (1000, 1337), (3000, 2000), (3000, 3000), (3001, 3001), (0, 0)]


def random_packet(chance: random.Random) -> list[Any]:
    address, interface = chance.choice(
        [("192.0.2.1", "eth0"), ("198.51.100.9", "eth0"), ("2001:db8::1", "eth0"), ("2001:db8:1::1", "eth0"),
         (RESOLVER, "eth0"), ("10.88.0.2", "lo"), ("fd88::2", "lo"), ("127.0.0.6", "lo"), ("127.0.0.1", "lo"),
         ("::1", "lo")]
    )  # fmt: skip
    protocol, port = chance.choice([("tcp", 80), ("tcp", 8080), ("tcp", 15008), ("tcp", 53), ("udp", 53), ("udp", 80)])
    return [*chance.choice(OWNERS), protocol, address, port, interface]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_packets_land_where_validation_expects_them(pod: Pod, backend: Name, seed: int) -> None:
    """The restatement of the rules that chooses the probes, against the rules themselves."""
    chance = random.Random(seed)
    argv, environ = random_settings(chance)
    pod.program(argv, environ, name=backend)
    settings = Settings(argv, environ)
    packets = [random_packet(chance) for _ in range(PACKETS)]
    expected = [landing(settings, [RESOLVER], Packet(*packet)) for packet in packets]
    command = [sys.executable, "-c", LANDING_PROGRAM]
    work = json.dumps({"packets": packets, "ports": [15001, 15006, 15053]})
    result = pod.netns.run_inside(
        lambda: subprocess.run(command, input=work, cwd=ROOT, capture_output=True, text=True, timeout=60)
    )
    assert result.returncode == 0, result.stderr
    for packet, port, landed in zip(packets, expected, json.loads(result.stdout), strict=True):
        assert landed == ([port] if port else []), f"{packet} with {argv} and {environ}"


def test_random_packets_land_everywhere() -> None:
    """What the test above is worth: each port, and none, is expected many times."""
    expected = []
    for seed in SEEDS:
        chance = random.Random(seed)
        settings = Settings(*random_settings(chance))
        expected += [landing(settings, [RESOLVER], Packet(*random_packet(chance))) for _ in range(PACKETS)]
    for port in (None, 15001, 15006, 15053):
        assert expected.count(port) >= 30
