"""The executor: one generator of effects for everything that runs.

A `Run` is this process's hold on one run. `walk` takes units of work from the flow, and for each of them reads as a
sentence: check that the run may go on, run attempts until one succeeds or the policy gives up, route, record, tell,
go on. What a failed attempt means is decided in `_failed`, what a failed save means in `_unsaved`, how the hold ends
in `hold`: nowhere else.

No I/O, no clock and no randomness of its own: time comes from the options' clock, nonces and ids are passed in.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Generator
from typing import Any

from milepost.context import Context, RunScope
from milepost.effects import OVERDUE_GRACE, Ask, AttemptTimedOut, Call, Drop, Effect, Emit, Hold, Routine, Sleep, Write
from milepost.errors import (
    CheckpointWriteError,
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
    StateTooLargeError,
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
from milepost.failures import describe, failure_fields
from milepost.flow import END, Done, Flow, Router, Unit
from milepost.options import Options
from milepost.record import CHECKPOINT, FAILURE, FINISH, OWNER, ROUTE, Record, format_time, make_record
from milepost.store import Append, Release, Store, Token

__all__ = ["Run", "Spent"]

logger = logging.getLogger("milepost")


class Spent:
    """What a visit has used up before this process came to it."""

    __slots__ = ("attempts", "failures", "pause", "visit")

    def __init__(self, visit: int = 1, failures: int = 0, attempts: int = 0, pause: float = 0.0) -> None:
        self.visit = visit
        self.failures = failures
        """Failed attempts that count for the policy."""
        self.attempts = attempts
        """All attempts before the next one, those that a crash cut short included."""
        self.pause = pause
        """Seconds left of the last back-off."""


class Run:
    """One run as this process executes it."""

    __slots__ = (
        "degraded",
        "epoch",
        "flow",
        "followed_at",
        "given",
        "held",
        "info",
        "is_listening",
        "is_released",
        "iteration",
        "known_visits",
        "missed",
        "options",
        "owed",
        "prev_node_id",
        "run_id",
        "scope",
        "sequence",
        "spent",
        "started_at",
        "status",
        "store",
        "token",
        "visits",
    )

    def __init__(self, flow: Flow, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> None:
        self.flow = flow
        self.store = store
        self.run_id = run_id
        self.options = options
        self.is_listening = is_listening
        self.scope = RunScope(run_id, clock=options.clock, store=store, deps=options.deps, logger=options.logger)
        self.started_at = options.clock.monotonic()
        self.token: Token | None = None
        self.epoch = 0
        self.sequence = -1
        """Of the newest record."""
        self.iteration = 0
        self.prev_node_id = ""
        self.followed_at = format_time(options.clock.time())
        self.given: bytes | None = None
        """The encoded state that the next node is given, where there is one."""
        self.visits: dict[str, int] = {}
        """The last visit of each node that is known to this process."""
        self.known_visits = True
        """Whether a node that is not in `visits` was never visited."""
        self.spent: Spent | None = None
        """For the first node after a resume."""
        self.info: ResumeInfo | None = None
        self.degraded = False
        self.missed: tuple[str, ...] = ()
        self.status = "running"
        self.held: Any = None
        self.is_released = False
        self.owed: Release | None = None

    # -- the hold: from taking the run to giving it up ----------------------------------------------

    def hold(self, body: Routine[Any], began_with: Any) -> Routine[RunResult[Any]]:
        """Run `body` with the lease kept; give the run up on every way out, and tell how it ended."""
        if self.store is not None and self.token is not None:
            self.held = self.scope.held = yield Hold(self.store, self.token, self.options.lease)
        try:
            if self.is_listening:
                yield Emit(self._started(began_with))
            state = yield from body
        except GeneratorExit:
            # Nobody performs effects any more: the same as if the process had died here.
            raise
        except BaseException as exc:
            error = yield from self._end_badly(exc.error if isinstance(exc, MilepostInterrupt) else exc)
            yield from self._leave(None, error)
            if error is exc:
                raise
            raise error from (exc.__cause__ if isinstance(exc, MilepostInterrupt) else exc)
        self.status = "finished"
        if self.token is not None and not self.is_released:
            reason = f"it ran to its end, but its last state could not be saved (missed: {', '.join(self.missed)})"
            yield from self._give_up((), Release("interrupted", reason, degraded=True, missed=self.missed))
        result = self.result(state)
        yield from self._leave(result, None)
        return result

    def _leave(self, result: RunResult[Any] | None, error: BaseException | None) -> Routine[None]:
        if self.store is not None and self.token is not None:
            yield Drop(self.store, self.token, self.owed)
        if self.is_listening:
            yield Emit(self._completed(result, error))

    def _started(self, began_with: Any) -> RunStarted:
        return RunStarted(
            run_id=self.run_id,
            timestamp=self.options.clock.time(),
            flow=self.flow.name,
            input=began_with,
            resumed=self.info,
        )

    def result(self, state: Any) -> RunResult[Any]:
        """What a verb gives with `full=True`."""
        return RunResult(
            state=state,
            run_id=self.run_id,
            status=self.status,
            degraded=self.degraded,
            missed=self.missed,
            iterations=self.iteration,
            resumed=self.info,
        )

    def _completed(self, result: RunResult[Any] | None, error: BaseException | None) -> RunCompleted:
        now = self.options.clock
        return RunCompleted(
            run_id=self.run_id,
            timestamp=now.time(),
            flow=self.flow.name,
            status=self.status,
            result=result,
            total_duration_ms=(now.monotonic() - self.started_at) * 1000,
            degraded=self.degraded,
            missed=self.missed,
            error=error,
        )

    def _end_badly(self, exc: BaseException) -> Routine[BaseException]:
        """Give the run up as what `exc` makes of it; the error that the verb raises."""
        if isinstance(exc, MilepostError):
            _complete(exc, run_id=self.run_id)
        records: tuple[Record, ...] = ()
        if isinstance(exc, LeaseLost):
            return exc
        if isinstance(exc, RunCancelled):
            self.status, reason = "cancelled", exc.reason or "cancelled"
            records = (self._record(FINISH, fields={"status": "cancelled", "reason": reason, "epoch": self.epoch}),)
        elif isinstance(exc, (RunStopped, RunTimeoutError)):
            self.status, reason = "interrupted", str(exc)
        elif not isinstance(exc, Exception):
            self.status, reason = "interrupted", f"its verb was interrupted by {describe(exc)}"
        else:
            self.status = "failed"
            reason = str(exc).partition("\n")[0] if isinstance(exc, MilepostError) else describe(exc)
        if self.is_released or self.token is None:
            return exc
        release = Release(self.status, reason, degraded=self.degraded, missed=self.missed)
        if (yield from self._give_up(records, release)) == "lost":
            if isinstance(exc, Exception):
                return self._lost()
            # What interrupted the verb still reaches the caller; that the run was lost is its context.
            exc.__context__ = self._lost()
        return exc

    def _give_up(self, records: tuple[Record, ...], release: Release) -> Routine[str]:
        """Release the run; where the store fails the release is owed, and tried again while the process lives."""
        assert self.store is not None
        assert self.token is not None
        try:
            verdict = yield Write(self.store, Append(self.token, records, release))
        except Exception as failed:
            self.owed = release
            logger.warning(
                "run %r could not be released as %s yet: %s",
                self.run_id,
                release.status,
                describe(failed),
                extra={"run_id": self.run_id},
            )
            return "owed"
        self.is_released = verdict.outcome == "written"
        outcome: str = verdict.outcome
        return outcome

    # -- the way of a state through the graph --------------------------------------------------------

    def walk(self, state: Any, node_id: str) -> Routine[Any]:
        """Execute the flow from `node_id` on; the final state."""
        walk = self.flow.walk(state, node_id)
        work = next(walk)
        is_first = True
        while True:
            self._may_enter(work.unit.id, is_first)
            is_first = False
            done = yield from self._visit(work.unit, work.state)
            try:
                work = walk.send(done)
            except StopIteration as stop:
                return stop.value

    def _may_enter(self, node_id: str, is_first: bool) -> None:
        """Raise what keeps the run from entering `node_id`."""
        options = self.options
        if self.held is not None:
            self._check_hold()
        if options.run_timeout is not None:
            self._time_left(None)
        if options.max_iterations is not None and self.iteration >= options.max_iterations:
            raise MaxIterationsError(
                f"run {self.run_id!r} executed {self.iteration} nodes, the last {self.prev_node_id!r}, and its limit is "
                f"{options.max_iterations}: if it is no endless loop, resume with a larger max_iterations or None",
                run_id=self.run_id,
                node_id=node_id,
                max=options.max_iterations,
                last_node_id=self.prev_node_id or None,
            )
        if node_id in options.stop_before and not (is_first and self.info is not None):
            raise self._stopped("before", node_id)

    def _visit(self, unit: Unit, state: Any) -> Routine[Done]:
        """Run attempts until one succeeds, then route, record and tell."""
        node_id = unit.id
        spent = yield from self._enter(node_id)
        visit = spent.visit
        if self.store is None and self.given is None and (unit.retry or self.options.retry):
            self.given = self._encode_or_none(state)
        backup = copy.deepcopy(state) if self.given is None and (unit.retry or self.options.retry) else state
        clock = self.options.clock
        notes: list[str] = []
        after: Any
        data: bytes | SerializeStateError | None
        while True:
            attempt = spent.attempts + 1
            own = timeout = unit.timeout if unit.timeout is not None else self.options.timeout
            if self.options.run_timeout is not None:
                timeout = self._time_left(own)
            context: Context[Any] = Context(self.scope, node_id, visit, attempt, self.followed_at, timeout)
            announce = None
            if self.is_listening:
                announce = NodeStarted(
                    run_id=self.run_id, timestamp=clock.time(), node_id=node_id, visit=visit, attempt=attempt
                )
            began = clock.monotonic()
            try:
                returned = yield Call(
                    unit.fn,
                    (context, state) if unit.takes_context else (state,),
                    context,
                    unit.is_async,
                    timeout,
                    announce,
                )
                after = self.flow.accept(unit, state, returned)
                data = None if self.store is None else self._encode(after)
            except Exception as exc:
                if isinstance(exc, AttemptTimedOut) and timeout != own:
                    raise self._out_of_time() from exc
                state = yield from self._failed(unit, context, spent, exc, notes, backup)
                continue
            break
        if isinstance(data, SerializeStateError):
            yield from self._unsaved(unit, context, "encode", data)
            data = None
        duration = (clock.monotonic() - began) * 1000
        next_node = unit.next_node
        if unit.router is not None:
            next_node = yield from self._route(unit, context, after, data, duration)
        assert next_node is not None
        self.visits[node_id] = visit
        self.iteration += 1
        if self.store is not None:
            yield from self._save(unit, context, data, next_node, duration)
        self.prev_node_id = node_id
        self.given = data
        if self.is_listening:
            yield from self._tell_completed(context, after, data, next_node, duration)
        if node_id in self.options.stop_after and next_node != END:
            raise self._stopped("after", node_id)
        if self.options.isolate:
            after = self._fresh(after)
        return Done(after, next_node)

    def _enter(self, node_id: str) -> Routine[Spent]:
        """What the visit that begins now has used up already; waits out what is left of a back-off."""
        if self.spent is not None:
            spent, self.spent = self.spent, None
            if spent.pause > 0:
                yield from self._pause(spent.pause)
            return spent
        last = self.visits.get(node_id)
        if last is None:
            last = 0
            if not self.known_visits:
                last = yield from self.last_visit(node_id)
        return Spent(visit=last + 1)

    def last_visit(self, node_id: str) -> Routine[int]:
        """The number of the last visit of a node that any record tells of; 0 for none."""
        assert self.store is not None
        found: list[Record] = yield Ask(
            self.store, "read", self.run_id, kinds=(CHECKPOINT, FAILURE, OWNER), node_id=node_id, newest=True, limit=1
        )
        return found[0].visit if found else 0

    # -- attempts ------------------------------------------------------------------------------------

    def _failed(
        self, unit: Unit, context: Context[Any], spent: Spent, exc: Exception, notes: list[str], state: Any
    ) -> Routine[Any]:
        """Record a failed attempt and decide what follows: the state for the next one, or the node's error."""
        policy = unit.retry or self.options.retry
        spent.failures += 1
        spent.attempts += 1
        may_retry = policy is not None and policy.allows(spent.failures, exc)
        if isinstance(exc, AttemptTimedOut) and exc.is_running:
            may_retry = False
        pause = policy.delay(spent.failures, self.run_id, unit.id, spent.visit) if policy and may_retry else None
        op = "timeout" if isinstance(exc, AttemptTimedOut) else "execute"
        error = None if may_retry else self._node_error(context, op, exc, notes, spent, state)
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
        notes.append(f"attempt {context.attempt} failed: {describe(exc)}")
        assert pause is not None
        if pause > 0:
            yield from self._pause(pause)
        return self._fresh(state)

    def _record_failure(
        self, context: Context[Any], op: str, exc: Exception, error: MilepostError | None, pause: float | None
    ) -> Routine[None]:
        """Record a failed attempt; the last one and the end of the run are one append."""
        if self.store is None:
            return
        fields: dict[str, Any] = {"op": op, "attempt": context.attempt, "epoch": self.epoch, **failure_fields(exc)}
        if pause is not None:
            fields["retry_at"] = format_time(self.options.clock.time() + pause)
        if error is not None:
            fields["final"] = True
        failure = self._record(FAILURE, context.node_id, context.visit, fields=fields)
        try:
            if error is None:
                yield from self._write((failure,))
            else:
                yield from self._finish_failed((failure,), error, exc)
        except (CheckpointWriteError, StoreError) as failed:
            # Losing the record of a failed attempt must not hide why the node failed.
            if error is not None:
                error.add_note(f"the failure itself could not be recorded: {describe(failed)}")
                self.owed = Release("failed", str(error), degraded=self.degraded, missed=self.missed)
            elif self.options.checkpoint_failure_fatal:
                raise

    def _finish_failed(self, before: tuple[Record, ...], error: MilepostError, exc: BaseException) -> Routine[None]:
        self.status = "failed"
        reason = str(error).partition("\n")[0]
        finish = self._record(
            FINISH,
            sequence=self.sequence + len(before) + 1,
            fields={"status": "failed", "reason": reason, "epoch": self.epoch, **failure_fields(exc)},
        )
        release = Release("failed", reason, degraded=self.degraded, missed=self.missed)
        yield from self._write((*before, finish), release)

    def _node_error(
        self, context: Context[Any], op: str, exc: Exception, notes: list[str], spent: Spent, state: Any
    ) -> MilepostError:
        node_id = context.node_id
        common = {
            "run_id": self.run_id,
            "node_id": node_id,
            "visit": context.visit,
            "attempt": context.attempt,
            "state": self._last_good() if self.given is not None else state,
        }
        error: NodeError
        if isinstance(exc, StateTypeError):
            _complete(exc, **common)
            error = exc
        elif isinstance(exc, AttemptTimedOut):
            more = f", and still runs {OVERDUE_GRACE:g} s later" if exc.is_running else ""
            error = NodeTimeoutError(
                f"node {node_id!r} of run {self.run_id!r} took longer than its timeout of {exc.timeout:g} s{more}: "
                f"give it more time, or resume to try again",
                timeout=exc.timeout,
                **common,
            )
        else:
            hint = "resume to run it again" if spent.failures == 1 else "retry to run it again with fresh attempts"
            times = f" after {spent.failures} failed attempts" if spent.failures > 1 else ""
            error = NodeError(
                f"node {node_id!r} of run {self.run_id!r} failed{times}: {describe(exc)}"
                + (f"; mend the cause, then {hint}" if self.store is not None else ""),
                op=op,
                **common,
            )
        for note in notes:
            error.add_note(note)
        return error

    def _fresh(self, state: Any) -> Any:
        """The state that the node was given, untouched by the attempt that failed."""
        return self.flow.codec.decode(self.given) if self.given is not None else copy.deepcopy(state)

    def _last_good(self) -> Any:
        return self.flow.codec.decode(self.given) if self.given is not None else None

    def _pause(self, seconds: float) -> Routine[None]:
        """Sleep, but not past the call's own time, and not on when the run is lost or cancelled."""
        left = self._time_left(seconds) if self.options.run_timeout is not None else seconds
        yield Sleep(left, self.held)
        if left < seconds:
            raise self._out_of_time()
        if self.held is not None:
            self._check_hold()

    # -- routing -------------------------------------------------------------------------------------

    def _route(
        self, unit: Unit, context: Context[Any], after: Any, data: bytes | None, duration: float
    ) -> Routine[str]:
        """Ask the router; if it fails the node's work is recorded all the same, without a next node."""
        assert unit.router is not None
        try:
            return (yield from self.ask_router(unit.router, context, after))
        except RouterError as error:
            if self.store is not None and data is not None:
                self.visits[unit.id] = context.visit
                self.iteration += 1
                checkpoint = self._checkpoint(unit, context, data, None, duration)
                failure = self._record(
                    FAILURE,
                    unit.id,
                    context.visit,
                    sequence=self.sequence + 2,
                    fields={
                        "op": "route",
                        "attempt": 1,
                        "final": True,
                        "epoch": self.epoch,
                        **failure_fields(error.__cause__ or error),
                    },
                )
                yield from self._finish_failed((checkpoint, failure), error, error.__cause__ or error)
                self.given = data
            error.state = after
            raise

    def ask_router(self, router: Router, context: Context[Any], state: Any) -> Routine[str]:
        """The node that `router` answers with; `RouterError` where it fails or answers with something else."""
        args = (context, state) if router.takes_context else (state,)
        common = {
            "run_id": self.run_id,
            "node_id": router.node_id,
            "from_node": router.node_id,
            "visit": context.visit,
        }
        try:
            answer = yield Call(router.fn, args, context, router.is_async, self.options.timeout)
        except Exception as exc:
            raise RouterError(
                f"the router after node {router.node_id!r} of run {self.run_id!r} failed: {describe(exc)}; the node's "
                f"work is kept: mend the router, then resume",
                **common,
            ) from exc
        target = answer
        if router.targets is not None:
            try:
                target = router.targets.get(answer)
            except TypeError:
                target = None
        if type(target) is not str or (target != END and target not in router.known):
            expected = (
                sorted(map(str, router.targets)) if router.targets is not None else [*sorted(router.known), "END"]
            )
            raise RouterError(
                f"the router after node {router.node_id!r} of run {self.run_id!r} answered {answer!r}, which is none of "
                f"{', '.join(map(repr, expected))}: mend the router, then resume",
                returned=answer,
                **common,
            )
        return target

    def record_route(self, node_id: str, visit: int, next_node: str, iteration: int) -> Routine[None]:
        """Record the late answer of a router."""
        fields = {"next_node": next_node, "iteration": iteration, "epoch": self.epoch}
        yield from self._write((self._record(ROUTE, node_id, visit, fields=fields),))

    def finish_now(self, result: int) -> Routine[None]:
        """Record the end of a run whose last checkpoint, record number `result`, is there already."""
        fields = {"status": "finished", "result": result, "epoch": self.epoch}
        release = Release("finished", degraded=self.degraded, missed=self.missed)
        yield from self._write((self._record(FINISH, fields=fields),), release)

    # -- saving --------------------------------------------------------------------------------------

    def _encode(self, state: Any) -> bytes | SerializeStateError:
        """Encode a state for its record. That it cannot be saved is an answer; that it is no such state is raised."""
        try:
            data = self.flow.codec.encode(state)
        except SerializeStateError as exc:
            return exc
        limit = self.options.max_state_size
        if limit is not None and len(data) > limit:
            return StateTooLargeError(
                f"the state has {len(data)} bytes, and max_state_size is {limit}: keep large data outside the state and "
                f"its path in it, or raise max_state_size",
                size=len(data),
                limit=limit,
                type_name=type(state).__qualname__,
            )
        if len(data) > self.options.warn_size:
            logger.warning("state of run %r has %d bytes", self.run_id, len(data), extra={"run_id": self.run_id})
        return data

    def _encode_or_none(self, state: Any) -> bytes | None:
        try:
            return self.flow.codec.encode(state)
        except (SerializeStateError, StateTypeError):
            return None

    def _save(
        self, unit: Unit, context: Context[Any], data: bytes | None, next_node: str, duration: float
    ) -> Routine[None]:
        """Record a completed node; the last one and the end of the run are one append."""
        if data is None:
            return
        checkpoint = self._checkpoint(unit, context, data, next_node, duration)
        is_last = next_node == END
        try:
            if is_last:
                finish = self._record(
                    FINISH,
                    sequence=self.sequence + 2,
                    fields={"status": "finished", "result": checkpoint.sequence, "epoch": self.epoch},
                )
                release = Release("finished", degraded=self.degraded, missed=self.missed)
                yield from self._write((checkpoint, finish), release, context._tags)
            else:
                yield from self._write((checkpoint,), None, context._tags)
        except StoreError as exc:
            yield from self._unsaved(unit, context, "append", exc)
            return
        if self.is_listening:
            yield Emit(
                CheckpointSaved(
                    run_id=self.run_id,
                    timestamp=self.options.clock.time(),
                    node_id=unit.id,
                    sequence=checkpoint.sequence,
                    size=checkpoint.size,
                )
            )

    def _checkpoint(
        self, unit: Unit, context: Context[Any], data: bytes, next_node: str | None, duration: float
    ) -> Record:
        self.followed_at = format_time(self.options.clock.time())
        fields: dict[str, Any] = {
            "next_node": next_node,
            "attempt": context.attempt,
            "prev_node_id": self.prev_node_id,
            "iteration": self.iteration,
            "duration_ms": round(duration, 3),
            "epoch": self.epoch,
        }
        if self.missed:
            fields["missed"] = list(self.missed)
        if context._tags:
            fields["tags"] = context._tags
        return make_record(
            self.run_id,
            self.sequence + 1,
            self.followed_at,
            CHECKPOINT,
            unit.id,
            context.visit,
            data,
            fields,
            bool(self.options.compress),
        )

    def _unsaved(self, unit: Unit, context: Context[Any], op: str, exc: MilepostError) -> Routine[None]:
        """What a checkpoint that could not be saved means: the end, or a degraded run."""
        node_id = unit.id
        _complete(exc, run_id=self.run_id, node_id=node_id, state=self._last_good())
        visit = f"{node_id}#{context.visit}"
        yield Emit(
            CheckpointFailed(run_id=self.run_id, timestamp=self.options.clock.time(), node_id=node_id, op=op, error=exc)
        )
        if not self.options.checkpoint_failure_fatal:
            self.degraded = True
            self.missed = (*self.missed, visit)
            logger.warning(
                "run %r goes on without the checkpoint of node %r: %s",
                self.run_id,
                node_id,
                describe(exc),
                extra={"run_id": self.run_id, "node_id": node_id},
            )
            return
        if op == "append":
            raise exc
        failure = self._record(
            FAILURE,
            node_id,
            context.visit,
            fields={
                "op": "save",
                "attempt": context.attempt,
                "final": True,
                "epoch": self.epoch,
                **failure_fields(exc),
            },
        )
        try:
            yield from self._finish_failed((failure,), exc, exc)
        except StoreError as failed:
            exc.add_note(f"the failure itself could not be recorded: {describe(failed)}")
        raise exc

    def _record(
        self,
        kind: str,
        node_id: str = "",
        visit: int = 1,
        *,
        sequence: int | None = None,
        state: bytes | None = None,
        fields: dict[str, Any] | None = None,
    ) -> Record:
        return make_record(
            self.run_id,
            self.sequence + 1 if sequence is None else sequence,
            format_time(self.options.clock.time()),
            kind,
            node_id,
            visit,
            state,
            fields,
            bool(self.options.compress),
        )

    def _write(
        self, records: tuple[Record, ...], release: Release | None = None, tags: dict[str, str] | None = None
    ) -> Routine[None]:
        """Append; every verdict is mapped here. Raises `CheckpointWriteError`, `LeaseLost` or `RunCancelled`."""
        assert self.store is not None
        assert self.token is not None
        try:
            verdict = yield Write(self.store, Append(self.token, records, release, tags))
        except Exception as exc:
            if not (yield from self._was_written(records)):
                node_id = records[0].node_id if records else None
                raise CheckpointWriteError(
                    f"the checkpoint of node {node_id!r} of run {self.run_id!r} could not be written to "
                    f"{self.store.place}: {describe(exc)}; what was saved before is kept: mend the store, then resume",
                    run_id=self.run_id,
                    node_id=node_id,
                    store=self.store.place,
                    op="append",
                ) from exc
            verdict = None
        if verdict is None or verdict.outcome == "written":
            self.sequence += len(records)
            self.is_released = release is not None
        elif verdict.outcome == "refused" and release is not None and release.status == "finished":
            # A cancel came before the end: what was done stays, and the run ends as cancelled.
            yield from self._write(records[:-1])
            raise self._cancelled(verdict.cancel or "")
        else:
            raise self._lost()
        if verdict is not None and verdict.cancel is not None and release is None:
            raise self._cancelled(verdict.cancel)

    def _was_written(self, records: tuple[Record, ...]) -> Routine[bool]:
        """Whether an append with an unknown outcome took effect: asked of the journal, never written again blindly."""
        if not records or self.store is None:
            return False
        first = records[0]
        try:
            found = yield Ask(self.store, "read", self.run_id, after=first.sequence - 1, before=first.sequence + 1)
        except Exception:
            return False
        if not found or found[0].header is None or first.header is None:
            return False
        written: bool = found[0].header.startswith(first.header)
        return written

    # -- what ends a run from outside ------------------------------------------------------------------

    def _check_hold(self) -> None:
        if self.held.is_lost:
            raise self._lost()
        if self.held.cancel is not None:
            raise self._cancelled(self.held.cancel)

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

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"run {self.run_id!r} has another owner now (this one had epoch {self.epoch}): what it recorded stands, "
            f"what was done here since does not count; see `milepost show {self.run_id}`",
            run_id=self.run_id,
            epoch=self.epoch,
        )

    def _cancelled(self, reason: str) -> RunCancelled:
        told = f": {reason}" if reason else ""
        return RunCancelled(f"run {self.run_id!r} was cancelled{told}", run_id=self.run_id, reason=reason)

    def _stopped(self, where: str, node_id: str) -> RunStopped:
        return RunStopped(
            f"run {self.run_id!r} stopped {where} node {node_id!r}, as asked: resume to go on",
            run_id=self.run_id,
            node_id=node_id,
            state=self._last_good(),
        )

    def _tell_completed(
        self, context: Context[Any], after: Any, data: bytes | None, next_node: str, duration: float
    ) -> Generator[Effect, Any, None]:
        decode = self.flow.codec.decode
        yield Emit(
            NodeCompleted(
                run_id=self.run_id,
                timestamp=self.options.clock.time(),
                node_id=context.node_id,
                visit=context.visit,
                attempt=context.attempt,
                next_node=next_node,
                duration_ms=duration,
                _load=(lambda: after) if data is None else (lambda: decode(data)),
            )
        )


def _complete(error: MilepostError, **facts: Any) -> None:
    """Fill in what the place that raised `error` could not know."""
    for name, value in facts.items():
        if getattr(error, name, None) is None or name in {"visit", "attempt"}:
            setattr(error, name, value)
