"""Lists in which one key stands twice, as Kubernetes allows: nothing of them is lost."""

from typing import Any

import pytest

from injector.mutation.merge import merged
from injector.settings import load_settings
from tests.injector.conformance import patched


def env(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value} for name, value in pairs]}


OWN = (("A", "1"), ("B", "$(A)"), ("A", "2"))
CASES: dict[str, tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]] = {
    "itself": (OWN, OWN),
    "one of them": ((("A", "x"),), (("A", "x"), ("B", "$(A)"), ("A", "2"))),
    "another": ((("N", "n"),), (("N", "n"), *OWN)),
    "more of them": ((*OWN, ("A", "3")), (("A", "1"), ("B", "$(A)"), ("A", "3"))),
}


@pytest.mark.parametrize(("overlay", "expected"), CASES.values(), ids=CASES.keys())
def test_the_second_is_put_on_the_second(overlay: Any, expected: Any) -> None:
    assert merged(env(*OWN), env(*overlay)) == env(*expected)


def test_what_only_the_overlay_has_twice_is_there_once() -> None:
    """As the library has it: of our templates and of `proxyMetadata` the last word counts."""
    assert merged(env(("A", "0")), env(*OWN)) == env(("A", "2"), ("B", "$(A)"))


@pytest.mark.parametrize("native", ["true", "false"])
@pytest.mark.parametrize("compatibility", ["initless", "istio"])
def test_a_proxy_that_serves_quic_keeps_both_ports(native: Any, compatibility: Any) -> None:
    ports = [{"containerPort": 443, "protocol": "TCP"}, {"containerPort": 443, "protocol": "UDP"}]
    pod: Any = {
        "metadata": {"name": "web"},
        "spec": {
            "containers": [{"name": "app", "image": "a"}, {"name": "istio-proxy", "image": "auto", "ports": ports}]
        },
    }
    settings = load_settings(native_sidecars=native, compatibility=compatibility)
    for _ in range(2):  # and the same again, when it is injected once more
        pod = patched(pod, settings)
        (proxy,) = (
            each
            for each in (*pod["spec"]["initContainers"], *pod["spec"]["containers"])
            if each["name"] == "istio-proxy"
        )
        assert [port for port in proxy["ports"] if port["containerPort"] == 443] == ports
