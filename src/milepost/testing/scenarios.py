"""Runs of a flow whose processes die on purpose, and the facts that are observed of them.

The core is a generator of effects, and nothing outside it changes without an effect. So a process can die at as many
moments as there are effects, and all of them can be tried: before an effect is performed, and after it was performed
but before anybody heard of it. No luck, no sleeps, no processes. (A backend that breaks a write in half is not covered:
that is the store's own promise, `StoreContract`.)

A dead process is a routine that was dropped: it performs nothing more, not even its own cleanup. Another process is a
new store object on the same place, after the dead one's lease has ended. A `MemoryStore`, which has no place, is used
further, and is told that its verb has ended. Every run begins with the same random bits and at the same time.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, Self, cast

from milepost.errors import MilepostError, OptionError, RunNotFoundError, RunSuspended
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Ask, Call, Effect, Write
from milepost.executor.flow import Flow, StepFlow
from milepost.model.failure import describe
from milepost.model.ids import Clock
from milepost.model.record import CHECKPOINT, FAILURE, ITEMS, ROLLBACK, ROUTE, WAIT, Record
from milepost.options import merge_options
from milepost.store import Store, Token
from milepost.stores.memory import MemoryStore
from milepost.testing.clock import FakeClock, fake_entropy
from milepost.testing.playing import Answers
from milepost.testing.stepping import Stepper
from milepost.verbs import Job
from milepost.views.journal import records_of
from milepost.workflows.context import WorkflowContext
from milepost.workflows.rollback import UndoContext

__all__ = ["Crash", "Machine", "Output", "Problem", "Scenario", "Subject"]

Visit = tuple[str, int]

RUN_ID = "crashtest"
MOST_EFFECTS = 100_000
"""The number of effects after which a run counts as one that never ends."""


class Crash(NamedTuple):
    """The moment at which a process dies: before or after effect number `effect` since the last crash, from 0."""

    effect: int
    is_after: bool = False


class Problem(AssertionError):
    """The error for a scenario that is not as it has to be. Its text goes on from "crashed ..."."""


class Output(NamedTuple):
    """A record of a run, reduced to what must be the same in another undisturbed run."""

    node_id: str
    visit: int
    kind: str
    branch: str | None
    way: Mapping[str, Any]
    """The fields that say where the run goes on."""
    value: tuple[Any, bytes | None]
    """The arguments of a step, and the state or result as JSON."""

    @property
    def key(self) -> tuple[str, int, str, str | None]:
        """The identity of the record."""
        return self.node_id, self.visit, self.kind, self.branch


_WAYS = ("next_node", "outcome", "verdict", "index", "count", "op", "error_type")


@dataclass(slots=True)
class Scenario:
    """One run over all its processes, and the facts that were observed."""

    to_come: list[Crash]
    """The crashes that have not been reached."""
    effects: list[str] = field(default_factory=list)
    """The names of the effects, over all processes."""
    since: int = 0
    """The number of effects since the last crash."""
    died: list[str] = field(default_factory=list)
    """Descriptions of the moments at which processes died."""
    calls: list[Visit] = field(default_factory=list)
    """The visits whose node or step was called, one for each attempt."""
    called: Counter[str] = field(default_factory=Counter)
    """The number of calls of user code of any kind, by a name for people."""
    first_after: str | None = None
    """The name of the user code that was called first after the newest crash."""
    recorded: set[Visit] = field(default_factory=set)
    """The visits whose checkpoint was written."""
    routed: set[Visit] = field(default_factory=set)
    """The visits whose next node was written too."""
    undone: set[str] = field(default_factory=set)
    """The steps whose rollback has ended and was written."""
    signals: set[str] = field(default_factory=set)
    """The names of the signals that the run has waited for."""
    status: str = ""
    data: bytes = b""
    visits: list[Visit] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    has_branches: bool = False
    """True if branches were open at any time."""
    is_in_line: bool = True
    """True if nothing runs in parallel, so that the order of all visits is known."""
    world: Any = None
    """The value of the probe after the run, as plain JSON."""
    error: Exception | None = None
    """The error that has kept the run from its end; None if it has ended."""

    @property
    def has_crashed(self) -> bool:
        """True if every crash was reached."""
        return not self.to_come

    @property
    def place(self) -> str:
        """The places of the crashes, for messages."""
        return ", then ".join(self.died) or "nowhere"

    def can_die_at(self, effect: Effect) -> bool:
        """Return whether the effect is one of those at which processes die."""
        return True

    def end_process(self) -> None:
        """Do nothing: the process dies by the end of its routine."""

    def meet(self, effect: Effect) -> Crash | None:
        """Note the next effect, and return the crash that is to happen at it, or None."""
        if not self.can_die_at(effect):
            return None
        number = self.since
        self.since += 1
        self.effects.append(type(effect).__name__)
        if not self.to_come or self.to_come[0].effect != number:
            if len(self.effects) > MOST_EFFECTS:
                raise OptionError(
                    f"the flow has not ended after {MOST_EFFECTS} effects; it was at {_describe(effect)!r}: give it an input "
                    f"with which it ends",
                    option="input",
                )
            return None
        crash = self.to_come.pop(0)
        self.since = 0
        self.first_after = None
        self.died.append(f"{'after' if crash.is_after else 'before'} effect {number} ({_describe(effect)})")
        return crash

    def note_call(self, call: Call) -> None:
        """Note the next call. Raise `Problem` if its result was recorded already."""
        if call.context is None:
            return
        node_id, visit = call.context.node_id, call.context.visit
        name = name_of(call)
        self.called[name] += 1
        if self.first_after is None:
            self.first_after = name
        is_node = call.announce is not None
        if is_node:
            self.calls.append((node_id, visit))
        elif isinstance(call.context, UndoContext) and node_id in self.undone:
            raise Problem(f"the rollback of step {node_id!r} was called again, though what came of it was recorded")
        if (node_id, visit) in (self.recorded if is_node else self.routed):
            what = (
                f"visit {visit} of node {node_id!r}"
                if is_node
                else f"the router after visit {visit} of node {node_id!r}"
            )
            raise Problem(f"{what} was called again, though what came of it was recorded")

    def note_records(self, records: Iterable[Record]) -> None:
        """Note what is recorded from now on."""
        for record in records:
            visit = (record.node_id, record.visit)
            if record.kind == CHECKPOINT:
                self.recorded.add(visit)
                self.undone.discard(record.node_id)
            if record.kind == ROLLBACK:
                self.undone.add(record.node_id)
            if record.kind == WAIT and (signal := record.fields().get("signal")) is not None:
                self.signals.add(str(signal))
            if record.kind in {CHECKPOINT, ROUTE} and record.fields().get("next_node") is not None:
                self.routed.add(visit)

    def read(self, store: Store, flow: Flow) -> None:
        """Read from the store how the run has ended. Raise `Problem` if it finds damage."""
        self.status = store.get_run(RUN_ID).info.status
        self.is_in_line = not self.has_branches and not _is_parallel(flow)
        self.visits = [(info.node_id, info.visit) for info in store.history(RUN_ID)]
        self.outputs = _outputs(store)
        report = store.verify(RUN_ID)
        if not report.ok:
            raise Problem(f"verify finds: {'; '.join(report.problems)}")


@dataclass(frozen=True, slots=True)
class Subject:
    """The flow under test, and the way to run it from its beginning. The fields are the options of `crashtest`."""

    flow: Flow
    input: bytes
    """The encoded input. The entry node may change it, so each run begins with a copy."""
    open_store: Callable[[Clock], Store] | None = None
    resumes: int = 0
    resume_from: str | None = None
    turns: Sequence[Any] = ()
    before: Callable[[], object] | None = None
    world: Callable[[], object] | None = None
    signals: Mapping[str, Any] | None = None
    fails: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def play(self, crashes: tuple[Crash, ...]) -> Scenario:
        """Run the flow from its beginning, with these crashes. An error of an undisturbed run is raised, others are noted."""
        if self.before is not None:
            self.before()
        scenario = Scenario(list(crashes))
        with Machine(self.open_store) as machine:
            machine.store.delete_run(RUN_ID, force=True)
            request: ResumeRequest | None = None
            if self.resume_from is not None:
                self._process(machine, None).run()
                request = ResumeRequest("resume_from", self.resume_from)
            try:
                self.live(machine, scenario, request)
                scenario.read(machine.store, self.flow)
            except OptionError:
                raise
            except Exception as exc:
                if not isinstance(exc, Problem):
                    exc.add_note(f"crashtest crashed {scenario.place}")
                if not scenario.died:
                    raise
                scenario.error = exc
        scenario.world = self.look()
        return scenario

    def moments(self, undisturbed: Scenario) -> int:
        """Return the number of effects at which a process of the undisturbed run can die."""
        return len(undisturbed.effects)

    def look(self) -> Any:
        """Return the value of the probe as plain JSON. Raise `OptionError` if it is none."""
        if self.world is None:
            return None
        return plain_json(self.world())

    def live(self, machine: Machine, scenario: Scenario, first: ResumeRequest | None = None) -> None:
        """Let one process after the other work on the run until it has ended."""
        left, epoch, answers = self.resumes, machine.epoch, Answers(self.signals)
        request, turn = first, 0
        while True:
            process = self._process(machine, request, turn)
            was_killed = self._drive(machine, process, scenario)
            if isinstance(process.error, MilepostError):
                process.error.name_run(RUN_ID)
            if was_killed:
                machine.die(process.tokens, merge_options({}, self.options).lease)
            elif process.error is None and turn < len(self.turns):
                first, epoch, turn = None, machine.epoch, turn + 1
            elif process.error is None and self.fails:
                raise OptionError(
                    f"the run ended {process.result.status}, and fails=True says that it has to fail: leave it out",
                    option="fails",
                )
            elif process.error is None:
                scenario.data = self._recorded(process.result)
                return
            elif isinstance(process.error, RunSuspended):
                answers.come(process.error, machine.store)
            elif not isinstance(process.error, MilepostError) or left == 0:
                if not (self.fails and machine.has_failed):
                    raise process.error
            else:
                left -= 1
            if self.fails and machine.has_failed and left == 0:
                scenario.data = machine.store.get_run(RUN_ID).info.reason.encode()
                return
            # A verb that ended before it took the run is called again. After that the run is resumed.
            request = first if machine.epoch == epoch else ResumeRequest()

    def _recorded(self, result: Any) -> bytes:
        """Return the result of a run as it is recorded."""
        if self.flow.front == "graph":
            return self.flow.codec.encode(result.state)
        return cast("StepFlow", self.flow).output_codec.encode(result.output, root="output")

    def _process(self, machine: Machine, request: ResumeRequest | None, turn: int = 0) -> Stepper[Any]:
        """Build a process that carries out `request`. None: it begins the run, or its continuation number `turn`."""
        bound: dict[str, Any] = {"clock": machine.clock}
        if turn:
            bound["if_exists"] = "continue"
        job = Job(self.flow, machine.store, RUN_ID, self.options, bound, request)
        # Events are effects too: a process can die between a write and its event.
        job.run.is_listening = True
        state = None if request is not None else self.flow.codec.decode(self.input)
        if request is None and turn:
            state = copy.deepcopy(self.turns[turn - 1])
        return Stepper(job.routine(state), clock=machine.clock, hooks=job.options.hooks)

    def _drive(self, machine: Machine, process: Stepper[Any], scenario: Scenario) -> bool:
        """Step a process to its end (False) or to its death (True)."""
        while (effect := process.pending) is not None:
            scenario.has_branches |= process.is_gathering
            crash = scenario.meet(effect)
            if crash is not None and not crash.is_after:
                scenario.end_process()
                process.kill()
                return True
            if isinstance(effect, Call):
                scenario.note_call(effect)
            elif isinstance(effect, Write) and not effect.append.statements:
                scenario.note_records(effect.append.records)
            if crash is not None:
                process.perform(scenario.end_process)
            else:
                process.step()
            if process.tokens:
                machine.settle()
            if isinstance(effect, Write) and effect.append.statements and was_written(effect, RUN_ID):
                scenario.note_records(effect.append.records)
            if crash is not None:
                return True
        return False


class Machine:
    """The parts of a machine that outlive a process: the clock, and the place of the store."""

    def __init__(self, open_store: Callable[[Clock], Store] | None) -> None:
        self.clock = FakeClock()
        self._open = open_store if open_store is not None else lambda clock: MemoryStore(clock=clock)
        self._opened: list[Store] = []
        self._ahead = timedelta(0)
        self._open_again()

    def _open_again(self) -> None:
        """Open the store, as a process does; runs draw the same numbers on each machine."""
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

    @property
    def has_failed(self) -> bool:
        """True if the run has ended as failed."""
        return self.epoch > 0 and self.store.get_run(RUN_ID).info.status == "failed"

    def die(self, tokens: Sequence[Token], lease: float) -> None:
        """Go on as another process than the one that held `tokens` and has just died."""
        if isinstance(self.store, MemoryStore):
            for token in tokens:
                self.store.abandon(token)
            return
        self._open_again()
        if self.epoch and self.store.get_run(RUN_ID).info.status == "running":
            self._ahead = timedelta(seconds=lease + 1)
            self.clock.advance(self._ahead)

    def settle(self) -> None:
        """Put the clock back by the time that a dead process's lease took: a crash takes none, and `ctx.now()` is the same.

        The lease of the new owner then ends too late to be one, and is over as soon as its process is.
        """
        if self._ahead:
            self.clock.set(self.clock.now() - self._ahead)
            self._ahead = timedelta(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for store in self._opened:
            store.close()


def plain_json(value: object) -> Any:
    """Return the value of a probe as plain JSON. Raise `OptionError` if it is none."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as exc:
        raise OptionError(f"what world= returned is no JSON: {exc}: let it return lists, dicts, texts and numbers",
                          option="world") from exc  # fmt: skip


