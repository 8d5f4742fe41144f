"""The commands that show: history, show, state, diff, watch."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import click

from milepost.cli.commands import FAILED, OK, Invocation, NotFound, command, optional_app_option
from milepost.cli.places import chosen_app, open_to_look, store_words
from milepost.cli.targets import opened_engine
from milepost.cli.text import pretty, print_facts, print_table, styles_of, to_json
from milepost.errors import CheckpointIntegrityError
from milepost.executor.chronicle import Chronicle, Undecoded, undecoded_result
from milepost.executor.flow import Flow
from milepost.model.events import Event
from milepost.model.info import RunInfo
from milepost.model.record import END, START, Record
from milepost.model.tracebacks import fold_frames
from milepost.store import ENDED, Store
from milepost.views.events import (
    MapProgress,
    _error_of,
    _events_of,
    event_document,
    line_of,
)
from milepost.views.journal import is_workflow, read_entries, records_of, steps_of
from milepost.views.rows import info_document, shown_next
from milepost.views.states import StateMissingError, changes, find_state, named_state, newest_state, patch_between
from milepost.views.status import RunView, view_run
from milepost.views.text import ago, attempt_of, clean, duration, in_options, short, size, utc

# -- The command that lists all records of a run: history. It needs no code of the user's ----------


@command("history", click.argument("run_id", metavar="RUN"))
def history(invocation: Invocation, run_id: str) -> int:
    """List all records of a run in order.

    Every visit, superseded ones too, every failure and every change of owner; of a workflow its steps, waits and rollbacks; of
    a graph with forks or maps, which branch or item each is of.
    """
    with open_to_look(invocation) as store:
        store.get_run(run_id)
        entries = list(read_entries(store, run_id))
    if invocation.is_json:
        print(to_json({"run_id": run_id, "records": [entry.to_dict() for entry in entries]}))
        return OK
    has_branches = any(entry.branch for entry in entries)
    print_table(
        (
            "record",
            "kind",
            "node",
            *(["branch"] if has_branches else []),
            "attempt",
            "time",
            "took",
            "size",
            "next",
            "note",
        ),
        [
            (
                entry.sequence,
                entry.kind,
                f"{entry.node_id}#{entry.visit}" if entry.node_id else "",
                *([entry.branch] if has_branches else []),
                "" if entry.attempt is None else attempt_of(entry.attempt, entry.max_attempts),
                ago(entry.timestamp) if entry.timestamp else "",
                duration(entry.duration_ms),
                size(entry.size) if entry.size else "",
                shown_next(entry.next_node) if not (entry.branch and entry.next_node == END) else "",
                short(": ".join(filter(None, ("superseded" * entry.superseded, entry.note))), 100),
            )
            for entry in entries
        ],
        styles=["dim" if entry.superseded else "" for entry in entries],
        is_cut=True,
    )
    return OK


# -- The commands that show recorded states: state and diff. They need no code of the user's -------


@command(
    "state",
    click.argument("run_id", metavar="RUN"),
    click.argument("node_id", metavar="[NODE]", required=False),
    click.option("--visit", type=click.IntRange(1), metavar="N", help="This visit of NODE instead of its newest."),
)
def state(invocation: Invocation, run_id: str, node_id: str | None, visit: int | None) -> int:
    """Print a recorded state, as the JSON that it is.

    The newest one, or the one after NODE, which may be written NODE#VISIT.
    """
    if node_id is None and visit is not None:
        raise click.UsageError("--visit goes with a NODE")
    with open_to_look(invocation) as store:
        store.get_run(run_id)
        with _not_found():
            point = newest_state(store, run_id) if node_id is None else named_state(store, run_id, node_id, visit)
    if invocation.is_json:
        print(to_json({"run_id": run_id, **point.to_dict(), "state": point.state}))
    else:
        _print_state(point.state)
    return OK


@command(
    "diff",
    click.argument("run_id", metavar="RUN"),
    click.argument("before", metavar="A"),
    click.argument("after", metavar="B"),
)
def diff(invocation: Invocation, run_id: str, before: str, after: str) -> int:
    """Show what changed in the state from A to B.

    Each is a node (its newest visit), NODE#VISIT, or the number of a record; record 0 is the input. With --json it is
    a JSON Patch (RFC 6902).
    """
    with open_to_look(invocation) as store:
        store.get_run(run_id)
        with _not_found():
            points = [find_state(store, run_id, text) for text in (before, after)]
    patch = patch_between(*points)
    if invocation.is_json:
        document = {"run_id": run_id, "from": points[0].to_dict(), "to": points[1].to_dict(), "patch": patch}
        print(to_json(document))
        return OK
    print(f"from {clean(points[0])} to {clean(points[1])}")
    for sign, text in changes(points[0].state, patch):
        _print_change(sign, text)
    if not patch:
        print("no difference")
    return OK


@contextlib.contextmanager
def _not_found() -> Iterator[None]:
    """Turn the error of a state that is not there into that of the command line."""
    try:
        yield
    except StateMissingError as exc:
        raise NotFound(str(exc)) from exc


def _print_change(sign: str, text: str) -> None:
    line = f"{sign} {clean(text)}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        line = click.style(line, fg={"+": "green", "-": "red", "~": "yellow"}[sign])
    print(line)


def _print_state(value: Any) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.highlighter import JSONHighlighter

        Console().print(JSONHighlighter()(pretty(value)), no_wrap=True, soft_wrap=True)
    else:
        print(pretty(value))


# -- The command that shows where one run stands: show. It needs no code of the user's -------------


@command(
    "show",
    click.argument("run_id", metavar="RUN"),
    click.option("--watch", is_flag=True, help="Follow the run to its end, whoever executes it."),
)
def show(invocation: Invocation, run_id: str, watch: bool) -> int:
    """Show where a run stands, and why.

    One sentence says why it does not move; below it is the tree of its steps, or of the visits of its nodes: what is part of
    one is indented below it. With --watch it is drawn again whenever the run moves, in a terminal, and told line by line
    elsewhere; Ctrl-C ends the watching and touches nothing. Exit code 0 if the run has finished then, 1 if it ended otherwise.
    """
    with open_to_look(invocation) as store:
        if watch and not drawn(invocation):
            return exit_code_of(watched(invocation, store, run_id))
        is_of_steps = is_workflow(store, run_id)
        if watch:
            from milepost.cli.terminal import redrawn

            redrawn(
                follow(store, run_id, is_replayed=is_of_steps),
                # Of a run that was started by name nobody knows what it is before a worker takes it.
                lambda records: view_run(store.latest(run_id), records, store.place, is_workflow(store, run_id)),
            )
            is_of_steps = is_workflow(store, run_id)
            info = store.get_run(run_id).info
            latest, records = store.latest(run_id), records_of(store, run_id)
            print_view(invocation, view_run(latest, records, store.place, is_of_steps, info.error))
            return exit_code_of(info)
        latest = store.latest(run_id)
        info = store.get_run(run_id).info
        records = records_of(store, run_id, latest.newest)
        shown = view_run(latest, records, store.place, is_of_steps, info.error)
        if not invocation.is_json:
            print_view(invocation, shown)
            return OK
        steps = [] if is_of_steps else [step.to_dict() for step in steps_of(read_entries(store, run_id))]
    document = {"run": info_document(replace(latest.row.info, error=info.error))}
    print(to_json({**document, **({} if is_of_steps else {"steps": steps}), **shown.document()}))
    return OK


def print_view(invocation: Invocation, view: RunView) -> None:
    """Print where a run stands: what it failed with, facts, the tree below them, and a recorded traceback."""
    verb = "retry" if view.latest.row.info.status == "failed" else "resume"
    words = [verb, view.latest.row.info.run_id, *store_words(invocation.store_url)]
    target = "" if chosen_app(invocation) else " [TARGET]"
    if failure := view.failure(f"milepost {shlex.join(words[:2])}{target} {shlex.join(words[2:])}".rstrip()):
        print_facts(failure)
        print()
    print_facts(view.facts())
    columns, rows, statuses = view.table()
    if rows:
        print()
        print_table(columns, rows, styles=styles_of(statuses))
    if view.error is not None and view.error.traceback:
        print()
        frames = view.error.traceback if invocation.is_debug else fold_frames(view.error.traceback)
        print("\n".join(map(clean, frames.splitlines())))


# The command that follows a run which another process executes: watch. It needs no code of the user's.


_PAUSE = 0.25
"""Seconds between two looks at a run that does not move."""


_PAGE = 100


@command(
    "watch",
    click.argument("run_id", metavar="RUN"),
    click.option("--after", type=click.IntRange(-1), default=-1, metavar="N",
                 help="Begin after this record instead of with the first."),
    optional_app_option,
)  # fmt: skip
def watch(invocation: Invocation, run_id: str, after: int) -> int:
    """Follow a run to its end, whoever executes it.

    What it did before is told too. Ctrl-C ends the watching and touches nothing. Exit code 0 if the run has finished, 1
    if it ended otherwise.
    """
    with opened_engine(invocation, is_looking=True) as engine:
        return exit_code_of(watched(invocation, engine.store, run_id, after))


def drawn(invocation: Invocation) -> bool:
    """Return whether the output can be drawn again and again. If not, it is written line by line."""
    return not invocation.is_json and sys.stdout.isatty()


def exit_code_of(info: RunInfo) -> int:
    """Return the exit code for the end of a run. Any end but a good one is explained."""
    if info.status == "finished":
        return OK
    print(f"milepost: run {clean(info.run_id)!r} is {info.status}: {clean(in_options(info.reason))}", file=sys.stderr)
    return FAILED


def watched(invocation: Invocation, store: Store, run_id: str, after: int = -1) -> RunInfo:
    """Tell what a run does, line by line, until it ends; how it stands then."""
    invocation.is_live = invocation.is_json
    with _telling(invocation) as tell:
        info = store.get_run(run_id).info
        is_of_steps = is_workflow(store, run_id)
        flow = Undecoded(info.flow, "workflow" if is_of_steps else "graph")
        chronicle = Chronicle(run_id, cast("Flow", flow), undecoded_result)
        shown_status, maps = "", MapProgress()
        for records, found in follow(store, run_id, after, is_replayed=is_of_steps):
            info = found
            for record in records:
                has_begun = record.kind != START or info.status != "ready" or record.sequence < info.sequence
                events = [*_events_of(chronicle, record)] if has_begun or invocation.is_json else []
                for event in events:
                    tell(event, _error_of(record))
                if (progress := maps.tell(record, events[-1] if events else None)) is not None:
                    tell(progress, None)
            if len(records) < _PAGE and info.status not in ENDED:
                if info.status not in {shown_status, "running"}:
                    print(f"milepost: run {clean(run_id)!r} {clean(_stands(info))}", file=sys.stderr)
                shown_status = info.status
    return info


def _stands(info: RunInfo) -> str:
    if info.status == "ready" and info.wake_at is not None and info.wake_at > datetime.now(UTC):
        return f"waits: it is due at {utc(info.wake_at)}"
    return f"is {info.status}: {info.reason}"


def follow(store: Store, run_id: str, after: int = -1, *, is_replayed: bool) -> Iterator[tuple[list[Record], RunInfo]]:
    """The records of a run as they come, up to its end, a page at a time; each with what the store knew of it then.

    Where nothing has come for a while there is an empty page. Raises `CheckpointCorruptError` if the run cannot go on
    because a record is damaged. A run that is replayed needs all records, others those since the newest checkpoint.
    """
    checked = -1
    while True:
        # The row first: whatever was recorded before the run ended is there once it has ended.
        info = store.get_run(run_id).info
        records = store.read(run_id, after=after, limit=_PAGE)
        yield records, info
        if records:
            after = records[-1].sequence
        if len(records) == _PAGE:
            continue
        if info.status in ENDED:
            return
        latest = store.latest(run_id)
        needed = [*latest.tail] if latest.point is None else [latest.point, *latest.tail]
        if is_replayed:
            needed, checked = store.read(run_id, after=checked), latest.newest
        for record in needed:
            try:
                store.seals.check_key(run_id, record)
            except CheckpointIntegrityError:  # the key is elsewhere, and so is the proof
                continue
            store.seals.check(run_id, record)
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _telling(invocation: Invocation) -> Iterator[Callable[[Event, str | None], None]]:
    """Choose how events and the texts of their errors are shown: as JSON, as lines, or as lines of a terminal."""
    if invocation.is_json:
        yield _print_document
    elif sys.stdout.isatty():
        from milepost.cli.terminal import Spinner

        with Spinner() as spinner:
            yield spinner
    else:
        yield _print_line


def _print_document(event: Event, error: str | None) -> None:
    document = event_document(event, Undecoded)
    if error is not None:
        document["error"] = error
    print(to_json(document, is_line=True), flush=True)


def _print_line(event: Event, error: str | None) -> None:
    line = line_of(event, error)
    if line is not None:
        print(line, flush=True)
