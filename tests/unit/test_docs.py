"""The documentation knows what the programs know, and nothing else: words, options, links, the shape of snippets."""

import re
from collections.abc import Set
from pathlib import Path

import click
import pytest
import yaml
from click.shell_completion import BashComplete

from cni_agent.flag_table import FLAGS
from cni_agent.node.outcome import ALARMING, QUIET
from tests import vocabulary
from tests.documents import (
    CONTRIBUTING,
    PAGES,
    README,
    REFERENCE,
    ROOT,
    TROUBLESHOOTING,
    anchors,
    fences,
    links,
    prose,
    rows,
    section,
    spans,
    words,
)

COMMANDS = vocabulary.commands()
CAPTURE = "What to capture"
# What a fence may say it is. Every console is run by a test: see tests/kernel/test_readme.py, tests/e2e/test_readme.py.
KINDS = ("console", "console root", "console ci", "console cluster", "console cluster helm", "yaml", "text")
# Closed sets of words that never leave the programs, or are Kubernetes' and Istio's own.
INTERNAL = {
    "injector.mutation.draft.ListName",
    "injector.config.proxyconfig_schema.Scalar",
    "cni_agent.node.programming.Result",
    "cni_agent.kernel.endings.Ending",
}


def same(documented: Set[str], known: Set[str]) -> None:
    assert not known - documented, f"not in the documentation: {sorted(known - documented)}"
    assert not documented - known, f"in the documentation only: {sorted(documented - known)}"


def options_of(heading: str) -> dict[str, list[str]]:
    """The rows of a table of options, by each option they name."""
    return {name: row for row in rows(section(REFERENCE, heading)) for name in spans(row[0])}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_in_the_reference(name: str) -> None:
    command = COMMANDS[name]
    known = {flag for option in vocabulary.options(command) for flag in option.opts} - {"-h", "--help"}
    takes_capture = "--envoy-port" in known
    documented = set(options_of(name)) | (set(options_of(CAPTURE)) if takes_capture else set())
    same(documented, known)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_variable_its_default_and_its_choices_there(name: str) -> None:
    documented = {**options_of(CAPTURE), **options_of(name)}
    for option in vocabulary.options(COMMANDS[name]):
        row = documented[option.opts[0]]
        if option.envvar is not None:
            assert spans(row[1]) == [option.envvar], row
        if isinstance(option.default, str | int | float) and option.default not in ("", False):
            assert [str(option.default)] == spans(row[2]), row
        if isinstance(option.type, click.Choice):
            assert set(option.type.choices) <= set(spans(" ".join(row))), row


def test_every_flag_of_istio_iptables_has_its_variables_and_its_default_there() -> None:
    documented = options_of(CAPTURE)
    for flag in FLAGS:
        row = documented[f"--{flag.name}"] if flag.name else None
        row = row or next(row for row in rows(section(REFERENCE, CAPTURE)) if flag.environment[0] in spans(row[1]))
        assert tuple(spans(row[1])) == flag.environment, row
        assert spans(row[2]) == ([flag.default] if flag.default else []), row


def test_the_options_of_validation_are_in_the_reference() -> None:
    same(set(options_of("cni-agent validate")) - {"-h"}, vocabulary.flags_of_validation())


def test_every_variable_is_in_the_reference() -> None:
    of_options = {option.envvar for command in COMMANDS.values() for option in vocabulary.options(command)}
    known = vocabulary.variables_read() | vocabulary.variables_of_scripts() | vocabulary.variables_of_istio_iptables()
    assert (known | of_options) - {None} <= set(spans(prose(REFERENCE)))
    others = words(section(REFERENCE, "Other environment variables"))
    assert others <= known, f"in the documentation only: {others - known}"


def test_every_command_has_a_place_in_the_reference_and_one_line_in_help() -> None:
    headings = set(re.findall(r"^### ((?:cni-agent|injector) \w+)$", prose(REFERENCE), re.MULTILINE))
    same(headings, set(COMMANDS) | {"cni-agent validate"})


def test_exit_codes() -> None:
    documented: dict[str, set[str]] = {}
    for row in rows(section(REFERENCE, "Exit codes")):
        documented.setdefault(spans(row[0])[0], set()).add(spans(row[1])[0])
    assert documented.pop("cni-agent validate") == {"0", "1", "126", "255"}
    for name, command in COMMANDS.items():
        said = vocabulary.exit_codes(command)
        assert documented.pop(name) == said or not said, name
    assert not documented


def test_annotations_and_labels() -> None:
    known = vocabulary.annotations()
    documented = {name for name in spans(section(REFERENCE, "Annotations and labels")) if "/" in name and "." in name}
    same(documented - {"default/istio-cni"}, known)


def test_annotations_of_the_readme_are_those_of_the_reference() -> None:
    assert words(section(README, "Annotations")) <= words(section(REFERENCE, "Capture"))


def test_outcomes() -> None:
    same(words(section(REFERENCE, "Outcomes")), vocabulary.outcomes())


def test_reasons() -> None:
    text = section(REFERENCE, "Reasons")
    ours, of_injection = text.split("### Why a pod was injected, or was not")
    same(words(ours), vocabulary.reasons())
    same(words(of_injection), vocabulary.injector_reasons())


def test_which_outcomes_are_told_by_events() -> None:
    said = {spans(row[0])[0]: row[1] for row in rows(section(REFERENCE, "Outcomes"))}
    assert {outcome for outcome, event in said.items() if event == "Warning"} == set(map(str, ALARMING))
    assert {outcome for outcome, event in said.items() if not event} == set(map(str, QUIET))


