"""The reason why a run does not move, in one sentence for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from milepost.model.ids import describe_owner
from milepost.store import LeaseState
from milepost.stores.base.fence import Row

if TYPE_CHECKING:
    from milepost.model.info import Wait

__all__ = ["why"]

PATIENCE = 60.0
"""Seconds for which a run may be ready before its reason says that no worker has taken its flow."""


def why(row: Row, state: LeaseState, now: float) -> str:
    """Describe why a run does not move, from its status, lease, waits, open cancel and the reason in its row.

    It is "" if there is nothing to say.
    """
    told = _situation(row, state, now)
    if row.cancel is not None:
        asked = f"a cancel is open{f' ({row.cancel})' if row.cancel else ''}"
        told = f"{told}; {asked}" if told else asked
    if row.reason and told:
        return f"{told} ({row.reason})"
    return told or row.reason


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
