"""The pages of flows: which there are, and the graph, the counts and the newest runs of one."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

from milepost.console.answers import Page
from milepost.console.page_errors import PageError
from milepost.console.pages.home import counted, run_rows
from milepost.console.site import Asked, Site
from milepost.errors import DeserializeStateError
from milepost.graph.builder import CompiledGraph
from milepost.graph.drawing import recorded_picture
from milepost.verbs import Verbs
from milepost.views.graph import picture_document
from milepost.views.runs import STATUSES

COUNTED = 50
"""The number of flows whose runs are counted on the page of all flows."""
NEWEST = 20


def list_flows(site: Site, asked: Asked) -> Page:
    """List the flows that have runs or that the console has the code of.

    `flows`: each with `name`, `has_code`, and `counts` (texts by status, without those that are 0; None: not counted).
    """
    names = sorted({*site.store.flows(), *site.engine.flows})
    flows = [
        {
            "name": name,
            "has_code": name in site.engine.flows,
            "counts": counts_of(site, name) if place < COUNTED else None,
        }
        for place, name in enumerate(names)
    ]
    return Page("flows.html", "Flows", {"flows": flows})


def show_flow(site: Site, asked: Asked) -> Page:
    """Show one flow.

    `name`, `has_code`, `counts`, `graph` (as on the page of a run, or None), `nodes` (`id`, and `text`: the docstring, or
    ""), and `runs` (the newest 20, as in the list).
    """
    (name,) = asked.ids
    flow = site.engine.flows.get(name)
    runs = site.store.list_runs(flow=name, limit=NEWEST)
    if flow is None and not runs:
        raise PageError(404, "No such flow", f"there is no flow {name!r}")
    graph = _graph_of(site, flow, [info.run_id for info in runs])
    values = {
        "name": name,
        "has_code": flow is not None,
        "counts": counts_of(site, name),
        "graph": graph,
        "nodes": [] if graph is None else _nodes(flow, graph),
        "runs": run_rows(site, runs),
    }
    return Page("flow.html", f"Flow {name}", values)


def counts_of(site: Site, name: str) -> dict[str, str]:
    """Return the bounded count of a flow's runs for each status that some have."""
    counts = {status: counted(site, flow=name, status=status) for status in STATUSES}
    return {status: count for status, count in counts.items() if count != "0"}


def _graph_of(site: Site, flow: Verbs[Any] | None, run_ids: list[str]) -> dict[str, Any] | None:
    """Return the graph of the code, else that of the newest run that recorded one."""
    if isinstance(flow, CompiledGraph):
        return picture_document(flow._definition.picture(), {})
    for run_id in run_ids[:1] if flow is None else ():
        for start in site.store.read(run_id, limit=1):
            try:
                shape = start.fields().get("shape")
            except DeserializeStateError:
                return None
            if start.sequence == 0 and shape:
                return picture_document(recorded_picture(shape), {})
    return None


def _nodes(flow: Verbs[Any] | None, graph: dict[str, Any]) -> list[dict[str, str]]:
    units = flow._definition.units if isinstance(flow, CompiledGraph) else {}
    found = []
    for node in graph["nodes"]:
        fn = getattr(getattr(units.get(node["name"]), "work", None), "fn", None)
        text = getattr(fn, "__doc__", None) if callable(fn) else None
        found.append({"id": node["id"], "text": cleandoc(text) if isinstance(text, str) else ""})
    return found
