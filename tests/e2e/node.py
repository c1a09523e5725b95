"""What is on the node itself."""

import re

from tests.e2e.cluster import Cluster


def node_rules(kube: Cluster) -> list[str]:
    """The node's own rules, kube-proxy's among them, without counters, handles and the order of elements."""
    text = re.sub(r"packets \d+ bytes \d+|# handle \d+", "", kube.node("nft", "list", "ruleset"))
    return sorted(line.strip() for line in text.splitlines())
