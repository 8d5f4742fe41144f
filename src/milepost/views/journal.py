"""A run's journal as lines to show. The store is only read. A damaged record becomes a line that says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from milepost.adapters.points import start_of
from milepost.errors import CheckpointIntegrityError, DeserializeStateError
from milepost.model.beginning import BEGIN
from milepost.model.checkpoint import read_envelope
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import (
    CHECKPOINT,
    CONTINUE,
    FAILURE,
    FINISH,
    ITEMS,
    OWNER,
    REPLY,
    ROLLBACK,
    ROUTE,
    START,
    WAIT,
    Record,
    origins_of,
    parse_time,
)
from milepost.store import Store
from milepost.views.text import iso

_PAGE = 256
_BELIEVED = frozenset({FAILURE, REPLY, WAIT})


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One record as people are shown it. `note` describes a record that is not a checkpoint."""

    sequence: int
    kind: str
    node_id: str
    visit: int
    attempt: int | None
    timestamp: datetime | None
    duration_ms: float | None
    next_node: str | None
    size: int
    superseded: bool
    epoch: int | None
    branch: str | None
    """The path to its branch or item, as `fork#visit/branch`, the outermost fork first."""
    note: str
    max_attempts: int | None = None
    """The number of attempts that the policy of a failed attempt allows; None without a policy."""
    error: dict[str, Any] | None = None
    """Type, message and traceback of a failure, as in its record; None if the seal does not prove them."""
    by: str | None = None
    """The one who sent the signal, or asked for the cancel, the requeue or the fork, as the caller said."""

    def to_dict(self) -> dict[str, Any]:
        """Return the line as JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"timestamp": iso(self.timestamp)}


@dataclass(slots=True)
class NodeSummary:
    """The sum of all live visits of one node."""

    node_id: str
    visits: int = 0
    attempts: int = 0
    failures: int = 0
    duration_ms: float = 0.0
    last_at: datetime | None = None
    next_node: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON."""
        return {
            "node_id": self.node_id,
            "visits": self.visits,
            "attempts": self.attempts,
            "failures": self.failures,
            "duration_ms": round(self.duration_ms, 3),
            "last_at": iso(self.last_at),
            "next_node": self.next_node,
        }


def is_workflow(store: Store, run_id: str) -> bool:
    """Return whether a run is that of a workflow. A run without a start record counts as that of a graph."""
    with contextlib.suppress(DeserializeStateError):
        begun = start_of(store, run_id)
        return begun is not None and begun.fields().get("front") == "workflow"
    return False


def read_entries(store: Store, run_id: str) -> Iterator[JournalLine]:
    """Yield all records of a run in order as lines. The store is read a page at a time."""
    known = {info.sequence: info.timestamp for info in store.history(run_id)}
    live = store.get_run(run_id).live
    for record in records_of(store, run_id):
        entry = _entry(record, _is_superseded(record, live), known.get(record.sequence))
        yield entry if record.kind != FAILURE else replace(entry, error=_error(store, run_id, record))


def newest_entries(
    store: Store, run_id: str, *, before: int | None = None, limit: int = 200
) -> list[tuple[JournalLine, Record]]:
    """Return the newest records of a run with their lines, the newest first: at most `limit`, and of those below `before`."""
    live = store.get_run(run_id).live
    records = store.read(run_id, before=before, newest=True, limit=limit)
    return [(line_of(store, run_id, record, live), record) for record in records]


def line_of(store: Store, run_id: str, record: Record, live: Ranges) -> JournalLine:
    """Return one record as a line. `live` are the ranges of the run's row."""
    entry = _entry(believed(store, run_id, record), _is_superseded(record, live), None)
    return entry if record.kind != FAILURE else replace(entry, error=_error(store, run_id, record))


def _is_superseded(record: Record, live: Ranges) -> bool:
    return bool(record.node_id) and record.kind != OWNER and not is_live(record.sequence, live)


def _error(store: Store, run_id: str, record: Record) -> dict[str, Any] | None:
    with contextlib.suppress(DeserializeStateError):
        store.seals.check(run_id, record)
        fields = record.fields()
        return {name: fields.get(name) for name in ("error_type", "message", "traceback")}
    return None


def records_of(store: Store, run_id: str, newest: int | None = None) -> Iterator[Record]:
    """Yield all records of a run in order, up to `newest`. The store is read a page at a time.

    One that holds a question, an answer or an error and was changed has no content: people shall not believe it.
    """
    after, before = -1, None if newest is None else newest + 1
    while page := store.read(run_id, after=after, before=before, limit=_PAGE):
        for record in page:
            yield believed(store, run_id, record)
        if len(page) < _PAGE:
            return
        after = page[-1].sequence


