"""Workers: what they take, how much at once, what they leave to others, and how they stop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from milepost import (
    END,
    Engine,
    Graph,
    MemoryStore,
    Retry,
    RunExistsError,
    RunSuspended,
    Store,
    StoreError,
    step,
    workflow,
)
from milepost.drivers.heartbeat import heartbeat
from milepost.errors import AsyncNodeError, InvalidIDError, OptionError, RunStopped, StoreClosedError


@dataclass
class Count:
    n: int = 0


def one(fn, name, **options):
    """A graph of one node."""
    return Graph(Count).add_node("a", fn, **options).add_edge("a", END).set_entry("a").compile(name)


def two(first, second, name):
    """A graph of two nodes in a row."""
    graph = Graph(Count).add_node("a", first).add_node("b", second).add_edge("a", "b").add_edge("b", END)
    return graph.set_entry("a").compile(name)


def plus(state: Count) -> Count:
    return Count(state.n + 1)


async def aplus(state: Count) -> Count:
    await asyncio.sleep(0)
    return Count(state.n + 1)


class Gauge:
    """How many are inside at once, and how many were at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def node(self, name: str):
        async def inside(state: Count) -> Count:
            with self._lock:
                for key in (name, "all"):
                    self.now[key] += 1
                    self.most[key] = max(self.most[key], self.now[key])
            await asyncio.sleep(0.01)
            with self._lock:
                self.now[name] -= 1
                self.now["all"] -= 1
            return plus(state)

        return inside


def status_of(store: Store, run_id: str) -> str:
    return store.get_run(run_id).info.status


# -- taking ------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_worker_runs_plain_and_async_nodes(store):
    graph = two(plus, aplus, "mixed")
    engine = Engine(store, flows=[graph])
    handles = [engine.start(graph, Count(i)) for i in range(5)]
    engine.worker().run(until_idle=True)
    assert [2, 3, 4, 5, 6] == [handle.result(timeout=5).n for handle in handles]


def test_a_worker_runs_no_more_at_once_than_it_may(store):
    gauge = Gauge()
    ingest, serve = one(gauge.node("ingest"), "ingest"), one(gauge.node("serve"), "serve")
    engine = Engine(store, flows=[ingest, serve])
    for _ in range(8):
        engine.start(ingest, Count())
        engine.start(serve, Count())
    engine.worker(concurrency=5, limits={"ingest": 2}).run(until_idle=True)
    assert 16 == len(store.list_runs(status="finished"))
    assert gauge.most["ingest"] <= 2 < gauge.most["serve"]
    assert gauge.most["all"] <= 5


def test_what_a_limit_held_up_is_work_left_though_its_place_gets_free_while_the_worker_looks(store, monkeypatch):
    ingest, serve = one(aplus, "ingest"), one(aplus, "serve")
    engine = Engine(store, flows=[ingest, serve])
    append = store.append

    def slowly(batch):
        time.sleep(0.03)
        return append(batch)

    monkeypatch.setattr(store, "append", slowly)
    for _ in range(4):
        engine.start(ingest, Count())
    engine.worker(limits={"ingest": 1}, poll=0.005).run(until_idle=True)
    assert 4 == len(store.list_runs(status="finished"))


def test_a_long_queue_of_one_flow_starves_no_other(store):
    order = []

    def noting(name):
        async def node(state: Count) -> Count:
            order.append(name)
            return state

        return node

    many, few = one(noting("many"), "many"), one(noting("few"), "few")
    engine = Engine(store, flows=[many, few])
    for _ in range(10):
        engine.start(many, Count())
    engine.start(few, Count())
    engine.worker(concurrency=2).run(until_idle=True)
    assert order.index("few") < 4


def test_a_run_that_is_started_here_is_taken_at_once(store):
    graph = one(aplus, "quick")
    engine = Engine(store, flows=[graph])
    with engine.worker(poll=600):
        engine.start(graph, Count()).result(timeout=10)
        began = time.monotonic()
        assert 1 == engine.start(graph, Count()).result(timeout=30).n
        assert time.monotonic() - began < 20


def test_a_worker_leaves_flows_that_it_does_not_know_to_others(store):
    known, unknown = one(plus, "known"), one(plus, "unknown")
    engine = Engine(store, flows=[known, unknown])
    for graph in (known, unknown):
        engine.start(graph, Count(), run_id=graph.name)
    engine.worker([known]).run(until_idle=True)
    assert ("finished", "ready") == (status_of(store, "known"), status_of(store, "unknown"))


@pytest.mark.every_store
def test_a_worker_takes_what_its_owner_left_dead(medium):
    from milepost.testing import FakeClock

    clock = FakeClock()
    store = medium.open(clock=clock)
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")
    graph = two(plus, plus, "ab")
    engine = Engine(store, flows=[graph], clock=clock)
    handle = engine.start(graph, Count(), run_id="r1")
    claimed = store.claim_due(["ab"], 1)
    assert 1 == len(claimed)
    engine.worker().run(until_idle=True)
    assert "running" == status_of(store, "r1")
    clock.advance(31)
    assert "dead" == status_of(store, "r1")
    engine.worker().run(until_idle=True)
    assert (Count(2), 1) == (
        handle.result(timeout=5),
        store.read("r1", kinds=("checkpoint",))[0].fields()["attempt"] - 1,
    )


