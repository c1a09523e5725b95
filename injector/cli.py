"""The command group. Commands are listed by name and summary here, and imported only when they run."""

import click

from cni_agent import __version__
from cni_agent.lazy_group import CONTEXT, LazyGroup

# name: (module, attribute of the click command in it, one line of help, so that --help imports nothing)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("injector.commands.serve", "serve", "Answer the API server: the webhook, its metrics and health."),
    "inject": ("injector.commands.inject", "inject", "Inject manifests offline, for kubectl apply -f -."),
    "certs": ("injector.commands.certs", "certs", "Make and rotate the webhook's CA and serving certificate."),
    "webhook": ("injector.commands.webhook", "webhook", "Print the MutatingWebhookConfiguration."),
}


@click.group(cls=LazyGroup, lazy_commands=COMMANDS, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="injector")
def cli() -> None:
    """Puts istio-proxy and an unprivileged istio-validation into pods: the webhook, and the same offline."""
