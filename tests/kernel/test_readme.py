"""Snippets of the documentation that need no cluster, typed into a shell. Those marked `root` make namespaces."""

import os
from pathlib import Path

import pytest

from tests import snippets
from tests.documents import PAGES, README, ROOT, fences

WITHOUT_ROOT = [page for page in PAGES if any(fence.kind == "console" for fence in fences(page))]
WITH_ROOT = [page for page in PAGES if any(fence.kind == "console root" for fence in fences(page))]


@pytest.mark.parametrize("page", WITHOUT_ROOT, ids=lambda page: page.name)
def test_snippets_that_need_nothing(page: Path, tmp_path: Path) -> None:
    snippets.run(snippets.steps(page, "console"), tmp_path, timeout=120)


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("page", WITH_ROOT, ids=lambda page: page.name)
def test_snippets_that_need_root(page: Path, tmp_path: Path) -> None:
    snippets.run(snippets.steps(page, "console root"), tmp_path, timeout=200)


def test_the_command_that_tests_everything_is_the_one_that_ci_runs() -> None:
    """It cannot be run from within itself; CI runs it, and then the tests on a cluster."""
    (step,) = snippets.steps(README, "console ci")
    assert step.command == "scripts/test"
    assert step.command in (ROOT / ".ci/run").read_text().splitlines()


def test_a_line_that_is_not_printed_is_noticed(tmp_path: Path) -> None:
    wrong = snippets.Step("here:1", "echo one; echo two", ("two", "one"))
    with pytest.raises(AssertionError, match="did not print 'one'"):
        snippets.run([wrong], tmp_path, timeout=10)
    with pytest.raises(AssertionError, match="ended with 3"):
        snippets.run([snippets.Step("here:1", "(exit 3)", ())], tmp_path, timeout=10)
    with pytest.raises(AssertionError, match="the shell ended here"):
        snippets.run([snippets.Step("here:1", "exit 0", ())], tmp_path, timeout=10)
