"""What comes from outside at every moment at which it can come: no wake-up is lost, no answer is used twice.

A run that waits is stepped effect by effect. Before each of them, and after the last, a signal or a cancel is sent once;
what follows is what any process would do. The process may die as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from milepost import (
    END,
    CompiledGraph,
    Graph,
    MemoryStore,
    Reply,
    RunCancelled,
    RunSuspended,
    SQLiteStore,
    parallel,
    step,
    workflow,
)
from milepost.errors import RunNotFoundError
from milepost.executor.checks import ResumeRequest
from milepost.store import Store
from milepost.testing import FakeClock, Stepper
from milepost.verbs import Job, flow_of

log: list[str] = []
STORES: dict[str, Callable[[FakeClock], Store]] = {
    "memory": lambda clock: MemoryStore(clock=clock),
    "sqlite": lambda clock: SQLiteStore(":memory:", clock=clock),
}


def book() -> str:
    log.append("book")
    return "12A"


@workflow("one")
def one():
    seat = yield from step("book").python(book)
    reply = yield from step("ask").wait_for("go")
    return [seat, reply.payload]


@workflow("typed")
def typed():
    seat = yield from step("book").python(book)
    reply = yield from step("ask").wait_for("go", payload=str)
    return [seat, reply.payload]


@workflow("group")
def group():
    both = yield from parallel("both", step("book").python(book), step("ask").wait_for("go"))
    return [both[0].output, both[1].output.payload]


@workflow("inner")
def inner():
    return (yield from step("ask").wait_for("go")).payload


@workflow("nested")
def nested():
    seat = yield from step("book").python(book)
    sub = yield from step("sub").subworkflow(inner)
    return [seat, sub.final_output]


@workflow("timed")
def timed():
    seat = yield from step("book").python(book)
    reply = yield from step("ask").wait_for("go", timeout=1000)
    return [seat, reply.payload]


@dataclass
class Trip:
    told: list[Any] = field(default_factory=list)


def booked(state: Trip) -> Trip:
    return Trip([book()])


def taken(state: Trip, reply: Reply[Any]) -> Trip:
    return Trip([*state.told, reply.payload])


def graph_of(name: str, payload: Any = None, timeout: float | None = None) -> Any:
    """A graph that books, then waits."""
    graph = Graph(Trip).add_node("book", booked).add_wait("ask", "go", apply=taken, payload=payload, timeout=timeout)
    return graph.add_edge("book", "ask").add_edge("ask", END).set_entry("book").compile(name)


def graph_beside() -> Any:
    """A graph that waits beside what it books."""
    graph = Graph(Trip).add_node("f", lambda state: state).add_node("book", booked).add_wait("ask", "go", apply=taken)
    graph.add_node("j", lambda state: state, merge=lambda base, ends: Trip([*ends["book"].told, *ends["ask"].told]))
    for branch in ("book", "ask"):
        graph.add_edge("f", branch).add_edge(branch, "j")
    return graph.add_edge("j", END).set_entry("f").compile("graph_beside")


def graph_around() -> Any:
    """A graph that waits in a graph inside it."""
    graph = Graph(Trip).add_subgraph("sub", graph_of("inside")).add_edge("sub", END)
    return graph.set_entry("sub").compile("graph_around")


def graph_mapped() -> Any:
    """A graph that waits in an item of a map."""
    graph = Graph(Trip).add_map(
        "m", lambda state: [Trip()], graph_of("item"), merge=lambda state, results: Trip(results[0].told)
    )
    return graph.add_edge("m", END).set_entry("m").compile("graph_mapped")


GRAPHS = (graph_of("graph"), graph_of("graph_typed", payload=str), graph_beside(), graph_around(), graph_mapped())
GRAPH_TIMED = graph_of("graph_timed", timeout=1000)
SHAPES = {flow.name: flow for flow in (one, typed, group, nested, timed, *GRAPHS, GRAPH_TIMED)}


def given_to(flow: Any) -> Any:
    return Trip() if isinstance(flow, CompiledGraph) else {}


def told_by(result: Any) -> Any:
    """What a flow ended with, from what a verb or the core's routine gave."""
    found = getattr(result, "state", getattr(result, "output", result))
    return found.told if isinstance(found, Trip) else found


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.wide)])
def store(request: pytest.FixtureRequest):
    log.clear()
    with STORES[request.param](FakeClock()) as store:
        yield store


