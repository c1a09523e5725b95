"""The ordinary tools, as the measure of what our backends write and as the hand of somebody who changes it."""

import re
import subprocess

from cni_agent.backends import Name
from cni_agent.capture import Capture
from cni_agent.kernel.netns import Netns
from cni_agent.nft import nft_text
from cni_agent.restore import restore_text
from cni_agent.rules import Ruleset

DEFAULT = Capture(include_inbound_ports="*", include_outbound_cidrs="*", ipv6=True)
TPROXY = Capture(
    mode="TPROXY",
    include_inbound_ports="*",
    exclude_inbound_ports=(15020, 15090),
    include_outbound_cidrs="*",
    exclude_outbound_cidrs=("10.9.0.0/16", "fd09::/16"),
    exclude_interfaces=("eth7",),
    reroute_interfaces=("tap0",),
    redirect_dns=True,
    capture_all_dns=True,
    drop_invalid=True,
    ipv6=True,
)
NAMES: tuple[Name, ...] = ("iptables-nft", "iptables-legacy", "nftables")


def sh(netns: Netns, command: str, text: str = "") -> str:
    """Runs a line of shell inside; it must succeed."""
    done = netns.run_inside(
        lambda: subprocess.run(["sh", "-ec", command], input=text, capture_output=True, text=True, timeout=60)
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def write_with_tool(netns: Netns, name: Name, ruleset: Ruleset) -> None:
    """What the backend of this name does, done by the ordinary tool."""
    if name == "nftables":
        sh(netns, "nft -f -", nft_text(ruleset))
        return
    variant = name.removeprefix("iptables-")
    for family in ruleset.families:
        sh(netns, f"ip{'6' * (family == 6)}tables-{variant}-restore --noflush", restore_text(ruleset, family))


def shown(netns: Netns, name: Name) -> str:
    """All rules of a namespace as the ordinary tool shows them, without counts, tables in the order of their names."""
    if name == "nftables":
        return _sorted_chains(re.sub(r"packets \d+ bytes \d+", "", sh(netns, "nft list ruleset")))
    variant = name.removeprefix("iptables-")
    texts = [sh(netns, f"{tool}-{variant}-save") for tool in ("iptables", "ip6tables")]
    return "\n".join(_sorted_tables(text) for text in texts)


def everything(netns: Netns) -> str:
    """All that a namespace holds, whatever tool sees it, and its routing without the numbers that order rules.

    Routes that the kernel itself adds for an address are left out: it does so a moment later.
    """
    routing = sh(netns, "ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; ip addr show lo")
    rules = shown(netns, "nftables") + shown(netns, "iptables-legacy")
    return rules + re.sub(r"(?m)^\d+:|.*proto kernel.*\n| tentative", "", routing)


def legacy_tables(netns: Netns) -> list[str]:
    """The names of the legacy tables that exist."""
    return sh(netns, "cat /proc/thread-self/net/ip_tables_names /proc/thread-self/net/ip6_tables_names").split()


def _sorted_chains(listing: str) -> str:
    """The order of chains in a table has no meaning."""
    return "".join(
        header + "".join(sorted(re.findall(r"\tchain .*?\n\t}\n", body, re.DOTALL)))
        for header, body in sorted(re.findall(r"(table .*?\n)(.*?)^}\n", listing, re.DOTALL | re.MULTILINE))
    )


def _sorted_tables(save: str) -> str:
    plain = re.sub(r"\[\d+:\d+\]", "", re.sub(r"(?m)^#.*\n", "", save))
    if "nf_tables" not in save:  # a legacy table that is empty stays for ever: the kernel cannot give it back
        plain = re.sub(r"\*\w+\n(:\w+ ACCEPT \n)*COMMIT\n", "", plain)
    return "".join(sorted(re.findall(r"\*.*?COMMIT\n", plain, re.DOTALL)))
