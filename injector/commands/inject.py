"""`injector inject`: manifests in, manifests out."""

import sys
from pathlib import Path

import click

from cni_agent.invalid import Invalid
from injector.commands.options import option
from injector.offline import injected_text
from injector.serving.source import Documents, Options, read_settings
from injector.settings import Compatibility, NativeSidecars

EPILOG = """
\b
Examples:
  injector inject -f deployment.yaml | kubectl apply -f -
  kustomize build . | injector inject -f - --values values.yaml --mesh mesh.yaml --native-sidecars true

\b
Documents without a pod come out as they went in, comments included. What is not injected, and why, is said on stderr.

\b
Exit codes: 0 done; 1 a manifest cannot be read or a pod is refused, and nothing was printed; 2 wrong usage or settings.
"""


@click.command(epilog=EPILOG, context_settings={"show_default": True})
@click.option(
    "-f", "--filename", "files", multiple=True, required=True, metavar="FILE", help="YAML or JSON; - is stdin."
)
@option("--values", metavar="FILE", help="Chart values (YAML), as in the ConfigMap istio-sidecar-injector.")
@option("--mesh", metavar="FILE", help="Mesh config (YAML), as in the ConfigMap istio.")
@option("--config", metavar="FILE", help="Injection policy, selectors and templates (YAML), as key config there.")
@option("--namespace", default="", help="The namespace of objects that name none.")
@option("--revision", default="default", help="The revision to inject for.")
@option(
    "--native-sidecars",
    type=click.Choice(["auto", "true", "false"]),
    default="auto",
    help="Whether istio-proxy is a native sidecar. auto: as pilot.env.ENABLE_NATIVE_SIDECARS of the "
    "values says; else no, as no nodes are known here.",
)
@option(
    "--compatibility",
    type=click.Choice(["initless", "istio"]),
    default="initless",
    help="istio: field for field what the stock injector gives, its weaknesses too.",
)
def inject(
    files: tuple[str, ...],
    values: str | None,
    mesh: str | None,
    config: str | None,
    namespace: str,
    revision: str,
    native_sidecars: NativeSidecars,
    compatibility: Compatibility,
) -> None:
    """Inject manifests offline: every kind that makes pods, Lists, many documents in a file."""
    given = {name: path for name, path in (("values", values), ("mesh", mesh), ("config", config)) if path}
    try:
        texts = {name: Path(path).read_text() for name, path in given.items()}
        documents = Documents(texts.get("values"), texts.get("mesh"), texts.get("config"), given)
        settings = read_settings(documents, Options(revision, native_sidecars, compatibility))
    except (Invalid, OSError, UnicodeDecodeError) as error:
        click.echo(f"injector inject: {error}", err=True)
        sys.exit(2)
    for note in settings.notes:
        click.echo(note, err=True)
    try:
        results = [
            injected_text(
                _read(path), settings, source=path, namespace=namespace, say=lambda said: click.echo(said, err=True)
            )
            for path in files
        ]
    except (Invalid, OSError, UnicodeDecodeError) as error:
        click.echo(f"injector inject: {error}", err=True)
        sys.exit(1)
    click.echo("---\n".join(text if text.endswith("\n") or not text else text + "\n" for text in results), nl=False)


def _read(path: str) -> str:
    return sys.stdin.read() if path == "-" else Path(path).read_text()
