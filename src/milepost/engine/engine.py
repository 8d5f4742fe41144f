"""The engine. It binds store, dependencies, hooks and options once, instead of with every call of a service.

Its verbs are those of a flow (`milepost.verbs`), with the flow as the first argument and without the store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, cast, overload

from milepost.engine.authorize import Authorize, Gate
from milepost.engine.by_name import bound, read_arguments
from milepost.errors import OptionError, RunNotFoundError, StoreClosedError, StoreError, no_attribute, shown
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Ask, Routine
from milepost.executor.flow import Flow
from milepost.executor.signals import CancelOutcome, SignalOutcome, check_reason
from milepost.executor.start import enqueue_by_name
from milepost.model.events import Hook
from milepost.model.ids import SYSTEM, Clock, new_nonce, new_run_id
from milepost.model.reports import ResumePlan, RunResult
from milepost.options import (
    BulkFilters,
    EngineOptions,
    Options,
    RunFilters,
    RunOptions,
    check_filters,
    merge_options,
    refuse_options_of_execution,
    start_time,
)
from milepost.store import ACTIVE, RunRow, Store, check_id, check_run_id
from milepost.stores.url import opener
from milepost.verbs import Bound, InputVerbs, Job, StateVerbs, Verbs, adrive, drive, flow_of, store_of

if TYPE_CHECKING:
    from milepost.adapters.user_stores import AnyStore
    from milepost.engine.handle import RunHandle
    from milepost.engine.worker import Worker
    from milepost.model.events import Event
    from milepost.model.info import CheckpointInfo, RunPage
    from milepost.model.results import WorkflowResult
    from milepost.model.upkeep import Cancelled, Requeued
    from milepost.model.workers import SchedulePause, WorkerInfo
    from milepost.options import CheckedOptions, FullOptions, OutputOptions

__all__ = ["Authorize", "Bound", "Engine", "Verbs"]

T = TypeVar("T")
FullT = TypeVar("FullT")
AnyFlow = Verbs[Any] | Bound[Any]


class Engine:
    """An engine that runs flows over one store; usable from any thread and event loop.

    It is a context manager, sync and async.

    `store` is a store, which stays the caller's, or a URL, whose store is opened at its first use and closed with the
    engine; until then nothing is made, so a module may define an engine and be imported. `flows` are the flows
    that can be found by their name; each needs a name of its own. `deps` is `ctx.deps` of nodes, `hooks` are called
    with every event, and `authorize(action, run_id, flow)` is asked before resume, override, requeue, signal, cancel and
    delete; only True lets them pass.
    `executor` runs the sync functions that have none of their own: an executor, which stays the caller's, or a factory
    of one, whose pool is shut down with the engine. Other options are defaults for each call: the call's own win, hooks
    add up, tags merge.

    Raises `OptionError` for an option out of its range, a flow without a name, or two of one name.

    >>> with Engine("memory://", flows=[doubling], tags={"team": "shop"}) as engine:
    ...     engine.run(doubling, 21, run_id="r-1")
    ...     [(info.run_id, info.status, info.tags) for info in engine.list_runs(flow="doubling")]
    42
    [('r-1', 'finished', {'team': 'shop'})]
    """

    def __init__(
        self,
        store: AnyStore,
        *,
        flows: Sequence[Verbs[Any]] = (),
        deps: Any = None,
        hooks: Sequence[Hook] = (),
        logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
        authorize: Authorize | None = None,
        clock: Clock | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.flows = _by_name(flows)
        self._gate = Gate(authorize)
        bound = {**options, "deps": deps, "hooks": hooks, "logger": logger, "clock": SYSTEM if clock is None else clock}
        self._bound: dict[str, Any] = {**bound, "hooks": merge_options(bound, {}).hooks}
        self._active: set[str] = set()
        """The ids of the runs that this engine executes."""
        self._not_taken: set[str] = set()
        """The names of flows that were started and that no worker of this engine takes: each is warned of once."""
        self._executor = self._options.executor
        if self._executor is not None:
            from milepost.drivers.executors import pools  # most programs never need it

            pools.bind(self._executor)
        self._open = opener(store) if isinstance(store, str) else None
        self._opening = threading.Lock()
        self._store = None if isinstance(store, str) else store_of(store)
        self._is_closed = False

    @property
    def store(self) -> Store:
        """The store. One that the engine was given as a URL is opened at its first use."""
        if self._store is None:
            with self._opening:
                if self._is_closed:
                    raise StoreClosedError("the engine is closed: make another to use its store")
                if self._store is None:
                    assert self._open is not None
                    self._store = self._open()
        return self._store

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name)

    # -- running -------------------------------------------------------------------------------------

    @overload
    def run(
        self, flow: InputVerbs[T], *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        full: Literal[False] = False, **options: Any,
    ) -> T: ...  # fmt: skip
    @overload
    def run(
        self, flow: InputVerbs[T], *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        full: Literal[True], **options: Any,
    ) -> WorkflowResult[T]: ...  # fmt: skip
    @overload
    def run(
        self, flow: StateVerbs[T], state: T, *, run_id: str | None = None, **options: Unpack[OutputOptions]
    ) -> T: ...
    @overload
    def run(
        self, flow: StateVerbs[T], state: T, *, run_id: str | None = None, **options: Unpack[FullOptions]
    ) -> RunResult[T]: ...
    @overload
    def run(self, flow: Bound[T], *, run_id: str | None = None, **options: Unpack[OutputOptions]) -> T: ...
    @overload
    def run(self, flow: Bound[Any, FullT], *, run_id: str | None = None, **options: Unpack[FullOptions]) -> FullT: ...
    def run(self, flow: AnyFlow, *args: Any, run_id: str | None = None, full: bool = False, **options: Any) -> Any:
        """Run a flow: a graph on its state, a workflow on its inputs, or a bound one.

        Returns the final state or the workflow's output; with `full` the `RunResult` or `WorkflowResult`.

        >>> engine = Engine(store)
        >>> engine.run(doubling, 21), engine.run(doubling.bind(21), full=True).status
        (42, 'finished')
        """
        job, given = self._job_to_start(flow, args, run_id, options)
        return job.do(given, full=full)

    @overload
    async def arun(
        self, flow: InputVerbs[T], *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        full: Literal[False] = False, **options: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def arun(
        self, flow: InputVerbs[T], *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        full: Literal[True], **options: Any,
    ) -> WorkflowResult[T]: ...  # fmt: skip
    @overload
    async def arun(
        self, flow: StateVerbs[T], state: T, *, run_id: str | None = None, **options: Unpack[OutputOptions]
    ) -> T: ...
    @overload
    async def arun(
        self, flow: StateVerbs[T], state: T, *, run_id: str | None = None, **options: Unpack[FullOptions]
    ) -> RunResult[T]: ...
    @overload
    async def arun(self, flow: Bound[T], *, run_id: str | None = None, **options: Unpack[OutputOptions]) -> T: ...
    @overload
    async def arun(
        self, flow: Bound[Any, FullT], *, run_id: str | None = None, **options: Unpack[FullOptions]
    ) -> FullT: ...
    async def arun(
        self, flow: AnyFlow, *args: Any, run_id: str | None = None, full: bool = False, **options: Any
    ) -> Any:
        """Await the run: the async form of `run`."""
        job, given = self._job_to_start(flow, args, run_id, options)
        return await job.ado(given, full=full)

    @overload
    def stream(
        self, flow: InputVerbs[Any], *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[Event]: ...  # fmt: skip
    @overload
    def stream(
        self, flow: StateVerbs[T], state: T, *, run_id: str | None = None, **options: Unpack[CheckedOptions]
    ) -> Iterator[Event]: ...
    @overload
    def stream(
        self, flow: Bound[Any], *, run_id: str | None = None, **options: Unpack[CheckedOptions]
    ) -> Iterator[Event]: ...
    def stream(self, flow: AnyFlow, *args: Any, run_id: str | None = None, **options: Any) -> Iterator[Event]:
        """Run a flow and iterate over its events. Breaking off leaves the run interrupted."""
        job, given = self._job_to_start(flow, args, run_id, options)
        return job.stream(given)

    @overload
    def astream(
        self, flow: InputVerbs[Any], *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Event]: ...  # fmt: skip
    @overload
    def astream(
        self, flow: StateVerbs[T], state: T, *, run_id: str | None = None, **options: Unpack[CheckedOptions]
    ) -> AsyncIterator[Event]: ...
    @overload
    def astream(
        self, flow: Bound[Any], *, run_id: str | None = None, **options: Unpack[CheckedOptions]
    ) -> AsyncIterator[Event]: ...
    def astream(self, flow: AnyFlow, *args: Any, run_id: str | None = None, **options: Any) -> AsyncIterator[Event]:
        """Run a flow and iterate over its events with `async for`."""
        job, given = self._job_to_start(flow, args, run_id, options)
        return job.astream(given)

    # -- going on ------------------------------------------------------------------------------------

    @overload
    def resume(self, flow: Verbs[T] | Bound[T], run_id: str, **options: Unpack[OutputOptions]) -> T: ...
    @overload
    def resume(
        self, flow: Verbs[Any, FullT] | Bound[Any, FullT], run_id: str, **options: Unpack[FullOptions]
    ) -> FullT: ...
    def resume(self, flow: AnyFlow, run_id: str, *, full: bool = False, **options: Any) -> Any:
        """Go on with a run where its records end; see `Verbs.resume`."""
        return self._job_to_resume(flow, run_id, options, ResumeRequest()).do(full=full)

    @overload
    async def aresume(self, flow: Verbs[T] | Bound[T], run_id: str, **options: Unpack[OutputOptions]) -> T: ...
    @overload
    async def aresume(
        self, flow: Verbs[Any, FullT] | Bound[Any, FullT], run_id: str, **options: Unpack[FullOptions]
    ) -> FullT: ...
    async def aresume(self, flow: AnyFlow, run_id: str, *, full: bool = False, **options: Any) -> Any:
        """Await the run: the async form of `resume`."""
        return await self._job_to_resume(flow, run_id, options, ResumeRequest()).ado(full=full)

    @overload
    def resume_from(
        self, flow: Verbs[T] | Bound[T], run_id: str, node_id: str, *, visit: int | None = None,
        rerun: bool = False, **options: Unpack[OutputOptions],
    ) -> T: ...  # fmt: skip
    @overload
    def resume_from(
        self, flow: Verbs[Any, FullT] | Bound[Any, FullT], run_id: str, node_id: str, *, visit: int | None = None,
        rerun: bool = False, **options: Unpack[FullOptions],
    ) -> FullT: ...  # fmt: skip
    def resume_from(
        self,
        flow: AnyFlow,
        run_id: str,
        node_id: str,
        *,
        visit: int | None = None,
        rerun: bool = False,
        full: bool = False,
        **options: Any,
    ) -> Any:
        """Go on after a node; see `Verbs.resume_from`."""
        request = ResumeRequest("resume_from", node_id, visit, rerun)
        return self._job_to_resume(flow, run_id, options, request).do(full=full)

    @overload
    async def aresume_from(
        self, flow: Verbs[T] | Bound[T], run_id: str, node_id: str, *, visit: int | None = None,
        rerun: bool = False, **options: Unpack[OutputOptions],
    ) -> T: ...  # fmt: skip
    @overload
    async def aresume_from(
        self, flow: Verbs[Any, FullT] | Bound[Any, FullT], run_id: str, node_id: str, *, visit: int | None = None,
        rerun: bool = False, **options: Unpack[FullOptions],
    ) -> FullT: ...  # fmt: skip
    async def aresume_from(
        self,
        flow: AnyFlow,
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
        return await self._job_to_resume(flow, run_id, options, request).ado(full=full)

    @overload
    def retry(self, flow: Verbs[T] | Bound[T], run_id: str, **options: Unpack[OutputOptions]) -> T: ...
    @overload
    def retry(
        self, flow: Verbs[Any, FullT] | Bound[Any, FullT], run_id: str, **options: Unpack[FullOptions]
    ) -> FullT: ...
    def retry(self, flow: AnyFlow, run_id: str, *, full: bool = False, **options: Any) -> Any:
        """Run the failed part again; see `Verbs.retry`."""
        return self._job_to_resume(flow, run_id, options, ResumeRequest("retry")).do(full=full)

    @overload
    async def aretry(self, flow: Verbs[T] | Bound[T], run_id: str, **options: Unpack[OutputOptions]) -> T: ...
    @overload
    async def aretry(
        self, flow: Verbs[Any, FullT] | Bound[Any, FullT], run_id: str, **options: Unpack[FullOptions]
    ) -> FullT: ...
    async def aretry(self, flow: AnyFlow, run_id: str, *, full: bool = False, **options: Any) -> Any:
        """Await the run: the async form of `retry`."""
        return await self._job_to_resume(flow, run_id, options, ResumeRequest("retry")).ado(full=full)

    def resume_stream(self, flow: AnyFlow, run_id: str, **options: Unpack[RunOptions]) -> Iterator[Event]:
        """Resume a run and iterate over its events."""
        return self._job_to_resume(flow, run_id, options, ResumeRequest()).stream()

    def aresume_stream(self, flow: AnyFlow, run_id: str, **options: Unpack[RunOptions]) -> AsyncIterator[Event]:
        """Resume a run and iterate over its events with `async for`."""
        return self._job_to_resume(flow, run_id, options, ResumeRequest()).astream()

    def plan_resume(
        self,
        flow: AnyFlow,
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        ignore_owner: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """Return what a resume would do; see `Verbs.plan_resume`."""
        request = ResumeRequest.of(node_id, visit, rerun)
        return self._job_to_resume(flow, run_id, options, request, is_asked=False).plan(ignore_owner=ignore_owner)

    async def aplan_resume(
        self,
        flow: AnyFlow,
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        ignore_owner: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """Await the plan: the async form of `plan_resume`."""
        job = self._job_to_resume(flow, run_id, options, ResumeRequest.of(node_id, visit, rerun), is_asked=False)
        return await job.aplan(ignore_owner=ignore_owner)

    def fork_run(
        self,
        flow: AnyFlow,
        run_id: str,
        node_id: str | None = None,
        visit: int | None = None,
        *,
        new_run_id: str | None = None,
        state_override: Callable[[Any], Any] | None = None,
        update: Mapping[str, Any] | None = None,
        reroute: bool | None = None,
        into: AnyStore | None = None,
        ready: bool = False,
        by: str | None = None,
    ) -> str:
        """Copy a run up to a visit into a new run; see `Verbs.fork_run`. `authorize` is asked as before a resume.

        With `ready` the new run is left to the workers at once, and `authorize` is asked about `requeue` of the run too.

        >>> engine = Engine(store, flows=[doubling])
        >>> _ = engine.run(doubling, 21, run_id="r-1")
        >>> engine.fork_run(doubling, "r-1", "double", new_run_id="r-2", ready=True)
        'r-2'
        >>> engine.handle("r-2").info().status
        'ready'
        """
        return self._handle(run_id, flow_of(_checked_flow(flow))).fork_run(
            node_id, visit, new_run_id=new_run_id, state_override=state_override, update=update, reroute=reroute,
            into=into, ready=ready, by=by,
        )  # fmt: skip

    async def afork_run(
        self,
        flow: AnyFlow,
        run_id: str,
        node_id: str | None = None,
        visit: int | None = None,
        *,
        new_run_id: str | None = None,
        state_override: Callable[[Any], Any] | None = None,
        update: Mapping[str, Any] | None = None,
        reroute: bool | None = None,
        into: AnyStore | None = None,
        ready: bool = False,
        by: str | None = None,
    ) -> str:
        """Await the copy: the async form of `fork_run`."""
        return await self._handle(run_id, flow_of(_checked_flow(flow))).afork_run(
            node_id, visit, new_run_id=new_run_id, state_override=state_override, update=update, reroute=reroute,
            into=into, ready=ready, by=by,
        )  # fmt: skip

    # -- leaving it to a worker ------------------------------------------------------------------------

    @overload
    def start(
        self, flow: InputVerbs[T], *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        at: datetime | None = None, **options: Any,
    ) -> RunHandle[T]: ...  # fmt: skip
    @overload
    def start(
        self, flow: StateVerbs[T], state: T, *, run_id: str | None = None, at: datetime | None = None,
        **options: Unpack[CheckedOptions],
    ) -> RunHandle[T]: ...  # fmt: skip
    @overload
    def start(
        self,
        flow: Bound[T],
        *,
        run_id: str | None = None,
        at: datetime | None = None,
        **options: Unpack[CheckedOptions],
    ) -> RunHandle[T]: ...
    @overload
    def start(
        self, flow: str, *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        at: datetime | None = None, **options: Any,
    ) -> RunHandle[Any]: ...  # fmt: skip
    def start(
        self, flow: AnyFlow | str, *args: Any, run_id: str | None = None, at: datetime | None = None, **options: Any
    ) -> RunHandle[Any]:
        """Record a run for a worker to claim, at once or from `at` (aware) on, and return its handle.

        Nothing runs here. `if_exists` decides about a run that exists. error: it is refused. resume, retry: it is made
        ready if those verbs would go on with it. continue: a run that has ended is made ready for a new turn.
        return: its handle is returned. Options of the execution, such as `retry` and `deps`, are those of the worker's
        engine: OptionError for one that is given here.

        `flow` may be the name of a flow. Then its code is not needed, and the input is plain JSON: one argument, a
        graph's state or a workflow's inputs by name, or keywords. If the engine has the flow, the input is checked here;
        if not, by the first worker that takes the run: it blocks a run whose input does not fit (`blocked_by="input"`).
        `if_exists` is "error" or "return" then, and inputs are compared as JSON.

        >>> engine = Engine(store, flows=[doubling])
        >>> handle = engine.start(doubling, 21, run_id="r-1")
        >>> handle.info().status
        'ready'
        >>> engine.worker().run(until_idle=True)
        >>> handle.result()
        42
        """
        if isinstance(flow, str) and flow not in self.flows:
            run_id, routine = self._queued_by_name(flow, args, run_id, at, options)
            drive(routine, run_id, self._bound["clock"], wakes=self.store)
            return self._handle(run_id)
        job, given, seconds = self._queued(flow, args, run_id, at, options)
        job.enqueue(given, seconds)
        return self._handle(job.run.run_id, job.flow)

    @overload
    async def astart(
        self, flow: InputVerbs[T], *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        at: datetime | None = None, **options: Any,
    ) -> RunHandle[T]: ...  # fmt: skip
    @overload
    async def astart(
        self, flow: StateVerbs[T], state: T, *, run_id: str | None = None, at: datetime | None = None,
        **options: Unpack[CheckedOptions],
    ) -> RunHandle[T]: ...  # fmt: skip
    @overload
    async def astart(
        self,
        flow: Bound[T],
        *,
        run_id: str | None = None,
        at: datetime | None = None,
        **options: Unpack[CheckedOptions],
    ) -> RunHandle[T]: ...
    @overload
    async def astart(
        self, flow: str, *args: Any, run_id: str | None = None, inputs: Mapping[str, Any] | None = None,
        at: datetime | None = None, **options: Any,
    ) -> RunHandle[Any]: ...  # fmt: skip
    async def astart(
        self, flow: AnyFlow | str, *args: Any, run_id: str | None = None, at: datetime | None = None, **options: Any
    ) -> RunHandle[Any]:
        """Await the record: the async form of `start`."""
        if isinstance(flow, str) and flow not in self.flows:
            run_id, routine = self._queued_by_name(flow, args, run_id, at, options)
            await adrive(routine, run_id, self._bound["clock"], wakes=self.store)
            return self._handle(run_id)
        job, given, seconds = self._queued(flow, args, run_id, at, options)
        await job.aenqueue(given, seconds)
        return self._handle(job.run.run_id, job.flow)

    def requeue(
        self,
        run_id: str,
        *,
        retry: bool | None = None,
        reopen: bool = False,
        at: datetime | None = None,
        by: str | None = None,
    ) -> None:
        """Leave a run to the workers, at once or from `at` (aware) on. Its flow's code is not needed.

        A run that failed goes on as by `retry`, any other as by `resume`. With retry=False a failed run is resumed too:
        its attempts are not counted anew, and a node that has used them up gets one more. A run that is ready or due
        stays as it is, but for one that workers gave back as refused: they look at it anew. `authorize` is asked about
        `requeue`.

        Raises `RunLockedError` while somebody executes the run, `RunSuspended` while it waits, and
        `RunNotResumableError` if it has finished, if `retry` is True and it has not failed, or if it was cancelled or
        blocked by crashes and `reopen` is False.

        >>> engine = Engine(store, flows=[doubling])
        >>> copy = engine.fork_run(doubling, engine.start(doubling, 21).run_id)
        >>> engine.requeue(copy)
        >>> engine.handle(copy).info().status
        'ready'
        """
        self._handle(run_id).requeue(retry=retry, reopen=reopen, at=at, by=by)

    async def arequeue(
        self,
        run_id: str,
        *,
        retry: bool | None = None,
        reopen: bool = False,
        at: datetime | None = None,
        by: str | None = None,
    ) -> None:
        """Await it: the async form of `requeue`."""
        await self._handle(run_id).arequeue(retry=retry, reopen=reopen, at=at, by=by)

    def requeue_all(self, *, by: str | None = None, **filters: Unpack[BulkFilters]) -> Requeued:
        """Leave every run that matches to the workers, as `requeue` does; return their ids, and why others are refused.

        `flow`, `status`, `tags` and `after` are those of `list_runs`; status None: failed, interrupted and blocked runs.
        `error_type` is the type of the error that a run failed with, such as `TypeError`, or `shop.orders.SoldOut` with
        or without its module, and `error_node` the node or step that failed. With either, status None means failed
        runs, and the errors of at most 10 000 runs are compared: see `Requeued.stopped_after`. `run_id_prefix` is the
        beginning of a run's id; `created_after` and `created_before` (aware) are the times that it was created
        between, `updated_after` and `updated_before` those that it changed last between. `limit` takes the newest so many
        runs. Each run is taken at most once, and one that is refused, by `authorize` too, does not keep the others from
        it. Raises `OptionError` for a filter that does not exist, before any run is touched.
        """
        return drive(self._requeued_all(filters, by), None, self._bound["clock"], wakes=self.store)

    async def arequeue_all(self, *, by: str | None = None, **filters: Unpack[BulkFilters]) -> Requeued:
        """Await it: the async form of `requeue_all`."""
        return await adrive(self._requeued_all(filters, by), None, self._bound["clock"], wakes=self.store)

    @overload
    def handle(self, run_id: str, flow: Verbs[T] | Bound[T]) -> RunHandle[T]: ...
    @overload
    def handle(self, run_id: str, flow: None = None) -> RunHandle[Any]: ...
    def handle(self, run_id: str, flow: Verbs[T] | Bound[T] | None = None) -> RunHandle[T] | RunHandle[Any]:
        """Return the handle of a run, to look at it, wait for it, signal it and cancel it. The store is not asked yet.

        `flow` None: it is looked up by its name in the engine's flows when something has to be decoded.

        >>> engine = Engine(store)
        >>> _ = engine.run(doubling, 21, run_id="r-1")
        >>> engine.handle("r-1", doubling).state("double")
        42
        """
        return self._handle(run_id, None if flow is None else flow_of(_checked_flow(flow)))

    def worker(
        self,
        flows: Sequence[Verbs[Any]] | None = None,
        *,
        concurrency: int = 10,
        limits: Mapping[str, int] | None = None,
        poll: float | timedelta = 1.0,
        grace: float | timedelta = 30.0,
    ) -> Worker:
        """Return a worker for runs of `flows` (None: the engine's). Its `run()` works here, `with` in the background.

        It executes `concurrency` runs at once, and `limits={"ingest": 2}` bounds those of one flow. `poll` is the
        number of seconds between two looks for work, `grace` the seconds that runs have left when the worker is
        stopped. Raises `OptionError` for a breakpoint of the engine at a node that one of the graphs does not have.
        """
        from milepost.engine.worker import Worker

        return Worker(self, flows, concurrency=concurrency, limits=limits, poll=poll, grace=grace)

    # -- signals and cancels ---------------------------------------------------------------------------

    def signal(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
        by: str | None = None,
    ) -> SignalOutcome:
        """Send a run a signal; see `Verbs.signal`."""
        return self._handle(run_id).signal(name, payload, signal_id=signal_id, to=to, by=by)

    async def asignal(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
        by: str | None = None,
    ) -> SignalOutcome:
        """Await the sending: the async form of `signal`."""
        return await self._handle(run_id).asignal(name, payload, signal_id=signal_id, to=to, by=by)

    def cancel(self, run_id: str, reason: str = "", *, by: str | None = None) -> CancelOutcome:
        """Ask a run to end; see `Verbs.cancel`."""
        return self._handle(run_id).cancel(reason, by=by)

    async def acancel(self, run_id: str, reason: str = "", *, by: str | None = None) -> CancelOutcome:
        """Await the request: the async form of `cancel`."""
        return await self._handle(run_id).acancel(reason, by=by)

    def cancel_all(self, reason: str = "") -> list[str]:
        """Ask every run that this engine executes now to end, and return their ids."""
        asked = []
        for run_id in sorted(self._active):
            with _others_go_on(run_id):
                self.cancel(run_id, reason)
                asked.append(run_id)
        return asked

    async def acancel_all(self, reason: str = "") -> list[str]:
        """Await the requests: the async form of `cancel_all`."""
        asked = []
        for run_id in sorted(self._active):
            with _others_go_on(run_id):
                await self.acancel(run_id, reason)
                asked.append(run_id)
        return asked

    def cancel_matching(self, *, reason: str = "", by: str | None = None, **filters: Unpack[BulkFilters]) -> Cancelled:
        """Ask every run that matches to end, as `cancel` does; return what became of each.

        The filters are those of `requeue_all`; status None: all runs that have not ended, or with a filter on errors the
        failed ones.

        >>> engine = Engine(store, flows=[doubling])
        >>> _ = engine.start(doubling, 21, run_id="old-1")
        >>> engine.cancel_matching(run_id_prefix="old-", reason="no longer wanted").outcomes
        {'old-1': 'cancelled'}
        """
        return drive(self._cancelled_matching(filters, reason, by), None, self._bound["clock"], wakes=self.store)

    async def acancel_matching(
        self, *, reason: str = "", by: str | None = None, **filters: Unpack[BulkFilters]
    ) -> Cancelled:
        """Await the requests: the async form of `cancel_matching`."""
        return await adrive(self._cancelled_matching(filters, reason, by), None, self._bound["clock"], wakes=self.store)

    # -- looking and deleting --------------------------------------------------------------------------

    def list_runs(self, **filters: Unpack[RunFilters]) -> RunPage:
        """Return a page of the store's runs, newest first; the arguments are those of `Store.list_runs`."""
        return self.store.list_runs(**filters)

    async def alist_runs(self, **filters: Unpack[RunFilters]) -> RunPage:
        """Await the page: the async form of `list_runs`."""
        return cast("RunPage", await self._ask("list_runs", **filters))

    def count_runs(
        self,
        *,
        flow: str | None = None,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 1001,
    ) -> int:
        """Count the runs that match, up to `limit`; the arguments are those of `Store.count_runs`."""
        return self.store.count_runs(flow=flow, status=status, tags=tags, limit=limit)

    async def acount_runs(
        self,
        *,
        flow: str | None = None,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 1001,
    ) -> int:
        """Await the number: the async form of `count_runs`."""
        return cast("int", await self._ask("count_runs", flow=flow, status=status, tags=tags, limit=limit))

    def history(self, run_id: str) -> list[CheckpointInfo]:
        """Return every visit of a run, with superseded ones marked.

        >>> engine = Engine(store)
        >>> _ = engine.run(doubling, 21, run_id="r-1")
        >>> [(visit.node_id, visit.visit, visit.sequence) for visit in engine.history("r-1")]
        [('double', 1, 1)]
        """
        return self.store.history(run_id)

    async def ahistory(self, run_id: str) -> list[CheckpointInfo]:
        """Await the visits: the async form of `history`."""
        return cast("list[CheckpointInfo]", await self._ask("history", run_id))

    def workers(self) -> tuple[WorkerInfo, ...] | None:
        """Return the workers that work on the store, also those that have ended in the last 24 hours; see `Store.workers`."""
        return self.store.workers()

    async def aworkers(self) -> tuple[WorkerInfo, ...] | None:
        """Await the workers: the async form of `workers`."""
        return cast("tuple[WorkerInfo, ...] | None", await self._ask("workers"))

    def pause_schedule(self, name: str, *, by: str | None = None) -> None:
        """Have no worker start runs by the schedule `name` until it is resumed; see `Store.pause_schedule`."""
        self.store.pause_schedule(name, by=by)

    async def apause_schedule(self, name: str, *, by: str | None = None) -> None:
        """Await the pause: the async form of `pause_schedule`."""
        await self._ask("pause_schedule", name, by=by)

    def resume_schedule(self, name: str, *, by: str | None = None) -> None:
        """Have workers start runs by the schedule `name` again, from its next time on."""
        self.store.resume_schedule(name, by=by)

    async def aresume_schedule(self, name: str, *, by: str | None = None) -> None:
        """Await the end of the pause: the async form of `resume_schedule`."""
        await self._ask("resume_schedule", name, by=by)

    def paused_schedules(self) -> Mapping[str, SchedulePause]:
        """Return the schedules that are paused, by name."""
        return self.store.paused_schedules()

    async def apaused_schedules(self) -> Mapping[str, SchedulePause]:
        """Await the schedules: the async form of `paused_schedules`."""
        return cast("Mapping[str, SchedulePause]", await self._ask("paused_schedules"))

    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        """Delete all data of a run. Raises `RunLockedError` while somebody executes it, unless `force`."""
        drive(self._deletion(run_id, force), run_id, self._bound["clock"])

    async def adelete_run(self, run_id: str, *, force: bool = False) -> None:
        """Await the deletion: the async form of `delete_run`."""
        await adrive(self._deletion(run_id, force), run_id, self._bound["clock"])

    def close(self) -> None:
        """Close the store if the engine opened it, and the pool of `executor=` if no other engine binds that factory.

        Calls that wait in that pool are cancelled; calls that run there are not waited for.
        """
        executor, self._executor = self._executor, None
        if executor is not None:
            from milepost.drivers.executors import pools

            pools.unbind(executor)
        with self._opening:
            self._is_closed = True
            if self._open is not None and self._store is not None:
                self._store.close()

    def _use_store(self, store: Store) -> None:
        """Work on another store, with the keys and options of the engine's own one. The engine closes it with itself."""
        with self._opening:
            own, is_opened_here = self._store, self._open is not None
            if own is not None:
                store._take_options(own)
                if is_opened_here:
                    own.close()
            self._open, self._store = lambda: store, store

    def _look_only(self) -> bool:
        """Have the store be opened to read only. Return False where there is one already, which others have made."""
        with self._opening:
            if self._open is None or self._store is not None:
                return False
            self._open = partial(self._open, read_only=True)
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        import asyncio

        await asyncio.to_thread(lambda: self.store)  # to open it blocks
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.close)

    # -- for workers, and for other faces of an engine ---------------------------------------------------

    def _bind_config(self, config: Any) -> None:
        """Give workflows `config` as `ctx.config`."""
        self._bound["config"] = config

    def _job_to_start(
        self,
        flow: AnyFlow,
        args: tuple[Any, ...],
        run_id: str | None,
        options: Mapping[str, Any],
        *,
        executes: bool = True,
    ) -> tuple[Job, Any]:
        """Return a call that begins a run, and its state or inputs.

        `args` is the graph's state or the workflow's inputs by position; `options` may include inputs by name.
        `executes`: the call goes on with the run itself.
        """
        known, state, options = _split_start(flow, args, options)
        job = self._new_job(known, run_id, options, None)
        if not executes:
            refuse_options_of_execution(options, job.options)
        if job.options.if_exists in {"resume", "retry", "continue"} and run_id is not None:
            self._ask_to_resume(job, run_id)
        return job, state

    def _job_to_resume(
        self,
        flow: AnyFlow,
        run_id: str,
        options: Mapping[str, Any],
        request: ResumeRequest,
        *,
        is_asked: bool = True,
    ) -> Job:
        """Return a call about a recorded run. `options` may include a workflow's inputs, to be compared.

        `is_asked`: `authorize` is asked about a resume.
        """
        known = _checked_flow(flow)
        inputs: Mapping[str, Any] | None = flow.state if isinstance(flow, Bound) else None
        if isinstance(known, InputVerbs):
            inputs, options = known._split_of_resume(options, inputs)
        job = self._new_job(flow_of(known), run_id, options, request)
        job.run.given = inputs
        if is_asked:
            self._ask_to_resume(job, run_id)
        return job

    @property
    def _options(self) -> Options:
        """The options that calls begin with."""
        return merge_options(self._bound, {})

    def _known(self, flows: Sequence[Verbs[Any]] | None = None) -> dict[str, Flow]:
        """Return `flows` by their names; None: those of the engine.

        Raises `OptionError` for a flow without a name of its own.
        """
        return {name: flow_of(flow) for name, flow in (self.flows if flows is None else _by_name(flows)).items()}

    def _job(self, flow: Flow, run_id: str) -> Job:
        """Return a call that goes on with a run as a worker does: a checkpoint that cannot be saved always stops it."""
        return self._new_job(flow, run_id, {"checkpoint_failure_fatal": True}, ResumeRequest())

    # -- below ---------------------------------------------------------------------------------------

    def _handle(self, run_id: str, flow: Flow | None = None) -> RunHandle[Any]:
        from milepost.engine.handle import RunHandle  # only programs that look at runs from outside need it

        return RunHandle(self.store, run_id, flow, find=self._known().get, gate=self._gate, bound=self._bound)

    def _queued(
        self,
        flow: AnyFlow | str,
        args: tuple[Any, ...],
        run_id: str | None,
        at: datetime | None,
        options: Mapping[str, Any],
    ) -> tuple[Job, Any, float]:
        seconds = start_time(at)
        if isinstance(flow, str):
            given, options = read_arguments(flow, args, options)
            flow, args = bound(self.flows[flow], given), ()
        job, state = self._job_to_start(flow, args, run_id, options, executes=False)
        self._warn_not_taken(job.flow.name, job.run.run_id)
        return job, state, seconds

    def _queued_by_name(
        self, flow: str, args: tuple[Any, ...], run_id: str | None, at: datetime | None, options: Mapping[str, Any]
    ) -> tuple[str, Routine[None]]:
        """Return the id of a run of a flow that the engine does not have, and the routine that records it."""
        given, rest = read_arguments(flow, args, options)
        known, seconds = merge_options(self._bound, rest), start_time(at)
        refuse_options_of_execution(rest, known)
        run_id = new_run_id(known.clock.time()) if run_id is None else check_run_id(run_id)
        self._warn_not_taken(flow, run_id)
        return run_id, enqueue_by_name(self.store, run_id, flow, given, known, new_nonce, seconds)

    def _warn_not_taken(self, name: str, run_id: str) -> None:
        """Log once that no worker of this engine takes runs of the flow `name`."""
        if self.flows and name not in self.flows and name not in self._not_taken:
            self._not_taken.add(name)
            logging.getLogger("milepost").warning(
                "flow %r is started and is not among the flows of its engine: no worker of that engine takes run %r; "
                "give it to Engine(flows=[...])",
                name,
                run_id,
                extra={"run_id": run_id},
            )

    def _new_job(
        self,
        flow: Flow,
        run_id: str | None,
        options: Mapping[str, Any],
        request: ResumeRequest | None,
        store: Store | None = None,
    ) -> Job:
        """Return a call over `store` (None: the engine's own)."""
        job = Job(flow, self.store if store is None else store, run_id, options, self._bound, request)
        job.active = self._active
        return job

    def _ask_to_resume(self, job: Job, run_id: str) -> None:
        self._gate.ask("resume", run_id, job.flow.name)
        if job.options.amends:
            self._gate.ask("override", run_id, job.flow.name)

    def _requeued_all(self, filters: BulkFilters, by: str | None) -> Routine[Requeued]:
        from milepost.engine.matching import each_matching  # few programs need it
        from milepost.engine.requeue import STANDING
        from milepost.model.upkeep import Requeued

        check_filters(filters)
        if by is not None:
            check_id(by, "by")

        def requeue(run_id: str) -> Routine[None]:
            return self._handle(run_id)._requeued(by=by)

        outcomes, stopped = yield from each_matching(self.store, requeue, STANDING, filters)
        return Requeued((*outcomes.done,), outcomes.refused, stopped)

    def _cancelled_matching(self, filters: BulkFilters, reason: str, by: str | None) -> Routine[Cancelled]:
        from milepost.engine.matching import each_matching  # few programs need it
        from milepost.model.upkeep import Cancelled

        check_filters(filters)
        check_reason(reason)
        if by is not None:
            check_id(by, "by")

        def cancel(run_id: str) -> Routine[CancelOutcome]:
            return self._handle(run_id)._ended(reason, by)

        outcomes, stopped = yield from each_matching(self.store, cancel, ACTIVE, filters)
        return Cancelled(outcomes.done, outcomes.refused, stopped)

    def _deletion(self, run_id: str, force: bool) -> Routine[None]:
        if self._gate.is_guarded:
            try:
                row: RunRow = yield Ask(self.store, "get_run", run_id)
            except RunNotFoundError:
                self._gate.ask("delete", run_id, "")
            else:
                self._gate.ask("delete", run_id, row.flow)
        yield Ask(self.store, "delete_run", run_id, force=force)

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        def routine() -> Routine[Any]:
            return (yield Ask(self.store, method, *args, **kwargs))

        from milepost.drivers import AsyncDriver

        return await AsyncDriver(self._bound["clock"]).run(routine())


