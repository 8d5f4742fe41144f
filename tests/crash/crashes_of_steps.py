"""Workflows of steps that are crashed at every effect, those of steps that run at once included.

A process is a routine that is stepped by hand, and its death is that the routine is dropped. What outlives it is the
store, the clock, and the world outside: whoever answers the run's waits, and the list of all calls of user code. A call
names what it does (`do a`, `ask a`, `undo a`); none may come once the record of it is written.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

from milepost import MemoryStore, RunSuspended, Store
from milepost.drivers.branches import Branches
from milepost.errors import MilepostError, NonDeterminismError
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Effect, Gather, Outcome, Routine, Write
from milepost.executor.resume import resume_claimed
from milepost.model.ids import Clock
from milepost.model.record import CHECKPOINT, FAILURE, ROLLBACK, ROUTE
from milepost.store import ENDED
from milepost.testing import FakeClock, Stepper
from milepost.testing.clock import fake_entropy
from milepost.testing.scenarios import was_written
from milepost.verbs import Job, flow_of

__all__ = ["Ending", "Outside", "Subject", "World", "crash_everywhere", "crash_twice", "play", "refused_after_crashes"]

RUN_ID = "crashed"
LEASE = 30.0


class World:
    """What the processes of one run share."""

    def __init__(self, open_store: Callable[[Clock], Store] | None) -> None:
        self.clock = FakeClock()
        self.calls: list[str] = []
        """What user code did, in order."""
        self.settled: set[str] = set()
        """What is recorded, so that nobody may do it again."""
        self.again: list[str] = []
        """What was done all the same."""
        self.undoable: list[str] = []
        """The steps whose rollback was registered, in order."""
        self._open = open_store
        self.store = MemoryStore(clock=self.clock) if open_store is None else open_store(self.clock)
        self.store.entropy = fake_entropy
        self._opened = [self.store]
        self.store.delete_run(RUN_ID, force=True)

    def note(self, what: str, *, is_counted: bool = True) -> None:
        """User code does something."""
        if is_counted:
            self.calls.append(what)
        if what in self.settled:
            self.again.append(what)

    def wrote(self, write: Write) -> None:
        """These records are written from now on."""
        for record in write.append.records:
            if record.kind == CHECKPOINT and record.fields().get("rollback"):
                self.undoable.append(record.node_id)
            if record.kind == CHECKPOINT:
                self.settled |= {f"do {record.node_id}", f"ask {record.node_id}"}
            elif record.kind == ROUTE:
                self.settled.add(f"ask {record.node_id}")
            elif record.kind == ROLLBACK:
                self.settled.add(f"undo {record.node_id}")
            elif record.kind == FAILURE:
                fields = record.fields()
                self.settled.add(f"do {record.node_id} attempt {fields['attempt']}")

    def die(self, process: Stepper[Any]) -> None:
        """The process is gone, and its lease over."""
        if self._open is None:
            assert isinstance(self.store, MemoryStore)
            for token in process.tokens:
                self.store.abandon(token)
            return
        self.store = self._open(self.clock)
        self.store.entropy = fake_entropy
        self._opened.append(self.store)
        self.clock.advance(LEASE + 1)

    def answer(self, waiting: RunSuspended, answers: Mapping[str, Any]) -> None:
        """Send the signals that the run waits for, each once; where there is no answer, let the time pass."""
        for wait in waiting.waiting_for:
            if wait.signal in answers:
                self.store.put_signal(RUN_ID, wait.signal, answers[wait.signal], signal_id=wait.wait_id)
                return
        assert waiting.wake_at is not None, waiting
        self.clock.advance(max(0.0, waiting.wake_at.timestamp() - self.clock.time()))

    def close(self) -> None:
        for store in self._opened:
            store.close()


class Outside:
    """What user code knows of the world: that of the run that is played now."""

    world: World

    def note(self, what: str, *, is_counted: bool = True) -> None:
        """User code does something."""
        self.world.note(what, is_counted=is_counted)


@dataclass
class Subject:
    """A workflow, and how its run is lived. It is made once, since what is made of its types takes longer than a run."""

    make: Callable[[Outside], Any]
    inputs: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    """Payloads by signal."""
    cancel_at: str = ""
    """Cancel the run once this was noted."""
    by_worker: bool = False
    """Whether runs are gone on with as a worker does it."""
    at_once: int = 1
    """How many calls one crash may cut short."""
    options: dict[str, Any] = field(default_factory=dict)
    outside: Outside = field(default_factory=Outside)

    @cached_property
    def flow(self) -> Any:
        """The workflow."""
        return self.make(self.outside)


@dataclass
class Ending:
    """How a run ended, and what was seen of it."""

    status: str
    told: str
    """The output or the error, as text."""
    visits: list[tuple[str, int]]
    undone: list[str]
    undoable: list[str]
    calls: list[str]
    effects: tuple[str, ...]
    """The names of what was asked for, in order."""
    crashes: tuple[str, ...]
    again: list[str]
    problems: tuple[str, ...]


def flat(routine: Routine[Any]) -> Routine[Any]:
    """The routine, with what runs at once in it as effects one after the other: in turn, one effect of each branch."""
    effect = next(routine)
    while True:
        try:
            if isinstance(effect, Gather):
                answer = yield from _one_by_one(effect)
            else:
                answer = yield effect
        except GeneratorExit:
            routine.close()
            raise
        except BaseException as exc:
            error: BaseException | None = exc
            answer = None
        else:
            error = None
        try:
            effect = routine.send(answer) if error is None else routine.throw(error)
        except StopIteration as stop:
            return stop.value


def _one_by_one(gather: Gather) -> Routine[dict[str, Outcome]]:
    branches = Branches(gather)
    while (item := branches.step()) is not None:
        branch, effect = item
        try:
            answer = yield effect
        except GeneratorExit:
            branch.routine.close()
            raise
        except BaseException as exc:
            branches.fail(branch, exc)
        else:
            branches.answer(branch, answer)
    return branches.outcomes


def play(
    subject: Subject, crashes: tuple[tuple[int, bool], ...], open_store: Callable[[Clock], Store] | None
) -> Ending:
    """One run to its end. A crash is a number of an effect since the last one, and whether that is performed first."""
    world = subject.outside.world = World(open_store)
    try:
        return _play(subject, list(crashes), world)
    finally:
        world.close()


def _play(subject: Subject, crashes: list[tuple[int, bool]], world: World) -> Ending:
    died: list[str] = []
    effects: list[str] = []
    since = 0
    told = ""
    while True:
        is_there = bool(world.store.list_runs())
        if is_there and world.store.get_run(RUN_ID).info.status in ENDED:
            break
        process = _process(subject, world, is_there)
        has_died = False
        while (effect := process.pending) is not None:
            effects.append(type(effect).__name__)
            crash = crashes[0] if crashes and crashes[0][0] == since else None
            since += 1
            if crash is not None:
                crashes.pop(0)
                since = 0
                died.append(f"{'after' if crash[1] else 'before'} effect {len(effects)} ({_named(effect)})")
                has_died = True
                if crash[1]:
                    _noted(effect, world)
                    process.perform()
                    _noted(effect, world, is_over=True)
                else:
                    process.kill()
                world.die(process)
                break
            _noted(effect, world)
            process.step()
            _noted(effect, world, is_over=True)
            _cancel(subject, world, process)
        if has_died:
            continue
        if isinstance(process.error, RunSuspended):
            world.answer(process.error, subject.answers)
        elif process.error is None:
            told = repr(process.result.output)
            break
        elif isinstance(process.error, MilepostError):
            told = type(process.error).__name__
            if world.store.get_run(RUN_ID).info.status not in ENDED:
                raise process.error
            break
        else:
            raise process.error
    row = world.store.get_run(RUN_ID)
    undone = [record.node_id for record in world.store.read(RUN_ID, kinds=(ROLLBACK,))]
    visits = [(info.node_id, info.visit) for info in world.store.history(RUN_ID)]
    if row.info.status == "finished" and not told:
        # It died when all was written: what it would have given is what a resume gives.
        told = repr(Job(flow_of(subject.flow), world.store, RUN_ID, {}, {"clock": world.clock}, ResumeRequest()).do())
    return Ending(
        row.info.status, told, visits, undone, world.undoable, world.calls, tuple(effects), tuple(died), world.again,
        world.store.verify(RUN_ID).problems,
    )  # fmt: skip


def _process(subject: Subject, world: World, is_there: bool) -> Stepper[Any]:
    flow = subject.flow
    bound = {"clock": world.clock}
    job = Job(
        flow_of(flow),
        world.store,
        RUN_ID,
        {**subject.options, "max_crashes": None},
        bound,
        ResumeRequest() if is_there else None,
    )
    job.run.is_listening = True
    routine = job.routine(dict(subject.inputs))
    tokens = []
    if is_there and subject.by_worker:
        for token, _ in world.store.claim_due([flow.name], 1, max_crashes=None):
            routine = resume_claimed(job.run, token)
            tokens.append(token)
    process = Stepper(flat(routine), clock=world.clock)
    process.tokens.extend(tokens)
    return process


def _cancel(subject: Subject, world: World, process: Stepper[Any]) -> None:
    if subject.cancel_at and subject.cancel_at in world.calls:
        row = world.store.get_run(RUN_ID)
        if row.cancel is None and row.info.status not in ENDED:
            world.store.request_cancel(RUN_ID, "not wanted", None)


def _noted(effect: Effect, world: World, *, is_over: bool = False) -> None:
    # Of a write whose statements may fail it shows afterwards whether it took place.
    if not isinstance(effect, Write) or is_over != bool(effect.append.statements):
        return
    if not is_over or was_written(effect, RUN_ID):
        world.wrote(effect)


def _named(effect: Effect) -> str:
    name = type(effect).__name__
    if isinstance(effect, Write):
        return f"{name} {'+'.join(f'{r.kind} {r.node_id}' for r in effect.append.records) or 'release'}"
    return f"{name} {getattr(effect, 'method', '')}".strip()


def crash_everywhere(
    subject: Subject, open_store: Callable[[Clock], Store] | None = None, depth: int = 1, stride: int = 1
) -> int:
    """Crash a run at every effect, or with `depth` 2 again at every effect of what follows; how many runs that were.

    `stride`: of the first crashes only every so many-th. AssertionError where a run ends otherwise than undisturbed.
    """
    plain = play(subject, (), open_store)
    assert ([], ()) == (plain.again, plain.problems)
    runs = 0
    for crashes in _places(subject, open_store, depth, stride):
        runs += 1
        _compare(crashes, plain, subject.at_once)
    return runs


def refused_after_crashes(subject: Subject, change: Callable[[int], None]) -> int:
    """Crash a run before every effect, and resume it with other arguments of its only step; how often that was refused.

    `change` sets the arguments. AssertionError where a resume is not refused although something inside the step is recorded,
    or is refused although nothing is, or does not end with the old arguments after that.
    """
    refused = 0
    for number in count():
        change(1)
        world = subject.outside.world = World(None)
        process = _process(subject, world, False)
        for _ in range(number):
            process.step()
        is_there = bool(world.store.list_runs())
        if is_there and world.store.get_run(RUN_ID).info.status in ENDED:
            return refused
        process.kill()
        world.die(process)
        if is_there:
            has_begun = any("/" in record.node_id for record in world.store.read(RUN_ID))
            change(2)
            try:
                _process(subject, world, True).run()
            except NonDeterminismError:
                assert has_begun, f"refused before effect {number}"
                refused += 1
                change(1)
                _process(subject, world, True).run()
            else:
                assert not has_begun, f"not refused before effect {number}"
            assert world.store.get_run(RUN_ID).info.status == "finished"
    raise AssertionError


def crash_twice(subject: Subject, first: int) -> int:
    """Crash a run at effect `first`, and again at every effect of what follows; how many runs that were."""
    plain = play(subject, (), None)
    runs = 0
    for number in itertools.count():
        for is_after in (False, True):
            ending = play(subject, ((first, False), (number, is_after)), None)
            if len(ending.crashes) < 2:
                return runs
            runs += 1
            _compare(ending, plain, subject.at_once)
    return runs


def _places(subject: Subject, open_store: Callable[[Clock], Store] | None, depth: int, stride: int) -> Iterator[Ending]:
    def beneath(before: tuple[tuple[int, bool], ...]) -> Iterator[Ending]:
        number = 0
        is_last = len(before) + 1 == depth
        while True:
            for is_after in (False, True) if is_last else (False,):
                ending = play(subject, (*before, (number, is_after)), open_store)
                if len(ending.crashes) <= len(before):
                    return
                yield ending
            if not is_last:
                yield from beneath((*before, (number, False)))
            number += 1 if is_last else stride

    return beneath(())


def _compare(found: Ending, plain: Ending, at_once: int) -> None:
    place = f"crashed {', then '.join(found.crashes)}"
    is_cancelled = plain.status == "cancelled"
    assert [] == found.again, f"{place}, these were done again: {found.again}"
    assert () == found.problems, f"{place}: {found.problems}"
    assert plain.status == found.status, f"{place}: {plain.status} became {found.status}"
    if found.told:
        assert plain.told == found.told, f"{place}, the run gave {found.told} instead of {plain.told}"
    if is_cancelled:
        # How far it came by then is no matter.
        assert found.undoable[::-1] == found.undone, f"{place}, undone was {found.undone} of {found.undoable}"
        return
    assert sorted(plain.visits) == sorted(found.visits), f"{place}: {plain.visits} became {found.visits}"
    assert plain.undone == found.undone, f"{place}, undone was {found.undone} instead of {plain.undone}"
    missing = Counter(plain.calls) - Counter(found.calls)
    assert not missing, f"{place}, these were never done: {missing}"
    extra = Counter(found.calls) - Counter(plain.calls)
    most = at_once * len(found.crashes)
    assert extra.total() <= most, f"{place}, done more often than undisturbed: {extra}"
