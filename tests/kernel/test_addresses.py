"""The addresses of a namespace, as `ip` set them."""

import pytest

from cni_agent.kernel.inside import Inside
from cni_agent.kernel.namespace_addresses import addresses
from cni_agent.kernel.netns import Netns
from tests.kernel.tools import sh

pytestmark = pytest.mark.kernel


def test_ours_and_not_the_other_ends_in_the_kernels_order() -> None:
    with Netns.scratch() as pod:
        assert addresses(pod) == []
        sh(pod, "ip link set lo up; ip link add eth0 type veth peer name eth1; ip link set eth0 up")
        sh(pod, "ip addr add 10.1.0.1/24 dev eth0; ip addr add 10.2.0.1 peer 10.2.0.2/32 dev eth0")
        sh(pod, "ip addr add fd00::1/64 dev eth0 nodad; ip addr add fd01::1 peer fd01::2/128 dev eth0 nodad")
        expected = ["127.0.0.1", "10.1.0.1", "10.2.0.1", "::1", "fd00::1", "fd01::1"]
        with Inside(pod) as inside:
            for found in (addresses(pod), addresses(inside)):
                assert sorted(address for address in found if not address.startswith("fe80:")) == sorted(expected)
                assert [":" in address for address in found] == sorted(":" in address for address in found)
