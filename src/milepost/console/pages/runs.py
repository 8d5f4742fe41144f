"""The list of runs, by filters that make an address to be shared."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

from milepost.console.answers import Page
from milepost.console.page_errors import PageError
from milepost.console.pages.home import run_row
from milepost.console.site import Asked, Site
from milepost.errors import RunNotFoundError
from milepost.options import BulkFilters
from milepost.views.runs import STATUSES, find_runs, places_of

PAGE = 50
DELETED = "the run at which this page began was deleted: these are the newest"
_TEXTS = {
    "flow": "flow",
    "error": "error_type",
    "error_node": "error_node",
    "prefix": "run_id_prefix",
    "after": "after",
}
_TIMES = {"created_after": "created_after", "created_before": "created_before"}


def list_runs(site: Site, asked: Asked) -> Page:
    """List the newest runs that match.

    `filters` has each filter as it was given; `statuses` all statuses, each with `is_chosen`; `runs` the rows (see
    `run_row`); `older` the query of the next page (None: there is none); `note` a sentence about the search, or "".
    """
    filters = read_filters(asked)
    note = ""
    try:
        found, stop = find_runs(site.store, {**filters, "limit": PAGE + 1})
    except RunNotFoundError:
        filters.pop("after")
        note = DELETED
        found, stop = find_runs(site.store, {**filters, "limit": PAGE + 1})
    page = found[:PAGE]
    after = page[-1].run_id if len(found) > PAGE else None if stop is None else stop.after
    if stop is not None:
        note = f"{stop.reason}; older runs may match too"
    chosen = asked.all("status")
    values = {
        "filters": shown_filters(asked),
        "statuses": [{"name": name, "is_chosen": name in chosen} for name in STATUSES],
        "runs": [run_row(site, info, partial(places_of, site.store)) for info in page],
        "older": None if after is None else {**shown_filters(asked), "after": after},
        "note": note,
    }
    return Page("runs.html", "Runs", values)


def shown_filters(asked: Asked) -> dict[str, Any]:
    """Return the filters as they were given, without `after`; those left out are empty."""
    texts = {name: asked.text(name) for name in (*_TEXTS, *_TIMES) if name != "after"}
    return {**texts, "status": asked.all("status"), "tag": asked.all("tag")}


def read_filters(asked: Asked) -> BulkFilters:
    """Read the filters of a list. Raises `PageError` for values that make no sense."""
    filters: dict[str, Any] = {option: asked.text(name) for name, option in _TEXTS.items() if asked.text(name)}
    statuses = asked.all("status")
    if unknown := [status for status in statuses if status not in STATUSES]:
        raise PageError(400, "Wrong filter", f"{unknown[0]!r} is no status: give one of {', '.join(STATUSES)}")
    if statuses:
        filters["status"] = tuple(statuses)
    tags = [tag.partition("=") for tag in asked.all("tag")]
    if wrong := [key for key, equals, _ in tags if not equals or not key]:
        raise PageError(400, "Wrong filter", f"a tag is given as key=value, not as {wrong[0]!r}")
    if tags:
        filters["tags"] = {key: value for key, _, value in tags}
    for name, option in _TIMES.items():
        if text := asked.text(name):
            filters[option] = read_time(name, text)
    return filters  # type: ignore[return-value]


def read_time(name: str, text: str) -> datetime:
    """Read a time; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise PageError(400, "Wrong filter", f"{name} takes a time such as 2026-12-24T18:00:00Z, not {text!r}") from exc
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
