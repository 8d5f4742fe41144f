"""The page of workers: which there are, what they know and refuse, and their schedules."""

from __future__ import annotations

from milepost.console.answers import Page
from milepost.console.site import Asked, Site


def list_workers(site: Site, asked: Asked) -> Page:
    """List the workers.

    `workers`: None, where the store keeps no beats of workers.
    """
    return Page("workers.html", "Workers", {"workers": None})
