"""ProxyConfig, the settings of one proxy: read, layered, and printed for the PROXY_CONFIG variable.

A config is a plain mapping in protobuf's JSON form: zero values left out, fields in declaration order.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cni_agent.values import Refused
from injector.config.proxyconfig_schema import PROXY_CONFIG, Choice, Kind, Many, OneOf, Pairs
from injector.mutation.golang import compact_json

ProxyConfig = Mapping[str, Any]

# mesh.DefaultProxyConfig (pkg/config/mesh/mesh.go)
CODE_DEFAULTS: Final[ProxyConfig] = {
    "configPath": "./etc/istio/proxy",
    "binaryPath": "/usr/local/bin/envoy",
    "serviceCluster": "istio-proxy",
    "drainDuration": "45s",
    "discoveryAddress": "istiod.istio-system.svc:15012",
    "proxyAdminPort": 15000,
    "controlPlaneAuthPolicy": "MUTUAL_TLS",
    "statNameLength": 189,
    "statusPort": 15020,
    "terminationDrainDuration": "5s",
}
_ONE_CLUSTER_NAME: Final = ("serviceCluster", "tracingServiceName")
_HEADERS_KEPT: Final = ("forwardedClientCert", "requestId", "attemptCount", "server", "envoyDebugHeaders")
_ABSENT: Final = object()
_DURATION = re.compile(r"([0-9]*\.?[0-9]*)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNIT: Final = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_HOUR: Final = 3600 * 10**9
_RANGE: Final = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1), "int64": (-(2**63), 2**63 - 1)}


def read(written: Any) -> ProxyConfig:
    """A ProxyConfig as people write it (YAML, already parsed). Unknown fields are ignored; a wrong type is refused."""
    return {} if written is None else _message(PROXY_CONFIG, written, "")


def zeros(written: Any) -> ProxyConfig:
    """The numbers and texts of a ProxyConfig that are written as zero. They count when it is checked, and only then:
    Istio's layers pass each other printed configs, which have none."""
    fields = written if isinstance(written, dict) else {}
    names = {_plain(str(name)): value for name, value in fields.items()}
    return {
        name: names[name] for name, kind in PROXY_CONFIG.items() if isinstance(kind, str) and names.get(name) in ("", 0)
    }


def layered(layers: Iterable[ProxyConfig]) -> ProxyConfig:
    """Later layers replace whole fields of earlier ones; proxyMetadata merges by key, proxyHeaders by some fields."""
    merged: dict[str, Any] = {}
    for layer in layers:
        before = merged
        merged = {**before, **layer}
        if "proxyMetadata" in before and "proxyMetadata" in layer:
            merged["proxyMetadata"] = {**before["proxyMetadata"], **layer["proxyMetadata"]}
        if "proxyHeaders" in before and "proxyHeaders" in layer:
            kept = {name: before["proxyHeaders"][name] for name in _HEADERS_KEPT if name in before["proxyHeaders"]}
            merged["proxyHeaders"] = {**kept, **layer["proxyHeaders"]}
        named = [name for name in _ONE_CLUSTER_NAME if name in layer]
        if named:
            for name in _ONE_CLUSTER_NAME:
                if name != named[-1]:
                    merged.pop(name, None)
    return merged


def printed(config: ProxyConfig) -> str:
    """The PROXY_CONFIG variable: what differs from the code's defaults, and a newline (protoToJSON in a YAML block)."""
    return compact_json(_ordered(PROXY_CONFIG, differing(config))) + "\n"


def differing(config: ProxyConfig) -> ProxyConfig:
    """The config without the fields that only repeat the code's defaults (cleanProxyConfig)."""
    return {
        name: value
        for name, value in config.items()
        if CODE_DEFAULTS.get(name, _ABSENT) != value and not (name == "proxyMetadata" and not value)
    }


def metadata(config: ProxyConfig) -> Mapping[str, str]:
    """Its proxyMetadata."""
    value: Mapping[str, str] = config.get("proxyMetadata") or {}
    return value


def seconds(text: str) -> float:
    """A duration in seconds, for one that `read` has accepted."""
    return float(text[:-1])


def duration(text: str) -> str:
    """A Go duration (`1m30s`) as protobuf prints it (`90s`).

    >>> duration("1m30s"), duration("500ms"), duration("-1.5h"), duration("0")
    ('90s', '0.500s', '-5400s', '0s')
    """
    allowed = "a duration such as 45s or 1m30s"
    sign, rest = ("-", text[1:]) if text[:1] == "-" else ("", text.removeprefix("+"))
    if rest == "0":
        return "0s"
    nanoseconds, position = 0, 0
    while position < len(rest):
        part = _DURATION.match(rest, position)
        if not part or part[1] in ("", ".") or len(part[1]) > 20:
            raise Refused(allowed)
        whole, _, fraction = part[1].partition(".")
        unit = _UNIT.get(part[2], _HOUR)
        nanoseconds += int(whole or 0) * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
        position = part.end()
    if not rest or nanoseconds >= 2**63:
        raise Refused(allowed)
    return sign * (nanoseconds > 0) + _proto_duration(nanoseconds)


