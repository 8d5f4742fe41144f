"""An engine for workflows of steps: events to iterate, and results in which a failure is a value.

It holds an `Engine`, which does the work. This module presents an execution, and keeps its result for `get_result`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from milepost.engine.authorize import Authorize
from milepost.engine.engine import Engine
from milepost.errors import MilepostError, ResultNotReadyError, RunSuspended, shown
from milepost.executor.checks import ResumeRequest
from milepost.model.events import Event, Hook
from milepost.model.ids import Clock
from milepost.model.lifecycle import RunBlocked, WorkflowCompleted
from milepost.model.results import WorkflowResult
from milepost.options import EngineOptions, merge_options
from milepost.store import ENDED
from milepost.verbs import Bound, Job, Verbs
from milepost.workflows.definition import Workflow
from milepost.workflows.run import StepRun

if TYPE_CHECKING:
    from milepost.adapters.checkpoint_view import FileCheckpointStore
    from milepost.adapters.user_stores import AnyStore

R = TypeVar("R")

KEPT = 1000
"""The number of results of executions that are kept for `get_result`."""


class WorkflowEngine:
    """An engine for workflows over `checkpoint_store`: any store, or a user's own.

    None: `.milepost/checkpoints/` in the working directory of that moment. `config` is `ctx.config` of its workflows.
    The other arguments are those of `Engine`, which is there as `engine` with all its verbs. A workflow that fails is a
    result with `success=False` here; one that a bug in its code holds is one too, with status `blocked`, and one that
    waits is a result with status `waiting`. A refusal before the first step, a lost lease, a cancel and an interruption
    are raised.
    """

    def __init__(
        self,
        checkpoint_store: AnyStore | None = None,
        *,
        config: Any = None,
        flows: Sequence[Verbs[Any]] = (),
        deps: Any = None,
        hooks: Sequence[Hook] = (),
        logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
        authorize: Authorize | None = None,
        clock: Clock | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        merge_options(options, {})  # refuses what is no option now, instead of at the engine's first use
        self.config = config
        self._own: FileCheckpointStore | None = None
        if checkpoint_store is None:
            from milepost.adapters.checkpoint_view import FileCheckpointStore  # only needed without a store

            checkpoint_store = self._own = FileCheckpointStore()
        self.checkpoint_store = checkpoint_store
        self._made_with: dict[str, Any] = {
            "flows": flows,
            "deps": deps,
            "hooks": hooks,
            "logger": logger,
            "authorize": authorize,
            "clock": clock,
            **options,
        }
        self._engine: Engine | None = None
        self._lock = threading.Lock()
        self._results: OrderedDict[str, WorkflowResult[Any]] = OrderedDict()

    @property
    def engine(self) -> Engine:
        """The engine below. Its first use makes it: before that no file is touched."""
        with self._lock:
            if self._engine is None:
                self._engine = Engine(self.checkpoint_store, **self._made_with)
                self._engine._bind_config(self.config)
            return self._engine

    # -- running -------------------------------------------------------------------------------------

    def execute(
        self,
        wf: Workflow[..., Any] | Bound[Any, WorkflowResult[Any]],
        *args: Any,
        run_id: str | None = None,
        workflow_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Execution:
        """Run a workflow and iterate over its events with `async for`.

        Inputs are given by position, by name, or as `inputs={...}`. The first event has the run's id. A workflow
        that fails ends with a `WorkflowCompleted` whose `success` is False, one that a bug in its code holds with a
        `RunBlocked`.
        """
        job, given = self.engine._job_to_start(wf, args, _one(run_id, workflow_id), _with(inputs, options))
        return Execution(self, job, given)

    def resume(
        self,
        wf: Workflow[..., Any] | Bound[Any, WorkflowResult[Any]],
        workflow_id: str | None = None,
        *,
        run_id: str | None = None,
        checkpoint_store: AnyStore | None = None,
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Execution:
        """Go on with a run and iterate over its events. Inputs are compared with those that the run began with.

        `checkpoint_store`: another store than this engine's. Raises, when iterated, `RunNotFoundError` (a
        `CheckpointNotFoundError`), `InputMismatchError`, `NonDeterminismError` and the errors of `Engine.resume`.
        """
        name = _one(run_id, workflow_id)
        if name is None:
            raise TypeError("resume needs the id of the run: resume(wf, workflow_id=...)")
        engine, opened = self.engine, None
        if checkpoint_store is not None:
            engine = opened = Engine(checkpoint_store, **self._made_with)
            engine._bind_config(self.config)
        return Execution(self, engine._job_to_resume(wf, name, _with(inputs, options), ResumeRequest()), None, opened)

    def run(
        self,
        wf: Workflow[..., R] | Bound[R, WorkflowResult[Any]],
        *args: Any,
        run_id: str | None = None,
        workflow_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> WorkflowResult[R]:
        """Run a workflow here, to its end; the arguments are those of `execute`."""
        job, given = self.engine._job_to_start(wf, args, _one(run_id, workflow_id), _with(inputs, options))
        try:
            result = job.do(given, full=True)
        except MilepostError as exc:
            result = self._failed(job, exc)
        return self.keep(result)

    async def arun(
        self,
        wf: Workflow[..., R] | Bound[R, WorkflowResult[Any]],
        *args: Any,
        run_id: str | None = None,
        workflow_id: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> WorkflowResult[R]:
        """Await the run: the async form of `run`."""
        job, given = self.engine._job_to_start(wf, args, _one(run_id, workflow_id), _with(inputs, options))
        try:
            result = await job.ado(given, full=True)
        except MilepostError as exc:
            result = self._failed(job, exc)
        return self.keep(result)

    def _failed(self, job: Job, exc: MilepostError) -> WorkflowResult[Any]:
        """Return the result of a workflow that failed or is held. Raises any error that is not of the workflow itself."""
        run = job.run
        if isinstance(run, StepRun) and run.status == "failed":
            return run.result_of(None, exc)
        held = _of_bug(job)
        if held is None:
            raise exc
        return held

    def keep(self, result: WorkflowResult[R]) -> WorkflowResult[R]:
        """Keep the result of an execution for `get_result`."""
        with self._lock:
            self._results[result.run_id] = result
            self._results.move_to_end(result.run_id)
            while len(self._results) > KEPT:
                self._results.popitem(last=False)
        return result

    def get_result(self, run_id: str | None = None) -> WorkflowResult[Any]:
        """Return the result of the execution that ended last here, or of `run_id`.

        `ResultNotReadyError` before it has ended.
        """
        with self._lock:
            if run_id is None and self._results:
                return next(reversed(self._results.values()))
            result = None if run_id is None else self._results.get(run_id)
        if result is None:
            which = "no execution" if run_id is None else f"no execution of run {run_id!r}"
            raise ResultNotReadyError(
                f"{which} has ended in this engine yet: iterate its events to the end, or use run()", run_id=run_id
            )
        return result

    # -- closing -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store if it is this engine's own: the default one, or that of a URL."""
        if self._own is not None:
            self._own.close()
        if self._engine is not None:
            self._engine.close()

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


