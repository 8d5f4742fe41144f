"""Workers and workflows: claimed, continued, parked, woken, and given back at a step's boundary."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from milepost import Engine, RunCancelled, StoreError, parallel, step, workflow
from milepost.engine import worker as workers
from milepost.errors import OptionError


@workflow("approve")
def approve(amount: int):
    reply = yield from step("ask").wait_for("approval", timeout=3600)
    return "timeout" if reply.timed_out else reply.payload


@workflow("nightly")
def nightly(limit: int = 3):
    return (yield from step("count").python(lambda: limit))


def work(engine: Engine, **options: Any) -> None:
    """Have everything done that is due now."""
    engine.worker(**options).run(until_idle=True)


def status_of(engine: Engine, run_id: str) -> str:
    return engine.store.get_run(run_id).info.status


@pytest.fixture
def engine(timed, clock):
    return Engine(timed, flows=[approve, nightly], clock=clock)


# -- taking, parking and waking ----------------------------------------------------------------------------


def test_a_worker_runs_plain_and_async_steps(engine):
    async def later(n: int) -> int:
        return n * 2

    @workflow("mixed")
    def mixed(n: int):
        one = yield from step("plain").python(lambda n: n + 1, args=(n,))
        both = yield from parallel(
            "both", step("x").python(later, args=(one,)), step("y").python(lambda n: -n, args=(one,))
        )
        return [result.output for result in both]

    @workflow("awaiting")
    async def awaiting(n: int):
        return await step("later").python(later, args=(n,))

    handles = [engine.start(mixed, n=n) for n in range(3)]
    awaited = engine.start(awaiting, n=4)
    work(engine, flows=[mixed, awaiting])
    assert [[2, -1], [4, -2], [6, -3]] == [handle.result(timeout=5) for handle in handles]
    assert 8 == awaited.result(timeout=5)


def test_a_worker_parks_a_run_that_waits_and_takes_it_again_with_its_signal(engine, caplog):
    handle = engine.start(approve, amount=1, run_id="r")
    with caplog.at_level(logging.WARNING, "milepost"):
        work(engine)
    row = engine.store.get_run("r")
    assert ("waiting", "free", []) == (row.info.status, row.lease, caplog.records)
    work(engine)
    assert 1 == len(engine.store.read("r", kinds=("owner",)))
    assert "taken" == engine.signal("r", "approval", "yes")
    work(engine)
    assert "yes" == handle.result(timeout=5)


@pytest.mark.every_store
def test_a_signal_in_this_process_wakes_a_worker_at_once(verbs, store):
    engine = Engine(store, flows=[approve])
    engine.run(approve, amount=1, run_id="r", full=True)
    with engine.worker(poll=600):
        verbs.call(engine, "signal", "r", "approval", "yes")
        assert "yes" == engine.handle("r").result(timeout=20)


def test_a_time_that_is_over_is_found_by_the_next_poll(engine, clock):
    handle = engine.start(approve, amount=1, run_id="r")
    work(engine)
    clock.advance(3599)
    work(engine)
    assert "waiting" == status_of(engine, "r")
    clock.advance(1)
    work(engine)
    assert "timeout" == handle.result(timeout=5)


def test_a_worker_does_not_block_for_a_wait_though_the_engine_s_verbs_do(timed, clock):
    engine = Engine(timed, flows=[approve], clock=clock, on_wait="block")
    engine.start(approve, amount=1, run_id="r")
    work(engine, concurrency=1)
    assert "waiting" == status_of(engine, "r")


@pytest.mark.every_store
def test_a_worker_takes_what_its_owner_left_dead_with_its_waits(medium, clock, log):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")
    store = medium.open(clock=clock)

    @workflow("booking")
    def booking():
        yield step("book").python(lambda: log.append("book"))
        return (yield from step("ask").wait_for("go")).payload

    engine = Engine(store, flows=[booking], clock=clock)
    handle = engine.start(booking, run_id="r")
    assert 1 == len(store.claim_due(["booking"], 1))
    engine.signal("r", "go", "early")
    clock.advance(31)
    work(engine)
    assert ("early", ["book"]) == (handle.result(timeout=5), log)


# -- stopping ----------------------------------------------------------------------------------------------


def test_a_worker_that_is_stopped_gives_a_workflow_back_at_a_step_s_boundary(store, log):
    inside, gate = threading.Event(), threading.Event()

    def slow() -> str:
        log.append("slow")
        inside.set()
        gate.wait(20)
        return "slow"

    @workflow("long")
    def long():
        first = yield from step("slow").python(slow)
        second = yield from step("next").python(lambda: log.append("next") or "next")
        return [first, second]

    engine = Engine(store, flows=[long])
    engine.start(long, run_id="r")
    worker = engine.worker(poll=0.01)
    with worker:
        assert inside.wait(20)
        worker.stop()
        gate.set()
    row = store.get_run("r")
    assert ("ready", "free", ["slow"]) == (row.info.status, row.lease, log)
    assert ["start", "owner", "checkpoint"] == [record.kind for record in store.read("r")]
    work(engine)
    assert (["slow", "next"], ["slow", "next"]) == (engine.handle("r").result(timeout=5), log)


def test_a_worker_that_is_stopped_lets_a_group_s_running_steps_end(store, log):
    inside, gate = threading.Barrier(3), threading.Event()

    def slow(name: str) -> str:
        inside.wait(20)
        gate.wait(20)
        log.append(name)
        return name

    @workflow("group")
    def group():
        both = yield from parallel("both", *(step(name).python(slow, args=(name,)) for name in "ab"))
        yield step("next").python(lambda: log.append("next"))
        return [result.output for result in both]

    engine = Engine(store, flows=[group])
    engine.start(group, run_id="r")
    worker = engine.worker(poll=0.01)
    with worker:
        inside.wait(20)
        worker.stop()
        gate.set()
    assert ("ready", ["a", "b"]) == (status_of(engine, "r"), sorted(log))
    work(engine)
    assert (["a", "b"], ["a", "b", "next"]) == (engine.handle("r").result(timeout=5), sorted(log))


# -- cancels -----------------------------------------------------------------------------------------------


def test_a_cancel_just_before_the_last_step_completes_is_the_one_outcome(store, log):
    @workflow("short")
    def short(is_cancelled: bool):
        yield step("pay").python(lambda: 1).with_rollback(lambda ctx: log.append("refund"))
        yield step("last").python(lambda: engine.cancel("r", "enough") if is_cancelled else "kept")
        return "done"

    engine = Engine(store, flows=[short])
    engine.start(short, is_cancelled=True, run_id="r")
    other = engine.start(short, is_cancelled=False, run_id="next")
    work(engine, concurrency=1)
    info = store.get_run("r").info
    assert ("cancelled", "enough", ["refund"]) == (info.status, info.reason, log)
    assert 1 == len(store.read("r", kinds=("finish",)))
    assert "done" == other.result(timeout=5)


def test_a_step_that_hangs_frees_its_worker_s_place_when_it_is_cancelled(store):
    inside = threading.Event()

    async def hang() -> None:
        inside.set()
        await asyncio.sleep(600)

    @workflow("hanging")
    def hanging():
        yield step("hang").python(hang)

    engine = Engine(store, flows=[hanging, nightly])
    hung = engine.start(hanging, run_id="r")
    with engine.worker(concurrency=1, poll=0.01):
        assert inside.wait(20)
        other = engine.start(nightly)
        assert "requested" == hung.cancel("enough")
        with pytest.raises(RunCancelled, match="'r'"):
            hung.result(timeout=20)
        assert 3 == other.result(timeout=20)


# -- refusing, and failing stores --------------------------------------------------------------------------


def test_a_worker_does_not_remember_refused_runs_for_ever(monkeypatch, engine, timed, clock):
    monkeypatch.setattr(workers, "MAX_REFUSED", 3)

    @workflow("approve")
    def other(amount: int):
        yield step("something").python(lambda: 1)

    for number in range(8):
        engine.run(approve, amount=1, run_id=f"r{number}", full=True)
        engine.signal(f"r{number}", "approval")
    worker = Engine(timed, flows=[other], clock=clock).worker()
    worker.run(until_idle=True)
    assert 8 == len(worker.refused)
    for number in range(8):
        timed.delete_run(f"r{number}")
    worker._forget_refused()
    assert 3 == len(worker.refused)


@pytest.mark.parametrize(
    ("end", "blocked_by"), [(SystemExit(3), "crashes"), (KeyboardInterrupt(), "crashes"), (KeyError("n"), "bug")]
)
def test_a_run_that_other_code_refused_ends_no_worker_that_looks_at_it(engine, timed, clock, end, blocked_by):
    engine.run(approve, amount=1, run_id="r", full=True)
    engine.signal("r", "approval", "yes")

    @workflow("approve")
    def refusing(amount: int):
        yield step("something").python(lambda: 1)

    work(Engine(timed, flows=[refusing], clock=clock))
    assert "refused" in timed.get_run("r").reason

    @workflow("approve")
    def ending(amount: int):
        raise end
        yield

    mended = Engine(timed, flows=[ending, nightly], clock=clock, max_crashes=2)
    other = mended.start(nightly)
    worker = mended.worker()
    thread = threading.Thread(target=worker.run, args=(True,))  # in the main thread an interrupt is the user's
    thread.start()
    thread.join(20)
    assert (3, {}) == (other.result(timeout=0), worker.refused)
    info = timed.get_run("r").info
    assert ("blocked", blocked_by) == (info.status, info.blocked_by)
    assert "refused" not in info.reason


def test_a_store_that_fails_at_the_parking_is_tried_again(medium, clock):
    class Failing:
        is_away = False

        def append(self, batch):
            if self.is_away and any(a.release is not None and a.release.status == "waiting" for a in batch):
                self.is_away = False
                raise StoreError("the disk is away", op="append")
            return super().append(batch)

    store = medium.open(Failing, clock=clock)
    engine = Engine(store, flows=[approve], clock=clock)
    engine.start(approve, amount=1, run_id="r")
    store.is_away = True
    work(engine)
    assert "ready" == status_of(engine, "r")
    clock.advance(10)
    work(engine)
    assert ("waiting", 1) == (status_of(engine, "r"), len(store.read("r", kinds=("wait",))))


# -- schedules ---------------------------------------------------------------------------------------------


def test_a_schedule_starts_a_workflow_that_needs_no_inputs(medium, clock):
    class Noting:
        """Tells when the runs of the schedules have finished."""

        def append(self, batch):
            told = super().append(batch)
            for append in batch:
                if append.release is not None and append.release.status == "finished":
                    finished.release()
            return told

    finished = threading.Semaphore(0)
    store = medium.open(Noting, clock=clock)
    clock.set(datetime(2026, 1, 1, 5, 59, 30, tzinfo=UTC))
    engine = Engine(store, flows=[nightly], clock=clock)
    worker = engine.worker().every("plain", nightly, "0 6 * * *").every("bound", nightly.bind(limit=7), "0 6 * * *")
    with worker:
        clock.wait_for_sleepers(1)
        clock.advance(31)
        assert finished.acquire(timeout=20)
        assert finished.acquire(timeout=20)
    told = [engine.handle(f"{name}@2026-01-01T06:00:00Z").result(timeout=5) for name in ("plain", "bound")]
    assert [3, 7] == told


@pytest.mark.parametrize("flow", [approve, "nightly", len])
def test_a_schedule_of_what_needs_an_input_is_refused(engine, flow):
    with pytest.raises(OptionError, match="bind"):
        engine.worker().every("x", flow, "0 6 * * *")
