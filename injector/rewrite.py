"""Applies `probes` to a draft: the table for the agent, and the edits of the containers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni_agent import names, values
from injector import probes
from injector.annotations import REWRITE_PROBES, STATUS_PORT
from injector.draft import Draft, ListName
from injector.environment import Variable, variable
from injector.probes import Edit, Found, Table
from injector.settings import Settings


@dataclass
class Rewrite:
    """The result; `variable` is None when there is no table to tell."""

    variable: str | None = None
    edits: dict[tuple[ListName, int], Sequence[Edit]] = field(default_factory=dict)
    unknown_ports: list[str] = field(default_factory=list)
    in_place: bool = False  # the variable replaces an earlier one where that stands

    def with_table(self, env: list[Variable]) -> list[Variable]:
        """The proxy's variables with the table."""
        assert self.variable is not None
        told = variable(probes.VARIABLE, self.variable)
        places = [index for index, item in enumerate(env) if item.get("name") == probes.VARIABLE]
        if not self.in_place or not places:
            return [*env, told]
        first = places[0]
        earlier = probes.parsed(env[first].get("value", ""))
        if earlier is None:
            return env
        table = {**(probes.parsed(self.variable) or {}), **earlier}
        return [*env[:first], variable(probes.VARIABLE, probes.printed(table)), *env[first + 1 :]]


def rewrite(draft: Draft, settings: Settings, before: Any) -> Rewrite:
    """Rewrites every probe of every container but the proxy. `before`: the variable of an earlier injection."""
    result = Rewrite(in_place=settings.stock and names.STATUS in draft.annotations)
    if draft.find(names.PROXY_CONTAINER) is None or not _wanted(draft.annotations, settings):
        return result
    agent = settings.mesh.status_port
    port = int(draft.annotations.get(STATUS_PORT, str(agent)).strip())
    table: Table = {}
    for where, slot in draft.containers():
        if slot.name == names.PROXY_CONTAINER:
            continue
        view = draft.seen(slot)
        edits = []
        for found in probes.found(view):
            line = probes.entry(found, view, agent)
            if line is not None and (settings.stock or not _is_rewritten(found, port)):
                table[found.path] = line
            elif line is None:
                _note_unknown(result, found, slot.name)
            edits.append(probes.edit(found, port))
        if slot.content is None:
            assert slot.index is not None
            changes = [edit for edit in edits if edit.http_get]
            if changes:
                result.edits[where, slot.index] = changes
        else:
            for edit in edits:
                _edit_content(slot.content, edit)
    if before is not None:
        table = {**(probes.parsed(before) or {}), **table}
    if table:
        result.variable = probes.printed(table)
    return result


def _wanted(annotations: Mapping[str, str], settings: Settings) -> bool:
    said = values.go_bool(annotations.get(REWRITE_PROBES, ""))
    return settings.chart.rewrite_probes if said is None else said


def _is_rewritten(found: Found, port: int) -> bool:
    action = found.probe.httpGet
    return action is not None and action.port == port and action.path == found.path


def _note_unknown(result: Rewrite, found: Found, container: str) -> None:
    action = found.probe.httpGet or found.probe.tcpSocket
    if action is not None and isinstance(action.port, str):
        result.unknown_ports.append(f"{container}: {'.'.join(found.place)} names a port that the container lacks")


def _edit_content(content: dict[str, Any], edit: Edit) -> None:
    *outer, last = edit.place
    holder = content
    for name in outer:
        holder[name] = dict(holder[name])
        holder = holder[name]
    handler = dict(holder[last])
    if edit.replaces:
        del handler[edit.replaces]
        handler["httpGet"] = edit.http_get
    else:
        handler["httpGet"] = {**handler["httpGet"], **edit.http_get}
    holder[last] = handler
