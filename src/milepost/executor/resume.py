"""Resume: the claim of a run, its corrections, and the way on from where it stands.

Each has the same sequence: look (read where the run stands; its status or lease may refuse), examine (verify, decode,
compare with the flow: pure), correct (override, revalidate: user code), fence (take the run in one write that also
records the override), go. A refusal before the fence changes nothing. If the journal has grown between look and fence,
the sequence begins again. A takeover fences first.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, cast

import msgspec

from milepost.errors import (
    AsyncNodeError,
    CheckpointCorruptError,
    FlowChangedError,
    MilepostError,
    NoCheckpointFoundError,
    OptionError,
    RunSuspended,
    RunTimeoutError,
    SerializeStateError,
    StateTypeError,
    StateValidationError,
    StoreClosedError,
    StoreError,
)
from milepost.executor import journal
from milepost.executor.beginning import Completion, is_misfit
from milepost.executor.checks import (
    Amendment,
    ResumeRequest,
    locked,
    not_resumable,
    refused_by_status,
)
from milepost.executor.context import current_context
from milepost.executor.continuation import end_of_turn, is_to_be_finished, open_turn, refused
from milepost.executor.effects import Call, Hold, Routine, Sleep, ask
from milepost.executor.flow import GraphFlow, Part, StateCodec, Whole
from milepost.executor.history import JournalHistory
from milepost.executor.history_values import StepRecord
from milepost.executor.run import Run
from milepost.model.beginning import BEGIN, is_unread
from milepost.model.failure import describe, first_line, message_of, place
from milepost.model.ranges import Ranges
from milepost.model.record import CONTINUE, FINISH, OWNER, Record, format_time, make_record
from milepost.model.reports import ResumeInfo, ResumePlan
from milepost.options import Options, without_amendments
from milepost.store import Claim, Claimed, Release, RunRow, RunSnapshot, Token

# -- Taking a run that exists: its owner record fences off every owner before ----------------------
#
# One write changes the owner, records the override and says which records count from now on. `take` writes it when all
# checks have passed; `take_over` writes it first, to take the run from an owner that is alive.


def take(
    run: Run,
    request: ResumeRequest,
    examined: Any,
    amendment: Amendment | None,
    nonces: Callable[[], str],
    *,
    is_end: bool = False,
) -> Routine[bool]:
    """Take the run; return False if its journal has grown meanwhile. The owner record holds the amendment.

    `is_end`: the run has finished, and ends once more in the same write, with the amended state; nobody owns it then.

    If another owner came first, raises `RunLockedError`, or returns False with on_locked="wait". Raises
    `RunNotResumableError` if too many owners died.
    """
    row, options = examined.row, run.options
    is_turn = request.verb == CONTINUE
    entered = yield from _entered(run) if examined.live is not None else _nothing()
    inside: Record | None = examined.at
    reroute: bool | None = examined.reroute
    updates, completion = None, run.completion or Completion(None, {})
    if amendment is not None and amendment.updates is not None and inside is not None:
        updates = msgspec.Raw(amendment.updates)
    now, sequence = format_time(options.clock.time()), examined.newest + 1
    claim = make_claim(
        run.run_id,
        options,
        row,
        examined.newest,
        nonces(),
        request,
        examined.point.sequence,
        now=now,
        entered=entered,
        state=completion.state if amendment is None else amendment.data,
        fields={
            "entry": run.flow.entry if is_turn else None,
            "turn": options.turn_id if is_turn else None,
            "overrides": inside.sequence if inside is not None and (amendment or reroute is not None) else None,
            "updates": updates,
            "reroute": reroute,
            **completion.fields,
        },
        live=examined.live,
        reason=examined.info.superseded or ("the owner before it was gone" if row.lease == "ended" else None),
        renames=run.renames.as_fields(sequence),
        again=examined.again,
    )._replace(takeover=options.takeover)
    if is_end:
        end = {"status": "finished", "result": examined.point.sequence, "epoch": claim.epoch}
        claim = claim._replace(finish=make_record(run.run_id, sequence + 1, now, FINISH, fields=end))
    claimed: Claimed = yield from journal.take(run.store, "claim", claim, claim.epoch, as_before(row))
    if claimed.outcome == "blocked":
        raise not_resumable(run, "blocked", claimed.row.reason, "mend the cause, then pass reopen=True")
    if claimed.outcome == "locked":
        if options.on_locked == "wait":
            return False
        raise locked(run, claimed.row)
    if claimed.outcome == "moved":
        return False
    run.journal.token = claimed.token
    run.journal.epoch, run.journal.sequence = claim.epoch, sequence
    if run.renames:
        run.renamed_at = sequence
    if is_turn:
        # The first visit of the turn follows this record, now and after a crash.
        examined.fields = {**examined.fields, "timestamp": now}
    if claim.crashed and claim.live is None:
        examined.spent.attempts += 1
    return True


def make_claim(
    run_id: str,
    options: Options,
    row: RunRow,
    newest: int,
    nonce: str,
    request: ResumeRequest,
    origin: int,
    *,
    now: str,
    reason: str | None,
    entered: tuple[str, int] = ("", 1),
    state: bytes | None = None,
    fields: Mapping[str, Any] | None = None,
    live: Ranges | None = None,
    renames: Any = None,
    again: str | None = None,
) -> Claim:
    """Make the claim of a run whose journal ends at `newest`, with the owner record that says how the run goes on.

    It goes on after record `origin`. `entered` is the visit whose number is not used again, `fields` are those that
    only some verbs have, and `live` are the ranges that count up to the claim if a part of the journal no longer does.
    """
    crashed, is_turn = row.lease == "ended", request.verb == CONTINUE
    epoch, sequence = row.epoch + 1, newest + 1
    ranges = None if live is None else (*live, ("", sequence, None))
    record = make_record(
        run_id,
        sequence,
        now,
        OWNER,
        *entered,
        state=state,
        fields={
            "verb": request.verb,
            "from": origin,
            **(fields or {}),
            "epoch": epoch,
            "crashed": (crashed and not is_turn) or None,
            "live": None if ranges is None else [list(part) for part in ranges],
            "reason": reason,
            "renames": renames,
            "again": again,
        },
        compressing=bool(options.compress),
    )
    # A turn does not count the crashes of the turn that it supersedes.
    reopen = options.reopen or (is_turn and row.status == "blocked")
    max_crashes = None if is_turn else options.max_crashes
    return Claim(
        run_id, newest, epoch, nonce, record, options.lease,
        crashed=crashed, reopen=reopen, max_crashes=max_crashes, live=ranges,
    )  # fmt: skip


def as_before(row: RunRow, was: str | None = None) -> Release:
    """Make the release that gives a run back as it was before it was taken, by `row`; `was`, if given, is its status."""
    status = row.status if was is None else was
    ends = [wait.wake_at.timestamp() for wait in row.waiting_for if wait.wake_at is not None]
    return Release(
        "interrupted" if status in {"running", "dead"} else status,
        wake_at=min(ends, default=None) if status == "waiting" else None,
        waiting_for=row.waiting_for,
        degraded=row.degraded,
        missed=row.missed,
    )


def _nothing() -> Routine[tuple[str, int]]:
    yield from ()
    return ("", 1)


def _entered(run: Run) -> Routine[tuple[str, int]]:
    """Return the node and the number of a visit that may have begun and is superseded now.

    Its number is not used again. ("", 1) if there is none.
    """
    latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
    if latest.point is None or latest.row.status == "finished":
        return "", 1
    return (yield from run.in_flight(latest))


def take_over(
    run: Run, request: ResumeRequest, latest: RunSnapshot, nonces: Callable[[], str]
) -> Routine[Token | None]:
    """Take the run from a live owner, so that it stands still; return None if its journal has grown meanwhile.

    Afterwards this store object owns the run, and no verb holds it: whoever goes on with it claims it again.
    """
    now = format_time(run.options.clock.time())
    claim = make_claim(
        run.run_id, run.options, latest.row, latest.newest, nonces(), request, latest.newest,
        now=now, reason="taken over by request",
    )._replace(takeover=True)  # fmt: skip
    claimed: Claimed = yield from journal.take(run.store, "claim", claim, claim.epoch, as_before(latest.row))
    if claimed.outcome != "claimed":
        return None
    assert claimed.token is not None
    run.journal.token = claimed.token
    yield from ask(run.store, "abandon", claimed.token)
    return claimed.token


# -- Amendments: `state_override` or `update` changes a recorded state before a run goes on --------
#
# This module makes and checks the amendment, and writes nothing: whoever takes the run records it in the owner record.


def amended(
    run: Run, flow: GraphFlow | None, codec: StateCodec, data: bytes, node_id: str | None, where: str
) -> Routine[Amendment | None]:
    """Amend the state in `data`, recorded at `node_id`, as the call's options say; return None if they say nothing.

    `flow` is the graph of that state, None for the result of an item. Errors of the override or of a reducer pass
    through. Raises `StateTypeError` or `SerializeStateError` for an amended state that is refused; `where` names the
    run in their texts. Raises `OptionError` for an `update` of a state that takes no parts.
    """
    override, part = run.options.state_override, run.options.update
    if override is not None:
        state = yield Call(override, (codec.decode(data),), None, iscoroutinefunction(override))
    elif part is None:
        return None
    if part is not None and (flow is None or not flow.takes_parts):
        what = (
            "no graph's state" if flow is None else f"the state of graph {flow.name!r}, whose nodes return whole states"
        )
        raise OptionError(
            f"update= of {where} is for {what}: give state_override=, or let nodes return parts with Graph(..., partial=True)",
            option="update",
            node_id=node_id,
        )
    updates: bytes | None = None
    try:
        if part is not None and flow is not None:
            state = flow.taken_up(codec.decode(data), part)
            if flow.update_codec is not None:
                given = Part(part) if isinstance(part, Mapping) else Whole(part)
                updates = _encoded(run, flow.updates(given) or {}, flow.update_codec)
        encoded = _encoded(run, state, codec)
    except (StateTypeError, SerializeStateError) as exc:
        # The override may have changed its argument in place, so the state is decoded anew.
        exc.run_id, exc.node_id, exc.state = run.run_id, node_id, codec.decode(data)
        if isinstance(exc, StateTypeError):
            exc.op = "override"
        what, act = "what state_override gave", "return a state of the declared type"
        if part is not None:
            what, act = "what update= makes of the state", "give some of its fields, with values of the declared types"
        place(exc, f"{what} for {where} is refused", act)
        raise
    return Amendment(state if part is None else codec.decode(encoded), encoded, updates)


def _encoded(run: Run, value: Any, codec: StateCodec) -> bytes:
    encoded = run.journal.encode(value, codec)
    if isinstance(encoded, SerializeStateError):
        raise encoded
    return encoded


def check_branch(
    run: Run,
    flow: GraphFlow,
    since: JournalHistory,
    entry: StepRecord,
    point: Record,
    data: bytes,
    amendment: Amendment,
) -> None:
    """Raise `OptionError` if the join could not derive what an amended state of a branch adds to that before the fork.

    `entry` is the amended checkpoint, of a node of `flow`; `point` is the record that the run's own graph had come to,
    with its state in `data`.
    """
    around = since.fork_around(entry, point)
    if around is None or flow.update_codec is None or amendment.updates is not None:
        return
    segment, began = around
    fork_id = segment.fork
    fork = flow.splits.get(fork_id.rpartition("/")[2])
    if fork is None or fork.merge is not None:
        return
    decode = flow.codec.decode
    base = decode(data if began is None else since.state_of(began))
    others = since.beside(segment, fork.branches, point.sequence)
    # A field that only one branch changed needs no reducer: the join takes its value as it is.
    reduced = {name for other in others for name in flow.replaced(base, decode(since.state_of(other)))}
    changed = flow.replaced(decode(since.state_of(entry)), amendment.state)
    for name in flow.untold(fork, base, amendment.state, [name for name in changed if name in reduced]):
        raise OptionError(
            f"state_override changed field {name!r} in a branch of the fork after node {fork_id!r} of run {run.run_id!r}, and "
            f"its reducer does not tell what that adds to the value before the fork: give what is to be reduced instead, as "
            f"update={{{name!r}: ...}}",
            option="state_override",
            node_id=entry.record.node_id,
        )


# Going on with a run: the routines behind resume, resume_from, retry, plan_resume and new turns.


REFUSED = "refused: "
"""The beginning of a run's reason after a worker gave it back because its code cannot go on with it."""
POLL = 0.25
"""The seconds between two looks at a run that another owner has."""


