"""The driver of a replay: it answers each call of user code with the recorded outcome, and executes none of them.

A call is one of a node, item, step or rollback if the core announces it, or gives it the context of a rollback. All
other calls decide about the path (routers, merges, prompts, predicates) and are made, but for the items of a map, which
are recorded. Calls of branches are answered in the order of their records, so that a failure stops the same nodes as it
did.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from heapq import heappop, heappush
from typing import Any, cast

import msgspec

from milepost.drivers.branches import Branch, Branches
from milepost.drivers.threads import PendingSet
from milepost.errors import DeserializeStateError
from milepost.executor.context import Context
from milepost.executor.effects import Ask, Call, Effect, Gather, Outcome, Routine, Write
from milepost.executor.flow import Flow, GraphFlow, MapWork, Part, StepFlow, Unit, Whole, find_node
from milepost.executor.history import JournalHistory
from milepost.executor.history_values import PendingRecord, StepRecord
from milepost.graph.nesting import recorded_items
from milepost.graph.run import NodeRun
from milepost.model.events import Event
from milepost.model.lifecycle import NodeStarted
from milepost.model.record import CONTINUE, FAILURE, OWNER, REPLACED, WAIT, Record, parse_time, source_of
from milepost.options import Options
from milepost.store import Signal, Store
from milepost.testing.clock import FakeClock
from milepost.testing.recorded import RecordedRun
from milepost.testing.recorded_errors import raised_again, timed_out_again
from milepost.testing.stepping import _StepDriver
from milepost.verbs import Job
from milepost.workflows.rollback import UndoContext
from milepost.workflows.run import Frame, StepRun
from milepost.workflows.steps import Calls, Invokes, Step


class Unrecorded(BaseException):
    """The end of a replay at a call whose outcome the record does not have."""


class _Clock(FakeClock):
    """A clock that never shows the same time twice, so that a record of the replay is known by its time."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self.on_advance = []

    def time(self) -> float:
        now = super().time()
        self._wall += 1
        return now

    def catch_up(self, moment: datetime) -> None:
        """Go on to `moment`, unless it is over."""
        if moment.timestamp() > super().time():
            self.set(moment)


