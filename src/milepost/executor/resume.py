"""Going on with a run: the routines behind resume, resume_from, retry, plan_resume and new turns.

Each has the same sequence: look (read where the run stands; its status or lease may refuse), examine (verify, decode,
compare with the flow: pure), correct (override, revalidate: user code), fence (take the run in one write that also
records the override), go. A refusal before the fence changes nothing. If the journal has grown between look and fence,
the sequence begins again. A takeover fences first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, cast

from milepost.errors import (
    MilepostError,
    NoCheckpointFoundError,
    RunSuspended,
    RunTimeoutError,
    StateValidationError,
    StoreClosedError,
    StoreError,
)
from milepost.executor.amendment import amended, check_branch
from milepost.executor.checks import (
    Amendment,
    ResumeRequest,
    locked,
    refused_by_status,
)
from milepost.executor.claim import as_before, take, take_over
from milepost.executor.context import current_context
from milepost.executor.continuation import CONTINUE, open_turn
from milepost.executor.effects import Call, Hold, Routine, Sleep
from milepost.executor.flow import GraphFlow
from milepost.executor.journal import ask
from milepost.executor.run import Run, pause_after
from milepost.model.failure import describe, first_line, message_of
from milepost.model.record import OWNER, Record
from milepost.model.reports import ResumeInfo, ResumePlan
from milepost.options import without_amendments
from milepost.store import Release, RunRow, RunSnapshot, Token

__all__ = ["REFUSED", "await_change", "await_due", "make_ready", "plan", "resume", "resume_claimed"]

REFUSED = "refused: "
"""The beginning of a run's reason after a worker gave it back because its code cannot go on with it."""
POLL = 0.25
"""The seconds between two looks at a run that another owner has."""


def resume(run: Run, wish: ResumeRequest, nonces: Callable[[], str]) -> Routine[Any]:
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
        waiting = refused_by_status(run, wish, latest.row)
        if waiting is not None and not (isinstance(waiting, RunSuspended) and _asks_of_state(run)):
            raise waiting
        found = yield from run.find(wish, latest)
        is_ending = _is_ending(run, latest.row)
        refusal = None if is_ending else run.refusal(wish, found)
        if refusal is not None:
            raise refusal
        amendment = None if is_ending else (yield from _amended(run, wish, found))
        if found.info.already_completed:
            if amendment is None or (yield from take(run, wish, found, amendment, nonces, is_end=True)):
                return (yield from run.stored(found))
            continue
        if waiting is not None and amendment is None and not run.renames.given:
            raise waiting
        if (yield from take(run, wish, found, amendment, nonces)):
            return (yield from _go(run, wish, found, amendment, is_ending=is_ending))


def resume_claimed(run: Run, token: Token) -> Routine[Any]:
    """Go on with a run that a worker has claimed.

    If it is refused, give it back for other code, with the status that it had and the reason.
    """
    run.journal.token, run.journal.epoch = token, token.epoch
    # An engine's override is for its verbs only: a worker goes on with a run many times, and would apply it each time.
    run.options = without_amendments(run.options)
    latest: RunSnapshot | None = None
    try:
        # The lease is kept even before the state is read: many runs that were claimed at once wait here for their turn.
        yield Hold(run.store, token, run.options.lease)
        latest = yield from ask(run.store, "latest", run.run_id, with_nodes=not run.is_replayed)
        run.journal.sequence = latest.newest
        run.claims = sum(record.kind == OWNER for record in latest.tail)
        run.crashes = latest.row.info.crash_count
        is_ending = _is_ending(run, latest.row)
        if is_ending and not run.is_replayed:
            return (yield from run.hold(run.end(None, latest.row), None))
        wish = ResumeRequest()
        found = yield from run.find(wish, latest)
        refusal = None if is_ending else run.refusal(wish, found)
        if refusal is not None:
            raise refusal
        if not is_ending and not run.is_replayed:
            yield from _revalidate(run, found, _seen(found))
    except StoreError as exc:
        if not run.journal.is_dropped:
            # The store, not the run, is at fault: a worker tries again, a little later each time.
            wake_at = run.options.clock.time() + pause_after(run.claims)
            yield from run.journal.let_go(run.journal.give_up(Release("ready", first_line(exc), wake_at)))
        raise exc
    except GeneratorExit:
        raise
    except BaseException as exc:
        if not run.journal.is_released and not run.journal.is_dropped:
            if isinstance(exc, Exception):
                giving_up: Routine[Any] = _give_back(run, latest, f"{REFUSED}{exc}")
            elif run.is_stopped_by(exc) or not run.claims:
                giving_up = _give_back(run, latest, "the worker that had it was stopped")
            else:
                giving_up = run.journal.give_up(run.crash(exc))
            yield from run.journal.let_go(giving_up)
        raise
    if run.renames.given and not is_ending:
        yield from _record_renames(run)
    return (yield from _go(run, wish, found, None, is_ending=is_ending))