def resume(run: Run, request: ResumeRequest, nonces: Callable[[], str]) -> Routine[Any]:
    """Go on with a run that exists, as `request` says."""
    has_tried = False
    while True:
        latest = yield from _look(run)
        if latest is None:
            continue
        effective, latest = yield from _effective_request(run, request, latest)
        if effective.verb == CONTINUE and not has_tried and is_to_be_finished(run, latest.row):
            has_tried = True
            yield from _finish_turn(run, nonces)
            continue
        if latest.row.lease in {"live", "ours"}:
            token = yield from take_over(run, effective, latest, nonces)
            if token is None:
                continue
            return (yield from _after_fence(run, effective, latest.row, token, nonces))
        waiting = refused_by_status(run, effective, latest.row)
        if waiting is not None and not (isinstance(waiting, RunSuspended) and _asks_of_state(run)):
            raise waiting
        examined = yield from run.find(effective, latest)
        is_ending = _is_ending(run, latest.row)
        refusal = None if is_ending else run.refusal(effective, examined)
        if refusal is not None:
            raise refusal
        amendment = None if is_ending else (yield from _amended(run, effective, examined))
        if examined.info.already_completed:
            if amendment is None or (yield from take(run, effective, examined, amendment, nonces, is_end=True)):
                return (yield from run.stored(examined))
            continue
        if waiting is not None and amendment is None and not run.renames.given:
            raise waiting
        if (yield from take(run, effective, examined, amendment, nonces)):
            return (yield from _go(run, effective, examined, amendment, is_ending=is_ending))


