"""Lists of runs: the filters that they take, and the places where their runs go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milepost.drivers import SyncDriver
from milepost.engine.matching import walk
from milepost.errors import DeserializeStateError, RunNotFoundError, StoreError
from milepost.executor.effects import Routine
from milepost.model.ids import SYSTEM
from milepost.model.info import RunInfo
from milepost.options import BulkFilters
from milepost.store import Store
from milepost.views.status import info_document, next_places, why_it_stands

STATUSES = ("ready", "running", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked", "dead")


def find_runs(
    store: Store, filters: BulkFilters, otherwise: Sequence[str] | None = None
) -> tuple[list[RunInfo], str | None]:
    """Return the runs that match, newest first, and the run at which the search stopped; see `walk`."""
    found: list[RunInfo] = []

    def visit(info: RunInfo) -> Routine[None]:
        yield from ()
        found.append(info)

    stopped = SyncDriver(SYSTEM).run(walk(store, visit, otherwise, **filters))
    return found, stopped


def places_of(store: Store, info: RunInfo) -> tuple[str | None, ...]:
    """Return where a run goes on; nothing of one that was deleted meanwhile, or can't be read."""
    try:
        return next_places(store, info)
    except (StoreError, RunNotFoundError, DeserializeStateError):
        return (info.next_node,)


def listed_document(info: RunInfo, places: Sequence[str | None]) -> dict[str, Any]:
    """Return a run of a list as JSON: its row, and why it stands where it does."""
    return {**info_document(info), "why": why_it_stands(info, *places)}
