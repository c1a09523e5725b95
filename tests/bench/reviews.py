"""AdmissionReviews to measure with: what a Deployment's pod looks like when the API server asks, and extremes of it."""

import base64
from typing import Any

import jsonpatch
import msgspec

from injector.admission import review as answer
from injector.settings import Settings

Pod = dict[str, Any]


def typical() -> Pod:
    """A pod of a Deployment as kube-controller-manager sends it, after defaulting and the service account plugin."""
    probe = {"httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"}, "timeoutSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "checkout-6d4cf56db6-",
            "creationTimestamp": None,
            "labels": {"app": "checkout", "version": "v1", "pod-template-hash": "6d4cf56db6"},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "checkout-6d4cf56db6",
                    "uid": "b2a9d6c8-55ac-4a55-9a11-2a6a3f4c1d2e",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "volumes": [
                {
                    "name": "kube-api-access-x2x7z",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                        ],
                        "defaultMode": 420,
                    },
                },
                {"name": "config", "configMap": {"name": "checkout", "defaultMode": 420}},
            ],
            "containers": [container("checkout", probe)],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "checkout",
            "serviceAccount": "checkout",
            "securityContext": {"runAsNonRoot": True},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{name}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for name in ("not-ready", "unreachable")
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }


def container(name: str, probe: dict[str, Any]) -> dict[str, Any]:
    """One container of the application."""
    return {
        "name": name,
        "image": f"registry.example.org/shop/{name}:v1.42.0",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(8)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": "config", "readOnly": True, "mountPath": "/etc/config"}],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def skipped() -> Pod:
    """The same, opted out."""
    pod = typical()
    pod["metadata"]["labels"]["sidecar.istio.io/inject"] = "false"
    return pod


def environment(count: int) -> Pod:
    """The same with many environment variables."""
    pod = typical()
    pod["spec"]["containers"][0]["env"] = [
        {"name": f"VARIABLE_{number}", "value": f"value-{number}"} for number in range(count)
    ]
    return pod


def managed_fields(size: int) -> Pod:
    """The same with about `size` bytes of managedFields."""
    pod = typical()
    fields = {f"f:field-{number}": {"f:name": {}, "f:value": {}} for number in range(200)}
    entry = {"manager": "controller", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:spec": fields}}
    pod["metadata"]["managedFields"] = [entry] * (size // len(msgspec.json.encode(entry)))
    return pod


def containers(count: int) -> Pod:
    """Many containers, each with three probes and two lifecycle hooks."""
    pod = typical()
    made = []
    for number in range(count):
        get = {"path": "/healthz", "port": 8000 + number, "scheme": "HTTP"}
        one = container(f"app-{number}", {"httpGet": get, "timeoutSeconds": 1})
        one["ports"] = [{"name": f"http-{number}", "containerPort": 8000 + number, "protocol": "TCP"}]
        one["startupProbe"] = one["livenessProbe"]
        one["lifecycle"] = {"postStart": {"httpGet": get}, "preStop": {"httpGet": get}}
        made.append(one)
    pod["spec"]["containers"] = made
    return pod


def overridden() -> Pod:
    """The user brings an istio-proxy of their own, to be completed."""
    pod = typical()
    proxy = {
        "name": "istio-proxy",
        "image": "auto",
        "resources": {"requests": {"cpu": "500m"}},
        "env": [{"name": "EXTRA", "value": "1"}],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/extra"}],
    }
    pod["spec"]["containers"].append(proxy)
    return pod


def injected(settings: Settings) -> Pod:
    """A pod that was injected before."""
    reply = msgspec.json.decode(answer(review(typical()), settings, "/inject").body)["response"]
    patch = jsonpatch.JsonPatch(msgspec.json.decode(base64.b64decode(reply["patch"])))
    patched: Pod = patch.apply(typical())
    return patched


def review(pod: Pod) -> bytes:
    """The request for it."""
    return msgspec.json.encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "0f1d0d5c-8d38-4a3c-9f0e-5a8f3b1f9c11",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
                "requestResource": {"group": "", "version": "v1", "resource": "pods"},
                "namespace": "shop",
                "operation": "CREATE",
                "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
                "object": pod,
                "oldObject": None,
                "dryRun": False,
                "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            },
        }
    )
