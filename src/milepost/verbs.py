"""One call of a verb, checked, and the verbs of a flow by itself. A verb says what is called; a `Job` calls it.

A verb and its `a`-twin differ in the driver and in nothing else: both are made from the same `Job`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, cast, overload

from milepost.adapters.protocols import AnyStore
from milepost.drivers import SyncDriver, is_logged
from milepost.drivers.wakeups import wake
from milepost.errors import AsyncNodeError, OptionError, RunStopped, RunSuspended, naming
from milepost.executor import signals as signalling
from milepost.executor.checks import ResumeRequest, check_recordable
from milepost.executor.continuation import CONTINUE, check_options
from milepost.executor.effects import Routine
from milepost.executor.flow import Flow, GraphFlow, find_node
from milepost.executor.resume import await_due, give_back, plan, resume, resume_claimed
from milepost.executor.run import Run
from milepost.executor.start import enqueue, start
from milepost.model.clock import SYSTEM
from milepost.model.ids import new_nonce, new_run_id
from milepost.model.record import format_time
from milepost.model.reports import ResumePlan, RunResult
from milepost.options import Options, RunOptions, merge_options, without_amendments
from milepost.store import Store, Token, check_number, check_run_id

__all__ = ["Bound", "Job", "StateVerbs", "Verbs", "store_of"]

T = TypeVar("T")
StateT = TypeVar("StateT")
OutputT = TypeVar("OutputT", covariant=True)

if TYPE_CHECKING:
    import typing_extensions

    from milepost.drivers import AsyncDriver
    from milepost.model.events import Event

    FullT = typing_extensions.TypeVar("FullT", covariant=True, default=Any)
else:
    # The standard library has defaults of parameters from Python 3.13 on; here `_Sparing` stands in for them.
    FullT = TypeVar("FullT", covariant=True)


def store_of(given: object) -> Store:
    """Return the argument as a store: one of ours as it is, a user's behind a journal.

    Raises `OptionError` for anything else.
    """
    if isinstance(given, Store):
        return given
    from milepost.adapters.user_stores import adapted  # most programs never need it

    return adapted(given)


class Job:
    """One call of a verb, checked and ready: nothing has been run or written yet."""

    __slots__ = ("active", "flow", "options", "run", "wish")

    def __init__(
        self,
        flow: Flow,
        store: AnyStore | None,
        run_id: str | None,
        given: Mapping[str, Any],
        bound: Mapping[str, Any],
        wish: ResumeRequest | None,
    ) -> None:
        self.flow = flow
        self.active: set[str] | None = None
        """The ids of the runs that the engine of this call executes; None without an engine."""
        self.options: Options = merge_options(bound, given)
        self.wish = wish
        known = None if store is None and wish is None else store_of(store)
        if run_id is not None or wish is not None:
            check_run_id(run_id)
        if wish is not None and wish.visit is not None:
            check_number(wish.visit, "visit")
        if known is None and "if_exists" in given:
            raise OptionError("if_exists needs a store: give store=", option="if_exists")
        if wish is None and self.options.if_exists == CONTINUE:
            check_options(self.options, flow.front)
        if flow.front == "graph":
            # The steps of a workflow are known only once its code asks for them.
            self._check_breakpoints(cast("GraphFlow", flow))
        name = run_id if run_id is not None else new_run_id(self.options.clock.time())
        is_listening = bool(self.options.hooks) or is_logged()
        self.run: Run = self._run(known, name, is_listening)

    def _check_breakpoints(self, graph: GraphFlow) -> None:
        for option in ("stop_before", "stop_after"):
            unknown = sorted(name for name in getattr(self.options, option) if find_node(graph, name) is None)
            if unknown:
                raise OptionError(
                    f"{option} names {', '.join(map(repr, unknown))}, which flow {graph.name!r} does not have",
                    option=option,
                )

    def _run(self, store: Store | None, run_id: str, is_listening: bool) -> Run:
        return self.flow.new_run(store, run_id, self.options, is_listening=is_listening)

    def expect(self, inputs: Mapping[str, Any] | None) -> None:
        """Have a resume compare these inputs with those that the run began with. None: it takes the recorded ones."""
        self.run.expect(inputs)

    def routine(self, state: Any, *, full: bool = False) -> Routine[Any]:
        """Return the core's routine for this call. With `full` a breakpoint gives a result, like any other end."""
        if full:
            self.run.want_results()
        routine = self._unless_waiting(self._begun(state))
        return self._or_so_far(routine) if full else routine

    def _or_so_far(self, routine: Routine[Any]) -> Routine[Any]:
        try:
            return (yield from routine)
        except RunStopped as stopped:
            return self.run.so_far(stopped)
        except RunSuspended as waiting:
            self.run.status = "waiting"
            return self.run.so_far(waiting)

    def _unless_waiting(self, routine: Routine[Any]) -> Routine[Any]:
        """Go on with a run that was parked, once it is due, if on_wait='block'."""
        while True:
            try:
                return (yield from routine)
            except RunSuspended:
                if self.options.on_wait != "block":
                    raise
            before, self.options = self.run, without_amendments(self.options)
            yield from await_due(before)
            self.run = self._run(before.scope.store, before.run_id, before.is_listening)
            self.run.started_at, self.run.scope.publish = before.started_at, before.scope.publish
            self.run.is_draining, self.run.is_awaited = before.is_draining, before.is_awaited
            routine = resume(self.run, ResumeRequest(), new_nonce)

    def _begun(self, state: Any) -> Routine[Any]:
        if self.wish is not None:
            return resume(self.run, self.wish, new_nonce)
        check_recordable(self.run)
        return start(self.run, state, new_nonce)

    def refuse_coroutines(self) -> None:
        """Raise `AsyncNodeError` if a sync verb would have to await something."""
        names = [*self.flow.async_names]
        names += [
            option for option in ("state_override", "revalidate") if iscoroutinefunction(getattr(self.options, option))
        ]
        if names:
            raise AsyncNodeError(
                f"{', '.join(map(repr, names))} of flow {self.flow.name!r} "
                f"{'is a coroutine function' if len(names) == 1 else 'are coroutine functions'}: await the verb's a-twin "
                f"(await flow.arun(...), aresume(...)) instead",
                names=tuple(names),
                run_id=self.run.run_id,
            )

    def do(self, state: Any = None, *, full: bool = False) -> Any:
        """Run the call here, to its end; with `full` a breakpoint is an end too."""
        self.refuse_coroutines()
        self.run.is_awaited = False
        return self._drive(self.routine(state, full=full))

    async def ado(self, state: Any = None, *, full: bool = False) -> Any:
        """Run the call in this task, to its end; with `full` a breakpoint is an end too."""
        return await self._adrive(self.routine(state, full=full))

    async def ago_on(self, token: Token) -> Any:
        """Go on, in this task, with the run that `token` claimed."""
        return await self._adrive(resume_claimed(self.run, token))

    async def agive_back(self, token: Token, reason: str) -> None:
        """Give back the run that `token` claimed, before any of its code runs."""
        await self._adrive(give_back(self.run, token, reason))

    def enqueue(self, state: Any, at: float) -> None:
        """Leave the run to a worker, from `at` (POSIX seconds, 0: at once) on."""
        self._drive(self._queued(state, at))

    async def aenqueue(self, state: Any, at: float) -> None:
        """Leave the run to a worker, from `at` (POSIX seconds, 0: at once) on."""
        await self._adrive(self._queued(state, at))

    def _queued(self, state: Any, at: float) -> Routine[None]:
        check_recordable(self.run)
        return enqueue(self.run, state, new_nonce, at)

    def _drive(self, routine: Routine[T]) -> T:
        driver = SyncDriver(self.options.clock, self.options.hooks)
        self._listen(driver.live)
        with self._named():
            return driver.run(routine)

    async def _adrive(self, routine: Routine[T]) -> T:
        driver = self._awaiting()
        self._listen(driver.live)
        with self._named():
            return await driver.run(routine)

    def _awaiting(self) -> AsyncDriver:
        from milepost.drivers import AsyncDriver

        return AsyncDriver(self.options.clock, self.options.hooks)

    def stream(self, state: Any = None) -> Iterator[Event]:
        """Run the call here while its events are iterated."""
        self.refuse_coroutines()
        return self._streamed(self.routine(state))

    def _streamed(self, routine: Routine[Any]) -> Iterator[Event]:
        self.run.is_awaited = False
        driver = SyncDriver(self.options.clock, self.options.hooks)
        self._listen_as_stream(driver.live)
        with self._named():
            yield from driver.stream(routine)

    async def astream(self, state: Any = None) -> AsyncIterator[Event]:
        """Run the call in this task while its events are iterated."""
        driver = self._awaiting()
        self._listen_as_stream(driver.live)
        events = driver.stream(self.routine(state))
        try:
            with self._named():
                async for event in events:
                    yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    def fork(self, node_id: str | None, visit: int | None, new_id: str | None, into: AnyStore | None) -> str:
        """Copy the run, up to a visit, into a new one, and return the new id."""
        if iscoroutinefunction(self.options.state_override):
            raise AsyncNodeError(
                "'state_override' is a coroutine function: await afork_run(...) instead", names=("state_override",)
            )
        return self._drive(self._forked(node_id, visit, new_id, into))

    async def afork(self, node_id: str | None, visit: int | None, new_id: str | None, into: AnyStore | None) -> str:
        """Copy the run, up to a visit, into a new one, and return the new id."""
        return await self._adrive(self._forked(node_id, visit, new_id, into))

    def _forked(
        self, node_id: str | None, visit: int | None, new_id: str | None, into: AnyStore | None
    ) -> Routine[str]:
        new_id = new_run_id(self.options.clock.time()) if new_id is None else new_id
        return self.run.fork(new_id, None if into is None else store_of(into), node_id, visit)

    def plan(self) -> ResumePlan:
        """Return what the call would do."""
        assert self.wish is not None
        self.run.is_awaited = False
        with self._named():
            return SyncDriver(self.options.clock).run(plan(self.run, self.wish))

    async def aplan(self) -> ResumePlan:
        """Return what the call would do."""
        assert self.wish is not None
        with self._named():
            return await self._awaiting().run(plan(self.run, self.wish))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the run in every error of the library, those of a store included."""
        if self.active is not None:
            self.active.add(self.run.run_id)
        try:
            with naming(self.run.run_id):
                yield
        finally:
            if self.active is not None:
                self.active.discard(self.run.run_id)

    def _listen_as_stream(self, live: Callable[[Event], None]) -> None:
        """Begin the run's time now, when somebody iterates: a stream kept for later has used up none of its time."""
        self.run.started_at = self.options.clock.monotonic()
        self.run.followed_at = format_time(self.options.clock.time())
        self.run.is_listening = True
        self._listen(live)

    def _listen(self, live: Callable[[Event], None]) -> None:
        if self.run.is_listening:
            self.run.scope.publish = live


