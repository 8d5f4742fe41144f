"""Every way in which a run of a graph may have stopped, and what a resume makes of it."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from milepost import (
    END,
    Checkpoint,
    CheckpointNotFoundError,
    FlowChangedError,
    Graph,
    NoCheckpointFoundError,
    NodeError,
    Retry,
    RunCancelled,
    RunNotFoundError,
    RunNotResumableError,
)
from milepost.errors import (
    CheckpointCorruptError,
    CheckpointIntegrityError,
    CheckpointMigrationError,
    CheckpointVersionError,
    DeserializeStateError,
    InvalidResumeNodeError,
    MaxIterationsError,
    ResumeNodeCompletedError,
    RouterError,
    RunStopped,
    StateTypeError,
    StateValidationError,
    WrongFlowError,
)
from milepost.events import RunStarted
from milepost.model.record import START, make_record
from milepost.store import NewRun


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


class Failing:
    """A body that raises while `is_broken`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error or ValueError("no")
        self.is_broken = True
        self.__code__ = plus.__code__  # tells that it takes the state alone

    def __call__(self, state: Count) -> Count:
        if self.is_broken:
            raise self.error
        return plus(state)


@pytest.fixture
def dying(verbs):
    """A body in which the process dies until it is mended."""
    return Failing(verbs.Killed())


@pytest.fixture
def halted(verbs, store, line):
    """A run of a, b, c, d that stopped after b, with n == 2."""
    graph = line(Count, "abcd")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="b")
    return graph


def shape_of(store, run_id: str = "r1") -> tuple[Any, ...]:
    """Everything that a refusal must leave as it is."""
    row = store.get_run(run_id)
    return store.read(run_id), row.info.status, row.info.reason, row.epoch, row.info.crash_count


# -- what there is to resume -------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_run_that_is_unknown_is_not_found(verbs, store, line, log):
    with pytest.raises(RunNotFoundError, match="nope") as caught:
        verbs.resume(line(Count), store, "nope")
    for kind in (NoCheckpointFoundError, CheckpointNotFoundError, LookupError):
        assert isinstance(caught.value, kind)
    assert ([], []) == (log, store.list_runs())


def test_a_crash_in_the_first_node_starts_again_at_the_entry_with_the_recorded_input(verbs, timed, line, log, dying):
    graph = line(Count, "ab", {"a": dying})
    verbs.crash(graph, timed, "r1", Count(5))
    info = timed.list_runs()[0]
    assert ("r1", "line") == (info.run_id, info.flow)
    dying.is_broken = False
    result = verbs.resume(graph, timed, "r1", full=True)
    assert (Count(7), ["a", "a", "b"]) == (result.state, log)
    assert ("start", None, 0, "a") == (
        result.resumed.source,
        result.resumed.from_node,
        result.resumed.sequence,
        result.resumed.next_node,
    )


def test_override_and_revalidate_of_a_run_with_a_start_only_see_its_input(verbs, timed, line, dying):
    graph = line(Count, "ab", {"a": dying})
    verbs.crash(graph, timed, "r1", Count(5))
    dying.is_broken = False
    seen = []

    def override(state: Count) -> Count:
        seen.append(state)
        return Count(10)

    assert Count(12) == verbs.resume(graph, timed, "r1", state_override=override, revalidate=seen.append)
    assert [Count(5), Count(10)] == seen


def test_a_crash_after_b_goes_on_at_the_recorded_next_node(verbs, timed, line, log, dying):
    graph = line(Count, "abcd", {"c": dying})
    verbs.crash(graph, timed, "r1", Count())
    dying.is_broken = False
    result = verbs.resume(graph, timed, "r1", full=True)
    assert (Count(4), ["a", "b", "c", "c", "d"], 4) == (result.state, log, result.iterations)
    assert [1, 2, 4, 5] == [info.sequence for info in timed.history("r1")]


@pytest.mark.every_store
def test_what_was_in_flight_at_a_crash_runs_again_as_the_next_attempt(verbs, medium, timed, line, dying):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")
    seen = []

    def b(ctx, state: Count) -> Count:
        seen.append((ctx.visit, ctx.attempt))
        return dying(state)

    graph = line(Count, "ab", {"b": b})
    verbs.crash(graph, timed, "r1", Count())
    verbs.crash(graph, timed, "r1")
    dying.is_broken = False
    verbs.resume(graph, timed, "r1")
    assert [(1, 1), (1, 2), (1, 3)] == seen
    assert 3 == Checkpoint.decode(timed.load("r1", "b")).attempt


def test_a_run_interrupted_after_b_goes_on_and_saves_to_the_same_store(verbs, store, halted, log):
    assert Count(4) == verbs.resume(halted, store, "r1")
    assert ["a", "b", "c", "d"] == log
    assert ["a", "b", "c", "d"] == [info.node_id for info in store.list("r1")]
    assert "finished" == store.get_run("r1").info.status


def test_a_node_that_failed_runs_again_from_the_state_before_it(verbs, store, line, log):
    c = Failing()
    graph = line(Count, "abcd", {"c": c})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    c.is_broken = False
    assert Count(4) == verbs.resume(graph, store, "r1")
    assert ["a", "b", "c", "c", "d"] == log
    assert [1, 1, 2, 1] == [Checkpoint.decode(store.load("r1", node)).attempt for node in "abcd"]
    assert [1, 1, 1, 1] == [info.visit for info in store.list("r1")]


