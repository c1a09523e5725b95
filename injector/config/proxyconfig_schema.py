"""The fields of Istio's ProxyConfig (istio.io/api mesh/v1alpha1/proxy.proto), in the order in which it prints them.

Data only. A message is a mapping of JSON names to kinds; a kind is a word for a scalar, a `Choice` for an enum, a
`Many` or `Pairs` for repeated fields and maps, or another message. Fields of a oneof keep their zero values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Scalar: TypeAlias = Literal[
    "string", "bool", "int32", "uint32", "double", "duration", "boolvalue", "int32value", "int64value"
]


@dataclass(frozen=True, slots=True)
class Choice:
    """An enum: names by number."""

    names: tuple[str, ...]
    numbers: tuple[int, ...] = ()  # when they are not 0, 1, 2 …

    def by_number(self) -> dict[int, str]:
        """Number to name."""
        return dict(zip(self.numbers or range(len(self.names)), self.names, strict=False))


@dataclass(frozen=True, slots=True)
class Many:
    """A repeated field."""

    kind: "Kind"


@dataclass(frozen=True, slots=True)
class Pairs:
    """A map with text keys; printed sorted by key."""

    kind: "Kind"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A field of a oneof: its presence says something even when its value is zero."""

    kind: "Kind"


Message: TypeAlias = Mapping[str, "Kind"]
Kind: TypeAlias = Scalar | Choice | Many | Pairs | OneOf | Message

