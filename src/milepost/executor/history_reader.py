"""Readers of a journal: into a history, record by record, and into the position of a run of a graph.

What each kind of record changes is told in `milepost.executor.history`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from milepost.errors import CheckpointCorruptError, DeserializeStateError
from milepost.executor.history import JournalHistory
from milepost.executor.history_values import (
    COUNTED_FAILURES,
    NO_RENAMES,
    AttemptBudget,
    StepRecord,
    around,
    ids_below,
    is_settled,
    label_now,
    left_of_pause,
    parent_of,
)
from milepost.executor.renames import Renames
from milepost.model.beginning import completed, completes, is_incomplete
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
    StepHead,
)


def read_history(
    records: Iterable[Record],
    live: Ranges = (),
    renames: Renames = NO_RENAMES,
    parsed: Mapping[int, Mapping[str, Any] | StepHead] | None = None,
    *,
    is_lenient: bool = False,
) -> JournalHistory:
    """Make the history of a run, from records in order; only those in the ranges `live` (empty: all) count.

    `parsed` are headers that are known already, by number. Raises `CheckpointCorruptError` for a damaged header of a
    record that counts, or notes it if `is_lenient`.
    """
    builder = _Builder(JournalHistory(renames=renames))
    known = parsed or {}
    for record in records:
        counts = not live or is_live(record.sequence, live)
        head = known.get(record.sequence)
        if counts and isinstance(head, StepHead):
            builder.complete(record, head)
            continue
        try:
            builder.add(record, counts, None if isinstance(head, StepHead) else head)
        except DeserializeStateError:
            if not is_lenient:
                raise
            builder.damaged.append(record.sequence)
    return builder.built()


def followed_by(history: JournalHistory, records: Iterable[Record]) -> JournalHistory:
    """Make the history after these records, which all count."""
    builder = _Builder(history)
    for record in records:
        builder.add(record)
    return builder.built()


def retried_at(history: JournalHistory, sequence: int) -> JournalHistory:
    """Make the history after a `retry` with this number: everything that failed before it is done again."""
    builder = _Builder(history)
    builder.retry(sequence)
    return builder.built()


def renewed_at(history: JournalHistory, sequence: int) -> JournalHistory:
    """Make the history after a claim with this number that goes on after the run had failed."""
    builder = _Builder(history)
    builder.renew(sequence)
    return builder.built()


def reopened_at(history: JournalHistory, step_id: str, sequence: int) -> JournalHistory:
    """Make the history in which a step is tried again, though its code was given its failure."""
    builder = _Builder(history)
    builder.reopen(step_id, sequence)
    return builder.built()


def newest_renames(records: Sequence[Record]) -> Record | None:
    """Return the newest owner record with renames, which holds all of them; None if nothing was renamed.

    Damaged records are ignored here.
    """
    for record in reversed(records):
        if record.kind == OWNER:
            with suppress(CheckpointCorruptError):
                if record.fields().get("renames"):
                    return record
    return None


class _Builder:
    """A history in the making: each record that is added changes it."""

    renames: Renames
    clash: tuple[str, str, str] | None
    start: StepRecord | None
    done: dict[str, StepRecord]
    failures: dict[str, list[StepRecord]]
    choices: dict[str, StepRecord]
    items: dict[str, StepRecord]
    waits: dict[str, StepRecord]
    replies: dict[str, StepRecord]
    refused: dict[str, StepRecord]
    used_signals: set[int]
    undone: dict[str, StepRecord]
    final: StepRecord | None
    finish: StepRecord | None
    visits: dict[str, int]
    crashes: list[int]
    superseded: list[Record]
    damaged: list[int]
    retried: int
    renewed: int
    reopened: dict[str, int]
    newest: int
    earlier: dict[str, str]
    tried: dict[tuple[str, int], int]
    succeeded: set[tuple[str, int]]
    reroutes: dict[int, int]
    overrides: dict[int, tuple[bytes, dict[str, Any] | None]]
    trails: dict[tuple[str, str], list[StepRecord]]
    inside: dict[str, dict[str, None]]

    def __init__(self, before: JournalHistory) -> None:
        for name in JournalHistory.__struct_fields__:
            value = getattr(before, name)
            if isinstance(value, (dict, list, set)):
                value = _copied(value) if value else type(value)()
            setattr(self, name, value)

    def built(self) -> JournalHistory:
        """Return the history. Nothing may be added afterwards."""
        return JournalHistory(**vars(self))

    def complete(self, record: Record, head: StepHead) -> None:
        """Take in a checkpoint as `add` does, but faster: most records are of this kind."""
        step_id = self._called(record) if self.renames else record.node_id
        self.newest = record.sequence
        visits = self.visits
        if step_id not in visits or visits[step_id] < record.visit:
            visits[step_id] = record.visit
        self._done(step_id, StepRecord(record.sequence, head, record), head.branch)
        self._place(step_id)

    def _done(self, step_id: str, entry: StepRecord, branch: str | None) -> None:
        self.done[step_id] = entry
        if self.undone:
            self.undone.pop(step_id, None)
        if branch:
            place = label_now(self.renames, branch, entry.sequence), parent_of(step_id)
            self.trails.setdefault(place, []).append(entry)

    def add(self, record: Record, counts: bool = True, fields: Mapping[str, Any] | None = None) -> None:
        """Take in the next record; `fields` are those of its header, if they are known already."""
        self.newest = record.sequence
        kind, step_id = record.kind, record.node_id
        try:
            fields = record.fields() if fields is None else fields
        except CheckpointCorruptError:
            if counts:
                raise
            fields = {}
        if self.renames and step_id:
            step_id = self._called(record, counts=counts)
        if step_id and kind != ROLLBACK:
            # An owner record holds the number of a visit that was deleted.
            self.visits[step_id] = max(record.visit, self.visits.get(step_id, 0))
        if kind == REPLY and isinstance(fields.get("signal"), int):
            self.used_signals.add(fields["signal"])
        elif kind == OWNER:
            # A step was deleted with its replies; the signals that they used stay used.
            self.used_signals.update(fields.get("used") or ())
        if not counts and kind != START:
            if kind == CHECKPOINT:
                self.superseded.append(record)
            if self.start is not None:
                self._supersede(step_id, kind, record.visit, fields)
            return
        entry = StepRecord(record.sequence, fields, record)
        if kind == CHECKPOINT:
            self._done(step_id, entry, fields.get("branch"))
        elif kind == START:
            self.start = entry
        elif kind == FAILURE:
            self.failures.setdefault(step_id, []).append(entry)
            if fields.get("retry_at"):
                self._reopen_inside(step_id, entry)
            if fields.get("final"):
                self.final = entry
        elif kind == ROUTE:
            self.choices[step_id] = entry
        elif kind == ITEMS:
            self.items[step_id] = entry
        elif kind == WAIT:
            self.waits[step_id] = entry
        elif kind == REPLY:
            if fields.get("refused"):
                self.refused[step_id] = entry
            else:
                self.replies[step_id] = entry
        elif kind == ROLLBACK:
            self.undone[step_id] = entry
        elif kind == FINISH:
            self.finish = entry
        elif kind == OWNER:
            self._claimed(fields, record.sequence)
            if completes(fields) and self.start is not None and is_incomplete(self.start.fields):
                whole = completed(self.start.record, fields, record.state())
                self.start = StepRecord(self.start.sequence, whole.fields(), whole)
            amends = int(fields.get("overrides", fields.get("from", -1)))
            if record.payload is not None:
                self.overrides[amends] = record.state() or b"", fields.get("updates")
            if fields.get("reroute"):
                self.reroutes[amends] = record.sequence
            elif "reroute" in fields:
                self.reroutes.pop(amends, None)
        if step_id and kind not in {ROLLBACK, OWNER}:
            self._place(step_id)

    def _supersede(self, step_id: str, kind: str, visit: int, fields: Mapping[str, Any]) -> None:
        """Note how a superseded visit of a step ended.

        A visit that only failed is tried again under the same number.
        """
        if kind == FAILURE:
            self.tried[step_id, visit] = self.tried.get((step_id, visit), 0) + 1
        elif kind == CHECKPOINT and fields.get("outcome") != "failed":
            self.succeeded.add((step_id, visit))

    def _called(self, record: Record, *, counts: bool = True) -> str:
        """Return the id that a record's step has now. Note a clash, where two recorded ids become one."""
        node_id = self.renames.now(record.node_id, record.sequence)
        if counts and self.renames.given:
            before = self.renames.before(record.node_id, record.sequence)
            other = self.earlier.setdefault(node_id, before)
            if other != before and self.clash is None:
                self.clash = (other, before, node_id)
        return node_id

    def _claimed(self, fields: Mapping[str, Any], sequence: int) -> None:
        if fields.get("crashed"):
            self.crashes.append(sequence)
        if fields.get("verb") == "retry":
            self.retry(sequence)
        if self.finish is not None:
            # A run that had ended goes on: it has no end any more.
            self.finish = self.final = None
            self.renew(sequence)
        if fields.get("again"):
            self.reopen(fields["again"], sequence)

    def retry(self, sequence: int) -> None:
        """Have everything that failed before this number be done again.

        A failed part may have rolled back steps of its own before it failed. They are done again too: nothing is left
        of them.
        """
        self.retried = sequence
        self.renew(sequence)
        for step_id in [step_id for step_id in self.undone if is_settled(step_id, self.undone, self.done)]:
            if step_id in self.undone:
                self._forget_from(step_id)

    def renew(self, sequence: int) -> None:
        """Have the failures before this number be tried again, but for those that the code was given and went on with."""
        self.renewed = max(self.renewed, sequence)
        for step_id, entries in [*self.failures.items()]:
            if not entries[-1].fields.get("caught"):
                self._reopen_inside(step_id, entries[-1])

    def reopen(self, step_id: str, sequence: int) -> None:
        """Have a step be tried again, though the code was given its failure."""
        self.reopened[step_id] = sequence
        for entry in [*self.failures.get(step_id, ())[-1:]]:
            self._reopen_inside(step_id, entry)

    def _reopen_inside(self, step_id: str, entry: StepRecord) -> None:
        """Have the step inside a workflow be tried again whose failure left that workflow's code at last.

        What the code did after it had been given that failure no longer counts.
        """
        of = entry.fields.get("of")
        if of and step_id and of in self.failures:
            self._forget(step_id, self.failures[of][-1].sequence)
            self.reopen(of, entry.sequence)

    def _forget_from(self, step_id: str) -> None:
        """Forget the records of the innermost settled part around a step, from its first step on that was rolled back."""
        part = next(outer for outer in around(step_id) if outer in self.done)
        parts = [*ids_below(self.inside, part)]
        first = min(self.done[found].sequence for found in parts if found in self.undone and found in self.done)
        for found in parts:
            self.failures.pop(found, None)
        self._forget(part, first - 1)

    def _forget(self, part: str, after: int) -> None:
        """Forget the records inside a part with a number above `after`."""
        held = (self.done, self.choices, self.items, self.waits, self.replies, self.refused, self.undone)
        for found in [*ids_below(self.inside, part)]:
            for entries in held:
                if found in entries and entries[found].sequence > after:
                    del entries[found]
            kept = [entry for entry in self.failures.pop(found, ()) if entry.sequence <= after]
            if kept:
                self.failures[found] = kept
        self.inside[part] = {
            child: None
            for child in self.inside.get(part, ())
            if child in self.failures or any(child in entries for entries in held)
        }

    def _place(self, step_id: str) -> None:
        parent = parent_of(step_id)
        siblings = self.inside.get(parent)
        if siblings is None:
            siblings = self.inside[parent] = {}
            if parent:
                self._place(parent)
        siblings.setdefault(step_id)


