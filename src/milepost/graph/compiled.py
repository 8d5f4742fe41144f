"""A graph in the form that runs: checked, complete, and never changed.

It is what the core asks about units, forks and states, and what people and programs look at. `Graph` makes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from milepost.codec import Codec
from milepost.errors import GraphProblem
from milepost.executor.flow import (
    END,
    BranchEnd,
    Fork,
    Function,
    GraphFlow,
    GraphWork,
    MapWork,
    Part,
    Unit,
    WaitWork,
    Walk,
    Whole,
)
from milepost.graph.acceptance import Acceptance
from milepost.graph.merge import Merging, changed_fields
from milepost.graph.topology import Topology, walk
from milepost.verbs import StateVerbs

if TYPE_CHECKING:
    from milepost.executor.run import Run
    from milepost.graph.drawing import Picture
    from milepost.options import Options
    from milepost.store import Store

__all__ = ["CompiledGraph", "kind_of"]

StateT = TypeVar("StateT")


class CompiledGraph(StateVerbs[StateT]):
    """A graph that runs: made by `Graph.compile`, never changes, and may run many runs at once."""

    def __init__(
        self,
        name: str,
        *,
        is_named: bool,
        topology: Topology,
        units: Mapping[str, Unit],
        forks: Mapping[str, Fork],
        mergings: Mapping[str, Merging],
        codec: Codec[StateT],
        acceptance: Acceptance,
        update_codec: Codec[Any] | None,
        warnings: tuple[GraphProblem, ...],
    ) -> None:
        self._name = name
        self._is_named = is_named
        self._topology = topology
        self._units = MappingProxyType(dict(units))
        self._forks = MappingProxyType(dict(forks))
        self._mergings = mergings
        self._codec = codec
        self._acceptance = acceptance
        self._update_codec = update_codec
        self._warnings = warnings
        self._entry = topology.entry or ""
        self._fingerprint = topology.fingerprint

    # -- what the core asks: see `milepost.executor.flow.GraphFlow` ---------------------------------------------

    front: Literal["graph"] = "graph"
    version = 1

    def new_run(self, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> Run:
        """Make a run of this graph."""
        from milepost.graph.run import NodeRun  # a program that only builds graphs does without

        return NodeRun(self, store, run_id, options, is_listening=is_listening)

    @property
    def name(self) -> str:
        """The flow's name in a store."""
        return self._name

    @property
    def is_named(self) -> bool:
        """Whether the name was given, instead of taken from the state's type."""
        return self._is_named

    @property
    def codec(self) -> Codec[StateT]:
        """Of the state."""
        return self._codec

    @property
    def entry(self) -> str:
        """The node where a run begins."""
        return self._entry

    @property
    def units(self) -> Mapping[str, Unit]:
        """All units by node id, in the order of declaration; read-only."""
        return self._units

    @property
    def fingerprint(self) -> str:
        """A digest (64 hex digits) of ids, edges, declared targets and entry; not of what the functions do."""
        return self._fingerprint

    @property
    def shape(self) -> dict[str, Any]:
        """What the fingerprint is of, as JSON; the caller's own copy."""
        return self._topology.shape

    def differences(self, recorded: Mapping[str, Any]) -> tuple[str, ...]:
        """How this graph differs from a recorded `shape`: a sentence for each change, () for none."""
        return self._topology.differences(recorded)

    def inputs_hash(self, state: Any) -> str:
        """A digest (64 hex digits) that equal initial states have in every process."""
        return hashlib.sha256(self._codec.canonical(state)).hexdigest()

    def digests(self, state: Any) -> Mapping[str, str]:
        """None: a state is one value."""
        return {}

    @property
    def splits(self) -> Mapping[str, Fork]:
        """All forks by the node that each follows, in the order of declaration; read-only."""
        return self._forks

    @property
    def update_codec(self) -> Codec[Any] | None:
        """Of what nodes return for fields with a reducer; None where no join asks for that."""
        return self._update_codec

    @property
    def has_waits(self) -> bool:
        """Whether a run may have to wait for a signal."""
        return any(work.signal is not None for work in _waits(self))

    @property
    def has_timers(self) -> bool:
        """Whether a run may have to wait for a time."""
        return any(work.signal is None for work in _waits(self))

    def updates(self, given: Whole | Part) -> Mapping[str, Any] | None:
        """What of that which a node gave is for fields with a reducer; None for a whole state."""
        return self._acceptance.updates(given)

    def replaced(self, before: Any, after: Any) -> tuple[str, ...]:
        """The fields with a reducer that have another value in one state than in the other."""
        return changed_fields(self._codec, before, after, self._acceptance.tracked)

    def merged(self, fork: Fork, before: Any, ends: Mapping[str, BranchEnd], data: bytes | None) -> Any:
        """The state where the branches meet, field by field; see `milepost.graph.merge`."""
        return self._mergings[fork.join].merge(fork, before, ends, data)

    def untold(self, fork: Fork, before: Any, after: Any, names: Iterable[str]) -> Iterator[str]:
        """Name the fields of which the fork's join cannot tell what the value afterwards adds to the one before."""
        return self._mergings[fork.join].untold(before, after, names)

    def read(self, before: Any, returned: Any) -> Whole | Part:
        """Tell whether user code that was given the state before returned a whole state or a part of one.

        Raises `StateTypeError` where it is neither.
        """
        return self._acceptance.read(before, returned)

    def accept(self, unit: Unit, before: Any, given: Whole | Part) -> Any:
        """Make the whole state after `unit` of the state before it and what it gave; what a reducer raises comes through."""
        return self._acceptance.accept(before, given)

    @property
    def takes_parts(self) -> bool:
        """Tell whether a node may return a part of the state."""
        return self._acceptance.takes_parts

    def taken_up(self, before: Any, given: Any) -> Any:
        """The state of a new turn: with `partial=True` a mapping is reduced into `before`, all else replaces it."""
        return self._acceptance.taken_up(before, given)

    def walk(self, node_id: str, until: str = END, *, is_split: bool = False) -> Walk:
        """Yield the units and forks from `node_id` on, up to `until`; see `milepost.executor.flow`."""
        return walk(self._units, self._forks, node_id, until, is_split)

    def only_successor(self, node_id: str) -> str | None:
        """Where the node's one simple edge leads; None if it has a router, or is not known."""
        return self._topology.only_successor(node_id)

    @property
    def async_names(self) -> tuple[str, ...]:
        """The nodes and routers that are coroutine functions, which sync verbs cannot run."""
        nodes = [name for unit in self._units.values() for name in _async_parts(unit)]
        nodes += [f"merge of {fork.join!r}" for fork in self._forks.values() if fork.merge and fork.merge.is_async]
        routers = [unit.id for unit in self._units.values() if unit.router is not None and unit.router.is_async]
        return (*nodes, *(f"router of {node!r}" for node in routers))

    # -- what people and programs look at --------------------------------------------------------------

    @property
    def entry_point(self) -> str:
        """The node where a run begins."""
        return self._entry

    @property
    def node_ids(self) -> tuple[str, ...]:
        """All nodes in the order of declaration."""
        return self._topology.nodes

    def has_node(self, node_id: str) -> bool:
        """Whether there is such a node; END and START are none."""
        return node_id in self._units

    def successors(self, node_id: str) -> tuple[str, ...]:
        """Where a run may go on after the node, END included; empty for END and unknown ids.

        Behind a conditional edge without declared targets that is every node, and END.
        """
        return self._topology.successors(node_id)

    def predecessors(self, node_id: str) -> tuple[str, ...]:
        """The nodes after which a run may go on at this one; empty for END and unknown ids."""
        return self._topology.predecessors(node_id)

    def is_conditional(self, node_id: str) -> bool:
        """Whether a router decides what follows the node."""
        return node_id in self._topology.routes

    @property
    def has_cycle(self) -> bool:
        """Whether a run may come to one node twice."""
        return self._topology.has_cycle

    @property
    def forks(self) -> tuple[str, ...]:
        """The nodes after which several branches run at once, in the order of declaration."""
        return tuple(self._forks)

    @property
    def warnings(self) -> tuple[GraphProblem, ...]:
        """What the graph runs with and yet should be looked at for."""
        return self._warnings

    def to_mermaid(self, status: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None) -> str:
        """Draw a Mermaid flowchart; `status` maps whole ids of nodes to done, running, failed, next or waiting.

        Branches of forks begin and end with thick arrows; a graph inside a node is a frame with its nodes in it. `notes` maps
        whole ids to a few words that are written on the node. Raises `OptionError` for another status.
        """
        from milepost.graph.drawing import to_mermaid

        return to_mermaid(self._picture(), status, notes)

    def to_dot(self, status: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None) -> str:
        """Draw a Graphviz digraph; `status` and `notes` as for `to_mermaid`."""
        from milepost.graph.drawing import to_dot

        return to_dot(self._picture(), status, self._name, notes)

    def to_dict(self) -> dict[str, Any]:
        """The graph as JSON: name, fingerprint, and the parts of `shape`, and forks with their joins where there are some."""
        return {"name": self._name, "fingerprint": self._fingerprint, **self._topology.described}

    def __repr__(self) -> str:
        return f"<CompiledGraph {self._name!r}: {len(self._units)} nodes, entry {self._entry!r}>"

    def _picture(self) -> Picture:
        from milepost.graph.drawing import picture_of

        graphs = {unit.id: _graph_in(unit.work) for unit in self._units.values()}
        inner = {node: graph._picture() for node, graph in graphs.items() if isinstance(graph, CompiledGraph)}
        return picture_of(self._topology, inner)


