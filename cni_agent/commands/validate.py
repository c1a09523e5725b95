"""`cni-agent validate`, for help and completion. `cni_agent.__main__` runs it without coming here, to start fast."""

import sys

import click

from cni_agent import validate as program


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def validate(arguments: tuple[str, ...]) -> None:
    """Wait, in a pod, until its traffic is captured; --help tells its flags."""
    sys.exit(program.main(list(arguments)))
