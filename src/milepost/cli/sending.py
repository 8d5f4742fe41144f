"""The commands that leave something to others: start and requeue, to a worker; signal and cancel, to whoever has it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from milepost.cli.commands import FAILED, OK, Invocation, app_option, by_option, command, optional_app_option
from milepost.cli.keeping import check_that_somebody_can_be_asked, is_agreed
from milepost.cli.listing import FILTERS, read_filters, stopping
from milepost.cli.places import chosen_app, open_or_make
from milepost.cli.targets import (
    found_flow,
    opened_engine,
    read_input,
    read_plain,
    split_input,
)
from milepost.cli.text import to_json
from milepost.cli.values import read_json, read_pairs, read_time
from milepost.drivers import SyncDriver
from milepost.engine.engine import Engine
from milepost.engine.matching import Outcomes, StoppedAfter
from milepost.engine.requeue import STANDING
from milepost.executor.effects import Routine
from milepost.model.ids import SYSTEM
from milepost.options import BulkFilters
from milepost.store import ACTIVE
from milepost.verbs import Bound
from milepost.views.runs import find_runs
from milepost.views.text import clean, iso, plural

T = TypeVar("T")

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
    is the initial state of a graph, or an object of the inputs of a workflow, as JSON, or - to read it. Without an app FLOW
    may be the name of any flow: its code is not needed, and the worker that takes the run checks the input.
    """
    moment = None if at is None else read_time(at, "--at")
    name, text = split_input(flow, input)
    wanted = read_pairs(tags, "--tag")
    options: dict[str, Any] = {"run_id": run_id, "at": moment, "if_exists": if_exists, "tags": wanted}
    if name is not None and ":" not in name and (text or fields) and chosen_app(invocation) is None:
        with open_or_make(invocation) as store:
            info = Engine(store).start(name, read_plain(text, fields), **options).info()
    else:
        with found_flow(invocation, name) as (found, open_engine):
            info = open_engine().start(Bound(found, read_input(found, text, fields)), **options).info()
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
    by_option,
    optional_app_option,
)  # fmt: skip
def signal(
    invocation: Invocation,
    run_id: str,
    name: str,
    payload: str | None,
    to: str | None,
    signal_id: str | None,
    by: str | None,
) -> int:
    """Send a run a signal. JSON is its payload, or - to read it.

    It is kept where nothing waits for it yet.
    """
    value = None if payload is None else read_json(payload, "the payload")
    with opened_engine(invocation) as engine:
        outcome = engine.signal(run_id, name, value, signal_id=signal_id, to=to, by=by)
    return _tell(invocation, outcome, f"signal {clean(name)!r} of run {clean(run_id)!r}", run_id=run_id, signal=name)


