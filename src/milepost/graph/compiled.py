"""A graph in the form that runs: checked, complete, and never changed.

The core asks it about units, forks and states; people and programs look at it. `Graph` makes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

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
from milepost.graph.merge import Acceptance, Merging, changed_fields
from milepost.graph.topology import Topology, walk
from milepost.verbs import StateVerbs

if TYPE_CHECKING:
    from milepost.executor.run import Run
    from milepost.graph.drawing import Picture
    from milepost.options import Options
    from milepost.store import Store

StateT = TypeVar("StateT")


class CompiledGraph(StateVerbs[StateT]):
    """A graph that can run. `Graph.compile` makes it; it never changes, and many runs may use it at once.

    Examples in docstrings call the graph in that of `Graph` `doubling`, and an empty `MemoryStore()` `store`.

    >>> doubling.name, doubling.entry_point, doubling.node_ids, doubling.successors("double")
    ('doubling', 'double', ('double',), ('__end__',))
    >>> print(doubling.to_mermaid().splitlines()[0])
    flowchart TD
    """

    def __init__(self, definition: GraphDefinition[StateT]) -> None:
        self._definition = definition
        self.name = definition.name

    @property
    def _flow(self) -> GraphFlow:
        return self._definition

    @property
    def fingerprint(self) -> str:
        """A digest (64 hex digits) of ids, edges, declared targets and entry; not of what the functions do."""
        return self._definition.fingerprint

    @property
    def entry_point(self) -> str:
        """The node where a run begins."""
        return self._definition.entry

    @property
    def node_ids(self) -> tuple[str, ...]:
        """All nodes in the order of declaration."""
        return self._definition.topology.nodes

    def has_node(self, node_id: str) -> bool:
        """Return whether the graph has such a node; END and START are none."""
        return node_id in self._definition.units

    def successors(self, node_id: str) -> tuple[str, ...]:
        """Return the nodes at which a run may go on after a node, END included; () for END and unknown ids.

        After a conditional edge without declared targets these are all nodes, and END.
        """
        return self._definition.topology.successors(node_id)

    def predecessors(self, node_id: str) -> tuple[str, ...]:
        """Return the nodes after which a run may go on at this one; () for END and unknown ids."""
        return self._definition.topology.predecessors(node_id)

    def is_conditional(self, node_id: str) -> bool:
        """Return whether a router decides which node follows this one."""
        return node_id in self._definition.topology.routes

    @property
    def has_cycle(self) -> bool:
        """True if a run may come to one node twice."""
        return self._definition.topology.has_cycle

    @property
    def forks(self) -> tuple[str, ...]:
        """The nodes after which several branches run at once, in the order of declaration."""
        return tuple(self._definition.splits)

    @property
    def warnings(self) -> tuple[GraphProblem, ...]:
        """The problems with which the graph runs, and which somebody should look at."""
        return self._definition.warnings

    def to_mermaid(self, status: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None) -> str:
        """Draw a Mermaid flowchart; `status` maps whole ids of nodes to done, running, failed, next or waiting.

        Branches of forks begin and end with thick arrows; a graph inside a node is a frame with its nodes in it.
        `notes` maps whole ids to a few words that are written on the node. Raises `OptionError` for another status.
        """
        from milepost.graph.drawing import to_mermaid

        return to_mermaid(self._definition.picture(), status, notes)

    def to_dot(self, status: Mapping[str, str] | None = None, notes: Mapping[str, str] | None = None) -> str:
        """Draw a Graphviz digraph; `status` and `notes` as for `to_mermaid`."""
        from milepost.graph.drawing import to_dot

        return to_dot(self._definition.picture(), status, self.name, notes)

    def to_dict(self) -> dict[str, Any]:
        """Describe the graph as JSON: name, fingerprint, the parts of `shape`, and its forks with their joins, if any."""
        return {"name": self.name, "fingerprint": self.fingerprint, **self._definition.topology.described}

    def __repr__(self) -> str:
        return f"<CompiledGraph {self.name!r}: {len(self._definition.units)} nodes, entry {self._definition.entry!r}>"


class GraphDefinition(Generic[StateT]):
    """A graph as the core runs it: see `milepost.executor.flow.GraphFlow`. It never changes."""

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
        self.topology = topology
        self._units = MappingProxyType(dict(units))
        self._forks = MappingProxyType(dict(forks))
        self._mergings = mergings
        self._codec = codec
        self._acceptance = acceptance
        self._update_codec = update_codec
        self.warnings = warnings
        self._entry = topology.entry or ""
        self._fingerprint = topology.fingerprint
        self._async_names = tuple(_async_names(self._units.values(), self._forks.values()))

    front: Literal["graph"] = "graph"
    version = 1

    def new_run(self, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> Run:
        """Make a run of this graph."""
        from milepost.graph.run import NodeRun  # imported here: a program that only builds graphs does not need it

        return NodeRun(self, store, run_id, options, is_listening=is_listening)

    @property
    def name(self) -> str:
        """The flow's name in a store."""
        return self._name

    @property
    def is_named(self) -> bool:
        """True if the name was given, instead of taken from the state's type."""
        return self._is_named

    @property
    def codec(self) -> Codec[StateT]:
        """The codec of the state."""
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
        """The shape that the fingerprint digests, as JSON; the caller's own copy."""
        return self.topology.shape

    def differences(self, recorded: Mapping[str, Any]) -> tuple[str, ...]:
        """Describe how this graph differs from a recorded `shape`: a sentence for each change, () for none."""
        return self.topology.differences(recorded)

    def input_of(self, data: bytes) -> Any:
        """Decode the state that a run begins with."""
        return self.codec.decode(data, root="input")

    def inputs_hash(self, state: Any) -> str:
        """Return a digest of an initial state: 64 hex digits, the same for equal states in every process."""
        return hashlib.sha256(self._codec.canonical(state)).hexdigest()

    def digests(self, state: Any) -> Mapping[str, str]:
        """Return {}: a state is one value, without named parts."""
        return {}

    @property
    def splits(self) -> Mapping[str, Fork]:
        """All forks, each by the id of the node before it, in the order of declaration; read-only."""
        return self._forks

    @property
    def update_codec(self) -> Codec[Any] | None:
        """The codec of the values that nodes return for fields with a reducer; None if no join needs them."""
        return self._update_codec

    @property
    def has_waits(self) -> bool:
        """True if a run may have to wait for a signal."""
        return any(work.signal is not None for work in _waits(self))

    @property
    def has_timers(self) -> bool:
        """True if a run may have to wait for a time."""
        return any(work.signal is None for work in _waits(self))

    def updates(self, given: Whole | Part) -> Mapping[str, Any] | None:
        """Return those values in a node's return value that are for fields with a reducer; None for a whole state."""
        return self._acceptance.updates(given)

    def replaced(self, before: Any, after: Any) -> tuple[str, ...]:
        """Return the fields with a reducer whose values differ between two states."""
        return changed_fields(self._codec, before, after, self._acceptance.tracked)

    def merged(self, fork: Fork, before: Any, ends: Mapping[str, BranchEnd], data: bytes | None) -> Any:
        """Make the state at the join of a fork, field by field; see `milepost.graph.merge`."""
        return self._mergings[fork.join].merge(fork, before, ends, data)

    def untold(self, fork: Fork, before: Any, after: Any, names: Iterable[str]) -> Iterator[str]:
        """Give those of `names` for which the join of `fork` cannot derive what the new value adds to the old one."""
        return self._mergings[fork.join].untold(before, after, names)

    def read(self, before: Any, returned: Any) -> Whole | Part:
        """Classify what user code returned for the state `before`: a whole state, or a part of one.

        Raises `StateTypeError` for anything else.
        """
        return self._acceptance.read(before, returned)

    def accept(self, unit: Unit, before: Any, given: Whole | Part) -> Any:
        """Make the state after `unit` of the state before and the value that it gave.

        Errors of a reducer pass through.
        """
        return self._acceptance.accept(before, given)

    @property
    def takes_parts(self) -> bool:
        """True if a node may return a part of the state."""
        return self._acceptance.takes_parts

    def taken_up(self, before: Any, given: Any) -> Any:
        """Make the first state of a new turn.

        With `partial=True` a mapping is reduced into `before`; any other value replaces it.
        """
        return self._acceptance.taken_up(before, given)

    def walk(self, node_id: str, until: str = END, *, is_split: bool = False) -> Walk:
        """Yield the units and forks from `node_id` on, up to `until`; see `milepost.executor.flow`."""
        return walk(self._units, self._forks, node_id, until, is_split)

    def only_successor(self, node_id: str) -> str | None:
        """Return the target of a node's only simple edge; None if it has a router or several edges, or is unknown."""
        return self.topology.only_successor(node_id)

    @property
    def async_names(self) -> tuple[str, ...]:
        """The nodes and routers that are coroutine functions, which sync verbs cannot run."""
        return self._async_names

    def picture(self) -> Picture:
        """Return the graph as it is drawn, with the graphs inside its nodes."""
        from milepost.graph.drawing import picture_of

        graphs = {unit.id: _graph_in(unit.work) for unit in self._units.values()}
        inner = {node: graph.picture() for node, graph in graphs.items() if isinstance(graph, GraphDefinition)}
        return picture_of(self.topology, inner)