def test_in_place_changes_of_an_attempt_that_failed_reach_no_resume(verbs, store, line, log):
    is_broken = [True]

    def b(state: Count) -> Count:
        state.n += 3
        if is_broken[0]:
            raise ValueError("no")
        return state

    graph = line(Count, "ab", {"a": lambda state: Count(4), "b": b})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    is_broken[0] = False
    assert Count(7) == verbs.resume(graph, store, "r1")
    assert ["a", "b", "b"] == log


def test_a_node_whose_attempts_are_spent_is_refused_with_the_hint_to_retry(verbs, store, line, log):
    graph = line(Count, "ab", {"b": Failing()}, {"b": {"retry": Retry(2, backoff=0)}})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    before = shape_of(store)
    with pytest.raises(RunNotResumableError, match="retry") as caught:
        verbs.resume(graph, store, "r1")
    assert ("failed", before) == (caught.value.status, shape_of(store))
    assert ["a", "b", "b"] == log
    assert "refuse" == verbs.plan(graph, store, "r1").verdict


def test_more_attempts_than_recorded_failures_let_a_resume_go_on(verbs, store, line, log):
    graph = line(Count, "ab", {"b": Failing()}, {"b": {"retry": Retry(2, backoff=0)}})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    more = line(Count, "ab", {"b": Failing()}, {"b": {"retry": Retry(3, backoff=0)}})
    with pytest.raises(NodeError) as caught:
        verbs.resume(more, store, "r1")
    assert (3, ["a", "b", "b", "b"]) == (caught.value.attempt, log)


def test_retry_gives_a_failed_node_fresh_attempts_and_keeps_completed_work(verbs, store, line, log):
    b = Failing()
    graph = line(Count, "abc", {"b": b}, {"b": {"retry": Retry(2, backoff=0)}})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    with pytest.raises(NodeError) as caught:
        verbs.retry(graph, store, "r1")
    assert 4 == caught.value.attempt
    b.is_broken = False
    assert Count(3) == verbs.retry(graph, store, "r1")
    assert ["a", *"bb", *"bb", "b", "c"] == log


def test_a_router_that_failed_is_asked_again_and_its_node_does_not_run(verbs, store, log):
    is_broken = [True]

    def a(state: Count) -> Count:
        log.append("a")
        return plus(state)

    def choose(state: Count) -> str:
        log.append("router")
        if is_broken[0]:
            raise ValueError("no")
        return "sink"

    def sink(state: Count) -> Count:
        log.append("sink")
        return plus(state)

    graph = Graph(Count).add_node("a", verbs.node(a)).add_node("sink", verbs.node(sink)).add_edge("sink", END)
    compiled = graph.add_conditional_edge("a", verbs.node(choose), ["sink"]).set_entry("a").compile()
    with pytest.raises(RouterError):
        verbs.run(compiled, Count(), store=store, run_id="r1")
    assert (Count(1).n, None) == (
        Checkpoint.decode(store.load("r1", "a")).state["n"],
        store.get_run("r1").info.next_node,
    )
    with pytest.raises(RouterError) as caught:
        verbs.resume(compiled, store, "r1")
    assert ("r1", Count(1)) == (caught.value.run_id, caught.value.state)
    assert 2 == sum(record.kind == "failure" for record in store.read("r1"))
    assert "failed" == store.get_run("r1").info.status
    is_broken[0] = False
    assert Count(2) == verbs.resume(compiled, store, "r1")
    assert ["a", "router", "router", "router", "sink"] == log
    assert ["route"] == [record.kind for record in store.read("r1") if record.kind == "route"]
    assert "finished" == store.get_run("r1").info.status


def test_the_late_answer_of_a_router_is_kept_over_a_crash(verbs, timed, log, dying):
    answers = iter([ValueError("no"), "sink"])

    def choose(state: Count) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    graph = Graph(Count).add_node("a", verbs.node(plus)).add_node("sink", verbs.node(lambda state: dying(state)))
    compiled = graph.add_conditional_edge("a", choose, ["sink"]).add_edge("sink", END).set_entry("a").compile()
    with pytest.raises(RouterError):
        verbs.run(compiled, Count(), store=timed, run_id="r1")
    verbs.crash(compiled, timed, "r1")
    dying.is_broken = False
    assert Count(2) == verbs.resume(compiled, timed, "r1")


# -- runs that have ended ----------------------------------------------------------------------------------


def test_a_finished_run_gives_its_stored_result_and_writes_nothing(verbs, store, line, log):
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1")
    before = shape_of(store)
    result = verbs.resume(graph, store, "r1", full=True)
    assert (Count(3), "finished", 3) == (result.state, result.status, result.iterations)
    assert ("finished", True, "c") == (
        result.resumed.source,
        result.resumed.already_completed,
        result.resumed.from_node,
    )
    assert (["a", "b", "c"], before) == (log, shape_of(store))


