"""Events that no record tells, as a handle gives them: in one order with those of records, from whatever runs the run."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

import pytest

from milepost import END, START, Engine, Graph, MemoryStore, Retry, step, workflow
from milepost.drivers import live as live_module
from milepost.drivers.live import LiveWriter, live_writer
from milepost.events import Emitted, EventsMissed, NodeCompleted, Progress, UnrecordedEvent
from milepost.model.live import MOST_EVENTS
from milepost.model.live_bodies import LARGEST_DATA


@dataclass
class Count:
    n: int = 0


def work(engine):
    engine.worker().run(until_idle=True)
    live_writer.flush(30)


def talking(verbs, *, tokens=3, rounds=2, name="talking"):
    """A graph with one node, which emits `tokens` in each of its visits."""

    def talk(ctx, state: Count) -> Count:
        for number in range(tokens):
            ctx.emit("token", state.n * tokens + number)
        return Count(state.n + 1)

    graph = Graph(Count).add_node("talk", verbs.node(talk)).add_edge(START, "talk")
    return graph.add_conditional_edge("talk", lambda s: END if s.n >= rounds else "talk", ["talk", END]).compile(name)


def brief(events):
    """The data of emitted events, the counts of missed ones, and the names of the others."""
    told = []
    for event in events:
        if isinstance(event, Emitted):
            told.append(event.data)
        else:
            told.append((event.count,) if isinstance(event, EventsMissed) else type(event).__name__)
    return told


@pytest.mark.every_store
def test_a_late_reader_gets_live_events_in_the_order_of_the_run(verbs, store):
    graph = talking(verbs)
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count(), run_id="r")
    work(engine)
    events = verbs.events(handle, "events")
    assert ["RunStarted", 0, 1, 2, "NodeCompleted", 3, 4, 5, "NodeCompleted", "RunCompleted"] == brief(events)
    assert [1, 1, 1, 1, 2, 2, 2, 2, 3, 4] == [event.sequence for event in events]
    emitted = [event for event in events if isinstance(event, UnrecordedEvent)]
    assert [(2, number) for number in range(1, 7)] == [(event.epoch, event.number) for event in emitted]
    assert [("talk", 1, 1)] * 3 + [("talk", 2, 1)] * 3 == [(e.node_id, e.visit, e.attempt) for e in emitted]
    assert [3, 4, 5, "NodeCompleted", "RunCompleted"] == brief(verbs.events(handle, "events", after=2))
    assert ["RunCompleted"] == brief(verbs.events(handle, "events", after=3))


@pytest.mark.every_store
def test_two_readers_get_each_event_once_while_the_run_goes_on(verbs, medium):
    graph = talking(verbs, tokens=100, rounds=10)
    store = medium.open()
    engine = Engine(store, flows=[graph])
    engine.start(graph, Count(), run_id="r")
    told = {}

    def read(name, handle):
        told[name] = brief(verbs.events(handle, "events", after=-1))

    handles = {"same": engine.handle("r"), "other": Engine(medium.open(), flows=[graph]).handle("r")}
    readers = [threading.Thread(target=read, args=one) for one in handles.items()]
    for reader in readers:
        reader.start()
    engine.worker().run(until_idle=True)
    for reader in readers:
        reader.join(30)
    numbers = [number for number in told["same"] if isinstance(number, int)]
    assert [*range(1000)] == numbers
    assert told["same"] == told["other"]
    assert ["RunStarted", "RunStarted", 0] == told["same"][:3]


def test_records_count_the_live_events_before_them_only_if_there_are_any(verbs, store):
    def fails(ctx, state: Count) -> Count:
        if ctx.attempt == 1:
            ctx.progress(1, 2, "half")
            raise ValueError("not yet")
        ctx.emit("done")
        return state

    graph = Graph(Count).add_node("quiet", verbs.node(lambda state: state)).add_node("b", verbs.node(fails))
    graph = graph.add_edge(START, "quiet").add_edge("quiet", "b").add_edge("b", END).compile("counting")
    verbs.run(graph, Count(), store=store, run_id="r", retry=Retry(2, backoff=0))
    assert [(record.kind, record.fields().get("live")) for record in store.read("r")] == [
        ("start", None),
        ("checkpoint", None),
        ("failure", 1),
        ("checkpoint", 2),
        ("finish", 2),
    ]
    live_writer.flush(30)
    events = verbs.events(Engine(store, flows=[graph]).handle("r"), "events")
    told = [(type(event).__name__, event.attempt) for event in events if hasattr(event, "attempt")]
    assert [
        ("NodeCompleted", 1),
        ("Progress", 1),
        ("AttemptFailed", 1),
        ("Emitted", 2),
        ("NodeCompleted", 2),
    ] == told


def test_a_map_reports_its_progress_to_readers_elsewhere(verbs, store):
    @workflow("mapping")
    def mapping():
        return (yield from step("each").map(verbs.node(lambda number: number * 2), [1, 2, 3]))

    engine = Engine(store, flows=[mapping])
    handle = engine.start(mapping, run_id="r")
    work(engine)
    progress = [event for event in verbs.events(handle, "events") if isinstance(event, Progress)]
    assert [("each", 1, 3), ("each", 2, 3), ("each", 3, 3)] == [(e.node_id, e.done, e.total) for e in progress]


@pytest.mark.every_store
def test_an_attempt_that_runs_again_after_a_crash_emits_again(verbs, medium, clock):
    store = medium.open(clock=clock)
    lives = []

    def talk(ctx, state: Count) -> Count:
        lives.append(1)
        for number in range(3):
            ctx.emit("token", [len(lives), number])
        if len(lives) == 1:
            raise verbs.Killed
        return Count(state.n + 1)

    graph = Graph(Count).add_node("talk", verbs.node(talk)).add_edge(START, "talk").add_edge("talk", END).compile("g")
    engine = Engine(store, flows=[graph], clock=clock)
    job = engine.start(graph, Count(), run_id="r")
    with pytest.raises(verbs.Killed):
        verbs.resume(graph, store, "r", clock=clock)
    verbs.resume(graph, store, "r", clock=clock)
    live_writer.flush(30)
    events = [event for event in verbs.events(job, "events") if isinstance(event, UnrecordedEvent)]
    assert [[1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]] == [event.data for event in events]
    assert [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)] == [(event.epoch, event.number) for event in events]


def test_what_does_not_fit_into_the_queue_is_told_as_missed(verbs, store, monkeypatch):
    graph = talking(verbs, tokens=10, rounds=1)
    monkeypatch.setattr(live_module, "_MOST_QUEUED", 4)
    with live_writer._writing:  # the thread that writes does not come to it
        verbs.run(graph, Count(), store=store, run_id="r")
    live_writer.flush(30)
    handle = Engine(store, flows=[graph]).handle("r")
    assert [(6,), 6, 7, 8, 9, "NodeCompleted", "RunCompleted"] == brief(verbs.events(handle, "events"))


@pytest.mark.every_store
def test_the_newest_events_of_a_run_are_kept(verbs, store):
    graph = talking(verbs, tokens=MOST_EVENTS + 500, rounds=1)
    verbs.run(graph, Count(), store=store, run_id="r")
    live_writer.flush(30)
    assert MOST_EVENTS == len(store.read_live("r", limit=2 * MOST_EVENTS))
    told = brief(verbs.events(Engine(store, flows=[graph]).handle("r"), "events"))
    assert [(500,), 500, 501] == told[:3]
    assert [MOST_EVENTS + 499, "NodeCompleted", "RunCompleted"] == told[-3:]


def test_large_data_is_told_and_not_carried(verbs, store):
    def talk(ctx, state: Count) -> Count:
        ctx.emit("large", "x" * 10_000_000)
        for _ in range(10):
            ctx.emit("page", "x" * (LARGEST_DATA // 2))
        return state

    graph = Graph(Count).add_node("talk", verbs.node(talk)).add_edge(START, "talk").add_edge("talk", END).compile("g")
    verbs.run(graph, Count(), store=store, run_id="r")
    live_writer.flush(30)
    events = verbs.events(Engine(store, flows=[graph]).handle("r"), "events")
    assert ["EventsMissed", *["Emitted"] * 7, "NodeCompleted", "RunCompleted"] == [type(e).__name__ for e in events]
    assert 4 == events[0].count


def test_a_single_large_event_says_why_it_has_no_data(verbs, store):
    def talk(ctx, state: Count) -> Count:
        ctx.emit("large", "x" * 10_000_000)
        return state

    graph = Graph(Count).add_node("talk", verbs.node(talk)).add_edge(START, "talk").add_edge("talk", END).compile("g")
    verbs.run(graph, Count(), store=store, run_id="r")
    live_writer.flush(30)
    first = verbs.events(Engine(store, flows=[graph]).handle("r"), "events")[0]
    assert ("large", None) == (first.name, first.data)
    assert "10000000 bytes" in first.omitted


class Failing(MemoryStore):
    def write_live(self, batches):
        raise OSError("no space left")


def test_a_store_that_loses_live_events_fails_no_run_and_is_logged_once(verbs, jumping, caplog):
    store, graph = Failing(clock=jumping), talking(verbs, tokens=2)
    with caplog.at_level(logging.WARNING, "milepost"):
        for run_id in ("r", "s"):
            assert Count(2) == verbs.run(graph, Count(), store=store, run_id=run_id, clock=jumping)
            live_writer.flush(30)
    assert ["live events of runs in memory:// are lost: OSError: no space left"] == [
        record.getMessage() for record in caplog.records
    ]
    handle = Engine(store, flows=[graph], clock=jumping).handle("r")
    told = brief(verbs.events(handle, "events"))
    assert [(2,), "NodeCompleted", (2,), "NodeCompleted", "RunCompleted"] == told


class Silent(MemoryStore):
    keeps_live = False

    def _keep_live_in(self, shelf):
        pass


def test_a_store_without_live_events_tells_those_of_records_alone(verbs):
    store, graph = Silent(), talking(verbs)
    verbs.run(graph, Count(), store=store, run_id="r")
    assert [None] * 4 == [record.fields().get("live") for record in store.read("r")]
    handle = Engine(store, flows=[graph]).handle("r")
    assert ["NodeCompleted", "NodeCompleted", "RunCompleted"] == brief(verbs.events(handle, "events"))


def test_a_fork_does_not_wait_for_the_live_events_of_its_origin(verbs, store):
    graph = talking(verbs)
    verbs.run(graph, Count(), store=store, run_id="r")
    verbs.call(graph, "fork_run", store, "r", "talk", 1, new_run_id="s")
    verbs.resume(graph, store, "s")
    live_writer.flush(30)
    told = brief(verbs.events(Engine(store, flows=[graph]).handle("s"), "events"))
    assert ["NodeCompleted", "RunStarted", 3, 4, 5, "NodeCompleted", "RunCompleted"] == told


def test_hooks_and_streams_get_the_place_of_an_event(verbs, store):
    graph = talking(verbs, rounds=1)
    for given, places in ((store, [(1, 1), (1, 2), (1, 3)]), (None, [(None, None)] * 3)):
        events = verbs.stream(graph, Count(), store=given)
        assert places == [(event.epoch, event.number) for event in events if isinstance(event, Emitted)]


def test_a_thread_that_emits_after_the_end_of_its_run_is_not_heard_elsewhere(verbs, store):
    contexts = []

    def talk(ctx, state: Count) -> Count:
        contexts.append(ctx)
        ctx.emit("token", 0)
        return state

    graph = Graph(Count).add_node("talk", verbs.node(talk)).add_edge(START, "talk").add_edge("talk", END).compile("g")
    verbs.run(graph, Count(), store=store, run_id="r")
    contexts[0].emit("token", 1)
    live_writer.flush(30)
    handle = Engine(store, flows=[graph]).handle("r")
    assert [0, "NodeCompleted", "RunCompleted"] == brief(verbs.events(handle, "events"))
    assert [NodeCompleted] == [type(event) for event in verbs.events(handle, "events", after=0)][1:2]


def test_a_new_run_under_an_old_id_keeps_all_its_events(verbs, store, monkeypatch):
    monkeypatch.setattr(live_module, "MOST_EVENTS", 10)
    graph = talking(verbs, tokens=4)
    engine = Engine(store, flows=[graph])
    for _ in range(2):
        handle = engine.start(graph, Count(), run_id="r")
        work(engine)
        assert 8 == len([event for event in verbs.events(handle, "events") if isinstance(event, Emitted)])
        store.delete_run("r")


class Unstarted(threading.Thread):
    def start(self):
        raise RuntimeError("can't start new thread")


@pytest.fixture
def waiting(monkeypatch):
    """A writer in whose queue all events wait until it is flushed, for it has no thread."""
    writer = LiveWriter()
    monkeypatch.setattr("milepost.verbs.live_writer", writer)
    monkeypatch.setattr(live_module, "Thread", Unstarted)
    return writer


def test_a_thread_that_cannot_be_started_fails_no_run(verbs, store, waiting):
    verbs.run(talking(verbs, tokens=1), Count(), store=store, run_id="r")
    assert [] == store.read_live("r")
    waiting.flush(30)
    assert 2 == len(store.read_live("r"))


@pytest.mark.every_store
def test_events_that_wait_in_the_queue_go_with_their_run(verbs, store, waiting):
    verbs.run(talking(verbs), Count(), store=store, run_id="r")
    store.delete_run("r")
    waiting.flush(30)
    assert [] == store.read_live("r")