@pytest.mark.every_store
def test_a_run_that_kills_its_owners_is_blocked_and_hurts_no_other(medium):
    from milepost.testing import FakeClock

    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")
    clock = FakeClock()
    store = medium.open(clock=clock)
    graph = one(plus, "flow")
    engine = Engine(store, flows=[graph], clock=clock, max_crashes=3)
    engine.start(graph, Count(), run_id="deadly")
    for _ in range(3):
        assert ["deadly"] == [token.run_id for token, _ in store.claim_due(["flow"], 1, max_crashes=3)]
        clock.advance(31)
    others = [engine.start(graph, Count(), run_id=f"other{i}") for i in range(5)]
    engine.worker().run(until_idle=True)
    info = store.get_run("deadly").info
    assert ("blocked", 3) == (info.status, info.crash_count)
    assert "reopen" in info.reason
    assert [1] * 5 == [other.result(timeout=5).n for other in others]
    with pytest.raises(RunExistsError):
        engine.start(graph, Count(), run_id="deadly")


def test_a_failed_run_ends_nothing_but_itself(store, caplog):
    def fails(state: Count) -> Count:
        if state.n == 1:
            raise ValueError("no")
        return plus(state)

    graph = one(fails, "flow", retry=Retry(2, backoff=0))
    engine = Engine(store, flows=[graph])
    for i in range(3):
        engine.start(graph, Count(i), run_id=f"r{i}")
    with caplog.at_level(logging.WARNING, "milepost"):
        engine.worker().run(until_idle=True)
    assert ["finished", "failed", "finished"] == [status_of(store, f"r{i}") for i in range(3)]
    assert any("'r1' is failed" in record.getMessage() for record in caplog.records)


# -- refusing ------------------------------------------------------------------------------------------------


def test_a_run_of_other_code_is_given_back_with_the_reason_and_not_taken_again(store, caplog):
    old = two(plus, plus, "flow")
    new = one(plus, "flow")
    Engine(store, flows=[old]).start(old, Count(), run_id="r1")
    with pytest.raises(RunStopped):
        old.resume(store, "r1", stop_after="a")
    engine = Engine(store, flows=[new])
    assert "ready" == engine.start(new, Count(), run_id="r2").info().status
    # The run was interrupted by a verb, so no worker takes it by itself: make it ready with the code that knows it.
    Engine(store, flows=[old]).start(old, Count(), run_id="r1", if_exists="resume")
    worker = engine.worker()
    with caplog.at_level(logging.WARNING, "milepost"):
        worker.run(until_idle=True)
    info = store.get_run("r1").info
    assert ("ready", "finished") == (info.status, status_of(store, "r2"))
    assert "refused" in info.reason
    assert "'b'" in info.reason
    assert ["r1"] == [*worker.refused]
    assert "r1" not in {token.run_id for token in heartbeat._held}
    assert 1 == sum("left to other code" in record.getMessage() for record in caplog.records)
    Engine(store, flows=[old]).worker().run(until_idle=True)
    assert ("finished", Count(2)) == (status_of(store, "r1"), Engine(store, flows=[old]).handle("r1").result(timeout=5))


@pytest.mark.parametrize("status", ["ready", "waiting"])
def test_a_worker_that_begins_anew_adds_nothing_to_a_run_that_it_refuses(medium, clock, status):
    store, new = medium.open(clock=clock), one(plus, "flow")
    graph = Graph(Count).add_node("x", plus).add_timer("t", duration=10).add_edge("x", "t").add_edge("t", END)
    old = graph.set_entry("x").compile("flow")
    with pytest.raises(RunSuspended if status == "waiting" else RunStopped):
        old.run(Count(), store=store, run_id="r1", clock=clock, stop_before=() if status == "waiting" else ("t",))
    if status == "ready":
        Engine(store, flows=[old], clock=clock).start(old, Count(), run_id="r1", if_exists="resume")
    clock.advance(11)
    records = []
    for _ in range(3):
        worker = Engine(store, flows=[new], clock=clock).worker()
        worker.run(until_idle=True)
        assert ["r1"] == [*worker.refused]
        records.append(len(store.read("r1")))
    assert [records[0]] * 3 == records
    assert status == status_of(store, "r1")
    assert "refused" in store.get_run("r1").info.reason
    for _ in range(2):
        Engine(store, flows=[old], clock=clock).worker().run(until_idle=True)
        clock.advance(11)
    assert "finished" == status_of(store, "r1")


@pytest.mark.parametrize("mend", ["rename", "next turn", "new run", "code of the other worker"])
def test_a_refused_run_goes_on_once_somebody_has_mended_it(store, mend):
    def with_second(name):
        graph = Graph(Count).add_node("a", plus).add_node(name, plus).add_node("d", plus).add_edge("a", name)
        return graph.add_edge(name, "d").add_edge("d", END).set_entry("a").compile("flow")

    old, new = with_second("b"), with_second("c")
    of_old, of_new = Engine(store, flows=[old]), Engine(store, flows=[new])
    with pytest.raises(RunStopped):
        of_old.run(old, Count(), run_id="r1", stop_before="b")
    of_old.requeue("r1")
    with of_new.worker(poll=0.01) as worker:
        until(lambda: worker.refused)
        if mend == "rename":
            with pytest.raises(RunStopped):
                of_new.resume(new, "r1", rename={"b": "c"}, stop_before="d")
            of_new.requeue("r1")
        elif mend == "new run":
            store.delete_run("r1")
            of_new.start(new, Count(), run_id="r1")
        else:
            of_old.worker().run(until_idle=True)
            if mend == "next turn":
                of_new.start(new, Count(5), run_id="r1", if_exists="continue")
        assert Count(8 if mend == "next turn" else 3) == of_new.handle("r1").result(timeout=20)
        until(lambda: not worker.refused)


