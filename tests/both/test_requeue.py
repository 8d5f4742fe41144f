"""Runs that are left to the workers by their ids alone: no code of their flows is at hand where that is done."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from milepost import (
    END,
    Engine,
    Graph,
    MemoryStore,
    MilepostError,
    Retry,
    RunLockedError,
    RunNotFoundError,
    RunNotResumableError,
    RunSuspended,
    SQLiteStore,
    Steps,
    Workflow,
    step,
    workflow,
)
from milepost.errors import CheckpointCorruptError, NotAuthorizedError, OptionError
from milepost.model.record import OWNER


@dataclass
class Count:
    n: int = 0


def make(front: str, log: list[str], faults: list[Any], retry: Retry | None = None) -> Any:
    """A flow `w` of two nodes or steps; `faults` are raised in turn by the second one or, bugs, by the workflow's code."""

    def first() -> Count:
        log.append("first")
        return Count(1)

    def second() -> Count:
        log.append("second")
        if faults:
            raise faults.pop(0)
        return Count(2)

    if front == "graph":
        graph = Graph(Count).add_node("first", lambda state: first())
        graph.add_node("second", lambda state: second(), retry=retry)
        return graph.add_edge("first", "second").add_edge("second", END).set_entry("first").compile("w")

    @workflow("w")
    def wf() -> Steps[Count]:
        yield step("first").python(first).with_rollback(lambda ctx: log.append("undo"))
        if faults and isinstance(faults[0], AttributeError):
            raise faults.pop(0)  # a bug of the workflow's own code
        last = step("second").python(second)
        return (yield last if retry is None else last.retry(retry))

    return wf


def given(front: str) -> tuple[Count, ...]:
    return (Count(),) if front == "graph" else ()


def start(flow: Any, engine: Engine, run_id: str = "r") -> str:
    """Run the flow until it ends or stops, and return its status."""
    with suppress(MilepostError):
        engine.run(flow, *given("workflow" if isinstance(flow, Workflow) else "graph"), run_id=run_id)
    return engine.store.get_run(run_id).info.status


def work(engine: Engine) -> None:
    engine.worker().run(until_idle=True)


fronts = pytest.mark.parametrize("front", ["graph", "workflow"])


@pytest.mark.every_store
def test_a_failed_run_goes_on_as_by_retry(verbs, store, log):
    for front, again in (("graph", ["second"]), ("workflow", ["first", "second"])):
        flow = make(front, log, [ValueError("no")])
        engine = Engine(store, flows=[flow])
        assert "failed" == start(flow, engine, front)
        log.clear()
        assert verbs.call(Engine(store), "requeue", front) is None
        assert "ready" == store.get_run(front).info.status
        (owner,) = store.read(front, kinds=(OWNER,))
        assert ("retry", None) == (owner.fields()["verb"], owner.fields().get("reopen"))
        work(engine)
        assert (again, Count(2)) == (log, engine.handle(front).result())
        assert store.verify(front).ok


@fronts
@pytest.mark.parametrize("verb", ["retry", "resume"])
def test_a_failed_run_goes_on_as_the_verb_itself_would(store, log, front, verb):
    told = []
    for is_requeued in (False, True):
        flow = make(
            front,
            log,
            [ValueError("no")] * 6,
            retry=Retry(2, backoff=0.0) if (front, verb) != ("graph", "resume") else None,
        )
        engine, run_id = Engine(store, flows=[flow]), f"r{is_requeued:d}"
        start(flow, engine, run_id)
        log.clear()
        if is_requeued:
            engine.requeue(run_id, retry=verb == "retry")
            work(engine)
        else:
            with pytest.raises(MilepostError):
                getattr(engine, verb)(flow, run_id)
        info = store.get_run(run_id).info
        told.append((log[:], info.status, info.error and info.error.message))
    assert told[0] == told[1]


