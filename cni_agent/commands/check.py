"""`cni-agent check`: compares the rules in a namespace with what they should be."""

import sys
from collections.abc import Callable
from typing import Final

import click

from cni_agent.capture import Capture
from cni_agent.commands.namespace import namespace_options, selected, settings_for
from cni_agent.commands.options import capture_options
from cni_agent.kernel.netns import Netns

EXIT_DIFFERENT: Final = 1
EPILOG = """
\b
Exit codes: 0 equal; 1 different, each difference on a line (missing, extra, moved, changed; bypass: a rule of somebody
else, younger than ours, takes packets past them); 2 a value or the usage is wrong; 3 the pod is not captured; 4 refused
(the node's namespace, not a namespace, not permitted); 5 it failed.
"""


@click.command(epilog=EPILOG)
@namespace_options()
@capture_options
def check(netns: Netns, backend: str, capture: Callable[[bool | None], Capture]) -> None:
    """Compare the rules in a namespace, in order, with those for a pod or for istio-iptables flags. Writes nothing."""
    settings = settings_for(netns, capture)
    chosen = selected(backend)
    found = chosen.check(netns, chosen.ruleset(settings))
    for difference in found:
        click.echo(str(difference))
    if found:
        sys.exit(EXIT_DIFFERENT)