def test_a_requeue_has_a_refused_run_looked_at_again(store):
    complaints = ["not yet"]
    graph = one(plus, "flow")
    engine = Engine(store, flows=[graph], revalidate=lambda state: next(iter(complaints), None))
    with pytest.raises(RunStopped):
        engine.run(graph, Count(), run_id="r1", stop_before="a")
    engine.requeue("r1")
    with engine.worker(poll=0.01) as worker:
        until(lambda: worker.refused)
        complaints.clear()
        engine.requeue("r1")
        assert Count(1) == engine.handle("r1").result(timeout=20)


def test_workers_that_refuse_the_same_run_do_not_take_it_in_turn(store):
    graph = one(plus, "flow")
    engine = Engine(store, flows=[graph], revalidate=lambda state: "no")
    with pytest.raises(RunStopped):
        engine.run(graph, Count(), run_id="r1", stop_before="a")
    engine.requeue("r1")
    first = engine.worker(poll=0)
    first.run(until_idle=True)
    engine.requeue("r1")
    engine.worker().run(until_idle=True)
    asyncio.run(first._recheck_refused())
    assert ["r1"] == [*first.refused]
    store.delete_run("r1")
    asyncio.run(first._recheck_refused())
    assert [] == [*first.refused]


def test_a_refused_run_says_that_no_worker_takes_its_flow(medium, clock):
    store = medium.open(clock=clock)
    graph = one(plus, "lonely")
    Engine(store, flows=[graph], clock=clock).start(graph, Count(), run_id="r1")
    assert "no worker" not in store.get_run("r1").info.reason
    clock.advance(61)
    assert "no worker has taken flow 'lonely'" in store.get_run("r1").info.reason


# -- when the store fails ------------------------------------------------------------------------------------


class Failing:
    """Fails to look for work as often as it is told to, and to append once."""

    looks = 0
    appends = 0

    def claim_due(self, *args, **options):
        if type(self).looks:
            type(self).looks -= 1
            raise StoreError("the disk is away", op="claim_due")
        return super().claim_due(*args, **options)

    def append(self, batch):
        if type(self).appends:
            type(self).appends -= 1
            raise StoreError("the disk is away", op="append")
        return super().append(batch)


def test_a_worker_survives_a_store_that_fails(medium, caplog):
    failing = type("TwiceFailing", (Failing,), {"looks": 2})
    store = medium.open(failing)
    graph = one(plus, "flow")
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count())
    with caplog.at_level(logging.WARNING, "milepost"), engine.worker(poll=0.01):
        assert Count(1) == handle.result(timeout=10)
    assert 1 == sum("could not look for work" in record.getMessage() for record in caplog.records)


def test_a_pass_over_a_store_that_stays_away_ends_with_its_error(medium):
    failing = type("AlwaysFailing", (Failing,), {"looks": 1_000_000})
    store = medium.open(failing)
    with pytest.raises(StoreError, match="disk is away"):
        Engine(store, flows=[one(plus, "flow")]).worker(poll=0.01).run(until_idle=True)


def test_a_worker_ends_with_its_store(medium, caplog):
    store = medium.open()
    worker = Engine(store, flows=[one(plus, "flow")]).worker(poll=0.01)
    with pytest.raises(StoreClosedError), worker:
        until(lambda: worker._loop is not None)
        store.close()
        until(lambda: not worker._thread.is_alive())


def test_a_run_that_its_failing_store_stopped_is_taken_again_a_little_later(medium, clock):
    failing = type("OnceFailing", (Failing,), {"appends": 0})
    store, log = medium.open(failing, clock=clock), []

    def breaks(state: Count) -> Count:
        log.append("a")
        failing.appends = 1 if len(log) == 1 else 0
        return plus(state)

    graph = two(breaks, plus, "flow")
    engine = Engine(store, flows=[graph], clock=clock)
    handle = engine.start(graph, Count())
    engine.worker().run(until_idle=True)
    info = handle.info()
    assert ("ready", ["a"], 0) == (info.status, log, info.crash_count)
    assert "disk is away" in info.reason
    engine.worker().run(until_idle=True)
    assert ["a"] == log
    clock.advance(3)
    engine.worker().run(until_idle=True)
    assert (Count(2), ["a", "a"]) == (handle.result(timeout=5), log)


def test_a_run_that_can_never_be_saved_fails_in_the_end(medium, clock):
    failing = type("EverFailing", (Failing,), {"appends": 0})
    store, log = medium.open(failing, clock=clock), []

    def breaks(state: Count) -> Count:
        log.append("a")
        type(store).appends = 1
        return plus(state)

    graph = one(breaks, "flow")
    engine = Engine(store, flows=[graph], clock=clock, max_crashes=3)
    handle = engine.start(graph, Count())
    for _ in range(6):
        engine.worker().run(until_idle=True)
        clock.advance(60)
    assert ("failed", ["a", "a", "a"]) == (handle.info().status, log)


