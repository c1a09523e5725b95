"""Packets through the rules: every backend, mode and family, with a real Envoy between client, pod and outside."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from cni_agent.backends import BACKENDS, Name
from cni_agent.capture import Capture, Family, Mode
from tests.kernel.lab import (
    CLIENT,
    EXCLUDED,
    EXCLUDED_CIDRS,
    FAMILIES,
    LOOPBACK,
    OUTSIDE,
    POD,
    POD_NET1,
    SERVICE,
    VIA_NET1,
    Actor,
    Lab,
    capture_of,
)

pytestmark = pytest.mark.kernel

APP, PROXY, OTHER = 1000, 1337, 1001  # user ids
SPARED_GROUP = 2000
IN_EXCLUDED, OUT_EXCLUDED, OUT_INCLUDED = 9090, 9091, 9092
PASSTHROUGH: dict[Family, str] = {4: "127.0.0.6", 6: "::6"}
MODES: tuple[Mode, Mode] = ("REDIRECT", "TPROXY")

every_family = pytest.mark.parametrize("family", FAMILIES, ids=["IPv4", "IPv6"])
every_protocol = pytest.mark.parametrize("protocol", ["udp", "tcp"])


class Scene(NamedTuple):
    """A lab with rules, Envoy and servers, and who takes part in it."""

    lab: Lab
    mode: Mode
    app: Actor
    proxy: Actor
    client: Actor


def play(lab: Lab, backend: Name, capture: Capture, *, envoy: bool = True) -> Scene:
    lab.program(backend, capture)
    if envoy:
        lab.envoy(capture.mode)
    app, proxy = lab.actor("pod", APP), lab.actor("pod", PROXY)
    app.serve("app", tcp=(8080, IN_EXCLUDED))
    proxy.serve("dns-proxy", tcp=(15053,), udp=(15053,), at=tuple(LOOPBACK.values()))
    everywhere = tuple(addresses[family] for addresses in (OUTSIDE, EXCLUDED, VIA_NET1) for family in FAMILIES)
    lab.actor("outside").serve("outside", tcp=(8080, OUT_EXCLUDED, OUT_INCLUDED, 53), udp=(53,), at=everywhere)
    return Scene(lab, capture.mode, app, proxy, lab.actor("client"))


def scenes(**settings: Any) -> Any:
    """A fixture of one lab for each backend and mode, with these settings."""
    labs = [(backend, mode) for backend in BACKENDS for mode in MODES]

    @pytest.fixture(scope="module", params=labs, ids=["-".join(lab) for lab in labs])
    def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
        backend, mode = request.param
        with Lab() as lab:
            yield play(lab, backend, capture_of(mode, **settings))

    return scene


ordinary = scenes(
    exclude_inbound_ports=(15020, 15021, 15090, IN_EXCLUDED),
    exclude_outbound_ports=(OUT_EXCLUDED,),
    exclude_outbound_cidrs=EXCLUDED_CIDRS,
    exclude_interfaces=("net1",),
    owner_groups_exclude=(str(SPARED_GROUP),),
    redirect_dns=True,
    capture_all_dns=True,
)
listed = scenes(
    include_inbound_ports=(8080,),
    include_outbound_cidrs=tuple(f"{OUTSIDE[family]}/{32 if family == 4 else 128}" for family in FAMILIES),
    include_outbound_ports=(OUT_INCLUDED,),
    redirect_dns=True,
    resolvers_v4=(OUTSIDE[4],),
    resolvers_v6=(OUTSIDE[6],),
)


def path(answer: dict[str, Any]) -> str:
    """By which of the proxy's listeners a request came, or `direct`."""
    assert answer.get("status") == 200, answer
    return str(answer["seen"]["headers"].get("x-lab-path", "direct"))


def arrived(answer: dict[str, Any]) -> tuple[str, str, str]:
    """Who got the request, by which way, and from whom as it saw it."""
    return answer["seen"]["name"], path(answer), answer["seen"]["peer"][0]


@every_family
def test_inbound(ordinary: Scene, family: Family) -> None:
    answer = ordinary.client.http(POD[family])
    source = CLIENT[family] if ordinary.mode == "TPROXY" else PASSTHROUGH[family]
    assert arrived(answer) == ("app", "inbound", source)
    assert answer["seen"]["headers"]["x-lab-source"] == CLIENT[family]


@every_family
def test_outbound(ordinary: Scene, family: Family) -> None:
    answer = ordinary.app.http(OUTSIDE[family])
    assert arrived(answer) == ("outside", "outbound", POD[family])
    assert answer["seen"]["headers"]["x-lab-source"] == POD[family]


@every_family
def test_call_to_the_pods_own_service(ordinary: Scene, family: Family) -> None:
    """Out to the proxy, which picks this very pod as the endpoint, and in again as if it came from elsewhere."""
    answer = ordinary.app.http(SERVICE[family])
    source = POD[family] if ordinary.mode == "TPROXY" else PASSTHROUGH[family]
    assert arrived(answer) == ("app", "outbound,inbound", source)


