"""The flags and environment variables of `istio-iptables`, with their names, defaults and precedence.

One table serves the command line of `cni-agent rules`, `apply` and `check`, and the arguments that the injector gives
to istio-validation (tools/istio-iptables/pkg/cmd/root.go). Reading it is pure: the environment comes as a mapping.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeVar, cast

from cni_agent import names, values
from cni_agent.capture import Capture, Mode
from cni_agent.invalid import Invalid, Violation
from cni_agent.values import Refused

T = TypeVar("T")
Kind = Literal["text", "bool"]
MAX_GROUPS: Final = 64  # tools/common/config/validation.go: groups that may be named in OwnerGroupsInclude


@dataclass(frozen=True, slots=True)
class Flag:
    """One knob. `environment`: the variable that wins comes first; a flag on the command line beats them all."""

    istio: str
    name: str  # "" where Istio has only an environment variable
    short: str
    environment: tuple[str, ...]
    default: str
    help: str
    kind: Kind = "text"

    @property
    def key(self) -> str:
        """What the knob is called in messages: its flag, or its only variable."""
        return f"--{self.name}" if self.name else self.environment[0]


def _text(istio: str, name: str, short: str, environment: str, default: str, help: str) -> Flag:
    return Flag(istio, name, short, tuple(environment.split()), default, help)


def _bool(istio: str, name: str, environment: str, help: str, short: str = "") -> Flag:
    return Flag(istio, name, short, tuple(environment.split()), "false", help, "bool")


FLAGS: Final[tuple[Flag, ...]] = (
    _text("ProxyPort", "envoy-port", "p", "", "15001", "Port of the proxy's outbound listener."),
    _text("InboundCapturePort", "inbound-capture-port", "z", "INBOUND_CAPTURE_PORT", "15006",
          "Port of the proxy's inbound listener."),
    _text("InboundTunnelPort", "inbound-tunnel-port", "e", "INBOUND_TUNNEL_PORT", "15008",
          "HBONE port, never captured."),
    _text("ProxyUID", "proxy-uid", "u", "PROXY_UID", "",
          "User ids of the proxy, comma-separated. Default: the user istio-proxy if there is one, else 1337."),
    _text("ProxyGID", "proxy-gid", "g", "PROXY_GID", "",
          "Group ids of the proxy, comma-separated. Default: the same as --proxy-uid."),
    _text("InboundInterceptionMode", "istio-inbound-interception-mode", "m", "ISTIO_INBOUND_INTERCEPTION_MODE", "",
          "REDIRECT (default) or TPROXY, which keeps the client's source address."),
    _text("InboundTProxyMark", "istio-inbound-tproxy-mark", "t", "ISTIO_INBOUND_TPROXY_MARK", "1337",
          "Packet mark of TPROXY mode."),
    _text("InboundTProxyRouteTable", "istio-inbound-tproxy-route-table", "r", "ISTIO_INBOUND_TPROXY_ROUTE_TABLE",
          "133", "Routing table of TPROXY mode."),
    _text("InboundPortsInclude", "istio-inbound-ports", "b", "ISTIO_INBOUND_PORTS", "",
          "Inbound ports to capture, or '*'. Empty: no inbound capture."),
    _text("InboundPortsExclude", "istio-local-exclude-ports", "d", "ISTIO_LOCAL_EXCLUDE_PORTS", "",
          "Inbound ports to leave alone when -b is '*'."),
    _text("OutboundPortsInclude", "istio-outbound-ports", "q", "ISTIO_OUTBOUND_PORTS", "",
          "Outbound ports to capture whatever the address."),
    _text("OutboundPortsExclude", "istio-local-outbound-ports-exclude", "o", "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE",
          "", "Outbound ports to leave alone."),
    _text("OutboundIPRangesInclude", "istio-service-cidr", "i", "ISTIO_SERVICE_CIDR", "",
          "Outbound CIDRs to capture, or '*'. Empty: none."),
    _text("OutboundIPRangesExclude", "istio-service-exclude-cidr", "x", "ISTIO_SERVICE_EXCLUDE_CIDR", "",
          "Outbound CIDRs to leave alone."),
    _text("RerouteVirtualInterfaces", "kube-virt-interfaces", "k", "KUBE_VIRT_INTERFACES", "",
          "Interfaces of virtual machines, whose inbound traffic is outbound."),
    _text("ExcludeInterfaces", "istio-exclude-interfaces", "c", "ISTIO_EXCLUDE_INTERFACES", "",
          "Interfaces to leave alone."),
    _text("OwnerGroupsInclude", "", "", "ISTIO_OUTBOUND_OWNER_GROUPS", "*",
          "Groups whose outbound traffic is captured, or '*'."),
    _text("OwnerGroupsExclude", "", "", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "",
          "Groups whose outbound traffic is left alone."),
    _text("HostIPv4LoopbackCidr", "", "", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", names.LOOPBACK_V4,
          "What counts as IPv4 loopback."),
    _bool("RedirectDNS", "redirect-dns", "ISTIO_META_DNS_CAPTURE REDIRECT_DNS", "Capture DNS queries."),
    _bool("CaptureAllDNS", "capture-all-dns", "CAPTURE_ALL_DNS",
          "Capture every DNS query, not only those to the resolvers of resolv.conf."),
    _bool("DropInvalid", "drop-invalid", "INVALID_DROP DROP_INVALID", "Drop packets that conntrack calls invalid."),
    _bool("DualStack", "dual-stack", "ISTIO_DUAL_STACK DUAL_STACK", "Look for an IPv6 address beyond the first one."),
    _text("IptablesProbePort", "iptables-probe-port", "", "IPTABLES_PROBE_PORT", "15002",
          "Port that validation connects to."),
    _text("ProbeTimeout", "probe-timeout", "", "PROBE_TIMEOUT", "5s", "How long validation waits."),
    _bool("SkipRuleApply", "skip-rule-apply", "SKIP_RULE_APPLY", "Accepted for istio-iptables' sake."),
    _bool("RunValidation", "run-validation", "RUN_VALIDATION", "Accepted for istio-iptables' sake."),
    _bool("DryRun", "dry-run", "DRY_RUN", "Accepted for istio-iptables' sake.", short="n"),
    _text("NetworkNamespace", "network-namespace", "", "NETWORK_NAMESPACE", "", "Accepted for istio-iptables' sake."),
    _bool("HostFilesystemPodNetwork", "cni-mode", "CNI_MODE", "Accepted for istio-iptables' sake."),
    _bool("Reconcile", "reconcile", "RECONCILE", "Accepted for istio-iptables' sake."),
    _bool("CleanupOnly", "cleanup-only", "CLEANUP_ONLY", "Accepted for istio-iptables' sake."),
    _bool("ForceApply", "force-apply", "FORCE_APPLY", "Accepted for istio-iptables' sake."),
    _bool("NativeNftables", "native-nftables", "NATIVE_NFTABLES", "Accepted for istio-iptables' sake."),
    _text("ForceIptablesBinary", "force-iptables-binary", "", "FORCE_IPTABLES_BINARY", "",
          "Accepted for istio-iptables' sake: legacy or nft."),
)  # fmt: skip
_BY_FIELD: Final = {flag.istio: flag for flag in FLAGS}


class Setting(NamedTuple):
    """One knob as it was set: the text, and where it came from."""

    text: str
    source: str


def setting(field: str, given: Mapping[str, str], environ: Mapping[str, str]) -> Setting:
    """The text of one knob by Istio's precedence; a variable that does not parse for a boolean counts as not set."""
    flag = _BY_FIELD[field]
    if flag.key in given:
        return Setting(given[flag.key], f"-{flag.short}/{flag.key}" if flag.short else flag.key)
    for variable in flag.environment:
        if variable in environ and (flag.kind == "text" or values.go_bool(environ[variable]) is not None):
            return Setting(environ[variable], variable)
    return Setting(flag.default, flag.key)


