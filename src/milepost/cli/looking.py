"""The commands that look at runs: runs, show, history. They need no code of the user's."""

from __future__ import annotations

from typing import Any

import click

from milepost.cli.exits import OK
from milepost.cli.invocation import Invocation, command
from milepost.cli.journals import Step, next_node, read_entries, steps_of
from milepost.cli.places import has_store, open_existing, url_of
from milepost.cli.tables import print_facts, print_table
from milepost.cli.targets import read_pairs
from milepost.cli.text import ago, clean, duration, iso, short, size, to_json
from milepost.flow import END
from milepost.store import RunInfo

__all__ = ["history", "info_document", "runs", "show", "why_it_stands"]

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
    found: list[RunInfo] = []
    if has_store(invocation):
        with open_existing(invocation) as store:
            if after is not None:
                store.get_run(after)
            found = store.list_runs(flow=flow, status=status or None, tags=wanted, limit=limit + 1, after=after)
    page, has_more = found[:limit], len(found) > limit
    if invocation.is_json:
        document = {"runs": [info_document(info) for info in page], "after": page[-1].run_id if has_more else None}
        print(to_json(document))
        return OK
    if not page:
        is_filtered = bool(flow or status or wanted or after)
        print("no runs match" if is_filtered else f"no runs yet in {url_of(invocation)}: try milepost demo")
        return OK
    print_table(
        ("run", "flow", "status", "next", "records", "updated", "reason"),
        [
            (
                i.run_id,
                i.flow,
                i.status,
                _shown_next(i.next_node),
                i.sequence + 1,
                ago(i.updated_at),
                short(i.reason, 50),
            )
            for i in page
        ],
    )
    if has_more:
        print(f"more: milepost runs --after {clean(page[-1].run_id)}")
    return OK


@command("show", click.argument("run_id", metavar="RUN"))
def show(invocation: Invocation, run_id: str) -> int:
    """Show where a run stands, and why.

    One sentence says why it does not move; a table tells what its nodes did.
    """
    with open_existing(invocation) as store:
        latest = store.latest(run_id)
        info = latest.row.info
        steps = steps_of(read_entries(store, run_id))
        place = store.place
    following = next_node(latest)
    why = why_it_stands(info, following)
    if invocation.is_json:
        document = {
            "run": info_document(info),
            "why": why,
            "next_node": following,
            "cancel_requested": latest.row.cancel,
            "steps": [step.to_dict() for step in steps],
        }
        print(to_json(document))
        return OK
    print_facts(
        [
            ("run", info.run_id),
            ("flow", info.flow),
            ("status", info.status + (" (degraded)" if info.degraded else "")),
            ("why", why),
            ("next", _shown_next(following)),
            ("created", ago(info.created_at)),
            ("updated", ago(info.updated_at)),
            ("records", str(info.sequence + 1) + (f", the newest state has {size(info.size)}" if info.size else "")),
            ("crashes", info.crash_count or None),
            ("missed", ", ".join(info.missed)),
            ("tags", " ".join(f"{key}={value}" for key, value in info.tags.items())),
            ("store", place),
        ]
    )
    if steps:
        print()
        print_table(
            ("node", "visits", "attempts", "failures", "took", "last", "next"), [_step_row(step) for step in steps]
        )
    return OK


@command("history", click.argument("run_id", metavar="RUN"))
def history(invocation: Invocation, run_id: str) -> int:
    """List all records of a run in order.

    Every visit, superseded ones too, every failure and every change of owner.
    """
    with open_existing(invocation) as store:
        store.get_run(run_id)
        entries = list(read_entries(store, run_id))
    if invocation.is_json:
        print(to_json({"run_id": run_id, "records": [entry.to_dict() for entry in entries]}))
        return OK
    print_table(
        ("record", "kind", "node", "attempt", "time", "took", "size", "next", "note"),
        [
            (
                entry.sequence,
                entry.kind,
                f"{entry.node_id}#{entry.visit}" if entry.node_id else "",
                entry.attempt,
                ago(entry.timestamp) if entry.timestamp else "",
                duration(entry.duration_ms),
                size(entry.size) if entry.size else "",
                _shown_next(entry.next_node),
                "superseded" if entry.superseded else short(entry.note, 100),
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
        "waiting_for": [
            {"wait_id": w.wait_id, "signal": w.signal, "prompt": w.prompt, "wake_at": iso(w.wake_at)}
            for w in info.waiting_for
        ],
        "crash_count": info.crash_count,
        "tags": dict(info.tags),
    }


def why_it_stands(info: RunInfo, following: str | None) -> str:
    """One sentence: why the run does not move, or that it does, and what to do."""
    where = f"at {following!r}" if following not in {None, END} else "at its end" if following else "with its router"
    reason = f": {info.reason}" if info.reason else ""
    told = f" ({info.reason})" if info.reason else ""
    resume = f"milepost resume {info.run_id} TARGET"
    match info.status:
        case "finished":
            return "it has finished"
        case "running":
            until = f", whose lease lasts until {ago(info.lease_until)}" if info.lease_until else ""
            return f"it moves: {owner_of(info)} executes it{until}"
        case "dead":
            return f"{owner_of(info)} has died or stands still and its lease has ended: {resume} goes on {where}"
        case "interrupted":
            return f"it was interrupted{told}: {resume} goes on {where}"
        case "failed":
            again = f"{resume}, or milepost retry for fresh attempts, goes on {where}"
            return f"it failed{reason}" if "resume" in info.reason else f"it failed{reason}; {again}"
        case "waiting":
            waits = ", ".join(w.signal or w.wait_id for w in info.waiting_for) or "its time"
            return f"it waits for {waits}" + (f" until {ago(info.wake_at)}" if info.wake_at else "")
        case "ready":
            return (
                f"ready since {ago(info.updated_at)}; no worker has taken flow {info.flow!r}: {resume} goes on {where}"
            )
        case _:
            return f"it is {info.status}{told}: {resume} --reopen goes on {where}"


def owner_of(info: RunInfo) -> str:
    """The process that executes, or executed, a run."""
    parts = info.owner.split(":")
    return f"process {parts[-2]}" if len(parts) > 1 and parts[-2].isdigit() else "its owner"


def _step_row(step: Step) -> tuple[object, ...]:
    return (
        step.node_id,
        step.visits,
        step.attempts,
        step.failures or "",
        duration(step.duration_ms),
        ago(step.last_at) if step.last_at else "",
        _shown_next(step.next_node),
    )


def _shown_next(node_id: str | None) -> str:
    return "(end)" if node_id == END else node_id or ""