def _record_renames(run: Run) -> Routine[None]:
    """Record the renames of a run that a worker has claimed: its claim was written before they were known."""
    journal = run.journal
    record = journal.make(OWNER, "", 1, verb="rename", renames=run.renames.told(journal.sequence + 1))
    yield from journal.write((record,))
    run.renamed_at = record.sequence


def give_back(run: Run, token: Token, reason: str) -> Routine[None]:
    """Give a claimed run back before any of its code runs, with the status that it had and the reason."""
    run.journal.token, run.journal.epoch = token, token.epoch

    def giving_back() -> Routine[None]:
        latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
        yield from _give_back(run, latest, reason)

    with contextlib.suppress(StoreError):
        yield from run.journal.let_go(giving_back())


def _go(run: Run, wish: ResumeRequest, found: Any, amendment: Amendment | None, *, is_ending: bool) -> Routine[Any]:
    """Go on with a run that this call owns, or carry out its open cancel."""
    run.info = found.info
    body = run.end(found, found.row) if is_ending else run.go_on(wish, found, amendment)
    return (yield from run.hold(body, found.state if amendment is None else amendment.state))


def _give_back(run: Run, latest: RunSnapshot | None, reason: str) -> Routine[None]:
    """Release a claimed run that does not go on, with the status that it had before the claim."""
    claimed: list[Record] = yield from ask(run.store, "read", run.run_id, kinds=(OWNER,), newest=True, limit=1)
    was = str(claimed[0].fields().get("was") or "interrupted") if claimed else "interrupted"
    release = Release("interrupted" if was == "running" else was) if latest is None else as_before(latest.row.info, was)
    if release.status == "waiting" and not release.waiting_for:
        # A worker takes a run without open waits when its time is over: for other code it is still due.
        release = release._replace(wake_at=run.options.clock.time())
    yield from run.journal.give_up(release._replace(reason=reason))


def make_ready(run: Run, wish: ResumeRequest, nonces: Callable[[], str], at: float = 0.0) -> Routine[None]:
    """Make a run that exists ready for a worker, which goes on with it as `wish` says.

    Raises the refusals of `resume`.
    """
    while True:
        latest = yield from _look(run)
        if latest is None:
            continue
        row = latest.row
        if row.info.status == "ready" and wish.verb != CONTINUE and not run.options.amends:
            return
        waiting = refused_by_status(run, wish, row)
        if waiting is not None and not (isinstance(waiting, RunSuspended) and _asks_of_state(run)):
            raise waiting
        found = yield from run.find(wish, latest)
        refusal = run.refusal(wish, found)
        if refusal is not None:
            raise refusal
        amendment = yield from _amended(run, wish, found)
        if found.info.already_completed:
            if amendment is None or (yield from take(run, wish, found, amendment, nonces, is_end=True)):
                return
            continue
        if waiting is not None and amendment is None and not run.renames.given:
            raise waiting
        if (yield from take(run, wish, found, amendment, nonces)):
            release = Release("ready", wake_at=at or None, degraded=row.info.degraded, missed=row.info.missed)
            if row.info.status in {"ready", "waiting"}:
                wake_at = None if row.info.wake_at is None else row.info.wake_at.timestamp()
                release = release._replace(status=row.info.status, reason=row.info.reason, wake_at=at or wake_at)
                release = release._replace(waiting_for=row.info.waiting_for, signals=row.signals)
            yield from run.journal.let_go(_left(run, release))
            return


def _left(run: Run, release: Release) -> Routine[None]:
    """Release a run that was amended. If a signal has come meanwhile, it is released as ready."""
    if (yield from run.journal.give_up(release)) == "refused":
        yield from run.journal.give_up(Release("ready", degraded=release.degraded, missed=release.missed))


def plan(run: Run, wish: ResumeRequest) -> Routine[ResumePlan]:
    """Return what `resume` would do, and the reason. Runs nothing and writes nothing."""
    refusal: MilepostError | None = None
    try:
        latest = yield from _look(run, is_planning=True)
        assert latest is not None
        refusal = refused_by_status(run, wish, latest.row)
        found = yield from run.find(wish, latest)
        if _is_ending(run, latest.row):
            return _plan_of(found.info, "roll_back", f"a cancel is open ({latest.row.cancel}): the run is ended", None)
        refusal = refusal or run.refusal(wish, found)
        if isinstance(refusal, RunSuspended):
            return _plan_of(found.info, "waiting", str(refusal), refusal)
        if refusal is not None:
            return _plan_of(found.info, "refuse", str(refusal), refusal)
    except MilepostError as exc:
        if isinstance(exc, (StoreError, StoreClosedError)) or (
            isinstance(exc, NoCheckpointFoundError) and refusal is None
        ):
            raise
        # A refusal that no signal or time can end is reported rather than the wait.
        refusal = exc if refusal is None or isinstance(refusal, RunSuspended) else refusal
        nothing = ResumeInfo(
            run_id=run.run_id, source="latest", from_node=None, sequence=-1, visit=0, next_node=None, verified=False
        )
        return _plan_of(nothing, "refuse", str(refusal), refusal)
    if found.info.already_completed:
        return _plan_of(found.info, "finished", "the run has finished; its stored result is returned", None)
    return _plan_of(found.info, "continue", found.plan, None)


