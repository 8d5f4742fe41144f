"""A workflow in a test: stubs may replace its functions, answers to its waits come by themselves, pauses pass at once.

A parked run is continued as another process would: its code is played again from the record. So code that does not
allow this fails in the test already.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import queue
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import isfunction, ismethod
from typing import Any, cast

import msgspec

from milepost.drivers import AsyncDriver, SyncDriver
from milepost.errors import AsyncNodeError, OptionError, RunSuspended
from milepost.executor import signals as signalling
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Routine, Sleep
from milepost.executor.flow import StepFlow
from milepost.executor.waits import Waits
from milepost.model.info import Wait
from milepost.model.results import WorkflowResult
from milepost.options import Options
from milepost.store import Store
from milepost.stores.memory import MemoryStore
from milepost.testing.clock import FakeClock, fake_entropy
from milepost.verbs import Bound, Job
from milepost.workflows.definition import Workflow, WorkflowDefinition
from milepost.workflows.run import Frame, StepRun
from milepost.workflows.steps import Calls, Chooses, Maps, Spreads, Step, is_async

__all__ = ["Answers", "Passing", "PassingAsync", "Play", "inputs_of"]

GLIMPSE = 0.01
"""Real seconds for which a pause beside running calls waits for one of them to end, before its time passes."""


class Answers:
    """The answers to the waits of a run: the signals of the test, or else time."""

    def __init__(self, signals: Mapping[str, Any] | None) -> None:
        self._signals = signals or {}
        self._answered: set[str] = set()

    def come(self, waiting: RunSuspended, store: Store) -> None:
        """Send the test's signals for the open waits. Without any, advance the clock to the first end of a wait.

        Raise `waiting` if neither is possible, or if an answer was refused.
        """
        assert waiting.run_id is not None
        is_refused = any(wait.wait_id in self._answered for wait in waiting.waiting_for)
        waits = [wait for wait in waiting.waiting_for if wait.signal in self._signals and not is_refused]
        for wait in waits:
            self._answered.add(wait.wait_id)
            self._send(waiting.run_id, wait, store)
        clock = store.clock
        if waits:
            return
        if is_refused or waiting.wake_at is None or not isinstance(clock, FakeClock):
            reason = store.get_run(waiting.run_id).info.reason
            missing = "give signals=, or the store a FakeClock"
            act = "what signals= has for it is refused" if is_refused else f"nothing in this test answers it: {missing}"
            waiting.add_note(f"{act} ({reason})")
            raise waiting
        clock.advance(max(0.0, waiting.wake_at.timestamp() - clock.time()))

    def _send(self, run_id: str, wait: Wait, store: Store) -> None:
        name = str(wait.signal)
        answer = self._signals[name]
        payload = answer(wait) if isfunction(answer) or ismethod(answer) else answer
        SyncDriver(store.clock).run(signalling.signal(store, run_id, name, payload, to=wait.wait_id))


class Play:
    """One run of a workflow, from its beginning to its end."""

    def __init__(
        self,
        flow: Workflow[..., Any],
        input: Any,
        stubs: Mapping[str, Callable[..., Any]] | None,
        signals: Mapping[str, Any] | None,
        store: Store | None,
        run_id: str | None,
        options: Mapping[str, Any],
    ) -> None:
        self._inputs = inputs_of(flow, input)
        self._flow = StubbedFlow(flow._definition, self)
        self._stubs = dict(stubs or {})
        self._asked: set[str] = set()
        self._store = MemoryStore(clock=FakeClock(), entropy=fake_entropy) if store is None else store
        self._options = {**options, "on_wait": "suspend"}
        self._run_id = run_id
        self._answers = Answers(signals)

    def run(self) -> WorkflowResult[Any]:
        """Run it in this thread; if it has coroutine functions, in an event loop of its own."""
        if self._flow.workflow.is_async or any(map(is_async, self._stubs.values())):
            return asyncio.run(self.arun())
        job = self._job(None)
        while True:
            job.run.is_awaited = False
            driver = Passing(job.options.clock, job.options.hooks)
            job._listen(driver.live)
            try:
                with job._named():
                    return self._ended(driver.run(self._routine(job)))
            except RunSuspended as waiting:
                self._answers.come(waiting, self._store)
            except AsyncNodeError:
                # Nothing of that step was done: an event loop goes on with it.
                return asyncio.run(self.arun(job))
            job = self._job(job)

    async def arun(self, before: Job | None = None) -> WorkflowResult[Any]:
        """Run it as `run` does, awaited. `before` is the job of a run that has already begun."""
        job = self._job(before)
        while True:
            driver = PassingAsync(job.options.clock, job.options.hooks)
            job._listen(driver.live)
            try:
                with job._named():
                    return self._ended(await driver.run(self._routine(job)))
            except RunSuspended as waiting:
                self._answers.come(waiting, self._store)
            job = self._job(job)

    def _job(self, before: Job | None) -> Job:
        run_id, given, request = self._run_id, self._options, None
        if before is not None:
            run_id, request = before.run.run_id, ResumeRequest()
            given = {name: value for name, value in given.items() if name not in {"if_exists", "tags"}}
        return Job(cast("StepFlow", self._flow), self._store, run_id, given, {"clock": self._store.clock}, request)

    def _routine(self, job: Job) -> Routine[Any]:
        """Start the job's routine. The inputs are copied, so that the test's own are never changed."""
        return job.routine(copy.deepcopy(self._inputs) if job.request is None else None, full=False)

    def _ended(self, result: WorkflowResult[Any]) -> WorkflowResult[Any]:
        unused = sorted(set(self._stubs) - self._asked)
        if unused:
            raise OptionError(
                f"stubs name {', '.join(map(repr, unused))}, which workflow {self._flow.name!r} did not ask for with these "
                f"inputs: it asked for {', '.join(map(repr, sorted(self._asked))) or 'no step'}",
                option="stubs",
            )
        return result

    def stubbed(self, step: Step[Any], step_id: str) -> Step[Any]:
        """Return the step with stubs in place of its function and of those of its parts, and
        with copies of its arguments."""
        self._asked.add(step_id)
        work: Any = step.work
        stub = self._stubs.get(step_id)
        if isinstance(work, Calls):
            work = Calls(_stub(work.fn, stub), _copied(work.args), _copied(work.kwargs))
        elif isinstance(work, Maps):
            work = Maps(_stub(work.fn, stub), _copied(work.items), work.key, work.max_parallel)
        elif stub is not None:
            raise OptionError(
                f"stubs names step {step_id!r}, which calls no function (it is a {work.step_type.value}): name the steps in "
                f"it{', or give signals=' if isinstance(work, Waits) else ''}",
                option="stubs",
            )
        elif isinstance(work, Spreads):
            children = tuple(self.stubbed(child, f"{step_id}/{child.name}") for child in work.children)
            work = Spreads(children, work.max_parallel)
        elif isinstance(work, Chooses):
            options = [(asked, self.stubbed(chosen, f"{step_id}/{chosen.name}")) for asked, chosen in work.options]
            work = Chooses(tuple(options))
        other: Step[Any] = Step(step.name, work, step.modifiers)
        handler = step.modifiers.on_error
        if handler is not None:
            handled = self._handled(handler, step_id)
            other = Step(step.name, work, msgspec.structs.replace(step.modifiers, on_error=handled))
        return other

    def _handled(self, handler: Callable[..., Any], step_id: str) -> Callable[..., Any]:
        """Wrap an on_error, whose step may have a stub."""

        def given(answer: Any) -> Any:
            return self.stubbed(answer, f"{step_id}/{answer.name}") if isinstance(answer, Step) else answer

        if not is_async(handler):
            return lambda ctx, failed: given(handler(ctx, failed))

        async def later(ctx: Any, failed: Any) -> Any:
            return given(await handler(ctx, failed))

        return later


def inputs_of(flow: Workflow[..., Any], input: Any) -> dict[str, Any]:
    """Return the inputs of a workflow by name, defaults included, from a mapping, a `Bound`, or None for none."""
    return flow._inputs_of((), dict(input.state if isinstance(input, Bound) else input or {}))


# -- stubs -------------------------------------------------------------------------------------------------


class _Stub(functools.partial[Any]):
    """A substitute for a function. Types of arguments and results are those of the `original`."""

    original: Any


def _stub(fn: Callable[..., Any], stub: Callable[..., Any] | None) -> Callable[..., Any]:
    if stub is None:
        return fn
    made = _Stub(stub)
    made.original = fn
    return made


def _copied(value: Any) -> Any:
    """Return a copy that shares nothing with the value; the value itself if it cannot be copied, as a client cannot."""
    with suppress(Exception):
        return copy.deepcopy(value)
    return value


class StubbedFlow:
    """A workflow whose functions may have stubs. It uses the types of the functions that they replace."""

    def __init__(self, workflow: WorkflowDefinition, play: Play) -> None:
        self.workflow = workflow
        self.play = play

    def __getattr__(self, name: str) -> Any:
        return getattr(self.workflow, name)

    def new_run(self, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> _StubbedRun:
        """Make a run with stubs."""
        run = _StubbedRun(cast("StepFlow", self), store, run_id, options, is_listening=is_listening)
        run.play_of = self.play
        return run

    def codec_of(self, fn: Any) -> Any:
        """Return the codec of the original function's result."""
        return self.workflow.codec_of(getattr(fn, "original", fn))

    def items_codec_of(self, fn: Any) -> Any:
        """Return the codec of the items of a map."""
        return self.workflow.items_codec_of(getattr(fn, "original", fn))

    def argument_types_of(self, fn: Any) -> Any:
        """Return the classes that the original function's arguments may have."""
        return self.workflow.argument_types_of(getattr(fn, "original", fn))


