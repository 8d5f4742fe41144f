"""What anybody may send to a run: a signal, or the wish that it ends. Neither takes the run."""

from __future__ import annotations

from typing import Any, Literal

from milepost.errors import CheckpointCorruptError, SerializeStateError, StateTypeError
from milepost.executor.checks import is_live
from milepost.executor.effects import Routine
from milepost.executor.journal import ask
from milepost.executor.waits import codec_for
from milepost.model.failure import place
from milepost.model.record import CHECKPOINT, ROLLBACK, START, Record
from milepost.store import Ranges, RunRow, Store

__all__ = ["cancel", "signal"]


def signal(
    store: Store, run_id: str, name: str, payload: Any = None, *, signal_id: str | None = None, to: str | None = None
) -> Routine[Literal["taken", "kept", "duplicate"]]:
    """Deliver a signal: taken by a visit that waits for it, kept for one that will, or a duplicate of its `signal_id`.

    An object of a class with fields is sent as the plain JSON of its fields: a wait with that class as its `payload` type
    gives it back, any other one a dict.
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
    told: Literal["taken", "kept", "duplicate"]
    told = yield from ask(store, "put_signal", run_id, name, data, signal_id=signal_id, to=to)
    return told


def cancel(store: Store, run_id: str, reason: str = "") -> Routine[Literal["cancelled", "requested", "ended"]]:
    """Ask a run to end: cancelled at once where nobody executes it, requested of its owner, or it had ended.

    A workflow with rollbacks that are due is not ended here: the cancel is requested, and whoever takes the run next, a
    worker or a resume, undoes and ends it.
    """
    yield from _check_key(store, run_id)
    row: RunRow = yield from ask(store, "get_run", run_id)
    upto: int | None = row.info.sequence
    if (yield from _has_rollbacks(store, run_id, row.live)):
        upto = None
    told: Literal["cancelled", "requested", "ended"]
    told = yield from ask(store, "request_cancel", run_id, reason, upto)
    return told


def _check_key(store: Store, run_id: str) -> Routine[None]:
    """Refuse to write to a run of which this store has no key: it can't be read here, and who has the key would refuse it."""
    newest: list[Record] = yield from ask(store, "read", run_id, newest=True, limit=1)
    for record in newest:
        store.seals.check_key(run_id, record)


def _has_rollbacks(store: Store, run_id: str, live: Ranges) -> Routine[bool]:
    """Whether a step that succeeded is to be undone. What cannot be read may be one: only a replay can tell."""
    begun: list[Record] = yield from ask(store, "read", run_id, limit=1, kinds=(START,))
    try:
        if not begun or begun[0].fields().get("front") != "workflow":
            return False
        records: list[Record] = yield from ask(store, "read", run_id, kinds=(CHECKPOINT, ROLLBACK))
        still: set[str] = set()
        for record in records:
            if not is_live(record.sequence, live):
                continue
            if record.kind == ROLLBACK or not record.fields().get("rollback"):
                still.discard(record.node_id)
            else:
                still.add(record.node_id)
    except CheckpointCorruptError:
        return True
    return bool(still)
