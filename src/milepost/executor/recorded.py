"""What a run has recorded, by step or node: everything that is answered from the record instead of being done again.

Made from records of a journal in one pass: for a workflow from all of them, for a graph from those since the point where it
goes on. Records that are superseded only count visits, and the signals that they used. Pure; nothing is decoded before
somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from milepost.errors import CheckpointCorruptError
from milepost.executor.attempt import AttemptBudget
from milepost.executor.checks import COUNTED_FAILURES, is_live, left_of_pause
from milepost.executor.flow import END, REPLACED
from milepost.executor.renames import Renames
from milepost.model.branch_path import Segment, turnings, way_to
from milepost.model.record import (
    CHECKPOINT,
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
from milepost.store import Ranges

if TYPE_CHECKING:
    from milepost.model.results import StepResult, StepType

__all__ = ["JournalHistory", "PendingRecord", "StepOutcome", "StepRecord", "parent_of"]


class PendingRecord(NamedTuple):
    """A record that is to be written, before it has a number."""

    kind: str
    step_id: str
    visit: int
    fields: dict[str, Any]
    state: bytes | None = None


class StepOutcome(msgspec.Struct, gc=False):
    """A step's result as it stands in a record; the output stays JSON until its type is known."""

    name: str
    step_type: str
    success: bool
    output: msgspec.Raw = msgspec.Raw(b"null")
    duration_ms: float = 0.0
    error: str | None = None
    error_type: str | None = None
    outcome: str = "succeeded"
    attempts: int = 1

    def result(self, output: Any, name: str | None = None, step_type: StepType | str | None = None) -> StepResult:
        """The result with its decoded output, and with name and kind as the code has them now where that is given."""
        from milepost.model.results import StepResult

        return StepResult(
            self.name if name is None else name,
            self.step_type if step_type is None else step_type,
            self.success,
            output,
            self.duration_ms,
            self.error,
            self.error_type,
            self.outcome,  # type: ignore[arg-type]
            self.attempts,
        )


_decode = msgspec.json.Decoder(StepOutcome).decode


class CallResult(msgspec.Struct, gc=False):
    """What a replay asks of the result of a call that succeeded; the output stays JSON."""

    success: bool
    output: msgspec.Raw
    duration_ms: Annotated[float, msgspec.Meta(ge=0)]
    attempts: int


_decode_made = msgspec.json.Decoder(CallResult).decode


