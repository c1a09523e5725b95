"""Random pods that an API server would let through: right types everywhere, any mixture of what people write."""

import random
import string
from typing import Any

PATHS = ["/inject", "/inject/", "/inject/cluster/c1/net/n1", "/inject/:ENV:A=b:ENV:net=x", "/inject/a/b--slash--c/odd"]
BOOLEANS = ["true", "false", "", "True", "1", "maybe"]
PORTS = ["80", "80,443", "*", "", "http", "0", "65536", "80,,81", " 8080 ", "1" * 40]
RANGES = ["*", "", "10.0.0.0/8", "10.0.0.0/8,::1/128", "10.0.0.1", "nonsense", "10.0.0.0/33", "*,10.0.0.0/8"]
TEXTS = [
    "",
    "x",
    "a: {b: c}",
    '{"a": 1}',
    "{",
    "- 1",
    "\u00e9\U0001f600",
    '"',
    "'",
    "{{ .Values }}",
    "a\nb",
    "\t",
    "null",
]
ANNOTATIONS = {
    "sidecar.istio.io/inject": BOOLEANS,
    "sidecar.istio.io/status": [
        "{}",
        "",
        "{",
        "[]",
        '{"containers":["istio-proxy"],"initContainers":null}',
        '{"containers":5}',
    ],
    "proxy.istio.io/overrides": ["{}", "{", '{"containers":[{"name":"istio-proxy"}]}', '{"containers":[1]}', "null"],
    "proxy.istio.io/config": [
        "",
        "concurrency: 2",
        "{",
        "interceptionMode: TPROXY",
        "proxyMetadata: {A: '\"'}",
        "image: {imageType: debug}",
        "[]",
    ],
    "sidecar.istio.io/interceptionMode": ["REDIRECT", "TPROXY", "NONE", "", "redirect"],
    "sidecar.istio.io/nativeSidecar": BOOLEANS,
    "sidecar.istio.io/rewriteAppHTTPProbers": BOOLEANS,
    "sidecar.istio.io/capNetBindService": BOOLEANS,
    "sidecar.istio.io/proxyImage": ["proxyv2", "a/b:c", "", "weird image"],
    "sidecar.istio.io/proxyImageType": ["distroless", "debug", "default", ""],
    "sidecar.istio.io/proxyCPU": ["100m", "", "lots", "1e3", "-1"],
    "sidecar.istio.io/proxyMemoryLimit": ["1Gi", "", "9" * 40, "1.5"],
    "sidecar.istio.io/userVolume": ['[{"name":"v","emptyDir":{}}]', "{}", '{"v":{"emptyDir":{}}}', "{", "[1]"],
    "sidecar.istio.io/userVolumeMount": ['[{"name":"v","mountPath":"/x"}]', '{"v":{"mountPath":"/x"}}', "{"],
    "sidecar.istio.io/bootstrapOverride": ["config", ""],
    "sidecar.istio.io/logLevel": ["debug", "", "all:debug", '"'],
    "sidecar.istio.io/componentLogLevel": ["misc:error", ""],
    "status.sidecar.istio.io/port": ["15020", "0", "", "x"],
    "readiness.status.sidecar.istio.io/periodSeconds": ["1", "", "x", "-1"],
    "prometheus.io/scrape": BOOLEANS,
    "prometheus.io/port": ["9090", "http", "", "99999"],
    "prometheus.istio.io/merge-metrics": BOOLEANS,
    "inject.istio.io/templates": [
        "sidecar",
        "gateway",
        "sidecar,gateway",
        "",
        "grpc-agent",
        "unknown",
        "sidecar,sidecar",
    ],
    "traffic.sidecar.istio.io/includeInboundPorts": PORTS,
    "traffic.sidecar.istio.io/excludeInboundPorts": PORTS,
    "traffic.sidecar.istio.io/includeOutboundPorts": PORTS,
    "traffic.sidecar.istio.io/excludeOutboundPorts": PORTS,
    "traffic.sidecar.istio.io/includeOutboundIPRanges": RANGES,
    "traffic.sidecar.istio.io/excludeOutboundIPRanges": RANGES,
    "traffic.sidecar.istio.io/excludeInterfaces": ["eth1", "", "eth1,eth2", "x" * 20],
    "istio.io/reroute-virtual-interfaces": ["tap0", "", "!"],
    "k8s.v1.cni.cncf.io/networks": ["a", "", "[]", '[{"name":"a"}]', "{"],
}
LABELS = [
    "app",
    "version",
    "istio.io/rev",
    "topology.istio.io/network",
    "service.istio.io/canonical-name",
    "sidecar.istio.io/inject",
]