def _copied(value: Any) -> Any:
    """Copy a container that a history holds, with the containers in it; anything else is returned as it is."""
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    if isinstance(value, (list, set)):
        return value.copy()
    return value


# -- where a run of a graph stands -------------------------------------------------------------------


class RunPosition(NamedTuple):
    """The position of a run of a graph: a point of it, with what the records after the point say."""

    next_node: str | None
    """The next node by the records; None if the point's router has not answered yet."""
    route_at: int
    """The number of the record that names it."""
    override: Record | None
    """The owner record whose state replaces that of the point; None if the point was never amended."""
    is_rerouted: bool
    """True if the point's router is asked again, and has not answered since."""
    turn: Record | None
    """The record that began the newest turn; None if no turn has begun since the point."""
    tail: tuple[Record, ...]
    """The records that count after the point, or from the turn on."""


def position_after(point: Record, next_node: str | None, tail: Sequence[Record]) -> RunPosition:
    """Find where a run stands: `next_node` is that of the point itself, `tail` are the records after it that count."""
    override: Record | None = None
    route_at, is_rerouted = point.sequence, False
    turn, tail = newest_turn(tail)
    if turn is not None:
        next_node, route_at = turn.fields().get("entry"), turn.sequence
    for record in tail:
        if record.kind == ROUTE and record.node_id == point.node_id:
            next_node, route_at, is_rerouted = record.fields().get("next_node"), record.sequence, False
        elif record.kind == OWNER and record.fields().get("overrides") in {None, point.sequence}:
            override = override if record.payload is None else record
            is_rerouted = bool(record.fields().get("reroute", is_rerouted))
    return RunPosition(next_node, route_at, override, is_rerouted, turn, tail)


