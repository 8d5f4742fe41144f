"""Where a run begins: the routine behind run, and what becomes of a run that exists.

The start record is written before anything runs, and only its own failure is always fatal. `if_exists` then says
whether a run that is there is refused, gone on with, or waited for; only going on changes anything.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from milepost.effects import Routine
from milepost.errors import (
    CheckpointWriteError,
    InputMismatchError,
    MilepostError,
    NodeError,
    RunCancelled,
    RunExistsError,
    RunNotResumableError,
    SerializeStateError,
    StateTypeError,
    StoreError,
)
from milepost.events import RunResult
from milepost.examining import Found, Wish, check_flow, examine, not_resumable
from milepost.failures import describe, place, recorded_error
from milepost.journal import ask
from milepost.record import FAILURE, FINISH, START, Record, make_record
from milepost.resuming import await_change, resume, stored
from milepost.runtime import Run
from milepost.store import ENDED, Latest, NewRun, RunRow

logger = logging.getLogger("milepost")

__all__ = ["start"]


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
        exc.run_id, exc.state = run.run_id, state
        place(exc, f"the input of run {run.run_id!r} cannot be recorded", "begin with a state of the declared type")
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
    is_told = False
    while True:
        latest: Latest = yield from ask(run.store, "latest", run.run_id)
        info = latest.row.info
        if latest.row.lease != "live" and latest.row.lease != "ours" and info.status not in ENDED and not is_told:
            is_told = True
            logger.warning(
                "run %r is %s and nobody executes it: this call waits until somebody resumes it, or its run_timeout",
                run.run_id,
                info.status,
                extra={"run_id": run.run_id},
            )
        if info.status == "finished":
            return (yield from stored(run, _examined(run, latest)))
        if info.status == "failed":
            error = _recorded_end(run, latest)
            with contextlib.suppress(MilepostError):
                # A last good state that cannot be had must not hide why the run failed.
                error.state = _examined(run, latest).state
            raise error
        if info.status == "cancelled":
            raise RunCancelled(f"run {run.run_id!r} was cancelled", run_id=run.run_id, reason=info.reason)
        if info.status == "blocked":
            raise not_resumable(run, info.status, info.reason, "pass reopen=True to resume()")
        yield from await_change(run)


def _examined(run: Run, latest: Latest) -> Found:
    return examine(run, latest, latest.point, latest.tail, Wish(), None)


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
    error = recorded_error(run.run_id, failure.fields(), failure.node_id)
    if isinstance(error, NodeError):
        error.visit = failure.visit
    return error
