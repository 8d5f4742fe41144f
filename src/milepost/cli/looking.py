"""The commands that list: runs, history. They need no code of the user's."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from milepost.cli.places import OK, Invocation, command, is_postgres, open_each, open_existing, url_of
from milepost.cli.targets import read_pairs
from milepost.cli.text import print_table, to_json
from milepost.errors import RunNotFoundError
from milepost.model.info import RunInfo
from milepost.store import Store
from milepost.views.journal import read_entries
from milepost.views.status import info_document, shown_next, why_it_stands
from milepost.views.text import ago, clean, duration, in_options, short, size

STATUSES = ("ready", "running", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked", "dead")


@command(
    "runs",
    click.option("--flow", metavar="NAME", help="Only runs of this flow."),
    click.option("--status", multiple=True, type=click.Choice(STATUSES), help="Only runs of this status. Repeatable."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Only runs with this tag. Repeatable."),
    click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many to show."),
    click.option("--after", metavar="RUN", help="Go on after this run, the last one of the page before."),
)
def runs(
    invocation: Invocation,
    flow: str | None,
    status: tuple[str, ...],
    tags: tuple[str, ...],
    limit: int,
    after: str | None,
) -> int:
    """List runs, newest first."""
    wanted = read_pairs(tags, "--tag")
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(store) for store in open_each(invocation)]
        found = _newest(stores, after, limit + 1, {"flow": flow, "status": status or None, "tags": wanted})
    page, has_more = found[:limit], len(found) > limit
    if invocation.is_json:
        shown = [
            {**info_document(info), "why": why_it_stands(info, info.next_node or ""), "store": place}
            for place, info in page
        ]
        print(to_json({"runs": shown, "after": page[-1][1].run_id if has_more else None}))
        return OK
    if not page:
        is_filtered, url = bool(flow or status or wanted or after), url_of(invocation)
        # A URL of a server may have a password in it.
        where = stores[0].place if is_postgres(url) else url
        print("no runs match" if is_filtered else f"no runs yet in {where}: try milepost demo")
        return OK
    columns = ["run", "flow", "status", "next", "records", "updated", "why", *(["store"] if len(stores) > 1 else [])]
    print_table(columns, [(*_run_row(info), place)[: len(columns)] for place, info in page])
    if has_more:
        print(f"more: milepost runs --after {clean(page[-1][1].run_id)}")
    return OK


def _newest(
    stores: Sequence[Store], after: str | None, limit: int, filters: dict[str, Any]
) -> list[tuple[str, RunInfo]]:
    """The newest runs of all stores, each with its store's place: those after the run `after`, where one is given."""
    if not stores:
        return []
    if len(stores) == 1:
        return [(stores[0].place, info) for info in stores[0].list_runs(limit=limit, after=after, **filters)]
    found: Iterator[tuple[str, RunInfo]]
    found = heapq.merge(*(_all_runs(store, filters) for store in stores), key=_created, reverse=True)
    if after is not None:
        last = _find(stores, after)
        found = itertools.dropwhile(lambda run: _created(run) >= last.created_at, found)
    return list(itertools.islice(found, min(limit, sys.maxsize)))


def _all_runs(store: Store, filters: dict[str, Any]) -> Iterator[tuple[str, RunInfo]]:
    after: str | None = None
    while page := store.list_runs(limit=100, after=after, **filters):
        yield from ((store.place, info) for info in page)
        after = page[-1].run_id


def _created(run: tuple[str, RunInfo]) -> datetime:
    return run[1].created_at


def _find(stores: Sequence[Store], run_id: str) -> RunInfo:
    for store in stores[:-1]:
        with contextlib.suppress(RunNotFoundError):
            return store.get_run(run_id).info
    return stores[-1].get_run(run_id).info


def _run_row(info: RunInfo) -> tuple[object, ...]:
    return (
        info.run_id,
        info.flow,
        info.status,
        _where(info),
        info.sequence + 1,
        ago(info.updated_at),
        short(in_options(info.reason), 60),
    )


def _where(info: RunInfo) -> str:
    """Where a run goes on: where it waits, if it does."""
    if info.status != "waiting" or not info.waiting_for:
        return shown_next(info.next_node)
    return ", ".join(wait.wait_id.rpartition("#")[0] for wait in info.waiting_for)


@command("history", click.argument("run_id", metavar="RUN"))
def history(invocation: Invocation, run_id: str) -> int:
    """List all records of a run in order.

    Every visit, superseded ones too, every failure and every change of owner; of a workflow its steps, waits and rollbacks; of
    a graph with forks or maps, which branch or item each is of.
    """
    with open_existing(invocation) as store:
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
                entry.attempt,
                ago(entry.timestamp) if entry.timestamp else "",
                duration(entry.duration_ms),
                size(entry.size) if entry.size else "",
                shown_next(entry.next_node),
                short(": ".join(filter(None, ("superseded" * entry.superseded, entry.note))), 100),
            )
            for entry in entries
        ],
        styles=["dim" if entry.superseded else "" for entry in entries],
    )
    return OK
