"""The webhook configuration: its entries are the stock ones under our names, and select the same pods."""

from typing import Any

import pytest

from injector.config.selectors import matches, selector
from injector.webhook_configuration import SUFFIX, Target, webhook_configuration
from tests.injector.conformance import load, needs_conformance

CONFIGURATIONS = {
    "install revision='' (label value default)": webhook_configuration("", "", Target()),
    "install revision='' + enableNamespacesByDefault": webhook_configuration(
        "default", "", Target(enable_namespaces_by_default=True)
    ),
    "install revision='canary'": webhook_configuration("canary", "", Target()),
    "tag 'prod' -> canary": webhook_configuration("canary", "prod", Target()),
    "tag 'default' -> canary": webhook_configuration("canary", "default", Target()),
}


def entries(configuration: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["name"].removesuffix(f".{SUFFIX}"): entry for entry in configuration["webhooks"]}


@needs_conformance
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_selectors_are_the_stock_ones(name: str) -> None:
    expected = {
        entry.removesuffix(".sidecar-injector.istio.io"): (selectors["ns"], selectors["obj"])
        for entry, selectors in load("webhook_selectors.json")["entries"][name].items()
    }

    def conditions(expressions: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return [(item["key"], item["operator"], sorted(item.get("values", []))) for item in expressions]

    ours = {
        prefix: (entry["namespaceSelector"]["matchExpressions"], entry["objectSelector"]["matchExpressions"])
        for prefix, entry in entries(CONFIGURATIONS[name]).items()
    }
    assert ours.keys() == expected.keys()
    for prefix, (namespace, pod) in expected.items():
        assert conditions(ours[prefix][0]) == conditions(namespace)
        assert conditions(ours[prefix][1]) == conditions(pod)


@needs_conformance
def test_every_combination_of_labels() -> None:
    rows = load("webhook_selectors.json")["matrix"]
    assert len(rows) == 960
    for row in rows:
        namespace = {"istio-injection": row["ns istio-injection"], "istio.io/rev": row["ns istio.io/rev"]}
        pod = {"sidecar.istio.io/inject": row["pod inject"], "istio.io/rev": row["pod istio.io/rev"]}
        fires = [
            prefix
            for prefix, entry in entries(CONFIGURATIONS[row["config"]]).items()
            if matches(selector(entry["namespaceSelector"]), _present(namespace))
            and matches(selector(entry["objectSelector"]), _present(pod))
        ]
        assert fires == row["fires"], row


def _present(labels: dict[str, str | None]) -> dict[str, str]:
    return {"kubernetes.io/metadata.name": "demo", **{key: value for key, value in labels.items() if value is not None}}


@pytest.mark.parametrize("configuration", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_istiod_leaves_it_alone(configuration: dict[str, Any]) -> None:
    """istiod patches entries of this name in configurations with this label, and reads tags from them."""
    assert not any(label.startswith("istio.io/") for label in configuration["metadata"]["labels"])
    for entry in configuration["webhooks"]:
        assert not entry["name"].endswith("sidecar-injector.istio.io")
        assert entry["failurePolicy"] == "Fail"
        assert entry["clientConfig"]["service"]["path"] == "/inject"
    assert len({entry["name"] for entry in configuration["webhooks"]}) == len(configuration["webhooks"])
