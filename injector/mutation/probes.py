"""Application probes go through the agent: it knows the real ones from a table, the kubelet sees the agent's paths.

Otherwise the kubelet's requests, which carry no client certificate, would be refused by the proxy.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from injector.mutation.golang import compact_json
from injector.mutation.pod import Container, HTTPGet, Probe

VARIABLE: Final = "ISTIO_KUBE_APP_PROBERS"
Line = Probe | Mapping[str, Any]  # of the table; most probes are printed just as they came
Operation = dict[str, Any]


def found(container: Container) -> Iterator[tuple[str, str, Probe]]:
    """Where in the container a probe stands, the agent's path for it, and the probe. gRPC is no lifecycle handler."""
    name = container.name
    if container.readinessProbe is not None:
        yield "/readinessProbe", f"/app-health/{name}/readyz", container.readinessProbe
    if container.livenessProbe is not None:
        yield "/livenessProbe", f"/app-health/{name}/livez", container.livenessProbe
    if container.startupProbe is not None:
        yield "/startupProbe", f"/app-health/{name}/startupz", container.startupProbe
    lifecycle = container.lifecycle
    if lifecycle is not None and lifecycle.preStop is not None:
        yield "/lifecycle/preStop", f"/app-lifecycle/{name}/prestopz", lifecycle.preStop
    if lifecycle is not None and lifecycle.postStart is not None:
        yield "/lifecycle/postStart", f"/app-lifecycle/{name}/poststartz", lifecycle.postStart


def line(place: str, probe: Probe, container: Container, agent: int) -> Line | None:
    """What the agent is to ask. None when it is the agent already, or when a port's name is unknown."""
    http = probe.httpGet
    if http is not None and probe.tcpSocket is None and probe.grpc is None:
        port = http.port
        if type(port) is int and port != agent and port and probe.timeoutSeconds != 0 and _is_printed(http):
            return probe
    return _line(place, probe, container, agent)


def resolved(port: int | str | None, container: Container) -> int | None:
    """A port's number; a name is looked up in the same container. None: there is no such name."""
    if not isinstance(port, str):
        return port or 0
    ports = [declared.containerPort for declared in container.ports or () if declared.name == port and port]
    return ports[-1] if ports else None


def changes(place: str, path: str, probe: Probe, port: int) -> list[Operation]:
    """What makes the kubelet ask the agent. Host and headers of an HTTP probe stay, as in Istio.

    `place` is a pointer to the probe. RFC 6902's `add` replaces a member that is there.
    """
    http = probe.httpGet
    if http is None:
        replaced = "tcpSocket" if probe.tcpSocket is not None else "grpc"
        return [
            {"op": "remove", "path": f"{place}/{replaced}"},
            {"op": "add", "path": f"{place}/httpGet", "value": {"path": path, "port": port}},
        ]
    operations = []
    if http.port != port:
        operations.append({"op": "add", "path": f"{place}/httpGet/port", "value": port})
    if http.path != path:
        operations.append({"op": "add", "path": f"{place}/httpGet/path", "value": path})
    if http.scheme == "HTTPS":  # the agent speaks HTTPS to the application
        operations.append({"op": "add", "path": f"{place}/httpGet/scheme", "value": "HTTP"})
    return operations


def printed(table: Mapping[str, Line]) -> str:
    """The variable, keys sorted."""
    return compact_json({path: table[path] for path in sorted(table)})


def parsed(text: Any) -> dict[str, Mapping[str, Any]] | None:
    """The variable of an earlier injection; None when it is not one."""
    try:
        return msgspec.json.decode(text, type=dict[str, Mapping[str, Any]]) if isinstance(text, str) else None
    except msgspec.DecodeError:
        return None


def _is_printed(http: HTTPGet) -> bool:
    """Whether Go would print it as it came: it leaves empty fields out."""
    return http.path != "" and http.host != "" and http.scheme != "" and http.httpHeaders != []


def _line(place: str, probe: Probe, container: Container, agent: int) -> Line | None:
    fields: dict[str, Any]
    if probe.httpGet is None and probe.tcpSocket is None:
        assert probe.grpc is not None
        kind, fields = "grpc", {"port": probe.grpc.port or 0, "service": probe.grpc.service}
    else:
        action = probe.httpGet or probe.tcpSocket
        assert action is not None
        port = resolved(action.port, container)
        if port is None or (port == agent and not isinstance(action.port, str)):
            return None
        if isinstance(action, HTTPGet):
            kind, fields = "httpGet", _http(action, port)
        else:
            kind, fields = "tcpSocket", {"port": port, **({"host": action.host} if action.host else {})}
    told: dict[str, Any] = {kind: fields}
    if probe.timeoutSeconds and not place.startswith("/lifecycle"):
        told["timeoutSeconds"] = probe.timeoutSeconds
    return told


def _http(action: HTTPGet, port: int) -> dict[str, Any]:
    headers = [{"name": header.name, "value": header.value} for header in action.httpHeaders or ()]
    fields = {
        "path": action.path,
        "port": port,
        "host": action.host,
        "scheme": action.scheme,
        "httpHeaders": headers,
    }
    return {name: value for name, value in fields.items() if value or name == "port"}
