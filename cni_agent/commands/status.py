"""`cni-agent status`: the pods of this node and their state."""

import json
import time

import click

from cni_agent.node import status as state
from cni_agent.node.settings import ENVIRONMENT, Settings

_CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.option(
    "--socket",
    default=Settings.__dataclass_fields__["socket"].default,
    envvar=f"{ENVIRONMENT}SOCKET",
    show_default=True,
    help="Where the agent listens.",
)
@click.option("--json", "as_json", is_flag=True, help="The whole snapshot as JSON.")
@click.option("--watch", is_flag=True, help="Again every second, until interrupted.")
def status(socket: str, as_json: bool, watch: bool) -> None:
    """Show each pod's state: what became of it, since when, in how many milliseconds, and how often its rules drifted.

    Exit codes: 0 shown; 1 no agent answers on the socket.
    """
    while True:
        try:
            snapshot = state.ask(socket)
        except (OSError, ValueError) as error:
            raise click.ClickException(f"no agent answers on {socket}: {error}") from None
        text = json.dumps(snapshot, indent=None if watch else 2) if as_json else state.table(snapshot)
        click.echo(_CLEAR + text if watch and not as_json else text)
        if not watch:
            return
        time.sleep(1)
