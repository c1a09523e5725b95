"""What an answer depends on besides the pod and the settings: what the cluster said about its nodes and namespaces."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ClusterFacts:
    """A snapshot. Empty when there is no cluster to ask (offline, tests)."""

    node_versions: Mapping[str, str] | None = None  # node name -> kubelet version; None: nodes are not known
    namespace_annotations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # OpenShift id ranges
    proxy_configs: tuple[Mapping[str, Any], ...] = ()  # ProxyConfig objects as the API gives them, oldest first


NO_FACTS = ClusterFacts()
