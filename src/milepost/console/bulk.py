"""Actions on many runs: a page that asks first, and 200 runs with each press of a button. Nothing runs behind a request."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from milepost.console.answers import Page
from milepost.console.page_errors import PageError
from milepost.console.pages.runs import read_filters, read_time, shown_filters
from milepost.console.site import Asked, Site
from milepost.engine.engine import Engine
from milepost.engine.requeue import STANDING
from milepost.errors import MilepostError, RunNotFoundError, StoreClosedError, StoreError
from milepost.model.info import RunInfo
from milepost.store import ACTIVE
from milepost.views.runs import MOST_COUNTED, find_runs, shown_count
from milepost.views.text import clean, iso

BATCH = 200
FIRST = 20


class BulkAction(NamedTuple):
    """A verb that is done to many runs. `write` is asked about its name, and the command line has it by that name, too."""

    name: str
    label: str
    act: Callable[[Engine, str, str | None], object]
    statuses: Sequence[str]
    """The statuses of the runs that it is for, if the filters name none; (): all."""


_ALL = (
    BulkAction("requeue", "Retry or go on", lambda engine, run_id, by: engine.requeue(run_id, by=by), STANDING),
    BulkAction("cancel", "Cancel", lambda engine, run_id, by: engine.cancel(run_id, by=by), ACTIVE),
    BulkAction("delete", "Delete", lambda engine, run_id, by: engine.delete_run(run_id), ()),
)
BULK_ACTIONS: Mapping[str, BulkAction] = {action.name: action for action in _ALL}


@dataclass(slots=True)
class Batch:
    """The runs of one press of the button. `refused` has the reasons for those that nobody may touch."""

    action: BulkAction
    runs: Sequence[RunInfo]
    after: str | None
    """The run with which the next batch goes on; None: there is none."""
    refused: dict[str, str] = field(default_factory=dict)


def confirm(site: Site, asked: Asked) -> Page:
    """Ask before many runs are acted on.

    `run` None; `deed` (`what`, `label`); `runs` (the newest 20, each with `run_id`, `flow`, `status`), `count` (a text: "12"
    or "1000+"), `command`, `fields` (names and values of the form's hidden inputs), `action` (the path to send it to).
    """
    action = _action_of(asked)
    before = iso(site.now) or ""
    found = _matching(site, asked, action, before, MOST_COUNTED + 1)[0]
    fields = [("what", asked.text("what")), ("before", before), *_given(asked)]
    values = {
        "run": None,
        "deed": {"what": asked.text("what"), "label": action.label},
        "runs": [{"run_id": info.run_id, "flow": info.flow, "status": info.status} for info in found[:FIRST]],
        "count": shown_count(len(found)),
        "command": _command(site, asked, action),
        "fields": [{"name": name, "value": value} for name, value in fields],
        "action": ["bulk"],
    }
    return Page("confirm.html", f"{action.label}: {values['count']} runs?", values)


def find_batch(site: Site, asked: Asked) -> Batch:
    """Find the next runs to act on. Raises `PageError` for a form that does not say which."""
    action = _action_of(asked)
    if not asked.text("before"):
        raise PageError(400, "Wrong form", "the form lacks the time of the page that asked")
    found, stopped = _matching(site, asked, action, asked.text("before"), BATCH)
    return Batch(action, found, found[-1].run_id if len(found) == BATCH else stopped)


def perform_batch(site: Site, asked: Asked, batch: Batch) -> Page:
    """Act on the runs of a batch.

    `deed` (`what`, `label`), `done` (ids), `refused` (reasons by id), `fields` (those of the form for the next 200; None:
    there are no more), `action`.
    """
    done: list[str] = []
    for info in batch.runs:
        if info.run_id in batch.refused:
            continue
        try:
            batch.action.act(site.engine, info.run_id, asked.user)
            done.append(info.run_id)
        except MilepostError as exc:
            if isinstance(exc, StoreClosedError) or (isinstance(exc, StoreError) and not exc.is_of_one_run):
                raise
            batch.refused[info.run_id] = clean(exc)
    fields = None
    if batch.after is not None and not asked.all("id"):
        given = [("what", asked.text("what")), ("before", asked.text("before")), *_given(asked), ("after", batch.after)]
        fields = [{"name": name, "value": value} for name, value in given]
    values = {
        "deed": {"what": asked.text("what"), "label": batch.action.label},
        "done": done,
        "refused": batch.refused,
        "fields": fields,
        "action": ["bulk"],
    }
    return Page("result.html", f"{batch.action.label}: {len(done)} done, {len(batch.refused)} refused", values)


def _action_of(asked: Asked) -> BulkAction:
    action = BULK_ACTIONS.get(asked.text("what"))
    if action is None:
        raise PageError(400, "Wrong form", f"what takes one of {', '.join(BULK_ACTIONS)}, not {asked.text('what')!r}")
    return action


def _given(asked: Asked) -> list[tuple[str, str]]:
    """Return the filters and ids of a form, without the place where it goes on."""
    filters = shown_filters(asked)
    found = [("id", run_id) for run_id in asked.all("id")]
    for name, value in filters.items():
        found += [(name, each) for each in ([value] if isinstance(value, str) else value) if each]
    return found


def _matching(
    site: Site, asked: Asked, action: BulkAction, before: str, limit: int
) -> tuple[list[RunInfo], str | None]:
    """Return the runs that are meant and were there before a moment, and where the search stopped."""
    ids = asked.all("id")
    moment = read_time("before", before)
    if ids:
        if len(ids) > BATCH:
            raise PageError(400, "Wrong form", f"choose at most {BATCH} runs, or all that match a filter")
        return [info for info in map(site.find, dict.fromkeys(ids)) if info is not None], None
    filters = read_filters(asked)
    if not filters.keys() - {"after"}:
        raise PageError(400, "Wrong form", "say which runs: choose some, or give a filter")
    filters["created_before"] = min(moment, filters.get("created_before") or moment)
    try:
        found, stop = find_runs(site.store, {**filters, "limit": limit}, action.statuses or None, is_complete=True)
        return found, None if stop is None else stop.after
    except RunNotFoundError as exc:
        raise PageError(409, "It was refused", "the run where this goes on was deleted: begin anew") from exc


def _command(site: Site, asked: Asked, action: BulkAction) -> str:
    """Return the command that does the same."""
    words = ["milepost", action.name]
    for name, value in _given(asked):
        if name == "id":
            words.append(value)
        else:
            words += ["--" + name.replace("_", "-"), value]
    return "" if action.name == "delete" and not asked.all("id") else clean(shlex.join([*words, *site.store_words]))
