"""Settings and facts from the cluster: Istio's own ConfigMaps, and nodes, ProxyConfigs and namespaces as needed."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from cni_agent.apiserver import Access, ApiServer
from cni_agent.invalid import Invalid
from injector.facts import ClusterFacts
from injector.serving.mirror import Metadata, Mirror
from injector.serving.source import Current, Documents, FileSource, Options
from injector.settings import Settings

SETTLE: Final = 0.1  # seconds; changes of both ConfigMaps that come together are applied together
PROXY_CONFIGS: Final = "/apis/networking.istio.io/v1beta1/proxyconfigs"
OPENSHIFT_PREFIX: Final = "openshift.io/"  # the annotations of a namespace that matter


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class _NodeInfo(msgspec.Struct):
    kubeletVersion: str = ""


class _NodeStatus(msgspec.Struct):
    nodeInfo: _NodeInfo = msgspec.field(default_factory=_NodeInfo)


class _Node(msgspec.Struct):
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


class _Namespace(msgspec.Struct):
    metadata: Metadata


class ClusterSource:
    """Follows the ConfigMaps of one revision, and what else answers depend on. Files that were given go over them."""

    def __init__(self, access: Access, namespace: str, options: Options, given: FileSource) -> None:
        self._access = access
        self._namespace = namespace
        self._options = options
        self._given = given

    async def follow(self, current: Current) -> None:
        """Mirrors what is needed and offers it at each change, forever."""
        changed = asyncio.Event()
        async with ApiServer(self._access, "initless-injector") as api, asyncio.TaskGroup() as group:
            view = _View(api, self._namespace, self._options, changed.set)
            for mirror in view.mirrors.values():
                group.create_task(mirror.run())
            group.create_task(self._given.watch(changed.set))
            while True:
                await changed.wait()
                await asyncio.sleep(SETTLE)
                changed.clear()
                current.tell(dict(view.problems()), view.unread())
                current.observe(view.facts())
                if view.settled:
                    await self._offer(current, view, group)

    async def _offer(self, current: Current, view: "_View", group: asyncio.TaskGroup) -> None:
        def known(settings: Settings) -> bool:
            if settings.chart.openshift and not view.has_namespaces:
                group.create_task(view.add_namespaces().run())
            return view.settled

        try:
            documents = view.documents(self._given.read())
        except Invalid as error:
            current.refuse(str(error))
        else:
            await current.offer(documents, known)


class _View:
    """What the API server said last."""

    def __init__(self, api: ApiServer, namespace: str, options: Options, changed: Callable[[], None]) -> None:
        self._api = api
        self._namespace = namespace
        self._changed = changed
        suffix = "" if options.revision in ("", "default") else f"-{options.revision}"
        self._injector = self._config_map(f"istio-sidecar-injector{suffix}")
        self._mesh = self._config_map(f"istio{suffix}")
        self._proxy_configs: Mirror[dict[str, Any]] = Mirror(api, PROXY_CONFIGS, dict[str, Any], changed)
        self._nodes: Mirror[_Node] | None = None
        self._namespaces: Mirror[_Namespace] | None = None
        self.mirrors: dict[str, Mirror[Any]] = {
            f"ConfigMap {namespace}/istio-sidecar-injector{suffix}": self._injector,
            f"ConfigMap {namespace}/istio{suffix}": self._mesh,
            "ProxyConfigs": self._proxy_configs,
        }
        if options.native_sidecars == "auto":  # only then do kubelet versions matter
            self._nodes = self.mirrors["Nodes"] = Mirror(api, "/api/v1/nodes", _Node, changed)

    @property
    def settled(self) -> bool:
        """Whether all is known that answers depend on; a list that failed must not pass for an empty one."""
        return all(mirror.settled for mirror in self.mirrors.values())

    @property
    def has_namespaces(self) -> bool:
        """Whether namespaces are mirrored, as only OpenShift needs."""
        return self._namespaces is not None

    def add_namespaces(self) -> Mirror[_Namespace]:
        """A mirror of namespaces, to be run by the caller."""
        self._namespaces = Mirror(self._api, "/api/v1/namespaces", _Namespace, self._changed)
        self.mirrors["Namespaces"] = self._namespaces
        return self._namespaces

    def _config_map(self, name: str) -> Mirror[_ConfigMap]:
        path = f"/api/v1/namespaces/{self._namespace}/configmaps"
        return Mirror(self._api, path, _ConfigMap, self._changed, fieldSelector=f"metadata.name={name}")

    def problems(self) -> Iterator[tuple[str, str]]:
        """What cannot be read now, for /ready."""
        return ((name, mirror.problem) for name, mirror in self.mirrors.items() if mirror.problem)

    def unread(self) -> frozenset[str]:
        """The resources that are there and cannot be read now, for the metric."""
        return frozenset(mirror.resource for mirror in self.mirrors.values() if mirror.problem and not mirror.absent)

    def documents(self, given: Documents) -> Documents:
        """The texts of files over those of the ConfigMaps; `Invalid` when one that is needed is missing."""
        texts: dict[str, str] = {}
        names: dict[str, str] = {}
        missing: list[str] = []
        (injector_name, injector), (mesh_name, mesh), *_ = self.mirrors.items()
        for key, name, mirror in (
            ("values", injector_name, injector),
            ("config", injector_name, injector),
            ("mesh", mesh_name, mesh),
        ):
            data: dict[str, str] = next((found.data for found in mirror.objects.values()), {})
            if key in data:
                texts[key], names[key] = data[key], f"{name} key {key}"
            elif getattr(given, key) is None:
                missing.append(f"{_absence(name, key, mirror)}; install istiod, or give --{key} FILE")
        if missing:
            raise Absent(missing)
        return replace(given, beneath=Documents(texts.get("values"), texts.get("mesh"), texts.get("config"), names))

    def facts(self) -> ClusterFacts:
        """The snapshot that goes with the settings."""
        nodes = self._nodes
        versions = None
        if nodes and nodes.synced:
            versions = {name: node.status.nodeInfo.kubeletVersion for (_, name), node in nodes.objects.items()}
        namespaces = self._namespaces.objects.values() if self._namespaces else ()
        return ClusterFacts(
            node_versions=versions,
            namespace_annotations={
                found.metadata.name: {
                    key: text for key, text in found.metadata.annotations.items() if key.startswith(OPENSHIFT_PREFIX)
                }
                for found in namespaces
            },
            proxy_configs=tuple(sorted(self._proxy_configs.objects.values(), key=_age)),
        )


class Absent(Invalid):
    """Settings that the cluster does not have, or does not show us."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__(())
        self.sentences = sentences

    def __str__(self) -> str:
        return "; ".join(self.sentences)


def _absence(name: str, key: str, mirror: Mirror[_ConfigMap]) -> str:
    if mirror.problem:
        return f"{name}, whose key {key} is needed, cannot be read ({mirror.problem})"
    if not mirror.objects:
        return f"{name}, whose key {key} is needed, does not exist"
    return f"{name} has no key {key}"


def _age(found: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = found.get("metadata", {})
    return (metadata.get("creationTimestamp", ""), metadata.get("name", ""), metadata.get("namespace", ""))
