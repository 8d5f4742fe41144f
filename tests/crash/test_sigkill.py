"""Processes that are killed by SIGKILL while they run: at a moment of each save, and at random moments again and again.

A process under test appends a line to a log for each call of a node, and says so of each checkpoint that was reported
saved. Everything random is seeded.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from processes import Forks, Log, calls_of, die_at, process, say

from milepost import END, CompiledGraph, Context, Graph, Retry, RunNotFoundError, Store
from milepost.events import CheckpointSaved
from milepost.stores.url import open_store

ROUNDS = 14
NODES = 3
"""In each round of the graph."""


# -- the processes under test ----------------------------------------------------------------------------------


@dataclass
class Work:
    round: int = 0
    total: int = 0


def working_graph(log: Log, is_async: bool) -> CompiledGraph[Work]:
    """A loop of a node that adds, a node whose first attempt fails, and a node that counts the round."""

    def add(ctx: Context[Any], state: Work) -> Work:
        log.add(ctx)
        state.total += state.round
        return state

    def stumble(ctx: Context[Any], state: Work) -> Work:
        log.add(ctx)
        state.total += 1000
        if ctx.attempt == 1 and state.round % 3 == 0:
            raise OSError("not at the first attempt")
        return state

    def count(ctx: Context[Any], state: Work) -> Work:
        log.add(ctx)
        state.round += 1
        return state

    def later(fn: Callable[..., Work]) -> Callable[..., Any]:
        async def awaited(ctx: Context[Any], state: Work) -> Work:
            await asyncio.sleep(0)
            return fn(ctx, state)

        return awaited if is_async else fn

    return (
        Graph(Work)
        .add_node("add", later(add))
        .add_node("stumble", later(stumble), retry=Retry(max_attempts=3, backoff=0))
        .add_node("count", later(count))
        .add_edge("add", "stumble")
        .add_edge("stumble", "count")
        .add_conditional_edge("count", lambda state: "add" if state.round < ROUNDS else END, ["add", END])
        .set_entry("add")
        .compile("working")
    )


def short_graph(log: Log) -> CompiledGraph[list[str]]:
    """Four nodes in a row, each of which adds its name."""

    def add(ctx: Context[Any], state: list[str]) -> list[str]:
        log.add(ctx)
        return [*state, ctx.node_id]

    graph = Graph(list[str])
    for node_id, target in zip("abcd", ["b", "c", "d", END], strict=True):
        graph.add_node(node_id, add).add_edge(node_id, target)
    return graph.set_entry("a").compile("short")


def run(graph: CompiledGraph[Any], is_async: bool, *args: Any, **options: Any) -> Any:
    """What `run` gives, or its a-twin, that tells the test of each checkpoint that was saved."""

    def report(event: Any) -> None:
        if type(event) is CheckpointSaved:
            say("saved", event.node_id, event.sequence)

    options["hooks"] = [report]
    return asyncio.run(graph.arun(*args, **options)) if is_async else graph.run(*args, **options)


def work(url: str, log: str, run_id: str, is_async: bool) -> None:
    """Begin a run, or go on with it at once."""
    graph = working_graph(Log(log), is_async)
    with open_store(url) as store:
        state = run(graph, is_async, Work(), store=store, run_id=run_id, if_exists="resume")
    say("done", state.round, state.total)


def die_in_a_save(url: str, log: str, run_id: str, is_async: bool, save: int, moment: int) -> None:
    """Begin a run and die at a moment of its save with this number; 0 is that of the start."""
    with open_store(url) as store:
        saves = 0

        def counted(fn: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*args: Any) -> Any:
                nonlocal saves
                saves += 1
                return (die_at(moment, fn) if saves == save + 1 else fn)(*args)

            return counting

        for name in ("create", "append"):
            setattr(store, name, counted(getattr(store, name)))
        run(short_graph(Log(log)), is_async, [], store=store, run_id=run_id)


if __name__ == "__main__":
    url, log, run_id, way = sys.argv[1:]
    work(url, log, run_id, way == "async")
    sys.exit()


# -- at a moment of each save ----------------------------------------------------------------------------------


def die_at_moments(forks: Forks, url: str, log: str, save: int, parts: int) -> None:
    """Kill processes before a save, after it, and at `parts` - 1 moments between; this one goes on with their runs."""
    graph, nodes, is_async = short_graph(Log(log)), [*"abcd"], save % 2 == 1
    told = forks.call(die_in_a_save, url, log, "whole", is_async, save, -1).told
    (moments,) = (number for kind, number, *_ in told if kind == "moments")
    outcomes = []
    with open_store(url) as store:
        for part in range(parts + 1):
            # However long the last save takes: it is over.
            moment = moments * part // parts if part < parts else sys.maxsize
            run_id = f"r-{part}"
            ended = forks.call(die_in_a_save, url, log, run_id, is_async, save, moment)
            reported = [node_id for kind, node_id, *_ in ended.told if kind == "saved"]
            assert (True, nodes[: max(0, save - 1)]) == (ended.was_killed, reported)
            assert nodes[:save] == [call.node_id for call in calls_of(log, run_id)]
            found = saves(store, run_id)
            assert nodes == graph.run([], store=store, run_id=run_id, if_exists="resume")
            # What was saved did not run again, reported or not; what was not did so once.
            after = [call.node_id for call in calls_of(log, run_id)][save:]
            assert after in (nodes[save:], nodes[max(0, save - 1) :])
            # A server may still have been about to save it.
            outcomes.append(nodes[save:] == after if save else found == 1)
            assert found == save + outcomes[-1] or (found == save and url.startswith("postgresql"))
            assert (True, "finished") == (store.verify(run_id).ok, store.get_run(run_id).info.status)
            assert nodes == [info.node_id for info in store.history(run_id)]
    assert (False, True) == (outcomes[0], outcomes[-1])


def saves(store: Store, run_id: str) -> int:
    """How many saves of a run are there, that of its start included."""
    try:
        store.get_run(run_id)
    except RunNotFoundError:
        return 0
    return 1 + len(store.history(run_id))


@pytest.mark.parametrize(
    ("save", "parts"), [(3, 2), *(pytest.param(save, 4, marks=pytest.mark.wide) for save in (0, 1, 2, 4))]
)
def test_a_process_killed_before_in_and_after_a_save_loses_nothing_that_was_saved(
    save: int, parts: int, forks: Forks, url: str, log: str
) -> None:
    die_at_moments(forks, url, log, save, parts)


# -- at random moments, again and again ------------------------------------------------------------------------


@dataclass
class Story:
    """What became of one run, over all its processes."""

    run_id: str
    kills: int
    told: list[Any]
    reported: list[tuple[int, int]]
    """Process and sequence of each checkpoint that was reported."""
    pids: list[int]


def undisturbed() -> Work:
    return Work(ROUNDS, sum(range(ROUNDS)) + 1000 * ROUNDS)


def kill_until_done(url: str, log: str, run_id: str, kills: int, draw: random.Random, is_async: bool) -> Story:
    """Let one process after the other work on a run; the first `kills` of them are killed at random moments."""
    story = Story(run_id, 0, [], [], [])
    left = kills
    while not story.told:
        with process(url, log, run_id, "async" if is_async else "sync", file=__file__) as one:
            story.pids.append(one.pid)
            # So few that the run does not end before all of them were killed.
            patience = draw.randint(0, max(0, 2 * ROUNDS * NODES // (kills + 1) - 1)) if left else None
            heard: list[list[Any]] = []
            while patience is None or len(heard) < patience:
                told = one.hear()
                if not told:
                    break
                heard.append(told)
            if left:
                # The moment within a node, a write, or the start of the process.
                one.says_nothing_for(draw.uniform(0, 0.004 if patience else 0.25))
                was_alive = one.kill()
                left -= 1
                story.kills += was_alive
            # What it had written to the pipe before it died was reported too.
            heard += one.rest()
            for kind, *told in heard:
                if kind == "saved":
                    story.reported.append((one.pid, told[1]))
                else:
                    story.told = told
    return story


def check(story: Story, store: Store, log: str) -> None:
    """What must be true of a run, however often its processes were killed."""
    want = undisturbed()
    assert [want.round, want.total] == story.told
    assert "finished" == store.get_run(story.run_id).info.status
    report = store.verify(story.run_id)
    assert () == report.problems
    history = store.history(story.run_id)
    for node_id in ("add", "stumble", "count"):
        assert list(range(1, ROUNDS + 1)) == [info.visit for info in history if info.node_id == node_id]
    calls = calls_of(log, story.run_id)
    order = {pid: number for number, pid in enumerate(story.pids)}
    visit_at = {info.sequence: (info.node_id, info.visit) for info in history}
    for pid, sequence in story.reported:
        visit = visit_at[sequence]
        again = [call for call in calls if call[1:] == visit and order[call.pid] > order[pid]]
        assert not again, f"{visit} ran again in {again}, though its checkpoint was reported by process {pid}"
    stumbles = {("stumble", visit): 2 for visit in range(1, ROUNDS + 1, 3)}
    extra = Counter((node_id, visit) for _, node_id, visit in calls)
    extra.subtract({(info.node_id, info.visit): stumbles.get((info.node_id, info.visit), 1) for info in history})
    assert sum(max(0, more) for more in extra.values()) <= story.kills


def kill_runs(url: str, log: str, *, seed: int, runs: int, kills: int, is_async: bool) -> int:
    """Kill the processes of several runs in one store at random moments; how many were killed."""

    def one(number: int) -> list[Story]:
        draw = random.Random(f"{seed}/{number}")
        told: list[Story] = []
        # Where the disk is fast a run may end before all kills are spent: the next run gets the others.
        while (left := kills - sum(story.kills for story in told)) > 0:
            told.append(kill_until_done(url, log, f"r-{number}-{len(told)}", left, draw, is_async))
        return told

    with ThreadPoolExecutor(runs) as pool:
        stories = [story for told in pool.map(one, range(runs)) for story in told]
    with open_store(url) as store:
        for story in stories:
            check(story, store, log)
    return sum(story.kills for story in stories)


ways = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@pytest.mark.wide
@ways
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_runs_whose_processes_are_killed_at_random_end_right(is_async: bool, url: str, log: str) -> None:
    assert 15 == kill_runs(url, log, seed=17, runs=3, kills=5, is_async=is_async)


@pytest.mark.slow
@ways
@pytest.mark.parametrize("url", ["file", "postgres"], indirect=True)
def test_runs_whose_processes_are_killed_often_end_right_on_other_stores_too(
    is_async: bool, url: str, log: str
) -> None:
    assert 9 == kill_runs(url, log, seed=17, runs=3, kills=3, is_async=is_async)
