"""istio-proxy of the sidecar template."""

from collections.abc import Mapping
from typing import Any, Final

from cni_agent import names
from injector.mutation import environment, volumes
from injector.mutation.annotations import (
    AGENT_LOG_LEVEL,
    BIND_LOW_PORTS,
    COMPONENT_LOG_LEVEL,
    PROXY_LOG_LEVEL,
    READINESS_DELAY,
    READINESS_PERIOD,
    READINESS_THRESHOLD,
)
from injector.mutation.effective import holds
from injector.mutation.images import proxy_image
from injector.mutation.workload import Workload

Container = dict[str, Any]

READY: Final = {"path": "/healthz/ready", "port": names.READINESS_PORT}


def proxy_container(workload: Workload) -> Container:
    """The container; where it goes is the template's business."""
    chart = workload.settings.chart
    container: Container = {
        "name": names.PROXY_CONTAINER,
        "image": image(workload),
        "ports": [{"containerPort": names.ENVOY_METRICS_PORT, "protocol": "TCP", "name": "http-envoy-prom"}],
        "args": arguments(workload, "sidecar"),
        "env": environment.sidecar(workload),
        "resources": workload.resources,
        "securityContext": _security_context(workload),
        "volumeMounts": volumes.sidecar_mounts(workload),
    }
    if chart.outlier_log_path:
        container["args"].append(f"--outlierLogPath={chart.outlier_log_path}")
    if workload.native:
        container["restartPolicy"] = "Always"
    lifecycle = _lifecycle(workload)
    if lifecycle:
        container["lifecycle"] = lifecycle
    if chart.image_pull_policy:
        container["imagePullPolicy"] = chart.image_pull_policy
    if workload.status_port != "0":
        if chart.startup_probe:
            container["startupProbe"] = probe(READY, period=1, threshold=chart.startup_failure_threshold)
        container["readinessProbe"] = readiness_probe(workload, READY)
    return container


def image(workload: Workload) -> str:
    """Of istio-proxy, in every template."""
    config_type = workload.config.get("image", {}).get("imageType", "")
    return proxy_image(workload.settings, config_type, workload.annotations)


def arguments(workload: Workload, role: str) -> list[str]:
    """Of pilot-agent: `proxy sidecar` or `proxy router`, with the domain and the log levels."""
    chart = workload.settings.chart
    args = [
        "proxy",
        role,
        "--domain",
        f"$(POD_NAMESPACE).svc.{chart.cluster_domain}",
        f"--proxyLogLevel={workload.annotation(PROXY_LOG_LEVEL, chart.proxy_log_level)}",
        f"--proxyComponentLogLevel={workload.annotation(COMPONENT_LOG_LEVEL, chart.component_log_level)}",
        f"--log_output_level={workload.annotation(AGENT_LOG_LEVEL, chart.agent_log_level)}",
    ]
    if chart.sts_port:
        args.append(f"--stsPort={chart.sts_port}")
    if chart.log_as_json:
        args.append("--log_as_json")
    return args


def probe(http_get: Mapping[str, Any], *, period: int, threshold: int, delay: int = 0) -> dict[str, Any]:
    """A probe. A zero is a null here: the API prints none, and over an earlier value it means to remove that."""
    return {
        "httpGet": http_get,
        "initialDelaySeconds": delay or None,
        "periodSeconds": period or None,
        "timeoutSeconds": 3,
        "failureThreshold": threshold or None,
    }


def readiness_probe(workload: Workload, http_get: Mapping[str, Any]) -> dict[str, Any]:
    """Timing from the pod's annotations, else from the values."""
    chart = workload.settings.chart
    return probe(
        http_get,
        delay=int(workload.annotation(READINESS_DELAY, chart.readiness_initial_delay)),
        period=int(workload.annotation(READINESS_PERIOD, chart.readiness_period)),
        threshold=int(workload.annotation(READINESS_THRESHOLD, chart.readiness_failure_threshold)),
    )


def _lifecycle(workload: Workload) -> Mapping[str, Any] | None:
    chart = workload.settings.chart
    if chart.lifecycle:
        return chart.lifecycle
    if not workload.native:
        hold = chart.hold or holds(workload.config)
        return {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}} if hold else None
    # A native sidecar is stopped after the application: it drains when the pod starts to stop
    drain = ["pilot-agent", "request", f"--debug-port={workload.status_port}", "POST", "drain"]
    return {"preStop": {"exec": {"command": drain}}}


def _security_context(workload: Workload) -> dict[str, Any]:
    chart = workload.settings.chart
    if workload.metadata.get("IPTABLES_TRACE_LOGGING") == "true":
        added, privileged, group = ["NET_ADMIN"], True, workload.gid
    else:
        added = ["NET_ADMIN"] if workload.tproxy else []
        if workload.annotation(BIND_LOW_PORTS, chart.bind_low_ports) == "true":
            added.append("NET_BIND_SERVICE")
        privileged, group = chart.privileged, names.PROXY_ID if added else workload.gid
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": privileged,
        "capabilities": {"add": added, "drop": ["ALL"]} if added else {"drop": ["ALL"]},
        "privileged": privileged,
        "readOnlyRootFilesystem": True,
        "runAsGroup": group,
        "runAsNonRoot": not added,
        "runAsUser": 0 if added else workload.uid,
    }
    return with_seccomp(workload, context)


def with_seccomp(workload: Workload, context: dict[str, Any]) -> dict[str, Any]:
    """The operator's profile; ours has RuntimeDefault when there is none, stock has none."""
    settings = workload.settings
    profile = settings.chart.seccomp_profile if settings.stock else settings.seccomp_profile
    if profile:
        context["seccompProfile"] = profile
    return context
