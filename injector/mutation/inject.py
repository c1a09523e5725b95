"""One pod in, one patch out: the order of the work (injectPod of the stock injector), without I/O."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cni_agent import names
from cni_agent.invalid import Invalid, shown
from cni_agent.values import Refused
from injector.facts import ClusterFacts
from injector.mutation import annotations as known
from injector.mutation import openshift, probes, prometheus, urlpath, warnings
from injector.mutation.draft import Draft, ListName, Names, Slot
from injector.mutation.effective import effective, hold
from injector.mutation.environment import Variable, variable
from injector.mutation.golang import compact_json
from injector.mutation.identity import identity
from injector.mutation.merge import without_nulls
from injector.mutation.native import cluster_native, rendered_native, stated_native
from injector.mutation.ordering import order
from injector.mutation.overrides import Overrides, align_ids, relocate
from injector.mutation.patch import operations
from injector.mutation.pod import Container, Metadata, Pod, Spec, container
from injector.mutation.previous import carry_over, previous, take_out
from injector.mutation.probes import Operation
from injector.mutation.rewrite import Rewrite, rewrite
from injector.mutation.templates import rendered
from injector.mutation.workload import Workload
from injector.settings import Settings

_NETWORK_LABEL = "topology.istio.io/network"


@dataclass(frozen=True, slots=True)
class Injection:
    """The patch, and what the pod's owner should hear about it."""

    patch: list[Operation]
    warnings: list[str]


def inject(
    pod: Pod,
    whole: Callable[[], dict[str, Any]],
    settings: Settings,
    facts: ClusterFacts,
    *,
    namespace: str,
    path: str,
) -> Injection:
    """Injects a pod that was decided for. Raises `Invalid` when something in the pod is not allowed."""
    try:
        return _Injector(pod, whole, settings, facts, namespace, path).run()
    except Refused as refused:
        raise Unfit(str(refused)) from None


class Unfit(Invalid):
    """A pod that cannot be injected for a reason that is a sentence of its own."""

    def __init__(self, sentence: str) -> None:
        super().__init__(())
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


