"""Metrics merge: the agent scrapes the application, Prometheus scrapes the agent; the pod's annotations say so."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cni_agent import values
from cni_agent.invalid import shown
from cni_agent.values import Refused
from injector.mutation.annotations import MERGE_METRICS
from injector.mutation.environment import Variable
from injector.mutation.golang import compact_json
from injector.settings import Settings

VARIABLE: Final = "ISTIO_PROMETHEUS_ANNOTATIONS"
SECURE_PORT: Final = "prometheus.istio.io/secure-port"
_SECURE_VARIABLE: Final = "ENVOY_SECURE_MERGED_METRICS_PORT"
_SCRAPE, _PORT, _PATH = "prometheus_io_scrape", "prometheus_io_port", "prometheus_io_path"
_TARGETS: Final = "prometheus_istio_io_scrape_targets"
_OURS: Final = frozenset({_SCRAPE, _PORT, _PATH, _TARGETS})
_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]", re.ASCII)
_NUMBER = re.compile(r"[+]?0*([0-9]{1,5})", re.ASCII)  # strconv.Atoi
# status.istioReservedPorts: the proxy's and the agent's own
_RESERVED: Final = frozenset({15000, 15001, 15004, 15006, 15008, 15020, 15021, 15053, 15090})


class Scrape(NamedTuple):
    """What the annotations say, whatever their spelling."""

    scrape: str
    path: str
    port: str
    targets: tuple[tuple[str, str], ...]

    def printed(self) -> str | None:
        """The variable for the agent; None when nothing was said."""
        if not any(self):
            return None
        port, path = self.targets[0] if self.targets else (self.port, self.path)  # the first, for older agents
        fields: dict[str, Any] = {"scrape": self.scrape, "path": path, "port": port}
        if self.targets:
            fields["targets"] = [{"port": port, "path": path} for port, path in self.targets]
        return compact_json(fields)


def merge(annotations: dict[str, str], settings: Settings) -> str | None:
    """Points the annotations at the agent; returns the variable that tells it what they said before."""
    spelled = _spellings(annotations)
    if not _wanted(annotations, spelled, settings):
        return None
    agent = settings.mesh.status_port
    if _PORT in spelled and annotations[spelled[_PORT][0]] == str(agent):
        return None  # done before
    said = scrape(annotations)
    for port in [port for port, _ in said.targets] or ([said.port] if said.port else []):
        _check(port, agent)
    for names in spelled.values():
        for name in names:
            del annotations[name]
    annotations["prometheus.io/port"] = str(agent)
    annotations["prometheus.io/path"] = "/stats/prometheus"
    annotations["prometheus.io/scrape"] = "true"
    return said.printed()


def scrape(annotations: Mapping[str, str]) -> Scrape:
    """Reads the annotations."""
    said = {plain: annotations[names[0]] for plain, names in _spellings(annotations).items()}
    return Scrape(said.get(_SCRAPE, ""), said.get(_PATH, ""), said.get(_PORT, ""), _targets(said.get(_TARGETS, "")))


def secure_port(annotations: Mapping[str, str], variables: list[Variable]) -> str | None:
    """The port of merged metrics over TLS, if the proxy has one and the pod does not say it itself."""
    ports = [variable.get("value") for variable in variables if variable.get("name") == _SECURE_VARIABLE]
    if not ports or any(_sanitized(name) == "prometheus_istio_io_secure_port" for name in annotations):
        return None
    return next((port for port in ports if isinstance(port, str) and port not in ("", "0")), None)


def _wanted(annotations: Mapping[str, str], spelled: Mapping[str, list[str]], settings: Settings) -> bool:
    said = (values.go_bool(annotations[name]) for name in spelled.get(_SCRAPE, ()))
    if next((scraped for scraped in said if scraped is not None), True) is False:
        return False
    merged = values.go_bool(annotations[MERGE_METRICS]) if MERGE_METRICS in annotations else None
    return settings.mesh.prometheus_merge if merged is None else merged


def _spellings(annotations: Mapping[str, str]) -> dict[str, list[str]]:
    """Each of ours and how it is written. Of two spellings the usual one comes first, then by sort order."""
    found: dict[str, list[str]] = {}
    for name in annotations:
        if name.startswith("prometheus"):
            plain = _sanitized(name)
            if plain in _OURS:
                found.setdefault(plain, []).append(name)
    for names in found.values():
        names.sort(key=_preference)
    return found


def _preference(name: str) -> tuple[bool, str]:
    return (not name.startswith(("prometheus.io/", "prometheus.istio.io/")), name)


def _sanitized(name: str) -> str:
    """How Prometheus names the label of an annotation."""
    return _NOT_IN_LABELS.sub("_", name)


def _targets(written: str) -> tuple[tuple[str, str], ...]:
    """`port[:path]`, comma separated. A malformed list is no list."""
    targets = []
    for entry in written.split(","):
        if not entry.strip():
            continue
        port, _, path = entry.strip().partition(":")
        if not port.strip():
            return ()
        targets.append((port.strip(), path.strip() or "/metrics"))
    return tuple(targets)


def _check(port: str, agent: int) -> None:
    digits = _NUMBER.fullmatch(port)
    number = int(digits[1]) if digits else 0
    if not 1 <= number <= 65535:
        raise Refused(f"invalid prometheus scrape configuration: {shown(port)} is no port from 1 to 65535")
    if number == agent:
        raise Refused(f"invalid prometheus scrape configuration: port {port} conflicts with agent port")
    if number in _RESERVED:
        raise Refused(f"invalid prometheus scrape configuration: port {port} is reserved for Istio")
