"""`cni-agent run` as a process of its own, for tests inside a node."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cni_agent.node import status
from tests.kernel.sandbox import Node, Sandbox, eventually, write_manifest

ROOT = Path(__file__).parents[2]


class RunningAgent:
    """Started when entered, stopped by SIGTERM when left; its log is kept for assertions."""

    def __init__(self, node: Node, folder: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.pods = folder / "pods"
        self.pods.mkdir(exist_ok=True)
        self.socket = str(folder / "agent.sock")
        self.log_path = folder / "log"
        self.command = [sys.executable, "-m", "cni_agent", "run", "--cgroup-root", str(node.root)]
        self.command += ["--metrics-address", "127.0.0.1:0", "--socket", self.socket, "--log-format", "json"]
        self.command += options if "--node-name" in options else ["--pods-from", str(self.pods), *options]
        self.prefix: list[str] = []
        self.environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        self.log_path.unlink(missing_ok=True)
        Path(self.socket).unlink(missing_ok=True)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen([*self.prefix, *self.command], stderr=log, cwd=ROOT, env=self.environment)
        if wait:
            eventually(self.ready, what="the agent is ready")

    def ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the agent ended: {self.log_path.read_text()}"
        return self.not_ready() == []

    def not_ready(self) -> list[str]:
        """Why it is not, in its own words."""
        try:
            return [str(reason) for reason in status.ask(self.socket)["not_ready"]]
        except (OSError, ValueError):
            return ["it does not answer"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(self.log_path.read_text()[-20_000:])
        if self.process is not None and self.process.poll() is None:
            code = self.stop()
            assert kind is not None or code == 0, self.log_path.read_text()

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.log() if line["message"] == message]

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Pods by uid."""
        return {pod["uid"]: pod for pod in status.ask(self.socket)["pods"]}

    def state(self, uid: str) -> str:
        return str(self.snapshot().get(uid, {}).get("state"))

    def page(self, path: str) -> str:
        port = self.said("watching")[0]["metrics"][0][1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())


def run(sandbox: Sandbox, agent: RunningAgent, state: str = "Captured", **changes: object) -> None:
    """A pod all the way from the folder to a state."""
    write_manifest(agent.pods, sandbox.manifest(**changes))
    sandbox.run()
    eventually(lambda: agent.state(sandbox.uid) == state, what=f"{state}, not {agent.state(sandbox.uid)}")


def in_namespace(sandbox: Sandbox, command: str) -> str:
    """Runs a line of shell there; what it printed."""

    def do() -> str:
        return subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout  # noqa: S602

    return sandbox.netns.run_inside(do)
