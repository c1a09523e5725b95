"""A pod and its surroundings, made of real namespaces and processes, to send packets through real rules.

    client ---+
              +--- node (forwards) === pod (eth0, net1)
    outside --+

The namespaces have no names and hang on descriptors of this process, the processes end with it: nothing is left behind
however it ends. Addresses are the same for both families but for their spelling (`ADDRESSES`).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from cni_agent import names
from cni_agent.backends import Name, backend
from cni_agent.capture import Capture, Family, Mode
from cni_agent.kernel.netns import Netns
from tests.kernel.lab_envoy import Envoy

Place = Literal["node", "pod", "client", "outside"]
FAMILIES: tuple[Family, Family] = (4, 6)

# the third number is the network: 1 pod's eth0, 2 client, 3 outside, 4 pod's net1; 5 is a second address of outside
POD: dict[Family, str] = {4: "10.77.1.2", 6: "fd77:1::2"}
POD_NET1: dict[Family, str] = {4: "10.77.4.2", 6: "fd77:4::2"}
CLIENT: dict[Family, str] = {4: "10.77.2.2", 6: "fd77:2::2"}
OUTSIDE: dict[Family, str] = {4: "10.77.3.2", 6: "fd77:3::2"}
EXCLUDED: dict[Family, str] = {4: "10.77.5.2", 6: "fd77:5::2"}
EXCLUDED_CIDRS = ("10.77.5.0/24", "fd77:5::/64")
VIA_NET1: dict[Family, str] = {4: "10.77.6.2", 6: "fd77:6::2"}  # of outside too; the pod's route to it is net1
SERVICE: dict[Family, str] = {4: "10.96.0.10", 6: "fd96::10"}  # a virtual address that Envoy resolves to the pod
APP_PORT = 8080
DEFAULT_ROUTES: dict[Place, int] = {"pod": 1, "client": 2, "outside": 3}
EVERYWHERE = ("0.0.0.0", "::")
LOOPBACK: dict[Family, str] = {4: "127.0.0.1", 6: "::1"}
ACTOR = (Path(__file__).parent / "actor.py").read_text()


shared_backend = cache(backend)  # what it minted for one lab serves the next


class Actor:
    """A process in one namespace under one uid and gid; see `actor.py` for what it can be told."""

    def __init__(self, netns: Netns, uid: int, gid: int) -> None:
        command = [sys.executable, "-S", "-c", ACTOR, str(uid), str(gid)]
        self._process = netns.run_inside(
            lambda: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )

    def tell(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One command, and its answer; a refused or lost connection is an answer too (`error`)."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def serve(
        self, name: str, *, tcp: tuple[int, ...] = (), udp: tuple[int, ...] = (), at: tuple[str, ...] = EVERYWHERE
    ) -> None:
        """Listens. A server of datagrams that were redirected must listen on loopback, to answer from there."""
        listen = {"tcp": [[a, p] for a in at for p in tcp], "udp": [[a, p] for a in at for p in udp]}
        answer = self.tell("serve", name=name, **listen)
        assert "error" not in answer, answer

    def http(self, address: str, port: int = APP_PORT, **options: Any) -> dict[str, Any]:
        """A GET request."""
        return self.tell("http", address=address, port=port, **options)

    def dns(self, protocol: str, address: str, **options: Any) -> dict[str, Any]:
        """A DNS query to port 53."""
        return self.tell("dns", protocol=protocol, address=address, **options)

    def close(self) -> None:
        """Ends it: it leaves when its input does."""
        with self._process:
            assert self._process.stdin
            self._process.stdin.close()
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()


class Lab:
    """The namespaces, joined. A context manager."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._actors: dict[tuple[Place, int, int], Actor] = {}
        self.netns: dict[Place, Netns] = {}

    def __enter__(self) -> Self:
        with self._stack:
            for place in ("node", "pod", "client", "outside"):
                self.netns[place] = self._stack.enter_context(Netns.scratch())
            self._wire()
            self._wait_until_joined()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, place: Place, *command: str, text: str = "") -> str:
        """Runs a tool in a namespace, to its end; what it printed."""
        result = self.netns[place].run_inside(
            lambda: subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
        )
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}: {result.stderr}\n{text}")
        return result.stdout

    def actor(self, place: Place, uid: int = 0, gid: int | None = None) -> Actor:
        """The process of this place, uid and gid; started when first asked for."""
        key = (place, uid, uid if gid is None else gid)
        if key not in self._actors:
            self._actors[key] = actor = Actor(self.netns[place], *key[1:])
            self._stack.callback(actor.close)
        return self._actors[key]

    def envoy(self, mode: Mode) -> Envoy:
        """Starts the pod's proxy."""
        log = Path(self._stack.enter_context(tempfile.TemporaryDirectory())) / "envoy.log"
        services = {SERVICE[family]: (POD[family], APP_PORT) for family in FAMILIES}
        proxy = Envoy(self.netns["pod"], mode, services, log)
        self._stack.callback(proxy.close)
        return proxy

    def program(self, name: Name, capture: Capture) -> None:
        """Puts the rules into the pod, as the node agent does."""
        backend = shared_backend(name)
        backend.apply(self.netns["pod"], backend.ruleset(capture))

    def _wire(self) -> None:
        for place in self.netns:
            self._ip(place, "link set lo up")
        self.run("node", "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        self._join(1, "pod", "eth0")
        self._join(2, "client", "eth0")
        self._join(3, "outside", "eth0")
        self._join(4, "pod", "net1")
        for place, network in DEFAULT_ROUTES.items():
            self._ip(place, f"route add default via 10.77.{network}.1")
            self._ip(place, f"-6 route add default via fd77:{network}::1")
        for network in (5, 6):
            self._ip("outside", f"address add 10.77.{network}.2/32 dev lo")
            self._ip("outside", f"-6 address add fd77:{network}::2/128 dev lo")
            self._ip("node", f"route add 10.77.{network}.0/24 via 10.77.3.2")
            self._ip("node", f"-6 route add fd77:{network}::/64 via fd77:3::2")
        self._ip("pod", "route add 10.77.6.0/24 via 10.77.4.1")
        self._ip("pod", "-6 route add fd77:6::/64 via fd77:4::1")

    def _join(self, network: int, place: Place, interface: str) -> None:
        """A veth pair between the node and another namespace, made on the node's side."""
        peer = f"/proc/{os.getpid()}/fd/{self.netns[place].fd}"
        self._ip("node", f"link add to-{network} type veth peer name {interface} netns {peer}")
        ends: tuple[tuple[Place, str, int], ...] = (("node", f"to-{network}", 1), (place, interface, 2))
        for end, device, host in ends:
            quick = (f"net.ipv6.conf.{device}.accept_dad=0", f"net.ipv6.neigh.{device}.retrans_time_ms=20")
            self.run(end, "sysctl", "-qw", *quick)
            self._ip(end, f"address add 10.77.{network}.{host}/24 dev {device}")
            self._ip(end, f"-6 address add fd77:{network}::{host}/64 dev {device} nodad")
            self._ip(end, f"link set {device} up")

    def _wait_until_joined(self) -> None:
        """IPv6 works up to a second after a link is up: the kernel tells of carriers only once a second."""
        deadline = time.monotonic() + 10
        ways: tuple[tuple[Place, str], ...] = (("client", POD[6]), ("outside", POD[6]), ("client", POD_NET1[6]))
        for place, address in ways:
            while self.actor(place).http(address, port=1).get("error") != "ConnectionRefusedError":
                assert time.monotonic() < deadline, f"{place} does not reach {address}"

    def _ip(self, place: Place, command: str) -> None:
        self.run(place, "ip", *command.split())


def capture_of(mode: Mode, **settings: Any) -> Capture:
    """The settings of an ordinary dual-stack pod, as the node agent makes them."""
    ordinary: dict[str, Any] = {
        "include_inbound_ports": "*",
        "exclude_inbound_ports": (names.STATUS_PORT, names.READINESS_PORT, names.ENVOY_METRICS_PORT),
        "include_outbound_cidrs": "*",
        "ipv6": True,
    }
    return Capture(mode=mode, **ordinary | settings)
