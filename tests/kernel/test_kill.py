"""Killed at a random moment, a namespace holds the old rules, the new ones or none; the next apply puts it right."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_agent.backends import Backend, Name, backend
from cni_agent.capture import Capture
from cni_agent.kernel.netns import Netns
from tests.kernel.tools import DEFAULT, TPROXY, everything, sh, shown

pytestmark = pytest.mark.kernel
Target = subprocess.Popen[str]
OPERATIONS: list[tuple[Capture | None, str, Capture | None]] = [
    (None, "tproxy", TPROXY),
    (DEFAULT, "tproxy", TPROXY),
    (TPROXY, "redirect", DEFAULT),
    (TPROXY, "remove", None),
]


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.kernel.kill_target"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


def rules(netns: Netns) -> str:
    return shown(netns, "nftables") + shown(netns, "iptables-legacy")


def order(target: Target, netns: Netns, name: Name, verb: str, delay: float) -> float:
    """Has it done, and kills who does it after a delay. Seconds that it took if it was not killed."""
    assert target.stdin and target.stdout
    target.stdin.write(f"{name} {verb} /proc/{os.getpid()}/fd/{netns.fd}\n")
    target.stdin.flush()
    pid = int(target.stdout.readline())
    start = time.perf_counter()
    while delay and time.perf_counter() - start < delay:
        pass
    if delay:
        os.kill(pid, signal.SIGKILL)
    target.stdin.write("\n")
    target.stdin.flush()
    assert target.stdout.readline() == "ended\n"
    return time.perf_counter() - start


def pod(program: Backend, capture: Capture | None) -> Netns:
    made = Netns.scratch()
    sh(made, "ip link set lo up")
    if capture:
        program.apply(made, program.ruleset(capture))
    return made


@pytest.mark.parametrize(("name", "kills"), [("iptables-nft", 80), ("nftables", 60), ("iptables-legacy", 60)])
def test_killed_at_random_moments(target: Target, name: Name, kills: int) -> None:
    dice = random.Random(200)
    program = backend(name)
    seen: Counter[str] = Counter()
    for old, verb, new in OPERATIONS:
        with pod(program, old) as before, pod(program, new) as after, Netns.scratch() as nothing:
            states = {"old": rules(before), "new": rules(after), "none": rules(nothing)}
            wanted = everything(after)
            duration = order(target, before, name, verb, delay=0)
        for _ in range(kills // len(OPERATIONS)):
            with pod(program, old) as victim:
                order(target, victim, name, verb, delay=dice.uniform(1e-5, duration))
                found = rules(victim)
                if (
                    name == "iptables-legacy"
                ):  # one table of one family is swapped at a time, see cni_agent.kernel.legacy
                    seen[_mixture(found, states)] += 1
                else:
                    assert found in states.values(), f"{verb}: a mixture\n{found}"
                    seen["old" if found == states["old"] else "new"] += 1
                if new is None:
                    program.remove(victim)
                else:
                    program.apply(victim, program.ruleset(new))
                    assert program.check(victim, program.ruleset(new)) == ()
                assert everything(victim) == wanted
    print(name, dict(seen))  # pytest -s
    assert seen["old"] and seen["new"], f"the kills did not fall around the write: {seen}"


def _mixture(found: str, states: dict[str, str]) -> str:
    """For the legacy tables: each of them must be whole, whichever ruleset it belongs to."""
    if found in states.values():
        return next(state for state, text in states.items() if text == found)
    known = {table for text in states.values() for table in re.findall(r"\*.*?COMMIT\n", text, re.DOTALL)}
    for table in re.findall(r"\*.*?COMMIT\n", found, re.DOTALL):
        assert table in known, f"half a table\n{table}"
    return "between two tables"
