"""The commands that show recorded states: state and diff. They need no code of the user's."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from milepost.cli.places import OK, Invocation, NotFound, command, open_existing
from milepost.cli.text import pretty, to_json
from milepost.views.states import StateMissingError, changes, find_state, named_state, newest_state, patch_between
from milepost.views.text import clean


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
    with open_existing(invocation) as store:
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
    with open_existing(invocation) as store:
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
