"""A node that kills its process each time: its run is parked with the reason, and the other runs go on.

Crashes are counted apart from failed attempts, and both counts are in the store, not in a process.
"""

from __future__ import annotations

from typing import Any

import pytest
from processes import Forks, Log, calls_of, die, say

from milepost import END, CompiledGraph, Context, Engine, Graph, MilepostError, Retry
from milepost.stores.url import open_store

OTHERS = [f"other-{number}" for number in range(5)]


# -- the processes under test ----------------------------------------------------------------------------------


def poisoned_graph(log: Log) -> CompiledGraph[dict[str, Any]]:
    """Two nodes; the second kills its process if the state says so."""

    def first(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        log.add(ctx)
        return {**state, "first": True}

    def second(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        log.add(ctx)
        if state["deadly"]:
            die()
        return {**state, "second": True}

    graph = Graph(dict).add_node("first", first).add_node("second", second, retry=Retry(max_attempts=2, backoff=0))
    return graph.add_edge("first", "second").add_edge("second", END).set_entry("first").compile("poisoned")


def lone_graph(log: Log) -> CompiledGraph[dict[str, Any]]:
    """One node, which kills its process at once if the state says so."""

    def only(ctx: Context[Any], state: dict[str, Any]) -> dict[str, Any]:
        log.add(ctx)
        if state["deadly"]:
            die()
        return state

    return Graph(dict).add_node("only", only).add_edge("only", END).set_entry("only").compile("lone")


def labour(url: str, log: str, starts: bool, max_crashes: int | None) -> None:
    """Start a deadly run and then the others, or be a worker until nothing is left to do."""
    graph = lone_graph(Log(log))
    with Engine(url, flows=[graph], max_crashes=max_crashes) as engine:
        if starts:
            for run_id in ("deadly", *OTHERS):
                engine.start(graph, {"deadly": run_id == "deadly"}, run_id=run_id)
        else:
            engine.worker().run(until_idle=True)


def work(url: str, log: str, verb: str, run_ids: list[str], options: dict[str, Any]) -> None:
    """Do one verb with each of some runs, one after the other, and say how each ended."""
    graph = poisoned_graph(Log(log))
    with open_store(url) as store:
        for run_id in run_ids:
            try:
                if verb == "run":
                    told = graph.run({"deadly": run_id == "deadly"}, store=store, run_id=run_id, **options)
                else:
                    told = graph.resume(store, run_id, **options)
                say(run_id, "finished", told)
            except MilepostError as exc:
                say(run_id, type(exc).__name__, str(exc))


# -- the tests -------------------------------------------------------------------------------------------------


class Place:
    """A store and a log, and the processes that use them."""

    def __init__(self, forks: Forks, url: str, log: str) -> None:
        self.forks, self.url, self.log = forks, url, log

    def process(self, verb: str, *run_ids: str, **options: Any) -> tuple[dict[str, list[Any]], bool]:
        """How each run ended in a process of its own that ran them in turn, and whether that was killed."""
        ended = self.forks.call(work, self.url, self.log, verb, run_ids, options)
        return {run_id: rest for run_id, *rest in ended.told}, ended.was_killed

    def calls(self, run_id: str) -> list[str]:
        """The nodes of a run that were called, in order."""
        return [call.node_id for call in calls_of(self.log, run_id)]


@pytest.fixture
def place(forks: Forks, url: str, log: str) -> Place:
    return Place(forks, url, log)


@pytest.mark.parametrize(
    ("url", "limit"), [("sqlite", 2), ("sqlite", 5), ("file", 2), ("postgres", 2)], indirect=["url"]
)
def test_a_run_that_kills_every_process_is_blocked_and_the_others_finish(limit: int, place: Place) -> None:
    told, was_killed = place.process("run", *OTHERS, stop_before="second")
    assert {"RunStopped"} == {kind for kind, _ in told.values()}
    assert not was_killed
    told, was_killed = place.process("run", "deadly")
    assert was_killed
    # Each process is a new one that knows nothing of those before it, and takes the deadly run first.
    killed = 0
    while was_killed:
        told, was_killed = place.process("resume", "deadly", *OTHERS, max_crashes=limit)
        killed += was_killed
    assert limit - 1 == killed
    assert "RunNotResumableError" == told["deadly"][0]
    assert "owners in a row died" in told["deadly"][1]
    assert ["finished"] * 5 == [told[run_id][0] for run_id in OTHERS]
    with open_store(place.url) as store:
        (info,) = store.list_runs(status="blocked")
        assert ("deadly", limit) == (info.run_id, info.crash_count)
        assert info.reason.startswith(f"{limit} owners in a row died")
        assert store.verify("deadly").ok
        # Crashes are no failed attempts: they don't touch the policy's two.
        assert [] == store.read("deadly", kinds=("failure",))
        assert 6 == len(store.list_runs())
    assert ["first", *["second"] * limit] == place.calls("deadly")


@pytest.mark.parametrize(
    ("url", "limit"), [("sqlite", 2), ("sqlite", 3), ("sqlite", 5), ("file", 5), ("postgres", 5)], indirect=["url"]
)
def test_a_run_that_kills_its_worker_takes_no_run_beside_it_along(limit: int, place: Place) -> None:
    place.forks.call(labour, place.url, place.log, True, limit)
    killed = 0
    while place.forks.call(labour, place.url, place.log, False, limit).was_killed:
        killed += 1
    assert limit == killed
    with open_store(place.url) as store:
        assert {"deadly": "blocked"} | dict.fromkeys(OTHERS, "finished") == {
            info.run_id: info.status for info in store.list_runs()
        }
        assert all(store.verify(run_id).ok for run_id in ("deadly", *OTHERS))
    assert ["only"] * limit == place.calls("deadly")


def test_a_worker_without_a_limit_of_crashes_gets_the_others_done_too(place: Place) -> None:
    place.forks.call(labour, place.url, place.log, True, None)
    for _ in range(6):
        assert place.forks.call(labour, place.url, place.log, False, None).was_killed
    with open_store(place.url) as store:
        assert OTHERS == sorted(info.run_id for info in store.list_runs(status="finished"))
