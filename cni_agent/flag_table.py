"""The table of `istio-iptables`' flags and environment variables (tools/istio-iptables/pkg/cmd/root.go), and ours.

It imports next to nothing, so that istio-validation, which starts in every pod before the application, reads the same
table as the commands do.
"""

from cni_agent import names


class Flag:
    """One knob. `environment`: the variable that wins comes first; a flag on the command line beats them all."""

    __slots__ = ("default", "environment", "help", "is_switch", "istio", "name", "short")

    def __init__(self, istio: str, name: str, short: str, environment: str, default: str, help: str) -> None:
        self.istio = istio  # the field of Istio's Config
        self.name = name  # "" where Istio has only an environment variable
        self.short = short
        self.environment = tuple(environment.split())
        self.default = default
        self.help = help
        self.is_switch = default == "false"

    @property
    def key(self) -> str:
        """What the knob is called in messages: its flag, or its only variable."""
        return f"--{self.name}" if self.name else self.environment[0]


IGNORED = "Accepted for istio-iptables' sake."

FLAGS = (
    Flag("ProxyPort", "envoy-port", "p", "", "15001", "Port of the proxy's outbound listener."),
    Flag("InboundCapturePort", "inbound-capture-port", "z", "INBOUND_CAPTURE_PORT", "15006",
         "Port of the proxy's inbound listener."),
    Flag("InboundTunnelPort", "inbound-tunnel-port", "e", "INBOUND_TUNNEL_PORT", "15008",
         "HBONE port, never captured."),
    Flag("ProxyUID", "proxy-uid", "u", "PROXY_UID", "",
         "User ids of the proxy, comma-separated. Default: the user istio-proxy if there is one, else 1337."),
    Flag("ProxyGID", "proxy-gid", "g", "PROXY_GID", "",
         "Group ids of the proxy, comma-separated. Default: the same as --proxy-uid."),
    Flag("InboundInterceptionMode", "istio-inbound-interception-mode", "m", "ISTIO_INBOUND_INTERCEPTION_MODE", "",
         "REDIRECT (default) or TPROXY, which keeps the client's source address."),
    Flag("InboundTProxyMark", "istio-inbound-tproxy-mark", "t", "ISTIO_INBOUND_TPROXY_MARK", "1337",
         "Packet mark of TPROXY mode."),
    Flag("InboundTProxyRouteTable", "istio-inbound-tproxy-route-table", "r", "ISTIO_INBOUND_TPROXY_ROUTE_TABLE",
         "133", "Routing table of TPROXY mode."),
    Flag("InboundPortsInclude", "istio-inbound-ports", "b", "ISTIO_INBOUND_PORTS", "",
         "Inbound ports to capture, or '*'. Empty: no inbound capture."),
    Flag("InboundPortsExclude", "istio-local-exclude-ports", "d", "ISTIO_LOCAL_EXCLUDE_PORTS", "",
         "Inbound ports to leave alone when -b is '*'."),
    Flag("OutboundPortsInclude", "istio-outbound-ports", "q", "ISTIO_OUTBOUND_PORTS", "",
         "Outbound ports to capture whatever the address."),
    Flag("OutboundPortsExclude", "istio-local-outbound-ports-exclude", "o", "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE",
         "", "Outbound ports to leave alone."),
    Flag("OutboundIPRangesInclude", "istio-service-cidr", "i", "ISTIO_SERVICE_CIDR", "",
         "Outbound CIDRs to capture, or '*'. Empty: none."),
    Flag("OutboundIPRangesExclude", "istio-service-exclude-cidr", "x", "ISTIO_SERVICE_EXCLUDE_CIDR", "",
         "Outbound CIDRs to leave alone."),
    Flag("RerouteVirtualInterfaces", "kube-virt-interfaces", "k", "KUBE_VIRT_INTERFACES", "",
         "Interfaces of virtual machines, whose inbound traffic is outbound."),
    Flag("ExcludeInterfaces", "istio-exclude-interfaces", "c", "ISTIO_EXCLUDE_INTERFACES", "",
         "Interfaces to leave alone."),
    Flag("OwnerGroupsInclude", "", "", "ISTIO_OUTBOUND_OWNER_GROUPS", "*",
         "Groups whose outbound traffic is captured, or '*'."),
    Flag("OwnerGroupsExclude", "", "", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", "",
         "Groups whose outbound traffic is left alone."),
    Flag("HostIPv4LoopbackCidr", "", "", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", names.LOOPBACK_V4,
         "What counts as IPv4 loopback."),
    Flag("RedirectDNS", "redirect-dns", "", "ISTIO_META_DNS_CAPTURE REDIRECT_DNS", "false", "Capture DNS queries."),
    Flag("CaptureAllDNS", "capture-all-dns", "", "CAPTURE_ALL_DNS", "false",
         "Capture every DNS query, not only those to the resolvers of resolv.conf."),
    Flag("DropInvalid", "drop-invalid", "", "INVALID_DROP DROP_INVALID", "false",
         "Drop packets that conntrack calls invalid."),
    Flag("DualStack", "dual-stack", "", "ISTIO_DUAL_STACK DUAL_STACK", "false",
         "Look for an IPv6 address beyond the first one."),
    Flag("IptablesProbePort", "iptables-probe-port", "", "IPTABLES_PROBE_PORT", "15002",
         "Port that validation connects to."),
    Flag("ProbeTimeout", "probe-timeout", "", "PROBE_TIMEOUT", "5s", "How long validation waits."),
    Flag("SkipRuleApply", "skip-rule-apply", "", "SKIP_RULE_APPLY", "false", IGNORED),
    Flag("RunValidation", "run-validation", "", "RUN_VALIDATION", "false", IGNORED),
    Flag("DryRun", "dry-run", "n", "DRY_RUN", "false", IGNORED),
    Flag("NetworkNamespace", "network-namespace", "", "NETWORK_NAMESPACE", "", IGNORED),
    Flag("HostFilesystemPodNetwork", "cni-mode", "", "CNI_MODE", "false", IGNORED),
    Flag("Reconcile", "reconcile", "", "RECONCILE", "false", IGNORED),
    Flag("CleanupOnly", "cleanup-only", "", "CLEANUP_ONLY", "false", IGNORED),
    Flag("ForceApply", "force-apply", "", "FORCE_APPLY", "false", IGNORED),
    Flag("NativeNftables", "native-nftables", "", "NATIVE_NFTABLES", "false", IGNORED),
    Flag("ForceIptablesBinary", "force-iptables-binary", "", "FORCE_IPTABLES_BINARY", "",
         "Accepted for istio-iptables' sake: legacy or nft."),
)  # fmt: skip
