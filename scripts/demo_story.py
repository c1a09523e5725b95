"""The story that `scripts/demo` tells, inside namespaces that it has made for it: one pod, from manifest to packets."""

import argparse
import base64
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonpatch  # type: ignore[import-untyped]

from cni_agent import names
from cni_agent.kernel.netns import Netns
from cni_agent.node import status
from tests.kernel.lab_envoy import Envoy

POD, OUTSIDE = "10.77.0.2", "10.77.0.1"  # both ends of one veth pair, with no route to anywhere else
APP_PORT, OUTSIDE_PORT, APP_USER = 8080, 80, 1000
UID = "0d3f6c1e-6f0a-4c1e-9f43-5b1d2f3a4c5d"
TOOL = Path(sys.executable).parent
TERMINAL = sys.stdout.isatty()

PICTURE = """
        outside                                the pod's network namespace
   ┌───────────────┐        ┌──────────────────────────────────────────────────────────────┐
   │ curl ─────────┼──eth0──┼─► PREROUTING ─► ISTIO_INBOUND ─► ISTIO_IN_REDIRECT           │
   │               │        │                                        │ :15006               │
   │               │        │      app :8080 ◄── 127.0.0.6 ──── istio-proxy (Envoy, 1337)  │
   │               │        │        │                               ▲      │              │
   │               │        │        └► OUTPUT ─► ISTIO_OUTPUT ─► ISTIO_REDIRECT :15001    │
   │ server :80 ◄──┼──eth0──┼──────────────────────────── as uid 1337, let go ┘            │
   └───────────────┘        └──────────────────────────────────────────────────────────────┘
   The rules were written from the node by cni-agent. No container of the pod has a capability.
"""


def say(text: str, *, mark: str = "▸", colour: str = "36") -> None:
    """One line of the story; colours only on a terminal."""
    print(f"\033[{colour}m{mark}\033[0m {text}" if TERMINAL else f"{mark} {text}", flush=True)


def done(text: str) -> None:
    say(text, mark="✓", colour="32")


def run(*command: str, **options: Any) -> str:
    """Runs a program to its end; its output, or an error that shows it."""
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Polls; after two seconds it says what it is waiting for."""
    began = time.monotonic()
    told = False
    while not (found := condition()):
        waited = time.monotonic() - began
        if waited > seconds:
            sys.exit(f"gave up waiting for {what} after {seconds:.0f} s")
        if waited > 2 and not told:
            told = True
            say(f"… waiting for {what}", mark=" ")
        time.sleep(0.002)
    return found


def manifest() -> dict[str, Any]:
    """What a Deployment's ReplicaSet would send: an ordinary pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "web-", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {
            "nodeName": "demo",
            "containers": [
                {
                    "name": "web",
                    "image": "example.com/web:1",
                    "ports": [{"containerPort": APP_PORT}],
                    "securityContext": {"runAsUser": APP_USER},
                }
            ],
        },
    }


def inject(folder: Path, pod: dict[str, Any]) -> dict[str, Any]:
    """Sends the pod through a real `injector serve` over TLS, as kube-apiserver would; the mutated pod."""
    certificates = folder / "certs"
    run(str(TOOL / "injector"), "certs", "--once", "--directory", str(certificates), "--dns", "localhost")
    options = ["--tls-cert", str(certificates / "tls.crt"), "--tls-key", str(certificates / "tls.key")]
    address = ["--address", "127.0.0.1:15017", "--metrics-address", "127.0.0.1:15016", "--drain-delay", "0"]
    log = (folder / "injector.log").open("wb")
    server = subprocess.Popen([str(TOOL / "injector"), "serve", *options, *address], stderr=log)
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))

    def ask(path: str, body: bytes | None = None) -> bytes | None:
        assert server.poll() is None, (folder / "injector.log").read_text()
        request = urllib.request.Request(
            f"https://localhost:15017{path}", data=body, headers={"Content-Type": "application/json"}
        )
        with contextlib.suppress(OSError), urllib.request.urlopen(request, context=context, timeout=5) as answer:
            return bytes(answer.read())
        return None

    wait_for("the injector", lambda: ask("/ready"))
    done("injector serve answers on https://localhost:15017, with a CA of its own")
    request = {"uid": UID, "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": "shop", "object": pod}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    began = time.perf_counter()
    answer = json.loads(ask("/inject", json.dumps(review).encode()) or b"{}")["response"]
    took = (time.perf_counter() - began) * 1000
    server.send_signal(signal.SIGTERM)
    patch = json.loads(base64.b64decode(answer["patch"]))
    done(f"AdmissionReview answered in {took:.1f} ms (TLS handshake included): {len(patch)} JSON patch operations")
    mutated: dict[str, Any] = jsonpatch.apply_patch(pod, patch)
    return mutated


