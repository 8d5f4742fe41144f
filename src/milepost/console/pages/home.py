"""The first page: what needs a person, as groups with bounded counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from milepost.console.answers import Page
from milepost.console.site import Asked, Site
from milepost.console.veil import missing_key
from milepost.model.info import RunInfo
from milepost.views.runs import listed_document
from milepost.views.text import iso

READ = 500
COUNTED = 1000
FIRST = 5
UNTAKEN = timedelta(seconds=60)


def show_home(site: Site, asked: Asked) -> Page:
    """Show what needs a person.

    `failures`: groups of the newest 500 failed runs, each with `flow`, `node_id`, `error_type`, `count`, `first` and `last`
    (times), `newest` (a run id), and `filters` (the query of the list that shows them). `failed`: the bounded count of all.
    `panels`: blocked, dead, ready (longer than 60 s), each with `status`, `title`, `count` (a text: "12" or "1000+") and
    `runs` (the first 5, as in the list). `waits`: `count`, and the runs that wait for a signal, by the nearest end.
    """
    store = site.store
    failed = store.list_runs(status="failed", limit=READ)
    old = store.list_runs(status="ready", updated_before=site.now - UNTAKEN, limit=COUNTED + 1)
    due = [info for info in old if info.wake_at is None or info.wake_at <= site.now]
    waiting = store.list_runs(status="waiting", limit=READ)
    asking = [info for info in waiting if any(wait.signal is not None for wait in info.waiting_for)]
    asking.sort(key=lambda info: (info.wake_at or datetime.max.replace(tzinfo=UTC), info.updated_at))
    panels = [
        _panel(site, status, title, store.list_runs(status=status, limit=FIRST), counted(site, status=status))
        for status, title in (("blocked", "Blocked"), ("dead", "Without an owner"))
    ]
    panels.append(_panel(site, "ready", "Ready for a minute and not taken", due[:FIRST], bounded(len(due))))
    values = {
        "failures": failures_of(failed),
        "failed": counted(site, status="failed"),
        "panels": panels,
        "waits": {"count": counted(site, status="waiting"), "runs": _rows(site, asking[:FIRST])},
    }
    return Page("person.html", "Needs a person", values)


def failures_of(failed: Iterable[RunInfo]) -> list[dict[str, Any]]:
    """Group failed runs, newest first, by flow, node and type of error; the group with the newest failure comes first."""
    groups: dict[tuple[str, str, str], list[RunInfo]] = {}
    for info in failed:
        groups.setdefault((info.flow, info.error_node or "", info.error_type or ""), []).append(info)
    found = [
        {
            "flow": flow,
            "node_id": node_id,
            "error_type": error_type,
            "count": len(runs),
            "first": iso(min(info.updated_at for info in runs)),
            "last": iso(max(info.updated_at for info in runs)),
            "newest": max(runs, key=lambda info: info.updated_at).run_id,
            "filters": {"status": "failed", "flow": flow, "error": error_type, "error_node": node_id},
        }
        for (flow, node_id, error_type), runs in groups.items()
    ]
    return sorted(found, key=lambda group: str(group["last"]), reverse=True)


def counted(site: Site, **filters: Any) -> str:
    """Count runs as far as it is cheap: "12", or "1000+"."""
    return bounded(site.store.count_runs(**filters, limit=COUNTED + 1))


def bounded(count: int) -> str:
    """Return a count as a text, which says no more than that there are many above 1000."""
    return f"{COUNTED}+" if count > COUNTED else str(count)


def _panel(site: Site, status: str, title: str, runs: Sequence[RunInfo], count: str) -> dict[str, Any]:
    return {"status": status, "title": title, "count": count, "runs": _rows(site, runs)}


def _rows(site: Site, runs: Sequence[RunInfo]) -> list[dict[str, Any]]:
    return [
        listed_document(site.veil.info(info, missing_key(site.store, info.run_id)), (info.next_node,)) for info in runs
    ]
