"""The record of a run as a replay needs it: its visits in order, and the outcome of each call of user code.

`JournalHistory` knows the newest of everything, from which a run goes on. A replay begins at the beginning, so it needs
all visits that count, those of loops and turns too, and each node's outcomes in the order in which they came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from milepost.executor.history import JournalHistory
from milepost.executor.history_reader import newest_renames, read_history
from milepost.executor.history_values import COUNTED_FAILURES, StepRecord, parent_of, prefix_of
from milepost.executor.renames import Renames
from milepost.model.ranges import is_live
from milepost.model.record import (
    CHECKPOINT,
    CONTINUE,
    FAILURE,
    FINISH,
    ITEMS,
    OWNER,
    REPLY,
    ROUTE,
    WAIT,
    Origin,
    Record,
    origins_of,
    segments_of,
)
from milepost.store import RunRow, Store

Trail = tuple[str, ...]
"""A part of a flow in which one visit follows the other: the forks, branches and items around it, and its parent."""
_UNORDERED = frozenset({"parallel", "map"})


class RecordedVisit(msgspec.Struct, eq=False):
    """One visit that counts, or what was decided before it: the question of a wait, or the items of a map.

    `number` counts those of the same node, from 1.
    """

    node_id: str
    number: int
    sequence: int
    facts: dict[str, Any]
    """The facts about the path, as JSON: the next node, a step's arguments, a question, items."""
    state: Any = None
    """The state after the node, or the step's output, as JSON."""
    trail: Trail = ()
    is_decision: bool = False

    @property
    def key(self) -> tuple[str, int, bool]:
        """The place of the visit among all of its run."""
        return self.node_id, self.number, self.is_decision

    def __str__(self) -> str:
        before = ", before it began" if self.is_decision else ""
        return f"visit {self.number} of {self.node_id!r}{before}"


class Turn(NamedTuple):
    """A turn of a graph's run: the number of the record that began it, and the state that it began with."""

    sequence: int
    state: bytes