def show_difference(before: dict[str, Any], after: dict[str, Any]) -> None:
    """What was added, as a person would list it."""

    def names_of(pod: dict[str, Any], key: str) -> list[str]:
        return [item["name"] for item in pod["spec"].get(key, [])]

    for key in ("initContainers", "containers"):
        for container in after["spec"].get(key, []):
            if container["name"] not in names_of(before, key):
                context = container["securityContext"]
                added = context["capabilities"].get("add", "none")
                print(
                    f"    + {key}: {container['name']}  (user {context['runAsUser']}, root file system read-only: "
                    f"{context['readOnlyRootFilesystem']}, capabilities: {added})"
                )
    print(f"    + volumes: {', '.join(names_of(after, 'volumes'))}")
    for key in ("labels", "annotations"):
        for name, value in sorted(after["metadata"].get(key, {}).items()):
            if name not in before["metadata"].get(key, {}):
                text = str(value)
                print(f"    + {key}: {name}: {text if len(text) < 50 else text[:50] + '…'}")
    user = [c for c in after["spec"]["containers"] if c["name"] == "web"]
    print(f"    = the application's own container is as it was: {user == before['spec']['containers']}", flush=True)


def make_sandbox(cgroup: Path) -> tuple[int, int]:
    """What a runtime makes: a namespace with an interface, a cgroup, a process in both. Their first processes."""
    outside = subprocess.Popen(["unshare", "-n", "sleep", "infinity"]).pid
    holder = subprocess.Popen(["unshare", "-n", "sleep", "infinity"]).pid
    own = os.stat("/proc/self/ns/net").st_ino
    for pid in (outside, holder):
        wait_for("a namespace", lambda pid=pid: os.stat(f"/proc/{pid}/ns/net").st_ino != own)
    run(
        "ip", "link", "add", "eth0", "netns", str(holder), "type", "veth", "peer", "name", "eth0", "netns", str(outside)
    )
    for pid, address in ((holder, POD), (outside, OUTSIDE)):
        inside = ("nsenter", "-t", str(pid), "-n", "ip")
        run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")
    container = cgroup / "kubepods" / "burstable" / f"pod{UID}" / ("c0ffee" * 11)[:64]
    container.mkdir(parents=True)
    script = f'echo $$ > "{container}/cgroup.procs"; exec nsenter -t {holder} -n sleep infinity'
    sandbox = subprocess.Popen(["sh", "-c", script]).pid
    return sandbox, outside


@contextlib.contextmanager
def agent(folder: Path, cgroup: Path) -> Iterator[str]:
    """A real `cni-agent run`, following a folder of manifests. Its status socket."""
    path = str(folder / "agent.sock")
    (folder / "pods").mkdir()
    (cgroup / "kubepods").mkdir()  # the kubelet's, on a node
    command = [str(TOOL / "cni-agent"), "run", "--pods-from", str(folder / "pods"), "--cgroup-root", str(cgroup)]
    command += ["--socket", path, "--metrics-address", "127.0.0.1:15014", "--node-name", "demo"]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        wait_for("the agent", lambda: ready(process, folder, path))
        yield path
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def ready(process: "subprocess.Popen[bytes]", folder: Path, path: str) -> bool:
    if process.poll() is not None:
        sys.exit(f"the agent ended:\n{(folder / 'agent.log').read_text()}")
    with contextlib.suppress(OSError, ValueError):
        return status.ask(path)["not_ready"] == []
    return False


def as_user(pid: int, user: int, imports: str, program: str, *args: str) -> "subprocess.Popen[str]":
    """Python inside a namespace, as a user without capabilities. Imports come first: our folder may be closed to it."""
    drop = f"import os, sys; os.setgroups([]); os.setresgid(*[{user}] * 3); os.setresuid(*[{user}] * 3)"
    command = ["nsenter", "-t", str(pid), "-n", sys.executable, "-c", f"{imports}\n{drop}\n{program}", *args]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


VALIDATE = "sys.exit(program.main(sys.argv[1:]))"
ANSWER = """
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = json.dumps({"peer": self.client_address[0], "path": self.headers.get("x-lab-path")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *_):
        pass
http.server.HTTPServer(("0.0.0.0", int(sys.argv[1])), Handler).serve_forever()
"""


def serve(pid: int, port: int, user: int) -> None:
    """An HTTP server inside a namespace that answers with what it saw. Port 80 is free for all in a namespace."""
    run("nsenter", "-t", str(pid), "-n", "sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start")
    as_user(pid, user, "import http.server, json, encodings.idna", ANSWER, str(port))


