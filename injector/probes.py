"""Application probes go through the agent: it knows the real ones from a table, the kubelet sees the agent's paths.

Otherwise the kubelet's requests, which carry no client certificate, would be refused by the proxy.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from injector.golang import compact_json
from injector.pod import Container, HTTPGet, Probe

VARIABLE: Final = "ISTIO_KUBE_APP_PROBERS"
Action = Literal["httpGet", "tcpSocket", "grpc"]
Table = dict[str, Any]
_PATHS: Final = (
    (("readinessProbe",), "/app-health/{}/readyz"),
    (("livenessProbe",), "/app-health/{}/livez"),
    (("startupProbe",), "/app-health/{}/startupz"),
    (("lifecycle", "preStop"), "/app-lifecycle/{}/prestopz"),
    (("lifecycle", "postStart"), "/app-lifecycle/{}/poststartz"),
)


class Found(NamedTuple):
    """One probe of a container: where it stands, and the agent's path for it."""

    place: tuple[str, ...]
    path: str
    probe: Probe
    action: Action


class Edit(NamedTuple):
    """A change to one probe: fields of its httpGet to set, and the action that httpGet replaces, if any."""

    place: tuple[str, ...]
    http_get: Mapping[str, Any]
    replaces: Action | None
    there: frozenset[str]  # which of these fields the probe already has


def found(container: Container) -> Iterator[Found]:
    """The probes that can go through the agent; commands and sleeps cannot, and need not."""
    handlers: list[Probe | None] = [container.readinessProbe, container.livenessProbe, container.startupProbe]
    lifecycle = container.lifecycle
    handlers += [lifecycle.preStop, lifecycle.postStart] if lifecycle else [None, None]
    for (place, path), probe in zip(_PATHS, handlers, strict=True):
        if probe is None:
            continue
        if probe.httpGet is not None:
            yield Found(place, path.format(container.name), probe, "httpGet")
        elif probe.tcpSocket is not None:
            yield Found(place, path.format(container.name), probe, "tcpSocket")
        elif probe.grpc is not None and place[0] != "lifecycle":
            yield Found(place, path.format(container.name), probe, "grpc")


def entry(probe: Found, container: Container, agent: int) -> dict[str, Any] | None:
    """The table's line: what the agent is to ask. None when it is the agent already, or the named port is unknown."""
    written = probe.probe
    fields: dict[str, Any]
    if probe.action == "grpc":
        assert written.grpc is not None
        fields = {"port": written.grpc.port or 0, "service": written.grpc.service}
    else:
        action = written.httpGet if probe.action == "httpGet" else written.tcpSocket
        assert action is not None
        port = resolved(action.port, container)
        if port is None or (port == agent and not isinstance(action.port, str)):
            return None
        fields = _http(action, port) if isinstance(action, HTTPGet) else {"port": port}
        if not isinstance(action, HTTPGet) and action.host:
            fields["host"] = action.host
    line: dict[str, Any] = {probe.action: fields}
    if written.timeoutSeconds and probe.place[0] != "lifecycle":
        line["timeoutSeconds"] = written.timeoutSeconds
    return line


def resolved(port: int | str | None, container: Container) -> int | None:
    """A port's number; a name is looked up in the same container. None: there is no such name."""
    if not isinstance(port, str):
        return port or 0
    ports = [declared.containerPort for declared in container.ports or () if declared.name == port and port]
    return ports[-1] if ports else None


def edit(probe: Found, port: int) -> Edit:
    """What makes the kubelet ask the agent. Host and headers of an HTTP probe stay, as in Istio."""
    action = probe.probe.httpGet
    if probe.action != "httpGet" or action is None:
        return Edit(probe.place, {"path": probe.path, "port": port}, probe.action, frozenset())
    fields: dict[str, Any] = {}
    if action.port != port:
        fields["port"] = port
    if action.path != probe.path:
        fields["path"] = probe.path
    if action.scheme == "HTTPS":  # the agent speaks HTTPS to the application
        fields["scheme"] = "HTTP"
    there = {"port"} | ({"path"} if action.path is not None else set()) | {"scheme"}
    return Edit(probe.place, fields, None, frozenset(there))


def printed(table: Table) -> str:
    """The variable, keys sorted."""
    return compact_json({path: table[path] for path in sorted(table)})


def parsed(text: Any) -> Table | None:
    """The variable of an earlier injection; None when it is not one."""
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, Any]]) if isinstance(text, str) else None
    except msgspec.DecodeError:
        return None


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