class Player(_StepDriver):
    """The driver of one replay. `run` are the ids of the nodes and steps that are executed."""

    clock: _Clock

    def __init__(self, recorded: RecordedRun, flow: Flow, run: frozenset[str]) -> None:
        super().__init__(_Clock(parse_time(str(recorded.start.fields["timestamp"]))), ())
        self.recorded = recorded
        self.flow = flow
        self._run = run
        self.executed: set[str] = set()
        """Those of `run` that have been called."""
        self._steps: dict[str, Step[Any]] = {}
        self._signals: list[Signal] = []
        """The recorded answers to the waits that the replay has come to, each for its wait."""
        # Each entry is taken out when it is used.
        self._outcomes = {node_id: deque(outcomes) for node_id, outcomes in recorded.outcomes.items()}
        self._replies = {node_id: deque(replies) for node_id, replies in recorded.replies.items()}
        self._items = {node_id: deque(items) for node_id, items in recorded.items.items()}
        self._times = {place: deque(times) for place, times in recorded.times.items()}
        self._original: dict[str, str] = {}
        """The times of the replay's own records, each with that of the same record of the run."""

    def play(self, store: Store, run_id: str, given: dict[str, Any], state: Any) -> Any:
        """Play the run, or with `if_exists` in `given` its next turn, and return its result."""
        job = Job(cast("Flow", ReplayedFlow(self)), store, run_id, given, {"clock": self.clock}, None)
        job.run.is_listening = True  # the calls of nodes and steps are announced then
        self._original[job.run.followed_at] = str(self.recorded.start.fields["timestamp"])
        return self.run(job.routine(state))

    def publish(self, event: Event) -> list[Any]:
        """Tell nobody: the events of a replay are no news."""
        return []

    def note(self, step: Step[Any], step_id: str) -> Step[Any]:
        """Note a step that the code asks for, and return it."""
        self._steps[step_id] = step
        return step

    def time_of(self, kind: str, node_id: str) -> str:
        """Return the time of the next record of a kind and node; "" if there is none."""
        times = self._times.get((kind, node_id))
        return times[0] if times else ""

    # -- effects ---------------------------------------------------------------------------------------

    def perform(self, effect: Effect) -> Any:
        """Return the answer of one effect, or raise its error."""
        if isinstance(effect, Ask) and effect.method == "signals":
            return [signal for signal in self._signals if signal.number > effect.kwargs["after"]]
        if isinstance(effect, Ask) and effect.method == "claim":
            self._written(effect.args[0].record)
        answer = super().perform(effect)
        if isinstance(effect, Write):
            for record in effect.append.records:
                self._written(record)
        return answer

    def _written(self, record: Record) -> None:
        """Note the time that a record has in the run, and answer the wait that it begins."""
        fields = record.fields()
        times = self._times.get((record.kind, record.node_id))
        if times and (record.kind != OWNER or fields.get("verb") == CONTINUE):
            self._original[str(fields["timestamp"])] = times.popleft()
        if record.kind == WAIT:
            replies = self._replies.get(record.node_id)
            reply = replies.popleft() if replies else None
            if reply is not None:
                self._reply(reply, fields)

    def _reply(self, reply: StepRecord, wait: Mapping[str, Any]) -> None:
        if "signal" not in reply.fields:
            self.clock.catch_up(parse_time(wait["wake_at"]))
            return
        answer = msgspec.json.decode(reply.record.state() or b"{}", type=dict[str, msgspec.Raw])
        payload = bytes(answer.get("payload", b"null"))
        sent_at = msgspec.json.decode(answer.get("sent_at", b"null"))
        number = len(self._signals) + 1
        moment = self.clock.time() if sent_at is None else parse_time(sent_at).timestamp()
        data = None if payload == b"null" else payload
        self._signals.append(Signal(number, wait["signal"], data, None, wait["wait_id"], moment))

    def _gather(self, gather: Gather) -> dict[str, Outcome]:
        """Step all branches here. The call that is answered next is the one whose outcome was recorded first."""
        branches = Branches(gather)
        wanted: list[tuple[float, int, Branch, Call]] = []
        try:
            while not branches.is_over:
                while (item := branches.step()) is not None:
                    branch, effect = item
                    if isinstance(effect, Call):
                        branches.want(branch, effect)
                    else:
                        self._answer_in(branches, branch, effect)
                for branch, call in branches.admitted():
                    heappush(wanted, (self._place(call), id(branch), branch, call))
                if wanted:
                    place, _, branch, call = heappop(wanted)
                    branches.has_called(branch)
                    if place < math.inf or not self._is_halted(branches, branch, call, wanted):
                        self._answer_in(branches, branch, call)
        except BaseException as end:
            self.run(branches.ended_by(end))
            raise
        return branches.outcomes

    def _is_halted(
        self, branches: Branches, branch: Branch, call: Call, wanted: list[tuple[float, int, Branch, Call]]
    ) -> bool:
        """Return whether a call without an outcome never began, because a failure beside it had stopped its branch."""
        branches.want(branch, call)
        for other, admitted in branches.admitted():
            if other is branch:
                branches.has_called(branch)
                return False
            heappush(wanted, (self._place(admitted), id(other), other, admitted))
        return True

    def _answer_in(self, branches: Branches, branch: Branch, effect: Effect) -> None:
        try:
            branches.answer(branch, self.perform(effect))
        except Exception as exc:
            branches.fail(branch, exc)

    def _place(self, call: Call) -> float:
        """Return the number of the record with a call's outcome: -1 for a call that is made, infinity for no record."""
        if not _is_answered(call) or call.context is None:
            return -1
        outcomes = self._outcomes.get(call.context.node_id)
        return outcomes[0].sequence if outcomes else math.inf

    # -- calls -----------------------------------------------------------------------------------------

    def _call(self, call: Call, open_calls: PendingSet | None = None) -> Any:
        context = call.context
        if context is not None:
            context._followed_at = self._original.get(context._followed_at, context._followed_at)
            outcomes = self._outcomes.get(context.node_id)
            if self.recorded.origins and outcomes:
                context._source = source_of(self.recorded.origins, outcomes[0].sequence)
        if context is None:
            return self._made(call)
        if isinstance(context, UndoContext):
            return self._undone(context.node_id)
        if named := {name for name in self._run if is_part_of(context.node_id, name)}:
            self.executed |= named
            return self._executed(call, context)
        if call.announce is None:
            work = self._mapped_by(call, context.node_id)
            return self._made(call) if work is None else self._items_of(work, context.node_id)
        if not outcomes:
            raise Unrecorded(f"{context.node_id!r} was called for visit {context.visit}, which is not recorded")
        entry = outcomes.popleft()
        self.clock.catch_up(parse_time(str(entry.fields["timestamp"])))
        if entry.record.kind == FAILURE:
            raise self._failure(call, entry.fields)
        try:
            return self._recorded_answer(call, context.node_id, entry)
        except DeserializeStateError as exc:
            what = f"what is recorded of visit {context.visit} of {context.node_id!r}"
            raise Unrecorded(f"{what} cannot be read by the flow as it is now: {exc}") from exc

    def _recorded_answer(self, call: Call, node_id: str, entry: StepRecord) -> Any:
        if isinstance(call.announce, NodeStarted):
            return self._node_answer(call, node_id, entry)
        work = self._steps[node_id].work
        assert isinstance(work, Calls)
        return cast("StepFlow", self.flow).codec_of(work.fn).decode(bytes(entry.outcome().output), root="output")

    def _made(self, call: Call) -> Any:
        """Make a call; a coroutine runs in an event loop of its own, in a thread if this one has a loop."""
        if not call.is_async or not _has_loop():
            return super()._call(call)
        ends: list[Any] = []
        thread = threading.Thread(target=lambda: ends.append(_end_of(super(Player, self)._call, call)))
        thread.start()
        thread.join()
        value, error = ends[0]
        if error is not None:
            raise error
        return value

    def _executed(self, call: Call, context: Context[Any]) -> Any:
        """Execute a node or step, but not the statements that it asks for, and pass over its recorded outcomes."""
        if call.announce is None:
            return self._made(call)
        outcomes = self._outcomes.get(context.node_id)
        while context.attempt == 1 and outcomes:
            entry = outcomes.popleft()
            if entry.record.kind != FAILURE or not entry.fields.get("retry_at"):
                break
        context._statements = []
        try:
            return self._made(call)
        finally:
            context._statements = None

    def _mapped_by(self, call: Call, node_id: str) -> MapWork | None:
        """Return the map whose items a call is to give; None for any other call."""
        found = self._find(node_id)
        work = None if found is None or found[2] else found[1].work
        return work if isinstance(work, MapWork) and getattr(call.fn, "__wrapped__", call.fn) is work.over.fn else None

    def _items_of(self, work: MapWork, node_id: str) -> list[Any]:
        records = self._items.get(node_id)
        if not records:
            raise Unrecorded(f"the items of {node_id!r} were asked for, which are not recorded")
        return [work.items.decode(item, root="item") for item in recorded_items(node_id, records.popleft())]

    def _undone(self, step_id: str) -> None:
        entry = self.recorded.history.undone.get(step_id)
        if entry is None:
            raise Unrecorded(f"the rollback of {step_id!r} was called, which is not recorded")
        if entry.fields.get("error_type") is not None:
            raise raised_again(entry.fields, None)

    def _failure(self, call: Call, fields: Mapping[str, Any]) -> Exception:
        assert call.context is not None
        if fields.get("op") == "timeout":
            return timed_out_again(fields, call.timeout or 0.0)
        node_id = call.context.node_id
        if not isinstance(call.announce, NodeStarted):
            return raised_again(fields, self._steps[node_id].modifiers.retry)
        _, unit, is_item = self._unit(node_id)
        each = cast("MapWork", unit.work).each if is_item else unit
        return raised_again(fields, cast("Unit", each).retry)

    def _find(self, node_id: str) -> tuple[GraphFlow, Unit, bool] | None:
        """Find a node of the graph, or of a graph that is a step of the workflow; None if there is none."""
        graph, inner = self.flow, node_id
        for step_id, step in self._steps.items():
            if isinstance(step.work, Invokes) and node_id.startswith(f"{step_id}/") and step.work.flow.front == "graph":
                graph, inner = step.work.flow, node_id[len(step_id) + 1 :]
        return find_node(cast("GraphFlow", graph), inner) if graph.front == "graph" else None

    def _unit(self, node_id: str) -> tuple[GraphFlow, Unit, bool]:
        found = self._find(node_id)
        assert found is not None
        return found

    def _node_answer(self, call: Call, node_id: str, entry: StepRecord) -> Any:
        """Make what a node returned: a whole state or, where a join needs to know them, the values for its reducers."""
        graph, unit, is_item = self._unit(node_id)
        data = self.recorded.state_of(entry)
        if is_item:
            return cast("MapWork", unit.work).results.decode(data, root="output")
        after, codec = graph.codec.decode(data), graph.update_codec
        if codec is None or not graph.takes_parts or not entry.fields.get("branch"):
            return Whole(after)
        updates = entry.fields.get("updates") or {}
        own = (updates[-1] if updates else {}) if isinstance(updates, list) else updates
        if REPLACED in own:
            return Whole(after)
        before = graph.codec.decode(graph.codec.encode(call.args[-1]))
        given = codec.decode(msgspec.json.encode(own), root="updates")
        was, now = (msgspec.json.decode(graph.codec.encode(state)) for state in (before, after))
        others = [name for name in now if name not in given and now[name] != was.get(name)]
        read = after.get if isinstance(after, dict) else lambda name: getattr(after, name)
        part = Part({**{name: read(name) for name in others}, **given})
        return part.fields if graph.codec.encode(graph.accept(unit, before, part)) == data else Whole(after)


