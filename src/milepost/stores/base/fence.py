"""The fence: appends count only with a current token. Every decision about it, without any I/O.

A store reads a `Row`, asks one of these functions for the decision, and writes the row that comes back, all in one
atomic write. So every store decides alike, and a store is only a place for rows and records.

Time, process names and the tokens at hand are passed in. Nothing here changes a value that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from milepost.model.ids import describe_owner
from milepost.model.ranges import Ranges
from milepost.store import (
    ENDED,
    GOES_ON,
    Append,
    Claim,
    LeaseState,
    Release,
    Token,
    cancel_text,
    read_cancel,
    shortened,
)

if TYPE_CHECKING:
    from milepost.model.info import Wait

# -- The fence: every decision about who owns a run and how its row changes, without any I/O -------


_UNCANCELLABLE = frozenset({"finished", "cancelled"})


class Row(msgspec.Struct, frozen=True):
    """The row of one run. Times are POSIX seconds; without an owner `owner` and `nonce` are both empty."""

    run_id: str
    flow: str
    status: str
    created_at: float
    updated_at: float
    epoch: int
    nonce: str = ""
    owner: str = ""
    lease: float = 0.0
    """The length of the lease in seconds, from one renewal to the next."""
    lease_until: float | None = None
    reason: str = ""
    wake_at: float | None = None
    waiting: tuple[Wait, ...] = ()
    """The waits that the run was parked for and that no signal has served yet."""
    crash_count: int = 0
    crashed_at: int = -1
    """The newest checkpoint's sequence when a crash was last counted; see `crashes`."""
    signals: int = 0
    cancel: str | None = None
    degraded: bool = False
    missed: tuple[str, ...] = ()
    tags: Mapping[str, str] = {}
    live: Ranges = ()
    worked: bool = False
    """True if a worker was the last to take the run."""
    sequence: int = 0
    """The number of the newest record when the row was last written. The journal may be longer, never shorter."""
    blocked_by: str = ""
    """Why a blocked run is blocked: "crashes", "bug", "input" or "value"; "" for every other one."""
    seal: str = ""
    """The proof of how the run stands and of what people are told; "" in a store without keys."""
    life: str = ""
    """The random id of the run's life, which each of its records names; "" for a run of an older release."""


class TokenState(NamedTuple):
    """A token that this store object handed out, and whether the verb that held it has ended without releasing the run."""

    token: Token
    is_abandoned: bool = False


class Ruling(NamedTuple):
    """A decision. `row` is the row to write instead of the old one, None if nothing changes."""

    outcome: Literal["claimed", "locked", "moved", "blocked"]
    row: Row | None = None


def is_current(row: Row, token: Token) -> bool:
    """Return whether writes with `token` count: this process got it, and nobody has owned the run since."""
    return bool(row.nonce) and row.epoch == token.epoch and row.nonce == token.nonce and token.is_ours


def crashes(row: Row, newest_checkpoint: int) -> int:
    """Return the number of crashes in a row without progress. A newer checkpoint sets the count back to 0."""
    return 0 if newest_checkpoint > row.crashed_at else row.crash_count


def lease_state(row: Row, now: float, held: TokenState | None, is_gone: Callable[[str], bool]) -> LeaseState:
    """Decide who owns the run, as far as one can know; see `LeaseState`. `held` is this store object's token of the
    run.

    A lease ends with its time or with its owner's process. It also ends if its end is further ahead than the lease is
    long: then the clock was set back, and nobody knows when it would end.
    """
    if not row.owner:
        return "free"
    is_held = held is not None and is_current(row, held.token)
    if is_held and held is not None and held.is_abandoned:
        return "abandoned"
    if row.lease_until is not None and not now < row.lease_until <= now + row.lease:
        return "ended"
    if is_held:
        return "ours"
    return "ended" if is_gone(row.owner) else "live"


def shown_status(row: Row, state: LeaseState) -> str:
    """Return the status as people see it: "dead" for a running run whose lease ended without a release."""
    return "dead" if row.status == "running" and state == "ended" else row.status


