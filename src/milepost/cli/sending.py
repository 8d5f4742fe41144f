"""The commands that leave something to others: start, a run for a worker; signal and cancel, to whoever executes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from milepost.cli.places import OK, Invocation, app_option, command, optional_app_option
from milepost.cli.targets import found_flow, opened_engine, read_input, read_json, read_pairs, split_input
from milepost.cli.text import to_json
from milepost.verbs import Bound
from milepost.views.text import clean, iso

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
