"""The webhook through the real API server: down, by revision and tag, and with its certificates being rotated."""

import json
import subprocess

import pytest

from tests.e2e import deployment
from tests.e2e.cluster import Cluster, containers, until
from tests.e2e.deployment import ROOT, SYSTEM
from tests.e2e.meshed import Mesh, pod


def is_injected(kube: Cluster, namespace: str, **labels: str) -> bool:
    """Whether the API server has a pod with these labels injected; nothing is created."""
    written = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
    one = pod("web", labels=written)
    one["metadata"]["namespace"] = namespace
    text = kube.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(one))
    return "istio-proxy" in [found["name"] for found in containers(json.loads(text))]


@pytest.mark.parametrize(
    ("namespace", "labels", "expected"),
    [
        ({"istio-injection": "enabled"}, {}, True),
        ({"istio-injection": "enabled"}, {"sidecar_istio_io__inject": "false"}, False),
        ({"istio-injection": "enabled", "istio.io/rev": "other"}, {}, True),
        ({"istio-injection": "disabled"}, {"sidecar_istio_io__inject": "true"}, False),
        ({"istio-injection": "disabled", "istio.io/rev": "default"}, {}, False),
        ({"istio.io/rev": "default"}, {}, True),
        ({"istio.io/rev": "other"}, {}, False),
        ({"istio.io/rev": "other"}, {"istio_io__rev": "default"}, False),
        ({}, {}, False),
        ({}, {"sidecar_istio_io__inject": "true"}, True),
        ({}, {"istio_io__rev": "default"}, True),
        ({}, {"istio_io__rev": "other", "sidecar_istio_io__inject": "true"}, False),
    ],
)
def test_which_labels_select(
    kube: Cluster, mesh: Mesh, namespace: dict[str, str], labels: dict[str, str], expected: bool
) -> None:
    name = mesh.namespace()
    if namespace:
        kube.kubectl("label", "namespace", name, *(f"{key}={value}" for key, value in namespace.items()))
    assert is_injected(kube, name, **labels) is expected


def test_a_revision_and_its_tag_by_helm(kube: Cluster, mesh: Mesh) -> None:
    """A second injector, by `helm install`, beside the first; its tag; and away again."""
    kube.apply(
        deployment.config_map(
            "istio-sidecar-injector-canary", values=json.dumps(deployment.VALUES), config="policy: enabled"
        ),
        deployment.config_map("istio-canary", mesh=json.dumps(deployment.MESH)),
    )
    settings = "revision=canary,tags={prod},agent.enabled=false,resourceQuota.enabled=false"
    chart = str(ROOT / "daemonset/chart")
    helm("install", "canary", chart, "-n", SYSTEM, "--set", settings, "--wait", "--timeout", "90s")
    try:
        by_revision, by_tag, by_default = (mesh.namespace() for _ in range(3))
        kube.kubectl("label", "namespace", by_revision, "istio.io/rev=canary")
        kube.kubectl("label", "namespace", by_tag, "istio.io/rev=prod")
        kube.kubectl("label", "namespace", by_default, "istio.io/rev=default")
        until(
            "the API server trusts it",
            lambda: deployment.trusted(kube, "initless-injector-canary", "initless-revision-tag-prod"),
        )
        for namespace, revision in ((by_revision, "canary"), (by_tag, "canary"), (by_default, "default")):
            until("the API server knows of it", lambda: is_injected(kube, namespace), 20)  # noqa: B023
            (one,) = mesh.start(namespace, pod("web"))
            assert json.loads(one["metadata"]["annotations"]["sidecar.istio.io/status"])["revision"] == revision
    finally:
        helm("uninstall", "canary", "-n", SYSTEM, "--wait")
    kinds = "all,secret,configmap,role,rolebinding,mutatingwebhookconfiguration,clusterrole"
    ours = ["get", kinds, "-n", SYSTEM, "-l", "app.kubernetes.io/instance=canary"]
    until("nothing of it is left", lambda: kube.kubectl(*ours) == "", 60)


def helm(*arguments: str) -> None:
    subprocess.run(["helm", *arguments], check=True, capture_output=True, text=True)


def test_without_an_injector_only_meshed_namespaces_stop(kube: Cluster, mesh: Mesh) -> None:
    meshed, plain = mesh.meshed(), mesh.namespace()
    kube.kubectl("-n", SYSTEM, "scale", "deployment/initless-injector", "--replicas=0")
    try:
        until("no injector is left", lambda: not kube.pods(SYSTEM, "app.kubernetes.io/name=injector"), 90)
        one = pod("web")
        one["metadata"]["namespace"] = meshed
        message = mesh.until_denied(one, 'failed calling webhook "namespace.injector.initless.io"')
        assert "initless-injector" in message
        assert not kube.pods(meshed)
        mesh.start(plain, pod("web"))
        system = pod("e2e-web")
        system["metadata"]["namespace"] = "kube-system"
        kube.apply(system)
        kube.delete("pod", "e2e-web", "kube-system", "--grace-period=0", "--force")
    finally:
        kube.kubectl("-n", SYSTEM, "scale", "deployment/initless-injector", "--replicas=2")
        deployment.ready(kube)
    mesh.start(meshed, pod("web"))


def test_a_bad_annotation_is_refused_with_field_value_and_what_is_allowed(kube: Cluster, mesh: Mesh) -> None:
    one = pod("web", annotations={"traffic.sidecar.istio.io/excludeOutboundPorts": "80,http"})
    one["metadata"]["namespace"] = mesh.meshed()
    refusal = kube.try_apply(one)
    assert "traffic.sidecar.istio.io/excludeOutboundPorts" in refusal and "http" in refusal