class _StubbedRun(StepRun):
    """A run in which every step that the code asks for gets its stub."""

    __slots__ = ("play_of",)
    play_of: Play

    def _asked(self, frame: Frame, asked: Any) -> Step[Any]:
        step = super()._asked(frame, asked)
        return self.play_of.stubbed(step, frame.prefix + step.name)


# -- time --------------------------------------------------------------------------------------------------


class Passing(SyncDriver):
    """A driver that advances a `FakeClock` where others would wait for it."""

    def _sleep(self, effect: Sleep) -> None:
        if not isinstance(self.clock, FakeClock):
            return super()._sleep(effect)
        self.clock.advance(effect.seconds)
        return None

    def _await_one(self, branches: Any, sleeping: list[Any], *rest: Any) -> Any:
        ended: queue.SimpleQueue[Any] = rest[-1]
        if sleeping and isinstance(self.clock, FakeClock):
            try:
                ended.put(ended.get(timeout=GLIMPSE))
            except queue.Empty:
                self.clock.advance(max(0.0, sleeping[0][0] - self.clock.monotonic()))
        return super()._await_one(branches, sleeping, *rest)


class PassingAsync(AsyncDriver):
    """An async driver that advances a `FakeClock` where others would wait for it."""

    async def _sleep(self, effect: Sleep) -> None:
        if not isinstance(self.clock, FakeClock):
            return await super()._sleep(effect)
        ends = self.clock.monotonic() + effect.seconds
        await asyncio.sleep(0)
        self.clock.advance(max(0.0, ends - self.clock.monotonic()))
        return None