def test_a_finished_run_is_told_to_a_stream_and_to_hooks_as_such(verbs, store, line):
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1")
    told = []
    events = verbs.resume_stream(graph, store, "r1", hooks=[told.append])
    assert ["RunStarted", "RunCompleted"] == [type(event).__name__ for event in events]
    assert events == told
    assert events[0].resumed.already_completed
    assert ("finished", Count(3)) == (events[1].status, events[1].result.state)


def test_the_result_of_a_finished_run_is_revalidated_all_the_same(verbs, store, line):
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1")
    with pytest.raises(StateValidationError, match="too old"):
        verbs.resume(graph, store, "r1", revalidate=lambda state: "too old")


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_cancelled_run_is_refused_unless_it_is_reopened(verbs, store, halted, log, verb):
    assert "cancelled" == store.request_cancel("r1", "not needed", 10)
    with pytest.raises(RunNotResumableError, match="reopen") as caught:
        getattr(verbs, verb)(halted, store, "r1")
    assert ("cancelled", "not needed") == (caught.value.status, caught.value.reason)
    assert "refuse" == verbs.plan(halted, store, "r1").verdict
    assert ["a", "b"] == log
    assert Count(4) == verbs.resume(halted, store, "r1", reopen=True)
    assert ["a", "b", "c", "d"] == log


def test_the_status_refuses_before_anything_else_is_looked_at(verbs, store, halted, line):
    store.request_cancel("r1", "not needed", 10)
    changed = line(Count, "ab")
    with pytest.raises(RunNotResumableError):
        verbs.resume(changed, store, "r1")
    with pytest.raises(RunNotResumableError):
        verbs.resume_from(halted, store, "r1", "nope")


def test_an_open_cancel_ends_the_run_and_no_node_starts(verbs, store, halted, log):
    assert "requested" == store.request_cancel("r1", "not needed", None)
    plan = verbs.plan(halted, store, "r1")
    assert ("roll_back", True) == (plan.verdict, "not needed" in plan.reason)
    with pytest.raises(RunCancelled, match="not needed") as caught:
        verbs.resume(halted, store, "r1")
    assert ("r1", "not needed", Count(2)) == (caught.value.run_id, caught.value.reason, caught.value.state)
    assert (["a", "b"], "cancelled") == (log, store.get_run("r1").info.status)
    assert "finish" == store.read("r1")[-1].kind


def test_an_open_cancel_is_dropped_by_reopening(verbs, store, halted):
    store.request_cancel("r1", "not needed", None)
    assert Count(4) == verbs.resume(halted, store, "r1", reopen=True)


def test_a_run_that_is_ready_is_taken_by_the_caller(verbs, store, line, log):
    graph = line(Count)
    fields = {"flow": graph.name, "entry": graph.entry_point, "fingerprint": graph.fingerprint, "epoch": 1}
    record = make_record("r1", 0, "2026-01-01T00:00:00.000000Z", START, state=b'{"n":5}', fields=fields)
    store.create(NewRun("r1", graph.name, "0" * 16, record, 30.0, {}, "ready"))
    assert "ready" == store.get_run("r1").info.status
    assert Count(8) == verbs.resume(graph, store, "r1")
    assert ["a", "b", "c"] == log


# -- owners ------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_lease_that_has_ended_is_taken_over_and_counted(verbs, medium, timed, line, dying):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")
    graph = line(Count, "ab", {"b": dying})
    verbs.crash(graph, timed, "r1", Count())
    assert "dead" == timed.get_run("r1").info.status
    assert ["r1"] == [info.run_id for info in timed.list_runs(status="dead")]
    verbs.crash(graph, timed, "r1")
    assert 1 == timed.get_run("r1").info.crash_count
    verbs.crash(graph, timed, "r1")
    assert 2 == timed.get_run("r1").info.crash_count
    dying.is_broken = False
    assert Count(2) == verbs.resume(graph, timed, "r1")
    assert 0 == timed.get_run("r1").info.crash_count


@pytest.mark.every_store
def test_too_many_crashes_without_progress_block_the_run(verbs, medium, timed, line, log, dying):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")
    graph = line(Count, "ab", {"b": dying})
    verbs.crash(graph, timed, "r1", Count())
    verbs.crash(graph, timed, "r1", max_crashes=3)
    verbs.crash(graph, timed, "r1", max_crashes=3)
    assert ["a", *"bbb"] == log
    with pytest.raises(RunNotResumableError, match="reopen") as caught:
        verbs.resume(graph, timed, "r1", max_crashes=3)
    assert ("blocked", ["a", *"bbb"]) == (caught.value.status, log)
    info = timed.get_run("r1").info
    assert ("blocked", 3, True) == (info.status, info.crash_count, bool(info.reason))
    assert ["r1"] == [info.run_id for info in timed.list_runs(status="blocked")]
    verbs.run(line(Count), Count(), store=timed, run_id="r2")
    dying.is_broken = False
    with pytest.raises(RunNotResumableError):
        verbs.resume(graph, timed, "r1")
    assert Count(2) == verbs.resume(graph, timed, "r1", reopen=True)


# -- the code has changed, or the record -------------------------------------------------------------------


def test_a_run_of_another_flow_is_refused(verbs, store, halted, line):
    before = shape_of(store)
    with pytest.raises(WrongFlowError) as caught:
        verbs.resume(line(Count, "abcd", name="other"), store, "r1")
    assert ("line", "other", before) == (caught.value.expected, caught.value.found, shape_of(store))