def newest_turn(tail: Sequence[Record]) -> tuple[Record | None, tuple[Record, ...]]:
    """Find in `tail` the record that began the newest turn.

    Returns that record, and it with all records after it; (None, all of them) if no turn began.
    """
    for at in range(len(tail) - 1, -1, -1):
        if tail[at].kind == OWNER and tail[at].fields().get("verb") == CONTINUE:
            return tail[at], tuple(tail[at:])
    return None, tuple(tail)


def spent_at(
    node_id: str | None, tail: Sequence[Record], renames: Renames, now: float, *, is_late: bool
) -> AttemptBudget:
    """Return the attempts that the visit of the next node has used up, by the records after the point.

    The visit has the number 0 if no record is of it. `is_late`: no node could begin before the router's answer in `tail`.
    """
    spent = AttemptBudget(visit=0)
    for record in tail:
        fields = record.fields()
        is_its = renames.now(record.node_id, record.sequence) == node_id
        if record.kind == FAILURE and fields.get("op") != "route" and is_its:
            spent.failures += fields.get("op") in COUNTED_FAILURES
            spent.attempts += 1
            spent.visit = record.visit
            spent.pause = left_of_pause(fields, now) if "retry_at" in fields else 0.0
        elif record.kind == ROUTE and is_late and not spent.visit:
            spent.attempts = 0
        elif record.kind == OWNER:
            if fields.get("crashed"):
                spent.attempts += 1
            if fields.get("verb") == "retry":
                spent.failures, spent.pause = 0, 0.0
    return spent
