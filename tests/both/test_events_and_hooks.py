"""Who watches a run sees each event once, in order, after the change that it tells of, and never changes the run."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import pytest

from milepost import END, Graph, NodeError, Retry
from milepost.errors import RunStopped
from milepost.events import (
    AttemptFailed,
    CheckpointSaved,
    NodeCompleted,
    NodeStarted,
    Progress,
    RunCompleted,
    RunStarted,
)

label: ContextVar[str] = ContextVar("label", default="none")


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


def names(events) -> list[str]:
    return [f"{type(event).__name__} {getattr(event, 'node_id', '')}".strip() for event in events]


WHOLE = [
    "RunStarted",
    *(f"{kind} {node}" for node in "ab" for kind in ("NodeStarted", "CheckpointSaved", "NodeCompleted")),
    "RunCompleted",
]


@pytest.mark.every_store
def test_hooks_get_every_event_in_order(verbs, store, line):
    events = []
    verbs.run(line(Count, "ab"), Count(5), store=store, run_id="r1", hooks=[events.append])
    assert WHOLE == names(events)
    assert {"r1"} == {event.run_id for event in events}
    started, completed, ended = events[0], events[3], events[-1]
    assert ("line", Count(5), None) == (started.flow, started.input, started.resumed)
    assert (Count(6), "b", 1, 1, "succeeded") == (
        completed.state,
        completed.next_node,
        completed.visit,
        completed.attempt,
        completed.outcome,
    )
    assert completed.duration_ms >= 0
    assert ("finished", Count(7), False, ()) == (ended.status, ended.result.state, ended.degraded, ended.missed)
    assert [info.sequence for info in store.history("r1")] == [
        event.sequence for event in events if isinstance(event, CheckpointSaved)
    ]


def test_without_a_store_there_are_no_checkpoint_events(verbs, line):
    events = []
    verbs.run(line(Count, "ab"), Count(), hooks=[events.append])
    assert [name for name in WHOLE if "Checkpoint" not in name] == names(events)
    assert Count(1) == next(event for event in events if isinstance(event, NodeCompleted)).state


def test_a_stream_tells_what_hooks_are_told(verbs, store, line):
    told = []
    events = verbs.stream(line(Count, "ab"), Count(), store=store, run_id="r1", hooks=[told.append])
    assert (WHOLE, events) == (names(events), told)


def test_an_event_comes_after_the_change_that_it_tells_of(verbs, store, line):
    seen = []

    def hook(event) -> None:
        if isinstance(event, CheckpointSaved):
            seen.append(store.get_run("r1").info.sequence >= event.sequence)
        if isinstance(event, RunCompleted):
            seen.append(store.get_run("r1").info.status)

    verbs.run(line(Count, "ab"), Count(), store=store, run_id="r1", hooks=[hook])
    assert [True, True, "finished"] == seen


def test_the_state_of_an_event_is_a_copy(verbs, store, line):
    seen = []

    def hook(event) -> None:
        if isinstance(event, NodeCompleted):
            event.state.n = 1000
            seen.append(event.state.n)

    assert Count(2) == verbs.run(line(Count, "ab"), Count(), store=store, run_id="r1", hooks=[hook])
    assert [1, 2] == seen


def test_failed_attempts_are_told_with_the_pause_that_follows(verbs, store, line):
    events = []
    graph = line(Count, "a", {"a": lambda state: 1 / 0}, {"a": {"retry": Retry(2, backoff=0)}})
    with pytest.raises(NodeError) as caught:
        verbs.run(graph, Count(), store=store, run_id="r1", hooks=[events.append])
    failed = [event for event in events if isinstance(event, AttemptFailed)]
    assert [("a", 1, 1, 0), ("a", 1, 2, None)] == [(e.node_id, e.visit, e.attempt, e.retry_in) for e in failed]
    assert ["NodeStarted a", "AttemptFailed a"] * 2 == names(events)[1:-1]
    assert (RunCompleted, "failed", None, caught.value) == (
        type(events[-1]),
        events[-1].status,
        events[-1].result,
        events[-1].error,
    )


def test_the_error_of_a_stream_comes_after_its_last_event(verbs, store, line):
    seen = []
    with pytest.raises(NodeError):
        verbs.events(line(Count, "a", {"a": lambda s: 1 / 0}), "stream", Count(), store=store, run_id="r1", seen=seen)
    assert ["RunStarted", "NodeStarted a", "AttemptFailed a", "RunCompleted"] == names(seen)


def test_a_hook_that_raises_is_logged_and_changes_nothing(verbs, store, line, caplog):
    told = []

    def broken(event) -> None:
        raise ValueError("hook")

    hooks = [broken, told.append]
    assert Count(2) == verbs.run(line(Count, "ab"), Count(), store=store, run_id="r1", hooks=hooks)
    assert WHOLE == names(told)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (len(WHOLE), {"r1"}) == (len(errors), {record.run_id for record in errors})


def test_a_context_manager_of_a_hook_surrounds_the_call(verbs, store, line):
    order = []

    @contextmanager
    def span(event):
        order.append(f"enter {event.node_id}")
        token = label.set(event.node_id)
        try:
            yield
        finally:
            label.reset(token)
            order.append(f"leave {event.node_id}")

    def hook(event):
        return span(event) if isinstance(event, NodeStarted) else None

    def body(state: Count) -> Count:
        order.append(f"in {label.get()}")
        return plus(state)

    verbs.run(line(Count, "ab", {"a": body, "b": body}), Count(), store=store, hooks=[hook])
    assert ["enter a", "in a", "leave a", "enter b", "in b", "leave b"] == order
    order.clear()
    verbs.run(line(Count, "ab", {"a": body, "b": body}), Count(), store=store, hooks=[hook], timeout=60)
    verbs.stream(line(Count, "ab", {"a": body, "b": body}), Count(), store=store, hooks=[hook])
    assert ["enter a", "in a", "leave a", "enter b", "in b", "leave b"] * 2 == order


def test_a_context_manager_sees_the_error_of_the_node_and_cannot_swallow_it(verbs, line):
    seen = []

    class Swallowing:
        def __enter__(self):
            return self

        def __exit__(self, kind, exc, traceback) -> bool:
            seen.append(kind)
            return True

    def hook(event):
        return Swallowing() if isinstance(event, NodeStarted) else None

    with pytest.raises(NodeError):
        verbs.run(line(Count, "a", {"a": lambda state: 1 / 0}), Count(), hooks=[hook])
    assert [ZeroDivisionError] == seen


@pytest.mark.parametrize("where", ["enter", "exit"])
def test_a_context_manager_that_fails_is_logged_and_changes_nothing(verbs, line, caplog, where):
    class Broken:
        def __enter__(self):
            if where == "enter":
                raise ValueError("broken")

        def __exit__(self, *exc_info) -> None:
            if where == "exit":
                raise ValueError("broken")

    def hook(event):
        return Broken() if isinstance(event, NodeStarted) else None

    assert Count(1) == verbs.run(line(Count, "a"), Count(), hooks=[hook], run_id="r1")
    assert ["r1"] == [record.run_id for record in caplog.records if record.levelno == logging.ERROR]


# -- streams -----------------------------------------------------------------------------------------------


def test_a_stream_that_nobody_iterates_runs_nothing_and_creates_no_run(store, line, log):
    def a(state: Count) -> Count:
        log.append("a")
        return state

    graph = Graph(Count).add_node("a", a).add_edge("a", END).set_entry("a").compile()
    graph.stream(Count(), store=store, run_id="r1")

    async def begin() -> None:
        graph.astream(Count(), store=store, run_id="r1")

    asyncio.run(begin())
    assert ([], []) == (log, store.list_runs())


@pytest.mark.parametrize("after", [RunStarted, NodeStarted, CheckpointSaved, NodeCompleted])
def test_breaking_a_stream_off_leaves_the_run_interrupted_and_resumable(verbs, store, line, log, after):
    graph = line(Count)
    verbs.stream(graph, Count(), store=store, run_id="r1", until=lambda event: isinstance(event, after))
    assert "interrupted" == store.get_run("r1").info.status
    done = [info.node_id for info in store.list("r1")]
    assert (["a"] if after in {CheckpointSaved, NodeCompleted} else []) == done
    assert Count(3) == verbs.resume(graph, store, "r1")
    assert ["a", "b", "c"] == log[-3:]


def test_breaking_off_after_the_end_changes_nothing(verbs, store, line):
    verbs.stream(line(Count), Count(), store=store, run_id="r1", until=lambda e: isinstance(e, RunCompleted))
    assert "finished" == store.get_run("r1").info.status


def test_a_resumed_stream_goes_on(verbs, store, line, log):
    graph = line(Count, "ab")
    verbs.stream(graph, Count(), store=store, run_id="r1", until=lambda event: isinstance(event, CheckpointSaved))
    events = verbs.resume_stream(graph, store, "r1")
    assert (["RunStarted", *WHOLE[-4:]], "b") == (names(events), events[0].resumed.next_node)


def test_a_stream_goes_in_step_with_its_consumer(verbs, store, line, log):
    ran_at = {}

    def note(event) -> bool:
        ran_at[f"{type(event).__name__} {getattr(event, 'node_id', '')}"] = len(log)
        return False

    verbs.stream(line(Count, "ab"), Count(), store=store, run_id="r1", until=note)
    assert (1, 1) == (ran_at["CheckpointSaved a"], ran_at["NodeCompleted a"])
    assert 0 == ran_at["RunStarted "]


def test_progress_reaches_a_stream_while_the_node_runs(verbs, store):
    gate, hooked = threading.Event(), []

    if verbs.has_coroutines:

        async def a(ctx, state: Count) -> Count:
            ctx.progress(1, 2)
            while not gate.is_set():
                await asyncio.sleep(0)
            return plus(state)
    else:

        def a(ctx, state: Count) -> Count:
            ctx.progress(1, 2)
            assert gate.wait(10)
            return plus(state)

    def release(event) -> bool:
        if isinstance(event, Progress):
            gate.set()
        return False

    graph = Graph(Count).add_node("a", a).add_edge("a", END).set_entry("a").compile()
    events = verbs.stream(graph, Count(), store=store, until=release, hooks=[hooked.append])
    assert ["NodeStarted a", "Progress a"] == names(events)[1:3]
    assert names(events) == names(hooked)


def test_a_stream_of_a_node_with_a_timeout_works_alike(verbs, store, line):
    events = verbs.stream(line(Count, "ab"), Count(), store=store, timeout=60)
    assert WHOLE == names(events)


def test_a_stream_ends_at_a_breakpoint_with_its_error(verbs, store, line):
    seen = []
    with pytest.raises(RunStopped):
        verbs.events(line(Count), "stream", Count(), store=store, run_id="r1", stop_after="a", seen=seen)
    assert ("RunCompleted", "interrupted") == (names(seen)[-1], seen[-1].status)


def test_events_are_frozen_and_give_plain_dicts(verbs, store, line):
    events = verbs.stream(line(Count, "a"), Count(), store=store, run_id="r1")
    for event in events:
        plain = event.to_dict()
        assert (type(event).__name__, "r1") == (plain["event"], plain["run_id"])
        assert "_load" not in plain
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.run_id = "other"


def test_the_log_has_one_record_for_each_event_by_its_weight(verbs, store, line, caplog):
    failures = iter([ValueError("no"), None])

    def a(state: Count) -> Count:
        error = next(failures)
        if error is not None:
            raise error
        return plus(state)

    graph = line(Count, "a", {"a": a}, {"a": {"retry": Retry(2, backoff=0)}})
    with caplog.at_level(logging.DEBUG, "milepost"):
        verbs.run(graph, Count(), store=store, run_id="r1")
    told = [record for record in caplog.records if hasattr(record, "node_id")]
    assert ["INFO", "DEBUG", "WARNING", "DEBUG", "DEBUG", "DEBUG", "INFO"] == [record.levelname for record in told]
    assert [None, "a", "a", "a", "a", "a", None] == [record.node_id for record in told]
    assert {"r1"} == {record.run_id for record in told}


@pytest.mark.parametrize("stop", range(10))
def test_a_stream_broken_off_at_any_event_is_resumed_without_running_anything_twice(verbs, store, line, log, stop):
    graph, told = line(Count), []
    verbs.stream(graph, Count(), store=store, run_id="r1", seen=told, until=lambda event: len(told) > stop)
    status, again = store.get_run("r1").info.status, []
    assert status in {"interrupted", "finished"}
    recorded = [info.node_id for info in store.list("r1")]
    verbs.resume_stream(graph, store, "r1", seen=again, until=lambda event: len(again) > 1)
    assert Count(3) == verbs.resume(graph, store, "r1")
    assert list("abc") == [info.node_id for info in store.list("r1")]
    assert all(1 == log.count(node) for node in recorded)
    assert store.verify("r1").ok


def test_the_state_of_an_event_is_there_after_the_store_was_closed(verbs, medium, line):
    store, events = medium.open(), []
    verbs.run(line(Count), Count(), store=store, hooks=[events.append])
    store.close()
    assert [1, 2, 3] == [event.state.n for event in events if type(event).__name__ == "NodeCompleted"]
