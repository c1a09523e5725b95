"""Capture settings from the flags and environment variables of `istio-iptables`, by its precedence.

Pure: the environment comes as a mapping, and what must be looked up as functions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeVar, cast

from cni_agent import names, values
from cni_agent.capture import Capture, Mode
from cni_agent.flag_table import FLAGS
from cni_agent.invalid import Invalid, Violation
from cni_agent.values import Refused

T = TypeVar("T")
MAX_GROUPS: Final = 64  # tools/common/config/validation.go: groups that may be named in OwnerGroupsInclude


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
        if variable in environ and (not flag.is_switch or values.go_bool(environ[variable]) is not None):
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
