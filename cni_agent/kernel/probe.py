"""Can this node do it? Each backend programs the real default ruleset in a scratch namespace, a real connection goes
through it, and we look where it lands. Nothing is concluded from versions or module lists.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from cni_agent import names
from cni_agent.backends import BACKENDS, Backend, Name, backend
from cni_agent.capture import Capture, Family
from cni_agent.kernel.failure import CommandError, Failure, KernelRefused
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netlink import CREATE, EXCLUSIVE, Channel, attribute, text
from cni_agent.kernel.netns import Netns

WAIT: Final = 2.0  # seconds for a connection inside the node's own memory
SO_ORIGINAL_DST: Final = 80
NEW_LINK, NEW_ADDRESS = 16, 20
_LINK: Final = struct.Struct("=BBHiII")  # family, -, type, index, flags, changed flags
_ADDRESS: Final = struct.Struct("=BBBBI")
_UP: Final = 1
_INDEX: Final = 1000  # beyond the tunnel devices that some kernels put into every namespace
_NO_DUPLICATE_DETECTION: Final = 2
_KINDS: Final[dict[Family, socket.AddressFamily]] = {4: socket.AF_INET, 6: socket.AF_INET6}
_LOOPBACK: Final[dict[Family, str]] = {4: "127.0.0.1", 6: "::1"}
_OWN: Final[dict[Family, tuple[str, int]]] = {4: ("192.0.2.1", 24), 6: ("2001:db8::1", 64)}  # documentation prefixes
_ELSEWHERE: Final[dict[Family, str]] = {4: "192.0.2.77", 6: "2001:db8::77"}
_libc = ctypes.CDLL(None, use_errno=True)

DEFAULT: Final = Capture(include_inbound_ports="*", include_outbound_cidrs="*")
WITH_IPV6: Final = Capture(include_inbound_ports="*", include_outbound_cidrs="*", ipv6=True)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one backend can do for one family. `mend` is what to run or install when it cannot."""

    backend: Name
    family: Family
    works: bool
    detail: str
    mend: str = ""


def probe(name: Name) -> tuple[Verdict, Verdict]:
    """Tries one backend, for both families together if that works, else for IPv4 alone."""
    program = backend(name)
    both = _try(program, WITH_IPV6)
    if both[0].works:
        return both[0], both[-1]
    return _try(program, DEFAULT)[0], both[-1]


def choose(verdicts: Iterable[Verdict]) -> Name | None:
    """The first backend that does both families; where none does, the first that does IPv4."""
    working = [verdict for verdict in verdicts if verdict.works]
    for families in ({4, 6}, {4}):
        for name in BACKENDS:
            if families <= {verdict.family for verdict in working if verdict.backend == name}:
                return name
    return None


def choose_first() -> tuple[Name | None, list[Verdict]]:
    """As `choose`, without trying the others once one does both families."""
    verdicts: list[Verdict] = []
    for name in BACKENDS:
        verdicts += probe(name)
        if all(verdict.works for verdict in verdicts[-2:]):
            return name, verdicts
    return choose(verdicts), verdicts


def _try(program: Backend, capture: Capture) -> tuple[Verdict, ...]:
    families = capture.families
    try:
        with Netns.scratch() as scratch:
            with Inside(scratch) as inside:
                _prepare(inside.routes, families)
            program.apply(scratch, program.ruleset(capture))
            return tuple(_verdict(program.name, scratch, family) for family in families)
    except Failure as error:
        return tuple(
            Verdict(program.name, family, False, str(error), _mend(program.name, error)) for family in families
        )


def _verdict(name: Name, scratch: Netns, family: Family) -> Verdict:
    problems = [problem for problem in (_inbound(scratch, family), _outbound(scratch, family)) if problem]
    if problems:
        return Verdict(name, family, False, "; ".join(problems), "report this: the rules are there and do not work")
    return Verdict(name, family, True, "rules programmed, connections captured")


def _prepare(channel: Channel, families: tuple[Family, ...]) -> None:
    """Loopback up, and an interface through which the rest of the world would be reached."""
    number = channel.tell(NEW_LINK, 0, _LINK.pack(0, 0, 0, 1, _UP, _UP))
    if number:
        raise _unprepared("ip link set lo up", number)
    kinds = ("dummy", "veth")  # what the kernel has; pods need one of them anyway
    for kind in kinds:
        payload = _LINK.pack(0, 0, 0, _INDEX, _UP, _UP) + text(3, "probe0") + attribute(18, text(1, kind))
        number = channel.tell(NEW_LINK, CREATE | EXCLUSIVE, payload)
        if number == 0:
            break
    else:
        raise _unprepared(f"ip link add probe0 type {kinds[-1]}", number)
    for family in families:
        address, length = _OWN[family]
        packed = socket.inet_pton(_KINDS[family], address)
        payload = _ADDRESS.pack(_KINDS[family], length, _NO_DUPLICATE_DETECTION, 0, _INDEX)
        payload += attribute(2, packed) + attribute(1, packed)
        number = channel.tell(NEW_ADDRESS, CREATE | EXCLUSIVE, payload)
        if number and family == 6:
            raise KernelRefused("no-ipv6", "the kernel has no IPv6, or it is disabled", number)


