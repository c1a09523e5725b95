"""`injector inject` and `injector webhook`, as people run them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from cni_agent.values import Refused
from injector.cli import cli
from injector.config import yamltext
from injector.settings import load_settings
from tests.injector.conformance import normal, patched

TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "a"}]}}
KINDS: dict[str, tuple[str, Any]] = {
    "Deployment": ("apps/v1", {"spec": {"replicas": 2, "template": TEMPLATE}}),
    "StatefulSet": ("apps/v1", {"spec": {"template": TEMPLATE}}),
    "DaemonSet": ("apps/v1", {"spec": {"template": TEMPLATE}}),
    "ReplicaSet": ("apps/v1", {"spec": {"template": TEMPLATE}}),
    "ReplicationController": ("v1", {"spec": {"template": TEMPLATE}}),
    "Job": ("batch/v1", {"spec": {"template": TEMPLATE}}),
    "CronJob": ("batch/v1", {"spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": TEMPLATE}}}}),
    "DeploymentConfig": ("apps.openshift.io/v1", {"spec": {"template": TEMPLATE}}),
    "Rollout": ("argoproj.io/v1alpha1", {"spec": {"template": TEMPLATE}}),
    "PodTemplate": ("v1", {"template": TEMPLATE}),
    "Pod": ("v1", TEMPLATE),
}


def run(*args: str, given: str = "") -> Result:
    return CliRunner().invoke(cli, list(args), input=given)


def workload(kind: str) -> dict[str, Any]:
    version, rest = KINDS[kind]
    made = {"apiVersion": version, "kind": kind, **rest}
    return {**made, "metadata": {**rest.get("metadata", {}), "name": "web"}}


def template(document: Any) -> Any:
    if document["kind"] == "Pod":
        return document
    if document["kind"] == "PodTemplate":
        return document["template"]
    spec = document["spec"]
    return spec["jobTemplate"]["spec"]["template"] if document["kind"] == "CronJob" else spec["template"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: str) -> None:
    given = workload(kind)
    result = run("inject", "-f", "-", given=yaml.safe_dump(given))
    assert result.exit_code == 0, result.output
    output = yaml.safe_load(result.stdout)
    pod = template(output)
    proxy = next(container for container in pod["spec"]["containers"] if container["name"] == "istio-proxy")
    env = {variable["name"]: variable.get("value") for variable in proxy["env"]}
    if kind != "PodTemplate":
        assert env["ISTIO_META_WORKLOAD_NAME"] == "web"
        owner = f"kubernetes://apis/{given['apiVersion']}/namespaces/default/{kind.lower()}s/web"
        assert env["ISTIO_META_OWNER"] == owner
    assert "generateName" not in pod["metadata"]
    assert "ownerReferences" not in pod["metadata"]
    again = run("inject", "-f", "-", given=result.stdout)
    assert yaml.safe_load(again.stdout) == output


def test_offline_is_the_webhook() -> None:
    pod = workload("Pod")
    result = run("inject", "-f", "-", "--native-sidecars", "true", "--namespace", "demo", given=yaml.safe_dump(pod))
    assert normal(yaml.safe_load(result.stdout)) == normal(
        patched(pod, load_settings(native_sidecars="true"), namespace="demo")
    )


OTHERS = """# a comment
apiVersion: v1
kind: ConfigMap   # spaces stay
metadata: {name: "y", labels: {a: 1e3, port: 22:22}}
data:
  text: |
    a
     b
