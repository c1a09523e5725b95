"""Every name and number that Istio's users know: annotations, ports, chains, defaults. Each is defined here, once.

The Istio name stands beside each. Nothing here is ours to change except the `initless.io/` annotations at the end.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # istio-validation imports this module in every pod, where `typing` would be half of its start
    from typing import Final, Literal

# Ports (pkg/config/constants, tools/istio-iptables/pkg/constants)
OUTBOUND_PORT: Final = 15001  # ProxyPort, envoy-port
INBOUND_PORT: Final = 15006  # InboundCapturePort
TUNNEL_PORT: Final = 15008  # InboundTunnelPort, HBONE
STATUS_PORT: Final = 15020  # agent status and merged metrics
READINESS_PORT: Final = 15021  # Envoy health
ENVOY_METRICS_PORT: Final = 15090  # Envoy Prometheus
DNS_PORT: Final = 53
DNS_PROXY_PORT: Final = 15053  # IstioAgentDNSListenerPort
PROBE_PORT: Final = 15002  # DefaultIptablesProbePortUint

PROXY_ID: Final = 1337  # DefaultProxyUID: uid and gid of istio-proxy
TPROXY_MARK: Final = 1337  # InboundTProxyMark
TPROXY_TABLE: Final = 133  # InboundTProxyRouteTable
LOOP_MARK: Final = 1338  # "outbound" mark: the proxy calling its own pod in TPROXY mode
DNS_ZONE_PROXY: Final = 1  # conntrack zone of proxy <-> resolver
DNS_ZONE_APP: Final = 2  # conntrack zone of application <-> proxy
VALIDATION_EXIT_CODE: Final = 126  # ValidationErrorCode

PASSTHROUGH: Final = {4: "127.0.0.6/32", 6: "::6/128"}  # source of traffic the proxy passes through
LOOPBACK_V4: Final = "127.0.0.1/32"  # HostIPv4LoopbackCidr
LOOPBACK_V6: Final = "::1/128"

# Chains (tools/istio-iptables/pkg/constants)
ISTIO_INBOUND: Final = "ISTIO_INBOUND"
ISTIO_OUTPUT: Final = "ISTIO_OUTPUT"
ISTIO_OUTPUT_DNS: Final = "ISTIO_OUTPUT_DNS"
ISTIO_REDIRECT: Final = "ISTIO_REDIRECT"
ISTIO_IN_REDIRECT: Final = "ISTIO_IN_REDIRECT"
ISTIO_DIVERT: Final = "ISTIO_DIVERT"
ISTIO_TPROXY: Final = "ISTIO_TPROXY"
ISTIO_DROP: Final = "ISTIO_DROP"
BUILT_IN_CHAINS: Final = frozenset({"INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING"})

# Native nftables tables, by the iptables table they stand for (tools/istio-nftables), in programming order
NFT_TABLES: Final[dict[Literal["nat", "mangle", "raw"], str]] = {
    "nat": "istio-proxy-nat",
    "mangle": "istio-proxy-mangle",
    "raw": "istio-proxy-raw",
}

# Containers
PROXY_CONTAINER: Final = "istio-proxy"  # ProxyContainerName
INIT_CONTAINER: Final = "istio-init"  # InitContainerName
VALIDATION_CONTAINER: Final = "istio-validation"  # ValidationContainerName

# Annotations and labels (istio.io/api/annotation, label)
INJECT: Final = "sidecar.istio.io/inject"  # label wins over annotation
STATUS: Final = "sidecar.istio.io/status"
INTERCEPTION_MODE: Final = "sidecar.istio.io/interceptionMode"
INCLUDE_OUTBOUND_IP_RANGES: Final = "traffic.sidecar.istio.io/includeOutboundIPRanges"
EXCLUDE_OUTBOUND_IP_RANGES: Final = "traffic.sidecar.istio.io/excludeOutboundIPRanges"
INCLUDE_INBOUND_PORTS: Final = "traffic.sidecar.istio.io/includeInboundPorts"
EXCLUDE_INBOUND_PORTS: Final = "traffic.sidecar.istio.io/excludeInboundPorts"
INCLUDE_OUTBOUND_PORTS: Final = "traffic.sidecar.istio.io/includeOutboundPorts"
EXCLUDE_OUTBOUND_PORTS: Final = "traffic.sidecar.istio.io/excludeOutboundPorts"
EXCLUDE_INTERFACES: Final = "traffic.sidecar.istio.io/excludeInterfaces"
REROUTE_INTERFACES: Final = "istio.io/reroute-virtual-interfaces"
KUBEVIRT_INTERFACES: Final = "traffic.sidecar.istio.io/kubevirtInterfaces"  # used when the one above is absent

# Annotations of a static pod's mirror in the API (pkg/kubelet/types/pod_update.go)
CONFIG_HASH: Final = "kubernetes.io/config.hash"  # the uid that the kubelet gave the pod, and that its cgroup has
CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"

# Proxy environment that changes the rules
DISABLE_ENVOY: Final = "DISABLE_ENVOY"
DNS_CAPTURE: Final = "ISTIO_META_DNS_CAPTURE"
INVALID_DROP: Final = "INVALID_DROP"
DUAL_STACK: Final = "ISTIO_DUAL_STACK"

# Ours
CAPTURE_POINT: Final = "initless.io/capture"  # `sandbox` (default) or `before-app`
