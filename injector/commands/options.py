"""What the options of our commands have in common: each is an environment variable too, INJECTOR_ and its name."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def option(name: str, **attributes: Any) -> Callable[[F], F]:
    """`--tls-cert` is INJECTOR_TLS_CERT as well, and its help says so."""
    variable = "INJECTOR_" + name.partition("/")[0].removeprefix("--").replace("-", "_").upper()
    return click.option(name, envvar=variable, show_envvar=True, **attributes)
