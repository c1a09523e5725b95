"""Shell snippets of the documentation, typed as a reader would: in order, in one shell, and the output compared.

A line that begins with `$ ` is a command, one with `> ` goes on with it; the rest is what it prints. Each line that is
shown must come in that order. `...` stands for lines that are left out, `…` for a part of a line, and any number
before a unit of time or size for any other.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.documents import ROOT, fences

LEFT_OUT = "..."
_MARK = "\x1e"  # record separator: no program of ours prints it
_MEASURED = re.compile(r"\d+(\.\d+)? ?(ms|s|MB)\b")


@dataclass(frozen=True)
class Step:
    """One command, and what is shown of its output."""

    place: str
    command: str
    shown: tuple[str, ...]


def steps(page: Path, kind: str) -> list[Step]:
    """The commands of all fences of a kind."""
    found: list[Step] = []
    for fence in fences(page):
        if fence.kind != kind:
            continue
        for offset, line in enumerate(fence.lines, 1):
            if line.startswith("$ "):
                found.append(Step(f"{page.name}:{fence.number + offset}", line[2:], ()))
                continue
            last = found[-1]
            if line.startswith("> ") and not last.shown:
                found[-1] = Step(last.place, f"{last.command}\n{line[2:]}", ())
            else:
                found[-1] = Step(last.place, last.command, (*last.shown, line))
    return found


def run(wanted: list[Step], home: Path, *, timeout: float, path: str = "") -> None:
    """Types all of them into one shell, at the top of the project, and compares. `path`: folders to look in first."""
    assert wanted, "no snippet of this kind"
    script = "".join(f"{{ {step.command}\n}} 2>&1\nprintf '{_MARK}%s{_MARK}' $?\n" for step in wanted)
    folders = [path, str(ROOT / ".venv/bin"), os.environ["PATH"]]
    environment = {**os.environ, "HOME": str(home), "PATH": ":".join(filter(None, folders))}
    environment.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # not to build the image anew
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    parts = done.stdout.split(_MARK)
    for step, printed, code in zip(wanted, parts[::2], parts[1::2], strict=False):
        assert code == "0", f"{step.place}: {step.command}\nended with {code}:\n{printed}"
        missing = first_missing(step.shown, printed)
        assert missing is None, f"{step.place}: {step.command}\ndid not print {missing!r}, but:\n{printed}"
    assert len(parts) // 2 == len(wanted), f"{wanted[len(parts) // 2].place}: the shell ended here:\n{done.stdout}"


def first_missing(shown: tuple[str, ...], printed: str) -> str | None:
    """The first line that is shown and was not printed in its turn.

    >>> first_missing(("one 1 ms", "...", "thr…"), "zero\\none 2.5 ms\\ntwo\\nthree")
    >>> first_missing(("two", "one"), "one\\ntwo")
    'one'
    """
    lines = iter([_plain(line) for line in printed.splitlines()])
    for line in shown:
        if line.strip() in ("", LEFT_OUT):
            continue
        pattern = ".*".join(map(re.escape, _plain(line).split("…")))
        if not any(re.fullmatch(pattern, other) for other in lines):
            return line
    return None


def _plain(line: str) -> str:
    """Without what differs from run to run; columns may be of any width."""
    return _MEASURED.sub(r"# \2", " ".join(line.split()))
