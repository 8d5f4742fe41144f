"""A run's journal as rows to show. Reads the store only; a damaged record becomes a row that says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from milepost.checkpoint import Checkpoint, read_envelope
from milepost.cli.text import clean, iso
from milepost.errors import DeserializeStateError
from milepost.record import CHECKPOINT, FAILURE, FINISH, OWNER, ROUTE, START, Record, parse_time
from milepost.store import Latest, Store

__all__ = ["Entry", "Step", "next_node", "read_entries", "state_of", "steps_of"]

_PAGE = 256


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as people look at it. `note` says what a record that is no checkpoint tells."""

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
    note: str

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"timestamp": iso(self.timestamp)}


@dataclass(slots=True)
class Step:
    """What became of one node over all of its visits that count."""

    node_id: str
    visits: int = 0
    attempts: int = 0
    failures: int = 0
    duration_ms: float = 0.0
    last_at: datetime | None = None
    next_node: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The step as JSON."""
        return {
            "node_id": self.node_id,
            "visits": self.visits,
            "attempts": self.attempts,
            "failures": self.failures,
            "duration_ms": round(self.duration_ms, 3),
            "last_at": iso(self.last_at),
            "next_node": self.next_node,
        }


def read_entries(store: Store, run_id: str) -> Iterator[Entry]:
    """All records of a run in order, a page at a time."""
    known = {info.sequence: info for info in store.history(run_id)}
    after = -1
    while True:
        page = store.read(run_id, after=after, limit=_PAGE)
        for record in page:
            info = known.get(record.sequence)
            yield _entry(record, info is not None and info.superseded, None if info is None else info.timestamp)
        if len(page) < _PAGE:
            return
        after = page[-1].sequence


def _entry(record: Record, superseded: bool, timestamp: datetime | None) -> Entry:
    try:
        fields = read_envelope(record.state() or b"")[0] if record.is_foreign else record.fields()
        note = _note(record.kind, fields)
    except DeserializeStateError as exc:
        fields, note = {}, f"saved from outside, no envelope: {exc}" if record.is_foreign else f"damaged: {exc}"
    if timestamp is None and isinstance(fields.get("timestamp"), str):
        timestamp = parse_time(fields["timestamp"])
    return Entry(
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
        note=note,
    )


def _note(kind: str, fields: dict[str, Any]) -> str:
    if kind == START:
        return f"flow {fields.get('flow')!r} begins at {fields.get('entry')!r}"
    if kind == FAILURE:
        return f"{fields.get('op')} failed: {fields.get('error_type')}: {fields.get('message')}".partition("\n")[0]
    if kind == OWNER:
        reason = fields.get("reason")
        return f"{fields.get('verb')} after record {fields.get('from')}" + (f": {reason}" if reason else "")
    if kind == FINISH:
        return str(fields.get("status", "")) + (f": {fields['reason']}" if fields.get("reason") else "")
    if kind == ROUTE:
        return "the router's late answer"
    return ""


def steps_of(entries: Iterator[Entry]) -> list[Step]:
    """What became of each node, in the order of first visits; superseded visits do not count."""
    steps: dict[str, Step] = {}
    for entry in entries:
        if entry.kind not in {CHECKPOINT, FAILURE} or entry.superseded:
            continue
        step = steps.setdefault(entry.node_id, Step(entry.node_id))
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


def next_node(latest: Latest) -> str | None:
    """Where the run goes on; None where the router has yet to say, or nothing is known."""
    if latest.point is None:
        return None
    try:
        found = latest.point.fields().get("entry" if latest.point.kind == START else "next_node")
        for record in latest.tail:
            if record.kind == ROUTE:
                found = record.fields().get("next_node")
    except DeserializeStateError:
        return latest.row.info.next_node
    return latest.row.info.next_node if latest.point.is_foreign else found


def state_of(record: Record) -> Any:
    """The state of a record as plain JSON. Raises `DeserializeStateError` where it has none that can be read."""
    try:
        return Checkpoint.decode(record.envelope()).state
    except DeserializeStateError as exc:
        where = f"record {record.sequence}" + (f" at node {record.node_id!r}" if record.node_id else "")
        raise DeserializeStateError(f"{where} has no readable state: {clean(exc)}") from exc
