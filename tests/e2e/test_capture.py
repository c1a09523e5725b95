"""A meshed pod: injected by the real API server, captured by the agent, served by Envoy, as its annotations say."""

import json
import subprocess
import sys

import pytest

from tests.e2e import agent
from tests.e2e.cluster import Cluster, Object, containers, status_of
from tests.e2e.meshed import Mesh, address, deployment, pod, server, service

TRAFFIC = "traffic.sidecar.istio.io"


def test_a_deployment_is_injected_captured_and_served(kube: Cluster, mesh: Mesh) -> None:
    namespace = mesh.meshed()
    (one,) = mesh.start(namespace, deployment(pod("web", server(8080))), service("web", 8080))
    names = [found["name"] for found in containers(one)]
    assert names[0] == "istio-validation" and "istio-proxy" in names

    validation = status_of(one, "istio-validation")
    assert validation["restartCount"] == 0
    assert validation["state"]["terminated"]["exitCode"] == 0

    before = kube.connections(one)
    answer = kube.ask(one, f"http://web.{namespace}.svc.cluster.local:8080/")
    after = kube.connections(one)
    assert answer["peer"] == "127.0.0.6", "the server sees the sidecar, not the client"
    assert after["outbound"] > before["outbound"] and after["inbound"] > before["inbound"]


def test_capture_is_there_before_istio_validation_looks(kube: Cluster, mesh: Mesh) -> None:
    began = agent.now()
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    assert agent.capture_times(kube, began)[one["metadata"]["uid"]] < agent.validation_began(kube, one)


def test_the_two_ways_of_traffic(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    (one,) = mesh.start(mesh.meshed(), pod("web"))
    assert kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == "127.0.0.6"
    assert kube.connections(one)["inbound"] == 1
    assert kube.ask(one, f"http://{address(outside)}:8080/")["peer"] == address(one)
    assert kube.connections(one)["outbound"] == 1


def test_excluded_ports_and_addresses(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    namespace = mesh.meshed()
    annotations = {
        f"{TRAFFIC}/excludeInboundPorts": "9090",
        f"{TRAFFIC}/excludeOutboundPorts": "9090",
        f"{TRAFFIC}/excludeOutboundIPRanges": f"{address(outside)}/32",
    }
    by_port = pod("ports", server(8080, 9090), annotations=dict(list(annotations.items())[:2]))
    by_address = pod("addresses", server(8080), annotations=dict(list(annotations.items())[2:]))
    pods = {found["metadata"]["name"]: found for found in mesh.start(namespace, by_port, by_address)}

    one = pods["ports"]
    assert kube.ask(outside, f"http://{address(one)}:9090/")["peer"] == address(outside), "excluded: not the sidecar"
    assert kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == "127.0.0.6"
    kube.ask(one, f"http://{address(outside)}:9090/")
    assert kube.connections(one) == {"inbound": 1, "inbound6": 0, "outbound": 0}
    kube.ask(one, f"http://{address(outside)}:8080/")
    assert kube.connections(one)["outbound"] == 1

    two = pods["addresses"]
    kube.ask(two, f"http://{address(outside)}:8080/")
    assert kube.connections(two)["outbound"] == 0
    kube.ask(two, f"http://{address(one)}:8080/")
    assert kube.connections(two)["outbound"] == 1


def test_included_ports_and_addresses(kube: Cluster, mesh: Mesh, outside: Object) -> None:
    annotations = {f"{TRAFFIC}/includeInboundPorts": "8080", f"{TRAFFIC}/includeOutboundIPRanges": "192.0.2.0/24"}
    (one,) = mesh.start(mesh.meshed(), pod("web", server(8080, 9090), annotations=annotations))
    assert kube.ask(outside, f"http://{address(one)}:8080/")["peer"] == "127.0.0.6"
    assert kube.ask(outside, f"http://{address(one)}:9090/")["peer"] == address(outside)
    kube.ask(one, f"http://{address(outside)}:8080/")
    assert kube.connections(one)["outbound"] == 0


def test_dns_goes_through_the_proxy_when_asked_to(kube: Cluster, mesh: Mesh) -> None:
    namespace = mesh.meshed()
    config = json.dumps({"proxyMetadata": {"ISTIO_META_DNS_CAPTURE": "true"}})
    with_dns = pod("captured", annotations={"proxy.istio.io/config": config})
    pods = {found["metadata"]["name"]: found for found in mesh.start(namespace, with_dns, pod("plain"))}
    name = "kubernetes.default.svc.cluster.local"
    addresses = {found: kube.run(pods[found], "application", "resolve", name) for found in pods}
    assert addresses["captured"] == addresses["plain"] != ""
    assert kube.stats(pods["captured"])["udp.dns.downstream_sess_total"] > 0
    assert "udp.dns.downstream_sess_total" not in kube.stats(pods["plain"])


def test_the_kernel_has_what_the_rules_command_prints(kube: Cluster, mesh: Mesh) -> None:
    """`iptables-save` in the pod is `iptables-save` where `cni-agent rules --pod` was restored."""
    if not kube.has_node:
        pytest.skip("needs a shell on the node")
    annotations = {f"{TRAFFIC}/excludeOutboundPorts": "9090,9091", f"{TRAFFIC}/excludeInboundPorts": "22"}
    (one,) = mesh.start(mesh.meshed(), pod("web", annotations=annotations))
    printed = subprocess.run(
        [sys.executable, "-m", "cni_agent", "rules", "--pod", "-"],
        input=json.dumps(one),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    scratch = kube.node("unshare", "-n", "sh", "-c", "iptables-nft-restore && iptables-nft-save", stdin=printed)
    found = kube.in_namespace_of(one, "iptables-nft-save")
    assert rules(found) == rules(scratch) != []
    assert any("--dport 9091" in rule for rule in rules(found))


def rules(saved: str) -> list[str]:
    """Without counters and comments, which have times in them."""
    return [line.split(" [")[0] for line in saved.splitlines() if not line.startswith("#")]
