"""The pod's own say: which annotations are checked, and by what rule. A bad one refuses the pod, never less."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from cni_agent import names, values
from cni_agent.invalid import Invalid, Violation
from cni_agent.values import Refused
from injector.mutation import effective, quantity

TEMPLATES: Final = "inject.istio.io/templates"
STATUS_PORT: Final = "status.sidecar.istio.io/port"
READINESS_DELAY: Final = "readiness.status.sidecar.istio.io/initialDelaySeconds"
READINESS_PERIOD: Final = "readiness.status.sidecar.istio.io/periodSeconds"
READINESS_THRESHOLD: Final = "readiness.status.sidecar.istio.io/failureThreshold"
MERGE_METRICS: Final = "prometheus.istio.io/merge-metrics"
REWRITE_PROBES: Final = "sidecar.istio.io/rewriteAppHTTPProbers"
OVERRIDES: Final = "proxy.istio.io/overrides"
NATIVE: Final = "sidecar.istio.io/nativeSidecar"
BIND_LOW_PORTS: Final = "sidecar.istio.io/capNetBindService"
BOOTSTRAP: Final = "sidecar.istio.io/bootstrapOverride"
USER_VOLUME: Final = "sidecar.istio.io/userVolume"
USER_VOLUME_MOUNT: Final = "sidecar.istio.io/userVolumeMount"
PROXY_LOG_LEVEL: Final = "sidecar.istio.io/logLevel"
COMPONENT_LOG_LEVEL: Final = "sidecar.istio.io/componentLogLevel"
AGENT_LOG_LEVEL: Final = "sidecar.istio.io/agentLogLevel"
DATADOG: Final = "apm.datadoghq.com/env"
RESOURCES: Final = {  # annotation: where it stands in a container's resources
    "sidecar.istio.io/proxyCPU": ("requests", "cpu"),
    "sidecar.istio.io/proxyMemory": ("requests", "memory"),
    "sidecar.istio.io/proxyCPULimit": ("limits", "cpu"),
    "sidecar.istio.io/proxyMemoryLimit": ("limits", "memory"),
}


def _boolean(text: str) -> None:
    if values.go_bool(text) is None:
        raise Refused("true or false")


def _seconds(text: str) -> None:
    values.number(text, 0, 2**31 - 1)  # the API's field is an int32


def _ports(text: str) -> None:
    values.ports(text.strip())


# annotation: (what Istio's messages call it, rule)
_RULES: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    names.INTERCEPTION_MODE: ("interceptionMode", lambda text: values.choice(text, ("REDIRECT", "TPROXY", "NONE"))),
    STATUS_PORT: ("status port", lambda text: values.number(text.strip(), 0, 65535)),
    READINESS_DELAY: ("initialDelaySeconds", _seconds),
    READINESS_PERIOD: ("periodSeconds", _seconds),
    READINESS_THRESHOLD: ("failureThreshold", _seconds),
    names.INCLUDE_OUTBOUND_IP_RANGES: ("includeIPRanges", values.cidrs_or_all),
    names.EXCLUDE_OUTBOUND_IP_RANGES: ("excludeIPRanges", values.cidrs),
    names.INCLUDE_INBOUND_PORTS: ("includeInboundPorts", lambda text: values.ports_or_all(text.strip())),
    names.EXCLUDE_INBOUND_PORTS: ("excludeInboundPorts", _ports),
    names.EXCLUDE_OUTBOUND_PORTS: ("excludeOutboundPorts", _ports),
    names.EXCLUDE_INTERFACES: ("excludeInterfaces", values.interfaces),
    names.KUBEVIRT_INTERFACES: ("kubevirtInterfaces", values.interfaces),
    names.REROUTE_INTERFACES: ("reroute-virtual-interfaces", values.interfaces),
    MERGE_METRICS: ("merge-metrics", _boolean),
    effective.ANNOTATION: ("proxy config", effective.check),
    **dict.fromkeys(RESOURCES, ("resource", quantity.canonical)),
    names.CAPTURE_POINT: ("capture", lambda text: values.choice(text, ("sandbox", "before-app"))),
}
# Istio takes these as they come; the node agent would refuse them later, when nobody looks
_RULES_OF_OURS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    names.INCLUDE_OUTBOUND_PORTS: ("includeOutboundPorts", _ports),
}


def check(annotations: Mapping[str, str], *, stock: bool) -> None:
    """Raises `Invalid` with every violation."""
    rules = _RULES if stock else {**_RULES, **_RULES_OF_OURS}
    violations = list(_violations(annotations, rules))
    if violations:
        raise Invalid(violations)


def _violations(
    annotations: Mapping[str, str], rules: Mapping[str, tuple[str, Callable[[str], object]]]
) -> Iterator[Violation]:
    for name, value in annotations.items():
        rule = rules.get(name)
        if rule is None:
            continue
        called, read = rule
        try:
            read(value)
        except Refused as refused:
            yield Violation(f"annotation {name} ({called})", value, str(refused))
