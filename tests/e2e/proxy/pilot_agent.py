#!/usr/bin/python3 -I
"""Stands in for Istio's pilot-agent in tests: takes the arguments that an injected pod gives, runs the real Envoy.

pilot-agent istio-iptables ARGS...   istio-validation: the real `cni-agent validate`
pilot-agent proxy sidecar ARGS...    istio-proxy: Envoy as a pass-through with Istio's ports, and no istiod; with
                                     STAND_IN_PROXY=light only something that is ready, for tests of many pods
pilot-agent wait                     until that Envoy is ready
pilot-agent request ... POST drain   what a native sidecar does before it stops
"""

import json
import os
import sys
import time
import urllib.request
from typing import Any

ADMIN = 15000
CONFIGURATION = "/etc/istio/proxy/envoy.json"
READY = "/healthz/ready"


def main(arguments: list[str]) -> None:
    match arguments:
        case ["istio-iptables", *rest]:
            os.execvp("cni-agent", ["cni-agent", "validate", "istio-iptables", *rest])
        case ["proxy", *_] if os.environ.get("STAND_IN_PROXY") == "light":
            os.execvp("application", ["application", "serve", "15021"])
        case ["proxy", *_]:
            with open(CONFIGURATION, "w") as file:
                json.dump(configuration(), file)
            os.execvp("envoy", ["envoy", "-c", CONFIGURATION, "--log-level", "warning", "--concurrency", "1"])
        case ["wait", *_]:
            wait()
        case ["request", *_, "drain"]:
            urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/drain_listeners?graceful", data=b"", timeout=5)
        case _:
            sys.exit(f"pilot-agent (stand-in): what is {arguments}?")


def wait() -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:15021{READY}", timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("pilot-agent (stand-in): Envoy is not ready")


def configuration() -> dict[str, Any]:
    transparent = os.environ.get("ISTIO_META_INTERCEPTION_MODE") == "TPROXY"
    probers = json.loads(os.environ.get("ISTIO_KUBE_APP_PROBERS", "{}"))
    listeners = [
        captured("outbound", 15001, [chain("outbound")]),
        captured("inbound", 15006, [chain("inbound4", "0.0.0.0"), chain("inbound6", "::")], transparent),
        http("ready", 15021, [answer(READY)]),
        http("status", 15020, [answer(READY), *(probe(path, prober) for path, prober in probers.items())]),
        http("stats", 15090, [{"match": {"prefix": "/"}, "route": {"cluster": "admin"}}]),
    ]
    clusters = [
        passthrough("outbound"),
        # What Envoy passes on to its own pod comes from here, by which the rules know it.
        passthrough("inbound4", "127.0.0.6") if not transparent else passthrough("inbound4"),
        passthrough("inbound6", "::6") if not transparent else passthrough("inbound6"),
        static("admin", "127.0.0.1", ADMIN),
        *(static(f"app-{port}", host, port) for host, port in sorted({target(prober) for prober in probers.values()})),
    ]
    if os.environ.get("ISTIO_META_DNS_CAPTURE") == "true":
        resolver = nameserver()
        listeners += [dns_over_udp(), dns_over_tcp()]
        clusters.append(static("dns", resolver, 53))
    return {
        "admin": {"address": address("127.0.0.1", ADMIN)},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }


def captured(name: str, port: int, chains: list[Any], transparent: bool = False) -> dict[str, Any]:
    """A listener for connections that rules sent here; it learns from the kernel where they were meant to go."""
    filters = [{"name": "original_dst", "typed_config": typed("filters.listener.original_dst.v3.OriginalDst")}]
    if transparent:  # the application sees the client's address; by the mark, its answers find the way back
        source = typed("filters.listener.original_src.v3.OriginalSrc", mark=1337)
        filters.append({"name": "original_src", "typed_config": source})
    return {
        "name": name,
        **addresses(port),
        "transparent": transparent,
        "listener_filters": filters,
        "filter_chains": chains,
    }