def _effective_request(
    run: Run, request: ResumeRequest, latest: RunSnapshot
) -> Routine[tuple[ResumeRequest, RunSnapshot]]:
    """Return the request to carry out, and the snapshot of the run for it.

    A turn that is recorded already is resumed instead, unless it failed. If other turns followed it, the snapshot is that of
    its end.
    """
    upto = (yield from end_of_turn(run, latest)) if request.verb == CONTINUE else None
    row = latest.row
    if upto is None or (upto > latest.newest and row.status == "failed"):
        return request, latest
    if upto > latest.newest:
        return ResumeRequest(), latest
    ended: RunSnapshot = yield from ask(run.store, "latest", run.run_id, before=upto, with_nodes=True)
    finished = msgspec.structs.replace(ended.row, status="finished", reason="", waiting_for=(), cancel=None)
    return ResumeRequest(), ended._replace(row=finished)


def _finish_turn(run: Run, nonces: Callable[[], str]) -> Routine[None]:
    """Finish the turn before the one that begins. If that turn fails now, the new turn supersedes it.

    Raises `RunNotResumableError` if it waits, or if it was cancelled or blocked.
    """
    options = msgspec.structs.replace(run.options, if_exists="error", turn_id=None, revalidate=None)
    earlier = run.renewed(options)
    try:
        yield from resume(earlier, ResumeRequest(), nonces)
    except Exception as exc:
        run.status = earlier.status
        row: RunRow = yield from ask(run.store, "get_run", run.run_id)
        refusal = refused(run, row) if row.status in {"waiting", "cancelled", "blocked"} else None
        if refusal is not None:
            raise refusal from exc
        if row.status != "failed":
            raise
        run.status = "running"


