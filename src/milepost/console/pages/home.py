"""The first page: what needs a person, as groups with bounded counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from milepost.console.answers import Page
from milepost.console.site import Asked, Site
from milepost.console.veil import missing_key
from milepost.model.info import RunInfo
from milepost.views.rows import shown_places
from milepost.views.runs import MOST_COUNTED, fingerprint_of, listed_document, shown_count
from milepost.views.text import iso
from milepost.views.workers import code_of_workers, is_alive

READ = 500
RECENT = 200
FIRST = 5
MOST_READ = 20
"""The number of groups of failures of which a record is read."""
MOST_CODE = 3
UNTAKEN = timedelta(seconds=60)


def show_home(site: Site, asked: Asked) -> Page:
    """Show what needs a person.

    `failures`: groups of the newest 500 failed runs, each with `flow`, `node_id`, `error_type`, `count`, `first` and `last`
    (times), `newest` (a run id), `filters` (the query of the list that shows them), `fingerprint` (of the code with which
    the newest began; None: not known, or not among the first 20 groups), and `code`: what workers have of the flow now, the
    newest first, each with `fingerprint` and `since` (when the first of them began). `failed`: the bounded count of all.
    `panels`: blocked, dead, ready (longer than 60 s), each with `status`, `title`, `count` (a text: "12" or "1000+") and
    `runs` (up to 5, as in the list; of the blocked ones those among the newest 200 runs). `refused`: `run_id` and
    `reason` of those that workers leave to other code. `waits`: `count`, and of the newest 200 that wait those for a signal,
    by the nearest end.
    """
    store = site.store
    failed = store.list_runs(status="failed", limit=READ)
    old = store.list_runs(status="ready", updated_before=site.now - UNTAKEN, limit=MOST_COUNTED + 1)
    due = [info for info in old if info.wake_at is None or info.wake_at <= site.now]
    waiting = store.list_runs(status="waiting", limit=RECENT)
    asking = [info for info in waiting if any(wait.signal is not None for wait in info.waiting_for)]
    asking.sort(key=lambda info: (info.wake_at or datetime.max.replace(tzinfo=UTC), info.updated_at))
    # To list all blocked runs reads every row, because damaged rows are among them.
    blocked = [info for info in store.list_runs(limit=RECENT) if info.status == "blocked"]
    dead = store.list_runs(status="dead", limit=FIRST)
    panels = [
        _panel(site, "blocked", "Blocked", blocked[:FIRST], counted(site, status="blocked")),
        _panel(site, "dead", "Without an owner", dead, counted(site, status="dead")),
        _panel(site, "ready", "Ready for a minute and not taken", due[:FIRST], shown_count(len(due))),
    ]
    values = {
        "failures": _with_code(site, failures_of(failed)),
        "failed": counted(site, status="failed"),
        "panels": panels,
        "refused": _refused(site),
        "waits": {"count": counted(site, status="waiting"), "runs": run_rows(site, asking[:FIRST])},
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


def _with_code(site: Site, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to groups of failures what is known of the code: that of the newest run, and that of the workers."""
    workers = site.store.workers()
    for place, group in enumerate(groups):
        group["fingerprint"] = fingerprint_of(site.store, group["newest"]) if place < MOST_READ else None
        code = code_of_workers(workers, group["flow"])[:MOST_CODE]
        group["code"] = [{"fingerprint": fingerprint, "since": iso(since)} for fingerprint, since in code]
    return groups


def counted(site: Site, **filters: Any) -> str:
    """Count runs as far as it is cheap: "12", or "1000+"."""
    return shown_count(site.store.count_runs(**filters, limit=MOST_COUNTED + 1))


def _refused(site: Site) -> list[dict[str, str]]:
    """Return the runs that workers leave to other code, with the reasons."""
    alive = [worker for worker in site.store.workers() or () if is_alive(worker, site.now)]
    refused = {run_id: reason for worker in alive for run_id, reason in worker.refused.items()}
    hidden = site.veil.hides_errors
    return [{"run_id": run_id, "reason": "" if hidden else reason} for run_id, reason in sorted(refused.items())]


def _panel(site: Site, status: str, title: str, runs: Sequence[RunInfo], count: str) -> dict[str, Any]:
    return {"status": status, "title": title, "count": count, "runs": run_rows(site, runs)}


def run_rows(site: Site, runs: Iterable[RunInfo]) -> list[dict[str, Any]]:
    """Return runs as in the list, without reading where each goes on."""
    return [run_row(site, info, lambda shown: (shown.next_node or "",)) for info in runs]


def run_row(site: Site, info: RunInfo, places_of: Callable[[RunInfo], tuple[str | None, ...]]) -> dict[str, Any]:
    """Return a run as a row of a list.

    Its row, `why` it stands where it does, `where` that is (the node that failed, else those where it waits or goes on), and
    `error_type`, "" if there is no error.
    """
    shown = site.veil.info(info, missing_key(site.store, info.run_id))
    places = places_of(shown)
    where = shown_places([shown.error_node] if shown.error_node else places)
    return {**listed_document(shown, places), "where": where, "error_type": shown.error_type or ""}
