"""What is captured in one pod: every setting that decides its rules, validated, as one frozen value."""

from dataclasses import dataclass
from typing import Literal

from cni_agent import names, values

Mode = Literal["REDIRECT", "TPROXY"]
Family = Literal[4, 6]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Istio's capture settings (tools/common/config Config), read and checked. The Istio name stands beside each.

    The defaults are those of `istio-iptables` without flags: nothing inbound, no CIDR outbound.
    """

    outbound_port: int = names.OUTBOUND_PORT  # ProxyPort
    inbound_port: int = names.INBOUND_PORT  # InboundCapturePort
    tunnel_port: int = names.TUNNEL_PORT  # InboundTunnelPort
    proxy_uids: tuple[int, ...] = (names.PROXY_ID,)  # ProxyUID
    proxy_gids: tuple[int, ...] = (names.PROXY_ID,)  # ProxyGID
    mode: Mode = "REDIRECT"  # InboundInterceptionMode
    tproxy_mark: int = names.TPROXY_MARK  # InboundTProxyMark
    tproxy_table: int = names.TPROXY_TABLE  # InboundTProxyRouteTable
    include_inbound_ports: tuple[int, ...] | Literal["*"] = ()  # InboundPortsInclude
    exclude_inbound_ports: tuple[int, ...] = ()  # InboundPortsExclude
    include_outbound_ports: tuple[int, ...] = ()  # OutboundPortsInclude
    exclude_outbound_ports: tuple[int, ...] = ()  # OutboundPortsExclude
    include_outbound_cidrs: tuple[str, ...] | Literal["*"] = ()  # OutboundIPRangesInclude
    exclude_outbound_cidrs: tuple[str, ...] = ()  # OutboundIPRangesExclude
    reroute_interfaces: tuple[str, ...] = ()  # RerouteVirtualInterfaces
    exclude_interfaces: tuple[str, ...] = ()  # ExcludeInterfaces
    owner_groups_include: tuple[str, ...] | Literal["*"] = "*"  # OwnerGroupsInclude
    owner_groups_exclude: tuple[str, ...] = ()  # OwnerGroupsExclude
    loopback_v4: str = names.LOOPBACK_V4  # HostIPv4LoopbackCidr
    redirect_dns: bool = False  # RedirectDNS
    capture_all_dns: bool = False  # CaptureAllDNS
    resolvers_v4: tuple[str, ...] = ()  # DNSServersV4
    resolvers_v6: tuple[str, ...] = ()  # DNSServersV6
    drop_invalid: bool = False  # DropInvalid
    dual_stack: bool = False  # DualStack: how the pod's addresses decide on `ipv6`
    ipv6: bool = False  # EnableIPv6: the pod has IPv6, so the v6 rules are programmed too

    @property
    def dns(self) -> bool:
        """DNS capture, still on: it needs a resolver to look for, or the will to take all of port 53."""
        return self.redirect_dns and bool(self.capture_all_dns or self.resolvers_v4 or self.resolvers_v6)

    @property
    def families(self) -> tuple[Family, ...]:
        """The address families that get rules; v4 always does, as with istio-iptables."""
        return (4, 6) if self.ipv6 else (4,)

    def loopback(self, family: Family) -> str:
        """The loopback range of a family; only the v4 one can be configured."""
        return self.loopback_v4 if family == 4 else names.LOOPBACK_V6

    def resolvers(self, family: Family) -> tuple[str, ...]:
        """The resolvers of a family."""
        return self.resolvers_v4 if family == 4 else self.resolvers_v6

    @property
    def captures_loopback(self) -> bool:
        """A loopback range among the included CIDRs: then an application calling itself over lo is not spared."""
        return self.include_outbound_cidrs != "*" and any(map(values.is_loopback, self.include_outbound_cidrs))
