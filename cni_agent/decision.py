"""Whether a pod is captured, and how: the decisions of istio-cni (cni/pkg/plugin), from the pod alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from cni_agent import names, values
from cni_agent.addresses import NoAddress, has_ipv6
from cni_agent.capture import Capture, Mode
from cni_agent.invalid import Invalid, Violation, shown
from cni_agent.podview import PodView, Proxy
from cni_agent.values import Refused

T = TypeVar("T")
Reason = Literal[
    "host-network",
    "istio-init",
    "envoy-disabled",
    "no-proxy",
    "not-a-sidecar",
    "inject-false",
    "not-injected",
    "mode-none",
]
_EXCLUDED_BY_DEFAULT = str(names.STATUS_PORT)
_NEVER_INBOUND = (names.STATUS_PORT, names.READINESS_PORT, names.ENVOY_METRICS_PORT)


@dataclass(frozen=True, slots=True)
class NotCaptured:
    """The pod is left alone: one word for machines, one sentence for people."""

    reason: Reason
    sentence: str


def decide(pod: PodView, *, ipv6: bool | None = None) -> Capture | NotCaptured:
    """The settings of a pod, or why it has none. Raises `Invalid` when an annotation is not allowed.

    `ipv6`: whether the pod has IPv6, where that is known; otherwise its reported addresses decide.
    """
    left_alone = _left_alone(pod)
    if left_alone:
        return left_alone
    assert pod.proxy is not None
    return _capture(pod, pod.proxy, ipv6)


def _left_alone(pod: PodView) -> NotCaptured | None:
    proxy = pod.proxy
    if pod.host_network:
        return NotCaptured(
            "host-network", "the pod shares the node's network (spec.hostNetwork), which is never touched"
        )
    if names.INIT_CONTAINER in (*pod.containers, *pod.init_containers):
        return NotCaptured("istio-init", "the pod has its own istio-init container, which writes the rules itself")
    if proxy and values.go_bool(proxy.environment.get(names.DISABLE_ENVOY, "")):
        return NotCaptured("envoy-disabled", "its istio-proxy sets DISABLE_ENVOY, so nothing would receive the traffic")
    if proxy is None:
        return NotCaptured("no-proxy", "the pod has no container named istio-proxy")
    if proxy.args[:1] == ("proxy",) and len(proxy.args) > 1 and proxy.args[1] != "sidecar":
        kind = shown(proxy.args[1])
        return NotCaptured("not-a-sidecar", f"its istio-proxy runs as {kind}, and only sidecars are captured")
    inject = pod.inject_label if pod.inject_label is not None else pod.annotations.get(names.INJECT, "")
    if values.go_bool(inject) is False:
        return NotCaptured("inject-false", f"its {names.INJECT} says false")
    if names.STATUS not in pod.annotations:
        return NotCaptured("not-injected", f"it has no {names.STATUS} annotation: no injector has seen it")
    if pod.annotations.get(names.INTERCEPTION_MODE) == "NONE":
        return NotCaptured(
            "mode-none", f"its {names.INTERCEPTION_MODE} is NONE: the application finds the proxy itself"
        )
    return None


def _capture(pod: PodView, proxy: Proxy, ipv6: bool | None) -> Capture:
    violations: list[Violation] = []

    def read(annotation: str, default: str, reader: Callable[[str], T]) -> T:
        text = pod.annotations.get(annotation, default)
        try:
            return reader(text)
        except Refused as refused:
            violations.append(Violation(annotation, text, str(refused)))
            return cast(T, None)  # never seen: the violation is raised below, when all are known

    def owner(name: str, given: int | None) -> tuple[int]:
        if given is not None and not 0 <= given < 2**32 - 1:
            violations.append(Violation(f"istio-proxy securityContext.{name}", str(given), "0 to 4294967294"))
        return (given or names.PROXY_ID,)  # root means that the template ran it as root, not that root is exempt

    excluded_inbound = read(names.EXCLUDE_INBOUND_PORTS, _EXCLUDED_BY_DEFAULT, values.ports)
    dns = _true(proxy, names.DNS_CAPTURE)
    dual_stack = _true(proxy, names.DUAL_STACK)
    rerouted = names.REROUTE_INTERFACES
    if rerouted not in pod.annotations:
        rerouted = names.KUBEVIRT_INTERFACES
    capture = Capture(
        proxy_uids=owner("runAsUser", proxy.run_as_user),
        proxy_gids=owner("runAsGroup", proxy.run_as_group),
        mode=read(names.INTERCEPTION_MODE, "REDIRECT", _mode),
        include_inbound_ports=read(names.INCLUDE_INBOUND_PORTS, "*", values.ports_or_all),
        exclude_inbound_ports=values.unique((*(excluded_inbound or ()), *_NEVER_INBOUND)),
        include_outbound_ports=read(names.INCLUDE_OUTBOUND_PORTS, "", values.ports),
        exclude_outbound_ports=read(names.EXCLUDE_OUTBOUND_PORTS, _EXCLUDED_BY_DEFAULT, values.ports),
        include_outbound_cidrs=read(names.INCLUDE_OUTBOUND_IP_RANGES, "*", values.cidrs_or_all),
        exclude_outbound_cidrs=read(names.EXCLUDE_OUTBOUND_IP_RANGES, "", values.cidrs),
        reroute_interfaces=read(rerouted, "", values.interfaces),
        exclude_interfaces=read(names.EXCLUDE_INTERFACES, "", values.interfaces),
        redirect_dns=dns,
        capture_all_dns=dns,  # the node cannot see the pod's resolv.conf, so all of port 53
        drop_invalid=_true(proxy, names.INVALID_DROP),
        dual_stack=dual_stack,
        ipv6=_reported_ipv6(pod, dual_stack, violations) if ipv6 is None else ipv6,
    )
    if violations:
        raise Invalid(violations)
    return capture


def _reported_ipv6(pod: PodView, dual_stack: bool, violations: list[Violation]) -> bool:
    """What the pod's status says; nothing, or nothing usable, means no."""
    try:
        return has_ipv6(pod.addresses, dual_stack=dual_stack)
    except NoAddress:
        return False
    except ValueError:
        violations.append(Violation("status.podIPs", ",".join(pod.addresses), "IP addresses"))
        return False


def _mode(text: str) -> Mode:
    return cast(Mode, values.choice(text, ("REDIRECT", "TPROXY")))


def _true(proxy: Proxy, variable: str) -> bool:
    return values.go_bool(proxy.environment.get(variable, "")) is True
