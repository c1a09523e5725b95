"""`cni-agent run`: the daemon."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import click

from cni_agent import log
from cni_agent.backends import BACKENDS
from cni_agent.commands.namespace import selected
from cni_agent.invalid import Invalid
from cni_agent.kernel.failure import Failure
from cni_agent.kernel.own_thread import in_own_thread
from cni_agent.node.settings import ENVIRONMENT, Settings

EPILOG = f"""
Each option can also be given as an environment variable: --node-name as {ENVIRONMENT}NODE_NAME, and so on.

\b
Examples:
  cni-agent run --node-name "$(hostname)"
  cni-agent run --pods-from /etc/initless/pods --drift report --log-format text

Exit codes: 0 stopped by a signal; 1 this node cannot do it; 2 a value or the usage is wrong.
"""

F = TypeVar("F", bound=Callable[..., Any])
logger = logging.getLogger(__name__)
_DEFAULTS = {name: field.default for name, field in Settings.__dataclass_fields__.items()}


def _option(name: str, text: str, **more: Any) -> Callable[[F], F]:
    """One option, its variable and its default, which is that of the settings."""
    field = name.removeprefix("--").replace("-", "_")
    shown = _DEFAULTS[field] is not None and not more.get("is_flag")
    return click.option(
        name, default=_DEFAULTS[field], envvar=f"{ENVIRONMENT}{field.upper()}", show_default=shown, help=text, **more
    )


@click.command(epilog=EPILOG)
@_option("--node-name", "The node whose pods are captured.")
@_option("--pods-from", "Read pods from manifests in this folder instead of from the API.", metavar="DIR")
@_option("--kubeconfig", "How to reach the API; without it, the pod's own service account.", metavar="FILE")
@_option("--cgroup-root", "Where the kubepods cgroups lie; found by itself when not given.", metavar="DIR")
@_option("--host-proc", "The node's /proc, for an agent outside the node's pid namespace.", metavar="DIR")
@_option("--metrics-address", "Where /metrics, /healthz and /readyz are.", metavar="HOST:PORT")
@_option("--socket", "Where `cni-agent status` asks.", metavar="PATH")
@_option("--backend", "How rules are programmed.", type=click.Choice(["auto", *BACKENDS]))
@_option("--drift", "What to do when somebody changes a pod's rules.", type=click.Choice(["repair", "report", "off"]))
@_option("--log-format", "How log lines look.", type=click.Choice(["json", "text"]))
@_option("--success-events", "Send an Event for each captured pod, too.", is_flag=True)
@_option("--remove-taint", "Once ready, take the taint of this key from the node.", metavar="KEY")
def run(**options: Any) -> None:
    """Capture every meshed pod of this node before its first container runs, and keep it so."""
    try:
        settings = Settings(**options)
    except Invalid as invalid:
        raise click.UsageError(str(invalid)) from None
    log.set_up(settings.log_format)
    logger.info("settings", extra=settings.shown())
    stop: Future[None] = Future()

    def told(*_: object) -> None:
        if not stop.done():
            stop.set_result(None)

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)
    ended = False
    try:
        # the main thread never enters a pod's namespace, and the one with the event loop does: `cni_agent.kernel.netns`
        in_own_thread(lambda: asyncio.run(_run(settings, stop)))
    except* (Failure, OSError) as errors:
        for error in _each(errors):
            logger.critical("cannot go on", extra={"error": str(error)})
        ended = True
    if ended:  # not raised above: some Pythons (3.11.2, for one) would wrap it in a group
        raise SystemExit(1)


def _each(error: BaseException) -> Iterator[BaseException]:
    """What a group holds, however deep: groups of tasks lie in each other."""
    if isinstance(error, BaseExceptionGroup):
        for held in error.exceptions:
            yield from _each(held)
    else:
        yield error


async def _run(settings: Settings, stop: Future[None]) -> None:
    from cni_agent.node.agent import Agent

    started = time.perf_counter()
    chosen = selected(settings.backend)
    extra = {"backend": chosen.name, "asked": settings.backend, "ms": round((time.perf_counter() - started) * 1000)}
    logger.info("backend", extra=extra)
    await Agent(settings, chosen).run(stop)