class Refusing(Failing):
    """A store that cannot write one kind of release, as with a value that nothing encodes."""

    refused: tuple[str, ...] = ()
    reads = 0
    error: type[Exception] = StoreError

    def append(self, batch):
        if any(append.release is not None and append.release.status in self.refused for append in batch):
            raise TypeError("a value that cannot be encoded")
        return super().append(batch)

    def latest(self, run_id, **options):
        if type(self).reads:
            type(self).reads -= 1
            raise self.error("the disk is away")
        return super().latest(run_id, **options)


def test_a_run_that_cannot_be_parked_is_taken_with_growing_pauses_and_then_blocked(medium, clock):
    store = medium.open(type("Kind", (Refusing,), {"refused": ("waiting",)}), clock=clock)
    graph = Graph(Count).add_timer("t", duration=10_000).add_edge("t", END).set_entry("t").compile("flow")
    engine = Engine(store, flows=[graph], clock=clock, max_crashes=3)
    handle = engine.start(graph, Count())
    taken = []
    for _ in range(8):
        engine.worker().run(until_idle=True)
        taken.append(len(store.read(handle.run_id, kinds=("owner",))))
        clock.advance(3)
    assert [1, 2, 2, 3] == taken[:4]
    assert 3 == taken[-1]
    assert "blocked" == handle.info().status
    assert "a value that cannot be encoded" in handle.info().reason


def test_a_run_that_cannot_be_released_at_all_is_left_alone_for_a_while(medium, clock):
    kind = type("Kind", (Refusing,), {"refused": ("waiting", "ready", "failed", "blocked", "interrupted")})
    store = medium.open(kind, clock=clock)
    graph = Graph(Count).add_timer("t", duration=10_000).add_edge("t", END).set_entry("t").compile("flow")
    engine = Engine(store, flows=[graph], clock=clock)
    handle = engine.start(graph, Count())
    worker = engine.worker(poll=0.01)
    worker.run(until_idle=True)
    assert 1 == len(store.read(handle.run_id, kinds=("owner",)))


def test_a_run_that_cannot_be_read_when_it_is_taken_is_given_back_for_a_little_later(medium, clock):
    store = medium.open(type("Kind", (Refusing,), {"reads": 1}), clock=clock)
    graph = one(plus, "flow")
    engine = Engine(store, flows=[graph], clock=clock)
    handle = engine.start(graph, Count())
    engine.worker().run(until_idle=True)
    assert ("ready", "free", 1) == (
        handle.info().status, store.get_run(handle.run_id).lease, len(store.read(handle.run_id, kinds=("owner",))),
    )  # fmt: skip
    clock.advance(5)
    engine.worker().run(until_idle=True)
    assert Count(1) == handle.result(timeout=5)


@pytest.mark.parametrize("refused", [(), ("waiting", "ready", "failed", "blocked", "interrupted")])
@pytest.mark.parametrize("error", [StoreError, ValueError])
def test_a_run_that_can_never_be_read_is_counted_and_blocked(medium, clock, refused, error):
    store = medium.open(type("Kind", (Refusing,), {"reads": 10**6, "refused": refused, "error": error}), clock=clock)
    graph = one(plus, "flow")
    engine = Engine(store, flows=[graph], clock=clock, max_crashes=3)
    handle = engine.start(graph, Count())
    for _ in range(8):
        engine.worker().run(until_idle=True)
        clock.advance(60)
    assert ("blocked", 3) == (handle.info().status, handle.info().crash_count)
    assert len(store.read(handle.run_id, kinds=("owner",))) <= 3


def test_a_claim_that_was_written_though_it_failed_is_taken_again_at_once(medium):
    is_lost = []

    class Lost:
        def _change(self, op, body):
            given = super()._change(op, body)
            if op == "claim_due" and given and is_lost:
                is_lost.clear()
                raise StoreError("the answer is lost", op="claim_due")
            return given

    store = medium.open(Lost)
    graph = one(plus, "flow")
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count())
    is_lost.append(True)
    with pytest.raises(StoreError, match="answer is lost"):
        store.claim_due(["flow"], 1)
    engine.worker().run(until_idle=True)
    assert (Count(1), 0) == (handle.result(timeout=5), handle.info().crash_count)


# -- stopping ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_stopping_lets_a_node_come_to_its_boundary(medium, is_async):
    store, log = medium.open(), []
    began, gate = threading.Event(), threading.Event()

    def waits(state: Count) -> Count:
        log.append("a")
        began.set()
        gate.wait(10)
        return plus(state)

    async def awaits(state: Count) -> Count:
        log.append("a")
        began.set()
        await asyncio.to_thread(gate.wait, 10)
        return plus(state)

    graph = two(awaits if is_async else waits, plus, "flow")
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count())
    with engine.worker() as worker:
        assert began.wait(10)
        worker.stop()
        gate.set()
    info = handle.info()
    assert ("ready", ["a"], 0) == (info.status, [i.node_id for i in store.list(handle.run_id)], info.crash_count)
    assert "stopped" in info.reason
    engine.worker().run(until_idle=True)
    assert (Count(2), ["a"]) == (handle.result(timeout=5), log)


@pytest.mark.parametrize("is_async", [False, True])
def test_stopping_cuts_off_what_takes_too_long(medium, is_async):
    store, gate, began = medium.open(), threading.Event(), threading.Event()

    def waits(state: Count) -> Count:
        began.set()
        gate.wait(20)
        return plus(state)

    async def awaits(state: Count) -> Count:
        began.set()
        await asyncio.sleep(0 if gate.is_set() else 20)
        return plus(state)

    graph = one(awaits if is_async else waits, "flow")
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count())
    with engine.worker(grace=0.05):
        assert began.wait(10)
    gate.set()
    assert ("ready", 0) == (handle.info().status, handle.info().crash_count)
    engine.worker().run(until_idle=True)
    assert Count(1) == handle.result(timeout=5)


