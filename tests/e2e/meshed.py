"""Namespaces and workloads of a test."""

import itertools
import json
import os
import re
from typing import Any

from tests.e2e.cluster import Cluster, Object, is_ready, until
from tests.e2e.deployment import PROXY_IMAGE

INJECTED = {"istio-injection": "enabled"}
_number = itertools.count()

# Passes Pod Security `restricted`, so that every test may run in such a namespace.
UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(*command: str, name: str = "app", **more: Any) -> Object:
    return {"name": name, "image": PROXY_IMAGE, "command": list(command), "securityContext": UNPRIVILEGED, **more}


def server(*ports: int) -> Object:
    """An application that says who asked."""
    return container("application", "serve", *map(str, ports), ports=[{"containerPort": port} for port in ports])


def pod(
    name: str, *containers: Object, annotations: Object | None = None, labels: Object | None = None, **spec: Any
) -> Object:
    """A bare pod, of the echo server when nothing else is said."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, **(labels or {})}, "annotations": annotations or {}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers) or [server(8080)], **spec},
    }


def template(of: Object) -> Object:
    """A pod as the template of a workload."""
    metadata = {key: value for key, value in of["metadata"].items() if key != "name"}
    return {"metadata": metadata, "spec": of["spec"]}


def deployment(of: Object, replicas: int = 1) -> Object:
    name = of["metadata"]["name"]
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(of)}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def service(name: str, *ports: int, **more: Any) -> Object:
    listed = [{"name": f"p{port}", "port": port} for port in ports]
    spec = {"selector": {"app": name}, "ports": listed, **more}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def address(of: Object) -> str:
    found: str = of["status"]["podIP"]
    return found


def assert_captured(kube: Cluster, one: Object, outside: Object) -> None:
    """Its traffic goes through its proxy, both ways."""
    before = kube.connections(one)
    assert kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == "127.0.0.6", "the sidecar, not the client"
    assert kube.ask(one, f"http://{address(outside)}:8080/")["peer"] == address(one)
    after = kube.connections(one)
    assert after["inbound"] > before["inbound"] and after["outbound"] > before["outbound"]


class Mesh:
    """Makes namespaces, and takes them away."""

    def __init__(self, kube: Cluster, test: str) -> None:
        self.kube = kube
        self._stem = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower()).strip("-")[:40].strip("-")
        self._made: list[str] = []

    def namespace(self, *, root: bool = True, **labels: str) -> str:
        """A namespace with these labels (`istio_injection` for istio-injection) and, as by istiod, its root in it."""
        name = f"e2e-{self._stem}-{next(_number)}"
        self._made.append(name)
        written = {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()}
        self.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": written}})
        if root:
            metadata = {"name": "istio-ca-root-cert", "namespace": name}
            data = {"root-cert.pem": ""}
            self.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        until("its service account", lambda: self.kube.try_kubectl("get", "sa", "default", "-n", name).returncode == 0)
        return name

    def meshed(self, **labels: str) -> str:
        return self.namespace(istio_injection="enabled", **labels)

    def create(self, namespace: str, *objects: Object) -> None:
        for found in objects:
            found["metadata"]["namespace"] = namespace
        self.kube.apply(*objects)

    def until_denied(self, found: Object, why: str) -> str:
        """Asks to create it until the answer is this refusal: API servers learn of new rules by and by."""

        def look() -> str:
            refusal = self.kube.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(found)).stderr
            assert why in refusal, refusal or "it was admitted"
            return refusal

        return until(f"denied: {why}", look, 30)

    def start(self, namespace: str, *objects: Object, seconds: float = 60.0) -> list[Object]:
        """Creates them and waits until every pod of the namespace is ready."""
        self.create(namespace, *objects)
        return self.ready(namespace, seconds=seconds)

    def ready(self, namespace: str, count: int = 1, seconds: float = 60.0) -> list[Object]:
        def look() -> list[Object]:
            pods = [found for found in self.kube.pods(namespace) if "deletionTimestamp" not in found["metadata"]]
            assert len(pods) >= count, f"{len(pods)} pods"
            waiting = [found["metadata"]["name"] for found in pods if not is_ready(found)]
            assert not waiting, f"not ready: {waiting}"
            return pods

        return until(f"the pods of {namespace} are ready", look, seconds)

    def close(self) -> None:
        if os.environ.get("INITLESS_KEEP"):
            return
        for name in self._made:
            self.kube.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
