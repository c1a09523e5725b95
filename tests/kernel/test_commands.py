"""`cni-agent apply | check | remove` as a person runs them: what they print, and how they end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_agent.kernel.netns import Netns
from tests.kernel.tools import NAMES, everything, sh, shown

pytestmark = pytest.mark.kernel
FLAGS = [
    "-p",
    "15001",
    "-z",
    "15006",
    "-u",
    "1337",
    "-m",
    "REDIRECT",
    "-i",
    "*",
    "-x",
    "",
    "-b",
    "*",
    "-d",
    "15090,15021",
]
POD = """
apiVersion: v1
kind: Pod
metadata:
  name: web-0
  namespace: shop
  annotations: {sidecar.istio.io/status: "{}", traffic.sidecar.istio.io/excludeInboundPorts: "9999"}
spec:
  containers:
  - name: web
  - name: istio-proxy
    args: [proxy, sidecar]
"""


def agent(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cni_agent", *arguments], input=stdin, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def pod() -> Iterator[tuple[Netns, str]]:
    """A namespace with IPv4 and IPv6, and a path to it that another process can open."""
    with Netns.scratch() as made:
        sh(made, "ip link set lo up; ip link add eth0 type veth; ip addr add 10.1.2.3/24 dev eth0")
        with subprocess.Popen(["sleep", "120"], stdin=made.fd) as holder:
            yield made, f"/proc/{holder.pid}/fd/0"
            holder.kill()


@pytest.mark.parametrize("name", NAMES)
def test_apply_check_remove(pod: tuple[Netns, str], name: str) -> None:
    netns, path = pod
    before = everything(netns)
    where = ["--netns", path, "--backend", name]
    applied = agent("apply", *where, *FLAGS, "--ipv6")
    assert applied.returncode == 0, applied.stderr
    line = json.loads(applied.stdout)
    assert applied.stdout.count("\n") == 1
    assert line.pop("milliseconds") > 0
    assert line == {"outcome": "applied", "backend": name, "families": [4, 6]}
    assert json.loads(agent("apply", *where, *FLAGS, "--ipv6").stdout)["outcome"] == "unchanged"

    same = agent("check", *where, *FLAGS, "--ipv6")
    assert (same.returncode, same.stdout) == (0, "")
    other = agent("check", *where, *FLAGS, "--ipv6", "-o", "9")
    assert other.returncode == 1
    assert len(other.stdout.splitlines()) == 4 if name != "nftables" else 2  # tcp and udp, in each family
    assert all(row.startswith("missing ") and "dport 9" in row for row in other.stdout.splitlines())

    removed = agent("remove", *where)
    assert (removed.returncode, json.loads(removed.stdout)["outcome"]) == (0, "removed")
    assert json.loads(agent("remove", "--netns", path).stdout)["outcome"] == "unchanged"
    assert everything(netns) == before


def test_the_families_are_those_of_the_namespace(pod: tuple[Netns, str]) -> None:
    netns, path = pod
    assert json.loads(agent("apply", "--netns", path, *FLAGS).stdout)["families"] == [4]
    sh(netns, "ip addr add fd00::3/64 dev eth0 nodad")
    assert json.loads(agent("apply", "--netns", path, *FLAGS).stdout)["outcome"] == "unchanged"
    dual = json.loads(agent("apply", "--netns", path, *FLAGS, "--dual-stack").stdout)
    assert (dual["families"], dual["outcome"]) == ([4, 6], "replaced")


def test_a_namespace_without_addresses_gets_ipv4_and_a_word_about_it() -> None:
    with Netns.scratch() as bare, subprocess.Popen(["sleep", "60"], stdin=bare.fd) as holder:
        done = agent("apply", "--netns", f"/proc/{holder.pid}/fd/0", *FLAGS)
        holder.kill()
        assert json.loads(done.stdout)["families"] == [4]
        assert "no address" in done.stderr


def test_settings_come_from_a_pod(pod: tuple[Netns, str], tmp_path: Path) -> None:
    netns, path = pod
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(POD)
    assert agent("apply", "--netns", path, "--pod", str(manifest)).returncode == 0
    assert "--dport 9999 -j RETURN" in shown(netns, "iptables-nft")
    assert agent("check", "--netns", path, "--pod", "-", stdin=POD).returncode == 0
    skipped = agent("apply", "--netns", path, "--pod", "-", stdin=POD.replace("istio-proxy", "other"))
    assert skipped.returncode == 3
    assert "not captured" in skipped.stderr


@pytest.mark.parametrize("command", ["apply", "check", "remove"])
def test_what_is_refused_ends_with_4(command: str) -> None:
    flags = [] if command == "remove" else FLAGS
    for path in ("/proc/self/ns/net", "/etc/passwd", "/nowhere", "/proc/self/ns/user"):
        done = agent(command, "--netns", path, *flags)
        assert done.returncode == 4, (path, done.stderr)
        assert done.stdout == ""
        assert done.stderr.startswith("Error: ")
        assert len(done.stderr.splitlines()) == 1


def test_not_permitted_ends_with_4(pod: tuple[Netns, str]) -> None:
    command = [sys.executable, "-m", "cni_agent", "apply", "--netns", pod[1], "--backend", "nftables", *FLAGS]
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    done = subprocess.run(powerless, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4, done.stderr
    assert "not-permitted" in done.stderr


def test_usage_and_values_end_with_2(pod: tuple[Netns, str]) -> None:
    assert agent("apply", *FLAGS).returncode == 2
    assert agent("apply", "--netns", pod[1], "--backend", "ebpf").returncode == 2
    bad = agent("apply", "--netns", pod[1], "-b", "eighty")
    assert bad.returncode == 2
    assert "eighty" in bad.stderr
    assert agent("check", "--netns", pod[1], "--pod", "/nowhere.yaml").returncode == 2
    assert "ISTIO" not in shown(pod[0], "iptables-nft")


def test_a_long_path_is_cut_and_escaped() -> None:
    done = agent("check", "--netns", "/x\x1b[31m" + "y" * 3000)
    assert done.returncode == 4
    assert "\x1b" not in done.stderr
    assert len(done.stderr) < 300
