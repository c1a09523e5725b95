"""Chart values, typed: what the templates of the stock injector read as `.Values`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cni_agent import values
from cni_agent.values import Refused
from injector.config.reader import Reader
from injector.mutation.quantity import canonical

Resources = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Chart:
    """The values that shape what is injected. Numbers that only become text are text."""

    revision: str
    istio_namespace: str
    hub: str
    tag: str
    variant: str
    proxy_image: str
    init_image: str
    image_pull_policy: str
    image_pull_secrets: tuple[str, ...]
    log_as_json: bool
    native_nftables: bool
    agent_log_level: str
    proxy_log_level: str
    component_log_level: str
    outlier_log_path: str
    network: str
    cluster: str
    mesh_id: str
    trust_domain: str
    trust_bundle: str
    cluster_trust_bundle: bool
    ca_address: str
    ca_name: str
    cert_provider: str
    mount_certs: bool
    token_audience: str
    sts_port: int
    openshift: bool
    compliance_policy: str
    multus: bool
    cluster_domain: str
    include_inbound_ports: str
    exclude_inbound_ports: str
    include_ip_ranges: str
    exclude_ip_ranges: str
    include_outbound_ports: str
    exclude_outbound_ports: str
    privileged: bool
    seccomp_profile: Mapping[str, Any]
    bind_low_ports: str
    hold: bool
    lifecycle: Mapping[str, Any]
    readiness_failure_threshold: str
    readiness_initial_delay: str
    readiness_period: str
    startup_probe: bool
    startup_failure_threshold: int
    resources: Resources
    status_port: str
    tracer: str
    rewrite_probes: bool
    gateway_security_context: Mapping[str, Any]


def read_chart(read: Reader) -> Chart:
    """Reads values that were merged over the defaults; what is wrong is in `read.violations`."""
    platform = read.text("global.platform") or read.text("pilot.env.PLATFORM")
    return Chart(
        revision=read.text("revision"),
        istio_namespace=read.text("global.istioNamespace"),
        hub=read.text("global.hub"),
        tag=read.text("global.tag"),
        variant=read.text("global.variant"),
        proxy_image=read.text("global.proxy.image") or "proxyv2",
        init_image=read.text("global.proxy_init.image") or "proxyv2",
        image_pull_policy=read.text("global.imagePullPolicy"),
        image_pull_secrets=read.words("global.imagePullSecrets"),
        log_as_json=read.flag("global.logAsJson"),
        native_nftables=read.flag("global.nativeNftables"),
        agent_log_level=read.text("global.logging.level"),
        proxy_log_level=read.text("global.proxy.logLevel"),
        component_log_level=read.text("global.proxy.componentLogLevel"),
        outlier_log_path=read.text("global.proxy.outlierLogPath"),
        network=read.text("global.network"),
        cluster=read.text("global.multiCluster.clusterName"),
        mesh_id=read.text("global.meshID"),
        trust_domain=read.text("global.trustDomain"),
        trust_bundle=read.text("global.trustBundleName"),
        cluster_trust_bundle=read.raw("pilot.env.ENABLE_CLUSTER_TRUST_BUNDLE_API") in (True, "true"),
        ca_address=read.text("global.caAddress"),
        ca_name=read.text("global.caName"),
        cert_provider=read.text("global.pilotCertProvider"),
        mount_certs=read.flag("global.mountMtlsCerts"),
        token_audience=read.text("global.sds.token.aud"),
        sts_port=read.number("global.sts.servicePort", 0, 65535),
        openshift=platform == "openshift",
        compliance_policy=read.text("pilot.env.COMPLIANCE_POLICY"),
        multus=read.text("pilot.cni.provider") == "multus",
        cluster_domain=read.text("global.proxy.clusterDomain"),
        include_inbound_ports=_checked(read, "includeInboundPorts", values.ports_or_all),
        exclude_inbound_ports=_checked(read, "excludeInboundPorts", values.ports),
        include_ip_ranges=_checked(read, "includeIPRanges", values.cidrs_or_all),
        exclude_ip_ranges=_checked(read, "excludeIPRanges", values.cidrs),
        include_outbound_ports=_checked(read, "includeOutboundPorts", values.ports),
        exclude_outbound_ports=_checked(read, "excludeOutboundPorts", values.ports),
        privileged=read.flag("global.proxy.privileged"),
        seccomp_profile=read.mapping("global.proxy.seccompProfile"),
        bind_low_ports=read.text("global.proxy.capNetBindService"),
        hold=read.flag("global.proxy.holdApplicationUntilProxyStarts"),
        lifecycle=read.mapping("global.proxy.lifecycle"),
        readiness_failure_threshold=_count(read, "readinessFailureThreshold"),
        readiness_initial_delay=_count(read, "readinessInitialDelaySeconds"),
        readiness_period=_count(read, "readinessPeriodSeconds"),
        startup_probe=read.flag("global.proxy.startupProbe.enabled"),
        startup_failure_threshold=read.number("global.proxy.startupProbe.failureThreshold", 0, 2**31 - 1),
        resources=read.read("global.proxy.resources", resources, {}),
        status_port=str(read.number("global.proxy.statusPort", 0, 65535)),
        tracer=read.text("global.proxy.tracer"),
        rewrite_probes=read.flag("sidecarInjectorWebhook.rewriteAppHTTPProbe"),
        gateway_security_context=read.mapping("gateways.securityContext"),
    )


def resources(written: Any) -> Resources:
    """Container resources with canonical quantities; nulls, and what they leave empty, are gone."""
    if not isinstance(written, Mapping):
        raise Refused("a mapping with requests and limits")
    kept: dict[str, Any] = {}
    for kind, amounts in written.items():
        if isinstance(amounts, Mapping):
            amounts = {name: canonical(str(amount)) for name, amount in amounts.items() if amount is not None}
        if amounts:
            kept[kind] = amounts
    return kept


def _checked(read: Reader, name: str, reader: Any) -> str:
    path = f"global.proxy.{name}"
    text = read.text(path)
    try:
        reader(text)
    except Refused as refused:
        read.refuse(path, text, str(refused))
    return text


def _count(read: Reader, name: str) -> str:
    return str(read.number(f"global.proxy.{name}", 0, 2**31 - 1))
