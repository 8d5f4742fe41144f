"""The command that lists: runs; and the options that say which runs are meant."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import click

from milepost.cli.commands import FAILED, NOT_FOUND, OK, Invocation, command
from milepost.cli.places import is_postgres, open_each, url_of
from milepost.cli.text import print_table, to_json
from milepost.cli.values import read_pairs, read_pause, read_time
from milepost.engine.matching import StoppedAfter
from milepost.errors import RunNotFoundError
from milepost.model.info import RunInfo
from milepost.views.rows import shown_places
from milepost.views.runs import STATUSES, count_found, find_runs, listed_document, places_of, shown_count
from milepost.views.text import ago, clean, in_options, short

if TYPE_CHECKING:
    from milepost.options import BulkFilters
    from milepost.store import Store


FILTERS = (
    click.option("--flow", metavar="NAME", help="Only runs of this flow."),
    click.option("--status", multiple=True, type=click.Choice(STATUSES), metavar="STATUS",
                 help=f"Only runs of this status: {', '.join(STATUSES)}. Repeatable."),
    click.option("--error", "error_type", metavar="TYPE", help="Only runs that failed with this error, such as TypeError."),
    click.option("--error-node", metavar="NODE", help="Only runs that failed at this node or step."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Only runs with this tag. Repeatable."),
    click.option("--prefix", "run_id_prefix", metavar="TEXT", help="Only runs whose ids begin with this."),
    click.option("--created-after", metavar="TIME", help="Only runs that were created after this time, such as "
                 "2026-12-24T18:00:00Z."),
    click.option("--created-before", metavar="TIME", help="Only runs that were created before this time."),
    click.option("--since", type=read_pause, metavar="DURATION", help="Only runs that changed in this time, such as 10m."),
    click.option("--after", metavar="RUN", help="Go on after this run, the last one of the page before."),
)  # fmt: skip
"""The options that say which runs are meant; `read_filters` reads them."""


def read_filters(given: Mapping[str, Any]) -> BulkFilters:
    """Return what the options in `FILTERS` say, without those that were left out."""
    filters: dict[str, Any] = {name: value for name, value in given.items() if value not in {None, ()}}
    if "tags" in filters:
        filters["tags"] = read_pairs(filters["tags"], "--tag")
    for name in ("created_after", "created_before"):
        if name in filters:
            filters[name] = read_time(filters[name], "--" + name.replace("_", "-"))
    if since := filters.pop("since", None):
        filters["updated_after"] = datetime.now(UTC) - timedelta(seconds=since)
    return cast("BulkFilters", filters)


@command(
    "runs",
    *FILTERS,
    click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many to show."),
    click.option("--count", "is_counted", is_flag=True, help="Print only how many match, up to 1000+."),
    click.option("--fail-if-any", is_flag=True, help="Exit code 1 if a run matches."),
)
def runs(invocation: Invocation, limit: int, is_counted: bool, fail_if_any: bool, **given: Any) -> int:
    """List runs, newest first. Exit code 3 if there is no store yet."""
    filters = read_filters(given)
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(store) for store in open_each(invocation)]
        if is_counted:
            count = sum(_count(store, filters) for store in stores)
            print(to_json({"count": shown_count(count)}) if invocation.is_json else shown_count(count))
            return FAILED if count and fail_if_any else OK if stores else NOT_FOUND
        found, stop = _newest(stores, limit + 1, filters, is_complete=fail_if_any)
        by_place = {store.place: store for store in stores}
        places = [places_of(by_place[place], info) for place, info in found[:limit]]
    page = found[:limit]
    onwards = page[-1][1].run_id if len(found) > limit else None if stop is None else stop.after
    code = FAILED if page and fail_if_any else OK if stores else NOT_FOUND
    if invocation.is_json:
        shown = [{**listed_document(info, at), "store": place} for (place, info), at in zip(page, places, strict=True)]
        print(to_json({"runs": shown, "after": onwards}))
        return code
    if page:
        columns = [
            "run", "flow", "status", "next", "records", "updated", "why", *(["store"] if len(stores) > 1 else []),
        ]  # fmt: skip
        rows = [(*_run_row(info, at), place)[: len(columns)] for (place, info), at in zip(page, places, strict=True)]
        print_table(columns, rows, is_cut=True)
    else:
        url = url_of(invocation)
        # A URL of a server may have a password in it.
        where = stores[0].place if is_postgres(url) else url
        print("no runs match" if filters else f"no runs yet in {where}: try milepost demo")
    if onwards is not None:
        print(f"{stopping(stop)}more: milepost runs --after {clean(onwards)}")
    return code


def _count(store: Store, filters: BulkFilters) -> int:
    count = count_found(store, filters)
    if count is None:
        raise click.UsageError("--count goes with --flow, --status and --tag alone: no index counts the others")
    return count


def stopping(stop: StoppedAfter | None) -> str:
    """Say why a search stopped; "" if it did not."""
    return "" if stop is None else f"{stop.reason}; "


def _newest(
    stores: Sequence[Store], limit: int, filters: BulkFilters, *, is_complete: bool
) -> tuple[list[tuple[str, RunInfo]], StoppedAfter | None]:
    """Return the newest runs of all stores that match, each with its store's place, and where the search stopped."""
    if len(stores) > 1 and "after" in filters:
        filters = filters.copy()
        ends = [_find(stores, str(filters.pop("after"))).created_at, *filter(None, [filters.get("created_before")])]
        filters["created_before"] = min(ends)
    runs: list[tuple[str, RunInfo]] = []
    stop: StoppedAfter | None = None
    for store in stores:
        found, at = find_runs(store, {**filters, "limit": limit}, is_complete=is_complete)
        runs += [(store.place, info) for info in found]
        stop = stop or at
    if len(stores) > 1:
        runs.sort(key=lambda run: run[1].created_at, reverse=True)
    return runs[:limit], stop


def _find(stores: Sequence[Store], run_id: str) -> RunInfo:
    for store in stores[:-1]:
        with contextlib.suppress(RunNotFoundError):
            return store.get_run(run_id).info
    return stores[-1].get_run(run_id).info


def _run_row(info: RunInfo, places: tuple[str | None, ...]) -> tuple[object, ...]:
    return (
        info.run_id,
        info.flow,
        info.status,
        shown_places(places),
        info.sequence + 1,
        ago(info.updated_at),
        short(in_options(info.reason.replace(f" of run {info.run_id!r}", "")), 60),
    )
