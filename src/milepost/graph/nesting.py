"""Nodes that are more than a function: maps, graphs inside a graph, waits and timers.

Each does its work first, recorded piece by piece, and then calls the node's own function on the state and on the result
of the work. This call is the node's attempt, and its answer gives the node's checkpoint. After a crash the work goes on
where its records end. Decisions about the work (the items of a map, a wait's end and prompt) are recorded, and not
asked for again.

A plan, and a resume before its first write, decode all values of this kind that the resume will need. A value that
cannot be decoded is thus refused while the run is unchanged, and the refusal names the node or the item and the field.
The decoded values are kept for the walk, which asks for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import msgspec

from milepost.errors import DeserializeStateError, SerializeStateError, StateTypeError, shown
from milepost.executor import waits as parking
from milepost.executor.attempt import perform
from milepost.executor.context import Context
from milepost.executor.effects import Emit, Routine
from milepost.executor.flow import (
    END,
    Fork,
    Function,
    GraphFlow,
    GraphWork,
    MapWork,
    StateCodec,
    Unit,
    WaitWork,
    Whole,
    find_node,
)
from milepost.executor.run import Run, bounded_gather
from milepost.graph.parallel import Stop, label_of, raise_of
from milepost.graph.visits import DecisionVisit, NodeVisit
from milepost.model.failure import place
from milepost.model.record import ITEMS, NOT_JSON

if TYPE_CHECKING:
    from milepost.executor.history import JournalHistory
    from milepost.executor.history_values import StepRecord
    from milepost.graph.walker import RunCounters, Walker

SYNC_LANES = 32
"""The number of items that are open at once if no limit is set and each call needs a thread."""


def do_work(visit: NodeVisit, state: Any) -> Routine[None]:
    """Do the work of a node on a state, and give the visit what its function is called with."""
    walker, unit, run = visit.walker, visit.unit, visit.run
    work, spent = unit.work, visit.budget
    visit.began = walker.options.clock.monotonic()
    state = walker.keep(state)
    if run.is_listening:
        context: Context[Any] = Context(run.scope, visit.node_id, spent.visit, spent.attempts + 1, walker.followed_at)
        yield Emit(visit.begin(context))
    if isinstance(work, MapWork):
        result = yield from _mapped(visit, work, state)
    elif isinstance(work, GraphWork):
        result = yield from _nested(visit, work, state)
    else:
        assert isinstance(work, WaitWork)
        result = yield from _waited(visit, work, state)
    if isinstance(work, GraphWork) and work.into is None:
        visit.whole, visit.is_timed = Whole(result), False
        visit.state = visit.backup = walker.fresh(state)
        return
    visit.more = (result,)
    visit.give(walker.fresh(state))


def _decide(
    visit: NodeVisit, state: Any, function: Function, convert: Callable[[Any], Any] = lambda answer: answer
) -> Routine[Any]:
    """Call a function of the state that decides about the work, and return its answer as `convert` makes it."""
    decision = DecisionVisit(visit, visit.walker.fresh(state), function, convert)
    return (yield from perform(decision)).value


# -- maps --------------------------------------------------------------------------------------------------


class _Item(msgspec.Struct, frozen=True):
    """One item of a map, as a graph of one node. `codec` is that of its result."""

    codec: StateCodec
    splits: Mapping[str, Fork]
    update_codec: StateCodec | None = None

    def read(self, before: Any, returned: Any) -> Whole:
        """Take any return value of the function as the item's result."""
        return Whole(returned)

    def accept(self, unit: Unit, before: Any, given: Whole) -> Any:
        """Return the item's result as it is."""
        return given.state

    def updates(self, given: Whole) -> Mapping[str, Any]:
        """Return {}: a result is no state and has no fields."""
        return {}

    def replaced(self, before: Any, after: Any) -> tuple[str, ...]:
        """Return (): a result is no state and has no fields."""
        return ()