def was_written(write: Write, run_id: str) -> bool:
    """Return whether an append took effect, which one of its statements may have undone."""
    first = write.append.records[0]
    found = write.store.read(run_id, after=first.sequence - 1, before=first.sequence + 1)
    return bool(found) and (found[0].header or b"").startswith(first.header or b"\0")


def name_of(call: Call) -> str:
    """Return a name for people of the user code that is called: a node or step has its id as its name."""
    assert call.context is not None
    if call.announce is not None:
        return call.context.node_id
    if isinstance(call.context, UndoContext):
        return f"rollback of {call.context.node_id}"
    if isinstance(call.context, WorkflowContext):
        return f"code of {call.context.node_id}"
    return f"decision of {call.context.node_id}"


def _outputs(store: Store) -> list[Output]:
    """Return the records of a run that must be the same in another undisturbed run, in order."""
    outputs = []
    for record in records_of(store, RUN_ID):
        if record.kind not in {CHECKPOINT, ROUTE, ITEMS, FAILURE, ROLLBACK} or record.is_foreign:
            continue
        fields = record.fields()
        way = {name: fields[name] for name in _WAYS if fields.get(name) is not None}
        value = fields.get("args"), record.state()
        outputs.append(Output(record.node_id, record.visit, record.kind, fields.get("branch"), way, value))
    return outputs


def _is_parallel(flow: Any) -> bool:
    """Return whether several nodes of a graph may run at once."""
    if flow.front != "graph":
        return False
    return bool(flow.splits) or any(unit.work is not None for unit in flow.units.values())


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


def text_of(data: bytes) -> str:
    """Return the result of a run for people, cut where it is long."""
    text = data.decode("utf-8", "replace")
    return text if len(text) <= 300 else text[:297] + "..."


def why(error: BaseException) -> str:
    """Describe the error that has kept a run from its end."""
    return str(error) if isinstance(error, Problem) else f"the run ended with {describe(error)}"