def test_stopping_ends_a_back_off(store):
    failed = threading.Event()

    def fails(state: Count) -> Count:
        if not failed.is_set():
            failed.set()
            raise ValueError("once")
        return plus(state)

    graph = one(fails, "flow", retry=Retry(3, backoff=60, max_delay=60, jitter=False))
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count())
    began = time.monotonic()
    with engine.worker(grace=30):
        assert failed.wait(10)
        while not store.read(handle.run_id, kinds=("failure",)):
            time.sleep(0.005)
    assert time.monotonic() - began < 15
    assert "ready" == handle.info().status


def test_a_worker_may_run_in_the_callers_loop(store):
    graph = one(aplus, "flow")
    engine = Engine(store, flows=[graph])

    async def main() -> Count:
        async with engine.worker():
            handle = await engine.astart(graph, Count())
            return await handle.aresult(timeout=10)

    assert Count(1) == asyncio.run(main())


def test_cancelling_a_workers_task_drains_it(store):
    began = asyncio.Event()

    async def endless(state: Count) -> Count:
        began.set()
        await asyncio.sleep(60)
        return state

    graph = one(endless, "flow")
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count())

    async def main() -> None:
        working = asyncio.ensure_future(engine.worker(grace=0.05).arun())
        await began.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(main())
    assert "ready" == handle.info().status


def test_a_cancelled_run_frees_its_slot(medium):
    store = medium.open()

    async def endless(state: Count) -> Count:
        await asyncio.sleep(60)
        return state

    stuck, quick = one(endless, "stuck"), one(aplus, "quick")
    engine = Engine(store, flows=[stuck, quick])
    with engine.worker(concurrency=1):
        handle = engine.start(stuck, Count())
        while handle.info().status != "running":
            time.sleep(0.005)
        waiting = engine.start(quick, Count())
        handle.cancel("enough")
        assert Count(1) == waiting.result(timeout=15)
    assert "cancelled" == handle.info().status


# -- beats -----------------------------------------------------------------------------------------------------


def test_a_worker_tells_of_itself_every_15_seconds(medium, clock):
    store = medium.open(clock=clock)
    graph = one(aplus, "nightly")
    engine = Engine(store, flows=[graph], clock=clock)
    begun = clock.now()
    with engine.worker(concurrency=3, poll=60) as worker:
        until(lambda: clock.sleepers >= 1)
        (info,) = engine.workers()
        assert (os.getpid(), begun, begun, 3, 0) == (info.pid, info.started, info.beat, info.concurrency, info.running)
        assert ({"nightly": graph.fingerprint}, {}, ()) == (info.flows, info.refused, info.schedules)
        worker.refused |= {f"r{number}": "x" * 600 for number in range(30)}
        clock.advance(14)
        until(lambda: clock.advance(0.1) or store.workers()[0].refused)
    (told,) = store.workers()
    assert timedelta(seconds=15) <= told.beat - begun <= timedelta(seconds=20)
    assert ([f"r{number}" for number in range(20)], {500}) == ([*told.refused], {*map(len, told.refused.values())})
    assert info.name == told.name


def test_a_worker_whose_store_takes_no_beats_goes_on(store, monkeypatch):
    graph = one(aplus, "nightly")
    engine = Engine(store, flows=[graph])
    monkeypatch.setattr(store, "beat", lambda info: 1 / 0)
    handle = engine.start(graph, Count())
    engine.worker().run(until_idle=True)
    assert (Count(1), ()) == (handle.result(), store.workers())


# -- schedules -----------------------------------------------------------------------------------------------


def started(store: Store) -> list[str]:
    return sorted(info.run_id for info in store.list_runs())


