"""Templates of the operator's own: plain YAML overlays. Go templates are told apart here, and never run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cni_agent.values import Refused
from injector.config import yamltext

BUILT_IN: Final = ("sidecar", "gateway", "grpc-agent")
# In every stock ConfigMap, but rendered by istiod's Gateway controller, never by the webhook
NOT_FOR_PODS: Final = ("waypoint", "kube-gateway", "agentgateway", "agentgateway-waypoint")
OUR_WAY: Final = (
    "a plain YAML overlay: the part of a pod to merge, without {{ }}, under sidecarInjectorWebhook.templates; "
    "Initless runs no Go templates"
)
_DIRECTIVES: Final = ("$retainKeys", "$setElementOrder", "$deleteFromPrimitiveList")

Overlay = Mapping[str, Any]


@dataclass(frozen=True)
class Overlays:
    """What the operator defined, by name."""

    plain: Mapping[str, Overlay]
    go: frozenset[str]  # refused for the pods that ask for them

    def refusal(self, name: str) -> str | None:
        """Why a template cannot be used, or None."""
        if name in self.go:
            return f"template {name!r} is a Go template; expected {OUR_WAY}"
        known = sorted({*BUILT_IN, *self.plain})
        if name not in known:
            return f"requested template {name!r} not found; have {', '.join(known)}"
        return None


def read_overlays(own: Mapping[str, Any], shipped: Mapping[str, Any]) -> tuple[Overlays, dict[str, str]]:
    """From the chart's values (`own`) and from the whole ConfigMap (`shipped`, where the stock ones are too).

    An overlay may be text, as the chart has templates, or YAML right there. The second result: what is wrong, by name.
    """
    plain: dict[str, Overlay] = {}
    go: set[str] = set()
    wrong: dict[str, str] = {}
    for name, text in {**shipped, **own}.items():
        stock = name not in own and name in (*BUILT_IN, *NOT_FOR_PODS)
        if isinstance(text, str) and "{{" in text:
            if not stock:
                go.add(name)
            continue
        try:
            plain[name] = _overlay(text)
        except Refused as refused:
            wrong[name] = str(refused)
    return Overlays(plain, frozenset(go)), wrong


def _overlay(written: Any) -> Overlay:
    document = yamltext.one(written) if isinstance(written, str) else written
    if not isinstance(document, dict):
        raise Refused("a mapping with metadata and spec")
    for part in ("metadata", "spec"):
        if not isinstance(document.get(part) or {}, dict):
            raise Refused(f"a mapping at {part}")
    metadata = document.get("metadata") or {}
    for part in ("labels", "annotations"):
        pairs = metadata.get(part) or {}
        if not isinstance(pairs, dict) or not all(isinstance(value, str | None) for value in pairs.values()):
            raise Refused(f"text to text at metadata.{part}")
    for part in ("containers", "initContainers", "volumes", "imagePullSecrets"):
        for item in (document.get("spec") or {}).get(part) or []:
            if not isinstance(item, dict) or not isinstance(item.get("name", ""), str):
                raise Refused(f"mappings with a name at spec.{part}")
    _directives(document)
    return document


def _directives(value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str) or key.startswith(_DIRECTIVES):
                raise Refused(f"no key {key!r}: of the merge directives only $patch is known")
            _directives(inner)
    elif isinstance(value, list):
        for inner in value:
            _directives(inner)
