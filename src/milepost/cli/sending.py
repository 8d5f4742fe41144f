"""The commands that leave something to others: start and requeue, to a worker; signal and cancel, to whoever has it."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any

import click

from milepost.cli.keeping import check_that_somebody_can_be_asked, is_agreed
from milepost.cli.looking import STATUSES
from milepost.cli.places import FAILED, OK, Invocation, app_option, command, optional_app_option
from milepost.cli.targets import found_flow, opened_engine, read_input, read_json, read_pairs, split_input
from milepost.cli.text import to_json
from milepost.drivers import SyncDriver
from milepost.engine.requeue import matching, requeue_each
from milepost.model.ids import SYSTEM
from milepost.model.reports import Requeued
from milepost.options import RequeueFilters
from milepost.verbs import Bound
from milepost.views.text import clean, iso, plural

_OUTCOMES = {
    "taken": "the run waits for it",
    "kept": "nobody waits for it yet",
    "duplicate": "one with this id was sent before; this one changes nothing",
    "cancelled": "the run is cancelled",
    "requested": "its owner is asked to end it, or a worker will",
    "ended": "the run had ended before; nothing was changed",
}


@command(
    "start",
    click.argument("flow", metavar="[FLOW]", required=False),
    click.argument("input", metavar="[INPUT]", required=False),
    click.option("--input", "-i", "fields", multiple=True, metavar="KEY=VALUE",
                 help="One field of the state, or one input; VALUE is JSON if it parses, else text. Repeatable."),
    click.option("--run-id", metavar="ID", help="Default: one is made."),
    click.option("--at", metavar="TIME", help="When, with its zone, such as 2026-12-24T18:00:00Z. Default: at once."),
    click.option("--if-exists", type=click.Choice(["error", "resume", "retry", "return", "continue"]),
                 default="error", show_default=True, help="What becomes of a run of that id."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="A tag of the run. Repeatable."),
    app_option,
)  # fmt: skip
def start(
    invocation: Invocation,
    flow: str | None,
    input: str | None,
    fields: tuple[str, ...],
    run_id: str | None,
    at: str | None,
    if_exists: Any,
    tags: tuple[str, ...],
) -> int:
    """Record a run for a worker to take up, and print its id.

    FLOW is module:flow or path.py:flow or the name of one of the app's flows; it may be left out if the app has one. INPUT
    is the initial state of a graph, or an object of the inputs of a workflow, as JSON, or - to read it.
    """
    moment = None if at is None else _read_time(at)
    name, text = split_input(flow, input)
    wanted = read_pairs(tags, "--tag")
    with found_flow(invocation, name) as (found, open_engine):
        bound = Bound(found, read_input(found, text, fields))
        info = open_engine().start(bound, run_id=run_id, at=moment, if_exists=if_exists, tags=wanted).info()
    if invocation.is_json:
        print(to_json({"run_id": info.run_id, "status": info.status, "wake_at": iso(info.wake_at)}))
    else:
        print(clean(info.run_id))
    return OK


@command(
    "signal",
    click.argument("run_id", metavar="RUN"),
    click.argument("name", metavar="NAME"),
    click.argument("payload", metavar="[JSON]", required=False),
    click.option("--to", metavar="WAIT", help="Only this wait, such as approve#1, as show tells it."),
    click.option("--id", "--signal-id", "signal_id", metavar="ID",
                 help="One that was sent with this id before is not sent again."),
    optional_app_option,
)  # fmt: skip
def signal(
    invocation: Invocation,
    run_id: str,
    name: str,
    payload: str | None,
    to: str | None,
    signal_id: str | None,
) -> int:
    """Send a run a signal. JSON is its payload, or - to read it.

    It is kept where nothing waits for it yet.
    """
    value = None if payload is None else read_json(payload, "the payload")
    with opened_engine(invocation) as engine:
        outcome = engine.signal(run_id, name, value, signal_id=signal_id, to=to)
    return _tell(invocation, outcome, f"signal {clean(name)!r} of run {clean(run_id)!r}", run_id=run_id, signal=name)


@command(
    "cancel",
    click.argument("run_id", metavar="RUN"),
    click.option("--reason", default="", metavar="TEXT", help="Told by show, and to whoever waits for the run."),
    optional_app_option,
)
def cancel(invocation: Invocation, run_id: str, reason: str) -> int:
    """Ask a run to end.

    Where nobody executes it, it is cancelled at once; else by its owner, within seconds.
    """
    with opened_engine(invocation) as engine:
        outcome = engine.cancel(run_id, reason)
    return _tell(invocation, outcome, f"cancel of run {clean(run_id)!r}", run_id=run_id)


@command(
    "requeue",
    click.argument("run_ids", metavar="[RUN...]", nargs=-1),
    click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), metavar="STATUS",
                 help="All runs of this status. Repeatable. Default: failed, interrupted and blocked."),
    click.option("--flow", metavar="NAME", help="All runs of this flow."),
    click.option("--error", "error_type", metavar="TYPE", help="All runs that failed with this error, such as TypeError."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="All runs with this tag. Repeatable."),
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N of them. Default: all."),
    click.option("--reopen", is_flag=True, help="Also runs that were cancelled, or that crashes blocked."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    optional_app_option,
)  # fmt: skip
def requeue(
    invocation: Invocation,
    run_ids: tuple[str, ...],
    statuses: tuple[str, ...],
    flow: str | None,
    error_type: str | None,
    tags: tuple[str, ...],
    limit: int | None,
    reopen: bool,
    yes: bool,
) -> int:
    """Leave runs to the workers, by id or all that match.

    A run that failed goes on as by retry, any other as by resume. Shows the runs and asks first. Exit code 1 if one is
    refused; the others go on all the same.
    """
    filters: RequeueFilters = {
        "flow": flow, "status": statuses or None, "error_type": error_type, "tags": read_pairs(tags, "--tag") or None,
        "limit": limit,
    }  # fmt: skip
    is_filtered = any(filters.values())
    if bool(run_ids) == is_filtered:
        raise click.UsageError("name runs to requeue, or say which with --status, --flow, --error or --tag")
    if not yes:
        check_that_somebody_can_be_asked("requeue")
    with opened_engine(invocation) as engine:
        driver = SyncDriver(SYSTEM)
        found = [*dict.fromkeys(run_ids)] or driver.run(matching(engine.store, **filters))
        if found and not yes:
            for run_id in found:
                print(f"would requeue {clean(run_id)}", file=sys.stderr)
            if not is_agreed(f"requeue {plural(len(found), 'run')}?", "nothing was requeued"):
                return FAILED
        if len(run_ids) == 1:
            engine.requeue(*run_ids, reopen=reopen)
            requeued = Requeued(run_ids)
        else:
            requeued = driver.run(requeue_each(found, lambda run_id: engine.handle(run_id)._requeued(reopen=reopen)))
    if invocation.is_json:
        print(to_json({"done": list(requeued.done), "refused": dict(requeued.refused)}))
    else:
        for run_id, reason in requeued.refused.items():
            print(f"refused {clean(run_id)}: {clean(reason)}")
        print(f"requeued {plural(len(requeued.done), 'run')}" if found else "no runs match")
    return FAILED if requeued.refused else OK


def _read_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise click.UsageError(f"--at takes a time such as 2026-12-24T18:00:00Z, not {text!r}") from exc
    if moment.tzinfo is None:
        example = moment.isoformat(timespec="seconds")
        raise click.UsageError(f"--at takes a time with its zone, such as {example}Z or {example}+01:00")
    return moment


def _tell(invocation: Invocation, outcome: str, what: str, **facts: str) -> int:
    if invocation.is_json:
        print(to_json({**facts, "outcome": outcome}))
    else:
        print(f"{what}: {outcome}: {_OUTCOMES[outcome]}")
    return OK