def resume_claimed(run: Run, token: Token) -> Routine[Any]:
    """Go on with a run that a worker has claimed.

    If it is refused, give it back for other code, with the status that it had and the reason. If it can't be read, that
    counts as a crash: a worker tries again, a little later each time, until the run is blocked.
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
        is_ending = _is_ending(run, latest.row)
        if is_ending and (not run.is_replayed or is_unread(latest.point, latest.tail)):
            return (yield from run.hold(run.end(None, latest.row), None))
        examined = yield from _examine_claimed(run, latest, is_ending=is_ending)
    except GeneratorExit:
        raise
    except BaseException as exc:
        if not run.journal.is_released and not run.journal.is_dropped:
            if latest is not None and is_misfit(exc, latest):
                run.status = "blocked"
                giving_up: Routine[Any] = run.journal.give_up(Release("blocked", first_line(exc), blocked_by="input"))
            elif isinstance(exc, MilepostError) and not isinstance(exc, StoreError):
                giving_up = _give_back(run, latest, f"{REFUSED}{exc}")
            elif isinstance(exc, Exception):
                giving_up = run.journal.give_up(run.crash(f"it could not be read ({first_line(exc)})", free_crashes=0))
            elif run.is_stopped_by(exc) or not run.claims:
                giving_up = _give_back(run, latest, "the worker that had it was stopped")
            else:
                giving_up = run.journal.give_up(run.crash(f"its code raised {describe(exc)}"))
            yield from run.journal.let_go(giving_up)
        raise
    return (yield from _go(run, ResumeRequest(), examined, None, is_ending=is_ending, is_claimed=True))


def check_claimable(run: Run) -> Routine[None]:
    """Raise the error with which `resume_claimed` would give the run back for other code. Nothing is claimed or written."""
    run.options = without_amendments(run.options)
    latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id, with_nodes=not run.is_replayed)
    is_ending = _is_ending(run, latest.row)
    if is_ending and not run.is_replayed:
        return
    try:
        yield from _examine_claimed(run, latest, is_ending=is_ending)
    except MilepostError as exc:
        if not is_misfit(exc, latest):
            raise


def _examine_claimed(run: Run, latest: RunSnapshot, *, is_ending: bool) -> Routine[Any]:
    """Return where a worker goes on with a run. Raises an error if this code cannot."""
    request = ResumeRequest()
    examined = yield from run.find(request, latest)
    refusal = None if is_ending else run.refusal(request, examined)
    if refusal is not None:
        raise refusal
    if not is_ending and not run.is_replayed:
        yield from _revalidate(run, examined, None)
    return examined


def _recording_found(run: Run, body: Routine[Any]) -> Routine[Any]:
    """Record what a worker has learned of a run since its claim was written, its input and its renames, then go on."""
    journal = run.journal
    if run.completion is not None:
        state, fields = run.completion
        yield from journal.write((journal.make(OWNER, state=state, **{"verb": BEGIN, "from": 0, **fields}),))
    if run.renames.given:
        record = journal.make(OWNER, "", 1, verb="rename", renames=run.renames.as_fields(journal.sequence + 1))
        yield from journal.write((record,))
        run.renamed_at = record.sequence
    return (yield from body)


def give_back(run: Run, token: Token, reason: str) -> Routine[None]:
    """Give a claimed run back before any of its code runs, with the status that it had and the reason."""
    run.journal.token, run.journal.epoch = token, token.epoch

    def giving_back() -> Routine[None]:
        latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
        yield from _give_back(run, latest, reason)

    with contextlib.suppress(StoreError):
        yield from run.journal.let_go(giving_back())


def _go(
    run: Run,
    request: ResumeRequest,
    examined: Any,
    amendment: Amendment | None,
    *,
    is_ending: bool,
    is_claimed: bool = False,
) -> Routine[Any]:
    """Go on with a run that this call owns, or carry out its open cancel. `is_claimed`: a worker's claim took it."""
    run.info = examined.info
    run.scope.tag_names |= examined.row.tags.keys()
    body = run.end(examined, examined.row) if is_ending else run.go_on(request, examined, amendment)
    if is_claimed and not is_ending:
        body = _recording_found(run, body)
    return (yield from run.hold(body, examined.state if amendment is None else amendment.state))


