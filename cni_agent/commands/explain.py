"""`cni-agent explain`: which rule a connection hits, and where it ends."""

import json
from dataclasses import dataclass
from pathlib import Path

import click

from cni_agent.backends import BACKENDS, Name
from cni_agent.backends import backend as new_backend
from cni_agent.capture import Capture
from cni_agent.commands.connection import Connection, connection_options
from cni_agent.commands.namespace import failing, settings_for
from cni_agent.commands.options import CaptureSource, capture_options
from cni_agent.explaining import kernel_rules
from cni_agent.explaining.explain import Explanation, as_data, explain, text
from cni_agent.explaining.trace import arranged
from cni_agent.kernel.differences import Difference
from cni_agent.kernel.namespace_addresses import addresses
from cni_agent.kernel.netns import Netns
from cni_agent.node.lookup import namespace_path
from cni_agent.values import unique

EPILOG = """
\b
Examples:
  cni-agent explain --pod web-0.yaml --to 10.96.0.20:3306
  cni-agent explain --pod web-0.yaml --to [2001:db8::7]:443 --uid 1337
  cni-agent explain --pod web-0.yaml --from 10.0.3.4 --port 8080 --verbose
  cni-agent explain -i '*' -b '*' -o 3306 --to 10.96.0.20:53 --proto udp --json
  cni-agent explain --live --netns /proc/4711/ns/net --pod web-0.yaml --to 10.96.0.20:3306
  kubectl -n initless-system exec POD_OF_THE_AGENT -- cni-agent explain --live --pod shop/web-0 --to 10.96.0.20:3306

\b
Walked is the first packet of a connection: the later ones follow it, whatever the rules say by then. What the pod
sends goes through raw, mangle and nat of OUTPUT, and where that leads back into the pod, through raw and mangle of
PREROUTING (nat translates a connection once); what arrives goes through raw, mangle and nat of PREROUTING.

\b
Exit codes: 0 explained; 2 a value or the usage is wrong (each is named); 3 the pod is not captured (stderr says why);
with --live also 4 refused (the node's namespace, not a namespace, not permitted) and 5 it failed.
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is told. `settings`: those that gave the rules, if known; `differences`: of the kernel's rules from them."""

    explanation: Explanation
    settings: Capture | None
    differences: tuple[Difference, ...] | None = None


@click.command("explain", epilog=EPILOG)
@connection_options
@click.option("--backend", type=click.Choice(list(BACKENDS)),
              help="Whose rules.  [default: iptables-nft; with --live the one that has rules there]")  # fmt: skip
@click.option("--live", is_flag=True, help="Walk the rules that the kernel has, and show their packet counters.")
@click.option("--netns", metavar="PATH", help="With --live: the pod's namespace, such as /proc/PID/ns/net.")
@click.option(
    "--socket",
    metavar="PATH",
    default="/run/initless/agent.sock",
    show_default=True,
    help="With --live and without --netns: the agent that knows where --pod [NAMESPACE/]NAME is.",
)
@click.option("--verbose", "-v", is_flag=True, help="Every rule that is looked at, not only those that match.")
@click.option("--json", "as_json", is_flag=True, help="As data, with every rule that is looked at.")
@capture_options
def command(
    connection: Connection,
    backend: Name | None,
    live: bool,
    netns: str | None,
    socket: str,
    verbose: bool,
    as_json: bool,
    capture: CaptureSource,
) -> None:
    """Say what becomes of a connection: rule by rule, which one decides, and whose setting that is.

    The rules are those of a pod's manifest, or of istio-iptables flags. With --live they are those of the kernel, and
    are compared with the settings where such are given. There --pod may be the name of a pod that the agent knows.
    """
    if netns is not None and not live:
        raise click.UsageError("--netns goes with --live.")
    if not live:
        answer = _by_settings(connection, backend or "iptables-nft", capture)
    else:
        with failing():
            if netns is None:
                netns, capture = _by_name(socket, capture), CaptureSource(None, {}, False, "")
            with Netns.open(netns) as opened:
                answer = _by_kernel(connection, backend, opened, capture)
    said, settings = answer.explanation, answer.settings
    causes = unique(capture.cause(setting, settings) for setting in said.settings) if settings else ()
    if as_json:
        click.echo(json.dumps(as_data(said, causes, answer.differences), indent=2))
    else:
        click.echo(text(said, causes, answer.differences, verbose=verbose), nl=False)


def _by_name(socket: str, capture: CaptureSource) -> str:
    if capture.path is None or capture.path == "-" or Path(capture.path).exists():
        raise click.UsageError(
            "--live needs --netns PATH, or --pod [NAMESPACE/]NAME as the agent of this node knows it."
        )
    return namespace_path(socket, capture.path)


def _by_settings(connection: Connection, backend: Name, capture: CaptureSource) -> Answer:
    settings = capture()
    packet = connection.packet(settings, capture.pod.addresses if capture.pod else ())
    ruleset = new_backend(backend).ruleset(settings)
    return Answer(explain(arranged(ruleset, packet.family), packet, ruleset.dialect, settings), settings)


def _by_kernel(connection: Connection, backend: Name | None, netns: Netns, capture: CaptureSource) -> Answer:
    settings = settings_for(netns, capture) if capture.given else None
    packet = connection.packet(settings or Capture(), addresses(netns))
    backend = backend or kernel_rules.holder(netns)
    found = None
    if settings:
        chosen = new_backend(backend)
        found = chosen.check(netns, chosen.ruleset(settings))
        if found:  # then the settings are not what these rules come from
            settings = None
    chains = kernel_rules.chains(netns, backend, packet.family)
    return Answer(explain(chains, packet, kernel_rules.dialect(backend), settings), settings, found)
