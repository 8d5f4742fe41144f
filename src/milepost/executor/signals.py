"""Messages that anybody may send to a run: a signal, or a request to end. Neither takes the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from milepost.errors import CheckpointCorruptError, SerializeStateError, SignalRefusedError, StateTypeError, shown
from milepost.executor.effects import Routine, ask
from milepost.executor.history_reader import read_history
from milepost.executor.journal import read_start
from milepost.executor.waits import MessageCodec, Waits, reply_with
from milepost.model.failure import place
from milepost.model.ranges import Ranges
from milepost.model.record import CHECKPOINT, ROLLBACK, Record
from milepost.store import RunRow, Signal, Store, check_id

SignalOutcome = Literal["taken", "kept", "duplicate"]
CancelOutcome = Literal["cancelled", "requested", "ended"]


FindWait = Callable[[str], Routine[Waits | None]]
"""A function that finds a wait as the flow declares it, by its wait id; None if the flow has none there."""


def signal(
    store: Store,
    run_id: str,
    name: str,
    payload: Any = None,
    *,
    signal_id: str | None = None,
    to: str | None = None,
    by: str | None = None,
    find_wait: FindWait | None = None,
) -> Routine[SignalOutcome]:
    """Deliver a signal, and return what happened to it.

    "taken": a visit waits for it. "kept": it is stored for a visit that will. "duplicate": its `signal_id` was sent
    before. An object of a class with fields is sent as the plain JSON of its fields, in a list or dict too: a wait with
    that class in its `payload` type gives an object of it back, any other wait a dict.

    A payload for an open wait is checked: by the declared type, if `find_wait` finds the wait in the flow's code, and by
    the schema that the store has of it. Raises `SignalRefusedError` for one that does not fit, and nothing is stored. The
    run decides again, from its own record.
    """
    yield from check_key(store, run_id)
    data = None
    if payload is not None:
        try:
            data = MessageCodec.encode(payload)
        except (SerializeStateError, StateTypeError) as exc:
            exc.run_id = run_id
            place(exc, f"signal {name!r} of run {run_id!r} cannot be sent", "send what the codec carries")
            raise
    if find_wait is not None:
        yield from _check_payload(store, run_id, Signal(0, name, data, signal_id, to, 0.0), find_wait)
    outcome: SignalOutcome = yield from ask(
        store, "put_signal", run_id, name, data, signal_id=signal_id, to=to, **_who(by)
    )
    return outcome


def _check_payload(store: Store, run_id: str, signal: Signal, find_wait: FindWait) -> Routine[None]:
    row: RunRow = yield from ask(store, "get_run", run_id)
    now = store.clock.time()
    for wait in row.waiting_for:
        is_over = wait.wake_at is not None and wait.wake_at.timestamp() <= now
        if wait.signal == signal.name and signal.to in {None, wait.wait_id} and not is_over:
            break
    else:
        return
    work = yield from find_wait(wait.wait_id)
    refused = "" if work is None else reply_with(work, signal)[1]
    if not refused:
        return
    if signal.signal_id is not None:
        kept: list[Signal] = yield from ask(store, "signals", run_id)
        if any(other.signal_id == signal.signal_id for other in kept):
            return  # it was sent before, and the store says so
    raise SignalRefusedError(
        f"{refused}: run {run_id!r} waits on at {wait.wait_id!r}, send what it waits for",
        run_id=run_id,
        wait_id=wait.wait_id,
    )


def cancel(store: Store, run_id: str, reason: str = "", by: str | None = None) -> Routine[CancelOutcome]:
    """Ask a run to end, and return what happened.

    "cancelled": nobody executed it, and it has ended now. "requested": its owner has to end it. "ended": it had ended
    before. A workflow with rollbacks that are due is not ended here: the cancel is requested, and whoever takes the run
    next, a worker or a resume, rolls its steps back and ends it.
    """
    check_reason(reason)
    yield from check_key(store, run_id)
    row: RunRow = yield from ask(store, "get_run", run_id)
    upto: int | None = row.sequence
    if (yield from _has_rollbacks(store, run_id, row.live)):
        upto = None
    outcome: CancelOutcome = yield from ask(store, "request_cancel", run_id, reason, upto, **_who(by))
    return outcome


def check_reason(reason: Any) -> None:
    """Raise TypeError unless the reason of a cancel is a str."""
    if not isinstance(reason, str):
        raise TypeError(f"the reason of a cancel must be a str, not {shown(reason)}: leave it out, or give a text")


def _who(by: str | None) -> dict[str, str]:
    """Return the argument `by` of a store's verb, if it is given: a store of a user may not have it."""
    return {} if by is None else {"by": check_id(by, "by")}


def check_key(store: Store, run_id: str) -> Routine[None]:
    """Raise an error for a run whose key this store does not have.

    The run cannot be read here, and readers with the key would refuse a record that is written without it.
    """
    newest: list[Record] = yield from ask(store, "read", run_id, newest=True, limit=1)
    for record in newest:
        store.seals.check_key(run_id, record)


def _has_rollbacks(store: Store, run_id: str, live: Ranges) -> Routine[bool]:
    """Return whether a step that succeeded is to be rolled back.

    True as well for a record that cannot be read: it may be such a step, and only a replay can find out.
    """
    try:
        begun = yield from read_start(store, run_id)
        if begun is None or begun.fields().get("front") != "workflow":
            return False
        records: list[Record] = yield from ask(store, "read", run_id, kinds=(CHECKPOINT, ROLLBACK))
        return bool(read_history(records, live).rollbacks_due)
    except CheckpointCorruptError:
        return True
