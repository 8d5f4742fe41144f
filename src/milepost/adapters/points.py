"""Marked points: the conversion between an engine's records and the `CheckpointData` of stores of points.

A workflow marks points with `.checkpoint()`. Such a point has the results of all steps up to the one that marked it.
Each result holds what people read and what a resume needs. Every checkpoint of a graph is a point with one step result,
whose output is the state. A point that was saved from outside stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any

from milepost.errors import CheckpointCorruptError
from milepost.executor.history import JournalHistory
from milepost.executor.history_reader import read_history
from milepost.model.beginning import PAGE, find_start, start_in
from milepost.model.checkpoint import Checkpoint
from milepost.model.checkpoint_data import CheckpointData
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import CHECKPOINT, ROLLBACK, ROUTE, START, Record, parse_time
from milepost.store import Store

_HEADER = (
    "next_node",
    "sequence",
    "attempt",
    "prev_node_id",
    "visit",
    "iteration",
    "branch",
    "outcome",
    "missed",
    "epoch",
    "updates",
    "tags",
)
_NODE = "node"
_CHOICE = ("verdict", "index", "next_node")
_OF_RECORDS = ("args", "rollback", "sequence", "visit", "timestamp")

TOLD_BY = (START, CHECKPOINT, ROUTE, ROLLBACK)
"""The kinds of the records from which points are made."""

Origin = tuple[str, str]
"""The run that a point belongs to: its flow's name, and the first 16 digits of its inputs' digest."""
NO_ORIGIN: Origin = ("unknown", "0" * 16)


def start_of(store: Store, run_id: str, check: Callable[[Record], object] | None = None) -> Record | None:
    """Return the start record of a run, completed if the run was started by name; None if it has none.

    `check` is called with each record that it is made of.
    """
    search = find_start()
    kind, after = next(search)
    while True:
        try:
            kind, after = search.send(store.read(run_id, kinds=(kind,), after=after, limit=PAGE))
        except StopIteration as stop:
            return start_in(stop.value, check)


def origin_of(store: Store, run_id: str) -> Origin:
    """Return the origin that the run's start record gives; `NO_ORIGIN` for a run without one."""
    begun = start_of(store, run_id)
    return NO_ORIGIN if begun is None else origin_in(begun)


def origin_in(begun: Record) -> Origin:
    """Return the origin that a start record gives."""
    fields = begun.fields()
    flow, inputs_hash = NO_ORIGIN
    return str(fields.get("flow") or flow), str(fields.get("inputs_hash") or inputs_hash)[:16]


def point_of(data: bytes, origin: Callable[[], Origin]) -> CheckpointData:
    """Decode an envelope as a point: one that was saved as such, or a graph's checkpoint as the only result.

    `origin` is called only for a graph's checkpoint, which does not have it. Raise `DeserializeStateError`, a
    ValueError, for anything else.
    """
    found = Checkpoint.decode(data)
    if "workflow_name" in found.extra:
        return CheckpointData.decode(data)
    moment = datetime.fromtimestamp(0, UTC) if found.timestamp is None else found.timestamp
    return CheckpointData(found.node_id, *origin(), (_node_result(found),), moment)


def _node_result(found: Checkpoint) -> dict[str, Any]:
    """Convert a graph's checkpoint to the result of a step."""
    result = {
        "name": found.node_id,
        "step_type": _NODE,
        "success": True,
        "output": found.state,
        "duration_ms": found.duration_ms,
        "error": None,
    }
    result |= {name: getattr(found, name) for name in _HEADER if getattr(found, name) is not None}
    if found.missed is not None:
        result["missed"] = list(found.missed)
    return {**result, **found.extra}


def envelope_of(run_id: str, point: CheckpointData) -> bytes:
    """Return the envelope from which `point_of` made a point: a graph's checkpoint, or otherwise the point itself."""
    results = point.step_results
    if len(results) != 1 or results[0].get("step_type") != _NODE:
        return point.encode()
    result = dict(results[0])
    for name in ("name", "step_type", "success", "error"):
        result.pop(name, None)
    header = {name: result.pop(name) for name in _HEADER if name in result}
    if "missed" in header:
        header["missed"] = tuple(header["missed"])
    state, duration = result.pop("output", None), result.pop("duration_ms", None)
    return Checkpoint(
        run_id, point.checkpoint_id, state=state, timestamp=point.saved_at, duration_ms=duration, extra=result, **header
    ).encode()


