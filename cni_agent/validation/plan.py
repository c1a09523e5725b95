"""Which paths can be proven from inside the pod, and by which probe.

A probe is a connection that nothing but the rules brings to the proxy's port, so what can be sent decides what can be
proven. The kernel matches a packet by the user that *created its socket*:

- The proxy's uid, which istio-validation has, is exempt from capture except towards its own pod. It proves that path
  (`inbound`: nat OUTPUT to the inbound port, for each family) and, in TPROXY mode, that the mangle rules take its calls
  to the HBONE port, which nat spares.
- Any other uid proves `outbound` and DNS, and cannot prove `inbound`.
- Root may create sockets as either, and proves all of it (`nsenter -t PID -n cni-agent validate` on the node).

No process inside the pod can prove nat PREROUTING, which sees only what comes from outside. Rules of one family land in
one transaction, so a proof of one path is evidence for the others; the node agent's read-back is the proof for them.
"""

from collections.abc import Callable, Iterable, Iterator

from cni_agent import names
from cni_agent.validation.landing import Packet, captures_dns, family, landing, taken_by_tproxy
from cni_agent.validation.settings import Settings

INBOUND = "inbound"
OUTBOUND = "outbound"
DNS_UDP = "DNS over udp"
DNS_TCP = "DNS over tcp"
TPROXY = "inbound by TPROXY"

_LOCALHOST = {4: "127.0.0.1", 6: "::1"}
NOBODYS = {4: ("192.0.2.1", "198.51.100.1", "203.0.113.1"), 6: ("2001:db8::1", "3fff::1")}  # RFC 5737, 3849, 9637
_PORTS_TRIED = 64


class Probe:
    """One connection to try, and where it must land. `lands` is None where it must vanish (TPROXY, no proxy yet)."""

    def __init__(self, path: str, packet: Packet, lands: int | None, source: str = "") -> None:
        self.path, self.packet, self.lands, self.source = path, packet, lands, source
        self.target = (packet.address, packet.port)

    @property
    def name(self) -> str:
        """The path and family, as messages call it."""
        return f"{self.path}, IPv{self.packet.family}"

    def __str__(self) -> str:
        address = f"[{self.packet.address}]" if self.packet.family == 6 else self.packet.address
        lands = "be taken by TPROXY" if self.lands is None else f"land on port {self.lands}"
        return f"{self.name} (uid {self.packet.uid} to {address}:{self.packet.port} must {lands})"


class Plan:
    """The probes to send, and a sentence for each captured path that none of them can prove."""

    def __init__(
        self,
        settings: Settings,
        owners: list[tuple[int, int]],
        own: dict[str, str],
        resolvers: list[str],
        route: Callable[[str], str],
    ) -> None:
        """`owners`: the uids and gids that may send; `own`: the pod's addresses; `route`: the interface to one."""
        self._settings, self._owners = settings, owners
        self._own, self._resolvers, self._route = own, resolvers, route
        self.probes: list[Probe] = []
        self.unprovable: list[str] = []
        for version in captured_families(settings, own):
            self._add(INBOUND, self._inbound(version), settings.inbound_port)
            if settings.stock:
                continue
            if self._captures_outbound(version):
                self._add(OUTBOUND, self._outbound(version), settings.outbound_port)
            if captures_dns(settings, self._dns_addresses(version)):
                self._add(DNS_UDP, self._dns(version, "udp"), names.DNS_PROXY_PORT)
                self._add(DNS_TCP, self._dns(version, "tcp"), names.DNS_PROXY_PORT)
            if taken_by_tproxy(settings, settings.tunnel_port):
                self._add_tproxy(version)

    def _add(self, path: str, candidates: Iterable[tuple[Packet, str]], port: int) -> None:
        first = None
        for packet, source in candidates:
            first = first or packet
            if landing(self._settings, self._resolvers, packet) == port:
                self.probes.append(Probe(path, packet, port, source))
                return
        if first is None:
            self.unprovable.append(f"{path}: no route to an address that would be captured")
        elif path != INBOUND and self._is_proxy(first):
            self.unprovable.append(f"{path}, IPv{first.family}: uid {first.uid} is the proxy's, which the rules spare")
        else:
            self.unprovable.append(f"{path}, IPv{first.family}: nothing that uid {first.uid} sends is captured so")

    def _add_tproxy(self, version: int) -> None:
        """nft's tproxy lets packets pass while nobody listens (xt_TPROXY drops them): silence then proves nothing."""
        own = next(address for address in self._own if family(address) == version)
        proxy = [owner for owner in self._owners if owner[0] == self._settings.uids[0]]
        if proxy and not self._settings.native_nftables:
            self.probes.append(Probe(TPROXY, Packet(*proxy[0], "tcp", own, self._settings.tunnel_port), None))
        else:
            self.unprovable.append(f"{TPROXY}, IPv{version}: only the proxy's uid, and not with native nftables")

    def _inbound(self, version: int) -> Iterator[tuple[Packet, str]]:
        """To the passthrough address as stock validation does, which needs no route; else to the pod's own address."""
        passthrough = names.PASSTHROUGH[version].partition("/")[0]
        targets = [(passthrough, _LOCALHOST[version])]
        targets += [(address, "") for address in self._own if family(address) == version]
        for address, source in targets:
            for port in self._probe_ports():
                for owner in self._owners:
                    yield Packet(*owner, "tcp", address, port), source

    def _outbound(self, version: int) -> Iterator[tuple[Packet, str]]:
        included = [cidr.partition("/")[0] for cidr in self._settings.include_cidrs]
        addresses = [address for address in included if family(address) == version]
        for address in (*NOBODYS[version], *addresses):
            for port in (*self._probe_ports(), *self._settings.include_outbound_ports):
                yield from self._routed("tcp", address, port)

    def _dns(self, version: int, protocol: str) -> Iterator[tuple[Packet, str]]:
        for address in self._dns_addresses(version):
            yield from self._routed(protocol, address, names.DNS_PORT)

    def _routed(self, protocol: str, address: str, port: int) -> Iterator[tuple[Packet, str]]:
        interface = self._route(address)
        if interface:
            for owner in self._owners:
                yield Packet(*owner, protocol, address, port, interface), ""

    def _dns_addresses(self, version: int) -> list[str]:
        listed = [address for address in self._resolvers if family(address) == version]
        return [*listed, *NOBODYS[version]] if self._settings.capture_all_dns else listed

    def _captures_outbound(self, version: int) -> bool:
        ranges = any(family(cidr) == version for cidr in self._settings.include_cidrs)
        return self._settings.all_addresses or ranges or bool(self._settings.include_outbound_ports)

    def _probe_ports(self) -> Iterable[int]:
        """The probe port, or the next one that is not excluded."""
        first = self._settings.probe_port
        avoided = {names.DNS_PORT, self._settings.tunnel_port, *self._settings.exclude_outbound_ports}
        ports = (port for port in range(first, min(first + _PORTS_TRIED, 65536)) if port not in avoided)
        return [next(ports, first)]

    def _is_proxy(self, packet: Packet) -> bool:
        return packet.uid in self._settings.uids or packet.gid in self._settings.gids


def captured_families(settings: Settings, own: dict[str, str]) -> list[int]:
    """The families that get rules and that the pod has. Without dual stack its first address decides, as in Istio."""
    families = list(dict.fromkeys(family(address) for address in own))
    if settings.stock:
        return families[:1]
    return families if settings.dual_stack or families[:1] == [6] else families[:1]