def test_without_a_retry_a_node_that_has_used_up_its_attempts_gets_one_more(store, log):
    flow = make("graph", log, [ValueError("no")] * 6, retry=Retry(2, backoff=0.0))
    engine = Engine(store, flows=[flow])
    start(flow, engine)
    for retry, attempts in ((False, 1), (None, 2)):
        log.clear()
        engine.requeue("r", retry=retry)
        work(engine)
        assert ("failed", ["second"] * attempts) == (store.get_run("r").info.status, log)


@fronts
def test_a_fork_and_an_interrupted_run_go_on(verbs, store, log, front):
    flow = make(front, log, [KeyboardInterrupt()])
    engine = Engine(store, flows=[flow])
    with pytest.raises(KeyboardInterrupt):
        start(flow, engine)
    copy = engine.fork_run(flow, "r", "first")
    log.clear()
    for run_id in ("r", copy):
        assert "interrupted" == store.get_run(run_id).info.status
        verbs.call(engine.handle(run_id), "requeue")
    work(engine)
    assert ["second", "second"] == log
    assert [Count(2), Count(2)] == [engine.handle(run_id).result() for run_id in ("r", copy)]


def test_a_run_that_a_bug_holds_goes_on_once_it_is_mended(store, log):
    bugs = [AttributeError("no"), AttributeError("no")]
    flow = make("workflow", log, bugs)
    engine = Engine(store, flows=[flow])
    assert "blocked" == start(flow, engine)
    engine.requeue("r")
    work(engine)
    assert (["first"], "bug") == (log, store.get_run("r").info.blocked_by)
    engine.requeue("r")
    work(engine)
    assert (["first", "second"], Count(2)) == (log, engine.handle("r").result())


@fronts
def test_a_cancelled_run_needs_reopen(store, log, front):
    flow = make(front, log, [])
    engine = Engine(store, flows=[flow])
    engine.start(flow, *given(front), run_id="r")
    engine.cancel("r")
    with pytest.raises(RunNotResumableError, match="reopen=True"):
        engine.requeue("r")
    engine.requeue("r", reopen=True)
    assert store.read("r", kinds=(OWNER,))[-1].fields()["reopen"] is True
    work(engine)
    assert Count(2) == engine.handle("r").result()


def test_steps_that_a_cancel_has_rolled_back_are_done_again(store, log):
    flow = make("workflow", log, [KeyboardInterrupt()])
    engine = Engine(store, flows=[flow])
    with pytest.raises(KeyboardInterrupt):
        start(flow, engine)
    assert "requested" == engine.cancel("r")
    newest = store.get_run("r").info.sequence
    engine.requeue("r")  # a worker takes it anyway, to end it
    assert newest == store.get_run("r").info.sequence
    work(engine)
    assert "cancelled" == store.get_run("r").info.status
    engine.requeue("r", reopen=True)
    work(engine)
    assert ["first", "second", "undo", "first", "second"] == log
    assert Count(2) == engine.handle("r").result()


def test_reopen_takes_back_a_cancel_that_is_open(store, log):
    flow = make("workflow", log, [KeyboardInterrupt()])
    engine = Engine(store, flows=[flow])
    with pytest.raises(KeyboardInterrupt):
        start(flow, engine)
    engine.cancel("r")
    engine.requeue("r", reopen=True)
    work(engine)
    assert (["first", "second", "second"], Count(2)) == (log, engine.handle("r").result())


def test_a_run_that_is_blocked_by_crashes_needs_reopen(verbs, timed, clock, log):
    flow = make("graph", log, [verbs.Killed()])
    engine = Engine(timed, flows=[flow], max_crashes=1, clock=clock)
    verbs.crash(flow, timed, "r", Count(), clock=clock)
    clock.advance(60)
    engine.requeue("r")  # a worker takes it anyway, as its owner is gone
    assert [] == timed.read("r", kinds=(OWNER,))
    work(engine)
    assert "crashes" == timed.get_run("r").info.blocked_by
    with pytest.raises(RunNotResumableError, match="reopen=True"):
        engine.requeue("r")
    engine.requeue("r", reopen=True)
    work(engine)
    assert Count(2) == engine.handle("r").result()


