"""What becomes of a connection, in words: which rule decides, what that means, and whose setting it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cni_agent.capture import Capture
from cni_agent.explaining.origins import Cause
from cni_agent.explaining.packet import LOOPBACK, Packet
from cni_agent.explaining.purpose import Purpose, purpose, unclaimed
from cni_agent.explaining.trace import Chains, Entry, Step, Trace, trace
from cni_agent.kernel.differences import Difference
from cni_agent.rules import Dialect

Verdict = Literal["captured", "looped-back", "dns", "not-captured", "dropped"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The fate of one connection. `settings`: fields of `Capture`; `caveats`: what the answer depends on."""

    packet: Packet
    trace: Trace
    verdict: Verdict
    headline: str
    reason: str
    settings: tuple[str, ...]
    where: str
    caveats: tuple[str, ...] = ()


def explain(chains: Chains, packet: Packet, dialect: Dialect, capture: Capture | None) -> Explanation:
    """Walks the packet through the rules and says what happened. `capture`: the settings that gave them, if known."""
    walked = trace(chains, packet, dialect)
    why = _why(walked, packet, capture)
    verdict, headline = _verdict(walked, packet)
    caveats = [f"a rule of somebody else is not understood, and taken for one that does not match: {entry.text}"
               for entry in walked.unread]  # fmt: skip
    caveats += _without_proxy(chains, packet, dialect, walked)
    return Explanation(
        packet, walked, verdict, headline, why.words, why.settings, _where(walked, packet), tuple(caveats)
    )


def _why(walked: Trace, packet: Packet, capture: Capture | None) -> Purpose:
    if walked.decision is None:
        return unclaimed(packet, capture) if capture else Purpose("no rule takes it")
    found = purpose(walked.decision.rule, capture or Capture()) if walked.decision.rule else None
    return found or Purpose("a rule that is not of Istio's making says so")


def _verdict(walked: Trace, packet: Packet) -> tuple[Verdict, str]:
    ending = walked.ending
    if ending.dropped:
        return "dropped", "Dropped"
    match ending.receiver:
        case "outbound listener":
            return "captured", f"Captured: goes to Envoy's outbound listener {ending.port}"
        case "inbound listener" if packet.hook == "OUTPUT":
            return "looped-back", f"Looped back: goes to Envoy's inbound listener {ending.port}"
        case "inbound listener":
            return "captured", f"Captured: goes to Envoy's inbound listener {ending.port}"
        case "resolver":
            return "dns", f"DNS: goes to pilot-agent's resolver {ending.port}"
        case "port":
            return "captured", f"Redirected: goes to port {ending.port} of the pod"
        case None:
            return "not-captured", "Not captured"


def _where(walked: Trace, packet: Packet) -> str:
    if walked.ending.dropped:
        return "It ends here: nobody receives it."
    sent_to = f"{_host(packet.destination)}:{packet.port}" if packet.destination else f"port {packet.port}"
    if walked.ending.receiver:
        return f"It ends in the pod, at port {walked.ending.port}; that it was sent to {sent_to} is remembered."
    if walked.last.interface == LOOPBACK:
        return f"It stays in the pod, and reaches who listens at {sent_to}."
    if packet.hook == "PREROUTING":
        return f"It goes on to {sent_to}, as it was sent."
    return f"It leaves the pod for {sent_to}, as it was sent."


def _without_proxy(chains: Chains, packet: Packet, dialect: Dialect, walked: Trace) -> list[str]:
    """TPROXY alone asks whether somebody listens; a redirect without a listener is refused, as any port is."""
    down = trace(chains, packet, dialect, listening=False)
    if down.ending == walked.ending:
        return []
    becomes = "it is dropped" if down.ending.dropped else "it reaches the application, past the proxy"
    return [f"this holds while the proxy listens there with a transparent socket; else {becomes}"]


def words(packet: Packet) -> str:
    """The connection, as one line."""
    source = _host(packet.source) if packet.source else "somewhere"
    destination = _host(packet.destination) if packet.destination else "the pod"
    line = f"{packet.protocol} {source} -> {destination}:{packet.port}"
    if packet.hook == "PREROUTING":
        return f"{line}, arriving by {packet.interface}" + _marked(packet)
    owner = "by no process" if packet.uid is None else f"by uid {packet.uid} gid {packet.gid}"
    return f"{line}, sent {owner}, leaving by {packet.interface}" + _marked(packet)


def text(
    explanation: Explanation, causes: Sequence[Cause], differences: tuple[Difference, ...] | None, *, verbose: bool
) -> str:
    """For a person. `differences`: of the kernel's rules from those of the settings; None when there is no kernel."""
    lines = [words(explanation.packet), ""]
    heading = ""
    for step in explanation.trace.steps:
        if not (verbose or step.matched):
            continue
        over = ", again over lo" if step.hook != explanation.packet.hook else ""
        if (new := f"{step.hook} {step.entry.table}{over}") != heading:
            heading = new
            lines.append(heading)
        lines.append(f"  {_said(step, explanation.trace.decision):8} {_counted(step.entry)}{step.entry.text}")
    if not heading:
        lines.append("No rule matches it.")
    lines += ["", f"{explanation.headline}, because {explanation.reason}.", explanation.where]
    lines += [f"Set by {cause}" for cause in causes]
    lines += [f"Note: {caveat}." for caveat in explanation.caveats]
    if differences:
        lines += ["", "The kernel's rules are not those that the settings give:", *(f"  {one}" for one in differences)]
    elif differences == ():
        lines += ["", "The kernel's rules are those that the settings give."]
    return "\n".join(lines) + "\n"


def as_data(
    explanation: Explanation, causes: Sequence[Cause], differences: tuple[Difference, ...] | None
) -> dict[str, Any]:
    """For a program."""
    walked = explanation.trace
    return {
        "packet": words(explanation.packet),
        "verdict": explanation.verdict,
        "headline": explanation.headline,
        "reason": explanation.reason,
        "where": explanation.where,
        "receiver": walked.ending.receiver,
        "port": walked.ending.port,
        "decision": _entry_data(walked.decision) if walked.decision else None,
        "settings": [
            {"name": cause.name, "value": cause.value, "default": not cause.given} for cause in causes
        ],
        "caveats": list(explanation.caveats),
        "steps": [{"hook": step.hook, "matched": step.matched, **_entry_data(step.entry)} for step in walked.steps],
        "differences": None if differences is None else [
            {"kind": one.kind, "where": one.where, "text": one.text} for one in differences
        ],
    }  # fmt: skip


def _entry_data(entry: Entry) -> dict[str, Any]:
    return {"table": entry.table, "chain": entry.chain, "rule": entry.text, "packets": entry.packets}


def _said(step: Step, decision: Entry | None) -> str:
    if step.entry is decision and step.matched:
        return "decides"
    return "matches" if step.matched else "no"


def _counted(entry: Entry) -> str:
    return "" if entry.packets is None else f"[{entry.packets}] "


def _marked(packet: Packet) -> str:
    return f", mark {packet.mark}" if packet.mark else ""


def _host(address: str | None) -> str:
    return f"[{address}]" if address and ":" in address else str(address)
