"""What differs between the rules that should be there and those that are, in order."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, TypeVar

Kind = Literal["missing", "extra", "moved", "changed", "bypass"]
H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Difference:
    """One of them. `where`: family, table and chain, or the kind of object; `text`: the rule as its tool writes it."""

    kind: Kind
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:8}{self.where}: {self.text}"


def compare(wanted: Sequence[H], actual: Sequence[H]) -> Iterator[tuple[Kind, int]]:
    """How `actual` differs from `wanted`, in the order of the rules. The index is into `actual` for `extra` only.

    A rule that is there, but not where it belongs, is `moved`: told once, not as missing here and extra there.

    >>> list(compare("abcd", "abd")), list(compare("abc", "axbc")), list(compare("abc", "bca"))
    ([('missing', 2)], [('extra', 1)], [('moved', 0)])
    """
    if wanted == actual:
        return
    steps = SequenceMatcher(None, wanted, actual, autojunk=False).get_opcodes()
    gone = [index for tag, low, high, _, _ in steps if tag != "equal" for index in range(low, high)]
    come = [index for tag, _, _, low, high in steps if tag != "equal" for index in range(low, high)]
    moved: dict[int, int] = {}  # from the place in `wanted` to that in `actual`
    for index in gone:
        twin = next((other for other in come if actual[other] == wanted[index] and other not in moved.values()), None)
        if twin is not None:
            moved[index] = twin
    for tag, low, high, actual_low, actual_high in steps:
        if tag == "equal":
            continue
        for index in range(low, high):
            yield ("moved" if index in moved else "missing"), index
        for index in range(actual_low, actual_high):
            if index not in moved.values():
                yield "extra", index
