"""A checkpoint that cannot be saved stops the run, unless the user chose otherwise; nothing that was saved is lost."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from milepost import END, Graph, LeaseLost, MemoryStore, NodeError, SerializeStateError, StoreError
from milepost.drivers.heartbeat import heartbeat
from milepost.errors import CheckpointWriteError, RouterError, RunStopped, StateTooLargeError
from milepost.events import CheckpointFailed


@dataclass
class Count:
    n: int = 0


@dataclass
class Anything:
    frames: Any = None
    n: int = field(default=0)


def plus(state: Count) -> Count:
    return Count(state.n + 1)


class Failing:
    """A store that fails as often as `trouble` says, when what is asked of it is in `verbs_that_fail`."""

    trouble: Any = None
    failing_verbs = frozenset({"append"})
    after = 0
    """How many more calls of these verbs still succeed."""

    def fail(self, error: Exception, *, after: int = 0, times: int = 1_000, verbs=("append",)) -> None:
        self.trouble, self.after, self.times = error, after, times
        self.failing_verbs = frozenset(verbs)

    def mend(self) -> None:
        self.trouble = None

    def _may_fail(self, verb: str) -> None:
        if self.trouble is None or verb not in self.failing_verbs:
            return
        if self.after > 0:
            self.after -= 1
        elif self.times > 0:
            self.times -= 1
            raise self.trouble

    def create(self, new):
        self._may_fail("create")
        return super().create(new)

    def append(self, batch):
        self._may_fail("append")
        return super().append(batch)

    def release(self, token, release):
        self._may_fail("release")
        return super().release(token, release)

    def renew(self, tokens):
        self._may_fail("renew")
        return super().renew(tokens)

    def claim(self, claim):
        self._may_fail("claim")
        return super().claim(claim)

    def latest(self, *args, **options):
        self._may_fail("latest")
        return super().latest(*args, **options)

    def read(self, *args, **options):
        self._may_fail("read")
        return super().read(*args, **options)


NO_SPACE = StoreError("no space left on device")


@pytest.fixture
def failing(medium, clock):
    return medium.open(Failing, clock=clock)


@pytest.mark.parametrize("error", [NO_SPACE, RuntimeError("no space left on device")])
def test_a_save_that_failed_once_stops_the_run_and_a_resume_goes_on(verbs, failing, line, log, error):
    graph = line(Count, "abcd")
    failing.fail(error, after=1, times=1)
    with pytest.raises(CheckpointWriteError, match="no space left") as caught:
        verbs.run(graph, Count(), store=failing, run_id="r1")
    assert ("r1", "b", Count(1)) == (caught.value.run_id, caught.value.node_id, caught.value.state)
    assert error is caught.value.__cause__
    assert (["a", "b"], ["a"]) == (log, [info.node_id for info in failing.list("r1")])
    assert "failed" == failing.get_run("r1").info.status
    assert "no space left" in failing.get_run("r1").info.reason
    assert Count(4) == verbs.resume(graph, failing, "r1")
    assert ["a", "b", "b", "c", "d"] == log


def test_a_store_that_fails_for_good_stops_the_run_and_a_resume_goes_on_at_once_when_it_is_mended(
    verbs, failing, line, log
):
    graph = line(Count, "abcd")
    failing.fail(NO_SPACE, after=1)
    with pytest.raises(CheckpointWriteError):
        verbs.run(graph, Count(), store=failing, run_id="r1")
    assert (["a", "b"], ["a"]) == (log, [info.node_id for info in failing.list("r1")])
    failing.mend()
    assert Count(4) == verbs.resume(graph, failing, "r1")
    assert ["a", "b", "b", "c", "d"] == log
    assert 0 == failing.get_run("r1").info.crash_count
    heartbeat.beat()
    assert "finished" == failing.get_run("r1").info.status


def test_a_release_that_the_store_could_not_take_is_tried_again(verbs, failing, line):
    graph = line(Count, "abcd")
    failing.fail(NO_SPACE, after=1, verbs=("append", "release"))
    with pytest.raises(CheckpointWriteError):
        verbs.run(graph, Count(), store=failing, run_id="r1")
    assert "running" == failing.get_run("r1").info.status
    heartbeat.beat()
    assert "running" == failing.get_run("r1").info.status
    failing.mend()
    heartbeat.beat()
    info = failing.get_run("r1").info
    assert ("failed", True) == (info.status, "no space left" in info.reason)


@pytest.mark.every_store
def test_elsewhere_a_run_whose_release_failed_is_taken_over_when_its_lease_has_ended(
    verbs, medium, failing, clock, line, log
):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by itself")
    graph = line(Count, "ab")
    failing.fail(NO_SPACE, after=1)
    with pytest.raises(CheckpointWriteError):
        verbs.run(graph, Count(), store=failing, run_id="r1")
    other = medium.open(clock=clock)
    with pytest.raises(Exception, match=r"executed by process [0-9]+ on this machine"):
        verbs.resume(graph, other, "r1")
    clock.advance(31)
    assert Count(2) == verbs.resume(graph, other, "r1")
    assert ["a", "b", "b"] == log


@pytest.mark.every_store
def test_a_write_whose_outcome_is_unknown_is_looked_up_and_never_written_twice(verbs, medium, line, log):
    class Torn:
        is_torn = True

        def append(self, batch):
            verdicts = super().append(batch)
            if self.is_torn:
                raise StoreError("connection lost at commit")
            return verdicts

    store = medium.open(Torn)
    assert Count(3) == verbs.run(line(Count), Count(), store=store, run_id="r1")
    assert ["a", "b", "c"] == log
    assert ["start", "checkpoint", "checkpoint", "checkpoint", "finish"] == [r.kind for r in store.read("r1")]


def test_an_append_that_was_written_unseen_does_not_keep_the_run_from_being_released(verbs, medium, line):
    class Blind:
        is_blind = False

        def append(self, batch):
            verdicts = super().append(batch)
            if any(record.node_id == "b" for append in batch for record in append.records):
                self.is_blind = True
                raise StoreError("connection lost at commit")
            return verdicts

        def read(self, *args, **options):
            if self.is_blind:
                raise StoreError("no connection")
            return super().read(*args, **options)

    store = medium.open(Blind)
    with pytest.raises(CheckpointWriteError):
        verbs.run(line(Count), Count(), store=store, run_id="r1")
    assert "failed" == store.get_run("r1").info.status


def test_a_start_that_cannot_be_written_runs_nothing(verbs, failing, line, log):
    for fatal in (True, False):
        failing.fail(NO_SPACE, verbs=("create",))
        with pytest.raises(CheckpointWriteError, match="nothing has run") as caught:
            verbs.run(line(Count), Count(), store=failing, run_id="r1", checkpoint_failure_fatal=fatal)
        assert ("r1", NO_SPACE) == (caught.value.run_id, caught.value.__cause__)
    failing.mend()
    assert ([], []) == (log, failing.list_runs())


@pytest.mark.parametrize("verb", ["latest", "claim", "read"])
def test_what_comes_out_of_a_users_store_on_a_resume_is_a_store_error(verbs, failing, line, log, verb):
    graph = line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=failing, run_id="r1", stop_after="a")
    wrong = RuntimeError("boom")
    failing.fail(wrong, verbs=(verb,))
    with pytest.raises(StoreError, match="boom") as caught:
        verbs.resume(graph, failing, "r1")
    assert (wrong, ["a"]) == (caught.value.__cause__, log)
    failing.mend()
    assert Count(3) == verbs.resume(graph, failing, "r1")


# -- what cannot be encoded --------------------------------------------------------------------------------


class Opaque:
    pass


def test_a_value_that_cannot_be_recorded_is_refused_with_run_node_path_and_type(verbs, store, line, log):
    is_broken = [True]

    def b(state: Anything) -> Anything:
        return Anything([{"table": Opaque()}] if is_broken[0] else [{"table": "path"}], state.n + 1)

    graph = line(Anything, "abc", {"b": b})
    with pytest.raises(SerializeStateError) as caught:
        verbs.run(graph, Anything(), store=store, run_id="r1")
    error = caught.value
    assert ("r1", "b", 'state.frames[0]["table"]') == (error.run_id, error.node_id, error.path)
    assert (True, Anything(None, 1)) == ("Opaque" in error.type_name, error.state)
    assert (["a", "b"], ["a"]) == (log, [info.node_id for info in store.list("r1")])
    assert b"Opaque object" not in store.export("r1")
    assert "failed" == store.get_run("r1").info.status
    is_broken[0] = False
    attempts = verbs.resume(graph, store, "r1", full=True)
    assert (3, ["a", "b", "b", "c"]) == (attempts.state.n, log)


def test_a_visit_whose_save_failed_keeps_its_number_and_key(verbs, store, line):
    seen = []

    def b(ctx, state: Anything) -> Anything:
        seen.append((ctx.visit, ctx.attempt, ctx.idempotency_key))
        return Anything(Opaque() if len(seen) == 1 else None)

    graph = line(Anything, "ab", {"b": b})
    with pytest.raises(SerializeStateError):
        verbs.run(graph, Anything(), store=store, run_id="r1")
    verbs.resume(graph, store, "r1")
    assert [(1, 1, seen[0][2]), (1, 2, seen[0][2])] == seen


def test_a_state_above_the_limit_is_refused_with_size_and_limit(verbs, store, line):
    graph = line(Anything, "ab", {"b": lambda state: Anything("x" * 5000)})
    with pytest.raises(StateTooLargeError) as caught:
        verbs.run(graph, Anything(), store=store, run_id="r1", max_state_size=1000)
    assert ("r1", "b", 1000) == (caught.value.run_id, caught.value.node_id, caught.value.limit)
    assert caught.value.size > 5000
    assert 5000 == len(verbs.resume(graph, store, "r1").frames)


def test_a_state_above_the_size_to_warn_of_is_saved_with_a_warning(verbs, store, line, caplog):
    graph = line(Anything, "ab", {"b": lambda state: Anything("x" * 5000)})
    with caplog.at_level(logging.WARNING, "milepost"):
        verbs.run(graph, Anything(), store=store, run_id="r1", warn_size=1000)
    assert ["r1"] == [record.run_id for record in caplog.records]
    assert ["a", "b"] == [info.node_id for info in store.list("r1")]


# -- going on without checkpoints --------------------------------------------------------------------------


def test_a_run_that_goes_on_without_a_checkpoint_is_degraded_and_says_so(verbs, failing, line, log, caplog):
    events = []
    graph = line(Count, "abcd")
    failing.fail(NO_SPACE, after=1, times=1)
    result = verbs.run(
        graph, Count(), store=failing, run_id="r1", checkpoint_failure_fatal=False, full=True, hooks=[events.append]
    )
    assert (Count(4), True, ("b#1",), ["a", "b", "c", "d"]) == (result.state, result.degraded, result.missed, log)
    failed = [event for event in events if isinstance(event, CheckpointFailed)]
    assert [("b", "append", NO_SPACE)] == [(e.node_id, e.op, e.error.__cause__) for e in failed]
    assert (True, ("b#1",)) == (events[-1].degraded, events[-1].missed)
    info = failing.get_run("r1").info
    assert ("finished", True, ("b#1",)) == (info.status, info.degraded, info.missed)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [("r1", "b")] == [(record.run_id, record.node_id) for record in warnings]
    records = {record.node_id: record.fields() for record in failing.read("r1", kinds=("checkpoint",))}
    assert (["b#1"], 3) == (records["c"]["missed"], records["c"]["iteration"])
    assert ["a", "c", "d"] == [info.node_id for info in failing.list("r1")]


def test_a_run_that_goes_on_over_a_value_that_cannot_be_recorded_saves_at_the_next_boundary(verbs, store, line):
    bodies = {"b": lambda state: Anything(Opaque(), 2), "c": lambda state: Anything(None, 3)}
    graph = line(Anything, "abcd", bodies)
    result = verbs.run(graph, Anything(), store=store, run_id="r1", checkpoint_failure_fatal=False, full=True)
    assert (4, ("b#1",)) == (result.state.n, result.missed)
    assert ["a", "c", "d"] == [info.node_id for info in store.list("r1")]


def test_a_degraded_run_resumes_from_the_newest_saved_point_and_names_what_was_missed(verbs, failing, line, log):
    is_broken = [True]

    def d(state: Count) -> Count:
        if is_broken[0]:
            raise KeyboardInterrupt
        return plus(state)

    graph = line(Count, "abcd", {"d": d})
    failing.fail(NO_SPACE, after=1, times=2)
    with pytest.raises(KeyboardInterrupt):
        verbs.run(graph, Count(), store=failing, run_id="r1", checkpoint_failure_fatal=False)
    info = failing.get_run("r1").info
    assert ("interrupted", True, ("b#1", "c#1")) == (info.status, info.degraded, info.missed)
    is_broken[0] = False
    assert ("b#1", "c#1") == verbs.plan(graph, failing, "r1").missed
    result = verbs.resume(graph, failing, "r1", full=True)
    assert (Count(4), ("b#1", "c#1"), False) == (result.state, result.resumed.missed, result.degraded)
    assert [*"abcd", *"bcd"] == log
    assert False is failing.get_run("r1").info.degraded


def test_a_last_checkpoint_that_was_missed_leaves_the_run_to_be_resumed(verbs, failing, line, log):
    graph = line(Count, "ab")
    failing.fail(NO_SPACE, after=1, times=1)
    result = verbs.run(graph, Count(), store=failing, run_id="r1", checkpoint_failure_fatal=False, full=True)
    assert (Count(2), True, ("b#1",)) == (result.state, result.degraded, result.missed)
    info = failing.get_run("r1").info
    assert ("interrupted", True, ("b#1",)) == (info.status, info.degraded, info.missed)
    assert Count(2) == verbs.resume(graph, failing, "r1")
    assert ["a", "b", "b"] == log


def test_a_failed_attempt_whose_record_is_lost_still_tells_why_the_node_failed(verbs, failing, line):
    graph = line(Count, "ab", {"b": lambda state: 1 / 0})
    failing.fail(NO_SPACE, after=1)
    with pytest.raises(NodeError, match="ZeroDivisionError") as caught:
        verbs.run(graph, Count(), store=failing, run_id="r1")
    assert any("no space left" in note for note in caught.value.__notes__)
    failing.mend()
    heartbeat.beat()
    info = failing.get_run("r1").info
    assert ("failed", True) == (info.status, "ZeroDivisionError" in info.reason)


def test_a_failed_router_whose_record_is_lost_still_tells_why(verbs, failing):
    graph = Graph(Count).add_node("a", verbs.node(plus)).add_conditional_edge("a", lambda state: 1 / 0, [END])
    failing.fail(NO_SPACE)
    with pytest.raises(RouterError, match="ZeroDivisionError") as caught:
        verbs.run(graph.set_entry("a").compile("g"), Count(), store=failing, run_id="r1")
    assert any("no space left" in note for note in caught.value.__notes__)
    failing.mend()


# -- leases that cannot be renewed -------------------------------------------------------------------------


def test_a_lease_that_passes_unrenewed_stops_the_run_before_its_next_node(verbs, failing, clock, line, log):
    def b(state: Count) -> Count:
        failing.fail(NO_SPACE, verbs=("renew",))
        heartbeat.beat()
        clock.advance(31)
        heartbeat.beat()
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    with pytest.raises(LeaseLost) as caught:
        verbs.run(graph, Count(), store=failing, run_id="r1", clock=clock)
    assert ("r1", 1) == (caught.value.run_id, caught.value.epoch)
    assert ["a", "b"] == log
    failing.mend()
    assert Count(3) == verbs.resume(graph, failing, "r1", clock=clock)


def test_a_renewal_that_fails_and_then_succeeds_loses_nothing(verbs, failing, clock, line, log):
    def b(state: Count) -> Count:
        failing.fail(NO_SPACE, times=1, verbs=("renew",))
        heartbeat.beat()
        clock.advance(29)
        heartbeat.beat()
        clock.advance(29)
        return plus(state)

    assert Count(3) == verbs.run(line(Count, "abc", {"b": b}), Count(), store=failing, run_id="r1", clock=clock)


def test_the_store_s_own_errors_keep_their_type(verbs, line):
    store = MemoryStore()
    graph = line(Count)
    with contextlib.suppress(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    store.close()
    with pytest.raises(ValueError, match="closed"):
        verbs.resume(graph, store, "r1")
