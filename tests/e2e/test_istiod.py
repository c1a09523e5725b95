"""Beside a stock istiod, by revision: its charts, ConfigMaps and certificates, and its own pilot-agent in the pods."""

import os
import subprocess
from collections.abc import Iterator

import pytest

import cni_agent
from tests.e2e import deployment
from tests.e2e.cluster import Cluster, Object, containers, status_of, until
from tests.e2e.deployment import ISTIO, ROOT, SYSTEM
from tests.e2e.meshed import Mesh, address, pod, service

CHARTS = os.environ.get("INITLESS_ISTIO_CHARTS", "")
IMAGE = f"localhost/initless-test-istio:{cni_agent.__version__}"
REVISION = "stock"
NAMES = "names.example"

# What README.md says about running by revision; and what upstream's Envoy lacks of Istio's build is not asked for.
ISTIOD = {
    "revision": REVISION,
    "global.operatorManageWebhooks": "true",
    "global.proxy.image": IMAGE,
    "global.proxy_init.image": IMAGE,
    "global.proxy.resources.requests.cpu": "10m",
    "pilot.image": IMAGE,
    "pilot.resources.requests.cpu": "50m",
    "pilot.resources.requests.memory": "128Mi",
    "pilot.autoscaleEnabled": "false",
    "pilot.env.PILOT_ENABLE_ALPN_FILTER": "false",
    "pilot.env.PILOT_ENABLE_METADATA_EXCHANGE": "false",
    "telemetry.enabled": "false",
}
INITLESS = {"revision": REVISION, "agent.enabled": "false", "resourceQuota.enabled": "false"}

pytestmark = pytest.mark.skipif(not CHARTS, reason="needs Go, with which scripts/e2e builds istiod")


@pytest.fixture(scope="module")
def istiod(kube: Cluster) -> Iterator[None]:
    """istiod and Initless, both of this revision."""
    install("istio-base", f"{CHARTS}/base", ISTIO, {"defaultRevision": ""})
    install("istiod-stock", f"{CHARTS}/istio-discovery", ISTIO, ISTIOD)
    install("stock", str(ROOT / "daemonset/chart"), SYSTEM, INITLESS)
    until("the API server trusts the injector", lambda: deployment.trusted(kube, f"initless-injector-{REVISION}"))
    yield
    if os.environ.get("INITLESS_KEEP"):
        return
    for release, namespace in (("stock", SYSTEM), ("istiod-stock", ISTIO), ("istio-base", ISTIO)):
        helm("uninstall", release, "-n", namespace, "--wait")
    kube.kubectl("delete", "crd", "-l", "chart=istio", "--ignore-not-found")


def install(release: str, chart: str, namespace: str, values: dict[str, str]) -> None:
    settings = [f"--set={key}={value}" for key, value in values.items()]
    helm("upgrade", "--install", release, chart, "-n", namespace, *settings, "--wait", "--timeout=120s")


def helm(*arguments: str) -> None:
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def namespace(kube: Cluster, mesh: Mesh, istiod: None) -> str:
    """A namespace of this revision, in which istiod's root certificate is."""
    name = mesh.namespace(root=False)
    kube.kubectl("label", "namespace", name, f"istio.io/rev={REVISION}")

    def look() -> bool:
        found = kube.get("configmap", "istio-ca-root-cert", name)
        return "BEGIN CERTIFICATE" in found["data"]["root-cert.pem"]

    until("istiod has put its root into the namespace", look)
    return name


def test_mutual_tls_with_certificates_of_istiod(kube: Cluster, mesh: Mesh, namespace: str, outside: Object) -> None:
    strict = {
        "apiVersion": "security.istio.io/v1",
        "kind": "PeerAuthentication",
        "metadata": {"name": "default", "namespace": namespace},
        "spec": {"mtls": {"mode": "STRICT"}},
    }
    kube.apply(strict)
    pods = started(mesh, namespace, pod("client"), pod("web"), http_service("web"))
    url = f"http://web.{namespace}.svc.cluster.local:8080/"
    identity = f"spiffe://cluster.local/ns/{namespace}/sa/default"

    def look() -> bool:
        return identity in kube.ask(pods["client"], url).get("certificate", "")

    until("the server's proxy has seen the client's certificate", look, 30)
    assert "error" in kube.ask(outside, f"http://{address(pods['web'])}:8080/"), "STRICT, and it has no certificate"


