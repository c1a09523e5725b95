"""Every word that the programs take or print, collected from their code: what the documentation has to explain."""

import ast
import functools
import importlib
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from click.testing import CliRunner
from prometheus_client.metrics import MetricWrapperBase

import cni_agent.cli
import injector.cli
from cni_agent.flag_table import FLAGS
from cni_agent.kernel.probe import Verdict, node_facts
from cni_agent.node.metrics import Metrics
from cni_agent.node.nodepod import NodePod
from cni_agent.node.outcome import Outcome
from cni_agent.node.proof import Refusal
from cni_agent.node.status import pods
from cni_agent.podview import PodView
from cni_agent.validation import arguments
from injector.serving.metrics import exposition
from injector.serving.scoreboard import Scoreboard

ROOT = Path(__file__).parents[1]
PROGRAMS: dict[str, click.Group] = {"cni-agent": cni_agent.cli.cli, "injector": injector.cli.cli}
_NAME_OF_METADATA = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z-]+")
# The kernel, a program or a namespace said no: the first argument is the one word for it.
_FAILURES = ("Failure", "NetnsRefused", "KernelRefused", "NotAsWritten", "CommandError")


@functools.cache
def sources() -> list[tuple[Path, ast.Module]]:
    folders = (ROOT / "cni_agent", ROOT / "injector")
    return [(path, ast.parse(path.read_text())) for folder in folders for path in sorted(folder.rglob("*.py"))]


@functools.cache
def calls() -> list[tuple[str, ast.Call]]:
    """Every call in the code, by the last part of what is called."""
    found = [node for _, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(str(getattr(node.func, "attr", None) or getattr(node.func, "id", "")), node) for node in found]


def texts(node: ast.AST) -> set[str]:
    """The strings written in an expression."""
    return {found.value for found in ast.walk(node) if isinstance(found, ast.Constant) and isinstance(found.value, str)}


# Commands, their options and variables


def commands() -> dict[str, click.Command]:
    """All but `cni-agent validate`, which is no click command: it starts in every pod."""
    found: dict[str, click.Command] = {}
    for program, group in PROGRAMS.items():
        context = click.Context(group)
        for name in group.list_commands(context):
            if name == "validate":
                continue
            command = group.get_command(context, name)
            assert command is not None
            found[f"{program} {name}"] = command
    return found


def options(command: click.Command) -> Iterator[click.Option]:
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield parameter


def flags_of_istio_iptables() -> set[str]:
    long = {f"--{flag.name}" for flag in FLAGS if flag.name}
    return long | {f"-{flag.short}" for flag in FLAGS if flag.short}


def flags_of_validation() -> set[str]:
    return {f"--{flag.name}" for flag in arguments.OWN}


def variables_of_istio_iptables() -> set[str]:
    return {variable for flag in FLAGS for variable in flag.environment}


def variables_read() -> set[str]:
    """Variables that the code asks for by name, beside those of options."""
    found: set[str] = set()
    for called, node in calls():
        owner = ast.unparse(node.func) if called == "get" else ""
        if owner.endswith("environ.get") and node.args and isinstance(node.args[0], ast.Constant):
            found.add(str(node.args[0].value))
    return found | {variable for flag in arguments.OWN for variable in flag.environment}


def variables_of_scripts() -> set[str]:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and path.suffix == ""]
    return set(re.findall(r"\bINITLESS_[A-Z]+\b", "\n".join(path.read_text() for path in scripts))) - {
        "INITLESS_E2E",  # between scripts/e2e and its tests
        "INITLESS_KEEP",
    }


def exit_codes(command: click.Command) -> set[str]:
    """Those that its help names."""
    said = re.sub(r"\s+", " ", f"{command.help} {command.epilog or ''}").partition("Exit codes:")[2]
    return set(re.findall(r"(?:^|; |and |also )(\d+) ", said.strip()))


# Words


def annotations() -> set[str]:
    """Names of annotations and labels, wherever the code has them."""
    found: set[str] = set()
    for _, tree in sources():
        found |= {text for text in texts(tree) if _NAME_OF_METADATA.fullmatch(text)}
    return {text for text in found if not text.startswith(("admission.k8s.io/", "registry.istio.io/"))}


@functools.cache
def literals() -> dict[str, set[str]]:
    """The closed sets of words, by module and name."""
    found = {}
    for path, tree in sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in tree.body:
            target = getattr(node, "target", None) or next(iter(getattr(node, "targets", [])), None)
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(value, ast.Subscript) and "Literal" in ast.dump(value.value):
                words = typing.get_args(getattr(importlib.import_module(module), target.id))
                found[f"{module}.{target.id}"] = {word for word in words if isinstance(word, str)}
    return found


def outcomes() -> set[str]:
    return set(map(str, Outcome))


def reasons() -> set[str]:
    """The second word of a verdict, and the word of a failure."""
    found = {str(refusal) for refusal in Refusal} | literals()["cni_agent.decision.Reason"]
    for called, node in calls():
        position = 1 if called == "Verdict" else 0 if called in _FAILURES else None
        if position is not None and len(node.args) > position:
            found |= _words(node.args[position])
    for path, tree in sources():
        if path.parts[-2] != "injector":
            found |= _named(tree, "reasons") | _named(tree, "_STARTING") | _named(tree, "_ENDED")
    return found


