"""The command that shows where one run stands: show. It needs no code of the user's."""

from __future__ import annotations

from dataclasses import replace

import click

from milepost.cli.places import OK, Invocation, command, open_existing
from milepost.cli.text import print_facts, print_table, styles_of, to_json
from milepost.cli.watching import drawn, exit_code_of, follow, watched
from milepost.model.info import RunInfo
from milepost.views.journal import is_workflow, read_entries, records_of, steps_of
from milepost.views.status import RunView, info_document, view_run
from milepost.views.text import clean


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
            from milepost.cli.terminal import redrawn

            info = redrawn(
                follow(store, run_id), lambda records: view_run(store.latest(run_id), records, store.place, is_of_steps)
            )
            print_view(view_run(store.latest(run_id), records_of(store, run_id), store.place, is_of_steps))
            print_error(store.get_run(run_id).info)
            return exit_code_of(info)
        latest = store.latest(run_id)
        shown = view_run(latest, records_of(store, run_id, latest.newest), store.place, is_of_steps)
        info = store.get_run(run_id).info
        if not invocation.is_json:
            print_view(shown)
            print_error(info)
            return OK
        steps = [] if is_of_steps else [step.to_dict() for step in steps_of(read_entries(store, run_id))]
    document = {"run": info_document(replace(latest.row.info, error=info.error))}
    print(to_json({**document, **({} if is_of_steps else {"steps": steps}), **shown.document()}))
    return OK


def print_view(view: RunView) -> None:
    """Print where a run stands: facts, and the tree below them."""
    print_facts(view.facts())
    columns, rows, statuses = view.table()
    if rows:
        print()
        print_table(columns, rows, styles=styles_of(statuses))


def print_error(info: RunInfo) -> None:
    """Print the traceback of what a run failed with, as far as it is recorded."""
    if info.error is not None and info.error.traceback:
        print()
        print("\n".join(map(clean, info.error.traceback.splitlines())))
