"""The values that the Istio chart ships (istio-discovery/values.yaml), with CNI on, and ours under `initless`.

Only what injection reads. `registry.istio.io/testing:latest` is what a chart of Istio's main branch says; a release
has its own, which operators give as `global.hub` and `global.tag`.
"""

from typing import Any, Final

VALUES: Final[dict[str, Any]] = {
    "revision": "",
    "pilot": {"cni": {"enabled": True, "provider": "default"}, "env": {}},
    "gateways": {"securityContext": {}},
    "sidecarInjectorWebhook": {
        "neverInjectSelector": [],
        "alwaysInjectSelector": [],
        "injectedAnnotations": {},
        "enableNamespacesByDefault": False,
        "reinvocationPolicy": "Never",
        "rewriteAppHTTPProbe": True,
        "templates": {},
        "defaultTemplates": [],
        "aliases": {},
    },
    "global": {
        "istioNamespace": "istio-system",
        "hub": "registry.istio.io/testing",
        "tag": "latest",
        "variant": "",
        "imagePullPolicy": "",
        "imagePullSecrets": [],
        "logAsJson": False,
        "nativeNftables": False,
        "logging": {"level": "default:info"},
        "network": "",
        "meshID": "",
        "trustDomain": "",
        "trustBundleName": "",
        "caAddress": "",
        "caName": "",
        "pilotCertProvider": "istiod",
        "mountMtlsCerts": False,
        "multiCluster": {"clusterName": ""},
        "sds": {"token": {"aud": "istio-ca"}},
        "sts": {"servicePort": 0},
        "platform": "",
        "proxy": {
            "image": "proxyv2",
            "autoInject": "enabled",
            "clusterDomain": "cluster.local",
            "componentLogLevel": "misc:error",
            "logLevel": "warning",
            "outlierLogPath": "",
            "includeInboundPorts": "*",
            "excludeInboundPorts": "",
            "includeIPRanges": "*",
            "excludeIPRanges": "",
            "includeOutboundPorts": "",
            "excludeOutboundPorts": "",
            "privileged": False,
            "seccompProfile": {},
            "capNetBindService": "",
            "holdApplicationUntilProxyStarts": False,
            "lifecycle": {},
            "readinessFailureThreshold": 4,
            "readinessInitialDelaySeconds": 0,
            "readinessPeriodSeconds": 15,
            "startupProbe": {"enabled": True, "failureThreshold": 600},
            "resources": {
                "requests": {"cpu": "100m", "memory": "128Mi"},
                "limits": {"cpu": "2000m", "memory": "1024Mi"},
            },
            "statusPort": 15020,
            "tracer": "none",
        },
        "proxy_init": {"image": "proxyv2"},
    },
    "initless": {
        "holdTimeout": "10m",  # how long istio-validation waits for the node agent; stock gives up after 5s
        "validation": {  # it only waits: the proxy's own resources would be held back for nothing
            "resources": {
                "requests": {"cpu": "10m", "memory": "40Mi"},
                "limits": {"cpu": "500m", "memory": "128Mi"},
            },
        },
        "seccompProfile": {"type": "RuntimeDefault"},  # Pod Security `restricted` asks for one
    },
}

MESH: Final[dict[str, Any]] = {
    "trustDomain": "cluster.local",
    "rootNamespace": "istio-system",
    "proxyListenPort": 15001,
    "proxyInboundListenPort": 15006,
    "enablePrometheusMerge": True,
    "inboundTrafficPolicy": {"mode": "PASSTHROUGH"},
    "extensionProviders": [],
    "defaultConfig": {},
}


def over(base: Any, given: Any) -> Any:
    """Deep merge as Helm does it: mappings merge, everything else replaces, null removes.

    >>> over({"limits": {"cpu": "2", "memory": "1Gi"}}, {"limits": {"cpu": None}})
    {'limits': {'memory': '1Gi'}}
    """
    if not isinstance(base, dict) or not isinstance(given, dict):
        return given
    merged = dict(base)
    for key, value in given.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = over(merged.get(key), value)
    return merged
