"""Where a setting is made: the annotation of a pod, or the flag of a command line; and the value it has."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from cni_agent import flags, names
from cni_agent.capture import Capture
from cni_agent.flag_table import FLAGS, Flag
from cni_agent.podview import PodView, Proxy


class Origin(NamedTuple):
    """Who sets one field of `Capture`: `istio` is the knob in `cni_agent.flags`; "" where there is none."""

    istio: str = ""
    annotation: str = ""
    variable: str = ""  # of istio-proxy
    security_context: str = ""  # field of istio-proxy's


ORIGINS: Final[dict[str, Origin]] = {
    "outbound_port": Origin("ProxyPort"),
    "inbound_port": Origin("InboundCapturePort"),
    "tunnel_port": Origin("InboundTunnelPort"),
    "proxy_uids": Origin("ProxyUID", security_context="runAsUser"),
    "proxy_gids": Origin("ProxyGID", security_context="runAsGroup"),
    "mode": Origin("InboundInterceptionMode", names.INTERCEPTION_MODE),
    "tproxy_mark": Origin("InboundTProxyMark"),
    "tproxy_table": Origin("InboundTProxyRouteTable"),
    "include_inbound_ports": Origin("InboundPortsInclude", names.INCLUDE_INBOUND_PORTS),
    "exclude_inbound_ports": Origin("InboundPortsExclude", names.EXCLUDE_INBOUND_PORTS),
    "include_outbound_ports": Origin("OutboundPortsInclude", names.INCLUDE_OUTBOUND_PORTS),
    "exclude_outbound_ports": Origin("OutboundPortsExclude", names.EXCLUDE_OUTBOUND_PORTS),
    "include_outbound_cidrs": Origin("OutboundIPRangesInclude", names.INCLUDE_OUTBOUND_IP_RANGES),
    "exclude_outbound_cidrs": Origin("OutboundIPRangesExclude", names.EXCLUDE_OUTBOUND_IP_RANGES),
    "reroute_interfaces": Origin("RerouteVirtualInterfaces", names.REROUTE_INTERFACES),
    "exclude_interfaces": Origin("ExcludeInterfaces", names.EXCLUDE_INTERFACES),
    "owner_groups_include": Origin("OwnerGroupsInclude"),
    "owner_groups_exclude": Origin("OwnerGroupsExclude"),
    "loopback_v4": Origin("HostIPv4LoopbackCidr"),
    "redirect_dns": Origin("RedirectDNS", variable=names.DNS_CAPTURE),
    "capture_all_dns": Origin("CaptureAllDNS", variable=names.DNS_CAPTURE),
    "drop_invalid": Origin("DropInvalid", variable=names.INVALID_DROP),
    "dual_stack": Origin("DualStack", variable=names.DUAL_STACK),
    "ipv6": Origin(),
}


@dataclass(frozen=True, slots=True)
class Cause:
    """A setting as its owner knows it. `given`: somebody set it; else it is the default."""

    name: str
    value: str
    given: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.value or '(nothing)'}{'' if self.given else ' (default)'}"


def cause_in_pod(setting: str, capture: Capture, pod: PodView) -> Cause:
    """Where a pod's manifest makes a setting."""
    origin, proxy, value = ORIGINS[setting], pod.proxy or Proxy(), _shown(getattr(capture, setting))
    if setting == "ipv6":
        return Cause("status.podIPs", ",".join(pod.addresses), bool(pod.addresses))
    if setting == "reroute_interfaces" and origin.annotation not in pod.annotations:
        origin = origin._replace(annotation=names.KUBEVIRT_INTERFACES)
    if origin.annotation:
        return Cause(origin.annotation, value, origin.annotation in pod.annotations)
    if origin.variable:
        return Cause(f"{origin.variable} of istio-proxy", value, origin.variable in proxy.environment)
    if origin.security_context:
        given = proxy.run_as_user if setting == "proxy_uids" else proxy.run_as_group
        return Cause(f"{origin.security_context} of istio-proxy", value, bool(given))
    return Cause(f"{_flag(origin).key}, which no pod can set", value, False)


def cause_in_flags(setting: str, capture: Capture, given: Mapping[str, str], environ: Mapping[str, str]) -> Cause:
    """Where a command line, or its environment, makes a setting."""
    origin, value = ORIGINS[setting], _shown(getattr(capture, setting))
    if not origin.istio:
        return Cause(f"--{setting}", value, getattr(capture, setting))
    flag = _flag(origin)
    set_by = flags.setting(origin.istio, given, environ).source
    return Cause(set_by, value, flag.key in given or set_by in flag.environment)


def _flag(origin: Origin) -> Flag:
    return next(flag for flag in FLAGS if flag.istio == origin.istio)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
