"""Deploys daemonset/ once for all tests of this folder, and keeps logs and Events when one fails."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import deployment, diagnosis
from tests.e2e.cluster import Cluster, Object, cluster
from tests.e2e.meshed import Mesh, pod, server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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


@pytest.fixture(scope="session", autouse=True)
def deployed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Istio's settings as istiod would leave them, and everything of daemonset/base."""
    if not os.environ.get("INITLESS_E2E"):
        yield
        return
    shutil.rmtree(diagnosis.FOLDER, ignore_errors=True)
    kube = cluster()
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
def mesh(kube: Cluster, request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Namespaces of this test; they go with it."""
    found = Mesh(kube, request.node.name)
    yield found
    found.close()