def kind_of(work: MapWork | GraphWork | WaitWork) -> dict[str, Any]:
    """Return the description of a map, graph, wait or timer that is part of the graph's shape."""
    if isinstance(work, WaitWork):
        return {"kind": "timer"} if work.signal is None else {"kind": "wait", "signal": work.signal}
    graph = work.graph if isinstance(work, GraphWork) else work.each
    kind: dict[str, Any] = {"kind": "subgraph" if isinstance(work, GraphWork) else "map"}
    if not isinstance(graph, Unit):
        kind["shape"] = dict(graph.shape)
    return kind


def _waits(graph: GraphDefinition[Any]) -> Iterator[WaitWork]:
    """Yield all waits and timers of a graph and of the graphs inside it."""
    for unit in graph.units.values():
        work = unit.work
        inner = _graph_in(work)
        if isinstance(work, WaitWork):
            yield work
        elif isinstance(inner, GraphDefinition):
            yield from _waits(inner)


def _graph_in(work: MapWork | GraphWork | WaitWork | None) -> Unit | GraphFlow | None:
    """Return the graph inside a node, or the unit or graph that a map performs for each item; None for other nodes."""
    return work.graph if isinstance(work, GraphWork) else work.each if isinstance(work, MapWork) else None


def _async_names(units: Collection[Unit], forks: Iterable[Fork]) -> Iterator[str]:
    """Yield the names of a graph's coroutine functions: those of its nodes, its merges and its routers."""
    for unit in units:
        yield from _async_parts(unit)
    yield from (f"merge of {fork.join!r}" for fork in forks if fork.merge and fork.merge.is_async)
    yield from (f"router of {unit.id!r}" for unit in units if unit.router is not None and unit.router.is_async)


def _async_parts(unit: Unit) -> Iterator[str]:
    """Yield the names of a node's coroutine functions."""
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
