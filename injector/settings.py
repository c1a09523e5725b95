"""Everything the operator decides: chart values, mesh config and the injector's own options, read once.

The shapes are those that operators have: `values` and `config` of the ConfigMap `istio-sidecar-injector`, `mesh` of the
ConfigMap `istio`. What is ours stands in the values under `initless` (see `defaults.VALUES`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cni_agent.invalid import Invalid, Violation, shown
from cni_agent.values import Refused
from injector.config import defaults, proxyconfig
from injector.config.chart import Chart, Resources, read_chart, resources
from injector.config.mesh import Mesh, read_mesh
from injector.config.overlays import OUR_WAY, Overlays, read_overlays
from injector.config.reader import Reader
from injector.config.selectors import Selector, selector

Compatibility = Literal["initless", "istio"]
NativeSidecars = Literal["auto", "true", "false"]


@dataclass(frozen=True, eq=False)
class Settings:
    """One consistent set of settings; replaced whole, never changed. Two are equal only if they are the same one."""

    revision: str
    native_sidecars: NativeSidecars
    compatibility: Compatibility
    chart: Chart
    mesh: Mesh
    policy: str
    never_inject: tuple[Selector, ...]
    always_inject: tuple[Selector, ...]
    injected_annotations: Mapping[str, str]
    default_templates: tuple[str, ...]
    aliases: Mapping[str, tuple[str, ...]]
    overlays: Overlays
    hold_timeout: str  # as istio-validation takes it
    validation_resources: Resources
    seccomp_profile: Mapping[str, Any]
    printed_config: str  # PROXY_CONFIG of a pod that says nothing about it
    notes: tuple[str, ...] = field(default=())  # odd but usable; for the log

    @property
    def stock(self) -> bool:
        """Whether the output is to be the stock injector's, weaknesses included."""
        return self.compatibility == "istio"


def load_settings(
    values: Mapping[str, Any] | None = None,
    mesh: Mapping[str, Any] | None = None,
    *,
    revision: str = "default",
    native_sidecars: NativeSidecars = "auto",
    compatibility: Compatibility = "initless",
    config: Mapping[str, Any] | None = None,
) -> Settings:
    """Merges what was given over the defaults; raises `Invalid` with every violation.

    `config` is the ConfigMap's key of that name; the values beside it are complete, so that resources they leave out
    are meant to be absent.
    """
    given = dict(values or {})
    merged = defaults.over(defaults.VALUES, given)
    if revision not in ("", "default") and not given.get("revision"):
        merged["revision"] = revision
    if config is not None:
        _keep_resources(merged, given)
    read = Reader(merged, "values")
    chart = read_chart(read)
    read_of_mesh = Reader(defaults.over(defaults.MESH, dict(mesh or {})), "mesh")
    meshed = read_mesh(read_of_mesh, _discovery_address(chart) if config is None else _CODE_ADDRESS)
    policy = Reader(config if config is not None else _config(merged), "config" if config is not None else "values")
    notes = [*_main_branch(Reader(given, "values"), chart), *_unheeded(read)]
    settings = _settings(read, policy, chart, meshed, notes, revision, native_sidecars, compatibility)
    violations = [*read.violations, *read_of_mesh.violations, *policy.violations]
    if violations:
        raise Invalid(violations)
    return settings


_CODE_ADDRESS = str(proxyconfig.CODE_DEFAULTS["discoveryAddress"])


def _discovery_address(chart: Chart) -> str:
    """Where the chart's own mesh ConfigMap would point."""
    suffix = f"-{chart.revision}" if chart.revision else ""
    return f"istiod{suffix}.{chart.istio_namespace}.svc:15012"


def _keep_resources(merged: dict[str, Any], given: Mapping[str, Any]) -> None:
    written = Reader(given, "values").raw("global.proxy.resources")
    if written is not None:
        merged["global"]["proxy"]["resources"] = written


def _config(merged: Mapping[str, Any]) -> dict[str, Any]:
    """The ConfigMap's `config` as the chart would make it from the values."""
    proxy = merged.get("global", {}).get("proxy", {})
    webhook = merged.get("sidecarInjectorWebhook", {})
    return {**webhook, "policy": proxy.get("autoInject"), "templates": {}}


