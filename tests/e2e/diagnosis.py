"""What somebody who looks at a failed test wants to see, kept in files."""

import re
from pathlib import Path

from tests.e2e.cluster import Cluster
from tests.e2e.deployment import SYSTEM

FOLDER = Path(__file__).parents[2] / "build/e2e"

QUESTIONS = {
    "pods.txt": ["get", "pods", "-A", "-o", "wide"],
    "pods.yaml": ["get", "pods", "-A", "-o", "yaml"],
    "events.txt": ["get", "events", "-A", "--sort-by=.lastTimestamp"],
    "objects.yaml": ["get", "ds,deploy,svc,cm,mutatingwebhookconfiguration", "-n", SYSTEM, "-o", "yaml"],
    "agent.log": ["logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=cni-agent", "--prefix", "--tail=-1"],
    "agent-previous.log": ["logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=cni-agent", "--prefix", "--previous"],
    "agent-status.txt": ["exec", "-n", SYSTEM, "daemonset/cni-agent", "--", "cni-agent", "status"],
    "injector.log": ["logs", "-n", SYSTEM, "-l", "app.kubernetes.io/name=injector", "--all-containers", "--prefix"],
}  # fmt: skip


def keep(kube: Cluster, test: str) -> Path:
    """Asks all questions; an answer that is an error is an answer too."""
    folder = FOLDER / re.sub(r"[^a-zA-Z0-9_.-]+", "-", test)
    folder.mkdir(parents=True, exist_ok=True)
    for name, question in QUESTIONS.items():
        done = kube.try_kubectl(*question)
        (folder / name).write_text(done.stdout + done.stderr)
    for pod in kube.get("pods", all_namespaces="true"):
        metadata = pod["metadata"]
        if metadata["namespace"].startswith("e2e-"):
            logs = kube.try_kubectl(
                "logs", "-n", metadata["namespace"], metadata["name"], "--all-containers", "--prefix"
            )
            (folder / f"{metadata['namespace']}.{metadata['name']}.log").write_text(logs.stdout + logs.stderr)
    return folder
