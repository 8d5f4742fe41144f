"""Flows of either front end as the executor knows them.

The core walks a flow: `walk` is a generator that yields units of work, and after each it is sent the node to go on at.
The core runs a unit (attempts, timeouts, retries), asks its router and records the result; it knows nothing of graphs
or workflows, and the front end knows nothing of states, stores or drivers.

A node may be more than a function: a map, another graph or a wait. The `work` of its unit says which. When the walk
yields a `Fork`, the core walks all its branches at once, up to their join.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from milepost.codec.codec import Encoder, Succession
from milepost.model.executors import ExecutorLike
from milepost.model.record import END
from milepost.model.retry import Retry
from milepost.options import Options
from milepost.store import Store

if TYPE_CHECKING:
    from milepost.executor.run import Run

__all__ = [
    "END",
    "START",
    "BranchEnd",
    "Flow",
    "Fork",
    "Function",
    "GraphFlow",
    "GraphWork",
    "MapWork",
    "Part",
    "Router",
    "StateCodec",
    "StepFlow",
    "Unit",
    "WaitWork",
    "Walk",
    "Whole",
]


START = "__start__"


class Whole(msgspec.Struct, frozen=True):
    """A whole state. It may be a mapping, which would otherwise be taken for a part of a state."""

    state: Any


class Part(msgspec.Struct, frozen=True):
    """A part of a state: new values of some fields, to be reduced into the values of the state before."""

    fields: Mapping[str, Any]


class Router(msgspec.Struct, frozen=True):
    """A function that chooses the node to go on at after `node_id`.

    `targets` maps its possible answers to node ids or END; None: it may answer any id of `known`, or END.
    """

    node_id: str
    fn: Callable[..., Any]
    takes_context: bool
    is_async: bool
    targets: Mapping[Any, str] | None
    known: frozenset[str]


class Function(NamedTuple):
    """A user's function, and whether it is a coroutine function. The core calls it with all arguments."""

    fn: Callable[..., Any]
    is_async: bool


class MapWork(msgspec.Struct, frozen=True):
    """A map: one thing done for every item at once. The unit's own function merges the results into the state.

    `over(state)` gives the items. Each item is given to `each`: a unit without a place in the graph, or a whole graph,
    whose final state is the result. `items` is the codec of one item, `results` that of one result.
    """

    over: Function
    each: Unit | GraphFlow
    items: StateCodec
    results: StateCodec
    max_parallel: int | None = None


class GraphWork(msgspec.Struct, frozen=True):
    """The walk of another graph. The unit's own function makes the next state of the states of both graphs.

    `into(state)` gives the state that the other graph begins with. None: it begins with the state itself, and the state
    that it ends with is the next state.
    """

    graph: GraphFlow
    into: Function | None = None


class WaitWork(msgspec.Struct, frozen=True):
    """A wait for a signal, or (`signal` None) for a time. The unit's own function applies the reply to the state.

    A timer ends `seconds` after it began, or at the time that `until(state)` gives. `prompt` is a value or a `Function`
    of the state.
    """

    signal: str | None
    seconds: float | None = None
    until: Function | None = None
    prompt: Any = None
    payload: Any = None
    early: bool = True


class Unit(msgspec.Struct, frozen=True):
    """One node. The run goes on at `next_node`, or at the answer of `router` if there is one."""

    id: str
    fn: Callable[..., Any]
    takes_context: bool
    is_async: bool
    retry: Retry | None = None
    timeout: float | None = None
    next_node: str | None = None
    """The node after this one; for a node with a fork, the join of the fork."""
    router: Router | None = None
    work: MapWork | GraphWork | WaitWork | None = None
    """The work that precedes the call of `fn`; None: there is none, and `fn` is the whole node."""
    executor: ExecutorLike | None = None

    @property
    def merge_option(self) -> str:
        """The argument of the node's builder that says how to merge the branches that meet here."""
        return "merge_branches=" if isinstance(self.work, MapWork) else "merge="


class Fork(msgspec.Struct, frozen=True):
    """One fork: `branches` are the first nodes of its branches in the order of the edges, `inside` the nodes of each.

    `merge` is a function `(state, {branch: state})`; None: the flow's `merged` merges field by field. `merge_option` is
    the argument of the join's builder that takes either.
    """

    node_id: str
    branches: tuple[str, ...]
    join: str
    inside: Mapping[str, frozenset[str]]
    merge: Function | None = None
    max_parallel: int | None = None
    fail_fast: bool = False
    merge_option: str = "merge="

    @property
    def nodes(self) -> frozenset[str]:
        """All nodes of all branches."""
        return frozenset().union(*self.inside.values())


class BranchEnd(msgspec.Struct, frozen=True):
    """A branch at its join: its state, and what its nodes returned for fields with a reducer, in order."""

    state: Any
    updates: tuple[Mapping[str, Any], ...] = ()
    is_untold: bool = False
    """True if some of these updates are in no record."""
    data: bytes | None = None
    """The encoded state; None if it was not encoded."""
    sequence: int = 0
    """The number of the record that ended it."""


Walk = Generator[Unit | Fork, str, None]
"""The units and forks of one run, from the node where it begins or goes on. The core walks the branches of each fork.
After each unit or fork it sends back the node to go on at (or END)."""


class StateCodec(Encoder[bytes], Protocol):
    """The codec of a flow's state: to bytes and back, exactly or not at all. `milepost.codec.Codec` implements it."""

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """The declared fields that cannot be recorded: for each its path, and a sentence that says why."""
        ...

    def in_succession(self, *, as_rope: Callable[[list[bytes], int], Any] | None = None) -> Succession:
        """Make an encoder for values that follow one another; one thread at a time may use it.

        It may give what `as_rope` makes of pieces and their size; they are shared with the value before where nothing changed.
        """
        ...

    def decode(self, data: bytes, *, root: str = "state") -> Any:
        """Decode; raises `DeserializeStateError` only."""
        ...

    def check(self, value: Any) -> None:
        """Raise `StateTypeError` for a value that is not of the declared type, without looking into it."""
        ...


