"""A pod as the API gives it, reduced to the fields we need. Decoding skips everything else."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cni_agent import names
from cni_agent.invalid import Invalid, Violation

# what is kept of a pod's annotations; the rest may be hundreds of kilobytes
ANNOTATIONS: Final = frozenset({
    names.INJECT, names.STATUS, names.INTERCEPTION_MODE, names.CAPTURE_POINT,
    names.INCLUDE_OUTBOUND_IP_RANGES, names.EXCLUDE_OUTBOUND_IP_RANGES,
    names.INCLUDE_INBOUND_PORTS, names.EXCLUDE_INBOUND_PORTS,
    names.INCLUDE_OUTBOUND_PORTS, names.EXCLUDE_OUTBOUND_PORTS,
    names.EXCLUDE_INTERFACES, names.REROUTE_INTERFACES, names.KUBEVIRT_INTERFACES,
})  # fmt: skip
_STATIC_UID: Final = re.compile("[0-9a-f]{32}")  # a hash of the manifest; a uid of the API has dashes
PROXY_ENVIRONMENT: Final = frozenset({names.DISABLE_ENVOY, names.DNS_CAPTURE, names.INVALID_DROP, names.DUAL_STACK})


@dataclass(frozen=True, slots=True)
class Proxy:
    """The istio-proxy container. Variables from `valueFrom` count as empty."""

    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    run_as_user: int | None = None
    run_as_group: int | None = None


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """How far a container has come. `container_id`, without the runtime's name, is that of its last try."""

    name: str
    container_id: str = ""
    running: bool = False
    started: str = ""  # while it runs
    exit_code: int | None = None  # None until there is one
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class PodView:
    """What the agent knows of a pod. `uid` is that of its cgroup. `mirror`: the uid that the API has for a static pod,
    which the kubelet runs from a file; empty for any other.
    """

    name: str
    namespace: str
    uid: str
    mirror: str = ""
    node: str = ""
    host_network: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    inject_label: str | None = None
    containers: tuple[str, ...] = ()
    init_containers: tuple[str, ...] = ()
    proxy: Proxy | None = None
    validation: tuple[str, ...] = ()  # arguments of istio-validation
    addresses: tuple[str, ...] = ()
    phase: str = ""
    started: str = ""
    deleting: bool = False
    init_statuses: tuple[ContainerStatus, ...] = ()
    statuses: tuple[ContainerStatus, ...] = ()  # of `containers`


def pod_view(pod: bytes | Mapping[str, Any]) -> PodView:
    """Reads a pod, as JSON text or as decoded already. Raises `Invalid` with the path of what is wrong."""
    try:
        wire = _DECODER.decode(pod) if isinstance(pod, bytes) else msgspec.convert(pod, _Pod)
    except msgspec.DecodeError as error:  # ValidationError, which names the path, is one too
        reason, _, path = str(error).rpartition(" - at ")
        field = f"pod {path.strip('`')}" if reason else "pod"
        raise Invalid([Violation(field, reason or path, "what the Kubernetes API has there")]) from None
    return view(wire)


class _Wire(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """An API object: camelCase on the wire, and any field may be null."""


class _EnvVar(_Wire):
    name: str
    value: str | None = None


class _SecurityContext(_Wire):
    run_as_user: int | None = None
    run_as_group: int | None = None


class _Container(_Wire):
    name: str
    args: list[str] | None = None
    env: list[_EnvVar] | None = None
    security_context: _SecurityContext | None = None


class _Terminated(_Wire):
    exit_code: int = 0


class _Running(_Wire):
    started_at: str | None = None


class _State(_Wire):
    running: _Running | None = None
    terminated: _Terminated | None = None


class _ContainerStatus(_Wire):
    name: str
    container_id: str | None = msgspec.field(default=None, name="containerID")
    state: _State | None = None
    restart_count: int = 0


class _Address(_Wire):
    ip: str = ""


class _Metadata(_Wire):
    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Spec(_Wire):
    node_name: str | None = None
    host_network: bool | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Status(_Wire):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: list[_Address] | None = msgspec.field(default=None, name="podIPs")
    start_time: str | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    container_statuses: list[_ContainerStatus] | None = None


class _Pod(_Wire):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status | None = None


_DECODER: Final = msgspec.json.Decoder(_Pod)


def view(pod: _Pod) -> PodView:
    """The view of a decoded pod."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status or _Status()
    containers, init_containers = spec.containers or [], spec.init_containers or []
    proxy = next((c for c in (*containers, *init_containers) if c.name == names.PROXY_CONTAINER), None)
    static = _static_uid(metadata)
    if static and not _reported(status):
        proxy = None
    validation = next((c for c in init_containers if c.name == names.VALIDATION_CONTAINER), None)
    addresses = [address.ip for address in status.pod_ips or []] or [status.pod_ip or ""]
    return PodView(
        name=metadata.name or metadata.generate_name or "",
        namespace=metadata.namespace or "default",
        uid=static or metadata.uid or "",
        mirror=metadata.uid or "" if static else "",
        node=spec.node_name or "",
        host_network=bool(spec.host_network),
        annotations={k: v for k, v in (metadata.annotations or {}).items() if k in ANNOTATIONS},
        inject_label=(metadata.labels or {}).get(names.INJECT),
        containers=tuple(container.name for container in containers),
        init_containers=tuple(container.name for container in init_containers),
        proxy=_proxy(proxy) if proxy else None,
        validation=tuple(validation.args or ()) if validation else (),
        addresses=tuple(address for address in addresses if address),
        phase=status.phase or "",
        started=status.start_time or "",
        deleting=metadata.deletion_timestamp is not None,
        init_statuses=tuple(map(_container_status, status.init_container_statuses or [])),
        statuses=tuple(map(_container_status, status.container_statuses or [])),
    )


def _static_uid(metadata: _Metadata) -> str | None:
    annotations = metadata.annotations or {}
    uid = annotations.get(names.CONFIG_HASH, "")
    return uid if names.CONFIG_MIRROR in annotations and _STATIC_UID.fullmatch(uid) else None


def _reported(status: _Status) -> bool:
    """Whether the kubelet runs a proxy. The containers of a mirror do not tell: a webhook can add to them, and to the
    static pod it cannot; and anybody may make a pod that looks like a mirror, but only the kubelet writes its status.
    """
    statuses = (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    return any(container.name == names.PROXY_CONTAINER for container in statuses)


def _proxy(container: _Container) -> Proxy:
    ids = container.security_context or _SecurityContext()
    environment = {var.name: var.value or "" for var in container.env or [] if var.name in PROXY_ENVIRONMENT}
    return Proxy(tuple(container.args or ())[:2], environment, ids.run_as_user, ids.run_as_group)


def _container_status(status: _ContainerStatus) -> ContainerStatus:
    state = status.state or _State()
    return ContainerStatus(
        name=status.name,
        container_id=(status.container_id or "").rpartition("//")[2],
        running=state.running is not None,
        started=(state.running.started_at or "") if state.running else "",
        exit_code=state.terminated.exit_code if state.terminated else None,
        restarts=status.restart_count,
    )