def _checked_flow(given: Any) -> Verbs[Any]:
    """Return the argument, the flow of a bound one. Raises `OptionError` if it is none, such as a graph not compiled."""
    flow = given.flow if isinstance(given, Bound) else given
    if not isinstance(flow, Verbs):
        raise OptionError(f"{shown(given)} is no flow: give what compile() made, or flow.bind(state)", option="flow")
    return flow


def _split_start(flow: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Flow, Any, Mapping[str, Any]]:
    """Split the arguments of a verb that begins a run: into the flow, its state or inputs, and options."""
    known, rest = _checked_flow(flow), dict(options)
    if isinstance(known, InputVerbs) and not isinstance(flow, Bound):
        return flow_of(known), *known._split(args, rest, rest.pop("inputs", None))
    if not args and "state" in rest:
        args = (rest.pop("state"),)
    args = args if args != (None,) else ()
    if isinstance(flow, Bound):
        if args:
            raise OptionError("a bound flow has its input already: leave the state out", option="state")
        return flow_of(known), flow.state, rest
    if len(args) != 1:
        raise OptionError(
            "run needs the state to begin with: run(flow, state) or run(flow.bind(state))", option="state"
        )
    return flow_of(known), args[0], rest


def _by_name(flows: Sequence[Verbs[Any]]) -> dict[str, Verbs[Any]]:
    if isinstance(flows, str) or not isinstance(flows, Iterable):
        raise OptionError(f"flows must be a list of flows, not {shown(flows)}: flows=[flow]", option="flows")
    named: dict[str, Verbs[Any]] = {}
    for flow in flows:
        name = _checked_flow(flow).name
        if not getattr(flow_of(flow), "is_named", True):
            raise OptionError(
                f"flow {name!r} was compiled without a name: compile('orders') names it for good", option="flows"
            )
        if name in named:
            raise OptionError(f"two flows are called {name!r}: compile one under another name", option="flows")
        named[name] = flow
    return named


@contextmanager
def _others_go_on(run_id: str) -> Iterator[None]:
    """Let the other runs have their turn if one cannot be read or no longer exists."""
    try:
        yield
    except (RunNotFoundError, StoreError) as exc:
        if isinstance(exc, StoreError) and not exc.is_of_one_run:
            raise
        logging.getLogger("milepost").warning("run %r is passed over: %s", run_id, exc, extra={"run_id": run_id})
