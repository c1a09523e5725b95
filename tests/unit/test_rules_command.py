"""`cni-agent rules` as people and scripts call it: its flags, variables, exit codes and messages."""

import json
import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cni_agent import names
from cni_agent.cli import cli
from cni_agent.rules import from_json
from tests.pods import pod

DOCUMENTED = shlex.split("-p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -x '' -b '*' -d 15090,15021,15020")


def rules(*args: str, stdin: str | bytes = "", **environ: str) -> Result:
    return CliRunner().invoke(cli, ["rules", *args], input=stdin, env=environ)


def test_the_line_of_istios_documentation_works() -> None:
    result = rules(*DOCUMENTED)
    assert result.exit_code == 0
    assert "-A ISTIO_INBOUND -p tcp --dport 15021 -j RETURN\n" in result.stdout
    assert result.stdout.endswith("-A ISTIO_OUTPUT -j ISTIO_REDIRECT\nCOMMIT\n")


def test_arguments_that_the_injector_writes_are_understood() -> None:
    written = [
        "--log_output_level=default:info",
        "--log_as_json",
        "--run-validation",
        "--skip-rule-apply",
        "--native-nftables",
    ]
    assert rules(*DOCUMENTED, *written).stdout == rules(*DOCUMENTED).stdout


@pytest.mark.parametrize(
    ("given", "environ", "port"),
    [
        ([], {}, "15006"),
        ([], {"INBOUND_CAPTURE_PORT": "16006"}, "16006"),
        (["-z", "17006"], {"INBOUND_CAPTURE_PORT": "16006"}, "17006"),
        (["--inbound-capture-port=18006"], {}, "18006"),
    ],
)
def test_a_flag_beats_the_environment(given: list[str], environ: dict[str, str], port: str) -> None:
    assert f"-A ISTIO_IN_REDIRECT -p tcp -j REDIRECT --to-ports {port}\n" in rules(*given, **environ).stdout


@pytest.mark.parametrize(
    ("given", "environ", "on"),
    [
        ([], {"DROP_INVALID": "true"}, True),
        ([], {"INVALID_DROP": "false", "DROP_INVALID": "true"}, False),  # the additional variable wins
        ([], {"INVALID_DROP": "perhaps", "DROP_INVALID": "true"}, True),  # what does not parse is not set
        (["--drop-invalid"], {"INVALID_DROP": "false"}, True),
        (["--drop-invalid=false"], {"INVALID_DROP": "true"}, False),
        (["--drop-invalid=T"], {}, True),
    ],
)
def test_booleans_by_istios_precedence(given: list[str], environ: dict[str, str], on: bool) -> None:
    assert ("ISTIO_DROP" in rules(*given, **environ).stdout) == on


def test_envoy_port_has_no_variable() -> None:
    assert "--to-ports 15001\n" in rules(ENVOY_PORT="16001").stdout


def test_group_defaults_to_the_user_and_the_user_to_1337() -> None:
    assert "--gid-owner 42 " in rules("-u", "42").stdout
    assert "--uid-owner 1337 " in rules(ENVOY_USER="nobody-of-this-name").stdout
    assert "--uid-owner 0 " not in rules(ENVOY_USER="root").stdout or os.getuid() == 0


def test_resolvers_come_from_resolv_conf(tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text("# one\nsearch x\nnameserver 10.96.0.10\nnameserver not-an-address\nnameserver fd00::a\n")
    result = rules("--redirect-dns", "--resolv-conf", str(conf))
    assert "-p udp --dport 53 -d 10.96.0.10/32 -j REDIRECT --to-port 15053\n" in result.stdout
    assert "fd00::a" not in result.stdout
    six = rules("--redirect-dns", "--resolv-conf", str(conf), "--ipv6", "--family", "6").stdout
    assert "-p tcp --dport 53 -d fd00::a/128 -j REDIRECT --to-ports 15053\n" in six


def test_unreadable_resolv_conf_is_an_error_only_when_it_matters(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    assert rules("--redirect-dns", "--capture-all-dns", "--resolv-conf", missing).exit_code == 0
    refused = rules("--redirect-dns", "--resolv-conf", missing)
    assert refused.exit_code == 2
    assert missing in refused.stderr


def test_resolvers_of_a_family_that_the_pod_lacks_leave_no_jump(tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text("nameserver fd00::a\n")
    text = rules("--redirect-dns", "--resolv-conf", str(conf), "--format", "nft").stdout
    assert "add rule inet istio-proxy-nat istio-output counter jump istio-output-dns" not in text
    assert "fd00::a" not in text


def test_json_is_the_ruleset() -> None:
    result = rules(*DOCUMENTED, "--ipv6", "--format", "json")
    assert json.loads(result.stdout)["version"] == 1
    assert from_json(result.stdout.encode()).families == (4, 6)


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["json", "yaml"])
def test_a_pod_from_a_file_or_from_stdin(tmp_path: Path, write: Any) -> None:
    manifest = pod({names.STATUS: "{}", names.EXCLUDE_OUTBOUND_PORTS: "3306, 6379"})
    manifest["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    manifest["status"] = {"podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}], "startTime": "2026-01-01T00:00:00Z"}
    path = tmp_path / "pod"
    path.write_text(write(manifest))
    from_file, from_stdin = rules("--pod", str(path)), rules("--pod", "-", stdin=write(manifest))
    assert from_file.exit_code == from_stdin.exit_code == 0, from_file.output
    assert from_file.stdout == from_stdin.stdout
    assert "-A ISTIO_OUTPUT -p tcp --dport 6379 -j RETURN\n" in from_file.stdout


