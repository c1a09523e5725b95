"""Snippets of the documentation that need a cluster, typed into a shell: installed, used and uninstalled as it says."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import snippets
from tests.documents import README, TROUBLESHOOTING
from tests.e2e import deployment
from tests.e2e.cluster import Cluster
from tests.e2e.meshed import deployment as replicas
from tests.e2e.meshed import pod

SHOP = "shop"  # as the documentation calls it


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A folder with `kubectl`, where the cluster brings one of its own."""
    program = os.environ.get("INITLESS_CLUSTER")
    if not program:
        return ""
    kubectl = tmp_path / "bin/kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f'#!/bin/sh\nexec {shlex.quote(program)} kubectl "$@"\n')
    kubectl.chmod(0o755)
    return str(kubectl.parent)


@pytest.fixture
def shop(kube: Cluster) -> Iterator[None]:
    """A namespace with a Deployment, outside the mesh."""
    root = {"name": "istio-ca-root-cert", "namespace": SHOP}
    web = replicas(pod("web"))
    web["metadata"]["namespace"] = SHOP
    kube.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": root, "data": {"root-cert.pem": ""}},
        web,
    )
    yield
    if not os.environ.get("INITLESS_KEEP"):
        kube.delete("namespace", SHOP, "", "--wait=true")


@pytest.fixture
def installed_again(kube: Cluster) -> Iterator[None]:
    """For the tests that come after one that uninstalls."""
    yield
    deployment.install(kube)


@pytest.mark.usefixtures("shop", "installed_again")
def test_readme(tmp_path: Path, path: str) -> None:
    snippets.run(snippets.steps(README, "console cluster"), tmp_path, timeout=280, path=path)


@pytest.mark.usefixtures("installed_again")
def test_readme_with_helm(kube: Cluster, tmp_path: Path, path: str) -> None:
    kube.kubectl("delete", "-k", str(deployment.BASE), "--ignore-not-found", "--wait=true")
    snippets.run(snippets.steps(README, "console cluster helm"), tmp_path, timeout=200, path=path)
    kube.delete("namespace", deployment.SYSTEM, "", "--wait=true")


@pytest.mark.usefixtures("shop")
def test_troubleshooting(kube: Cluster, tmp_path: Path, path: str) -> None:
    kube.kubectl("label", "namespace", SHOP, "istio-injection=enabled")
    kube.kubectl("-n", SHOP, "rollout", "restart", "deployment/web")
    kube.kubectl("-n", SHOP, "rollout", "status", "deployment/web", "--timeout=90s")
    kube.kubectl("-n", SHOP, "wait", "--for=delete", "pod", "-l", "app=web,!security.istio.io/tlsMode", "--timeout=60s")
    snippets.run(snippets.steps(TROUBLESHOOTING, "console cluster"), tmp_path, timeout=120, path=path)
