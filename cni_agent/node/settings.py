"""Settings of the agent, one frozen value, read from options and environment variables and printed at start."""

import re
from dataclasses import asdict, dataclass
from typing import Final, Literal, cast

from cni_agent.backends import BACKENDS, Name
from cni_agent.invalid import Invalid, Violation
from cni_agent.log import Format
from cni_agent.node.drift import Mode
from cni_agent.values import Refused, number

ENVIRONMENT: Final = "INITLESS_"  # the variable of --node-name is INITLESS_NODE_NAME
_TAINT: Final = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
METRICS_PORT: Final = 15014  # where Istio's own agents have their metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field an option. None: found by the agent itself."""

    node_name: str | None = None
    pods_from: str | None = None
    kubeconfig: str | None = None
    cgroup_root: str | None = None
    host_proc: str = "/proc"
    metrics_address: str = f":{METRICS_PORT}"
    socket: str = "/run/initless/agent.sock"
    backend: Name | Literal["auto"] = "auto"
    drift: Mode = "repair"
    log_format: Format = "json"
    success_events: bool = False
    remove_taint: str | None = None

    def __post_init__(self) -> None:
        violations = []
        if not self.node_name and not self.pods_from:
            violations.append(Violation("--node-name", "", "the name of this node, unless --pods-from is given"))
        if self.backend not in (*BACKENDS, "auto"):
            violations.append(Violation("--backend", self.backend, f"auto, {', '.join(BACKENDS)}"))
        try:
            host_and_port(self.metrics_address)
        except Refused as refused:
            violations.append(Violation("--metrics-address", self.metrics_address, str(refused)))
        if self.remove_taint is not None and (self.pods_from or not _TAINT.fullmatch(self.remove_taint)):
            allowed = "the key of a taint, such as cni.istio.io/not-ready; not with --pods-from, which knows no API"
            violations.append(Violation("--remove-taint", self.remove_taint, allowed))
        if violations:
            raise Invalid(violations)

    def shown(self) -> dict[str, object]:
        """As they are printed at start."""
        return cast(dict[str, object], asdict(self))


def host_and_port(address: str) -> tuple[str | None, int]:
    """`HOST:PORT`, `[V6]:PORT` or `:PORT`, the last for all addresses of both families.

    >>> host_and_port("127.0.0.1:15014"), host_and_port("[::1]:0"), host_and_port(":15014")
    (('127.0.0.1', 15014), ('::1', 0), (None, 15014))
    """
    host, colon, port = address.rpartition(":")
    if not colon or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise Refused("HOST:PORT, [IPV6]:PORT or :PORT")
    return host.strip("[]") or None, number(port, 0, 65535)
