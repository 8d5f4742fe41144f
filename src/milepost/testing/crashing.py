"""Crash tests of a flow: stop it at every effect, let another process go on, and compare with the undisturbed run.

The core is a generator of effects, and nothing outside it changes without an effect. So a process can die at as many
moments as there are effects, and all of them can be tried: before an effect is performed, and after it was performed
but before anybody heard of it. No luck, no sleeps, no processes. (A backend that breaks a write in half is not covered:
that is the store's own promise, `StoreContract`.)

A dead process is a routine that was dropped: it performs nothing more, not even its own cleanup. Another process is a
new store object on the same place, after the dead one's lease has ended. A `MemoryStore`, which has no place, is used
further, and is told that its verb has ended.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar, Unpack, cast

from milepost.errors import MilepostError, OptionError, RunNotFoundError, RunSuspended, shown
from milepost.executor.checks import ResumeRequest
from milepost.executor.context import Context
from milepost.executor.effects import Ask, Call, Effect, Write
from milepost.executor.flow import Flow, StepFlow
from milepost.model.ids import Clock
from milepost.model.record import CHECKPOINT, ROLLBACK, ROUTE
from milepost.options import RunOptions, merge_options
from milepost.store import Store, Token
from milepost.stores.memory import MemoryStore
from milepost.testing.clock import FakeClock, fake_entropy
from milepost.testing.playing import Answers, inputs_of
from milepost.testing.stepping import Stepper
from milepost.verbs import Job, Verbs, flow_of
from milepost.workflows.definition import Workflow

__all__ = ["Crash", "CrashReport", "crashtest"]

StateT = TypeVar("StateT")
Visit = tuple[str, int]

RUN_ID = "crashtest"


class Crash(NamedTuple):
    """The moment at which a process dies: before or after effect number `effect` since the last crash, from 0."""

    effect: int
    is_after: bool = False


@dataclass(frozen=True, slots=True)
class CrashReport:
    """A report of the runs that were tried. It exists only if all checks passed."""

    effects: tuple[str, ...]
    """The names of the effects of the undisturbed run, in order."""
    calls: tuple[str, ...]
    """The node visits that the undisturbed run called, in order, as `node#visit`, one for each attempt."""
    scenarios: int
    """The number of disturbed runs."""
    crashes: int
    """The number of processes that died in them."""


def crashtest(
    flow: Verbs[StateT],
    input: Any = None,
    *,
    store: Callable[[Clock], Store] | None = None,
    crashes: int | Sequence[Crash] = 1,
    resumes: int = 0,
    resume_from: str | None = None,
    turns: Sequence[Any] = (),
    before: Callable[[], object] | None = None,
    signals: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> CrashReport:
    """Crash `flow` at every effect. Raise AssertionError unless each crashed run ends like the undisturbed one.

    `input` is a graph's state, or a workflow's inputs: a mapping, a `Bound`, None for none.

    `store` is called with a clock and opens the store, at the same place each time: the same run id is used there again
    and again. None: a `MemoryStore`. `crashes` is the number of processes that die in one run: with 2 the resume dies
    at every effect too, which takes the square of the time. A sequence of `Crash` disturbs one run; those after its end
    are left out. `resumes` is how often a run that stops by itself (a failed node or router, a breakpoint) is resumed
    until it ends. With `resume_from` the first run is not disturbed, and a `resume_from` after that node is crashed
    instead. `turns` are the states with which the run is continued (`if_exists="continue"`), one each time that it has
    ended. `before` is called before each run, to reset what nodes keep outside the state. `signals` by name answer the
    waits of a workflow, as they do in `run_flow`; other waits and timers pass by time. `options` are those of every
    verb; time is a `FakeClock`, which pauses advance.

    These checks apply to each crashed run. It ends with the same status and an equal state or output. No visit is
    called again after its checkpoint was recorded, no router after its answer was, and no rollback after its outcome
    was. There is at most one call too many for each crash. The visits in its history are those of the undisturbed run.
    `verify` finds nothing. Nodes must do the same each time, except for what depends on their own attempt; a node that
    calls `ctx.now()` gets other times after a crash.
    """
    given = inputs_of(flow, input) if isinstance(flow, Workflow) else input
    subject = _Subject(flow_of(flow), given, store, resumes, resume_from, turns, before, signals, options)
    plain = subject.play(())
    count = tried = 0
    disturbed = _scenarios(subject, crashes) if isinstance(crashes, int) else [subject.play(tuple(crashes))]
    for scenario in disturbed:
        tried += 1
        count += len(scenario.died)
        scenario.compare(plain)
    calls = tuple(f"{node_id}#{visit}" for node_id, visit in plain.calls)
    return CrashReport(tuple(plain.effects), calls, tried, count)


def _scenarios(subject: _Subject, depth: int) -> Iterator[_Scenario]:
    """Yield all runs with up to `depth` crashes, each with the crashed runs that follow from it."""
    if depth < 1:
        raise OptionError(f"crashes must be 1 or more, not {shown(depth)}", option="crashes")

    def beneath(crashes: tuple[Crash, ...]) -> Iterator[_Scenario]:
        number = 0
        while True:
            # Nothing that survives the process changes between an effect and the next one, so only a run's last crash
            # is tried both before and after an effect.
            is_last = len(crashes) + 1 == depth
            for is_after in (False, True) if is_last else (False,):
                scenario = subject.play((*crashes, Crash(number, is_after)))
                if not scenario.has_crashed:
                    return
                yield scenario
            if not is_last:
                yield from beneath((*crashes, Crash(number)))
            number += 1

    return beneath(())


class _Scenario:
    """One run over all its processes, and the facts that were observed."""

    def __init__(self, crashes: tuple[Crash, ...]) -> None:
        self.to_come = list(crashes)
        self.effects: list[str] = []
        """The names of the effects, over all processes."""
        self.since = 0
        """The number of effects since the last crash."""
        self.died: list[str] = []
        """Descriptions of the moments at which processes died."""
        self.calls: list[Visit] = []
        self.recorded: set[Visit] = set()
        """The visits whose checkpoint was written."""
        self.routed: set[Visit] = set()
        """The visits whose next node was written too."""
        self.undone: set[str] = set()
        """The steps whose rollback has ended and was written."""
        self.status = ""
        self.data = b""
        self.visits: list[Visit] = []
        self.has_branches = False
        """True if branches were open at any time."""
        self.is_in_line = True
        """True if nothing runs in parallel, so that the order of all visits is known."""

    @property
    def has_crashed(self) -> bool:
        """True if every crash was reached."""
        return not self.to_come

    @property
    def place(self) -> str:
        """The places of the crashes, for messages."""
        return ", then ".join(self.died) or "nowhere"

    def meet(self, effect: Effect) -> Crash | None:
        """Note the next effect, and return the crash that is to happen at it, or None."""
        number = self.since
        self.since += 1
        self.effects.append(type(effect).__name__)
        if not self.to_come or self.to_come[0].effect != number:
            return None
        crash = self.to_come.pop(0)
        self.since = 0
        self.died.append(f"{'after' if crash.is_after else 'before'} effect {number} ({_describe(effect)})")
        return crash

    def check_call(self, call: Call) -> None:
        """Note the next call. Raise AssertionError if its result was recorded already."""
        if call.context is None:
            return
        node_id, visit = call.context.node_id, call.context.visit
        is_node = call.announce is not None
        if is_node:
            self.calls.append((node_id, visit))
        elif type(call.context) is Context and node_id in self.undone:
            raise AssertionError(
                f"crashed {self.place}, the rollback of step {node_id!r} was called again, though what came of it was recorded"
            )
        if (node_id, visit) in (self.recorded if is_node else self.routed):
            what = (
                f"visit {visit} of node {node_id!r}"
                if is_node
                else f"the router after visit {visit} of node {node_id!r}"
            )
            raise AssertionError(f"crashed {self.place}, {what} was called again, though what came of it was recorded")

    def note_write(self, write: Write) -> None:
        """Note what is recorded from now on."""
        for record in write.append.records:
            visit = (record.node_id, record.visit)
            if record.kind == CHECKPOINT:
                self.recorded.add(visit)
                self.undone.discard(record.node_id)
            if record.kind == ROLLBACK:
                self.undone.add(record.node_id)
            if record.kind in {CHECKPOINT, ROUTE} and record.fields().get("next_node") is not None:
                self.routed.add(visit)

    def compare(self, plain: _Scenario) -> None:
        """Raise AssertionError unless this run ended like `plain`, with no more calls than its crashes explain."""
        if (self.status, self.data) != (plain.status, plain.data):
            raise AssertionError(
                f"crashed {self.place}, the run ended {self.status} with {_text(self.data)}; undisturbed it ends "
                f"{plain.status} with {_text(plain.data)}"
            )
        if sorted(self.visits) != sorted(plain.visits) or (self.is_in_line and self.visits != plain.visits):
            raise AssertionError(
                f"crashed {self.place}, the run's history is {self.visits}; undisturbed it is {plain.visits}"
            )
        extra = Counter(self.calls) - Counter(plain.calls)
        # A crash may interrupt one call in each open branch.
        most = extra.total() if self.is_in_line else max(extra.values(), default=0)
        if most > len(self.died):
            raise AssertionError(
                f"crashed {self.place}, {dict(extra)} were called more often than undisturbed: at most one call more for "
                f"each crash is due"
            )


class _Subject:
    """The flow under test, and the way to run it from its beginning."""

    def __init__(
        self,
        flow: Flow,
        input: Any,
        store: Callable[[Clock], Store] | None,
        resumes: int,
        resume_from: str | None,
        turns: Sequence[Any],
        before: Callable[[], object] | None,
        signals: Mapping[str, Any] | None,
        options: Any,
    ) -> None:
        self._flow = flow
        # The entry node may change its input, so each run begins with a copy.
        self._input = flow.codec.encode(input)
        self._open = store
        self._resumes = resumes
        self._resume_from = resume_from
        self._turns = turns
        self._before = before
        self._signals = signals
        self._options = options
        self._lease: float = merge_options({}, options).lease

    def play(self, crashes: tuple[Crash, ...]) -> _Scenario:
        """Run the flow from its beginning, with these crashes."""
        if self._before is not None:
            self._before()
        scenario = _Scenario(crashes)
        with _World(self._open) as world:
            first: ResumeRequest | None = None
            if self._resume_from is not None:
                self._process(world, None).run()
                first = ResumeRequest("resume_from", self._resume_from)
            self._live(world, scenario, first)
            row = world.store.get_run(RUN_ID)
            scenario.status = row.info.status
            scenario.is_in_line = not scenario.has_branches and not _is_parallel(self._flow)
            scenario.visits = [(info.node_id, info.visit) for info in world.store.history(RUN_ID)]
            report = world.store.verify(RUN_ID)
            if not report.ok:
                raise AssertionError(f"crashed {scenario.place}, verify finds: {'; '.join(report.problems)}")
        return scenario

    def _live(self, world: _World, scenario: _Scenario, first: ResumeRequest | None) -> None:
        """Let one process after the other work on the run until it has ended."""
        left, epoch, answers = self._resumes, world.epoch, Answers(self._signals)
        request, turn = first, 0
        while True:
            process = self._process(world, request, turn)
            was_killed = self._drive(process, scenario)
            if isinstance(process.error, MilepostError):
                process.error.name_run(RUN_ID)
            if was_killed:
                world.die(process.tokens, self._lease)
            elif process.error is None and turn < len(self._turns):
                first, epoch, turn = None, world.epoch, turn + 1
            elif process.error is None:
                scenario.data = self._recorded(process.result)
                return
            elif isinstance(process.error, RunSuspended):
                answers.come(process.error, world.store)
            elif not isinstance(process.error, MilepostError) or left == 0:
                process.error.add_note(f"crashtest crashed {scenario.place}")
                raise process.error
            else:
                left -= 1
            # A verb that ended before it took the run is called again. After that the run is resumed.
            request = first if world.epoch == epoch else ResumeRequest()

    def _recorded(self, result: Any) -> bytes:
        """Return the result of a run as it is recorded."""
        if self._flow.front == "graph":
            return self._flow.codec.encode(result.state)
        return cast("StepFlow", self._flow).output_codec.encode(result.output, root="output")

    def _process(self, world: _World, request: ResumeRequest | None, turn: int = 0) -> Stepper[Any]:
        """Build a process that carries out `request`. None: it begins the run, or its continuation number `turn`."""
        bound: dict[str, Any] = {"clock": world.clock}
        if turn:
            bound["if_exists"] = "continue"
        job = Job(self._flow, world.store, RUN_ID, self._options, bound, request)
        # Events are effects too: a process can die between a write and its event.
        job.run.is_listening = True
        state = None if request is not None else self._flow.codec.decode(self._input)
        if request is None and turn:
            state = copy.deepcopy(self._turns[turn - 1])
        return Stepper(job.routine(state), clock=world.clock, hooks=job.options.hooks)

    def _drive(self, process: Stepper[Any], scenario: _Scenario) -> bool:
        """Step a process to its end (False) or to its death (True)."""
        while (effect := process.pending) is not None:
            scenario.has_branches |= process.is_gathering
            crash = scenario.meet(effect)
            if crash is not None and not crash.is_after:
                process.kill()
                return True
            if isinstance(effect, Call):
                scenario.check_call(effect)
            elif isinstance(effect, Write) and not effect.append.statements:
                scenario.note_write(effect)
            if crash is not None:
                process.perform()
            else:
                process.step()
            if isinstance(effect, Write) and effect.append.statements and was_written(effect, RUN_ID):
                scenario.note_write(effect)
            if crash is not None:
                return True
        return False


def _is_parallel(flow: Any) -> bool:
    """Return whether several nodes of a graph may run at once."""
    if flow.front != "graph":
        return False
    return bool(flow.splits) or any(unit.work is not None for unit in flow.units.values())


class _World:
    """The parts that outlive a process: the clock, and the store's place."""

    def __init__(self, open_store: Callable[[Clock], Store] | None) -> None:
        self.clock = FakeClock()
        self._open = open_store if open_store is not None else lambda clock: MemoryStore(clock=clock)
        self._opened: list[Store] = []
        self._open_again()
        self.store.delete_run(RUN_ID, force=True)

    def _open_again(self) -> None:
        """Open the store, as a process does; runs draw the same numbers in each world."""
        self.store = self._open(self.clock)
        self.store.entropy = fake_entropy
        self._opened.append(self.store)

    @property
    def epoch(self) -> int:
        """The number of owners that the run has had; 0 if there is no such run."""
        try:
            return self.store.get_run(RUN_ID).epoch
        except RunNotFoundError:
            return 0

    def die(self, tokens: Sequence[Token], lease: float) -> None:
        """Go on as another process than the one that held `tokens` and has just died."""
        if isinstance(self.store, MemoryStore):
            for token in tokens:
                self.store.abandon(token)
            return
        self._open_again()
        self.clock.advance(lease + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for store in self._opened:
            store.close()


def was_written(write: Write, run_id: str) -> bool:
    """Return whether an append took effect, which one of its statements may have undone."""
    first = write.append.records[0]
    found = write.store.read(run_id, after=first.sequence - 1, before=first.sequence + 1)
    return bool(found) and (found[0].header or b"").startswith(first.header or b"\0")


def _describe(effect: Effect) -> str:
    """Describe an effect in a few words."""
    kind = type(effect).__name__
    if isinstance(effect, Ask):
        return f"{kind} {effect.method}"
    if isinstance(effect, Call):
        return f"{kind} {effect.context.node_id}" if effect.context is not None else kind
    if isinstance(effect, Write):
        return f"{kind} {'+'.join(record.kind for record in effect.append.records) or 'release'}"
    return kind


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= 300 else text[:297] + "..."
