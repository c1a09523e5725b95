"""daemonset/uninstall, with programs in place of kubectl and helm; with the real ones in tests/e2e."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import jsonpatch
import pytest

from tests.deploy.rendering import COMPONENTS, DAEMONSET, Object, helm, kustomize

# What it writes to its log is its call; what it answers is found by the first words that are in the call.
STAND_IN = """#!{python}
import json, os, sys
state = json.load(open({state!r}))
call = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
with open({log!r}, "a") as log:
    log.write(json.dumps(call) + "\\n")
for words, (code, text) in state.items():
    if words in " ".join(call):
        print(text)
        sys.exit(code)
"""
KINDS = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "DaemonSet": "daemonsets.apps",
    "Deployment": "deployments.apps",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers.autoscaling",
    "PodDisruptionBudget": "poddisruptionbudgets.policy",
    "Service": "services",
    "ConfigMap": "configmaps",
    "Secret": "secrets",
    "NetworkPolicy": "networkpolicies.networking.k8s.io",
    "ResourceQuota": "resourcequotas",
    "ServiceMonitor": "servicemonitors.monitoring.coreos.com",
    "PrometheusRule": "prometheusrules.monitoring.coreos.com",
    "SecurityContextConstraints": "securitycontextconstraints.security.openshift.io",
    "ClusterRoleBinding": "clusterrolebindings.rbac.authorization.k8s.io",
    "ClusterRole": "clusterroles.rbac.authorization.k8s.io",
    "RoleBinding": "rolebindings.rbac.authorization.k8s.io",
    "Role": "roles.rbac.authorization.k8s.io",
    "ServiceAccount": "serviceaccounts",
    "Namespace": "namespaces",
}
GATES = ("MutatingWebhookConfiguration", "ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy")


@dataclass
class Cluster:
    """Answers of kubectl and helm, and what they were asked."""

    folder: Path
    kinds: list[str] = field(default_factory=lambda: list(KINDS.values()))
    releases: list[str] = field(default_factory=list)
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir()
        for program in ("kubectl", "helm"):
            path = self.folder / "bin" / program
            names = {"state": str(self.folder / "state"), "log": str(self.folder / "log")}
            path.write_text(STAND_IN.format(python=sys.executable, **names))
            path.chmod(0o755)

    def uninstall(self, *options: str) -> "subprocess.CompletedProcess[str]":
        defaults = {
            "api-resources": (0, "\n".join(self.kinds)),
            "release-name": (0, "/\n" + "\n".join(self.releases)),  # and one object that no release has
            "get daemonsets.apps": (0, "initless-system"),
            " list -n": (0, '[{"name":"initless","chart":"initless-0.1.0"}]'),
        }
        (self.folder / "state").write_text(json.dumps(self.answers | defaults))
        (self.folder / "log").write_text("")
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        command = [DAEMONSET / "uninstall", *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def calls(self, *words: str) -> list[list[str]]:
        """What was called with all these words, in order."""
        found = [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]
        return [call for call in found if set(words) <= set(call)]

    def patch(self) -> list[Object]:
        ((*_, operations),) = self.calls("patch")
        found: list[Object] = json.loads(operations)
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_both_programs_work_on_the_cluster_that_was_asked_for(cluster: Cluster) -> None:
    cluster.releases = ["initless-system/initless"]
    assert cluster.uninstall("--context", "far", "--kubeconfig=/some/where").returncode == 0
    assert cluster.calls("helm", "uninstall")
    for call in cluster.calls():
        option = "--kube-context" if call[0] == "helm" else "--context"
        assert call[1:5] == [option, "far", "--kubeconfig", "/some/where"], call


@pytest.mark.parametrize("options", [["--namespace", "x"], ["initless"], ["--keep-rules", "--server=https://x"]])
def test_what_only_one_of_them_would_understand_is_refused(cluster: Cluster, options: list[str]) -> None:
    done = cluster.uninstall(*options)
    assert done.returncode == 2 and "is not known here" in done.stderr
    assert not cluster.calls()


def test_what_stands_in_the_way_of_new_pods_goes_before_anything_else(cluster: Cluster) -> None:
    cluster.uninstall()
    first, *_ = [call for call in cluster.calls() if call[1] in ("delete", "patch", "uninstall")]
    assert first[1:3] == ["delete", ",".join(KINDS[kind] for kind in GATES)]


def test_every_object_that_we_install_is_found_again(cluster: Cluster) -> None:
    """By its kind, and by its label."""
    everything = helm("--set", ",".join(["platform=openshift", *COMPONENTS.values()]))
    cluster.uninstall()
    deleted = {kind for call in cluster.calls("delete") for kind in call[2].split(",")}
    for (kind, _, name), found in {**everything, **kustomize(DAEMONSET / "overlays/openshift")}.items():
        assert KINDS[kind] in deleted, name
        assert found["metadata"]["labels"]["app.kubernetes.io/part-of"] == "initless", name
    for call in cluster.calls("delete"):
        assert "app.kubernetes.io/part-of=initless" in call


def test_kinds_that_the_cluster_does_not_have_are_not_asked_for(cluster: Cluster) -> None:
    """kubectl would delete nothing at all then."""
    cluster.kinds = [kind for kind in cluster.kinds if "monitoring" not in kind and "openshift" not in kind]
    assert cluster.uninstall().returncode == 0
    assert not [call for call in cluster.calls() if "monitoring.coreos.com" in str(call) or "openshift" in str(call)]


def test_every_release_goes_also_those_without_the_agent(cluster: Cluster) -> None:
    cluster.releases = ["initless-system/initless", "initless-system/canary", "initless-system/initless"]
    assert cluster.uninstall().returncode == 0
    assert [call[2:5] for call in cluster.calls("uninstall")] == [
        ["canary", "-n", "initless-system"],
        ["initless", "-n", "initless-system"],
    ]


def test_a_release_that_holds_more_than_initless_stays(cluster: Cluster) -> None:
    cluster.releases = ["platform/everything"]
    cluster.answers["^everything$"] = (0, '[{"name":"everything","chart":"platform-4.2.0"}]')
    done = cluster.uninstall()
    assert done.returncode == 1 and "switch Initless off in its values" in done.stderr
    assert not cluster.calls("uninstall") and len(cluster.calls("delete")) == 2


def test_a_node_that_is_away_does_not_stop_it(cluster: Cluster) -> None:
    cluster.releases = ["initless-system/initless"]
    cluster.answers["rollout status"] = (1, "error: timed out waiting for the condition")
    pods = [
        "cni-agent-1 on near remove-rules True",
        "cni-agent-2 on away  False",
        "cni-agent-3 on slow remove-rules False",
    ]
    cluster.answers["get pods"] = (0, "\n".join(pods))
    cluster.answers["logs"] = (1, "error: no route to host")
    done = cluster.uninstall()
    assert done.returncode == 1
    assert "cni-agent-2 on away\n" in done.stderr and "cni-agent-3 on slow\n" in done.stderr
    assert "near" not in done.stderr
    assert cluster.calls("uninstall") and len(cluster.calls("delete")) == 2


def test_the_agents_become_what_removes_the_rules_however_often_it_is_run(cluster: Cluster) -> None:
    cluster.uninstall()
    agent = kustomize(DAEMONSET / "base")["DaemonSet", "initless-system", "cni-agent"]
    once = jsonpatch.apply_patch(agent, cluster.patch())
    (first,), (container,) = (
        once["spec"]["template"]["spec"]["initContainers"],
        once["spec"]["template"]["spec"]["containers"],
    )
    assert (first["command"], first["args"]) == (["cni-agent", "remove", "--all"], ["--node-name=$(NODE_NAME)"])
    assert first["securityContext"] == agent["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    assert not [
        key for key, value in container.items() if value and (key.endswith("Probe") or key in ("ports", "args"))
    ]
    assert jsonpatch.apply_patch(once, cluster.patch()) == once


def test_the_agents_of_those_who_took_the_probes_away_too(cluster: Cluster) -> None:
    cluster.uninstall()
    agent = kustomize(DAEMONSET / "base")["DaemonSet", "initless-system", "cni-agent"]
    for key in ("startupProbe", "readinessProbe", "livenessProbe", "ports"):
        del agent["spec"]["template"]["spec"]["containers"][0][key]
    jsonpatch.apply_patch(agent, cluster.patch())


def test_rules_can_stay(cluster: Cluster) -> None:
    assert cluster.uninstall("--keep-rules").returncode == 0
    assert not cluster.calls("patch") and not cluster.calls("rollout")


def test_what_is_needed_is_known_before_anything_is_deleted(cluster: Cluster, tmp_path: Path) -> None:
    cluster.releases = ["initless-system/initless"]
    (tmp_path / "bin/helm").unlink()
    if shutil.which("helm"):
        pytest.skip("helm is in $PATH")
    done = cluster.uninstall()
    assert done.returncode == 1 and "needs helm" in done.stderr and "initless-system/initless" in done.stderr
    assert not cluster.calls("delete")


def test_without_an_answer_from_the_api_server_nothing_is_tried(cluster: Cluster) -> None:
    cluster.answers["get"] = (1, "connection refused")
    assert cluster.uninstall().returncode == 1
    assert not cluster.calls("delete")
