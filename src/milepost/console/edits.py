"""States that people edit to fork a run with them: the text that they get, and the state that they mean."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote_plus

from milepost.console.answers import pretty
from milepost.console.forms import read_json
from milepost.console.guard import LARGEST_BODY
from milepost.console.page_errors import PageError
from milepost.console.site import Asked, Site
from milepost.console.veil import check
from milepost.errors import DeserializeStateError
from milepost.executor.flow import codec_at
from milepost.verbs import flow_of
from milepost.views.hiding import is_pairs
from milepost.views.states import RecordedState, named_state, newest_state
from milepost.views.text import clean

_LARGEST_TEXT = LARGEST_BODY // 2
"""The bytes that a state to be edited may have, as browsers send it."""


class Edit(NamedTuple):
    """A state that somebody typed: as the flow's own type, as JSON, and the recorded JSON that it replaces."""

    state: Any
    json: Any
    before: Any


def point_of(site: Site, run_id: str, node_id: str | None, visit: int | None) -> RecordedState:
    """Find the state that a fork at this place begins with. Raises `DeserializeStateError` for one that was changed."""
    store = site.store
    point = newest_state(store, run_id) if node_id is None else named_state(store, run_id, node_id, visit)
    later = store.latest(run_id).tail if node_id is None else ()  # an override of the newest state
    for record in (*store.read(run_id, after=point.sequence - 1, before=point.sequence + 1), *later):
        check(store, run_id, record)
    return point


def why_not(site: Site, run_id: str) -> str:
    """Say why the state of a run can't be edited here; "" if it can."""
    info = site.store.get_run(run_id).info
    flow = site.engine.flows.get(info.flow)
    if flow is None:
        known = ", ".join(site.engine.flows) or "no flow"
        return f"to edit the state, start the console with --app and the code of flow {info.flow!r}; it knows {known}"
    if flow_of(flow).front != "graph":
        return "a workflow has no state but the results of its steps"
    if any(not path.parts and path.is_below("state", "inputs", "output") for path in site.veil.paths):
        return "the state is hidden here"
    return ""


def edited_text(site: Site, state: Any) -> str | None:
    """Return a state as the text to be edited, without what is hidden; None: no form holds it and what is added to it."""
    if len(json.dumps(state)) > _LARGEST_TEXT:
        return None
    text = pretty(_without(state, site.veil.hidden_places(state)))
    return text if len(quote_plus(text.replace("\n", "\r\n"))) <= _LARGEST_TEXT else None


def digest_of(text: str) -> str:
    """Return a digest of a text in a form. Browsers send it with other ends of lines."""
    return hashlib.sha256(text.replace("\r\n", "\n").strip().encode("utf-8", "surrogatepass")).hexdigest()


def has_edit(asked: Asked) -> bool:
    """Return whether a fork is asked for with another state than the form has shown."""
    text = asked.text("state")
    return bool(text.strip()) and digest_of(text) != asked.text("shown")


def read_edit(site: Site, asked: Asked) -> Edit:
    """Read the state that was typed. Raises `PageError` for one that is none, or that gives what is hidden."""
    (run_id,) = asked.ids
    reason = why_not(site, run_id)
    if reason:
        raise PageError(409, "It can't be edited", reason)
    point = point_of(site, run_id, asked.text("node") or None, asked.number("visit", 1))
    try:
        typed = read_json(asked.text("state"))
    except ValueError as exc:
        raise PageError(400, "No state", str(exc)) from exc
    given = [place for place in site.veil.hidden_places(typed) if _at(typed, place) is not None]
    if given:
        raise PageError(400, "No state", f"{'.'.join(given[0])} is hidden, and stays as it was recorded: leave it out")
    for place in site.veil.hidden_places(point.state):
        if not _has_same_lists(point.state, typed, place):
            raise PageError(
                400,
                "No state",
                f"{'.'.join(place)} is hidden: keep the lists and the keys around it as they were recorded",
            )
        _copy(point.state, typed, place)
    flow = flow_of(site.engine.flows[site.store.get_run(run_id).info.flow])
    try:
        data = json.dumps(typed, ensure_ascii=False).encode("utf-8", "surrogatepass")
        state = codec_at(flow, point.node_id).decode(data)
    except DeserializeStateError as exc:
        raise PageError(400, "No state", f"it is no state of flow {flow.name!r}: {clean(exc)}") from exc
    return Edit(state, typed, point.state)


def find_points(site: Site, run_id: str) -> list[dict[str, Any]]:
    """Return the places where a run can be forked: the newest visit of each node, the newest first."""
    points = [
        {"node_id": info.node_id, "visit": info.visit, "sequence": info.sequence} for info in site.store.list(run_id)
    ]
    return points[::-1][:200]


def _without(value: Any, places: Sequence[Sequence[str]]) -> Any:
    """Return a copy of JSON without what is at these places. An item of a list becomes null, so that the others stay."""
    copied = json.loads(json.dumps(value))
    for place in places:
        inside = _at(copied, place[:-1])
        if isinstance(inside, dict):
            inside.pop(place[-1], None)
        elif isinstance(inside, list):
            inside[int(place[-1])] = None
    return copied


def _copy(source: Any, target: Any, place: Sequence[str]) -> None:
    """Copy what is at a place of one JSON into the other, if what contains it is there too."""
    inside, value = _at(target, place[:-1]), _at(source, place)
    if isinstance(inside, dict):
        inside[place[-1]] = value
    elif isinstance(inside, list) and place[-1].isdecimal() and int(place[-1]) < len(inside):
        inside[int(place[-1])] = value


def _has_same_lists(recorded: Any, typed: Any, place: Sequence[str]) -> bool:
    """Return whether each list on the way to a place is as long as recorded, so that an index means the same item.

    A mapping that is recorded as pairs must have the same keys in the same order.
    """
    for number in range(len(place)):
        inside, now = _at(recorded, place[:number]), _at(typed, place[:number])
        if isinstance(inside, list) and (not isinstance(now, list) or len(now) != len(inside)):
            return now is None
        if is_pairs(inside) and not (is_pairs(now) and [key for key, _ in now["v"]] == [key for key, _ in inside["v"]]):
            return now is None
    return True


def _at(value: Any, place: Sequence[str]) -> Any:
    for part in place:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value