def _give_back(run: Run, latest: RunSnapshot | None, reason: str) -> Routine[None]:
    """Release a claimed run that does not go on, with the status that it had before the claim."""
    claimed: list[Record] = yield from ask(run.store, "read", run.run_id, kinds=(OWNER,), newest=True, limit=1)
    was = "interrupted"
    with contextlib.suppress(CheckpointCorruptError):
        was = str(claimed[0].fields().get("was") or was) if claimed else was
    release = Release("interrupted" if was == "running" else was) if latest is None else as_before(latest.row, was)
    if release.status == "waiting" and not release.waiting_for:
        # A worker takes a run without open waits when its time is over: for other code it is still due.
        release = release._replace(wake_at=run.options.clock.time())
    yield from run.journal.give_up(release._replace(reason=reason))


def make_ready(run: Run, request: ResumeRequest, nonces: Callable[[], str], at: float = 0.0) -> Routine[None]:
    """Make a run that exists ready for a worker, which goes on with it as `request` says.

    Raises the refusals of `resume`.
    """
    while True:
        latest = yield from _look(run)
        if latest is None:
            continue
        effective, latest = yield from _effective_request(run, request, latest)
        row = latest.row
        is_parked = row.status == "waiting" and effective is not request
        if (row.status == "ready" and effective.verb != CONTINUE and not run.options.amends) or is_parked:
            return
        waiting = refused_by_status(run, effective, row)
        if waiting is not None and not (isinstance(waiting, RunSuspended) and _asks_of_state(run)):
            raise waiting
        examined = yield from run.find(effective, latest)
        refusal = run.refusal(effective, examined)
        if refusal is not None:
            raise refusal
        amendment = yield from _amended(run, effective, examined)
        if examined.info.already_completed:
            if amendment is None or (yield from take(run, effective, examined, amendment, nonces, is_end=True)):
                return
            continue
        if waiting is not None and amendment is None and not run.renames.given:
            raise waiting
        if (yield from take(run, effective, examined, amendment, nonces)):
            release = Release("ready", wake_at=at or None, degraded=row.degraded, missed=row.missed)
            if row.status in {"ready", "waiting"} and effective.verb != CONTINUE:
                wake_at = None if row.wake_at is None else row.wake_at.timestamp()
                release = release._replace(status=row.status, reason=row.reason, wake_at=at or wake_at)
                release = release._replace(waiting_for=row.waiting_for, signals=row.signals)
            yield from run.journal.let_go(_left(run, release))
            return


