"""`injector certs`: the webhook's CA and serving certificate."""

import asyncio
import contextlib
import datetime
import re
import signal
import sys
from collections.abc import AsyncIterator

import click
import msgspec

from cni_agent import log
from cni_agent.apiserver import UNREACHABLE, ApiError, ApiServer, NoCluster, find_access
from injector.certificates.certs import Lifetimes, expiry
from injector.certificates.keep import SERVING, Conflict, DirectoryKeep, SecretKeep
from injector.certificates.renewal import Duty, Incomplete
from injector.commands.options import option

EPILOG = """
\b
Examples:
  injector certs --secret initless-injector-certs --service initless-injector --webhook-configuration initless-injector
  injector certs --once --directory ./certs --dns localhost --dns 127.0.0.1
  injector certs --secret initless-injector-certs --directory /certs --service initless-injector   (beside serve)

\b
The Secret (or, without --secret, the directory) has ca.crt, ca.key, tls.crt, tls.key and, while the CA is being
replaced, ca-next.key. Everything is renewed when a third of its life is left. A new CA is trusted by the API server
for --overlap before it signs, and the old one until it expires, so that no request fails in between. Several of us may
run at once: the Secret's resourceVersion decides. Of webhook configurations only caBundle is written, by server-side
apply as field manager initless-certs.

\b
Exit codes: 0 done, or stopped by a signal; 1 something could not be done (stderr says what); 2 wrong usage.
"""

_DNS = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_ADDRESS = re.compile(r"[0-9a-f.:]+", re.ASCII)


@click.command(epilog=EPILOG, context_settings={"show_default": True})
@option("--secret", metavar="NAME", help="Keep everything in this Secret.")
@option("--directory", metavar="DIR", help="Keep it here; with --secret, only what a server needs is copied here.")
@option("--namespace", default="istio-system", help="Where the Secret and the Service are.")
@option("--service", metavar="NAME", help="The Service that the API server calls: NAME.NAMESPACE.svc is certified.")
@option("--dns", multiple=True, metavar="NAME", help="A further DNS name or IP address. May be repeated.")
@option(
    "--webhook-configuration",
    multiple=True,
    metavar="NAME",
    help="A MutatingWebhookConfiguration whose caBundle is kept right. May be repeated.",
)
@option("--authority-days", type=click.IntRange(2, 3650), default=365, help="Life of a CA.")
@option("--certificate-days", type=click.IntRange(1, 398), default=30, help="Life of a serving certificate.")
@option(
    "--overlap",
    type=click.FloatRange(0, 86400),
    default=600.0,
    metavar="SECONDS",
    help="How long a new CA is trusted before it signs.",
)
@option("--interval", type=click.FloatRange(1, 3600), default=30.0, metavar="SECONDS", help="Between two looks.")
@option("--once", is_flag=True, help="One pass, then exit.")
@option("--kubeconfig", metavar="FILE", help="How to reach the cluster; without it, as the pod's service account.")
@option("--log-level", type=click.Choice(log.LEVELS), default="info", help="What to log.")
@option("--log-format", type=click.Choice(log.FORMATS), default="json", help="How log lines look.")
def certs(
    secret: str | None,
    directory: str | None,
    namespace: str,
    service: str | None,
    dns: tuple[str, ...],
    webhook_configuration: tuple[str, ...],
    authority_days: int,
    certificate_days: int,
    overlap: float,
    interval: float,
    once: bool,
    kubeconfig: str | None,
    log_level: str,
    log_format: log.Format,
) -> None:
    """Make the webhook's CA and serving certificate, renew and rotate them, and have the API server trust them."""
    log.set_up(log_format, log_level)
    if not secret and not directory:
        raise click.UsageError("give --secret NAME (in a cluster), --directory DIR, or both")
    lifetimes = Lifetimes(
        datetime.timedelta(days=authority_days),
        datetime.timedelta(days=certificate_days),
        datetime.timedelta(seconds=overlap),
    )
    names = _names(service, namespace, dns)
    needs_api = bool(secret or webhook_configuration)

    @contextlib.asynccontextmanager
    async def duty() -> AsyncIterator[Duty]:
        async with contextlib.AsyncExitStack() as stack:
            api = (
                await stack.enter_async_context(ApiServer(find_access(kubeconfig), "initless-injector"))
                if needs_api
                else None
            )
            whole = DirectoryKeep(directory) if directory else None
            export = DirectoryKeep(directory, SERVING) if directory and secret else None
            keep = SecretKeep(api, namespace, secret) if secret and api else whole
            assert keep
            yield Duty(keep, export, api, webhook_configuration, names, lifetimes)

    async def work() -> None:
        async with duty() as work_to_do:
            if once:
                material = await work_to_do.run_once(datetime.datetime.now(datetime.UTC))
                click.echo(f"in order; the serving certificate expires {expiry(material).isoformat()}", err=True)
            else:
                await _until_signal(work_to_do, interval)

    try:
        asyncio.run(work())
    except (NoCluster, Conflict, Incomplete, ApiError, *UNREACHABLE, msgspec.DecodeError) as error:
        click.echo(f"injector certs: {error}", err=True)
        sys.exit(1)


async def _until_signal(duty: Duty, interval: float) -> None:
    task = asyncio.ensure_future(duty.run(interval))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _names(service: str | None, namespace: str, dns: tuple[str, ...]) -> tuple[str, ...]:
    bad = [name for name in dns if not _DNS.fullmatch(name) and not _ADDRESS.fullmatch(name)]
    if bad:
        raise click.UsageError(f"--dns: {bad[0]!r} is not allowed; expected a lower-case DNS name or an IP address")
    own = [f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local"] if service else []
    if not own and not dns:
        raise click.UsageError("give --service NAME, or --dns NAME: what the API server will call us by")
    return (*own, *dns)
