"""`cni-agent remove`: takes the rules out of a namespace."""

import json
import time
from collections.abc import Callable

import click

from cni_agent.backends.iptables_legacy import IptablesLegacy
from cni_agent.capture import Capture
from cni_agent.commands.namespace import namespace_options
from cni_agent.commands.options import capture_options
from cni_agent.kernel.netns import Netns

EPILOG = """
\b
Exit codes: 0 nothing of ours is there any more; 2 the usage is wrong; 4 refused (the node's namespace, not a namespace,
not permitted); 5 it failed.
"""


@click.command(epilog=EPILOG)
@namespace_options
@capture_options
def remove(netns: Netns, backend: str, capture: Callable[[bool | None], Capture]) -> None:
    """Take everything of ours out of a namespace: rules of any backend, routes, addresses. Others' rules stay.

    Settings and backend are not needed; they are accepted so that the command line of `apply` works here too.
    """
    start = time.perf_counter()
    removed = IptablesLegacy().remove(netns)  # of any backend, on any kernel
    line = {
        "outcome": "removed" if removed else "unchanged",
        "milliseconds": round((time.perf_counter() - start) * 1000, 3),
    }
    click.echo(json.dumps(line))
