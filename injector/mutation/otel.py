"""OTEL_RESOURCE_ATTRIBUTES, by OpenTelemetry's conventions for Kubernetes."""

from collections.abc import Mapping, Sequence

from injector.mutation.pod import Container

_PREFIX = "resource.opentelemetry.io/"


def resource_attributes(
    annotations: Mapping[str, str], labels: Mapping[str, str], namespace: str, containers: Sequence[Container]
) -> str:
    """service.namespace, service.version and service.instance.id: annotations first, then what the pod tells."""
    version = labels.get("app.kubernetes.io/version") or ""
    if not version and len(containers) == 1:
        version = image_version(containers[0].image or "")
    # The pod's name is not known yet; the kubelet expands the variable
    instance = f"{namespace}.$(POD_NAME).{containers[0].name}" if containers else ""
    attributes = {"service.namespace": namespace, "service.version": version, "service.instance.id": instance}
    chosen = ((name, annotations.get(_PREFIX + name) or told) for name, told in attributes.items())
    return ",".join(f"{name}={value}" for name, value in chosen if value)


def image_version(image: str) -> str:
    """The tag and digest of an image reference.

    >>> image_version("registry:5000/nginx:1.21"), image_version("nginx@sha256:abc"), image_version("nginx")
    ('1.21', 'sha256:abc', '')
    """
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2] if ":" in name.rpartition("/")[2] else ""
    tag = name[name.rindex(":") + 1 :] if tag else ""
    return "@".join(part for part in (tag, digest) if part)