def test_an_owner_that_lives_keeps_its_run(store, log):
    def requeued(state: Count) -> Count:
        with pytest.raises(RunLockedError, match="wait for its end, or stop it"):
            engine.requeue("r", reopen=True)
        return Count(7)

    graph = Graph(Count).add_node("a", requeued).add_edge("a", END).set_entry("a").compile("w")
    engine = Engine(store, flows=[graph])
    assert Count(7) == engine.run(graph, Count(), run_id="r")
    assert [] == store.read("r", kinds=(OWNER,))


def test_a_run_that_goes_on_after_the_look_is_looked_at_again(store, log, monkeypatch):
    flow = make("graph", log, [ValueError("no")])
    engine = Engine(store, flows=[flow])
    start(flow, engine)
    latest = store.latest

    def overtaken(run_id: str) -> Any:
        found = latest(run_id)
        monkeypatch.setattr(store, "latest", latest)
        engine.retry(flow, "r")
        return found

    monkeypatch.setattr(store, "latest", overtaken)
    with pytest.raises(RunNotResumableError, match="is finished"):
        engine.requeue("r")
    assert (["first", "second", "second"], "finished") == (log, store.get_run("r").info.status)


def test_what_is_refused(store, log):
    flow = make("graph", log, [])
    engine = Engine(store, flows=[flow])
    assert "finished" == start(flow, engine)
    with pytest.raises(RunNotResumableError, match="is finished"):
        engine.requeue("r")
    with pytest.raises(RunNotFoundError):
        engine.requeue("other")
    with pytest.raises(OptionError, match="with a zone"):
        engine.requeue("r", at=datetime(2026, 1, 1))
    engine.start(flow, Count(), run_id="ready")
    engine.fork_run(flow, "r", "first", new_run_id="copy")
    with pytest.raises(RunNotResumableError, match="retry is for a run that failed"):
        engine.requeue("copy", retry=True)


def test_a_run_that_waits_is_left_to_its_signal(store, log):
    @workflow("w")
    def waiting() -> Steps[Any]:
        return (yield step("go").wait_for("go"))

    engine = Engine(store, flows=[waiting])
    assert "waiting" == start(waiting, engine)
    with pytest.raises(RunSuspended):
        engine.requeue("r")
    engine.signal("r", "go", 1)
    newest = store.get_run("r").info.sequence
    engine.requeue("r")  # it is ready
    assert ("ready", newest) == (store.get_run("r").info.status, store.get_run("r").info.sequence)


def test_a_requeued_run_begins_at_its_time(timed, clock, log):
    flow = make("graph", log, [ValueError("no")])
    engine = Engine(timed, flows=[flow], clock=clock)
    start(flow, engine)
    log.clear()
    engine.requeue("r", at=datetime.fromtimestamp(clock.time() + 60, UTC))
    work(engine)
    assert [] == log
    clock.advance(61)
    work(engine)
    assert ["second"] == log


def test_authorize_is_asked_about_each(verbs, store, log):
    asked = []

    def authorize(action: str, run_id: str, flow: str) -> bool:
        asked.append((action, run_id, flow))
        return run_id != "r1"

    flow = make("graph", log, [ValueError("no")] * 3)
    for n in range(3):
        start(flow, Engine(store, flows=[flow]), f"r{n}")
    engine = Engine(store, authorize=authorize)
    with pytest.raises(NotAuthorizedError):
        verbs.call(engine, "requeue", "r1")
    asked.clear()
    requeued = verbs.call(engine, "requeue_all")
    assert (("r2", "r0"), ["r1"]) == (requeued.done, [*requeued.refused])
    assert [("requeue", f"r{n}", "w") for n in (2, 1, 0)] == asked


class SoldOut(Exception):
    pass