def test_a_next_node_that_is_gone_is_refused_with_the_differences(verbs, store, halted, line, log):
    before = shape_of(store)
    with pytest.raises(FlowChangedError, match="rename") as caught:
        verbs.resume(line(Count, "abxd"), store, "r1")
    told = " ".join(caught.value.differences)
    assert (True, True) == ("'c'" in told, "'x'" in told)
    assert (["a", "b"], before) == (log, shape_of(store))


def damaged(tampered: dict[int, Any], base: type = object) -> type:
    """A store that gives records otherwise than they were written; by sequence, what to do to them."""

    class Damaged(base):
        def _seen(self, record):
            return tampered[record.sequence](record) if record is not None and record.sequence in tampered else record

        def latest(self, *args, **options):
            found = super().latest(*args, **options)
            return found._replace(point=self._seen(found.point), tail=tuple(map(self._seen, found.tail)))

        def read(self, *args, **options):
            return [self._seen(record) for record in super().read(*args, **options)]

    return Damaged


def other_state(record):
    return record._replace(payload=record.payload.replace(b"2", b"9"))


def no_json(record):
    return record._replace(header=record.header[:10])


def emptied(record):
    return record._replace(header=b"", payload=b"")


def other_place(record):
    return record._replace(node_id="c")


@pytest.mark.parametrize("tamper", [other_state, no_json, emptied, other_place])
def test_a_damaged_newest_record_is_refused_before_anything_runs(verbs, medium, line, log, tamper):
    tampered: dict[int, Any] = {}
    store = medium.open(damaged(tampered))
    graph = line(Count, "abcd")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="b")
    tampered[2] = tamper
    seen = []
    with pytest.raises(CheckpointCorruptError) as caught:
        verbs.resume(graph, store, "r1", revalidate=seen.append)
    assert tamper in {no_json, emptied} or isinstance(caught.value, CheckpointIntegrityError)
    assert (["a", "b"], [], "interrupted") == (log, seen, store.get_run("r1").info.status)
    assert "refuse" == verbs.plan(graph, store, "r1").verdict
    assert ["a", "b"] == [info.node_id for info in store.list("r1")]
    assert Count(4) == verbs.run(graph, Count(), store=store, run_id="r2", stop_after=())


def test_the_newest_good_point_is_taken_where_that_is_asked_for(verbs, medium, line, log):
    tampered: dict[int, Any] = {}
    store = medium.open(damaged(tampered))
    graph = line(Count, "abcd")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="c")
    tampered |= {2: other_state, 3: emptied}
    result = verbs.resume(graph, store, "r1", on_corrupt="previous", full=True)
    assert (Count(4), ["a", "b", "c", "b", "c", "d"]) == (result.state, log)
    assert ("a", 1) == (result.resumed.from_node, result.resumed.sequence)
    assert 2 == sum("damaged" in text for text in result.resumed.differences)
    assert [("a", 1), ("b", 2), ("c", 2), ("d", 1)] == [(info.node_id, info.visit) for info in store.list("r1")]


def test_a_finished_run_whose_result_is_damaged_never_gives_an_older_state_for_it(verbs, medium, line, log):
    tampered: dict[int, Any] = {}
    store = medium.open(damaged(tampered))
    graph = line(Count, "abc")
    verbs.run(graph, Count(), store=store, run_id="r1")
    tampered[3] = emptied
    with pytest.raises(CheckpointCorruptError):
        verbs.resume(graph, store, "r1")
    assert Count(3) == verbs.resume(graph, store, "r1", on_corrupt="previous")
    assert ["a", "b", "c", "c"] == log


def test_a_record_of_a_newer_version_is_refused(verbs, store, line, log):
    store.save("r1", "a", b'{"version":99,"run_id":"r1","node_id":"a","next_node":"b","state":{"n":1}}')
    with pytest.raises(CheckpointVersionError) as caught:
        verbs.resume(line(Count), store, "r1")
    assert (99, 1, []) == (caught.value.found, caught.value.supported, log)


@pytest.mark.parametrize(
    "envelope",
    [
        b'{"version":"1.0","run_id":"r1","node_id":"a","next_node":"b","state":{"n":1},"sequence":1}',
        b'{"RunID":"r1","NodeID":"a","NextNode":"b","State":"eyJuIjoxfQ=="}',
        b'{"run_id":"r1","node_id":"a","state":{"n":1},"timestamp":"2025-12-20T15:30:00Z"}',
    ],
)
def test_a_record_of_an_older_form_is_migrated(verbs, store, line, log, envelope):
    store.save("r1", "a", envelope)
    assert Count(3) == verbs.resume(line(Count), store, "r1")
    assert (["b", "c"], envelope) == (log, store.load("r1", "a"))


def test_an_old_record_before_a_router_needs_to_be_told_to_ask_it(verbs, store):
    graph = Graph(Count).add_node("a", verbs.node(plus)).add_node("b", verbs.node(plus)).add_edge("b", END)
    compiled = graph.add_conditional_edge("a", lambda state: "b", ["b"]).set_entry("a").compile()
    store.save("r1", "a", b'{"run_id":"r1","node_id":"a","state":{"n":1}}')
    with pytest.raises(CheckpointMigrationError, match="reroute"):
        verbs.resume(compiled, store, "r1")
    assert Count(2) == verbs.resume(compiled, store, "r1", reroute=True)


