"""`scripts/demo`, whole and interrupted: it tells the story, and leaves nothing behind."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


def remains() -> dict[str, set[str]]:
    """What a demo could leave: processes of its own, network namespaces held by any process, cgroups, folders."""
    processes, namespaces = set(), set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            namespace = str((entry / "ns/net").readlink())
        except OSError:
            continue
        if "demo_story" in command or "initless-demo" in command:
            processes.add(command)
            namespaces.add(namespace)
    cgroups = {str(path) for path in Path("/sys/fs/cgroup").glob("**/initless-demo-*")}
    folders = {str(path) for path in Path("/tmp").glob("initless-demo-*")}
    return {"processes": processes, "namespaces": namespaces, "cgroups": cgroups, "folders": folders}


def test_it_tells_the_whole_story() -> None:
    result = subprocess.run([ROOT / "scripts/demo"], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    for line in (
        "+ initContainers: istio-validation",
        "capabilities: none",
        "✓ Captured",
        "✓ exit code 0: captured",
        "came through Envoy's inbound listener; the app saw 127.0.0.6",
        "came through Envoy's outbound listener",
        "repairs counted: 1",
        "ISTIO_IN_REDIRECT",
    ):
        assert line in result.stdout
    assert "\033[" not in result.stdout  # colours are for terminals
    assert not any(remains().values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_interrupted_at_any_second_it_leaves_nothing(number: signal.Signals) -> None:
    generator = random.Random(number)
    for _ in range(6):
        process = subprocess.Popen([ROOT / "scripts/demo"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(generator.uniform(0.2, 5.0))
        process.send_signal(number)
        process.wait(30)
        left = remains()
        assert not any(left.values()), left
