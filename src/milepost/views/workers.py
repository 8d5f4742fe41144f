"""The workers of a store, as people are shown them: who beats, what they know and refuse, and their schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from milepost.model.workers import ScheduleInfo, WorkerInfo
from milepost.store import Store
from milepost.views.text import iso

FRESH = timedelta(seconds=45)
"""The time after its last beat for which a worker is taken to be alive: three beats."""


def workers_document(store: Store, now: datetime) -> dict[str, Any]:
    """Return the workers that have beaten in the last 24 hours and their schedules as JSON; `workers` None: nobody can tell.

    A worker has `name`, `host`, `pid`, `started`, `beat`, `is_alive`, `flows` (fingerprints by name), `concurrency`,
    `running` and `refused` (reasons by run id). A schedule has `name`, `flow`, `cron`, `tz`, `next_at`, `last_run_id` and
    `paused` (None, or `since` and `by`).
    """
    workers = store.workers()
    if workers is None:
        return {"workers": None, "schedules": []}
    paused = store.paused_schedules()
    schedules = {schedule.name: schedule for worker in workers for schedule in worker.schedules}
    return {
        "workers": [_worker_document(worker, now) for worker in workers],
        "schedules": [_schedule_document(schedules[name], paused.get(name)) for name in sorted(schedules)],
    }


def _worker_document(worker: WorkerInfo, now: datetime) -> dict[str, Any]:
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "started": iso(worker.started),
        "beat": iso(worker.beat),
        "is_alive": is_alive(worker, now),
        "flows": dict(worker.flows),
        "concurrency": worker.concurrency,
        "running": worker.running,
        "refused": dict(worker.refused),
    }


def _schedule_document(schedule: ScheduleInfo, pause: Any) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "flow": schedule.flow,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "next_at": iso(schedule.next_at),
        "last_run_id": schedule.last_run_id,
        "paused": None if pause is None else {"since": iso(pause.since), "by": pause.by},
    }


def is_alive(worker: WorkerInfo, now: datetime) -> bool:
    """Return whether a worker has beaten lately."""
    return now - worker.beat <= FRESH


def worker_note(workers: Sequence[WorkerInfo] | None, flow: str, now: datetime) -> str:
    """Say whether somebody takes the runs of a flow: "" if a worker that beats has it."""
    if workers is None:
        return "whether a worker takes it is not known: no worker has told this store of itself"
    alive = [worker for worker in workers if is_alive(worker, now)]
    if any(flow in worker.flows for worker in alive):
        return ""
    if not alive:
        return f"no worker has beaten in the last {FRESH.seconds} s: nobody takes it"
    return f"no worker that beats has flow {flow!r}: nobody takes it"
