"""The row of a run, as lists show it: why it stands, where it goes on, and the row as a document for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from milepost.model.info import RunInfo
from milepost.model.record import END
from milepost.store import GOES_ON
from milepost.views.text import in_options, iso, short, signal_command, wait_document

_PLACES = 4
"""The number of places that are named after the first."""


def info_document(info: RunInfo) -> dict[str, Any]:
    """Return the row of a run as JSON."""
    return {
        "run_id": info.run_id,
        "flow": info.flow,
        "status": info.status,
        "reason": info.reason,
        "degraded": info.degraded,
        "missed": list(info.missed),
        "created_at": iso(info.created_at),
        "updated_at": iso(info.updated_at),
        "sequence": info.sequence,
        "next_node": info.next_node,
        "size": info.size,
        "owner": info.owner,
        "lease_until": iso(info.lease_until),
        "wake_at": iso(info.wake_at),
        "waiting_for": [wait_document(wait) for wait in info.waiting_for],
        "crash_count": info.crash_count,
        **({} if info.blocked_by is None else {"blocked_by": info.blocked_by}),
        "tags": dict(info.tags),
        **({} if info.fingerprint is None else {"fingerprint": info.fingerprint}),
        **({} if info.error is None else {"error": dataclasses.asdict(info.error)}),
    }


def why_it_stands(info: RunInfo, following: str | None, *others: str | None) -> str:
    """Return one sentence that says why the run stands still, or who executes it, and what to do.

    `following` is the node where it goes on; None: its router has not answered yet; "": unknown. `others` are the nodes
    where other branches go on.
    """
    reason = in_options(info.reason) or f"it is {info.status}"
    places = ", ".join(map(repr, (following, *others[:_PLACES])))
    more = f" and {len(others) - _PLACES} more" if len(others) > _PLACES else ""
    where = {None: " with its router", END: " at its end", "": ""}.get(following, f" at {places}{more}")
    resume = f"milepost resume {info.run_id} [TARGET]"
    match info.status:
        case "finished":
            return "it has finished"
        case "running":
            return reason
        case "dead":
            return f"{reason}; {resume} goes on{where}"
        case "ready":
            return f"{reason}; milepost worker or {resume} goes on{where}"
        case "waiting":
            waits = info.waiting_for
            sends = "; ".join(
                f"{signal_command(info.run_id, wait, waits)} sends it" for wait in waits if wait.signal is not None
            )
            return f"{reason}; {sends}" if sends else reason
        case "failed":
            failed = f"it failed: {reason}" if info.reason else "it failed"
            again = f"{resume}, or milepost retry for fresh attempts, goes on{where}"
            return failed if "resume" in info.reason else f"{failed}; {again}"
        case "interrupted":
            return f"it was interrupted{f' ({reason})' if info.reason else ''}: {resume} goes on{where}"
        case _:
            stands = f"it is {info.status}{f' ({reason})' if info.reason else ''}"
            if info.blocked_by in GOES_ON:
                return f"{stands}: mend the cause, then {resume} goes on{where}"
            return f"{stands}: {resume} --reopen goes on{where}"


def shown_next(node_id: str | None) -> str:
    """Return the name of the node where a run goes on, for people."""
    return "(end)" if node_id == END else node_id or ""


def awaited_places(info: RunInfo, following: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Return the places where a run waits or, if it does not wait, where it goes on."""
    if info.status == "waiting" and info.waiting_for:
        return tuple(wait.wait_id.rpartition("#")[0] for wait in info.waiting_for)
    return following


def places_at_rest(info: RunInfo) -> tuple[str | None, ...] | None:
    """Return the places of a run that has finished or waits; None for others, whose records have to be read for them."""
    return awaited_places(info, (info.next_node,)) if info.status in {"finished", "waiting"} else None


def shown_places(places: Iterable[str | None]) -> str:
    """Return the names of the places where a run goes on, for people."""
    return short(", ".join(map(shown_next, places)), 160)