"""


def test_what_has_no_pod_comes_out_letter_by_letter() -> None:
    text = f"{OTHERS}---\n{yaml.safe_dump(workload('Deployment'))}---\n{OTHERS}"
    result = run("inject", "-f", "-", given=text)
    assert result.stdout.startswith(f"{OTHERS}---\n")
    assert result.stdout.endswith(f"---\n{OTHERS}")
    assert len(list(yaml.safe_load_all(result.stdout))) == 3


def test_lists_and_json() -> None:
    service = {"kind": "Service", "spec": {"ports": [{"port": 80}]}}
    inner = {"kind": "List", "items": [workload("Deployment"), service]}
    given = {"apiVersion": "v1", "kind": "List", "items": [inner, workload("Pod"), "odd"]}
    result = run("inject", "-f", "-", given=json.dumps(given))
    output = yaml.safe_load(result.stdout)
    assert output["items"][0]["items"][1] == service
    assert output["items"][2] == "odd"
    for pod in (template(output["items"][0]["items"][0]), output["items"][1]):
        assert [container["name"] for container in pod["spec"]["containers"]] == ["app", "istio-proxy"]


def test_what_is_left_out_is_said() -> None:
    pod = workload("Pod")
    pod["spec"] = {**pod["spec"], "hostNetwork": True}
    text = yaml.safe_dump(pod)
    result = run("inject", "-f", "-", given=text)
    assert result.exit_code == 0
    assert result.stdout == text
    assert "Pod web: not injected (host-network)" in result.stderr


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: [", "valid YAML"),
        ("kind: Deployment\nmetadata: {name: web}", "Deployment web"),
        ("kind: Pod\nspec: {containers: 5}", "valid pod template"),
        (
            "kind: Pod\nmetadata: {annotations: {sidecar.istio.io/interceptionMode: X}}\nspec: {containers: []}",
            "interceptionMode",
        ),
        ("a: &a [*a]", "aliases"),
    ],
)
def test_bad_manifests_are_refused_and_nothing_is_printed(text: str, word: str) -> None:
    result = run("inject", "-f", "-", given=f"{yaml.safe_dump(workload('Pod'))}---\n{text}\n")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert word in result.stderr


def test_settings_come_from_files(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("global: {hub: example.org/istio, tag: 1.29}\n")
    result = run("inject", "-f", "-", "--values", str(values), given=yaml.safe_dump(workload("Pod")))
    assert "example.org/istio/proxyv2:1.29" in result.stdout
    values.write_text("global: {proxy: {privileged: 5}}\n")
    result = run("inject", "-f", "-", "--values", str(values), given=yaml.safe_dump(workload("Pod")))
    assert result.exit_code == 2
    assert "privileged" in result.stderr


def test_aliases_do_not_share() -> None:
    text = yaml.safe_dump(workload("Pod")).replace(
        "- image: a\n    name: app", "- &x {image: a, name: app}\n  - {<<: *x, name: b}"
    )
    result = run("inject", "-f", "-", given=text)
    assert result.exit_code == 0, result.stderr
    assert [container["name"] for container in yaml.safe_load(result.stdout)["spec"]["containers"]][:2] == ["app", "b"]
    assert "&" not in result.stdout.replace("&&", "")


def test_alias_bombs_are_refused() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(Refused, match="values"):
        yamltext.one("\n".join(levels))


@pytest.mark.parametrize(
    "text",
    [
        "1e3",
        "0x1f",
        "22:22",
        "yes",
        "y",
        "null",
        "~",
        "-",
        "",
        " a",
        "a: b",
        "a #b",
        "2024-01-01",
        "{a",
        "1_0",
        ".5",
        "é",
    ],
)
def test_text_is_read_back_as_text(text: str) -> None:
    assert yaml.safe_load(yamltext.written({"a": text, text: 1})) == {"a": text, text: 1}
    assert yamltext.one(yamltext.written([text])) == [text]


def test_multi_line_text_stays_readable() -> None:
    assert yamltext.written({"a": "x\ny: z\n"}) == "a: |\n  x\n  y: z\n"


def test_webhook_prints_a_configuration(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n")
    result = run("webhook", "--revision", "1-29", "--ca-bundle", str(bundle), "--service", "s", "--namespace", "n")
    configuration = yaml.safe_load(result.stdout)
    assert configuration["metadata"]["name"] == "initless-injector-1-29"
    client = configuration["webhooks"][0]["clientConfig"]
    assert client["service"] == {"name": "s", "namespace": "n", "path": "/inject", "port": 443}
    assert client["caBundle"]


@pytest.mark.parametrize(
    "args", [("--revision", "A_B"), ("--url", "http://x"), ("--path", "/other"), ("--ca-bundle", "/does/not/exist")]
)
def test_webhook_refuses_what_the_api_server_would(args: tuple[str, ...]) -> None:
    result = run("webhook", *args)
    assert result.exit_code != 0
    assert result.stdout == ""