def process(flow: Any, store: Store, wish: ResumeRequest | None = None) -> Stepper[Any]:
    job = Job(flow_of(flow), store, "r", {}, {"clock": store.clock}, wish)
    return Stepper(job.routine(None if wish is not None else given_to(flow)), clock=store.clock)  # type: ignore[arg-type]


def drive(stepper: Stepper[Any], moment: int, deed: Callable[[], object]) -> int:
    """Step to the end, with `deed` before effect number `moment`; how many effects there were."""
    count = 0
    while not stepper.is_done:
        if count == moment:
            deed()
        count += 1
        stepper.step()
    return count


def effects_of(flow: Any) -> int:
    with MemoryStore(clock=FakeClock()) as store:
        return drive(process(flow, store), -1, lambda: None)


def send(store: Store) -> Callable[[], object]:
    """Send the signal, or note that there is no run yet that could get one."""

    def deed() -> None:
        try:
            store.put_signal("r", "go", b'"yes"', signal_id="s")
        except RunNotFoundError:
            missed.append(1)

    missed: list[int] = []
    deed.missed = missed  # type: ignore[attr-defined]
    return deed


@pytest.mark.parametrize("shape", SHAPES)
def test_a_signal_at_any_moment_is_an_answer_and_only_once(store, shape):
    flow = SHAPES[shape]
    for moment in range(effects_of(flow) + 1):
        store.delete_run("r", force=True)
        log.clear()
        deed = send(store)
        first = process(flow, store)
        drive(first, moment, deed)
        if deed.missed or not store.signals("r"):
            store.put_signal("r", "go", b'"yes"', signal_id="s")
        is_parked = isinstance(first.error, RunSuspended)
        told = told_by(flow.resume(store, "r", clock=store.clock) if is_parked else first.result)
        assert (["12A", "yes"], ["book"]) == (told, log), f"signalled before effect {moment}"
        replies = store.read("r", kinds=("reply",))
        assert [1] == [record.fields()["signal"] for record in replies], f"signalled before effect {moment}"


@pytest.mark.parametrize("shape", SHAPES)
def test_a_signal_at_any_moment_of_a_process_that_dies_then_is_not_lost(store, shape):
    flow = SHAPES[shape]
    for moment in range(effects_of(flow)):
        store.delete_run("r", force=True)
        log.clear()
        first = process(flow, store)
        for _ in range(moment):
            first.step()
        if not first.tokens:
            continue
        store.put_signal("r", "go", b'"yes"')
        first.perform()
        if isinstance(store, MemoryStore):
            store.abandon(first.tokens[-1])
        else:
            store.clock.advance(31)
        told = told_by(flow.resume(store, "r", clock=store.clock))
        assert ["12A", "yes"] == told, f"died after effect {moment}"
        assert len(log) <= 2, f"died after effect {moment}"
        assert 1 == len(store.read("r", kinds=("reply",)))


@pytest.mark.parametrize("flow", [timed, GRAPH_TIMED], ids=lambda flow: flow.name)
def test_a_time_that_is_over_at_any_moment_is_a_timeout_for_good(store, flow):
    for moment in range(effects_of(flow) + 1):
        store.delete_run("r", force=True)
        log.clear()
        first = process(flow, store)
        drive(first, moment, lambda: store.clock.advance(1001))
        if isinstance(first.error, RunSuspended):
            store.clock.advance(1001)
            told = told_by(flow.resume(store, "r", clock=store.clock))
        else:
            told = told_by(first.result)
        assert ["12A", None] == told, f"passed before effect {moment}"
        assert told == told_by(flow.resume(store, "r", clock=store.clock))
        assert [True] == [record.fields()["timed_out"] for record in store.read("r", kinds=("reply",))]


