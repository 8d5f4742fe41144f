"""Messages that anybody may send to a run: a signal, or a request to end. Neither takes the run."""

from __future__ import annotations

from typing import Any, Literal

from milepost.errors import CheckpointCorruptError, SerializeStateError, StateTypeError
from milepost.executor.effects import Routine
from milepost.executor.history import read_history
from milepost.executor.journal import ask
from milepost.executor.waits import codec_for
from milepost.model.failure import place
from milepost.model.ranges import Ranges
from milepost.model.record import CHECKPOINT, ROLLBACK, START, Record
from milepost.store import RunRow, Store

SignalOutcome = Literal["taken", "kept", "duplicate"]
CancelOutcome = Literal["cancelled", "requested", "ended"]


def signal(
    store: Store, run_id: str, name: str, payload: Any = None, *, signal_id: str | None = None, to: str | None = None
) -> Routine[SignalOutcome]:
    """Deliver a signal, and return what happened to it.

    "taken": a visit waits for it. "kept": it is stored for a visit that will. "duplicate": its `signal_id` was sent
    before. An object of a class with fields is sent as the plain JSON of its fields: a wait with that class as its
    `payload` type gives an object of it back, any other wait a dict.
    """
    yield from _check_key(store, run_id)
    data = None
    if payload is not None:
        try:
            data = codec_for(payload).encode(payload, root="payload")
        except (SerializeStateError, StateTypeError) as exc:
            exc.run_id = run_id
            place(exc, f"signal {name!r} of run {run_id!r} cannot be sent", "send what the codec carries")
            raise
    outcome: SignalOutcome = yield from ask(store, "put_signal", run_id, name, data, signal_id=signal_id, to=to)
    return outcome


def cancel(store: Store, run_id: str, reason: str = "") -> Routine[CancelOutcome]:
    """Ask a run to end, and return what happened.

    "cancelled": nobody executed it, and it has ended now. "requested": its owner has to end it. "ended": it had ended
    before. A workflow with rollbacks that are due is not ended here: the cancel is requested, and whoever takes the run
    next, a worker or a resume, rolls its steps back and ends it.
    """
    yield from _check_key(store, run_id)
    row: RunRow = yield from ask(store, "get_run", run_id)
    upto: int | None = row.info.sequence
    if (yield from _has_rollbacks(store, run_id, row.live)):
        upto = None
    outcome: CancelOutcome = yield from ask(store, "request_cancel", run_id, reason, upto)
    return outcome


def _check_key(store: Store, run_id: str) -> Routine[None]:
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
    begun: list[Record] = yield from ask(store, "read", run_id, limit=1, kinds=(START,))
    try:
        if not begun or begun[0].fields().get("front") != "workflow":
            return False
        records: list[Record] = yield from ask(store, "read", run_id, kinds=(CHECKPOINT, ROLLBACK))
        return bool(read_history(records, live).rollbacks_due)
    except CheckpointCorruptError:
        return True