def claim(
    row: Row,
    request: Claim,
    *,
    state: LeaseState,
    newest: int,
    newest_checkpoint: int,
    now: float,
    owner: str,
    until: float | None,
    worked: bool = False,
) -> Ruling:
    """Decide about a claim. "claimed": the row has the new owner. "blocked" with a row: this crash reached
    `max_crashes`.

    A worker (`worked`) also counts an owner that could not release the run, so that nobody takes it in vain for ever.
    """
    if state in {"live", "ours"} and not request.takeover:
        return Ruling("locked")
    is_crash = state == "ended"
    if request.epoch != row.epoch + 1 or request.sequence != newest or request.crashed != is_crash:
        return Ruling("moved")
    if row.status == "blocked" and row.blocked_by not in GOES_ON and not request.reopen and row.cancel is None:
        return Ruling("blocked")
    count = 0 if request.reopen else crashes(row, newest_checkpoint)
    if is_crash or (worked and state == "abandoned"):
        count += 1
        if request.max_crashes is not None and count >= request.max_crashes:
            return Ruling("blocked", _blocked(row, count, newest, newest_checkpoint, now))
    new = replace(
        row,
        status="running",
        blocked_by="",
        reason="",
        updated_at=now,
        epoch=request.epoch,
        nonce=request.nonce,
        owner=owner,
        lease=request.lease,
        lease_until=until,
        wake_at=None,
        crash_count=count,
        crashed_at=newest_checkpoint,
        cancel=None if request.reopen else row.cancel,
        live=row.live if request.live is None else request.live,
        worked=worked,
        sequence=request.record.sequence,
    )
    return Ruling("claimed", new)


def _blocked(row: Row, count: int, newest: int, newest_checkpoint: int, now: float) -> Row:
    reason = (
        f"{count} owner{'s in a row' if count > 1 else ''} died, could not release it, or blocked the process for longer than "
        f"the lease, without a checkpoint in between: find out why, then resume it with reopen=True"
    )
    if row.cancel is not None:
        reason += "; a cancel was open and was not carried out"
    return replace(
        give_up(row, now),
        status="blocked",
        blocked_by="crashes",
        reason=reason,
        crash_count=count,
        crashed_at=newest_checkpoint,
        cancel=None,
        sequence=newest,
    )


def judge(row: Row | None, append: Append, newest: int) -> Literal["written", "lost", "taken", "gap", "refused"]:
    """Decide about `append`, for a journal whose newest record is `newest`."""
    if row is None or not is_current(row, append.token):
        return "lost"
    for expected, record in enumerate(append.records, newest + 1):
        if record.sequence != expected:
            return "taken" if record.sequence < expected else "gap"
    return "refused" if append.release is not None and refusal(row, append.release) else "written"


def give_up(row: Row, now: float) -> Row:
    """Return the row without an owner, otherwise unchanged."""
    return replace(row, nonce="", owner="", lease=0.0, lease_until=None, updated_at=now)


def refusal(row: Row, release: Release) -> bool:
    """Return whether `release` comes too late: a cancel is open, or a signal has arrived that its owner has not seen."""
    if release.status == "finished":
        return row.cancel is not None
    return release.status == "waiting" and release.signals is not None and row.signals != release.signals


def intruded(row: Row, newest: int, now: float) -> Row:
    """Return the row after a write from outside to its journal. The new epoch fences off an owner that was frozen."""
    status = "interrupted" if row.status == "running" else row.status
    return replace(give_up(row, now), epoch=row.epoch + 1, status=status, worked=False, sequence=newest)


def end_ownership(row: Row, release: Release, *, newest: int, now: float) -> Row:
    """Return the row after `release`. The end of a run closes a cancel that was open."""
    crashed = row if release.crash_count is None else replace(row, crash_count=release.crash_count, crashed_at=newest)
    return replace(
        give_up(crashed, now),
        status=release.status,
        blocked_by=release.blocked_by,
        reason=shortened(release.reason),
        wake_at=release.wake_at,
        waiting=release.waiting_for,
        degraded=release.degraded,
        missed=release.missed,
        cancel=None if release.status in ENDED else row.cancel,
        sequence=newest,
    )


def renewed(row: Row, until: float | None, now: float) -> Row:
    """Return the row with its lease extended to `until`."""
    return replace(row, lease_until=until, updated_at=now)


def tagged(row: Row, tags: Mapping[str, str], *, newest: int, now: float) -> Row:
    """Return the row with `tags` added. `newest` is the newest record of its journal."""
    return replace(row, tags={**row.tags, **tags}, sequence=newest, updated_at=now)


