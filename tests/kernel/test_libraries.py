"""What we write over sockets of our own is what others' libraries read: libiptc by python-iptables, and pyroute2."""

import json
import subprocess
import sys
from typing import Any

import pytest

from cni_agent.backends import backend
from cni_agent.kernel.netns import Netns
from tests.kernel.tools import DEFAULT, TPROXY

pytestmark = pytest.mark.kernel

CHAINS = """
import iptc, json, sys
table = (iptc.Table if sys.argv[1] == "4" else iptc.Table6)(sys.argv[2])
print(json.dumps({chain.name: [[m.name for m in rule.matches] + [rule.target.name] for rule in chain.rules]
                  for chain in table.chains}))
"""
ROUTING = """
import json
from pyroute2 import IPRoute
with IPRoute() as route:
    rules = [r for f in (2, 10) for r in route.get_rules(f)]
    rules = [[r["family"], r.get_attr("FRA_FWMARK"), r.get_attr("FRA_TABLE")] for r in rules]
    routes = [[r["family"], r["type"]] for f in (2, 10) for r in route.get_routes(family=f, table=133)]
    addresses = [a.get_attr("IFA_ADDRESS") for a in route.get_addr(family=10)]
print(json.dumps({"rules": rules, "routes": routes, "addresses": addresses}))
"""


def read(netns: Netns, program: str, *args: str) -> Any:
    done = netns.run_inside(
        lambda: subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=60)
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("family", [4, 6])
def test_libiptc_reads_the_rules_of_the_legacy_backend(family: Any) -> None:
    program = backend("iptables-legacy")
    ruleset = program.ruleset(DEFAULT)
    with Netns.scratch() as pod:
        program.apply(pod, ruleset)
        chains = read(pod, CHAINS, str(family), "nat")
    expected: dict[str, int] = {}
    for rule in ruleset.of_family(family):
        expected[rule.chain] = expected.get(rule.chain, 0) + 1
    assert {name: len(rules) for name, rules in chains.items() if rules} == expected
    assert chains["ISTIO_REDIRECT"] == [["REDIRECT"]] or chains["ISTIO_REDIRECT"] == [["tcp", "REDIRECT"]]
    assert chains["OUTPUT"] == [["ISTIO_OUTPUT"]]


def test_pyroute2_reads_the_routing_of_tproxy() -> None:
    program = backend("nftables")
    with Netns.scratch() as pod:
        program.apply(pod, program.ruleset(TPROXY))
        found = read(pod, ROUTING)
    for family in (2, 10):
        assert [family, 1337, 133] in found["rules"]
        assert [family, 2] in found["routes"]  # RTN_LOCAL
    assert "::6" in found["addresses"]
