"""Volumes and mounts of the templates, in their order, and those that a pod adds by annotation."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from cni_agent.invalid import shown
from cni_agent.values import Refused
from injector.mutation.annotations import BOOTSTRAP, USER_VOLUME, USER_VOLUME_MOUNT
from injector.mutation.workload import Workload

Volume = dict[str, Any]
Mount = dict[str, Any]

# The source is an explicit null: it lets another template, or the user, give the name a source; the API server makes
# it an emptyDir otherwise
_SOCKET: Final[Volume] = {"name": "workload-socket", "emptyDir": None}
_DOWNWARD: Final = {
    "items": [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}},
    ]
}
_GKE: Final = "gke-workload-certificate"
_MOUNT_FIELDS: Final = {
    name.lower(): name
    for name in ("name", "readOnly", "recursiveReadOnly", "mountPath", "subPath", "mountPropagation", "subPathExpr")
}


def sidecar(workload: Workload) -> list[Volume]:
    """Of the sidecar template."""
    return [
        _SOCKET,
        {"name": "credential-socket", "emptyDir": None},
        _certificates(workload, {"emptyDir": None}),
        *_shared(workload, "istio-envoy"),
        {"name": "istio-ca-crl", "configMap": {"name": "istio-ca-crl", "optional": True}},
        *_mounted_certificates(workload),
        *_of_user(workload, USER_VOLUME),
        *_lightstep(workload),
    ]


def gateway(workload: Workload) -> list[Volume]:
    """Of the gateway template."""
    return [
        _SOCKET,
        {"name": "credential-socket", "emptyDir": {}},
        _certificates(workload, {"emptyDir": {}}),
        *_shared(workload, "istio-envoy"),
        *_mounted_certificates(workload),
    ]


def grpc_agent(workload: Workload) -> list[Volume]:
    """Of the grpc-agent template."""
    return [
        _SOCKET,
        _certificates(workload, {"emptyDir": None}),
        *_shared(workload, "istio-xds"),
        *_mounted_certificates(workload),
        *_of_user(workload, USER_VOLUME),
    ]


def sidecar_mounts(workload: Workload) -> list[Mount]:
    """Of the sidecar's istio-proxy."""
    mounts = _mounts(workload, "istio-envoy", revocations=True)
    tls = workload.config.get("tracing", {}).get("tlsSettings")
    if workload.settings.chart.tracer == "lightstep" and tls is not None:
        folder = tls.get("caCertificates", "").rpartition("/")
        mounts.append({"name": "lightstep-certs", "mountPath": folder[0] + folder[1], "readOnly": True})
    return [*mounts, *(_mount(mount) for mount in _of_user(workload, USER_VOLUME_MOUNT))]


def gateway_mounts(workload: Workload) -> list[Mount]:
    """Of the gateway's istio-proxy."""
    return _mounts(workload, "istio-envoy", revocations=False)


def grpc_agent_mounts(workload: Workload) -> list[Mount]:
    """Of the grpc-agent's istio-proxy."""
    mounts = [
        mount
        for mount in _mounts(workload, "istio-xds", revocations=False)
        if mount["name"] not in ("credential-socket", "custom-bootstrap-volume")
    ]
    return [*mounts, *(_mount(mount) for mount in _of_user(workload, USER_VOLUME_MOUNT))]


def grpc_application_mounts(workload: Workload) -> list[Mount]:
    """What the grpc-agent template mounts into the application itself."""
    return [
        {"name": "istio-data", "mountPath": "/var/lib/istio/data"},
        {"name": "istio-xds", "mountPath": "/etc/istio/proxy"},
        _certificate_mount(workload),
    ]


def _shared(workload: Workload, envoy: str) -> Iterator[Volume]:
    chart = workload.settings.chart
    if BOOTSTRAP in workload.annotations:
        yield {"name": "custom-bootstrap-volume", "configMap": {"name": workload.annotations[BOOTSTRAP]}}
    yield {"name": envoy, "emptyDir": {"medium": "Memory"}}
    yield {"name": "istio-data", "emptyDir": {}}
    yield {"name": "istio-podinfo", "downwardAPI": _DOWNWARD}
    token = {"path": "istio-token", "expirationSeconds": 43200, "audience": chart.token_audience}
    yield {"name": "istio-token", "projected": {"sources": [{"serviceAccountToken": token}]}}
    if chart.cert_provider == "istiod" and chart.cluster_trust_bundle:
        bundle = {"name": f"istio.io:istiod-ca:{chart.trust_bundle or 'root-cert'}", "path": "root-cert.pem"}
        yield {"name": "istiod-ca-cert", "projected": {"sources": [{"clusterTrustBundle": bundle}]}}
    elif chart.cert_provider == "istiod":
        yield {"name": "istiod-ca-cert", "configMap": {"name": chart.trust_bundle or "istio-ca-root-cert"}}


