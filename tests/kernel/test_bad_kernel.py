"""Kernels and machines that lack something: a clear error each, and nothing left behind."""

import dataclasses
import errno
import os
import re
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cni_agent.backends import Backend, Name, backend
from cni_agent.backends.iptables_nft import IptablesNft
from cni_agent.capture import Capture, Family
from cni_agent.kernel import nf_changes, runner, xtables_socket
from cni_agent.kernel.failure import CommandError, Failure, KernelRefused, NetnsRefused
from cni_agent.kernel.inside import NETLINK_NETFILTER
from cni_agent.kernel.netns import Netns
from cni_agent.kernel.probe import choose_first, probe
from tests.kernel.lacking import Lack, install, under
from tests.kernel.tools import DEFAULT, NAMES, TPROXY, everything, sh

pytestmark = pytest.mark.kernel
NO_NF_TABLES = Lack("socket", errno.EPROTONOSUPPORT, {2: NETLINK_NETFILTER})
NO_LEGACY = Lack("getsockopt", errno.ENOPROTOOPT, {1: socket.SOL_IP, 2: 64})


@pytest.fixture
def pod() -> Iterator[Netns]:
    """A namespace, looked at before and after."""
    with Netns.scratch() as made:
        sh(made, "ip link set lo up")
        before = everything(made)
        yield made
        assert everything(made) == before, "something was left behind"


def minted(program: Backend, capture: Capture = DEFAULT) -> Callable[[Netns], object]:
    """Applies a ruleset that was minted while the kernel was still whole."""
    ruleset = program.ruleset(capture)
    with Netns.scratch() as scratch:
        program.apply(scratch, ruleset)
    return lambda netns: program.apply(netns, ruleset)


def test_without_nf_tables(pod: Netns) -> None:
    apply = minted(backend("iptables-nft"))
    kind, reason, message = under(NO_NF_TABLES, lambda: apply(pod))
    assert (kind, reason) == ("KernelRefused", "no-nf-tables")
    assert "modprobe nf_tables" in message


def test_without_nf_tables_legacy_is_chosen() -> None:
    chosen, verdicts = under(NO_NF_TABLES, choose_first)
    assert chosen == "iptables-legacy"
    assert not verdicts[0].works
    assert verdicts[0].mend.startswith("modprobe -a nf_tables")


def test_without_nf_tables_legacy_works_and_removes(pod: Netns) -> None:
    program = backend("iptables-legacy")
    apply = minted(program, TPROXY)
    assert under(NO_NF_TABLES, lambda: apply(pod)) == "applied"
    assert under(NO_NF_TABLES, lambda: program.check(pod, program.ruleset(TPROXY))) == ()
    assert under(NO_NF_TABLES, lambda: program.remove(pod)) is True


def test_without_legacy(pod: Netns) -> None:
    apply = minted(backend("iptables-legacy"))
    kind, reason, message = under(NO_LEGACY, lambda: apply(pod))
    assert (kind, reason) == ("KernelRefused", "no-legacy")
    assert "modprobe -a iptable_nat" in message


def test_without_legacy_the_doctor_says_so() -> None:
    four, _ = under(NO_LEGACY, lambda: probe("iptables-legacy"))
    assert not four.works
    assert "iptable_nat" in four.mend


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("capture", [DEFAULT, TPROXY], ids=["redirect", "tproxy"])
def test_with_ipv6_off(pod: Netns, name: Name, capture: Capture) -> None:
    sh(pod, "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.lo.disable_ipv6=1")
    program = backend(name)
    with pytest.raises(KernelRefused, match="IPv6 is off") as caught:
        program.apply(pod, program.ruleset(capture))
    assert caught.value.reason == "no-ipv6"
    four = dataclasses.replace(capture, ipv6=False)
    assert program.apply(pod, program.ruleset(four)) == "applied"
    assert program.remove(pod)
    sh(pod, "sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.lo.disable_ipv6=0")


def test_without_an_extension(pod: Netns) -> None:
    """The batch asks for an extension that no kernel has, where it would ask for xt_owner."""
    program = IptablesNft()
    ruleset = program.ruleset(TPROXY)
    stamp = program._mint(ruleset)
    body = stamp.fresh.body.replace(b"owner\0", b"0wner\0")
    program._mint._kept[ruleset] = dataclasses.replace(stamp, fresh=nf_changes.Batch(body, stamp.fresh.last))
    with pytest.raises(KernelRefused, match=r"adding a rule to ip .* uses .*xt_0wner.*lacks") as caught:
        program.apply(pod, ruleset)
    assert caught.value.reason == "missing-in-kernel"


@pytest.mark.parametrize("error", [errno.ENOBUFS, errno.ENOMEM, errno.EPERM])
def test_when_the_kernel_refuses_the_batch(pod: Netns, error: int) -> None:
    program = IptablesNft()
    apply = minted(program, TPROXY)
    size = len(program._mint(program.ruleset(TPROXY)).fresh.framed(1))
    kind, reason, _ = under(Lack("sendto", error, {2: size}), lambda: apply(pod))
    assert (kind, reason) == ("KernelRefused", "not-permitted" if error == errno.EPERM else "no-memory")


