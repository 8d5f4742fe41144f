"""The page of all runs that wait for a person, with their forms."""

from __future__ import annotations

from datetime import UTC, datetime

from milepost.console.answers import Page
from milepost.console.pages.run import wait_values
from milepost.console.pages.runs import DELETED
from milepost.console.site import Asked, Site
from milepost.console.veil import missing_key
from milepost.errors import RunNotFoundError

READ = 500


def list_waits(site: Site, asked: Asked) -> Page:
    """List the newest 500 runs that wait for a signal, the longest wait first.

    `waits`: each with `run_id`, `flow`, and what a wait on the page of its run has, but `locked` (which key is missing, or
    None). `older`: the query that goes on with older runs, or None. `note`: a sentence about the search, or "".
    """
    after, note = asked.text("after") or None, ""
    try:
        runs = site.store.list_runs(status="waiting", limit=READ + 1, after=after)
    except RunNotFoundError:
        note = DELETED
        runs = site.store.list_runs(status="waiting", limit=READ + 1)
    waits = []
    for info in runs[:READ]:
        if all(wait.signal is None for wait in info.waiting_for):
            continue
        locked = missing_key(site.store, info.run_id)
        shown = site.veil.info(info, locked)
        waits += [
            {
                "run_id": info.run_id,
                "flow": info.flow,
                "locked": locked,
                **wait_values(wait, asked, None, is_locked=locked is not None),
            }
            for wait in shown.waiting_for
            if wait.signal is not None
        ]
    latest = datetime.max.replace(tzinfo=UTC).isoformat()
    waits.sort(key=lambda wait: str(wait["since"] or latest))
    older = {"after": runs[READ - 1].run_id} if len(runs) > READ else None
    return Page("waits.html", "Waits", {"waits": waits, "older": older, "note": note})