def test_a_state_that_does_not_fit_its_type_any_more_is_refused_with_the_path(verbs, store, halted, log):
    @dataclass
    class Changed:
        n: str = ""

    def fine(state: Changed) -> Changed:
        log.append("ran")
        return state

    graph = Graph(Changed)
    for node in "abcd":
        graph.add_node(node, verbs.node(fine))
    graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", "d").add_edge("d", END).set_entry("a")
    before = shape_of(store)
    with pytest.raises(DeserializeStateError) as caught:
        verbs.resume(graph.compile("line"), store, "r1")
    assert ("r1", "b", "state.n") == (caught.value.run_id, caught.value.node_id, caught.value.path)
    assert (["a", "b"], before) == (log, shape_of(store))


def test_a_checkpoint_saved_by_hand_is_resumed(verbs, store, line, log):
    store.save("r1", "b", Checkpoint("r1", "b", "c", {"n": 42}).encode())
    result = verbs.resume(line(Count, "abc"), store, "r1", full=True)
    assert (Count(43), ["c"]) == (result.state, log)
    assert (False, "b") == (result.resumed.verified, result.resumed.from_node)
    assert ["b", "c"] == [info.node_id for info in store.list("r1")]


# -- override and revalidate -------------------------------------------------------------------------------


def test_an_override_changes_the_state_and_is_kept_over_a_crash(verbs, timed, line, log, dying):
    graph = line(Count, "abc", {"c": dying})
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=timed, run_id="r1", stop_after="b")
    verbs.crash(graph, timed, "r1", state_override=lambda state: Count(100))
    dying.is_broken = False
    assert Count(101) == verbs.resume(graph, timed, "r1")
    assert ["a", "b", "c", "c"] == log
    assert {"n": 2} == Checkpoint.decode(timed.load("r1", "b")).state


def test_an_override_may_be_a_coroutine_function_under_an_awaited_verb(verbs, store, halted):
    async def override(state: Count) -> Count:
        return Count(10)

    if verbs.is_async:
        assert Count(12) == verbs.resume(halted, store, "r1", state_override=override)
    else:
        with pytest.raises(TypeError, match="state_override"):
            verbs.resume(halted, store, "r1", state_override=override)


@pytest.mark.parametrize("answer", [None, {"n": 1}, 7])
def test_an_override_that_gives_another_type_is_refused(verbs, store, halted, log, answer):
    before = shape_of(store)
    with pytest.raises(StateTypeError) as caught:
        verbs.resume(halted, store, "r1", state_override=lambda state: answer)
    assert ("override", "r1", Count(2)) == (caught.value.op, caught.value.run_id, caught.value.state)
    assert (["a", "b"], before) == (log, shape_of(store))


def test_what_an_override_raises_is_raised_as_it_is(verbs, store, halted):
    before = shape_of(store)
    with pytest.raises(ZeroDivisionError):
        verbs.resume(halted, store, "r1", state_override=lambda state: 1 / 0)
    assert before == shape_of(store)


@pytest.mark.parametrize(
    "check",
    [
        lambda state: False,
        lambda state: "order was cancelled",
        lambda state: ValueError("order was cancelled"),
        lambda state: (_ for _ in ()).throw(ValueError("order was cancelled")),
    ],
)
def test_revalidate_has_four_ways_to_refuse(verbs, store, halted, log, check):
    before = shape_of(store)
    with pytest.raises(StateValidationError) as caught:
        verbs.resume(halted, store, "r1", revalidate=check)
    assert ("r1", Count(2)) == (caught.value.run_id, caught.value.state)
    assert "order was cancelled" in str(caught.value) or check(Count()) is False
    assert (["a", "b"], before) == (log, shape_of(store))


def test_the_refusal_of_revalidate_has_the_users_error_as_cause(verbs, store, halted):
    error = ValueError("order was cancelled")
    with pytest.raises(StateValidationError) as caught:
        verbs.resume(halted, store, "r1", revalidate=lambda state: error)
    assert error is caught.value.__cause__


@pytest.mark.parametrize("answer", [None, True, "", Count(1)])
def test_any_other_answer_of_revalidate_is_a_yes(verbs, store, halted, answer):
    assert Count(4) == verbs.resume(halted, store, "r1", revalidate=lambda state: answer)


def test_revalidate_sees_the_overridden_state(verbs, store, halted):
    seen = []
    verbs.resume(halted, store, "r1", state_override=lambda state: Count(50), revalidate=seen.append)
    assert [Count(50)] == seen


def routed(verbs, log):
    """a, then b or c, as the state says; a adds 1."""

    def body(name):
        def run(state: Count) -> Count:
            log.append(name)
            return plus(state)

        return verbs.node(run)

    graph = Graph(Count).add_node("a", body("a")).add_node("b", body("b")).add_node("c", body("c"))
    graph.add_conditional_edge("a", lambda state: "c" if state.n > 50 else "b", ["b", "c"])
    return graph.add_edge("b", END).add_edge("c", END).set_entry("a").compile()


