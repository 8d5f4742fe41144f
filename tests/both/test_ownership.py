"""One owner at a time, whose writes alone count."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from milepost import END, Checkpoint, Graph, LeaseLost, RunLockedError
from milepost.drivers.heartbeat import heartbeat
from milepost.errors import RunStopped, RunTimeoutError, StateValidationError
from milepost.model.ids import describe_owner, this_process
from milepost.model.record import make_record
from milepost.store import NewRun
from milepost.stores.base.fence import TokenState


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


def rival(store, **options):
    """Take the run over and finish it, as another process would: in a thread of its own, with nodes of its own."""

    async def add(state: Count) -> Count:
        return Count(state.n + 100)

    graph = Graph(Count)
    for node in "abc":
        graph.add_node(node, add)
    graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a")
    compiled = graph.compile("line")
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(compiled.aresume(store, "r1", takeover=True, **options))).result(10)


@pytest.mark.every_store
def test_an_owner_that_was_overtaken_writes_nothing_more_and_starts_no_further_node(verbs, medium, line, log):
    store, other, result = medium.open(), medium.open(), []

    def b(state: Count) -> Count:
        result.append(rival(other))
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    with pytest.raises(LeaseLost) as caught:
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert ("r1", 1, Count(1)) == (caught.value.run_id, caught.value.epoch, caught.value.state)
    assert (["a", "b"], [Count(201)]) == (log, result)
    assert "finished" == store.get_run("r1").info.status
    assert Count(201) == verbs.resume(graph, store, "r1")
    assert "checkpoint" not in [r.kind for r in store.read("r1") if r.fields().get("epoch") == 1 and r.sequence > 1]


def test_an_overtaken_owner_whose_node_fails_learns_that_it_was_overtaken(verbs, medium, line, log):
    store, other = medium.open(), medium.open()

    def b(state: Count) -> Count:
        rival(other)
        raise ValueError("no")

    with pytest.raises(LeaseLost):
        verbs.run(line(Count, "abc", {"b": b}), Count(), store=store, run_id="r1")
    assert "finished" == store.get_run("r1").info.status
    assert 0 == sum(record.kind == "failure" for record in store.read("r1"))


def test_going_on_without_checkpoints_does_not_outlive_the_ownership(verbs, medium, line, log):
    store, other = medium.open(), medium.open()

    def b(state: Count) -> Count:
        rival(other)
        return plus(state)

    with pytest.raises(LeaseLost):
        verbs.run(line(Count, "abc", {"b": b}), Count(), store=store, run_id="r1", checkpoint_failure_fatal=False)
    assert ["a", "b"] == log


def test_a_takeover_between_an_append_built_and_sent_is_refused_inside_the_write(verbs, medium, line, log):
    class Late:
        is_late = True

        def append(self, batch):
            if self.is_late and any(r.node_id == "b" for append in batch for r in append.records):
                self.is_late = False
                rival(others[-1])
            return super().append(batch)

    store = medium.open(Late)
    others = [store, medium.open()]
    with pytest.raises(LeaseLost):
        verbs.run(line(Count), Count(), store=store, run_id="r1")
    assert (["a", "b"], "finished") == (log, store.get_run("r1").info.status)
    assert [1, 101, 201] == [_n(store, node) for node in "abc"]


def _n(store, node: str) -> int:
    return Checkpoint.decode(store.load("r1", node)).state["n"]


def test_a_heartbeat_that_learns_of_a_takeover_stops_the_run_before_its_next_node(verbs, medium, line, log):
    store, other, seen = medium.open(), medium.open(), []

    def b(ctx, state: Count) -> Count:
        rival(other)
        heartbeat.beat()
        seen.append(ctx.cancelled)
        with pytest.raises(BaseException, match="stop") as caught:
            ctx.check_cancelled()
        assert not isinstance(caught.value, Exception)
        return plus(state)

    with pytest.raises(LeaseLost):
        verbs.run(line(Count, "abc", {"b": b}), Count(), store=store, run_id="r1")
    assert (["a", "b"], [True]) == (log, seen)


@pytest.mark.every_store
def test_a_lease_is_renewed_by_its_length(verbs, medium, clock, line):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is not renewed")
    store, ends = medium.open(clock=clock), []

    def b(state: Count) -> Count:
        row = store.get_run("r1")
        ends.append(row.info.lease_until.timestamp() - clock.time())
        clock.advance(50)
        heartbeat.beat()
        ends.append(store.get_run("r1").info.lease_until.timestamp() - clock.time())
        return plus(state)

    verbs.run(line(Count, "ab", {"b": b}), Count(), store=store, run_id="r1", lease=60, clock=clock)
    assert [60, 60] == pytest.approx(ends)


def test_a_live_lease_is_not_taken_without_asking(verbs, medium, clock, line, log, jumping):
    store, other = medium.open(clock=clock), medium.open(clock=clock)
    graph = line(Count, "ab", {"b": lambda state: (_ for _ in ()).throw(verbs.Killed())})
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    before = store.read("r1")

    def look() -> None:
        with pytest.raises(RunLockedError) as caught:
            verbs.resume(line(Count, "ab"), other, "r1")
        assert caught.value.run_id == "r1"
        assert "refuse" == verbs.plan(line(Count, "ab"), other, "r1").verdict

    seen = []

    def b(state: Count) -> Count:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(look).result(10)
        seen.append(len(store.read("r1")))
        return plus(state)

    assert Count(2) == verbs.resume(line(Count, "ab", {"b": b}), store, "r1")
    assert [len(before) + 1] == seen


def test_on_locked_wait_goes_on_when_the_run_is_free(verbs, medium, clock, log):
    store, other = medium.open(clock=clock), medium.open(clock=clock)
    entered, gate = threading.Event(), threading.Event()

    def a(state: Count) -> Count:
        log.append("a")
        entered.set()
        assert gate.wait(10)
        return plus(state)

    def b(state: Count) -> Count:
        log.append("b")
        return plus(state)

    graph = Graph(Count).add_node("a", verbs.node(a)).add_node("b", verbs.node(b)).add_edge("a", "b")
    compiled = graph.add_edge("b", END).set_entry("a").compile()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(verbs.run, compiled, Count(), store=store, run_id="r1", stop_after="a")
        assert entered.wait(10)
        second = pool.submit(verbs.resume, compiled, other, "r1", on_locked="wait", clock=clock)
        clock.wait_for_sleepers(1)
        gate.set()
        assert RunStopped is type(first.exception(10))
        clock.advance(1)
        assert Count(2) == second.result(10)
    assert ["a", "b"] == log


def test_takeover_fences_a_live_owner_off_and_goes_on(verbs, medium, clock, line, log):
    store = medium.open(clock=clock)
    dying = [True]

    def b(state: Count) -> Count:
        if dying[0]:
            dying[0] = False
            assert Count(3) == resume_in_thread()
            raise SystemExit
        return plus(state)

    graph = line(Count, "abc", {"b": b})

    def resume_in_thread():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(verbs.resume, graph, store, "r1", takeover=True).result(10)

    with pytest.raises(SystemExit):
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert ["a", "b", "b", "c"] == log
    assert "finished" == store.get_run("r1").info.status
    assert 0 == store.get_run("r1").info.crash_count


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"revalidate": lambda state: "no good"}, StateValidationError),
        ({"state_override": lambda state: 1 / 0}, ZeroDivisionError),
    ],
)
def test_a_takeover_that_is_then_refused_gives_the_run_back(verbs, medium, line, log, options, error):
    store, errors = medium.open(), []

    def b(state: Count) -> Count:
        if not errors:
            with ThreadPoolExecutor(1) as pool:
                errors.append(pool.submit(verbs.resume, graph, store, "r1", takeover=True, **options).exception(10))
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    with pytest.raises(LeaseLost):
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert [error] == [type(found) for found in errors]
    info = store.get_run("r1").info
    assert ("interrupted", True) == (info.status, "taken over" in info.reason)
    assert "owner" == store.read("r1")[-1].kind
    assert Count(3) == verbs.resume(graph, store, "r1")
    assert ["a", "b", "b", "c"] == log


def test_a_takeover_fences_before_it_looks_at_the_record(verbs, medium, line, log):
    class Damaged:
        is_damaged = False

        def latest(self, *args, **options):
            found = super().latest(*args, **options)
            if self.is_damaged and found.point.sequence:
                found = found._replace(point=found.point._replace(payload=b'{"n":7}'))
            return found

    store, errors = medium.open(Damaged), []

    def b(state: Count) -> Count:
        if not errors:
            store.is_damaged = True
            with ThreadPoolExecutor(1) as pool:
                errors.append(pool.submit(verbs.resume, graph, store, "r1", takeover=True).exception(10))
            store.is_damaged = False
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    with pytest.raises(LeaseLost):
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert "CheckpointIntegrityError" == type(errors[0]).__name__
    assert "interrupted" == store.get_run("r1").info.status


def test_a_takeover_of_a_run_that_nobody_owns_is_an_ordinary_resume(verbs, store, line):
    graph = line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    assert Count(3) == verbs.resume(graph, store, "r1", takeover=True)
    assert 1 == sum(record.kind == "owner" for record in store.read("r1"))


def test_a_node_may_not_save_into_its_own_run(verbs, store, line):
    def b(ctx, state: Count) -> Count:
        ctx.store.save(ctx.run_id, "a", b"{}")
        return state

    with pytest.raises(Exception, match="owned") as caught:
        verbs.run(line(Count, "ab", {"b": b}), Count(), store=store, run_id="r1")
    assert RunLockedError is type(caught.value.__cause__)


def test_a_store_made_in_one_thread_is_used_by_many(verbs, medium, line):
    store, graph = medium.open(), line(Count)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: verbs.run(graph, Count(n), store=store, run_id=f"r{n}"), range(8)))
    assert [Count(n + 3) for n in range(8)] == results
    assert all(5 == len(store.read(f"r{n}")) and store.verify(f"r{n}").ok for n in range(8))


def test_who_has_a_run_is_told_in_words(verbs, medium, line):
    store, other, errors = medium.open(), medium.open(), []

    def b(state: Count) -> Count:
        with ThreadPoolExecutor(1) as pool:
            errors.append(pool.submit(verbs.resume, graph, other, "r1").exception(10))
            errors.append(pool.submit(other.delete_run, "r1").exception(10))
        return plus(state)

    graph = line(Count, "ab", {"b": b})
    verbs.run(graph, Count(), store=store, run_id="r1")
    assert [RunLockedError] * 2 == [type(error) for error in errors]
    assert this_process().name == errors[0].owner
    for error in errors:
        assert error.owner not in str(error)
        assert f"process {os.getpid()} on this machine" in str(error) or "this process" in str(error)


def test_owners_elsewhere_are_told_apart_from_those_here():
    boot, namespace, pid, started = this_process().name.split(":")
    told = [
        describe_owner(":".join(parts))
        for parts in (
            (boot, namespace, pid, started),
            (boot, "1", pid, started),
            ("another-boot", namespace, pid, started),
            ("host", "", pid, ""),
        )
    ]
    here = [f"process {pid} on this machine", "a process in another container on this machine"]
    assert [*here, "a process on another machine", "a process on another machine"] == told
    assert "owner 'worker-1'" == describe_owner("worker-1")


@pytest.mark.parametrize("options", [{"on_locked": "wait"}, {"if_exists": "return"}])
def test_waiting_for_another_owner_is_part_of_the_time_of_a_call(verbs, medium, jumping, line, options):
    store, errors = medium.open(), []
    again = {**options, "run_timeout": 2, "clock": jumping}

    def b(state: Count) -> Count:
        with ThreadPoolExecutor(1) as pool:
            if "on_locked" in options:
                ended = pool.submit(verbs.resume, graph, store, "r1", **again)
            else:
                ended = pool.submit(verbs.run, graph, Count(), store=store, run_id="r1", **again)
            errors.append(ended.exception(10))
        return plus(state)

    graph = line(Count, "ab", {"b": b})
    assert Count(2) == verbs.run(graph, Count(), store=store, run_id="r1")
    assert [(RunTimeoutError, "r1", 2.0)] == [(type(error), error.run_id, error.timeout) for error in errors]
    assert 2.0 == pytest.approx(sum(jumping.waits))


class LetsGo:
    """Another thread has just released the run whose row was read."""

    token = None

    def _view(self, *args, **options):
        if type(self).token is not None:
            self._drop(type(self).token)
        return super()._view(*args, **options)


def test_a_run_that_is_released_while_its_row_is_read_is_nobody_elses(medium):
    store = medium.open(type("Fresh", (LetsGo,), {}))
    record = make_record(
        "r1", 0, "2026-01-01T00:00:00.000000Z", "start", state=b"{}", fields={"flow": "line", "epoch": 1}
    )
    token = store.create(NewRun("r1", "line", "nonce", record, 30.0, {}))
    store.abandon(token)
    for look in (lambda: store.get_run("r1"), lambda: store.latest("r1").row):
        store._held["r1"] = TokenState(token, is_abandoned=True)
        type(store).token = token
        assert "abandoned" == look().lease