def until(condition, seconds: float = 10.0) -> None:
    """Wait for what another thread does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def test_a_schedule_starts_one_run_at_each_time(medium, clock):
    store = medium.open(clock=clock)
    graph = one(aplus, "nightly")
    clock.set(datetime(2026, 3, 1, 5, 59, 30, tzinfo=UTC))
    engine = Engine(store, flows=[graph], clock=clock)
    workers = [engine.worker().every("report", graph.bind(Count()), "0 6 * * *") for _ in range(2)]
    with workers[0], workers[1]:
        until(lambda: clock.sleepers >= 2)
        clock.advance(31)
        until(lambda: clock.advance(1) or ["report@2026-03-01T06:00:00Z"] == started(store))
        until(lambda: "finished" == status_of(store, "report@2026-03-01T06:00:00Z"))
        clock.advance(days=1)
        until(lambda: clock.advance(1) or len(started(store)) == 2)
    assert ["report@2026-03-01T06:00:00Z", "report@2026-03-02T06:00:00Z"] == started(store)


def test_a_schedule_follows_its_zone_through_summer_time(medium, clock):
    store = medium.open(clock=clock)
    graph = one(aplus, "daily")
    clock.set(datetime(2026, 3, 28, 12, tzinfo=UTC))
    engine = Engine(store, flows=[graph], clock=clock)
    with engine.worker().every("job", graph.bind(Count()), "30 8 * * *", tz="Europe/Berlin"):
        for count in range(1, 4):
            until(lambda: clock.sleepers >= 1)
            clock.advance(days=1)
            # A worker that looked just before goes to sleep just after: it is woken by what passes then.
            until(lambda count=count: clock.advance(1) or len(started(store)) == count)
    assert ["job@2026-03-29T06:30:00Z", "job@2026-03-30T06:30:00Z", "job@2026-03-31T06:30:00Z"] == started(store)


def test_the_hour_that_the_end_of_summer_time_repeats_makes_up_for_nothing(medium, clock):
    store = medium.open(clock=clock)
    graph = one(aplus, "daily")
    clock.set(datetime(2026, 10, 25, 1, 10, tzinfo=UTC))  # 02:10 in Berlin for the second time
    engine = Engine(store, flows=[graph], clock=clock)
    worker = engine.worker().every("job", graph.bind(Count()), "30 2 * * *", tz="Europe/Berlin")
    worker.run(until_idle=True)
    assert [] == started(store)
    assert datetime(2026, 10, 26, 1, 30, tzinfo=UTC) == store.workers()[-1].schedules[0].next_at


def test_a_schedule_that_a_running_worker_is_given_begins_then(medium, clock):
    store = medium.open(clock=clock)
    graph = one(aplus, "minutely")
    clock.set(datetime(2026, 3, 1, 6, 0, 30, tzinfo=UTC))
    engine = Engine(store, flows=[graph], clock=clock)
    with engine.worker().every("old", graph.bind(Count()), "0 0 1 1 *") as worker:
        until(lambda: clock.sleepers >= 1)
        worker.every("new", graph.bind(Count()), "* * * * *")
        until(lambda: worker._schedules["new"].due_at == clock.time() + 30)
        until(lambda: clock.advance(1) or started(store))
    assert started(store)[0].startswith("new@2026-03-01T06:0")


def test_a_schedule_given_while_another_one_starts_a_run_ends_no_worker(medium, clock):
    given = []

    class Giving:
        def paused_schedules(self):
            if not given:
                given.append(worker.every("new", graph.bind(Count()), "* * * * *"))
            return super().paused_schedules()

    store = medium.open(Giving, clock=clock)
    graph = one(aplus, "minutely")
    clock.set(datetime(2026, 3, 1, 6, 0, 30, tzinfo=UTC))
    engine = Engine(store, flows=[graph], clock=clock)
    worker = engine.worker().every("old", graph.bind(Count()), "* * * * *")
    with worker:
        until(lambda: clock.sleepers >= 1)
        until(lambda: clock.advance(1) or {"new", "old"} == {run_id.partition("@")[0] for run_id in started(store)})


@pytest.mark.parametrize("error", [None, ValueError("the body's own")])
def test_a_worker_that_ends_in_the_background_says_so_at_once_and_replaces_no_error(store, caplog, error):
    class Broken(Exception):
        pass

    def fail():
        raise Broken

    def body():
        if error is not None:
            raise error

    async def awaited(worker):
        async with worker:
            while not worker._task.done():
                await asyncio.sleep(0.005)
            assert 1 == sum("a worker of" in record.getMessage() for record in caplog.records)
            body()

    def in_a_thread(worker):
        with worker:
            worker._thread.join(10)
            assert 1 == sum("a worker of" in record.getMessage() for record in caplog.records)
            body()

    for use in (in_a_thread, lambda worker: asyncio.run(awaited(worker))):
        caplog.clear()
        worker = Engine(store, flows=[one(plus, "flow")]).worker()
        worker._begin_schedules = lambda begun: fail()
        with pytest.raises(Broken if error is None else ValueError):
            use(worker)


def test_times_that_passed_while_no_worker_ran_are_not_made_up_for(medium, clock):
    store = medium.open(clock=clock)
    graph = one(aplus, "hourly")
    engine = Engine(store, flows=[graph], clock=clock)
    worker = engine.worker().every("job", graph.bind(Count()), "0 * * * *")
    clock.advance(hours=5)
    with worker:
        until(lambda: clock.sleepers >= 1)
    assert [] == started(store)


def test_after_a_standstill_the_newest_time_alone_is_started_and_the_others_are_told(medium, clock, caplog):
    store = medium.open(clock=clock)
    graph = one(aplus, "minutely")
    clock.set(datetime(2026, 3, 1, 6, 0, 30, tzinfo=UTC))
    engine = Engine(store, flows=[graph], clock=clock)
    with engine.worker().every("job", graph.bind(Count()), "* * * * *"):
        until(lambda: clock.sleepers >= 1)
        clock.set(datetime(2026, 3, 1, 6, 10, 30, tzinfo=UTC))
        until(lambda: clock.advance(0.01) or started(store))
        until(lambda: clock.sleepers >= 1)
        clock.set(datetime(2026, 3, 1, 6, 11, 30, tzinfo=UTC))
        until(lambda: clock.advance(0.01) or len(started(store)) == 2)
    assert ["job@2026-03-01T06:10:00Z", "job@2026-03-01T06:11:00Z"] == started(store)
    assert ["9 times before run 'job@2026-03-01T06:10:00Z' left out"] == [
        record.getMessage().partition("in time: ")[2] for record in caplog.records if "in time" in record.getMessage()
    ]


def test_a_paused_schedule_starts_nothing_and_makes_up_for_nothing(medium, clock, caplog):
    store = medium.open(clock=clock)
    graph = one(aplus, "hourly")
    engine = Engine(store, flows=[graph], clock=clock)
    clock.set(datetime(2026, 3, 1, 5, 30, tzinfo=UTC))
    engine.pause_schedule("job", by="ann")
    assert "ann" == engine.paused_schedules()["job"].by
    with caplog.at_level("INFO"), engine.worker().every("job", graph.bind(Count()), "0 * * * *"):
        until(lambda: clock.sleepers >= 1)
        clock.advance(hours=1)
        until(lambda: clock.advance(1) or "run 'job@2026-03-01T06:00:00Z' is left out" in caplog.text)
        assert [] == started(store)
        engine.resume_schedule("job", by="bea")
        clock.advance(minutes=10)
        clock.advance(minutes=40)
        until(lambda: clock.advance(1) or started(store))
        until(lambda: clock.advance(1) or store.workers()[0].schedules[0].last_run_id)
    assert ["job@2026-03-01T07:00:00Z"] == started(store)
    assert "schedule 'job' of memory:// goes on, by 'bea'" in caplog.text or store.place != "memory://"
    (schedule,) = store.workers()[0].schedules
    assert ("job", "hourly", "0 * * * *", "UTC") == (schedule.name, schedule.flow, schedule.cron, schedule.tz)
    assert ("job@2026-03-01T07:00:00Z", 8) == (schedule.last_run_id, schedule.next_at.hour)


def test_a_schedule_that_another_worker_has_with_another_input_keeps_no_run_waiting(medium, clock, caplog):
    store = medium.open(clock=clock)
    graph = one(aplus, "nightly")
    engine = Engine(store, flows=[graph], clock=clock)
    clock.set(datetime(2026, 3, 1, 5, 59, 30, tzinfo=UTC))
    engine.start(graph, Count(5), run_id="report@2026-03-01T06:00:00Z")
    engine.start(graph, Count(), run_id="other", at=datetime(2026, 3, 1, 6, 1, tzinfo=UTC))
    with engine.worker().every("report", graph.bind(Count()), "0 6 * * *"):
        until(lambda: clock.sleepers >= 1)
        clock.advance(minutes=2)
        until(lambda: clock.advance(1) or "finished" == status_of(store, "other"))
        clock.advance(days=1)
        until(lambda: clock.advance(1) or "report@2026-03-02T06:00:00Z" in started(store))
    told = [record.getMessage() for record in caplog.records if "schedule" in record.getMessage()]
    assert 1 == len(told)
    assert "schedule 'report' did not start run 'report@2026-03-01T06:00:00Z': " in told[0]
    assert "inputs hash mismatch" in told[0]


@pytest.mark.parametrize(
    ("name", "cron", "tz", "error"),
    [
        ("a\nb", "0 6 * * *", "UTC", InvalidIDError),
        ("x" * 500, "0 6 * * *", "UTC", InvalidIDError),
        (5, "0 6 * * *", "UTC", TypeError),
        ("job", None, "UTC", OptionError),
        ("job", "0 6 * * *", None, OptionError),
    ],
)
def test_a_schedule_whose_runs_could_not_start_is_refused_at_once(store, name, cron, tz, error):
    graph = one(plus, "flow")
    with pytest.raises(error):
        Engine(store, flows=[graph]).worker().every(name, graph.bind(Count()), cron, tz=tz)


def test_a_schedule_that_cannot_be_is_refused(store):
    graph = one(plus, "flow")
    worker = Engine(store, flows=[graph]).worker()
    for cron, tz in (
        ("61 * * * *", "UTC"),
        ("every day", "UTC"),
        ("", "UTC"),
        ("0 0 31 2 *", "UTC"),
        ("0 0 6 * * *", "UTC"),
    ):
        with pytest.raises(OptionError, match="cron"):
            worker.every("job", graph.bind(Count()), cron, tz=tz)
    with pytest.raises(OptionError, match="zone"):
        worker.every("job", graph.bind(Count()), "0 6 * * *", tz="Europe/Nowhere")
    with pytest.raises(OptionError, match="bind"):
        worker.every("job", graph, "0 6 * * *")
    worker.every("job", graph.bind(Count()), "0 6 * * *")
    with pytest.raises(OptionError, match="already"):
        worker.every("job", graph.bind(Count()), "0 7 * * *")


# -- what a worker can't be made of ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": True},
        {"limits": {"flow": 0}},
        {"limits": {"other": 1}},
        {"limits": ["flow"]},
        {"poll": -1},
        {"grace": "long"},
    ],
)
def test_options_out_of_range_are_refused(store, options):
    engine = Engine(store, flows=[one(plus, "flow")])
    with pytest.raises((OptionError, TypeError)):
        engine.worker(**options)


@pytest.mark.parametrize("option", ["stop_before", "stop_after"])
def test_a_breakpoint_that_a_flow_of_the_worker_does_not_have_is_refused(store, option):
    flows = [two(plus, plus, "two"), one(plus, "one")]
    engine = Engine(store, flows=flows, **{option: "b"})
    handles = [engine.start(flows[0], Count()) for _ in range(2)]
    with pytest.raises(OptionError, match=f"{option} names 'b', which flow 'one' does not have"):
        engine.worker()
    engine.worker(flows[:1]).run(until_idle=True)
    assert {"finished"} == {handle.info().status for handle in handles}


def test_a_worker_takes_no_flow_that_has_no_name_of_its_own(store):
    nameless = Graph(Count).add_node("a", plus).add_edge("a", END).set_entry("a").compile()
    with pytest.raises(OptionError, match="name"):
        Engine(store).worker([nameless])
    with pytest.raises(OptionError, match="two flows"):
        Engine(store).worker([one(plus, "flow"), one(plus, "flow")])


@pytest.mark.parametrize("flows", [one(plus, "flow"), "flow", 5])
def test_flows_that_are_no_list_are_refused(store, flows):
    for give in (Engine(store).worker, lambda flows: Engine(store, flows=flows)):
        with pytest.raises(OptionError, match=r"flows must be a list of flows, not .*: flows=\[flow\]"):
            give(flows)


def test_a_worker_that_has_ended_works_again(store, caplog):
    graph = one(plus, "flow")
    engine = Engine(store, flows=[graph])
    worker = engine.worker(poll=0.01)
    for _ in range(2):
        handle = engine.start(graph, Count())
        worker.run(until_idle=True)
        assert "finished" == handle.info().status
    for _ in range(2):
        with worker:
            assert Count(1) == engine.start(graph, Count()).result(timeout=10)
    handle = engine.start(graph, Count())
    worker.stop()
    worker.run(until_idle=True)
    assert "ready" == handle.info().status
    assert 1 == sum("stopped before it began" in record.getMessage() for record in caplog.records)
    worker.run(until_idle=True)
    assert "finished" == handle.info().status


@pytest.mark.parametrize("options", [{"concurrency": 1}, {"limits": {"flow": 1}}])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_node_that_waits_for_another_run_lends_it_the_slot(store, is_async, options):
    def plain(state: Count) -> Count:
        if state.n > 2:
            return state
        return engine.start(graph, Count(state.n + 1), run_id=f"r{state.n + 1}").result(timeout=20)

    async def awaited(state: Count) -> Count:
        if state.n > 2:
            return state
        return await (await engine.astart(graph, Count(state.n + 1), run_id=f"r{state.n + 1}")).aresult(timeout=20)

    graph = one(awaited if is_async else plain, "flow")
    engine = Engine(store, flows=[graph])
    with engine.worker(poll=0.01, **options):
        assert Count(3) == engine.start(graph, Count(), run_id="r0").result(timeout=20)


@pytest.mark.parametrize(
    "wait",
    [
        lambda engine, flow: engine.handle("other").result(),
        lambda engine, flow: engine.handle("other").output("a"),
        lambda engine, flow: [*engine.handle("other").events()],
        lambda engine, flow: engine.run(flow, Count(), run_id="other", if_exists="return"),
        lambda engine, flow: engine.resume(flow, "other", on_locked="wait"),
        lambda engine, flow: engine.start(flow, Count(), run_id="other", if_exists="resume", on_locked="wait"),
    ],
)
def test_a_coroutine_that_would_block_the_workers_loop_is_refused(store, wait):
    has_begun, may_end = threading.Event(), threading.Event()

    def held(state: Count) -> Count:
        has_begun.set()
        assert may_end.wait(20)
        return plus(state)

    async def waiting(state: Count) -> Count:
        with pytest.raises(TimeoutError):
            engine.handle("other").result(timeout=0)  # one look blocks nothing
        with pytest.raises(
            AsyncNodeError, match=r"a coroutine waits for run 'other' with a sync verb, .*: await the verb"
        ):
            wait(engine, other)
        return plus(state)

    flow, other = one(waiting, "flow"), one(held, "other")
    engine = Engine(store, flows=[flow, other])
    handle = engine.start(flow, Count())
    thread = threading.Thread(target=engine.run, args=(other, Count()), kwargs={"run_id": "other"})
    thread.start()
    assert has_begun.wait(20)
    try:
        engine.worker([flow]).run(until_idle=True)
    finally:
        may_end.set()
        thread.join()
    assert (Count(1), Count(1)) == (handle.result(timeout=5), engine.handle("other").result(timeout=5))


def test_a_worker_that_runs_cannot_be_run_again(store):
    worker = Engine(store, flows=[one(plus, "flow")]).worker()
    with worker, pytest.raises(OptionError, match="already"):
        until(lambda: worker._loop is not None)
        worker.run()


@pytest.mark.parametrize("kind", ["graph", "workflow"])
def test_a_run_that_its_run_timeout_stops_without_progress_is_taken_with_growing_pauses(clock, kind):
    log: list[str] = []

    async def node(state: Any) -> Any:
        log.append("a")
        if len(log) < 4:
            await asyncio.sleep(0)  # the timer of its time begins
            clock.advance(1)
            await asyncio.Event().wait()
        return {}

    @workflow("w")
    def wf() -> Any:
        yield step("a").python(node, args=(1,))

    graph = Graph(dict).add_node("a", node).add_edge("a", END).set_entry("a").compile("g")
    flow = graph.bind({}) if kind == "graph" else wf.bind()
    engine = Engine(MemoryStore(clock=clock), flows=[flow.flow], clock=clock, run_timeout=0.5)
    handle = engine.start(flow)
    for taken, pause in enumerate([2, 4, 8], 1):
        engine.worker().run(until_idle=True)
        assert ("ready", taken) == (handle.info().status, len(log))
        assert "run_timeout" in handle.info().reason
        clock.advance(pause)
    engine.worker().run(until_idle=True)
    assert "finished" == handle.info().status