def _settings(
    read: Reader,
    policy: Reader,
    chart: Chart,
    mesh: Mesh,
    notes: list[str],
    revision: str,
    native_sidecars: NativeSidecars,
    compatibility: Compatibility,
) -> Settings:
    overlays, wrong = read_overlays(read.mapping("sidecarInjectorWebhook.templates"), policy.mapping("templates"))
    for name, allowed in wrong.items():
        policy.refuse(f"templates.{name}", "", allowed)
    aliases = {name: _words(policy, f"aliases.{name}", value) for name, value in policy.mapping("aliases").items()}
    templates = policy.words("defaultTemplates") or ("sidecar",)
    for template in (name for alias in templates for name in aliases.get(alias, (alias,))):
        if overlays.refusal(template) and template not in wrong:
            policy.refuse("defaultTemplates", template, OUR_WAY if template in overlays.go else _known(overlays))
    return Settings(
        revision=revision or "default",
        native_sidecars=_native(read, notes) if native_sidecars == "auto" else native_sidecars,
        compatibility=compatibility,
        chart=chart,
        mesh=mesh,
        policy=policy.text("policy"),
        never_inject=_selectors(policy, "neverInjectSelector", notes),
        always_inject=_selectors(policy, "alwaysInjectSelector", notes),
        injected_annotations=policy.texts("injectedAnnotations"),
        default_templates=templates,
        aliases=aliases,
        overlays=overlays,
        hold_timeout=read.read("initless.holdTimeout", _timeout, "600s"),
        validation_resources=read.read("initless.validation.resources", resources, {}),
        seccomp_profile=chart.seccomp_profile or read.mapping("initless.seccompProfile"),
        printed_config=proxyconfig.printed(mesh.default_config),
        notes=tuple(notes),
    )


def _native(read: Reader, notes: list[str]) -> NativeSidecars:
    """What istiod was told by its variable; a word that it does not know means no to it."""
    said = read.text("pilot.env.ENABLE_NATIVE_SIDECARS")
    if said in ("", "auto"):
        return "auto"
    if said not in ("true", "false"):
        name = "values.pilot.env.ENABLE_NATIVE_SIDECARS"
        notes.append(f"{name}: {shown(said)} is not true, false or auto: taken for false")
    return "true" if said == "true" else "false"


def _main_branch(given: Reader, chart: Chart) -> Iterator[str]:
    """Our defaults are those of a chart of Istio's main branch: nobody should run its image without knowing."""
    if "/" not in chart.proxy_image and not (given.text("global.hub") and given.text("global.tag")):
        image = f"{chart.hub}/{chart.proxy_image}:{chart.tag}"
        yield f"values.global.hub and global.tag are not both given: the proxy is {image}; give those of your istiod"


def _unheeded(read: Reader) -> Iterator[str]:
    """Settings of istiod's chart that have no effect here, and what to do instead."""
    if read.raw("pilot.cni.enabled") is False:
        yield "values.pilot.cni.enabled is false: ignored, pods get istio-validation and no istio-init"
    webhook = "values.sidecarInjectorWebhook"
    if read.raw("sidecarInjectorWebhook.reinvocationPolicy") not in (None, "Never"):
        yield (
            f"{webhook}.reinvocationPolicy is not used here but in the webhook's configuration: "
            "injector webhook --reinvocation-policy"
        )
    if read.raw("sidecarInjectorWebhook.enableNamespacesByDefault") not in (None, False):
        yield (
            f"{webhook}.enableNamespacesByDefault is not used here but in the webhook's configuration: "
            "enableNamespacesByDefault of our chart, or injector webhook --enable-namespaces-by-default"
        )


def _known(overlays: Overlays) -> str:
    return (overlays.refusal("") or "").partition("; have ")[2]


def _words(policy: Reader, path: str, written: Any) -> tuple[str, ...]:
    if not isinstance(written, list) or not all(isinstance(word, str) for word in written):
        policy.violations.append(Violation(path, str(written), "a list of template names"))
        return ()
    return tuple(written)


def _timeout(written: Any) -> str:
    if not isinstance(written, str):
        raise Refused("a duration such as 10m")
    text = proxyconfig.duration(written)
    if proxyconfig.seconds(text) < 1:
        raise Refused("a duration of at least 1s")
    return text


def _selectors(policy: Reader, path: str, notes: list[str]) -> tuple[Selector, ...]:
    """An invalid selector is passed over, as in Istio: it must not stop every other pod. An empty one never matches."""
    kept = []
    for written in policy.items(path):
        try:
            requirements = selector(written)
        except Refused as refused:
            notes.append(f"config.{path}: a selector is passed over; expected {refused}")
            continue
        if requirements:
            kept.append(requirements)
    return tuple(kept)
