"""Pods for tests, as the API would give them."""

from typing import Any

from cni_agent import names


def pod(
    annotations: dict[str, str] | None = None,
    *,
    containers: tuple[str, ...] = ("app", names.PROXY_CONTAINER),
    init_containers: tuple[str, ...] = (),
    labels: dict[str, str] | None = None,
    proxy: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """An injected pod; `proxy` adds fields to its istio-proxy container, wherever that is."""

    def container(name: str) -> dict[str, Any]:
        return {"name": name, **(proxy or {})} if name == names.PROXY_CONTAINER else {"name": name}

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-0",
            "namespace": "shop",
            "uid": "5b9f2c6a-0d3c-4c55-9d5c-2f6f0f7a1b11",
            "annotations": {names.STATUS: "{}"} if annotations is None else annotations,
            "labels": labels or {},
        },
        "spec": {
            "containers": [container(name) for name in containers],
            "initContainers": [container(name) for name in init_containers],
            **spec,
        },
    }
