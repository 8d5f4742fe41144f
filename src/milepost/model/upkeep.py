"""Values of a store's upkeep: the retention policy, and the results of verbs for a whole store or many runs.

This module is imported only where one of these values is made or read, because most runs need none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from milepost.errors import OptionError, shown
from milepost.model.durations import as_seconds


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`. `problems` has one sentence for each problem; `ok` is True if there is none."""

    ok: bool
    problems: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Retention:
    """The policy by which a store deletes old data on its own. It deletes nothing unless a field is set.

    `older_than` (seconds or a timedelta) is the time since the last activity after which a finished or cancelled run is
    deleted. `keep_last` is the number of visits that are kept of each node, also of a run while its owner executes it.
    """

    older_than: float | timedelta | None = None
    keep_last: int | None = None

    def __post_init__(self) -> None:
        if self.older_than is not None:
            object.__setattr__(self, "older_than", as_seconds(self.older_than, "older_than"))
        count = self.keep_last
        if count is not None and (type(count) is not int or count < 1):
            raise OptionError(f"keep_last must be a whole number, 1 or more, not {shown(count)}", option="keep_last")


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of `prune`: the ids of deleted and of thinned runs, and how many `records` the thinned ones lost.

    With `dry_run` nothing was deleted, and these are the values of a real prune.
    """

    deleted: tuple[str, ...] = ()
    thinned: tuple[str, ...] = ()
    records: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """The size of a store: runs by the status that is shown for them, records, and the records' bytes as stored."""

    runs: Mapping[str, int]
    records: int
    size: int
    oldest: datetime | None
    """The earliest time of a last change among all runs; None if there are no runs."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """The result of `requeue_all`: the runs that workers go on with, and the others with the reason why not.

    `stopped_after` is the run with which a filter on errors had compared as many runs as it may: `after=` goes on with
    those before it. None: no older run matches.
    """

    done: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    stopped_after: str | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The result of `cancel_matching`: what `cancel` returned for each run, and the others with the reason why not.

    `stopped_after` is that of `Requeued`.
    """

    outcomes: Mapping[str, Literal["cancelled", "requested", "ended"]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    stopped_after: str | None = None
