"""The walk of a state through a graph, visit by visit.

A visit enters a node, runs attempts until one succeeds or the policy gives up, asks the router, records, announces, and
goes on. A `Walker` walks one graph: that of a run, or, below a prefix of its own, a graph inside another node; or a
branch of a fork, up to its join. Its records and events are in `milepost.graph.visits`.

The records of a branch, a sub-graph or an item have two more fields: `branch` is the path of the branch, as
`fork#visit/branch`, the outermost first, and `trunk` the number of the record that the run's own graph had come to. So
the newest record of a run leads to the point where the run can go on, at any depth, and each walker finds its last
position.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from milepost.errors import (
    MaxIterationsError,
    MilepostError,
    RouterError,
    SerializeStateError,
    StatementError,
    StateTypeError,
    StoreError,
)
from milepost.executor.attempt import AttemptBudget, attempts, pause
from milepost.executor.context import Context
from milepost.executor.effects import Alone, Call, Emit, Halted, Routine
from milepost.executor.flow import END, REPLACED, Fork, Function, GraphFlow, Part, Router, StateCodec, Unit, Whole
from milepost.executor.journal import ask
from milepost.executor.recorded import StepRecord
from milepost.graph.nesting import perform
from milepost.graph.parallel import split
from milepost.graph.visits import Commit, NodeOutcome, RunCounters, Visits
from milepost.model.failure import describe, recorded_error, shown
from milepost.model.origin import source_of
from milepost.model.record import CHECKPOINT, FAILURE, OWNER, Record
from milepost.store import Statement

__all__ = ["Walker"]


class Walker(Visits):
    """A walker of one graph in a run, or of a part of it."""

    __slots__ = ()

    def inner(self, flow: GraphFlow, prefix: str, label: str, tally: RunCounters | None = None) -> Walker:
        """Make a walker for a branch, graph or item inside the node that this one is at."""
        walker = Walker(self.run, flow, prefix, self.tally if tally is None else tally)
        walker.label = label
        walker.followed_at, walker.sequence = self.followed_at, self.sequence
        walker.trunk = self.sequence if self.is_root and not self.run.is_replayed else self.trunk
        walker.since, walker.is_resuming = self.since, self.is_resuming
        walker.stops, walker.is_next = self.stops, self.is_next
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
        if self.is_resuming and (since := self.since) is not None:
            entry = since.done.get(node_id)
            if entry is not None and entry.sequence > begun >= 0:
                return since.take(entry.sequence, lambda: self.flow.codec.decode(since.state_of(entry), root="output"))
            self._raise_standing(node_id)
            self.spent = since.spent(node_id, self.sequence, self.options.clock.time())
        if self.spent is None:
            self.spent = AttemptBudget(visit)
        self.spent.visit = visit
        self.given = item if self.store is not None else None
        self.state = item if self.store is None else self.fresh(item)
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
        assert self.since is not None
        return self.since.newest_in(self.prefix, self.label, self.sequence)

    def _stand_at(self, entry: StepRecord) -> tuple[Any, str | None]:
        """Take the position after a checkpoint; return its state, and the node to go on at (None: ask the router)."""
        assert self.since is not None
        data, next_node = self.since.content(entry)
        self.given, self.sequence = data, entry.sequence
        self.prev_node_id = self.since.renamed(entry.record.node_id, entry.sequence)[len(self.prefix) :]
        self.at = (self.prev_node_id, entry.record.visit)
        self.followed_at = str(entry.fields.get("timestamp"))
        if self.is_root or self.run.is_replayed or self.tally.is_of_item:
            self.tally.iteration = max(self.iteration, int(entry.fields.get("iteration") or 0))
        codec = self.flow.update_codec
        if self.updates is not None and codec is not None:
            told = self.since.updates(self.label, self.prefix[:-1], self._replaced)
            self.updates += [codec.decode(msgspec.json.encode(update), root="updates") for update in told]
        return self.since.take(entry.sequence, lambda: self.flow.codec.decode(data)), next_node

    def _replaced(self, before: bytes, after: bytes) -> tuple[str, ...]:
        """Return the fields with a reducer in which two encoded states differ."""
        return self.flow.replaced(self.flow.codec.decode(before), self.flow.codec.decode(after))

    def _is_split_at(self, node_id: str, next_node: str | None) -> bool:
        """Return whether a recorded node has a fork whose branches are open."""
        fork = self.flow.splits.get(node_id)
        return fork is not None and next_node in {fork.join, None}

    def _raise_standing(self, node_id: str) -> None:
        """Raise the recorded failure with which this node ended for good, if the nodes around it have not ended yet."""
        assert self.since is not None
        failure = self.since.standing_failure(node_id)
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
                target = yield from self.ask_router(unit.router, context, state)
            except RouterError as error:
                original = error.__cause__ or error
                error.state = state
                failure = self._failure("route", context, original, **self._for_good())
                yield from self._end_failed((failure,), error, original)
                raise
        yield from self.journal.route(self.prefix + node_id, visit, target, self.iteration, **self.place())
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
            raise self._stopped("before", self.prefix + node_id)

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
        """Enter a node, execute, route, record and announce it; return the state after it, and the next node (or END)."""
        node_id, options = unit.id, self.options
        if self.spent is None and not self.is_resuming and self.tally.knows_visits:
            spent = AttemptBudget(self.tally.visits.get(self.prefix + node_id, 0) + 1)
        else:
            spent = yield from self._enter(node_id)
        recorded: tuple[bytes | None, str] | None = None

        def commit(
            context: Context[Any], made: NodeOutcome, duration: float, statements: tuple[Statement, ...]
        ) -> Routine[None]:
            nonlocal recorded
            recorded = yield from self._commit(unit, context, made, duration, statements)

        if unit.work is None:
            context, made, duration = yield from self.tried(unit, spent, state, commit=commit)
        else:
            context, made, duration = yield from perform(self, unit, spent, state, commit)
        if recorded is None:
            recorded = yield from self._record(unit, context, made, duration)
        after, (data, next_node) = made.state, recorded
        self.prev_node_id = node_id
        self.given, self.state = data, after
        if self.run.is_listening:
            yield Emit(self._told(context, after, data, next_node, duration))
        if options.stop_after and context.node_id in options.stop_after and (next_node != END or not self.is_root):
            raise self._stopped("after", context.node_id)
        return self.fresh(after) if options.isolate else after, next_node

    def _record(
        self,
        unit: Unit,
        context: Context[Any],
        made: NodeOutcome,
        duration: float,
        statements: tuple[Statement, ...] = (),
    ) -> Routine[tuple[bytes | None, str]]:
        """Ask the router and save the checkpoint; return the encoded state (None: not recorded) and the next node."""
        data = made.data
        if isinstance(data, SerializeStateError):
            yield from self.unsaved(context, "encode", data, is_fatal=bool(statements))
            data = None
        next_node = unit.next_node
        if unit.router is not None:
            try:
                next_node = yield from self.ask_router(unit.router, context, made.state)
            except GeneratorExit:
                raise
            except BaseException as end:
                yield from self._keep_unrouted(end, unit.id, context, made, duration, statements)
                raise
        assert next_node is not None
        if statements:
            yield Alone()
        self._has_done(unit.id, context.visit, made)
        if data is not None:
            yield from self._save(context, data, made.updates, next_node, duration, statements)
        return data, next_node

    def _commit(
        self, unit: Unit, context: Context[Any], made: NodeOutcome, duration: float, statements: tuple[Statement, ...]
    ) -> Routine[tuple[bytes | None, str]]:
        """Do `_record` inside an attempt. If the statements that count with the checkpoint fail, the attempt fails."""
        at, followed_at = self.at, self.followed_at
        try:
            return (yield from self._record(unit, context, made, duration, statements))
        except StatementError:
            # The branch was alone meanwhile, so no other branch has counted on from these numbers.
            self.at, self.followed_at = at, followed_at
            self.tally.iteration -= 1
            if self.updates is not None and made.updates:
                self.updates.pop()
            raise

    def _has_done(self, node_id: str, visit: int, made: NodeOutcome) -> None:
        tally = self.tally
        self.at = (node_id, visit)
        tally.visits[self.prefix + node_id] = visit
        tally.iteration += 1
        if self.is_open:
            self._close()
        if made.updates:
            self.take_up(made.updates)

    def _close(self) -> None:
        """Count the current node as executed no longer."""
        self.tally.open -= 1
        self.is_open = False

    def take_up(self, updates: Mapping[str, Any]) -> None:
        """Keep the values that a node of a branch returned for fields with a reducer, if a join needs them."""
        if self.updates is not None and updates:
            self.updates.append(updates)

    def updates_of(
        self, before: Any, after: Any, given: Whole | Part
    ) -> tuple[Mapping[str, Any], SerializeStateError | None]:
        """Return the part of a node's return value that the join needs, and the error if it cannot be recorded.

        The part is a copy, because the user's code may change the returned value in place later.
        """
        codec = self.flow.update_codec
        if self.updates is None or codec is None:
            return {}, None
        updates = self.flow.updates(given)
        if updates is None:
            # The node may have changed its input in place.
            replaced = self.flow.replaced(self.fresh(before), after)
            return ({REPLACED: list(replaced)} if replaced else {}), None
        if not updates:
            return {}, None
        data = self.journal.encode(updates, codec)
        if isinstance(data, SerializeStateError):
            return _copy_of(updates), data
        return codec.decode(data, root="updates"), None

    def _enter(self, node_id: str) -> Routine[AttemptBudget]:
        """Wait for the rest of a back-off, and return the attempts that a visit has used up, in all processes."""
        spent, self.spent = self.spent, None
        if spent is None and self.is_resuming and self.since is not None:
            spent = self.since.spent(self.prefix + node_id, self.sequence, self.options.clock.time())
            is_known = self.since.knows(self.prefix + node_id) or self.tally.knows_visits
            if not is_known and not self.run.is_replayed:
                spent.visit = (yield from self.last_visit(node_id)) + 1
        if spent is None:
            return AttemptBudget((yield from self.next_visit(node_id)))
        if spent.pause > 0:
            yield from pause(self.run, spent.pause)
        return spent

    def begun_visit(self, node_id: str) -> Routine[int]:
        """Return the number of a node's next visit, or of one that has begun, with the failures recorded so far."""
        if self.is_resuming and self.since is not None and self.since.knows(self.prefix + node_id):
            return self.since.spent(self.prefix + node_id, self.sequence, self.options.clock.time()).visit
        return (yield from self.next_visit(node_id))

    def next_visit(self, node_id: str) -> Routine[int]:
        """Return the number of a node's next visit."""
        last = self.tally.visits.get(self.prefix + node_id)
        if last is None and not self.tally.knows_visits:
            last = yield from self.last_visit(node_id)
        return (last or 0) + 1

    def last_visit(self, node_id: str) -> Routine[int]:
        """Return the number of the last recorded visit of a node; 0 if there is none."""
        assert self.store is not None
        kinds = (CHECKPOINT, FAILURE, OWNER)
        found: list[Record] = yield from ask(
            self.store, "read", self.run.run_id, kinds=kinds, node_id=self.prefix + node_id, newest=True, limit=1
        )
        return found[0].visit if found else 0

    # -- attempts ------------------------------------------------------------------------------------

    def tried(
        self,
        unit: Unit,
        spent: AttemptBudget,
        state: Any,
        more: tuple[Any, ...] = (),
        function: Function | None = None,
        check: Callable[[Any], Any] | None = None,
        commit: Commit | None = None,
    ) -> Routine[tuple[Context[Any], NodeOutcome, float]]:
        """Call a node's function on its state, and on the arguments in `more`, until it succeeds.

        `function`, if given, is called instead, with the state alone. If `check` is given, the outcome's state is the
        value that it makes of the answer. `commit` records the outcome of an attempt that has asked for statements, see
        `attempts`; None: no attempt may ask.
        """
        is_kept = unit.retry is not None or self.options.retry is not None or self.updates is not None
        backup = self.keep(state) if is_kept else state

        def prepare(context: Context[Any], limit: float | None) -> Call:
            # A map, graph or wait is announced once as a whole, not for each call.
            announce = self.announced(context) if self.run.is_listening and unit.work is None else None
            if function is not None:
                return Call(function.fn, (state,), context, function.is_async, limit, announce)
            args = (context, state, *more) if unit.takes_context else (state, *more)
            # The functions of a map, graph or wait only decide something, and run here.
            executor = unit.executor or self.options.executor if unit.work is None else None
            return Call(unit.fn, args, context, unit.is_async, limit, announce, False, executor)

        def judge(returned: Any) -> NodeOutcome:
            return self.judged(unit, state, returned) if check is None else NodeOutcome(check(returned))

        def failed(context: Context[Any], exc: Exception, seconds: float | None, is_judging: bool) -> Routine[None]:
            nonlocal state
            # A StateTypeError that user code raises, such as one of a nested run, is an error like any other.
            is_ours = is_judging and isinstance(exc, StateTypeError)
            yield from self._failed(unit, context, spent, exc, seconds, backup, is_ours=is_ours)
            state = self.fresh(backup)

        return attempts(
            self.run,
            self.prefix + unit.id,
            spent,
            unit.retry or self.options.retry,
            unit.timeout,
            self.followed_at,
            prepare,
            judge,
            failed,
            commit=commit,
        )

    def judged(self, unit: Unit, before: Any, returned: Any) -> NodeOutcome:
        """Make a node's outcome of the state before it and the return value of its function.

        Raises `StateTypeError` if the value is no state. A value of user code is read first; a `Whole` comes from this
        library itself.
        """
        given = returned if isinstance(returned, Whole) else self.flow.read(before, returned)
        after = self.flow.accept(unit, before, given)
        data = None if self.store is None else self.encode(after)
        if self.updates is None:
            return NodeOutcome(after, data)
        updates, refused = self.updates_of(before, after, given)
        return NodeOutcome(after, data if refused is None or data is None else refused, updates)

    # -- routing -------------------------------------------------------------------------------------

    def _keep_unrouted(
        self,
        end: BaseException,
        node_id: str,
        context: Context[Any],
        made: NodeOutcome,
        duration: float,
        statements: tuple[Statement, ...],
    ) -> Routine[None]:
        """Record the work of a node whose router failed or was interrupted, with `end`, without a next node."""
        if isinstance(made.data, bytes):
            if statements:
                yield Alone()
            self._has_done(node_id, context.visit, made)
            try:
                checkpoint = self._checkpoint(context, made.data, made.updates, None, duration)
                if isinstance(end, RouterError):
                    original = end.__cause__ or end
                    failure = self._failure("route", context, original, **self._for_good())
                    yield from self._end_failed((checkpoint, failure), end, original, statements)
                else:
                    yield from self.journal.write((checkpoint,), None, context._tags, statements)
            except MilepostError as failed:
                if isinstance(end, RouterError) and not isinstance(failed, (StoreError, SerializeStateError)):
                    raise
                end.add_note(f"the node's work could not be recorded: {describe(failed)}")
        if isinstance(end, RouterError):
            end.state = made.state

    def ask_router(self, router: Router, context: Context[Any], state: Any) -> Routine[str]:
        """Ask a router for the next node and return it. Raises `RouterError` if it fails or answers anything else."""
        args = (context, state) if router.takes_context else (state,)
        try:
            answer = yield Call(router.fn, args, context, router.is_async, None, None, True)
        except Exception as exc:
            told = f"failed: {describe(exc)}; the node's work is kept: mend the router, then resume"
            raise self._router_error(context, told) from exc
        target = answer
        if router.targets is not None:
            try:
                target = router.targets.get(answer)
            except TypeError:
                target = None
        if not isinstance(target, str) or (target != END and target not in router.known):
            allowed = router.targets if router.targets is not None else (*sorted(router.known), END)
            told = f"answered {shown(answer)}, which is none of {', '.join(map(repr, allowed))}: mend the router, then resume"
            raise self._router_error(context, told, returned=answer)
        return str(target)

    def _router_error(self, context: Context[Any], told: str, **facts: Any) -> RouterError:
        return RouterError(
            f"the router after node {context.node_id!r} of run {self.run.run_id!r} {told}",
            run_id=self.run.run_id,
            node_id=context.node_id,
            from_node=context.node_id,
            visit=context.visit,
            **facts,
        )


def _copy_of(updates: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy a node's updates; return them uncopied if copying fails, which runs the user's code."""
    try:
        return copy.deepcopy(updates)
    except Exception:
        return updates
