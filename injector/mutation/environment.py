"""The variables of istio-proxy, in the order in which the stock templates have them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from cni_agent.values import Refused
from injector.mutation.annotations import BOOTSTRAP, DATADOG
from injector.mutation.golang import compact_json, sprint
from injector.mutation.otel import resource_attributes
from injector.mutation.pod import Port
from injector.mutation.workload import Workload

Variable = dict[str, Any]


def variable(name: str, value: str) -> Variable:
    """A variable with a value. An empty one is a null here: the API prints none, and it removes an earlier one."""
    return {"name": name, "value": value or None}


def _field(name: str, path: str) -> Variable:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _limit(name: str, resource: str) -> Variable:
    return {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": "1"}}}


POD_FIELDS: Final = (
    _field("POD_NAME", "metadata.name"),
    _field("POD_NAMESPACE", "metadata.namespace"),
    _field("INSTANCE_IP", "status.podIP"),
    _field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
    _field("HOST_IP", "status.hostIP"),
)
_CPU_LIMIT: Final = _limit("ISTIO_CPU_LIMIT", "limits.cpu")
_GO_LIMITS: Final = (_limit("GOMEMLIMIT", "limits.memory"), _limit("GOMAXPROCS", "limits.cpu"))
_NODE_NAME: Final = _field("ISTIO_META_NODE_NAME", "spec.nodeName")


def sidecar(workload: Workload) -> list[Variable]:
    """Of the sidecar template."""
    chosen = workload.labels.get("service.istio.io/workload-name") or workload.identity.name
    return [
        *_control_plane(workload),
        *POD_FIELDS,
        _CPU_LIMIT,
        variable("PROXY_CONFIG", workload.printed_config),
        variable("ISTIO_META_POD_PORTS", pod_ports(workload)),
        variable("ISTIO_META_APP_CONTAINERS", ",".join(workload.application)),
        *_GO_LIMITS,
        *_compliance(workload),
        _cluster(workload),
        _NODE_NAME,
        variable("ISTIO_META_INTERCEPTION_MODE", workload.mode),
        *_network(workload),
        *_owner(workload, chosen),
        *_bootstrap(workload),
        *_trust(workload),
        *_datadog(workload),
        *_otel(workload),
        *metadata(workload),
    ]


def gateway(workload: Workload) -> list[Variable]:
    """Of the gateway template."""
    return [
        *_authority(workload),
        *POD_FIELDS,
        _CPU_LIMIT,
        variable("PROXY_CONFIG", workload.printed_config),
        variable("ISTIO_META_POD_PORTS", pod_ports(workload)),
        *_GO_LIMITS,
        *_compliance(workload),
        variable("ISTIO_META_APP_CONTAINERS", ",".join(workload.application)),
        _cluster(workload),
        _NODE_NAME,
        variable("ISTIO_META_INTERCEPTION_MODE", workload.config.get("interceptionMode", "REDIRECT")),
        *_network(workload),
        *_owner(workload, workload.identity.name),
        *_bootstrap(workload),
        *_trust(workload),
        *metadata(workload),
    ]


def grpc_agent(workload: Workload) -> list[Variable]:
    """Of the grpc-agent template: no Envoy, only the agent."""
    return [
        variable("ISTIO_META_GENERATOR", "grpc"),
        variable("OUTPUT_CERTS", "/var/lib/istio/data"),
        *_control_plane(workload),
        *POD_FIELDS,
        variable("PROXY_CONFIG", workload.printed_config),
        variable("ISTIO_META_POD_PORTS", pod_ports(workload)),
        variable("ISTIO_META_APP_CONTAINERS", ",".join(workload.application)),
        _cluster(workload),
        _NODE_NAME,
        *_network(workload),
        *_owner(workload, workload.identity.name),
        *_trust(workload),
        *metadata(workload),
        variable("ISTIO_META_DNS_CAPTURE", "false"),
        variable("DISABLE_ENVOY", "true"),
    ]


def metadata(workload: Workload) -> list[Variable]:
    """proxyMetadata by key."""
    return [variable(name, value) for name, value in sorted(workload.metadata.items())]


def pod_ports(workload: Workload) -> str:
    """ISTIO_META_POD_PORTS: JSON, in the layout that the template's white space gives it."""
    ports = [compact_json(_port(port)) for container in workload.containers for port in container.ports or ()]
    return "[" + "".join(f"\n    {',' if number else ''}{port}" for number, port in enumerate(ports)) + "\n]"


def _port(port: Port) -> dict[str, Any]:
    fields = {
        "name": port.name,
        "hostPort": port.hostPort,
        "containerPort": port.containerPort,
        "protocol": port.protocol,
        "hostIP": port.hostIP,
    }
    return {name: value for name, value in fields.items() if value or name == "containerPort"}


def _control_plane(workload: Workload) -> Iterator[Variable]:
    if workload.settings.mesh.localhost_inbound:
        yield variable("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", "true")
    yield from _authority(workload)


def _authority(workload: Workload) -> Iterator[Variable]:
    chart = workload.settings.chart
    istiod = f"istiod-{chart.revision}" if chart.revision else "istiod"
    yield variable("PILOT_CERT_PROVIDER", chart.cert_provider)
    yield variable("CA_ADDR", chart.ca_address or f"{istiod}.{chart.istio_namespace}.svc:15012")


def _compliance(workload: Workload) -> Iterator[Variable]:
    policy = workload.settings.chart.compliance_policy
    if policy:
        yield variable("COMPLIANCE_POLICY", policy)
    if policy == "fips-140-3":
        yield variable("GODEBUG", "fips140=only")


def _cluster(workload: Workload) -> Variable:
    return variable("ISTIO_META_CLUSTER_ID", workload.settings.chart.cluster or "Kubernetes")


def _network(workload: Workload) -> Iterator[Variable]:
    if workload.settings.chart.network:
        yield variable("ISTIO_META_NETWORK", workload.settings.chart.network)


def _owner(workload: Workload, name: str) -> Iterator[Variable]:
    if name:
        yield variable("ISTIO_META_WORKLOAD_NAME", name)
    if workload.identity.name and workload.identity.api_version:
        yield variable("ISTIO_META_OWNER", workload.identity.owner(workload.namespace))


def _bootstrap(workload: Workload) -> Iterator[Variable]:
    if BOOTSTRAP in workload.annotations:
        yield variable("ISTIO_BOOTSTRAP_OVERRIDE", "/etc/istio/custom-bootstrap/custom_bootstrap.json")


def _trust(workload: Workload) -> Iterator[Variable]:
    domain = workload.settings.mesh.trust_domain or workload.settings.chart.trust_domain
    mesh = workload.settings.chart.mesh_id or domain
    if mesh:
        yield variable("ISTIO_META_MESH_ID", mesh)
    if domain:
        yield variable("TRUST_DOMAIN", domain)


def _datadog(workload: Workload) -> Iterator[Variable]:
    written = workload.annotations.get(DATADOG)
    if workload.settings.chart.tracer != "datadog" or written is None:
        return
    try:
        pairs: Mapping[str, Any] = msgspec.json.decode(written, type=dict[str, Any])
    except msgspec.DecodeError:
        raise Refused(f"annotation {DATADOG}: expected a JSON object") from None
    yield from (variable(name, sprint(value)) for name, value in sorted(pairs.items()))


def _otel(workload: Workload) -> Iterator[Variable]:
    if workload.settings.mesh.otel_attributes:
        text = resource_attributes(workload.annotations, workload.labels, workload.namespace, workload.containers)
        if text:
            yield variable("OTEL_RESOURCE_ATTRIBUTES", text)
