"""The built-in templates: what each wants a pod to have, as a structure. Nothing here is text that is parsed again."""

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from cni_agent import names
from injector.mutation import environment, volumes
from injector.mutation.annotations import REWRITE_PROBES
from injector.mutation.multus import ISTIO_CNI, NETWORKS, with_network, without_network
from injector.mutation.proxy_container import arguments, image, probe, proxy_container, readiness_probe
from injector.mutation.validation_container import validation_container
from injector.mutation.workload import Workload

Overlay = Mapping[str, Any]

_LONGEST_LABEL: Final = 63
_KEPT_CHARACTERS: Final = 4096  # of all annotations together; a pod with more is not remembered
_DEFAULT_CONTAINER: Final = (
    "kubectl.kubernetes.io/default-logs-container",
    "kubectl.kubernetes.io/default-container",
)


def sidecar(workload: Workload) -> Overlay:
    """istio-validation and istio-proxy."""
    first = [] if workload.mode == "NONE" else [validation_container(workload)]
    proxy = proxy_container(workload)
    spec: dict[str, Any] = {
        "initContainers": [*first, proxy] if workload.native else first,
        "volumes": volumes.sidecar(workload),
        **_pull_secrets(workload),
    }
    if not workload.native:
        spec["containers"] = [proxy]
    labels = {"security.istio.io/tlsMode": workload.labels.get("security.istio.io/tlsMode") or "istio"}
    if workload.metadata.get("ISTIO_META_ENABLE_HBONE") == "true":
        labels["networking.istio.io/tunnel"] = workload.labels.get("networking.istio.io/tunnel") or "http"
    canonical = _canonical(workload)
    name = canonical["service.istio.io/canonical-name"].encode()[:_LONGEST_LABEL].decode(errors="ignore")
    labels |= canonical | {"service.istio.io/canonical-name": name.strip("-_.")}
    return {
        "metadata": {"labels": labels, "annotations": {**_annotations(workload), **dict(_capture(workload))}},
        "spec": spec,
    }


def gateway(workload: Workload) -> Overlay:
    """istio-proxy as a router of its own; no capture."""
    low_ports = {"sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]}
    return {
        "metadata": {"labels": _canonical(workload), "annotations": _annotations(workload)},
        "spec": {
            "securityContext": workload.settings.chart.gateway_security_context or low_ports,
            "containers": [_router(workload)],
            "volumes": volumes.gateway(workload),
            **_pull_secrets(workload),
        },
    }


def _router(workload: Workload) -> dict[str, Any]:
    chart = workload.settings.chart
    proxy: dict[str, Any] = {
        "name": names.PROXY_CONTAINER,
        "image": image(workload),
        "ports": [{"containerPort": names.ENVOY_METRICS_PORT, "protocol": "TCP", "name": "http-envoy-prom"}],
        "args": arguments(workload, "router"),
        "resources": {},
        "securityContext": {"runAsUser": workload.uid, "runAsGroup": workload.gid},
        "env": environment.gateway(workload),
        "readinessProbe": probe(
            {"path": "/healthz/ready", "port": names.READINESS_PORT},
            delay=int(chart.readiness_initial_delay),
            period=int(chart.readiness_period),
            threshold=int(chart.readiness_failure_threshold),
        ),
        "volumeMounts": volumes.gateway_mounts(workload),
    }
    if chart.lifecycle:
        proxy["lifecycle"] = chart.lifecycle
    if chart.image_pull_policy:
        proxy["imagePullPolicy"] = chart.image_pull_policy
    return proxy


def grpc_agent(workload: Workload) -> Overlay:
    """The agent without Envoy, for applications that speak xDS themselves."""
    bootstrap = [
        {"name": "GRPC_XDS_EXPERIMENTAL_SECURITY_SUPPORT", "value": "true"},
        {"name": "GRPC_XDS_BOOTSTRAP", "value": "/etc/istio/proxy/grpc-bootstrap.json"},
    ]
    mounts = volumes.grpc_application_mounts(workload)
    applications = [{"name": name, "env": bootstrap, "volumeMounts": mounts} for name in workload.application]
    return {
        "metadata": {
            "labels": _canonical(workload),
            "annotations": {**_annotations(workload), REWRITE_PROBES: "false"},
        },
        "spec": {
            "containers": [_agent(workload), *applications],
            "volumes": volumes.grpc_agent(workload),
            **_pull_secrets(workload),
        },
    }


def _agent(workload: Workload) -> dict[str, Any]:
    chart = workload.settings.chart
    wait = ["pilot-agent", "wait", "--url=http://localhost:15020/healthz/ready"]
    proxy: dict[str, Any] = {
        "name": names.PROXY_CONTAINER,
        "image": image(workload),
        "ports": [{"containerPort": names.STATUS_PORT, "protocol": "TCP", "name": "mesh-metrics"}],
        "args": arguments(workload, "sidecar"),
        "lifecycle": {"postStart": {"exec": {"command": wait}}},
        "env": environment.grpc_agent(workload),
        "resources": {},
    }
    if chart.image_pull_policy:
        proxy["imagePullPolicy"] = chart.image_pull_policy
    if workload.status_port != "0":  # stock leaves these out together with the probe
        proxy["readinessProbe"] = readiness_probe(workload, {"path": "/healthz/ready", "port": names.STATUS_PORT})
        proxy["resources"] = workload.resources
        proxy["volumeMounts"] = volumes.grpc_agent_mounts(workload)
    return proxy


BUILT_IN: Final[Mapping[str, Callable[[Workload], Overlay]]] = {
    "sidecar": sidecar,
    "gateway": gateway,
    "grpc-agent": grpc_agent,
}


def rendered(name: str, workload: Workload) -> Overlay:
    """What a template asks for: the operator's overlay of that name, or the built-in one."""
    plain = workload.settings.overlays.plain.get(name)
    if plain is not None:
        return plain
    alike = _Alike(workload)
    return _kept(name, alike) if alike.small else BUILT_IN[name](workload)


class _Alike:
    """A workload as a key: equal to another that no template can tell from it, as the pods of a Deployment are."""

    __slots__ = ("_hash", "_seen", "small", "workload")

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.small = sum(map(len, workload.annotations.values())) <= _KEPT_CHARACTERS
        self._seen = (
            workload.settings,
            tuple(workload.labels.items()),
            tuple(workload.annotations.items()),
            tuple([(container.name, container.image, *(container.ports or ())) for container in workload.containers]),
            workload.namespace,
            workload.service_account,
            workload.identity,
            workload.printed_config,
            workload.uid,
            workload.gid,
            workload.native,
        )
        self._hash = hash(self._seen)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Alike) and self._seen == other._seen


