"""The commands that show recorded states: state and diff. They need no code of the user's."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from milepost.cli.exits import OK, NotFound
from milepost.cli.invocation import Invocation, command
from milepost.cli.journals import state_of
from milepost.cli.places import open_existing
from milepost.cli.text import clean, pretty, short, to_json
from milepost.errors import CheckpointNotFoundError
from milepost.model.record import CHECKPOINT, OWNER, Record
from milepost.store import Store

__all__ = ["diff", "state"]


@dataclass(frozen=True, slots=True)
class Point:
    """A recorded state and where it stands."""

    sequence: int
    node_id: str
    visit: int
    state: Any

    def to_dict(self) -> dict[str, Any]:
        """The place as JSON, without the state."""
        return {"sequence": self.sequence, "node_id": self.node_id or None, "visit": self.visit}

    def __str__(self) -> str:
        where = f"{self.node_id}#{self.visit}" if self.node_id else "the input"
        return f"{where} (record {self.sequence})"


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
        point = _newest(store, run_id) if node_id is None else _named(store, run_id, node_id, visit)
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
    import jsonpatch

    with open_existing(invocation) as store:
        store.get_run(run_id)
        points = [_find(store, run_id, text) for text in (before, after)]
    patch: list[dict[str, Any]] = jsonpatch.make_patch(points[0].state, points[1].state).patch
    if invocation.is_json:
        document = {"run_id": run_id, "from": points[0].to_dict(), "to": points[1].to_dict(), "patch": patch}
        print(to_json(document))
        return OK
    print(f"from {clean(points[0])} to {clean(points[1])}")
    for sign, text in _changes(points[0].state, patch):
        _print_change(sign, text)
    if not patch:
        print("no difference")
    return OK


def _find(store: Store, run_id: str, text: str) -> Point:
    if text.isdecimal():
        return _numbered(store, run_id, int(text))
    return _named(store, run_id, text, None)


def _named(store: Store, run_id: str, text: str, visit: int | None) -> Point:
    """The state after a node that is written as its id, or as id#visit where no other visit is asked for."""
    node_id, _, number = text.rpartition("#")
    if visit is None and node_id and number.isdecimal():
        return _after_node(store, run_id, node_id, int(number))
    return _after_node(store, run_id, text, visit)


def _numbered(store: Store, run_id: str, sequence: int) -> Point:
    found = store.read(run_id, after=sequence - 1, before=sequence + 1)
    if not found:
        raise NotFound(f"run {run_id!r} has no record {sequence}: see milepost history {run_id}")
    return _point(found[0])


def _after_node(store: Store, run_id: str, node_id: str, visit: int | None) -> Point:
    live = [info for info in store.history(run_id) if info.node_id == node_id]
    matching = [i for i in live if (i.visit == visit if visit is not None else not i.superseded)]
    if not matching:
        what = "there is none" if visit is None else f"there is no visit {visit}"
        raise CheckpointNotFoundError(run_id, node_id, f"{what}: see milepost history {run_id}")
    return _numbered(store, run_id, matching[-1].sequence)


def _newest(store: Store, run_id: str) -> Point:
    """Where a resume would go on from: the newest checkpoint or the input, as the last override left it."""
    latest = store.latest(run_id)
    if latest.point is None:
        raise NotFound(f"run {run_id!r} has no state yet")
    point = _point(latest.point)
    owners = (record for record in latest.tail if record.kind == OWNER and record.payload is not None)
    # One inside a branch is of the checkpoint that it names.
    overrides = [record for record in owners if record.fields().get("overrides") in {None, point.sequence}]
    return Point(point.sequence, point.node_id, point.visit, state_of(overrides[-1])) if overrides else point


def _point(record: Record) -> Point:
    if record.payload is None:
        raise NotFound(f"record {record.sequence} is a {record.kind}, which has no state: name a checkpoint or 0")
    return Point(record.sequence, record.node_id, record.visit if record.kind == CHECKPOINT else 0, state_of(record))


def _changes(before: Any, patch: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """A sign and a text for each operation, with what was there before it."""
    import jsonpatch
    import jsonpointer

    document = copy.deepcopy(before)
    for operation in patch:
        path, kind = operation["path"], operation["op"]
        shown = path or "(the whole state)"
        if kind == "add":
            yield "+", f"{shown}  {_value(operation['value'])}"
        elif kind == "move":
            yield "~", f"{shown}  moved from {operation['from']}"
        else:
            old = _value(jsonpointer.resolve_pointer(document, path))
            yield ("-", f"{shown}  {old}") if kind == "remove" else (
                "~", f"{shown}  {old} -> {_value(operation['value'])}"
            )  # fmt: skip
        document = jsonpatch.JsonPatch([operation]).apply(document, in_place=True)


def _value(value: Any) -> str:
    return short(json.dumps(value, ensure_ascii=False), 100)


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
