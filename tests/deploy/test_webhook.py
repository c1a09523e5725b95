"""The webhook configuration of the manifests is the one that `injector webhook` prints."""

import pytest

from injector.webhook_configuration import Target, webhook_configuration
from tests.deploy.rendering import DAEMONSET, Object, Objects, helm, kustomize

KIND = "MutatingWebhookConfiguration"


def assert_printed(rendered: Object, printed: Object) -> None:
    assert rendered["webhooks"] == printed["webhooks"]
    assert rendered["metadata"]["name"] == printed["metadata"]["name"]
    assert printed["metadata"]["labels"].items() <= rendered["metadata"]["labels"].items()


@pytest.mark.parametrize("rendered", [lambda: kustomize(DAEMONSET / "base"), helm], ids=["kustomize", "helm"])
def test_the_default_revision(rendered: object) -> None:
    assert callable(rendered)
    objects: Objects = rendered()
    assert_printed(objects[KIND, "", "initless-injector"], webhook_configuration("default", "", Target()))


def test_namespaces_by_default() -> None:
    found = helm("--set", "enableNamespacesByDefault=true")[KIND, "", "initless-injector"]
    assert_printed(found, webhook_configuration("default", "", Target(enable_namespaces_by_default=True)))


def test_a_revision_and_its_tags() -> None:
    objects = helm("--set", "revision=canary,tags={prod,default}")
    target = Target(service="initless-injector-canary")
    for name, tag in (
        ("initless-injector-canary", ""),
        ("initless-revision-tag-prod", "prod"),
        ("initless-revision-tag-default", "default"),
    ):
        assert_printed(objects[KIND, "", name], webhook_configuration("canary", tag, target))
    # and its CA is written into all of them
    rules = objects["ClusterRole", "", "initless-injector-canary"]["rules"]
    assert [rule["resourceNames"] for rule in rules if "resourceNames" in rule] == [
        ["initless-injector-canary", "initless-revision-tag-prod", "initless-revision-tag-default"]
    ]


def test_what_can_be_said_of_the_webhook() -> None:
    words = "path=/inject/cluster/one/net/two,injector.webhook.reinvocationPolicy=IfNeeded"
    found = helm("--set", f"injector.webhook.{words}")[KIND, "", "initless-injector"]
    target = Target(path="/inject/cluster/one/net/two", reinvocation_policy="IfNeeded")
    assert_printed(found, webhook_configuration("default", "", target))
    found = helm("--set", "injector.webhook.timeoutSeconds=5")[KIND, "", "initless-injector"]
    assert {entry["timeoutSeconds"] for entry in found["webhooks"]} == {5}