def chain(name: str, family: str | None = None) -> dict[str, Any]:
    proxy = typed("filters.network.tcp_proxy.v3.TcpProxy", stat_prefix=name, cluster=name)
    found: dict[str, Any] = {"filters": [{"name": "tcp_proxy", "typed_config": proxy}]}
    if family:
        found["filter_chain_match"] = {"prefix_ranges": [{"address_prefix": family, "prefix_len": 0}]}
    return found


def http(name: str, port: int, routes: list[Any]) -> dict[str, Any]:
    manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        route_config={"virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]},
        http_filters=[{"name": "router", "typed_config": typed("filters.http.router.v3.Router")}],
    )
    filters = [{"name": "http", "typed_config": manager}]
    return {"name": name, **addresses(port), "filter_chains": [{"filters": filters}]}


def answer(path: str) -> dict[str, Any]:
    return {"match": {"path": path}, "direct_response": {"status": 200}}


def probe(path: str, prober: dict[str, Any]) -> dict[str, Any]:
    """A kubelet's probe of the application, which the injector turned into one of ours."""
    rewrite = prober.get("httpGet", {}).get("path", "/")
    return {"match": {"path": path}, "route": {"cluster": f"app-{target(prober)[1]}", "prefix_rewrite": rewrite}}


def target(prober: dict[str, Any]) -> tuple[str, int]:
    action = next(prober[kind] for kind in ("httpGet", "tcpSocket", "grpc") if kind in prober)
    return ("127.0.0.1", int(action["port"]))


def passthrough(name: str, source: str | None = None) -> dict[str, Any]:
    """Connects to where the connection was meant to go."""
    found: dict[str, Any] = {"name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED"}
    if source:
        found["upstream_bind_config"] = {"source_address": {"address": source, "port_value": 0}}
    return found


def static(name: str, host: str, port: int) -> dict[str, Any]:
    endpoint = {"lb_endpoints": [{"endpoint": {"address": address(host, port)}}]}
    return {"name": name, "type": "STATIC", "load_assignment": {"cluster_name": name, "endpoints": [endpoint]}}


def nameserver() -> str:
    with open("/etc/resolv.conf") as file:
        return next(line.split()[1] for line in file if line.startswith("nameserver"))


def dns_over_udp() -> dict[str, Any]:
    route = {"name": "dns", "typed_config": typed("filters.udp.udp_proxy.v3.Route", cluster="dns")}
    proxy = typed(
        "filters.udp.udp_proxy.v3.UdpProxyConfig", stat_prefix="dns", matcher={"on_no_match": {"action": route}}
    )
    return {
        "name": "dns-udp",
        "address": address("127.0.0.1", 15053, "UDP"),
        "listener_filters": [{"name": "udp", "typed_config": proxy}],
    }


def dns_over_tcp() -> dict[str, Any]:
    proxy = typed("filters.network.tcp_proxy.v3.TcpProxy", stat_prefix="dns_tcp", cluster="dns")
    filters = [{"name": "tcp", "typed_config": proxy}]
    return {"name": "dns-tcp", "address": address("127.0.0.1", 15053), "filter_chains": [{"filters": filters}]}


def addresses(port: int) -> dict[str, Any]:
    """Both families, if the pod has both."""
    found: dict[str, Any] = {"address": address("0.0.0.0", port)}
    if has_ipv6():
        found["additional_addresses"] = [{"address": address("::", port)}]
    return found


def has_ipv6() -> bool:
    try:
        with open("/proc/net/if_inet6") as file:
            return bool(file.read().strip())
    except FileNotFoundError:  # a kernel without it
        return False


def address(host: str, port: int, protocol: str = "TCP") -> dict[str, Any]:
    return {"socket_address": {"protocol": protocol, "address": host, "port_value": port}}


def typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/envoy.extensions.{kind}", **fields}


if __name__ == "__main__":
    main(sys.argv[1:])
