"""What the templates read: one pod in the light of the settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cni_agent import names
from injector.config.chart import Resources
from injector.config.proxyconfig import ProxyConfig, metadata, printed
from injector.mutation.annotations import RESOURCES, STATUS_PORT
from injector.mutation.identity import Identity
from injector.mutation.pod import Container
from injector.mutation.quantity import canonical
from injector.settings import Settings


@dataclass(frozen=True, slots=True)
class Workload:
    """A pod without what an earlier injection put into it, and everything decided about it."""

    settings: Settings
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    containers: Sequence[Container]
    namespace: str
    service_account: str
    identity: Identity
    config: ProxyConfig
    uid: int
    gid: int
    native: bool

    def annotation(self, name: str, default: str) -> str:
        """The pod's own word, or the operator's."""
        return self.annotations.get(name, default)

    @property
    def mode(self) -> str:
        """REDIRECT, TPROXY or NONE."""
        return self.annotation(names.INTERCEPTION_MODE, self.config.get("interceptionMode", "REDIRECT"))

    @property
    def tproxy(self) -> bool:
        """Whether the proxy needs NET_ADMIN."""
        return self.mode == "TPROXY"

    @property
    def status_port(self) -> str:
        """Where the agent listens, as text; `0` turns the proxy's own probes off."""
        return self.annotation(STATUS_PORT, self.settings.chart.status_port).strip()

    @property
    def metadata(self) -> Mapping[str, str]:
        """proxyMetadata: variables of both containers."""
        return metadata(self.config)

    @property
    def printed_config(self) -> str:
        """The PROXY_CONFIG variable."""
        if self.config is self.settings.mesh.default_config:
            return self.settings.printed_config
        return printed(self.config)

    @property
    def application(self) -> list[str]:
        """Names of the containers that are not the proxy."""
        return [container.name for container in self.containers if container.name != names.PROXY_CONTAINER]

    @property
    def resources(self) -> Resources:
        """The proxy's resources: if the pod says anything about them, only what it says."""
        said = [(place, self.annotations[name]) for name, place in RESOURCES.items() if name in self.annotations]
        if not said:
            return self.settings.chart.resources
        amounts: dict[str, dict[str, str]] = {}
        for (kind, resource), amount in said:
            amounts.setdefault(kind, {})[resource] = canonical(amount)
        return amounts

    @property
    def exclude_inbound_ports(self) -> str:
        """The pod's or the operator's list, with the status port in it; a list that has it stays as it was written."""
        chart = self.settings.chart
        written = self.annotation(names.EXCLUDE_INBOUND_PORTS, chart.exclude_inbound_ports)
        port = self.status_port
        elements = written.split(",")
        if port in ("", "0", *elements):
            return written
        return ",".join([*(element.strip() for element in elements if element.strip()), port])
