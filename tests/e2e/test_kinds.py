"""Every kind of workload, and every way of being captured."""

import json

import pytest

from tests.e2e.cluster import Cluster, Object, containers, status_of, until
from tests.e2e.meshed import (
    UNPRIVILEGED,
    Mesh,
    address,
    assert_captured,
    container,
    deployment,
    pod,
    server,
    service,
    template,
)

NATIVE = "sidecar.istio.io/nativeSidecar"


def test_statefulset(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    namespace = mesh.meshed()
    spec = {"serviceName": "web", "selector": {"matchLabels": {"app": "web"}}, "template": template(pod("web"))}
    stateful = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"}, "spec": spec}
    (one,) = mesh.start(namespace, stateful, service("web", 8080, clusterIP="None"))
    assert one["metadata"]["name"] == "web-0"
    assert_captured(kube, one, outside)


def test_daemonset(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    namespace = mesh.meshed()
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template(pod("web"))}
    mesh.create(namespace, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "web"}, "spec": spec})
    for one in mesh.ready(namespace):
        assert_captured(kube, one, outside)


def test_bare_pod(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    assert_captured(kube, one, outside)


def job(name: str, url: str) -> Object:
    """Asks once; with restartPolicy Never a failed init container would be the end of it."""
    work = pod(name, container("application", "get", url), restartPolicy="Never")
    spec = {"backoffLimit": 0, "template": template(work)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def finished(kube: Cluster, namespace: str) -> Object:
    """The pod of a Job that has come to its end, and it was a good one."""
    jobs = kube.get("jobs", namespace=namespace)
    done = [found["metadata"]["name"] for found in jobs if found.get("status", {}).get("succeeded")]
    assert not [found for found in jobs if found.get("status", {}).get("failed")], "failed"
    assert done, "none has succeeded yet"
    (found,) = kube.pods(namespace, f"job-name={done[0]}")
    return found


def test_job_that_is_never_restarted(kube: Cluster, mesh: Mesh) -> None:
    """The application's exit ends the pod, since istio-proxy is a native sidecar; and its one request was captured."""
    namespace = mesh.meshed()
    (web,) = mesh.start(mesh.meshed(), pod("web"))
    mesh.create(namespace, job("work", f"http://{address(web)}:8080/"))
    one = until("the Job succeeds", lambda: finished(kube, namespace))
    answer = json.loads(kube.kubectl("logs", "-n", namespace, one["metadata"]["name"], "-c", "app"))
    assert answer["peer"] == "127.0.0.6"
    assert all(status_of(one, found["name"])["restartCount"] == 0 for found in containers(one))


def test_cronjob(kube: Cluster, mesh: Mesh) -> None:
    namespace = mesh.meshed()
    (web,) = mesh.start(mesh.meshed(), pod("web"))
    template_of_jobs = {"spec": job("work", f"http://{address(web)}:8080/")["spec"]}
    spec = {"schedule": "* * * * *", "suspend": True, "jobTemplate": template_of_jobs}
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "work"}, "spec": spec}
    mesh.create(namespace, cron)
    kube.kubectl("create", "job", "now", "--from=cronjob/work", "-n", namespace)
    until("the Job of the CronJob succeeds", lambda: finished(kube, namespace))


@pytest.mark.parametrize("native", ["true", "false"])
def test_native_sidecars_on_and_off(kube: Cluster, mesh: Mesh, native: str, outside: Object) -> None:
    (one,) = mesh.start(mesh.meshed(), pod("web", annotations={NATIVE: native}))
    initial = [found["name"] for found in one["spec"]["initContainers"]]
    assert initial == (["istio-validation", "istio-proxy"] if native == "true" else ["istio-validation"])
    assert_captured(kube, one, outside)


