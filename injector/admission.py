"""One AdmissionReview in, one out: never an exception, whatever the bytes."""

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from cni_agent.invalid import Invalid
from injector.facts import NO_FACTS, ClusterFacts
from injector.mutation.decision import decide
from injector.mutation.inject import inject
from injector.mutation.pod import Metadata, Pod, Spec
from injector.settings import Settings

Outcome = Literal["success", "skip", "failure"]
_CUT = 1000  # characters of a pod's own words that go into the log
_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply body, what to count it as, and for the log whose pod was denied, and why."""

    body: bytes
    outcome: Outcome
    reason: str
    denied: Mapping[str, str] = field(default_factory=dict)


class _Request(msgspec.Struct, frozen=True):
    uid: str | None = None
    namespace: str | None = None
    object: Pod | None = None


class _Review(msgspec.Struct, frozen=True):
    apiVersion: str | None = None
    kind: str | None = None
    request: _Request | None = None


class _Envelope(msgspec.Struct, frozen=True):
    """The same, for a review whose pod cannot be read: the answer still needs its uid."""

    class Request(msgspec.Struct, frozen=True):
        uid: str | None = None
        namespace: Any = None
        name: Any = None

    apiVersion: str | None = None
    kind: str | None = None
    request: Request | None = None


_REVIEW = msgspec.json.Decoder(_Review)
_ENVELOPE = msgspec.json.Decoder(_Envelope)
_ENCODER = msgspec.json.Encoder()


def review(body: bytes, settings: Settings, path: str, facts: ClusterFacts = NO_FACTS) -> Answer:
    """Answers one request; `path` is the decoded URL path."""
    path = path.encode(errors="replace").decode()  # what was no UTF-8 in the URL cannot be answered in JSON
    try:
        asked = _REVIEW.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(body, str(error))
    if asked.kind != "AdmissionReview" or asked.apiVersion not in _VERSIONS:
        sentence = f"expected an AdmissionReview of {' or '.join(_VERSIONS)}"
        return _failure({}, "", "not-a-review", sentence)
    request = asked.request
    envelope = {"kind": asked.kind, "apiVersion": asked.apiVersion}
    if request is None or request.object is None:
        sentence = "the review has no request" if request is None else "the request has no object"
        return _failure(envelope, request.uid if request else "", "no-object", sentence)
    return _pod(body, request, request.object, envelope, settings, path, facts)


def _pod(
    body: bytes,
    request: _Request,
    pod: Pod,
    envelope: Mapping[str, Any],
    settings: Settings,
    path: str,
    facts: ClusterFacts,
) -> Answer:
    metadata, spec = pod.metadata or Metadata(), pod.spec or Spec()
    namespace = metadata.namespace or request.namespace or ""
    labels = {key: value or "" for key, value in (metadata.labels or {}).items()}
    annotations = {key: value or "" for key, value in (metadata.annotations or {}).items()}
    decision = decide(settings, spec.hostNetwork is True, namespace, labels, annotations, windows=spec.windows)
    said = [decision.warning] if decision.warning else []
    if not decision.inject:
        return _answer(envelope, "skip", decision.reason, {"allowed": True}, request.uid, said)

    def whole() -> dict[str, Any]:
        decoded: dict[str, Any] = msgspec.json.decode(body)["request"]["object"]
        return decoded

    try:
        injection = inject(pod, whole, settings, facts, namespace=namespace, path=path)
    except Invalid as invalid:
        sentence = f"failed to run injection template: {invalid}"
        return _failure(envelope, request.uid, "invalid", sentence, **_whose(namespace, metadata))
    except RecursionError:
        sentence = "the pod is nested too deeply"
        return _failure(envelope, request.uid, "invalid", sentence, **_whose(namespace, metadata))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # in a field that the typed reading skipped
        return _failure(envelope, request.uid, "undecodable", str(error), **_whose(namespace, metadata))
    # base64 has nothing that JSON would escape: it goes into the answer as it is, not through a text and a check of it
    patch = binascii.b2a_base64(_ENCODER.encode(injection.patch), newline=False)
    response = {"allowed": True, "patch": msgspec.Raw(b'"%b"' % patch), "patchType": "JSONPatch"}
    return _answer(envelope, "success", decision.reason, response, request.uid, [*said, *injection.warnings])


def _unreadable(body: bytes, sentence: str) -> Answer:
    try:
        envelope = _ENVELOPE.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _failure({}, "", "undecodable", sentence)
    request = envelope.request or _Envelope.Request()
    said = {"kind": envelope.kind, "apiVersion": envelope.apiVersion}
    return _failure(said, request.uid, "undecodable", sentence, pod=f"{request.namespace or ''}/{request.name or ''}")


def _whose(namespace: str, metadata: Metadata) -> dict[str, str]:
    """Whose pod it is. One that a controller makes has no name yet, but the beginning of one."""
    owner = next((found for found in metadata.ownerReferences or () if found.controller), None)
    name = metadata.name or metadata.generateName or ""
    return {"pod": f"{namespace}/{name}", "owner": f"{owner.kind}/{owner.name}" if owner else ""}


def _failure(envelope: Mapping[str, Any], uid: str | None, reason: str, sentence: str, **whose: str) -> Answer:
    response = {"allowed": False, "status": {"message": sentence}}
    answer = _answer(envelope, "failure", reason, response, uid)
    denied = {name: text[:_CUT] for name, text in {**whose, "why": sentence}.items()}
    return replace(answer, denied=denied)


def _answer(
    envelope: Mapping[str, Any],
    outcome: Outcome,
    reason: str,
    response: Mapping[str, Any],
    uid: str | None,
    said: list[str] | None = None,
) -> Answer:
    reply = {**envelope, "response": {"uid": uid or "", **response, **({"warnings": said} if said else {})}}
    return Answer(_ENCODER.encode(reply), outcome, reason)