def test_the_recorded_route_stays_unless_the_router_is_to_be_asked_again(verbs, store, log):
    graph = routed(verbs, log)
    for run_id, options, route in (("r1", {"reroute": False}, "b"), ("r2", {}, "c"), ("r3", {"reroute": True}, "c")):
        with pytest.raises(RunStopped):
            verbs.run(graph, Count(), store=store, run_id=run_id, stop_after="a")
        assert Count(101) == verbs.resume(graph, store, run_id, state_override=lambda s: Count(100), **options)
        assert route == log[-1]
    assert ["start", "checkpoint", "owner", "route", "checkpoint", "finish"] == [r.kind for r in store.read("r2")]


# -- resume_from and retry ---------------------------------------------------------------------------------


def test_resume_from_goes_on_after_that_node_and_supersedes_what_came_later(verbs, store, line, log):
    graph = line(Count, "abcd")
    assert Count(4) == verbs.run(graph, Count(), store=store, run_id="r1")
    assert Count(102) == verbs.resume_from(graph, store, "r1", "b", state_override=lambda state: Count(100))
    assert ["a", "b", "c", "d", "c", "d"] == log
    history = store.history("r1")
    assert [("a", 1, False), ("b", 1, False), ("c", 1, True), ("d", 1, True), ("c", 2, False), ("d", 2, False)] == [
        (info.node_id, info.visit, info.superseded) for info in history
    ]
    assert ["a", "b", "c", "d"] == [info.node_id for info in store.list("r1")]
    assert [3, 101] == [Checkpoint.decode(store.load("r1", "c", visit)).state["n"] for visit in (1, 2)]
    before = shape_of(store)
    assert Count(102) == verbs.resume(graph, store, "r1")
    assert (6, before) == (len(log), shape_of(store))


def test_resume_from_the_entry_runs_all_that_follows(verbs, store, line, log):
    graph = line(Count, "abc")
    verbs.run(graph, Count(), store=store, run_id="r1")
    result = verbs.resume_from(graph, store, "r1", "a", full=True)
    assert (Count(3), ["a", "b", "c", "b", "c"]) == (result.state, log)
    assert ("node", "a", "b", 3) == (
        result.resumed.source,
        result.resumed.from_node,
        result.resumed.next_node,
        result.iterations,
    )


def test_rerun_runs_the_node_itself_again_from_the_state_it_was_given(verbs, store, line, log):
    graph = line(Count, "abc")
    verbs.run(graph, Count(), store=store, run_id="r1")
    assert Count(3) == verbs.resume_from(graph, store, "r1", "b", rerun=True)
    assert ["a", "b", "c", "b", "c"] == log
    assert [("a", 1), ("b", 2), ("c", 2)] == [(info.node_id, info.visit) for info in store.list("r1")]
    assert Count(3) == verbs.resume_from(graph, store, "r1", "a", rerun=True)
    assert [("a", 2), ("b", 3), ("c", 3)] == [(info.node_id, info.visit) for info in store.list("r1")]


def test_an_override_before_a_rerun_counts_and_is_what_a_later_rerun_is_given(verbs, store, line):
    graph = line(Count, "abc")
    verbs.run(graph, Count(), store=store, run_id="r1")
    override = {"state_override": lambda state: Count(10)}
    assert Count(12) == verbs.resume_from(graph, store, "r1", "b", rerun=True, **override)
    assert Count(12) == verbs.resume_from(graph, store, "r1", "b", rerun=True)


def looped(verbs, log, times: int = 3):
    def b(state: Count) -> Count:
        log.append(f"b{state.n}")
        return plus(state)

    graph = Graph(Count).add_node("b", verbs.node(b))
    graph.add_conditional_edge("b", lambda state: "b" if state.n < times else END, ["b", END])
    return graph.set_entry("b").compile()


def test_a_loop_keeps_every_visit_and_resume_from_takes_the_newest_or_a_named_one(verbs, store, log):
    graph = looped(verbs, log)
    with pytest.raises(MaxIterationsError):
        verbs.run(graph, Count(), store=store, run_id="r1", max_iterations=2)
    assert Count(3) == verbs.resume(graph, store, "r1")
    history = store.history("r1")
    assert [1, 2, 3] == [info.visit for info in history]
    assert sorted({info.sequence for info in history}) == [info.sequence for info in history]
    assert ["b"] == [info.node_id for info in store.list("r1")]
    assert {"n": 3} == Checkpoint.decode(store.load("r1", "b")).state
    longer = looped(verbs, log, 4)
    assert Count(4) == verbs.resume_from(longer, store, "r1", "b", reroute=True)
    assert "b3" == log[-1]
    assert Count(4) == verbs.resume_from(longer, store, "r1", "b", visit=1)
    assert ["b1", "b2", "b3"] == log[-3:]
    with pytest.raises(NoCheckpointFoundError, match="visit 2"):
        verbs.resume_from(longer, store, "r1", "b", visit=2)


@pytest.mark.parametrize("node_id", ["nope", END])
def test_resume_from_a_node_that_the_graph_lacks_is_refused_with_what_it_has(verbs, store, halted, log, node_id):
    before = shape_of(store)
    with pytest.raises(InvalidResumeNodeError) as caught:
        verbs.resume_from(halted, store, "r1", node_id)
    assert (node_id, ("a", "b", "c", "d")) == (caught.value.node_id, caught.value.known)
    assert (["a", "b"], before) == (log, shape_of(store))


