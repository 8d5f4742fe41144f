"""The history of a run: its journal, interpreted. Nothing else decides what counts of it, what is newest and what is open.

A journal is a list of records that only grows. To a reader it is a state machine: each record, in order, changes what
is known of one unit of work (a node or step, by its id) or of the run, and a kind says how.

    kind        supersedes                              what holds after it
    start       nothing                                 the run has begun with this input
    checkpoint  the unit's checkpoint and its rollback  the visit has ended; its failures, choice, items and wait are over
    failure     nothing: attempts are counted           one attempt is used up; with `given_up` the unit's last one; with
                                                        `caught` the code was given it and went on; with `final` the run
                                                        is about to fail; with `held` a bug in the code holds the run
    route       the unit's last choice                  a router, a predicate or a branch step has answered
    items       the unit's last items                   a map has begun
    wait        the unit's last wait                    the unit waits: the wait is open until a reply
    reply       the unit's last reply                   the wait has ended, or (`refused`) goes on; the signal is used
    rollback    nothing                                 the step's effect is undone, or its rollback has failed for good
    owner       a finish and a final failure            somebody has taken the run: it goes on, however it stood
    finish      nothing                                 the run has ended

An owner record may say more, about records before it:

    live        only records in these ranges count from now on; all others are superseded
    crashed     the owner before died: an attempt of each unit in flight is used up
    again       the step whose failure, caught before, has ended the run is tried again
    retry       (verb) attempts that failed before it are free again, and what a settled failure rolled back is forgotten
    payload     the state of the checkpoint `overrides`, or else of the point, is another one
    reroute     the router of that checkpoint is asked again; its answers so far do not count
    continue    (verb) the run begins again at its entry, with the payload as its state
    renames     units have other names in the code from now on; all ids here are those of now

Of a superseded record two things are left: the number of its visit is not used again, and its signal stays used. A visit
that only failed and is superseded is tried again under its number.

A record is in flight if it is of a unit that has no newer checkpoint. Ids are paths: the record of a unit around it, if
it is newer, ends what is in flight inside. A run of a workflow stands wherever its code, played over the history, asks
for the first thing that is not in it; see `milepost.workflows.replay`. A run of a graph stands after the newest
checkpoint of its own graph, its point, and the records since then say where inside; see `position_after` in `history_reader`.

`JournalHistory` is the state of that machine, and never changes. `read_history` in `history_reader` makes it of records
in one pass, for a workflow of all, for a graph of those since the point. A claim, or records that follow, make another
history of it. What this process does on its way, before it reads it again, is counted in `RunProgress`. The code is
pure, and decodes no value before somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from milepost.executor.history_values import (
    COUNTED_FAILURES,
    NO_RENAMES,
    AttemptBudget,
    OpenWait,
    PartProgress,
    StepRecord,
    around,
    ids_below,
    is_settled,
    label_now,
    left_of_pause,
    parent_of,
    prefix_of,
    wait_of,
    with_around,
)
from milepost.executor.renames import Renames
from milepost.model.record import END, REPLACED, Record, Segment, branch_path, segments_of


class JournalHistory(msgspec.Struct, frozen=True, eq=False):
    """The state of a run by its records, by step or node. It never changes."""

    renames: Renames = NO_RENAMES
    clash: tuple[str, str, str] | None = None
    """Two recorded ids, as they are before the map that is given now, and the one id that both would have after it."""
    start: StepRecord | None = None
    done: Mapping[str, StepRecord] = {}
    """The newest completion of each step."""
    failures: Mapping[str, Sequence[StepRecord]] = {}
    choices: Mapping[str, StepRecord] = {}
    """The records of answers of routers and predicates, and of the options that branches took."""
    items: Mapping[str, StepRecord] = {}
    """The records with which maps begin and, with arguments and without a count, the flows that run as steps."""
    waits: Mapping[str, StepRecord] = {}
    replies: Mapping[str, StepRecord] = {}
    refused: Mapping[str, StepRecord] = {}
    """The newest refused answer of a wait."""
    used_signals: Set[int] = set()
    undone: Mapping[str, StepRecord] = {}
    """The rollbacks that have ended, successful or not."""
    final: StepRecord | None = None
    """The failure with which the run began to end."""
    finish: StepRecord | None = None
    visits: Mapping[str, int] = {}
    crashes: Sequence[int] = []
    superseded: Sequence[Record] = []
    """The checkpoints that do not count any more."""
    damaged: Sequence[int] = []
    """The numbers of the records that cannot be read, if the reader was lenient."""
    retried: int = -1
    """The sequence of the newest `retry`: what failed before it is run again."""
    renewed: int = -1
    """The sequence of the newest claim that went on after an end, or was a `retry`."""
    reopened: Mapping[str, int] = {}
    """The steps whose failure the code was given, and that are tried again, each with the number from which on."""
    newest: int = -1
    earlier: Mapping[str, str] = {}
    """For each id, the id before the map of names that is given now."""
    tried: Mapping[tuple[str, int], int] = {}
    """The number of superseded failed attempts of each visit of a step."""
    succeeded: Set[tuple[str, int]] = set()
    """The visits of steps that succeeded and are superseded."""
    reroutes: Mapping[int, int] = {}
    """The checkpoints whose router is asked again, each with the record after which it has to answer."""
    overrides: Mapping[int, tuple[bytes, dict[str, Any] | None]] = {}
    """The states that replace those of checkpoints, each with the part of its update for fields with a reducer."""
    trails: Mapping[tuple[str, str], Sequence[StepRecord]] = {}
    """The checkpoints of each branch, by the branch's label and the parent id of its nodes."""
    inside: Mapping[str, Mapping[str, None]] = {}
    """The ids directly below each id, in the order in which they appeared."""

    # -- the same history with one change --------------------------------------------------------------------------------

    def crashed_at(self, sequence: int) -> JournalHistory:
        """Make the history after a claim with this number, whose owner before had died."""
        return replace(self, crashes=[*self.crashes, sequence])

    def completed_by(self, entry: StepRecord, step_id: str) -> JournalHistory:
        """Make the history in which this record, of whatever visit, is the step's newest completion."""
        known = self.done.get(step_id)
        is_same = known is not None and known.sequence == entry.sequence
        return self if is_same else replace(self, done={**self.done, step_id: entry})

    def overridden(self, sequence: int, data: bytes, updates: dict[str, Any] | None = None) -> JournalHistory:
        """Make the history with another state of a checkpoint.

        If an update made the new state, `updates` are its values for fields with a reducer.
        """
        return replace(self, overrides={**self.overrides, sequence: (data, updates)})

    def rerouted(self, sequence: int, after: int | None) -> JournalHistory:
        """Make the history in which the router of a checkpoint is asked again, unless it answered after record `after`.

        None: its old answer counts.
        """
        others = {number: limit for number, limit in self.reroutes.items() if number != sequence}
        return replace(self, reroutes=others if after is None else {**others, sequence: after})

    def clash_with(self, names: Iterable[str]) -> tuple[str, str, str] | None:
        """Return `clash`, or the clash of a recorded id with one of `names`, which are ids before the map of now."""
        if self.clash is not None:
            return self.clash
        earlier = dict(self.earlier)
        for before in names:
            other = earlier.setdefault(self.renames.becoming(before), before)
            if other != before:
                return other, before, self.renames.becoming(before)
        return None

    # -- failures ------------------------------------------------------------------------------------

    def standing_failure(self, step_id: str) -> StepRecord | None:
        """Return the failure with which a step ended for good, and that is thrown again; None if there is none.

        Either the code was given it and went on, or it is one inside a step that has not ended yet, so that nothing was made
        of it.
        """
        failures = self.failures.get(step_id)
        if not failures:
            return None
        last, done = failures[-1], self.done.get(step_id)
        if done is not None and done.sequence > last.sequence:
            return None
        if last.fields.get("caught"):
            return last if last.sequence > self.reopened.get(step_id, -1) else None
        is_last = last.fields.get("given_up") or last.fields.get("op") == "on_error"
        if not is_last or last.fields.get("final") or self.finish is not None or last.sequence <= self.renewed:
            return None
        later = (entry for outer in around(step_id) for entry in self.failures.get(outer, ())[-1:])
        return None if any(entry.sequence > last.sequence for entry in later) else last

    def given_up(self, step_id: str) -> StepRecord | None:
        """Return the failure that used up a step's attempts, if nothing has come of it yet; else None."""
        failures, done = self.failures.get(step_id), self.done.get(step_id)
        if not failures or not failures[-1].fields.get("given_up"):
            return None
        last = failures[-1]
        is_over = last.sequence <= self.retried or (done is not None and done.sequence > last.sequence)
        return None if is_over else last

    @property
    def rollbacks_due(self) -> dict[str, StepRecord]:
        """The steps that succeeded with a rollback and are not undone, the newest first."""
        due = [
            (-done.sequence, step_id, done)
            for step_id, done in self.done.items()
            if done.fields.get("rollback") and step_id not in self.undone
        ]
        return {step_id: done for _, step_id, done in sorted(due, key=itemgetter(0))}

    def open_wait(self, step_id: str) -> StepRecord | None:
        """Return the record of a step's wait, if that has not ended; else None."""
        entry, reply = self.waits.get(step_id), self.replies.get(step_id)
        if entry is None or (reply is not None and reply.sequence > entry.sequence):
            return None
        around = (self.done[over] for over in with_around(step_id) if over in self.done)
        is_over = any(done.sequence > entry.sequence for done in around)
        return None if is_over or self.was_completed(step_id, entry.record.visit) else entry

    def refusal_of(self, wait: StepRecord, step_id: str) -> StepRecord | None:
        """Return the record of the newest answer to a wait that the run refused; None for none."""
        refused = self.refused.get(step_id)
        return refused if refused is not None and refused.sequence > wait.sequence else None

    def open_waits(self) -> dict[str, OpenWait]:
        """Return the waits that have not ended, by step."""
        found = {}
        for step_id in self.waits:
            entry = self.open_wait(step_id)
            if entry is not None:
                fields = entry.fields
                found[step_id] = OpenWait(
                    wait_of(fields, entry.record.state(), self.refusal_of(entry, step_id)),
                    entry.sequence,
                    int(fields.get("seen") or 0),
                    fields.get("early", True) is not False,
                )
        return found

    # -- nodes of a graph ------------------------------------------------------------------------------

    def newest_in(self, prefix: str, label: str, after: int) -> StepRecord | None:
        """Return the newest checkpoint of a node right below `prefix`, in branch `label`, with a number above `after`.

        None if there is none.
        """
        if label:
            trail = self.trails.get((label, prefix[:-1]), ())
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
        """Return the path of the branch that a checkpoint is in, by the names of now; "" if it is in none."""
        return label_now(self.renames, str(entry.fields.get("branch") or ""), entry.sequence)

    def open_fork(self, label: str, prefix: str, point: Record) -> tuple[str, str] | None:
        """Return the fork right below `prefix` and its branch at the end of `label`; None unless the run is in that."""
        ways = segments_of(label)
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
        """Return the state of a checkpoint, amended if it was, and the node to go on at (None: its router is asked)."""
        node_id = self.renamed(entry.record.node_id, entry.sequence)
        data = self.state_of(entry)
        next_node, route_at = entry.fields.get("next_node"), entry.sequence
        route = self.choices.get(node_id)
        if route is not None and route.sequence > entry.sequence and route.record.visit == entry.record.visit:
            next_node, route_at = route.fields.get("next_node"), route.sequence
        is_answered = route is not None and route.sequence > self.reroutes.get(entry.sequence, -1)
        if next_node is None or (entry.sequence in self.reroutes and not is_answered):
            return data, None
        prefix = prefix_of(entry.record.node_id)
        return data, self.renamed(prefix + str(next_node), route_at).rpartition("/")[2]

    def answered_late(self, entry: StepRecord) -> int:
        """Return the number of the record in which a checkpoint's router answered; -1 if the checkpoint has the answer."""
        route = self.choices.get(self.renamed(entry.record.node_id, entry.sequence))
        is_late = entry.fields.get("next_node") is None and route is not None and route.sequence > entry.sequence
        return route.sequence if is_late and route is not None else -1

    def entry_at(self, sequence: int) -> StepRecord:
        """Return the newest completion of a node whose record has this number."""
        return next(entry for entry in self.done.values() if entry.sequence == sequence)

    def state_of(self, entry: StepRecord) -> bytes:
        """Return the encoded state of a checkpoint, amended if it was."""
        amended = self.overrides.get(entry.sequence)
        return entry.record.state() or b"" if amended is None else amended[0]

    def fork_around(self, entry: StepRecord, point: Record) -> tuple[Segment, StepRecord | None] | None:
        """Return the open branch around a checkpoint, and the checkpoint of its fork (None: the fork is at `point`).

        None if the checkpoint is in no open branch.
        """
        prefix, label = prefix_of(self.renamed(entry.record.node_id, entry.sequence)), self.label_of(entry)
        if self.open_fork(label, prefix, point) is None:
            return None
        segment = segments_of(label)[-1]
        return segment, self.newest_in(prefix, segment.outer, point.sequence)

    def beside(self, segment: Segment, branches: Iterable[str], after: int) -> list[StepRecord]:
        """Return the newest checkpoint of each other branch of a fork, for the branches that have one."""
        fork, visit, mine, outer = segment
        ways = (branch_path(outer, fork, visit, branch) for branch in branches if branch != mine)
        found = (self.newest_in(prefix_of(fork), way, after) for way in ways)
        return [entry for entry in found if entry is not None]

    def is_rerouted(self, sequence: int) -> bool:
        """Return whether the router of a checkpoint has to be asked again."""
        return sequence in self.reroutes

    def is_over(self, node_id: str, entry: StepRecord) -> bool:
        """Return whether the record's step, or one around it, was completed later, so that nothing needs the record."""
        around = (self.done[outer] for outer in with_around(node_id) if outer in self.done)
        return any(done.sequence > entry.sequence and done.fields.get("outcome") != "failed" for done in around)

    def renamed(self, node_id: str, sequence: int) -> str:
        """Return the id that a node has now; `sequence` is the number of the record that names it."""
        return self.renames.now(node_id, sequence) if self.renames else node_id

    def knows(self, node_id: str) -> bool:
        """Return whether any record is of a visit of this node."""
        return node_id in self.visits

    def begun_with(self, ids: Sequence[str], after: int) -> set[str]:
        """Return the items of a map that a resume begins with: those with records after `after`, and the first other."""
        begun = {item for item in ids if any(number > after for number in self._numbers(item))}
        return begun.union([item for item in ids if item not in begun][:1])

    def updates_in(self, entry: StepRecord) -> list[dict[str, Any]]:
        """Return, as JSON, the values in one checkpoint that nodes returned for fields with a reducer."""
        updates = entry.fields.get("updates")
        return [*updates] if isinstance(updates, list) else [] if updates is None else [updates]

    def updates(
        self, label: str, parent: str, replaced: Callable[[bytes, bytes], Sequence[str]]
    ) -> list[dict[str, Any]]:
        """Return, as JSON, the values that the nodes of a branch returned for fields with a reducer.

        The nodes of finished forks in the branch are included. An override of a checkpoint replaces the fields that it
        changed: `replaced` names the fields in which two states differ.
        """
        trail = self.trails.get((label, parent), [])
        found: list[dict[str, Any]] = []
        for number, entry in enumerate(trail):
            if isinstance(entry.fields.get("updates"), list):  # it holds all updates up to here: drop the earlier ones
                found = []
            found += self.updates_in(entry)
            amended = self.overrides.get(entry.sequence)
            if amended is not None and amended[1] is not None:
                found = [*found, amended[1]]
            elif amended is not None:
                names = replaced(entry.record.state() or b"", amended[0])
                found = [{name: update[name] for name in update if name not in names} for update in found]
                found.append({REPLACED: [*names]})
            if "fork" in entry.fields and number + 1 < len(trail):
                # Labels are built of recorded names: each name must go through the maps only once.
                outer, fork, visit = str(entry.fields["branch"]), entry.record.node_id, entry.record.visit
                for branch in entry.fields["fork"]:
                    way = label_now(self.renames, branch_path(outer, fork, visit, branch), entry.sequence)
                    found += self.updates(way, parent, replaced)
        return found

    # -- what is in flight -----------------------------------------------------------------------------

    def spent(self, step_id: str, followed: int, now: float, progress: RunProgress | None = None) -> AttemptBudget:
        """Return the attempts that a visit in flight has used up; `followed` is the number of the record before it.

        `progress` is what this process has done since.
        """
        visits = self.visits if progress is None else progress.visits
        if not (self.failures or self.crashes or self.choices or self.items or self.waits or self.tried):
            return AttemptBudget(visits.get(step_id, 0) + 1)  # nothing is in flight anywhere, as nearly always
        done, failures = self.done.get(step_id), self.failures.get(step_id, ())
        if done is not None and done.fields.get("outcome") == "failed":
            done = None
        last = visits.get(step_id, 0)
        is_superseded = (step_id, last) in self.succeeded or (done is not None and done.record.visit == last)
        tried = 0 if is_superseded else self.tried.get((step_id, last), 0)
        next_visit = last if tried else last + 1
        after = -1 if done is None else done.sequence
        crashes = 0
        if self.crashes:
            queued = {} if progress is None else progress.idle
            idle = {crash for outer in with_around(step_id) for crash in queued.get(outer, ())}
            crashes = sum(sequence > max(followed, after) and sequence not in idle for sequence in self.crashes)
        if not (failures or step_id in self.choices or step_id in self.items or step_id in self.waits):
            return AttemptBudget(next_visit, 0, crashes + tried)  # nothing of it is in flight
        held = [found for kind in (self.choices, self.items, self.waits) if (found := kind.get(step_id))]
        begun = [entry for entry in (*failures, *held) if entry.sequence > after]
        visit = max((entry.record.visit for entry in begun), default=next_visit)
        if begun and self.was_completed(step_id, visit):
            # The visit succeeded, but its end is superseded. The records of its beginning count: the next visit uses them.
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

    def idle_parts(self, ids: Sequence[str], limit: int | None, after: int) -> dict[str, set[int]]:
        """Return for each of several parts the crashes at which it had not begun.

        `limit` parts are open at once, in their order. A part with records after `after` has begun, and stays open
        until it ends.
        """
        idle: dict[str, set[int]] = {}
        if limit is None or not self.crashes or limit >= len(ids):
            return idle
        parts = [self._part(part_id, after) for part_id in ids]
        for crash in self.crashes:
            still = [part for part in parts if part.ended is None or part.ended > crash]
            still.sort(key=lambda part: not any(number < crash for number in part.numbers))
            for part in still[limit:]:
                idle.setdefault(part.node_id, set()).add(crash)
        return idle

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
        """Return whether a visit succeeded and its checkpoint is superseded."""
        return (step_id, visit) in self.succeeded

    def is_in_flight(self, step_id: str, entry: StepRecord) -> bool:
        """Return whether a record counts for the visit in flight, though a superseded visit wrote it."""
        done = self.done.get(step_id)
        return self.was_completed(step_id, entry.record.visit) and (done is None or done.sequence < entry.sequence)

    def _tried_again_at(self, step_id: str) -> int:
        """Return the number at which the newest attempt of the steps around a step began; -1 if none was tried again.

        Failures before that number use up none of the step's attempts.
        """
        newest = -1
        while step_id := parent_of(step_id):
            tried = (entry.sequence for entry in self.failures.get(step_id, ()) if entry.fields.get("retry_at"))
            newest = max(newest, *tried, -1)
        return newest

    def children(self, step_id: str) -> tuple[str, ...]:
        """Return the ids directly below an id, in the order in which they appeared; "" asks for the top."""
        return tuple(self.inside.get(step_id, ()))

    def below(self, step_id: str) -> Iterator[str]:
        """Yield all ids below an id."""
        return ids_below(self.inside, step_id)

    def begun(self, step_id: str, upto: int) -> list[str]:
        """Return the ids directly below a step that its newest attempt had begun before the record with number `upto`."""
        since = max(self.renewed, self._tried_again_at(step_id))
        return [
            child for child in self.children(step_id) if any(since < number < upto for number in self._numbers(child))
        ]

    def _numbers(self, step_id: str) -> Iterator[int]:
        """Yield the numbers of the records that count for an id and the ids below it, and of all failures there."""
        held = (self.done, self.choices, self.items, self.waits, self.replies, self.refused)
        for inner in (step_id, *self.below(step_id)):
            yield from (entries[inner].sequence for entries in held if inner in entries)
            yield from (entry.sequence for entry in self.failures.get(inner, ()))

    def first_below(self, step_id: str) -> int | None:
        """Return the lowest number among the newest records of the ids below an id; None if there are none."""
        held = (self.done, self.choices, self.items, self.waits, self.replies)
        found = (entries[inner].sequence for inner in self.below(step_id) for entries in held if inner in entries)
        return min(found, default=None)

    def answers_inside(self, step_id: str) -> bool:
        """Return whether the records answer anything below an id, be it with the failure that the code was given."""
        held = (self.done, self.choices, self.waits, self.replies)
        return any(
            self.has_map(inner) or self.standing_failure(inner) or any(inner in entries for entries in held)
            for inner in self.below(step_id)
        )

    def has_map(self, step_id: str) -> bool:
        """Return whether a map has begun under this id: the beginnings of flows have no count."""
        return step_id in self.items and "count" in self.items[step_id].fields

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps at the top that have completed, in order."""
        return tuple(step_id for step_id in self.children("") if step_id in self.done)

    def failed_root(self) -> tuple[str, int] | None:
        """Return where a `retry` begins of a run whose own code ended it: a step, and the last number that counts.

        The step is the newest at the top whose failure the code was given, or that had a failure in it. It is done again;
        the parts of it that did not fail stay recorded. None if no step failed.
        """
        for root in reversed(self.children("")):
            entry = self.done.get(root)
            if entry is None:
                failure = self.standing_failure(root)
                if failure is not None:
                    return root, failure.sequence
                continue
            inside = (self.done[step_id] for step_id in self.below(root) if step_id in self.done)
            if any(found.fields.get("outcome") == "failed" for found in (entry, *inside)):
                return "", entry.sequence - 1
        return None

    def first_undone(self) -> int | None:
        """Return the number of the first step that the run rolled back at its end; None if there is none.

        Steps do not count that a part of the run rolled back itself, before its failure became an outcome that the run
        went on with.
        """
        found = [
            self.done[step_id].sequence
            for step_id in self.undone
            if step_id in self.done and not is_settled(step_id, self.undone, self.done)
        ]
        return min(found, default=None)


class RunProgress:
    """The progress that this process has made on a run since its history was read."""

    __slots__ = ("answered", "decoded", "idle", "open_waits", "used_signals", "visits")

    def __init__(self, history: JournalHistory) -> None:
        self.visits = {**history.visits}
        """The number of the last visit of each step."""
        self.used_signals = {*history.used_signals}
        self.open_waits: dict[str, OpenWait] = {}
        """The waits that this process has opened or taken up, by step or node."""
        self.answered: set[str] = set()
        """The steps whose recorded wait has got its reply."""
        self.idle: dict[str, set[int]] = {}
        """For each part of a step, the crashes at which it stood in a queue and had not begun."""
        self.decoded: dict[int, Any] = {}
        """The values that were decoded before the run went on, by the number of their record."""

    def queue(self, idle: Mapping[str, set[int]]) -> None:
        """Note for parts of a step the crashes at which they had not begun; see `JournalHistory.idle_parts`."""
        for part_id, crashes in idle.items():
            self.idle.setdefault(part_id, set()).update(crashes)

    def take(self, sequence: int, decode: Callable[[], Any]) -> Any:
        """Return the value that was decoded of a record before, else that of `decode`. It is the caller's then."""
        return self.decoded.pop(sequence) if sequence in self.decoded else decode()