def _left(run: Run, release: Release) -> Routine[None]:
    """Release a run that was amended; as ready if a signal has come meanwhile."""
    if (yield from run.journal.give_up(release)) == "refused":
        yield from run.journal.give_up(Release("ready", degraded=release.degraded, missed=release.missed))


def plan(run: Run, request: ResumeRequest, *, ignore_owner: bool = False) -> Routine[ResumePlan]:
    """Return what `resume` would do, and the reason. Runs nothing and writes nothing.

    `ignore_owner`: a run that is executed is planned as if its owner had just gone.
    """
    refusal: MilepostError | None = None
    try:
        latest = yield from _look(run, is_planning=True, ignore_owner=ignore_owner)
        assert latest is not None
        refusal = refused_by_status(run, request, latest.row)
        examined = yield from run.find(request, latest)
        if _is_ending(run, latest.row):
            return _plan_of(
                examined.info, "roll_back", f"a cancel is open ({latest.row.cancel}): the run is ended", None
            )
        if refusal is None or isinstance(refusal, RunSuspended):
            # A refusal that no signal or time can end is reported rather than the wait.
            refusal = run.refusal(request, examined) or run.held_by() or refusal
        if isinstance(refusal, RunSuspended):
            return _plan_of(examined.info, "waiting", str(refusal), refusal)
        if refusal is not None:
            return _plan_of(examined.info, "refuse", str(refusal), refusal)
    except MilepostError as exc:
        if isinstance(exc, (StoreError, StoreClosedError)) or (
            isinstance(exc, NoCheckpointFoundError) and refusal is None
        ):
            raise
        refusal = exc if refusal is None or isinstance(refusal, RunSuspended) else refusal
        nothing = ResumeInfo(
            run_id=run.run_id, source="latest", from_node=None, sequence=-1, visit=0, next_node=None, verified=False,
            differences=refusal.differences if isinstance(refusal, FlowChangedError) else (),
        )  # fmt: skip
        return _plan_of(nothing, "refuse", str(refusal), refusal)
    if examined.info.already_completed:
        return _plan_of(examined.info, "finished", "the run has finished; its stored result is returned", None)
    return _plan_of(examined.info, "continue", examined.plan, None)