def capture_from_flags(
    given: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    ipv6: bool,
    resolvers: Callable[[], Sequence[str]],
    user_id: Callable[[str], int | None] = lambda name: None,
) -> Capture:
    """The settings of a command line (`given`: text by `Flag.key`). Raises `Invalid` with every violation.

    `resolvers` reads the nameservers, and is asked only when they matter; `user_id` looks up a user's name.
    """
    violations: list[Violation] = []

    def read(field: str, reader: Callable[[str], T]) -> T:
        text, source = setting(field, given, environ)
        try:
            return reader(text)
        except Refused as refused:
            violations.append(Violation(source, text, str(refused)))
            return cast(T, None)  # never seen: the violation is raised below, when all are known

    default_uid = user_id(environ.get("ENVOY_USER", "istio-proxy"))
    uids = read("ProxyUID", _owner_ids(default=(default_uid or names.PROXY_ID,)))
    redirect_dns = read("RedirectDNS", _boolean)
    capture_all_dns = read("CaptureAllDNS", _boolean)
    read("ForceIptablesBinary", lambda text: values.choice(text, ("", "legacy", "nft")))
    capture = Capture(
        outbound_port=read("ProxyPort", values.port),
        inbound_port=read("InboundCapturePort", values.port),
        tunnel_port=read("InboundTunnelPort", values.port),
        proxy_uids=uids,
        proxy_gids=read("ProxyGID", _owner_ids(default=uids)),
        mode=read("InboundInterceptionMode", _mode),
        tproxy_mark=read("InboundTProxyMark", lambda text: values.number(text, 1, 2**32 - 1)),
        tproxy_table=read("InboundTProxyRouteTable", _route_table),
        include_inbound_ports=read("InboundPortsInclude", _lenient(values.ports_or_all)),
        exclude_inbound_ports=read("InboundPortsExclude", _lenient(values.ports)),
        include_outbound_ports=read("OutboundPortsInclude", _lenient(values.ports)),
        exclude_outbound_ports=read("OutboundPortsExclude", _lenient(values.ports)),
        include_outbound_cidrs=read("OutboundIPRangesInclude", _lenient(values.cidrs_or_all)),
        exclude_outbound_cidrs=read("OutboundIPRangesExclude", _lenient(values.cidrs)),
        reroute_interfaces=read("RerouteVirtualInterfaces", _lenient(values.interfaces)),
        exclude_interfaces=read("ExcludeInterfaces", _lenient(values.interfaces)),
        owner_groups_include=read("OwnerGroupsInclude", _groups_or_all),
        owner_groups_exclude=read("OwnerGroupsExclude", values.groups),
        loopback_v4=read("HostIPv4LoopbackCidr", values.loopback_cidr),
        redirect_dns=redirect_dns,
        capture_all_dns=capture_all_dns,
        drop_invalid=read("DropInvalid", _boolean),
        dual_stack=read("DualStack", _boolean),
        ipv6=ipv6,
        **(_by_family(resolvers()) if redirect_dns and not capture_all_dns else {}),
    )
    if violations:
        raise Invalid(violations)
    return capture


