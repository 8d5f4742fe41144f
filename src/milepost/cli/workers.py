"""The commands that show who works on a store, and by which schedules: workers, schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click

from milepost.cli.commands import OK, Invocation, command, shared_options
from milepost.cli.places import open_existing, open_to_look
from milepost.cli.text import print_table, to_json
from milepost.model.workers import ScheduleInfo, SchedulePause, WorkerInfo
from milepost.views.text import ago, clean, iso, short

_by_option = click.option("--by", metavar="NAME", help="Who does this; the list and the log tell it.")
_NOT_KNOWN = "not known: no worker has told this store of itself, or it keeps no beats"


@command("workers")
def workers(invocation: Invocation) -> int:
    """List the workers of the last 24 hours.

    Each with what it last told of itself.

    A worker tells of itself every 15 seconds: one whose last beat is older than 45 seconds has ended or stands still.
    """
    with open_to_look(invocation) as store:
        found = store.workers()
    if invocation.is_json:
        print(to_json({"workers": None if found is None else [_document(info) for info in found]}))
    elif not found:
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
        found, pauses = store.workers(), store.paused_schedules()
    known = _newest(found or ())
    names = sorted({*known, *pauses})
    if invocation.is_json:
        shown = [_schedule_document(name, known.get(name), pauses.get(name)) for name in names]
        print(to_json({"schedules": shown if shown or found is not None else None}))
        return OK
    if names:
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


def _newest(workers: Sequence[WorkerInfo]) -> dict[str, ScheduleInfo]:
    """Return the schedules by name, each as the worker knows it that has beaten last, and its newest run of all."""
    known: dict[str, ScheduleInfo] = {}
    for info in sorted(workers, key=lambda info: info.beat):
        known |= {schedule.name: schedule for schedule in info.schedules}
    return known


def _row(name: str, info: ScheduleInfo | None, paused: SchedulePause | None) -> tuple[object, ...]:
    since = "" if paused is None else " ".join(filter(None, [ago(paused.since), paused.by and f"by {paused.by}"]))
    if info is None:
        return name, "", "", "", "", "", since
    following = "" if paused is not None else ago(info.next_at)
    return name, info.flow, info.cron, info.tz, following, info.last_run_id or "", since


def _schedule_document(name: str, info: ScheduleInfo | None, paused: SchedulePause | None) -> dict[str, Any]:
    known = {"name": name} if info is None else _plain(asdict(info))
    return {**known, "paused": None if paused is None else {"since": iso(paused.since), "by": paused.by}}


def _document(info: WorkerInfo) -> dict[str, Any]:
    document = _plain(asdict(info))
    return {**document, "schedules": [_plain(schedule) for schedule in document["schedules"]]}


def _plain(document: dict[str, Any]) -> dict[str, Any]:
    return {name: iso(value) if isinstance(value, datetime) else value for name, value in document.items()}