class Execution(AsyncIterator[Event]):
    """The events of one execution, to be iterated once. An execution that nobody iterates runs nothing, and warns.

    An execution that is broken off, or that nobody refers to any more, stops at a durable point, to be resumed.
    """

    def __init__(self, engine: WorkflowEngine, job: Job, given: Any, opened: Engine | None = None) -> None:
        self._job = job
        self._is_begun = False
        # The generators do not refer to this object, so the outermost of them is the first to be closed.
        self._events = _events_of_job(engine, job, given, opened)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._job.run.run_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        self._is_begun = True
        return await anext(self._events)

    async def aclose(self) -> None:
        """Break off: the run stops at a durable point, to be resumed."""
        self._is_begun = True
        await self._events.aclose()

    def __del__(self) -> None:
        if not self._is_begun:
            warnings.warn(
                f"the execution of run {self.run_id!r} was never iterated, so nothing ran: async for event in ...",
                RuntimeWarning,
                stacklevel=2,
            )


async def _events_of_job(
    engine: WorkflowEngine, job: Job, given: Any, opened: Engine | None
) -> AsyncGenerator[Event, None]:
    """Iterate over the events of a call.

    The workflow's result is kept, and its failure is no error. Closes `opened` afterwards.
    """
    result: WorkflowResult[Any] | None = None
    events = job.astream(given)
    try:
        async for event in events:
            if isinstance(event, (WorkflowCompleted, RunBlocked)):
                result = _of_ending(event.result) if isinstance(event, WorkflowCompleted) else _of_bug(job)
                if result is not None:
                    engine.keep(result)
            yield event
    except (MilepostError, RunSuspended):
        if result is None or result.status not in {"failed", "waiting", "blocked"}:
            raise
    finally:
        await cast("Any", events).aclose()
        if opened is not None:
            await asyncio.to_thread(opened.close)


def _of_bug(job: Job) -> WorkflowResult[Any] | None:
    """Return the result of a call that has met a bug in the workflow's code, which holds the run; else None."""
    run = job.run
    if isinstance(run, StepRun) and run.held is not None and run.status == "blocked":
        return run.result_of(None, run.held)
    return None


def _of_ending(result: WorkflowResult[Any]) -> WorkflowResult[Any] | None:
    """Return the result of an execution that has ended, else None. Waiting counts as an end, and is no error."""
    if result.status == "waiting":
        return replace(result, error=None)
    return result if result.status in ENDED else None


def _one(run_id: str | None, workflow_id: str | None) -> str | None:
    """Return the run's id, by either name."""
    if run_id is not None and workflow_id is not None and run_id != workflow_id:
        raise TypeError(f"run_id and workflow_id are one thing: give {shown(run_id)} or {shown(workflow_id)}")
    return run_id if run_id is not None else workflow_id


def _with(inputs: Mapping[str, Any] | None, options: dict[str, Any]) -> dict[str, Any]:
    return options if inputs is None else {**options, "inputs": inputs}
