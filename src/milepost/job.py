"""One call of a verb: flow, store, run id and options, checked, and the two ways to run it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import iscoroutinefunction
from typing import Any

from milepost.drivers import AsyncDriver, SyncDriver, is_logged
from milepost.effects import Routine
from milepost.errors import AsyncNodeError, MilepostError, OptionError, RunStopped, SerializeStateError
from milepost.events import Event, ResumePlan, RunResult
from milepost.examining import Wish
from milepost.flow import Flow
from milepost.identifiers import new_nonce, new_run_id
from milepost.options import Options, merge_options
from milepost.record import format_time
from milepost.resuming import plan, resume
from milepost.runtime import Run
from milepost.starting import start
from milepost.store import Store, check_run_id

__all__ = ["Job"]


class Job:
    """One call of a verb, checked and ready: nothing has been run or written yet."""

    __slots__ = ("flow", "is_planning", "options", "run", "wish")

    def __init__(
        self,
        flow: Flow,
        store: Store | None,
        run_id: str | None,
        given: Mapping[str, Any],
        bound: Mapping[str, Any],
        wish: Wish | None,
    ) -> None:
        self.flow = flow
        self.options: Options = merge_options(bound, given)
        self.wish = wish
        if not isinstance(store, Store) and (store is not None or wish is not None):
            raise OptionError(
                f"store must be a store, such as SQLiteStore('runs.db') or open_store(url), not {store!r}",
                option="store",
            )
        if run_id is not None or wish is not None:
            check_run_id(run_id)
        if store is None and "if_exists" in given:
            raise OptionError("if_exists needs a store: give store=", option="if_exists")
        for option in ("stop_before", "stop_after"):
            unknown = getattr(self.options, option) - set(flow.units)
            if unknown:
                raise OptionError(
                    f"{option} names {', '.join(map(repr, sorted(unknown)))}, which flow {flow.name!r} does not have",
                    option=option,
                )
        name = run_id if run_id is not None else new_run_id(self.options.clock.time())
        is_listening = bool(self.options.hooks) or is_logged()
        self.run = Run(flow, store, name, self.options, is_listening=is_listening)

    def routine(self, state: Any, *, full: bool = False) -> Routine[RunResult[Any]]:
        """The core's routine for this call. With `full` a breakpoint gives a result, like any other end."""
        routine = self._begun(state)
        return self._or_stopped(routine) if full else routine

    def _or_stopped(self, routine: Routine[RunResult[Any]]) -> Routine[RunResult[Any]]:
        try:
            return (yield from routine)
        except RunStopped as stopped:
            return self.run.result(stopped.state)

    def _begun(self, state: Any) -> Routine[RunResult[Any]]:
        if self.wish is not None:
            return resume(self.run, self.wish, new_nonce)
        problems = getattr(self.flow.codec, "problems", ())
        if self.run.store is not None and problems:
            path, text = problems[0]
            raise SerializeStateError(
                f"the state of flow {self.flow.name!r} cannot be recorded: {text}", path=path, type_name=path,
                run_id=self.run.run_id,
            )  # fmt: skip
        return start(self.run, state, new_nonce)

    def refuse_coroutines(self) -> None:
        """Raise `AsyncNodeError` where a sync verb would have to await something."""
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
            )

    def do(self, state: Any = None, *, full: bool = False) -> RunResult[Any]:
        """Run it here, to its end; with `full` a breakpoint is an end too."""
        self.refuse_coroutines()
        driver = SyncDriver(self.options.clock, self.options.hooks)
        self._listen(driver.live)
        with self._named():
            return driver.run(self.routine(state, full=full))

    async def ado(self, state: Any = None, *, full: bool = False) -> RunResult[Any]:
        """Run it in this task, to its end; with `full` a breakpoint is an end too."""
        driver = AsyncDriver(self.options.clock, self.options.hooks)
        self._listen(driver.live)
        with self._named():
            return await driver.run(self.routine(state, full=full))

    def stream(self, state: Any = None) -> Iterator[Event]:
        """Run it here while its events are iterated."""
        self.refuse_coroutines()
        return self._streamed(self.routine(state))

    def _streamed(self, routine: Routine[RunResult[Any]]) -> Iterator[Event]:
        driver = SyncDriver(self.options.clock, self.options.hooks)
        self._listen_as_stream(driver.live)
        with self._named():
            yield from driver.stream(routine)

    async def astream(self, state: Any = None) -> AsyncIterator[Event]:
        """Run it in this task while its events are iterated."""
        driver = AsyncDriver(self.options.clock, self.options.hooks)
        self._listen_as_stream(driver.live)
        events = driver.stream(self.routine(state))
        try:
            with self._named():
                async for event in events:
                    yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    def plan(self) -> ResumePlan:
        """Tell what it would do."""
        assert self.wish is not None
        with self._named():
            return SyncDriver(self.options.clock).run(plan(self.run, self.wish))

    async def aplan(self) -> ResumePlan:
        """Tell what it would do."""
        assert self.wish is not None
        with self._named():
            return await AsyncDriver(self.options.clock).run(plan(self.run, self.wish))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let every error of the library say of which run it speaks, those of a store included."""
        try:
            yield
        except MilepostError as exc:
            if exc.run_id is None:
                exc.run_id = self.run.run_id
            raise

    def _listen_as_stream(self, live: Callable[[Event], None]) -> None:
        """Begin now, where somebody iterates: a stream that is kept for later has used up none of its time."""
        self.run.started_at = self.options.clock.monotonic()
        self.run.followed_at = format_time(self.options.clock.time())
        self.run.is_listening = True
        self._listen(live)

    def _listen(self, live: Callable[[Event], None]) -> None:
        if self.run.is_listening:
            self.run.scope.publish = live