def test_resume_from_a_node_without_a_live_checkpoint_is_refused(verbs, store, halted, log):
    with pytest.raises(NoCheckpointFoundError) as caught:
        verbs.resume_from(halted, store, "r1", "c")
    assert ("r1", "c") == (caught.value.run_id, caught.value.node_id)
    with pytest.raises(RunStopped):
        verbs.resume_from(halted, store, "r1", "a", stop_before="c")
    with pytest.raises(RunStopped):
        verbs.resume_from(halted, store, "r1", "a", stop_after="b")
    with pytest.raises(NoCheckpointFoundError):
        verbs.resume_from(halted, store, "r1", "c")


def test_resume_from_a_node_after_which_nothing_is_left_is_refused_but_may_run_again(verbs, store, line, log):
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1")
    before = shape_of(store)
    for options in ({}, {"reroute": True}):
        with pytest.raises(ResumeNodeCompletedError, match="rerun") as caught:
            verbs.resume_from(graph, store, "r1", "c", **options)
        assert ("r1", "c", before) == (caught.value.run_id, caught.value.node_id, shape_of(store))
    assert Count(3) == verbs.resume_from(graph, store, "r1", "c", rerun=True)
    assert ["a", "b", "c", "c"] == log


@pytest.mark.parametrize("is_finished", [True, False])
def test_retry_of_a_run_that_did_not_fail_is_refused(verbs, store, line, is_finished):
    graph = line(Count)
    if is_finished:
        verbs.run(graph, Count(), store=store, run_id="r1")
    else:
        with pytest.raises(RunStopped):
            verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    with pytest.raises(RunNotResumableError, match="resume"):
        verbs.retry(graph, store, "r1")


def test_a_visit_that_was_superseded_in_flight_does_not_lend_its_number(verbs, store, line):
    c, seen = Failing(), []

    def body(ctx, state: Count) -> Count:
        seen.append(ctx.visit)
        return c(state)

    graph = line(Count, "abc", {"c": body})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    with pytest.raises(NodeError):
        verbs.resume_from(graph, store, "r1", "a")
    c.is_broken = False
    verbs.resume_from(graph, store, "r1", "a")
    assert [1, 2, 3] == seen


# -- limits, missed checkpoints, and what is told ----------------------------------------------------------


def test_the_iteration_limit_is_reached_again_unless_it_is_raised(verbs, store, line, log):
    graph = line(Count, "abcd")
    with pytest.raises(MaxIterationsError):
        verbs.run(graph, Count(), store=store, run_id="r1", max_iterations=2)
    assert "failed" == store.get_run("r1").info.status
    before = shape_of(store)
    assert "refuse" == verbs.plan(graph, store, "r1", max_iterations=2).verdict
    with pytest.raises(MaxIterationsError) as caught:
        verbs.resume(graph, store, "r1", max_iterations=2)
    assert (2, "b", Count(2), before) == (
        caught.value.max,
        caught.value.last_node_id,
        caught.value.state,
        shape_of(store),
    )
    assert ["a", "b"] == log
    assert Count(4) == verbs.resume(graph, store, "r1", max_iterations=None)


def test_plan_resume_says_what_resume_does_and_runs_nothing(verbs, store, halted, log):
    before = shape_of(store)
    plan = verbs.plan(halted, store, "r1", state_override=lambda s: 1 / 0, revalidate=lambda s: 1 / 0)
    assert ("continue", None, "b", "c", ("c",), 2, 1) == (
        plan.verdict,
        plan.error,
        plan.from_node,
        plan.next_node,
        plan.repeated,
        plan.sequence,
        plan.visit,
    )
    assert (["a", "b"], before) == (log, shape_of(store))
    assert "node" == verbs.plan(halted, store, "r1", "a").source
    resumed = verbs.resume(halted, store, "r1", full=True).resumed
    assert all(getattr(plan, f.name) == getattr(resumed, f.name) for f in dataclasses.fields(resumed))
    assert "finished" == verbs.plan(halted, store, "r1").verdict


def test_the_first_event_and_the_log_tell_where_a_resume_goes_on(verbs, store, halted, caplog):
    with caplog.at_level(logging.INFO, "milepost"):
        events = verbs.resume_stream(halted, store, "r1")
    first = events[0]
    assert (RunStarted, "b", "c", Count(2)) == (
        type(first),
        first.resumed.from_node,
        first.resumed.next_node,
        first.input,
    )
    told = [record for record in caplog.records if record.levelno == logging.INFO]
    assert "r1" == told[0].run_id
    assert "goes on at 'c'" in told[0].getMessage()


def test_a_resume_that_finds_the_journal_moved_looks_again(verbs, medium, line, log):
    class Moving:
        is_moved = False

        def claim(self, claim):
            if not self.is_moved:
                self.is_moved = True
                self.save("r1", "b", Checkpoint("r1", "b", "d", {"n": 70}).encode())
            return super().claim(claim)

    store = medium.open(Moving)
    graph = line(Count, "abcd")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="b")
    seen = []
    assert Count(71) == verbs.resume(graph, store, "r1", revalidate=seen.append)
    assert ([Count(2), Count(70)], ["a", "b", "d"]) == (seen, log)