def test_all_that_match_are_requeued(verbs, store, log, monkeypatch):
    monkeypatch.setattr("milepost.engine.matching.PAGE", 2)
    flow = make("graph", log, [TypeError("no"), SoldOut(), TypeError("no"), SoldOut(), TypeError("no")])
    engine = Engine(store, flows=[flow])
    for n in range(6):
        start(flow, engine, f"r{n}")
    engine.cancel("r4")

    def taken(**filters: Any) -> Any:
        return verbs.call(engine, "requeue_all", **filters).done

    assert ("r3", "r1") == taken(error_type="SoldOut")
    assert () == taken(error_type="SoldOut")
    assert () == taken(flow="other") == taken(tags={"a": "b"})
    assert ("r2",) == taken(status="failed", limit=1)
    refused = verbs.call(engine, "requeue_all", status=["finished", "cancelled", "failed"])
    assert (("r0",), {"r5", "r4"}) == (refused.done, {*refused.refused})
    assert "reopen=True" in refused.refused["r4"]
    with pytest.raises(ValueError, match="limit"):
        taken(limit=0)


def failed_at(place: str, engine: Engine, run_id: str) -> None:
    """Let a run of the engine's flow fail at one of its nodes, `a` or `b`."""
    with suppress(MilepostError):
        engine.run(engine.flows["w"], Count(ord(place)), run_id=run_id)


def failing() -> Any:
    def at(place: str) -> Any:
        def node(state: Count) -> Count:
            if chr(state.n) == place:
                raise TypeError("no")
            return state

        return node

    graph = Graph(Count).add_node("a", at("a")).add_node("b", at("b"))
    return graph.add_edge("a", "b").add_edge("b", END).set_entry("a").compile("w")


def test_runs_match_by_node_id_and_time(verbs, timed, clock):
    engine = Engine(timed, flows=[failing()], clock=clock)
    times = []
    for run_id, place in (("x-1", "a"), ("x-2", "b"), ("y-1", "a"), ("y-2", "b")):
        times.append(datetime.fromtimestamp(clock.time(), UTC))
        failed_at(place, engine, run_id)
        clock.advance(60)

    def taken(**filters: Any) -> Any:
        engine.cancel_matching(status=("ready", "failed"))
        for run_id in ("x-1", "x-2", "y-1", "y-2"):
            engine.requeue(run_id, reopen=True)
        requeued = verbs.call(engine, "requeue_all", status="ready", **filters)
        assert {} == requeued.refused
        return requeued.done

    assert ("y-2", "y-1") == taken(run_id_prefix="y-")
    assert ("y-2", "y-1") == taken(created_after=times[1])
    assert ("x-1",) == taken(created_before=times[1])
    assert ("y-1",) == taken(created_after=times[1], created_before=times[3])
    assert ("x-1",) == taken(after="x-2")
    for name in ("created_after", "created_before", "updated_after", "updated_before"):
        with pytest.raises(OptionError, match=name):
            taken(**{name: datetime(2026, 1, 1)})
    for name in ("run_id_prefix", "error_node", "error_type"):
        with pytest.raises(TypeError, match=name):
            taken(**{name: 5})


def test_runs_match_by_the_time_of_their_last_change(verbs, timed, clock):
    engine = Engine(timed)
    for run_id in ("r1", "r2", "r3"):
        engine.start("w", {}, run_id=run_id)
        clock.advance(60)
    before_the_last, now = (datetime.fromtimestamp(clock.time() - ago, UTC) for ago in (90, 0))
    assert {"r1", "r2"} == {*verbs.call(engine, "cancel_matching", updated_before=before_the_last).outcomes}
    assert ("r3",) == verbs.call(engine, "requeue_all", status="ready", updated_before=now).done
    assert () == verbs.call(engine, "requeue_all", status="cancelled", updated_before=before_the_last).done


@pytest.mark.parametrize("verb", ["requeue_all", "cancel_matching"])
@pytest.mark.parametrize(
    ("filters", "advice"),
    [
        ({"prefix": "r"}, "no filter is called 'prefix': did you mean 'run_id_prefix'"),
        ({"update_before": None}, "did you mean 'updated_before'"),
        ({"flow": "w", "at": None, "older_than": 5}, "called 'at', 'older_than': there are after, .*updated_before"),
    ],
)
def test_an_unknown_filter_is_refused_before_a_run_is_touched(verbs, store, verb, filters, advice):
    engine = Engine(store)
    engine.start("w", {}, run_id="r1")
    with pytest.raises(OptionError, match=advice):
        verbs.call(engine, verb, status="ready", **filters)
    assert "ready" == engine.handle("r1").info().status


