"""Graphs: nodes over one typed state, written with `Graph`, run as a `CompiledGraph`.

The builder collects nodes and edges, and refuses at once what is wrong with a single call; `compile` checks the whole.
The compiled graph never changes and is all that the core needs: see `milepost.graph.compiled`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, _SpecialForm, get_origin, overload

import msgspec

from milepost.codec import Codec
from milepost.codec.functions import FunctionCodecs, classes
from milepost.errors import GraphError, GraphProblem, InvalidIDError, OptionError, no_attribute, shown
from milepost.executor.context import Context
from milepost.executor.flow import (
    START,
    Fork,
    Function,
    GraphWork,
    MapWork,
    Router,
    Unit,
    WaitWork,
    Whole,
)
from milepost.graph.compiled import CompiledGraph, GraphDefinition, kind_of
from milepost.graph.declarations import (
    exact_id,
    new_node_id,
    positive,
    read_callable,
    read_function,
    read_merge,
    read_prompt,
    read_targets,
    read_tries,
    refuse,
)
from milepost.graph.merge import Acceptance, Merging, Reducer, is_ready_made
from milepost.graph.topology import Topology
from milepost.model.durations import as_seconds
from milepost.model.executors import ExecutorLike, checked_executor
from milepost.model.retry import Retry
from milepost.store import check_id

if TYPE_CHECKING:
    from milepost.model.results import Reply

__all__ = ["CompiledGraph", "Graph"]

StateT = TypeVar("StateT")
OtherT = TypeVar("OtherT")
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")
PayloadT = TypeVar("PayloadT")

Merge = Callable[[StateT, dict[str, StateT]], object] | Mapping[str, Reducer]
"""The merge of branches that meet: `(state before the fork, {branch: state}) -> state`, or reducers for some fields."""

_logger = logging.getLogger("milepost")


class Graph(Generic[StateT]):
    """A builder of graphs over states of `state_type`.

    The type is a dataclass, TypedDict, NamedTuple, pydantic model, struct, attrs class or dict.

    A node returns the whole new state. With `partial=True` it may return a mapping of the changed fields only; a field
    with a reducer then becomes `reducer(value, update)`, any other is replaced, and a TypedDict's keys may be missing.
    `reducers` maps field names to `(value, update) -> value` and beats those that the state's type names, as in
    `Annotated[list, operator.add]`. `types`, `upgrade` and `unknown_fields` are options of the codec: further types
    that it carries, a function that lifts older recorded states, and whether to refuse or drop recorded fields that the
    type no longer has.

    Raises `GraphError` if `state_type` is no class or a reducer cannot be called.

    >>> from milepost import END, Graph
    >>> def double(n: int) -> int:
    ...     return 2 * n
    >>> doubling = Graph(int).add_node("double", double).set_entry("double").add_edge("double", END).compile("doubling")
    >>> doubling.run(21)
    42
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

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
                "bad_state_type",
                "",
                f"{shown(state_type)} is no class: give the class of the state, such as a dataclass",
            )
        self._state_type = state_type
        self._is_partial = partial
        self._reducers = dict(reducers or {})
        for name, reducer in self._reducers.items():
            if not callable(reducer):
                text = f"the reducer of field {shown(name)} is {shown(reducer)}: give a function of two arguments"
                refuse("bad_reducer", name, text)
        self._codec: Codec[StateT] = Codec(
            state_type, types=types, upgrade=upgrade, unknown_fields=unknown_fields, total=not partial
        )
        self._types = tuple(types)
        self._units: dict[str, Unit] = {}
        self._merges: dict[str, Function | Mapping[str, Reducer]] = {}
        self._limits: dict[str, tuple[int | None, bool]] = {}
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
        merge: Merge[StateT] | None = None,
        max_parallel: int | None = None,
        fail_fast: bool = False,
        executor: ExecutorLike | None = None,
    ) -> Self: ...
    @overload
    def add_node(
        self,
        id: str,
        fn: Callable[[StateT], StateT | Mapping[str, object]],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge: Merge[StateT] | None = None,
        max_parallel: int | None = None,
        fail_fast: bool = False,
        executor: ExecutorLike | None = None,
    ) -> Self: ...
    @overload
    def add_node(
        self,
        id: str,
        fn: Callable[[Context[Any], StateT], Awaitable[StateT | Mapping[str, object]]],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge: Merge[StateT] | None = None,
        max_parallel: int | None = None,
        fail_fast: bool = False,
        executor: ExecutorLike | None = None,
    ) -> Self: ...
    @overload
    def add_node(
        self,
        id: str,
        fn: Callable[[StateT], Awaitable[StateT | Mapping[str, object]]],
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge: Merge[StateT] | None = None,
        max_parallel: int | None = None,
        fail_fast: bool = False,
        executor: ExecutorLike | None = None,
    ) -> Self: ...
    def add_node(
        self,
        id: str,
        fn: Any,
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge: Any = None,
        max_parallel: int | None = None,
        fail_fast: bool = False,
        executor: ExecutorLike | None = None,
    ) -> Self:
        """Add a node that runs `fn`, a sync or async function of `(ctx, state)` or `(state)`.

        `retry` is the policy for its failed attempts, None: the run's. `timeout` (seconds) ends an attempt. A sync
        function runs in `executor`, which may be a factory of an executor; None: the run's.

        At a node where the branches of a fork meet, `merge` merges their states: a function of the state before the
        fork and `{branch: state}`, or a mapping of fields to reducers. At a node after which a run forks,
        `max_parallel` limits how many calls of user functions run at once in its branches (never how many branches are
        open), and with `fail_fast` the other branches stop at their next boundary when one has failed.

        Raises `GraphError` for an id that is bad, reserved or taken and for a function that cannot be called so;
        `OptionError` for a wrong policy, timeout, limit or executor, and for an executor of a coroutine function.
        """
        node_id = self._new_id(id)
        signature = read_function(fn, f"node {node_id!r}", node_id, self._state_type)
        tried = read_tries(retry, timeout, f"node {node_id!r}")
        checked_executor(executor, f"node {node_id!r}", is_async=signature.is_async)
        self._add(Unit(node_id, fn, *signature, *tried, executor=executor), merge)
        self._limits[node_id] = positive(max_parallel, "max_parallel"), bool(fail_fast)
        return self

    @overload
    def add_map(
        self,
        id: str,
        over: Callable[[StateT], Iterable[ItemT]] | Callable[[StateT], Awaitable[Iterable[ItemT]]],
        fn: Callable[[Context[Any], ItemT], Awaitable[ResultT]],
        *,
        merge: Callable[[StateT, list[ResultT]], object],
        max_parallel: int | None = None,
        executor: ExecutorLike | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge_branches: Merge[StateT] | None = None,
    ) -> Self: ...
    @overload
    def add_map(
        self,
        id: str,
        over: Callable[[StateT], Iterable[ItemT]] | Callable[[StateT], Awaitable[Iterable[ItemT]]],
        fn: Callable[[ItemT], Awaitable[ResultT]],
        *,
        merge: Callable[[StateT, list[ResultT]], object],
        max_parallel: int | None = None,
        executor: ExecutorLike | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge_branches: Merge[StateT] | None = None,
    ) -> Self: ...
    @overload
    def add_map(
        self,
        id: str,
        over: Callable[[StateT], Iterable[ItemT]] | Callable[[StateT], Awaitable[Iterable[ItemT]]],
        fn: Callable[[Context[Any], ItemT], ResultT],
        *,
        merge: Callable[[StateT, list[ResultT]], object],
        max_parallel: int | None = None,
        executor: ExecutorLike | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge_branches: Merge[StateT] | None = None,
    ) -> Self: ...
    @overload
    def add_map(
        self,
        id: str,
        over: Callable[[StateT], Iterable[ItemT]] | Callable[[StateT], Awaitable[Iterable[ItemT]]],
        fn: Callable[[ItemT], ResultT],
        *,
        merge: Callable[[StateT, list[ResultT]], object],
        max_parallel: int | None = None,
        executor: ExecutorLike | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge_branches: Merge[StateT] | None = None,
    ) -> Self: ...
    @overload
    def add_map(
        self,
        id: str,
        over: Callable[[StateT], Iterable[ItemT]] | Callable[[StateT], Awaitable[Iterable[ItemT]]],
        fn: CompiledGraph[ItemT],
        *,
        merge: Callable[[StateT, list[ItemT]], object],
        max_parallel: int | None = None,
        merge_branches: Merge[StateT] | None = None,
    ) -> Self: ...
    def add_map(
        self,
        id: str,
        over: Any,
        fn: Any,
        *,
        merge: Any,
        max_parallel: int | None = None,
        executor: ExecutorLike | None = None,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        merge_branches: Any = None,
    ) -> Self:
        """Add a node that does `fn` for every item that `over(state)` gives, at once, and merges the results.

        `fn` is a sync or async function of `(ctx, item)` or `(item)`, or a compiled graph whose state is the item and
        whose final state is the result. `merge(state, results)` gives the new state; the results are in the order of
        the items. The items are recorded before the first is begun, and each result when it is there, under `id/0`,
        `id/1` and so on: after a crash only items without a result are done. `max_parallel` limits how many are open at
        once. A sync function runs in `executor`, which may be a factory of an executor; None: the run's. `retry` is the
        policy for the failed attempts of an item, None: the run's, and `timeout` (seconds) ends an attempt of one; a
        graph has those of its own nodes. When an item fails for good the others go on, and then `BranchError` has all
        errors.

        `merge_branches` is like `merge` of `add_node`, for a map where the branches of a fork meet.

        Raises `GraphError` for an id that is bad or taken and for functions that cannot be called so; `OptionError` for
        a wrong limit, policy or timeout, and for an `executor`, `retry` or `timeout` given with a graph.
        """
        node_id = self._new_id(id)
        codecs = FunctionCodecs((self._state_type, *self._types), self._types)
        each: Unit | GraphDefinition[Any]
        if isinstance(fn, CompiledGraph):
            each = fn._definition
            items = results = each.codec
            for name, value in (("executor", executor), ("retry", retry), ("timeout", timeout)):
                if value is not None:
                    text = f"map {node_id!r} is of a graph, whose own nodes say where and how they run: give them the {name}"
                    raise OptionError(text, option=name)
        else:
            signature = read_function(fn, f"the function of map {node_id!r}", node_id, object)
            tried = read_tries(retry, timeout, f"map {node_id!r}")
            checked_executor(executor, f"map {node_id!r}", is_async=signature.is_async)
            each = Unit(node_id, fn, *signature, *tried, executor=executor)
            items, results = codecs.pair(fn, 1 if signature.takes_context else 0)
        work = MapWork(
            self._function(over, f"over= of map {node_id!r}", node_id, 1),
            each,
            items,
            results,
            positive(max_parallel, "max_parallel"),
        )
        function = self._function(merge, f"merge= of map {node_id!r}", node_id, 2)
        return self._add(Unit(node_id, function.fn, False, function.is_async, work=work), merge_branches)

    @overload
    def add_subgraph(self, id: str, compiled: CompiledGraph[StateT], *, merge: Merge[StateT] | None = None) -> Self: ...
    @overload
    def add_subgraph(
        self,
        id: str,
        compiled: CompiledGraph[OtherT],
        *,
        into: Callable[[StateT], OtherT] | Callable[[StateT], Awaitable[OtherT]],
        out: Callable[[StateT, OtherT], object],
        merge: Merge[StateT] | None = None,
    ) -> Self: ...
    def add_subgraph(
        self, id: str, compiled: CompiledGraph[Any], *, into: Any = None, out: Any = None, merge: Any = None
    ) -> Self:
        """Add a node that walks another graph, whose nodes are recorded in the same journal as `id/node`.

        If the other graph has another type of state, `into(state)` makes its first state and `out(state, substate)`
        gives the state after the node; give both or neither. `merge` as in `add_node`, where the branches of a fork
        meet.

        Raises `GraphError` for an id that is bad or taken, for a value that is no compiled graph, for one of the two
        functions without the other, and without both if the types of the states differ.
        """
        node_id = self._new_id(id)
        if not isinstance(compiled, CompiledGraph):
            refuse("not_a_graph", node_id, f"sub-graph {node_id!r} is {shown(compiled)}: give a compiled graph")
        if (into is None) != (out is None):
            refuse(
                "bad_conversion", node_id, f"sub-graph {node_id!r} has only one of into= and out=: give both or neither"
            )
        inner = compiled._definition
        if into is None and inner.codec.type != self._codec.type:
            text = (
                f"sub-graph {node_id!r} has states of {_type_name(inner.codec.type)}, this graph of "
                f"{_type_name(self._state_type)}: give into= and out=, which make one of the other"
            )
            refuse("bad_conversion", node_id, text)
        if into is None:
            return self._add(Unit(node_id, _as_it_is, False, False, work=GraphWork(inner)), merge)
        work = GraphWork(inner, self._function(into, f"into= of sub-graph {node_id!r}", node_id, 1))
        function = self._function(out, f"out= of sub-graph {node_id!r}", node_id, 2)
        return self._add(Unit(node_id, function.fn, False, function.is_async, work=work), merge)

    @overload
    def add_wait(
        self,
        id: str,
        signal: str,
        *,
        apply: Callable[[StateT, Reply[PayloadT]], object],
        payload: type[PayloadT],
        timeout: float | timedelta | None = None,
        prompt: object = "",
        early: bool = True,
        merge: Merge[StateT] | None = None,
    ) -> Self: ...
    @overload
    def add_wait(
        self,
        id: str,
        signal: str,
        *,
        apply: Callable[[StateT, Reply[Any]], object],
        payload: UnionType | _SpecialForm | None = None,  # not Any, which would accept a wrong type of payload
        timeout: float | timedelta | None = None,
        prompt: object = "",
        early: bool = True,
        merge: Merge[StateT] | None = None,
    ) -> Self: ...
    def add_wait(
        self,
        id: str,
        signal: str,
        *,
        apply: Any,
        payload: Any = None,
        timeout: float | timedelta | None = None,
        prompt: object = "",
        early: bool = True,
        merge: Any = None,
    ) -> Self:
        """Add a node that parks the run until `signal` arrives, or `timeout` seconds have passed.

        Then `apply(state, reply)` gives the new state; the `Reply` has the payload, or says that the time was over.
        `prompt`, a value or a function of the state, is recorded with the wait for whoever answers. `payload` is the
        type of the answer: an answer of another type is refused, and the run waits on. With `early=False` a signal that
        was sent before the run waited here does not count. `merge` as in `add_node`, where the branches of a fork meet.

        Raises `GraphError` for an id that is bad or taken, a signal without a name, a prompt that is larger than 16 KB as
        JSON or can't be recorded, and a function that cannot be called so.
        """
        node_id = self._new_id(id)
        if not isinstance(signal, str) or not signal:
            refuse("bad_signal", node_id, f"wait {node_id!r} is for signal {shown(signal)}: give its name, a str")
        asked: object = self._function(prompt, f"prompt= of wait {node_id!r}", node_id, 1) if callable(prompt) else None
        if asked is None:
            asked = read_prompt(node_id, prompt)
        seconds = None if timeout is None else as_seconds(timeout, "timeout")
        work = WaitWork(signal, seconds, None, asked, payload, bool(early))
        function = self._function(apply, f"apply= of wait {node_id!r}", node_id, 2)
        return self._add(Unit(node_id, function.fn, False, function.is_async, work=work), merge)

    def add_timer(
        self,
        id: str,
        *,
        duration: float | timedelta | None = None,
        until: Callable[[StateT], datetime] | Callable[[StateT], Awaitable[datetime]] | None = None,
        merge: Merge[StateT] | None = None,
    ) -> Self:
        """Add a node that parks the run for `duration` (seconds), or until the time that `until(state)` gives.

        The time is an aware datetime, and recorded: a resume does not ask again. `merge` as in `add_node`, where the
        branches of a fork meet. Raises `GraphError` for an id that is bad or taken, and unless exactly one of
        `duration` and `until` is given.
        """
        node_id = self._new_id(id)
        if (duration is None) == (until is None):
            refuse("bad_timer", node_id, f"timer {node_id!r} needs one of duration= and until=")
        function = None if until is None else self._function(until, f"until= of timer {node_id!r}", node_id, 1)
        seconds = None if duration is None else as_seconds(duration, "duration")
        return self._add(Unit(node_id, _before, False, False, work=WaitWork(None, seconds, function)), merge)

    def _add(self, unit: Unit, merge: Any) -> Self:
        """Add a node; `merge` merges the branches that meet there, None if it is not given."""
        if merge is not None:
            self._merges[unit.id] = read_merge(merge, f"{unit.merge_option} of node {unit.id!r}", unit.id)
        self._units[unit.id] = unit
        return self

    def _new_id(self, id: str) -> str:
        node_id = new_node_id(id)
        if node_id in self._units:
            refuse("duplicate_id", node_id, f"node {node_id!r} is there already: choose another id")
        return node_id

    def _function(self, fn: Any, what: str, where: str, count: int) -> Function:
        return Function(fn, read_callable(fn, what, where, count))

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
        """Let `router`, a sync or async function of `(ctx, state)` or `(state)`, choose the node after `source`.

        It answers with a node id or END, or, if `targets` is a mapping, with one of its keys. `targets` declares
        its possible answers; None: anything, which `compile` warns of because it cannot be checked. A router must not
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
        """Check the graph and return a compiled graph, which can run. Later calls of the builder do not change it.

        `name` is the flow's name in a store; None: the name of the state's type. Raises `GraphError` with all problems,
        and `OptionError` for a name that no store accepts. Problems that do not keep the graph from running are logged
        and kept as `warnings`.
        """
        topology = Topology(
            nodes=tuple(self._units),
            edges={source: tuple(targets) for source, targets in self._edges.items()},
            routes={source: tuple(r.targets for r in routers) for source, routers in self._routes.items()},
            entry=self._entry,
            kinds={unit.id: kind_of(unit.work) for unit in self._units.values() if unit.work is not None},
        )
        problems = topology.problems()
        fields = self._codec.field_names
        merged = {name: None for merge in self._merges.values() if isinstance(merge, Mapping) for name in merge}
        problems += [
            GraphProblem(
                "reducer_field_unknown",
                field,
                f"there is a reducer for {field!r}, a field that {_type_name(self._state_type)} lacks: "
                f"its fields are {', '.join(map(repr, fields))}",
            )
            for field in {**self._reducers, **merged}
            if fields is not None and field not in fields
        ]
        problems += self._wrong_merges(topology)
        if problems:
            raise GraphError(problems)
        is_named = name is not None
        name = _checked_name(_type_name(self._state_type) if name is None else name)
        definition = GraphDefinition(
            name,
            is_named=is_named,
            topology=topology,
            units=self._finished_units(topology),
            forks=self._finished_forks(topology),
            mergings=self._mergings(topology),
            codec=self._codec,
            acceptance=self._acceptance(merged),
            update_codec=self._update_codec(topology),
            warnings=(*topology.warnings(), *_unrecordable(self._codec)),
        )
        for warning in definition.warnings:
            node_id = warning.where if warning.where in self._units else None
            extra = {"flow": name, "node_id": node_id, "code": warning.code}
            _logger.warning("graph %r: %s", name, warning.text, extra=extra)
        return CompiledGraph(definition)

    def _acceptance(self, tracked: Iterable[str]) -> Acceptance:
        reducers = {**self._codec.reducers, **self._reducers} if self._is_partial else None
        return Acceptance(self._state_type, self._codec, reducers, tracked)

    def _reducers_at(self, join: str) -> dict[str, Reducer]:
        """Return the reducers for the branches that meet at a join."""
        merge = self._merges.get(join)
        return {**self._codec.reducers, **self._reducers, **(merge if isinstance(merge, Mapping) else {})}

    def _wrong_merges(self, topology: Topology) -> Iterator[GraphProblem]:
        joins = dict.fromkeys(fork.join for fork in topology.forks.values())
        for join in joins:
            if isinstance(self._merges.get(join), Function):
                continue
            reducers, option = self._reducers_at(join), self._units[join].merge_option
            if not reducers:
                text = (
                    f"branches meet at {join!r}, and nothing says what becomes of their states: give it {option}, or give "
                    f"fields reducers"
                )
                yield GraphProblem("join_without_merge", join, text)
            for field, reducer in reducers.items():
                if not self._is_partial and not is_ready_made(reducer):
                    name = getattr(reducer, "__qualname__", None) or repr(reducer)
                    text = (
                        f"field {field!r} has the reducer {name}, which cannot be used where branches meet at {join!r}: in a "
                        f"graph of whole states what a branch adds can be told for those in milepost.reducers only; use one of "
                        f"them, give {join!r} a function as {option}, or make the graph partial=True"
                    )
                    yield GraphProblem("reducer_unusable", join, text)
        for node in self._merges:
            if node not in joins and not topology.problems():
                option = self._units[node].merge_option
                text = (
                    f"{node!r} has {option}, and no branches meet there: remove it, or let a fork's branches lead to it"
                )
                yield GraphProblem("merge_without_join", node, text)

    def _finished_forks(self, topology: Topology) -> dict[str, Fork]:
        found = {}
        for node, fork in topology.forks.items():
            merge = self._merges.get(fork.join)
            max_parallel, fail_fast = self._limits.get(node, (None, False))
            found[node] = msgspec.structs.replace(
                fork,
                merge=merge if isinstance(merge, Function) else None,
                merge_option=self._units[fork.join].merge_option,
                max_parallel=max_parallel,
                fail_fast=fail_fast,
            )
        return found

    def _mergings(self, topology: Topology) -> dict[str, Merging]:
        found = {}
        for fork in topology.forks.values():
            reducers = self._reducers_at(fork.join)
            acceptance = Acceptance(self._state_type, self._codec, reducers) if self._is_partial else None
            found[fork.join] = Merging(self._state_type, self._codec, reducers, acceptance)
        return found

    def _update_codec(self, topology: Topology) -> Codec[Any] | None:
        if not self._is_partial or not topology.forks:
            return None
        return Codec(dict[str, Any], types=classes((self._state_type, *self._types)))

    def _finished_units(self, topology: Topology) -> dict[str, Unit]:
        """Return the units, completed with their next nodes and routers, which only the whole graph knows."""
        finished = {}
        for unit in self._units.values():
            routers = self._routes.get(unit.id)
            router = msgspec.structs.replace(routers[0], known=topology.allowed(unit.id)) if routers else None
            fork = topology.forks.get(unit.id)
            next_node = fork.join if fork is not None else topology.only_successor(unit.id)
            finished[unit.id] = msgspec.structs.replace(unit, next_node=next_node, router=router)
        return finished


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


def _as_it_is(state: Any, other: Any) -> Whole:
    return Whole(other)


def _before(state: Any, reply: Any) -> Whole:
    return Whole(state)
