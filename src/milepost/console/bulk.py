"""Actions on many runs: a page that asks first, and 200 runs with each press of a button. Nothing runs behind a request."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from milepost.console.answers import Page
from milepost.console.pages.runs import read_filters, read_time, shown_filters
from milepost.console.problems import Problem
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


class Deed(NamedTuple):
    """Something that is done to many runs: the name that `write` is asked about, the verb, and the statuses it is for."""

    action: str
    label: str
    act: Callable[[Engine, str, str | None], object]
    otherwise: Sequence[str]
    command: str


DEEDS: Mapping[str, Deed] = {
    "requeue": Deed(
        "requeue", "Retry or go on", lambda engine, run_id, by: engine.requeue(run_id, by=by), STANDING, "requeue"
    ),
    "cancel": Deed("cancel", "Cancel", lambda engine, run_id, by: engine.cancel(run_id, by=by), ACTIVE, "cancel"),
    "delete": Deed("delete", "Delete", lambda engine, run_id, by: engine.delete_run(run_id), (), "delete"),
}


@dataclass(slots=True)
class Batch:
    """The runs of one press of the button. `refused` has the reasons for those that nobody may touch."""

    action: str
    deed: Deed
    runs: Sequence[RunInfo]
    after: str | None
    """The run with which the next batch goes on; None: there is none."""
    refused: dict[str, str] = field(default_factory=dict)


def confirm(site: Site, asked: Asked) -> Page:
    """Ask before many runs are acted on.

    `run` None; `deed` (`what`, `label`); `runs` (the newest 20, each with `run_id`, `flow`, `status`), `count` (a text: "12"
    or "1000+"), `command`, `fields` (names and values of the form's hidden inputs), `action` (the path to send it to).
    """
    deed = _deed_of(asked)
    before = iso(site.now) or ""
    found = _matching(site, asked, deed, before, MOST_COUNTED + 1)[0]
    fields = [("what", asked.text("what")), ("before", before), *_given(asked)]
    values = {
        "run": None,
        "deed": {"what": asked.text("what"), "label": deed.label},
        "runs": [{"run_id": info.run_id, "flow": info.flow, "status": info.status} for info in found[:FIRST]],
        "count": shown_count(len(found)),
        "command": _command(site, asked, deed),
        "fields": [{"name": name, "value": value} for name, value in fields],
        "action": ["bulk"],
    }
    return Page("confirm.html", f"{deed.label}: {values['count']} runs?", values)


def find_batch(site: Site, asked: Asked) -> Batch:
    """Find the next runs to act on. Raises `Problem` for a form that does not say which."""
    deed = _deed_of(asked)
    if not asked.text("before"):
        raise Problem(400, "Wrong form", "the form lacks the time of the page that asked")
    found, stopped = _matching(site, asked, deed, asked.text("before"), BATCH)
    return Batch(deed.action, deed, found, found[-1].run_id if len(found) == BATCH else stopped)


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
            batch.deed.act(site.engine, info.run_id, asked.user)
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
        "deed": {"what": asked.text("what"), "label": batch.deed.label},
        "done": done,
        "refused": batch.refused,
        "fields": fields,
        "action": ["bulk"],
    }
    return Page("result.html", f"{batch.deed.label}: {len(done)} done, {len(batch.refused)} refused", values)


def _deed_of(asked: Asked) -> Deed:
    deed = DEEDS.get(asked.text("what"))
    if deed is None:
        raise Problem(400, "Wrong form", f"what takes one of {', '.join(DEEDS)}, not {asked.text('what')!r}")
    return deed


def _given(asked: Asked) -> list[tuple[str, str]]:
    """Return the filters and ids of a form, without the place where it goes on."""
    filters = shown_filters(asked)
    found = [("id", run_id) for run_id in asked.all("id")]
    for name, value in filters.items():
        found += [(name, each) for each in ([value] if isinstance(value, str) else value) if each]
    return found


def _matching(site: Site, asked: Asked, deed: Deed, before: str, limit: int) -> tuple[list[RunInfo], str | None]:
    """Return the runs that are meant and were there before a moment, and where the search stopped."""
    ids = asked.all("id")
    moment = read_time("before", before)
    if ids:
        if len(ids) > BATCH:
            raise Problem(400, "Wrong form", f"choose at most {BATCH} runs, or all that match a filter")
        return [info for info in map(site.find, dict.fromkeys(ids)) if info is not None], None
    filters = read_filters(asked)
    if not filters.keys() - {"after"}:
        raise Problem(400, "Wrong form", "say which runs: choose some, or give a filter")
    filters["created_before"] = min(moment, filters.get("created_before") or moment)
    try:
        found, stop = find_runs(site.store, {**filters, "limit": limit}, deed.otherwise or None, is_complete=True)
        return found, None if stop is None else stop.after
    except RunNotFoundError as exc:
        raise Problem(409, "It was refused", "the run where this goes on was deleted: begin anew") from exc


def _command(site: Site, asked: Asked, deed: Deed) -> str:
    """Return the command that does the same."""
    words = ["milepost", deed.command]
    for name, value in _given(asked):
        if name == "id":
            words.append(value)
        else:
            words += ["--" + name.replace("_", "-"), value]
    return "" if deed.command == "delete" and not asked.all("id") else clean(shlex.join([*words, *site.store_words]))
