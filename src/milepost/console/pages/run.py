"""The page of one run: where it stands and why, its error, its waits, its graph, and its history."""

from __future__ import annotations

from typing import Any

from milepost.console.answers import Page
from milepost.console.site import Asked, Site
from milepost.graph.status import RunStatus
from milepost.views.graph import graph_document
from milepost.views.journal import is_workflow, read_entries, records_of
from milepost.views.rows import info_document
from milepost.views.status import view_run


def show_run(site: Site, asked: Asked) -> Page:
    """Show one run.

    `run` is its row; `why` one sentence; `error` (`error_type`, `message`, `node_id`, `traceback`) or None; `graph` what
    `views.graph.picture_document` gives, or None; `table` (`columns`, and `rows` with `status` and `cells`) the tree of
    its visits or steps; `history.records` its records, newest first.
    """
    store, (run_id,) = site.store, asked.ids
    latest = store.latest(run_id)
    info = store.get_run(run_id).info
    view = view_run(
        latest, records_of(store, run_id, latest.newest), store.place, is_workflow(store, run_id), info.error
    )
    document = info_document(info)
    error = document.pop("error", None)
    columns, rows, statuses = view.table()
    lines = [entry.to_dict() for entry in read_entries(store, run_id)]
    values: dict[str, Any] = {
        "run": document,
        "why": view.why,
        "error": error,
        "graph": graph_document(view.content) if isinstance(view.content, RunStatus) else None,
        "table": {
            "columns": columns,
            "rows": [
                {"status": status, "cells": [str(cell) for cell in cells]}
                for status, cells in zip(statuses, rows, strict=True)
            ],
        },
        "history": {"records": lines[::-1]},
    }
    return Page("run.html", f"Run {run_id}", values)