def _plan_of(info: ResumeInfo, verdict: Any, reason: str, error: MilepostError | None) -> ResumePlan:
    if error is not None and error.run_id is None:
        error.run_id = info.run_id  # errors that are raised get it from the driver
    return ResumePlan(
        **{name: getattr(info, name) for name in info.__dataclass_fields__},
        verdict=verdict,
        reason=reason,
        error=error,
    )


def _look(run: Run, *, is_planning: bool = False, ignore_owner: bool = False) -> Routine[RunSnapshot | None]:
    """Read the newest snapshot of the run. None after a wait for another owner: the caller has to look again."""
    run.completion = None
    latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id, with_nodes=not run.is_replayed)
    if latest.row.lease in {"live", "ours"} and ignore_owner:
        return latest._replace(row=msgspec.structs.replace(latest.row, lease="ended"))
    if latest.row.lease in {"live", "ours"} and not run.options.takeover:
        if run.options.on_locked == "wait" and not is_planning:
            yield from await_change(run)
            return None
        raise locked(run, latest.row)
    return latest


def _sleep(seconds: float) -> Routine[None]:
    yield Sleep(seconds)


def await_change(run: Run, wait: Callable[[float], Routine[None]] = _sleep) -> Routine[None]:
    """Wait before the next look at a run of another owner. Raises `RunTimeoutError` when the call's own time is over.

    `wait` waits for so many seconds, or for less.

    Raises `CheckpointCorruptError` if the run cannot go on because a record is damaged, unless the call may pass over it.
    If the caller is itself the code of a worker's run, that run's slot is lent out meanwhile: the other run may need
    it. Raises `AsyncNodeError` if that code would block the worker's loop, and the other run with it.
    """
    pause, limit, clock = POLL, run.options.run_timeout, run.options.clock
    if limit is not None:
        pause = min(POLL, limit - (clock.monotonic() - run.started_at))
        if pause <= 0:
            raise RunTimeoutError(
                f"run {run.run_id!r} was still another's after the run_timeout of {limit:g} s: nothing was changed; look "
                f"at who has it, or wait longer",
                timeout=limit,
            )
    if run.options.on_corrupt == "error":
        yield from _check_records(run)
    scope = getattr(current_context.get(None), "_scope", None)
    lend = None if scope is None else scope.lend
    if lend is not None and run.is_blocking and pause == POLL and _has_a_loop():
        raise AsyncNodeError(
            f"a coroutine waits for run {run.run_id!r} with a sync verb, which would block all runs of its worker: await the "
            f"verb's a-twin (await handle.aresult(), flow.arun(...)) instead"
        )
    with contextlib.nullcontext() if lend is None else lend():
        yield from wait(pause)


def _has_a_loop() -> bool:
    """Return whether a loop of asyncio runs in this thread, without importing asyncio."""
    asyncio = sys.modules.get("asyncio")
    try:
        return asyncio is not None and asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


