"""Graphs: nodes over one typed state, written with `Graph`, run as a `CompiledGraph`.

The builder collects and refuses at once what one call alone shows to be wrong; `compile` checks the whole. What comes
out never changes and is all that the core needs. Nothing here runs a node: the verbs do, over the walk.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta
from types import MappingProxyType, UnionType
from typing import Any, Generic, Literal, Self, TypeVar, get_origin, overload

from milepost.acceptance import Acceptance, Reducer
from milepost.codec import Codec
from milepost.context import Context
from milepost.declarations import exact_id, new_node_id, read_function, read_targets, refuse
from milepost.drawing import Arrow, to_dot, to_mermaid
from milepost.engine import Verbs
from milepost.errors import GraphError, GraphProblem, InvalidIDError, OptionError
from milepost.flow import START, Router, Unit, Walk
from milepost.retry import Retry, as_seconds
from milepost.store import check_id
from milepost.topology import Topology, walk

__all__ = ["CompiledGraph", "Graph"]

StateT = TypeVar("StateT")

_logger = logging.getLogger("milepost")


class Graph(Generic[StateT]):
    """Build a graph over `state_type`: dataclass, TypedDict, NamedTuple, pydantic model, struct, attrs class or dict.

    A node returns the whole new state. With `partial=True` it may return a mapping of the changed fields only; a field
    with a reducer then becomes `reducer(value, update)`, any other is replaced, and a TypedDict's keys may be missing.
    `reducers` maps field names to `(value, update) -> value` and beats those that the state's type names, as in
    `Annotated[list, operator.add]`. `types`, `upgrade` and `unknown_fields` are the codec's: further types that it
    carries, a function that lifts older recorded states, and what becomes of recorded fields that the type no longer
    has.

    Raises `GraphError` where `state_type` is no class or a reducer cannot be called.
    """

    def __init__(
        self,
        state_type: type[StateT],
        *,
        partial: bool = False,
        reducers: Mapping[str, Reducer] | None = None,
        types: Collection[type] = (),
        upgrade: Callable[[Any], Any] | None = None,
        unknown_fields: Literal["refuse", "drop"] = "refuse",
    ) -> None:
        kind = get_origin(state_type) or state_type
        if not isinstance(kind, type) or kind is UnionType:
            refuse(
                "bad_state_type", "", f"{state_type!r} is no class: give the class of the state, such as a dataclass"
            )
        self._state_type = state_type
        self._is_partial = partial
        self._reducers = dict(reducers or {})
        for name, reducer in self._reducers.items():
            if not callable(reducer):
                text = f"the reducer of field {name!r} is {reducer!r}: give a function of two arguments"
                refuse("bad_reducer", name, text)
        self._codec: Codec[StateT] = Codec(
            state_type, types=types, upgrade=upgrade, unknown_fields=unknown_fields, total=not partial
        )
        self._units: dict[str, Unit] = {}
        self._edges: dict[str, list[str]] = {}
        self._routes: dict[str, list[Router]] = {}
        self._entry: str | None = None

    @overload
    def add_node(
        self,
        id: str,
        fn: Callable[[Context[Any], StateT], StateT | Mapping[str, object]],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
    ) -> Self: ...
    @overload
    def add_node(
        self,
        id: str,
        fn: Callable[[StateT], StateT | Mapping[str, object]],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
    ) -> Self: ...
    @overload
    def add_node(
        self,
        id: str,
        fn: Callable[[Context[Any], StateT], Awaitable[StateT | Mapping[str, object]]],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
    ) -> Self: ...
    @overload
    def add_node(
        self,
        id: str,
        fn: Callable[[StateT], Awaitable[StateT | Mapping[str, object]]],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
    ) -> Self: ...
    def add_node(
        self, id: str, fn: Any, *, retry: Retry | None = None, timeout: float | timedelta | None = None
    ) -> Self:
        """Add a node that runs `fn`, a sync or async function of `(ctx, state)` or `(state)`.

        `retry` is the policy for its failed attempts, None: the run's. `timeout` (seconds) ends an attempt.
        Raises `GraphError` for an id that is bad, reserved or taken and for a function that cannot be called so;
        `OptionError` for a wrong policy or timeout.
        """
        node_id = new_node_id(id)
        if node_id in self._units:
            refuse("duplicate_id", node_id, f"node {node_id!r} is there already: choose another id")
        signature = read_function(fn, f"node {node_id!r}", node_id, self._state_type)
        if retry is not None and not isinstance(retry, Retry):
            raise OptionError(f"retry of node {node_id!r} must be a Retry or None, not {retry!r}", option="retry")
        seconds = None if timeout is None else as_seconds(timeout, "timeout")
        if seconds == 0:
            text = f"timeout of node {node_id!r} must be more than 0 seconds: leave it out for no limit"
            raise OptionError(text, option="timeout")
        self._units[node_id] = Unit(node_id, fn, *signature, retry, seconds)
        return self

    def add_edge(self, source: str, target: str) -> Self:
        """Let a run go on from `source` at `target`, a node or END; from START: make `target` the entry.

        The nodes may be added later. Raises `GraphError` for an id that is no str.
        """
        source, target = exact_id(source), exact_id(target)
        if source == START:
            return self.set_entry(target)
        self._edges.setdefault(source, []).append(target)
        return self

    @overload
    def add_conditional_edge(
        self,
        source: str,
        router: Callable[[Context[Any], StateT], object],
        targets: Collection[str] | Mapping[Any, str] | None = None,
    ) -> Self: ...
    @overload
    def add_conditional_edge(
        self,
        source: str,
        router: Callable[[StateT], object],
        targets: Collection[str] | Mapping[Any, str] | None = None,
    ) -> Self: ...
    def add_conditional_edge(
        self, source: str, router: Any, targets: Collection[str] | Mapping[Any, str] | None = None
    ) -> Self:
        """Let `router`, a sync or async function of `(ctx, state)` or `(state)`, decide where `source` goes on.

        It answers with a node id or END, or, where `targets` is a mapping, with one of its keys. `targets` declares
        what it may answer; None: anything, which `compile` warns of because it cannot be checked. A router must not
        change the state. Raises `GraphError` for a router that cannot be called so and for bad targets.
        """
        source = exact_id(source)
        signature = read_function(router, f"the router of {source!r}", source, self._state_type)
        self._routes.setdefault(source, []).append(
            Router(source, router, *signature, read_targets(source, targets), frozenset())
        )
        return self

    def set_entry(self, id: str) -> Self:
        """Make `id` the node where a run begins; the last call counts. Raises `GraphError` for an id that is no str."""
        self._entry = exact_id(id)
        return self

    def compile(self, name: str | None = None) -> CompiledGraph[StateT]:
        """Check the graph and give it in a form that runs; later calls of the builder do not change that.

        `name` is the flow's name in a store; None: the name of the state's type. Raises `GraphError` with all
        problems that there are, and `OptionError` for a name that no store accepts. What is only suspicious is
        logged and kept as `warnings`.
        """
        topology = Topology(
            nodes=tuple(self._units),
            edges={source: tuple(targets) for source, targets in self._edges.items()},
            routes={source: tuple(r.targets for r in routers) for source, routers in self._routes.items()},
            entry=self._entry,
        )
        problems = topology.problems()
        fields = self._codec.field_names
        problems += [
            GraphProblem(
                "reducer_field_unknown",
                field,
                f"there is a reducer for {field!r}, a field that {_type_name(self._state_type)} lacks: "
                f"its fields are {', '.join(map(repr, fields))}",
            )
            for field in self._reducers
            if fields is not None and field not in fields
        ]
        if problems:
            raise GraphError(problems)
        is_named = name is not None
        name = _checked_name(_type_name(self._state_type) if name is None else name)
        compiled = CompiledGraph[StateT](
            name,
            is_named=is_named,
            topology=topology,
            units=self._finished_units(topology),
            codec=self._codec,
            acceptance=self._acceptance(),
            warnings=(*topology.warnings(), *_unrecordable(self._codec)),
        )
        for warning in compiled.warnings:
            node_id = warning.where if warning.where in self._units else None
            extra = {"flow": name, "node_id": node_id, "code": warning.code}
            _logger.warning("graph %r: %s", name, warning.text, extra=extra)
        return compiled

    def _acceptance(self) -> Acceptance:
        reducers = {**self._codec.reducers, **self._reducers} if self._is_partial else None
        return Acceptance(self._state_type, self._codec, reducers)

    def _finished_units(self, topology: Topology) -> dict[str, Unit]:
        """The units with the way on from each, which only the whole graph knows."""
        known = frozenset(self._units)
        finished = {}
        for unit in self._units.values():
            routers = self._routes.get(unit.id)
            router = dataclasses.replace(routers[0], known=known) if routers else None
            finished[unit.id] = dataclasses.replace(unit, next_node=topology.only_successor(unit.id), router=router)
        return finished


class CompiledGraph(Verbs[StateT]):
    """A graph that runs: made by `Graph.compile`, never changes, and may run many runs at once."""

    def __init__(
        self,
        name: str,
        *,
        is_named: bool,
        topology: Topology,
        units: Mapping[str, Unit],
        codec: Codec[StateT],
        acceptance: Acceptance,
        warnings: tuple[GraphProblem, ...],
    ) -> None:
        self._name = name
        self._is_named = is_named
        self._topology = topology
        self._units = MappingProxyType(dict(units))
        self._codec = codec
        self._acceptance = acceptance
        self._warnings = warnings
        self._entry = topology.entry or ""
        self._fingerprint = topology.fingerprint

    # -- what the core asks: see `milepost.flow.Flow` --------------------------------------------------

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

    def accept(self, unit: Unit, before: Any, returned: Any) -> Any:
        """The whole state after `unit`, given the state before it and what it returned.

        Raises `StateTypeError` where that is no such state; what a reducer raises comes through.
        """
        return self._acceptance.accept(unit, before, returned)

    def walk(self, state: Any, node_id: str) -> Walk:
        """Yield the units from `node_id` on; see `milepost.flow`."""
        return walk(self._units, state, node_id)

    def only_successor(self, node_id: str) -> str | None:
        """Where the node's one simple edge leads; None if it has a router, or is not known."""
        return self._topology.only_successor(node_id)

    @property
    def async_names(self) -> tuple[str, ...]:
        """The nodes and routers that are coroutine functions, which sync verbs cannot run."""
        nodes = [unit.id for unit in self._units.values() if unit.is_async]
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
        """The nodes after which several branches run at once; there are none yet."""
        return ()

    @property
    def warnings(self) -> tuple[GraphProblem, ...]:
        """What the graph runs with and yet should be looked at for."""
        return self._warnings

    def to_mermaid(self, status: Mapping[str, str] | None = None) -> str:
        """Draw a Mermaid flowchart; `status` maps node ids to done, running, failed, next or waiting.

        Raises `OptionError` for another status.
        """
        return to_mermaid(self.node_ids, self._arrows(), status)

    def to_dot(self, status: Mapping[str, str] | None = None) -> str:
        """Draw a Graphviz digraph; `status` as for `to_mermaid`."""
        return to_dot(self.node_ids, self._arrows(), status, self._name)

    def to_dict(self) -> dict[str, Any]:
        """The graph as JSON: name, fingerprint, and the parts of `shape`."""
        return {"name": self._name, "fingerprint": self._fingerprint, **self.shape}

    def __repr__(self) -> str:
        return f"<CompiledGraph {self._name!r}: {len(self._units)} nodes, entry {self._entry!r}>"

    def _arrows(self) -> list[Arrow]:
        found = [Arrow(START, self._entry)]
        for node in self.node_ids:
            found += [Arrow(node, target) for target in self._topology.edges.get(node, ())]
            for targets in self._topology.routes.get(node, ()):
                if targets is None:
                    found.append(Arrow(node, None, is_conditional=True))
                    continue
                for answer, target in targets.items():
                    found.append(Arrow(node, target, "" if answer == target else str(answer), is_conditional=True))
        return found


def _unrecordable(codec: Codec[Any]) -> list[GraphProblem]:
    return [
        GraphProblem("field_not_recordable", path, f"{path} keeps the graph from running with a store: {text}")
        for path, text in codec.problems
    ]


def _checked_name(name: Any) -> str:
    try:
        return check_id(name, "name of a graph")
    except (TypeError, InvalidIDError) as exc:
        raise OptionError(str(exc), option="name") from exc


def _type_name(state_type: Any) -> str:
    return getattr(state_type, "__name__", None) or str(state_type)