def _unprepared(doing: str, number: int) -> Failure:
    return Failure(
        "not-tried", f"cannot be tried, the scratch namespace lacks an interface: {doing}: {os.strerror(number)}"
    )


def _inbound(scratch: Netns, family: Family) -> str:
    """The proxy calling its own pod from loopback, as istio-validation does: must land on the inbound port."""
    target = (names.PASSTHROUGH[family].partition("/")[0], names.PROBE_PORT)
    source = _LOOPBACK[family]  # the kernel itself would choose the passthrough address, which is spared
    return _lands(scratch, family, names.INBOUND_PORT, target, user=names.PROXY_ID, source=source)


def _outbound(scratch: Netns, family: Family) -> str:
    """Somebody else calling the world: must land on the outbound port."""
    return _lands(scratch, family, names.OUTBOUND_PORT, (_ELSEWHERE[family], 80), user=0, source=_OWN[family][0])


def _lands(scratch: Netns, family: Family, port: int, target: tuple[str, int], user: int, source: str) -> str:
    """Connects, and says what is wrong if the connection does not end at `port` with its destination known."""
    what = f"IPv{family} to {target[0]} port {target[1]}"
    with ExitStack() as stack:
        try:
            listener, client = scratch.run_inside(_sockets(family, port, user))
        except OSError as error:
            return f"{what}: cannot be tried: {error.strerror}"
        stack.enter_context(listener)
        stack.enter_context(client)
        try:
            client.bind((source, 0))
            client.connect(target)
            accepted, _ = listener.accept()
        except OSError as error:
            return f"{what}: did not land on port {port}: {error.strerror or 'timed out'}"
        stack.enter_context(accepted)
        found = _original(accepted, family)
    return "" if found == target else f"{what}: landed on port {port} as a connection to {found}"


def _sockets(family: Family, port: int, user: int) -> Callable[[], tuple[socket.socket, socket.socket]]:
    def opened() -> tuple[socket.socket, socket.socket]:
        listener = socket.create_server((_LOOPBACK[family], port), family=_KINDS[family])
        listener.settimeout(WAIT)
        # a socket belongs to the file system user of the thread that opened it, and this thread ends with it
        _libc.setfsuid(user)
        if _libc.setfsuid(-1) != user:
            listener.close()
            raise OSError(0, f"not allowed to act as user {user}")
        client = socket.socket(_KINDS[family])
        client.settimeout(WAIT)
        return listener, client

    return opened


def _original(accepted: socket.socket, family: Family) -> tuple[str, int]:
    level, size = (socket.SOL_IP, 16) if family == 4 else (socket.IPPROTO_IPV6, 28)
    packed = accepted.getsockopt(level, SO_ORIGINAL_DST, size)
    address = packed[4:8] if family == 4 else packed[8:24]
    return socket.inet_ntop(_KINDS[family], address), int.from_bytes(packed[2:4])


def _mend(name: Name, error: Failure) -> str:
    packages = {"iptables-nft": "iptables", "iptables-legacy": "iptables", "nftables": "nftables"}
    modules = {
        "iptables-nft": "nf_tables nft_compat xt_owner xt_REDIRECT xt_tcpudp xt_multiport xt_conntrack xt_CT xt_TPROXY",
        "iptables-legacy": "iptable_nat iptable_mangle iptable_raw ip6table_nat ip6table_mangle ip6table_raw xt_owner",
        "nftables": "nf_tables nft_redir nft_chain_nat nft_ct nft_tproxy",
    }
    if error.reason == "no-program":
        return f"apt-get install {packages[name]}"
    if error.reason == "no-ipv6":
        return "sysctl -w net.ipv6.conf.all.disable_ipv6=0"
    if error.reason == "not-permitted":
        return "run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN"
    if isinstance(error, CommandError | KernelRefused):
        return f"modprobe -a {modules[name]}"
    return ""


def node_facts() -> Iterator[tuple[str, str]]:
    """What a person would ask first: the kernel, and who we are."""
    yield "kernel", os.uname().release
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        yield from (("capabilities", line.split()[1]) for line in status if line.startswith("CapEff"))
