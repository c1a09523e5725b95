"""Options that describe one connection, as `explain` takes them."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import click

from cni_agent import values
from cni_agent.capture import Capture
from cni_agent.commands.options import fail_invalid
from cni_agent.explaining import packet as packets
from cni_agent.explaining.packet import Packet, Protocol, read_address
from cni_agent.invalid import Invalid, Violation
from cni_agent.names import PASSTHROUGH
from cni_agent.values import Refused

T = TypeVar("T")
ENDPOINT_ALLOWED = "ADDR:PORT such as 10.0.0.7:443 or [2001:db8::7]:443, with a port from 1 to 65535"


class Endpoint(NamedTuple):
    """An address and a port of it."""

    address: str
    port: int


class Connection(NamedTuple):
    """What was said of the connection, read; who sends it and how it is routed depends on the pod."""

    destination: Endpoint | None
    source: str | None
    port: int | None
    protocol: Protocol
    uid: int | None
    gid: str | None
    no_socket: bool
    mark: int
    interface: str
    machine: bool
    local: tuple[str, ...]

    def packet(self, capture: Capture, addresses: Iterable[str]) -> Packet:
        """Its first packet. `addresses`: those of the pod, as far as known."""
        local = [*self.local, *_usable(addresses)]
        if capture.ipv6:
            local.append(PASSTHROUGH[6].partition("/")[0])  # which comes with the rules
        if self.destination is None:
            assert self.source is not None and self.port is not None
            if self.source in local or packets.is_home(self.source):
                raise click.UsageError(f"{self.source} is the pod itself; describe what it sends with --to.")
            return packets.inbound(
                self.source, self.port, self.protocol, local=local, interface=self.interface, mark=self.mark
            )
        address, port = self.destination
        if self.source and packets.family_of(self.source) != packets.family_of(address):
            raise click.UsageError(f"{self.source} and {address} are of different families.")
        if self.machine:
            return packets.inbound(
                self.source, port, self.protocol, destination=address, interface=self.interface, mark=self.mark
            )
        return packets.outbound(
            address,
            port,
            self.protocol,
            local=local,
            source=self.source,
            interface=self.interface,
            uid=None if self.no_socket else self._user(capture),
            gid=None if self.no_socket else self._group(capture),
            mark=self.mark,
        )

    def _user(self, capture: Capture) -> int:
        if self.uid is not None:
            return self.uid
        return next(one for one in itertools.count() if one not in capture.proxy_uids)

    def _group(self, capture: Capture) -> str:
        if self.gid is not None:
            return self.gid
        return str(next(one for one in itertools.count() if one not in capture.proxy_gids))


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command the options that describe a connection. It receives them as `connection`."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        texts = {option: given.pop(option) for option in Connection._fields}
        return command(connection=_read(**texts), **given)

    options = (
        click.option("--to", "destination", metavar="ADDR:PORT",
                     help="Whom the pod connects to; [ADDR]:PORT for IPv6."),
        click.option("--from", "source", metavar="ADDR",
                     help="Who connects to the pod. With --to: the address that the pod's socket is bound to."),
        click.option("--port", metavar="PORT", help="With --from alone: the port of the pod."),
        click.option("--proto", "protocol", type=click.Choice(["tcp", "udp"]), default="tcp", show_default=True,
                     help="Its protocol."),
        click.option("--uid", metavar="UID", help="User of the process that connects.  [default: not the proxy's]"),
        click.option("--gid", metavar="GID", help="Its group, by number or name.  [default: not the proxy's]"),
        click.option("--no-socket", is_flag=True, help="The kernel itself sends it, on behalf of no process."),
        click.option("--mark", metavar="NUMBER", default="0", show_default=True,
                     help="The mark it starts with, such as the proxy's own in TPROXY mode."),
        click.option("--interface", metavar="NAME", default=packets.PRIMARY, show_default=True,
                     help="By which it leaves or arrives, unless that is lo."),
        click.option("--machine", is_flag=True, help="With --to: a virtual machine behind --interface connects."),
        click.option("--local", metavar="ADDR", multiple=True,
                     help="An address of the pod, repeatable; added to those of its status."),
    )  # fmt: skip
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def _read(
    *,
    destination: str | None,
    source: str | None,
    port: str | None,
    protocol: Protocol,
    uid: str | None,
    gid: str | None,
    no_socket: bool,
    mark: str,
    interface: str,
    machine: bool,
    local: tuple[str, ...],
) -> Connection:
    if (destination is None) == (port is None) or (destination is None and source is None):
        raise click.UsageError(
            "Say --to ADDR:PORT for what the pod sends, or --from ADDR --port PORT for what arrives."
        )
    if machine and destination is None:
        raise click.UsageError("--machine goes with --to.")
    if (no_socket or machine or destination is None) and (uid or gid):
        raise click.UsageError("--uid and --gid are of a process in the pod, and no such process sends this.")
    violations: list[Violation] = []

    def read(option: str, text: str | None, reader: Callable[[str], T]) -> T | None:
        try:
            return None if text is None else reader(text)
        except Refused as refused:
            violations.append(Violation(option, text or "", str(refused)))
            return None

    connection = Connection(
        destination=read("--to", destination, _endpoint),
        source=read("--from", source, read_address),
        port=read("--port", port, values.port),
        protocol=protocol,
        uid=read("--uid", uid, lambda text: values.number(text, 0, 2**32 - 2)),
        gid=read("--gid", gid, _group),
        no_socket=no_socket,
        mark=read("--mark", mark, lambda text: values.number(text, 0, 2**32 - 1)) or 0,
        interface=read("--interface", interface, _interface) or interface,
        machine=machine,
        local=tuple(filter(None, (read("--local", one, read_address) for one in local))),
    )
    if violations:
        fail_invalid(Invalid(violations))
    return connection


def _usable(addresses: Iterable[str]) -> Iterator[str]:
    """The addresses of a pod or of a namespace, but for those that name no host."""
    for address in addresses:
        with contextlib.suppress(Refused):
            yield read_address(address)


def _endpoint(text: str) -> Endpoint:
    address, colon, port = text.rpartition(":")
    bracketed = address.startswith("[") and address.endswith("]")
    if not colon or bracketed != (":" in address):
        raise Refused(ENDPOINT_ALLOWED)
    try:
        return Endpoint(read_address(address.strip("[]")), values.port(port))
    except Refused:
        raise Refused(ENDPOINT_ALLOWED) from None


def _group(text: str) -> str:
    found = values.groups(text)
    if len(found) != 1:
        raise Refused("one group, by number or name")
    return found[0]


def _interface(text: str) -> str:
    found = values.interfaces(text)
    if len(found) != 1:
        raise Refused("the name of one interface")
    return found[0]