def place_signal(row: Row, name: str, to: str | None, now: float) -> tuple[Wait | None, Row]:
    """Find the wait that a signal is for, None if there is none, and return the row with the signal.

    A wait serves one signal, and is closed when its time is over. A waiting run becomes ready only if a
    wait was open for the signal.
    """
    match = next(
        (
            wait
            for wait in row.waiting
            if wait.signal == name
            and (to is None or wait.wait_id == to)
            and (wait.wake_at is None or wait.wake_at.timestamp() > now)
        ),
        None,
    )
    is_woken = match is not None and row.status == "waiting"
    new = replace(
        row,
        signals=row.signals + 1,
        updated_at=now,
        waiting=tuple(wait for wait in row.waiting if wait is not match),
        status="ready" if is_woken else row.status,
        wake_at=None if is_woken else row.wake_at,
    )
    return match, new


def cancel(
    row: Row, reason: str, sequence: int | None, by: str | None, *, state: LeaseState, newest: int, now: float
) -> tuple[Literal["cancelled", "requested", "ended"], Row | None]:
    """Decide about a request to cancel. "cancelled": the row has a new epoch, and needs a finish record at `newest + 1`."""
    if row.status in _UNCANCELLABLE:
        return "ended", None
    if state in {"live", "ours"} or sequence is None or newest > sequence:
        return "requested", replace(
            row, cancel=cancel_text(reason, by) if row.cancel is None else row.cancel, updated_at=now
        )
    new = replace(
        give_up(row, now),
        status="cancelled",
        reason=reason,
        epoch=row.epoch + 1,
        wake_at=None,
        waiting=(),
        cancel=None,
        sequence=newest + 1,
    )
    return "cancelled", new


def is_due(row: Row, state: LeaseState, now: float) -> bool:
    """Return whether a worker may go on with the run."""
    if state in {"live", "ours"} or row.status in _UNCANCELLABLE:
        return False
    if row.cancel is not None:
        return True
    if row.status == "ready":
        return row.wake_at is None or row.wake_at <= now
    if row.status == "waiting":
        return row.wake_at is not None and row.wake_at <= now
    if row.status == "interrupted":
        return row.worked
    return row.status == "running"


# -- The reason why a run does not move, in one sentence for people --------------------------------


PATIENCE = 60.0
"""Seconds for which a run may be ready before its reason says that no worker has taken its flow."""


def why(row: Row, state: LeaseState, now: float) -> str:
    """Describe why a run does not move, from its status, lease, waits, open cancel and the reason in its row.

    It is "" if there is nothing to say.
    """
    reason = _situation(row, state, now)
    if row.cancel is not None:
        told, _ = read_cancel(row.cancel)
        asked = f"a cancel is open{f' ({told})' if told else ''}"
        reason = f"{reason}; {asked}" if reason else asked
    if row.reason and reason:
        return f"{reason} ({row.reason})"
    return reason or row.reason


def _situation(row: Row, state: LeaseState, now: float) -> str:
    if row.status == "running":
        return _held(row, state, now)
    if row.status == "waiting":
        return f"waits for {', '.join(map(_wait, row.waiting)) or _time(row.wake_at)}"
    if row.status == "ready":
        if row.wake_at is not None and row.wake_at > now:
            return f"starts at {_time(row.wake_at)}"
        since = max(row.updated_at, row.wake_at or 0.0)
        ignored = f"; no worker has taken flow {row.flow!r}" if now - since >= PATIENCE else ""
        return f"ready since {_time(since)}{ignored}"
    return ""


def _held(row: Row, state: LeaseState, now: float) -> str:
    owner = describe_owner(row.owner)
    if state == "abandoned":
        return f"{owner} could not release it when its verb ended: it is tried again, or resume it there"
    if state == "ended":
        over = (
            "" if row.lease_until is None or row.lease_until > now else f"; its lease ended at {_time(row.lease_until)}"
        )
        times = f", after {row.crash_count} crashes before" if row.crash_count else ""
        return f"{owner} stopped without a word{times}{over}: a worker or a resume goes on with it"
    until = "" if row.lease_until is None else f", lease until {_time(row.lease_until)}"
    return f"executed by {owner}{until}"


def _wait(wait: Wait) -> str:
    until = "" if wait.wake_at is None else f" until {_time(wait.wake_at.timestamp())}"
    if wait.signal is None:
        return f"its time at {wait.wait_id!r}{until}"
    prompt = f" ({wait.prompt})" if isinstance(wait.prompt, str) and wait.prompt else ""
    return f"signal {wait.signal!r} at {wait.wait_id!r}{prompt}{until}"


def _time(seconds: float | None) -> str:
    return "its time" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
