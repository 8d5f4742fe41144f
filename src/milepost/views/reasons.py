"""The reasons why a run does not move, each with its remedy, and what happens to it by itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from milepost.graph.status import Visit
from milepost.model.info import RunInfo
from milepost.store import ENDED
from milepost.views.status import RunView
from milepost.views.text import attempt_of, utc
from milepost.views.tree import parts_of

_ENDS = {
    "failed": ("it failed", "mend the cause, then retry"),
    "interrupted": ("it was interrupted", "go on"),
    "cancelled": ("it was cancelled", "reopen it"),
}
_CAUSES = {
    "crashes": ("its owners stopped {} times without a word", "find out what ends them, then reopen it"),
    "damage": ("a record is damaged", "milepost verify names it"),
    "bug": ("its code has a bug", "mend the code, then go on"),
    "input": ("its input does not fit the flow", "mend the flow, then go on"),
    "value": ("a value can't be recorded", "mend the code, then go on"),
}


class Reason(NamedTuple):
    """One reason why a run does not move, and what helps; "" if nothing has to be done."""

    text: str
    remedy: str


def reasons_of(view: RunView, now: datetime) -> list[Reason]:
    """Return why a run does not move, or who executes it; [] for one that has finished."""
    row, info = view.latest.row, view.latest.row.info
    if info.status == "finished":
        return []
    found = [] if row.cancel is None else [Reason("a cancel is open", "its owner, or the next worker, ends it")]
    found += _of_status(info, now)
    for wait in info.waiting_for:
        what = "its time" if wait.signal is None else f"signal {wait.signal!r}"
        until = "" if wait.wake_at is None else f" until {utc(wait.wake_at)}"
        found.append(
            Reason(f"it waits for {what} at {wait.wait_id!r}{until}", "" if wait.signal is None else "answer it")
        )
    if damaged := view.content.damaged:
        more = f" and {len(damaged) - 10} more" if len(damaged) > 10 else ""
        numbers = ", ".join(map(str, damaged[:10]))
        found.append(Reason(f"records that can't be read: {numbers}{more}", "milepost verify says what is wrong"))
    return found


def _of_status(info: RunInfo, now: datetime) -> Iterator[Reason]:
    if info.status == "running":
        until = "" if info.lease_until is None else f" until {utc(info.lease_until)}"
        yield Reason(f"{info.owner or 'somebody'} executes it{until}", "")
    elif info.status == "dead":
        yield Reason("its owner stopped without a word", "a worker takes it over")
    elif info.status == "ready" and info.wake_at is not None and info.wake_at > now:
        yield Reason(f"it is due at {utc(info.wake_at)}", "")
    elif info.status == "ready":
        yield Reason("no worker has taken it", "start a worker that has its flow")
    elif info.status == "blocked":
        text, remedy = _CAUSES.get(info.blocked_by or "", ("it is blocked", "mend the cause, then reopen it"))
        yield Reason(text.format(info.crash_count), remedy)
    elif info.status in _ENDS:
        yield Reason(*_ENDS[info.status])


def what_follows(view: RunView, now: datetime) -> list[str]:
    """Return what happens to a run by itself, one sentence each."""
    info, found = view.latest.row.info, []
    if info.status in ENDED:
        return []
    if info.wake_at is not None and info.wake_at > now:
        ending = [wait for wait in info.waiting_for if wait.wake_at == info.wake_at]
        is_timeout = bool(ending) and all(wait.signal is not None for wait in ending)
        goes_on = "without an answer it goes on" if is_timeout else "it goes on"
        found.append(f"{goes_on if info.status == 'waiting' else 'it begins'} at {utc(info.wake_at)}")
    for part in parts_of(view.content):
        if part.retry_at is not None and part.retry_at > now:
            name = part.node_id if isinstance(part, Visit) else part.step_id
            number = attempt_of(part.attempts + 1, part.max_attempts)
            found.append(f"next try of {name!r} at {utc(part.retry_at)}: attempt {number}")
    return found