def _boolean(text: str) -> bool:
    value = values.go_bool(text)
    if value is None:
        raise Refused("true or false")
    return value


def _mode(text: str) -> Mode:
    return cast(Mode, values.choice(text or "REDIRECT", ("REDIRECT", "TPROXY")))


def _owner_ids(default: tuple[int, ...]) -> Callable[[str], tuple[int, ...]]:
    def read(text: str) -> tuple[int, ...]:
        ids = values.ids(text)
        if text and not ids:  # "," would leave the proxy's own traffic captured: an endless loop
            raise Refused("at least one id, or nothing for the default")
        return ids or default

    return read


def _route_table(text: str) -> int:
    """The kernel's own tables are refused: a local default route in `main` would take the pod's network away."""
    table = values.number(text, 1, 2**32 - 1)
    if table in (253, 254, 255):
        raise Refused("a table other than default (253), main (254) and local (255)")
    return table


def _groups_or_all(text: str) -> tuple[str, ...] | Literal["*"]:
    if text == values.WILDCARD:
        return "*"
    groups = values.groups(text)
    if len(groups) > MAX_GROUPS:
        raise Refused(f"at most {MAX_GROUPS} groups, or '*'")
    return groups


def _lenient(reader: Callable[..., T]) -> Callable[[str], T]:
    """A list as flags have it: empty elements are dropped."""
    return lambda text: reader(text, strict=False)


def _by_family(resolvers: Sequence[str]) -> dict[Literal["resolvers_v4", "resolvers_v6"], tuple[str, ...]]:
    return {
        "resolvers_v4": tuple(address for address in resolvers if values.family(address) == 4),
        "resolvers_v6": tuple(address for address in resolvers if values.family(address) == 6),
    }
