"""Puts Initless into the cluster, as the README says, and takes it away."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

import cni_agent
from tests.e2e.cluster import Cluster, until

ROOT = Path(__file__).parents[2]
BASE = ROOT / "daemonset/base"
COMPONENTS = ROOT / "daemonset/components"
SYSTEM = "initless-system"
ISTIO = "istio-system"
PROXY_IMAGE = f"localhost/initless-test-proxy:{cni_agent.__version__}"

# Istio's ConfigMaps as istiod leaves them, with a small proxy: a test node has two cores for sixty of them.
VALUES = {
    "global": {
        "hub": "localhost",
        "tag": cni_agent.__version__,
        "imagePullPolicy": "IfNotPresent",
        "proxy": {"image": PROXY_IMAGE, "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}}},
        "proxy_init": {"image": PROXY_IMAGE},
    },
}
MESH = {"defaultConfig": {"discoveryAddress": "istiod.istio-system.svc:15012"}, "trustDomain": "cluster.local"}


def settings(kube: Cluster, values: object = VALUES, mesh: object = MESH) -> None:
    """What istiod would have put there."""
    kube.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ISTIO}},
        config_map("istio-sidecar-injector", values=json.dumps(values), config=yaml.safe_dump({"policy": "enabled"})),
        config_map("istio", mesh=yaml.safe_dump(mesh)),
    )


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": ISTIO}, "data": data}


def install(kube: Cluster, *patches: dict[str, object], components: Sequence[str] = ()) -> None:
    """`kubectl apply -k daemonset/base`, with components, and patches of a test on top, until everything is ready."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder).resolve()
        kustomization = {
            "resources": [relative(BASE, target)],
            "components": [relative(COMPONENTS / name, target) for name in components],
            "patches": list(patches),
        }
        (target / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        kube.kubectl("apply", "-k", folder)
    ready(kube)


def relative(folder: Path, start: Path) -> str:
    """kustomize takes no absolute paths."""
    return "/".join([".."] * (len(start.parts) - 1) + list(folder.resolve().parts[1:]))


def ready(kube: Cluster) -> None:
    kube.kubectl("-n", SYSTEM, "rollout", "status", "daemonset/cni-agent", "--timeout=90s")
    kube.kubectl("-n", SYSTEM, "rollout", "status", "deployment/initless-injector", "--timeout=90s")
    until("the API server trusts the injector", lambda: trusted(kube, "initless-injector"))


def trusted(kube: Cluster, *names: str) -> bool:
    found = [kube.get("mutatingwebhookconfiguration", name) for name in names]
    return all(entry["clientConfig"].get("caBundle") for one in found for entry in one["webhooks"])


def uninstall(kube: Cluster) -> None:
    kube.kubectl("delete", "-k", str(BASE), "--ignore-not-found", "--wait=true")
    kube.delete("namespace", ISTIO)
