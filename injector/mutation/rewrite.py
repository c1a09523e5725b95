"""Applies `probes` to a draft: the table for the agent, and the changes to the containers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cni_agent import names, values
from cni_agent.invalid import shown
from injector.mutation import probes
from injector.mutation.annotations import REWRITE_PROBES, STATUS_PORT
from injector.mutation.draft import Draft
from injector.mutation.environment import Variable, variable
from injector.mutation.pod import Container, Probe
from injector.mutation.probes import Line, Operation
from injector.settings import Settings

# Of a native sidecar: until these succeed, the kubelet starts nothing more
AWAITED: Final = ("/startupProbe", "/lifecycle/postStart")


@dataclass
class Rewrite:
    """The result; `variable` is None when there is no table to tell."""

    variable: str | None = None
    operations: list[Operation] = field(default_factory=list)  # by where containers stand in the pod as it came
    warnings: list[str] = field(default_factory=list)
    in_place: bool = False  # the variable replaces an earlier one where that stands

    def with_table(self, env: list[Variable]) -> list[Variable]:
        """The proxy's variables with the table."""
        if self.variable is None:
            return env
        told = variable(probes.VARIABLE, self.variable)
        first = next((n for n, item in enumerate(env) if item.get("name") == probes.VARIABLE), None)
        if not self.in_place or first is None:
            return [*env, told]
        earlier = probes.parsed(env[first].get("value", ""))
        if earlier is None:
            return env
        table = {**(probes.parsed(self.variable) or {}), **earlier}
        return [*env[:first], variable(probes.VARIABLE, probes.printed(table)), *env[first + 1 :]]


def rewrite(draft: Draft, settings: Settings, before: Any) -> Rewrite:
    """Rewrites every probe of every container but the proxy. `before`: the variable of an earlier injection."""
    result = Rewrite(in_place=settings.stock and names.STATUS in draft.annotations)
    if draft.find(names.PROXY_CONTAINER) is None or not _wanted(draft.annotations, settings):
        return result
    agent = settings.mesh.status_port
    port = int(draft.annotations.get(STATUS_PORT, str(agent)).strip())
    ours = not settings.stock
    if ours and port == 0:  # no agent answers: the probes of the pod go where they went; the peer sends them to port 0
        return result
    table: dict[str, Line] = {}
    late = ours and _proxy_is_late(draft)
    for where, slot in draft.containers():
        if slot.name == names.PROXY_CONTAINER:
            continue
        view = draft.seen(slot)
        prefix = "" if slot.content is not None else f"/spec/{where}/{slot.index}"
        operations: list[Operation] = []
        for place, path, probe in probes.found(view):
            if not _goes_through_agent(place, probe):
                continue
            early = late and where == "initContainers"
            if early:
                _note_early(result, draft, place, probe, view)
            unfit = _unfit(probe, view)
            if unfit:
                result.warnings.append(f"{slot.name}{place.replace('/', '.')} {unfit}")
            if ours and (unfit or (early and place in AWAITED)):
                continue
            line = probes.line(place, probe, view, agent)
            if line is not None and not (ours and _is_rewritten(path, probe, port)):
                table[path] = line
            operations += probes.changes(prefix + place, path, probe, port)
        if slot.content is None:
            result.operations += operations
        else:
            for operation in operations:
                _change(slot.content, operation)
    if before is not None:
        table = {**(probes.parsed(before) or {}), **table}
    if table:
        result.variable = probes.printed(table)
    return result


def _wanted(annotations: Mapping[str, str], settings: Settings) -> bool:
    said = values.go_bool(annotations.get(REWRITE_PROBES, ""))
    return settings.chart.rewrite_probes if said is None else said


def _goes_through_agent(place: str, probe: Probe) -> bool:
    """Commands and sleeps cannot, and need not; gRPC is no lifecycle handler."""
    if probe.httpGet is not None or probe.tcpSocket is not None:
        return True
    return probe.grpc is not None and not place.startswith("/lifecycle")


def _is_rewritten(path: str, probe: Probe, port: int) -> bool:
    action = probe.httpGet
    return action is not None and action.port == port and action.path == path


def _proxy_is_late(draft: Draft) -> bool:
    """Whether istio-proxy, and so the agent, starts after the pod's own init containers."""
    native = draft.find(names.PROXY_CONTAINER, ("initContainers",)) is not None
    return not native or draft.annotations.get(names.CAPTURE_POINT) == "before-app"


def _note_early(result: Rewrite, draft: Draft, place: str, probe: Probe, view: Container) -> None:
    """The probe of a native sidecar that starts before istio-proxy: the agent cannot answer for it yet."""
    called = f"init container {shown(view.name)}: its {place.rpartition('/')[2]}"
    if place == "/livenessProbe":
        result.warnings.append(f"{called} fails until istio-proxy runs, which starts after it")
    elif place in AWAITED and _is_captured(draft, probe, view):
        result.warnings.append(
            f"{called} would be answered by istio-proxy, which starts after it: the pod will not start; "
            "use a command, exclude the port from capture, or make istio-proxy a native sidecar"
        )


def _is_captured(draft: Draft, probe: Probe, view: Container) -> bool:
    """Whether the kubelet's own request would meet the rules, and no proxy behind them."""
    said = draft.annotations.get
    if said(names.CAPTURE_POINT) == "before-app" or said(names.INTERCEPTION_MODE) == "NONE":
        return False
    action = probe.httpGet or probe.tcpSocket or probe.grpc
    port = probes.resolved(action.port, view) if action else None
    included = values.ports_or_all(said(names.INCLUDE_INBOUND_PORTS, "*").strip(), strict=False)
    if included == "*":
        return port not in values.ports(said(names.EXCLUDE_INBOUND_PORTS, "").strip(), strict=False)
    return port in included


def _unfit(probe: Probe, view: Container) -> str | None:
    """Why the agent cannot answer for a probe. Stock sends it there all the same."""
    http = probe.httpGet
    if http is not None and http.host:
        return f"asks host {shown(http.host)}, where no proxy's agent can answer for it"
    action = http or probe.tcpSocket
    if action is not None and probes.resolved(action.port, view) is None:
        return "names a port that the container lacks: the probe will fail"
    return None


def _change(content: dict[str, Any], operation: Operation) -> None:
    """Carries out one operation on a container that exists only here; what it shares with others is copied first."""
    *outer, last = operation["path"].strip("/").split("/")
    holder = content
    for name in outer:
        holder[name] = dict(holder[name])
        holder = holder[name]
    if operation["op"] == "remove":
        del holder[last]
    else:
        holder[last] = operation["value"]
