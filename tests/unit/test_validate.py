"""istio-validation's command line, what it plans to prove, and what it costs to start."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_agent import validate
from cni_agent.addresses import has_ipv6
from cni_agent.flags import capture_from_flags
from cni_agent.validation import arguments, landing, pod
from cni_agent.validation.plan import Plan, captured_families
from cni_agent.validation.settings import BadSetting, Settings

STOCK = [  # as Istio's injector writes them
    "istio-iptables", "-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*",
    "-d", "15090,15021,15020", "--log_output_level=default:info", "--run-validation", "--skip-rule-apply",
]  # fmt: skip
BOTH = [*STOCK, "--dual-stack"]
DUAL = {"10.0.0.2": "eth0", "fd00::2": "eth0"}


PROXY, APP = (1337, 1337), (1000, 1000)


def plan(
    *owners: tuple[int, int], argv: list[str], environ: dict[str, str] | None = None, own: dict[str, str] = DUAL
) -> Plan:
    settings = Settings(argv, environ or {})
    return Plan(settings, list(owners), own, ["10.96.0.10", "fd00:96::a"], lambda address: "eth0")


def targets(made: Plan) -> dict[str, tuple[str, int, int | None]]:
    return {probe.name: (*probe.target, probe.lands) for probe in made.probes}


lists_of_ports = st.lists(st.integers(0, 65535).map(str) | st.just(""), max_size=3).map(",".join)
lists_of_ids = st.lists(st.integers(0, 2**32 - 2).map(str), max_size=3).map(",".join)
cidrs = st.lists(st.sampled_from(["10.0.0.0/8", "10.1.2.3/16", "2001:db8::/32", "127.0.0.1/32", "::1/128"]), max_size=3)
some_flags = st.fixed_dictionaries(
    {},
    optional={
        "envoy-port": st.sampled_from(["15001", "16001"]),
        "inbound-capture-port": st.sampled_from(["15006", "16006"]),
        "proxy-uid": lists_of_ids,
        "proxy-gid": lists_of_ids,
        "istio-inbound-interception-mode": st.sampled_from(["", "REDIRECT", "TPROXY"]),
        "istio-inbound-ports": st.just("*") | lists_of_ports,
        "istio-local-exclude-ports": lists_of_ports,
        "istio-outbound-ports": lists_of_ports,
        "istio-local-outbound-ports-exclude": lists_of_ports,
        "istio-service-cidr": st.just("*") | cidrs.map(",".join),
        "istio-service-exclude-cidr": cidrs.map(",".join),
        "istio-exclude-interfaces": st.sampled_from(["", "net1", "net1,net2"]),
        "redirect-dns": st.sampled_from(["true", "0"]),
        "capture-all-dns": st.sampled_from(["T", "false"]),
    },
)
some_variables = st.fixed_dictionaries(
    {},
    optional={
        "INBOUND_CAPTURE_PORT": st.sampled_from(["17006"]),
        "REDIRECT_DNS": st.sampled_from(["true", "false", "perhaps"]),
        "ISTIO_META_DNS_CAPTURE": st.sampled_from(["true", "false", ""]),
        "ISTIO_OUTBOUND_OWNER_GROUPS": st.sampled_from(["*", "", "1000,2000", "java"]),
        "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": st.sampled_from(["", "2000"]),
        "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": st.sampled_from(["127.0.0.1/32", "127.0.0.1/8"]),
        "ENVOY_PORT": st.just("1"),
    },
)


@given(some_flags, some_variables)
def test_settings_are_those_of_the_other_commands(flags: dict[str, str], variables: dict[str, str]) -> None:
    capture = capture_from_flags(
        {f"--{name}": text for name, text in flags.items()}, variables, ipv6=True, resolvers=lambda: ["10.96.0.10"]
    )
    settings = Settings([f"--{name}={text}" for name, text in flags.items()], variables)
    assert settings.outbound_port == capture.outbound_port
    assert settings.inbound_port == capture.inbound_port
    assert (settings.uids, settings.gids) == (capture.proxy_uids, capture.proxy_gids)
    assert settings.mode == capture.mode
    assert ("*" if settings.all_inbound else settings.include_inbound_ports) == capture.include_inbound_ports
    assert settings.exclude_inbound_ports == capture.exclude_inbound_ports
    assert settings.include_outbound_ports == capture.include_outbound_ports
    assert settings.exclude_outbound_ports == capture.exclude_outbound_ports
    assert ("*" if settings.all_addresses else settings.include_cidrs) == capture.include_outbound_cidrs
    assert settings.exclude_cidrs == capture.exclude_outbound_cidrs
    assert settings.exclude_interfaces == capture.exclude_interfaces
    assert ("*" if settings.all_groups else settings.include_groups) == capture.owner_groups_include
    assert settings.exclude_groups == capture.owner_groups_exclude
    assert settings.loopback_v4 == capture.loopback_v4
    assert landing.captures_dns(settings, ["10.96.0.10"]) == capture.dns


@pytest.mark.parametrize("argv", [["-p", "7"], ["-p7"], ["-p=7"], ["--envoy-port", "7"], ["--envoy-port=7"]])
def test_flags_as_pflag_reads_them(argv: list[str]) -> None:
    assert arguments.parse(argv) == {"envoy-port": "7"}


def test_switches_as_pflag_reads_them() -> None:
    assert arguments.parse(["-np", "7", "--reconcile", "--cni-mode=F"]) == {
        "dry-run": "true", "envoy-port": "7", "reconcile": "true", "cni-mode": "F",
    }  # fmt: skip


@pytest.mark.parametrize(
    "argv",
    [["--nonsense"], ["-y"], ["-p"], ["--envoy-port"], ["more"], ["--dry-run=maybe"], ["--probe-timeout=5"],
     ["--probe-timeout", ""], ["--iptables-probe-port=70000"]],
)  # fmt: skip
def test_wrong_usage_exits_as_istio_iptables_does(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main(argv) == 255
    assert "Error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-p", "http"], ("--envoy-port", "'http'")),
        (["-z", "٣"], ("--inbound-capture-port",)),
        (["-u", "istio-proxy"], ("--proxy-uid",)),
        (["-m", "MAGIC"], ("--istio-inbound-interception-mode", "REDIRECT or TPROXY or NONE")),
        (["-x", "10.0.0.1"], ("--istio-service-exclude-cidr", "CIDRs such as")),
        (["-x", "*"], ("--istio-service-exclude-cidr",)),
        (["-d", "1," * 100_000 + "x"], ("--istio-local-exclude-ports", "(200001 characters)")),
        (["--force-iptables-binary", "new"], ("--force-iptables-binary", "legacy or nft")),
    ],
)
def test_a_bad_value_is_named(
    argv: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    assert validate.main([*argv, "--termination-log", str(log)]) == 1
    assert capsys.readouterr().err.strip() == log.read_text()
    assert len(log.read_text()) < 500
    for word in words:
        assert word in log.read_text()


def test_a_bad_loopback_range_is_named() -> None:
    with pytest.raises(BadSetting, match="ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"):
        Settings([], {"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": "10.0.0.0/8"})


def test_variables_that_do_not_parse_count_as_not_set() -> None:
    settings = Settings([], {"PROBE_TIMEOUT": "soon", "IPTABLES_PROBE_PORT": "x", "NATIVE_NFTABLES": "y"})
    assert (settings.timeout, settings.probe_port, settings.native_nftables) == (5.0, 15002, False)


@pytest.mark.parametrize("text", ["", "5", "s", "1x", "1..5s", "1s ", "--1s", "٣s", "1e3s", "1s-1s"])
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError):
        arguments.seconds(text)


def test_mode_none_has_nothing_to_wait_for() -> None:
    assert validate.main(["-m", "NONE"]) == 0


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--help"]) == 0
    assert "--probe-timeout" in capsys.readouterr().out


def test_the_proxys_user_proves_inbound_for_each_family() -> None:
    made = plan(PROXY, argv=BOTH)
    assert targets(made) == {
        "inbound, IPv4": ("127.0.0.6", 15002, 15006),
        "inbound, IPv6": ("::6", 15002, 15006),
    }
    assert [sentence.partition(":")[0] for sentence in made.unprovable] == ["outbound, IPv4", "outbound, IPv6"]


def test_only_the_families_of_the_pod() -> None:
    assert [*targets(plan(PROXY, argv=BOTH, own={"10.0.0.2": "eth0"}))] == ["inbound, IPv4"]
    assert [*targets(plan(PROXY, argv=BOTH, own={"fd00::2": "eth0"}))] == ["inbound, IPv6"]
    assert [*targets(plan(PROXY, argv=STOCK))] == ["inbound, IPv4"]  # the first address decides, as in Istio
    assert [*targets(plan(PROXY, argv=STOCK, own=dict(reversed(DUAL.items()))))] == ["inbound, IPv6", "inbound, IPv4"]
    assert [*targets(plan(PROXY, argv=[*BOTH, "--compatibility=istio"]))] == ["inbound, IPv4"]


@given(
    st.lists(st.sampled_from(["10.0.0.2", "fd00::2", "10.0.0.3", "fd00::3"]), min_size=1, unique=True), st.booleans()
)
def test_the_families_are_those_that_the_agent_programs(addresses: list[str], dual_stack: bool) -> None:
    settings = Settings(["--dual-stack"] if dual_stack else [], {})
    families = captured_families(settings, dict.fromkeys(addresses, "eth0"))
    assert (6 in families) == has_ipv6(addresses, dual_stack=dual_stack)
    assert 4 in families or landing.family(addresses[0]) == 6


def test_a_wide_loopback_range_is_probed_by_the_pods_address() -> None:
    made = plan(PROXY, argv=BOTH, environ={"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR": "127.0.0.1/8"})
    assert targets(made)["inbound, IPv4"] == ("10.0.0.2", 15002, 15006)


def test_an_excluded_probe_port_is_replaced() -> None:
    assert targets(plan(PROXY, argv=[*BOTH, "-o", "15002,15003"]))["inbound, IPv4"] == ("127.0.0.6", 15004, 15006)


def test_tproxy_is_proven_by_what_nat_spares() -> None:
    assert targets(plan(PROXY, argv=[*BOTH, "-m", "TPROXY"]))["inbound by TPROXY, IPv6"] == ("fd00::2", 15008, None)
    excluded = plan(PROXY, argv=[*BOTH, "-m", "TPROXY", "-d", "15008"])
    assert "inbound by TPROXY, IPv6" not in targets(excluded)


def test_another_user_proves_outbound_and_dns() -> None:
    made = plan(APP, argv=BOTH, environ={"ISTIO_META_DNS_CAPTURE": "true"})
    assert targets(made) == {
        "outbound, IPv4": ("192.0.2.1", 15002, 15001),
        "outbound, IPv6": ("2001:db8::1", 15002, 15001),
        "DNS over udp, IPv4": ("10.96.0.10", 53, 15053),
        "DNS over udp, IPv6": ("fd00:96::a", 53, 15053),
        "DNS over tcp, IPv4": ("10.96.0.10", 53, 15053),
        "DNS over tcp, IPv6": ("fd00:96::a", 53, 15053),
    }


def test_root_proves_all() -> None:
    made = plan(PROXY, APP, argv=[*BOTH, "-m", "TPROXY", "--redirect-dns", "--capture-all-dns"])
    assert not made.unprovable
    assert len(made.probes) == 10


def test_outbound_is_probed_inside_the_included_ranges() -> None:
    assert targets(plan(APP, argv=["-i", "10.96.0.0/12"])) == {"outbound, IPv4": ("10.96.0.0", 15002, 15001)}
    assert targets(plan(APP, argv=["-q", "443", "--dual-stack"]))["outbound, IPv6"] == ("2001:db8::1", 443, 15001)


def test_resolvers(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_bytes(
        b"search x\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\nnameserver\n#nameserver 1.1.1.1\n\xff\n"
    )
    assert pod.resolvers(str(file)) == ["10.96.0.10"]
    assert pod.resolvers(str(tmp_path / "absent")) == []


def test_starts_without_what_costs_time() -> None:
    """The stock arguments import nothing that validation has no use for; a regression here delays every pod."""
    program = (
        "import sys; from cni_agent import validate; from cni_agent.validation.settings import Settings;"
        f"Settings({STOCK!r}, {{}}); print(*sys.modules)"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=root, capture_output=True, text=True, timeout=30, check=True
    )
    costly = {"typing", "re", "dataclasses", "argparse", "ipaddress", "click", "json", "logging", "subprocess"}
    assert costly & set(result.stdout.split()) == set()
