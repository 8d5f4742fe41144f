"""What a front end gives the core.

A flow is walked: `walk` is a generator that yields units of work and is sent what became of each. The core runs a
unit (attempts, timeouts, retries), asks its router, records the result and sends back a `Done`; it knows nothing of
graphs or workflows, and the front end knows nothing of stores or drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from milepost.retry import Retry

__all__ = ["END", "START", "Codec", "Done", "Flow", "Router", "Unit", "Walk", "Work"]

END = "__end__"
START = "__start__"


@dataclass(frozen=True, slots=True)
class Router:
    """A function that decides where to go on from `node_id`.

    `targets` maps what it may answer to node ids or END; None: any of `known` or END.
    """

    node_id: str
    fn: Callable[..., Any]
    takes_context: bool
    is_async: bool
    targets: Mapping[Any, str] | None
    known: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unit:
    """One node. Where it goes on is `next_node`, or what `router` answers where that is given."""

    id: str
    fn: Callable[..., Any]
    takes_context: bool
    is_async: bool
    retry: Retry | None = None
    timeout: float | None = None
    next_node: str | None = None
    router: Router | None = None


class Work(NamedTuple):
    """A unit to run on a state."""

    unit: Unit
    state: Any


class Done(NamedTuple):
    """What became of a unit: the state after it, and the node to go on at (or END)."""

    state: Any
    next_node: str


Walk = Generator[Work, Done, Any]
"""The units of one run, from where it begins or goes on; returns the final state."""


class Codec(Protocol):
    """A flow's state to bytes and back, exactly or not at all. `milepost.codec.Codec` is the implementation."""

    @property
    def problems(self) -> tuple[tuple[str, str], ...]:
        """Declared fields that cannot be recorded: path and sentence."""
        ...

    def encode(self, value: Any, *, root: str = "state") -> bytes:
        """Encode; `SerializeStateError` or `StateTypeError` where the value cannot come back the same."""
        ...

    def decode(self, data: bytes, *, root: str = "state") -> Any:
        """Decode; raises `DeserializeStateError` only."""
        ...


class Flow(Protocol):
    """What the core needs of a graph or workflow. Immutable; many runs may use it at once."""

    @property
    def name(self) -> str:
        """The flow's name in the store."""
        ...

    @property
    def codec(self) -> Codec:
        """Of the state."""
        ...

    @property
    def entry(self) -> str:
        """The node where a run begins."""
        ...

    @property
    def units(self) -> Mapping[str, Unit]:
        """All units by id."""
        ...

    @property
    def async_names(self) -> tuple[str, ...]:
        """What of it are coroutine functions, which a sync verb refuses."""
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
        """A digest of an initial state that equal states have in every process: 64 hex digits."""
        ...

    def accept(self, unit: Unit, before: Any, returned: Any) -> Any:
        """The state after `unit`, given the state before it and what it returned.

        Raises `StateTypeError` (without run and node, which the core adds) where that is no such state.
        """
        ...

    def walk(self, state: Any, node_id: str) -> Walk:
        """The units from `node_id` on."""
        ...