def _mapped(visit: NodeVisit, work: MapWork, state: Any) -> Routine[list[Any]]:
    """Do every item, and return the results in the order of the items."""
    walker, run, node_id, number = visit.walker, visit.run, visit.node_id, visit.budget.visit
    begun = _begun_with(walker, node_id, number)
    has_begun = begun is not None
    if begun is not None:
        items = recorded_items(node_id, begun)
    else:
        given = yield from _decide(visit, state, _listing(work.over), _listed)
        items = yield from _begun(visit, work, given)
    mapping = _Mapping(walker, visit.unit, work, number, len(items), begun)
    if walker.options.stop_before:
        ids = [f"{node_id}/{index}" for index in range(len(items))]
        mapping.next_ids = run.recorded.begun_with(ids, walker.sequence) if has_begun else set()
    routines = {f"{node_id}/{index}": mapping.do(index, item) for index, item in enumerate(items)}
    limits = [limit for limit in (work.max_parallel, walker.options.max_parallel) if limit is not None]
    needs_threads = _executor_of(walker, work) is None and not (run.is_awaited and _awaits(work.each))
    limit = min(limits, default=SYNC_LANES if needs_threads else None)
    if begun is not None:
        run.progress.queue(run.recorded.idle_parts([*routines], limit, begun.sequence))
    outcomes = yield from bounded_gather(run, routines, limit)
    raise_of(walker, node_id, number, ("item", "items"), f"of map {node_id!r}", outcomes)
    return [outcome.value for outcome in outcomes.values()]


def _awaits(each: Unit | GraphFlow) -> bool:
    """Return whether doing an item awaits a coroutine, which needs no thread."""
    return each.is_async if isinstance(each, Unit) else bool(each.async_names)


def _executor_of(walker: Walker, work: MapWork) -> Any:
    """Return the executor for the items of a map; None: threads run them."""
    return (work.each.executor if isinstance(work.each, Unit) else None) or walker.options.executor


def _begun_with(walker: Walker, node_id: str, visit: int) -> StepRecord | None:
    """Return the record of the items that a visit goes on with; None for a visit that begins."""
    if not walker.is_resuming:
        return None
    recorded = walker.run.recorded
    entry = recorded.items.get(node_id)
    is_its = entry is not None and (entry.record.visit == visit or recorded.is_in_flight(node_id, entry))
    return entry if is_its else None


def _listing(over: Function) -> Function:
    """Wrap `over` so that it returns a list.

    A generator's code then runs inside the call, as the code of `over` does.
    """
    if over.is_async:
        return over

    @functools.wraps(over.fn)
    def listing(state: Any) -> Any:
        given = over.fn(state)
        return [*given] if _is_iterable(given) else given

    return Function(listing, False)


def _is_iterable(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))


def _listed(given: Any) -> list[Any]:
    if not _is_iterable(given):
        raise StateTypeError(
            f"over= gave {shown(given)}: it must give the items, as a list",
            path="items",
            expected="an iterable of items",
            found=type(given).__name__,
        )
    return given if type(given) is list else [*given]


def _begun(visit: NodeVisit, work: MapWork, items: list[Any]) -> Routine[list[Any]]:
    """Record the items of a visit that begins, before the first is done, and return them encoded.

    Without a store return a copy of each that a store could record: one that changes in place shares nothing then either.
    Others, such as a queue, are given as they are.
    """
    walker, run, node_id = visit.walker, visit.run, visit.node_id
    if not walker.is_recorded:
        copies = [walker.journal.encode_if_possible(item, work.items) for item in items]
        return [item if data is None else work.items.decode(data) for item, data in zip(items, copies, strict=True)]
    encoded: list[Any] = []
    for index, item in enumerate(items):
        try:
            encoded.append(work.items.encode(item, root=f"items[{index}]"))
        except (SerializeStateError, StateTypeError) as exc:
            exc.run_id, exc.node_id, exc.state = run.run_id, node_id, walker.last_good()
            who = f"what over= of map {node_id!r} of run {run.run_id!r} gave cannot be recorded"
            place(exc, who, "give items that the codec carries, then resume")
            raise
    data = b"[" + b",".join(encoded) + b"]"
    record = walker.journal.make(ITEMS, node_id, visit.budget.visit, state=data, count=len(items), **walker.place())
    yield from walker.journal.write((record,))
    return encoded


class _ItemUnit:
    """The unit of one item. There may be very many, so it is a plainer object than the `Unit` that it stands for."""

    __slots__ = ("executor", "fn", "id", "is_async", "next_node", "retry", "router", "takes_context", "timeout", "work")

    def __init__(self, index: int, each: Unit) -> None:
        self.id = str(index)
        self.fn = each.fn
        self.takes_context = each.takes_context
        self.is_async = each.is_async
        self.retry = each.retry
        self.timeout = each.timeout
        self.executor = each.executor
        self.next_node = END
        self.router = None
        self.work = None