def test_an_init_container_downloads_before_capture(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    """`before-app`: it has a network of its own, without the proxy's user id; the application is captured as ever."""
    url = f"http://{address(outside)}:8080/"
    download = container("application", "get", url, name="download")
    annotations = {"initless.io/capture": "before-app"}
    (one,) = mesh.start(mesh.meshed(), pod("web", server(8080), annotations=annotations, initContainers=[download]))
    namespace, name = one["metadata"]["namespace"], one["metadata"]["name"]
    answer = json.loads(kube.kubectl("logs", "-n", namespace, name, "-c", "download"))
    assert answer["peer"] == address(one)
    order = [found["name"] for found in one["spec"]["initContainers"]]
    assert order.index("download") < order.index("istio-validation")
    assert kube.connections(one)["outbound"] == 0, "the download was not captured"
    assert_captured(kube, one, outside)


def test_tproxy_keeps_the_clients_address(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    annotations = {"sidecar.istio.io/interceptionMode": "TPROXY"}
    (one,) = mesh.start(mesh.meshed(), pod("web", annotations=annotations))
    before = kube.connections(one)["inbound"]
    assert kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == address(outside)
    assert kube.connections(one)["inbound"] == before + 1


def test_dual_stack(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    addresses = [found["ip"] for found in outside["status"]["podIPs"]]
    if len(addresses) < 2:
        pytest.skip("needs a dual-stack cluster")
    config = json.dumps({"proxyMetadata": {"ISTIO_DUAL_STACK": "true"}})
    (one,) = mesh.start(mesh.meshed(), pod("web", annotations={"proxy.istio.io/config": config}))
    fourth, sixth = (found["ip"] for found in one["status"]["podIPs"])
    assert kube.ask(outside, f"http://{fourth}:8080/")["peer"] == "127.0.0.6"
    assert kube.ask(outside, f"http://[{sixth}]:8080/")["peer"] == "::6"
    before = kube.connections(one)
    for host in (addresses[0], f"[{addresses[1]}]"):
        assert "peer" in kube.ask(one, f"http://{host}:8080/")
    assert kube.connections(one)["outbound"] == before["outbound"] + 2


def test_a_pod_in_a_user_namespace(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    """xt_owner takes rules only from within the user namespace that owns the network namespace."""
    (one,) = mesh.start(mesh.meshed(), pod("web", hostUsers=False))
    assert one["spec"]["hostUsers"] is False
    assert_captured(kube, one, outside)


def test_hold_application_until_proxy_starts(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    config = json.dumps({"holdApplicationUntilProxyStarts": True})
    annotations = {NATIVE: "false", "proxy.istio.io/config": config}
    (one,) = mesh.start(mesh.meshed(), pod("web", annotations=annotations))
    assert one["spec"]["containers"][0]["name"] == "istio-proxy"
    assert_captured(kube, one, outside)


def test_probes_reach_the_application(kube: Cluster, mesh: Mesh) -> None:
    """The kubelet's probes are turned into questions to the proxy's agent, which asks the application."""
    probes = {
        "livenessProbe": {"httpGet": {"path": "/live", "port": 8080}, "periodSeconds": 1},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
    }
    (one,) = mesh.start(mesh.meshed(), deployment(pod("web", server(8080) | probes)))
    (app,) = [found for found in one["spec"]["containers"] if found["name"] == "app"]
    assert app["readinessProbe"]["httpGet"]["port"] == 15020
    assert status_of(one, "app")["restartCount"] == 0


def test_a_pod_outside_the_mesh_is_left_alone(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    namespace = mesh.meshed()
    (one,) = mesh.start(namespace, pod("web", labels={"sidecar.istio.io/inject": "false"}))
    assert [found["name"] for found in containers(one)] == ["app"]
    if kube.has_node:
        assert "ISTIO" not in kube.in_namespace_of(one, "nft", "list", "ruleset")


def test_host_network_pods_are_not_injected(kube: Cluster, mesh: Mesh) -> None:
    context = {"securityContext": UNPRIVILEGED}
    (one,) = mesh.start(
        mesh.meshed(), pod("web", container("application", "serve", "18080") | context, hostNetwork=True)
    )
    assert [found["name"] for found in containers(one)] == ["app"]
