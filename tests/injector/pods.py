"""Strategies: pods that are structurally valid, with everything that injection looks at, and things nobody knows."""

import json
from typing import Any

from hypothesis import strategies as st

NAMES = ["http", "metrics", "nope"]
PORTS = [80, 8080, 15020, 15090]
ANNOTATIONS = {
    "sidecar.istio.io/interceptionMode": ["REDIRECT", "TPROXY", "NONE"],
    "status.sidecar.istio.io/port": ["15099", "0", "15020"],
    "readiness.status.sidecar.istio.io/initialDelaySeconds": ["0", "5"],
    "traffic.sidecar.istio.io/includeOutboundIPRanges": ["*", "", "10.0.0.0/8"],
    "traffic.sidecar.istio.io/excludeInboundPorts": ["", " 4 , 5 ", "15020"],
    "traffic.sidecar.istio.io/includeOutboundPorts": ["", "1,2"],
    "traffic.sidecar.istio.io/excludeInterfaces": ["", "eth1"],
    "istio.io/reroute-virtual-interfaces": ["net2"],
    "prometheus.istio.io/merge-metrics": ["true", "false"],
    "prometheus.io/scrape": ["true", "false", "x"],
    "prometheus.io/port": ["8080", "15020"],
    "prometheus.io.path": ["/metrics", "/a<b"],
    "prometheus.istio.io/scrape-targets": ["8080:/m,9090", ":/x"],
    "proxy.istio.io/config": [
        "{}",
        "holdApplicationUntilProxyStarts: true",
        "concurrency: 2",
        "interceptionMode: TPROXY",
    ],
    "sidecar.istio.io/proxyCPU": ["100m", "2000m"],
    "sidecar.istio.io/proxyMemoryLimit": ["1024Mi"],
    "sidecar.istio.io/proxyImage": ["foo", "a/b:c"],
    "sidecar.istio.io/bootstrapOverride": ["cm"],
    "sidecar.istio.io/userVolume": ['{"v":{"emptyDir":{}}}'],
    "sidecar.istio.io/userVolumeMount": ['{"v":{"mountPath":"/v","readonly":true}}'],
    "sidecar.istio.io/rewriteAppHTTPProbers": ["true", "false", "x"],
    "sidecar.istio.io/nativeSidecar": ["true", "false", "", "yes"],
    "inject.istio.io/templates": ["sidecar", "gateway", "grpc-agent", "sidecar,grpc-agent"],
    "sidecar.istio.io/status": ["{}", "bad", '{"containers":["istio-proxy","c0"],"initContainers":[5]}'],
    "proxy.istio.io/overrides": ['{"containers":[{"name":"istio-proxy","tty":true,"env":[{"name":"Z","value":"1"}]}]}'],
    "initless.io/capture": ["sandbox", "before-app"],
}
LABELS = {
    "app": ["web"],
    "topology.istio.io/network": ["net1", ""],
    "service.istio.io/canonical-name": ["-" + "x" * 70],
    "sidecar.istio.io/inject": ["true", "", "maybe"],
    "pod-template-hash": ["abc"],
}
OURS = ("istio-proxy", "istio-validation", "istio-init")


def some(choices: dict[str, list[str]]) -> st.SearchStrategy[dict[str, str]]:
    """A few of the keys, each with one of its values."""
    pairs = [st.tuples(st.just(key), st.sampled_from(values)) for key, values in choices.items()]
    return st.lists(st.one_of(pairs), max_size=5).map(dict)