class RecordedRun:
    """A run's journal, read once. Only what counts is in it: what a resume has superseded is left out."""

    def __init__(self, row: RunRow, records: Sequence[Record]) -> None:
        self.row = row
        self.records = records
        renamer = newest_renames(records)
        self._renames = Renames.read(None if renamer is None else renamer.fields(), None)
        self.history: JournalHistory = read_history(records, row.live, self._renames)
        self.visits: list[RecordedVisit] = []
        """The visits in the order of their records."""
        self.outcomes: dict[str, list[StepRecord]] = {}
        """The outcomes of each node's or step's calls in order: failed attempts, and checkpoints of those that succeeded."""
        self.items: dict[str, list[StepRecord]] = {}
        """The records of the items of each map of a graph, in order."""
        self.replies: dict[str, list[StepRecord | None]] = {}
        """The reply to each wait of a node in order; None: it has none."""
        self.times: dict[tuple[str, str], list[str]] = {}
        """The times of the records of each kind and node, in order."""
        self.turns: list[Turn] = []
        self._numbers: dict[tuple[str, bool], int] = {}
        self._newest: dict[str, RecordedVisit] = {}
        self._has_ended = False
        unordered = set[str]()
        for record in records:
            if record.kind != OWNER and row.live and not is_live(record.sequence, row.live):
                continue
            fields = record.fields()
            node_id = self._renames.now(record.node_id, record.sequence) if record.node_id else ""
            if fields.get("step_type") in _UNORDERED or (record.kind == ITEMS and "count" in fields):
                unordered.add(node_id)
            self._add(StepRecord(record.sequence, fields, record), node_id)
        for visit in self.visits:
            visit.trail = () if parent_of(visit.node_id) in unordered else visit.trail

    @classmethod
    def of(cls, store: Store, run_id: str) -> RecordedRun:
        """Read a run of a store."""
        return cls(store.get_run(run_id), store.read(run_id))

    @property
    def start(self) -> StepRecord:
        """The start record, with what its first owner has completed."""
        assert self.history.start is not None
        return self.history.start

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The runs that the run was forked from."""
        return origins_of(self.start.fields)

    @property
    def failure(self) -> str | None:
        """The type and message of the error that the run failed with; None if it has not failed."""
        ends = (self.history.final, self.history.finish)
        fields = next((end.fields for end in ends if end is not None and end.fields.get("error_type")), None)
        return None if fields is None else f"{fields['error_type']}: {fields.get('message') or ''}"

    @property
    def status(self) -> str:
        """The status of the run."""
        return self.row.info.status

    def output(self) -> Any:
        """Return the output as JSON: a workflow's return value, or a graph's final state. None without one."""
        finish = self.history.finish
        if finish is None or finish.fields.get("status") != "finished":
            return None
        if (data := finish.record.state()) is not None:
            return msgspec.json.decode(data)
        at = finish.fields.get("result")
        return next((visit.state for visit in self.visits if visit.sequence == at), None)

    def state_of(self, entry: StepRecord) -> bytes:
        """Return the encoded payload of a checkpoint, amended if it was."""
        return self.history.state_of(entry)

    def trails(self) -> dict[Trail, list[RecordedVisit]]:
        """Return the visits of each part in which one follows the other."""
        found: dict[Trail, list[RecordedVisit]] = {}
        for visit in self.visits:
            if visit.trail and not visit.is_decision:
                found.setdefault(visit.trail, []).append(visit)
        return found

    # -- reading ---------------------------------------------------------------------------------------

    def _add(self, entry: StepRecord, node_id: str) -> None:
        kind, fields = entry.record.kind, entry.fields
        if kind == OWNER:
            return self._claimed(entry, node_id)
        self.times.setdefault((kind, node_id), []).append(str(fields.get("timestamp")))
        if kind == CHECKPOINT:
            self._completed(entry, node_id)
        elif kind == FAILURE and fields.get("op") in COUNTED_FAILURES:
            self.outcomes.setdefault(node_id, []).append(entry)
        elif kind == ROUTE and fields.get("next_node") is not None and node_id in self._newest:
            self._newest[node_id].facts["next_node"] = self._next(entry, fields["next_node"])
        elif kind == WAIT:
            self.replies.setdefault(node_id, []).append(None)
            asked = {"signal": fields.get("signal"), "prompt": _json(entry.record.state())}
            self._visited(entry, node_id, asked, None, is_decision=True)
        elif kind == ITEMS and "count" in fields:
            self.items.setdefault(node_id, []).append(entry)
            self._visited(entry, node_id, {"items": _json(entry.record.state())}, None, is_decision=True)
        elif kind == REPLY and not fields.get("refused"):
            waits = self.replies.setdefault(node_id, [None])
            waits[-1] = entry
        elif kind == FINISH:
            self._has_ended = True
        return None

    def _claimed(self, entry: StepRecord, node_id: str) -> None:
        fields = entry.fields
        if fields.get("verb") == CONTINUE and (not self.row.live or is_live(entry.sequence, self.row.live)):
            self.times.setdefault((OWNER, node_id), []).append(str(fields.get("timestamp")))
            self.turns.append(Turn(entry.sequence, entry.record.state() or b""))
        if self._has_ended or fields.get("verb") == "retry":
            # What had failed is tried again with fresh attempts, but for what the code was given and went on with.
            for outcomes in self.outcomes.values():
                if outcomes and not outcomes[-1].fields.get("caught"):
                    while outcomes and outcomes[-1].record.kind == FAILURE:
                        outcomes.pop()
        self._has_ended = False

    def _completed(self, entry: StepRecord, node_id: str) -> None:
        fields, data = entry.fields, self.state_of(entry)
        if "step_type" not in fields:
            next_node = fields.get("next_node")
            facts = {"next_node": None if next_node is None else self._next(entry, next_node)}
            self._visited(entry, node_id, facts, _json(data))
            self.outcomes.setdefault(node_id, []).append(entry)
            return
        outcome = entry.outcome()
        facts = {name: fields.get(name) for name in ("step_type", "outcome", "args")}
        facts["error"] = outcome.error
        self._visited(entry, node_id, facts, _json(bytes(outcome.output)))
        if outcome.outcome == "succeeded":
            self.outcomes.setdefault(node_id, []).append(entry)

    def _visited(
        self, entry: StepRecord, node_id: str, facts: dict[str, Any], state: Any, *, is_decision: bool = False
    ) -> None:
        number = self._numbers[node_id, is_decision] = self._numbers.get((node_id, is_decision), 0) + 1
        way = [part for segment in segments_of(self.history.label_of(entry)) for part in (segment.fork, segment.branch)]
        trail = (*way, parent_of(node_id))
        visit = RecordedVisit(node_id, number, entry.sequence, facts, state, trail, is_decision)
        if not is_decision:
            self._newest[node_id] = visit
        self.visits.append(visit)

    def _next(self, entry: StepRecord, next_node: str) -> str:
        prefix = prefix_of(entry.record.node_id)
        return self._renames.now(prefix + next_node, entry.sequence).rpartition("/")[2]


def _json(data: bytes | None) -> Any:
    return None if not data else msgspec.json.decode(data)
