"""Reads typed settings out of parsed YAML, and collects everything that is wrong instead of stopping at the first."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cni_agent.invalid import Violation
from cni_agent.values import Refused
from injector.mutation.golang import sprint

T = TypeVar("T")


class Reader:
    """One tree of settings. `path` is dotted, as operators write it after --set."""

    def __init__(self, tree: Mapping[str, Any], root: str) -> None:
        self.violations: list[Violation] = []
        self._tree = tree
        self._root = root

    def raw(self, path: str) -> Any:
        """The value as it was written; None when there is none."""
        value: Any = self._tree
        for name in path.split("."):
            if not isinstance(value, Mapping):
                self.refuse(path, value, "a mapping above it")
                return None
            value = value.get(name)
            if value is None:
                return None
        return value

    def text(self, path: str) -> str:
        """Text; a number is taken as Go prints it, as chart values are templates' text anyway."""
        value = self.raw(path)
        if value is None:
            return ""
        if isinstance(value, Mapping | list):
            self.refuse(path, value, "text")
            return ""
        return sprint(value)

    def flag(self, path: str) -> bool:
        """true or false."""
        value = self.raw(path)
        if value is not None and not isinstance(value, bool):
            self.refuse(path, value, "true or false")
        return value is True

    def number(self, path: str, lowest: int, highest: int) -> int:
        """A whole number; text that is one will do."""
        value = self.raw(path)
        if value is None:
            return lowest
        text = sprint(value)
        if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or len(text) > 19:
            self.refuse(path, value, f"a number from {lowest} to {highest}")
            return lowest
        if not lowest <= int(text) <= highest:
            self.refuse(path, value, f"a number from {lowest} to {highest}")
            return lowest
        return int(text)

    def mapping(self, path: str) -> dict[str, Any]:
        """A mapping with text keys."""
        value = self.raw(path)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            self.refuse(path, value, "a mapping")
            return {}
        return dict(value)

    def texts(self, path: str) -> dict[str, str]:
        """A mapping of text to text."""
        return {key: sprint(value) for key, value in self.mapping(path).items()}

    def items(self, path: str) -> list[Any]:
        """A list."""
        value = self.raw(path)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(path, value, "a list")
            return []
        return list(value)

    def words(self, path: str) -> tuple[str, ...]:
        """A list of text."""
        items = self.items(path)
        if not all(isinstance(item, str) for item in items):
            self.refuse(path, items, "a list of text")
            return ()
        return tuple(items)

    def read(self, path: str, reader: Callable[[Any], T], default: T) -> T:
        """Whatever the reader makes of the raw value; its `Refused` becomes a violation."""
        value = self.raw(path)
        if value is None:
            return default
        try:
            return reader(value)
        except Refused as refused:
            self.refuse(path, value, str(refused))
            return default

    def refuse(self, path: str, value: Any, allowed: str) -> None:
        """Notes one violation."""
        self.violations.append(Violation(f"{self._root}.{path}", sprint(value), allowed))
