"""What is wrong with a value, said so that its owner can mend it: the field, the value, what is allowed."""

from collections.abc import Iterable
from typing import NamedTuple

SHOWN = 60  # characters of a bad value that a message repeats


class Violation(NamedTuple):
    """One bad value. `field` is the flag, environment variable or annotation that it came from."""

    field: str
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.field}: {shown(self.value)} is not allowed; expected {self.allowed}"


class Invalid(ValueError):
    """All that is wrong with one input, at once."""

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        super().__init__("; ".join(str(violation) for violation in self.violations))


def shown(value: str) -> str:
    """The value as a message repeats it: quoted, control characters escaped, cut when long.

    >>> shown("80,http")
    "'80,http'"
    >>> shown("x" * 100_000)[-25:]
    "xxx'… (100000 characters)"
    """
    if len(value) <= SHOWN:
        return ascii(value)
    return f"{value[:SHOWN]!a}… ({len(value)} characters)"