def kind_of(work: MapWork | GraphWork | WaitWork) -> dict[str, Any]:
    """What is compared of a node that is more than a function."""
    if isinstance(work, WaitWork):
        return {"kind": "timer"} if work.signal is None else {"kind": "wait", "signal": work.signal}
    graph = work.graph if isinstance(work, GraphWork) else work.each
    kind: dict[str, Any] = {"kind": "subgraph" if isinstance(work, GraphWork) else "map"}
    if not isinstance(graph, Unit):
        kind["shape"] = dict(graph.shape)
    return kind


def _waits(graph: CompiledGraph[Any]) -> Iterator[WaitWork]:
    """All waits and timers of a graph, and of those in it."""
    for unit in graph.units.values():
        work = unit.work
        inner = _graph_in(work)
        if isinstance(work, WaitWork):
            yield work
        elif isinstance(inner, CompiledGraph):
            yield from _waits(inner)


def _graph_in(work: MapWork | GraphWork | WaitWork | None) -> Unit | GraphFlow | None:
    """What a node with a graph in it walks, or what a map does for each item."""
    return work.graph if isinstance(work, GraphWork) else work.each if isinstance(work, MapWork) else None


def _async_parts(unit: Unit) -> Iterator[str]:
    """The names of what is async in a node."""
    if unit.is_async:
        yield unit.id
    work = unit.work
    parts: dict[str, Any] = {}
    if isinstance(work, MapWork):
        parts = {"over": work.over}
        if isinstance(work.each, Unit):
            parts["function"] = work.each
    elif isinstance(work, GraphWork):
        parts = {"into": work.into}
    elif isinstance(work, WaitWork):
        parts = {"until": work.until, "prompt": work.prompt if isinstance(work.prompt, Function) else None}
    yield from (f"{name} of {unit.id!r}" for name, part in parts.items() if part is not None and part.is_async)
    graph = _graph_in(work)
    if graph is not None and not isinstance(graph, Unit):
        yield from (f"{unit.id}/{name}" for name in graph.async_names)
