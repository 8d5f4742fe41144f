"""An engine binds once what a service would otherwise give with every call: store, dependencies, hooks and options.

Its verbs are those of a flow (`milepost.verbs`), with the flow as the first argument and the store left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, cast, overload

from milepost.authorizing import Authorize, Gate
from milepost.clock import SYSTEM, Clock
from milepost.drivers import AsyncDriver, SyncDriver
from milepost.effects import Ask, Routine
from milepost.errors import OptionError, RunNotFoundError
from milepost.events import Event, ResumePlan, RunResult
from milepost.examining import Wish
from milepost.flow import Flow
from milepost.hooks import Hook
from milepost.job import Job
from milepost.options import EngineOptions, RunOptions, merge_options
from milepost.store import CheckpointInfo, RunInfo, RunRow, Store
from milepost.stores.opening import open_store
from milepost.verbs import Bound, Verbs

__all__ = ["Authorize", "Bound", "Engine", "Verbs"]

T = TypeVar("T")


class Engine:
    """Runs flows over one store. A context manager, sync and async; usable from any thread and event loop.

    `store` is a store, which stays the caller's, or a URL, whose store is closed with the engine. `flows` are those
    that may be found by their name; each needs a name of its own. `deps` is what nodes get as `ctx.deps`, `hooks` are
    called with every event, `authorize(action, run_id, flow)` is asked before resume, override and delete. Other
    options are defaults for each call: the call's own win, hooks add up, tags merge.

    Raises `OptionError` for an option out of its range, a flow without a name, or two of one name.
    """

    def __init__(
        self,
        store: Store | str,
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
        self._is_owner = isinstance(store, str)
        self.store = open_store(store) if isinstance(store, str) else store
        if not isinstance(self.store, Store):
            raise OptionError(f"store must be a store or a URL, not {store!r}", option="store")

    # -- running -------------------------------------------------------------------------------------

    @overload
    def run(
        self, flow: Verbs[T] | Bound[T], state: T | None = None, *, run_id: str | None = None,
        full: Literal[False] = False, **options: Unpack[RunOptions],
    ) -> T: ...  # fmt: skip
    @overload
    def run(
        self, flow: Verbs[T] | Bound[T], state: T | None = None, *, run_id: str | None = None, full: Literal[True],
        **options: Unpack[RunOptions],
    ) -> RunResult[T]: ...  # fmt: skip
    def run(
        self,
        flow: Verbs[T] | Bound[T],
        state: T | None = None,
        *,
        run_id: str | None = None,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> T | RunResult[T]:
        """Run a flow on `state`, or a bound one; the final state, or with `full` the `RunResult`."""
        job, given = self._start(flow, state, run_id, options)
        return _answer(job.do(given, full=full), full)

    @overload
    async def arun(
        self, flow: Verbs[T] | Bound[T], state: T | None = None, *, run_id: str | None = None,
        full: Literal[False] = False, **options: Unpack[RunOptions],
    ) -> T: ...  # fmt: skip
    @overload
    async def arun(
        self, flow: Verbs[T] | Bound[T], state: T | None = None, *, run_id: str | None = None, full: Literal[True],
        **options: Unpack[RunOptions],
    ) -> RunResult[T]: ...  # fmt: skip
    async def arun(
        self,
        flow: Verbs[T] | Bound[T],
        state: T | None = None,
        *,
        run_id: str | None = None,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> T | RunResult[T]:
        """`run`, awaited."""
        job, given = self._start(flow, state, run_id, options)
        return _answer(await job.ado(given, full=full), full)

    def stream(
        self,
        flow: Verbs[T] | Bound[T],
        state: T | None = None,
        *,
        run_id: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Iterator[Event]:
        """`run` as its events; breaking off leaves the run interrupted."""
        job, given = self._start(flow, state, run_id, options)
        return job.stream(given)

    def astream(
        self,
        flow: Verbs[T] | Bound[T],
        state: T | None = None,
        *,
        run_id: str | None = None,
        **options: Unpack[RunOptions],
    ) -> AsyncIterator[Event]:
        """`stream`, for `async for`."""
        job, given = self._start(flow, state, run_id, options)
        return job.astream(given)

    # -- going on ------------------------------------------------------------------------------------

    @overload
    def resume(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> T: ...
    @overload
    def resume(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> RunResult[T]: ...
    def resume(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: bool = False, **options: Unpack[RunOptions]
    ) -> T | RunResult[T]:
        """Go on with a run where its records end; see `Verbs.resume`."""
        return _answer(self._job(flow, run_id, options, Wish()).do(full=full), full)

    @overload
    async def aresume(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> T: ...
    @overload
    async def aresume(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> RunResult[T]: ...
    async def aresume(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: bool = False, **options: Unpack[RunOptions]
    ) -> T | RunResult[T]:
        """`resume`, awaited."""
        return _answer(await self._job(flow, run_id, options, Wish()).ado(full=full), full)

    @overload
    def resume_from(
        self, flow: Verbs[T] | Bound[T], run_id: str, node_id: str, *, visit: int | None = None,
        rerun: bool = False, full: Literal[False] = False, **options: Unpack[RunOptions],
    ) -> T: ...  # fmt: skip
    @overload
    def resume_from(
        self, flow: Verbs[T] | Bound[T], run_id: str, node_id: str, *, visit: int | None = None,
        rerun: bool = False, full: Literal[True], **options: Unpack[RunOptions],
    ) -> RunResult[T]: ...  # fmt: skip
    def resume_from(
        self,
        flow: Verbs[T] | Bound[T],
        run_id: str,
        node_id: str,
        *,
        visit: int | None = None,
        rerun: bool = False,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> T | RunResult[T]:
        """Go on after a node; see `Verbs.resume_from`."""
        return _answer(self._job(flow, run_id, options, Wish("resume_from", node_id, visit, rerun)).do(full=full), full)

    @overload
    async def aresume_from(
        self, flow: Verbs[T] | Bound[T], run_id: str, node_id: str, *, visit: int | None = None,
        rerun: bool = False, full: Literal[False] = False, **options: Unpack[RunOptions],
    ) -> T: ...  # fmt: skip
    @overload
    async def aresume_from(
        self, flow: Verbs[T] | Bound[T], run_id: str, node_id: str, *, visit: int | None = None,
        rerun: bool = False, full: Literal[True], **options: Unpack[RunOptions],
    ) -> RunResult[T]: ...  # fmt: skip
    async def aresume_from(
        self,
        flow: Verbs[T] | Bound[T],
        run_id: str,
        node_id: str,
        *,
        visit: int | None = None,
        rerun: bool = False,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> T | RunResult[T]:
        """`resume_from`, awaited."""
        return _answer(
            await self._job(flow, run_id, options, Wish("resume_from", node_id, visit, rerun)).ado(full=full), full
        )

    @overload
    def retry(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> T: ...
    @overload
    def retry(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> RunResult[T]: ...
    def retry(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: bool = False, **options: Unpack[RunOptions]
    ) -> T | RunResult[T]:
        """Run again what failed; see `Verbs.retry`."""
        return _answer(self._job(flow, run_id, options, Wish("retry")).do(full=full), full)

    @overload
    async def aretry(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> T: ...
    @overload
    async def aretry(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> RunResult[T]: ...
    async def aretry(
        self, flow: Verbs[T] | Bound[T], run_id: str, *, full: bool = False, **options: Unpack[RunOptions]
    ) -> T | RunResult[T]:
        """`retry`, awaited."""
        return _answer(await self._job(flow, run_id, options, Wish("retry")).ado(full=full), full)

    def resume_stream(self, flow: Verbs[T] | Bound[T], run_id: str, **options: Unpack[RunOptions]) -> Iterator[Event]:
        """`resume` as its events."""
        return self._job(flow, run_id, options, Wish()).stream()

    def aresume_stream(
        self, flow: Verbs[T] | Bound[T], run_id: str, **options: Unpack[RunOptions]
    ) -> AsyncIterator[Event]:
        """`resume_stream`, for `async for`."""
        return self._job(flow, run_id, options, Wish()).astream()

    def plan_resume(
        self,
        flow: Verbs[T] | Bound[T],
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """Tell what a resume would do; see `Verbs.plan_resume`."""
        return self._job(flow, run_id, options, Wish.of(node_id, visit, rerun), is_asked=False).plan()

    async def aplan_resume(
        self,
        flow: Verbs[T] | Bound[T],
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """`plan_resume`, awaited."""
        return await self._job(flow, run_id, options, Wish.of(node_id, visit, rerun), is_asked=False).aplan()

    # -- looking and deleting --------------------------------------------------------------------------

    def list_runs(
        self,
        *,
        flow: str | None = None,
        status: str | Iterable[str] | None = None,
        tags: Mapping[str, str] | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[RunInfo]:
        """A page of the store's runs; see `Store.list_runs`."""
        return self.store.list_runs(
            flow=flow,
            status=status,
            tags=tags,
            updated_before=updated_before,
            updated_after=updated_after,
            limit=limit,
            after=after,
        )

    async def alist_runs(self, **filters: Any) -> list[RunInfo]:
        """`list_runs`, awaited; the same arguments."""
        return cast("list[RunInfo]", await self._ask("list_runs", **filters))

    def history(self, run_id: str) -> list[CheckpointInfo]:
        """Every visit of a run, superseded ones marked."""
        return self.store.history(run_id)

    async def ahistory(self, run_id: str) -> list[CheckpointInfo]:
        """`history`, awaited."""
        return cast("list[CheckpointInfo]", await self._ask("history", run_id))

    def delete_run(self, run_id: str, *, force: bool = False) -> None:
        """Delete everything of a run; `RunLockedError` while somebody executes it, unless `force`."""
        SyncDriver(self._bound["clock"]).run(self._deletion(run_id, force))

    async def adelete_run(self, run_id: str, *, force: bool = False) -> None:
        """`delete_run`, awaited."""
        await AsyncDriver(self._bound["clock"]).run(self._deletion(run_id, force))

    def close(self) -> None:
        """Close the store if the engine opened it."""
        if self._is_owner:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # -- below ---------------------------------------------------------------------------------------

    def _start(
        self, flow: Verbs[T] | Bound[T], state: T | None, run_id: str | None, options: Mapping[str, Any]
    ) -> tuple[Job, Any]:
        if isinstance(flow, Bound):
            if state is not None:
                raise OptionError("a bound flow has its input already: leave the state out", option="state")
            state, flow = flow.state, flow.flow
        elif state is None:
            raise OptionError(
                "run needs the state to begin with: run(flow, state) or run(flow.bind(state))", option="state"
            )
        job = Job(_flow(flow), self.store, run_id, options, self._bound, None)
        if job.options.if_exists in {"resume", "retry"} and run_id is not None:
            self._ask_to_resume(job, run_id)
        return job, state

    def _job(
        self,
        flow: Verbs[Any] | Bound[Any],
        run_id: str,
        options: Mapping[str, Any],
        wish: Wish,
        *,
        is_asked: bool = True,
    ) -> Job:
        known = flow.flow if isinstance(flow, Bound) else flow
        job = Job(_flow(known), self.store, run_id, options, self._bound, wish)
        if is_asked:
            self._ask_to_resume(job, run_id)
        return job

    def _ask_to_resume(self, job: Job, run_id: str) -> None:
        self._gate.ask("resume", run_id, job.flow.name)
        if job.options.state_override is not None:
            self._gate.ask("override", run_id, job.flow.name)

    def _deletion(self, run_id: str, force: bool) -> Routine[None]:
        if self._gate.is_guarded:
            try:
                row: RunRow = yield Ask(self.store, "get_run", run_id)
            except RunNotFoundError:
                self._gate.ask("delete", run_id, "")
            else:
                self._gate.ask("delete", run_id, row.info.flow)
        yield Ask(self.store, "delete_run", run_id, force=force)

    async def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        def routine() -> Routine[Any]:
            return (yield Ask(self.store, method, *args, **kwargs))

        return await AsyncDriver(self._bound["clock"]).run(routine())


def _flow(given: Any) -> Flow:
    """What was given as a flow; `OptionError` for what is none, such as a graph that was not compiled."""
    if not isinstance(given, Verbs):
        raise OptionError(f"{given!r} is no flow: give what compile() made, or flow.bind(state)", option="flow")
    return cast("Flow", given)


def _by_name(flows: Sequence[Verbs[Any]]) -> dict[str, Verbs[Any]]:
    named: dict[str, Verbs[Any]] = {}
    for flow in flows:
        name = _flow(flow).name
        if not getattr(flow, "is_named", True):
            raise OptionError(
                f"flow {name!r} was compiled without a name: compile('orders') names it for good", option="flows"
            )
        if name in named:
            raise OptionError(f"two flows are called {name!r}: compile one under another name", option="flows")
        named[name] = flow
    return named


def _answer(result: RunResult[T], full: bool) -> T | RunResult[T]:
    return result if full else result.state
