"""The workers of a store, as people are shown them: who beats, what they know and refuse, and their schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from milepost.model.workers import ScheduleInfo, SchedulePause, WorkerInfo
from milepost.store import Store
from milepost.views.text import iso

FRESH = timedelta(seconds=45)
"""The time after its last beat for which a worker is taken to be alive: three beats."""


def workers_document(store: Store, now: datetime) -> dict[str, Any]:
    """Return the workers that have beaten in the last 24 hours and all schedules as JSON; `workers` None: nobody can tell.

    A worker has `name`, `host`, `pid`, `started`, `beat`, `is_alive`, `flows` (fingerprints by name), `concurrency`,
    `running`, `refused` (reasons by run id) and `schedules` (names). A schedule has `name`, `flow`, `cron`, `tz`, `next_at`,
    `last_run_id` and `paused` (None, or `since` and `by`); of one that is paused and that no worker has only these two.
    """
    workers, pauses = store.workers(), store.paused_schedules()
    known = newest_schedules(workers or ())
    return {
        "workers": None if workers is None else [_worker_document(worker, now) for worker in workers],
        "schedules": [
            _schedule_document(name, known.get(name), pauses.get(name)) for name in sorted({*known, *pauses})
        ],
    }


def newest_schedules(workers: Sequence[WorkerInfo]) -> dict[str, ScheduleInfo]:
    """Return the schedules by name, each as the worker knows it that has beaten last."""
    known: dict[str, ScheduleInfo] = {}
    for worker in sorted(workers, key=lambda worker: worker.beat):
        known |= {schedule.name: schedule for schedule in worker.schedules}
    return known


def _worker_document(worker: WorkerInfo, now: datetime) -> dict[str, Any]:
    document = {**asdict(worker), "started": iso(worker.started), "beat": iso(worker.beat)}
    return {
        **document,
        "is_alive": is_alive(worker, now),
        "schedules": [schedule.name for schedule in worker.schedules],
    }


def _schedule_document(name: str, schedule: ScheduleInfo | None, pause: SchedulePause | None) -> dict[str, Any]:
    facts = dict.fromkeys(("flow", "cron", "tz", "next_at", "last_run_id"))
    if schedule is not None:
        facts = {**asdict(schedule), "next_at": iso(schedule.next_at)}
    return {"name": name, **facts, "paused": None if pause is None else {"since": iso(pause.since), "by": pause.by}}


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


def code_of_workers(workers: Sequence[WorkerInfo] | None, flow: str) -> list[tuple[str, datetime]]:
    """Return the fingerprints that workers have of a flow, each since the first of them began; the newest code first."""
    began: dict[str, datetime] = {}
    for worker in workers or ():
        if (fingerprint := worker.flows.get(flow)) is not None:
            began[fingerprint] = min(worker.started, began.get(fingerprint, worker.started))
    return sorted(began.items(), key=lambda code: code[1], reverse=True)
