"""A run of a flow in a test: on a memory store, with stubs for nodes or steps, and stricter than in production.

It finds faults that production would find too late: a router that changes the state, a node that changes a state which
it has already returned, and code that works only because two nodes share one object. Every node gets a decoded copy, as
it would after a crash, and every step gets copies of its arguments.

Answers to a run's waits come by themselves: the test's signals, and time, on a `FakeClock`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, Unpack, cast, overload

import msgspec

from milepost.errors import (
    GraphError,
    MilepostError,
    OptionError,
    RouterError,
    RunSuspended,
    SerializeStateError,
    StateTypeError,
)
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Routine
from milepost.executor.flow import END, BranchEnd, Fork, GraphFlow, Part, Router, StateCodec, Unit, Walk, Whole
from milepost.graph.declarations import read_function
from milepost.graph.run import NodeRun
from milepost.model.events import Event
from milepost.model.reports import RunResult
from milepost.model.results import WorkflowResult
from milepost.options import Options, RunOptions
from milepost.store import Store
from milepost.stores.memory import MemoryStore
from milepost.testing.clock import FakeClock, fake_entropy
from milepost.testing.playing import Answers, Passing, PassingAsync, Play
from milepost.verbs import Bound, Job, Verbs, flow_of
from milepost.workflows.definition import Workflow

__all__ = ["arun_flow", "run_flow"]

StateT = TypeVar("StateT")


@overload
def run_flow(
    flow: Workflow[..., StateT],
    input: Mapping[str, Any] | Bound[StateT] | None = None,
    *,
    stubs: Mapping[str, Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Store | None = None,
    run_id: str | None = None,
    **options: Unpack[RunOptions],
) -> WorkflowResult[StateT]: ...
@overload
def run_flow(
    flow: Verbs[StateT],
    input: StateT,
    *,
    stubs: Mapping[str, Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Store | None = None,
    run_id: str | None = None,
    **options: Unpack[RunOptions],
) -> RunResult[StateT]: ...
def run_flow(
    flow: Verbs[Any],
    input: Any = None,
    *,
    stubs: Mapping[str, Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Store | None = None,
    run_id: str | None = None,
    **options: Unpack[RunOptions],
) -> Any:
    """Run `flow` to its end and return its result.

    For a graph, `input` is the state, and `stubs` are functions that replace nodes, by node id: `(ctx, state)` or
    `(state)`, sync or async. For a workflow, `input` is a mapping of its inputs or a `Bound`, and `stubs` are called
    instead of the functions of steps, by step id (`outer/inner` for one that is part of another, a map's own id for its
    items), with the step's arguments.

    `signals` by name answer waits as they come; one that is a function is called with the `Wait` and returns what to
    send. A time that is over before an answer comes, and a pause before another attempt, passes at once on the store's
    clock, which is a `FakeClock` if the store is a new one. A wait that nobody answers raises `RunSuspended`.

    `store` None means a new `MemoryStore`; `options` are those of every verb. Coroutine functions are awaited in an
    event loop of their own: inside one, use `arun_flow`.

    Raises what the run raises, AssertionError for what only the testing mode refuses (above), `OptionError` for a stub
    of a node that the graph does not have, and of a step that the workflow never asked for.
    """
    if isinstance(flow, Workflow):
        return Play(flow, input, stubs, signals, store, run_id, options).run()
    play = _GraphPlay(flow, input, stubs, signals, store, run_id, options)
    return asyncio.run(play.arun()) if play.flow.async_names else play.run()


@overload
async def arun_flow(
    flow: Workflow[..., StateT],
    input: Mapping[str, Any] | Bound[StateT] | None = None,
    *,
    stubs: Mapping[str, Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Store | None = None,
    run_id: str | None = None,
    **options: Unpack[RunOptions],
) -> WorkflowResult[StateT]: ...
@overload
async def arun_flow(
    flow: Verbs[StateT],
    input: StateT,
    *,
    stubs: Mapping[str, Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Store | None = None,
    run_id: str | None = None,
    **options: Unpack[RunOptions],
) -> RunResult[StateT]: ...
async def arun_flow(
    flow: Verbs[Any],
    input: Any = None,
    *,
    stubs: Mapping[str, Callable[..., Any]] | None = None,
    signals: Mapping[str, Any] | None = None,
    store: Store | None = None,
    run_id: str | None = None,
    **options: Unpack[RunOptions],
) -> Any:
    """Run `flow` as `run_flow` does, awaited."""
    if isinstance(flow, Workflow):
        return await Play(flow, input, stubs, signals, store, run_id, options).arun()
    return await _GraphPlay(flow, input, stubs, signals, store, run_id, options).arun()


class _GraphPlay:
    """One run of a graph, from its beginning to its end."""

    def __init__(
        self,
        flow: Verbs[Any],
        input: Any,
        stubs: Mapping[str, Callable[..., Any]] | None,
        signals: Mapping[str, Any] | None,
        store: Store | None,
        run_id: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self.flow = _StrictFlow(cast("GraphFlow", flow_of(flow)), stubs or {}, type(input))
        self._input = input
        self._store: Any = MemoryStore(clock=FakeClock(), entropy=fake_entropy) if store is None else store
        clock = getattr(self._store, "clock", None)
        self._bound = {} if clock is None else {"clock": clock}
        self._options = {"isolate": True, **options, "on_wait": "suspend"}
        self._run_id = run_id
        self._answers = Answers(signals)

    def run(self) -> RunResult[Any]:
        """Run it in this thread."""
        job = self._job(None)
        while True:
            job.run.is_awaited = False
            driver = Passing(job.options.clock, job.options.hooks)
            try:
                with self._watched(job, driver.live):
                    return self._ended(driver.run(self._routine(job)))
            except RunSuspended as waiting:
                self._answers.come(waiting, self._store)
            job = self._job(job)

    async def arun(self) -> RunResult[Any]:
        """Run it as `run` does, awaited."""
        job = self._job(None)
        while True:
            driver = PassingAsync(job.options.clock, job.options.hooks)
            try:
                with self._watched(job, driver.live):
                    return self._ended(await driver.run(self._routine(job)))
            except RunSuspended as waiting:
                self._answers.come(waiting, self._store)
            job = self._job(job)

    def _job(self, before: Job | None) -> Job:
        if before is None:
            return Job(self.flow, self._store, self._run_id, self._options, self._bound, None)
        given = {name: value for name, value in self._options.items() if name not in {"if_exists", "tags"}}
        return Job(self.flow, self._store, before.run.run_id, given, self._bound, ResumeRequest())

    def _routine(self, job: Job) -> Routine[Any]:
        return job.routine(self.flow.copy(self._input) if job.request is None else None)

    @contextmanager
    def _watched(self, job: Job, live: Callable[[Event], None]) -> Iterator[None]:
        job._listen(live)
        with _plain_assertions(), job._named():
            yield

    def _ended(self, result: RunResult[Any]) -> RunResult[Any]:
        self.flow.check_returned()
        return result


@contextmanager
def _plain_assertions() -> Iterator[None]:
    """Raise the testing mode's own AssertionError of a router, not the `RouterError` that it caused."""
    try:
        yield
    except RouterError as error:
        if isinstance(error.__cause__, AssertionError):
            raise error.__cause__ from None
        raise