class StepRecord(msgspec.Struct, eq=False, gc=False):
    """One record of a step."""

    sequence: int
    told: Mapping[str, Any] | StepHead
    """What its header says: all, or what a replay asks for, until somebody asks for more."""
    record: Record

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of its header."""
        if isinstance(self.told, StepHead):
            self.told = self.record.fields()
        return self.told

    def made(self) -> CallResult | None:
        """What a call made that succeeded; None if that is not what is in it, and `kept` says what is."""
        try:
            made = _decode_made(self.record.payload or b"")
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return made if made.success else None

    def kept(self) -> StepOutcome:
        """The result in it; `CheckpointCorruptError` if there is none."""
        data = self.record.state() or b""
        try:
            return _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise CheckpointCorruptError(
                f"record {self.sequence} of step {self.record.node_id!r} holds no result of a step: {exc}",
                node_id=self.record.node_id,
                sequence=self.sequence,
            ) from exc


def parent_of(step_id: str) -> str:
    """The id of what a step is part of; "" at the top."""
    return step_id.rpartition("/")[0]


def _prefix_of(node_id: str) -> str:
    """What is before the last part of an id, with the slash; "" at the top."""
    return node_id[: len(node_id) - len(node_id.rpartition("/")[2])]


def _around(step_id: str) -> Iterator[str]:
    """The ids of all that a step is part of, the nearest first."""
    while step_id := parent_of(step_id):
        yield step_id


def _with_around(step_id: str) -> Iterator[str]:
    yield step_id
    yield from _around(step_id)


class PartProgress(NamedTuple):
    """One of several things that are done at once, but only so many of them: a branch, an item, a step of a group."""

    node_id: str
    """What is next in it."""
    numbers: tuple[int, ...]
    """Of the records in it."""
    ended: int | None
    """The number of the record that ended it."""


class JournalHistory:
    """The records of one run, by step."""

    def __init__(
        self,
        records: Iterable[Record] = (),
        live: Ranges = (),
        renames: Renames | None = None,
        parsed: Mapping[int, Mapping[str, Any] | StepHead] | None = None,
    ) -> None:
        self._renames = renames or Renames()
        self._earlier: dict[str, str] = {}
        """What each id was before the map of names that is given now."""
        self.clash: tuple[str, str, str] | None = None
        """Two recorded ids, as they are called before that, and what both would be called."""
        self.start: StepRecord | None = None
        self.done: dict[str, StepRecord] = {}
        """The newest completion of each step."""
        self.failures: dict[str, list[StepRecord]] = {}
        self.choices: dict[str, StepRecord] = {}
        """That a predicate was true, or which option a branch took."""
        self.items: dict[str, StepRecord] = {}
        self.waits: dict[str, StepRecord] = {}
        self.replies: dict[str, StepRecord] = {}
        self.refused: dict[str, StepRecord] = {}
        """The newest refused answer of a wait."""
        self.used_signals: set[int] = set()
        self.undone: dict[str, StepRecord] = {}
        """Rollbacks that have ended, well or not."""
        self.final: StepRecord | None = None
        """The failure with which the run began to end."""
        self.finish: StepRecord | None = None
        self.visits: dict[str, int] = {}
        self.crashes: list[int] = []
        self._failed: dict[tuple[str, int], int] = {}
        """How many attempts of a step's visit failed that are superseded."""
        self._succeeded: set[tuple[str, int]] = set()
        """The visits of steps that succeeded and are superseded."""
        self._idle: dict[str, set[int]] = {}
        """The crashes at which something stood in a queue, and had not begun."""
        self.retried: int = -1
        """The sequence of the newest `retry`: what failed before it is run again."""
        self._renewed = -1
        """The sequence of the newest claim that went on after an end, or was a `retry`."""
        self.newest = -1
        self._reroutes: dict[int, int] = {}
        """The checkpoints whose router is asked again, and the records after which it is to answer."""
        self._overrides: dict[int, tuple[bytes, dict[str, Any] | None]] = {}
        """The states that checkpoints stand for instead of their own, and of updates what is for fields with a reducer."""
        self._decoded: dict[int, Any] = {}
        """What was decoded before anything went on, by the number of its record."""
        self._trails: dict[tuple[str, str], list[StepRecord]] = {}
        """The checkpoints of each branch, by its label and what its nodes are part of."""
        self._children: dict[str, dict[str, None]] = {}
        known = parsed or {}
        for record in records:
            is_standing = not live or is_live(record.sequence, live)
            told = known.get(record.sequence)
            if is_standing and isinstance(told, StepHead):
                self._complete(record, told)
            else:
                self.add(record, is_standing, None if isinstance(told, StepHead) else told)

    def _complete(self, record: Record, head: StepHead) -> None:
        """`add` for the one kind of which there are many."""
        step_id = self._called(record) if self._renames else record.node_id
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
            place = self._renamed_label(branch, entry.sequence), parent_of(step_id)
            self._trails.setdefault(place, []).append(entry)

    def add(self, record: Record, is_standing: bool = True, fields: Mapping[str, Any] | None = None) -> None:
        """Take in the next record; `fields` are its header's, where they are known already."""
        self.newest = record.sequence
        kind, step_id = record.kind, record.node_id
        try:
            fields = record.fields() if fields is None else fields
        except CheckpointCorruptError:
            if is_standing:
                raise
            fields = {}
        if self._renames and step_id:
            step_id = self._called(record, is_standing=is_standing)
        if step_id and kind != ROLLBACK:
            # An owner record tells of visits that were deleted.
            self.visits[step_id] = max(record.visit, self.visits.get(step_id, 0))
        if kind == REPLY and isinstance(fields.get("signal"), int):
            self.used_signals.add(fields["signal"])
        elif kind == OWNER:
            # A step was deleted, with the replies that it had got.
            self.used_signals.update(fields.get("used") or ())
        if not is_standing and kind != START:
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
            amends = int(fields.get("overrides", fields.get("from", -1)))
            if record.payload is not None:
                self.override(amends, record.state() or b"", fields.get("updates"))
            if "reroute" in fields:
                self.reroute(amends, record.sequence if fields["reroute"] else None)
        if step_id and kind not in {ROLLBACK, OWNER}:
            self._place(step_id)

    def _supersede(self, step_id: str, kind: str, visit: int, fields: Mapping[str, Any]) -> None:
        """Note how a visit of a step ended that counts no more: one that only failed is tried again under its number."""
        if kind == FAILURE:
            self._failed[step_id, visit] = self._failed.get((step_id, visit), 0) + 1
        elif kind == CHECKPOINT and fields.get("outcome") != "failed":
            self._succeeded.add((step_id, visit))

    def _called(self, record: Record, *, is_standing: bool = True) -> str:
        """The id of what a record is of, as it is called now; notes where two become one by that."""
        node_id = self._renames.now(record.node_id, record.sequence)
        if is_standing and self._renames.given:
            self.call(self._renames.before(record.node_id, record.sequence), node_id)
        return node_id

    def call(self, before: str, node_id: str) -> None:
        """Note what a recorded id is called now."""
        other = self._earlier.setdefault(node_id, before)
        if other != before and self.clash is None:
            self.clash = (other, before, node_id)

    def _renamed_label(self, label: str, sequence: int) -> str:
        """The label of a branch as it is now: a fork, or the first node of a branch, may have been given another name."""
        if not self._renames:
            return label
        way = ""
        for fork, visit, branch, _ in turnings(label):
            first = self._renames.now(f"{parent_of(fork)}/{branch}".lstrip("/"), sequence)
            way = way_to(way, self._renames.now(fork, sequence), visit, first.rpartition("/")[2])
        return way

    def _claimed(self, fields: Mapping[str, Any], sequence: int) -> None:
        if fields.get("crashed"):
            self.crashes.append(sequence)
        if fields.get("verb") == "retry":
            self.retry(sequence)
        if self.finish is not None:
            # A run that had failed goes on: it is not on its way to an end any more.
            self.finish = self.final = None
            self._renewed = sequence

    def retry(self, sequence: int) -> None:
        """Have what failed before this number be done again.

        What a failed part undid of its own before it failed is done again too: nothing is left of it.
        """
        self.retried = self._renewed = sequence
        for step_id in [step_id for step_id in self.undone if self._is_settled(step_id)]:
            if step_id in self.undone:
                self._forget_from(step_id)

    def _is_settled(self, step_id: str) -> bool:
        """Whether a step was undone by something around it that failed, and that failure is an outcome of its own."""
        undone = self.undone[step_id].sequence
        return any(self.done[outer].sequence > undone for outer in _around(step_id) if outer in self.done)

    def _forget_from(self, step_id: str) -> None:
        """Forget the innermost settled part around a step from the first thing on that was undone in it."""
        part = next(outer for outer in _around(step_id) if outer in self.done)
        inside = [*self.below(part)]
        first = min(self.done[found].sequence for found in inside if found in self.undone and found in self.done)
        held = (self.done, self.choices, self.items, self.waits, self.replies, self.refused, self.undone)
        for found in inside:
            for entries in held:
                if found in entries and entries[found].sequence >= first:
                    del entries[found]
            self.failures.pop(found, None)
        self._children[part] = {
            child: None for child in self._children.get(part, ()) if any(child in entries for entries in held)
        }

    def standing_failure(self, step_id: str) -> StepRecord | None:
        """The failure with which a step inside another one ended for good, where what is around it has not ended yet.

        That the step failed is settled then, though nothing else was made of it: it is not tried again.
        """
        failures = self.failures.get(step_id)
        if not failures:
            return None
        last, done = failures[-1], self.done.get(step_id)
        if done is not None and done.sequence > last.sequence:
            return None
        is_last = last.fields.get("given_up") or last.fields.get("op") == "on_error"
        if not is_last or last.fields.get("final") or self.finish is not None or last.sequence <= self._renewed:
            return None
        later = (entry for outer in _around(step_id) for entry in self.failures.get(outer, ())[-1:])
        return None if any(entry.sequence > last.sequence for entry in later) else last

    # -- nodes of a graph ------------------------------------------------------------------------------

    def newest_in(self, prefix: str, label: str, after: int) -> StepRecord | None:
        """The newest checkpoint of a node right below `prefix`, in the branch `label`, with a number above `after`."""
        if label:
            trail = self._trails.get((label, prefix[:-1]), ())
            return trail[-1] if trail and trail[-1].sequence > after else None
        found: StepRecord | None = None
        for child in self.children(prefix[:-1]):
            entry = self.done.get(child)
            if entry is None or entry.sequence <= after or entry.fields.get("branch"):
                continue
            if found is None or entry.sequence > found.sequence:
                found = entry
        return found

    def label_of(self, entry: StepRecord) -> str:
        """The way to the branch that a checkpoint is in, as it is now; "" for none."""
        return self._renamed_label(str(entry.fields.get("branch") or ""), entry.sequence)

    def open_fork(self, label: str, prefix: str, point: Record) -> tuple[str, str] | None:
        """The fork right below `prefix` and the branch of it that `label` ends with; None unless the run stands in that."""
        ways = turnings(label)
        if not ways:
            return None
        fork_id, visit, branch, outer = ways[-1]
        if parent_of(fork_id) != prefix[:-1]:
            return None
        entry = self.newest_in(prefix, outer, point.sequence)
        stood = point if entry is None and not prefix and not outer else None if entry is None else entry.record
        if stood is None or self.renamed(stood.node_id, stood.sequence) != fork_id or stood.visit != visit:
            return None
        return fork_id, branch

    def content(self, entry: StepRecord) -> tuple[bytes, str | None]:
        """The state that a checkpoint stands for, and the node to go on at (None: its router is asked)."""
        node_id = self.renamed(entry.record.node_id, entry.sequence)
        data = self.state_of(entry)
        next_node, told_at = entry.fields.get("next_node"), entry.sequence
        route = self.choices.get(node_id)
        if route is not None and route.sequence > entry.sequence and route.record.visit == entry.record.visit:
            next_node, told_at = route.fields.get("next_node"), route.sequence
        is_answered = route is not None and route.sequence > self._reroutes.get(entry.sequence, -1)
        if next_node is None or (entry.sequence in self._reroutes and not is_answered):
            return data, None
        prefix = _prefix_of(entry.record.node_id)
        return data, self.renamed(prefix + str(next_node), told_at).rpartition("/")[2]

    def entry_at(self, sequence: int) -> StepRecord:
        """The newest completion of a node, by its number."""
        return next(entry for entry in self.done.values() if entry.sequence == sequence)

    def state_of(self, entry: StepRecord) -> bytes:
        """The state that a checkpoint stands for, encoded."""
        amended = self._overrides.get(entry.sequence)
        return entry.record.state() or b"" if amended is None else amended[0]

    def fork_around(self, entry: StepRecord, point: Record) -> tuple[Segment, StepRecord | None] | None:
        """The open branch that a checkpoint is in, and the checkpoint of its fork (None: `point`); None for none."""
        prefix, label = _prefix_of(self.renamed(entry.record.node_id, entry.sequence)), self.label_of(entry)
        if self.open_fork(label, prefix, point) is None:
            return None
        turning = turnings(label)[-1]
        return turning, self.newest_in(prefix, turning.outer, point.sequence)

    def beside(self, turning: Segment, branches: Iterable[str], after: int) -> list[StepRecord]:
        """The newest checkpoint of each of the other branches of a fork that has one."""
        fork, visit, mine, outer = turning
        ways = (way_to(outer, fork, visit, branch) for branch in branches if branch != mine)
        found = (self.newest_in(_prefix_of(fork), way, after) for way in ways)
        return [entry for entry in found if entry is not None]

    def override(self, sequence: int, data: bytes, updates: dict[str, Any] | None = None) -> None:
        """Have a checkpoint stand for another state; of one that an update made, `updates` is for fields with a reducer."""
        self._overrides[sequence] = data, updates
        self._decoded.pop(sequence, None)

    def is_rerouted(self, sequence: int) -> bool:
        """Tell whether the router of a checkpoint was to be asked again."""
        return sequence in self._reroutes

    def reroute(self, sequence: int, after: int | None) -> None:
        """Have the router of a checkpoint asked again, unless it answered after a record; None: take the recorded way."""
        if after is None:
            self._reroutes.pop(sequence, None)
        else:
            self._reroutes[sequence] = after

    def keep(self, sequence: int, value: Any) -> None:
        """Keep what a record holds, decoded, for whoever asks for it first."""
        self._decoded[sequence] = value

    def take(self, sequence: int, decode: Callable[[], Any]) -> Any:
        """What was kept of a record, which is the caller's then; else what `decode` gives."""
        return self._decoded.pop(sequence) if sequence in self._decoded else decode()

    def is_over(self, node_id: str, entry: StepRecord) -> bool:
        """Whether what a record is part of was completed after it, so that nothing asks for it any more."""
        around = (self.done[outer] for outer in _with_around(node_id) if outer in self.done)
        return any(done.sequence > entry.sequence and done.fields.get("outcome") != "failed" for done in around)

    def renamed(self, node_id: str, sequence: int) -> str:
        """The id that a node has now, of which a record with that number tells."""
        return self._renames.now(node_id, sequence) if self._renames else node_id

    def knows(self, node_id: str) -> bool:
        """Whether any record tells of a visit of a node."""
        return node_id in self.visits

    def begun_with(self, ids: Sequence[str], after: int) -> set[str]:
        """With which items of a map a resume begins: those of which there are records after `after`, and the first other."""
        begun = {item for item in ids if any(number > after for number in self._numbers(item))}
        return begun.union([item for item in ids if item not in begun][:1])

    def updates_in(self, entry: StepRecord) -> list[dict[str, Any]]:
        """What one checkpoint tells of what nodes returned for fields with a reducer; as JSON."""
        told = entry.fields.get("updates")
        return [*told] if isinstance(told, list) else [] if told is None else [told]

    def updates(
        self, label: str, parent: str, replaced: Callable[[bytes, bytes], Sequence[str]]
    ) -> list[dict[str, Any]]:
        """What the nodes of a branch, those of finished forks in it included, returned for fields with a reducer; as JSON.

        A field that an override of a checkpoint changed has been replaced by then: `replaced` names those in which two
        states differ.
        """
        trail = self._trails.get((label, parent), [])
        found: list[dict[str, Any]] = []
        for number, entry in enumerate(trail):
            if isinstance(entry.fields.get("updates"), list):  # all until then, instead of what was told before
                found = []
            found += self.updates_in(entry)
            amended = self._overrides.get(entry.sequence)
            if amended is not None and amended[1] is not None:
                found = [*found, amended[1]]
            elif amended is not None:
                names = replaced(entry.record.state() or b"", amended[0])
                found = [{name: update[name] for name in update if name not in names} for update in found]
                found.append({REPLACED: [*names]})
            if "fork" in entry.fields and number + 1 < len(trail):
                # From what was recorded: names are mapped once, whatever they are mapped to.
                outer, fork, visit = str(entry.fields["branch"]), entry.record.node_id, entry.record.visit
                for branch in entry.fields["fork"]:
                    way = self._renamed_label(way_to(outer, fork, visit, branch), entry.sequence)
                    found += self.updates(way, parent, replaced)
        return found

    # -- what is in flight -----------------------------------------------------------------------------

    def spent(self, step_id: str, followed: int, now: float) -> AttemptBudget:
        """What the visit of a step or node that is in flight has used up; `followed` is the record that it follows."""
        if not (self.failures or self.crashes or self.choices or self.items or self.waits or self._failed):
            return AttemptBudget(self.visits.get(step_id, 0) + 1)  # nothing is in flight anywhere, as nearly always
        done, failures = self.done.get(step_id), self.failures.get(step_id, ())
        if done is not None and done.fields.get("outcome") == "failed":
            done = None
        last = self.visits.get(step_id, 0)
        is_superseded = (step_id, last) in self._succeeded or (done is not None and done.record.visit == last)
        tried = 0 if is_superseded else self._failed.get((step_id, last), 0)
        next_visit = last if tried else last + 1
        after = -1 if done is None else done.sequence
        crashes = 0
        if self.crashes:
            idle = {crash for outer in _with_around(step_id) for crash in self._idle.get(outer, ())}
            crashes = sum(sequence > max(followed, after) and sequence not in idle for sequence in self.crashes)
        if not (failures or step_id in self.choices or step_id in self.items or step_id in self.waits):
            return AttemptBudget(next_visit, 0, crashes + tried)  # nothing of it is in flight
        held = [found for kind in (self.choices, self.items, self.waits) if (found := kind.get(step_id))]
        begun = [entry for entry in (*failures, *held) if entry.sequence > after]
        visit = max((entry.record.visit for entry in begun), default=next_visit)
        if begun and self.was_completed(step_id, visit):
            # It succeeded, and what it ended with is superseded: what it began with stands, and the next visit takes it up.
            visit = last + 1
        spent = AttemptBudget(visit, 0, tried if visit == last else 0)
        over = max(self.retried, self._tried_again_at(step_id))
        for entry in failures:
            if entry.sequence <= after or entry.record.visit != visit:
                continue
            spent.attempts += 1
            if entry.sequence <= over:
                continue
            spent.failures += entry.fields.get("op") in COUNTED_FAILURES
            spent.pause = 0.0
            if "retry_at" in entry.fields:
                spent.pause = left_of_pause(entry.fields, now)
        spent.attempts += crashes
        return spent

    def queue(self, ids: Sequence[str], limit: int | None, after: int) -> None:
        """Note which of several parts had not begun at a crash: `limit` of them are open at once, in their order.

        Those that began, with records after `after`, stay open until they end.
        """
        if limit is None or not self.crashes or limit >= len(ids):
            return
        parts = [self._part(part_id, after) for part_id in ids]
        for crash in self.crashes:
            still = [part for part in parts if part.ended is None or part.ended > crash]
            still.sort(key=lambda part: not any(number < crash for number in part.numbers))
            for part in still[limit:]:
                self._idle.setdefault(part.node_id, set()).add(crash)

    def _part(self, part_id: str, after: int) -> PartProgress:
        numbers = tuple(number for number in self._numbers(part_id) if number > after)
        done, failures = self.done.get(part_id), self.failures.get(part_id)
        inside = (self.done[child] for child in self.children(part_id) if child in self.done)
        newest = max(inside, key=attrgetter("sequence"), default=None)
        ends = [done] if done is not None else []
        if failures and failures[-1].fields.get("given_up"):
            ends.append(failures[-1])
        if newest is not None and newest.fields.get("next_node") == END:
            ends.append(newest)
        ended = min((entry.sequence for entry in ends if entry.sequence > after), default=None)
        return PartProgress(part_id, numbers, ended)

    def was_completed(self, step_id: str, visit: int) -> bool:
        """Return whether a visit succeeded, and what it ended with is superseded."""
        return (step_id, visit) in self._succeeded

    def is_in_flight(self, step_id: str, entry: StepRecord) -> bool:
        """Return whether a record is for the visit that is in flight, though it may be of one that is superseded."""
        done = self.done.get(step_id)
        return self.was_completed(step_id, entry.record.visit) and (done is None or done.sequence < entry.sequence)

    def _tried_again_at(self, step_id: str) -> int:
        """Where the newest attempt of what a step is part of began: what failed before that used up none of its tries."""
        newest = -1
        while step_id := parent_of(step_id):
            tried = (entry.sequence for entry in self.failures.get(step_id, ()) if entry.fields.get("retry_at"))
            newest = max(newest, *tried, -1)
        return newest

    def _place(self, step_id: str) -> None:
        parent = parent_of(step_id)
        siblings = self._children.get(parent)
        if siblings is None:
            siblings = self._children[parent] = {}
            if parent:
                self._place(parent)
        siblings.setdefault(step_id)

    def children(self, step_id: str) -> tuple[str, ...]:
        """The ids directly below one, in the order in which they appeared; "" asks for the top."""
        return tuple(self._children.get(step_id, ()))

    def below(self, step_id: str) -> Iterator[str]:
        """All ids below one."""
        for child in self._children.get(step_id, ()):
            yield child
            yield from self.below(child)

    def begun(self, step_id: str, upto: int) -> list[str]:
        """The ids directly below one that the newest try of it had begun with before the record of that number."""
        since = max(self._renewed, self._tried_again_at(step_id))
        return [
            child for child in self.children(step_id) if any(since < number < upto for number in self._numbers(child))
        ]

    def _numbers(self, step_id: str) -> Iterator[int]:
        """The numbers of what stands for an id and for what is below it, and of all failures there."""
        held = (self.done, self.choices, self.items, self.waits, self.replies, self.refused)
        for inner in (step_id, *self.below(step_id)):
            yield from (entries[inner].sequence for entries in held if inner in entries)
            yield from (entry.sequence for entry in self.failures.get(inner, ()))

    def first_below(self, step_id: str) -> int | None:
        """The lowest number among the newest records of what is below an id; None where nothing is."""
        held = (self.done, self.choices, self.items, self.waits, self.replies)
        found = (entries[inner].sequence for inner in self.below(step_id) for entries in held if inner in entries)
        return min(found, default=None)

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps at the top that are done, in order."""
        return tuple(step_id for step_id in self.children("") if step_id in self.done)

    def failed_root(self) -> int | None:
        """Up to where records stand for a `retry` of a run whose own code ended it; None where no step failed.

        That is just before the newest step at the top that had a failure in it: it is done again, with what did not fail
        in it kept.
        """
        for root in reversed(self.children("")):
            entry = self.done.get(root)
            if entry is None:
                continue
            inside = (self.done[step_id] for step_id in self.below(root) if step_id in self.done)
            if any(found.fields.get("outcome") == "failed" for found in (entry, *inside)):
                return entry.sequence - 1
        return None

    def first_undone(self) -> int | None:
        """The record of the first step that the run rolled back at its end; None for none.

        What a part of the run undid of its own, before its failure became an outcome that the run went on with, is not
        meant.
        """
        found = [
            self.done[step_id].sequence
            for step_id in self.undone
            if step_id in self.done and not self._is_settled(step_id)
        ]
        return min(found, default=None)