def believed(store: Store, run_id: str, record: Record) -> Record:
    """Return a record, without its content if it holds a question, an answer or an error and was changed."""
    if record.kind not in _BELIEVED:
        return record
    with contextlib.suppress(DeserializeStateError):
        store.seals.check(run_id, record)
        return record
    with contextlib.suppress(CheckpointIntegrityError):
        store.seals.check_key(run_id, record)
        return record._replace(header=b"", payload=None)
    return record  # the key is elsewhere, and so is the proof


def _entry(record: Record, superseded: bool, timestamp: datetime | None) -> JournalLine:
    try:
        fields = read_envelope(record.state() or b"")[0] if record.is_foreign else record.fields()
        by = actor_of(fields)
        note = _note(record.kind, fields) + ("" if by is None else f" (by {by})")
    except DeserializeStateError as exc:
        fields, by, note = (
            {},
            None,
            f"saved from outside, no envelope: {exc}" if record.is_foreign else f"damaged: {exc}",
        )
    if timestamp is None and isinstance(fields.get("timestamp"), str):
        timestamp = parse_time(fields["timestamp"])
    return JournalLine(
        sequence=record.sequence,
        kind=record.kind,
        node_id=record.node_id,
        visit=record.visit,
        attempt=fields.get("attempt"),
        timestamp=timestamp,
        duration_ms=fields.get("duration_ms"),
        next_node=fields.get("next_node"),
        size=record.size,
        superseded=superseded,
        epoch=fields.get("epoch"),
        branch=fields.get("branch"),
        note=note,
        max_attempts=fields.get("max_attempts"),
        by=by,
    )


def actor_of(fields: Mapping[str, Any]) -> str | None:
    """Return who caused a record, as the caller said, by the record's fields; None if nobody said."""
    nearest = next(iter(origins_of(fields)), None)
    by = fields.get("by") if nearest is None else nearest.by
    return None if by is None else str(by)


def _note(kind: str, fields: Mapping[str, Any]) -> str:
    """Return what the other columns do not say about a record."""
    if kind == START:
        entry = fields.get("entry")
        nearest = next(iter(origins_of(fields)), None)
        origin = "" if nearest is None else f", forked from run {nearest.run_id!r} at record {nearest.sequence}"
        return f"flow {fields.get('flow')!r} begins" + (f" at {entry!r}" if entry else "") + origin
    if kind == CHECKPOINT:
        outcome = fields.get("outcome", "succeeded")
        return "" if outcome == "succeeded" else str(outcome)
    if kind == FAILURE:
        return f"{fields.get('op')} failed: {failure_text(fields)}".partition("\n")[0]
    if kind == OWNER:
        what = f"{fields.get('verb')} after record {fields.get('from')}"
        if fields.get("verb") == BEGIN:
            what = "its input is read" + (f", and it begins at {fields['entry']!r}" if fields.get("entry") else "")
        if fields.get("verb") == CONTINUE:
            what = f"a new turn begins at {fields.get('entry')!r}"
        return what + (f": {fields['reason']}" if fields.get("reason") else "")
    if kind == FINISH:
        return str(fields.get("status", "")) + (f": {fields['reason']}" if fields.get("reason") else "")
    if kind == ROUTE:
        if "verdict" in fields:
            return "its predicate was true"
        return f"option {fields['index']} was chosen" if "index" in fields else "the router's late answer"
    if kind == ITEMS:
        return f"{fields['count']} items" if "count" in fields else "a flow begins as this step"
    if kind in {WAIT, REPLY}:
        return _wait_note(kind, fields)
    if kind == ROLLBACK:
        return "rolled back" if fields.get("message") is None else f"rollback failed: {fields['message']}"
    return ""


def failure_text(fields: Mapping[str, Any]) -> str:
    """Return the type and message of a recorded error; only the type if the message is encrypted."""
    message = fields.get("message")
    return f"{fields.get('error_type')}" + ("" if message is None else f": {message}")


def _wait_note(kind: str, fields: Mapping[str, Any]) -> str:
    if kind == REPLY:
        if fields.get("refused"):
            return str(fields["refused"])
        return "its time has come" if "signal" not in fields else f"signal number {fields['signal']} came"
    signal = "" if fields.get("signal") is None else f" for signal {fields['signal']!r}"
    return f"waits{signal}" + (f" until {fields['wake_at']}" if fields.get("wake_at") else "")


def steps_of(entries: Iterator[JournalLine]) -> list[NodeSummary]:
    """Sum up the visits of each node, in the order of their first visits. Superseded visits do not count."""
    steps: dict[str, NodeSummary] = {}
    for entry in entries:
        if entry.kind not in {CHECKPOINT, FAILURE} or entry.superseded:
            continue
        step = steps.setdefault(entry.node_id, NodeSummary(entry.node_id))
        step.last_at = entry.timestamp
        if entry.kind == FAILURE:
            step.failures += 1
            step.attempts += 1 if entry.attempt is not None else 0
            continue
        step.visits += 1
        step.attempts += 1
        step.duration_ms += entry.duration_ms or 0.0
        step.next_node = entry.next_node
    return list(steps.values())
