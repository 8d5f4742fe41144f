"""Whole ids and their meaning: a node of a graph, a node of a graph inside it, or an item of a map."""

from __future__ import annotations

from milepost.executor.flow import Flow, GraphFlow, GraphWork, MapWork, StateCodec, Unit

__all__ = ["codec_at", "find_node", "is_of_item"]


def find_node(flow: GraphFlow, node_id: str) -> tuple[GraphFlow, Unit, bool] | None:
    """Find the graph and the unit that a whole id names, and whether it is an item of that unit; None for no such id."""
    name, _, rest = node_id.partition("/")
    unit = flow.units.get(name)
    if unit is None or not rest:
        return None if unit is None else (flow, unit, False)
    if isinstance(unit.work, GraphWork):
        return find_node(unit.work.graph, rest)
    if isinstance(unit.work, MapWork):
        index, _, rest = rest.partition("/")
        if not index.isdecimal():
            return None
        if isinstance(unit.work.each, Unit):
            return (flow, unit, True) if not rest else None
        return find_node(unit.work.each, rest) if rest else None
    return None


def is_of_item(flow: GraphFlow, node_id: str) -> bool:
    """Return whether a whole id is inside an item of a map. An item counts the visits of its own nodes."""
    name, _, rest = node_id.partition("/")
    unit = flow.units.get(name)
    if unit is None or not rest:
        return False
    return isinstance(unit.work, MapWork) or (isinstance(unit.work, GraphWork) and is_of_item(unit.work.graph, rest))


def codec_at(flow: Flow, node_id: str) -> StateCodec:
    """Return the codec of a checkpoint under this id, which holds a state of its graph or the result of an item."""
    units = getattr(flow, "units", None)
    known = None if units is None else find_node(flow, node_id)  # type: ignore[arg-type]
    if known is None:
        return flow.codec
    graph, unit, is_item = known
    return unit.work.results if is_item and isinstance(unit.work, MapWork) else graph.codec
