"""One call of a verb, checked, and the verbs of a flow by itself. A verb says what is called; a `Job` calls it.

A verb and its `a`-twin differ in the driver and in nothing else: both are made from the same `Job`.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, cast, overload

from milepost.drivers import SyncDriver, is_logged
from milepost.drivers.live import live_writer
from milepost.drivers.threads import wake
from milepost.errors import AsyncNodeError, OptionError, RunStopped, RunSuspended, naming, no_attribute
from milepost.executor import signals
from milepost.executor.checks import ResumeRequest, check_recordable
from milepost.executor.continuation import check_options, refuse_turn_options
from milepost.executor.effects import Routine
from milepost.executor.flow import Flow, GraphFlow, find_node
from milepost.executor.resume import await_due, check_claimable, give_back, plan, resume, resume_claimed
from milepost.executor.run import Run
from milepost.executor.signals import CancelOutcome, SignalOutcome
from milepost.executor.start import enqueue, start
from milepost.model.ids import SYSTEM, Clock, new_nonce, new_run_id
from milepost.model.record import CONTINUE, format_time
from milepost.model.reports import ResumePlan, RunResult
from milepost.options import Options, RunOptions, merge_options, nearest, option_names, without_amendments
from milepost.store import Store, Token, check_number, check_run_id

R = TypeVar("R")
T = TypeVar("T")
StateT = TypeVar("StateT")
OutputT = TypeVar("OutputT", covariant=True)

if TYPE_CHECKING:
    import typing_extensions

    from milepost.adapters.user_stores import AnyStore
    from milepost.drivers import AsyncDriver
    from milepost.model.events import Event
    from milepost.model.results import WorkflowResult
    from milepost.options import FullOptions, OutputOptions

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


@contextmanager
def opened(given: AnyStore) -> Iterator[Store]:
    """Give the argument as a store. One that is given as a URL is opened here, and closed at the end of the block."""
    store = _open(given) if isinstance(given, str) else store_of(given)
    try:
        yield store
    finally:
        if isinstance(given, str):
            store.close()


def _open(url: str) -> Store:
    from milepost.stores.url import open_for_call  # most calls are given a store

    return open_for_call(url)


def drive(routine: Routine[T], run_id: str | None, clock: Clock = SYSTEM, *, wakes: Store | None = None) -> T:
    """Drive a routine that executes no run. Errors name the run `run_id`; workers of the store `wakes` look again."""
    with nullcontext() if run_id is None else naming(run_id):
        answer = SyncDriver(clock).run(routine)
    if wakes is not None:
        wake(wakes)
    return answer


async def adrive(routine: Routine[T], run_id: str | None, clock: Clock = SYSTEM, *, wakes: Store | None = None) -> T:
    """Await the routine: the async form of `drive`."""
    from milepost.drivers import AsyncDriver

    with nullcontext() if run_id is None else naming(run_id):
        answer = await AsyncDriver(clock).run(routine)
    if wakes is not None:
        wake(wakes)
    return answer


def check_breakpoints(flow: Flow, options: Options) -> None:
    """Raise `OptionError` for a breakpoint at a node that a graph does not have."""
    if flow.front != "graph":
        return  # the steps of a workflow are known only once its code asks for them
    for option in ("stop_before", "stop_after"):
        names = getattr(options, option)
        unknown = sorted(name for name in names if find_node(cast("GraphFlow", flow), name) is None)
        if unknown:
            raise OptionError(
                f"{option} names {', '.join(map(repr, unknown))}, which flow {flow.name!r} does not have", option=option
            )


class Job:
    """One call of a verb, checked and ready: nothing has been run or written yet."""

    __slots__ = ("__weakref__", "_close", "active", "flow", "options", "request", "run")

    def __init__(
        self,
        flow: Flow,
        store: AnyStore | None,
        run_id: str | None,
        given: Mapping[str, Any],
        bound: Mapping[str, Any],
        request: ResumeRequest | None,
    ) -> None:
        self.flow = flow
        self.active: set[str] | None = None
        """The ids of the runs that the engine of this call executes; None without an engine."""
        self.options: Options = merge_options(bound, given)
        self.request = request
        self._close: Callable[[], object] = lambda: None
        known: Store | None = None
        if isinstance(store, str):
            known = _open(store)
            # A stream that nobody iterates has no end: its store is closed with this object.
            self._close = weakref.finalize(self, known.close)
        elif store is not None or request is not None:
            known = store_of(store)
        if run_id is not None or request is not None:
            check_run_id(run_id)
        if request is not None and request.visit is not None:
            check_number(request.visit, "visit")
        if known is None and "if_exists" in given:
            raise OptionError("if_exists needs a store: give store=", option="if_exists")
        if request is None and self.options.if_exists == CONTINUE:
            check_options(self.options, has_state=flow.front == "graph")
        else:
            refuse_turn_options(given)
        check_breakpoints(flow, self.options)
        name = run_id if run_id is not None else new_run_id(self.options.clock.time())
        is_listening = bool(self.options.hooks) or is_logged()
        self.run: Run = self._run(known, name, is_listening)

    def _run(self, store: Store | None, run_id: str, is_listening: bool) -> Run:
        return self.flow.new_run(store, run_id, self.options, is_listening=is_listening)

    def routine(self, state: Any, *, full: bool = False) -> Routine[Any]:
        """Return the core's routine for this call. With `full` a breakpoint gives a result, like any other end."""
        if full:
            self.run.wants_results = True
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
            self.run = before.renewed(self.options)
            routine = resume(self.run, ResumeRequest(), new_nonce)

    def _until_parked(self, routine: Routine[Any]) -> Routine[Any]:
        """End with the run that is parked: its stream has told of that by `RunWaiting`."""
        try:
            return (yield from routine)
        except RunSuspended:
            if self.run.status != "waiting":
                raise

    def _begun(self, state: Any) -> Routine[Any]:
        if self.request is not None:
            return resume(self.run, self.request, new_nonce)
        check_recordable(self.run)
        return start(self.run, state, new_nonce)

    def refuse_coroutines(self) -> None:
        """Raise `AsyncNodeError` if a sync verb would have to await something."""
        names = [*self.flow.async_names]
        names += [
            option
            for option in ("state_override", "revalidate")
            if (given := getattr(self.options, option)) is not None and iscoroutinefunction(given)
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
        """Run the call here, to its end, and return the output; with `full` the result, also if a breakpoint stops it."""
        self.refuse_coroutines()
        self.run.is_awaited = False
        result = self._drive(self.routine(state, full=full), executes=True)
        return result if full else result.output

    async def ado(self, state: Any = None, *, full: bool = False) -> Any:
        """Await the call: the async form of `do`."""
        result = await self._adrive(self.routine(state, full=full), executes=True)
        return result if full else result.output

    async def ago_on(self, token: Token) -> Any:
        """Go on, in this task, with the run that `token` claimed."""
        return await self._adrive(resume_claimed(self.run, token), executes=True)

    async def acheck_claimable(self) -> None:
        """Raise the error with which `ago_on` would give the run back for other code. Nothing is claimed or written."""
        with self._named():
            await self._awaiting().run(check_claimable(self.run))

    async def agive_back(self, token: Token, reason: str) -> None:
        """Give back the run that `token` claimed, before any of its code runs."""
        await self._adrive(give_back(self.run, token, reason))

    def enqueue(self, state: Any, at: float) -> None:
        """Leave the run to a worker, from `at` (POSIX seconds, 0: at once) on."""
        self._drive(self._queued(state, at))
        if self.run.store is not None:
            wake(self.run.store)

    async def aenqueue(self, state: Any, at: float) -> None:
        """Await the record: the async form of `enqueue`."""
        await self._adrive(self._queued(state, at))
        if self.run.store is not None:
            wake(self.run.store)

    def _queued(self, state: Any, at: float) -> Routine[None]:
        check_recordable(self.run)
        return enqueue(self.run, state, new_nonce, at)

    def _drive(self, routine: Routine[T], *, executes: bool = False) -> T:
        self.run.is_blocking = True
        driver = SyncDriver(self.options.clock, self.options.hooks)
        self._listen(driver.live)
        with self._named(executes=executes):
            return driver.run(routine)

    async def _adrive(self, routine: Routine[T], *, executes: bool = False) -> T:
        driver = self._awaiting()
        self._listen(driver.live)
        with self._named(executes=executes):
            return await driver.run(routine)

    def _awaiting(self) -> AsyncDriver:
        from milepost.drivers import AsyncDriver

        return AsyncDriver(self.options.clock, self.options.hooks)

    def stream(self, state: Any = None) -> Iterator[Event]:
        """Run the call here while its events are iterated."""
        self.refuse_coroutines()
        return self._streamed(self._until_parked(self.routine(state)))

    def _streamed(self, routine: Routine[Any]) -> Iterator[Event]:
        self.run.is_awaited, self.run.is_blocking = False, True
        driver = SyncDriver(self.options.clock, self.options.hooks)
        self._listen_as_stream(driver.live)
        with self._named(executes=True):
            yield from driver.stream(routine)

    async def astream(self, state: Any = None) -> AsyncIterator[Event]:
        """Run the call in this task while its events are iterated."""
        driver = self._awaiting()
        self._listen_as_stream(driver.live)
        events = driver.stream(self._until_parked(self.routine(state)))
        try:
            with self._named(executes=True):
                async for event in events:
                    yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    def fork(
        self, node_id: str | None, visit: int | None, new_id: str | None, into: AnyStore | None, **given: Any
    ) -> str:
        """Copy the run, up to a visit, into a new one, and return the new id. `given` are `ready` and `by`."""
        if iscoroutinefunction(self.options.state_override):
            raise AsyncNodeError(
                "'state_override' is a coroutine function: await afork_run(...) instead", names=("state_override",)
            )
        return self._drive(self._forked(node_id, visit, new_id, into, **given))

    async def afork(
        self, node_id: str | None, visit: int | None, new_id: str | None, into: AnyStore | None, **given: Any
    ) -> str:
        """Await the copy: the async form of `fork`."""
        return await self._adrive(self._forked(node_id, visit, new_id, into, **given))

    def _forked(
        self,
        node_id: str | None,
        visit: int | None,
        new_id: str | None,
        into: AnyStore | None,
        *,
        ready: bool = False,
        by: str | None = None,
    ) -> Routine[str]:
        new_id = new_run_id(self.options.clock.time()) if new_id is None else new_id
        with nullcontext() if into is None else opened(into) as other:
            return (yield from self.run.fork(new_id, other, node_id, visit, ready=ready, by=by))

    def plan(self, *, ignore_owner: bool = False) -> ResumePlan:
        """Return what the call would do; with `ignore_owner` as if an owner of the run had just gone."""
        assert self.request is not None
        self.run.is_awaited = False
        with self._named():
            return SyncDriver(self.options.clock).run(plan(self.run, self.request, ignore_owner=ignore_owner))

    async def aplan(self, *, ignore_owner: bool = False) -> ResumePlan:
        """Await the plan: the async form of `plan`."""
        assert self.request is not None
        with self._named():
            return await self._awaiting().run(plan(self.run, self.request, ignore_owner=ignore_owner))

    @contextmanager
    def _named(self, *, executes: bool = False) -> Iterator[None]:
        """Name the run in every error of the library, and close a store that was opened for this call.

        `executes`: the run counts among those that the engine executes.
        """
        active = self.active if executes else None
        if active is not None:
            active.add(self.run.run_id)
        try:
            with naming(self.run.run_id):
                yield
        finally:
            if active is not None:
                active.discard(self.run.run_id)
            self._close()

    def _listen_as_stream(self, live: Callable[[Event], None]) -> None:
        """Begin the run's time now, when somebody iterates: a stream kept for later has used up none of its time."""
        self.run.started_at = self.options.clock.monotonic()
        self.run.followed_at = format_time(self.options.clock.time())
        self.run.is_listening = True
        self._listen(live)

    def _listen(self, live: Callable[[Event], None]) -> None:
        if self.run.is_listening:
            self.run.scope.publish = live
        store = self.run.scope.store
        if store is not None and store.keeps_live and not store.is_read_only:
            self.run.send_live(live_writer.keep_in(store, self.run.run_id))


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


def flow_of(verbs: Verbs[Any]) -> Flow:
    """Return a flow as the core runs it."""
    return verbs._flow


class Verbs(_Sparing, Generic[OutputT, FullT]):
    """The verbs of a flow by itself. Options are those of `milepost.options.Options`.

    Every verb that runs something returns the flow's output (OutputT): a graph's final state, or a workflow's return
    value. With `full=True` it returns the whole result (FullT), a `RunResult` or a `WorkflowResult`, also if a
    breakpoint stopped the run; a run that fails raises all the same. Errors carry `run_id`, `node_id` if one is known,
    and `state`, the last good one.

    A store may be given as its URL: it is opened for the call and closed with it, by a stream at its end.
    """

    name: str
    """The flow's name in a store."""

    @property
    @abstractmethod
    def _flow(self) -> Flow:
        """The flow as the core runs it."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    def _job(
        self,
        store: AnyStore | None,
        run_id: str | None,
        options: Mapping[str, Any],
        request: ResumeRequest | None = None,
    ) -> Job:
        return Job(self._flow, store, run_id, options, {}, request)

    @overload
    def resume(self, store: AnyStore, run_id: str, **options: Unpack[OutputOptions]) -> OutputT: ...
    @overload
    def resume(self, store: AnyStore, run_id: str, **options: Unpack[FullOptions]) -> FullT: ...
    def resume(self, store: AnyStore, run_id: str, *, full: bool = False, **options: Any) -> Any:
        """Go on with a run where its records end; nothing recorded runs again.

        A finished run gives its stored result. Raises `RunNotFoundError`, `RunLockedError` while another owner has the
        run, `RunNotResumableError`, `FlowChangedError` if the code has changed too much, and the errors of decoding.

        >>> doubling.run(21, store=store, run_id="r-1", stop_before="double", full=True).status
        'interrupted'
        >>> doubling.resume(store, "r-1")
        42
        """
        return self._job(store, run_id, options, ResumeRequest()).do(full=full)

    @overload
    async def aresume(self, store: AnyStore, run_id: str, **options: Unpack[OutputOptions]) -> OutputT: ...
    @overload
    async def aresume(self, store: AnyStore, run_id: str, **options: Unpack[FullOptions]) -> FullT: ...
    async def aresume(self, store: AnyStore, run_id: str, *, full: bool = False, **options: Any) -> Any:
        """Await the run: the async form of `resume`."""
        return await self._job(store, run_id, options, ResumeRequest()).ado(full=full)

    @overload
    def resume_from(
        self, store: AnyStore, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        **options: Unpack[OutputOptions],
    ) -> OutputT: ...  # fmt: skip
    @overload
    def resume_from(
        self, store: AnyStore, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        **options: Unpack[FullOptions],
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
        **options: Any,
    ) -> Any:
        """Go on after a node's newest visit, or after `visit`; with `rerun` the node itself runs again.

        Later records are superseded: they stay in the history and no longer count. Raises `InvalidResumeNodeError`,
        `NoCheckpointFoundError`, `ResumeNodeCompletedError` if nothing is left after the node, and the errors of
        `resume`.

        >>> _ = doubling.run(21, store=store, run_id="r-1")
        >>> doubling.resume_from(store, "r-1", "double", rerun=True, state_override=lambda n: n + 1)
        44
        """
        request = ResumeRequest("resume_from", node_id, visit, rerun)
        return self._job(store, run_id, options, request).do(full=full)

    @overload
    async def aresume_from(
        self, store: AnyStore, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        **options: Unpack[OutputOptions],
    ) -> OutputT: ...  # fmt: skip
    @overload
    async def aresume_from(
        self, store: AnyStore, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        **options: Unpack[FullOptions],
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
        **options: Any,
    ) -> Any:
        """Await the run: the async form of `resume_from`."""
        request = ResumeRequest("resume_from", node_id, visit, rerun)
        return await self._job(store, run_id, options, request).ado(full=full)

    @overload
    def retry(self, store: AnyStore, run_id: str, **options: Unpack[OutputOptions]) -> OutputT: ...
    @overload
    def retry(self, store: AnyStore, run_id: str, **options: Unpack[FullOptions]) -> FullT: ...
    def retry(self, store: AnyStore, run_id: str, *, full: bool = False, **options: Any) -> Any:
        """Run the failed part again, with fresh attempts.

        Completed work is kept. `RunNotResumableError` if nothing failed.

        >>> up = [False]
        >>> def fetch(n: int) -> int:
        ...     if not up[0]:
        ...         raise ConnectionError("down")
        ...     return n
        >>> graph = Graph(int).add_node("fetch", fetch).set_entry("fetch").add_edge("fetch", END).compile("fetching")
        >>> graph.run(7, store=store, run_id="r-1")
        Traceback (most recent call last):
        milepost.errors.NodeError: ...
        >>> up[0] = True
        >>> graph.retry(store, "r-1")
        7
        """
        return self._job(store, run_id, options, ResumeRequest("retry")).do(full=full)

    @overload
    async def aretry(self, store: AnyStore, run_id: str, **options: Unpack[OutputOptions]) -> OutputT: ...
    @overload
    async def aretry(self, store: AnyStore, run_id: str, **options: Unpack[FullOptions]) -> FullT: ...
    async def aretry(self, store: AnyStore, run_id: str, *, full: bool = False, **options: Any) -> Any:
        """Await the run: the async form of `retry`."""
        return await self._job(store, run_id, options, ResumeRequest("retry")).ado(full=full)

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
        ignore_owner: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """Return what `resume` (with `node_id`: `resume_from`) would do and why. Runs nothing, writes nothing.

        With `ignore_owner` a run that somebody executes is planned as if its owner had just gone; it is not disturbed.

        Raises `RunNotFoundError` or `NoCheckpointFoundError`, and `StoreError` if the store fails; every other refusal
        is the plan's verdict.

        >>> _ = doubling.run(21, store=store, run_id="r-1", stop_before="double", full=True)
        >>> doubling.plan_resume(store, "r-1").verdict
        'continue'
        """
        return self._job(store, run_id, options, ResumeRequest.of(node_id, visit, rerun)).plan(
            ignore_owner=ignore_owner
        )

    async def aplan_resume(
        self,
        store: AnyStore,
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        ignore_owner: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """Await the plan: the async form of `plan_resume`."""
        job = self._job(store, run_id, options, ResumeRequest.of(node_id, visit, rerun))
        return await job.aplan(ignore_owner=ignore_owner)

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
        by: str | None = None,
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

        >>> _ = doubling.run(21, store=store, run_id="r-1")
        >>> doubling.fork_run(store, "r-1", "double", new_run_id="r-2", state_override=lambda n: 100)
        'r-2'
        >>> doubling.resume(store, "r-2")
        100
        """
        amends = {"state_override": state_override, "update": update, "reroute": reroute}
        return self._job(store, run_id, amends, ResumeRequest()).fork(node_id, visit, new_run_id, into, by=by)

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
        by: str | None = None,
    ) -> str:
        """Await the copy: the async form of `fork_run`."""
        amends = {"state_override": state_override, "update": update, "reroute": reroute}
        return await self._job(store, run_id, amends, ResumeRequest()).afork(node_id, visit, new_run_id, into, by=by)

    def signal(
        self,
        store: AnyStore,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
        by: str | None = None,
    ) -> SignalOutcome:
        """Send a run a signal.

        taken: a visit waits for it · kept: the next wait for this name gets it · duplicate: its `signal_id` was seen
        before, and nothing was kept. `to` reaches only that wait. Raises `SignalRefusedError`, and keeps nothing, if the
        run does not wait there, if the payload does not fit the open wait, or while a cancel is open. A run that has
        ended raises `RunNotResumableError`.

        >>> @workflow("asking")
        ... def asking() -> Steps[str]:
        ...     return (yield from step("ask").wait_for("name", payload=str)).payload
        >>> asking.run(store=store, run_id="r-1", full=True).status
        'waiting'
        >>> [asking.signal(store, "r-1", "name", "Ada", signal_id="m-1") for _ in range(2)]
        ['taken', 'duplicate']
        >>> asking.resume(store, "r-1")
        'Ada'
        """
        with opened(store) as known:
            routine = signals.signal(known, run_id, name, payload, signal_id=signal_id, to=to, by=by)
            return drive(routine, run_id, wakes=known)

    async def asignal(
        self,
        store: AnyStore,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
        by: str | None = None,
    ) -> SignalOutcome:
        """Await the sending: the async form of `signal`."""
        with opened(store) as known:
            routine = signals.signal(known, run_id, name, payload, signal_id=signal_id, to=to, by=by)
            return await adrive(routine, run_id, wakes=known)

    def cancel(self, store: AnyStore, run_id: str, reason: str = "", *, by: str | None = None) -> CancelOutcome:
        """Ask a run to end.

        cancelled: nobody executed it, and it has ended · requested: its owner ends it at the next boundary, and cancels
        an async node that runs · ended: it had finished or been cancelled before, and nothing changes.

        >>> _ = doubling.run(21, store=store, run_id="r-1", stop_before="double", full=True)
        >>> [doubling.cancel(store, "r-1", "no longer wanted") for _ in range(2)]
        ['cancelled', 'ended']
        """
        with opened(store) as known:
            return drive(signals.cancel(known, run_id, reason, by), run_id, wakes=known)

    async def acancel(self, store: AnyStore, run_id: str, reason: str = "", *, by: str | None = None) -> CancelOutcome:
        """Await the request: the async form of `cancel`."""
        with opened(store) as known:
            return await adrive(signals.cancel(known, run_id, reason, by), run_id, wakes=known)