class _Injector:
    """The state of one injection. Each step is a method; `run` is their order."""

    def __init__(
        self,
        pod: Pod,
        whole: Callable[[], dict[str, Any]],
        settings: Settings,
        facts: ClusterFacts,
        namespace: str,
        path: str,
    ) -> None:
        self.pod = pod
        self.settings = settings
        self.facts = facts
        self.namespace = namespace
        self.draft = Draft(pod, whole)
        self.template = Names()
        self.labels = self.draft.labels  # as they came: a draft gets new ones
        self.annotations = self.draft.annotations
        known.check(self.annotations, stock=settings.stock)
        self.before = previous(self.annotations)
        self.taken: dict[str, tuple[ListName, Slot]] = {}
        if not settings.stock:
            self.taken = take_out(self.draft, self.before)
        self.variables = self._variables(path)

    def run(self) -> Injection:
        """The whole of it."""
        if self.settings.chart.openshift:
            openshift.forget_assigned_ids(self.draft)
        spec = self.pod.spec or Spec()
        cluster = cluster_native(self.settings, self.facts, spec.nodeName or "")
        workload = self._workload(rendered_native(cluster, self.annotations))
        overrides = Overrides(self.draft, self.before, self.taken, stock=self.settings.stock)
        native = stated_native(cluster, self.annotations) if self.settings.stock else workload.native
        for name in self._templates():
            self._merge(name, workload, overrides, native)
        self._refuse_twins()
        self._refuse_two_sources()
        overrides.reapply(self.template)
        tproxy = "TPROXY" in (
            workload.config.get("interceptionMode"),
            self.draft.annotations.get(names.INTERCEPTION_MODE),
        )
        align_ids(self.draft, overrides.proxy(), tproxy=tproxy, stock=self.settings.stock)
        rewritten = self._finish_variables()
        self._mark()
        carry_over(self.draft, self.taken)
        before_app = self.annotations.get(names.CAPTURE_POINT) == "before-app"
        order(self.draft, hold=hold(self.settings, self.annotations), before_app=before_app)
        patch = operations(self.pod, self.draft, rewritten.operations)
        said = warnings.of_injection(self.pod, self.draft, self.before, rewritten.warnings)
        return Injection(patch, said)

    def _variables(self, path: str) -> dict[str, str]:
        """Cluster, network and whatever else the URL sets; the pod's own label is the last word on its network."""
        variables = urlpath.variables(path)
        chart = self.settings.chart
        cluster = variables.get(urlpath.CLUSTER) or chart.cluster
        network = variables.get(urlpath.NETWORK) or chart.network
        network = self.labels.get(_NETWORK_LABEL, network)
        if cluster:
            variables[urlpath.CLUSTER] = cluster
        if network:
            variables[urlpath.NETWORK] = network
        return variables

    def _workload(self, native: bool) -> Workload:
        uid = gid = names.PROXY_ID
        if self.settings.chart.openshift:
            uid, gid = openshift.proxy_ids(self.facts.namespace_annotations.get(self.namespace, {}))
        return Workload(
            settings=self.settings,
            labels=self.labels,
            annotations=self.annotations,
            containers=self._visible_containers(),
            namespace=self.namespace,
            service_account=(self.pod.spec or Spec()).serviceAccountName or "",
            identity=identity(self.pod.metadata or Metadata(), self.labels),
            config=effective(self.settings, self.facts, self.namespace, self.labels, self.annotations),
            uid=uid,
            gid=gid,
            native=native,
        )

    def _visible_containers(self) -> list[Container]:
        """The containers that templates see: the pod without an earlier injection, users' overrides put back."""
        slots = self.draft.lists["containers"]
        if not self.settings.stock:
            # The user's istio-proxy last, wherever it was: where it was cannot be told from an injected pod
            visible = [self.draft.seen(slot) for slot in slots if slot.name != names.PROXY_CONTAINER]
            own = self.draft.find(names.PROXY_CONTAINER)
            stored = self.before.override_anywhere(names.PROXY_CONTAINER)
            if own or stored:
                visible.append(self.draft.seen(own[1]) if own else container(stored))
            return visible
        removed = self.before.injected["containers"] if self.before.readable else ()
        visible = [self.draft.seen(slot) for slot in slots if slot.name not in removed]
        names_seen = {view.name for view in visible}
        noted = [container(written) for written in self.before.overrides["containers"]]
        return [*visible, *(view for view in noted if view.name not in names_seen)]

    def _templates(self) -> list[str]:
        written = self.annotations.get(known.TEMPLATES)
        asked = self.settings.default_templates
        if written is not None:
            asked = tuple(name.strip() for name in written.split(","))
        chosen = [name for alias in asked for name in self.settings.aliases.get(alias, (alias,))]
        for name in chosen:
            refusal = self.settings.overlays.refusal(name)
            if refusal:
                raise Refused(refusal)
        return chosen

    def _merge(self, name: str, workload: Workload, overrides: Overrides, native: bool) -> None:
        overlay = rendered(name, workload)
        self.template.add(overlay)
        overrides.remember(self.template)
        relocate(self.draft, self.template, native=native, stock=self.settings.stock)
        self.draft.apply(overlay, keep_sources=not self.settings.stock)

    def _refuse_twins(self) -> None:
        """Two templates may disagree on what a container is; the API server would say so less clearly."""
        twins = set(self.template.lists["containers"]) & set(self.template.lists["initContainers"])
        if twins and not self.settings.stock:
            chosen = ", ".join(self._templates())
            raise Refused(f"templates {chosen} make {', '.join(sorted(twins))} an init container and not one")

    def _refuse_two_sources(self) -> None:
        """A volume of the pod's own may have the name of one of ours; merged, it would have the sources of both."""
        if self.settings.stock:
            return
        for slot in self.draft.lists["volumes"]:
            if slot.index is not None and slot.content is not None:
                sources = sorted(key for key, value in slot.content.items() if key != "name" and value is not None)
                if len(sources) > 1:
                    raise Refused(
                        f"volume {shown(slot.name)}: the sidecar needs one of that name too ({' and '.join(sources)}); "
                        "give the pod's own another name"
                    )

    def _former(self, name: str) -> Any:
        """The value of a variable of the istio-proxy that an earlier injection put in."""
        taken = self.taken.get(names.PROXY_CONTAINER)
        if taken is None:
            return None
        values = (item.get("value") for item in _env(self.draft.content(*taken)) if item.get("name") == name)
        return next(values, None)

    def _finish_variables(self) -> Rewrite:
        """Appends, in this order: what the URL sets, what Prometheus was told before, the table of probes."""
        place = self.draft.find(names.PROXY_CONTAINER)
        proxy = self.draft.content(*place) if place else {}
        env = _env(proxy)
        if self.variables:
            replaced = list(self.variables)  # compared, not hashed: a user's name may be anything
            kept = [item for item in env if item.get("name") not in replaced]
            env = [*kept, *(without_nulls(variable(name, value)) for name, value in sorted(self.variables.items()))]
        self.draft.annotations = dict(self.draft.annotations)
        said = prometheus.merge(self.draft.annotations, self.settings) or self._former(prometheus.VARIABLE)
        if isinstance(said, str):
            env = [*env, variable(prometheus.VARIABLE, said)]
        port = prometheus.secure_port(self.draft.annotations, env)
        if port is not None and place:
            self.draft.annotations[prometheus.SECURE_PORT] = port
        rewritten = rewrite(self.draft, self.settings, self._former(probes.VARIABLE))
        env = rewritten.with_table(env)
        if env:
            proxy["env"] = env
        return rewritten

    def _mark(self) -> None:
        """The status annotation, which lists what the templates define, and the operator's annotations."""
        if urlpath.NETWORK in self.variables:
            self.draft.labels = {**self.draft.labels, _NETWORK_LABEL: self.variables[urlpath.NETWORK]}
        lists = self.template.lists
        status: Mapping[str, Any] = {
            "initContainers": lists["initContainers"] or None,
            "containers": lists["containers"] or None,
            "volumes": lists["volumes"] or None,
            "imagePullSecrets": lists["imagePullSecrets"] or None,
            "revision": self.settings.revision,
        }
        self.draft.annotations[names.STATUS] = compact_json(status)
        self.draft.annotations.update(self.settings.injected_annotations)


def _env(content: Mapping[str, Any]) -> list[Variable]:
    env = content.get("env")
    return [item for item in env if isinstance(item, dict)] if isinstance(env, list) else []