CONTAINERS = ["b", "c", "istio-proxy"]
INIT_CONTAINERS = ["first", "istio-validation", "istio-init", "enable-core-dump"]


def make_pod(chance: random.Random) -> dict[str, Any]:
    """A structurally valid pod: right types everywhere, any mixture of what people put into pods."""

    def some(value: Any, odds: float = 0.5) -> Any:
        return value if chance.random() < odds else None

    def text() -> str:
        if chance.random() < 0.5:
            return chance.choice(TEXTS)
        return "".join(
            chance.choice(string.ascii_letters + string.digits + "-._/:") for _ in range(chance.randint(0, 30))
        )

    annotations = {
        key: chance.choice(values) if chance.random() < 0.85 else text()
        for key, values in ANNOTATIONS.items()
        if chance.random() < 0.12
    }
    labels = {key: text()[:63] for key in LABELS if chance.random() < 0.25}
    if chance.random() < 0.7:
        labels.pop("sidecar.istio.io/inject", None)
        annotations.pop("sidecar.istio.io/inject", None)
    names = ["app", *chance.sample(CONTAINERS, chance.randint(0, 2))]
    first = chance.sample(INIT_CONTAINERS, chance.randint(0, 2))
    if chance.random() < 0.1 and "istio-proxy" in names:  # a native sidecar of the user's
        names.remove("istio-proxy")
        first.append("istio-proxy")
    volumes = chance.sample(["data", "istio-envoy", "istio-token", "istiod-ca-cert", "v"], chance.randint(0, 3))
    metadata = {
        "name": some("web"),
        "generateName": some("web-abc-"),
        "namespace": some(chance.choice(["demo", "kube-system", ""])),
        "labels": some(labels, 0.8),
        "annotations": some(annotations, 0.95),
        "ownerReferences": some(
            [
                {
                    "apiVersion": "apps/v1",
                    "kind": chance.choice(["ReplicaSet", "Job", "Foo"]),
                    "name": "web-abc",
                    "uid": "u",
                    "controller": True,
                }
            ]
        ),
    }
    spec = {
        "containers": [make_container(chance, name) for name in names],
        "initContainers": some([make_container(chance, name) for name in first]),
        "volumes": some([{"name": name, "emptyDir": {}} for name in volumes]),
        "hostNetwork": some(chance.random() < 0.3, 0.2),
        "securityContext": some({"fsGroup": 1, "runAsUser": chance.choice([0, 1337, 1000])}),
        "imagePullSecrets": some([{"name": "s"}], 0.2),
        "nodeName": some("node-1", 0.1),
        "unknownField": some({"kept": [1]}, 0.1),
    }
    return {"metadata": _without_none(metadata), "spec": _without_none(spec)}


def make_container(chance: random.Random, name: str) -> dict[str, Any]:
    """One container with ports, probes and environment of every kind."""

    def probe() -> dict[str, Any]:
        port = chance.choice([80, "http", "unknown", 15020, "8080"])
        action = chance.choice(
            [
                {"httpGet": {"path": chance.choice(["/", "", "no-slash", "/a?b=c"]), "port": port}},
                {
                    "httpGet": {
                        "port": port,
                        "scheme": "HTTPS",
                        "host": "example.org",
                        "httpHeaders": [{"name": "A", "value": ""}],
                    }
                },
                {"tcpSocket": {"port": port}},
                {"grpc": {"port": 80, "service": chance.choice(["", "x"])}},
                {"exec": {"command": ["true"]}},
                {},
            ]
        )
        return {**action, "periodSeconds": 5}

    content: dict[str, Any] = {"name": name, "image": chance.choice(["auto", "app:1", ""])}
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        if chance.random() < 0.3:
            content[key] = probe()
    if chance.random() < 0.3:
        content["lifecycle"] = {"postStart": probe(), "preStop": {"exec": {"command": ["true"]}}}
    if chance.random() < 0.5:
        content["ports"] = [
            {"name": chance.choice(["http", "", "x"]), "containerPort": chance.choice([80, 8080, 15090])}
        ]
    if chance.random() < 0.4:
        content["env"] = [
            {"name": "A", "value": chance.choice(TEXTS)},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "ISTIO_KUBE_APP_PROBERS", "value": chance.choice(["{}", "{", '{"/app-health/a/livez":{}}', "[]"])},
        ][: chance.randint(1, 3)]
    if chance.random() < 0.3:
        content["securityContext"] = {"runAsUser": chance.choice([0, 1337, 1000]), "runAsGroup": 1337}
    if chance.random() < 0.3:
        content["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    if chance.random() < 0.2:
        content["restartPolicy"] = "Always"
    if chance.random() < 0.2:
        content["resources"] = {"requests": {"cpu": chance.choice(["1", "x", ""])}}
    return content


def _without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}
