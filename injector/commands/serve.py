"""`injector serve`: the webhook."""

import asyncio
import sys
from typing import Literal

import click

from cni_agent import log
from cni_agent.invalid import Invalid
from injector.commands.options import option
from injector.serving.listen import bind, parse_address
from injector.serving.scoreboard import Scoreboard
from injector.serving.source import FileSource, Options, read_settings
from injector.serving.worker import IN_FLIGHT, Plan, Source, Worker
from injector.serving.workers import Supervisor
from injector.settings import Compatibility, NativeSidecars

EPILOG = """
\b
Examples:
  injector serve --tls-cert tls.crt --tls-key tls.key --values values.yaml --mesh mesh.yaml
  injector serve --settings cluster --revision 1-29 --tls-cert /certs/tls.crt --tls-key /certs/tls.key --workers 2

\b
On --address (HTTPS):         /inject and /inject/KEY/VALUE/… (the webhook), /ready
On --metrics-address (HTTP):  /metrics (all workers together), /ready, /healthz

\b
Files (settings, certificate) are watched, also through the kubelet's symlinks. A change is applied whole or not at
all: what is bad is refused in the log, in initless_injector_settings_stale or …_certificate_stale, and by /ready,
while the old one stays in use.

\b
Exit codes: 0 drained after SIGTERM or SIGINT; 1 failed; 2 an option, a setting or an address is wrong.
"""


@click.command(epilog=EPILOG, context_settings={"show_default": True})
@option("--address", default=":15017", metavar="HOST:PORT", help="HTTPS, for the API server.")
@option("--metrics-address", default=":15014", metavar="HOST:PORT", help="HTTP, for Prometheus and the kubelet.")
@option("--tls-cert", required=True, metavar="FILE", help="Serving certificate and its chain, PEM.")
@option("--tls-key", required=True, metavar="FILE", help="Its private key, PEM, unencrypted.")
@option(
    "--settings",
    type=click.Choice(["files", "cluster"]),
    default="files",
    help="files: --values, --mesh and --config over our defaults. cluster: the ConfigMaps "
    "istio-sidecar-injector[-REVISION] and istio[-REVISION]; a file that is given is merged over its key.",
)
@option("--values", metavar="FILE", help="Chart values (YAML), as in the ConfigMap istio-sidecar-injector.")
@option("--mesh", metavar="FILE", help="Mesh config (YAML), as in the ConfigMap istio.")
@option("--config", metavar="FILE", help="Injection policy, selectors and templates (YAML), as key config there.")
@option("--namespace", default="istio-system", help="Where the ConfigMaps are.")
@option("--kubeconfig", metavar="FILE", help="How to reach the cluster; without it, as the pod's service account.")
@option("--revision", default="default", help="The revision whose pods we inject.")
@option(
    "--native-sidecars",
    type=click.Choice(["auto", "true", "false"]),
    default="auto",
    help="Whether istio-proxy is a native sidecar. auto: as pilot.env.ENABLE_NATIVE_SIDECARS of the "
    "values says; else if every node's kubelet is 1.33 or newer, which only --settings cluster knows.",
)
@option(
    "--compatibility",
    type=click.Choice(["initless", "istio"]),
    default="initless",
    help="istio: field for field what the stock injector gives, its weaknesses too.",
)
@option("--workers", type=click.IntRange(1, 64), default=1, help="Processes; one uses at most one core.")
@option(
    "--drain-delay",
    type=click.FloatRange(0, 300),
    default=5.0,
    metavar="SECONDS",
    help="How long to go on serving after SIGTERM, while endpoints are being updated.",
)
@option("--log-level", type=click.Choice(log.LEVELS), default="info", help="What to log.")
@option("--log-format", type=click.Choice(log.FORMATS), default="json", help="How log lines look.")
def serve(
    address: str,
    metrics_address: str,
    tls_cert: str,
    tls_key: str,
    settings: Literal["files", "cluster"],
    values: str | None,
    mesh: str | None,
    config: str | None,
    namespace: str,
    kubeconfig: str | None,
    revision: str,
    native_sidecars: NativeSidecars,
    compatibility: Compatibility,
    workers: int,
    drain_delay: float,
    log_level: str,
    log_format: log.Format,
) -> None:
    """Answer the API server: the mutating webhook over HTTPS, with metrics and health beside it."""
    log.set_up(log_format, log_level)
    options = Options(revision, native_sidecars, compatibility)
    files = FileSource(values, mesh, config)
    try:
        source = files if settings == "files" else _cluster(kubeconfig, namespace, options, files)
        given = files.read()
        if settings == "files":
            read_settings(given, options)  # wrong at the start: say so at once, instead of in each worker
        webhook = bind("--address", parse_address("--address", address), workers)
        monitoring = bind("--metrics-address", parse_address("--metrics-address", metrics_address), workers)
    except Invalid as error:
        raise click.UsageError(str(error)) from None
    plan = Plan(source, options, tls_cert, tls_key, drain_delay)
    scoreboard = Scoreboard(workers)

    def work(number: int, parent: int | None) -> int:
        asyncio.run(Worker(plan, scoreboard, number, webhook[number], monitoring[number], parent).run())
        return 0

    if workers == 1:
        sys.exit(work(0, None))

    def beats(number: int) -> int:
        return scoreboard.rows[number]["beats"]

    sys.exit(Supervisor(workers, work, drain_delay + IN_FLIGHT + 5.0, beats).run())


def _cluster(kubeconfig: str | None, namespace: str, options: Options, given: FileSource) -> Source:
    from cni_agent.apiserver import NoCluster, find_access
    from injector.serving.cluster import ClusterSource

    try:
        return ClusterSource(find_access(kubeconfig), namespace, options, given)
    except NoCluster as error:
        raise click.UsageError(f"--settings cluster: {error}") from None
