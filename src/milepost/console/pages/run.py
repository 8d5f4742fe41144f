"""The page of one run: where it stands and why, its error, its waits, its graph, and its history."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from milepost.console.answers import Page
from milepost.console.buttons import buttons_of
from milepost.console.forms import inputs_of
from milepost.console.page_errors import AnswerRefusedError
from milepost.console.pages.record import LARGEST_STATE, forks_of, shown_value
from milepost.console.site import Asked, Site
from milepost.console.veil import flaws_of, missing_key
from milepost.errors import DeserializeStateError
from milepost.executor.flow import END
from milepost.graph.status import RunStatus
from milepost.model.info import RunInfo, Wait
from milepost.model.ranges import Ranges, is_live
from milepost.model.record import CHECKPOINT, FAILURE, FINISH, FORKED_FROM, START, Record
from milepost.model.tracebacks import error_place, fold_frames
from milepost.store import RunRow, RunSnapshot
from milepost.views.graph import graph_document
from milepost.views.journal import JournalLine, is_workflow, newest_entries
from milepost.views.reasons import reasons_of, what_follows
from milepost.views.rows import info_document
from milepost.views.runs import fingerprint_of
from milepost.views.states import StateMissingError, changed_keys, newest_state, state_path
from milepost.views.status import LONG, RunView, recent_records, view_run
from milepost.views.text import clean, iso
from milepost.views.timeline import read_timeline, timeline_document
from milepost.views.workers import worker_note

HISTORY = 200
_AT_REST = frozenset({"finished", "running"})
"""The statuses of runs that no worker is to take."""
_LARGEST_COMPARED = 32 * 1024
_MOST_FLAWS = 5
_STEP = 10
"""Seconds after which the bar of what goes on has grown."""


def show_run(site: Site, asked: Asked, *, refused: AnswerRefusedError | None = None, status: int = 200) -> Page:
    """Show one run.

    * `run`: its row, without its error. `why`: one sentence. `next`: what happens by itself, sentences. `locked`: which
      key is missing to show texts, or None. `is_long`: only the newest records were read.
    * `buttons`: see `buttons_of`. `reasons`: why it does not move, each with `text` and `remedy`; [] while it moves.
    * `workers_note`: why no worker would take it, or "".
    * `error`: None, or `error_type`, `message`, `node_id`, `place`, `traceback`, `folded` (the traceback without the frames
      of libraries) and `before` (the record of the state before the node; None: the input).
    * `waits`: each with `wait_id`, `signal`, `prompt`, `since`, `wake_at`, `refused` (`text`, `time`, `by`) or None, `form`
      (inputs as `forms.Input`; None: it can't be answered here), `error` (of the answer that was just refused, or "") and
      `given` (the JSON that was typed, or "").
    * `graph`: what `views.graph.picture_document` gives, or None. `table`: `columns`, and `rows` with `status` and `cells`.
    * `timeline`: what `views.timeline.Timeline` has, as JSON.
    * `history`: `records` (newest first; each as `JournalLine` with `changed`, a text), `older` (the number to ask for
      with `before`, or None) and `before`.
    * `fingerprint`: that of the flow with which the run began, or None. `inputs`, `output`: recorded JSON, or None.
    * `origin`: None, or `run_id` and `sequence` of the run that it was forked from. `forks`: None, or `sequence` of the
      record where the run stands and `tag` of its forks, by which the list finds them; the page of each record has that of
      its own, and no index finds the forks of a run as a whole.
    * `actions`: `sequence`, `action` and `by` of what people did. `commands.test`: the command that makes a test of the
      run, "" if it can't be exported here. `has_plan`: whether the code of its flow is known, and it may go on.
      `markdown`: a summary to be copied.
    * `flaws`: what is not shown because its record was changed, up to 5 sentences; left out if there is none.
    """
    store, (run_id,) = site.store, asked.ids
    latest = store.latest(run_id)
    locked = missing_key(store, run_id)
    info = site.veil.info(store.get_run(run_id).info, locked)
    latest = latest._replace(row=_with_info(latest, info))
    is_of_steps = is_workflow(store, run_id)
    records = list(recent_records(store, run_id, latest))
    view = view_run(latest, records, store.place, is_of_steps, info.error)
    flaws = {} if locked else flaws_of(store, run_id, _shown_records(view, records))
    site.veil.content(view.content, locked, flaws)
    document = info_document(info)
    document.pop("error", None)
    columns, rows, statuses = view.table()
    cells = [{"status": shown, "cells": [str(cell) for cell in row]} for shown, row in zip(statuses, rows, strict=True)]
    content = view.content
    values: dict[str, Any] = {
        "run": document,
        "why": locked or view.why,
        "next": what_follows(view, site.now),
        "locked": locked,
        "is_long": latest.newest >= LONG,
        "buttons": [] if locked else buttons_of(site, info),
        "workers_note": "" if info.status in _AT_REST else worker_note(store.workers(), info.flow, site.now),
        "reasons": [reason._asdict() for reason in reasons_of(view, site.now)],
        "error": _error(info, records, latest.row.live),
        "waits": [wait_values(wait, asked, refused, is_locked=locked is not None) for wait in info.waiting_for],
        "graph": graph_document(content) if isinstance(content, RunStatus) else None,
        "table": {"columns": list(columns), "rows": cells},
        "timeline": timeline_of(view, records, site.now, to_scale=asked.text("scale") == "true"),
        "history": _history(site, asked, locked),
        "fingerprint": None if locked else fingerprint_of(store, run_id),
        "inputs": None if locked else _inputs(site, run_id, records),
        "output": None if locked or info.status != "finished" else _output(site, run_id, view, flaws),
        "origin": _origin(info),
        "forks": forks_of(run_id, latest.point, *latest.tail),
        "commands": {"test": ""},
        "has_plan": not locked and info.status not in _AT_REST and info.flow in site.engine.flows,
        "actions": [] if locked else [action._asdict() for action in reversed(view.actions)],
    }
    if locked:
        values["timeline"]["marks"] = []  # they name people
        for bar in (bar for row in values["timeline"]["rows"] for bar in row["bars"] if bar["kind"] == "failed"):
            bar["text"] = ""  # it names an error
    if flaws:
        values["flaws"] = [*flaws.values()][:_MOST_FLAWS]
    if not locked and not site.veil.hides_anything:
        values["commands"]["test"] = clean(shlex.join(["milepost", "record-test", run_id, *site.store_words]))
    values["markdown"] = _markdown(site, values, info)
    return Page("run.html", f"Run {run_id}", values, status)


def _with_info(latest: RunSnapshot, info: RunInfo) -> RunRow:
    return msgspec.structs.replace(latest.row, **{name: getattr(info, name) for name in RunInfo.__match_args__})


def _error(info: RunInfo, records: Sequence[Record], live: Ranges) -> dict[str, Any] | None:
    error = info.error
    if error is None:
        return None
    failed = [r.sequence for r in records if r.kind == FAILURE and r.node_id == error.node_id]
    before = [
        r.sequence
        for r in records
        if r.kind == CHECKPOINT and is_live(r.sequence, live) and (not failed or r.sequence < failed[-1])
    ]
    return {
        "error_type": error.error_type,
        "message": error.message,
        "node_id": error.node_id,
        "place": error_place(error.traceback),
        "traceback": error.traceback,
        "folded": fold_frames(error.traceback),
        "before": before[-1] if before else 0,
    }


def wait_values(wait: Wait, asked: Asked, refused: AnswerRefusedError | None, *, is_locked: bool) -> dict[str, Any]:
    """Return a wait and its form. `refused` is the answer of this request that was refused."""
    wrong = refused if refused is not None and refused.wait_id == wait.wait_id else None
    answer, inputs = wait.refused, None
    if wait.signal is not None and not is_locked:
        form, errors = (None, None) if wrong is None else (asked.form, wrong.errors)
        inputs = [field._asdict() for field in inputs_of(wait.schema, form, errors)]
    return {
        "wait_id": wait.wait_id,
        "signal": wait.signal,
        "prompt": wait.prompt,
        "since": iso(wait.since),
        "wake_at": iso(wait.wake_at),
        "refused": None if answer is None else {"text": answer.text, "time": iso(answer.time), "by": answer.by},
        "form": inputs,
        "error": "" if wrong is None else wrong.text,
        "given": "" if wrong is None else asked.text("payload"),
    }


def timeline_of(view: RunView, records: Sequence[Record], now: datetime, *, to_scale: bool) -> dict[str, Any]:
    """Return the timeline of a run as JSON."""
    content, row = view.content, view.latest.row
    running = content.next_nodes if isinstance(content, RunStatus) else (content.next_step,)
    # The bars of what goes on grow in steps: in between the page stays the same, and is not sent again.
    now = datetime.fromtimestamp(now.timestamp() // _STEP * _STEP, UTC)
    return timeline_document(
        read_timeline(
            records,
            row.live,
            row.info.status,
            now,
            running=[node for node in running if node and node != END] if row.info.status == "running" else (),
            has_gaps=not to_scale,
        )
    )


def _history(site: Site, asked: Asked, locked: str | None) -> dict[str, Any]:
    (run_id,) = asked.ids
    before = asked.number("before")
    found = newest_entries(site.store, run_id, before=before, limit=HISTORY + 1)
    changed = {} if locked else _changed(site, run_id, found)
    records = [
        {**site.veil.line(line, locked).to_dict(), "changed": changed.get(line.sequence, "")}
        for line, _ in found[:HISTORY]
    ]
    older = found[HISTORY - 1][0].sequence if len(found) > HISTORY else None
    return {"records": records, "older": older, "before": before}


def _changed(site: Site, run_id: str, lines: Sequence[tuple[JournalLine, Record]]) -> dict[int, str]:
    """Return for each checkpoint of a graph's own path which keys of the state it changed, as far as that is cheap.

    A live state is compared with the live one before it, as on the page of its record.
    """
    found: dict[int, str] = {}
    newest = newest_live = None
    for line, record in reversed(lines):
        if state_path(record) != ("", ""):
            continue
        state = shown_value(site, run_id, record)[0] if record.size <= _LARGEST_COMPARED else None
        if record.kind == CHECKPOINT:
            found[record.sequence] = changed_keys(newest if line.superseded else newest_live, state)
        newest, newest_live = state, newest_live if line.superseded else state
    return found


def _shown_records(view: RunView, records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records whose inputs and outputs the page shows."""
    kinds = {START} if isinstance(view.content, RunStatus) else {START, CHECKPOINT, FINISH}
    yield from (record for record in records if record.kind in kinds)
    if isinstance(view.content, RunStatus) and view.latest.row.info.status == "finished":
        yield from (record for record in (view.latest.point, *view.latest.tail) if record is not None)


def _inputs(site: Site, run_id: str, records: Sequence[Record]) -> Any:
    start = next((record for record in records if record.sequence == 0), None)
    return None if start is None else shown_value(site, run_id, start)[0]


def _output(site: Site, run_id: str, view: RunView, flaws: Mapping[int, str]) -> Any:
    row, latest = view.latest.row, view.latest
    ends = (
        [latest.newest] if latest.point is None else [latest.point.sequence, *(each.sequence for each in latest.tail)]
    )
    if any(number in flaws for number in ends):
        return None
    if not isinstance(view.content, RunStatus):
        return site.veil.state(view.content.output)
    if row.info.size > LARGEST_STATE:
        return None
    try:
        return site.veil.state(newest_state(site.store, run_id).state)
    except (StateMissingError, DeserializeStateError):
        return None


def _origin(info: RunInfo) -> dict[str, Any] | None:
    run_id, sign, sequence = info.tags.get(FORKED_FROM, "").rpartition("#")
    return {"run_id": run_id, "sequence": int(sequence)} if sign and sequence.isdecimal() else None


def _markdown(site: Site, values: Mapping[str, Any], info: RunInfo) -> str:
    """Return a summary of a run for a chat or a ticket."""
    lines = [f"**{info.run_id}** ({info.flow}) is {info.status}"]
    if values["error"]:
        error = values["error"]
        where = f" at `{error['node_id']}`" if error["node_id"] else ""
        lines.append(f"- {error['error_type']}: {error['message']}{where}".replace("\n", " "))
    else:
        lines.append(f"- {values['why']}".replace("\n", " "))
    lines.append(f"- `{clean(shlex.join(['milepost', 'show', info.run_id, *site.store_words]))}`")
    return "\n".join(lines)
