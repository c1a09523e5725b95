"""`cni-agent apply`: programs the rules in a namespace."""

import json
import time
from collections.abc import Callable

import click

from cni_agent.capture import Capture
from cni_agent.commands.namespace import namespace_options, selected, settings_for
from cni_agent.commands.options import capture_options
from cni_agent.kernel.netns import Netns

EPILOG = """
\b
Examples:
  cni-agent apply --netns /run/netns/web-0 -p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -b '*' -d 15090,15021,15020
  kubectl get pod web-0 -o yaml | cni-agent apply --netns /proc/4242/ns/net --pod -

\b
Exit codes: 0 the rules are there, read back and compared; 2 a value or the usage is wrong; 3 the pod is not captured;
4 refused (the node's namespace, not a namespace, not permitted); 5 it failed (stderr says why, nothing is left behind).
"""


@click.command(epilog=EPILOG)
@namespace_options()
@capture_options
def apply(netns: Netns, backend: str, capture: Callable[[bool | None], Capture]) -> None:
    """Program the rules for a pod, or for istio-iptables flags, in its namespace; print one line of JSON.

    Whatever rules of ours were there are replaced in one transaction, those of other programs stay. `outcome` is
    applied, replaced or unchanged.
    """
    settings = settings_for(netns, capture)
    chosen = selected(backend)
    ruleset = chosen.ruleset(settings)
    start = time.perf_counter()
    outcome = chosen.apply(netns, ruleset)
    line = {
        "outcome": outcome,
        "backend": chosen.name,
        "families": list(ruleset.families),
        "milliseconds": round((time.perf_counter() - start) * 1000, 3),
    }
    click.echo(json.dumps(line))
