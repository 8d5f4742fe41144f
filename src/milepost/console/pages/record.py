"""The page of one record: what it holds, and what has changed since another."""

from __future__ import annotations

from typing import Any

from milepost.console.answers import Page, pretty
from milepost.console.page_errors import PageError
from milepost.console.site import Asked, Site
from milepost.console.veil import missing_key
from milepost.errors import DeserializeStateError
from milepost.graph.fork_run import is_decision
from milepost.model.record import CHECKPOINT, FORKED_FROM, START, Record
from milepost.views.journal import line_of
from milepost.views.states import RecordedState, changes, patch_between, state_before
from milepost.views.text import clean, size

LARGEST_STATE = 2 * 1024 * 1024
"""Bytes of the largest state that a page shows or compares."""


def show_record(site: Site, asked: Asked) -> Page:
    """Show a record of a run.

    `run_id`; `record` (as a `JournalLine`); `state` (JSON) and `text` (the same, on several lines), both None if it holds
    none, or none that can be shown: then `note` says why. `against` (the number of the record that it is compared with, or
    None: unless one is asked for, states are compared with the state before them, and other values with nothing),
    `changes` (each with `sign` +, - or ~, and `text`) and `patch` (RFC 6902). `before` and `after`: the numbers of the
    checkpoints around it, or None. `forks`: see `forks_of`; None if nothing ends there.
    """
    record = read_record(site, asked)
    run_id, _ = asked.ids
    store, locked = site.store, missing_key(site.store, run_id)
    live = store.get_run(run_id).live
    state, note = (None, locked) if locked else shown_value(site, run_id, record)
    before = store.read(run_id, before=record.sequence, kinds=(CHECKPOINT, START), newest=True, limit=1)
    after = store.read(run_id, after=record.sequence, kinds=(CHECKPOINT,), limit=1)
    text = asked.text("against")
    if text in {"", "before"}:
        against = state_before(store, run_id, record, live)
    else:
        against = 0 if text == "input" else asked.number("against")
    found: list[tuple[str, str]] = []
    patch: list[dict[str, Any]] = []
    if state is not None and against is not None:
        other, why = shown_value(site, run_id, _numbered(site, run_id, against))
        if other is None:
            note = f"record {against} can't be compared: {why}"
        else:
            ends = RecordedState(against, "", 0, other), RecordedState(record.sequence, "", 0, state)
            patch = patch_between(*ends)
            found = [*changes(other, patch)]
    values = {
        "run_id": run_id,
        "record": site.veil.line(line_of(store, run_id, record, live), locked).to_dict(),
        "state": state,
        "text": None if state is None else pretty(state),
        "note": note or "",
        "against": against,
        "changes": [{"sign": sign, "text": text} for sign, text in found],
        "patch": patch,
        "before": before[0].sequence if before else None,
        "after": after[0].sequence if after else None,
        "forks": forks_of(run_id, record),
    }
    return Page("record.html", f"Record {record.sequence} of {run_id}", values)


def read_record(site: Site, asked: Asked) -> Record:
    """Read the record that a path names."""
    run_id, number = asked.ids
    if not (number.isascii() and number.isdecimal()):
        raise PageError(404, "No such record", f"{number!r} is no number of a record")
    return _numbered(site, run_id, int(number[:20]))


def state_to_download(site: Site, asked: Asked) -> tuple[str, bytes]:
    """Return the name of a file and what a record holds, as JSON text."""
    record = read_record(site, asked)
    run_id, number = asked.ids
    locked = missing_key(site.store, run_id)
    if locked is not None:
        raise PageError(409, "It can't be shown", locked)
    try:
        value = site.veil.recorded(site.store, run_id, record)
    except (DeserializeStateError, ValueError) as exc:
        raise PageError(409, "It can't be shown", f"record {number} can't be read: {clean(exc)}") from exc
    return f"record-{number}.json", (pretty(value) + "\n").encode("utf-8", "backslashreplace")


def export_of(site: Site, asked: Asked) -> tuple[str, bytes]:
    """Return the name of a file and all of a run as JSON lines, which `milepost import` takes in."""
    (run_id,) = asked.ids
    if site.veil.hides_anything:
        raise PageError(403, "Not allowed", "an export has everything of a run, and this console hides some of it")
    if locked := missing_key(site.store, run_id):
        raise PageError(409, "It can't be shown", locked)
    return "run.jsonl", site.store.export(run_id)


def forks_of(run_id: str, *records: Record | None) -> dict[str, Any] | None:
    """Return the last of these records up to which a fork copies, and the tag by which the list finds such forks."""
    ends = [r.sequence for r in records if r is not None and (r.kind in {START, CHECKPOINT} or is_decision(r))]
    return {"sequence": ends[-1], "tag": f"{FORKED_FROM}={run_id}#{ends[-1]}"} if ends else None


def _numbered(site: Site, run_id: str, sequence: int) -> Record:
    if found := site.store.read(run_id, after=sequence - 1, before=sequence + 1):
        return found[0]
    site.store.get_run(run_id)  # raises for a run that is not there
    raise PageError(404, "No such record", f"run {run_id!r} has no record {sequence}")


def shown_value(site: Site, run_id: str, record: Record) -> tuple[Any, str]:
    """Return the JSON in a record without what is hidden, or None and the reason why there is nothing to show."""
    if record.payload is None:
        return None, f"a {record.kind} without a value"
    if record.size > LARGEST_STATE:
        return None, f"it has {size(record.size)}, which is too large for a page: download it"
    try:
        return site.veil.recorded(site.store, run_id, record), ""
    except (DeserializeStateError, ValueError) as exc:
        return None, f"it can't be read: {clean(exc)}"
