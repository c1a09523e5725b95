"""A real cluster, as its operator has it: kubectl, a shell on the node, and patience."""

import contextlib
import functools
import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import yaml

Object = dict[str, Any]
T = TypeVar("T")


class NotInTime(AssertionError):
    """Something did not come true; the text says what was seen last."""


class Cluster:
    """The cluster of KUBECONFIG, and its node, where INITLESS_CLUSTER or INITLESS_NODE say how to get there."""

    def __init__(self) -> None:
        program = os.environ.get("INITLESS_CLUSTER")
        self._kubectl = [program, "kubectl"] if program else ["kubectl"]
        node = [program, "node"] if program else shlex.split(os.environ.get("INITLESS_NODE", ""))
        self._node: list[str] | None = node or None

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints; an AssertionError with its words when it fails."""
        done = self.try_kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def try_kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._kubectl, *arguments], input=stdin, capture_output=True, text=True, timeout=120, check=False
        )

    @contextlib.contextmanager
    def background(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """kubectl that runs until the block is left."""
        with subprocess.Popen([*self._kubectl, *arguments], stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.terminate()

    @property
    def has_node(self) -> bool:
        return self._node is not None

    def node(self, *command: str, stdin: str | None = None) -> str:
        """Runs a command on the node; what it prints."""
        assert self._node is not None, "no way to the node"
        done = subprocess.run(
            [*self._node, *command], input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"on the node, {' '.join(command)}: {done.stderr}"
        return done.stdout

    def get(self, kind: str, name: str = "", namespace: str = "", **options: str) -> Any:
        """An object, or the list of all."""
        more = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        found = json.loads(
            self.kubectl("get", kind, *([name] if name else []), *within(namespace), "-o", "json", *more)
        )
        return found if name else found["items"]

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def try_apply(self, *objects: Object) -> str:
        """The refusal; empty when it was accepted."""
        done = self.try_kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
        return done.stderr if done.returncode else ""

    def delete(self, kind: str, name: str, namespace: str = "", *options: str) -> None:
        self.kubectl("delete", kind, name, *within(namespace), "--ignore-not-found", *options)

    def run(self, pod: Object, *command: str, container: str = "app") -> str:
        """Runs a command in a container of a pod."""
        metadata = pod["metadata"]
        return self.kubectl("exec", "-n", metadata["namespace"], metadata["name"], "-c", container, "--", *command)

    def ask(self, pod: Object, url: str) -> Object:
        """What an HTTP server answers to the pod's application: who it thinks asked."""
        found: Object = json.loads(self.run(pod, "application", "get", url))
        return found

    def raw(self, path: str) -> str:
        return self.kubectl("get", "--raw", path)

    def stats(self, pod: Object) -> dict[str, int]:
        """Counters of the pod's Envoy, asked through the API server at a port that is never captured."""
        metadata = pod["metadata"]
        text = self.raw(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:15090/proxy/stats")
        pairs = (line.rsplit(": ", 1) for line in text.splitlines())
        return {name: int(value) for name, value in pairs if value.isdigit()}

    def connections(self, pod: Object) -> dict[str, int]:
        """How many connections each of the proxy's listeners has taken."""
        found = self.stats(pod)
        names = {"outbound": "tcp.outbound", "inbound": "tcp.inbound4", "inbound6": "tcp.inbound6"}
        return {name: found.get(f"{prefix}.downstream_cx_total", 0) for name, prefix in names.items()}

    def process_of(self, pod: Object) -> str:
        """A process on the node that is in the pod's network namespace."""
        script = """
            for cgroup in $(grep -ls "pod$1" /proc/[0-9]*/cgroup); do
                process=${cgroup%/cgroup}
                [ "$(readlink $process/ns/net)" = "$(readlink /proc/1/ns/net)" ] || { echo "${process#/proc/}"; exit; }
            done
            exit 1"""
        return self.node("sh", "-c", script, "sh", pod["metadata"]["uid"]).strip()

    def in_namespace_of(self, pod: Object, *command: str) -> str:
        """Runs a program of the node in the pod's network namespace."""
        return self.node("nsenter", "-t", self.process_of(pod), "-n", *command)

    def events(self, namespace: str, of: str) -> list[Object]:
        return list(self.get("events", namespace=namespace, field_selector=f"involvedObject.name={of}"))

    def pods(self, namespace: str, selector: str = "") -> list[Object]:
        return list(self.get("pods", namespace=namespace, **({"selector": selector} if selector else {})))


def within(namespace: str) -> list[str]:
    return ["-n", namespace] if namespace else []


def until(what: str, look: Callable[[], T | None], seconds: float = 60.0, pause: float = 0.2) -> T:
    """Waits until `look` gives something; its AssertionErrors count as "not yet"."""
    deadline = time.monotonic() + seconds
    last = ""
    while True:
        try:
            found = look()
            if found:
                return found
        except AssertionError as error:
            last = str(error)
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {seconds:.0f} s: {what}; {last}")
        time.sleep(pause)


def containers(pod: Object) -> Iterable[Object]:
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def status_of(pod: Object, container: str) -> Object:
    """The state of a container, wherever it is listed."""
    listed = [*pod["status"].get("initContainerStatuses", []), *pod["status"].get("containerStatuses", [])]
    return next((found for found in listed if found["name"] == container), {})


def is_ready(pod: Object) -> bool:
    conditions = {found["type"]: found["status"] for found in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


@functools.cache
def cluster() -> Cluster:
    return Cluster()