def get(pid: int, address: str, port: int, user: int) -> dict[str, Any] | None:
    """One HTTP request from inside a namespace, by a user; what the server saw."""
    dropped = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--")
    command = ["nsenter", "-t", str(pid), "-n", *dropped, "curl", "-s", "-m", "2", f"http://{address}:{port}/"]
    answer = subprocess.run(command, capture_output=True).stdout
    try:
        seen: dict[str, Any] = json.loads(answer)
    except ValueError:
        return None
    return seen


def connects(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def tell(folder: Path, cgroup: Path, keep: bool) -> None:
    """The story."""
    run("ip", "link", "set", "lo", "up")
    say("An ordinary pod is created. kube-apiserver would ask the webhook:")
    before = manifest()
    after = inject(folder, before)
    show_difference(before, after)

    say("The kubelet and the runtime make its sandbox; cni-agent watches the node's cgroups:")
    with agent(folder, cgroup) as path:
        done(
            "cni-agent run is ready: "
            + json.dumps({k: v for k, v in status.ask(path).items() if k in ("backend", "drift")})
        )
        after["metadata"] |= {"name": "web-7d9f", "uid": UID}
        (folder / "pods" / "web.json").write_text(json.dumps(after))
        sandbox, outside = make_sandbox(cgroup)
        pod = wait_for("the capture", lambda: captured(path))
        done(f"{pod['state']} {pod['milliseconds']:.1f} ms after its cgroup was seen: {pod['sentence']}")

        say("istio-validation, as user 1337 and without any capability, proves it from inside:")
        proof = as_user(
            sandbox, names.PROXY_ID, "from cni_agent import validate as program", VALIDATE, *arguments(after)
        )
        proof.wait(60)
        assert proof.stderr
        said = proof.stderr.read().strip()
        if proof.returncode != 0:
            sys.exit(f"validation ended with {proof.returncode}: {said}")
        done(f"exit code 0: {said.splitlines()[-1]}")

        say("A real Envoy takes istio-proxy's place; HTTP goes in and out:")
        with Netns.open(f"/proc/{sandbox}/ns/net") as inside, Netns.open(f"/proc/{outside}/ns/net") as beyond:
            proxy = Envoy(inside, "REDIRECT", {}, folder / "envoy.log")
            try:
                packets(path, sandbox, outside, beyond)
            finally:
                proxy.close()
        print(PICTURE)
        next_commands(sandbox if keep else None, path)
        while keep:
            time.sleep(3600)


def packets(path: str, sandbox: int, outside: int, beyond: Netns) -> None:
    """Traffic both ways, then the flush and the repair."""
    serve(sandbox, APP_PORT, APP_USER)
    serve(outside, OUTSIDE_PORT, APP_USER)
    seen = wait_for("an inbound answer", lambda: get(outside, POD, APP_PORT, APP_USER))
    done(
        f"inbound:  outside → {POD}:{APP_PORT} came through Envoy's {seen['path']} listener; the app saw {seen['peer']}"
    )
    seen = wait_for("an outbound answer", lambda: get(sandbox, OUTSIDE, OUTSIDE_PORT, APP_USER))
    done(f"outbound: app → {OUTSIDE}:{OUTSIDE_PORT} came through Envoy's {seen['path']} listener")

    say("Somebody flushes the pod's rules (nsenter … iptables -t nat -F):")
    run("nsenter", "-t", str(sandbox), "-n", "iptables-nft", "-t", "nat", "-F")
    began = time.monotonic()
    # port 9 has no server: only a captured connection is accepted there, by Envoy
    wait_for("the repair", lambda: beyond.run_inside(lambda: connects(POD, 9)))
    took = (time.monotonic() - began) * 1000
    drifts = wait_for("the agent's count", lambda: status.ask(path)["pods"][0]["drifts"])
    done(f"back within {took:.0f} ms, seen by a connection that lands in Envoy again; repairs counted: {drifts}")


def captured(path: str) -> dict[str, Any] | None:
    pods = [pod for pod in status.ask(path)["pods"] if pod["state"] == "Captured"]
    return pods[0] if pods else None


def arguments(pod: dict[str, Any]) -> list[str]:
    """What the injector gave to istio-validation."""
    containers = {container["name"]: container for container in pod["spec"]["initContainers"]}
    return list(containers[names.VALIDATION_CONTAINER]["args"])


def next_commands(kept: int | None, path: str) -> None:
    if kept:
        say(f"Still running. In another shell:  sudo nsenter -t {kept} -n iptables-nft -t nat -S")
        say(f"                                  sudo .venv/bin/cni-agent status --socket {path}")
        return
    say("All of it is taken away now. Next:")
    print(
        "    scripts/demo --keep            leaves it running, to play with\n"
        "    scripts/test                   all the tests\n"
        "    .venv/bin/cni-agent doctor     can this machine be a node of yours?\n"
        "    .venv/bin/injector inject -f deployment.yaml | kubectl diff -f -",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cgroup", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        tell(options.folder, options.cgroup, options.keep)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
