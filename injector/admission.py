"""One AdmissionReview in, one out: never an exception, whatever the bytes."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from injector.facts import NO_FACTS, ClusterFacts
from injector.settings import Settings

Outcome = Literal["success", "skip", "failure"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply body, and what to count it as."""

    body: bytes
    outcome: Outcome
    reason: str


class _Request(msgspec.Struct):
    uid: str = ""


class _Review(msgspec.Struct):
    apiVersion: str = ""
    kind: str = ""
    request: _Request | None = None


def review(body: bytes, settings: Settings, path: str, facts: ClusterFacts = NO_FACTS) -> Answer:
    """Answers one request; `path` is the decoded URL path."""
    try:
        asked = msgspec.json.decode(body, type=_Review)
    except msgspec.DecodeError as error:
        reply = {"response": {"uid": "", "allowed": False, "status": {"message": str(error)}}}
        return Answer(msgspec.json.encode(reply), "failure", "undecodable")
    uid = asked.request.uid if asked.request else ""
    answer = {"apiVersion": asked.apiVersion, "kind": asked.kind, "response": {"uid": uid, "allowed": True}}
    return Answer(msgspec.json.encode(answer), "skip", "policy")
