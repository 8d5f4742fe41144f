"""The page of workers: which there are, what they know and refuse, and their schedules."""

from __future__ import annotations

from milepost.console.answers import Page
from milepost.console.site import Asked, Site
from milepost.views.workers import workers_document


def list_workers(site: Site, asked: Asked) -> Page:
    """List the workers and schedules: what `workers_document` says, without reasons where errors are hidden."""
    values = workers_document(site.store, site.now)
    if site.veil.hides_errors:
        for worker in values["workers"] or ():
            worker["refused"] = dict.fromkeys(worker["refused"], "")
    return Page("workers.html", "Workers", values)