def test_log_messages() -> None:
    same(words(section(REFERENCE, "Log messages")), vocabulary.log_messages())


def test_metrics_and_their_labels() -> None:
    known = vocabulary.metrics()
    table = rows(section(REFERENCE, "Metrics"))
    same({spans(row[0])[0] for row in table}, set(known))
    for row in table:
        assert set(spans(row[2])) == known[spans(row[0])[0]], row
    assert vocabulary.label_values() <= set(spans(section(REFERENCE, "Metrics")))


def test_alerts() -> None:
    same(words(section(REFERENCE, "Alerts")), vocabulary.alerts())


def test_chart_values() -> None:
    same(words(section(REFERENCE, "Helm values")), vocabulary.chart_values())


def test_closed_sets_of_words() -> None:
    """Every word that a Literal allows is explained somewhere."""
    explained = set(spans(prose(REFERENCE)))
    for name, found in vocabulary.literals().items():
        if name not in INTERNAL:
            assert found <= explained, f"{name}: {sorted(found - explained)}"


def test_json() -> None:
    capture = ("-m", "TPROXY", "-b", "*", "-i", "*")
    rules = vocabulary.json_of_command("rules", *capture, "--format", "json")
    same(words(section(REFERENCE, "JSON of cni-agent rules")), vocabulary.keys(rules))
    explained = vocabulary.json_of_command("explain", *capture, "--to", "10.0.0.1:80", "--json")
    same(words(section(REFERENCE, "JSON of cni-agent explain")), vocabulary.keys(explained))
    same(words(section(REFERENCE, "JSON of cni-agent status")), vocabulary.json_of_status())
    same(words(section(REFERENCE, "JSON of cni-agent doctor")), vocabulary.json_of_doctor())
    lines = vocabulary.json_of_lines("cni_agent/commands/apply.py")
    lines |= vocabulary.json_of_lines("cni_agent/commands/remove.py")
    same(words(section(REFERENCE, "JSON of cni-agent apply and remove")), lines)


def test_the_security_model_names_all_that_the_manifests_ask_for() -> None:
    text = section(README, "Security model")
    agent = yaml.safe_load((ROOT / "daemonset/base/agent-daemonset.yaml").read_text())["spec"]["template"]["spec"]
    (container,) = agent["containers"]
    asked = set(container["securityContext"]["capabilities"]["add"])
    asked |= {mount["mountPath"] for mount in container["volumeMounts"]}
    asked |= {volume["hostPath"]["path"] for volume in agent["volumes"] if "hostPath" in volume}
    asked |= {f"{key}: true" for key in ("hostPID", "hostNetwork", "hostIPC") if agent.get(key)}
    same(words(text.partition("### What they may ask the API server")[0]), asked)
    rules: set[tuple[str, frozenset[str]]] = set()
    for file in ("agent-rbac.yaml", "injector-rbac.yaml"):
        for found in yaml.safe_load_all((ROOT / "daemonset/base" / file).read_text()):
            rules |= {(one, frozenset(rule["verbs"])) for rule in found.get("rules", ()) for one in rule["resources"]}
    granted = rows(text.partition("### What they may ask the API server")[2])
    assert {(spans(row[0])[0], frozenset(spans(row[1]))) for row in granted} == rules


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_of_the_project_exist(page: Path) -> None:
    """What is written as code and looks like a file of ours is one."""
    for span in spans(prose(page)):
        path = span.split()[0].rstrip("/")
        if re.match(r"(scripts|daemonset|tests|cni_agent|injector|\.ci)/", path) and not re.search(r"[*{}A-Z]", path):
            assert (ROOT / path).exists(), f"{page.name}: {span}"
        if path == "scripts/bench" and " " in span:
            assert span in (ROOT / path).read_text(), f"{page.name}: {span}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_fence_says_what_it_is(page: Path) -> None:
    for fence in fences(page):
        assert fence.kind in KINDS, f"{page.name}:{fence.number}: {fence.kind or 'nothing'}"
        if fence.kind.startswith("console"):
            assert fence.lines and fence.lines[0].startswith("$ "), f"{page.name}:{fence.number}"
        if fence.kind == "yaml":
            assert list(yaml.safe_load_all("\n".join(fence.lines))), f"{page.name}:{fence.number}"


def test_the_readme_can_be_read_in_one_sitting() -> None:
    assert len(README.read_text().splitlines()) <= 380
    assert len(CONTRIBUTING.read_text().splitlines()) <= 100


def test_completion_knows_commands_options_and_choices() -> None:
    def offered(program: str, *typed: str) -> set[str]:
        complete = BashComplete(vocabulary.PROGRAMS[program], {}, program, "_COMPLETE")
        return {item.value for item in complete.get_completions(list(typed[:-1]), typed[-1])}

    assert offered("cni-agent", "ru") == {"run", "rules"}
    assert offered("cni-agent", "run", "--drift", "re") == {"repair", "report"}
    assert offered("injector", "serve", "--tls") == {"--tls-cert", "--tls-key"}


def test_what_troubleshooting_is_asked_for_is_there() -> None:
    """Each reason of a refusal or failure that the operator must act on leads to a symptom."""
    found = set(spans(prose(TROUBLESHOOTING)))
    assert {"istio-init", "host-namespace", "unreadable", "no-backend", "126", "InvalidAnnotation"} <= found