def undo(ctx: Any, output: str) -> None:
    log.append(f"undo {output}")


@workflow("undone")
def undone():
    yield step("book").python(book).with_rollback(undo)
    yield step("ask").wait_for("go")


def test_a_cancel_at_any_moment_ends_the_run_and_undoes_what_was_done(store):
    effects = effects_of(undone)
    for moment in range(effects + 1):
        store.delete_run("r", force=True)
        log.clear()
        first = process(undone, store)
        sent: list[str] = []

        def cancel() -> None:
            if store.list_runs():
                sent.append(undone.cancel(store, "r", "enough"))  # noqa: B023 - called in this round

        drive(first, moment, cancel)
        if not sent:
            cancel()
        if not isinstance(first.error, RunCancelled) and sent != ["cancelled"]:
            # It waits, and the cancel is open: a worker does this.
            ((token, _),) = store.claim_due(["undone"], 1)
            with pytest.raises(RunCancelled):
                claimed(undone, store, token)
        info = store.get_run("r").info
        assert ("cancelled", "enough") == (info.status, info.reason), f"cancelled before effect {moment}"
        assert log in ([], ["book", "undo 12A"]), f"cancelled before effect {moment}"


@pytest.mark.parametrize("flow", GRAPHS, ids=lambda flow: flow.name)
def test_a_cancel_of_a_graph_at_any_moment_ends_the_run_once(store, flow):
    for moment in range(effects_of(flow) + 1):
        store.delete_run("r", force=True)
        first = process(flow, store)
        sent: list[str] = []

        def cancel() -> None:
            if store.list_runs():
                sent.append(flow.cancel(store, "r", "enough"))  # noqa: B023 - called in this round

        drive(first, moment, cancel)
        if not sent:
            cancel()
        if not isinstance(first.error, RunCancelled) and sent != ["cancelled"]:
            ((token, _),) = store.claim_due([flow.name], 1)
            with pytest.raises(RunCancelled):
                claimed(flow, store, token)
        info = store.get_run("r").info
        assert ("cancelled", "enough") == (info.status, info.reason), f"cancelled before effect {moment}"
        ends = [record.fields()["status"] for record in store.read("r", kinds=("finish",))]
        assert ["cancelled"] == ends, f"cancelled before effect {moment}"


def test_signals_for_two_visits_at_any_moment_answer_each_once(store):
    """A wait that comes again takes the second of two signals, whenever the first came."""
    graph = Graph(Trip).add_wait("ask", "go", apply=taken)
    graph.add_conditional_edge("ask", lambda state: "ask" if len(state.told) < 2 else END, ["ask", END])
    graph = graph.set_entry("ask").compile("twice")
    for moment in range(effects_of(graph) + 1):
        store.delete_run("r", force=True)
        deed = send(store)
        first = process(graph, store)
        drive(first, moment, deed)
        if not store.list_runs() or not store.signals("r"):
            store.put_signal("r", "go", b'"yes"', signal_id="s")
        store.put_signal("r", "go", b'"and"')
        assert ["yes", "and"] == told_by(graph.resume(store, "r", clock=store.clock)), f"before effect {moment}"
        used = [record.fields()["signal"] for record in store.read("r", kinds=("reply",))]
        assert [1, 2] == used, f"before effect {moment}"


def claimed(flow: Any, store: Store, token: Any) -> Any:
    """Go on with a run as a worker does."""
    from milepost.executor.resume import resume_claimed

    job = Job(flow_of(flow), store, "r", {}, {"clock": store.clock}, ResumeRequest())
    return Stepper(resume_claimed(job.run, token), clock=store.clock).run()  # type: ignore[arg-type]
