"""Whether a pod is injected (injectRequired). The API server's selectors have had their say before."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from cni_agent import names
from cni_agent.invalid import shown
from injector.config.selectors import matches
from injector.settings import Settings

IGNORED_NAMESPACES: Final = frozenset({"kube-system", "kube-public", "kube-node-lease", "local-path-storage"})

Reason = Literal[
    "host-network",
    "system-namespace",
    "windows",
    "asked-for",
    "asked-not",
    "never-selector",
    "always-selector",
    "policy",
    "bad-policy",
]
# With these a pod is let through unchanged
SKIPS: Final[tuple[Reason, ...]] = (
    "host-network",
    "system-namespace",
    "windows",
    "asked-not",
    "never-selector",
    "policy",
    "bad-policy",
)


class Decision(NamedTuple):
    """The verdict, its reason for log and metric, and what the pod's owner should hear."""

    inject: bool
    reason: Reason
    warning: str | None = None


def decide(
    settings: Settings,
    host_network: bool,
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    *,
    windows: bool = False,
) -> Decision:
    """The first rule that applies decides; the order is Istio's, which does not look for Windows."""
    # A label that exists hides the annotation, even when it is empty
    asked = labels[names.INJECT] if names.INJECT in labels else annotations.get(names.INJECT, "")
    if host_network:
        warning = None
        if asked == "true":
            warning = f"{names.INJECT} is true, but the pod shares the node's network: no sidecar is injected"
        return Decision(False, "host-network", warning)
    if namespace in IGNORED_NAMESPACES:
        return Decision(False, "system-namespace")
    if windows and not settings.stock:
        warning = f"{names.INJECT} is true, but the pod is for Windows: no sidecar is injected"
        return Decision(False, "windows", warning if asked == "true" else None)
    if settings.policy not in ("enabled", "disabled"):
        return Decision(False, "bad-policy")
    if asked == "true":
        return Decision(True, "asked-for")
    if asked == "false":
        return Decision(False, "asked-not")
    warning = None
    if asked:
        warning = f"{names.INJECT}: {shown(asked)} is neither true nor false, so the default decides"
    if any(matches(selector, labels) for selector in settings.never_inject):
        return Decision(False, "never-selector", warning)
    if any(matches(selector, labels) for selector in settings.always_inject):
        return Decision(True, "always-selector", warning)
    return Decision(settings.policy == "enabled", "policy", warning)
