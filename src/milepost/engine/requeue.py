"""Requeue: runs that exist are left to the workers by their ids alone, without the code of their flows.

The owner record of a requeue holds the verb with which the run goes on, and the ranges of the journal that count from
then on. They are found from the records. The worker that claims the run goes on by these records, and its code decides
whether it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from milepost.engine.authorize import Gate
from milepost.executor.checks import ResumeRequest, locked, not_resumable, refused_by_status
from milepost.executor.effects import Routine, ask
from milepost.executor.journal import Journal, read_start, take
from milepost.executor.resume import REFUSED, as_before, make_claim
from milepost.executor.signals import check_key
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import Record, format_time
from milepost.options import merge_options, start_time
from milepost.store import Claimed, Release, RunRow, RunSnapshot, Store, check_id, check_run_id
from milepost.workflows.replay import ranges_to_go_on

STANDING = ("failed", "interrupted", "blocked")
"""The statuses of runs that nobody goes on with by himself: `requeue_all` takes these unless it is told others."""
WAIT_OR_STOP = "wait for its end, or stop it"


def requeue(
    store: Store,
    run_id: str,
    gate: Gate,
    bound: Mapping[str, Any],
    nonces: Callable[[], str],
    *,
    retry: bool | None = None,
    reopen: bool = False,
    at: datetime | None = None,
    by: str | None = None,
) -> Routine[None]:
    """Leave a run to the workers; see `Engine.requeue`."""
    wake_at = start_time(at)
    if by is not None:
        check_id(by, "by")
    journal = Journal(store, check_run_id(run_id), merge_options(bound, {"reopen": reopen}))
    latest: RunSnapshot = yield from ask(store, "latest", run_id)
    gate.ask("requeue", run_id, latest.row.flow)
    yield from check_key(store, run_id)
    while not (yield from _leave(journal, latest, nonces, retry, wake_at, by)):
        latest = yield from ask(store, "latest", run_id)


def _leave(
    journal: Journal,
    latest: RunSnapshot,
    nonces: Callable[[], str],
    retry: bool | None,
    wake_at: float,
    by: str | None,
) -> Routine[bool]:
    """Leave the run to the workers. Return False if its journal has grown since `latest` was read."""
    store, row, options = journal.store, latest.row, journal.options
    if row.lease in {"live", "ours"}:
        raise locked(journal, row, WAIT_OR_STOP)
    if _is_taken_anyway(row, store.clock.time(), reopen=options.reopen):
        return True
    if row.status == "finished":
        raise not_resumable(journal, row.status, row.reason, "nothing of it is left to do")
    is_retry = row.status == "failed" if retry is None else retry
    request = ResumeRequest("retry" if is_retry else "resume")
    refusal = refused_by_status(journal, request, row)
    if refusal is not None:
        raise refusal
    live, again = yield from _ranges(journal, request, latest)
    claim = make_claim(
        journal.run_id, options, row, latest.newest, nonces(), request,
        latest.newest if latest.point is None else latest.point.sequence,
        now=format_time(options.clock.time()), fields={"reopen": options.reopen or None, "by": by}, live=live, again=again,
        reason="it was left to the workers",
    )  # fmt: skip
    journal.sequence, journal.epoch = latest.newest, claim.epoch
    claimed: Claimed = yield from take(store, "claim", claim, claim.epoch, as_before(row))
    if claimed.outcome == "locked":
        raise locked(journal, claimed.row, WAIT_OR_STOP)
    if claimed.outcome == "blocked":
        raise not_resumable(journal, "blocked", claimed.row.reason, "mend the cause, then pass reopen=True")
    if claimed.outcome == "moved":
        return False
    journal.token = claimed.token
    release = Release("ready", wake_at=wake_at or None, degraded=row.degraded, missed=row.missed)
    yield from journal.let_go(journal.give_up(release))
    return True


def _is_taken_anyway(row: RunRow, now: float, *, reopen: bool) -> bool:
    """Return whether a worker takes a run without an owner anyway, at once or at its time."""
    if row.cancel is not None:
        return not reopen
    if row.status == "ready" and REFUSED in row.reason:
        return False  # workers leave it alone until its row changes
    is_due = row.status == "waiting" and row.wake_at is not None and row.wake_at.timestamp() <= now
    return is_due or row.status in {"ready", "running", "dead"}


def _ranges(journal: Journal, request: ResumeRequest, latest: RunSnapshot) -> Routine[tuple[Ranges | None, str | None]]:
    """Do `ranges_to_go_on` for a run of a workflow. A graph goes on at its newest checkpoint: all of its records count."""
    store, run_id = journal.store, journal.run_id
    begun = yield from read_start(store, run_id)
    if begun is None or begun.fields().get("front") != "workflow":
        return None, None
    records: list[Record] = yield from ask(store, "read", run_id, before=latest.newest + 1)
    records = [record for record in records if not record.is_foreign]
    for record in records:
        if is_live(record.sequence, latest.row.live):
            store.seals.check(run_id, record)
    return ranges_to_go_on(request, latest, records, reopen=journal.options.reopen)