def test_the_pods_own_addresses_decide_on_ipv6() -> None:
    manifest = pod(proxy={"env": [{"name": "ISTIO_DUAL_STACK", "value": "true"}]})
    manifest["status"] = {"podIPs": [{"ip": "10.0.0.9"}, {"ip": "fd00::9"}]}
    assert "ip6 daddr" in rules("--pod", "-", "--format", "nft", stdin=json.dumps(manifest)).stdout


@pytest.mark.parametrize(
    ("manifest", "word"),
    [
        (pod(hostNetwork=True), "host-network"),
        (pod({}), "not-injected"),
        (pod(containers=("app",)), "no-proxy"),
        (pod(init_containers=("istio-init",)), "istio-init"),
        (pod(labels={names.INJECT: "false"}), "inject-false"),
        (pod(proxy={"args": ["proxy", "router"]}), "not-a-sidecar"),
        (pod(proxy={"env": [{"name": "DISABLE_ENVOY", "value": "true"}]}), "envoy-disabled"),
        (pod({names.STATUS: "{}", names.INTERCEPTION_MODE: "NONE"}), "mode-none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pod_that_is_not_captured(manifest: dict[str, Any], word: str) -> None:
    result = rules("--pod", "-", stdin=json.dumps(manifest))
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith(f"{word}: ")
    assert result.stderr.count("\n") == 1


def test_pod_and_flags_do_not_mix() -> None:
    result = rules("--pod", "-", "-b", "80", stdin=json.dumps(pod()))
    assert result.exit_code == 2
    assert "--istio-inbound-ports" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "0 documents"),
        ("a: b: c", "valid YAML"),
        ("{", "valid JSON"),
        ("[1, 2]", "list"),
        ("kind: Deployment", "kubectl get pod"),
        ("metadata: {name: 7}", "$.metadata.name"),
        ("metadata: {annotations: {sidecar.istio.io/status: 1}}", "$.metadata.annotations"),
        ("spec: {containers: [{args: [proxy]}]}", "$.spec.containers[0]"),
        ("kind: Pod\n---\nkind: Pod\n", "2 documents"),
        ("[" * 5000, "100 levels"),
        ('{"a":' * 20000, "JSON"),
        ("a: &a [x]\nb: [*b]", "YAML"),
        ("\x00", "YAML"),
        ("x: " + "y" * (9 << 20), "8388608 bytes"),
    ],
    ids=lambda value: value[:20],
)
def test_a_bad_manifest_is_refused(text: str, words: str) -> None:
    result = rules("--pod", "-", stdin=text)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert words in result.stderr
    assert len(result.stderr) < 1000


def test_the_text_depends_on_nothing_but_the_settings() -> None:
    program = [sys.executable, "-m", "cni_agent", "rules", *DOCUMENTED, "--ipv6", "--format"]
    for form in ("restore", "nft", "json"):
        texts = set()
        for seed, locale in (("0", "C"), ("1", "tr_TR.UTF-8"), ("2", "de_DE.UTF-8")):
            environ = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale}
            texts.add(subprocess.run([*program, form], env=environ, capture_output=True, check=True).stdout)
        assert len(texts) == 1


def test_nothing_heavy_is_imported() -> None:
    code = "import sys; from cni_agent.cli import cli; cli(['rules'], standalone_mode=False); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"kubernetes", "aiohttp", "pyroute2", "iptc", "prometheus_client", "asyncio"} & set(modules)


def test_it_answers_in_under_three_tenths_of_a_second_of_cpu() -> None:
    """CPU time, the least of five: wall time would measure the machine's other work."""

    def cpu() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "cni_agent", "rules", *DOCUMENTED], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu() for _ in range(5)) < 0.3
