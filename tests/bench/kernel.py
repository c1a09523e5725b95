"""Programs, checks and saves the default dual-stack ruleset in fresh namespaces, ours beside the ordinary tools.

All ways take turns in one run, so that whatever else the machine does hits all of them: the ratios are the result, the
milliseconds are not. A program is started with posix_spawn by a thread that is already inside, its text in a file, so
that nothing but the program itself is counted. Our apply is called from a worker thread, as the agent does it, and all
of it is counted, the read-back and the address on lo included. Namespaces are kept until the end, because the kernel
takes them down in the background, at a cost that would hit whoever comes next.
"""

import argparse
import gc
import json
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cni_agent.backends import Backend, backend
from cni_agent.backends.iptables_nft import IptablesNft
from cni_agent.kernel.netlink import NETLINK_NETFILTER
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.own_thread import in_own_thread
from cni_agent.nft import nft_text
from cni_agent.restore import restore_text
from tests.kernel.tools import DEFAULT

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
OURS, FLOOR, CHECK = "apply, iptables-nft (ours)", "the same bytes by a bare socket (floor)", "check (ours)"
PAIR, SAVES = "iptables-nft-restore + ip6tables-nft-restore", "iptables-nft-save + ip6tables-nft-save"
LEGACY, LEGACY_PAIR = "apply, iptables-legacy (ours)", "iptables-legacy-restore + ip6tables-legacy-restore"
NATIVE, NFT = "apply, nftables (ours)", "nft -f"


def spawn(*command: str, text: Path | None = None) -> None:
    """Runs a program to its end as cheaply as can be."""
    null = (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)
    stdin = (os.POSIX_SPAWN_OPEN, 0, str(text or "/dev/null"), os.O_RDONLY, 0)
    pid = os.posix_spawnp(command[0], command, ENVIRONMENT, file_actions=[stdin, null])
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"{command} ended with {status}"


def clocked(work: Callable[[], object]) -> float:
    """Milliseconds that it takes."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def bare(batch: bytes) -> None:
    """What remains when all our code is taken away; runs inside."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as opened:
        opened.send(batch)
        opened.recv(65536)


class Run:
    """One turn of everything after the other, as often as asked."""

    def __init__(self, folder: Path) -> None:
        self.times: dict[str, list[float]] = {}
        self.pods: list[Netns] = []
        self.nft, self.legacy, self.native = IptablesNft(), backend("iptables-legacy"), backend("nftables")
        ruleset = self.nft.ruleset(DEFAULT)
        self.text4, self.text6, self.text = folder / "4", folder / "6", folder / "nft"
        self.text4.write_text(restore_text(ruleset, 4))
        self.text6.write_text(restore_text(ruleset, 6))
        self.text.write_text(nft_text(self.native.ruleset(DEFAULT)))
        self.batch = self.nft._mint(ruleset).fresh.framed(0)  # 0: whatever the generation

    def turn(self) -> None:
        """Each way once, in a namespace of its own."""
        self._ours(OURS, self.nft, CHECK)
        self._add(FLOOR, self._pod().run_inside(lambda: clocked(lambda: bare(self.batch))))
        pod = self._pod()
        self._tools(pod, PAIR, ["iptables-nft-restore", "--noflush"], ["ip6tables-nft-restore", "--noflush"])
        self._tools(pod, SAVES, ["iptables-nft-save"], ["ip6tables-nft-save"])
        self._ours(LEGACY, self.legacy)
        pair = ["iptables-legacy-restore", "--noflush"], ["ip6tables-legacy-restore", "--noflush"]
        self._tools(self._pod(), LEGACY_PAIR, *pair)
        self._ours(NATIVE, self.native)
        self._add(NFT, self._pod().run_inside(lambda: clocked(lambda: spawn("nft", "-f", "-", text=self.text))))

    def _pod(self) -> Netns:
        self.pods.append(Netns.scratch())
        return self.pods[-1]

    def _ours(self, name: str, program: Backend, check: str | None = None) -> None:
        ruleset = program.ruleset(DEFAULT)
        pod = self._pod()
        self._add(name, clocked(lambda: program.apply(pod, ruleset)))
        if check:
            self._add(check, clocked(lambda: program.check(pod, ruleset)))

    def _tools(self, pod: Netns, name: str, first: list[str], second: list[str]) -> None:
        def both() -> None:
            spawn(*first, text=self.text4)
            spawn(*second, text=self.text6)

        self._add(name, pod.run_inside(lambda: clocked(both)))

    def _add(self, name: str, milliseconds: float) -> None:
        self.times.setdefault(name, []).append(milliseconds)

    def p50(self, name: str) -> float:
        """The median."""
        return statistics.median(self.times[name])


def turns(run: Run, count: int) -> None:
    """So many turns; then all their namespaces go."""
    for _ in range(count):
        run.turn()
    for pod in run.pods:
        pod.close()


def resident() -> int:
    """Kilobytes of memory of this process alone."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def thousand() -> tuple[float, int]:
    """A thousand namespaces, one after the other: how the last hundred compare with the first, and what they left."""
    program = IptablesNft()
    ruleset = program.ruleset(DEFAULT)
    times: list[float] = []
    for number in range(1000):
        with Netns.scratch() as pod:
            times.append(clocked(lambda pod=pod: program.apply(pod, ruleset)))  # type: ignore[misc]
        if number == 100:
            gc.collect()
            before = resident()
    gc.collect()
    return statistics.median(times[-100:]) / statistics.median(times[1:101]), resident() - before


def results(run: Run, drift: float, grown: int) -> dict[str, Any]:
    """What is printed."""
    rows = {
        name: {"p50": round(statistics.median(times), 3), "p99": round(sorted(times)[int(len(times) * 0.99)], 3)}
        for name, times in run.times.items()
    }
    ratios = {
        "pair of restores / apply (aim: 8 or more)": run.p50(PAIR) / run.p50(OURS),
        "apply / floor (aim: 2.5 or less)": run.p50(OURS) / run.p50(FLOOR),
        "pair of saves / check (aim: 10 or more)": run.p50(SAVES) / run.p50(CHECK),
        "pair of legacy restores / apply, legacy": run.p50(LEGACY_PAIR) / run.p50(LEGACY),
        "nft -f / apply, nftables": run.p50(NFT) / run.p50(NATIVE),
        "of 1000 namespaces, last 100 / first 100 (aim: 1)": drift,
    }
    return {
        "n": len(run.times[OURS]),
        "milliseconds": rows,
        "ratios": {name: round(ratio, 2) for name, ratio in ratios.items()},
        "kilobytes grown over 900 namespaces": grown,
    }


def table(found: dict[str, Any]) -> Iterator[str]:
    """The results as lines."""
    yield f"{'':52}{'p50 ms':>9}{'p99 ms':>9}   n = {found['n']}"
    yield from (f"{name:52}{row['p50']:9.3f}{row['p99']:9.3f}" for name, row in found["milliseconds"].items())
    yield from (f"{name:52}{ratio:9.2f}" for name, ratio in found["ratios"].items())
    yield f"{'kilobytes grown over 900 namespaces':52}{found['kilobytes grown over 900 namespaces']:9}"


def main() -> None:
    """Entry point of `scripts/bench kernel`."""
    parser = argparse.ArgumentParser(prog="scripts/bench kernel", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-n", type=int, default=200, metavar="N", help="fresh namespaces for each way (200)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("scripts/bench kernel: needs root, to make namespaces")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # seven namespaces a turn are kept open
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder))
        in_own_thread(lambda: turns(run, options.n))
    found = results(run, *in_own_thread(thousand))
    print(json.dumps(found, indent=2) if options.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
