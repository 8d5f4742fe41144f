"""Where a run begins or goes on: the routines behind run, resume, resume_from, retry and plan_resume.

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
    CheckpointWriteError,
    InputMismatchError,
    InvalidResumeNodeError,
    MilepostError,
    NoCheckpointFoundError,
    RouterError,
    RunCancelled,
    RunExistsError,
    RunNotResumableError,
    RunSuspended,
    SerializeStateError,
    StateTypeError,
    StateValidationError,
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
    not_resumable,
    refusal_of,
    refused_by_status,
)
from milepost.failures import describe, recorded_error
from milepost.flow import END
from milepost.journal import ask
from milepost.record import (
    CHECKPOINT,
    FAILURE,
    FINISH,
    OWNER,
    START,
    Record,
    format_time,
    make_record,
)
from milepost.runtime import Run
from milepost.store import Claim, Claimed, Latest, NewRun, Release, RunRow

__all__ = ["plan", "resume", "start"]

POLL = 0.25
"""Seconds between two looks at a run that another owner has."""


# -- run -------------------------------------------------------------------------------------------------


def start(run: Run, state: Any, nonces: Callable[[], str]) -> Routine[RunResult[Any]]:
    """Begin a run; what becomes of one that exists is `if_exists`."""
    if run.store is None:
        return (yield from run.hold(run.walk(state, run.flow.entry), state))
    flow, options, store = run.flow, run.options, run.store
    try:
        data = run.journal.encode(state)
        if isinstance(data, SerializeStateError):
            raise data
    except (SerializeStateError, StateTypeError) as exc:
        exc.run_id = run.run_id
        raise
    inputs_hash = flow.inputs_hash(state)
    record = make_record(
        run.run_id,
        0,
        run.followed_at,
        START,
        state=data,
        fields={
            "flow": flow.name,
            "flow_version": 1,
            "fingerprint": flow.fingerprint,
            "shape": flow.shape,
            "inputs_hash": inputs_hash,
            "entry": flow.entry,
            "epoch": 1,
        },
        compressing=bool(options.compress),
    )
    new = NewRun(run.run_id, flow.name, nonces(), record, options.lease, options.tags or {})
    try:
        run.journal.token = yield from ask(store, "create", new)
    except RunExistsError as exists:
        return (yield from _existing(run, exists, data, inputs_hash, nonces))
    except StoreError as exc:
        raise CheckpointWriteError(
            f"the start of run {run.run_id!r} could not be written to {store.place}: {describe(exc)}; nothing has run: "
            f"mend the store, then run again",
            run_id=run.run_id,
            store=store.place,
            op="create",
            state=state,
        ) from exc
    run.journal.sequence, run.journal.epoch, run.given = 0, 1, data
    return (yield from run.hold(run.walk(state, flow.entry), state))


def _existing(
    run: Run, exists: RunExistsError, data: bytes, inputs_hash: str, nonces: Callable[[], str]
) -> Routine[RunResult[Any]]:
    """What `if_exists` makes of a run that is there."""
    assert run.store is not None
    mode = run.options.if_exists
    row: RunRow = yield from ask(run.store, "get_run", run.run_id)
    begun: list[Record] = yield from ask(run.store, "read", run.run_id, limit=1, kinds=(START,))
    mismatch = _input_mismatch(run, begun[0], data, inputs_hash) if begun else None
    if mode == "error":
        raise RunExistsError(
            str(exists) + (f"; {mismatch.args[0]}" if mismatch is not None else ""),
            run_id=run.run_id,
            status=exists.status,
        ) from None
    check_flow(run, row)
    if mismatch is not None and run.options.compare_inputs:
        raise mismatch from None
    if mode == "return":
        return (yield from _attach(run))
    wish = Wish("retry") if mode == "retry" and row.info.status == "failed" else Wish()
    return (yield from resume(run, wish, nonces))


def _input_mismatch(run: Run, begun: Record, data: bytes, inputs_hash: str) -> InputMismatchError | None:
    recorded = begun.fields().get("inputs_hash")
    if recorded is None or recorded == inputs_hash:
        return None
    shown = []
    for text in (begun.state() or b"", data):
        decoded = text.decode("utf-8", "replace")
        shown.append(decoded if len(decoded) <= 200 else "")
    detail = f"recorded {shown[0]}, given {shown[1]}" if all(shown) else "the states are too long to show"
    return InputMismatchError(
        recorded,
        inputs_hash,
        f"{detail}: choose another run_id, resume() the run as it is, or pass compare_inputs=False",
        run_id=run.run_id,
        names=("state",),
    )


def _attach(run: Run) -> Routine[RunResult[Any]]:
    """Wait for the end of a run that somebody executes; changes nothing."""
    assert run.store is not None
    while True:
        latest: Latest = yield from ask(run.store, "latest", run.run_id)
        info = latest.row.info
        if info.status == "finished":
            return (yield from _stored(run, examine(run, latest, latest.point, latest.tail, Wish(), None)))
        if info.status == "failed":
            raise _recorded_end(run, latest)
        if info.status == "cancelled":
            raise RunCancelled(f"run {run.run_id!r} was cancelled", run_id=run.run_id, reason=info.reason)
        if info.status == "blocked":
            raise not_resumable(run, info.status, info.reason, "pass reopen=True to resume()")
        yield Sleep(POLL)


def _recorded_end(run: Run, latest: Latest) -> MilepostError:
    told = [record for record in latest.tail if record.kind in {FAILURE, FINISH}]
    failure = next((record for record in reversed(told) if record.kind == FAILURE), told[-1] if told else None)
    if failure is None:
        return RunNotResumableError(
            f"run {run.run_id!r} failed: {latest.row.info.reason}",
            run_id=run.run_id,
            status="failed",
            reason=latest.row.info.reason,
        )
    return recorded_error(run.run_id, failure.fields(), failure.node_id)


# -- resume ----------------------------------------------------------------------------------------------


def resume(run: Run, wish: Wish, nonces: Callable[[], str]) -> Routine[RunResult[Any]]:
    """Go on with a run that exists, as `wish` says."""
    while True:
        latest = yield from _look(run)
        if latest is None:
            continue
        if latest.row.lease in {"live", "ours"}:
            return (yield from _after_fence(run, wish, latest, nonces))
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
            return (yield from _stored(run, found))
        if not _is_ending(run, latest.row):
            override = yield from _override(run, found)
            yield from _revalidate(run, found, found.state if override is None else override[0])
        claimed = yield from _fence(run, wish, found, override, nonces)
        if claimed is not None:
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
        if isinstance(exc, NoCheckpointFoundError) and refusal is None:
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
        reason = f"goes on at node {found.next_node!r}, attempt {found.spent.attempts + 1}"
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
            yield Sleep(POLL)
            return None
        raise locked(run, latest.row)
    return latest


def _is_ending(run: Run, row: RunRow) -> bool:
    """Whether a cancel is open, so that all that is left is to end the run."""
    return row.cancel is not None and not run.options.reopen


def _find(run: Run, wish: Wish, latest: Latest) -> Routine[Found]:
    """Examine the point that the verb goes on from: the newest, the wished one, or the newest that is whole."""
    assert run.store is not None
    check_flow(run, latest.row)
    point, tail, begun = latest.point, latest.tail, None
    if wish.verb == "resume_from":
        point, tail = yield from _wished_point(run, wish, latest)
    passed_over: list[str] = []
    while True:
        if point is not None and point.sequence > 0 and begun is None:
            start_records = yield from ask(run.store, "read", run.run_id, limit=1, kinds=(START,))
            begun = start_records[0] if start_records else None
        nodes = latest.nodes
        if point is not None and point is not latest.point:
            upto: Latest = yield from ask(run.store, "latest", run.run_id, before=point.sequence + 1, with_nodes=True)
            nodes = upto.nodes
        try:
            return examine(run, latest, point, tail, wish, begun, tuple(passed_over), nodes)
        except CheckpointCorruptError:
            if run.options.on_corrupt != "previous" or point is None or wish.verb == "resume_from":
                raise
            passed_over.append(f"record {point.sequence} at node {point.node_id!r} is damaged and was passed over")
            older: Latest = yield from ask(run.store, "latest", run.run_id, before=point.sequence)
            if older.point is None:
                raise
            point, tail = older.point, older.tail


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
    recorded = {new: old for old, new in (run.options.rename or {}).items()}.get(node_id, node_id)
    before: int | None = None
    while True:
        found: list[Record] = yield from ask(
            run.store,
            "read",
            run.run_id,
            kinds=(CHECKPOINT,),
            node_id=recorded,
            before=before,
            newest=True,
            limit=1,
        )
        if not found:
            visit = f" visit {wish.visit} of" if wish.visit is not None else ""
            raise NoCheckpointFoundError(
                run.run_id, node_id, f"there is none for{visit} this node that was not superseded; see history()"
            )
        record = found[0]
        if is_live(record.sequence, latest.row.live) and wish.visit in {None, record.visit}:
            break
        before = record.sequence
    if not wish.rerun:
        return record, ()
    older: Latest = yield from ask(run.store, "latest", run.run_id, before=record.sequence)
    if older.point is None:
        raise NoCheckpointFoundError(run.run_id, node_id, "what the node was given was not recorded")
    return older.point, older.tail


def _stored(run: Run, found: Found) -> Routine[RunResult[Any]]:
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
        return state, run.flow.codec.encode(state)
    except (StateTypeError, SerializeStateError) as exc:
        # The override may have changed what it was given.
        exc.run_id, exc.node_id, exc.state = run.run_id, found.info.from_node, run.flow.codec.decode(found.data)
        if isinstance(exc, StateTypeError):
            exc.op = "override"
        raise


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
        told, cause = str(exc) or type(exc).__qualname__, exc
    else:
        if isinstance(answer, BaseException):
            told, cause = str(answer) or type(answer).__qualname__, answer
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


# -- fence and go ------------------------------------------------------------------------------------------


def _fence(
    run: Run, wish: Wish, found: Found, override: tuple[Any, bytes] | None, nonces: Callable[[], str]
) -> Routine[Claimed | None]:
    """Take the run; None if it has moved meanwhile. The owner record carries the override."""
    assert run.store is not None
    row, options = found.row, run.options
    crashed = row.lease == "ended"
    epoch, sequence = row.epoch + 1, found.newest + 1
    live = (*found.live, ("", sequence, None)) if found.live is not None else None
    entered = yield from _entered(run, found) if found.live is not None else _nothing()
    record = make_record(
        run.run_id,
        sequence,
        format_time(options.clock.time()),
        OWNER,
        *entered,
        state=None if override is None else override[1],
        fields={
            "verb": wish.verb,
            "from": found.point.sequence,
            "epoch": epoch,
            "crashed": crashed or None,
            "live": None if live is None else [list(r) for r in live],
            "reason": "the owner before it was gone" if crashed else None,
        },
        compressing=bool(options.compress),
    )
    claim = Claim(
        run.run_id,
        found.newest,
        epoch,
        nonces(),
        record,
        options.lease,
        crashed=crashed,
        takeover=options.takeover,
        reopen=options.reopen,
        max_crashes=options.max_crashes,
        live=live,
    )
    claimed: Claimed = yield from ask(run.store, "claim", claim)
    if claimed.outcome == "blocked":
        raise not_resumable(run, "blocked", claimed.row.info.reason, "mend the cause, then pass reopen=True")
    if claimed.outcome == "locked":
        if options.on_locked == "wait":
            return None
        raise locked(run, claimed.row)
    if claimed.outcome == "moved":
        return None
    run.journal.token = claimed.token
    run.journal.epoch, run.journal.sequence = epoch, sequence
    if crashed and live is None:
        found.spent.attempts += 1
    return claimed


def _nothing() -> Routine[tuple[str, int]]:
    return ("", 1)
    yield  # the marker of a generator: it never asks for anything


def _entered(run: Run, found: Found) -> Routine[tuple[str, int]]:
    """The visit that may have begun before it is superseded: its number is not used again."""
    assert run.store is not None
    latest: Latest = yield from ask(run.store, "latest", run.run_id)
    if latest.point is None or latest.row.info.status == "finished":
        return "", 1
    try:
        fields = latest.point.fields()
    except CheckpointCorruptError:
        # It was passed over; where it led is not known.
        return "", 1
    node_id = fields.get("next_node") if latest.point.kind == CHECKPOINT else fields.get("entry")
    if not isinstance(node_id, str) or node_id == END:
        return "", 1
    last = yield from _last_number(run, node_id, latest)
    return node_id, last


def _last_number(run: Run, node_id: str, latest: Latest) -> Routine[int]:
    failed = [record for record in latest.tail if record.kind == FAILURE and record.node_id == node_id]
    if failed:
        return failed[-1].visit
    return (yield from run.last_visit(node_id)) + 1


def _after_fence(run: Run, wish: Wish, latest: Latest, nonces: Callable[[], str]) -> Routine[RunResult[Any]]:
    """Take the run from a live owner first, so that it stands still; a later refusal gives it back as it was."""
    assert run.store is not None
    epoch, sequence = latest.row.epoch + 1, latest.newest + 1
    record = make_record(
        run.run_id,
        sequence,
        format_time(run.options.clock.time()),
        OWNER,
        fields={"verb": wish.verb, "from": latest.newest, "epoch": epoch, "reason": "taken over by request"},
    )
    claim = Claim(
        run.run_id, latest.newest, epoch, nonces(), record, run.options.lease,
        takeover=True, reopen=run.options.reopen, max_crashes=run.options.max_crashes,
    )  # fmt: skip
    claimed: Claimed = yield from ask(run.store, "claim", claim)
    if claimed.outcome != "claimed":
        return (yield from resume(run, wish, nonces))
    assert claimed.token is not None
    run.journal.token = claimed.token
    yield from ask(run.store, "abandon", claimed.token)
    # From here on the run is this store object's, held by no verb: the ordinary order applies, and claims again.
    try:
        return (yield from resume(run, wish, nonces))
    except GeneratorExit:
        raise
    except BaseException as exc:
        if run.journal.token is claimed.token:
            status = "interrupted" if latest.row.info.status in {"running", "dead"} else latest.row.info.status
            release = Release(status, f"taken over, then refused: {describe(exc)}")
            with contextlib.suppress(StoreError):
                yield from ask(run.store, "release", claimed.token, release)
        raise


def _go(run: Run, wish: Wish, found: Found, override: tuple[Any, bytes] | None) -> Routine[RunResult[Any]]:
    state, data = (found.state, found.data) if override is None else override
    run.given = data
    run.iteration = found.iteration
    run.prev_node_id = found.point.node_id
    run.followed_at = str(found.fields.get("timestamp") or run.followed_at)
    run.journal.missed = tuple(found.fields.get("missed", ()))
    run.journal.degraded = bool(run.journal.missed)
    run.knows_visits = False
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
        found.spent.visit = (yield from run.last_visit(next_node)) + 1
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
