"""Where settings come from, and how a change takes effect: whole, or not at all.

`Current` is what requests are answered with. A source (files here, the cluster in `cluster.py`) offers it texts; it
reads and checks all of them first, and then swaps one reference. Whatever is wrong leaves the old settings in use and
is said in the log, in a metric and by /ready.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from cni_agent.invalid import Invalid, Violation, shown
from injector.config.defaults import over
from injector.facts import NO_FACTS, ClusterFacts
from injector.serving import files
from injector.serving.scoreboard import READ, Row
from injector.settings import Compatibility, NativeSidecars, Settings, load_settings

log = logging.getLogger(__name__)

MAX_TEXT: Final = 4 << 20  # bytes of one settings text; etcd holds at most 1.5 MB
_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # about five times faster where libyaml is there


class Options(NamedTuple):
    """What the command line decides about settings, for as long as the process lives."""

    revision: str = "default"
    native_sidecars: NativeSidecars = "auto"
    compatibility: Compatibility = "initless"


@dataclass(frozen=True)
class Documents:
    """The settings as texts (YAML, and so JSON too); None means our defaults. `names` says where each came from.

    `beneath`: what they are merged over, key by key; the cluster's, where files are given beside it.
    """

    values: str | None = None
    mesh: str | None = None
    config: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    beneath: "Documents | None" = None


class Live(NamedTuple):
    """One consistent set; a request reads it once and so never sees half a change."""

    settings: Settings
    facts: ClusterFacts


class Current:
    """The settings in use, and what is wrong with newer ones."""

    def __init__(self, options: Options, row: Row) -> None:
        self._options = options
        self._row = row
        self._documents: Documents | None = None
        self._facts = NO_FACTS
        self.live: Live | None = None
        self.applied = asyncio.Event()  # set once there are settings
        self.problem = "no settings yet"
        self.notes: dict[str, str] = {}  # what /ready adds: parts of the cluster that cannot be read, and why

    async def offer(self, documents: Documents, known: Callable[[Settings], bool] = lambda settings: True) -> None:
        """Applies settings if all of them are good. Reading is left to a thread: a large YAML takes a while.

        `known`: whether what they need of the cluster is there. If not, they are to be offered again when it is.
        """
        if documents == self._documents and not self.problem:
            return
        try:
            settings = await asyncio.to_thread(read_settings, documents, self._options)
        except Invalid as error:
            self.refuse(str(error))
            return
        if not known(settings):
            return
        self.live = Live(settings, self._facts)
        self._documents = documents
        self.problem = ""
        self.applied.set()
        self._row["settings_stale"] = 0
        self._row["settings_time"] = int(time.time())
        self._row.add("settings_applied")
        beneath = {f"{key}_over": name for key, name in (documents.beneath or Documents()).names.items()}
        log.info("settings applied", extra={**documents.names, **beneath})
        for note in settings.notes:
            log.warning("note on the settings", extra={"note": note})

    def refuse(self, problem: str) -> None:
        """Keeps what is in use and says why; the same problem is said once."""
        if problem == self.problem:
            return
        self.problem = problem
        self._row["settings_stale"] = 1
        self._row.add("settings_refused")
        kept = "the old ones stay in use" if self.live else "there are none to use instead"
        log.error("settings refused", extra={"error": problem, "kept": kept})

    def tell(self, notes: dict[str, str], unread: Set[str]) -> None:
        """What of the cluster cannot be read now, and why: for /ready, and for the metric."""
        self.notes = notes
        for what in READ:
            self._row[f"unread_{what}"] = int(what in unread)

    def observe(self, facts: ClusterFacts) -> None:
        """Takes a newer snapshot of the cluster; the settings stay."""
        self._facts = facts
        if self.live:
            self.live = Live(self.live.settings, facts)


def read_settings(documents: Documents, options: Options) -> Settings:
    """All texts into one `Settings`; raises `Invalid` with all that is wrong."""
    violations: list[Violation] = []
    parsed: dict[str, Any] = {}
    for layer in (documents.beneath or Documents(), documents):
        for key in ("values", "mesh", "config"):
            try:
                given = _mapping(layer.names.get(key, key), getattr(layer, key))
            except Invalid as error:
                violations += error.violations
            else:
                below = parsed.get(key)
                parsed[key] = over(below, given) if below and given else given or below
    if violations:
        raise Invalid(violations)
    return load_settings(parsed["values"], parsed["mesh"], config=parsed["config"], **options._asdict())


def _mapping(name: str, text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    if len(text) > MAX_TEXT:
        raise Invalid([Violation(name, text, f"at most {MAX_TEXT} characters")])
    try:
        value = msgspec.json.decode(text)  # `values` is JSON in the cluster, and even libyaml reads it far slower
    except msgspec.DecodeError:
        value = _yaml(name, text)
    if value is None:  # an empty document
        return None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise Invalid([Violation(name, text, "a YAML mapping")])
    return value


def _yaml(name: str, text: str) -> Any:
    try:
        return yaml.load(text, _YAML_LOADER)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise Invalid([Violation(name, text, f"YAML; {shown(problem)}{where}")]) from None


class FileSource:
    """Settings from files; an option that was not given means our defaults."""

    def __init__(self, values: str | None, mesh: str | None, config: str | None) -> None:
        given = {"values": values, "mesh": mesh, "config": config}
        self._paths = {key: path for key, path in given.items() if path is not None}

    def read(self) -> Documents:
        """Raises `Invalid` naming the file that cannot be read. Files that change meanwhile are read again."""
        paths = list(self._paths.values())
        while True:
            before = files.signature(paths)
            texts = {key: _text(key, path) for key, path in self._paths.items()}
            if files.signature(paths) == before:  # else some could be from before a symlink swap, some from after
                return Documents(texts.get("values"), texts.get("mesh"), texts.get("config"), self._paths)

    async def watch(self, changed: Callable[[], None], interval: float = files.INTERVAL) -> None:
        """Calls `changed` whenever a file changed, forever."""
        paths = list(self._paths.values())
        async for _ in files.changes(paths, files.signature(paths), interval):
            changed()

    async def follow(self, current: Current, interval: float = files.INTERVAL) -> None:
        """Loads the files, and then again at each change, forever."""
        changed = asyncio.Event()
        changed.set()
        watching = asyncio.ensure_future(self.watch(changed.set, interval))
        try:
            while True:
                await changed.wait()
                changed.clear()
                await self._load(current)
        finally:
            watching.cancel()

    async def _load(self, current: Current) -> None:
        try:
            documents = self.read()
        except Invalid as error:
            current.refuse(str(error))
        else:
            await current.offer(documents)


def _text(key: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_TEXT + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid([Violation(f"--{key}", path, f"a readable UTF-8 file ({error})")]) from None