def test_the_pods_have_what_istio_put_there_and_no_istio_init(kube: Cluster, mesh: Mesh, namespace: str) -> None:
    (one,) = mesh.start(namespace, pod("web"), seconds=90)
    names = [found["name"] for found in containers(one)]
    assert names[0] == "istio-validation" and "istio-init" not in names
    validation = status_of(one, "istio-validation")
    assert (validation["restartCount"], validation["state"]["terminated"]["exitCode"]) == (0, 0), (
        "of Istio's own program"
    )
    assert status_of(one, "istio-proxy")["image"] == IMAGE


@pytest.mark.parametrize("mode", ["REDIRECT", "TPROXY"])
def test_both_modes_with_the_configuration_of_istiod(
    kube: Cluster, mesh: Mesh, namespace: str, outside: Object, mode: str
) -> None:
    annotations = {"sidecar.istio.io/interceptionMode": mode}
    pods = started(mesh, namespace, pod("client"), pod("web", annotations=annotations), http_service("web"))
    plain = kube.ask(outside, f"http://{address(pods['web'])}:8080/")
    assert plain["peer"] == ("127.0.0.6" if mode == "REDIRECT" else address(outside)), "PERMISSIVE; TPROXY keeps it"
    meshed = kube.ask(pods["client"], f"http://web.{namespace}.svc.cluster.local:8080/")
    assert "spiffe://" in meshed["certificate"]


def test_names_that_only_istiod_knows_are_resolved(kube: Cluster, mesh: Mesh, namespace: str) -> None:
    """DNS capture: the question goes to pilot-agent, which answers from the mesh's registry."""
    known = {
        "apiVersion": "networking.istio.io/v1",
        "kind": "ServiceEntry",
        "metadata": {"name": "known", "namespace": namespace},
        "spec": {
            "hosts": [NAMES],
            "addresses": ["198.51.100.7"],
            "ports": [{"number": 8080, "name": "http", "protocol": "HTTP"}],
            "resolution": "STATIC",
            "location": "MESH_EXTERNAL",
        },
    }
    kube.apply(known)
    config = '{"proxyMetadata": {"ISTIO_META_DNS_CAPTURE": "true"}}'
    asking = pod("asking", annotations={"proxy.istio.io/config": config})
    pods = started(mesh, namespace, asking, pod("plain"))
    until("it is known", lambda: "198.51.100.7" in kube.run(pods["asking"], "application", "resolve", NAMES), 30)
    with pytest.raises(AssertionError):
        kube.run(pods["plain"], "application", "resolve", NAMES)


def test_istiod_leaves_our_webhook_alone(kube: Cluster, istiod: None) -> None:
    ours = kube.get("mutatingwebhookconfiguration", f"initless-injector-{REVISION}", show_managed_fields="true")
    managers = {entry["manager"] for entry in ours["metadata"]["managedFields"]}
    assert managers and "pilot-discovery" not in managers
    assert kube.kubectl("get", "mutatingwebhookconfigurations", "-l", "istio.io/rev") == "", "istiod's own is off"


def http_service(name: str) -> Object:
    """Its protocol is said: Istio's way of telling it by itself needs a filter that upstream's Envoy has not."""
    found = service(name, 8080)
    found["spec"]["ports"][0]["appProtocol"] = "http"
    return found


def started(mesh: Mesh, namespace: str, *objects: Object) -> dict[str, Object]:
    pods = mesh.start(namespace, *objects, seconds=90)
    return {found["metadata"]["name"]: found for found in pods}
