"""A group of commands that imports only the one that is asked for: `--help` of the whole imports none."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """`lazy_commands` by name: the module, the attribute in it that is the click command, and one line of help."""

    def __init__(self, lazy_commands: Mapping[str, tuple[str, str, str]], **options: Any) -> None:
        super().__init__(**options)
        self._lazy = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, attribute, _ = self._lazy[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in self._lazy.items()])
