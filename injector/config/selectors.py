"""Label selectors, as metav1.LabelSelector means them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cni_agent.values import Refused

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: str
    values: frozenset[str]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the condition; a missing label meets NotIn, as in Kubernetes."""
        if self.operator == "In":
            return self.key in labels and labels[self.key] in self.values
        if self.operator == "NotIn":
            return self.key not in labels or labels[self.key] not in self.values
        return (self.key in labels) == (self.operator == "Exists")


Selector = tuple[Requirement, ...]


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether all requirements are met. An empty selector is met by everything."""
    return all(requirement.matches(labels) for requirement in selector)


def selector(written: Any) -> Selector:
    """Reads a LabelSelector; raises `Refused` with what is wrong."""
    if not isinstance(written, Mapping):
        raise Refused("a label selector with matchLabels or matchExpressions")
    labels = written.get("matchLabels") or {}
    expressions = written.get("matchExpressions") or []
    if not isinstance(labels, Mapping) or not isinstance(expressions, Sequence):
        raise Refused("matchLabels as a mapping and matchExpressions as a list")
    equal = [_requirement(key, "In", [value]) for key, value in sorted(labels.items())]
    return (*equal, *(_expression(expression) for expression in expressions))


def _expression(written: Any) -> Requirement:
    if not isinstance(written, Mapping):
        raise Refused("matchExpressions with key, operator and values")
    return _requirement(written.get("key"), written.get("operator"), written.get("values") or [])


def _requirement(key: Any, operator: Any, values: Any) -> Requirement:
    if not isinstance(key, str) or not _qualified(key):
        raise Refused("a label key")
    if operator not in OPERATORS:
        raise Refused(f"an operator out of {', '.join(OPERATORS)}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise Refused("values as a list of text")
    if operator in ("In", "NotIn") and not values:
        raise Refused(f"values for the operator {operator}")
    if operator not in ("In", "NotIn") and values:
        raise Refused(f"no values for the operator {operator}")
    if not all(value == "" or _NAME.fullmatch(value) for value in values):
        raise Refused("label values of at most 63 letters, digits, '-', '_' and '.'")
    return Requirement(key, operator, frozenset(values))


def _qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or (len(prefix) <= 253 and bool(_PREFIX.fullmatch(prefix))))
