"""Finds the conformance data, which lives beside the project and is no part of it."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1].parent / "shared" / "conformance"


def cases(folder: str) -> list[Any]:
    """The cases of one folder, as pytest parameters; one skipped parameter when the data is not there."""
    path = ROOT / folder / "cases.json"
    if not path.exists():
        reason = "needs the conformance data in ../shared/conformance"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="absent")]
    return [pytest.param(case, id=str(case["name"])) for case in json.loads(path.read_text())["cases"]]


def golden(folder: str, case: dict[str, Any]) -> str:
    """The expected text of a case, without the peer's own `iptables-save` reads."""
    lines = (ROOT / folder / case["expect_file"]).read_text().splitlines()
    return "\n".join(line for line in lines if not line.endswith("tables-save")).strip()
