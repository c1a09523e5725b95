"""`cni-agent doctor`: can this node do it, and if not, why, and what mends it."""

import json
import sys
from dataclasses import asdict

import click

from cni_agent.backends import BACKENDS
from cni_agent.kernel.probe import Verdict, choose, node_facts, probe

EPILOG = """
\b
Exit codes: 0 at least one backend works; 1 none does.
"""


@click.command(epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(as_json: bool) -> None:
    """Try each backend on this node: program the default rules in a scratch namespace and send a connection through.

    Says which one `auto` would choose, and for each that does not work what to run. Changes nothing on the node.
    """
    verdicts = [verdict for name in BACKENDS for verdict in probe(name)]
    chosen = choose(verdicts)
    facts = dict(node_facts())
    if as_json:
        found = {"chosen": chosen, **facts, "backends": [asdict(verdict) for verdict in verdicts]}
        click.echo(json.dumps(found, indent=2))
    else:
        for key, value in facts.items():
            click.echo(f"{key:16}{value}")
        for verdict in verdicts:
            click.echo(_line(verdict))
        click.echo(f"{'chosen':16}{chosen or 'none: no backend works on this node'}")
    if chosen is None:
        sys.exit(1)


def _line(verdict: Verdict) -> str:
    line = f"{verdict.backend:16}IPv{verdict.family}  {'ok' if verdict.works else 'NO'}  {verdict.detail}"
    return f"{line}\n{'':24}mend it: {verdict.mend}" if verdict.mend else line
