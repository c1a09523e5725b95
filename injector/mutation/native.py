"""Native sidecars: istio-proxy as an init container that keeps running, where the kubelets know how."""

import re
from collections.abc import Mapping
from typing import Final

from injector.facts import ClusterFacts
from injector.mutation.annotations import NATIVE
from injector.settings import Settings

STABLE_SINCE: Final = 33  # Kubernetes 1.33
_VERSION = re.compile(r"v?[0-9]+\.([0-9]{1,9})(?:[.+-].*)?", re.ASCII)


def cluster_native(settings: Settings, facts: ClusterFacts, node: str) -> bool:
    """Whether the cluster's pods get native sidecars; `auto` asks the pod's node, or all nodes when it has none."""
    if settings.native_sidecars != "auto":
        return settings.native_sidecars == "true"
    if facts.node_versions is None:
        return False
    if node in facts.node_versions:
        return _new_enough(facts.node_versions[node])
    return all(_new_enough(version) for version in facts.node_versions.values())


def rendered_native(cluster: bool, annotations: Mapping[str, str]) -> bool:
    """The pod's own say; any word but `false` means yes, as in Istio."""
    said = annotations.get(NATIVE, "")
    return said != "false" if said else cluster


def stated_native(cluster: bool, annotations: Mapping[str, str]) -> bool:
    """The same for moving a user's istio-proxy, where Istio hears only `true` and `false`."""
    said = annotations.get(NATIVE, "")
    return said == "true" if said in ("true", "false") else cluster


def _new_enough(version: str) -> bool:
    parts = _VERSION.fullmatch(version)
    return parts is not None and int(parts[1]) >= STABLE_SINCE
