"""Values about workers: which live, what they have, and their schedules, as stores keep them for a day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

BEAT_SECONDS = 15.0
"""Seconds between two beats of a worker."""
KEPT_SECONDS = 24 * 3600.0
"""Seconds after its last beat for which a worker is known."""
MOST_REFUSED = 20
LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """One schedule of a worker. `last_run_id` is the run that this worker started last by it; None: none yet."""

    name: str
    flow: str
    cron: str
    tz: str
    next_at: datetime
    last_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker as it last told of itself."""

    name: str
    """A name that no other worker has."""
    host: str
    pid: int
    started: datetime
    beat: datetime
    """The time of its last beat, by the store's clock; a worker beats every 15 seconds."""
    flows: Mapping[str, str]
    """The names of its flows, each with the fingerprint of the code."""
    concurrency: int
    running: int
    """The number of runs that it executes."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Up to 20 runs that it leaves to other code, each with the reason."""
    schedules: tuple[ScheduleInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulePause:
    """A schedule that is paused: since when, and who did it, as the caller said."""

    name: str
    since: datetime
    by: str | None = None


encode = msgspec.json.Encoder().encode
decode_worker = msgspec.json.Decoder(WorkerInfo).decode
decode_pause = msgspec.json.Decoder(SchedulePause).decode
