"""Reads a pod from a manifest, YAML or JSON, as people and `kubectl get -o yaml` write it."""

from typing import Any, Final

import msgspec
import yaml

from cni_agent.invalid import Invalid, Violation
from cni_agent.podview import PodView, pod_view

MAX_BYTES: Final = 8 << 20  # etcd refuses anything near this; a larger file is no pod
MAX_DEPTH: Final = 100  # levels of nesting; the deepest field of a Pod is at about 15


class _Loader(yaml.CSafeLoader):
    """YAML without dates: a timestamp stays the text that the API has for it."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- as the base class has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def read_pod(text: bytes, source: str) -> PodView:
    """The pod in a manifest. `source` names the file in messages. Raises `Invalid`."""
    if len(text) > MAX_BYTES:
        raise _invalid(source, f"{len(text)} bytes", f"at most {MAX_BYTES} bytes")
    document = _json(text, source) if text.lstrip()[:1] == b"{" else _yaml(text, source)
    if not isinstance(document, dict):
        raise _invalid(source, type(document).__name__, "a Pod manifest")
    kind = document.get("kind", "Pod")
    if kind != "Pod":
        raise _invalid(f"{source}: kind", str(kind), "Pod (for a workload: kubectl get pod NAME -o yaml)")
    return pod_view(document)


def _json(text: bytes, source: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(source, str(error), "valid JSON") from None


def _yaml(text: bytes, source: str) -> Any:
    try:
        depth = 0
        for event in yaml.parse(text, _Loader):  # nesting is bounded before anything recurses over it
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise _invalid(source, f"more than {MAX_DEPTH} levels", "a Pod manifest")
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, Invalid):
            raise
        raise _invalid(source, " ".join(str(error).split()), "valid YAML") from None
    if len(documents) != 1:
        raise _invalid(source, f"{len(documents)} documents", "one Pod")
    return documents[0]


def _invalid(field: str, value: str, allowed: str) -> Invalid:
    return Invalid([Violation(field, value, allowed)])
