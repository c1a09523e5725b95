"""`cni-agent rules`: prints what would be programmed."""

from collections.abc import Callable
from typing import Literal

import click

from cni_agent.build import build
from cni_agent.capture import Capture
from cni_agent.commands.options import capture_options
from cni_agent.nft import nft_text
from cni_agent.restore import restore_text
from cni_agent.rules import to_json

EPILOG = """
\b
Examples:
  cni-agent rules -p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -x '' -b '*' -d 15090,15021,15020
  kubectl get pod web-0 -o yaml | cni-agent rules --pod - --format nft
  cni-agent rules --pod web-0.yaml --ipv6 --family 6

\b
Three settings have a variable only: ISTIO_OUTBOUND_OWNER_GROUPS ('*', or groups whose traffic is captured),
ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE (groups left alone), ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR (127.0.0.1/32).

\b
Exit codes: 0 printed; 2 a value or the usage is wrong (each is named); 3 the pod is not captured (stderr says why).
"""


@click.command(epilog=EPILOG, context_settings={"show_default": False})
@click.option(
    "--family",
    type=click.Choice(["4", "6"]),
    default="4",
    show_default=True,
    help="Address family of the restore text; 6 implies --ipv6.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["restore", "nft", "json"]),
    default="restore",
    show_default=True,
    help="restore: for iptables-restore --noflush. nft: for nft -f, both families in one text. "
    "json: the rules as data, both families.",
)
@capture_options
def rules(
    family: Literal["4", "6"], form: Literal["restore", "nft", "json"], capture: Callable[[bool | None], Capture]
) -> None:
    """Print the rules for a pod, or for istio-iptables flags, without touching anything.

    The flags, their environment variables and their precedence are those of istio-iptables, so its documented command
    line works as it is. With --pod the settings come from the pod's annotations and its istio-proxy container.
    """
    settings = capture(True if family == "6" else None)
    if form == "nft":
        text = nft_text(build(settings, "nftables"))
    elif form == "json":
        text = to_json(build(settings)).decode() + "\n"
    else:
        text = restore_text(build(settings), 6 if family == "6" else 4)
    click.echo(text, nl=False)