_NO_OPTIONS: Mapping[str, Any] = {}


class _Sparing:
    """A base of generic classes whose last parameter may be left out: `Bound[Order]` is `Bound[Order, Any]`."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __class_getitem__(cls, given: Any) -> Any:
            named = given if isinstance(given, tuple) else (given,)
            is_short = len(named) == len(cls.__parameters__) - 1 > 0
            return super().__class_getitem__((*named, Any) if is_short else given)


@dataclass(frozen=True, slots=True)
class Bound(_Sparing, Generic[OutputT, FullT]):
    """A flow with its input, as every verb of an `Engine` takes it. `Verbs` says what the verbs return."""

    flow: Verbs[OutputT, FullT]
    state: Any
    """A graph's state, or a workflow's inputs by name."""


class Verbs(_Sparing, Generic[OutputT, FullT]):
    """The verbs of a flow by itself. Options are those of `milepost.options.Options`.

    Every verb that runs something returns the flow's output (OutputT): a graph's final state, or a workflow's return
    value. With `full=True` it returns the whole result (FullT), a `RunResult` or a `WorkflowResult`, also if a
    breakpoint stopped the run; a run that fails raises all the same. Errors carry `run_id`, `node_id` if one is known,
    and `state`, the last good one.
    """

    def _job(
        self, store: AnyStore | None, run_id: str | None, options: Mapping[str, Any], wish: ResumeRequest | None = None
    ) -> Job:
        return Job(cast("Flow", self), store, run_id, options, _NO_OPTIONS, wish)

    @overload
    def resume(
        self, store: AnyStore, run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> OutputT: ...
    @overload
    def resume(self, store: AnyStore, run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]) -> FullT: ...
    def resume(self, store: AnyStore, run_id: str, *, full: bool = False, **options: Unpack[RunOptions]) -> Any:
        """Go on with a run where its records end; nothing recorded runs again.

        A finished run gives its stored result. Raises `RunNotFoundError`, `RunLockedError` while another owner has the
        run, `RunNotResumableError`, `FlowChangedError` if the code has changed too much, and the errors of decoding.
        """
        return _answer(self._job(store, run_id, options, ResumeRequest()).do(full=full), full)

    @overload
    async def aresume(
        self, store: AnyStore, run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> OutputT: ...
    @overload
    async def aresume(
        self, store: AnyStore, run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> FullT: ...
    async def aresume(self, store: AnyStore, run_id: str, *, full: bool = False, **options: Unpack[RunOptions]) -> Any:
        """Await the run: the async form of `resume`."""
        return _answer(await self._job(store, run_id, options, ResumeRequest()).ado(full=full), full)

    @overload
    def resume_from(
        self, store: AnyStore, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        full: Literal[False] = False, **options: Unpack[RunOptions],
    ) -> OutputT: ...  # fmt: skip
    @overload
    def resume_from(
        self, store: AnyStore, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        full: Literal[True], **options: Unpack[RunOptions],
    ) -> FullT: ...  # fmt: skip
    def resume_from(
        self,
        store: AnyStore,
        run_id: str,
        node_id: str,
        *,
        visit: int | None = None,
        rerun: bool = False,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Go on after a node's newest visit, or after `visit`; with `rerun` the node itself runs again.

        Later records are superseded: they stay in the history and no longer count. Raises `InvalidResumeNodeError`,
        `NoCheckpointFoundError`, `ResumeNodeCompletedError` if nothing is left after the node, and the errors of
        `resume`.
        """
        wish = ResumeRequest("resume_from", node_id, visit, rerun)
        return _answer(self._job(store, run_id, options, wish).do(full=full), full)

    @overload
    async def aresume_from(
        self, store: AnyStore, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        full: Literal[False] = False, **options: Unpack[RunOptions],
    ) -> OutputT: ...  # fmt: skip
    @overload
    async def aresume_from(
        self, store: AnyStore, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        full: Literal[True], **options: Unpack[RunOptions],
    ) -> FullT: ...  # fmt: skip
    async def aresume_from(
        self,
        store: AnyStore,
        run_id: str,
        node_id: str,
        *,
        visit: int | None = None,
        rerun: bool = False,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Await the run: the async form of `resume_from`."""
        wish = ResumeRequest("resume_from", node_id, visit, rerun)
        return _answer(await self._job(store, run_id, options, wish).ado(full=full), full)

    @overload
    def retry(
        self, store: AnyStore, run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> OutputT: ...
    @overload
    def retry(self, store: AnyStore, run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]) -> FullT: ...
    def retry(self, store: AnyStore, run_id: str, *, full: bool = False, **options: Unpack[RunOptions]) -> Any:
        """Run the failed part again, with fresh attempts.

        Completed work is kept. `RunNotResumableError` if nothing failed.
        """
        return _answer(self._job(store, run_id, options, ResumeRequest("retry")).do(full=full), full)

    @overload
    async def aretry(
        self, store: AnyStore, run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> OutputT: ...
    @overload
    async def aretry(
        self, store: AnyStore, run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> FullT: ...
    async def aretry(self, store: AnyStore, run_id: str, *, full: bool = False, **options: Unpack[RunOptions]) -> Any:
        """Await the run: the async form of `retry`."""
        return _answer(await self._job(store, run_id, options, ResumeRequest("retry")).ado(full=full), full)

    def resume_stream(self, store: AnyStore, run_id: str, **options: Unpack[RunOptions]) -> Iterator[Event]:
        """Resume a run and iterate over its events."""
        return self._job(store, run_id, options, ResumeRequest()).stream()

    def aresume_stream(self, store: AnyStore, run_id: str, **options: Unpack[RunOptions]) -> AsyncIterator[Event]:
        """Resume a run and iterate over its events with `async for`."""
        return self._job(store, run_id, options, ResumeRequest()).astream()

    def plan_resume(
        self,
        store: AnyStore,
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """Return what `resume` (with `node_id`: `resume_from`) would do and why. Runs nothing, writes nothing.

        Raises `RunNotFoundError` or `NoCheckpointFoundError`, and `StoreError` if the store fails; every other refusal
        is the plan's verdict.
        """
        return self._job(store, run_id, options, ResumeRequest.of(node_id, visit, rerun)).plan()

    async def aplan_resume(
        self,
        store: AnyStore,
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """Await the plan: the async form of `plan_resume`."""
        return await self._job(store, run_id, options, ResumeRequest.of(node_id, visit, rerun)).aplan()

    def fork_run(
        self,
        store: AnyStore,
        run_id: str,
        node_id: str | None = None,
        visit: int | None = None,
        *,
        new_run_id: str | None = None,
        state_override: Callable[[Any], Any] | None = None,
        update: Mapping[str, Any] | None = None,
        reroute: bool | None = None,
        into: AnyStore | None = None,
    ) -> str:
        """Copy a run up to a visit of a node or step into a new run, which is to be resumed, and return the new id.

        `node_id` None: up to the newest point to resume from; `visit` None: the newest that was not superseded. The run
        itself is only read: it may have any status, and may be executed meanwhile. The fork is `interrupted`, in the
        store `into` (None: the same) under `new_run_id` (None: one is made). It has the records up to that visit under
        the same numbers, with visits, attempts and keys as they were, and without the signals that these records have
        not used. `state_override` (graphs only) corrects the state at that point, however deep it is nested. `update`
        gives a part of the state instead, which is reduced as if the node had returned it. A resume of the fork then
        asks the router there again, unless `reroute` is False; with True the router is asked in any case.

        Raises `RunNotFoundError`, `InvalidResumeNodeError`, `NoCheckpointFoundError` if that visit is not recorded,
        `RunExistsError` if the new id is in use, `WrongFlowError`, `CheckpointIntegrityError` for records that were
        changed, and `OptionError` for a store that keeps no journals.
        """
        amends = {"state_override": state_override, "update": update, "reroute": reroute}
        return self._job(store, run_id, amends, ResumeRequest()).fork(node_id, visit, new_run_id, into)

    async def afork_run(
        self,
        store: AnyStore,
        run_id: str,
        node_id: str | None = None,
        visit: int | None = None,
        *,
        new_run_id: str | None = None,
        state_override: Callable[[Any], Any] | None = None,
        update: Mapping[str, Any] | None = None,
        reroute: bool | None = None,
        into: AnyStore | None = None,
    ) -> str:
        """Await the copy: the async form of `fork_run`."""
        amends = {"state_override": state_override, "update": update, "reroute": reroute}
        return await self._job(store, run_id, amends, ResumeRequest()).afork(node_id, visit, new_run_id, into)

    def signal(
        self,
        store: AnyStore,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
    ) -> Literal["taken", "kept", "duplicate"]:
        """Send a run a signal.

        taken: a visit waits for it · kept: the next wait for this name gets it · duplicate: its `signal_id` was seen
        before, and nothing was kept. `to` reaches only that wait; raises `SignalRefusedError` if the run does not wait
        there. A run that has ended raises `RunNotResumableError`.
        """
        kept = store_of(store)
        with naming(run_id):
            told = SyncDriver(SYSTEM).run(signalling.signal(kept, run_id, name, payload, signal_id=signal_id, to=to))
        wake(kept)
        return told

    async def asignal(
        self,
        store: AnyStore,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
    ) -> Literal["taken", "kept", "duplicate"]:
        """Await the sending: the async form of `signal`."""
        kept = store_of(store)
        from milepost.drivers import AsyncDriver

        with naming(run_id):
            told = await AsyncDriver(SYSTEM).run(
                signalling.signal(kept, run_id, name, payload, signal_id=signal_id, to=to)
            )
        wake(kept)
        return told

    def cancel(self, store: AnyStore, run_id: str, reason: str = "") -> Literal["cancelled", "requested", "ended"]:
        """Ask a run to end.

        cancelled: nobody executed it, and it has ended · requested: its owner ends it at the next boundary, and cancels
        an async node that runs · ended: it had finished or been cancelled before, and nothing changes.
        """
        kept = store_of(store)
        with naming(run_id):
            told = SyncDriver(SYSTEM).run(signalling.cancel(kept, run_id, reason))
        wake(kept)
        return told

    async def acancel(
        self, store: AnyStore, run_id: str, reason: str = ""
    ) -> Literal["cancelled", "requested", "ended"]:
        """Await the request: the async form of `cancel`."""
        kept = store_of(store)
        from milepost.drivers import AsyncDriver

        with naming(run_id):
            told = await AsyncDriver(SYSTEM).run(signalling.cancel(kept, run_id, reason))
        wake(kept)
        return told


class StateVerbs(Verbs[StateT, RunResult[StateT]]):
    """The verbs of a flow that begins with a state and ends with one: a graph."""

    def bind(self, state: StateT) -> Bound[StateT, RunResult[StateT]]:
        """Bind an input to this flow, for the verbs of an `Engine`."""
        return Bound(self, state)

    @overload
    def run(
        self, state: StateT, *, store: AnyStore | None = None, run_id: str | None = None, full: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> StateT: ...  # fmt: skip
    @overload
    def run(
        self, state: StateT, *, store: AnyStore | None = None, run_id: str | None = None, full: Literal[True],
        **options: Unpack[RunOptions],
    ) -> RunResult[StateT]: ...  # fmt: skip
    def run(
        self,
        state: StateT,
        *,
        store: AnyStore | None = None,
        run_id: str | None = None,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Run the flow from its entry on `state`, and return the final state.

        Without a store nothing is saved. With one the run is recorded under `run_id`, and every node that completed
        stays done. If `run_id` is None, an id is made, and every event, result and error has it.
        """
        return _answer(self._job(store, run_id, options).do(state, full=full), full)

    @overload
    async def arun(
        self, state: StateT, *, store: AnyStore | None = None, run_id: str | None = None, full: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> StateT: ...  # fmt: skip
    @overload
    async def arun(
        self, state: StateT, *, store: AnyStore | None = None, run_id: str | None = None, full: Literal[True],
        **options: Unpack[RunOptions],
    ) -> RunResult[StateT]: ...  # fmt: skip
    async def arun(
        self,
        state: StateT,
        *,
        store: AnyStore | None = None,
        run_id: str | None = None,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Await the run: coroutine nodes run in this task, others in worker threads."""
        return _answer(await self._job(store, run_id, options).ado(state, full=full), full)

    def stream(
        self,
        state: StateT,
        *,
        store: AnyStore | None = None,
        run_id: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Iterator[Event]:
        """Run the flow and iterate over its events, in step with the consumer. Breaking off leaves the run interrupted.

        Such a run can be resumed. A stream that nobody iterates runs nothing. The error of a run that fails is raised
        after its last event.
        """
        return self._job(store, run_id, options).stream(state)

    def astream(
        self,
        state: StateT,
        *,
        store: AnyStore | None = None,
        run_id: str | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncIterator[Event]:
        """Run the flow and iterate over its events with `async for`."""
        return self._job(store, run_id, options).astream(state)


def _answer(result: Any, full: bool) -> Any:
    return result if full else result.output
