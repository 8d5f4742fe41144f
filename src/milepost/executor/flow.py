"""What a front end gives the core.

A flow is walked: `walk` is a generator that yields units of work and is sent where to go on after each. The core runs a
unit (attempts, timeouts, retries), asks its router and records the result; it knows nothing of graphs or workflows, and
the front end knows nothing of states, stores or drivers.

What a node is besides a function is told by the `work` of its unit: a map, another graph, a wait. Of a `Fork` that is
yielded the core walks all branches at once, up to their join.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from milepost.codec.succession import Encoder, Succession
from milepost.model.executors import ExecutorLike
from milepost.model.record import END
from milepost.model.retry import Retry
from milepost.options import Options
from milepost.store import Store

if TYPE_CHECKING:
    from milepost.executor.run import Run

__all__ = [
    "END",
    "REPLACED",
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
REPLACED = ""
"""Among updates: the names of the fields of which a node returned new values, instead of what is to be reduced into the old.
No field has that name where a node can do so."""


class Whole(NamedTuple):
    """A whole state, even where it is a mapping, which user code may return as a part."""

    state: Any


class Part(NamedTuple):
    """New values of some fields, which are reduced into those of the state before."""

    fields: Mapping[str, Any]


class Router(msgspec.Struct, frozen=True):
    """A function that decides where to go on from `node_id`.

    `targets` maps what it may answer to node ids or END; None: any of `known` or END.
    """

    node_id: str
    fn: Callable[..., Any]
    takes_context: bool
    is_async: bool
    targets: Mapping[Any, str] | None
    known: frozenset[str]


class Function(NamedTuple):
    """A function of a user's that is called with all its arguments given."""

    fn: Callable[..., Any]
    is_async: bool


class MapWork(msgspec.Struct, frozen=True):
    """Do one thing for every item at once; the unit's own function merges the state and the results.

    `over(state)` gives the items. Each is given to `each`: a unit without a place in the graph, or a whole graph, whose final
    state is the result. `items` and `results` carry one item and one result.
    """

    over: Function
    each: Unit | GraphFlow
    items: StateCodec
    results: StateCodec
    max_parallel: int | None = None


class GraphWork(msgspec.Struct, frozen=True):
    """Walk another graph; the unit's own function makes the state after it of the state before it and the other's.

    `into(state)` gives the state that it begins with; None: it is the state itself, and what it ends with too.
    """

    graph: GraphFlow
    into: Function | None = None


class WaitWork(msgspec.Struct, frozen=True):
    """Wait for a signal, or (`signal` None) for a time; the unit's own function applies the reply to the state.

    A timer ends `seconds` after it began, or when `until(state)` says. `prompt` is a value or a `Function` of the state.
    """

    signal: str | None
    seconds: float | None = None
    until: Function | None = None
    prompt: Any = None
    payload: Any = None
    early: bool = True


class Unit(msgspec.Struct, frozen=True):
    """One node. Where it goes on is `next_node`, or what `router` answers where that is given."""

    id: str
    fn: Callable[..., Any]
    takes_context: bool
    is_async: bool
    retry: Retry | None = None
    timeout: float | None = None
    next_node: str | None = None
    """After a fork: its join."""
    router: Router | None = None
    work: MapWork | GraphWork | WaitWork | None = None
    """What is done before `fn` is called; None: nothing, and `fn` is the node."""
    executor: ExecutorLike | None = None

    @property
    def merge_option(self) -> str:
        """The argument of its builder that says what becomes of branches which meet here."""
        return "merge_branches=" if isinstance(self.work, MapWork) else "merge="


class Fork(msgspec.Struct, frozen=True):
    """One fork: `branches` are their first nodes in the order of the edges, `inside` the nodes of each.

    `merge` is a function `(state, {branch: state})`; None: the flow's `merged` does it, field by field. `merge_option` is
    where the join's builder takes either.
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


class BranchEnd(NamedTuple):
    """A branch that has come to its join: its state, and what its nodes returned for fields with a reducer, in order."""

    state: Any
    updates: tuple[Mapping[str, Any], ...] = ()
    is_untold: bool = False
    """Whether records do not tell all of these updates."""
    data: bytes | None = None
    """The state as it was encoded, where it was."""
    sequence: int = 0
    """The newest record of the branch."""


Walk = Generator[Unit | Fork, str, None]
"""The units of one run, from where it begins or goes on, and the forks, whose branches are to be walked; what is sent back is
the node to go on at (or END)."""


class StateCodec(Encoder, Protocol):
    """A flow's state to bytes and back, exactly or not at all. `milepost.codec.Codec` is the implementation."""

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """Declared fields that cannot be recorded: path and sentence."""
        ...

    def in_succession(self) -> Succession:
        """What encodes values one after another, for one thread at a time."""
        ...

    def decode(self, data: bytes, *, root: str = "state") -> Any:
        """Decode; raises `DeserializeStateError` only."""
        ...

    def check(self, value: Any) -> None:
        """Raise `StateTypeError` for a value that is not of the declared type, without looking into it."""
        ...


