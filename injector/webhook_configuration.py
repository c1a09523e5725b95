"""The MutatingWebhookConfiguration: which pods the API server asks us about.

Its names and labels are ours: istiod writes its own CA into every entry that ends in `sidecar-injector.istio.io` of a
configuration labelled `istio.io/rev`, and takes such configurations for its revisions and tags. It leaves this alone.
"""

from dataclasses import dataclass
from typing import Any, Final

from injector.mutation.decision import IGNORED_NAMESPACES

SUFFIX: Final = "injector.initless.io"
_INJECT: Final = "sidecar.istio.io/inject"
_REVISION: Final = "istio.io/rev"
_INJECTION: Final = "istio-injection"


@dataclass(frozen=True)
class Target:
    """Where the API server finds us, and how it treats us."""

    service: str = "initless-injector"
    namespace: str = "initless-system"
    path: str = "/inject"
    url: str = ""  # instead of the service
    ca_bundle: str = ""  # base64; `injector certs` keeps it right otherwise
    reinvocation_policy: str = "Never"
    enable_namespaces_by_default: bool = False


def webhook_configuration(revision: str, tag: str, target: Target) -> dict[str, Any]:
    """The configuration of a revision, or of a tag that points to it; `default` also serves plain labels."""
    chosen = tag or revision or "default"
    name = f"initless-revision-tag-{tag}" if tag else "initless-injector"
    if not tag and chosen != "default":
        name += f"-{chosen}"
    labels = {
        "app.kubernetes.io/name": "injector",
        "app.kubernetes.io/part-of": "initless",
        "initless.io/rev": revision or "default",
    }
    if tag:
        labels["initless.io/tag"] = tag
    entries = _by_revision(chosen)
    if chosen == "default":
        entries |= _by_plain_labels(by_default=target.enable_namespaces_by_default)
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name, "labels": labels},
        "webhooks": [_entry(prefix, selectors, target) for prefix, selectors in entries.items()],
    }


Expressions = list[dict[str, Any]]
Selectors = tuple[Expressions, Expressions]  # of the namespace, of the pod


def _by_revision(revision: str) -> dict[str, Selectors]:
    ours = _in(_REVISION, revision)
    return {
        "rev.namespace": ([ours, _absent(_INJECTION)], [_not_in(_INJECT, "false")]),
        "rev.object": ([_absent(_REVISION), _absent(_INJECTION)], [_not_in(_INJECT, "false"), ours]),
    }


def _by_plain_labels(*, by_default: bool) -> dict[str, Selectors]:
    unlabelled = [_absent(_INJECTION), _absent(_REVISION)]
    entries: dict[str, Selectors] = {
        "namespace": ([_in(_INJECTION, "enabled")], [_not_in(_INJECT, "false")]),
        "object": (unlabelled, [_in(_INJECT, "true"), _absent(_REVISION)]),
    }
    if by_default:
        elsewhere = _not_in("kubernetes.io/metadata.name", *sorted(IGNORED_NAMESPACES))
        entries["auto"] = ([*unlabelled, elsewhere], [_absent(_INJECT), _absent(_REVISION)])
    return entries


def _entry(prefix: str, selectors: Selectors, target: Target) -> dict[str, Any]:
    client: dict[str, Any] = {"url": target.url}
    if not target.url:
        service = {"name": target.service, "namespace": target.namespace, "path": target.path, "port": 443}
        client = {"service": service}
    if target.ca_bundle:
        client["caBundle"] = target.ca_bundle
    namespace, pod = selectors
    return {
        "name": f"{prefix}.{SUFFIX}",
        "clientConfig": client,
        "sideEffects": "None",
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": target.reinvocation_policy,
        "admissionReviewVersions": ["v1"],
        "namespaceSelector": {"matchExpressions": namespace},
        "objectSelector": {"matchExpressions": pod},
    }


def _in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _not_in(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}


def _absent(key: str) -> dict[str, Any]:
    return {"key": key, "operator": "DoesNotExist"}
