"""A graph as JSON, with the status of each node, for programs that draw it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.executor.flow import END, START
from milepost.graph.drawing import Picture, drawn_statuses, inside, recorded_picture
from milepost.graph.status import RunStatus
from milepost.views.tree import notes_of


def graph_document(status: RunStatus) -> dict[str, Any] | None:
    """Return the graph of a run, as it was when the run began, with the status of its nodes; None: it is not recorded."""
    if not status.shape:
        return None
    return picture_document(recorded_picture(status.shape), status.statuses, status.maps, notes_of(status))


def picture_document(
    picture: Picture,
    statuses: Mapping[str, str],
    maps: Mapping[str, tuple[int, int, int]] | None = None,
    notes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a picture as JSON: `nodes`, and the `edges` between them.

    A node has its whole `id` (in a map `m`, `m/*/x` is node x of every item), its `name`, `kind`, `status` ("" if the run
    has not reached it), `note`, of a map `counts` (done, failed, total), of a wait its `signal`, and of a graph inside it
    `inner`, which again has nodes and edges. An edge has `source` and `target` (ids of nodes of this graph, "__start__",
    "__end__", or null for any node), `label`, `is_conditional` and `is_branch`.
    """
    return _document(picture, "", drawn_statuses(picture, statuses), maps or {}, notes or {})


def _document(
    picture: Picture,
    prefix: str,
    statuses: Mapping[str, str],
    maps: Mapping[str, tuple[int, int, int]],
    notes: Mapping[str, str],
) -> dict[str, Any]:
    nodes = []
    for name in picture.nodes:
        node_id, kind = prefix + name, picture.kinds.get(name, {})
        node: dict[str, Any] = {
            "id": node_id,
            "name": name,
            "kind": str(kind.get("kind", "node")),
            "status": statuses.get(node_id, ""),
            "note": notes.get(node_id, ""),
        }
        if kind.get("signal") is not None:
            node["signal"] = str(kind["signal"])
        if node_id in maps:
            node["counts"] = dict(zip(("done", "failed", "total"), maps[node_id], strict=True))
        if name in picture.inner:
            node["inner"] = _document(picture.inner[name], inside(picture, name, prefix), statuses, maps, notes)
        nodes.append(node)
    edges = [
        {
            "source": arrow.source if arrow.source == START else prefix + arrow.source,
            "target": arrow.target if arrow.target in {None, END} else f"{prefix}{arrow.target}",
            "label": arrow.label,
            "is_conditional": arrow.is_conditional,
            "is_branch": arrow.is_branch,
        }
        for arrow in picture.arrows
    ]
    return {"nodes": nodes, "edges": edges}
