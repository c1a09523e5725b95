"""YAML from people: read as Kubernetes reads it, and never more work than its length is worth."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from cni_agent.values import Refused

MAX_DEPTH: Final = 100  # levels of nesting; the deepest field of a Pod is at about 15


class _Loader(yaml.CSafeLoader):
    """YAML without dates: a timestamp stays the text that the API has for it."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- as the base class has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


def one(text: str) -> Any:
    """The one document in a text, None when it is empty. Raises `Refused`."""
    documents = list(several(text))
    if len(documents) > 1:
        raise Refused("one YAML document")
    return documents[0] if documents else None


def several(text: str | bytes) -> Iterator[Any]:
    """The documents of a text, in order. Raises `Refused` before any is given."""
    try:
        _bounded(text)
        yield from list(yaml.load_all(text, _Loader))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"valid YAML ({' '.join(str(error).split())})") from None


def _bounded(text: str | bytes) -> None:
    depth = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):  # a few lines of aliases can stand for gigabytes
            raise Refused("YAML without anchors and aliases")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise Refused(f"YAML of at most {MAX_DEPTH} levels")
