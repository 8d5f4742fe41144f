"""Running a flow in a test: on a memory store, with stubs for nodes, and stricter than in production.

What a test should find and production would find too late: a router that changes the state, a node that changes a
state which it has already returned, and code that works only because two nodes share one object. Every node gets a
decoded copy, as it would after a crash.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack, cast

from milepost.declarations import read_function
from milepost.errors import GraphError, MilepostError, OptionError, RouterError, SerializeStateError, StateTypeError
from milepost.events import RunResult
from milepost.flow import Codec, Flow, Router, Unit, Walk, Work
from milepost.job import Job
from milepost.options import RunOptions
from milepost.store import Store
from milepost.stores.memory import MemoryStore
from milepost.verbs import Verbs

__all__ = ["arun_flow", "run_flow"]

StateT = TypeVar("StateT")


def run_flow(
    flow: Verbs[StateT],
    input: StateT,
    *,
    stubs: Mapping[str, Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Store | None = None,
    run_id: str | None = None,
    **options: Unpack[RunOptions],
) -> RunResult[StateT]:
    """Run `flow` to its end and return what became of it.

    `stubs` are functions that stand in for nodes, by node id: `(ctx, state)` or `(state)`, sync or async. `store` is a
    new `MemoryStore` where None is given; `options` are those of every verb. Coroutine nodes are awaited in an event loop of
    their own: inside one, use `arun_flow`.

    Raises what the run raises, AssertionError for what only the testing mode refuses (above), and `OptionError` for a
    stub of a node that the flow does not have, and for `signals`, which this version does not have.
    """
    strict, job = _job(flow, input, stubs, signals, store, run_id, options)
    given = strict.copy(input)
    with _plain_assertions():
        result = asyncio.run(job.ado(given)) if strict.async_names else job.do(given)
    strict.check_returned()
    return result


async def arun_flow(
    flow: Verbs[StateT],
    input: StateT,
    *,
    stubs: Mapping[str, Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Store | None = None,
    run_id: str | None = None,
    **options: Unpack[RunOptions],
) -> RunResult[StateT]:
    """`run_flow`, awaited."""
    strict, job = _job(flow, input, stubs, signals, store, run_id, options)
    with _plain_assertions():
        result = await job.ado(strict.copy(input))
    strict.check_returned()
    return result


def _job(
    flow: Verbs[StateT],
    input: StateT,
    stubs: Mapping[str, Callable[..., Any]] | None,
    signals: Mapping[str, Any] | None,
    store: Store | None,
    run_id: str | None,
    options: Mapping[str, Any],
) -> tuple[_StrictFlow, Job]:
    if signals:
        raise OptionError("signals are not in this version: leave signals out", option="signals")
    strict = _StrictFlow(cast("Flow", flow), stubs or {}, type(input))
    kept = MemoryStore() if store is None else store
    return strict, Job(strict, kept, run_id, {"isolate": True, **options}, {}, None)


@contextmanager
def _plain_assertions() -> Iterator[None]:
    """Raise what the testing mode found in a router as itself, not as the cause of a `RouterError`."""
    try:
        yield
    except RouterError as error:
        if isinstance(error.__cause__, AssertionError):
            raise error.__cause__ from None
        raise


class _StrictFlow:
    """A flow with stubs for some of its nodes, that watches what nodes and routers do to states."""

    def __init__(self, flow: Flow, stubs: Mapping[str, Callable[..., Any]], state_type: type) -> None:
        unknown = sorted(set(stubs) - set(flow.units))
        if unknown:
            raise OptionError(
                f"stubs name {', '.join(map(repr, unknown))}, which flow {flow.name!r} does not have: its nodes are "
                f"{', '.join(map(repr, flow.units))}",
                option="stubs",
            )
        self._flow = flow
        self._returned: list[tuple[str, Any, bytes]] = []
        self.units: Mapping[str, Unit] = {
            node_id: self._strict(_stubbed(unit, stubs.get(node_id), state_type))
            for node_id, unit in flow.units.items()
        }
        names = [name for name in flow.async_names if name not in stubs]
        self.async_names = (*names, *(node_id for node_id in stubs if self.units[node_id].is_async))

    def copy(self, state: Any) -> Any:
        """A state that shares nothing with the caller's; the state itself where it is none, which the run tells."""
        try:
            return self.codec.decode(self.codec.encode(state))
        except (SerializeStateError, StateTypeError):
            return state

    def check_returned(self) -> None:
        """AssertionError if a state has changed after a node had returned it."""
        for node_id, state, data in self._returned:
            if self.codec.encode(state) != data:
                raise AssertionError(
                    f"the state that node {node_id!r} returned was changed later on: something kept a reference to a part "
                    f"of it, and after a crash the change would be lost; change the state that a node is given instead"
                )

    # -- what the core asks --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._flow.name

    @property
    def codec(self) -> Codec:
        return self._flow.codec

    @property
    def entry(self) -> str:
        return self._flow.entry

    @property
    def fingerprint(self) -> str:
        return self._flow.fingerprint

    @property
    def shape(self) -> Mapping[str, Any]:
        return self._flow.shape

    def differences(self, recorded: Mapping[str, Any]) -> tuple[str, ...]:
        return self._flow.differences(recorded)

    def inputs_hash(self, state: Any) -> str:
        return self._flow.inputs_hash(state)

    def accept(self, unit: Unit, before: Any, returned: Any) -> Any:
        after = self._flow.accept(unit, before, returned)
        try:
            self._returned.append((unit.id, after, self.codec.encode(after)))
        except MilepostError:
            return after  # the run itself tells that it cannot be saved
        return after

    def walk(self, state: Any, node_id: str) -> Walk:
        walk = self._flow.walk(state, node_id)
        try:
            work = next(walk)
            while True:
                work = walk.send((yield Work(self.units[work.unit.id], work.state)))
        except StopIteration as stop:
            return stop.value

    def _strict(self, unit: Unit) -> Unit:
        if unit.router is None:
            return unit
        return dataclasses.replace(unit, router=dataclasses.replace(unit.router, fn=self._watched(unit.router)))

    def _watched(self, router: Router) -> Callable[..., Any]:
        fn = router.fn

        def check(state: Any, before: bytes) -> None:
            if self.codec.encode(state) != before:
                raise AssertionError(
                    f"the router after node {router.node_id!r} changed the state: it was recorded before, so after a crash "
                    f"the change would be lost; let a node change it"
                )

        @functools.wraps(fn)
        def ask(*args: Any) -> Any:
            before = self.codec.encode(args[-1])
            answer = fn(*args)
            check(args[-1], before)
            return answer

        @functools.wraps(fn)
        async def aask(*args: Any) -> Any:
            before = self.codec.encode(args[-1])
            answer = await fn(*args)
            check(args[-1], before)
            return answer

        return aask if router.is_async else ask


def _stubbed(unit: Unit, stub: Callable[..., Any] | None, state_type: type) -> Unit:
    if stub is None:
        return unit
    try:
        signature = read_function(stub, f"the stub of node {unit.id!r}", unit.id, state_type)
    except GraphError as exc:
        raise OptionError(str(exc), option="stubs") from exc
    return dataclasses.replace(unit, fn=stub, takes_context=signature.takes_context, is_async=signature.is_async)
