"""`cni-agent validate`: the istio-validation program. Holds the pod back until its traffic is captured.

Takes the flags of `istio-iptables`, so that it can stand in for the stock program with the arguments that Istio's
injector writes, and has its exit codes. What it can prove and what it cannot is told in `validation.plan`.
"""

import os
import signal
import socket
import sys
import time

from cni_agent import names
from cni_agent.validation import arguments, pod
from cni_agent.validation.arguments import Usage
from cni_agent.validation.landing import family
from cni_agent.validation.plan import Plan, Probe, captured_families
from cni_agent.validation.probing import Prover
from cni_agent.validation.settings import BadSetting, Settings

EXIT_OTHER = 1
EXIT_USAGE = 255
MESSAGE_LIMIT = 4096  # what kubelet reads of a termination message
AGENT_SELECTOR = "app.kubernetes.io/name=cni-agent"

HELP = """\
Usage: cni-agent validate [istio-iptables] [FLAGS OF istio-iptables]

Waits until this pod's traffic is captured. Runs as the proxy's user, needs no capability and writes nothing but the
termination message.

  --probe-timeout DURATION    how long to wait, as 5s, 10m or 1m30s (default 5s)
  --iptables-probe-port PORT  port that probes are sent to (default 15002)
  --termination-log PATH      where the reason of a failure is written (default /dev/termination-log)
  --compatibility istio       prove only what the stock program proves: one path of the first address family

Exit codes: 0 captured, 126 not captured within the time, 255 wrong usage, 1 anything else.
"""


def main(argv: list[str]) -> int:
    """Runs the program; returns its exit code."""
    started = time.monotonic()
    try:
        settings = Settings(argv, os.environ)
    except Usage as error:
        print(f"Error: {error}\n\n{HELP}", file=sys.stderr)
        return EXIT_USAGE
    except BadSetting as error:
        return _fail(EXIT_OTHER, f"istio-validation: {error}", arguments.termination_log(argv))
    if settings.help:
        print(HELP)
        return 0
    if settings.mode == "NONE":
        _say("interception mode NONE: nothing is captured, nothing to wait for")
        return 0
    own = pod.addresses()
    if not own:
        return _fail(EXIT_OTHER, "istio-validation: this pod has no address but loopback", settings.termination_log)
    owners = pod.owners(settings)
    plan = Plan(settings, owners, own, pod.resolvers(), lambda address: pod.interface_towards(address, own))
    if not settings.stock and len(captured_families(settings, own)) < len({family(address) for address in own}):
        _say("the pod's IPv6 is not captured: its first address is IPv4, and dual stack (ISTIO_DUAL_STACK) is off")
    for sentence in plan.unprovable:
        _say(f"not provable from here, so left to the node agent's own check: {sentence}")
    if not plan.probes:
        return _fail(EXIT_OTHER, _nothing_provable(plan), settings.termination_log)
    return _hold(settings, plan, started)


def _hold(settings: Settings, plan: Plan, started: float) -> int:
    """Waits for all probes to land. As process 1 of a container, SIGTERM does nothing unless it has a handler."""
    with Prover(plan.probes) as prover:

        def stop(number: int, _: object) -> None:
            _write(_not_captured(prover.unproven, time.monotonic() - started, "stopped"), settings.termination_log)
            raise SystemExit(128 + number)

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        if prover.run(settings.timeout):
            proven = "; ".join(probe.name for probe in plan.probes)
            _say(f"captured after {(time.monotonic() - started) * 1000:.0f} ms: {proven}")
            return 0
        message = _not_captured(prover.unproven, time.monotonic() - started, "gave up")
        return _fail(names.VALIDATION_EXIT_CODE, message, settings.termination_log)


def _not_captured(unproven: dict[Probe, str], waited: float, end: str) -> str:
    paths = "\n".join(f"- {probe}: {outcome}" for probe, outcome in unproven.items())
    name = os.environ.get("POD_NAME") or socket.gethostname()
    namespace = os.environ.get("POD_NAMESPACE") or _namespace()
    of_namespace = f" -n {namespace}" if namespace else ""
    node = os.environ.get("NODE_NAME")
    find_node = "" if node else f"  kubectl get pod {name}{of_namespace} -o wide   # shows NODE\n"
    return (
        f"istio-validation: this pod's traffic is not captured; {end} after {waited:.1f} s. Not proven:\n{paths}\n"
        f"The rules come from cni-agent on {f'node {node}' if node else 'the node of this pod'}. Ask there:\n"
        f"{find_node}"
        f"  kubectl get events{of_namespace} --field-selector involvedObject.name={name}\n"
        f"  kubectl get pods -A -l {AGENT_SELECTOR} --field-selector spec.nodeName={node or 'NODE'}\n"
        "and in that agent: cni-agent status, cni-agent doctor"
    )


def _nothing_provable(plan: Plan) -> str:
    reasons = "\n".join(f"- {sentence}" for sentence in plan.unprovable)
    return (
        f"istio-validation: no probe of uid {os.geteuid()} would be captured by these settings, so none can prove the "
        f"rules:\n{reasons}\nRun it as the proxy's user (runAsUser of istio-proxy, --proxy-uid)."
    )


def _namespace() -> str:
    try:
        with open("/var/run/secrets/kubernetes.io/serviceaccount/namespace", encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _fail(code: int, message: str, termination_log: str) -> int:
    _write(message, termination_log)
    return code


def _write(message: str, termination_log: str) -> None:
    """To stderr, and to kubelet, which shows it in the pod's status. Outside a pod there is no such file."""
    _say(message)
    try:
        # Never created: the file that kubelet mounts exists, and any other place is none of ours
        descriptor = os.open(termination_log, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    except OSError:
        return
    with open(descriptor, "wb") as file:
        file.write(message.encode()[:MESSAGE_LIMIT])


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
