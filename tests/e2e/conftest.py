"""Deploys daemonset/ once for all tests of this folder, and keeps logs and Events when one fails."""

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import deployment, diagnosis
from tests.e2e.cluster import Cluster, Object, cluster
from tests.e2e.meshed import Mesh, pod, server
from tests.e2e.node import node_rules


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == "test_uninstall.py")  # which leaves nothing for others
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if not os.environ.get("INITLESS_E2E"):
                item.add_marker(pytest.mark.skip(reason="needs a cluster that may be changed: scripts/e2e gives one"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.excinfo is not None and not report.skipped and "kube" in getattr(item, "fixturenames", ()):
        folder = diagnosis.keep(cluster(), item.name)
        report.sections.append(("kept", f"logs, Events and objects: {folder}"))
    return report


@pytest.fixture(scope="session")
def kube() -> Cluster:
    return cluster()


@pytest.fixture(scope="session")
def node_before(kube: Cluster) -> list[str] | None:
    """The node's own rules before anything of ours was there; None when there is no way to the node."""
    return node_rules(kube) if kube.has_node else None


@pytest.fixture(scope="session", autouse=True)
def deployed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Istio's settings as istiod would leave them, and everything of daemonset/base."""
    if not os.environ.get("INITLESS_E2E"):
        yield
        return
    shutil.rmtree(diagnosis.FOLDER, ignore_errors=True)
    kube = request.getfixturevalue("kube")
    request.getfixturevalue("node_before")
    deployment.settings(kube)
    deployment.install(kube)
    yield
    if not os.environ.get("INITLESS_KEEP"):
        deployment.uninstall(kube)


@pytest.fixture(scope="session")
def outside(kube: Cluster) -> Iterator[Object]:
    """A pod that is not in the mesh, with servers on two ports; for those who only ask it, or ask from it."""
    own = Mesh(kube, "outside")
    (found,) = own.start(own.namespace(), pod("outside", server(8080, 9090)))
    yield found
    own.close()


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment in which `kubectl` is this cluster's."""
    program = os.environ.get("INITLESS_CLUSTER")
    if program:
        kubectl = tmp_path / "kubectl"
        kubectl.write_text(f'#!/bin/sh\nexec {shlex.quote(program)} kubectl "$@"\n')
        kubectl.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.fixture
def mesh(kube: Cluster, request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Namespaces of this test; they go with it."""
    found = Mesh(kube, request.node.name)
    yield found
    found.close()