class _StrictFlow:
    """A flow with stubs for some of its nodes. It checks what nodes and routers do to states."""

    def __init__(self, flow: GraphFlow, stubs: Mapping[str, Callable[..., Any]], state_type: type) -> None:
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
        """Copy a state so that it shares nothing with the caller's. Return an invalid one
        itself, which the run then reports."""
        try:
            return self.codec.decode(self.codec.encode(state))
        except (SerializeStateError, StateTypeError):
            return state

    def check_returned(self) -> None:
        """Raise AssertionError if a state has changed after a node had returned it."""
        for node_id, state, data in self._returned:
            if self.codec.encode(state) != data:
                raise AssertionError(
                    f"the state that node {node_id!r} returned was changed later on: something kept a reference to a part "
                    f"of it, and after a crash the change would be lost; change the state that a node is given instead"
                )

    # -- what the core asks --------------------------------------------------------------------------

    front: Literal["graph"] = "graph"

    def new_run(self, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> NodeRun:
        return NodeRun(cast("GraphFlow", self), store, run_id, options, is_listening=is_listening)

    @property
    def version(self) -> int:
        return self._flow.version

    def digests(self, state: Any) -> Mapping[str, str]:
        return self._flow.digests(state)

    @property
    def name(self) -> str:
        return self._flow.name

    @property
    def codec(self) -> StateCodec:
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

    def input_of(self, data: bytes) -> Any:
        return self._flow.input_of(data)

    def inputs_hash(self, state: Any) -> str:
        return self._flow.inputs_hash(state)

    def read(self, before: Any, returned: Any) -> Whole | Part:
        return self._flow.read(before, returned)

    def accept(self, unit: Unit, before: Any, given: Whole | Part) -> Any:
        after = self._flow.accept(unit, before, given)
        try:
            self._returned.append((unit.id, after, self.codec.encode(after)))
        except MilepostError:
            return after  # the run itself reports that it cannot be saved
        return after

    @property
    def splits(self) -> Mapping[str, Fork]:
        return self._flow.splits

    @property
    def update_codec(self) -> StateCodec | None:
        return self._flow.update_codec

    def updates(self, given: Whole | Part) -> Mapping[str, Any] | None:
        return self._flow.updates(given)

    def replaced(self, before: Any, after: Any) -> tuple[str, ...]:
        return self._flow.replaced(before, after)

    def merged(self, fork: Fork, before: Any, ends: Mapping[str, BranchEnd], data: bytes | None) -> Any:
        return self._flow.merged(fork, before, ends, data)

    def walk(self, node_id: str, until: str = END, *, is_split: bool = False) -> Walk:
        walk = self._flow.walk(node_id, until, is_split=is_split)
        try:
            what = next(walk)
            while True:
                what = walk.send((yield what if isinstance(what, Fork) else self.units[what.id]))
        except StopIteration:
            return

    def _strict(self, unit: Unit) -> Unit:
        if unit.router is None:
            return unit
        return msgspec.structs.replace(unit, router=msgspec.structs.replace(unit.router, fn=self._watched(unit.router)))

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
    return msgspec.structs.replace(
        unit, fn=stub, takes_context=signature.takes_context, is_async=signature.is_async, work=None
    )
