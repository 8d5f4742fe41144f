"""What a store tells of what it has: runs and checkpoints, how much that is, and what it may forget, or has forgotten.

This module is imported where one of these is made or looked at, not before: most runs wait for nothing, and nobody asks
about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from milepost.errors import OptionError
from milepost.model.retry import as_seconds

__all__ = ["CheckpointInfo", "Pruned", "Retention", "RunFailure", "RunInfo", "Stats", "VerifyReport", "Wait"]


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a run waits for. `signal` is None for a timer, `wake_at` None without an end."""

    wait_id: str
    signal: str | None
    prompt: Any = None
    wake_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint without its state. `size` is that of the uncompressed state in bytes."""

    run_id: str
    node_id: str
    sequence: int
    timestamp: datetime
    size: int
    visit: int = 1
    attempt: int = 1
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What a run failed with, as its record tells: the error's type, message and traceback, and the node or step.

    `node_id` is "" where the code of a workflow failed between its steps. The traceback begins with the user's own code.
    """

    error_type: str
    message: str
    node_id: str
    traceback: str


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a store knows of a run. `status` is `dead` for a running one whose lease has ended."""

    run_id: str
    flow: str
    status: str
    reason: str
    """Why the run does not move, in one sentence; "" where there is nothing to tell."""
    degraded: bool
    missed: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    sequence: int
    """Of the newest record."""
    next_node: str | None
    """Where the newest checkpoint leads, as a whole id: what it is inside of, where it is the last in that. Where a
    fork is open that is its join, or where one of the branches goes on; what a run waits for is in `waiting_for`."""
    size: int
    """Of the newest checkpoint's state, in bytes."""
    owner: str
    lease_until: datetime | None
    wake_at: datetime | None
    waiting_for: tuple[Wait, ...]
    crash_count: int
    tags: Mapping[str, str]
    error: RunFailure | None = None
    """What a failed run failed with. A listing does not read it: there `reason` names the node and the error's first line."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found. `ok` is whether `problems`, one sentence each, is empty."""

    ok: bool
    problems: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Retention:
    """What a store may forget by itself. Nothing, unless a field is set.

    `older_than` (seconds or a timedelta) is the time since the last activity after which a run that finished or was
    cancelled is deleted; `keep_last` is how many visits of each node are kept, also of a run while its owner executes it.
    """

    older_than: float | timedelta | None = None
    keep_last: int | None = None

    def __post_init__(self) -> None:
        if self.older_than is not None:
            object.__setattr__(self, "older_than", as_seconds(self.older_than, "older_than"))
        count = self.keep_last
        if count is not None and (type(count) is not int or count < 1):
            raise OptionError(f"keep_last must be a whole number, 1 or more, not {count!r}", option="keep_last")


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was forgotten, or with `dry_run` would have been: run ids, and how many records `thinned` runs lost."""

    deleted: tuple[str, ...] = ()
    thinned: tuple[str, ...] = ()
    records: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """How much a store has: runs by the status that they are shown with, records, and their bytes as they are kept."""

    runs: Mapping[str, int]
    records: int
    size: int
    oldest: datetime | None
    """When the run that was changed least recently was changed; None without runs."""
