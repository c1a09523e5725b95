"""Mesh config, typed: what injection reads of the ConfigMap `istio`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cni_agent.values import Refused
from injector.config import proxyconfig, proxyconfig_check
from injector.config.proxyconfig import CODE_DEFAULTS, ProxyConfig
from injector.config.reader import Reader


@dataclass(frozen=True)
class Mesh:
    """The fields of MeshConfig that shape what is injected."""

    trust_domain: str
    root_namespace: str
    outbound_port: str
    inbound_port: str
    prometheus_merge: bool
    localhost_inbound: bool  # inboundTrafficPolicy LOCALHOST
    otel_attributes: bool  # some provider asks for OTEL_SEMANTIC_CONVENTIONS
    default_config: ProxyConfig  # over the code's defaults

    @property
    def status_port(self) -> int:
        """Where the agent serves merged metrics and rewritten probes."""
        port: int = self.default_config.get("statusPort", 0)
        return port


def read_mesh(read: Reader, discovery_address: str) -> Mesh:
    """Reads a mesh config that was merged over the defaults; what is wrong is in `read.violations`."""
    nothing: ProxyConfig = {}
    written = read.read("defaultConfig", proxyconfig.read, nothing)
    config = proxyconfig.layered([CODE_DEFAULTS, {"discoveryAddress": discovery_address}, written])
    for sentence in proxyconfig_check.violations(config):
        read.refuse("defaultConfig", "", sentence)
    merge = read.raw("enablePrometheusMerge")
    return Mesh(
        trust_domain=read.text("trustDomain"),
        root_namespace=read.text("rootNamespace"),
        outbound_port=str(read.number("proxyListenPort", 0, 65535) or 15001),
        inbound_port=str(read.number("proxyInboundListenPort", 0, 65535) or 15006),
        prometheus_merge=True if merge is None else read.flag("enablePrometheusMerge"),
        localhost_inbound=read.text("inboundTrafficPolicy.mode") == "LOCALHOST",
        otel_attributes=any(read.read("extensionProviders", _asks_for_attributes, [])),
        default_config=config,
    )


def _asks_for_attributes(providers: Any) -> list[bool]:
    if not isinstance(providers, list) or not all(isinstance(provider, Mapping) for provider in providers):
        raise Refused("a list of providers")
    return [
        isinstance(provider.get("opentelemetry"), Mapping)
        and provider["opentelemetry"].get("serviceAttributeEnrichment") == "OTEL_SEMANTIC_CONVENTIONS"
        for provider in providers
    ]
