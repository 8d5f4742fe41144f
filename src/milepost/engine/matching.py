"""Many runs at once: a walk over the runs that match, and what became of each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar, Unpack, cast

from milepost.errors import MilepostError, StoreClosedError, StoreError, shown
from milepost.executor.effects import Routine, ask
from milepost.model.info import RunInfo
from milepost.store import MOST_WALKED, RunRow, Store, check_moment, check_number

if TYPE_CHECKING:
    from milepost.options import BulkFilters, RunFilters

PAGE = 1000
"""The number of runs that are listed at once."""
MOST_ERRORS = 10_000
"""The number of runs whose errors a walk compares at most: no index leads to them."""

T = TypeVar("T")


class StoppedAfter(NamedTuple):
    """The run with which a search stopped, and why."""

    after: str
    reason: str


class Outcomes(NamedTuple, Generic[T]):
    """The answers of a verb by run id, and the reasons why other runs were refused."""

    done: dict[str, T]
    refused: dict[str, str]

    def add(self, run_id: str, act: Routine[T]) -> Routine[None]:
        """Do `act` for a run and note the answer. A run that is refused does not keep others from it."""
        try:
            self.done[run_id] = yield from act
        except MilepostError as exc:
            if is_of_all_runs(exc):
                raise
            self.refused[run_id] = str(exc)


def each_matching(
    store: Store, act: Callable[[str], Routine[T]], otherwise: Collection[str], filters: BulkFilters
) -> Routine[tuple[Outcomes[T], str | None]]:
    """Do `act` for each run that matches; return what became of them, and where the walk stopped."""
    outcomes: Outcomes[T] = Outcomes({}, {})
    stop = yield from walk(store, lambda info: outcomes.add(info.run_id, act(info.run_id)), otherwise, **filters)
    return outcomes, None if stop is None else stop.after


def walk(
    store: Store,
    visit: Callable[[RunInfo], Routine[None]],
    otherwise: Collection[str] | None = None,
    *,
    is_complete: bool = True,
    **filters: Unpack[BulkFilters],
) -> Routine[StoppedAfter | None]:
    """Visit each run that matches once, the newest first.

    Without `status` the runs with the statuses `otherwise` are meant (None: all), or the failed ones if errors are
    compared. Return None, or where the walk stopped because it had compared `MOST_ERRORS` errors. Unless `is_complete` it
    stops where a page stops too.
    """
    left = _checked(filters)
    compares_errors = filters.get("error_type") is not None or filters.get("error_node") is not None
    status = filters.get("status")
    if status is None:
        status = "failed" if compares_errors else otherwise
    wanted: RunFilters = {
        "flow": filters.get("flow"),
        "tags": filters.get("tags"),
        "status": status if status is None or isinstance(status, str) else (*status,),
        "run_id_prefix": filters.get("run_id_prefix"),
        "created_after": filters.get("created_after"),
        "created_before": filters.get("created_before"),
        "updated_after": filters.get("updated_after"),
        "updated_before": filters.get("updated_before"),
    }
    # A store of a user's own may know fewer filters.
    wanted = cast("RunFilters", {name: value for name, value in wanted.items() if value is not None})
    after: str | None = filters.get("after")
    compared = 0
    # Pages go by the time of taking in, which never changes: a run that begins or moves on meanwhile shifts none of them.
    while True:
        size = PAGE if compares_errors else min(PAGE, left or PAGE)
        page: list[RunInfo] = yield from ask(store, "list_runs", **wanted, after=after, limit=size)
        for info in page:
            after = info.run_id
            if not compares_errors or (yield from _has_failed_so(store, info, filters)):
                yield from visit(info)
                left = None if left is None else left - 1
                if left == 0:
                    return None
            compared += compares_errors
            if compared == MOST_ERRORS:
                return StoppedAfter(after, f"the errors of {MOST_ERRORS} runs were compared")
        end: str | None = getattr(page, "stopped_after", None)
        if end is not None and not is_complete:
            return StoppedAfter(end, f"{MOST_WALKED} runs were looked at")
        if not page and end is None:
            return None
        after = end or after


def _checked(filters: BulkFilters) -> int | None:
    """Return `limit`. Raises `OptionError` for a time without a zone, TypeError and ValueError for other wrong values."""
    for name in ("created_after", "created_before", "updated_after", "updated_before"):
        if (moment := filters.get(name)) is not None:
            check_moment(moment, name)
    for name in ("error_type", "error_node", "run_id_prefix"):
        if (text := filters.get(name)) is not None and not isinstance(text, str):
            raise TypeError(f"{name} must be a str, not {shown(text)}")
    limit = filters.get("limit")
    return None if limit is None else check_number(limit, "limit", least=1)


def _has_failed_so(store: Store, info: RunInfo, filters: BulkFilters) -> Routine[bool]:
    """Return whether a run failed with an error of this type, given with or without its module, and at this node."""
    error = info.error
    if error is None and (info.status == "failed" or info.blocked_by == "bug"):
        # A page has the error only if it stands near the end of the journal.
        try:
            row: RunRow = yield from ask(store, "get_run", info.run_id)
        except MilepostError as exc:
            if is_of_all_runs(exc):
                raise
            return False
        error = row.error
    error_type, error_node = filters.get("error_type"), filters.get("error_node")
    return (
        error is not None
        and (error_type is None or f".{error.error_type}".endswith(f".{error_type}"))
        and error_node in {None, error.node_id}
    )


def is_of_all_runs(exc: MilepostError) -> bool:
    """Return whether the store itself fails or is closed, so that no other run can be reached either."""
    return isinstance(exc, StoreClosedError) or (isinstance(exc, StoreError) and not exc.is_of_one_run)