class _Mapping:
    """One visit of a map, while its items are being done."""

    __slots__ = (
        *("begun", "done", "flow", "label", "next_ids", "node_id", "not_before", "stop", "stops", "tally", "total"),
        *("visit", "walker", "work"),
    )

    def __init__(
        self, walker: Walker, unit: Unit, work: MapWork, visit: int, total: int, begun: StepRecord | None
    ) -> None:
        self.walker = walker
        self.work = work
        self.visit = visit
        self.total = total
        self.done = 0
        self.next_ids: set[str] | None = None
        """The items that a resume begins with; None if that does not matter."""
        self.node_id = walker.prefix + unit.id
        self.begun = -1 if begun is None else begun.sequence
        """The number of the record of the items, if they were recorded before: results of items count that come after it."""
        self.not_before = walker.journal.sequence if begun is None else begun.sequence
        # The records of the items are labelled with the visit that began with them.
        self.label = label_of(walker, unit.id, visit if begun is None else begun.record.visit, "")
        self.stop = Stop(is_fast=False)
        self.stops = (*walker.stops, self.stop)
        self.tally = walker.item_tally()
        self.flow = cast("GraphFlow", _Item(work.results, {}))

    def do(self, index: int, item: Any) -> Routine[Any]:
        """Return the result of one item, recorded or new, and announce the map's progress."""
        try:
            result = yield from self._item(index, item)
        except BaseException as exc:
            self.stop.hear(exc)
            raise
        self.done += 1
        yield from self.walker.run.announce_progress(self.node_id, self.done, self.total)
        return result

    def _item(self, index: int, item: Any) -> Routine[Any]:
        walker, each = self.walker, self.work.each
        if isinstance(each, Unit):
            inner = self._inner(index, self.flow, f"{self.node_id}/", self.tally)
            return inner.do_item(cast("Unit", _ItemUnit(index, each)), self.visit, item, self.work.items, self.begun)
        inner = self._inner(index, each, f"{self.node_id}/{index}/", walker.item_tally())
        if inner.has_begun():
            return inner.go(None, None, each.entry)
        state = each.codec.decode(item, root="item") if walker.is_recorded else item
        return inner.go(state, item if walker.is_recorded else None, each.entry)

    def _inner(self, index: int, flow: GraphFlow, prefix: str, tally: RunCounters) -> Walker:
        """Make a walker of one item."""
        inner = self.walker.inner(flow, prefix, f"{self.label}{index}", tally)
        inner.stops, inner.not_before = self.stops, self.not_before
        if self.next_ids is not None:
            inner.is_next = inner.is_next and f"{self.node_id}/{index}" in self.next_ids
        return inner


# -- graphs inside -----------------------------------------------------------------------------------------


def _nested(visit: NodeVisit, work: GraphWork, state: Any) -> Routine[Any]:
    """Walk another graph, and return its final state."""
    walker = visit.walker
    graph: GraphFlow = work.graph
    inner = walker.inner(graph, f"{visit.node_id}/", walker.label)
    begins: Any = None
    data: bytes | None = None
    if not inner.has_begun():
        if work.into is None:
            begins, data = walker.fresh(state), walker.given
        else:
            begins = yield from _decide(visit, state, work.into, _state_of(graph))
            data = walker.journal.encode_if_possible(begins, graph.codec)
            if data is not None:
                begins = graph.codec.decode(data)  # other code may hold the object that `into` gave
    return (yield from inner.go(begins, data, graph.entry))


def _state_of(graph: GraphFlow) -> Callable[[Any], Any]:
    def check(given: Any) -> Any:
        try:
            graph.codec.check(given)
        except StateTypeError as exc:
            exc.args = (f"into= gave no state of graph {graph.name!r}: {exc.args[0]}",)
            raise
        return given

    return check


# -- waits -------------------------------------------------------------------------------------------------