def _plan_of(info: ResumeInfo, verdict: Any, reason: str, error: BaseException | None) -> ResumePlan:
    return ResumePlan(
        **{name: getattr(info, name) for name in info.__dataclass_fields__},
        verdict=verdict,
        reason=reason,
        error=error,
    )


def _look(run: Run, *, is_planning: bool = False) -> Routine[RunSnapshot | None]:
    """Read where the run stands. None after a wait for another owner: the caller has to look again."""
    latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id, with_nodes=not run.is_replayed)
    if latest.row.lease in {"live", "ours"} and not run.options.takeover:
        if run.options.on_locked == "wait" and not is_planning:
            yield from await_change(run)
            return None
        raise locked(run, latest.row)
    return latest


def await_change(run: Run) -> Routine[None]:
    """Wait before the next look at a run of another owner. Raises `RunTimeoutError` when the call's own time is over.

    If the caller is itself the code of a worker's run, that run's slot is lent out meanwhile: the other run may need
    it.
    """
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
    scope = getattr(current_context.get(None), "_scope", None)
    with contextlib.nullcontext() if scope is None or scope.lend is None else scope.lend():
        yield Sleep(pause)


def await_due(run: Run) -> Routine[None]:
    """Wait until a parked run may go on: its signal or its time has come, a cancel is open, or it waits no more."""
    while True:
        row: RunRow = yield from ask(run.store, "get_run", run.run_id)
        wake_at = row.info.wake_at
        is_due = wake_at is not None and wake_at.timestamp() <= run.store.clock.time()
        if is_due or row.info.status != "waiting" or row.cancel is not None:
            return
        yield from await_change(run)


def _after_fence(
    run: Run, wish: ResumeRequest, before: RunRow, token: Token, nonces: Callable[[], str]
) -> Routine[Any]:
    """Go on with a run that was taken over. If it is refused, give it back with the status that it had."""
    try:
        return (yield from resume(run, wish, nonces))
    except GeneratorExit:
        raise
    except BaseException as exc:
        if run.journal.token is token:
            release = as_before(before.info)._replace(reason=f"taken over, then refused: {describe(exc)}")
            yield from run.journal.let_go(run.journal.give_up(release))
        raise


def _is_ending(run: Run, row: RunRow) -> bool:
    """Return whether a cancel is open, so that the run can only be ended."""
    return row.cancel is not None and not run.options.reopen


# -- correct: user code ------------------------------------------------------------------------------------


def _amended(run: Run, wish: ResumeRequest, found: Any) -> Routine[Amendment | None]:
    """Return the amended state that the run goes on with; None if it goes on with the recorded one.

    The call's `revalidate` is asked about the state that the run will go on with.
    """
    if wish.verb == CONTINUE:
        turn = Amendment(*open_turn(run, found, wish.state))
        yield from _revalidate(run, found, turn.state)
        return turn
    amendment = None
    if run.options.amends:
        flow, where = cast("GraphFlow", run.flow), f"run {run.run_id!r}"
        amendment = yield from amended(run, flow, flow.codec, found.data_seen, found.info.from_node, where)
    if amendment is not None and found.at is not None:
        entry = found.since.entry_at(found.at.sequence)
        check_branch(run, flow, found.since, entry, found.point, found.data, amendment)
    yield from _revalidate(run, found, _seen(found) if amendment is None else amendment.state)
    if amendment is not None and found.at is None:
        found.state, found.data = amendment.state, amendment.data
    return amendment


def _asks_of_state(run: Run) -> bool:
    """Return whether the call amends, revalidates or renames what is recorded. It may do so even while the run waits."""
    return run.options.amends or run.options.revalidate is not None or bool(run.options.rename)


def _seen(found: Any) -> Any:
    """Return the state at the checkpoint after which a verb goes on. It may be inside a branch."""
    return found.state if getattr(found, "at", None) is None else found.seen


def _revalidate(run: Run, found: Any, state: Any) -> Routine[None]:
    """Ask `revalidate` whether the state is still good, and raise `StateValidationError` if not.

    It refuses by raising or returning an exception, or by returning False or a text.
    """
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
