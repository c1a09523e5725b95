"""istio-validation: holds the pod until the node agent has written the rules. It needs no privilege at all."""

from typing import Any

from cni_agent import names
from injector.mutation import environment
from injector.mutation.annotations import AGENT_LOG_LEVEL
from injector.mutation.images import validation_image
from injector.mutation.proxy_container import with_seccomp
from injector.mutation.workload import Workload


def validation_container(workload: Workload) -> dict[str, Any]:
    """The container. Only its waiting time, its resources and its seccomp profile differ from stock."""
    settings = workload.settings
    chart = settings.chart
    context = {
        "allowPrivilegeEscalation": chart.privileged,
        "privileged": chart.privileged,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsGroup": names.PROXY_ID if workload.tproxy else workload.gid,
        "runAsUser": names.PROXY_ID if workload.tproxy else workload.uid,
        "runAsNonRoot": True,
    }
    container: dict[str, Any] = {
        "name": names.VALIDATION_CONTAINER,
        "image": validation_image(settings, workload.annotations),
        "args": _arguments(workload),
        "resources": workload.resources if settings.stock else settings.validation_resources,
        "securityContext": with_seccomp(workload, context),
    }
    if chart.image_pull_policy:
        container["imagePullPolicy"] = chart.image_pull_policy
    if workload.metadata:
        container["env"] = environment.metadata(workload)
    return container


def _arguments(workload: Workload) -> list[str]:
    """Those of istio-iptables; an empty list is an argument too."""
    settings, chart, mesh = workload.settings, workload.settings.chart, workload.settings.mesh
    said, excluded = workload.annotation, workload.exclude_inbound_ports
    args = [
        "istio-iptables",
        *("-p", mesh.outbound_port),
        *("-z", mesh.inbound_port),
        *("-u", str(names.PROXY_ID if workload.tproxy else workload.uid)),
        *("-m", workload.mode),
        *("-i", said(names.INCLUDE_OUTBOUND_IP_RANGES, chart.include_ip_ranges)),
        *("-x", said(names.EXCLUDE_OUTBOUND_IP_RANGES, chart.exclude_ip_ranges)),
        *("-b", said(names.INCLUDE_INBOUND_PORTS, chart.include_inbound_ports)),
        *("-d", f"15090,15021,{excluded}" if excluded else "15090,15021"),
        *_optional("-q", workload, names.INCLUDE_OUTBOUND_PORTS, chart.include_outbound_ports),
        *_optional("-o", workload, names.EXCLUDE_OUTBOUND_PORTS, chart.exclude_outbound_ports),
        *(
            _optional("-k", workload, names.REROUTE_INTERFACES, "")
            or _optional("-k", workload, names.KUBEVIRT_INTERFACES, "")
        ),
        *_optional("-c", workload, names.EXCLUDE_INTERFACES, ""),
        f"--log_output_level={said(AGENT_LOG_LEVEL, chart.agent_log_level)}",
    ]
    if chart.log_as_json:
        args.append("--log_as_json")
    args += ["--run-validation", "--skip-rule-apply"]
    if not settings.stock:  # a late node agent costs a wait, not a crash
        args.append(f"--probe-timeout={settings.hold_timeout}")
    if chart.native_nftables:
        args.append("--native-nftables")
    return args


def _optional(flag: str, workload: Workload, annotation: str, default: str) -> tuple[str, ...]:
    if annotation in workload.annotations or default:
        return flag, workload.annotation(annotation, default)
    return ()