def optional(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with some of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


ports = st.sampled_from(PORTS) | st.sampled_from(NAMES)
http_get = st.fixed_dictionaries(
    {"port": ports},
    optional={
        "path": st.sampled_from(["", "/ready", "/a?b=<c>&d"]),
        "scheme": st.sampled_from(["HTTP", "HTTPS"]),
        "host": st.just("h"),
        "httpHeaders": st.just([{"name": "X", "value": "y"}]),
        "xUnknown": st.just({"kept": True}),
    },
)
handlers = st.one_of(
    st.builds(lambda value: {"httpGet": value}, http_get),
    st.builds(lambda port: {"tcpSocket": {"port": port}}, ports),
    st.just({"exec": {"command": ["true"]}}),
)
probe_handlers = st.one_of(handlers, st.just({"grpc": {"port": 90}}))
probes = st.builds(
    lambda handler, timing: {**handler, **timing},
    probe_handlers,
    optional(timeoutSeconds=st.integers(0, 9), xUnknown=st.just([1])),
)
variables = st.lists(
    st.sampled_from([{"name": "A", "value": "b<c"}, {"name": "POD_NAME", "value": ""}, {"name": "Z", "value": "2"}]),
    max_size=3,
    unique_by=lambda variable: variable["name"],
)
contents = optional(
    image=st.sampled_from(["nginx:1.2", "auto"]),
    ports=st.lists(
        st.fixed_dictionaries({"containerPort": st.sampled_from(PORTS)}, optional={"name": st.sampled_from(NAMES)}),
        max_size=2,
        unique_by=lambda port: port["containerPort"],
    ),
    readinessProbe=probes,
    livenessProbe=probes,
    lifecycle=optional(preStop=handlers, postStart=handlers),
    env=variables,
    volumeMounts=st.just([{"name": "v1", "mountPath": "/a"}]),
    resources=st.sampled_from([{}, {"limits": {"cpu": "1000m"}}]),
    securityContext=optional(runAsUser=st.sampled_from([0, 1000, 1337]), privileged=st.booleans()),
    args=st.just(["x", "-u", "y"]),
    xUnknown=st.sampled_from([None, 1.5, {"deep": [None, {"er": "ü"}]}]),
)


@st.composite
def pods(draw: st.DrawFn, *, plain: bool = False) -> dict[str, Any]:
    """A pod; `plain`: without the marks of an earlier injection."""
    own = draw(st.sampled_from([[], ["istio-proxy"]]))
    initial = draw(st.lists(st.sampled_from(["i0", "i1", "istio-init"]), max_size=2, unique=True))
    names = draw(st.permutations(["c0", "c1", *own]))
    annotations = draw(some(ANNOTATIONS))
    if plain:
        annotations.pop("sidecar.istio.io/status", None)
        annotations.pop("proxy.istio.io/overrides", None)
    spec = draw(
        optional(
            volumes=st.lists(st.sampled_from(["v1", "istio-data", "workload-socket"]), max_size=2, unique=True).map(
                lambda names: [{"name": name, "emptyDir": {}, "xUnknown": 1} for name in names]
            ),
            imagePullSecrets=st.just([{"name": "s"}]),
            serviceAccountName=st.just("sa"),
            nodeName=st.just("n"),
            xUnknown=st.just({"a": 1}),
        )
    )
    spec["containers"] = [{"name": name, **draw(contents)} for name in names]
    if initial:
        spec["initContainers"] = [{"name": name, **draw(contents)} for name in initial]
    metadata: dict[str, Any] = {"name": "web", "annotations": annotations, "xUnknown": 2, "labels": draw(some(LABELS))}
    if draw(st.booleans()):
        metadata["generateName"] = "web-"
        metadata["ownerReferences"] = [
            {"kind": "ReplicaSet", "name": "web-abc", "controller": True, "apiVersion": "apps/v1"}
        ]
    for empty in ("annotations", "labels"):
        if not metadata[empty] and draw(st.booleans()):
            del metadata[empty]
    pod: dict[str, Any] = json.loads(
        json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    )
    return pod  # as JSON has it: no object stands in two places


def defaulted(pod: Any) -> Any:
    """What the API server adds to a pod between two webhooks: defaults, and the token's mount on new containers."""
    for where in ("containers", "initContainers"):
        for container in pod["spec"].get(where) or []:
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            container.setdefault("terminationMessagePolicy", "File")
            container.setdefault("imagePullPolicy", "IfNotPresent")
            for probe in (container.get(name) for name in ("readinessProbe", "livenessProbe", "startupProbe")):
                if probe:
                    probe.setdefault("successThreshold", 1)
                    probe.setdefault("periodSeconds", 10)
                    if "httpGet" in probe:
                        probe["httpGet"].setdefault("scheme", "HTTP")
            for variable in container.get("env") or []:
                if "fieldRef" in variable.get("valueFrom", {}):
                    variable["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
            mounts = container.setdefault("volumeMounts", [])
            mounts.append({"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"})
    for volume in pod["spec"].get("volumes") or []:
        if len(volume) == 1:
            volume["emptyDir"] = {}
        for source in ("configMap", "downwardAPI", "projected"):
            if source in volume:
                volume[source].setdefault("defaultMode", 420)
    return pod
