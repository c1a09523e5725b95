"""The pages of documentation as a test reads them: headings, tables, links, and snippets that a shell can run."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REFERENCE = ROOT / "daemonset/REFERENCE.md"
TROUBLESHOOTING = ROOT / "daemonset/TROUBLESHOOTING.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = (README, REFERENCE, TROUBLESHOOTING, CONTRIBUTING, ROOT / "CHANGELOG.md")

_FENCE = re.compile(r"^```(.*)$")
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Fence:
    """A fenced block: what stands behind the backticks, its lines, and where it begins."""

    kind: str
    lines: tuple[str, ...]
    number: int


def fences(page: Path) -> Iterator[Fence]:
    inside: list[str] | None = None
    kind, start = "", 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        found = _FENCE.match(line)
        if inside is None and found:
            inside, kind, start = [], found[1].strip(), number
        elif inside is not None and found:
            yield Fence(kind, tuple(inside), start)
            inside = None
        elif inside is not None:
            inside.append(line)
    assert inside is None, f"{page.name}:{start}: a fence that is not closed"


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    kept, inside = [], False
    for line in page.read_text().splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next one of the same or a higher level."""
    lines = prose(page).splitlines()
    (start,) = [number for number, line in enumerate(lines) if re.fullmatch(rf"#+ {re.escape(heading)}", line)]
    level = len(lines[start]) - len(lines[start].lstrip("#"))
    for end in range(start + 1, len(lines)):
        if re.match(rf"#{{1,{level}}} ", lines[end]):
            return "\n".join(lines[start + 1 : end])
    return "\n".join(lines[start + 1 :])


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, without their headings."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if re.fullmatch(r"\|[|:\- ]+", line):
            found.pop()  # the line above was the heading
        elif line.startswith("|"):
            found.append([cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]])
    return found


def spans(text: str) -> list[str]:
    """What is written as code."""
    return _SPAN.findall(text)


def words(text: str) -> set[str]:
    """What the first column of the tables names, as code."""
    return {span for row in rows(text) for span in spans(row[0])}


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The headings as GitHub makes them addressable."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