def test_runs_match_by_the_node_that_failed(verbs, store, monkeypatch):
    engine = Engine(store, flows=[failing()])
    for n, place in enumerate("abab-"):
        failed_at(place, engine, f"r{n}")
    assert ("r3", "r1") == verbs.call(engine, "requeue_all", error_node="b", error_type="TypeError").done
    monkeypatch.setattr("milepost.engine.matching.MOST_ERRORS", 1)
    first = verbs.call(engine, "cancel_matching", error_node="a")
    assert ({"r2": "cancelled"}, "r2") == (first.outcomes, first.stopped_after)
    rest = verbs.call(engine, "cancel_matching", error_node="a", after="r2")
    assert ({"r0": "cancelled"}, "r0") == (rest.outcomes, rest.stopped_after)
    assert {} == verbs.call(engine, "cancel_matching", error_node="a").outcomes


def test_all_that_match_are_cancelled(verbs, store, log):
    asked = []

    def authorize(action: str, run_id: str, flow: str) -> bool:
        asked.append((action, run_id))
        return run_id != "r2"

    flow = make("workflow", log, [ValueError("no"), KeyboardInterrupt()])
    engine = Engine(store, flows=[flow])
    start(flow, engine, "failed")
    with pytest.raises(KeyboardInterrupt):  # its first step is to be rolled back
        start(flow, engine, "r0")
    for n in (1, 2):
        engine.start(flow, run_id=f"r{n}")
    cancelled = verbs.call(Engine(store, authorize=authorize), "cancel_matching", reason="enough")
    assert ({"r1": "cancelled", "r0": "requested"}, {"r2"}) == (cancelled.outcomes, {*cancelled.refused})
    assert [("cancel", "r2"), ("cancel", "r1"), ("cancel", "r0")] == asked
    statuses = {info.run_id: info.status for info in store.list_runs()}
    assert {"failed": "failed", "r0": "interrupted", "r1": "cancelled", "r2": "ready"} == statuses
    assert "enough" == store.get_run("r0").cancel


@pytest.mark.every_store
def test_a_fork_is_left_to_the_workers_at_once(verbs, store, log):
    asked = []
    for front in ("graph", "workflow"):
        flow = make(front, log, [])
        engine = Engine(store, flows=[flow], authorize=lambda action, run_id, flow: not asked.append((action, run_id)))
        start(flow, engine, front)
        log.clear()
        asked.clear()
        fork = verbs.call(engine, "fork_run", flow, front, "first", new_run_id=f"{front}-1", ready=True)
        last = verbs.call(engine.handle(front), "fork_run", ready=True)
        assert [("resume", front), ("requeue", front)] * 2 == asked
        assert ["ready", "ready"] == [store.get_run(run_id).info.status for run_id in (fork, last)]
        work(engine)
        assert (["second"], Count(2), Count(2)) == (log, engine.handle(fork).result(), engine.handle(last).result())
        assert store.verify(fork).ok


def test_a_fork_into_another_store_is_left_to_its_workers(verbs, store, log):
    flow, other = make("graph", log, []), MemoryStore()
    start(flow, Engine(store), "r")
    fork = verbs.call(Engine(store), "fork_run", flow, "r", "first", into=other, ready=True)
    work(Engine(other, flows=[flow]))
    assert "finished" == other.get_run(fork).info.status


def test_a_store_without_the_key_requeues_nothing(tmp_path, log):
    flow = make("workflow", log, [ValueError("no")])
    with SQLiteStore(tmp_path / "runs.db", signing_key={"k": b"k" * 32}) as store:
        start(flow, Engine(store, flows=[flow]))
    with SQLiteStore(tmp_path / "runs.db") as store:
        with pytest.raises(CheckpointCorruptError):
            Engine(store).requeue("r")
        assert "failed" == store.get_run("r").info.status
