"""Taking a run that exists: its owner record fences off every owner before.

One write changes the owner, records the override and says which records count from now on. `take` writes it when all
checks have passed; `take_over` writes it first, to take the run from an owner that is alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from milepost.executor import journal
from milepost.executor.checks import Amendment, ResumeRequest, locked, not_resumable
from milepost.executor.continuation import CONTINUE
from milepost.executor.effects import Routine
from milepost.executor.journal import ask
from milepost.executor.run import Run
from milepost.model.info import RunInfo
from milepost.model.record import FINISH, OWNER, Record, format_time, make_record
from milepost.store import Claim, Claimed, Release, RunSnapshot, Token

__all__ = ["as_before", "take", "take_over"]


def take(
    run: Run,
    wish: ResumeRequest,
    found: Any,
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
    row, options = found.row, run.options
    crashed = row.lease == "ended"
    epoch, sequence = row.epoch + 1, found.newest + 1
    live = (*found.live, ("", sequence, None)) if found.live is not None else None
    entered = yield from _entered(run) if found.live is not None else _nothing()
    now = format_time(options.clock.time())
    inside: Record | None = getattr(found, "at", None)
    reroute: bool | None = getattr(found, "reroute", None)
    updates = None
    if amendment is not None and amendment.updates is not None and inside is not None:
        updates = msgspec.Raw(amendment.updates)
    record = make_record(
        run.run_id,
        sequence,
        now,
        OWNER,
        *entered,
        state=None if amendment is None else amendment.data,
        fields={
            "verb": wish.verb,
            "from": found.point.sequence,
            "entry": run.flow.entry if wish.verb == CONTINUE else None,
            "overrides": inside.sequence if inside is not None and (amendment or reroute is not None) else None,
            "updates": updates,
            "reroute": reroute,
            "epoch": epoch,
            "crashed": crashed or None,
            "live": None if live is None else [list(r) for r in live],
            "reason": "the owner before it was gone" if crashed else None,
            "renames": run.renames.told(sequence),
        },
        compressing=bool(options.compress),
    )
    finish = None
    if is_end:
        end = {"status": "finished", "result": found.point.sequence, "epoch": epoch}
        finish = make_record(run.run_id, sequence + 1, now, FINISH, fields=end)
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
        finish=finish,
    )
    claimed: Claimed = yield from journal.take(run.store, "claim", claim, epoch, as_before(row.info))
    if claimed.outcome == "blocked":
        raise not_resumable(run, "blocked", claimed.row.info.reason, "mend the cause, then pass reopen=True")
    if claimed.outcome == "locked":
        if options.on_locked == "wait":
            return False
        raise locked(run, claimed.row)
    if claimed.outcome == "moved":
        return False
    run.journal.token = claimed.token
    run.journal.epoch, run.journal.sequence = epoch, sequence
    if run.renames:
        run.renamed_at = sequence
    if wish.verb == CONTINUE:
        # The first visit of the turn follows this record, now and after a crash.
        found.fields = {**found.fields, "timestamp": now}
    if crashed and live is None:
        found.spent.attempts += 1
    return True


def as_before(info: RunInfo, was: str | None = None) -> Release:
    """Make the release that gives a run back as it was before it was taken, by `info`; `was`, if given, is its status."""
    status = info.status if was is None else was
    ends = [wait.wake_at.timestamp() for wait in info.waiting_for if wait.wake_at is not None]
    return Release(
        "interrupted" if status in {"running", "dead"} else status,
        wake_at=min(ends, default=None) if status == "waiting" else None,
        waiting_for=info.waiting_for,
        degraded=info.degraded,
        missed=info.missed,
    )


def _nothing() -> Routine[tuple[str, int]]:
    yield from ()
    return ("", 1)


def _entered(run: Run) -> Routine[tuple[str, int]]:
    """Return node and number of the visit that may have begun before it is superseded: its number is not used again.

    ("", 1) if there is none.
    """
    latest: RunSnapshot = yield from ask(run.store, "latest", run.run_id)
    if latest.point is None or latest.row.info.status == "finished":
        return "", 1
    return (yield from run.in_flight(latest))


def take_over(run: Run, wish: ResumeRequest, latest: RunSnapshot, nonces: Callable[[], str]) -> Routine[Token | None]:
    """Take the run from a live owner, so that it stands still; return None if its journal has grown meanwhile.

    Afterwards this store object owns the run, and no verb holds it: whoever goes on with it claims it again.
    """
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
    claimed: Claimed = yield from journal.take(run.store, "claim", claim, epoch, as_before(latest.row.info))
    if claimed.outcome != "claimed":
        return None
    assert claimed.token is not None
    run.journal.token = claimed.token
    yield from ask(run.store, "abandon", claimed.token)
    return claimed.token
