"""A thousand namespaces cost a thousand times one, and the process does not grow."""

import gc
from pathlib import Path

import pytest

from cni_agent.backends import backend
from cni_agent.capture import Capture
from cni_agent.kernel.mint import Mint
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.own_thread import in_own_thread
from cni_agent.rules import Ruleset
from tests.kernel.tools import DEFAULT, NAMES

pytestmark = pytest.mark.kernel
NAMESPACES = 1000
ROUND = 50


def resident() -> int:
    """Kilobytes of memory that are really used."""
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_thousand_namespaces_leave_nothing_in_the_process() -> None:
    programs = [backend(name) for name in NAMES]

    def round_of_pods() -> None:
        for number in range(ROUND):
            program = programs[number % len(programs)]
            ruleset = program.ruleset(DEFAULT)
            with Netns.scratch() as pod:
                program.apply(pod, ruleset)
                assert program.check(pod, ruleset) == ()
                program.remove(pod)

    def all_rounds() -> tuple[int, int, int, int]:
        for _ in range(4):  # until caches and allocator are warm
            round_of_pods()
        before = resident(), descriptors()
        for _ in range(NAMESPACES // ROUND):
            round_of_pods()
        return before[0], resident(), before[1], descriptors()

    memory_before, memory, open_before, opened = in_own_thread(all_rounds)
    assert opened == open_before
    assert memory - memory_before < 512, "kilobytes for a thousand namespaces"


def test_the_mint_keeps_a_bounded_number() -> None:
    made: list[Ruleset] = []
    mint = Mint(lambda ruleset: made.append(ruleset) or len(made), capacity=3)
    program = backend("iptables-nft")
    rulesets = [program.ruleset(Capture(exclude_outbound_ports=(port,))) for port in range(5)]
    assert [mint(ruleset) for ruleset in rulesets] == [1, 2, 3, 4, 5]
    assert [mint(ruleset) for ruleset in rulesets[2:]] == [3, 4, 5]
    assert mint(rulesets[0]) == 6
    assert len(mint._kept) == 3
