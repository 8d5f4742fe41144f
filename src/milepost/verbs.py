"""The verbs of a flow by itself. Each binds flow, store and options to a routine of the core, for a driver to run.

A verb and its `a`-twin differ in the driver and in nothing else: both are made from the same `Job`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, cast, overload

from milepost.adapters.protocols import AnyStore
from milepost.drivers import SyncDriver
from milepost.drivers.wakeups import wake
from milepost.errors import naming
from milepost.executor import signals as signalling
from milepost.executor.checks import ResumeRequest
from milepost.executor.flow import Flow
from milepost.job import Job, store_of
from milepost.model.clock import SYSTEM
from milepost.model.reports import ResumePlan, RunResult
from milepost.options import RunOptions

__all__ = ["Bound", "StateVerbs", "Verbs"]

StateT = TypeVar("StateT")
OutputT = TypeVar("OutputT", covariant=True)

if TYPE_CHECKING:
    import typing_extensions

    from milepost.model.events import Event

    FullT = typing_extensions.TypeVar("FullT", covariant=True, default=Any)
else:
    # The standard library has defaults of parameters from Python 3.13 on; here `_Sparing` stands in for them.
    FullT = TypeVar("FullT", covariant=True)

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
