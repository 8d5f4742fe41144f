"""The first difference between a recorded run and its replay, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from milepost.testing.recorded import RecordedRun, RecordedVisit
from milepost.views.text import short

MOST_LINES = 20
_MISSING: Any = object()


class FirstDifference(NamedTuple):
    """A difference of one visit."""

    text: str
    visit: RecordedVisit


def first_difference(
    recorded: RecordedRun, replayed: RecordedRun, *, path: bool, state: bool
) -> FirstDifference | None:
    """Return the first recorded visit that the replay lacks or makes otherwise; None if there is none.

    `path` compares order, facts and questions, `state` the states after nodes and the outputs of steps. Visits of
    branches and items have no order among each other.
    """
    known = {visit.key: visit for visit in replayed.visits}
    trails = replayed.trails()
    places = dict[Any, int]()
    for visit in recorded.visits:
        other = known.get(visit.key)
        if path and visit.trail and not visit.is_decision:
            place = places[visit.trail] = places.get(visit.trail, -1) + 1
            trail = trails.get(visit.trail, [])
            if place < len(trail) and trail[place].node_id != visit.node_id:
                return _difference(visit, f"{trail[place]} came instead")
        if other is None:
            if path:
                return _difference(visit, "the replay did not come there")
            continue
        lines = [*json_changes("", visit.facts, other.facts)] if path else []
        lines += json_changes("state", visit.state, other.state) if state else []
        if lines:
            return _difference(visit, *lines)
    # A run that has not ended stands where its record ends; its replay may complete what needs no further call.
    return _first_new(recorded, replayed) if path and recorded.status in {"finished", "failed"} else None


def _first_new(recorded: RecordedRun, replayed: RecordedRun) -> FirstDifference | None:
    """Return the first visit that only the replay has."""
    known = {visit.key for visit in recorded.visits}
    new = next((visit for visit in replayed.visits if visit.key not in known), None)
    return None if new is None else FirstDifference(f"{new}, which is not in the record", new)


def _difference(visit: RecordedVisit, *lines: str) -> FirstDifference:
    more = [f"... and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return FirstDifference("\n  ".join([f"{visit} (record {visit.sequence}):", *lines[:MOST_LINES], *more]), visit)


def json_changes(path: str, before: Any, after: Any) -> Iterator[str]:
    """Yield a line for each part that differs: a sign (+, - or ~), its path, and the values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from json_changes(
                f"{path}.{key}" if path else str(key), before.get(key, _MISSING), after.get(key, _MISSING)
            )
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            pair = [values[index] if index < len(values) else _MISSING for values in (before, after)]
            yield from json_changes(f"{path}[{index}]", *pair)
    elif before is _MISSING:
        yield f"+ {path}  {_shown(after)}"
    elif after is _MISSING:
        yield f"- {path}  {_shown(before)}"
    elif type(before) is not type(after) or before != after:
        yield f"~ {path}  {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    return short(json.dumps(value, ensure_ascii=False), 100)