@lru_cache(maxsize=128)  # of some 30 kB each; what comes out is shared, and nobody changes it
def _kept(name: str, alike: _Alike) -> Overlay:
    return BUILT_IN[name](alike.workload)


def _pull_secrets(workload: Workload) -> dict[str, Any]:
    secrets = workload.settings.chart.image_pull_secrets
    return {"imagePullSecrets": [{"name": name} for name in secrets]} if secrets else {}


def _canonical(workload: Workload) -> dict[str, str]:
    """The service that the pod belongs to, for telemetry."""
    labels = workload.labels

    def first(*keys: str) -> str:
        return next((labels[key] for key in keys if labels.get(key)), "")

    name = first("service.istio.io/canonical-name", "app.kubernetes.io/name", "app") or workload.identity.name
    revision = first("service.istio.io/canonical-revision", "app.kubernetes.io/version", "version") or "latest"
    return {"service.istio.io/canonical-name": name, "service.istio.io/canonical-revision": revision}


def _annotations(workload: Workload) -> dict[str, str]:
    application = workload.application
    chosen = {"istio.io/rev": workload.settings.revision}
    if application:
        missing = (name for name in _DEFAULT_CONTAINER if name not in workload.annotations)
        chosen.update(dict.fromkeys(missing, application[0]))
    return chosen


def _networks(workload: Workload) -> Iterator[tuple[str, str | None]]:
    """Stock has Multus call istio-cni. We have no plugin, and over one that is not there Multus fails every pod."""
    if workload.settings.stock:
        if workload.settings.chart.multus:
            yield NETWORKS, with_network(workload.annotation(NETWORKS, ""), ISTIO_CNI)
    elif NETWORKS in workload.annotations and names.STATUS in workload.annotations:
        yield NETWORKS, without_network(workload.annotations[NETWORKS], ISTIO_CNI) or None


def _capture(workload: Workload) -> Iterator[tuple[str, str | None]]:
    """What the node agent reads. Where the pod says nothing, the operator's values are written out for it."""
    chart, annotation = workload.settings.chart, workload.annotation
    yield from _networks(workload)
    yield names.INTERCEPTION_MODE, workload.mode
    included = annotation(names.INCLUDE_OUTBOUND_IP_RANGES, chart.include_ip_ranges)
    if included or not workload.settings.stock:  # stock loses an empty list, and its plugin then captures everything
        yield names.INCLUDE_OUTBOUND_IP_RANGES, included
    excluded = annotation(names.EXCLUDE_OUTBOUND_IP_RANGES, chart.exclude_ip_ranges)
    if excluded:
        yield names.EXCLUDE_OUTBOUND_IP_RANGES, excluded
    yield names.INCLUDE_INBOUND_PORTS, annotation(names.INCLUDE_INBOUND_PORTS, chart.include_inbound_ports)
    yield names.EXCLUDE_INBOUND_PORTS, workload.exclude_inbound_ports
    for name, default in (
        (names.INCLUDE_OUTBOUND_PORTS, chart.include_outbound_ports),
        (names.EXCLUDE_OUTBOUND_PORTS, chart.exclude_outbound_ports),
    ):
        if name in workload.annotations or default:
            yield name, annotation(name, default)