class Flow(Protocol):
    """What the core needs of a graph or a workflow. Immutable; many runs may use it at once."""

    @property
    def front(self) -> Literal["graph", "workflow"]:
        """Which front end it is of, and so which kind of run it has."""
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
        """Of what a run begins with: a graph's state, or a workflow's inputs by name."""
        ...

    @property
    def entry(self) -> str:
        """The node where a run begins; "" for a workflow."""
        ...

    @property
    def async_names(self) -> tuple[str, ...]:
        """What of it are coroutine functions, as far as that is known before it runs: a sync verb refuses them."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of the flow's shape; equal shapes have equal ones."""
        ...

    @property
    def shape(self) -> Mapping[str, Any]:
        """The shape itself as JSON, recorded at the start, so that a later change can be told in words."""
        ...

    def differences(self, recorded: Mapping[str, Any]) -> tuple[str, ...]:
        """How this flow differs from a recorded `shape`: a sentence each, () for none."""
        ...

    def inputs_hash(self, state: Any) -> str:
        """A digest of what a run begins with that equal values have in every process: 64 hex digits."""
        ...

    def digests(self, state: Any) -> Mapping[str, str]:
        """A digest for each part of it that has a name; {} where there are none."""
        ...


class GraphFlow(Flow, Protocol):
    """What the core needs of a graph besides."""

    @property
    def units(self) -> Mapping[str, Unit]:
        """All units by id."""
        ...

    @property
    def splits(self) -> Mapping[str, Fork]:
        """All forks by the node that each follows."""
        ...

    @property
    def update_codec(self) -> StateCodec | None:
        """Of what a node returns for fields with a reducer, by name; None where merging does not need it."""
        ...

    def read(self, before: Any, returned: Any) -> Whole | Part:
        """Tell whether user code that was given the state before returned a whole state or a part of one.

        Raises `StateTypeError` (without run and node, which the core adds) where it is neither.
        """
        ...

    def accept(self, unit: Unit, before: Any, given: Whole | Part) -> Any:
        """Make the state after `unit` of the state before it and what it gave; what a reducer raises comes through."""
        ...

    @property
    def takes_parts(self) -> bool:
        """Tell whether a node may return a part of the state."""
        ...

    def taken_up(self, before: Any, given: Any) -> Any:
        """The state with which a new turn begins, from that at the end of the run and what it is continued with."""
        ...

    def updates(self, given: Whole | Part) -> Mapping[str, Any] | None:
        """What of that which a node gave is for fields with a reducer; None for a whole state."""
        ...

    def replaced(self, before: Any, after: Any) -> tuple[str, ...]:
        """The fields with a reducer that have another value in one state than in the other."""
        ...

    def untold(self, fork: Fork, before: Any, after: Any, names: Iterable[str]) -> Iterator[str]:
        """Name the fields of which the fork's join cannot tell what the value afterwards adds to the one before."""
        ...

    def merged(self, fork: Fork, before: Any, ends: Mapping[str, BranchEnd], data: bytes | None) -> Any:
        """The state at the join, field by field; `MergeConflictError` (without run and visit) where branches disagree.

        `data` is the state before as it was encoded, where it was.
        """
        ...

    def walk(self, node_id: str, until: str = END, *, is_split: bool = False) -> Walk:
        """The units from `node_id` on, up to `until`. `is_split`: that node is done, and its fork is open."""
        ...


class StepFlow(Flow, Protocol):
    """What the core needs of a workflow of steps besides. A body is a generator, or a coroutine, that asks for steps."""

    @property
    def output_codec(self) -> StateCodec:
        """Of what it returns."""
        ...

    @property
    def known_types(self) -> tuple[Any, ...]:
        """The types that its parameters declare, and those that it was told."""
        ...

    def begin(self, context: Any, inputs: Mapping[str, Any]) -> Any:
        """Its code, ready to be played on `inputs`."""
        ...

    def defaults(self) -> Mapping[str, Any]:
        """The inputs that have a default, and that."""
        ...

    def completed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Recorded inputs with the defaults of parameters that are new."""
        ...

    def codec_of(self, fn: Callable[..., Any]) -> StateCodec:
        """Of what a step's function returns."""
        ...

    def items_codec_of(self, fn: Callable[..., Any]) -> StateCodec:
        """Of the items that a function is mapped over."""
        ...

    def argument_types_of(self, fn: Callable[..., Any]) -> tuple[Any, ...]:
        """The types of what a step's function takes."""
        ...