def _certificates(workload: Workload, source: dict[str, Any]) -> Volume:
    if workload.settings.chart.ca_name == "GkeWorkloadCertificate":
        return {"name": _GKE, "csi": {"driver": "workloadcertificates.security.cloud.google.com"}}
    return {"name": "workload-certs", **source}


def _certificate_mount(workload: Workload) -> Mount:
    path = "/var/run/secrets/workload-spiffe-credentials"
    if workload.settings.chart.ca_name == "GkeWorkloadCertificate":
        return {"name": _GKE, "mountPath": path, "readOnly": True}
    return {"name": "workload-certs", "mountPath": path}


def _mounted_certificates(workload: Workload) -> Iterator[Volume]:
    if workload.settings.chart.mount_certs:
        secret = f"istio.{workload.service_account or 'default'}"
        yield {"name": "istio-certs", "secret": {"optional": True, "secretName": secret}}


def _mounts(workload: Workload, envoy: str, *, revocations: bool) -> list[Mount]:
    chart = workload.settings.chart
    mounts: list[Mount] = [
        {"name": "workload-socket", "mountPath": "/var/run/secrets/workload-spiffe-uds"},
        {"name": "credential-socket", "mountPath": "/var/run/secrets/credential-uds"},
        _certificate_mount(workload),
    ]
    if chart.cert_provider == "istiod":
        mounts.append({"name": "istiod-ca-cert", "mountPath": "/var/run/secrets/istio"})
        if revocations:
            mounts.append({"name": "istio-ca-crl", "mountPath": "/var/run/secrets/istio/crl"})
    mounts.append({"name": "istio-data", "mountPath": "/var/lib/istio/data"})
    if BOOTSTRAP in workload.annotations:
        mounts.append({"name": "custom-bootstrap-volume", "mountPath": "/etc/istio/custom-bootstrap"})
    mounts.append({"name": envoy, "mountPath": "/etc/istio/proxy"})
    mounts.append({"name": "istio-token", "mountPath": "/var/run/secrets/tokens"})
    if chart.mount_certs:
        mounts.append({"name": "istio-certs", "mountPath": "/etc/certs/", "readOnly": True})
    mounts.append({"name": "istio-podinfo", "mountPath": "/etc/istio/pod"})
    return mounts


def _lightstep(workload: Workload) -> Iterator[Volume]:
    tls = workload.config.get("tracing", {}).get("tlsSettings")
    if workload.settings.chart.tracer == "lightstep" and tls is not None:
        yield {"name": "lightstep-certs", "secret": {"optional": True, "secretName": "lightstep.cacert"}}


def _of_user(workload: Workload, annotation: str) -> list[dict[str, Any]]:
    """A JSON object of name to spec, or a list whose elements carry their names."""
    written = workload.annotations.get(annotation)
    if written is None:
        return []
    try:
        listed = msgspec.json.decode(written, type=dict[str, dict[str, Any]] | list[dict[str, Any]] | None)
    except msgspec.DecodeError:
        raise Refused(f"annotation {annotation}: expected a JSON object of name to specification") from None
    if isinstance(listed, list):
        named = [{"name": str(number), **spec} for number, spec in enumerate(listed)]
    else:
        named = [{"name": name, **spec} for name, spec in sorted((listed or {}).items())]
    for item in named:
        if not isinstance(item["name"], str):
            raise Refused(f"annotation {annotation}: expected a text as name, not {shown(str(item['name']))}")
    return named


def _mount(written: Mount) -> Mount:
    """Go matches field names without case, and people rely on it (`readonly`)."""
    named = {_MOUNT_FIELDS.get(name.lower(), name): value for name, value in written.items()}
    return {name: value for name, value in named.items() if value not in (None, "", False)}