# -- workflows of steps ------------------------------------------------------------------------------------


class Marked:
    """The marked points of one run of a workflow."""

    def __init__(self, records: Sequence[Record], live: Ranges, origin: Origin = NO_ORIGIN) -> None:
        self._records = records
        self._live = live
        self._origin = origin
        self.marks: dict[str, Record] = {}
        """The newest record of each live point, by id, in the order of the records."""
        for record in records:
            if record.kind == CHECKPOINT and (record.is_foreign or is_marked(record)) and self._counts(record):
                self.marks.pop(record.node_id, None)
                self.marks[record.node_id] = record

    @property
    def saved(self) -> set[str]:
        """The ids of points that were ever saved from outside."""
        return {record.node_id for record in self._records if record.is_foreign}

    @property
    def own(self) -> set[str]:
        """The ids of points that the run itself ever marked, live or not."""
        return {r.node_id for r in self._records if is_marked(r)}

    def _counts(self, record: Record) -> bool:
        return is_live(record.sequence, self._live)

    def point(self, mark: Record) -> CheckpointData:
        """Build the point that a record marks. One that was saved from outside is returned as it is.

        Raise `DeserializeStateError` if a record that it needs is damaged.
        """
        if mark.is_foreign:
            return point_of(mark.state() or b"", lambda: self._origin)
        own = [record for record in self._records if record.sequence <= mark.sequence]
        origin, results, run = self._origin, dict[str, dict[str, Any]](), dict[str, Any]()
        saved = [] if self._records[0].kind == START else [record for record in own if record.is_foreign]
        for record in reversed(saved):
            counting = self._counting(record)
            if counting:
                # The run went on from this point, and has nothing else of what came before it.
                start, results = point_of(record.state() or b"", lambda: NO_ORIGIN), counting
                own = [later for later in own if later.sequence > record.sequence]
                origin = (start.workflow_name, start.inputs_hash)
                run = next((result.pop("run") for result in results.values() if "run" in result), {})
                break
        history = read_history((record for record in own if not record.is_foreign), self._live)
        if history.start is not None:
            fields, origin = history.start.fields, origin_in(history.start.record)
            run = {"begun_at": fields.get("timestamp"), "version": fields.get("flow_version")}
        for step_id, result in _results_in(history).items():
            results.pop(step_id, None)
            results[step_id] = result
        for step_id in history.undone.keys() & results.keys():
            # A run that goes on from here must not undo it once more.
            results[step_id].pop("rollback", None)
        choices = {name: choice for name, choice in (run.get("choices") or {}).items() if name not in history.done}
        for step_id, choice in history.choices.items():
            done = history.done.get(step_id)
            if done is None or done.sequence < choice.sequence:
                choices[step_id] = {name: choice.fields[name] for name in _CHOICE if name in choice.fields}
        _show_parts(results)
        results[mark.node_id]["run"] = {
            "begun_at": run.get("begun_at"),
            "version": run.get("version"),
            "choices": choices,
        }
        saved_at = parse_time(str(mark.fields()["timestamp"]))
        return CheckpointData(mark.node_id, *origin, tuple(results.values()), saved_at)

    def _counting(self, record: Record) -> dict[str, dict[str, Any]]:
        """Return the live results of a point that was recorded from outside: they have its number and those before it."""
        point = point_of(record.state() or b"", lambda: NO_ORIGIN)
        first = record.sequence - len(point.step_results) + 1
        return {
            str(result.get("name")): dict(result)
            for number, result in enumerate(point.step_results, first)
            if is_live(max(0, number), self._live)
        }

    def since(self, step_id: str, before: int) -> int | None:
        """Return the number from which on points have that step's result as it was below `before`; None if none has."""
        own = (record for record in self._records if record.sequence < before and not record.is_foreign)
        done = read_history(own, self._live).done.get(step_id)
        if done is not None:
            return done.sequence
        saved = (record for record in self._records if record.is_foreign)
        return next((record.sequence for record in saved if step_id in self._counting(record)), None)


