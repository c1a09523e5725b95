"""One transaction for both families and all tables: no moment with half of the rules, and none without."""

import socket
import threading

import pytest

from cni_agent import names
from cni_agent.backends import Name, backend
from cni_agent.capture import Capture
from cni_agent.kernel import nf_tables as nf
from cni_agent.kernel.inside import Inside
from cni_agent.kernel.netns import Netns
from tests.kernel.tools import DEFAULT, TPROXY, sh

pytestmark = pytest.mark.kernel
SWAPS = 30
CALLS = 3000  # at most


def generation(netns: Netns) -> int:
    """Counts the transactions that were committed in a namespace."""
    with Inside(netns) as inside:
        return nf.generation(inside.firewall)


@pytest.mark.parametrize("name", ["iptables-nft", "nftables"])
def test_each_change_is_one_transaction(name: Name) -> None:
    program = backend(name)
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up")
        for capture in (DEFAULT, TPROXY, DEFAULT):
            before = generation(pod)
            program.apply(pod, program.ruleset(capture))
            assert generation(pod) == before + 1
        program.apply(pod, program.ruleset(DEFAULT))
        program.check(pod, program.ruleset(TPROXY))
        assert generation(pod) == before + 1, "nothing was to be written"
        program.remove(pod)
        assert generation(pod) == before + 2


def test_switching_between_nft_backends_is_one_transaction() -> None:
    first, second = backend("iptables-nft"), backend("nftables")
    with Netns.scratch() as pod:
        first.apply(pod, first.ruleset(DEFAULT))
        before = generation(pod)
        second.apply(pod, second.ruleset(DEFAULT))
        assert generation(pod) == before + 1


OTHER = Capture(
    include_inbound_ports=(8080,), include_outbound_cidrs="*", exclude_outbound_ports=(9,), ipv6=True, drop_invalid=True
)


@pytest.mark.parametrize("old", ["iptables-nft", "nftables", "iptables-legacy"])
@pytest.mark.parametrize("new", ["iptables-nft", "nftables", "iptables-legacy"])
def test_every_connection_is_captured_while_rules_are_replaced(old: Name, new: Name) -> None:
    """Settings and backends change all the time; a client that calls out meets the proxy each time."""
    one, two = backend(old), backend(new)
    done = threading.Event()
    swaps = 0
    with Netns.scratch() as pod:
        sh(pod, "ip link set lo up; ip link add out0 type veth; ip addr add 192.0.2.1/24 dev out0; ip link set out0 up")
        one.apply(pod, one.ruleset(DEFAULT))

        def swap() -> None:
            nonlocal swaps
            while not done.is_set():
                two.apply(pod, two.ruleset(OTHER))
                one.apply(pod, one.ruleset(DEFAULT))
                swaps += 1

        def call_out() -> list[int]:
            with socket.create_server(("127.0.0.1", names.OUTBOUND_PORT), backlog=16) as proxy:
                proxy.settimeout(2)
                return [number for number in range(CALLS) if swaps < SWAPS and not _captured(proxy)]

        swapping = threading.Thread(target=swap)
        swapping.start()
        try:
            lost = pod.run_inside(call_out)
        finally:
            done.set()
            swapping.join()
    assert lost == []
    assert swaps > 1, "nothing was replaced meanwhile"


def _captured(proxy: socket.socket) -> bool:
    """Whether a call to the world lands on the proxy's port; nobody else would answer."""
    with socket.socket() as client:
        client.settimeout(2)
        try:
            client.connect(("192.0.2.77", 80))
            accepted, _ = proxy.accept()
        except OSError:
            return False
        accepted.close()
        return True
