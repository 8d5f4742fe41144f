"""Recorded states, and the differences between two of them, as JSON. The user's code is not needed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from milepost.errors import CheckpointNotFoundError, DeserializeStateError
from milepost.executor.history_reader import position_after
from milepost.executor.history_values import prefix_of
from milepost.model.checkpoint import Checkpoint
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import CHECKPOINT, OWNER, START, Record, segments_of
from milepost.store import Store
from milepost.views.text import clean, short

_STATES = (START, CHECKPOINT, OWNER)
"""The kinds of records that may hold a state: an owner record has one if it begins a turn or overrides a state."""


class StateMissingError(LookupError):
    """The error for a record that does not exist or has no state."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """A recorded state and its place in the journal."""

    sequence: int
    node_id: str
    visit: int
    state: Any

    def to_dict(self) -> dict[str, Any]:
        """Return the place as JSON, without the state."""
        return {"sequence": self.sequence, "node_id": self.node_id or None, "visit": self.visit}

    def __str__(self) -> str:
        where = f"{self.node_id}#{self.visit}" if self.node_id else "the input"
        return f"{where} (record {self.sequence})"


def find_state(store: Store, run_id: str, text: str) -> RecordedState:
    """Find the state that a text names. The text is a node's id, a node and its visit as id#visit, or a record's number."""
    if text.isdecimal():
        return _numbered(store, run_id, int(text))
    return named_state(store, run_id, text, None)


def named_state(store: Store, run_id: str, text: str, visit: int | None) -> RecordedState:
    """Find the state after a node. The text is the node's id; if `visit` is None, it may also be id#visit.

    Raises `CheckpointNotFoundError`.
    """
    node_id, _, number = text.rpartition("#")
    if visit is None and node_id and number.isdecimal():
        return _after_node(store, run_id, node_id, int(number))
    return _after_node(store, run_id, text, visit)


def _numbered(store: Store, run_id: str, sequence: int) -> RecordedState:
    records = store.read(run_id, after=sequence - 1, before=sequence + 1)
    if not records:
        raise StateMissingError(f"run {run_id!r} has no record {sequence}: see milepost history {run_id}")
    return _state_in(records[0])


def _after_node(store: Store, run_id: str, node_id: str, visit: int | None) -> RecordedState:
    points = [info for info in store.history(run_id) if info.node_id == node_id]
    matching = [info for info in points if (info.visit == visit if visit is not None else not info.superseded)]
    if not matching:
        what = "there is none" if visit is None else f"there is no visit {visit}"
        raise CheckpointNotFoundError(run_id, node_id, f"{what}: see milepost history {run_id}")
    return _numbered(store, run_id, matching[-1].sequence)


def newest_state(store: Store, run_id: str) -> RecordedState:
    """Find the state from which a resume would go on: the newest checkpoint or the input, after the newest override.

    Raises `StateMissingError`.
    """
    latest = store.latest(run_id)
    if latest.point is None:
        raise StateMissingError(f"run {run_id!r} has no state yet")
    point = _state_in(latest.point)
    override = position_after(latest.point, None, latest.tail).override
    return point if override is None else replace(point, state=_json_state(override))


def _state_in(record: Record) -> RecordedState:
    if record.payload is None:
        raise StateMissingError(
            f"record {record.sequence} is a {record.kind}, which has no state: name a checkpoint or 0"
        )
    return RecordedState(
        record.sequence, record.node_id, record.visit if record.kind == CHECKPOINT else 0, _json_state(record)
    )


def state_path(record: Record) -> tuple[str, str] | None:
    """Return the path of the branch that a record's state is on ("": the run's own), and the prefix of its graph's ids.

    None for a record without a state. The results of steps and of the items of maps are no states: each is a value of its
    own kind.
    """
    if record.payload is None or record.kind not in _STATES:
        return None
    try:
        fields = record.fields()
    except DeserializeStateError:
        fields = {}  # a damaged record stands where its node says
    branch = str(fields.get("branch") or "")
    is_of_item = any(f"{item.fork}/{item.branch}" == record.node_id for item in segments_of(branch))
    if (
        is_of_item or "step_type" in fields or fields.get("overrides") is not None
    ):  # one of a branch: it is not known which
        return None
    return branch, "" if record.kind == OWNER else prefix_of(record.node_id)


def state_before(store: Store, run_id: str, record: Record, live: Ranges) -> int | None:
    """Return the number of the record whose state this record's state can be compared with.

    That is the newest one before it in the same graph, on its branch or the path around it; a superseded one only if the
    record itself is superseded. None if there is none among the 256 before it, or if the record has no state. `live` are
    the ranges of the run's row.
    """
    if (path := state_path(record)) is None:
        return None
    branch, prefix = path
    paths = {(around, prefix) for around in ("", branch, *(segment.outer for segment in segments_of(branch)))}
    is_superseded, before = not is_live(record.sequence, live), record.sequence
    for limit in (1, 15, 240):  # most often it is the first
        for other in store.read(run_id, before=before, kinds=_STATES, newest=True, limit=limit):
            if state_path(other) in paths and (is_superseded or is_live(other.sequence, live)):
                return other.sequence
            before = other.sequence
    return None


def patch_between(before: RecordedState, after: RecordedState) -> list[dict[str, Any]]:
    """Return the JSON Patch (RFC 6902) that turns the first state into the second."""
    import jsonpatch

    patch: list[dict[str, Any]] = jsonpatch.make_patch(before.state, after.state).patch
    return patch


def changes(before: Any, patch: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield a sign (+, - or ~) and a text for each operation of a patch of `before`. The text has the old value too."""
    import jsonpatch
    import jsonpointer

    document = copy.deepcopy(before)
    for operation in patch:
        path, kind = operation["path"], operation["op"]
        shown = path or "(the whole state)"
        if kind == "add":
            yield "+", f"{shown}  {_short_json(operation['value'])}"
        elif kind == "move":
            yield "~", f"{shown}  moved from {operation['from']}"
        else:
            old = _short_json(jsonpointer.resolve_pointer(document, path))
            yield ("-", f"{shown}  {old}") if kind == "remove" else (
                "~", f"{shown}  {old} -> {_short_json(operation['value'])}"
            )  # fmt: skip
        document = jsonpatch.JsonPatch([operation]).apply(document, in_place=True)


def changed_keys(before: Any, after: Any) -> str:
    """Name the keys of the second state that differ from the first, in short: `total, paid; log +1`, and `-card` for one gone.

    "" for states that are no objects, and for equal ones.
    """
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ""
    changed, longer = [], []
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, list) and isinstance(old, list) and len(value) > len(old) and value[: len(old)] == old:
            longer.append(f"{short(key, 30)} +{len(value) - len(old)}")
        elif key not in before or old != value:
            changed.append(short(key, 30))
    changed += [f"-{short(key, 30)}" for key in before if key not in after]
    return short("; ".join([*([", ".join(changed)] if changed else []), *longer]), 120)


def _short_json(value: Any) -> str:
    return short(json.dumps(value, ensure_ascii=False), 100)


def _json_state(record: Record) -> Any:
    """Return the state of a record as plain JSON. Raises `DeserializeStateError` if it has no readable state."""
    try:
        return Checkpoint.decode(record.envelope()).state
    except DeserializeStateError as exc:
        where = f"record {record.sequence}" + (f" at node {record.node_id!r}" if record.node_id else "")
        raise DeserializeStateError(f"{where} has no readable state: {clean(exc)}") from exc
