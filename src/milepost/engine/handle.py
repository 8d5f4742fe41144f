"""A run by its id: to look at, to wait for, to signal and to cancel, from any process that can reach the store.

A handle takes no lease and runs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from milepost.drivers import SyncDriver
from milepost.drivers.wakeups import wake
from milepost.engine.authorize import Gate
from milepost.engine.watching import (
    WorkflowView,
    await_output,
    await_records,
    await_result,
    loaded,
    state_of,
    step_results,
)
from milepost.errors import OptionError, RunTimeoutError, naming
from milepost.executor import signals as signalling
from milepost.executor.checks import ResumeRequest
from milepost.executor.chronicle import Chronicle
from milepost.executor.effects import Routine
from milepost.executor.flow import Flow
from milepost.executor.journal import ask
from milepost.executor.run import Run
from milepost.job import Job
from milepost.model.info import RunInfo
from milepost.model.record import FINISH, Record
from milepost.model.results import StepResult
from milepost.model.retry import as_seconds
from milepost.options import UNAMENDED
from milepost.store import RunRow, Store, check_run_id
from milepost.workflows.run import StepRun

if TYPE_CHECKING:
    from milepost.model.events import Event

__all__ = ["RunHandle"]

_AT_ONCE = 1e-9
"""Seconds that are over by the time of a second look."""

R = TypeVar("R")
T = TypeVar("T")


class RunHandle(Generic[R]):
    """One run of a store. Every verb has a twin with the prefix `a`, to await.

    `RunNotFoundError` is raised by each verb while the run does not exist.
    """

    def __init__(
        self,
        store: Store,
        run_id: str,
        flow: Flow | None,
        *,
        find: Callable[[str], Flow | None],
        gate: Gate,
        bound: Mapping[str, Any],
    ) -> None:
        self.run_id = check_run_id(run_id)
        self.store = store
        self._flow = flow
        self._find = find
        self._gate = gate
        self._bound = bound

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r}, {self.store.place!r})"

    # -- looking -------------------------------------------------------------------------------------

    def info(self) -> RunInfo:
        """What the store knows of the run."""
        return self._run(self._info())

    async def ainfo(self) -> RunInfo:
        """`info`, awaited."""
        return await self._arun(self._info())

    def state(self, node_id: str | None = None, visit: int | None = None) -> R:
        """The newest state, or the one after `node_id`: its newest visit, or `visit`. `CheckpointNotFoundError`.

        A workflow has no state but what its steps gave: this is then what it returned, before its end its inputs by name,
        and with `node_id` the output of that step.
        """
        return cast("R", self._run(self._on(lambda run: state_of(run, node_id, visit), is_awaited=False)))

    async def astate(self, node_id: str | None = None, visit: int | None = None) -> R:
        """`state`, awaited."""
        return cast("R", await self._arun(self._on(lambda run: state_of(run, node_id, visit))))

    # -- waiting -------------------------------------------------------------------------------------

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait for the end: the output, or the error that the run ended with.

        A cancelled run raises `RunCancelled`, a blocked one `RunNotResumableError`. After `timeout` seconds TimeoutError,
        with 0 after one look; the run is not touched by that.
        """
        return cast("R", self._run(self._on(await_result, timeout)))

    async def aresult(self, timeout: float | timedelta | None = None) -> R:
        """`result`, awaited."""
        return cast("R", await self._arun(self._on(await_result, timeout)))

    def output(self, name: str, timeout: float | timedelta | None = None) -> Any:
        """Wait until the node or step `name` is recorded: what it gave. A step inside another is `outer/inner`.

        `CheckpointNotFoundError` where the run ends without it, TimeoutError after `timeout` seconds. What a step gave has
        its type from the workflow's code, which is played over the record for it: `NonDeterminismError` where it has changed.
        """
        return self._run(self._on(lambda run: await_output(run, name), timeout, is_awaited=False))

    async def aoutput(self, name: str, timeout: float | timedelta | None = None) -> Any:
        """`output`, awaited."""
        return await self._arun(self._on(lambda run: await_output(run, name), timeout))

    def events(self, after: int = 0) -> Iterator[Event]:
        """Follow the journal from the record after number `after` to the end of the run; -1 gives the start as well.

        Each event has the `sequence` of its record, to go on from later. What is live only (`Progress`, `Emitted`, that a
        step begins) is not in the journal. A damaged record raises `CheckpointCorruptError`. The `result` of a step is read
        from the store when it is asked for, and blocks for that long.
        """
        chronicle = self._chronicle(self._run(self._known()))
        is_over = False
        while not is_over:
            records, is_over = self._run(self._on(partial(await_records, after=after)))
            if self._tells_end(records):
                chronicle.results = self._run(self._on(_results, is_awaited=False))
            yield from self._told(chronicle, records)
            after = records[-1].sequence if records else after

    async def aevents(self, after: int = 0) -> AsyncIterator[Event]:
        """`events`, for `async for`."""
        chronicle = self._chronicle(await self._arun(self._known()))
        is_over = False
        while not is_over:
            records, is_over = await self._arun(self._on(partial(await_records, after=after)))
            if self._tells_end(records):
                chronicle.results = await self._arun(self._on(_results))
            for event in self._told(chronicle, records):
                yield event
            after = records[-1].sequence if records else after

    # -- acting --------------------------------------------------------------------------------------

    def signal(
        self, name: str, payload: Any = None, *, signal_id: str | None = None, to: str | None = None
    ) -> Literal["taken", "kept", "duplicate"]:
        """Send the run a signal; see `Verbs.signal`."""
        told = self._run(self._signalled(name, payload, signal_id, to))
        wake(self.store)
        return told

    async def asignal(
        self, name: str, payload: Any = None, *, signal_id: str | None = None, to: str | None = None
    ) -> Literal["taken", "kept", "duplicate"]:
        """`signal`, awaited."""
        told = await self._arun(self._signalled(name, payload, signal_id, to))
        wake(self.store)
        return told

    def cancel(self, reason: str = "") -> Literal["cancelled", "requested", "ended"]:
        """Ask the run to end; see `Verbs.cancel`."""
        told = self._run(self._ended(reason))
        wake(self.store)
        return told

    async def acancel(self, reason: str = "") -> Literal["cancelled", "requested", "ended"]:
        """`cancel`, awaited."""
        told = await self._arun(self._ended(reason))
        wake(self.store)
        return told

    # -- below ---------------------------------------------------------------------------------------

    def _run(self, routine: Routine[T]) -> T:
        with naming(self.run_id):
            return SyncDriver(self._bound["clock"]).run(routine)

    async def _arun(self, routine: Routine[T]) -> T:
        from milepost.drivers import AsyncDriver

        with naming(self.run_id):
            return await AsyncDriver(self._bound["clock"]).run(routine)

    def _info(self) -> Routine[RunInfo]:
        row: RunRow = yield from ask(self.store, "get_run", self.run_id)
        return row.info

    def _known(self) -> Routine[Flow]:
        """The run's flow, by its name where the handle was made without."""
        if self._flow is None:
            name = (yield from self._info()).flow
            self._flow = self._find(name)
            if self._flow is None:
                raise OptionError(
                    f"run {self.run_id!r} is one of flow {name!r}, which this engine does not know: give it to "
                    f"handle(run_id, flow), or to Engine(flows=[...])",
                    option="flow",
                )
        return self._flow

    def _on(
        self, look: Callable[[Run], Routine[T]], timeout: float | timedelta | None = None, *, is_awaited: bool = True
    ) -> Routine[T]:
        """`look` at the run, for no longer than `timeout`; `is_awaited`: whether the driver can await coroutines."""
        seconds = None if timeout is None else as_seconds(timeout, "timeout")
        flow = yield from self._known()
        limit = None if seconds is None else max(seconds, _AT_ONCE)
        job = Job(flow, self.store, self.run_id, {"run_timeout": limit, **UNAMENDED}, self._bound, ResumeRequest())
        job.run.is_awaited = is_awaited
        try:
            return (yield from look(job.run))
        except RunTimeoutError:
            raise TimeoutError(
                f"run {self.run_id!r} had not come so far within {seconds:g} s: it goes on; wait again, or look at info()"
            ) from None

    def _signalled(
        self, name: str, payload: Any, signal_id: str | None, to: str | None
    ) -> Routine[Literal["taken", "kept", "duplicate"]]:
        if self._gate.is_guarded:
            self._gate.ask("signal", self.run_id, (yield from self._info()).flow)
        return (yield from signalling.signal(self.store, self.run_id, name, payload, signal_id=signal_id, to=to))

    def _ended(self, reason: str) -> Routine[Literal["cancelled", "requested", "ended"]]:
        if self._gate.is_guarded:
            self._gate.ask("cancel", self.run_id, (yield from self._info()).flow)
        return (yield from signalling.cancel(self.store, self.run_id, reason))

    def _chronicle(self, flow: Flow) -> Chronicle:
        if flow.front == "graph":
            return Chronicle(self.run_id, flow)
        looks: list[WorkflowView] = []

        def load(record: Record) -> Any:
            return self._run(self._on(lambda run: loaded(cast("StepRun", run), record, looks), is_awaited=False))

        return Chronicle(self.run_id, flow, load)

    def _tells_end(self, records: list[Record]) -> bool:
        """Whether the end of a workflow is among these records, which tells the results of its steps."""
        is_workflow = self._flow is not None and self._flow.front == "workflow"
        return is_workflow and any(record.kind == FINISH for record in records)

    def _told(self, chronicle: Chronicle, records: list[Record]) -> Iterator[Event]:
        for record in records:
            with naming(self.run_id):
                self.store.seals.check(self.run_id, record)
                event = chronicle.tell(record)
            if event is not None:
                yield event


def _results(run: Run) -> Routine[tuple[StepResult, ...]]:
    return step_results(cast("StepRun", run))