@every_family
def test_call_of_the_proxy_to_its_own_pod(ordinary: Scene, family: Family) -> None:
    assert path(ordinary.proxy.http(POD[family])) == "inbound"


@every_family
def test_call_of_the_application_to_itself_is_spared(ordinary: Scene, family: Family) -> None:
    for own in (POD[family], LOOPBACK[family]):
        assert arrived(ordinary.app.http(own)) == ("app", "direct", own)


@every_protocol
@every_family
def test_dns(ordinary: Scene, family: Family, protocol: str) -> None:
    """A connected client takes answers only from whom it asked, so the way back is proven too."""
    assert ordinary.app.dns(protocol, OUTSIDE[family])["seen"]["name"] == "dns-proxy"


@every_protocol
@every_family
def test_dns_of_the_proxy_reaches_the_resolver(ordinary: Scene, family: Family, protocol: str) -> None:
    seen = ordinary.proxy.dns(protocol, OUTSIDE[family])["seen"]
    assert (seen["name"], seen["peer"][0]) == ("outside", POD[family])


@every_protocol
@every_family
def test_dns_to_a_resolver_on_localhost_is_captured(ordinary: Scene, family: Family, protocol: str) -> None:
    assert ordinary.app.dns(protocol, LOOPBACK[family])["seen"]["name"] == "dns-proxy"


@every_family
def test_excluded_inbound_port(ordinary: Scene, family: Family) -> None:
    assert arrived(ordinary.client.http(POD[family], IN_EXCLUDED)) == ("app", "direct", CLIENT[family])


@every_family
def test_excluded_outbound_port(ordinary: Scene, family: Family) -> None:
    assert arrived(ordinary.app.http(OUTSIDE[family], OUT_EXCLUDED)) == ("outside", "direct", POD[family])


@every_family
def test_excluded_outbound_cidr(ordinary: Scene, family: Family) -> None:
    assert arrived(ordinary.app.http(EXCLUDED[family])) == ("outside", "direct", POD[family])


@every_family
def test_excluded_interface(ordinary: Scene, family: Family) -> None:
    assert arrived(ordinary.client.http(POD_NET1[family])) == ("app", "direct", CLIENT[family])
    assert arrived(ordinary.app.http(VIA_NET1[family])) == ("outside", "direct", POD_NET1[family])


@every_family
@pytest.mark.parametrize(
    ("uid", "gid"), [(PROXY, OTHER), (OTHER, PROXY), (OTHER, SPARED_GROUP)], ids=["uid", "gid", "owner-group"]
)
def test_excluded_owner(ordinary: Scene, family: Family, uid: int, gid: int) -> None:
    answer = ordinary.lab.actor("pod", uid, gid).http(OUTSIDE[family])
    assert arrived(answer) == ("outside", "direct", POD[family])


@every_family
def test_only_listed_ports_are_captured_inbound(listed: Scene, family: Family) -> None:
    assert path(listed.client.http(POD[family])) == "inbound"
    assert arrived(listed.client.http(POD[family], IN_EXCLUDED)) == ("app", "direct", CLIENT[family])


@every_family
def test_only_listed_ranges_and_ports_are_captured_outbound(listed: Scene, family: Family) -> None:
    assert path(listed.app.http(OUTSIDE[family])) == "outbound"
    assert path(listed.app.http(EXCLUDED[family], OUT_INCLUDED)) == "outbound"
    assert arrived(listed.app.http(EXCLUDED[family])) == ("outside", "direct", POD[family])


@every_protocol
@every_family
def test_only_listed_resolvers_are_captured(listed: Scene, family: Family, protocol: str) -> None:
    assert listed.app.dns(protocol, OUTSIDE[family])["seen"]["name"] == "dns-proxy"
    assert listed.app.dns(protocol, EXCLUDED[family])["seen"]["name"] == "outside"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_closed_while_the_proxy_is_not_there(backend: Name, mode: Mode) -> None:
    """Neither to the application nor past the proxy: refused by REDIRECT, dropped by TPROXY, nftables' too."""
    lost = "TimeoutError" if mode == "TPROXY" else "ConnectionRefusedError"
    with Lab() as lab:
        scene = play(lab, backend, capture_of(mode), envoy=False)
        for family in FAMILIES:
            assert scene.client.http(POD[family], timeout=0.5).get("error") == lost
            assert scene.app.http(OUTSIDE[family], timeout=0.5).get("error") == "ConnectionRefusedError"


@pytest.mark.parametrize("backend", BACKENDS)
def test_traffic_of_a_virtual_machine_is_outbound(backend: Name) -> None:
    """What comes in by a rerouted interface belongs to a machine inside the pod: it goes out through the proxy."""
    with Lab() as lab:
        scene = play(lab, backend, capture_of("REDIRECT", reroute_interfaces=("net1",)))
        for family in FAMILIES:
            assert path(scene.client.http(POD_NET1[family])) == "outbound,inbound"
            assert path(scene.client.http(POD[family])) == "inbound"
