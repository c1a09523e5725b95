"""The kustomize base, its components and overlays, and the Helm chart render the same objects."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import vocabulary
from tests.deploy.rendering import (
    COMPONENTS,
    DAEMONSET,
    KUBERNETES,
    ROOT,
    Objects,
    by_name,
    helm,
    kustomize,
    run,
    tools,
    without_helm_labels,
)

NAMESPACE = ("Namespace", "", "initless-system")  # Helm puts its release into a namespace that is there already


def assert_same(by_kustomize: Objects, by_helm: Objects) -> None:
    by_kustomize.pop(NAMESPACE)
    by_helm = without_helm_labels(by_helm)
    assert set(by_kustomize) == set(by_helm)
    for name, found in by_kustomize.items():
        assert found == by_helm[name], name


def test_the_base_is_the_chart_with_its_default_values() -> None:
    assert_same(kustomize(DAEMONSET / "base"), helm())


@pytest.mark.parametrize("platform", ["openshift", "gke"])
def test_an_overlay_is_the_chart_with_that_platform(platform: str) -> None:
    assert_same(kustomize(DAEMONSET / "overlays" / platform), helm("--set", f"platform={platform}"))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_the_chart_with_that_option(component: str, tmp_path: Path) -> None:
    folder = DAEMONSET / "base"
    components = ["service-monitor", component] if component == "alerts" else [component]
    wanted = {
        "resources": [relative(folder, tmp_path)],
        "components": [relative(DAEMONSET / "components" / name, tmp_path) for name in components],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    by_kustomize = kustomize(tmp_path)
    assert set(by_kustomize) > set(kustomize(folder))
    assert_same(by_kustomize, helm("--set", ",".join(COMPONENTS[name] for name in components)))


def relative(folder: Path, start: Path) -> str:
    """kustomize takes no absolute paths."""
    return "/".join([".."] * (len(start.resolve().parts) - 1) + list(folder.resolve().parts[1:]))


def test_every_component_is_compared() -> None:
    assert {folder.name for folder in (DAEMONSET / "components").iterdir()} == set(COMPONENTS)


def test_helm_lint_is_content() -> None:
    text = run("helm", "lint", "--strict", DAEMONSET / "chart", "--kube-version", KUBERNETES)
    assert "WARNING" not in text and "ERROR" not in text


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("agent.backend=ebpf", "'/agent/backend': value must be one of 'auto', 'iptables-nft'"),
        ("agent.removeTaint=not ready", "'/agent/removeTaint'"),
        ("agent.dirft=off", "additional properties 'dirft' not allowed"),
        ("revision=Canary", "'/revision'"),
        ("enableNamespacesByDefault=true,revision=canary", "belongs to the default revision"),
        ("monitoring.rules.enabled=true", "needs monitoring.serviceMonitor.enabled"),
        ("injector.autoscaling.minReplicas=6", "minReplicas is 6 and maxReplicas 5"),
        ("injector.webhook.path=/other", "'/injector/webhook/path'"),
        ("agent.extraArgs={success-events}", "'/agent/extraArgs/0'"),
        ("injector.workers=0", "'/injector/workers'"),
    ],
)
def test_a_bad_value_is_refused_by_name(setting: str, complaint: str) -> None:
    assert complaint in refusal("--set", setting)


def test_autopilot_is_refused_before_anything_is_installed() -> None:
    assert "GKE Autopilot" in refusal("--api-versions", "auto.gke.io/v1")


def refusal(*options: str) -> str:
    command = [tools() / "helm", "template", "initless", DAEMONSET / "chart", "--kube-version", KUBERNETES, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr


def test_a_revision_has_names_of_its_own() -> None:
    """Two releases side by side share nothing but the namespace."""
    revision = helm("--set", "revision=canary,agent.enabled=false,resourceQuota.enabled=false")
    assert not set(revision) & set(helm())
    assert {name for _, _, name in revision} == {"initless-injector-canary", "initless-injector-canary-certs"}


def test_every_program_takes_further_options() -> None:
    options = "agent.extraArgs={--success-events},injector.extraArgs={--log-level=debug},"
    objects = helm("--set", options + "injector.certificates.extraArgs={--overlap=60}")
    agent = objects["DaemonSet", "initless-system", "cni-agent"]["spec"]["template"]["spec"]["containers"]
    injector = objects["Deployment", "initless-system", "initless-injector"]["spec"]["template"]["spec"]["containers"]
    ends = [container["args"][-1] for container in (*agent, *injector)]
    assert ends == ["--success-events", "--log-level=debug", "--overlap=60"]
    for container, last in zip((*agent, *injector), ends, strict=True):
        command = vocabulary.commands()[" ".join(container["command"])]
        assert last.partition("=")[0] in {flag for option in command.params for flag in option.opts}


def test_where_the_injector_runs_can_be_said() -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    values = {"injector.affinity": affinity, "injector.topologySpreadConstraints": spread}
    options = [part for name, value in values.items() for part in ("--set-json", f"{name}={json.dumps(value)}")]
    objects = helm(*options, "--set", "injector.priorityClassName=ours,agent.priorityClassName=")
    pod = objects["Deployment", "initless-system", "initless-injector"]["spec"]["template"]["spec"]
    assert (pod["affinity"], pod["topologySpreadConstraints"], pod["priorityClassName"]) == (affinity, spread, "ours")
    agent = objects["DaemonSet", "initless-system", "cni-agent"]["spec"]["template"]["spec"]
    assert "priorityClassName" not in agent


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_it_can_be_a_part_of_another_chart_that_is_switched(enabled: str, tmp_path: Path) -> None:
    dependency = {"name": "initless", "version": "0.1.0", "condition": "initless.enabled"}
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    shutil.copytree(DAEMONSET / "chart", tmp_path / "charts/initless")
    options = ["-n", "initless-system", "--kube-version", KUBERNETES, "--set", f"initless.enabled={enabled}"]
    rendered = by_name(run("helm", "template", "initless", tmp_path, *options))
    assert rendered == (helm() if enabled == "true" else {})


def test_the_default_revision_may_be_named() -> None:
    """istiod's own objects have no suffix then, and the injector looks for those."""
    assert helm("--set", "revision=default,enableNamespacesByDefault=true") == helm(
        "--set", "enableNamespacesByDefault=true"
    )


def test_versions_agree() -> None:
    chart = yaml.safe_load((DAEMONSET / "chart/Chart.yaml").read_text())
    package = re.search(r'__version__ = "(.*)"', (ROOT / "cni_agent/__init__.py").read_text())
    assert package and chart["appVersion"] == chart["version"] == package[1]
    for found in kustomize(DAEMONSET / "base").values():
        assert found["metadata"]["labels"]["app.kubernetes.io/version"] == package[1]


def test_the_dashboard_is_json_and_its_panels_do_not_overlap() -> None:
    dashboard = json.loads((DAEMONSET / "chart/files/dashboard/initless.json").read_text())
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert all(x < 24 for x, _ in cells)
