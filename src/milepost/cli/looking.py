"""The commands that list: runs, history. They need no code of the user's."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from milepost.cli.exits import OK
from milepost.cli.invocation import Invocation, command, in_options
from milepost.cli.journals import read_entries
from milepost.cli.lines import signal_command, wait_document
from milepost.cli.places import is_postgres, open_each, open_existing, url_of
from milepost.cli.tables import print_table
from milepost.cli.targets import read_pairs
from milepost.cli.text import ago, clean, duration, iso, short, size, to_json
from milepost.errors import RunNotFoundError
from milepost.executor.flow import END
from milepost.model.info import RunInfo
from milepost.store import Store

__all__ = ["history", "info_document", "runs", "shown_next", "why_it_stands"]

_PLACES = 4
"""How many places are named beside the first."""
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


def info_document(info: RunInfo) -> dict[str, Any]:
    """A run as JSON."""
    return {
        "run_id": info.run_id,
        "flow": info.flow,
        "status": info.status,
        "reason": info.reason,
        "degraded": info.degraded,
        "missed": list(info.missed),
        "created_at": iso(info.created_at),
        "updated_at": iso(info.updated_at),
        "sequence": info.sequence,
        "next_node": info.next_node,
        "size": info.size,
        "owner": info.owner,
        "lease_until": iso(info.lease_until),
        "wake_at": iso(info.wake_at),
        "waiting_for": [wait_document(wait) for wait in info.waiting_for],
        "crash_count": info.crash_count,
        "tags": dict(info.tags),
        **({} if info.error is None else {"error": dataclasses.asdict(info.error)}),
    }


def why_it_stands(info: RunInfo, following: str | None, *others: str | None) -> str:
    """One sentence: why the run does not move, or who moves it, and what to do.

    `following` is where it goes on; None: its router has yet to say, "": not known here. `others` are where other branches do.
    """
    told = in_options(info.reason) or f"it is {info.status}"
    places = ", ".join(map(repr, (following, *others[:_PLACES])))
    more = f" and {len(others) - _PLACES} more" if len(others) > _PLACES else ""
    where = {None: " with its router", END: " at its end", "": ""}.get(following, f" at {places}{more}")
    resume = f"milepost resume {info.run_id} TARGET"
    match info.status:
        case "finished":
            return "it has finished"
        case "running":
            return told
        case "dead":
            return f"{told}; {resume} goes on{where}"
        case "ready":
            return f"{told}; milepost worker or {resume} goes on{where}"
        case "waiting":
            waits = info.waiting_for
            sends = "; ".join(
                f"{signal_command(info.run_id, wait, waits)} sends it" for wait in waits if wait.signal is not None
            )
            return f"{told}; {sends}" if sends else told
        case "failed":
            failed = f"it failed: {told}" if info.reason else "it failed"
            again = f"{resume}, or milepost retry for fresh attempts, goes on{where}"
            return failed if "resume" in info.reason else f"{failed}; {again}"
        case "interrupted":
            return f"it was interrupted{f' ({told})' if info.reason else ''}: {resume} goes on{where}"
        case _:
            stands = f"it is {info.status}{f' ({told})' if info.reason else ''}"
            return f"{stands}: {resume} --reopen goes on{where}"


def shown_next(node_id: str | None) -> str:
    """Where a run goes on, for people."""
    return "(end)" if node_id == END else node_id or ""
