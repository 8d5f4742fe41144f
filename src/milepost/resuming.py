"""Where a run goes on: the routines behind resume, resume_from, retry and plan_resume.

Each is the same sequence: look (read where the run stands; status and lease refuse), examine (verify, decode, compare
with the flow: pure), correct (override, revalidate: user code), fence (take the run in one write that also records the
override), go. A refusal before the fence changes nothing. If the journal has moved between look and fence, the sequence
begins again. A takeover fences first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from milepost.context import Context
from milepost.effects import Call, Routine, Sleep
from milepost.errors import (
    CheckpointCorruptError,
    InvalidResumeNodeError,
    MilepostError,
    NoCheckpointFoundError,
    RouterError,
    RunSuspended,
    RunTimeoutError,
    SerializeStateError,
    StateTypeError,
    StateValidationError,
    StoreClosedError,
    StoreError,
)
from milepost.events import ResumeInfo, ResumePlan, RunResult
from milepost.examining import (
    Found,
    Wish,
    check_flow,
    examine,
    is_live,
    locked,
    recorded_ids,
    refusal_of,
    refused_by_status,
)
from milepost.failures import describe, message_of, place
from milepost.flow import END
from milepost.journal import ask
from milepost.record import CHECKPOINT, OWNER, ROUTE, START, Record
from milepost.runtime import Run
from milepost.store import Latest, Release, RunRow, Token
from milepost.taking import last_visit, take, take_over

__all__ = ["await_change", "plan", "resume", "stored"]

POLL = 0.25
"""Seconds between two looks at a run that another owner has."""


def resume(run: Run, wish: Wish, nonces: Callable[[], str]) -> Routine[RunResult[Any]]:
    """Go on with a run that exists, as `wish` says."""
    while True:
        latest = yield from _look(run)
        if latest is None:
            continue
        if latest.row.lease in {"live", "ours"}:
            token = yield from take_over(run, wish, latest, nonces)
            if token is None:
                continue
            return (yield from _after_fence(run, wish, latest.row, token, nonces))
        refusal = refused_by_status(run, wish, latest.row)
        if refusal is not None:
            raise refusal
        found = yield from _find(run, wish, latest)
        refusal = None if _is_ending(run, latest.row) else refusal_of(run, wish, found)
        if refusal is not None:
            raise refusal
        override = None
        if found.info.already_completed:
            yield from _revalidate(run, found, found.state)
            return (yield from stored(run, found))
        if not _is_ending(run, latest.row):
            override = yield from _override(run, found)
            yield from _revalidate(run, found, found.state if override is None else override[0])
        if (yield from take(run, wish, found, override, nonces)):
            return (yield from _go(run, wish, found, override))


def plan(run: Run, wish: Wish) -> Routine[ResumePlan]:
    """What `resume` would do and why. Runs nothing and writes nothing."""
    refusal: MilepostError | None = None
    try:
        latest = yield from _look(run, is_planning=True)
        assert latest is not None
        refusal = refused_by_status(run, wish, latest.row)
        found = yield from _find(run, wish, latest)
        if _is_ending(run, latest.row):
            return _plan_of(found.info, "roll_back", f"a cancel is open ({latest.row.cancel}): the run is ended", None)
        refusal = refusal or refusal_of(run, wish, found)
        if isinstance(refusal, RunSuspended):
            return _plan_of(found.info, "waiting", str(refusal), refusal)
        if refusal is not None:
            return _plan_of(found.info, "refuse", str(refusal), refusal)
    except MilepostError as exc:
        if isinstance(exc, (StoreError, StoreClosedError)) or (
            isinstance(exc, NoCheckpointFoundError) and refusal is None
        ):
            raise
        refusal = refusal or exc
        nothing = ResumeInfo(
            run_id=run.run_id, source="latest", from_node=None, sequence=-1, visit=0, next_node=None, verified=False
        )
        return _plan_of(nothing, "refuse", str(refusal), refusal)
    if found.info.already_completed:
        return _plan_of(found.info, "finished", "the run has finished; its stored result is returned", None)
    if found.next_node is None:
        reason = f"the router after node {found.point.node_id!r} is asked, then the run goes on where it says"
    elif found.next_node == END:
        reason = "nothing is left to run; the end is recorded"
    else:
        attempt = found.spent.attempts + 1 + (found.row.lease == "ended")
        reason = f"goes on at node {found.next_node!r}, attempt {attempt}"
    return _plan_of(found.info, "continue", reason, None)


def _plan_of(info: ResumeInfo, verdict: Any, reason: str, error: BaseException | None) -> ResumePlan:
    return ResumePlan(
        **{name: getattr(info, name) for name in info.__dataclass_fields__},
        verdict=verdict,
        reason=reason,
        error=error,
    )


def _look(run: Run, *, is_planning: bool = False) -> Routine[Latest | None]:
    """Read where the run stands. None after a wait for another owner: look again."""
    assert run.store is not None
    latest: Latest = yield from ask(run.store, "latest", run.run_id, with_nodes=True)
    if latest.row.lease in {"live", "ours"} and not run.options.takeover:
        if run.options.on_locked == "wait" and not is_planning:
            yield from await_change(run)
            return None
        raise locked(run, latest.row)
    return latest


def await_change(run: Run) -> Routine[None]:
    """Wait before the next look at a run that is somebody else's; `RunTimeoutError` when the call's own time is over."""
    pause, limit, clock = POLL, run.options.run_timeout, run.options.clock
    if limit is not None:
        pause = min(POLL, limit - (clock.monotonic() - run.started_at))
        if pause <= 0:
            raise RunTimeoutError(
                f"run {run.run_id!r} was still another's after the run_timeout of {limit:g} s: nothing was changed; look "
                f"at who has it, or wait longer",
                run_id=run.run_id,
                timeout=limit,
            )
    yield Sleep(pause)


def _after_fence(
    run: Run, wish: Wish, before: RunRow, token: Token, nonces: Callable[[], str]
) -> Routine[RunResult[Any]]:
    """Go on with a run that was taken over; a refusal gives it back as it was."""
    assert run.store is not None
    try:
        return (yield from resume(run, wish, nonces))
    except GeneratorExit:
        raise
    except BaseException as exc:
        if run.journal.token is token:
            status = "interrupted" if before.info.status in {"running", "dead"} else before.info.status
            release = Release(status, f"taken over, then refused: {describe(exc)}")
            with contextlib.suppress(StoreError):
                yield from ask(run.store, "release", token, release)
        raise


def _is_ending(run: Run, row: RunRow) -> bool:
    """Whether a cancel is open, so that all that is left is to end the run."""
    return row.cancel is not None and not run.options.reopen


def _find(run: Run, wish: Wish, latest: Latest) -> Routine[Found]:
    """Examine the point that the verb goes on from: the newest, the wished one, or the newest that is whole."""
    assert run.store is not None
    check_flow(run, latest.row)
    point, tail = latest.point, latest.tail
    if wish.verb == "resume_from":
        point, tail = yield from _wished_point(run, wish, latest)
    is_lenient = run.options.on_corrupt == "previous" and wish.verb != "resume_from"
    remarks: list[str] = []
    begun = None
    if point is not None and point.sequence > 0:
        begun = yield from _beginning(run, remarks, is_lenient=run.options.on_corrupt == "previous")
    passed_over: list[str] = []
    while True:
        nodes = latest.nodes
        if point is not None and point is not latest.point:
            upto: Latest = yield from ask(run.store, "latest", run.run_id, before=point.sequence + 1, with_nodes=True)
            nodes = upto.nodes
        try:
            told = (*remarks, *passed_over)
            return examine(run, latest, point, tail, wish, begun, told, nodes, is_cut=bool(passed_over))
        except CheckpointCorruptError as exc:
            if not is_lenient or point is None:
                raise
            whole = tuple(record for record in tail if exc.sequence is not None and record.sequence < exc.sequence)
            if len(whole) < len(tail) and exc.sequence != point.sequence:
                # The point itself is good; what was recorded since, and led on from it, is not.
                passed_over.append(f"record {exc.sequence} is damaged and was passed over, with what followed it")
                tail = whole
                continue
            passed_over.append(f"record {point.sequence} at node {point.node_id!r} is damaged and was passed over")
            older: Latest = yield from ask(run.store, "latest", run.run_id, before=point.sequence)
            if older.point is None:
                raise
            point, tail = older.point, older.tail


def _beginning(run: Run, remarks: list[str], *, is_lenient: bool) -> Routine[Record | None]:
    """The start record, which tells the shape that the flow had; None where there is none that is whole."""
    assert run.store is not None
    records: list[Record] = yield from ask(run.store, "read", run.run_id, limit=1, kinds=(START,))
    if not records:
        return None
    try:
        run.store.seals.check(run.run_id, records[0])
    except CheckpointCorruptError:
        if not is_lenient:
            raise
        remarks.append("the start record is damaged: how the flow has changed since then is not known")
        return None
    return records[0]


def _wished_point(run: Run, wish: Wish, latest: Latest) -> Routine[tuple[Record, tuple[Record, ...]]]:
    """The checkpoint that `resume_from` goes on after; with `rerun`, the point before it and what amended that."""
    assert run.store is not None
    node_id = wish.node_id
    if node_id is None or node_id not in run.flow.units:
        raise InvalidResumeNodeError(
            f"flow {run.flow.name!r} has no node {node_id!r} to resume from: it has {', '.join(run.flow.units)}",
            run_id=run.run_id,
            node_id=node_id,
            known=tuple(run.flow.units),
        )
    record: Record | None = None
    for recorded in recorded_ids(run, node_id):
        found = yield from _newest_live(run, CHECKPOINT, recorded, wish.visit, latest)
        if found is not None and (record is None or found.sequence > record.sequence):
            record = found
    if record is None:
        visit = f" visit {wish.visit} of" if wish.visit is not None else ""
        raise NoCheckpointFoundError(
            run.run_id, node_id, f"there is none for{visit} this node that was not superseded; see history()"
        )
    if not wish.rerun:
        return record, (yield from _late_answer(run, record, node_id, latest))
    older: Latest = yield from ask(run.store, "latest", run.run_id, before=record.sequence)
    if older.point is None:
        raise NoCheckpointFoundError(run.run_id, node_id, "what the node was given was not recorded")
    return older.point, older.tail


def _newest_live(
    run: Run, kind: str, node_id: str, visit: int | None, latest: Latest, after: int = -1
) -> Routine[Record | None]:
    """The newest record of that kind, node and visit (None: any) that was not superseded."""
    assert run.store is not None
    before: int | None = None
    while True:
        found: list[Record] = yield from ask(
            run.store,
            "read",
            run.run_id,
            kinds=(kind,),
            node_id=node_id,
            after=after,
            before=before,
            newest=True,
            limit=1,
        )
        if not found or (is_live(found[0].sequence, latest.row.live) and visit in {None, found[0].visit}):
            return found[0] if found else None
        before = found[0].sequence


def _late_answer(run: Run, record: Record, node_id: str, latest: Latest) -> Routine[tuple[Record, ...]]:
    """What the router of a checkpoint answered when it was asked again, about the same state; () for nothing."""
    assert run.store is not None
    if record.header is None or record.fields().get("next_node") is not None:
        return ()
    for asked in {record.node_id, node_id}:
        route = yield from _newest_live(run, ROUTE, asked, record.visit, latest, record.sequence)
        if route is None:
            continue
        owners: list[Record] = yield from ask(
            run.store, "read", run.run_id, kinds=(OWNER,), after=record.sequence, before=route.sequence
        )
        if all(owner.payload is None for owner in owners):
            return (route,)
    return ()


def stored(run: Run, found: Found) -> Routine[RunResult[Any]]:
    """The result of a run that has finished; nothing runs and nothing is written."""
    run.info = found.info
    run.iteration = found.iteration
    run.journal.degraded = found.row.info.degraded
    run.journal.missed = found.row.info.missed
    run.status = found.row.info.status
    return (yield from run.tell_stored(found.state))


# -- correct: user code ------------------------------------------------------------------------------------


def _override(run: Run, found: Found) -> Routine[tuple[Any, bytes] | None]:
    """The corrected state and its bytes, or None; what the override raises is raised as it is."""
    override = run.options.state_override
    if override is None:
        return None
    state = yield Call(override, (found.state,), None, iscoroutinefunction(override))
    try:
        data = run.journal.encode(state)
        if isinstance(data, SerializeStateError):
            raise data
    except (StateTypeError, SerializeStateError) as exc:
        # The override may have changed what it was given.
        exc.run_id, exc.node_id, exc.state = run.run_id, found.info.from_node, run.flow.codec.decode(found.data)
        if isinstance(exc, StateTypeError):
            exc.op = "override"
        place(exc, f"what state_override gave for run {run.run_id!r} is refused", "return a state of the declared type")
        raise
    return state, data


def _revalidate(run: Run, found: Found, state: Any) -> Routine[None]:
    """Ask whether the state is still good; the four ways to say no are one error."""
    check = run.options.revalidate
    if check is None:
        return
    told = ""
    cause: BaseException | None = None
    try:
        answer = yield Call(check, (state,), None, iscoroutinefunction(check))
    except Exception as exc:
        told, cause = message_of(exc) or type(exc).__qualname__, exc
    else:
        if isinstance(answer, BaseException):
            told, cause = message_of(answer) or type(answer).__qualname__, answer
        elif answer is False:
            told = "revalidate returned False"
        elif isinstance(answer, str):
            told = answer
    if told:
        raise StateValidationError(
            f"the recorded state of run {run.run_id!r} was refused: {told}; correct it with state_override=",
            run_id=run.run_id,
            node_id=found.info.from_node,
            state=state,
        ) from cause


# -- go ---------------------------------------------------------------------------------------------------


def _go(run: Run, wish: Wish, found: Found, override: tuple[Any, bytes] | None) -> Routine[RunResult[Any]]:
    state, data = (found.state, found.data) if override is None else override
    run.given = data
    run.iteration = found.iteration
    run.prev_node_id = found.point.node_id
    run.followed_at = str(found.fields.get("timestamp") or run.followed_at)
    run.journal.missed = tuple(found.fields.get("missed", ()))
    run.journal.degraded = bool(run.journal.missed)
    run.knows_visits = False
    for node_id in set((run.options.rename or {}).values()):
        # The core counts the visits of a node under the id that it has now.
        run.visits[node_id] = yield from last_visit(run, node_id)
    run.info = found.info
    if wish.verb == "retry":
        found.spent.failures = 0
        found.spent.pause = 0.0
    return (yield from run.hold(_body(run, found, state), state))


def _body(run: Run, found: Found, state: Any) -> Routine[Any]:
    if _is_ending(run, found.row):
        raise run.journal.cancelled(found.row.cancel or "")
    next_node = found.next_node
    if next_node is None:
        node_id = (run.options.rename or {}).get(found.point.node_id, found.point.node_id)
        next_node = yield from _ask_again(run, found, node_id, state)
    if next_node == END:
        yield from run.journal.finish(found.point.sequence)
        return state
    if found.spent.visit == 0:
        found.spent.visit = (yield from last_visit(run, next_node)) + 1
    run.spent = found.spent
    return (yield from run.walk(state, next_node))


def _ask_again(run: Run, found: Found, node_id: str, state: Any) -> Routine[str]:
    """Ask the router of a node whose work is recorded, and record its late answer."""
    unit = run.flow.units[node_id]
    if unit.router is None:
        assert unit.next_node is not None
        next_node = unit.next_node
    else:
        context: Context[Any] = Context(run.scope, node_id, found.point.visit, 1, run.followed_at)
        try:
            next_node = yield from run.ask_router(unit.router, context, state)
        except RouterError as error:
            journal, original = run.journal, error.__cause__ or error
            error.state = state
            failure = journal.failure("route", node_id, found.point.visit, 1, original, final=True)
            yield from journal.finish_failed((failure,), error, original)
            raise
    yield from run.journal.route(node_id, found.point.visit, next_node, found.iteration)
    return next_node
