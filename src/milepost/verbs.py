"""The verbs of a flow by itself. Each binds flow, store and options to a routine of the core, for a driver to run.

A verb and its `a`-twin differ in the driver and in nothing else: both are made from the same `Job`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Unpack, cast, overload

from milepost.events import Event, ResumePlan, RunResult
from milepost.examining import Wish
from milepost.flow import Flow
from milepost.job import Job
from milepost.options import RunOptions
from milepost.store import Store

__all__ = ["Bound", "Verbs"]

StateT = TypeVar("StateT")

_NO_OPTIONS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Bound(Generic[StateT]):
    """A flow with its input, as every verb of an `Engine` takes it."""

    flow: Verbs[StateT]
    state: StateT


class Verbs(Generic[StateT]):
    """The verbs of a flow by itself. Options are those of `milepost.options.Options`.

    Every verb that runs something gives the final state, or with `full=True` a `RunResult`, also where a breakpoint
    stopped the run; a run that fails raises all the same. Errors carry `run_id`, `node_id` where one is known, and
    `state`, the last good one.
    """

    def _job(
        self, store: Store | None, run_id: str | None, options: Mapping[str, Any], wish: Wish | None = None
    ) -> Job:
        return Job(cast("Flow", self), store, run_id, options, _NO_OPTIONS, wish)

    def bind(self, state: StateT) -> Bound[StateT]:
        """This flow with its input, for the verbs of an `Engine`."""
        return Bound(self, state)

    @overload
    def run(
        self, state: StateT, *, store: Store | None = None, run_id: str | None = None, full: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> StateT: ...  # fmt: skip
    @overload
    def run(
        self, state: StateT, *, store: Store | None = None, run_id: str | None = None, full: Literal[True],
        **options: Unpack[RunOptions],
    ) -> RunResult[StateT]: ...  # fmt: skip
    def run(
        self,
        state: StateT,
        *,
        store: Store | None = None,
        run_id: str | None = None,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> StateT | RunResult[StateT]:
        """Run the flow from its entry on `state`; the final state.

        Without a store nothing is saved. With one the run is recorded under `run_id` (made where None is given, and
        told in every event, result and error), and every node that completed stays done.
        """
        return _answer(self._job(store, run_id, options).do(state, full=full), full)

    @overload
    async def arun(
        self, state: StateT, *, store: Store | None = None, run_id: str | None = None, full: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> StateT: ...  # fmt: skip
    @overload
    async def arun(
        self, state: StateT, *, store: Store | None = None, run_id: str | None = None, full: Literal[True],
        **options: Unpack[RunOptions],
    ) -> RunResult[StateT]: ...  # fmt: skip
    async def arun(
        self,
        state: StateT,
        *,
        store: Store | None = None,
        run_id: str | None = None,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> StateT | RunResult[StateT]:
        """`run`, awaited: coroutine nodes run in this task, others in worker threads."""
        return _answer(await self._job(store, run_id, options).ado(state, full=full), full)

    @overload
    def resume(
        self, store: Store, run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> StateT: ...
    @overload
    def resume(
        self, store: Store, run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> RunResult[StateT]: ...
    def resume(
        self, store: Store, run_id: str, *, full: bool = False, **options: Unpack[RunOptions]
    ) -> StateT | RunResult[StateT]:
        """Go on with a run where its records end; nothing recorded runs again.

        A finished run gives its stored result. Raises `RunNotFoundError`, `RunLockedError` while another owner has the
        run, `RunNotResumableError`, `FlowChangedError` where the code has changed too much, and what decoding raises.
        """
        return _answer(self._job(store, run_id, options, Wish()).do(full=full), full)

    @overload
    async def aresume(
        self, store: Store, run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> StateT: ...
    @overload
    async def aresume(
        self, store: Store, run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> RunResult[StateT]: ...
    async def aresume(
        self, store: Store, run_id: str, *, full: bool = False, **options: Unpack[RunOptions]
    ) -> StateT | RunResult[StateT]:
        """`resume`, awaited."""
        return _answer(await self._job(store, run_id, options, Wish()).ado(full=full), full)

    @overload
    def resume_from(
        self, store: Store, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        full: Literal[False] = False, **options: Unpack[RunOptions],
    ) -> StateT: ...  # fmt: skip
    @overload
    def resume_from(
        self, store: Store, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        full: Literal[True], **options: Unpack[RunOptions],
    ) -> RunResult[StateT]: ...  # fmt: skip
    def resume_from(
        self,
        store: Store,
        run_id: str,
        node_id: str,
        *,
        visit: int | None = None,
        rerun: bool = False,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> StateT | RunResult[StateT]:
        """Go on after a node's newest visit, or after `visit`; with `rerun` the node itself runs again.

        What came later is superseded: it stays in the history and counts no more. Raises `InvalidResumeNodeError`,
        `NoCheckpointFoundError`, `ResumeNodeCompletedError` where nothing is left after the node, and what `resume`
        raises.
        """
        wish = Wish("resume_from", node_id, visit, rerun)
        return _answer(self._job(store, run_id, options, wish).do(full=full), full)

    @overload
    async def aresume_from(
        self, store: Store, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        full: Literal[False] = False, **options: Unpack[RunOptions],
    ) -> StateT: ...  # fmt: skip
    @overload
    async def aresume_from(
        self, store: Store, run_id: str, node_id: str, *, visit: int | None = None, rerun: bool = False,
        full: Literal[True], **options: Unpack[RunOptions],
    ) -> RunResult[StateT]: ...  # fmt: skip
    async def aresume_from(
        self,
        store: Store,
        run_id: str,
        node_id: str,
        *,
        visit: int | None = None,
        rerun: bool = False,
        full: bool = False,
        **options: Unpack[RunOptions],
    ) -> StateT | RunResult[StateT]:
        """`resume_from`, awaited."""
        wish = Wish("resume_from", node_id, visit, rerun)
        return _answer(await self._job(store, run_id, options, wish).ado(full=full), full)

    @overload
    def retry(
        self, store: Store, run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> StateT: ...
    @overload
    def retry(
        self, store: Store, run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> RunResult[StateT]: ...
    def retry(
        self, store: Store, run_id: str, *, full: bool = False, **options: Unpack[RunOptions]
    ) -> StateT | RunResult[StateT]:
        """Run again what failed, with fresh attempts; completed work is kept. `RunNotResumableError` if nothing did."""
        return _answer(self._job(store, run_id, options, Wish("retry")).do(full=full), full)

    @overload
    async def aretry(
        self, store: Store, run_id: str, *, full: Literal[False] = False, **options: Unpack[RunOptions]
    ) -> StateT: ...
    @overload
    async def aretry(
        self, store: Store, run_id: str, *, full: Literal[True], **options: Unpack[RunOptions]
    ) -> RunResult[StateT]: ...
    async def aretry(
        self, store: Store, run_id: str, *, full: bool = False, **options: Unpack[RunOptions]
    ) -> StateT | RunResult[StateT]:
        """`retry`, awaited."""
        return _answer(await self._job(store, run_id, options, Wish("retry")).ado(full=full), full)

    def stream(
        self, state: StateT, *, store: Store | None = None, run_id: str | None = None, **options: Unpack[RunOptions]
    ) -> Iterator[Event]:
        """`run` as its events, in step with the consumer. Breaking off leaves the run interrupted, to be resumed.

        A stream that nobody iterates runs nothing. The error of a run that fails is raised after its last event.
        """
        return self._job(store, run_id, options).stream(state)

    def astream(
        self, state: StateT, *, store: Store | None = None, run_id: str | None = None, **options: Unpack[RunOptions]
    ) -> AsyncIterator[Event]:
        """`stream`, for `async for`."""
        return self._job(store, run_id, options).astream(state)

    def resume_stream(self, store: Store, run_id: str, **options: Unpack[RunOptions]) -> Iterator[Event]:
        """`resume` as its events."""
        return self._job(store, run_id, options, Wish()).stream()

    def aresume_stream(self, store: Store, run_id: str, **options: Unpack[RunOptions]) -> AsyncIterator[Event]:
        """`resume_stream`, for `async for`."""
        return self._job(store, run_id, options, Wish()).astream()

    def plan_resume(
        self,
        store: Store,
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """Tell what `resume` (with `node_id`: `resume_from`) would do and why. Runs nothing, writes nothing.

        Raises `RunNotFoundError` or `NoCheckpointFoundError`, and `StoreError` where the store fails; every other
        refusal is the plan's verdict.
        """
        return self._job(store, run_id, options, Wish.of(node_id, visit, rerun)).plan()

    async def aplan_resume(
        self,
        store: Store,
        run_id: str,
        node_id: str | None = None,
        *,
        visit: int | None = None,
        rerun: bool = False,
        **options: Unpack[RunOptions],
    ) -> ResumePlan:
        """`plan_resume`, awaited."""
        return await self._job(store, run_id, options, Wish.of(node_id, visit, rerun)).aplan()


def _answer(result: RunResult[StateT], full: bool) -> StateT | RunResult[StateT]:
    return result if full else result.state