_CLIENT_TLS: Final[Message] = {
    "mode": Choice(("DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL")),
    "clientCertificate": "string",
    "privateKey": "string",
    "caCertificates": "string",
    "credentialName": "string",
    "subjectAltNames": Many("string"),
    "sni": "string",
    "insecureSkipVerify": "boolvalue",
    "caCrl": "string",
}
_REMOTE_SERVICE: Final[Message] = {
    "address": "string",
    "tlsSettings": _CLIENT_TLS,
    "tcpKeepalive": {"probes": "uint32", "time": "duration", "interval": "duration"},
}
_FORWARD_CLIENT_CERT: Final = Choice(
    ("UNDEFINED", "SANITIZE", "FORWARD_ONLY", "APPEND_FORWARD", "SANITIZE_SET", "ALWAYS_FORWARD_ONLY")
)
_TRACING: Final[Message] = {
    "zipkin": OneOf({"address": "string"}),
    "lightstep": OneOf({"address": "string", "accessToken": "string"}),
    "datadog": OneOf({"address": "string"}),
    "stackdriver": OneOf(
        {
            "debug": "bool",
            "maxNumberOfAttributes": "int64value",
            "maxNumberOfAnnotations": "int64value",
            "maxNumberOfMessageEvents": "int64value",
        }
    ),
    "openCensusAgent": OneOf(
        {
            "address": "string",
            "context": Many(Choice(("UNSPECIFIED", "W3C_TRACE_CONTEXT", "GRPC_BIN", "CLOUD_TRACE_CONTEXT", "B3"))),
        }
    ),
    "customTags": Pairs(
        {
            "literal": OneOf({"value": "string"}),
            "environment": OneOf({"name": "string", "defaultValue": "string"}),
            "header": OneOf({"name": "string", "defaultValue": "string"}),
        }
    ),
    "maxPathTagLength": "uint32",
    "sampling": "double",
    "tlsSettings": _CLIENT_TLS,
    "enableIstioTags": "boolvalue",
}
_READINESS_PROBE: Final[Message] = {
    "initialDelaySeconds": "int32",
    "timeoutSeconds": "int32",
    "periodSeconds": "int32",
    "successThreshold": "int32",
    "failureThreshold": "int32",
    "httpGet": OneOf(
        {
            "path": "string",
            "port": "uint32",
            "host": "string",
            "scheme": "string",
            "httpHeaders": Many({"name": "string", "value": "string"}),
        }
    ),
    "tcpSocket": OneOf({"host": "string", "port": "uint32"}),
    "exec": OneOf({"command": Many("string")}),
    "grpc": OneOf({"port": "uint32", "service": "string"}),
}
_DISABLED: Final[Message] = {"disabled": "boolvalue"}
_ENABLED: Final[Message] = {"enabled": "boolvalue"}
_PROXY_HEADERS: Final[Message] = {
    "forwardedClientCert": _FORWARD_CLIENT_CERT,
    "setCurrentClientCertDetails": dict.fromkeys(("subject", "cert", "chain", "dns", "uri"), "boolvalue"),
    "requestId": _DISABLED,
    "server": {"disabled": "boolvalue", "value": "string"},
    "attemptCount": _DISABLED,
    "envoyDebugHeaders": _DISABLED,
    "metadataExchangeHeaders": {"mode": Choice(("UNDEFINED", "IN_MESH"))},
    "preserveHttp1HeaderCase": "boolvalue",
    "xForwardedHost": _ENABLED,
    "xForwardedPort": _ENABLED,
}
_KEY_PROVIDER: Final[Message] = {"pollDelay": "duration", "fallback": "boolvalue"}
_CONNECTION_SETTINGS: Final[Message] = {
    "profile": Choice(("SIDECAR", "EDGE")),
    "listenerPerConnectionBufferLimitBytes": "int32value",
    "clusterPerConnectionBufferLimitBytes": "int32value",
    "httpIdleTimeout": "duration",
    "httpMaxConnectionDuration": "duration",
    "httpDrainTimeout": "duration",
    "httpRequestTimeout": "duration",
    "httpRequestHeadersTimeout": "duration",
    "httpStreamIdleTimeout": "duration",
    "httpMaxStreamDuration": "duration",
    "httpMaxConcurrentStreams": "int32value",
    "http2InitialStreamWindowSize": "int32value",
    "http2InitialConnectionWindowSize": "int32value",
    "httpHeadersWithUnderscoresAction": Choice(
        tuple(f"HEADERS_WITH_UNDERSCORES_{word}" for word in ("UNSPECIFIED", "ALLOW", "REJECT_REQUEST", "DROP_HEADER"))
    ),
    "httpMergeSlashes": "boolvalue",
    "httpPathWithEscapedSlashesAction": Choice(
        (
            "PATH_WITH_ESCAPED_SLASHES_UNSPECIFIED",
            "KEEP_UNCHANGED",
            "REJECT_REQUEST",
            "UNESCAPE_AND_REDIRECT",
            "UNESCAPE_AND_FORWARD",
        )
    ),
    "listenerConnectionLimit": "int32value",
    "globalDownstreamConnectionLimit": "int32value",
}
PROXY_CONFIG: Final[Message] = {
    "configPath": "string",
    "binaryPath": "string",
    "serviceCluster": OneOf("string"),
    "tracingServiceName": OneOf(
        Choice(("APP_LABEL_AND_NAMESPACE", "CANONICAL_NAME_ONLY", "CANONICAL_NAME_AND_NAMESPACE"))
    ),
    "drainDuration": "duration",
    "discoveryAddress": "string",
    "discoveryRefreshDelay": "duration",
    "zipkinAddress": "string",
    "statsdUdpAddress": "string",
    "envoyMetricsServiceAddress": "string",
    "proxyAdminPort": "int32",
    "availabilityZone": "string",
    "controlPlaneAuthPolicy": Choice(("NONE", "MUTUAL_TLS", "INHERIT"), (0, 1, 1000)),
    "customConfigFile": "string",
    "statNameLength": "int32",
    "concurrency": "int32value",
    "proxyBootstrapTemplatePath": "string",
    "interceptionMode": Choice(("REDIRECT", "TPROXY", "NONE")),
    "tracing": _TRACING,
    "sds": {"enabled": "bool", "k8sSaJwtPath": "string"},
    "envoyAccessLogService": _REMOTE_SERVICE,
    "envoyMetricsService": _REMOTE_SERVICE,
    "proxyMetadata": Pairs("string"),
    "runtimeValues": Pairs("string"),
    "statusPort": "int32",
    "extraStatTags": Many("string"),
    "gatewayTopology": {
        "numTrustedProxies": "uint32",
        "forwardClientCertDetails": _FORWARD_CLIENT_CERT,
        "proxyProtocol": {},
    },
    "terminationDrainDuration": "duration",
    "meshId": "string",
    "readinessProbe": _READINESS_PROBE,
    "proxyStatsMatcher": {
        "inclusionPrefixes": Many("string"),
        "inclusionSuffixes": Many("string"),
        "inclusionRegexps": Many("string"),
    },
    "holdApplicationUntilProxyStarts": "boolvalue",
    "caCertificatesPem": Many("string"),
    "image": {"imageType": "string"},
    "privateKeyProvider": {"cryptomb": OneOf(_KEY_PROVIDER), "qat": OneOf(_KEY_PROVIDER)},
    "proxyHeaders": _PROXY_HEADERS,
    "fileFlushInterval": "duration",
    "fileFlushMinSizeKb": "uint32",
    "statsCompression": "boolvalue",
    "connectionSettings": _CONNECTION_SETTINGS,
}
