"""A pod as it was admitted. Pure.

Capture is fixed when a pod is made: Envoy has its mode from then on, and admission allowed what is left out. Whoever
may patch pods can change annotations later; nobody can change a container's arguments. Those of istio-validation repeat
each setting of the annotations, so where the two differ the arguments are right. And a pod that has that container was
to be captured, or its application could never start, whatever its annotations say by now.
"""

from dataclasses import fields, replace
from typing import Final

from cni_agent import names
from cni_agent.capture import Capture
from cni_agent.decision import NotCaptured, decide
from cni_agent.explaining.origins import ORIGINS
from cni_agent.invalid import Invalid
from cni_agent.podview import PodView
from cni_agent.validation.arguments import Usage, parse

_MODE: Final = "istio-inbound-interception-mode"
_ANNOTATIONS: Final = {
    _MODE: names.INTERCEPTION_MODE,
    "istio-service-cidr": names.INCLUDE_OUTBOUND_IP_RANGES,
    "istio-service-exclude-cidr": names.EXCLUDE_OUTBOUND_IP_RANGES,
    "istio-inbound-ports": names.INCLUDE_INBOUND_PORTS,
    "istio-local-exclude-ports": names.EXCLUDE_INBOUND_PORTS,
    "istio-outbound-ports": names.INCLUDE_OUTBOUND_PORTS,
    "istio-local-outbound-ports-exclude": names.EXCLUDE_OUTBOUND_PORTS,
    "kube-virt-interfaces": names.REROUTE_INTERFACES,
    "istio-exclude-interfaces": names.EXCLUDE_INTERFACES,
}
_PUT_BEFORE: Final = "15090,15021"  # what the injector puts before the excluded inbound ports
_ADVICE: Final = "capture is fixed when a pod is made: restart the pod if this is wanted"


def as_admitted(pod: PodView) -> PodView:
    """The pod with the annotations it was admitted with, as far as its istio-validation tells."""
    try:
        given = parse(list(pod.validation))
    except Usage:
        return pod
    if _MODE not in given:
        return pod
    now = pod.annotations
    then = {names.STATUS: now.get(names.STATUS, "")}
    if names.CAPTURE_POINT in now:
        then[names.CAPTURE_POINT] = now[names.CAPTURE_POINT]
    for flag, annotation in _ANNOTATIONS.items():
        if flag not in given:
            continue
        text = given[flag]
        if annotation == names.EXCLUDE_INBOUND_PORTS:
            text = text.removeprefix(_PUT_BEFORE).removeprefix(",")
        if text or annotation in now:  # without a value there may have been an empty annotation, or none
            then[annotation] = text
    return replace(pod, annotations=then, inject_label=None)


def decide_as_admitted(pod: PodView, *, ipv6: bool = False) -> Capture | NotCaptured:
    """The decision on the pod as it was admitted. Raises `Invalid`."""
    admitted = as_admitted(pod)
    if admitted is not pod:
        try:
            return decide(admitted, ipv6=ipv6)
        except Invalid:
            pass  # arguments that an annotation could not have: somebody else's container of that name
    return decide(pod, ipv6=ipv6)


def ignored_change(pod: PodView, capture: Capture) -> str:
    """What the annotations say by now and these settings do not, in a sentence; "" when they agree."""
    try:
        said = decide(pod, ipv6=capture.ipv6)
    except Invalid as invalid:
        return f"its annotations changed: {invalid}; {_ADVICE}"
    if isinstance(said, NotCaptured):
        return f"its annotations changed: {said.sentence}; {_ADVICE}"
    changed = [each.name for each in fields(Capture) if getattr(said, each.name) != getattr(capture, each.name)]
    if not changed:
        return ""
    return f"{', '.join(ORIGINS[name].annotation or name for name in changed)} changed; {_ADVICE}"
