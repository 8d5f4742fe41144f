"""Lists of runs: the filters that they take, and the places where their runs go on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from milepost.engine.matching import StoppedAfter, walk
from milepost.errors import DeserializeStateError, RunNotFoundError, StoreError
from milepost.executor.effects import Routine, do_asks
from milepost.model.info import RunInfo
from milepost.views.rows import info_document, places_at_rest, why_it_stands

if TYPE_CHECKING:
    from milepost.options import BulkFilters
    from milepost.store import Store

MOST_COUNTED = 1000
STATUSES = ("ready", "running", "waiting", "interrupted", "failed", "cancelled", "finished", "blocked", "dead")


def find_runs(
    store: Store, filters: BulkFilters, otherwise: Sequence[str] | None = None, *, is_complete: bool = False
) -> tuple[list[RunInfo], StoppedAfter | None]:
    """Return the runs that match, newest first, and where the search stopped; see `walk`."""
    found: list[RunInfo] = []

    def visit(info: RunInfo) -> Routine[None]:
        yield from ()
        found.append(info)

    stop = do_asks(walk(store, visit, otherwise, is_complete=is_complete, **filters))
    return found, stop


def count_found(store: Store, filters: BulkFilters) -> int | None:
    """Count the runs that match, up to `MOST_COUNTED` + 1; None if the filters are not all served by an index."""
    if any(value is not None and name not in {"flow", "status", "tags"} for name, value in filters.items()):
        return None
    asked = {name: filters.get(name) for name in ("flow", "status", "tags")}
    return store.count_runs(**asked, limit=MOST_COUNTED + 1)  # type: ignore[arg-type]


def shown_count(count: int) -> str:
    """Write a number of runs that was counted up to `MOST_COUNTED` + 1."""
    return f"{MOST_COUNTED}+" if count > MOST_COUNTED else str(count)


def places_of(store: Store, info: RunInfo) -> tuple[str | None, ...]:
    """Return where a run goes on; nothing of one that was deleted meanwhile, or can't be read."""
    if (places := places_at_rest(info)) is not None:
        return places
    from milepost.views.status import next_places  # the reader of journals, which runs at rest do not need

    try:
        return next_places(store, info)
    except (StoreError, RunNotFoundError, DeserializeStateError):
        return (info.next_node or "",)


def fingerprint_of(store: Store, run_id: str) -> str | None:
    """Return the fingerprint of the flow with which a run began; None if it is not recorded, or not proven."""
    from milepost.executor.journal import read_start  # lists of runs do not need it

    try:
        begun = do_asks(read_start(store, run_id, partial(store.seals.check, run_id)))
        found = None if begun is None else begun.fields().get("fingerprint")
    except (StoreError, RunNotFoundError, DeserializeStateError):
        return None
    return found if isinstance(found, str) else None


def listed_document(info: RunInfo, places: Sequence[str | None]) -> dict[str, Any]:
    """Return a run of a list as JSON: its row, and why it stands where it does."""
    return {**info_document(info), "why": why_it_stands(info, *places)}


_SHORTEST = 3


def near_ids(store: Store, run_id: str, limit: int = 5) -> list[str]:
    """Return ids of runs that begin like one that is not there: like all of it, else like less and less of it."""
    length = len(run_id)
    while length >= min(_SHORTEST, len(run_id)) and length > 0:
        if found := store.list_runs(run_id_prefix=run_id[:length], limit=limit):
            return [info.run_id for info in found]
        length = length * 2 // 3
    return []