def _check_records(run: Run) -> Routine[None]:
    """Check the records that a resume would begin with; a replay needs all of them, and each is checked once."""
    latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
    records = [*latest.tail] if latest.point is None else [latest.point, *latest.tail]
    if run.is_replayed:
        records += yield from ask(run.store, "read", run.run_id, after=run.checked)
        run.checked = latest.newest
    for record in records:
        run.store.seals.check(run.run_id, record)


def await_due(run: Run) -> Routine[None]:
    """Wait until a parked run may go on: its signal or its time has come, a cancel is open, or it waits no more."""
    while True:
        row: RunRow = yield from ask(run.store, "get_run", run.run_id)
        wake_at = row.wake_at
        is_due = wake_at is not None and wake_at.timestamp() <= run.store.clock.time()
        if is_due or row.status != "waiting" or row.cancel is not None:
            return
        yield from await_change(run)


def _after_fence(
    run: Run, request: ResumeRequest, before: RunRow, token: Token, nonces: Callable[[], str]
) -> Routine[Any]:
    """Go on with a run that was taken over. If it is refused, give it back with the status that it had."""
    try:
        return (yield from resume(run, request, nonces))
    except GeneratorExit:
        raise
    except BaseException as exc:
        if run.journal.token is token:
            release = as_before(before)._replace(reason=f"taken over, then refused: {describe(exc)}")
            yield from run.journal.let_go(run.journal.give_up(release))
        raise


def _is_ending(run: Run, row: RunRow) -> bool:
    """Return whether a cancel is open, so that the run can only be ended."""
    return row.cancel is not None and not run.options.reopen


# -- correct: user code ------------------------------------------------------------------------------------


def _amended(run: Run, request: ResumeRequest, examined: Any) -> Routine[Amendment | None]:
    """Return the amended state that the run goes on with; None if it goes on with the recorded one.

    The call's `revalidate` is asked about the state that the run will go on with.
    """
    if request.verb == CONTINUE:
        turn = Amendment(*open_turn(run, examined, request.state))
        yield from _revalidate(run, examined, turn)
        return turn
    amendment = None
    if run.options.amends:
        flow, where = cast("GraphFlow", run.flow), f"run {run.run_id!r}"
        amendment = yield from amended(run, flow, flow.codec, examined.data_seen, examined.info.from_node, where)
    if amendment is not None and examined.at is not None:
        entry = examined.since.entry_at(examined.at.sequence)
        check_branch(run, flow, examined.since, entry, examined.point, examined.data, amendment)
    yield from _revalidate(run, examined, amendment)
    if amendment is not None and examined.at is None:
        examined.state, examined.data = amendment.state, amendment.data
    return amendment


def _asks_of_state(run: Run) -> bool:
    """Return whether the call amends, revalidates or renames what is recorded. It may do so even while the run waits."""
    return run.options.amends or run.options.revalidate is not None or bool(run.options.rename)


def _revalidate(run: Run, examined: Any, amendment: Amendment | None) -> Routine[None]:
    """Ask `revalidate` whether the state, amended or not, is still good, and raise `StateValidationError` if not.

    It refuses by raising or returning an exception, or by returning False or a text. It gets a state of its own: a change
    of that in place would be in no record.
    """
    check = run.options.revalidate
    if check is None:
        return
    reason = ""
    cause: BaseException | None = None
    decode, data = cast("GraphFlow", run.flow).codec.decode, examined.data_seen if amendment is None else amendment.data
    try:
        answer = yield Call(check, (decode(data),), None, iscoroutinefunction(check))
    except Exception as exc:
        reason, cause = message_of(exc) or type(exc).__qualname__, exc
    else:
        if isinstance(answer, BaseException):
            reason, cause = message_of(answer) or type(answer).__qualname__, answer
        elif answer is False:
            reason = "revalidate returned False"
        elif isinstance(answer, str):
            reason = answer
    if reason:
        raise StateValidationError(
            f"the recorded state of run {run.run_id!r} was refused: {reason}; correct it with state_override=",
            node_id=examined.info.from_node,
            state=decode(data),
        ) from cause
