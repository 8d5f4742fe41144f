"""The walk of a state through a graph, visit by visit: `Walker._visit` is the whole life of a visit.

A `Walker` walks one graph: that of a run, or, below a prefix of its own, a graph inside another node; or a branch of a
fork, up to its join. It knows where the walk stands, and makes the records of that place. What one visit of a node
does is in `milepost.graph.visits`.

The records of a branch, a sub-graph or an item have two more fields: `branch` is the path of the branch, as
`fork#visit/branch`, the outermost first, and `trunk` the number of the record that the run's own graph had come to. So
the newest record of a run leads to the point where the run can go on, at any depth, and each walker finds its last
position.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import (
    FlowChangedError,
    MaxIterationsError,
    MilepostError,
    RouterError,
    RunStopped,
    SerializeStateError,
    StoreError,
)
from milepost.executor.attempt import AttemptOutcome, go_on_without, keep_unrecorded, pause, record_outcome, run_attempt
from milepost.executor.context import Context
from milepost.executor.effects import Emit, Halted, Routine, ask
from milepost.executor.flow import END, Fork, GraphFlow, StateCodec, Unit
from milepost.executor.history_values import AttemptBudget, StepRecord
from milepost.executor.run import Run, complete
from milepost.graph.visits import NodeVisit, ask_router
from milepost.model.failure import place, recorded_error
from milepost.model.ranges import is_live
from milepost.model.record import (
    CHECKPOINT,
    FAILURE,
    ITEMS,
    OWNER,
    REPLY,
    WAIT,
    Record,
    format_time,
    make_checkpoint,
    source_of,
)
from milepost.model.rope import Rope
from milepost.store import Statement

if TYPE_CHECKING:
    from milepost.graph.parallel import Stop


class RunCounters:
    """The counters that all walkers of a run share. The walkers of an item of a map have counters of their own."""

    __slots__ = ("is_of_item", "iteration", "knows_visits", "open", "visits")

    def __init__(self, *, is_of_item: bool = False) -> None:
        self.iteration = 0
        """The number of nodes that were executed."""
        self.open = 0
        """The number of nodes that are being executed."""
        self.is_of_item = is_of_item
        self.visits: dict[str, int] = {}
        """The number of the last visit of each node that this process knows, by whole id."""
        self.knows_visits = True
        """True if a node that is not in `visits` was never visited."""


class Walker:
    """A walker of one graph in a run, or of a part of it.

    `prefix` is "" for the run's own graph, and `label` is "" for nodes that are in no branch.
    """

    __slots__ = (
        "_given",
        "at",
        "encoder",
        "ends_at",
        "flow",
        "followed_at",
        "is_next",
        "is_open",
        "is_recorded",
        "is_resuming",
        "is_untold",
        "item_codec",
        "journal",
        "label",
        "not_before",
        "options",
        "prefix",
        "prev_node_id",
        "run",
        "sequence",
        "spent",
        "state",
        "stops",
        "tally",
        "trunk",
        "updates",
    )

    def __init__(self, run: Run, flow: GraphFlow, prefix: str = "", tally: RunCounters | None = None) -> None:
        self.run = run
        self.flow = flow
        self.prefix = prefix
        self.label = ""
        self.is_recorded = run.is_recorded
        self.options = run.options
        self.journal = run.journal
        self.tally = RunCounters() if tally is None else tally
        self.prev_node_id = ""
        self.followed_at = run.followed_at
        takes_ropes = run.is_recorded and run.store.takes_ropes
        self.encoder = flow.codec.in_succession(as_rope=Rope if takes_ropes else None)
        self.sequence = 0
        """The number of the newest record on this walker's path."""
        self.trunk: int | None = None
        """For a walker inside a fork, map or graph: the number of the record that the run's own graph had come to."""
        self.not_before = 0
        """The number of the record that let the next node begin, if that is not `sequence`: the end of the last branch
        before a join, the items of a map, a late answer. A crash before it uses up no attempt of the node."""
        self.at: tuple[str, int] = ("", 0)
        """The node that completed last, and the number of its visit."""
        self._given: bytes | Rope | None = None
        self.state: Any = None
        """The state for the next node, for errors of a run without a store."""
        self.spent: AttemptBudget | None = None
        """The attempts that the first node has used up; None if they are not known."""
        self.is_resuming = False
        """True if the next node may have been entered before."""
        self.is_next = True
        """True if the resume begins with the next node."""
        self.item_codec: StateCodec | None = None
        """The codec of a map's item, which is no state; None for a walker of nodes."""
        self.stops: tuple[Stop, ...] = ()
        self.updates: list[Mapping[str, Any]] | None = None
        """The values that a branch's nodes returned for fields with a reducer; None if no join will need them."""
        self.ends_at: float | None = None
        """The time (monotonic seconds) at which the step of a workflow around this graph is over; None: never."""
        self.is_open = False
        """True while a node of this walker is being executed."""
        self.is_untold = False
        """True if the next record has to hold all updates again, because earlier records do not hold them."""

    @property
    def is_root(self) -> bool:
        """True if the run ends with this walk."""
        return not self.prefix and not self.label

    @property
    def given(self) -> bytes | None:
        """The encoded state for the next node; None if there is none."""
        return None if self._given is None else bytes(self._given)

    @given.setter
    def given(self, data: bytes | Rope | None) -> None:
        self._given = data

    @property
    def iteration(self) -> int:
        """The number of nodes that the run has executed."""
        return self.tally.iteration

    @iteration.setter
    def iteration(self, count: int) -> None:
        self.tally.iteration = count

    def encode(self, state: Any) -> bytes | Rope | SerializeStateError:
        """Encode a state of the graph, or the result of an item; see `Journal.encode`."""
        return self.journal.encode(state, self.encoder, "state" if self.item_codec is None else "output")

    def forget(self) -> None:
        """Forget the encoder's memory of the last state.

        The walk has ended: no later state shares parts with it.
        """
        self.encoder.forget()

    @property
    def _given_codec(self) -> StateCodec:
        """The codec of the value that a node is given."""
        return self.flow.codec if self.item_codec is None else self.item_codec

    def keep(self, state: Any) -> Any:
        """Keep the bytes of a state, or a copy if it cannot be encoded, so that `fresh` can give it again.

        Returns the state, or the copy.
        """
        if self._given is None:
            self._given = self.journal.encode_if_possible(state, self._given_codec)
        return state if self._given is not None else copy.deepcopy(state)

    def fresh(self, state: Any) -> Any:
        """Return a new state equal to the one that was kept: it shares nothing with `state`, and has no later changes."""
        return self._given_codec.decode(bytes(self._given)) if self._given is not None else copy.deepcopy(state)

    def last_good(self) -> Any:
        """Return the state that the newest node was given, as far as it is known."""
        return self._given_codec.decode(bytes(self._given)) if self._given is not None else self.state

    def inner(self, flow: GraphFlow, prefix: str, label: str, tally: RunCounters | None = None) -> Walker:
        """Make a walker for a branch, graph or item inside the node that this one is at."""
        walker = Walker(self.run, flow, prefix, self.tally if tally is None else tally)
        walker.label = label
        walker.followed_at, walker.sequence = self.followed_at, self.sequence
        walker.trunk = self.sequence if self.is_root and not self.run.is_replayed else self.trunk
        walker.is_resuming = self.is_resuming
        walker.stops, walker.is_next, walker.not_before = self.stops, self.is_next, self.not_before
        walker.ends_at = self.ends_at
        return walker

    def item_tally(self) -> RunCounters:
        """Make counters for items of a map, which count their own nodes."""
        tally = RunCounters(is_of_item=True)
        tally.visits, tally.knows_visits = self.tally.visits, self.tally.knows_visits
        return tally

    def do_item(self, unit: Unit, visit: int, item: Any, codec: StateCodec, begun: int) -> Routine[Any]:
        """Call a function on an item of a map and return its result, or the recorded result.

        With a store the item is given encoded with `codec`. `begun` is the number of the record that holds the items: a
        result counts if its number is higher.
        """
        self.item_codec = codec
        node_id = self.prefix + unit.id
        if self.is_resuming:
            since = self.run.recorded
            entry = since.done.get(node_id)
            if entry is not None and entry.sequence > begun >= 0:
                data = since.state_of(entry)
                return self.run.progress.take(entry.sequence, lambda: self.flow.codec.decode(data, root="output"))
            self._raise_standing(node_id)
            self.spent = self._spent_on(unit.id)
        if self.spent is None:
            self.spent = AttemptBudget(visit)
        self.spent.visit = visit
        self.given = item if self.is_recorded else None
        self.state = item if not self.is_recorded else self.fresh(item)
        self._may_enter(unit.id, self.is_resuming and self.is_next)
        result, _ = yield from self._visit(unit, self.state)
        return result

    def has_begun(self) -> bool:
        """Return whether this walk has begun already, by the records."""
        return self.is_resuming and self._newest() is not None

    # -- where it begins -------------------------------------------------------------------------------

    def go(self, state: Any, data: bytes | None, node_id: str, until: str = END) -> Routine[Any]:
        """Walk from `node_id` on; if the walk has begun already, by the records, from their end."""
        entry = self._newest() if self.is_resuming else None
        if entry is None:
            self.given = data
            at: str | None = node_id
            is_split = False
        else:
            state, at = self._stand_at(entry)
            self._check_known(self.at[0] if at is None else at, until)
            is_split = self._is_split_at(self.at[0], at)
        if at == until and not is_split:
            self.is_resuming = False
            return state
        yield from self.run.live()
        if self.is_resuming:
            self._raise_standing(self.prefix + (at or self.at[0]))
        if is_split:
            at = self.at[0]
        elif at is None:
            at = yield from self.ask_again(state)
        return (yield from self.walk(state, at, until, is_split=is_split))

    def _newest(self) -> StepRecord | None:
        """Return the newest checkpoint of this walker's own nodes since it began; None if there is none."""
        return self.run.recorded.newest_in(self.prefix, self.label, self.sequence)

    def _stand_at(self, entry: StepRecord) -> tuple[Any, str | None]:
        """Take the position after a checkpoint; return its state, and the node to go on at (None: ask the router)."""
        data, next_node = self.run.recorded.content(entry)
        self.given, self.sequence = data, entry.sequence
        self.prev_node_id = self.run.recorded.renamed(entry.record.node_id, entry.sequence)[len(self.prefix) :]
        self.at = (self.prev_node_id, entry.record.visit)
        self.not_before = max(self.not_before, self.run.recorded.answered_late(entry))
        self.followed_at = str(entry.fields.get("timestamp"))
        if self.is_root or self.run.is_replayed or self.tally.is_of_item:
            self.tally.iteration = max(self.iteration, int(entry.fields.get("iteration") or 0))
        codec = self.flow.update_codec
        if self.updates is not None and codec is not None:
            updates = self.run.recorded.updates(self.label, self.prefix[:-1], self._replaced)
            self.updates += [codec.decode(msgspec.json.encode(update), root="updates") for update in updates]
        return self.run.progress.take(entry.sequence, lambda: self.flow.codec.decode(data)), next_node

    def _check_known(self, node_id: str, until: str) -> None:
        """Raise `FlowChangedError` if the graph no longer has the node at which this walk would go on.

        For a run of a graph `milepost.graph.checks` has found that out before; in a workflow nothing else does.
        """
        if node_id == until or node_id in self.flow.units:
            return
        whole = self.prefix + node_id
        raise FlowChangedError(
            f"run {self.run.run_id!r} would go on at node {whole!r}, which flow {self.run.flow.name!r} does not have now: if "
            f"it was renamed, pass rename={{{whole!r}: new id}}; else resume_from a {self.run.unit} before it",
            run_id=self.run.run_id,
            node_id=whole,
            differences=(f"node {whole!r} is gone",),
        )

    def _replaced(self, before: bytes, after: bytes) -> tuple[str, ...]:
        """Return the fields with a reducer in which two encoded states differ."""
        return self.flow.replaced(self.flow.codec.decode(before), self.flow.codec.decode(after))

    def _is_split_at(self, node_id: str, next_node: str | None) -> bool:
        """Return whether a recorded node has a fork whose branches are open."""
        fork = self.flow.splits.get(node_id)
        return fork is not None and next_node in {fork.join, None}

    def _raise_standing(self, node_id: str) -> None:
        """Raise the recorded failure with which this node ended for good, if the nodes around it have not ended yet."""
        failure = self.run.recorded.standing_failure(node_id)
        if failure is not None:
            raise recorded_error(self.run.run_id, failure.fields, node_id)

    def ask_again(self, state: Any) -> Routine[str]:
        """Ask the router of a node whose work is recorded; record its late answer and return it."""
        node_id, visit = self.at
        unit = self.flow.units[node_id]
        if unit.router is None:
            target = str(unit.next_node)  # the router is gone: the node has a simple edge now
        else:
            context: Context[Any] = Context(self.run.scope, self.prefix + node_id, visit, 1, self.followed_at)
            context._source = source_of(self.run.origins, self.sequence)
            try:
                target = yield from ask_router(self.run, unit.router, context, state)
            except RouterError as error:
                original = error.__cause__ or error
                error.state = state
                failure = self.failure("route", context, original, **self.for_good())
                yield from self.end_failed((failure,), error, original)
                raise
        yield from self.journal.route(self.prefix + node_id, visit, target, self.iteration, **self.place())
        self.not_before = self.journal.sequence
        return target

    # -- walking ---------------------------------------------------------------------------------------

    def walk(self, state: Any, node_id: str, until: str = END, *, is_split: bool = False) -> Routine[Any]:
        """Execute the graph from `node_id` on up to `until`, and return the state there.

        `is_split`: node `node_id` has completed already, and its fork is open.
        """
        state = self.fresh(state) if self.options.isolate else state
        walk = self.flow.walk(node_id, until, is_split=is_split)
        is_first = self.is_next and (self.is_resuming or self.run.stood_at(self.prefix[:-1]))
        next_node: Any = None
        try:
            while True:
                try:
                    what = walk.send(next_node)
                except StopIteration:
                    return state
                self.state = state
                if isinstance(what, Fork):
                    before = self.iteration
                    from milepost.graph.parallel import split  # many graphs have no forks

                    state = yield from split(self, what, state)
                    next_node = what.join
                    is_first = is_first and before == self.iteration
                    continue
                self._may_enter(what.id, is_first)
                # The nodes inside a node are counted on their own.
                self.is_open = what.work is None
                self.tally.open += self.is_open
                try:
                    state, next_node = yield from self._visit(what, state)
                finally:
                    if self.is_open:
                        self._close()
                self.is_resuming = is_first = False
        finally:
            self.forget()

    def _may_enter(self, node_id: str, is_first: bool) -> None:
        """Raise an error if the run may not enter `node_id`.

        `stop_before` does not apply to the first node of a resume.
        """
        options = self.options
        for stop in self.stops:
            if stop.is_set:
                raise Halted
        if self.journal.held is not None:
            self.journal.check_hold()
        if options.run_timeout is not None:
            self.run.time_left(None)
        if self.item_codec is None:
            count = self.tally.iteration + self.tally.open
            if options.max_iterations is not None and count >= options.max_iterations:
                self.check_limit(node_id, count, self.prefix + self.prev_node_id if self.prev_node_id else "")
        if options.stop_before and self.prefix + node_id in options.stop_before and not is_first:
            raise self.stopped("before", self.prefix + node_id)

    def check_limit(self, node_id: str, iteration: int, last_node_id: str) -> None:
        """Raise `MaxIterationsError` if a run that executed `iteration` nodes may not enter another one."""
        limit = self.options.max_iterations
        if limit is not None and iteration >= limit:
            raise MaxIterationsError(
                f"run {self.run.run_id!r} executed {iteration} nodes, the last {last_node_id!r}, and its limit is {limit}: "
                f"if it is no endless loop, resume with a larger max_iterations or None",
                run_id=self.run.run_id,
                node_id=self.prefix + node_id,
                max=limit,
                last_node_id=last_node_id or None,
                state=self.last_good(),
            )

    def _visit(self, unit: Unit, state: Any) -> Routine[tuple[Any, str]]:
        """Enter a node, attempt, check, route, record and announce it; return the state after it and the next node."""
        visit = NodeVisit(self, unit, (yield from self._enter(unit.id)))
        if unit.work is None:
            visit.give(state)
        else:
            from milepost.graph.nesting import do_work  # most nodes are functions

            yield from do_work(visit, state)
        is_over = False
        while not is_over:
            outcome = yield from run_attempt(visit)
            if unit.router is not None and outcome.error is None:
                yield from visit.route(outcome)
            is_over = yield from record_outcome(visit, outcome)
        after, next_node = outcome.value.state, visit.next_node
        self.prev_node_id, self.given, self.state = unit.id, visit.data, after
        if self.run.is_listening:
            yield Emit(visit.end(outcome))
        options = self.options
        if options.stop_after and visit.node_id in options.stop_after and (next_node != END or not self.is_root):
            raise self.stopped("after", visit.node_id)
        if options.isolate:  # an item's result has another codec than the item
            after = copy.deepcopy(after) if visit.data is None else self.flow.codec.decode(bytes(visit.data))
        return after, next_node

    def complete_node(self, node_id: str, visit: int, updates: Mapping[str, Any] | None) -> None:
        """Take the position after a node that has completed, and count it."""
        tally = self.tally
        self.at = (node_id, visit)
        tally.visits[self.prefix + node_id] = visit
        tally.iteration += 1
        if self.is_open:
            self._close()
        if updates:
            self.take_up(updates)

    def _close(self) -> None:
        """Count the current node as executed no longer."""
        self.tally.open -= 1
        self.is_open = False

    def take_up(self, updates: Mapping[str, Any]) -> None:
        """Keep the values that a node of a branch returned for fields with a reducer, if a join needs them."""
        if self.updates is not None and updates:
            self.updates.append(updates)

    def _enter(self, node_id: str) -> Routine[AttemptBudget]:
        """Wait for the rest of a back-off, and return the attempts that a visit has used up, in all processes."""
        if self.spent is None and not self.is_resuming and self.tally.knows_visits:
            return AttemptBudget(self.tally.visits.get(self.prefix + node_id, 0) + 1)
        spent, self.spent = self.spent, None
        if spent is None and self.is_resuming:
            spent = self._spent_on(node_id)
            is_known = self.run.recorded.knows(self.prefix + node_id) or self.tally.knows_visits
            if not is_known and not self.run.is_replayed:
                spent.visit = (yield from self.last_visit(node_id)) + 1
        if spent is None:
            return AttemptBudget((yield from self.next_visit(node_id)))
        if spent.pause > 0:
            yield from pause(self.run, spent.pause)
        return spent

    def _spent_on(self, node_id: str) -> AttemptBudget:
        """Return the attempts that a visit in flight has used up, by the records."""
        return self.run.spent(self.prefix + node_id, max(self.sequence, self.not_before))

    def begun_visit(self, node_id: str) -> Routine[int]:
        """Return the number of a node's next visit, or of one that has begun, with the failures recorded so far."""
        if self.is_resuming and self.run.recorded.knows(self.prefix + node_id):
            return self._spent_on(node_id).visit
        return (yield from self.next_visit(node_id))

    def next_visit(self, node_id: str) -> Routine[int]:
        """Return the number of a node's next visit."""
        last = self.tally.visits.get(self.prefix + node_id)
        if last is None and not self.tally.knows_visits:
            last = yield from self.last_visit(node_id)
        return (last or 0) + 1

    def last_visit(self, node_id: str) -> Routine[int]:
        """Return the number of the last recorded visit of a node; 0 if there is none.

        A map or a wait that was superseded before it ended counts too: the items, and the answer, have its number.
        """
        store, run_id, name = self.run.store, self.run.run_id, self.prefix + node_id
        kinds = (CHECKPOINT, FAILURE, OWNER)
        found: list[Record] = yield from ask(store, "read", run_id, kinds=kinds, node_id=name, newest=True, limit=1)
        last = found[0].visit if found else 0
        live = self.run.live_ranges
        if live:
            begun: list[Record] = yield from ask(store, "read", run_id, kinds=(ITEMS, WAIT, REPLY), node_id=name)
            last = max([last, *(record.visit for record in begun if not is_live(record.sequence, live))])
        return last

    # -- its records ---------------------------------------------------------------------------------

    def checkpoint(self, outcome: AttemptOutcome, data: bytes | Rope, next_node: str | None) -> Record:
        """Make the record of a node that has completed; `next_node` None: its router has not answered."""
        context, updates = outcome.context, outcome.value.updates
        encoded: bytes | None = None
        codec = self.flow.update_codec
        if codec is not None and self.is_untold:
            encoded = b"[" + b",".join(codec.encode(update, root="state") for update in self.updates or ()) + b"]"
        elif codec is not None and updates:
            encoded = codec.encode(updates, root="state")
        journal, options = self.journal, self.options
        self.followed_at = format_time(options.clock.time())
        fork = self.flow.splits.get(self.at[0])
        prev_node_id = self.prefix + self.prev_node_id if self.prev_node_id else ""
        return make_checkpoint(
            journal.run_id,
            journal.next_number(context._node_id),
            self.followed_at,
            context._node_id,
            context._visit,
            data,
            next_node,
            context._attempt,
            prev_node_id,
            self.tally.iteration if self.item_codec is None else None,
            round(outcome.duration * 1000) / 1000,
            journal.epoch,
            journal.missed,
            context._tags,
            bool(options.compress),
            None if fork is None else fork.branches,
            self.label,
            self.trunk,
            encoded,
            self.run.renamed_at,
            journal.live_events,
        )

    def place(self) -> dict[str, Any]:
        """Return the fields that say in which branch a record of this walker is; {} outside branches."""
        return {} if not self.label else {"branch": self.label}

    def failure(self, op: str, context: Context[Any], exc: BaseException, **fields: Any) -> Record:
        """Make a failure record of one of this walker's nodes."""
        return self.journal.failure(op, context.node_id, context.visit, context.attempt, exc, **self.place(), **fields)

    def for_good(self) -> dict[str, bool]:
        """Return the field for the record of a last failure: the run ends with it, or only something inside it does."""
        return {"final": True} if self.is_root else {"given_up": True}

    def end_failed(
        self,
        records: tuple[Record, ...],
        error: MilepostError,
        original: BaseException | None = None,
        statements: tuple[Statement, ...] = (),
    ) -> Routine[None]:
        """Write the records of a final failure. In the run's own graph they include the failure of the run."""
        if self.is_root:
            yield from self.journal.finish_failed(records, error, original, statements)
        else:
            yield from self.journal.write(records, None, None, statements)

    def save_failure(self, outcome: AttemptOutcome, op: str, final: Exception | None) -> Routine[None]:
        """Record a failed attempt. The last one and the end of the run are one append."""
        error, pause = outcome.error, outcome.retry_in
        assert error is not None
        retry_at = None if pause is None else format_time(self.options.clock.time() + pause)
        last = {} if final is None else self.for_good()
        failure = self.failure(op, outcome.context, error, **outcome.attempt_fields(), retry_at=retry_at, **last)
        try:
            if final is None:
                yield from self.journal.write((failure,))
            else:
                assert isinstance(final, MilepostError)
                yield from self.end_failed((failure,), final, error)
        except StoreError as failed:
            if final is not None:
                keep_unrecorded(self.run, final, failed, is_end=self.is_root)
            elif self.options.checkpoint_failure_fatal:
                raise

    def go_on_unsaved(
        self, context: Context[Any], op: str, exc: MilepostError, *, is_fatal: bool = False
    ) -> Routine[None]:
        """Handle a checkpoint that could not be saved: end the run, or go on degraded.

        The run goes on only if `checkpoint_failure_fatal` is off and `is_fatal` is False.
        """
        node_id = context.node_id
        complete(exc, run_id=self.run.run_id, node_id=node_id, state=self.last_good())
        if op == "encode":
            where = f"the state after node {node_id!r} of run {self.run.run_id!r} cannot be recorded"
            place(exc, where, "what was saved before is kept: mend the node, then resume")
        if (yield from go_on_without(self.run, op, node_id, exc, is_fatal=is_fatal)):
            self.journal.missed = (*self.journal.missed, f"{node_id}#{context.visit}")
            self.is_untold = self.updates is not None
            return
        if op == "encode":
            last = self.for_good() if self.is_root else {}  # in its own graph the run ends with this failure
            failure = self.failure("save", context, exc, **last)
            try:
                yield from self.end_failed((failure,), exc)
            except StoreError as failed:
                keep_unrecorded(self.run, exc, failed, is_end=False)
        raise exc

    def stopped(self, where: str, node_id: str) -> RunStopped:
        return RunStopped(
            f"run {self.run.run_id!r} stopped {where} node {node_id!r}, as asked: resume to go on",
            run_id=self.run.run_id,
            node_id=node_id,
            state=self.last_good(),
        )
