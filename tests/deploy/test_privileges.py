"""What the manifests ask for is no more than what they say they need."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.rendering import DAEMONSET, Object, Objects, helm, kustomize

Rendered = pytest.fixture(scope="module")


@Rendered
def base() -> Objects:
    return kustomize(DAEMONSET / "base")


@Rendered
def agent(base: Objects) -> Object:
    return base["DaemonSet", "initless-system", "cni-agent"]["spec"]


@Rendered
def injector(base: Objects) -> Object:
    return base["Deployment", "initless-system", "initless-injector"]["spec"]


def containers(workload: Object) -> Iterator[Object]:
    spec = workload["template"]["spec"]
    yield from spec["containers"]
    yield from spec.get("initContainers", [])


def test_the_agent_has_five_capabilities_and_nothing_else(agent: Object) -> None:
    (container,) = containers(agent)
    context = container["securityContext"]
    assert context["privileged"] is False and context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {
        "drop": ["ALL"],
        "add": ["NET_ADMIN", "NET_RAW", "SETUID", "SYS_ADMIN", "SYS_PTRACE"],
    }
    assert agent["template"]["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "hostNetwork" not in agent["template"]["spec"] and "hostIPC" not in agent["template"]["spec"]


def test_the_agent_cannot_write_to_the_host(agent: Object) -> None:
    host = {volume["name"] for volume in agent["template"]["spec"]["volumes"] if "hostPath" in volume}
    assert host == {"cgroup"}
    for container in containers(agent):
        for mount in container["volumeMounts"]:
            if mount["name"] in host:
                assert mount["readOnly"] is True and mount["recursiveReadOnly"] == "IfPossible"


def test_an_upgrade_leaves_no_gap(agent: Object, injector: Object) -> None:
    assert agent["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert injector["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    # a surge needs two pods of the same node to live side by side
    assert not [port for container in containers(agent) for port in container["ports"] if "hostPort" in port]


def test_the_injector_passes_pod_security_restricted(injector: Object) -> None:
    """The words of the standard; that the real API server agrees is shown in tests/e2e."""
    spec = injector["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostPID", "hostIPC", "hostNetwork"} & set(spec)
    assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
    for container in containers(injector):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True


def test_neither_is_injected_itself(agent: Object, injector: Object) -> None:
    for workload in (agent, injector):
        assert workload["template"]["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"


def test_selectors_select_the_pods(base: Objects, agent: Object, injector: Object) -> None:
    pods = [workload["template"]["metadata"]["labels"] for workload in (agent, injector)]
    selectors: list[tuple[Any, dict[str, str]]] = [
        (name, found["spec"][key].get("matchLabels", found["spec"][key]))
        for name, found in base.items()
        for key in ("selector", "podSelector")
        if isinstance(found.get("spec", {}).get(key), dict)
    ]
    assert {kind for (kind, _, _), _ in selectors} == {
        "DaemonSet", "Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    for name, selector in selectors:
        assert len([labels for labels in pods if selector.items() <= labels.items()]) == 1, name


def test_ports_are_those_of_services_policies_and_probes(base: Objects, agent: Object, injector: Object) -> None:
    service = base["Service", "initless-system", "initless-injector"]["spec"]["ports"]
    ports = {
        port["name"]: port["containerPort"] for container in containers(injector) for port in container.get("ports", [])
    }
    assert {port["port"]: ports[port["targetPort"]] for port in service} == {443: 15017, 15014: 15014}
    for name, workload in (("cni-agent", agent), ("initless-injector", injector)):
        policy = base["NetworkPolicy", "initless-system", name]["spec"]
        allowed = {port["port"] for port in policy["ingress"][0]["ports"]}
        declared = {port["containerPort"] for container in containers(workload) for port in container.get("ports", [])}
        assert allowed == declared


def test_the_api_server_is_reached_wherever_it_listens(base: Objects) -> None:
    """A policy sees the port behind the Service: kubeadm's, those of managed clusters, minikube and MicroK8s."""
    for name in ("cni-agent", "initless-injector"):
        (rule,) = base["NetworkPolicy", "initless-system", name]["spec"]["egress"]
        assert [port["port"] for port in rule["ports"]] == [443, 6443, 8443, 16443]


def test_nodes_may_be_patched_only_where_that_is_asked_for(base: Objects) -> None:
    def of_nodes(objects: Objects) -> list[list[str]]:
        roles = (found for (kind, _, name), found in objects.items() if kind == "ClusterRole" and "cni-agent" in name)
        return [rule["verbs"] for role in roles for rule in role["rules"] if "nodes" in rule["resources"]]

    assert of_nodes(base) == []
    assert of_nodes(helm("--set", "agent.removeTaint=cni.istio.io/not-ready")) == [["get", "patch"]]


def test_rules_that_are_not_used_are_not_asked_for() -> None:
    """Without istiod's ConfigMaps nothing of the cluster is read; with somebody else's certificate none is kept."""
    offline = helm("--set", "injector.settings=files,injector.certificates.existingSecret=tls,agent.enabled=false")
    assert not [kind for kind, _, _ in offline if kind in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")]
    explicit = helm("--set", "injector.nativeSidecars=true")["ClusterRole", "", "initless-injector"]
    assert ["nodes"] not in [rule["resources"] for rule in explicit["rules"]]


def test_the_policy_is_asked_only_when_a_pod_is_made() -> None:
    """Init containers never change, and a Job of pods from before could not end: its finalizers go by an update."""
    (policy,) = (found for (kind, _, _), found in helm("--set", "admissionPolicy.enabled=true").items()
                 if kind == "ValidatingAdmissionPolicy")  # fmt: skip
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE"]
    assert "c.?restartPolicy.orValue('') != 'Always'" in policy["spec"]["variables"][0]["expression"], "native sidecars"
