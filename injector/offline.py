"""Injects manifests instead of requests: pods, everything that makes pods, Lists, and files with many documents."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cni_agent.invalid import Invalid, Violation
from cni_agent.values import Refused
from injector.config import yamltext
from injector.facts import NO_FACTS
from injector.mutation.apply import applied
from injector.mutation.decision import decide
from injector.mutation.inject import Unfit, inject
from injector.mutation.pod import Metadata, Pod, Spec
from injector.settings import Settings

# Kind: where its pod template stands
_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "DeploymentConfig": ("spec", "template"),
    "Rollout": ("spec", "template"),
    "PodTemplate": ("template",),
}
_SEPARATOR = re.compile(r"^---(?=\s|$)", re.MULTILINE)

Say = Callable[[str], None]


def injected_text(text: str, settings: Settings, *, source: str, namespace: str, say: Say) -> str:
    """A manifest file with its pods injected. What has no pod in it comes back letter by letter.

    `say` gets a sentence for each object that is left out, and each warning. Raises `Invalid`; nothing is half done.
    """
    parts: list[str] = []
    for number, chunk in enumerate(_SEPARATOR.split(text)):
        try:
            document = yamltext.one(chunk)
        except Refused as refused:
            raise Invalid([Violation(f"{source}, document {number + 1}", "", str(refused))]) from None
        if isinstance(document, dict):
            result = _injected(document, settings, source, namespace, say)
            chunk = chunk if result is document else "\n" + yamltext.written(result)
        if document is not None or not parts:
            parts.append(chunk)
    return "---".join(parts).removeprefix("\n")


def _injected(document: dict[str, Any], settings: Settings, source: str, namespace: str, say: Say) -> dict[str, Any]:
    kind, items = document.get("kind"), document.get("items")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
        results = [
            _injected(item, settings, source, namespace, say) if isinstance(item, dict) else item for item in items
        ]
        changed = any(new is not old for new, old in zip(results, items, strict=True))
        return {**document, "items": results} if changed else document
    place = _TEMPLATES.get(kind) if isinstance(kind, str) else None
    if place is None:
        return document
    return _workload(document, place, settings, source, namespace, say)


def _workload(
    document: dict[str, Any], place: tuple[str, ...], settings: Settings, source: str, namespace: str, say: Say
) -> dict[str, Any]:
    own = document.get("metadata")
    own = own if isinstance(own, dict) else {}
    called = f"{document['kind']} {own.get('name') or own.get('generateName') or '(no name)'}"
    template: Any = document
    for name in place:
        template = template.get(name) if isinstance(template, dict) else None
    if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        raise Invalid([Violation(f"{source}, {called}", "", f"a pod at {'.'.join((*place, 'spec'))}")])
    try:
        pod = msgspec.convert(_as_pod(document, own, template, place), Pod)
    except msgspec.ValidationError as error:
        raise Invalid([Violation(f"{source}, {called}", "", f"a valid pod template ({error})")]) from None
    metadata, spec = pod.metadata or Metadata(), pod.spec or Spec()
    space = metadata.namespace or own.get("namespace") or namespace
    labels, annotations = _texts(metadata.labels), _texts(metadata.annotations)
    decision = decide(settings, spec.hostNetwork is True, space, labels, annotations, windows=spec.windows)
    if decision.warning:
        say(f"{called}: {decision.warning}")
    if not decision.inject:
        say(f"{called}: not injected ({decision.reason})")
        return document
    try:
        injection = inject(pod, lambda: template, settings, NO_FACTS, namespace=space, path="/inject")
    except Invalid as invalid:
        raise Unfit(f"{source}, {called}: {invalid}") from None
    for warning in injection.warnings:
        say(f"{called}: {warning}")
    if template.get("metadata") is None:
        template = {"metadata": {}, **{key: value for key, value in template.items() if key != "metadata"}}
    return _with(document, place, applied(template, injection.patch))


def _as_pod(
    document: Mapping[str, Any], own: Mapping[str, Any], template: Mapping[str, Any], place: tuple[str, ...]
) -> dict[str, Any]:
    """The pod that a controller would make of the template, as far as its owner decides about names."""
    metadata = dict(template.get("metadata") or {})
    if place and document.get("kind") != "PodTemplate":
        owner = {
            "apiVersion": document.get("apiVersion") or "",
            "kind": document["kind"],
            "name": own.get("name") or "",
            "controller": True,
        }
        metadata |= {"generateName": f"{owner['name']}-", "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": template["spec"]}


def _with(document: dict[str, Any], place: tuple[str, ...], template: dict[str, Any]) -> dict[str, Any]:
    if not place:
        return template
    return {**document, place[0]: _with(document[place[0]], place[1:], template)}


def _texts(written: Mapping[str, str | None] | None) -> dict[str, str]:
    return {key: value or "" for key, value in (written or {}).items()}
