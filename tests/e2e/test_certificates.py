"""The webhook's CA and certificate are replaced while the real API server is asking: no admission fails."""

import base64
import contextlib
import dataclasses
import datetime
import http.client
import json
import threading
import time
from collections.abc import Iterator

from injector.certificates.certs import Lifetimes, Material, renew
from injector.certificates.keep import FIELDS
from tests.e2e import deployment
from tests.e2e.cluster import Cluster, Object, until
from tests.e2e.deployment import SYSTEM
from tests.e2e.meshed import Mesh, pod

SECRET = "initless-injector-certs"
NAMES = ("initless-injector.initless-system.svc", "initless-injector.initless-system.svc.cluster.local")


class Admissions:
    """Clients that have the API server admit a meshed pod again and again, through `kubectl proxy`; nothing is made."""

    def __init__(self, port: int, one: Object) -> None:
        self.done = 0
        self.failed: list[str] = []
        self._body = json.dumps(one)
        self._path = f"/api/v1/namespaces/{one['metadata']['namespace']}/pods?dryRun=All"
        self._port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(4)]

    def __enter__(self) -> "Admissions":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while not self._stop.is_set():
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=40)) as connection:
                connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read().decode()
            if response.status != 201 or "istio-validation" not in text:
                self.failed.append(f"{response.status}: {text[:300]}")
            self.done += 1


@contextlib.contextmanager
def proxied(kube: Cluster) -> Iterator[int]:
    """The API server on a port of this machine."""
    with kube.background("proxy", "--port=0") as process:
        assert process.stdout
        line = process.stdout.readline()
        yield int(line.rsplit(":", 1)[1])


def written(kube: Cluster) -> Material:
    data = kube.get("secret", SECRET, SYSTEM).get("data", {})
    return Material(**{name: base64.b64decode(data.get(key, "")) for key, name in FIELDS.items()})


def write(kube: Cluster, material: Material) -> None:
    data = {key: base64.b64encode(getattr(material, name)).decode() or None for key, name in FIELDS.items()}
    kube.kubectl("-n", SYSTEM, "patch", "secret", SECRET, "--type=merge", "-p", json.dumps({"data": data}))


def trusts(kube: Cluster, bundle: bytes) -> bool:
    wanted = base64.b64encode(bundle).decode()
    webhooks = kube.get("mutatingwebhookconfiguration", "initless-injector")["webhooks"]
    return all(entry["clientConfig"]["caBundle"] == wanted for entry in webhooks)


def impatient(kube: Cluster) -> None:
    """`injector certs` that looks every second and gives a new CA three seconds to be known."""
    arguments = kube.get("deployment", "initless-injector", SYSTEM)["spec"]["template"]["spec"]["containers"][1]["args"]
    path = "/spec/template/spec/containers/1/args"
    change = [{"op": "replace", "path": path, "value": [*arguments, "--interval=1", "--overlap=3"]}]
    kube.kubectl("-n", SYSTEM, "patch", "deployment", "initless-injector", "--type=json", "-p", json.dumps(change))
    deployment.ready(kube)


def aged(material: Material, days: int) -> Material:
    """A CA of a month and its certificate as they would be after so many days, beside the CA that is trusted now."""
    lifetimes = Lifetimes(authority=datetime.timedelta(days=31), serving=datetime.timedelta(days=30))
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days)
    old = renew(None, NAMES, lifetimes, past, announced=False).material
    return dataclasses.replace(old, bundle=old.bundle + material.bundle)


def test_ca_and_certificate_are_rotated_under_load(kube: Cluster, mesh: Mesh) -> None:
    one = pod("web")
    one["metadata"]["namespace"] = mesh.meshed()
    before = kube.get("deployment", "initless-injector", SYSTEM)["spec"]["template"]
    impatient(kube)
    try:
        with proxied(kube) as port, Admissions(port, one) as admissions:
            old = aged(written(kube), days=29)
            write(kube, old)
            until("the next CA is announced", lambda: written(kube).next_key, 30)
            until("and signs", lambda: written(kube).next_key == b"" and written(kube).authority_key, 30)
            new = written(kube)
            assert new.authority_key != old.authority_key and new.certificate != old.certificate
            until("the API server trusts it", lambda: trusts(kube, new.bundle), 30)
            enough = admissions.done + 100  # with the new certificate, on connections old and new
            until("more admissions", lambda: admissions.done > enough, 60)
            time.sleep(2)
    finally:
        change = json.dumps([{"op": "replace", "path": "/spec/template", "value": before}])
        kube.kubectl("-n", SYSTEM, "patch", "deployment", "initless-injector", "--type=json", "-p", change)
        deployment.ready(kube)
    print(f"\n{admissions.done} admissions while CA and certificate were replaced, {len(admissions.failed)} failed")
    assert admissions.failed == []


def test_applying_the_manifests_again_keeps_ca_and_trust(kube: Cluster) -> None:
    before = written(kube)
    kube.kubectl("apply", "-k", str(deployment.BASE))
    assert written(kube) == before
    assert trusts(kube, before.bundle)
    deployment.ready(kube)


def test_a_lost_secret_is_made_anew(kube: Cluster, mesh: Mesh) -> None:
    before = written(kube)
    kube.kubectl("-n", SYSTEM, "patch", "secret", SECRET, "--type=merge", "-p", json.dumps({"data": None}))
    until("there is another CA", lambda: written(kube).bundle not in (b"", before.bundle), 60)
    until("and it is trusted", lambda: trusts(kube, written(kube).bundle), 60)
    one = pod("web")
    one["metadata"]["namespace"] = mesh.meshed()
    until("pods are admitted", lambda: not kube.try_apply(one), 60)