@command(
    "cancel",
    click.argument("run_id", metavar="[RUN]", required=False),
    *FILTERS,
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N of them. Default: all."),
    click.option("--reason", default="", metavar="TEXT", help="Told by show, and to whoever waits for the run."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    by_option,
    optional_app_option,
)  # fmt: skip
def cancel(invocation: Invocation, run_id: str | None, reason: str, yes: bool, by: str | None, **given: Any) -> int:
    """Ask a run to end, or all that match.

    Where nobody executes it, it is cancelled at once; else by its owner, within seconds. Of many runs those are meant that
    have not ended, or with --error or --error-node the failed ones; they are shown first, and it is asked. Exit code 1 if
    one is refused; the others end all the same.
    """
    filters = _filters_instead_of(bool(run_id), given, "cancel")
    with opened_engine(invocation) as engine:
        if run_id is not None:
            outcome = engine.cancel(run_id, reason, by=by)
            return _tell(invocation, outcome, f"cancel of run {clean(run_id)!r}", run_id=run_id)
        found, stop = _found(engine, filters, ACTIVE)
        if not _is_agreed("cancel", "nothing was cancelled", found, yes=yes):
            return FAILED
        outcomes = _each(found, lambda run_id: engine.handle(run_id)._ended(reason, by))
    if invocation.is_json:
        document = {"outcomes": outcomes.done, "refused": outcomes.refused, "stopped_after": stop and stop.after}
        print(to_json(document))
        return FAILED if outcomes.refused else OK
    for run_id, outcome in outcomes.done.items():
        if outcome != "cancelled":
            print(f"{clean(run_id)}: {outcome}: {_OUTCOMES[outcome]}")
    ended = [*outcomes.done.values()].count("cancelled")
    return _tell_all(found, outcomes.refused, f"cancelled {plural(ended, 'run')}", stop)


@command(
    "requeue",
    click.argument("run_ids", metavar="[RUN...]", nargs=-1),
    *FILTERS,
    click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the newest N of them. Default: all."),
    click.option("--reopen", is_flag=True, help="Also runs that were cancelled, or that crashes blocked."),
    click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    by_option,
    optional_app_option,
)  # fmt: skip
def requeue(
    invocation: Invocation, run_ids: tuple[str, ...], reopen: bool, yes: bool, by: str | None, **given: Any
) -> int:
    """Leave runs to the workers, by id or all that match.

    A run that failed goes on as by retry, any other as by resume. Without --status those are meant that failed, were
    interrupted or are blocked. Shows the runs and asks first. Exit code 1 if one is refused; the others go on all the same.
    """
    filters = _filters_instead_of(bool(run_ids), given, "requeue")
    with opened_engine(invocation) as engine:
        found, stop = ([*dict.fromkeys(run_ids)], None) if run_ids else _found(engine, filters, STANDING)
        if not _is_agreed("requeue", "nothing was requeued", found, yes=yes):
            return FAILED
        if len(run_ids) == 1:
            engine.requeue(*run_ids, reopen=reopen, by=by)
            outcomes: Outcomes[None] = Outcomes({run_ids[0]: None}, {})
        else:
            outcomes = _each(found, lambda run_id: engine.handle(run_id)._requeued(reopen=reopen, by=by))
    if invocation.is_json:
        print(to_json({"done": [*outcomes.done], "refused": outcomes.refused, "stopped_after": stop and stop.after}))
        return FAILED if outcomes.refused else OK
    return _tell_all(found, outcomes.refused, f"requeued {plural(len(outcomes.done), 'run')}", stop)


# -- many runs -------------------------------------------------------------------------------------


def _filters_instead_of(has_ids: bool, given: Mapping[str, Any], deed: str) -> BulkFilters:
    """Return the filters that say which runs are meant. Refuse ids and filters together, and neither of them."""
    filters = read_filters(given)
    if has_ids == bool(filters):
        options = "--status, --flow, --error, --error-node, --tag, --prefix, --created-after or --created-before"
        raise click.UsageError(f"name what to {deed}, or say which runs with {options}")
    return filters


def _found(engine: Engine, filters: BulkFilters, otherwise: Sequence[str]) -> tuple[list[str], StoppedAfter | None]:
    found, stop = find_runs(engine.store, filters, otherwise, is_complete=True)
    return [info.run_id for info in found], stop


def _is_agreed(deed: str, otherwise: str, run_ids: Sequence[str], *, yes: bool) -> bool:
    """Show the runs and ask, unless that was agreed to before."""
    if yes or not run_ids:
        return True
    for run_id in run_ids:
        print(f"would {deed} {clean(run_id)}", file=sys.stderr)
    check_that_somebody_can_be_asked(deed)
    return is_agreed(f"{deed} {plural(len(run_ids), 'run')}?", otherwise)


def _each(run_ids: Sequence[str], act: Callable[[str], Routine[T]]) -> Outcomes[T]:
    outcomes: Outcomes[T] = Outcomes({}, {})
    for run_id in run_ids:
        SyncDriver(SYSTEM).run(outcomes.add(run_id, act(run_id)))
    return outcomes


def _tell_all(run_ids: Sequence[str], refused: Mapping[str, str], done: str, stop: StoppedAfter | None) -> int:
    for run_id, reason in refused.items():
        print(f"refused {clean(run_id)}: {clean(reason)}")
    print(done if run_ids else "no runs match")
    if stop is not None:
        print(f"{stopping(stop)}go on with --after {clean(stop.after)}")
    return FAILED if refused else OK


def _tell(invocation: Invocation, outcome: str, what: str, **facts: str) -> int:
    if invocation.is_json:
        print(to_json({**facts, "outcome": outcome}))
    else:
        print(f"{what}: {outcome}: {_OUTCOMES[outcome]}")
    return OK
