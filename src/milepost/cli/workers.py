"""The commands that show who works on a store, and by which schedules: workers, schedules."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from milepost.cli.commands import OK, Invocation, command, shared_options
from milepost.cli.places import open_existing, open_to_look
from milepost.cli.text import print_table, to_json
from milepost.model.workers import ScheduleInfo, SchedulePause
from milepost.views.text import ago, clean, short
from milepost.views.workers import newest_schedules, workers_document

_by_option = click.option("--by", metavar="NAME", help="Who does this; the list and the log tell it.")
_NOT_KNOWN = "not known: no worker has told this store of itself, or it keeps no beats"


@command("workers")
def workers(invocation: Invocation) -> int:
    """List the workers of the last 24 hours.

    Each with what it last told of itself.

    A worker tells of itself every 15 seconds: one whose last beat is older than 45 seconds has ended or stands still.
    """
    with open_to_look(invocation) as store:
        if invocation.is_json:
            print(to_json({"workers": workers_document(store, datetime.now(UTC))["workers"]}))
            return OK
        found = store.workers()
    if not found:
        print(_NOT_KNOWN if found is None else "no worker in the last 24 hours")
    else:
        print_table(
            ("worker", "beat", "runs", "flows", "refused"),
            [
                (
                    info.name,
                    ago(info.beat),
                    f"{info.running} of {info.concurrency}",
                    short(", ".join(info.flows), 60),
                    len(info.refused) or "",
                )
                for info in found
            ],
            is_cut=True,
        )
    return OK


@click.group("schedules", invoke_without_command=True)
@shared_options
@click.pass_context
def schedules(context: click.Context) -> int:
    """List the schedules of the workers; pause one, or have it go on."""
    return OK if context.invoked_subcommand is not None else _list(context.ensure_object(Invocation))


def _list(invocation: Invocation) -> int:
    with open_to_look(invocation) as store:
        if invocation.is_json:
            document = workers_document(store, datetime.now(UTC))
            is_known = document["schedules"] or document["workers"] is not None
            print(to_json({"schedules": document["schedules"] if is_known else None}))
            return OK
        found, pauses = store.workers(), store.paused_schedules()
    known = newest_schedules(found or ())
    if names := sorted({*known, *pauses}):
        rows = [_row(name, known.get(name), pauses.get(name)) for name in names]
        print_table(("schedule", "flow", "cron", "zone", "next", "last run", "paused"), rows, is_cut=True)
    else:
        print(_NOT_KNOWN if found is None else "no worker has a schedule")
    return OK


@command("pause", click.argument("name", metavar="SCHEDULE"), _by_option)
def pause(invocation: Invocation, name: str, by: str | None) -> int:
    """Have no worker start runs by it.

    Times that pass meanwhile are not made up for.
    """
    with open_existing(invocation) as store:
        store.pause_schedule(name, by=by)
    return _tell(invocation, name, "paused")


@command("resume", click.argument("name", metavar="SCHEDULE"), _by_option)
def resume(invocation: Invocation, name: str, by: str | None) -> int:
    """Have workers start runs by it again.

    They go on from its next time.
    """
    with open_existing(invocation) as store:
        store.resume_schedule(name, by=by)
    return _tell(invocation, name, "resumed")


schedules.add_command(pause)
schedules.add_command(resume)


def _tell(invocation: Invocation, name: str, outcome: str) -> int:
    print(to_json({"schedule": name, "outcome": outcome}) if invocation.is_json else f"{outcome} {clean(name)}")
    return OK


def _row(name: str, info: ScheduleInfo | None, paused: SchedulePause | None) -> tuple[object, ...]:
    since = "" if paused is None else " ".join(filter(None, [ago(paused.since), paused.by and f"by {paused.by}"]))
    if info is None:
        return name, "", "", "", "", "", since
    following = "" if paused is not None else ago(info.next_at)
    return name, info.flow, info.cron, info.tz, following, info.last_run_id or "", since
