"""The command that shows where one run stands: show. It needs no code of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from milepost.cli.exits import OK
from milepost.cli.graphs import following, graph_rows, standing_document
from milepost.cli.invocation import Invocation, command
from milepost.cli.journals import is_workflow, next_node, read_entries, records_of, steps_of
from milepost.cli.looking import info_document, shown_next, why_it_stands
from milepost.cli.places import open_existing
from milepost.cli.tables import print_facts, print_table
from milepost.cli.text import ago, clean, duration, plural, short, size, to_json
from milepost.cli.trees import Tree, TreeStep, rows_of, tree_of
from milepost.cli.watching import drawn, exit_code_of, watched
from milepost.graph.status import RunStatus, Visit, standing
from milepost.model.info import RunInfo
from milepost.model.record import Record
from milepost.store import RunSnapshot

__all__ = ["show"]

_STATUS_STYLES = {
    "done": "",
    "skipped": "dim",
    "recovered": "yellow",
    "failed": "red",
    "rolled back": "yellow",
    "rollback failed": "red",
    "waiting": "magenta",
    "running": "cyan",
    "next": "yellow",
    "in flight": "cyan",
    "unfinished": "dim",
}
"""What the status of a step, or of a visit, looks like in a terminal."""


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
    with open_existing(invocation) as store:
        if watch and not drawn(invocation):
            return exit_code_of(watched(invocation, store, run_id))
        is_of_steps = is_workflow(store, run_id)
        if watch:
            from milepost.cli.redrawing import redrawn

            info = redrawn(store, run_id, lambda latest, records: _shown(latest, records, store.place, is_of_steps))
            _shown(store.latest(run_id), records_of(store, run_id), store.place, is_of_steps).print()
            print_error(store.get_run(run_id).info)
            return exit_code_of(info)
        latest = store.latest(run_id)
        shown = _shown(latest, records_of(store, run_id, latest.newest), store.place, is_of_steps)
        info = store.get_run(run_id).info
        if not invocation.is_json:
            shown.print()
            print_error(info)
            return OK
        steps = [] if is_of_steps else [step.to_dict() for step in steps_of(read_entries(store, run_id))]
    document = {"run": info_document(replace(latest.row.info, error=info.error))}
    print(to_json({**document, **({} if is_of_steps else {"steps": steps}), **shown.document()}))
    return OK


def print_error(info: RunInfo) -> None:
    """Print the traceback of what a run failed with, as far as it is recorded."""
    if info.error is not None and info.error.traceback:
        print()
        print("\n".join(map(clean, info.error.traceback.splitlines())))


def _shown(latest: RunSnapshot, records: Iterable[Record], place: str, is_of_steps: bool) -> Shown:
    """What is shown of a run whose row and records these are."""
    row = latest.row
    if is_of_steps:
        return Shown(latest, place, tree_of(records, latest))
    return Shown(latest, place, standing(records, row.live, row.info.status))


@dataclass(frozen=True, slots=True)
class Shown:
    """One look at a run."""

    latest: RunSnapshot
    place: str
    found: Tree | RunStatus

    @property
    def following(self) -> tuple[str | None, ...]:
        """Where the run goes on, in each branch that is open."""
        found = self.found
        return (found.next_step,) if isinstance(found, Tree) else following(found, next_node(self.latest))

    def print(self) -> None:
        """Print it for people."""
        print_facts(self.facts())
        columns, rows, styles = self.table()
        if rows:
            print()
            print_table(columns, rows, styles=styles)

    def facts(self) -> list[tuple[str, object]]:
        """What is told of the run as a whole."""
        info, found = self.latest.row.info, self.found
        newest = "result" if isinstance(found, Tree) else "state"
        where = [shown_next(node) for node in self.following]
        facts: list[tuple[str, object]] = [
            ("run", info.run_id),
            ("flow", info.flow),
            ("status", info.status + (" (degraded)" if info.degraded else "")),
            ("why", why_it_stands(info, *self.following)),
            ("next", short(", ".join(where), 160)),
            ("created", ago(info.created_at)),
            ("updated", ago(info.updated_at)),
            ("records", str(info.sequence + 1) + (f", the newest {newest} has {size(info.size)}" if info.size else "")),
            ("crashes", info.crash_count or None),
            ("missed", ", ".join(info.missed)),
            ("tags", " ".join(f"{key}={value}" for key, value in info.tags.items())),
        ]
        if isinstance(found, Tree):
            inputs = found.inputs if isinstance(found.inputs, dict) else {}
            told = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in inputs.items())
            facts.append(("inputs", short(told, 160)))
            if info.status == "finished":
                facts.append(("output", short(json.dumps(found.output, ensure_ascii=False), 160)))
        old = [f"{record.node_id}#{record.visit}" for record in found.superseded]
        if old:
            what = "result" if isinstance(found, Tree) else "visit"
            facts.append(("superseded", f"{plural(len(old), what)}: {short(', '.join(old), 100)}"))
        if found.damaged:
            facts.append(("damaged", f"{plural(len(found.damaged), 'record')}: see milepost verify {info.run_id}"))
        return [*facts, ("store", self.place)]

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[object]], Sequence[str]]:
        """The tree as a table: its columns, its rows, and the style of each row."""
        found = self.found
        rows: list[tuple[TreeStep | Visit | None, str, str]]
        rows = [*rows_of(found.steps)] if isinstance(found, Tree) else [*graph_rows(found.visits)]
        has_marks = any(isinstance(step, TreeStep) and step.is_marked for step, _, _ in rows)
        first = "step" if isinstance(found, Tree) else "node"
        columns = [first, "kind", "status", "attempts", "took", *(["point"] if has_marks else []), "told"]
        styles = ["" if step is None else _STATUS_STYLES.get(step.status, "") for step, _, _ in rows]
        return columns, [_row(*row, has_marks=has_marks) for row in rows], styles

    def document(self) -> dict[str, Any]:
        """It as JSON, without the run's row."""
        first, *_ = self.following
        found = self.found
        common = {
            "why": why_it_stands(self.latest.row.info, *self.following),
            "next_node": first or None,
            "cancel_requested": self.latest.row.cancel,
        }
        return common | (_tree_document(found) if isinstance(found, Tree) else standing_document(found))


def _tree_document(tree: Tree) -> dict[str, Any]:
    superseded = [
        {"step_id": record.node_id, "visit": record.visit, "sequence": record.sequence} for record in tree.superseded
    ]
    return {
        "steps": [step.to_dict() for step in tree.steps],
        "inputs": tree.inputs,
        "output": tree.output,
        "superseded": superseded,
        "damaged": list(tree.damaged),
    }


def _row(step: TreeStep | Visit | None, name: str, told: str, *, has_marks: bool) -> tuple[object, ...]:
    if step is None:
        return (name, *[""] * (5 + has_marks))
    kind = step.step_type if isinstance(step, TreeStep) else "" if step.kind == "node" else step.kind
    took = "" if step.duration_ms is None else duration(step.duration_ms)
    is_marked = isinstance(step, TreeStep) and step.is_marked
    mark = [("marked" if is_marked else "")] if has_marks else []
    return (name, kind, step.status, step.attempts or "", took, *mark, told)
