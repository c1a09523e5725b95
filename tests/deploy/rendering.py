"""Objects of daemonset/ as kustomize and helm render them."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DAEMONSET = ROOT / "daemonset"
KUBERNETES = "1.34.0"
# Labels that Helm's conventions ask for and kustomize has no use for.
HELM_ONLY = ("helm.sh/chart", "app.kubernetes.io/managed-by")
# Folders of daemonset/components, and the value of the chart that renders the same.
COMPONENTS = {
    "service-monitor": "monitoring.serviceMonitor.enabled=true",
    "alerts": "monitoring.rules.enabled=true",  # beside service-monitor, without which the chart refuses it
    "dashboard": "monitoring.dashboard.enabled=true",
    "admission-policy": "admissionPolicy.enabled=true",
    "remove-taint": "agent.removeTaint=cni.istio.io/not-ready",
}

Object = dict[str, Any]
Objects = dict[tuple[str, str, str], Object]


@functools.cache
def tools() -> Path:
    """The folder of helm and kustomize at fixed versions; the first time, they are built."""
    done = subprocess.run([ROOT / "scripts/tools"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs helm and kustomize: {done.stderr.strip()}")
    return Path(done.stdout.strip())


def run(program: str, *arguments: str | Path) -> str:
    done = subprocess.run([tools() / program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kustomize(folder: Path) -> Objects:
    return by_name(run("kustomize", "build", folder))


def helm(*options: str) -> Objects:
    chart = DAEMONSET / "chart"
    text = run("helm", "template", "initless", chart, "-n", "initless-system", "--kube-version", KUBERNETES, *options)
    return by_name(text)


def by_name(text: str) -> Objects:
    objects = [found for found in yaml.safe_load_all(text) if found]
    named = {
        (found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]): found for found in objects
    }
    assert len(named) == len(objects), "the same object twice"
    return named


def without_helm_labels(objects: Objects) -> Objects:
    for found in objects.values():
        labels = found["metadata"].get("labels", {})
        for label in HELM_ONLY:
            labels.pop(label)
    return objects