def is_part_of(node_id: str, name: str) -> bool:
    """Return whether a node or step is the one of a name, or a part of it."""
    return node_id == name or node_id.startswith(f"{name}/")


def _is_answered(call: Call) -> bool:
    """Return whether a call is one of a node, item, step or rollback."""
    return call.announce is not None or isinstance(call.context, UndoContext)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _end_of(make: Callable[[Call], Any], call: Call) -> tuple[Any, BaseException | None]:
    try:
        return make(call), None
    except BaseException as exc:
        return None, exc


# -- the flow, with the record's facts -------------------------------------------------------------------------


class ReplayedFlow:
    """A flow whose run begins with what the record says of its beginning."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def __getattr__(self, name: str) -> Any:
        return getattr(self._player.flow, name)

    def new_run(self, store: Store | None, run_id: str, options: Options, *, is_listening: bool) -> NodeRun | StepRun:
        """Make a run."""
        start = self._player.recorded.start
        if self._player.flow.front == "graph":
            return NodeRun(cast("GraphFlow", self), store, run_id, options, is_listening=is_listening)
        run = _ReplayedSteps(cast("StepFlow", self), store, run_id, options, is_listening=is_listening)
        run.player, run.version = self._player, int(start.fields.get("flow_version") or 1)
        run.know(JournalHistory(start=start))
        return run

    def taken_up(self, before: Any, given: Any) -> Any:
        """Return the state of a turn, which is recorded as a whole."""
        return given


class _ReplayedSteps(StepRun):
    """A run of a workflow whose records have the times of the recorded ones."""

    __slots__ = ("player",)
    player: Player

    def _asked(self, frame: Frame, asked: Any) -> Step[Any]:
        step = super()._asked(frame, asked)
        return self.player.note(step, frame.prefix + step.name)

    def do(self, step: Step[Any], step_id: str, frame: Frame, **given: Any) -> Routine[Any]:
        return super().do(self.player.note(step, step_id), step_id, frame, **given)

    def record(self, drafts: tuple[PendingRecord, ...], *, at: str = "", **given: Any) -> Routine[tuple[int, str]]:
        known = self.player.time_of(drafts[-1].kind, drafts[-1].step_id) if drafts else ""
        return super().record(drafts, at=known or at, **given)