def _words(node: ast.AST) -> set[str]:
    """What of an expression can be a reason; a pod's phase is written in small letters there."""
    return {text.lower() for text in texts(node) if re.fullmatch(r"[A-Za-z][a-z0-9-]*", text)}


def _named(tree: ast.Module, name: str) -> set[str]:
    """The words in values given to a name."""
    found: set[str] = set()
    for node in ast.walk(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == name and value is not None:
            found |= _words(value)
    return found


def injector_reasons() -> set[str]:
    found = set(literals()["injector.mutation.decision.Reason"])
    for called, node in calls():
        if called in ("_failure", "_answer") and len(node.args) > 3:
            found |= _words(node.args[2])
    return found - literals()["injector.admission.Outcome"]


def log_messages() -> set[str]:
    found: set[str] = set()
    for called, node in calls():
        owner = ast.unparse(node.func).split(".")[0]
        if owner in ("log", "logger") and called in ("debug", "info", "warning", "error", "critical", "exception"):
            assert isinstance(node.args[0], ast.Constant), f"not a constant message: {ast.unparse(node)}"
            found.add(str(node.args[0].value))
    return found


def metrics() -> dict[str, set[str]]:
    """The names that a scrape has, with their labels; those of the process itself are the client library's."""
    agent = Metrics("iptables-nft", lambda: ())
    lines = exposition(Scoreboard(1)).decode().splitlines() + agent.text().decode().splitlines()
    found: dict[str, set[str]] = {}
    for line in lines:
        kind = re.fullmatch(r"# TYPE (\S+) (\S+)", line)
        if kind and not kind[1].startswith("process_") and not kind[1].endswith("_created"):
            found[kind[1]] = set()
    for line in lines:
        sample = re.match(r"(\w+?)(?:_bucket)?\{(.*)\} ", line)
        if sample and sample[1] in found:
            found[sample[1]] |= set(re.findall(r"(\w+)=", sample[2])) - {"le"}
    for metric in vars(agent).values():  # one that has not counted yet shows no labels in a scrape
        if isinstance(metric, MetricWrapperBase):
            family = next(iter(metric.describe()))
            found[f"{family.name}_total" if family.type == "counter" else family.name] |= set(metric._labelnames)
    return found


def label_values() -> set[str]:
    """Values of labels that are written where they are counted."""
    found: set[str] = set()
    for called, node in calls():
        if called == "labels":
            found |= {text for argument in node.args for text in texts(argument)}
    return found | literals()["cni_agent.node.podwatch.End"] | literals()["cni_agent.node.events.Result"]


def alerts() -> set[str]:
    rules = yaml.safe_load((ROOT / "daemonset/chart/files/alerts/alerts.yaml").read_text())
    return {rule["alert"] for group in rules["spec"]["groups"] for rule in group["rules"]}


def chart_values() -> set[str]:
    """The keys of the chart's values; below resources and the like everything is Kubernetes' own."""

    def paths(value: Any, path: str) -> Iterator[str]:
        opaque = path.endswith(("resources", "labels"))
        if isinstance(value, dict) and value and not opaque:
            for key, inner in value.items():
                yield from paths(inner, f"{path}.{key}" if path else key)
        else:
            yield path

    return set(paths(yaml.safe_load((ROOT / "daemonset/chart/values.yaml").read_text()), ""))


# JSON


def keys(document: Any, path: str = "") -> set[str]:
    """The paths of a document's keys: `pods[].name`."""
    if isinstance(document, list):
        return {found for item in document for found in keys(item, f"{path}[]")}
    if not isinstance(document, dict):
        return set()
    own = {f"{path}.{key}".lstrip(".") for key in document}
    return own | {found for key, value in document.items() for found in keys(value, f"{path}.{key}".lstrip("."))}


def json_of_command(*argv: str) -> Any:
    done = CliRunner().invoke(PROGRAMS["cni-agent"], argv)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def json_of_status() -> set[str]:
    record = NodePod("uid", PodView("name", "namespace", "uid"))
    return keys(dict.fromkeys(_returned("cni_agent/node/agent.py", "_snapshot")) | {"pods": pods([record])})


def json_of_doctor() -> set[str]:
    verdict = dict.fromkeys(Verdict.__dataclass_fields__)
    return keys({"chosen": None, **dict(node_facts()), "backends": [verdict]})


def json_of_lines(module: str) -> set[str]:
    """The keys of the line that a command prints."""
    tree = ast.parse((ROOT / module).read_text())
    return {key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in _keys(node)}


def _returned(module: str, function: str) -> set[str]:
    tree = ast.parse((ROOT / module).read_text())
    (found,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == function]
    (returned,) = [node.value for node in found.body if isinstance(node, ast.Return)]
    assert isinstance(returned, ast.Dict)
    return _keys(returned)


def _keys(node: ast.Dict) -> set[str]:
    return {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
