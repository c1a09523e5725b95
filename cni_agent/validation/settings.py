"""What the flags and variables of istio-iptables say, as far as it decides where a probe lands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cni_agent import names
from cni_agent.validation import arguments
from cni_agent.validation.arguments import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T", int, float)


class BadSetting(ValueError):
    """A value that istio-iptables' parser takes and that still cannot be meant."""


class Settings:
    """The settings of one pod. Precedence as in Istio: flag, then the additional variable, then the flag's own."""

    def __init__(self, argv: list[str], environ: Mapping[str, str]) -> None:
        self._given = arguments.parse(argv)
        self._environ = environ
        self.help = self._switch("help")
        self.timeout = self._typed("probe-timeout", arguments.seconds, "a duration such as 5s, 10m or 1m30s")
        self.probe_port = self._typed("iptables-probe-port", _port, "a port, 1 to 65535")
        self.termination_log = self._text("termination-log")
        self.outbound_port = self._port("envoy-port")
        self.inbound_port = self._port("inbound-capture-port")
        self.tunnel_port = self._port("inbound-tunnel-port")
        self.uids = self._numbers("proxy-uid", 2**32 - 2) or (_user_id(environ),)
        self.gids = self._numbers("proxy-gid", 2**32 - 2) or self.uids
        self.mode = self._word("istio-inbound-interception-mode", "REDIRECT", "TPROXY", "NONE") or "REDIRECT"
        self.all_inbound = self._text("istio-inbound-ports") == "*"
        self.include_inbound_ports = () if self.all_inbound else self._numbers("istio-inbound-ports")
        self.exclude_inbound_ports = self._numbers("istio-local-exclude-ports")
        self.include_outbound_ports = self._numbers("istio-outbound-ports")
        self.exclude_outbound_ports = self._numbers("istio-local-outbound-ports-exclude")
        self.all_addresses = self._text("istio-service-cidr") == "*"
        self.include_cidrs = () if self.all_addresses else self._list("istio-service-cidr", "cidrs")
        self.exclude_cidrs = self._list("istio-service-exclude-cidr", "cidrs")
        self.exclude_interfaces = self._list("istio-exclude-interfaces", "interfaces")
        self.all_groups = self._text("ISTIO_OUTBOUND_OWNER_GROUPS") == "*"
        self.include_groups = () if self.all_groups else self._list("ISTIO_OUTBOUND_OWNER_GROUPS", "groups")
        self.exclude_groups = self._list("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "groups")
        self.loopback_v4 = self._loopback()
        self.redirect_dns = self._switch("redirect-dns")
        self.capture_all_dns = self._switch("capture-all-dns")
        self.dual_stack = self._switch("dual-stack")
        self.native_nftables = self._switch("native-nftables")
        self.stock = bool(self._word("compatibility", "istio"))
        self._word("force-iptables-binary", "legacy", "nft")

    def loopback(self, family: int) -> str:
        """What counts as loopback; only the v4 range can be configured."""
        return self.loopback_v4 if family == 4 else names.LOOPBACK_V6

    def _text(self, name: str) -> str:
        if name in self._given:
            return self._given[name]
        knob = arguments.KNOBS[name]
        return next(
            (self._environ[variable] for variable in knob.environment if variable in self._environ), knob.default
        )

    def _switch(self, name: str) -> bool:
        """A variable that is no boolean counts as not set."""
        for text in (self._given.get(name), *map(self._environ.get, arguments.KNOBS[name].environment)):
            if text in arguments.TRUE + arguments.FALSE:
                return text in arguments.TRUE
        return False

    def _typed(self, name: str, read: Callable[[str], T], allowed: str) -> T:
        """A flag that pflag itself parses: a bad one is a usage error, a bad variable counts as not set."""
        if name in self._given:
            try:
                return read(self._given[name])
            except ValueError:
                raise Usage(f"--{name}: {self._given[name][:60]!r} is not {allowed}") from None
        try:
            return read(self._text(name))
        except ValueError:
            return read(arguments.KNOBS[name].default)

    def _port(self, name: str) -> int:
        try:
            return _port(self._text(name))
        except ValueError:
            raise self._bad(name, "a port, 1 to 65535") from None

    def _numbers(self, name: str, highest: int = 65535) -> tuple[int, ...]:
        items = [item.strip(" \t") for item in self._text(name).split(",")]
        if not all(item.isascii() and item.isdigit() and int(item) <= highest for item in items if item):
            raise self._bad(name, f"numbers up to {highest}, separated by commas")
        return tuple(int(item) for item in items if item)

    def _word(self, name: str, *allowed: str) -> str:
        if self._text(name) not in ("", *allowed):
            raise self._bad(name, " or ".join(allowed))
        return self._text(name)

    def _list(self, name: str, reader: str) -> tuple[str, ...]:
        """A list that few pods have: only then are its readers imported."""
        if self._text(name) == "":
            return ()
        from cni_agent import values

        readers: dict[str, Callable[[str], tuple[str, ...]]] = {
            "cidrs": lambda text: values.cidrs(text, strict=False),
            "interfaces": lambda text: values.interfaces(text, strict=False),
            "groups": values.groups,
        }
        try:
            return readers[reader](self._text(name))
        except values.Refused as refused:
            raise self._bad(name, str(refused)) from None

    def _loopback(self) -> str:
        name = "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"
        if self._text(name) == names.LOOPBACK_V4:
            return names.LOOPBACK_V4
        from cni_agent import values

        try:
            return values.loopback_cidr(self._text(name))
        except values.Refused as refused:
            raise self._bad(name, str(refused)) from None

    def _bad(self, name: str, allowed: str) -> BadSetting:
        from cni_agent.invalid import Violation

        return BadSetting(str(Violation(arguments.KNOBS[name].key, self._text(name), allowed)))


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise ValueError(text)
    return int(text)


def _user_id(environ: Mapping[str, str]) -> int:
    import pwd

    try:
        return pwd.getpwnam(environ.get("ENVOY_USER", "istio-proxy")).pw_uid
    except KeyError:
        return names.PROXY_ID
