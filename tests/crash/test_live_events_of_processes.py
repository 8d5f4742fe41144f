"""Live events of workers in other processes, some of which are killed."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from milepost import END, START, Context, Engine, Graph, open_store
from milepost.drivers.live import live_writer
from milepost.events import Emitted, EventsMissed, NodeCompleted
from milepost.testing.children import Child

TOKENS = 1000
WORK = """
import sys, time
from milepost import END, START, Context, Engine, Graph, open_store
from dataclasses import dataclass

@dataclass
class Count:
    n: int = 0

def talk(ctx: Context, state: Count) -> Count:
    for number in range(tokens):
        ctx.emit("token", number)
        time.sleep(pause)
    return Count(state.n + 1)

graph = Graph(Count).add_node("talk", talk).add_edge(START, "talk").add_edge("talk", END).compile("talking")
store = open_store(url)
engine = Engine(store, flows=[graph], lease=5)
engine.worker(poll=0.05).run(until_idle=True)
store.close()
"""


@dataclass
class Count:
    n: int = 0


GRAPH = (
    Graph(Count).add_node("talk", lambda state: state).add_edge(START, "talk").add_edge("talk", END).compile("talking")
)


@pytest.fixture(
    params=["sqlite", pytest.param("file", marks=pytest.mark.slow), pytest.param("postgres", marks=pytest.mark.slow)]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path / 'runs.db'}" if request.param == "sqlite" else f"file://{tmp_path / 'runs'}"


def tokens(events):
    return [event.data for event in events if isinstance(event, Emitted)]


def test_a_worker_in_another_process_is_heard_in_order_and_each_event_once(url: str) -> None:
    with open_store(url) as store, Child() as worker:
        handle = Engine(store, flows=[GRAPH]).start(GRAPH, Count(), run_id="r")
        worker.begin(WORK, url=url, tokens=TOKENS, pause=0.0005)
        others: list[object] = []
        reader = threading.Thread(target=lambda: others.extend(handle.events()))
        reader.start()
        events = [*handle.events()]
        reader.join(30)
        worker.answer()
        late = [*handle.events()]
    for told in (events, others, late):
        assert [*range(TOKENS)] == tokens(told)
        assert not [event for event in told if isinstance(event, EventsMissed)]
    places = [(event.epoch, event.number) for event in events if isinstance(event, Emitted)]
    assert [(2, number) for number in range(1, TOKENS + 1)] == places
    assert isinstance(events[-2], NodeCompleted)


def test_after_a_kill_the_attempt_emits_again_in_a_new_epoch(url: str) -> None:
    with open_store(url) as store, Child() as first:
        handle = Engine(store, flows=[GRAPH]).start(GRAPH, Count(), run_id="r")
        first.begin(WORK, url=url, tokens=10_000, pause=0.01)
        events = []
        stream = handle.events()
        for event in stream:
            events.append(event)
            if len(tokens(events)) == 20:
                break
        first.kill()
        with Child() as second:
            second.begin(WORK, url=url, tokens=50, pause=0)
            events += stream
            second.answer()
    places = [(event.epoch, event.number) for event in events if isinstance(event, Emitted)]
    assert sorted(set(places)) == places
    assert [*range(20)] == tokens(events)[:20]
    newest = places[-1][0]
    assert [*range(50)] == [event.data for event in events if isinstance(event, Emitted) and event.epoch == newest]
    assert not [event for event in events if isinstance(event, EventsMissed)]


def test_the_child_of_a_fork_adds_nothing_to_the_events_of_the_run(tmp_path: Path) -> None:
    def talk(ctx: Context, state: Count) -> Count:
        ctx.emit("token", "before")
        if (child := os.fork()) == 0:
            for _ in range(3):
                ctx.emit("token", "child")
            live_writer.flush(30)
            os._exit(0)
        os.waitpid(child, 0)
        ctx.emit("token", "after")
        return state

    graph = Graph(Count).add_node("talk", talk).add_edge(START, "talk").add_edge("talk", END).compile("talking")
    with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        graph.run(Count(), store=store, run_id="r")
        live_writer.flush(30)
        assert ["before", "after"] == tokens(Engine(store, flows=[graph]).handle("r").events())
        assert [(1, 1), (1, 2)] == [event.place for event in store.read_live("r")]