def test_when_a_later_legacy_table_is_refused_the_earlier_ones_are_put_back(pod: Netns) -> None:
    """IPv6 is written first; here IPv4 cannot be."""
    apply = minted(backend("iptables-legacy"), TPROXY)
    refuse = Lack("setsockopt", errno.ENOMEM, {1: socket.SOL_IP, 2: 64})
    kind, reason, message = under(refuse, lambda: apply(pod))
    assert (kind, reason) == ("KernelRefused", "no-memory")
    assert "legacy table raw" in message


def test_when_one_table_cannot_be_put_back_the_others_are_and_the_first_error_is_told(
    pod: Netns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPv4's nat table, the last, is refused; then putting back IPv4's mangle table is."""
    apply = minted(backend("iptables-legacy"), TPROXY)
    real = xtables_socket.replace
    tried: list[tuple[int, str]] = []

    def replace(opened: socket.socket, family: Family, table: str, *rest: Any) -> None:
        tried.append((family, table))
        if (family, table) == (4, "nat") or ((family, table) == (4, "mangle") and tried.count((4, "mangle")) == 2):
            raise KernelRefused("no-memory", f"refused {table}", errno.ENOMEM)
        real(opened, family, table, *rest)

    monkeypatch.setattr(xtables_socket, "replace", replace)
    with pytest.raises(KernelRefused, match="refused nat; not put back: ip mangle"):
        apply(pod)
    monkeypatch.undo()
    assert not re.search("ISTIO", sh(pod, "iptables-legacy-save -t raw; ip6tables-legacy-save"))
    assert backend("iptables-legacy").remove(pod)


def test_without_the_right_to_enter(pod: Netns) -> None:
    apply = minted(backend("iptables-nft"))
    kind, reason, message = under(Lack("setns", errno.EPERM, {}), lambda: apply(pod))
    assert (kind, reason) == ("NetnsRefused", "not-permitted")
    assert "CAP_SYS_ADMIN" in message


def test_without_the_right_to_make_a_scratch_namespace() -> None:
    chosen, verdicts = under(Lack("unshare", errno.EPERM, {}), choose_first)
    assert chosen is None
    assert {verdict.mend for verdict in verdicts} == {"run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN"}


def test_a_namespace_that_is_closed_midway() -> None:
    program = backend("iptables-nft")
    pod = Netns.scratch()
    pod.close()
    with pytest.raises(NetnsRefused) as caught:
        program.apply(pod, program.ruleset(DEFAULT))
    assert caught.value.reason == "gone"


@pytest.mark.parametrize(("name", "package"), [("iptables-nft", "iptables"), ("nftables", "nftables")])
def test_without_the_tool(name: Name, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATH", "")
    monkeypatch.setenv("PATH", "/nowhere")
    four, six = probe(name)
    assert not four.works
    assert not six.works
    assert four.mend == f"apt-get install {package}"


def test_a_tool_that_hangs_or_fails() -> None:
    with Netns.scratch() as scratch:
        with pytest.raises(CommandError, match="did not end within") as caught:
            runner.run(["sleep", "30"], netns=scratch, timeout=0.2)
        assert caught.value.reason == "timeout"
        with pytest.raises(CommandError, match="sh ended with 3: too bad"):
            runner.run(["sh", "-c", "echo too bad >&2; exit 3"], netns=scratch)


def test_without_a_process_to_spare_rules_are_not_minted() -> None:
    """The limit of the node, or of the agent's own cgroup: `vfork` says EAGAIN, and so does `fork`, tried then."""

    def mint() -> None:
        install(Lack("clone", errno.EAGAIN, {}))
        minted(IptablesNft())

    kind, reason, message = under(Lack("vfork", errno.EAGAIN, {}), mint)
    assert (kind, reason) == ("CommandError", "system")
    assert "iptables-nft-restore cannot be run: Resource temporarily unavailable" in message


def test_without_a_thread_to_spare() -> None:
    kind, reason, message = under(Lack("clone3", errno.EAGAIN, {}), Netns.scratch)
    assert (kind, reason) == ("Failure", "system")
    assert "cannot start a thread" in message


def test_without_memory_for_a_scratch_namespace() -> None:
    kind, reason, message = under(Lack("unshare", errno.ENOSPC, {}), Netns.scratch)
    assert (kind, reason) == ("Failure", "system")
    assert "No space left" in message


@contextmanager
def no_descriptor_to_spare() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_descriptor_to_spare(pod: Netns) -> None:
    programs = [backend(name) for name in NAMES]
    applies = [minted(program) for program in programs]
    tries: list[Callable[[], object]] = [
        Netns.scratch,
        lambda: Netns.open(f"/proc/self/fd/{pod.fd}"),
        lambda: Netns(os.dup2(pod.fd, spare), "a pod"),
        lambda: runner.run(["true"], netns=pod),
        *(lambda apply=apply: apply(pod) for apply in applies),  # type: ignore[misc]
    ]
    spare = os.dup(0)
    for attempt in tries:
        with no_descriptor_to_spare(), pytest.raises(Failure, match="Too many open files") as caught:
            attempt()
        assert caught.value.reason in ("system", "no-socket")