def is_marked(record: Record) -> bool:
    """Return whether a record of a run is a point that its workflow marked."""
    # The text is searched first: most records have no mark, and to decode a header costs more.
    return (
        record.kind == CHECKPOINT and b'"marked":true' in (record.header or b"") and bool(record.fields().get("marked"))
    )


def is_of_steps(records: Sequence[Record]) -> bool:
    """Return whether records of the kinds `TOLD_BY` belong to a workflow's run."""
    if records and records[0].kind == START:
        return records[0].fields().get("front") == "workflow"
    # A run that was recorded from its points, and then went on, has no start record.
    return any(record.kind == CHECKPOINT and "step_type" in record.fields() for record in records)


def marked_of(store: Store, run_id: str) -> Marked | None:
    """Return the marked points of a workflow's run; None for another run. Raise `RunNotFoundError`.

    Raise `CheckpointCorruptError` for a record that was changed.
    """
    live = store.get_run(run_id).live
    begun = start_of(store, run_id)
    if begun is not None and not is_of_steps([begun]):
        return None
    records = store.read(run_id, kinds=TOLD_BY)
    if begun is None and not is_of_steps(records):
        return None
    check = partial(store.seals.check, run_id)
    for record in records:
        if not record.is_foreign:
            check(record)
    whole = start_of(store, run_id, check)
    return Marked(records if whole is None else [whole, *records[1:]], live)


def results_of(history: JournalHistory) -> dict[str, dict[str, Any]]:
    """Return the results of all steps that are done, by id, as plain JSON; a step made of others repeats their outputs."""
    results = _results_in(history)
    _show_parts(results)
    return results


def _results_in(history: JournalHistory) -> dict[str, dict[str, Any]]:
    done = sorted(history.done.values(), key=attrgetter("sequence"))
    return {entry.record.node_id: _result_of(entry.record) for entry in done}


def _result_of(record: Record) -> dict[str, Any]:
    """Return the result in a step's record, with the header's fields that a resume needs."""
    fields = record.fields()
    if "step_type" not in fields:
        return _node_result(Checkpoint.decode(record.envelope()))
    try:
        kept = json.loads(record.state() or b"")
        result = {name: kept.get(name) for name in ("name", "step_type", "success", "output", "duration_ms", "error")}
    except (ValueError, AttributeError, RecursionError) as exc:
        raise CheckpointCorruptError(
            f"record {record.sequence} of step {record.node_id!r} holds no result of a step: {exc}",
            node_id=record.node_id,
            sequence=record.sequence,
        ) from exc
    result["name"] = record.node_id
    result |= {name: kept[name] for name in ("outcome", "attempts", "error_type") if kept.get(name) is not None}
    return result | {name: fields[name] for name in _OF_RECORDS if name in fields}


def _show_parts(results: dict[str, dict[str, Any]]) -> None:
    """Fill the output of each step that consists of others with the results of these."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for step_id, result in results.items():
        parts.setdefault(step_id.rpartition("/")[0], []).append(result)
    # Inner steps ended before the step that contains them, so their outputs are filled already.
    for step_id, result in results.items():
        inside = parts.get(step_id)
        if inside is not None:
            result["output"] = _shown(result, inside)


def _shown(result: dict[str, Any], inside: Sequence[dict[str, Any]]) -> Any:
    output, kind = result.get("output"), result.get("step_type")
    if result.get("outcome") == "recovered":
        return inside[-1].get("output")
    if not result.get("success") or result.get("outcome") == "skipped":
        return output
    by_name = {str(part.get("name")).rpartition("/")[2]: part for part in inside}
    if kind == "parallel" and isinstance(output, list):
        ordered = [by_name[name] for name in output if name in by_name]
        shown = [{name: part.get(name) for name in ("name", "success", "output", "error")} for part in ordered]
        return {"success": all(part["success"] for part in shown), "child_results": shown}
    if kind == "branch" and isinstance(output, dict):
        chosen = by_name.get(str(output.get("selected_step_name")), {})
        return {**output, "inner_output": chosen.get("output")}
    if kind == "map" and isinstance(output, dict):
        indexes = [str(index) for index in range(len(inside))]
        if by_name.keys() == set(indexes):
            return [by_name[index].get("output") for index in indexes]
        return {name: part.get("output") for name, part in by_name.items()}
    return output