class Flow(Protocol):
    """A graph or a workflow, as the core needs it. It is immutable; many runs may use it at once."""

    @property
    def front(self) -> Literal["graph", "workflow"]:
        """The front end of the flow, which decides the kind of its runs."""
        ...

    @property
    def name(self) -> str:
        """The flow's name in the store."""
        ...

    def new_run(self, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> Run:
        """Make a run of the flow, of which nothing is read or written yet."""
        ...

    @property
    def version(self) -> int:
        """The version that a run records when it begins."""
        ...

    @property
    def codec(self) -> StateCodec:
        """The codec of a run's input: a graph's state, or a workflow's inputs by name."""
        ...

    @property
    def entry(self) -> str:
        """The node where a run begins; "" for a workflow."""
        ...

    @property
    def async_names(self) -> tuple[str, ...]:
        """The names of the flow's coroutine functions, as far as they are known before it runs.

        A sync verb refuses them.
        """
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of the flow's shape; equal shapes have equal ones."""
        ...

    @property
    def shape(self) -> Mapping[str, Any]:
        """The shape as JSON.

        It is recorded at the start, so that a later change of the flow can be described in words.
        """
        ...

    def differences(self, recorded: Mapping[str, Any]) -> tuple[str, ...]:
        """Describe how this flow differs from a recorded `shape`: one sentence for each difference, () for none."""
        ...

    def input_of(self, data: bytes) -> Any:
        """Decode an input that was recorded, or plain JSON; a workflow's with the defaults of what it lacks.

        Raises `DeserializeStateError`.
        """
        ...

    def inputs_hash(self, state: Any) -> str:
        """Return a digest of a run's input: 64 hex digits, the same for equal values in every process."""
        ...

    def digests(self, state: Any) -> Mapping[str, str]:
        """Return a digest for each part of the input that has a name; {} if no part has one."""
        ...


class GraphFlow(Flow, Protocol):
    """A graph, with all that the core needs of it besides the attributes of every flow."""

    @property
    def units(self) -> Mapping[str, Unit]:
        """All units by id."""
        ...

    @property
    def splits(self) -> Mapping[str, Fork]:
        """All forks, each by the id of the node before it."""
        ...

    @property
    def update_codec(self) -> StateCodec | None:
        """The codec of values that nodes return for fields with a reducer, by name; None if merging needs none."""
        ...

    def read(self, before: Any, returned: Any) -> Whole | Part:
        """Classify what user code returned for the state `before`: a whole state, or a part of one.

        Raises `StateTypeError` for anything else, without run and node, which the core adds.
        """
        ...

    def accept(self, unit: Unit, before: Any, given: Whole | Part) -> Any:
        """Make the state after `unit` of the state before and the value that it gave.

        Errors of a reducer pass through.
        """
        ...

    @property
    def takes_parts(self) -> bool:
        """True if a node may return a part of the state."""
        ...

    def taken_up(self, before: Any, given: Any) -> Any:
        """Make the first state of a new turn from the state at the end of the run and the value that continues it."""
        ...

    def updates(self, given: Whole | Part) -> Mapping[str, Any] | None:
        """Return those values in a node's return value that are for fields with a reducer; None for a whole state."""
        ...

    def replaced(self, before: Any, after: Any) -> tuple[str, ...]:
        """Return the fields with a reducer whose values differ between two states."""
        ...

    def untold(self, fork: Fork, before: Any, after: Any, names: Iterable[str]) -> Iterator[str]:
        """Give those of `names` for which the join of `fork` cannot derive what the new value adds to the old one.

        The states before and after are `before` and `after`.
        """
        ...

    def merged(self, fork: Fork, before: Any, ends: Mapping[str, BranchEnd], data: bytes | None) -> Any:
        """Make the state at the join, field by field.

        `data` is the encoded state before; None if it was not encoded. Raises `MergeConflictError` (without run and
        visit) where branches disagree.
        """
        ...

    def walk(self, node_id: str, until: str = END, *, is_split: bool = False) -> Walk:
        """Yield the units from `node_id` on, up to `until`.

        `is_split`: that node has completed, and its fork is open.
        """
        ...


class StepFlow(Flow, Protocol):
    """A workflow, with all that the core needs of it besides the attributes of every flow.

    A body is a generator or coroutine that asks for steps.
    """

    @property
    def output_codec(self) -> StateCodec:
        """The codec of the workflow's return value."""
        ...

    @property
    def known_types(self) -> tuple[Any, ...]:
        """The types that the workflow's parameters declare, and the types given to it besides."""
        ...

    def begin(self, context: Any, inputs: Mapping[str, Any]) -> Any:
        """Make the body for `inputs`, ready to be played."""
        ...

    def defaults(self) -> Mapping[str, Any]:
        """Return the default of each input that has one, by the input's name."""
        ...

    def completed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return recorded inputs, completed with the defaults of parameters that are new."""
        ...

    def codec_of(self, fn: Callable[..., Any]) -> StateCodec:
        """Return the codec of the return value of a step's function."""
        ...

    def items_codec_of(self, fn: Callable[..., Any]) -> StateCodec:
        """Return the codec of the items that a function is mapped over."""
        ...

    def argument_types_of(self, fn: Callable[..., Any]) -> tuple[Any, ...]:
        """Return the types of the arguments of a step's function."""
        ...


# -- whole ids: a node of a graph, of a graph inside it, or an item of a map ------------------------------


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
