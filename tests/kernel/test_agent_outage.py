"""The agent through what a cluster does to it: an API server that is away for a minute, a clock that jumps."""

import mmap
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.api import Api
from tests.kernel.rulesets import rules
from tests.kernel.running_agent import RunningAgent, in_namespace, run
from tests.kernel.sandbox import Node, Sandbox, eventually, in_node, write_manifest

pytestmark = pytest.mark.kernel
AWAY = 60.0  # seconds
HOUR = 3600
SHIFTED_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long long *shift;
__attribute__((constructor)) static void map(void) {
  int fd = open(getenv("CLOCK_SHIFT"), O_RDONLY);
  shift = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
}
int clock_gettime(clockid_t clock, struct timespec *at) {
  int result = syscall(SYS_clock_gettime, clock, at);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) at->tv_sec += shift ? *shift : 0;
  return result;
}
time_t time(time_t *into) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (into) *into = at.tv_sec;
  return at.tv_sec;
}
int gettimeofday(struct timeval *restrict into, void *restrict zone) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  into->tv_sec = at.tv_sec;
  into->tv_usec = at.tv_nsec / 1000;
  return 0;
}
"""


def pods(cgroup: Node, count: int) -> list[Sandbox]:
    return [Sandbox(cgroup.kubepods, f"10.9.0.{number + 1}") for number in range(count)]


def damage(agent: RunningAgent, sandbox: Sandbox, drifts: int) -> None:
    """Somebody flushes the rules; they come back."""
    right = rules(sandbox.netns)
    in_namespace(sandbox, "nft flush ruleset")
    eventually(lambda: agent.snapshot()[sandbox.uid]["drifts"] == drifts, what=f"repair {drifts}")
    assert rules(sandbox.netns) == right != ""


@in_node
def test_the_api_server_away_for_a_minute(cgroup: Node, tmp_path: Path) -> None:
    """Known pods stay captured and are repaired; new ones wait; all is right when it is back, with another memory."""
    api = Api(tmp_path)
    with api.agent(cgroup) as agent:
        kept, going, late, passing = pods(cgroup, 4)
        for sandbox in (kept, going):
            api.put(sandbox.manifest())
            sandbox.run()
            eventually(lambda uid=sandbox.uid: agent.state(uid) == "Captured")
        api.stop()
        until = time.monotonic() + AWAY
        late.run()
        going.stop()
        damage(agent, kept, 1)
        time.sleep(AWAY / 3)
        passing.run()
        damage(agent, kept, 2)
        time.sleep(AWAY / 3)
        passing.stop()
        assert rules(late.netns) == "", "nobody has said yet what is wanted of it"
        assert agent.page("/healthz") == "ok\n"
        damage(agent, kept, 3)
        time.sleep(max(0.0, until - time.monotonic()))
        assert len(agent.said("watch ended")) < AWAY / 3, "it asks less and less often"
        api.api.pods.pop(going.uid)
        api.api.version += 1000
        api.api.forgotten = api.api.version  # 410 for the place where it was
        api.start()
        api.put(late.manifest())
        eventually(lambda: agent.state(late.uid) == "Captured", 40)
        eventually(lambda: going.uid not in agent.snapshot())
        assert {line["reason"] for line in agent.said("watch ended")} == {"unreachable", "expired"}
        damage(agent, kept, 4)
        assert agent.ready()


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[tuple[mmap.mmap, dict[str, str]]]:
    """Seconds by which a program's wall clock is off, whatever library asks for it, and the variables to start it with.

    The node's own clock is not for a test to set, and a time namespace has the other clocks only.
    """
    if not (compiler := shutil.which("gcc")):
        pytest.skip("needs gcc")
    library, source, shift = tmp_path / "clock.so", tmp_path / "clock.c", tmp_path / "shift"
    source.write_text(SHIFTED_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    shift.write_bytes(bytes(8))
    with shift.open("r+b") as opened, mmap.mmap(opened.fileno(), 8) as shared:
        yield shared, {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}


def test_the_wall_clock_jumps(cgroup: Node, tmp_path: Path, clock: tuple[mmap.mmap, dict[str, str]]) -> None:
    shared, environment = clock

    @in_node
    def jumps() -> None:
        api = Api(tmp_path)
        agent = api.agent(cgroup)
        agent.environment |= environment
        with agent:
            first, second, third = pods(cgroup, 3)
            for number, (sandbox, hours) in enumerate(((first, 2), (second, -20)), 1):
                shared[:] = struct.pack("q", hours * HOUR)
                api.call(api.api.drop)  # a new connection looks at the clock: the certificate is from yesterday
                api.put(sandbox.manifest())
                sandbox.run()
                eventually(lambda uid=sandbox.uid: agent.state(uid) == "Captured", 40)
                damage(agent, first, number)
            shared[:] = struct.pack("q", 100 * 24 * HOUR)  # the certificate has expired
            api.call(api.api.drop)
            eventually(lambda: any("certificate has expired" in line["why"] for line in agent.said("watch ended")))
            damage(agent, first, 3)
            shared[:] = bytes(8)
            api.put(third.manifest())
            third.run()
            eventually(lambda: agent.state(third.uid) == "Captured", 40)
        days = {line["time"][:10] for line in agent.log()}
        assert len(days) > 2, "the clock did jump"

    jumps()


MAD_CLOCK = """
import itertools, time
real, steps = time.time, itertools.cycle([0, 3600, -86400, 7 * 86400])
time.time = lambda: real() + next(steps)
"""


@in_node
def test_a_wall_clock_that_jumps_at_every_look(cgroup: Node, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(MAD_CLOCK)
    with RunningAgent(cgroup, tmp_path, environment={"PYTHONPATH": str(tmp_path)}) as agent:
        times = {line["time"][:10] for line in agent.log()}
        sandbox = Sandbox(cgroup.kubepods)
        run(sandbox, agent)
        lost = Sandbox(cgroup.root / "elsewhere")  # for the safety net, which waits a while
        write_manifest(agent.pods, lost.manifest())
        lost.run()
        eventually(lambda: agent.state(lost.uid) == "Captured", 40)
        damage(agent, sandbox, 1)
    assert len(times | {line["time"][:10] for line in agent.log()}) > 1  # the clock did jump
