"""The page of the store: where and what it is, and what it holds, which is only read if somebody asks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from milepost.console.answers import Page
from milepost.console.site import Asked, Site
from milepost.views.findings import findings_of
from milepost.views.text import iso


def show_store(site: Site, asked: Asked) -> Page:
    """Show the store.

    `place`, `kind`, `facts` (`name`, `value`), `findings` (those of `milepost doctor`: `name`, `value`, `verdict`, which is
    ok, note or problem, and `note`), and `stats`: None until asked for with `?stats=1`, as that reads
    everything; then `runs` (numbers by status), `records`, `size` (bytes) and `oldest` (a time, or None).
    """
    store, retention = site.store, site.store.retention
    facts: list[tuple[str, str]] = [
        ("proof", "every record is sealed with a key" if store.seals.is_keyed else "records are sealed without a key"),
        ("opened", "to read only" if store.is_read_only else "to read and write"),
        (
            "older than",
            "kept" if retention is None or retention.older_than is None else f"{retention.older_than:g} s: deleted",
        ),
        (
            "visits of a node",
            "all" if retention is None or retention.keep_last is None else f"the newest {retention.keep_last}",
        ),
    ]
    stats: dict[str, Any] | None = None
    if asked.text("stats"):
        found = store.stats()
        stats = {"runs": dict(found.runs), "records": found.records, "size": found.size, "oldest": iso(found.oldest)}
    values = {
        "place": store.place,
        "findings": [asdict(finding) for finding in findings_of(store)],
        "kind": type(store).__name__,
        "facts": [{"name": name, "value": value} for name, value in facts],
        "stats": stats,
    }
    return Page("store.html", "Store", values)
