"""`cni-agent run`: how it ends when it cannot go on."""

import asyncio
import json
from typing import NoReturn

import pytest
from click.testing import CliRunner

from cni_agent.commands import run as command
from cni_agent.kernel.failure import Failure


async def _ends_in(error: Exception, *, depth: int) -> None:
    async def fails() -> NoReturn:
        raise error

    if depth == 0:
        await fails()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_ends_in(error, depth=depth - 1))


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_error_itself_is_told_however_deep_it_was_raised(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)  # those of the tests stay
    monkeypatch.setattr(command, "_run", lambda *_: _ends_in(Failure("system", "out of pencils"), depth=depth))
    done = CliRunner().invoke(command.run, ["--node-name", "here"])
    assert done.exit_code == 1
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["message"], last["error"]) == ("cannot go on", "out of pencils")
