"""The command group. Commands are listed by name and summary here, and imported only when they run."""

import importlib

import click

from cni_agent import __version__

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


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cni-agent")
def cli() -> None:
    """Istio's traffic capture, programmed from the node instead of from an init container."""
