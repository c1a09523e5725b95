"""Starts programs; the only place that does. Used to mint rules and to show them, not once per pod (`as_owner` says
where it must be)."""

import os
import subprocess
from collections.abc import Mapping, Sequence

from cni_agent.kernel.failure import CommandError
from cni_agent.kernel.netns import Netns

TIMEOUT = 20.0  # seconds; a restore takes milliseconds, a first one may load kernel modules
SHOWN = 600  # characters of stderr that a message repeats
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # the tools live in sbin, which not every PATH names


def run(
    command: Sequence[str],
    *,
    netns: Netns,
    text: str | bytes = b"",
    descriptors: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> str:
    """Runs one program inside a namespace with `text` on its stdin. Returns its stdout; raises `CommandError`."""

    def start() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            command,
            input=text.encode() if isinstance(text, str) else text,
            capture_output=True,
            pass_fds=descriptors,
            timeout=timeout,
            env={"PATH": f"{os.environ.get('PATH', '')}:{PATH}", "LC_ALL": "C", **(environment or {})},
            check=False,
        )

    name = command[0]
    try:
        done = netns.run_inside(start)
    except FileNotFoundError:
        raise CommandError("no-program", f"{name} is not installed") from None
    except PermissionError as error:
        raise CommandError("no-program", f"{name} cannot be run: {error.strerror}") from None
    except OSError as error:  # no process, descriptor or memory to spare
        raise CommandError("system", f"{name} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise CommandError("timeout", f"{name} did not end within {timeout:g} s") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())[:SHOWN] or "it said nothing"
        raise CommandError("program-failed", f"{name} ended with {done.returncode}: {said}")
    return done.stdout.decode(errors="replace")
