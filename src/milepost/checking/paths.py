"""The path that a finished run has recorded, compared with its graph as it is now.

A resume asks only for the node where it goes on. Other runs stand anywhere on such a path, so each of its nodes must still
be there. An edge that the path took may be gone: a run that is past it goes on, and the report tells it as a change.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from milepost.checking.grouping import RunVerdict, bare_node
from milepost.errors import FlowChangedError
from milepost.executor.flow import END, GraphFlow, find_node
from milepost.model.ranges import is_live
from milepost.model.record import CHECKPOINT, ROUTE

if TYPE_CHECKING:
    from milepost.graph.compiled import GraphDefinition
    from milepost.store import Store


def compare_path(store: Store, run_id: str, flow: GraphFlow, verdict: RunVerdict) -> RunVerdict:
    """Return the verdict about a finished run of a graph, by its whole path; `verdict` is that about its end."""
    live = store.get_run(run_id).live
    gone_edges: dict[str, None] = {}
    for record in store.read(run_id, kinds=(CHECKPOINT, ROUTE)):
        if not is_live(record.sequence, live):
            continue
        known = find_node(flow, record.node_id)
        if known is None:
            return _refused(run_id, flow, _missing(flow, record.node_id), verdict.differences)
        graph, _, is_item = known
        if is_item or record.is_foreign:
            continue
        fields = record.fields()
        following = cast("GraphDefinition[Any]", graph).topology.successors(record.node_id.rpartition("/")[2])
        for target in fields.get("fork") or (fields.get("next_node"),):
            if target is not None and target not in following:
                place = "END" if target == END else target
                gone_edges[f"the path took the edge {bare_node(record.node_id)} -> {place}, which is gone"] = None
    return verdict._replace(differences=(*verdict.differences, *gone_edges))


def _missing(flow: GraphFlow, node_id: str) -> str:
    """Return the outermost of the nodes around `node_id` that the flow does not have."""
    around = accumulate(node_id.split("/"), lambda outer, name: f"{outer}/{name}")
    nodes = (place for place in around if not place.rpartition("/")[2].isdecimal())
    return next((place for place in nodes if find_node(flow, place) is None), node_id)


def _refused(run_id: str, flow: GraphFlow, node_id: str, differences: tuple[str, ...]) -> RunVerdict:
    changes = differences or (f"node {node_id!r} is gone",)
    error = FlowChangedError(
        f"run {run_id!r} was at node {node_id!r}, which flow {flow.name!r} does not have ({'; '.join(changes)}): if it was "
        f"renamed, pass rename={{{node_id!r}: new name}} for the runs that stand there; else resume_from a node before it",
        node_id=node_id,
        differences=changes,
    )
    return RunVerdict("refuse", str(error), error, changes, node_id)
