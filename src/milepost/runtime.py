"""The executor: one generator of effects for everything that runs.

A `Run` is one run as this process executes it. `walk` takes units of work from the flow, and each visit reads as a
sentence: enter, run attempts until one succeeds or the policy gives up, route, record, tell, go on. What a failed
attempt means is decided in `_failed`, what a failed save means in `_unsaved`, how a hold ends in `hold`: nowhere else.

No I/O, no clock and no randomness of its own: time comes from the options' clock, nonces and ids are passed in.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

from milepost.context import Context, RunScope
from milepost.effects import OVERDUE_GRACE, AttemptTimedOut, Call, Drop, Emit, Hold, Routine, Sleep
from milepost.errors import (
    LeaseLost,
    MaxIterationsError,
    MilepostError,
    MilepostInterrupt,
    NodeError,
    NodeTimeoutError,
    RouterError,
    RunCancelled,
    RunStopped,
    RunTimeoutError,
    SerializeStateError,
    StateTypeError,
    StoreError,
)
from milepost.events import (
    AttemptFailed,
    CheckpointFailed,
    CheckpointSaved,
    NodeCompleted,
    NodeStarted,
    ResumeInfo,
    RunCompleted,
    RunResult,
    RunStarted,
)
from milepost.failures import describe, failure_fields, first_line, place, shown
from milepost.flow import END, Done, Flow, Router, Unit
from milepost.journal import Journal, ask
from milepost.options import Options
from milepost.record import CHECKPOINT, FAILURE, FINISH, OWNER, Record, format_time, make_checkpoint
from milepost.retry import Retry
from milepost.store import Release, Store

__all__ = ["Run", "Spent"]

logger = logging.getLogger("milepost")


class Spent:
    """What a visit has used up already."""

    __slots__ = ("attempts", "failures", "notes", "pause", "visit")

    def __init__(self, visit: int = 1, failures: int = 0, attempts: int = 0, pause: float = 0.0) -> None:
        self.visit = visit
        self.failures = failures
        """Failed attempts that count for the policy."""
        self.attempts = attempts
        """All attempts before the next one, those that a crash cut short included."""
        self.pause = pause
        """Seconds left of the last back-off."""
        self.notes: list[str] = []
        """What became of the attempts in this process, a line each."""


class Run:
    """One run as this process executes it."""

    __slots__ = (
        "flow",
        "followed_at",
        "given",
        "info",
        "is_listening",
        "iteration",
        "journal",
        "knows_visits",
        "options",
        "prev_node_id",
        "run_id",
        "scope",
        "spent",
        "started_at",
        "state",
        "status",
        "store",
        "visits",
    )

    def __init__(self, flow: Flow, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> None:
        self.flow = flow
        self.store = store
        self.run_id = run_id
        self.options = options
        self.is_listening = is_listening
        self.journal = Journal(store, run_id, flow.codec, options)
        self.scope = RunScope(run_id, clock=options.clock, store=store, deps=options.deps, logger=options.logger)
        self.started_at = options.clock.monotonic()
        self.iteration = 0
        self.prev_node_id = ""
        self.followed_at = format_time(options.clock.time())
        self.given: bytes | None = None
        """The encoded state that the next node is given, where there is one."""
        self.state: Any = None
        """That state itself, for errors of a run without a store."""
        self.visits: dict[str, int] = {}
        """The last visit of each node that is known to this process."""
        self.knows_visits = True
        """Whether a node that is not in `visits` was never visited."""
        self.spent: Spent | None = None
        """For the first node after a resume."""
        self.info: ResumeInfo | None = None
        self.status = "running"

    # -- the hold: from taking the run to giving it up -----------------------------------------------

    def hold(self, body: Routine[Any], began_with: Any) -> Routine[RunResult[Any]]:
        """Run `body` with the lease kept; give the run up on every way out, and tell how it ended."""
        journal = self.journal
        if self.store is not None and journal.token is not None:
            journal.held = self.scope.held = yield Hold(self.store, journal.token, self.options.lease)
        try:
            if self.is_listening:
                yield Emit(self._started(began_with))
            state = yield from body
        except GeneratorExit:
            # Nobody performs effects any more: the same as if the process had died here.
            raise
        except BaseException as exc:
            error = yield from self._end_badly(exc.error if isinstance(exc, MilepostInterrupt) else exc)
            if isinstance(error, MilepostError):
                complete(error, run_id=self.run_id, state=self._last_good())
            yield from self._leave(None, error)
            if error is exc:
                raise
            raise error from (exc.__cause__ if isinstance(exc, MilepostInterrupt) else exc)
        self.status = "finished"
        if journal.token is not None and not journal.is_released:
            reason = f"it ran to its end, but its last state could not be saved (missed: {', '.join(journal.missed)})"
            yield from journal.give_up(Release("interrupted", reason, degraded=True, missed=journal.missed))
        result = self.result(state)
        yield from self._leave(result, None)
        return result

    def tell_stored(self, state: Any) -> Routine[RunResult[Any]]:
        """The result of a run that has finished already, told like any other; nothing is held."""
        result = self.result(state)
        if self.is_listening:
            yield Emit(self._started(state))
            yield Emit(self._completed(result, None))
        return result

    def _leave(self, result: RunResult[Any] | None, error: BaseException | None) -> Routine[None]:
        if self.store is not None and self.journal.token is not None:
            yield Drop(self.store, self.journal.token, self.journal.owed)
        if self.is_listening:
            yield Emit(self._completed(result, error))

    def _end_badly(self, exc: BaseException) -> Routine[BaseException]:
        """Give the run up as what `exc` makes of it; the error that the verb raises."""
        journal = self.journal
        if isinstance(exc, LeaseLost):
            return exc
        records: tuple[Record, ...] = ()
        if isinstance(exc, RunCancelled):
            self.status, reason = "cancelled", exc.reason or "cancelled"
            records = (journal.make(FINISH, status="cancelled", reason=reason),)
        elif isinstance(exc, (RunStopped, RunTimeoutError)):
            self.status, reason = "interrupted", str(exc)
        elif not isinstance(exc, Exception):
            self.status, reason = "interrupted", f"its verb was interrupted by {describe(exc)}"
        else:
            self.status = "failed"
            reason = first_line(exc) if isinstance(exc, MilepostError) else describe(exc)
            records = (journal.make(FINISH, status="failed", reason=reason, **failure_fields(exc)),)
        if journal.is_released or journal.token is None or journal.owed is not None:
            return exc
        release = Release(self.status, reason, degraded=journal.degraded, missed=journal.missed)
        if (yield from journal.give_up(release, records)) == "lost":
            if isinstance(exc, Exception):
                return journal.lost()
            # What interrupted the verb still reaches the caller; that the run was lost is its context.
            exc.__context__ = journal.lost()
        return exc

    def result(self, state: Any) -> RunResult[Any]:
        """What a verb gives with `full=True`."""
        return RunResult(
            state=state,
            run_id=self.run_id,
            status=self.status,
            degraded=self.journal.degraded,
            missed=self.journal.missed,
            iterations=self.iteration,
            resumed=self.info,
        )

    def _started(self, began_with: Any) -> RunStarted:
        return RunStarted(
            run_id=self.run_id,
            timestamp=self.options.clock.time(),
            flow=self.flow.name,
            input=began_with,
            resumed=self.info,
        )

    def _completed(self, result: RunResult[Any] | None, error: BaseException | None) -> RunCompleted:
        clock = self.options.clock
        return RunCompleted(
            run_id=self.run_id,
            timestamp=clock.time(),
            flow=self.flow.name,
            status=self.status,
            result=result,
            total_duration_ms=(clock.monotonic() - self.started_at) * 1000,
            degraded=self.journal.degraded,
            missed=self.journal.missed,
            error=error,
        )

    # -- the way of a state through the flow ---------------------------------------------------------

    def walk(self, state: Any, node_id: str) -> Routine[Any]:
        """Execute the flow from `node_id` on; the final state."""
        walk = self.flow.walk(self._fresh(state) if self.options.isolate else state, node_id)
        work = next(walk)
        is_resumed = self.info is not None
        while True:
            self.state = work.state
            self._may_enter(work.unit.id, is_resumed)
            is_resumed = False
            done = yield from self._visit(work.unit, work.state)
            try:
                work = walk.send(done)
            except StopIteration as stop:
                return stop.value

    def _may_enter(self, node_id: str, is_resumed: bool) -> None:
        """Raise what keeps the run from entering `node_id`."""
        options = self.options
        if self.journal.held is not None:
            self.journal.check_hold()
        if options.run_timeout is not None:
            self._time_left(None)
        self.check_limit(node_id, self.iteration, self.prev_node_id)
        if node_id in options.stop_before and not is_resumed:
            raise self._stopped("before", node_id)

    def check_limit(self, node_id: str, iteration: int, last_node_id: str) -> None:
        """Raise `MaxIterationsError` where a run that executed `iteration` nodes may not enter another one."""
        limit = self.options.max_iterations
        if limit is not None and iteration >= limit:
            raise MaxIterationsError(
                f"run {self.run_id!r} executed {iteration} nodes, the last {last_node_id!r}, and its limit is {limit}: "
                f"if it is no endless loop, resume with a larger max_iterations or None",
                run_id=self.run_id,
                node_id=node_id,
                max=limit,
                last_node_id=last_node_id or None,
                state=self._last_good(),
            )

    def _visit(self, unit: Unit, state: Any) -> Routine[Done]:
        """Enter a node, run attempts until one succeeds, route, record, tell."""
        node_id = unit.id
        last = self.visits.get(node_id)
        if self.spent is None and (last is not None or self.knows_visits):
            spent = Spent((last or 0) + 1)
        else:
            spent = yield from self._enter_resumed(node_id)
        backup = self._kept_for_retry(unit, state)
        clock = self.options.clock
        after: Any
        data: bytes | SerializeStateError | None
        while True:
            own = timeout = unit.timeout if unit.timeout is not None else self.options.timeout
            if self.options.run_timeout is not None:
                timeout = self._time_left(own)
            context: Context[Any] = Context(
                self.scope, node_id, spent.visit, spent.attempts + 1, self.followed_at, timeout
            )
            args = (context, state) if unit.takes_context else (state,)
            announce = self._announced(context) if self.is_listening else None
            began = clock.monotonic()
            is_judging = False
            try:
                returned = yield Call(unit.fn, args, context, unit.is_async, timeout, announce)
                is_judging = True
                after = self.flow.accept(unit, state, returned)
                data = None if self.store is None else self.journal.encode(after)
            except Exception as exc:
                if isinstance(exc, AttemptTimedOut) and timeout != own:
                    raise self._out_of_time() from exc
                # A StateTypeError that user code raises, a nested run's say, is an error like any other.
                is_ours = is_judging and isinstance(exc, StateTypeError)
                yield from self._failed(unit, context, spent, exc, backup, is_ours=is_ours)
                state = self._fresh(backup)
                continue
            break
        duration = (clock.monotonic() - began) * 1000
        if isinstance(data, SerializeStateError):
            yield from self._unsaved(context, "encode", data)
            data = None
        next_node = unit.next_node
        if unit.router is not None:
            next_node = yield from self._route(unit.router, context, after, data, duration)
        assert next_node is not None
        self.visits[node_id] = spent.visit
        self.iteration += 1
        if data is not None:
            yield from self._save(context, data, next_node, duration)
        self.prev_node_id = node_id
        self.given, self.state = data, after
        if self.is_listening:
            yield Emit(self._told(context, after, data, next_node, duration))
        if node_id in self.options.stop_after and next_node != END:
            raise self._stopped("after", node_id)
        return Done(self._fresh(after) if self.options.isolate else after, next_node)

    def _enter_resumed(self, node_id: str) -> Routine[Spent]:
        """What a visit has used up that other processes may know more of; waits out what is left of a back-off."""
        if self.spent is None:
            return Spent((yield from self.last_visit(node_id)) + 1)
        spent, self.spent = self.spent, None
        if spent.pause > 0:
            yield from self._pause(spent.pause)
        return spent

    def last_visit(self, node_id: str) -> Routine[int]:
        """The number of the last visit of a node that any record tells of; 0 for none."""
        assert self.store is not None
        kinds = (CHECKPOINT, FAILURE, OWNER)
        found: list[Record] = yield from ask(
            self.store, "read", self.run_id, kinds=kinds, node_id=node_id, newest=True, limit=1
        )
        return found[0].visit if found else 0

    # -- attempts ------------------------------------------------------------------------------------

    def _kept_for_retry(self, unit: Unit, state: Any) -> Any:
        """Keep what a further attempt needs: the state as bytes or, where it has none, a copy."""
        if unit.retry is None and self.options.retry is None:
            return state
        if self.given is None:
            self.given = self.journal.encode_if_possible(state)
        return state if self.given is not None else copy.deepcopy(state)

    def _fresh(self, state: Any) -> Any:
        """A state that shares nothing with `state`, nor with what an attempt that failed did to it."""
        return self.flow.codec.decode(self.given) if self.given is not None else copy.deepcopy(state)

    def _last_good(self) -> Any:
        return self.flow.codec.decode(self.given) if self.given is not None else self.state

    def _failed(
        self, unit: Unit, context: Context[Any], spent: Spent, exc: Exception, state: Any, *, is_ours: bool
    ) -> Routine[None]:
        """Record a failed attempt; pause where the policy allows another, else raise the node's error."""
        policy = unit.retry or self.options.retry
        spent.failures += 1
        spent.attempts += 1
        pause = None
        # A sync call that could not be stopped still runs; no other attempt may run beside it.
        is_running = isinstance(exc, AttemptTimedOut) and exc.is_running
        if policy is not None and policy.allows(spent.failures, exc) and not is_running:
            pause = policy.delay(spent.failures, self.run_id, unit.id, spent.visit)
        op = "timeout" if isinstance(exc, AttemptTimedOut) else "execute"
        error: MilepostError | None = None
        if pause is None and is_ours and isinstance(exc, StateTypeError):
            error = self._no_state(context, exc, spent, state)
        elif pause is None:
            error = self._node_error(context, op, exc, spent, state, policy)
        if self.store is not None:
            yield from self._record_failure(context, op, exc, error, pause)
        yield Emit(
            AttemptFailed(
                run_id=self.run_id,
                timestamp=self.options.clock.time(),
                node_id=unit.id,
                visit=spent.visit,
                attempt=context.attempt,
                error=exc,
                retry_in=pause,
            )
        )
        if error is not None:
            raise error from (exc if error is not exc else exc.__cause__)
        spent.notes.append(f"attempt {context.attempt} failed: {describe(exc)}")
        if pause:
            yield from self._pause(pause)

    def _record_failure(
        self, context: Context[Any], op: str, exc: Exception, error: MilepostError | None, pause: float | None
    ) -> Routine[None]:
        """Record a failed attempt; the last one and the end of the run are one append."""
        journal = self.journal
        retry_at = None if pause is None else format_time(self.options.clock.time() + pause)
        failure = journal.failure(
            op, context.node_id, context.visit, context.attempt, exc, retry_at=retry_at, final=error is not None or None
        )
        try:
            if error is None:
                yield from journal.write((failure,))
            else:
                yield from journal.finish_failed((failure,), error, exc)
        except StoreError as failed:
            # Losing the record of a failed attempt must not hide why the node failed.
            if error is not None:
                error.add_note(f"the failure itself could not be recorded: {describe(failed)}")
                reason = first_line(error)
                journal.owe(Release("failed", reason, degraded=journal.degraded, missed=journal.missed), failed)
            elif self.options.checkpoint_failure_fatal:
                raise

    def _node_error(
        self, context: Context[Any], op: str, exc: Exception, spent: Spent, state: Any, policy: Retry | None
    ) -> MilepostError:
        node_id, facts = context.node_id, self._facts(context, state)
        error: NodeError
        if isinstance(exc, AttemptTimedOut):
            more = f", and still runs {OVERDUE_GRACE:g} s later" if exc.is_running else ""
            error = NodeTimeoutError(
                f"node {node_id!r} of run {self.run_id!r} took longer than its timeout of {exc.timeout:g} s{more}: give it "
                f"more time, or resume to try again",
                timeout=exc.timeout,
                **facts,
            )
        else:
            times = f" after {spent.failures} failed attempts" if spent.failures > 1 else ""
            is_used_up = policy is not None and spent.failures >= policy.max_attempts
            verb = "retry to run it again with fresh attempts" if is_used_up else "resume to run it again"
            advice = f"; mend the cause, then {verb}" if self.store is not None else ""
            error = NodeError(
                f"node {node_id!r} of run {self.run_id!r} failed{times}: {describe(exc)}{advice}", op=op, **facts
            )
        for note in spent.notes:
            error.add_note(note)
        return error

    def _no_state(self, context: Context[Any], exc: StateTypeError, spent: Spent, state: Any) -> StateTypeError:
        """`exc`, which tells why what a node returned is no state of its graph, with where and what to do."""
        complete(exc, **self._facts(context, state))
        act = "return a state of the declared type" + ("" if self.store is None else ", then resume")
        place(exc, f"node {context.node_id!r} of run {self.run_id!r}", act)
        for note in spent.notes:
            exc.add_note(note)
        return exc

    def _facts(self, context: Context[Any], state: Any) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "node_id": context.node_id,
            "visit": context.visit,
            "attempt": context.attempt,
            "state": self._last_good() if self.given is not None else state,
        }

    def _pause(self, seconds: float) -> Routine[None]:
        """Sleep, but not past the call's own time, and not on when the run is lost or cancelled."""
        left = self._time_left(seconds) if self.options.run_timeout is not None else seconds
        yield Sleep(left, self.journal.held)
        if left < seconds:
            raise self._out_of_time()
        self.journal.check_hold()

    # -- routing -------------------------------------------------------------------------------------

    def _route(
        self, router: Router, context: Context[Any], after: Any, data: bytes | None, duration: float
    ) -> Routine[str]:
        """Ask the router; if it fails the node's work is recorded all the same, without a next node."""
        try:
            return (yield from self.ask_router(router, context, after))
        except RouterError as error:
            if data is not None:
                self.visits[context.node_id] = context.visit
                self.iteration += 1
                journal, original = self.journal, error.__cause__ or error
                checkpoint = self._checkpoint(context, data, None, duration)
                failure = journal.failure("route", context.node_id, context.visit, 1, original, ahead=2, final=True)
                try:
                    yield from journal.finish_failed((checkpoint, failure), error, original)
                except StoreError as failed:
                    error.add_note(f"the node's work could not be recorded: {describe(failed)}")
            error.state = after
            raise

    def ask_router(self, router: Router, context: Context[Any], state: Any) -> Routine[str]:
        """The node that `router` answers with; `RouterError` where it fails or answers with something else."""
        args = (context, state) if router.takes_context else (state,)
        facts = {
            "run_id": self.run_id,
            "node_id": router.node_id,
            "from_node": router.node_id,
            "visit": context.visit,
        }
        who = f"the router after node {router.node_id!r} of run {self.run_id!r}"
        try:
            answer = yield Call(router.fn, args, context, router.is_async, is_quick=True)
        except Exception as exc:
            raise RouterError(
                f"{who} failed: {describe(exc)}; the node's work is kept: mend the router, then resume", **facts
            ) from exc
        target = answer
        if router.targets is not None:
            try:
                target = router.targets.get(answer)
            except TypeError:
                target = None
        if not isinstance(target, str) or (target != END and target not in router.known):
            allowed = router.targets if router.targets is not None else (*sorted(router.known), END)
            raise RouterError(
                f"{who} answered {shown(answer)}, which is none of {', '.join(map(repr, allowed))}: mend the router, then "
                f"resume",
                returned=answer,
                **facts,
            )
        return str(target)

    # -- saving --------------------------------------------------------------------------------------

    def _save(self, context: Context[Any], data: bytes, next_node: str, duration: float) -> Routine[None]:
        """Record a completed node; the last one and the end of the run are one append."""
        checkpoint = self._checkpoint(context, data, next_node, duration)
        try:
            if next_node == END:
                yield from self.journal.finish(checkpoint.sequence, (checkpoint,), context._tags)
            else:
                yield from self.journal.write((checkpoint,), None, context._tags)
        except StoreError as exc:
            yield from self._unsaved(context, "append", exc)
            return
        if self.is_listening:
            yield Emit(
                CheckpointSaved(
                    run_id=self.run_id,
                    timestamp=self.options.clock.time(),
                    node_id=context.node_id,
                    sequence=checkpoint.sequence,
                    size=checkpoint.size,
                )
            )

    def _checkpoint(self, context: Context[Any], data: bytes, next_node: str | None, duration: float) -> Record:
        journal = self.journal
        self.followed_at = format_time(self.options.clock.time())
        return make_checkpoint(
            self.run_id,
            journal.sequence + 1,
            self.followed_at,
            context._node_id,
            context._visit,
            data,
            next_node,
            context._attempt,
            self.prev_node_id,
            self.iteration,
            round(duration, 3),
            journal.epoch,
            journal.missed,
            context._tags,
            bool(self.options.compress),
        )

    def _unsaved(self, context: Context[Any], op: str, exc: MilepostError) -> Routine[None]:
        """What a checkpoint that could not be saved means: the end, or a degraded run."""
        node_id, journal = context.node_id, self.journal
        complete(exc, run_id=self.run_id, node_id=node_id, state=self._last_good())
        if op == "encode":
            where = f"the state after node {node_id!r} of run {self.run_id!r} cannot be recorded"
            place(exc, where, "what was saved before is kept: mend the node, then resume")
        now = self.options.clock.time()
        yield Emit(CheckpointFailed(run_id=self.run_id, timestamp=now, node_id=node_id, op=op, error=exc))
        if not self.options.checkpoint_failure_fatal:
            journal.degraded = True
            journal.missed = (*journal.missed, f"{node_id}#{context.visit}")
            return
        if op == "encode":
            failure = journal.failure("save", node_id, context.visit, context.attempt, exc, final=True)
            try:
                yield from journal.finish_failed((failure,), exc)
            except StoreError as failed:
                exc.add_note(f"the failure itself could not be recorded: {describe(failed)}")
        raise exc

    # -- what a visit tells --------------------------------------------------------------------------

    def _announced(self, context: Context[Any]) -> NodeStarted:
        return NodeStarted(
            run_id=self.run_id,
            timestamp=self.options.clock.time(),
            node_id=context.node_id,
            visit=context.visit,
            attempt=context.attempt,
        )

    def _told(
        self, context: Context[Any], after: Any, data: bytes | None, next_node: str, duration: float
    ) -> NodeCompleted:
        decode = self.flow.codec.decode
        return NodeCompleted(
            run_id=self.run_id,
            timestamp=self.options.clock.time(),
            node_id=context.node_id,
            visit=context.visit,
            attempt=context.attempt,
            next_node=next_node,
            duration_ms=duration,
            _load=(lambda: after) if data is None else (lambda: decode(data)),
        )

    def _stopped(self, where: str, node_id: str) -> RunStopped:
        return RunStopped(
            f"run {self.run_id!r} stopped {where} node {node_id!r}, as asked: resume to go on",
            run_id=self.run_id,
            node_id=node_id,
            state=self._last_good(),
        )

    # -- the call's own time -------------------------------------------------------------------------

    def _time_left(self, timeout: float | None) -> float:
        """The shorter of `timeout` and what is left of the call's own; `RunTimeoutError` when nothing is left."""
        assert self.options.run_timeout is not None
        left = self.options.run_timeout - (self.options.clock.monotonic() - self.started_at)
        if left <= 0:
            raise self._out_of_time()
        return left if timeout is None else min(left, timeout)

    def _out_of_time(self) -> RunTimeoutError:
        return RunTimeoutError(
            f"run {self.run_id!r} took longer than its run_timeout of {self.options.run_timeout:g} s: resume to go on",
            run_id=self.run_id,
            timeout=self.options.run_timeout,
            state=self._last_good(),
        )


def complete(error: MilepostError, **facts: Any) -> None:
    """Fill in what the place that raised `error` could not know."""
    for name, value in facts.items():
        if getattr(error, name, None) is None or name in {"visit", "attempt"}:
            setattr(error, name, value)