def _proto_duration(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 10**9)
    digits = f"{rest:09d}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f"{whole}.{digits}s" if digits else f"{whole}s"


def _message(kinds: Mapping[str, Kind], written: Any, path: str) -> dict[str, Any]:
    if not isinstance(written, dict):
        raise Refused(f"a mapping at {path or 'the top'}")
    by_name = {_plain(str(name)): value for name, value in written.items()}
    fields = {}
    for name, kind in kinds.items():
        value = by_name.get(_plain(name))
        if value is None:
            continue
        kept = _value(kind, value, f"{path}.{name}" if path else name)
        if kept is not _ABSENT:
            fields[name] = kept
    return fields


def _plain(name: str) -> str:
    """protobuf takes both fieldName and field_name."""
    return name if "_" not in name else re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


def _value(kind: Kind, written: Any, path: str) -> Any:
    """The value in its normal form, or `_ABSENT` when protobuf would not print it."""
    match kind:
        case str():
            value = _scalar(kind, written, path)
            return _ABSENT if not value and kind in ("string", "bool", "int32", "uint32", "double") else value
        case Choice():
            name = _choice(kind, written, path)
            return _ABSENT if kind.by_number().get(0) == name else name
        case OneOf():
            return _present(kind.kind, written, path)
        case Many():
            if not isinstance(written, list):
                raise Refused(f"a list at {path}")
            return [_present(kind.kind, item, f"{path}[{n}]") for n, item in enumerate(written)] or _ABSENT
        case Pairs():
            if not isinstance(written, dict):
                raise Refused(f"a mapping at {path}")
            return {str(key): _present(kind.kind, item, f"{path}.{key}") for key, item in written.items()} or _ABSENT
        case _:
            return _message(kind, written, path)


def _present(kind: Kind, written: Any, path: str) -> Any:
    """An element, or a field of a oneof: there even when it is zero."""
    if isinstance(kind, Choice):
        return _choice(kind, written, path)
    return _scalar(kind, written, path) if isinstance(kind, str) else _value(kind, written, path)


def _choice(kind: Choice, written: Any, path: str) -> str:
    names = kind.by_number()
    if isinstance(written, str) and written in kind.names:
        return written
    if isinstance(written, int) and not isinstance(written, bool) and written in names:
        return names[written]
    raise Refused(f"{', '.join(kind.names)} at {path}")


def _scalar(kind: str, written: Any, path: str) -> Any:
    if kind == "string":
        if not isinstance(written, str):
            raise Refused(f"text at {path} (quote it)")
        return written
    if kind in ("bool", "boolvalue"):
        if not isinstance(written, bool):
            raise Refused(f"true or false at {path}")
        return written
    if kind == "duration":
        if not isinstance(written, str):
            raise Refused(f"a duration such as 45s at {path}")
        try:
            return duration(written)
        except Refused as refused:
            raise Refused(f"{refused} at {path}") from None
    return _number(kind, written, path)


def _number(kind: str, written: Any, path: str) -> Any:
    if kind == "double":
        if isinstance(written, bool) or not isinstance(written, int | float):
            raise Refused(f"a number at {path}")
        return int(written) if float(written).is_integer() else written
    width = kind.removesuffix("value")
    text = written if isinstance(written, str) else str(written)
    lowest, highest = _RANGE[width]
    if isinstance(written, bool) or not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        raise Refused(f"a whole number at {path}")
    if not lowest <= int(text) <= highest:
        raise Refused(f"a number from {lowest} to {highest} at {path}")
    return text if width == "int64" else int(text)  # protobuf prints 64-bit numbers as text


def _ordered(kinds: Mapping[str, Kind], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same message, its fields and those of its messages in declaration order, maps by key."""
    return {name: _ordered_value(kind, fields[name]) for name, kind in kinds.items() if name in fields}


def _ordered_value(kind: Kind, value: Any) -> Any:
    match kind:
        case OneOf():
            return _ordered_value(kind.kind, value)
        case Pairs():
            return {key: _ordered_value(kind.kind, value[key]) for key in sorted(value)}
        case Many():
            return [_ordered_value(kind.kind, item) for item in value]
        case str() | Choice():
            return value
        case _:
            return _ordered(kind, value)
