"""YAML from people, read as kubectl reads it and never with more work than its length is worth; and written back."""

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

from cni_agent.values import Refused

MAX_DEPTH: Final = 100  # levels of nesting; the deepest field of a Pod is at about 15
MAX_NODES: Final = 2_000_000  # after aliases: a few lines of them can stand for gigabytes
_TAG: Final = "tag:yaml.org,2002:"


class _Loader(yaml.CSafeLoader):
    """What Kubernetes' YAML knows and PyYAML does not: `22:22` is text, `1e3` is a number, a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- as the base class has it
        first: [(tag, rule) for tag, rule in rules if tag.removeprefix(_TAG) not in ("timestamp", "int", "float")]
        for first, rules in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


_NUMBER_STARTS: Final = list("-+0123456789.")
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)
_Loader.add_implicit_resolver(f"{_TAG}int", _INT, _NUMBER_STARTS)
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, _NUMBER_STARTS)


class _Dumper(yaml.CSafeDumper):
    """Writes what every YAML reader reads alike: text that could be anything else is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Words that some YAML reader takes for a boolean or for nothing
_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"})
_PLAIN = re.compile(r"[A-Za-z_/$(][A-Za-z0-9_./$()@=+-]*(?:[:][A-Za-z0-9_./$()@=+-]+)*")


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style: str | None = '"'
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        style = None
    elif "\n" in text and text.isprintable() is False and re.fullmatch(r"[^\x00-\x09\x0b-\x1f]*", text):
        style = "|"
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _text)


def one(text: str | bytes) -> Any:
    """The one document in a text, None when it is empty. Raises `Refused`."""
    documents = list(several(text))
    if len(documents) > 1:
        raise Refused("one YAML document")
    return documents[0] if documents else None


def several(text: str | bytes) -> Iterator[Any]:
    """The documents of a text, in order. Raises `Refused` before any is given."""
    try:
        aliases = _bounded(text)
        documents = list(yaml.load_all(text, _Loader))
        yield from [_unshared(document) for document in documents] if aliases else documents
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"valid YAML ({' '.join(str(error).split())})") from None


def written(document: Any) -> str:
    """A document as text, in the order of its keys."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**20))


def _unshared(value: Any) -> Any:
    """A copy in which no object stands in two places: a change in one must not show in the other."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value


def _bounded(text: str | bytes) -> bool:
    """Refuses nesting and aliases beyond measure, before anything is built or recursed over. True: has aliases."""
    aliases = False
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_nodes):
                raise Refused("YAML without aliases to what they are in")
            aliases = True
            total += sizes.get(event.anchor or "", 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        if len(open_nodes) > MAX_DEPTH:
            raise Refused(f"YAML of at most {MAX_DEPTH} levels")
        if total > MAX_NODES:
            raise Refused(f"YAML of at most {MAX_NODES} values, aliases included")
    return aliases
