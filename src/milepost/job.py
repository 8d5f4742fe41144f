"""One call of a verb: flow, store, run id and options, checked, and the two ways to run it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar, cast

from milepost.adapters.protocols import AnyStore
from milepost.drivers import SyncDriver, is_logged
from milepost.errors import (
    AsyncNodeError,
    OptionError,
    RunStopped,
    RunSuspended,
    naming,
)
from milepost.executor.checks import ResumeRequest, check_recordable
from milepost.executor.continuation import CONTINUE, check_options
from milepost.executor.effects import Routine
from milepost.executor.flow import Flow, GraphFlow, find_node
from milepost.executor.resume import await_due, give_back, plan, resume, resume_claimed
from milepost.executor.run import Run
from milepost.executor.start import enqueue, start
from milepost.model.ids import new_nonce, new_run_id
from milepost.model.record import format_time
from milepost.model.reports import ResumePlan
from milepost.options import Options, merge_options, without_amendments
from milepost.store import Store, Token, check_number, check_run_id

if TYPE_CHECKING:
    from milepost.drivers import AsyncDriver
    from milepost.model.events import Event

__all__ = ["Job", "store_of"]

T = TypeVar("T")


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
