"""Early decoding of the recorded values inside maps, forks and graphs, before anybody takes the run.

A plan, and a resume before its first write, decode all values that the resume will need. A value that cannot be decoded
is thus refused while the run is unchanged, and the refusal names the node or the item and the field. The decoded values
are kept for the walk, which asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from milepost.errors import DeserializeStateError
from milepost.executor.flow import GraphFlow, MapWork, Unit, WaitWork
from milepost.executor.recorded import JournalHistory, StepRecord
from milepost.executor.run import Run
from milepost.executor.units import find_node
from milepost.executor.waits import reply_of, waits_of
from milepost.model.failure import place

__all__ = ["decode_inside", "recorded_items"]


def decode_inside(run: Run, flow: GraphFlow, since: JournalHistory, prefix: str = "") -> None:
    """Decode what a walk of `flow` below `prefix` needs: results and items of maps, replies, updates, states.

    The states of a run's own graph and of its branches are left out: `milepost.graph.checks` decodes them, and
    compares them with the flow as well. Raises DeserializeStateError.
    """
    for node_id, entry in since.done.items():
        known = _unit_below(flow, node_id, prefix)
        if known is None or since.is_over(node_id, entry):
            continue
        graph, unit, is_item = known
        with _named(run, node_id, "result" if is_item else "state"):
            if is_item and isinstance(unit.work, MapWork):
                since.keep(entry.sequence, unit.work.results.decode(since.state_of(entry), root="output"))
            elif prefix:
                graph.codec.decode(since.content(entry)[0])
            if graph.update_codec is not None:
                for update in since.updates_in(entry):
                    graph.update_codec.decode(msgspec.json.encode(update), root="updates")
    for node_id, entry in since.items.items():
        known = _unit_below(flow, node_id, prefix)
        if known is not None and isinstance(known[1].work, MapWork) and not since.is_over(node_id, entry):
            _decode_items(run, known[1].work, since, node_id, entry)
    for node_id, entry in since.replies.items():
        known = _unit_below(flow, node_id, prefix)
        if known is not None and isinstance(known[1].work, WaitWork) and not since.is_over(node_id, entry):
            with _named(run, node_id, "reply"):
                reply_of(waits_of(known[1].work), entry.record.state() or b"{}")


def _unit_below(flow: GraphFlow, node_id: str, prefix: str) -> tuple[GraphFlow, Unit, bool] | None:
    return find_node(flow, node_id[len(prefix) :]) if node_id.startswith(prefix) else None


def _decode_items(run: Run, work: MapWork, since: JournalHistory, node_id: str, entry: StepRecord) -> None:
    """Decode the items that are not done yet, in the form in which the function or the graph will get them."""
    is_graph = not isinstance(work.each, Unit)
    for index, item in enumerate(recorded_items(node_id, entry)):
        item_id = f"{node_id}/{index}"
        if item_id in since.done or (is_graph and since.children(item_id)):
            continue
        with _named(run, item_id, "input"):
            if isinstance(work.each, Unit):
                work.items.decode(item, root="item")
            else:
                work.each.codec.decode(item, root="item")


def recorded_items(node_id: str, entry: StepRecord) -> list[bytes]:
    """Read the encoded items of a map from their record. Raises DeserializeStateError if they are damaged."""
    try:
        return [bytes(raw) for raw in msgspec.json.decode(entry.record.state() or b"", type=list[msgspec.Raw])]
    except msgspec.MsgspecError as exc:
        raise DeserializeStateError(f"the items of map {node_id!r} are damaged: {exc}", path="items") from exc


@contextmanager
def _named(run: Run, node_id: str, what: str) -> Iterator[None]:
    try:
        yield
    except DeserializeStateError as exc:
        exc.run_id, exc.node_id = run.run_id, node_id
        place(
            exc,
            f"the recorded {what} of {node_id!r} of run {run.run_id!r} cannot be read by flow {run.flow.name!r} as it is now",
            "bring the type back that it was recorded with, or give new fields a default",
        )
        raise
