"""`injector webhook`: prints the MutatingWebhookConfiguration."""

import base64
import re
import sys
from pathlib import Path

import click

from injector.commands.options import option
from injector.config import yamltext
from injector.webhook_configuration import Target, webhook_configuration

EPILOG = """
\b
Examples:
  injector webhook | kubectl apply --server-side -f -
  injector webhook --revision 1-29 --service initless-injector-1-29
  injector webhook --revision 1-29 --tag prod --service initless-injector-1-29

\b
Without --ca-bundle there is none in it: `injector certs --webhook-configuration NAME` fills it in and keeps it right.
istiod's own configurations select the same labels: take them away, or use a revision of your own.

\b
Exit codes: 0 printed; 1 the file of --ca-bundle cannot be read; 2 wrong usage.
"""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


def _name(_: click.Context, parameter: click.Parameter, value: str) -> str:
    if value and not _NAME.fullmatch(value):
        raise click.BadParameter("expected at most 63 lowercase letters, digits and '-'", param=parameter)
    return value


@click.command(epilog=EPILOG, context_settings={"show_default": True})
@option("--revision", default="default", callback=_name, help="The revision whose pods are ours.")
@option("--tag", default="", callback=_name, help="A revision tag: pods that ask for this name get that revision.")
@option("--service", default=Target.service, callback=_name, help="The Service of `injector serve`.")
@option("--namespace", default=Target.namespace, callback=_name, help="Where that Service is.")
@option("--path", default=Target.path, help="URL path; /inject/cluster/C/net/N sets cluster and network.")
@option("--url", default="", help="An HTTPS URL instead of the Service.")
@option("--ca-bundle", metavar="FILE", help="CA certificates, PEM.")
@option("--reinvocation-policy", type=click.Choice(["Never", "IfNeeded"]), default="Never", help="Ask twice?")
@option("--enable-namespaces-by-default", is_flag=True, help="Inject where no label says anything, too.")
def webhook(
    revision: str,
    tag: str,
    service: str,
    namespace: str,
    path: str,
    url: str,
    ca_bundle: str | None,
    reinvocation_policy: str,
    enable_namespaces_by_default: bool,
) -> None:
    """Print the MutatingWebhookConfiguration of a revision, or of a tag."""
    if url and not url.startswith("https://"):
        raise click.BadParameter("expected an https:// URL", param_hint="--url")
    if not path.startswith("/inject"):
        raise click.BadParameter("expected /inject or a path below it", param_hint="--path")
    try:
        pem = Path(ca_bundle).read_bytes() if ca_bundle else b""
    except OSError as error:
        click.echo(f"injector webhook: {error}", err=True)
        sys.exit(1)
    if ca_bundle and b"-----BEGIN CERTIFICATE-----" not in pem:
        raise click.BadParameter("expected certificates, PEM", param_hint="--ca-bundle")
    target = Target(
        service=service,
        namespace=namespace,
        path=path,
        url=url,
        ca_bundle=base64.b64encode(pem).decode(),
        reinvocation_policy=reinvocation_policy,
        enable_namespaces_by_default=enable_namespaces_by_default,
    )
    click.echo(yamltext.written(webhook_configuration(revision, tag, target)), nl=False)