def test_order_is_by_sequence_and_never_by_the_clock(verbs, timed, clock, line, log):
    graph = line(Count, "abcd")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=timed, run_id="r1", stop_after="c", clock=clock)
    clock.set(datetime(2025, 12, 31, 23, tzinfo=UTC))
    assert Count(4) == verbs.resume(graph, timed, "r1", clock=clock)
    assert ["a", "b", "c", "d"] == [info.node_id for info in timed.history("r1")]
    assert ["a", "b", "c", "d"] == log


def test_resume_from_takes_the_late_answer_of_a_router_and_asks_again_only_when_told_to(verbs, store):
    asked, is_broken = [], [True]

    def router(state: Count) -> str:
        asked.append(state.n)
        if is_broken[0]:
            raise ValueError("no")
        return "c"

    graph = Graph(Count).add_node("b", verbs.node(plus)).add_node("c", verbs.node(plus))
    compiled = graph.add_conditional_edge("b", router, ["c", END]).add_edge("c", END).set_entry("b").compile("late")
    with pytest.raises(RouterError):
        verbs.run(compiled, Count(), store=store, run_id="r1")
    is_broken[0] = False
    assert Count(2) == verbs.resume(compiled, store, "r1")
    assert Count(2) == verbs.resume_from(compiled, store, "r1", "b")
    assert [1, 1] == asked
    assert Count(2) == verbs.resume_from(compiled, store, "r1", "b", reroute=True)
    assert Count(2) == verbs.resume_from(compiled, store, "r1", "b")
    assert [1, 1, 1] == asked


def test_an_answer_about_an_overridden_state_is_not_taken_for_one_about_the_recorded_state(verbs, store):
    asked, is_broken = [], [True]

    def router(state: Count) -> str:
        asked.append(state.n)
        if is_broken[0]:
            raise ValueError("no")
        return "c" if state.n < 50 else END

    graph = Graph(Count).add_node("b", verbs.node(plus)).add_node("c", verbs.node(plus))
    compiled = graph.add_conditional_edge("b", router, ["c", END]).add_edge("c", END).set_entry("b").compile("late")
    with pytest.raises(RouterError):
        verbs.run(compiled, Count(), store=store, run_id="r1")
    is_broken[0] = False
    assert Count(90) == verbs.resume(compiled, store, "r1", state_override=lambda state: Count(90))
    assert Count(90) == verbs.resume(compiled, store, "r1")
    assert Count(2) == verbs.resume_from(compiled, store, "r1", "b")
    assert [1, 90, 1] == asked


def test_resume_from_a_visit_twice_in_a_row_keeps_counting(verbs, store, log):
    def b(state: Count) -> Count:
        log.append(state.n)
        return plus(state)

    graph = Graph(Count).add_node("b", verbs.node(b))
    graph.add_conditional_edge("b", lambda state: "b" if state.n < 5 else END, ["b", END])
    loop = graph.set_entry("b").compile("loop")

    def live() -> list[int]:
        return [info.visit for info in store.history("r1") if not info.superseded]

    verbs.run(loop, Count(), store=store, run_id="r1")
    assert Count(5) == verbs.resume_from(loop, store, "r1", "b", visit=2)
    assert [1, 2, 6, 7, 8] == live()
    assert Count(5) == verbs.resume_from(loop, store, "r1", "b", visit=6)
    assert [1, 2, 6, 9, 10] == live()
    for superseded in (4, 7):
        with pytest.raises(NoCheckpointFoundError):
            verbs.resume_from(loop, store, "r1", "b", visit=superseded)
    assert Count(5) == verbs.resume_from(loop, store, "r1", "b", visit=1, rerun=True)
    assert [11, 12, 13, 14, 15] == live()
    assert [0, 1, 2, 3, 4, 2, 3, 4, 3, 4, 0, 1, 2, 3, 4] == log
    assert store.verify("r1").ok


@pytest.mark.every_store
def test_a_plan_tells_the_attempt_that_follows_a_crash(verbs, timed, medium, line):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")
    dying, attempts = [True], []

    def b(ctx, state: Count) -> Count:
        attempts.append(ctx.attempt)
        if dying[0]:
            raise verbs.Killed
        return plus(state)

    graph = line(Count, "ab", {"b": b})
    verbs.crash(graph, timed, "r1", Count())
    dying[0] = False
    assert "attempt 2" in verbs.plan(graph, timed, "r1").reason
    assert Count(2) == verbs.resume(graph, timed, "r1")
    assert [1, 2] == attempts


def test_a_refusal_carries_the_last_good_state(verbs, store, line):
    def c(state: Count) -> Count:
        raise ValueError("no")

    graph = line(Count, "abc", {"c": c}, {"c": {"retry": Retry(1)}})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    for other, options, error in (
        (graph, {}, RunNotResumableError),
        (line(Count, "abd"), {}, FlowChangedError),
        (line(Count, "abcd"), {"strict": True}, FlowChangedError),
        (line(Count, "abc"), {"max_iterations": 2}, MaxIterationsError),
    ):
        with pytest.raises(error) as caught:
            verbs.resume(other, store, "r1", **options)
        assert ("r1", Count(2)) == (caught.value.run_id, caught.value.state)
