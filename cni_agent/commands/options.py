"""Options that several commands share: the flags of istio-iptables, or a pod's manifest, as capture settings."""

import functools
import ipaddress
import os
import pwd
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from cni_agent.capture import Capture
from cni_agent.decision import NotCaptured, decide
from cni_agent.explaining.origins import Cause, cause_in_flags, cause_in_pod
from cni_agent.flag_table import FLAGS, IGNORED
from cni_agent.flags import capture_from_flags
from cni_agent.invalid import Invalid
from cni_agent.manifest import MAX_BYTES, read_pod
from cni_agent.podview import PodView

EXIT_INVALID: Final = 2
EXIT_NOT_CAPTURED: Final = 3
MAX_RESOLVERS: Final = 64


class CaptureSource:
    """The options that describe what to capture. They are read when it is called, and not before."""

    def __init__(self, path: str | None, given: dict[str, str], ipv6: bool, resolv_conf: str) -> None:
        self.path = path
        self._given = given
        self._ipv6 = ipv6
        self._resolv_conf = resolv_conf

    def __call__(self, known_ipv6: bool | None = None) -> Capture:
        """The settings; what is wrong with them ends the program."""
        ipv6 = True if self._ipv6 else known_ipv6
        try:
            if self.pod is None:
                resolvers = functools.partial(read_resolvers, self._resolv_conf)
                return capture_from_flags(
                    self._given, os.environ, ipv6=bool(ipv6), resolvers=resolvers, user_id=_user_id
                )
            decision = decide(self.pod, ipv6=ipv6)
        except Invalid as error:
            fail_invalid(error)
        if isinstance(decision, NotCaptured):
            click.echo(f"{decision.reason}: the pod is not captured: {decision.sentence}.", err=True)
            sys.exit(EXIT_NOT_CAPTURED)
        return decision

    @property
    def given(self) -> bool:
        """Whether there are any; variables alone do not count, as they may be there for something else."""
        return self.path is not None or bool(self._given)

    @functools.cached_property
    def pod(self) -> PodView | None:
        """The pod, where the settings are a pod's. Read once: it may come by stdin."""
        if self.path is None:
            return None
        try:
            return read_pod(_read(self.path), self.path)
        except Invalid as error:
            fail_invalid(error)

    def cause(self, setting: str, capture: Capture) -> Cause:
        """Where one setting was made."""
        if self.pod is not None:
            return cause_in_pod(setting, capture, self.pod)
        return cause_in_flags(setting, capture, self._given, os.environ)


def capture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options that describe what to capture. It receives them as `capture`, a `CaptureSource`.

    Calling it reads them; what is wrong ends the program with a message and the exit code of its kind. The pod's IPv6
    is what `--ipv6` says, or else what the caller knows, or else what the pod's own status says.
    """

    @functools.wraps(command)
    def wrapped(pod: str | None, ipv6: bool, resolv_conf: str, **rest: Any) -> Any:
        given = {flag.key: rest.pop(_parameter(flag.name)) for flag in FLAGS if flag.name}
        given = {key: text for key, text in given.items() if text is not None}
        if pod is not None and given:
            raise click.UsageError(f"--pod has all settings in the pod; leave out {', '.join(given)}.")

        return command(capture=CaptureSource(pod, given, ipv6, resolv_conf), **rest)

    for flag in reversed(FLAGS):
        if flag.name:
            names = [f"--{flag.name}", _parameter(flag.name)] + ([f"-{flag.short}"] if flag.short else [])
            variables = f"  [env: {', '.join(flag.environment)}]" if flag.environment else ""
            hidden = flag.help.startswith(IGNORED)
            extra: dict[str, Any] = {}
            if flag.is_switch:  # as Go has them: --flag or --flag=false
                extra = {"is_flag": False, "flag_value": "true", "metavar": "[=BOOL]"}
            default = f"  [default: {flag.default}]" if flag.default and not flag.is_switch else ""
            wrapped = click.option(*names, help=flag.help + default + variables, hidden=hidden, **extra)(wrapped)
    for log_flag in ("--log_output_level", "--log_as_json"):  # in the arguments that the injector writes
        wrapped = click.option(log_flag, hidden=True, is_flag=log_flag.endswith("json"), expose_value=False)(wrapped)
    wrapped = click.option(
        "--resolv-conf", default="/etc/resolv.conf", show_default=True, metavar="FILE",
        help="Where the resolvers are named; read only for --redirect-dns without --capture-all-dns.",
    )(wrapped)  # fmt: skip
    wrapped = click.option("--ipv6", is_flag=True, help="The pod has IPv6: the v6 rules too.")(wrapped)
    return click.option(
        "--pod", metavar="FILE", help="Take the settings from a pod's manifest (YAML or JSON, '-' for stdin)."
    )(wrapped)


def fail_invalid(error: Invalid) -> NoReturn:
    """Ends the program: each violation on a line of its own."""
    for violation in error.violations:
        click.echo(f"Error: {violation}", err=True)
    sys.exit(EXIT_INVALID)


def _parameter(flag: str) -> str:
    return "flag_" + flag.replace("-", "_")


def _read(path: str) -> bytes:
    try:
        with click.open_file(path, "rb") as file:
            return bytes(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise click.UsageError(f"--pod: cannot read {path}: {error.strerror}.") from None


def _user_id(name: str) -> int | None:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def read_resolvers(path: str) -> list[str]:
    """The nameservers of a resolv.conf as they are written there; what is no address is dropped, as Istio does."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as error:
        raise click.UsageError(
            f"--resolv-conf: cannot read {path}: {error.strerror}; DNS capture of known resolvers needs it."
        ) from None
    words = [line.split() for line in text.splitlines()]
    candidates = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    return [address for address in candidates if _is_address(address)][:MAX_RESOLVERS]


def _is_address(text: str) -> bool:
    try:
        return text.isascii() and "%" not in text and bool(ipaddress.ip_address(text))
    except ValueError:
        return False
