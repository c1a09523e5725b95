"""What `apply`, `check` and `remove` share: the namespace, the backend, and how failures end the program."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from cni_agent.addresses import NoAddress, has_ipv6
from cni_agent.backends import BACKENDS, Backend, Name, backend
from cni_agent.capture import Capture
from cni_agent.kernel.failure import Failure, NetnsRefused
from cni_agent.kernel.namespace_addresses import addresses
from cni_agent.kernel.netns import Netns

EXIT_REFUSED: Final = 4
EXIT_FAILED: Final = 5


def namespace_options(*, required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command `--netns`, as an open namespace, and `--backend`, as a name or `auto`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(netns: str | None, backend: Name | str, **rest: Any) -> Any:
            if netns is None:
                return command(netns=None, backend=backend, **rest)
            with failing(), Netns.open(netns) as opened:
                return command(netns=opened, backend=backend, **rest)

        wrapped = click.option(
            "--backend", type=click.Choice(["auto", *BACKENDS]), default="auto", show_default=True,
            help="Where the rules live. auto: the first that works here, found by trying.",
        )(wrapped)  # fmt: skip
        return click.option(
            "--netns", required=required, metavar="PATH",
            help="The pod's network namespace, such as /run/netns/NAME or /proc/PID/ns/net.",
        )(wrapped)  # fmt: skip

    return decorate


@contextmanager
def failing() -> Iterator[None]:
    """Ends the program on a failure: its message on stderr and the exit code of its kind."""
    try:
        yield
    except Failure as error:
        click.echo(f"Error: {error} [{error.reason}]", err=True)
        refused = isinstance(error, NetnsRefused) or error.reason == "not-permitted"
        sys.exit(EXIT_REFUSED if refused else EXIT_FAILED)


def selected(name: Name | str) -> Backend:
    """The backend of a name; for `auto` the first that works."""
    for known in BACKENDS:
        if name == known:
            return backend(known)
    from cni_agent.kernel.probe import choose_first

    chosen, verdicts = choose_first()
    if chosen is None:
        reasons = "; ".join(f"{verdict.backend}: {verdict.detail}" for verdict in verdicts if verdict.family == 4)
        raise Failure("no-backend", f"no backend works on this node (cni-agent doctor says more): {reasons}")
    return backend(chosen)


def settings_for(netns: Netns, capture: Callable[[bool | None], Capture]) -> Capture:
    """The settings, with IPv6 as `--ipv6` says or else as the addresses in the namespace do."""
    settings = capture(False)
    if settings.ipv6:
        return settings
    try:
        return dataclasses.replace(settings, ipv6=has_ipv6(addresses(netns), dual_stack=settings.dual_stack))
    except NoAddress as error:
        click.echo(f"{netns.name} has {error}: IPv4 rules only; say --ipv6 for both.", err=True)
        return settings