class StateVerbs(Verbs[StateT, RunResult[StateT]]):
    """The verbs of a flow that begins with a state and ends with one: a graph."""

    def bind(self, state: StateT) -> Bound[StateT, RunResult[StateT]]:
        """Bind an input to this flow, for the verbs of an `Engine`."""
        return Bound(self, state)

    @overload
    def run(
        self, state: StateT, *, store: AnyStore | None = None, run_id: str | None = None,
        **options: Unpack[OutputOptions],
    ) -> StateT: ...  # fmt: skip
    @overload
    def run(
        self, state: StateT, *, store: AnyStore | None = None, run_id: str | None = None,
        **options: Unpack[FullOptions],
    ) -> RunResult[StateT]: ...  # fmt: skip
    def run(
        self,
        state: StateT,
        *,
        store: AnyStore | None = None,
        run_id: str | None = None,
        full: bool = False,
        **options: Any,
    ) -> Any:
        """Run the flow from its entry on `state`, and return the final state.

        Without a store nothing is saved. With one the run is recorded under `run_id`, and every node that completed
        stays done. If `run_id` is None, an id is made, and every event, result and error has it.

        >>> doubling.run(21), doubling.run(21, store=store, run_id="r-1")
        (42, 42)
        >>> doubling.run(4, store=store, run_id="r-1", if_exists="resume", compare_inputs=False)
        42
        >>> doubling.run(21, full=True).status
        'finished'
        """
        return self._job(store, run_id, options).do(state, full=full)

    @overload
    async def arun(
        self, state: StateT, *, store: AnyStore | None = None, run_id: str | None = None,
        **options: Unpack[OutputOptions],
    ) -> StateT: ...  # fmt: skip
    @overload
    async def arun(
        self, state: StateT, *, store: AnyStore | None = None, run_id: str | None = None,
        **options: Unpack[FullOptions],
    ) -> RunResult[StateT]: ...  # fmt: skip
    async def arun(
        self,
        state: StateT,
        *,
        store: AnyStore | None = None,
        run_id: str | None = None,
        full: bool = False,
        **options: Any,
    ) -> Any:
        """Await the run: coroutine nodes run in this task, others in worker threads.

        >>> asyncio.run(doubling.arun(21))
        42
        """
        return await self._job(store, run_id, options).ado(state, full=full)

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
        after its last event; that of a run that is parked ends with `RunWaiting` and what follows it, without an error.

        >>> [type(event).__name__ for event in doubling.stream(21)]
        ['RunStarted', 'NodeStarted', 'NodeCompleted', 'RunCompleted']
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


