"""Whose pod this is: the workload's name and kind, found from the pod's owner (pkg/kube: GetDeployMetaFromPod)."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from injector.mutation.pod import Metadata

_CRON_JOB = re.compile(r"(.+)-[0-9]{8,10}", re.ASCII)


class Identity(NamedTuple):
    """The workload that a pod belongs to."""

    name: str
    kind: str
    api_version: str

    def owner(self, namespace: str) -> str:
        """ISTIO_META_OWNER."""
        return (
            f"kubernetes://apis/{self.api_version}/namespaces/{namespace or 'default'}/{self.kind.lower()}s/{self.name}"
        )


def identity(metadata: Metadata, labels: Mapping[str, str]) -> Identity:
    """Only a generated name says that the owner is worth more than the pod's own name."""
    pod = metadata.name or ""
    owner = next((owner for owner in metadata.ownerReferences or () if owner.controller), None)
    if not metadata.generateName or owner is None:
        return Identity(pod, "Pod", "v1")
    name, kind, version = owner.name, owner.kind, owner.apiVersion
    deployment_hash = labels.get("pod-template-hash", "")
    rollout_hash = labels.get("rollouts-pod-template-hash", "")
    cron_job = _CRON_JOB.fullmatch(owner.name)
    if kind == "ReplicaSet" and deployment_hash and name.endswith(deployment_hash):
        name, kind = name.removesuffix(f"-{deployment_hash}"), "Deployment"
    elif kind == "ReplicaSet" and rollout_hash and name.endswith(rollout_hash):
        name, kind, version = name.removesuffix(f"-{rollout_hash}"), "Rollout", "v1alpha1"
    elif kind == "ReplicationController" and labels.get("deploymentconfig"):
        name, kind = labels["deploymentconfig"], "DeploymentConfig"
    elif kind == "Job" and cron_job:
        name, kind, version = cron_job[1], "CronJob", "batch/v1"
    return Identity(name or pod, kind, version)
