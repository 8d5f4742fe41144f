"""The command that follows a run which another process executes: watch. It needs no code of the user's."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import cast

import click

from milepost.cli.apps import app_option, opened_store
from milepost.cli.places import FAILED, OK, Invocation, command
from milepost.cli.text import to_json
from milepost.executor.chronicle import Chronicle
from milepost.executor.flow import Flow
from milepost.model.events import Event
from milepost.model.info import RunInfo
from milepost.model.record import Record
from milepost.store import ENDED, Store
from milepost.views.events import _error_of, _event_of, _result_of, _Undecoded, event_document, line_of
from milepost.views.journal import is_workflow
from milepost.views.text import clean, in_options

_PAUSE = 0.25
"""Seconds between two looks at a run that does not move."""


_PAGE = 100


@command(
    "watch",
    click.argument("run_id", metavar="RUN"),
    click.option("--after", type=click.IntRange(-1), default=-1, metavar="N",
                 help="Begin after this record instead of with the first."),
    app_option(),
)  # fmt: skip
def watch(invocation: Invocation, run_id: str, after: int, app: str | None) -> int:
    """Follow a run to its end, whoever executes it.

    What it did before is told too. Ctrl-C ends the watching and touches nothing. Exit code 0 if the run has finished, 1
    if it ended otherwise.
    """
    with opened_store(invocation, app) as store:
        return exit_code_of(watched(invocation, store, run_id, after))


def drawn(invocation: Invocation) -> bool:
    """Whether what is followed can be drawn again and again: else it is told line by line."""
    return not invocation.is_json and sys.stdout.isatty()


def exit_code_of(info: RunInfo) -> int:
    """What the end of a run means for whoever followed it, who is told of any but a good one."""
    if info.status == "finished":
        return OK
    print(f"milepost: run {clean(info.run_id)!r} is {info.status}: {clean(in_options(info.reason))}", file=sys.stderr)
    return FAILED


def watched(invocation: Invocation, store: Store, run_id: str, after: int = -1) -> RunInfo:
    """Tell what a run does, line by line, until it ends; how it stands then."""
    invocation.is_live = invocation.is_json
    with _telling(invocation) as tell:
        info = store.get_run(run_id).info
        flow = _Undecoded(info.flow, "workflow" if is_workflow(store, run_id) else "graph")
        chronicle = Chronicle(run_id, cast("Flow", flow), _result_of if flow.front == "workflow" else None)
        told = ""
        for records, found in follow(store, run_id, after):
            info = found
            for record in records:
                event = _event_of(chronicle, record)
                if event is not None:
                    tell(event, _error_of(record))
            if len(records) < _PAGE and info.status not in ENDED:
                if info.status not in {told, "running"}:
                    print(f"milepost: run {clean(run_id)!r} is {info.status}: {clean(info.reason)}", file=sys.stderr)
                told = info.status
    return info


def follow(store: Store, run_id: str, after: int = -1) -> Iterator[tuple[list[Record], RunInfo]]:
    """The records of a run as they come, up to its end, a page at a time; each with what the store knew of it then.

    Where nothing has come for a while there is an empty page.
    """
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
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _telling(invocation: Invocation) -> Iterator[Callable[[Event, str | None], None]]:
    """How an event, and the text of its error, are shown: as JSON, as a line, or as a line of a terminal."""
    if invocation.is_json:
        yield _print_document
    elif sys.stdout.isatty():
        from milepost.cli.terminal import Spinner

        with Spinner() as spinner:
            yield spinner
    else:
        yield _print_line


def _print_document(event: Event, error: str | None) -> None:
    document = event_document(event, _Undecoded)
    if error is not None:
        document["error"] = error
    print(to_json(document, is_line=True), flush=True)


def _print_line(event: Event, error: str | None) -> None:
    line = line_of(event, error)
    if line is not None:
        print(line, flush=True)