class InputVerbs(Verbs[R, "WorkflowResult[R]"]):
    """The verbs of a flow that begins with inputs and ends with an output: a workflow.

    Verbs that begin a run take inputs by position, by name among the options, or as `inputs={...}` if a name is also
    that of an option. Verbs that go on with a run take them by name, to compare them with the recorded ones.
    """

    parameters: tuple[Any, ...]
    """The inputs, each with its `name`."""

    @abstractmethod
    def _inputs_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs by name, defaults included. Raises TypeError for missing and unknown inputs."""

    def _split(
        self, args: tuple[Any, ...], given: Mapping[str, Any], inputs: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the arguments of a verb that begins a run into inputs and options.

        `args` and the entries of `inputs` are inputs; a keyword in `given` is one unless it names an option. Raises
        TypeError for an input that is given both by its name and in `inputs`.
        """
        named, options = split_options(given)
        twice = sorted(set(named) & set(inputs or ()))
        if twice:
            raise TypeError(f"workflow {self.name!r}: input {twice[0]!r} is given twice, by its name and in inputs=")
        return self._inputs(args, named, inputs), options

    def _inputs(
        self, args: tuple[Any, ...], named: Mapping[str, Any], inputs: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return the inputs by name. The error for an input that does not exist names an option that is like it."""
        try:
            return self._inputs_of(args, {**named, **(inputs or {})})
        except TypeError as exc:
            known = {parameter.name for parameter in self.parameters}
            near = next(filter(None, (nearest(name) for name in named if name not in known)), None)
            if near is None:
                raise
            raise TypeError(f"{exc}; did you mean the option {near!r}?") from None

    def _split_of_resume(
        self, given: Mapping[str, Any], bound: Mapping[str, Any] | None
    ) -> tuple[Mapping[str, Any] | None, dict[str, Any]]:
        """Split the keywords of a resume into the inputs to compare, None if there are none, and options.

        `bound` are the inputs of a bound flow. Raises `OptionError` if there are others beside them.
        """
        rest = dict(given)
        inputs = rest.pop("inputs", None)
        named, options = split_options(rest)
        if not (named or inputs):
            return bound, options
        if bound is not None:
            raise OptionError("a bound flow has its inputs already: leave them out", option="inputs")
        return self._inputs((), named, inputs), options

    def _job(
        self,
        store: AnyStore | None,
        run_id: str | None,
        options: Mapping[str, Any],
        request: ResumeRequest | None = None,
    ) -> Job:
        if request is None:
            return super()._job(store, run_id, options)
        inputs, options = self._split_of_resume(options, None)
        job = super()._job(store, run_id, options, request)
        job.run.given = inputs
        return job

    if TYPE_CHECKING:
        # The verbs of `Verbs`, which take inputs beside the options here.

        @overload
        def resume(
            self, store: AnyStore, run_id: str, *, inputs: Mapping[str, Any] | None = ...,
            full: Literal[False] = ..., **options: Any,
        ) -> R: ...  # fmt: skip
        @overload
        def resume(
            self, store: AnyStore, run_id: str, *, inputs: Mapping[str, Any] | None = ...,
            full: Literal[True], **options: Any,
        ) -> WorkflowResult[R]: ...  # fmt: skip
        def resume(self, store: AnyStore, run_id: str, **options: Any) -> Any:
            """Go on with a run, as `Verbs.resume` does. Inputs are compared with those that the run began with."""

        @overload
        async def aresume(
            self, store: AnyStore, run_id: str, *, inputs: Mapping[str, Any] | None = ...,
            full: Literal[False] = ..., **options: Any,
        ) -> R: ...  # fmt: skip
        @overload
        async def aresume(
            self, store: AnyStore, run_id: str, *, inputs: Mapping[str, Any] | None = ...,
            full: Literal[True], **options: Any,
        ) -> WorkflowResult[R]: ...  # fmt: skip
        async def aresume(self, store: AnyStore, run_id: str, **options: Any) -> Any:
            """Await the run: the async form of `resume`."""

        @overload
        def retry(
            self, store: AnyStore, run_id: str, *, inputs: Mapping[str, Any] | None = ...,
            full: Literal[False] = ..., **options: Any,
        ) -> R: ...  # fmt: skip
        @overload
        def retry(
            self, store: AnyStore, run_id: str, *, inputs: Mapping[str, Any] | None = ...,
            full: Literal[True], **options: Any,
        ) -> WorkflowResult[R]: ...  # fmt: skip
        def retry(self, store: AnyStore, run_id: str, **options: Any) -> Any:
            """Run the failed part again, as `Verbs.retry` does. Inputs are compared with those that the run began with."""

        @overload
        async def aretry(
            self, store: AnyStore, run_id: str, *, inputs: Mapping[str, Any] | None = ...,
            full: Literal[False] = ..., **options: Any,
        ) -> R: ...  # fmt: skip
        @overload
        async def aretry(
            self, store: AnyStore, run_id: str, *, inputs: Mapping[str, Any] | None = ...,
            full: Literal[True], **options: Any,
        ) -> WorkflowResult[R]: ...  # fmt: skip
        async def aretry(self, store: AnyStore, run_id: str, **options: Any) -> Any:
            """Await the run: the async form of `retry`."""

    @overload
    def run(
        self, *args: Any, store: AnyStore | None = ..., run_id: str | None = ..., inputs: Mapping[str, Any] | None = ...,
        full: Literal[False] = ..., **options: Any,
    ) -> R: ...  # fmt: skip
    @overload
    def run(
        self, *args: Any, store: AnyStore | None = ..., run_id: str | None = ..., inputs: Mapping[str, Any] | None = ...,
        full: Literal[True], **options: Any,
    ) -> WorkflowResult[R]: ...  # fmt: skip
    def run(
        self,
        *args: Any,
        store: AnyStore | None = None,
        run_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        full: bool = False,
        **options: Any,
    ) -> Any:
        """Run the workflow on its inputs and return its output, or a `WorkflowResult` if `full`. See `Verbs`.

        >>> greeting.run("Ada"), greeting.run(name="Ada"), greeting.run(inputs={"name": "Ada"})
        ('Hello, Ada!', 'Hello, Ada!', 'Hello, Ada!')
        >>> greeting.run("Ada", store=store, run_id="r-1", full=True).step_results[0].output
        'Hello, Ada'
        """
        values, rest = self._split(args, options, inputs)
        return self._job(store, run_id, rest).do(values, full=full)

    @overload
    async def arun(
        self, *args: Any, store: AnyStore | None = ..., run_id: str | None = ..., inputs: Mapping[str, Any] | None = ...,
        full: Literal[False] = ..., **options: Any,
    ) -> R: ...  # fmt: skip
    @overload
    async def arun(
        self, *args: Any, store: AnyStore | None = ..., run_id: str | None = ..., inputs: Mapping[str, Any] | None = ...,
        full: Literal[True], **options: Any,
    ) -> WorkflowResult[R]: ...  # fmt: skip
    async def arun(
        self,
        *args: Any,
        store: AnyStore | None = None,
        run_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        full: bool = False,
        **options: Any,
    ) -> Any:
        """Await the workflow's run: the async form of `run`."""
        values, rest = self._split(args, options, inputs)
        return await self._job(store, run_id, rest).ado(values, full=full)

    def stream(
        self,
        *args: Any,
        store: AnyStore | None = None,
        run_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[Event]:
        """Run the workflow and iterate over its events; see `StateVerbs.stream`.

        >>> [type(event).__name__ for event in greeting.stream("Ada")]
        ['WorkflowStarted', 'StepStarted', 'StepCompleted', 'WorkflowCompleted']
        """
        values, rest = self._split(args, options, inputs)
        return self._job(store, run_id, rest).stream(values)

    def astream(
        self,
        *args: Any,
        store: AnyStore | None = None,
        run_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Event]:
        """Run the workflow and iterate over its events with `async for`."""
        values, rest = self._split(args, options, inputs)
        return self._job(store, run_id, rest).astream(values)


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keywords into those that name no option, and options."""
    options = {name: value for name, value in given.items() if name in option_names()}
    return {name: value for name, value in given.items() if name not in options}, options
