"""The handle of a run: to look at it, wait for it, signal it and cancel it, from any process that can reach the store.

A handle takes no lease and runs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from milepost.drivers.live import live_writer
from milepost.engine.authorize import Gate
from milepost.engine.following import Follower
from milepost.engine.raw import raw_flow
from milepost.engine.watching import (
    WorkflowView,
    await_output,
    await_result,
    loaded,
    state_of,
    wait_of,
)
from milepost.errors import OptionError, RunTimeoutError, naming
from milepost.executor import signals
from milepost.executor.checks import ResumeRequest
from milepost.executor.chronicle import Chronicle, Undecoded, undecoded_result
from milepost.executor.effects import Routine, ask
from milepost.executor.flow import Flow
from milepost.executor.journal import read_start
from milepost.executor.run import Run
from milepost.executor.signals import CancelOutcome, SignalOutcome
from milepost.executor.waits import Waits
from milepost.model.durations import as_seconds
from milepost.model.ids import new_nonce
from milepost.model.record import Record
from milepost.options import UNAMENDED
from milepost.store import RunRow, Store, check_number, check_run_id
from milepost.verbs import Job, adrive, drive
from milepost.workflows.run import StepRun

if TYPE_CHECKING:
    from milepost.adapters.user_stores import AnyStore
    from milepost.model.events import Event
    from milepost.model.info import RunInfo

_AT_ONCE = 1e-9
"""A timeout in seconds that is over by the time of a second look."""

R = TypeVar("R")
T = TypeVar("T")


class RunHandle(Generic[R]):
    """A handle for one run of a store. Every verb has an async form with the prefix `a`.

    Each verb raises `RunNotFoundError` while the run does not exist.

    >>> engine = Engine(store, flows=[doubling])
    >>> handle = engine.start(doubling, 21, run_id="r-1")
    >>> engine.worker().run(until_idle=True)
    >>> handle.result(timeout=5), handle.output("double"), handle.info().status
    (42, 42, 'finished')
    >>> [type(event).__name__ for event in handle.events()]
    ['RunStarted', 'NodeCompleted', 'RunCompleted']
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
        """Return the store's information about the run."""
        return self._run(self._info())

    async def ainfo(self) -> RunInfo:
        """Await the information: the async form of `info`."""
        return await self._arun(self._info())

    def state(self, node_id: str | None = None, visit: int | None = None) -> R:
        """Return the newest state, or the one after `node_id`: after its newest visit, or after `visit`.

        A workflow has no state but the results of its steps. For a workflow this is its output, before its end its
        inputs by name, and with `node_id` the output of that step. Raises `CheckpointNotFoundError` if there is no such
        state.
        """
        return cast("R", self._run(self._on(lambda run: state_of(run, node_id, visit), is_awaited=False)))

    async def astate(self, node_id: str | None = None, visit: int | None = None) -> R:
        """Await the state: the async form of `state`."""
        return cast("R", await self._arun(self._on(lambda run: state_of(run, node_id, visit))))

    # -- waiting -------------------------------------------------------------------------------------

    @overload
    def result(self, timeout: float | timedelta | None = None, *, raw: Literal[False] = False) -> R: ...
    @overload
    def result(self, timeout: float | timedelta | None = None, *, raw: Literal[True]) -> Any: ...
    def result(self, timeout: float | timedelta | None = None, *, raw: bool = False) -> Any:
        """Wait for the end, and return the output or raise the error that the run ended with.

        A cancelled run raises `RunCancelled`, a blocked one `RunNotResumableError`. After `timeout` seconds, with 0
        after one look, TimeoutError is raised; the run is not touched by that. With `raw` the output is plain JSON, as
        it is recorded, and the flow's code is not needed.
        """
        return self._run(self._on(await_result, timeout, is_blocking=True, raw=raw))

    @overload
    async def aresult(self, timeout: float | timedelta | None = None, *, raw: Literal[False] = False) -> R: ...
    @overload
    async def aresult(self, timeout: float | timedelta | None = None, *, raw: Literal[True]) -> Any: ...
    async def aresult(self, timeout: float | timedelta | None = None, *, raw: bool = False) -> Any:
        """Await the end: the async form of `result`."""
        return await self._arun(self._on(await_result, timeout, raw=raw))

    def output(self, name: str, timeout: float | timedelta | None = None, *, raw: bool = False) -> Any:
        """Wait until the node or step `name` is recorded, and return the state after it or its output.

        A step inside another is `outer/inner`. Raises `CheckpointNotFoundError` if the run ends without it, and
        TimeoutError after `timeout` seconds. The type of a step's output is known from the workflow's code, which is
        played over the record for that: `NonDeterminismError` if the code has changed. With `raw` the state or output is
        plain JSON, as it is recorded, and the code is not needed.
        """
        return self._run(
            self._on(lambda run: await_output(run, name), timeout, is_awaited=False, is_blocking=True, raw=raw)
        )

    async def aoutput(self, name: str, timeout: float | timedelta | None = None, *, raw: bool = False) -> Any:
        """Await the record: the async form of `output`."""
        return await self._arun(self._on(lambda run: await_output(run, name), timeout, raw=raw))

    def events(self, after: int = 0) -> Iterator[Event]:
        """Follow the run from the record after number `after` to its end; -1 gives the start as well.

        Each event has the `sequence` of its record, to go on from later. Events that no record tells (`Progress`,
        `Emitted`, `NodeOverdue`) come from any process, in their order, with the `sequence` of the record that they
        follow; stores keep them for a short time, and `EventsMissed` says how many did not arrive. The beginning of a
        node is told in its own process only. A damaged record raises `CheckpointCorruptError`. The `result` of a step
        is read from the store when it is asked for, and blocks for that long. An engine without the flow's code tells
        inputs, states and outputs as plain JSON, and not the end of a step that has left only failures.
        """
        check_number(after, "after")
        chronicle, raw = self._run(self._chronicle())
        is_over = False
        with live_writer.signal(self.store, self.run_id) as signal:
            follower = Follower(chronicle, after, signal)
            while not is_over:
                news, is_over = self._run(self._on(follower.look, is_awaited=False, is_blocking=True, raw=raw))
                yield from self._events_of(chronicle, news)

    async def aevents(self, after: int = 0) -> AsyncIterator[Event]:
        """Follow the run with `async for`: the async form of `events`."""
        check_number(after, "after")
        chronicle, raw = await self._arun(self._chronicle())
        is_over = False
        with live_writer.signal(self.store, self.run_id) as signal:
            follower = Follower(chronicle, after, signal)
            while not is_over:
                news, is_over = await self._arun(self._on(follower.look, raw=raw))
                for event in self._events_of(chronicle, news):
                    yield event

    # -- acting --------------------------------------------------------------------------------------

    def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
        by: str | None = None,
    ) -> SignalOutcome:
        """Send the run a signal; see `Verbs.signal`."""
        return self._run(self._signalled(name, payload, signal_id, to, by, is_awaited=False), wakes=self.store)

    async def asignal(
        self,
        name: str,
        payload: Any = None,
        *,
        signal_id: str | None = None,
        to: str | None = None,
        by: str | None = None,
    ) -> SignalOutcome:
        """Await the sending: the async form of `signal`."""
        return await self._arun(self._signalled(name, payload, signal_id, to, by, is_awaited=True), wakes=self.store)

    def cancel(self, reason: str = "", *, by: str | None = None) -> CancelOutcome:
        """Ask the run to end; see `Verbs.cancel`."""
        return self._run(self._ended(reason, by), wakes=self.store)

    async def acancel(self, reason: str = "", *, by: str | None = None) -> CancelOutcome:
        """Await the request: the async form of `cancel`."""
        return await self._arun(self._ended(reason, by), wakes=self.store)

    def requeue(
        self, *, retry: bool | None = None, reopen: bool = False, at: datetime | None = None, by: str | None = None
    ) -> None:
        """Leave the run to the workers; see `Engine.requeue`."""
        self._run(self._requeued(retry=retry, reopen=reopen, at=at, by=by), wakes=self.store)

    async def arequeue(
        self, *, retry: bool | None = None, reopen: bool = False, at: datetime | None = None, by: str | None = None
    ) -> None:
        """Await it: the async form of `requeue`."""
        await self._arun(self._requeued(retry=retry, reopen=reopen, at=at, by=by), wakes=self.store)

    def fork_run(
        self,
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
        """Copy the run up to a visit into a new run, and return its id; see `Engine.fork_run`."""
        amends = {"state_override": state_override, "update": update, "reroute": reroute}
        job = self._job_to_fork(self._run(self._known()), amends, ready=ready)
        return job.fork(node_id, visit, new_run_id, into, ready=ready, by=by)

    async def afork_run(
        self,
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
        amends = {"state_override": state_override, "update": update, "reroute": reroute}
        job = self._job_to_fork(await self._arun(self._known()), amends, ready=ready)
        return await job.afork(node_id, visit, new_run_id, into, ready=ready, by=by)

    # -- below ---------------------------------------------------------------------------------------

    def _run(self, routine: Routine[T], wakes: Store | None = None) -> T:
        return drive(routine, self.run_id, self._bound["clock"], wakes=wakes)

    async def _arun(self, routine: Routine[T], wakes: Store | None = None) -> T:
        return await adrive(routine, self.run_id, self._bound["clock"], wakes=wakes)

    def _info(self) -> Routine[RunInfo]:
        row: RunRow = yield from ask(self.store, "get_run", self.run_id)
        return row.info

    def _known(self) -> Routine[Flow]:
        """Return the run's flow. It is looked up by its name if the handle was made without it."""
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
        self,
        look: Callable[[Run], Routine[T]],
        timeout: float | timedelta | None = None,
        *,
        is_awaited: bool = True,
        is_blocking: bool = False,
        raw: bool = False,
    ) -> Routine[T]:
        """Call `look` on the run, for no longer than `timeout`. `is_awaited`: the driver can await coroutines.

        `is_blocking`: it blocks its thread where `look` waits. `raw`: the code of the run's flow is not used.
        """
        seconds = None if timeout is None else as_seconds(timeout, "timeout")
        flow = raw_flow((yield from self._info()).flow) if raw else (yield from self._known())
        limit = None if seconds is None else max(seconds, _AT_ONCE)
        job = Job(flow, self.store, self.run_id, {"run_timeout": limit, **UNAMENDED}, self._bound, ResumeRequest())
        job.run.is_awaited, job.run.is_blocking = is_awaited, is_blocking
        try:
            return (yield from look(job.run))
        except RunTimeoutError:
            raise TimeoutError(
                f"run {self.run_id!r} had not come so far within {seconds:g} s: it goes on; wait again, or look at info()"
            ) from None

    def _signalled(
        self, name: str, payload: Any, signal_id: str | None, to: str | None, by: str | None, *, is_awaited: bool
    ) -> Routine[SignalOutcome]:
        info = yield from self._info()
        self._gate.ask("signal", self.run_id, info.flow)
        self._flow = self._flow or self._find(info.flow)

        def find_wait(wait_id: str) -> Routine[Waits | None]:
            return self._on(lambda run: wait_of(run, wait_id), is_awaited=is_awaited)

        return (
            yield from signals.signal(
                self.store,
                self.run_id,
                name,
                payload,
                signal_id=signal_id,
                to=to,
                by=by,
                find_wait=None if self._flow is None else find_wait,
            )
        )

    def _ended(self, reason: str, by: str | None = None) -> Routine[CancelOutcome]:
        if self._gate.is_guarded:
            self._gate.ask("cancel", self.run_id, (yield from self._info()).flow)
        return (yield from signals.cancel(self.store, self.run_id, reason, by))

    def _job_to_fork(self, flow: Flow, amends: Mapping[str, Any], *, ready: bool) -> Job:
        job = Job(flow, self.store, self.run_id, amends, self._bound, ResumeRequest())
        actions = {"resume": True, "override": job.options.amends, "requeue": ready}
        for action in filter(actions.get, actions):
            self._gate.ask(action, self.run_id, flow.name)
        return job

    def _forked(
        self, node_id: str | None, visit: int | None, new_run_id: str, *, ready: bool, by: str | None
    ) -> Routine[str]:
        """Copy the run by its records alone, without the code of its flow."""
        from milepost.graph.fork_run import fork  # few programs need it

        info = yield from self._info()
        for action in ("resume", *(["requeue"] if ready else [])):
            self._gate.ask(action, self.run_id, info.flow)
        return (
            yield from fork(
                self.store, self.run_id, new_run_id, into=self.store, node_id=node_id, visit=visit, ready=ready, by=by
            )
        )

    def _requeued(
        self,
        *,
        retry: bool | None = None,
        reopen: bool = False,
        at: datetime | None = None,
        by: str | None = None,
    ) -> Routine[None]:
        from milepost.engine.requeue import requeue  # few programs need it

        return requeue(
            self.store, self.run_id, self._gate, self._bound, new_nonce, retry=retry, reopen=reopen, at=at, by=by
        )

    def _chronicle(self) -> Routine[tuple[Chronicle, bool]]:
        """Make the teller of the run's records; and whether the flow is not known, so that it tells plain JSON."""
        name = (yield from self._info()).flow
        flow = self._flow = self._flow or self._find(name)
        if flow is None:
            begun = yield from read_start(self.store, self.run_id)
            front = "graph" if begun is None else str(begun.fields().get("front", "graph"))
            raw = cast("Flow", Undecoded(name, front))
            return Chronicle(self.run_id, raw, undecoded_result), True
        if flow.front == "graph":
            return Chronicle(self.run_id, flow), False
        looks: list[WorkflowView] = []

        def load(record: Record) -> Any:
            return self._run(self._on(lambda run: loaded(cast("StepRun", run), record, looks), is_awaited=False))

        return Chronicle(self.run_id, flow, load), False

    def _events_of(self, chronicle: Chronicle, news: list[Record | Event]) -> Iterator[Event]:
        for new in news:
            if isinstance(new, Record):
                with naming(self.run_id):
                    self.store.seals.check(self.run_id, new)
                    events = list(chronicle.tell(new))
                yield from events
            else:
                yield new
