"""The ProxyConfig of one pod: mesh-wide, then ProxyConfig objects, then the pod's annotation."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from cni_agent.values import Refused
from injector.config import proxyconfig, proxyconfig_check, yamltext
from injector.config.proxyconfig import ProxyConfig
from injector.facts import ClusterFacts
from injector.settings import Settings

ANNOTATION: Final = "proxy.istio.io/config"
_CACHED: Final = 4096  # characters; longer ones are rare, and would make the cache heavy


def effective(
    settings: Settings,
    facts: ClusterFacts,
    namespace: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
) -> ProxyConfig:
    """The layers, lowest first; a more specific object wins over the annotation, as in Istio."""
    default = settings.mesh.default_config
    if ANNOTATION not in annotations and not facts.proxy_configs:
        return default
    layers = [default]
    root = settings.mesh.root_namespace
    if root:
        layers += _first(_of_namespace(facts, root))
    if namespace != root:
        layers += _first(_of_namespace(facts, namespace))
    if ANNOTATION in annotations:
        layers.append(from_annotation(annotations[ANNOTATION]))
    layers += _first(_of_workload(facts, namespace, labels))
    return proxyconfig.layered(layers)


def hold(settings: Settings, annotations: Mapping[str, str]) -> bool:
    """Whether the proxy is put before the application. ProxyConfig objects are not asked here, as in Istio."""
    layers = [settings.mesh.default_config]
    if ANNOTATION in annotations:
        layers.append(from_annotation(annotations[ANNOTATION]))
    return settings.chart.hold or holds(proxyconfig.layered(layers))


def holds(config: ProxyConfig) -> bool:
    """Its holdApplicationUntilProxyStarts."""
    return config.get("holdApplicationUntilProxyStarts") is True


def check(text: str) -> None:
    """Raises `Refused` unless the annotation is a ProxyConfig that Istio would take, over the code's defaults."""
    problem = _of(text)[1]
    if problem:
        raise Refused(problem)


def from_annotation(text: str) -> ProxyConfig:
    """What an annotation says that was checked."""
    return _of(text)[0]


def _of(text: str) -> tuple[ProxyConfig, str]:
    return _cached(text) if len(text) <= _CACHED else _read(text)


def _read(text: str) -> tuple[ProxyConfig, str]:
    """The config, and what is wrong with it."""
    try:
        written = yamltext.one(text)
        config = proxyconfig.read(written)
    except Refused as refused:
        return {}, str(refused)
    whole = {**proxyconfig.layered([proxyconfig.CODE_DEFAULTS, config]), **proxyconfig.zeros(written)}
    wrong = ", ".join(proxyconfig_check.violations(whole))
    return config, f"a ProxyConfig: {wrong}" if wrong else ""


_cached = lru_cache(maxsize=256)(_read)  # the same few in every pod, and YAML is slow


def _first(configs: Iterator[Mapping[str, Any]]) -> list[ProxyConfig]:
    spec = next(configs, None)
    if spec is None:
        return []
    names = {"concurrency": "concurrency", "environmentVariables": "proxyMetadata", "image": "image"}
    try:
        return [proxyconfig.read({ours: spec[theirs] for theirs, ours in names.items() if theirs in spec})]
    except Refused:  # the API server has checked it; a newer form of it must not stop pods
        return []


def _of_namespace(facts: ClusterFacts, namespace: str) -> Iterator[Mapping[str, Any]]:
    return (spec for spec in _specs(facts, namespace) if spec.get("selector") is None)


def _of_workload(facts: ClusterFacts, namespace: str, labels: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
    for spec in _specs(facts, namespace):
        wanted = (spec.get("selector") or {}).get("matchLabels") or {}
        if wanted and all(labels.get(key) == value for key, value in wanted.items()):
            yield spec


def _specs(facts: ClusterFacts, namespace: str) -> Iterator[Mapping[str, Any]]:
    for config in facts.proxy_configs:
        if config.get("metadata", {}).get("namespace", "") == namespace:
            yield config.get("spec") or {}
