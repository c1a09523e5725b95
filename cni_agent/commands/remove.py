"""`cni-agent remove`: takes the rules out of a namespace, or out of every pod of a node."""

import asyncio
import json
import sys
import time

import click

from cni_agent.backends import backend
from cni_agent.commands.namespace import EXIT_FAILED, failing, namespace_options
from cni_agent.commands.options import capture_options, fail_invalid
from cni_agent.invalid import Invalid
from cni_agent.kernel.netns import Netns
from cni_agent.podview import PodView

EPILOG = """
\b
Examples:
  cni-agent remove --netns /proc/4711/ns/net
  cni-agent remove --all --node-name "$(hostname)"     when taking Initless away; stop the agent first

\b
Exit codes: 0 nothing of ours is there any more; 2 the usage is wrong; 4 refused (the node's namespace, not a namespace,
not permitted); 5 it failed, with --all for at least one pod.
"""


@click.command(epilog=EPILOG)
@click.option("--all", "every", is_flag=True, help="Every captured pod of this node, instead of one namespace.")
@click.option("--node-name", envvar="INITLESS_NODE_NAME", help="With --all: the node whose pods the API is asked for.")
@click.option(
    "--pods-from", metavar="DIR", envvar="INITLESS_PODS_FROM", help="With --all: manifests instead of the API."
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    envvar="INITLESS_KUBECONFIG",
    help="With --all: how to reach the API; without it, the pod's own service account.",
)
@click.option("--host-proc", metavar="DIR", envvar="INITLESS_HOST_PROC", default="/proc", show_default=True,
              help="With --all: the node's /proc.")  # fmt: skip
@namespace_options(required=False)
@capture_options
def remove(
    every: bool,
    node_name: str | None,
    pods_from: str | None,
    kubeconfig: str | None,
    host_proc: str,
    netns: Netns | None,
    **_: object,
) -> None:
    """Take everything of ours out of a namespace: rules of any backend, routes, addresses. Others' rules stay.

    Settings and backend are not needed; they are accepted so that the command line of `apply` works here too. With
    --all every pod of the node that would be captured and whose namespace can be proven is cleaned, a JSON line each.
    """
    if every == (netns is not None):
        raise click.UsageError("say either --netns PATH or --all.")
    if netns is None:
        _remove_all(_pods(node_name, pods_from, kubeconfig), host_proc)
        return
    start = time.perf_counter()
    removed = backend("iptables-legacy").remove(netns)  # of any backend, on any kernel
    line = {
        "outcome": "removed" if removed else "unchanged",
        "milliseconds": round((time.perf_counter() - start) * 1000, 3),
    }
    click.echo(json.dumps(line))


def _pods(node_name: str | None, pods_from: str | None, kubeconfig: str | None) -> list[PodView]:
    from cni_agent.apiserver import UNREACHABLE, ApiError, NoCluster
    from cni_agent.node.uninstall import pods_of_api, pods_of_folder

    try:
        if pods_from is not None:
            return pods_of_folder(pods_from)
        if node_name is None:
            raise click.UsageError("--all needs --node-name, or --pods-from.")
        return asyncio.run(pods_of_api(node_name, kubeconfig))
    except Invalid as error:
        fail_invalid(error)
    except (NoCluster, ApiError, *UNREACHABLE) as error:
        click.echo(f"Error: cannot list the pods of this node: {error}", err=True)
        sys.exit(EXIT_FAILED)


def _remove_all(pods: list[PodView], host_proc: str) -> None:
    from cni_agent.node.uninstall import remove_all

    failed = False
    with failing():
        for removal in remove_all(backend("iptables-legacy"), pods, host_proc):
            outcome = "failed" if removal.reason else "removed" if removal.removed else "unchanged"
            line = {"pod": f"{removal.pod.namespace}/{removal.pod.name}", "uid": removal.pod.uid, "outcome": outcome}
            if removal.reason == "no-process":  # it has ended, or never started: there is no namespace to clean
                line["outcome"] = "unchanged"
            elif removal.reason:
                failed = True
                line |= {"reason": removal.reason, "why": removal.sentence}
            click.echo(json.dumps(line))
    if failed:
        sys.exit(EXIT_FAILED)
