"""The command group. Commands are listed by name and summary here, and imported only when they run."""

import click

from cni_agent import __version__
from cni_agent.lazy_group import CONTEXT, LazyGroup

# name: (module, attribute of the click command in it); one line of help each, so that --help imports nothing
COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": ("cni_agent.commands.run", "run", "Capture every meshed pod of this node, and keep it so."),
    "status": ("cni_agent.commands.status", "status", "Show the pods of this node and their state."),
    "rules": ("cni_agent.commands.rules", "rules", "Print the rules for a pod, or for istio-iptables flags."),
    "apply": ("cni_agent.commands.apply", "apply", "Program the rules in a namespace."),
    "check": ("cni_agent.commands.check", "check", "Compare the rules in a namespace with what they should be."),
    "remove": ("cni_agent.commands.remove", "remove", "Take everything of ours out of a namespace."),
    "explain": ("cni_agent.commands.explain", "command", "Say which rule a connection hits, and where it ends."),
    "validate": ("cni_agent.commands.validate", "validate", "Hold a pod back until its traffic is captured."),
    "doctor": ("cni_agent.commands.doctor", "doctor", "Say whether this node can do it, and if not, why."),
}


@click.group(cls=LazyGroup, lazy_commands=COMMANDS, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="cni-agent")
def cli() -> None:
    """Istio's traffic capture, programmed from the node instead of from an init container."""