def _waited(visit: NodeVisit, work: WaitWork, state: Any) -> Routine[Any]:
    """Wait, and return the reply."""
    walker, node_id, number = visit.walker, visit.node_id, visit.budget.visit
    prompt, until = work.prompt, None
    is_woken = parking.is_waiting(visit.run, node_id, number)
    if not is_woken:
        if isinstance(prompt, Function):
            prompt = yield from _decide(visit, state, prompt)
        if work.until is not None:
            until = yield from _decide(visit, state, work.until, _time)
    reply, _ = yield from parking.wait(
        visit.run, parking.waits_of(work, until, prompt), node_id, number, walker.place()
    )
    if is_woken:
        # max_iterations limits the nodes between two waits, not those of a whole run. A wait that had its
        # reply at once does not begin a new count.
        walker.tally.iteration = 0
    return reply


def _time(given: Any) -> datetime:
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise StateTypeError(
            f"until= gave {shown(given)}: it must give a datetime with a zone",
            path="until",
            expected="an aware datetime",
            found=type(given).__name__,
        )
    return given


# -- early decoding ----------------------------------------------------------------------------------------


def decode_inside(run: Run, flow: GraphFlow, since: JournalHistory, decoded: dict[int, Any], prefix: str = "") -> None:
    """Decode what a walk of `flow` below `prefix` needs: results and items of maps, replies, updates, states.

    The states of a run's own graph and of its branches are left out: `milepost.graph.checks` decodes them, and
    compares them with the flow as well. Results of items go to `decoded`, by the number of their record. Raises
    DeserializeStateError.
    """
    for node_id, entry in since.done.items():
        known = _unit_below(flow, node_id, prefix)
        if known is None or since.is_over(node_id, entry):
            continue
        graph, unit, is_item = known
        with _named(run, node_id, "result" if is_item else "state"):
            if is_item and isinstance(unit.work, MapWork):
                decoded[entry.sequence] = unit.work.results.decode(since.state_of(entry), root="output")
            elif prefix:
                graph.codec.decode(since.content(entry)[0])
            if graph.update_codec is not None:
                for update in since.updates_in(entry):
                    graph.update_codec.decode(msgspec.json.encode(update), root="updates")
    for node_id, entry in since.items.items():
        known = _unit_below(flow, node_id, prefix)
        if known is not None and isinstance(known[1].work, MapWork) and not since.is_over(node_id, entry):
            _decode_items(run, known[1].work, since, node_id, entry)
    for node_id, entry in since.replies.items():
        known = _unit_below(flow, node_id, prefix)
        if known is not None and isinstance(known[1].work, WaitWork) and not since.is_over(node_id, entry):
            with _named(run, node_id, "reply"):
                parking.reply_of(parking.waits_of(known[1].work), entry.record.state() or b"{}")


def _unit_below(flow: GraphFlow, node_id: str, prefix: str) -> tuple[GraphFlow, Unit, bool] | None:
    return find_node(flow, node_id[len(prefix) :]) if node_id.startswith(prefix) else None


def _decode_items(run: Run, work: MapWork, since: JournalHistory, node_id: str, entry: StepRecord) -> None:
    """Decode the items that are not done yet, in the form in which the function or the graph will get them."""
    is_graph = not isinstance(work.each, Unit)
    for index, item in enumerate(recorded_items(node_id, entry)):
        item_id = f"{node_id}/{index}"
        if item_id in since.done or (is_graph and since.children(item_id)):
            continue
        with _named(run, item_id, "input"):
            if isinstance(work.each, Unit):
                work.items.decode(item, root="item")
            else:
                work.each.codec.decode(item, root="item")


def recorded_items(node_id: str, entry: StepRecord) -> list[bytes]:
    """Read the encoded items of a map from their record. Raises DeserializeStateError if they are damaged."""
    try:
        return [bytes(raw) for raw in msgspec.json.decode(entry.record.state() or b"", type=list[msgspec.Raw])]
    except NOT_JSON as exc:
        raise DeserializeStateError(f"the items of map {node_id!r} are damaged: {exc}", path="items") from exc


@contextmanager
def _named(run: Run, node_id: str, what: str) -> Iterator[None]:
    try:
        yield
    except DeserializeStateError as exc:
        exc.run_id, exc.node_id = run.run_id, node_id
        place(
            exc,
            f"the recorded {what} of {node_id!r} of run {run.run_id!r} cannot be read by flow {run.flow.name!r} as it is now",
            "bring the type back that it was recorded with, or give new fields a default",
        )
        raise
