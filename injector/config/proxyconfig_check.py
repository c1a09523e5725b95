"""What Istio refuses in a ProxyConfig (pkg/config/validation/agent: ValidateMeshConfigProxyConfig)."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from cni_agent import values
from cni_agent.values import Refused
from injector.config.proxyconfig import ProxyConfig, seconds

_LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_]*[a-zA-Z0-9])?", re.ASCII)
_LONGEST_NAME: Final = 255
_LONGEST_LABEL: Final = 63


def violations(config: ProxyConfig) -> Iterator[str]:
    """What is wrong, one sentence each; nothing when the config may be used."""
    for name in ("configPath", "binaryPath"):
        if not config.get(name):
            yield f"{name} must be set"
    if not config.get("serviceCluster") and "tracingServiceName" not in config:
        yield "serviceCluster or tracingServiceName must be set"
    drain = seconds(config.get("drainDuration", "0s"))
    if drain < 1 or drain % 1:
        yield "drainDuration must be whole seconds, at least 1s"
    for name in ("proxyAdminPort", "statusPort"):
        if not 1 <= config.get(name, 0) <= 65535:
            yield f"{name} must be a port from 1 to 65535"
    if config.get("controlPlaneAuthPolicy", "NONE") == "INHERIT":
        yield "controlPlaneAuthPolicy must be NONE or MUTUAL_TLS"
    yield from _addresses(config)
    provider = config.get("privateKeyProvider")
    if provider is not None:
        delays = [kind.get("pollDelay", "0s") for kind in provider.values()]
        if not delays or any(seconds(delay) == 0 for delay in delays):
            yield "privateKeyProvider needs cryptomb or qat with a pollDelay above zero"


def _addresses(config: ProxyConfig) -> Iterator[str]:
    tracing = config.get("tracing", {})
    written = {
        "discoveryAddress": config.get("discoveryAddress", ""),
        "statsdUdpAddress": config.get("statsdUdpAddress"),
        "envoyMetricsServiceAddress": config.get("envoyMetricsServiceAddress"),
        "envoyMetricsService.address": config.get("envoyMetricsService", {}).get("address"),
        "envoyAccessLogService.address": config.get("envoyAccessLogService", {}).get("address"),
    }
    for tracer in ("zipkin", "datadog", "lightstep"):
        if tracer in tracing:
            address = tracing[tracer].get("address", "")
            if tracer != "lightstep":  # the node's address, known only in the pod
                address = address.replace("$(HOST_IP)", "127.0.0.1", 1)
            written[f"tracing.{tracer}.address"] = address
    for name, address in written.items():
        if address is not None and not is_address(address):
            yield f"{name} must be a host name or IP address with a port"
    if "lightstep" in tracing and not tracing["lightstep"].get("accessToken"):
        yield "tracing.lightstep.accessToken must be set"


def is_address(text: str) -> bool:
    """Whether this is HOST:PORT.

    >>> [is_address(text) for text in ("istiod.istio-system.svc:15012", "[::1]:80", "istiod", "a:70000", ":80")]
    [True, True, False, False, False]
    """
    host, colon, port = text.rpartition(":")
    bracketed = host[:1] == "[" and host[-1:] == "]"
    host = host[1:-1] if bracketed else host
    try:
        values.port(port)
        if not colon or (":" in host and not bracketed):
            return False
        return _is_name(host) or bool(ipaddress.ip_address(host))
    except (Refused, ValueError):
        return False


def _is_name(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    return len(host) <= _LONGEST_NAME and all(
        len(label) <= _LONGEST_LABEL and _LABEL.fullmatch(label) for label in labels
    )
