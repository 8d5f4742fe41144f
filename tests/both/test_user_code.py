"""What nodes, hooks and callers may do that nobody would do on purpose."""

from __future__ import annotations

import contextvars
import threading
from dataclasses import dataclass

import pytest

import milepost
from milepost import LeaseLost, NodeError, Retry, RunCancelled, RunSuspended, SerializeStateError, StoreError
from milepost.errors import (
    CheckpointWriteError,
    MaxIterationsError,
    OptionError,
    RunStopped,
    RunTimeoutError,
    StateTooLargeError,
    StateValidationError,
    StoreClosedError,
)


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


class Mute(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


ODD = [
    StopIteration("x"),
    StopAsyncIteration(),
    LeaseLost("x"),
    RunStopped("x"),
    RunCancelled("x"),
    RunSuspended("x"),
    RunTimeoutError("x"),
    MaxIterationsError("x"),
    SerializeStateError("x"),
    CheckpointWriteError("x"),
    StoreError("x"),
    NodeError("x", run_id="other", node_id="elsewhere"),
    ExceptionGroup("several", [ValueError(1), KeyError(2)]),
    RecursionError("deep"),
    MemoryError(),
    Mute(),
]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("is_saved", [True, False])
def test_any_exception_of_a_node_is_that_node_s_failure(verbs, store, line, error, is_saved):
    failing = [error]

    def b(state: Count) -> Count:
        if failing:
            raise failing.pop()
        return plus(state)

    graph, saved = line(Count, "abc", {"b": b}), {"store": store} if is_saved else {}
    with pytest.raises(NodeError) as caught:
        verbs.run(graph, Count(), run_id="r1", **saved)
    assert ("r1", "b", Count(1)) == (caught.value.run_id, caught.value.node_id, caught.value.state)
    if is_saved:
        assert "failed" == store.get_run("r1").info.status
        assert Count(3) == verbs.resume(graph, store, "r1")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), BaseExceptionGroup("g", [KeyboardInterrupt()])])
def test_what_is_no_exception_interrupts_the_run(verbs, store, line, error):
    failing = [error]

    def b(state: Count) -> Count:
        if failing:
            raise failing.pop()
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    with pytest.raises(type(error)):
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert "interrupted" == store.get_run("r1").info.status
    assert Count(3) == verbs.resume(graph, store, "r1")


@pytest.mark.every_store
def test_an_error_that_cannot_be_shown_can_be_told(verbs, store, line):
    events = []

    def mute(state: Count) -> Count:
        raise Mute

    graph = line(Count, "ab", {"b": mute})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1", hooks=[events.append])
    told = [event.to_dict() for event in events]
    assert ["Mute: <its message cannot be shown: ValueError>"] == [
        d["error"] for d in told if d.get("attempt") and "error" in d
    ]
    for check in (mute, lambda state: Mute()):
        with pytest.raises(StateValidationError):
            verbs.resume(graph, store, "r1", revalidate=check)
    with pytest.raises(Mute):
        verbs.resume(graph, store, "r1", state_override=mute)


def test_a_run_inside_a_node_leaves_the_context_of_the_outer_one(verbs, store, line):
    if verbs.has_coroutines:
        pytest.skip("a coroutine node has no use for a verb that blocks")
    inner, seen = line(Count, "xy", name="inner"), []

    def b(ctx, state: Count) -> Count:
        result = inner.run(Count(10), store=ctx.store)
        seen.append(milepost.current() is ctx)
        return result

    assert Count(13) == verbs.run(line(Count, "abc", {"b": b}), Count(), store=store, run_id="r1")
    assert [True] == seen


def test_a_breakpoint_inside_a_node_is_no_breakpoint_of_the_outer_run(verbs, store, line):
    if verbs.has_coroutines:
        pytest.skip("a coroutine node has no use for a verb that blocks")
    inner = line(Count, "xy", name="inner")

    def b(ctx, state: Count) -> Count:
        return inner.run(Count(10), store=ctx.store, run_id="r2", stop_after="x")

    with pytest.raises(NodeError) as caught:
        verbs.run(line(Count, "abc", {"b": b}), Count(), store=store, run_id="r1", full=True)
    assert ("r1", "b") == (caught.value.run_id, caught.value.node_id)
    assert ["failed", "interrupted"] == [store.get_run(run_id).info.status for run_id in ("r1", "r2")]


VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE", default=0)


def test_nodes_see_the_caller_s_contextvars_and_so_do_threads_that_they_start(verbs, store, line):
    seen = []

    def look() -> None:
        seen.append((VARIABLE.get(), milepost.current().node_id))

    def b(state: Count) -> Count:
        look()
        thread = threading.Thread(target=contextvars.copy_context().run, args=(look,))
        thread.start()
        thread.join()
        return plus(state)

    graph, before = line(Count, "ab", {"b": b}, {"b": {"timeout": 5}}), VARIABLE.set(7)
    try:
        verbs.run(graph, Count(), store=store)
        verbs.stream(graph, Count(), store=store)
    finally:
        VARIABLE.reset(before)
    assert [(7, "b")] * 4 == seen


@dataclass(eq=False)
class Incomparable:
    n: int = 0
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")


def test_states_are_never_compared(verbs, store, line):
    graph = line(Incomparable, "abc", options={"b": {"retry": Retry(2, backoff=0)}})
    assert 3 == verbs.run(graph, Incomparable(), store=store, run_id="r1").n
    assert 3 == verbs.run(graph, Incomparable(), store=store, run_id="r1", if_exists="resume").n
    assert 3 == verbs.resume_from(graph, store, "r1", "a").n


def test_a_limit_of_bytes_holds_for_an_override_and_an_input_too(verbs, store, line):
    graph = line(Count, "ab")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    before = store.read("r1")
    with pytest.raises(StateTooLargeError) as caught:
        verbs.resume(graph, store, "r1", max_state_size=9, state_override=lambda state: Count(10**9))
    assert ("r1", Count(1), before) == (caught.value.run_id, caught.value.state, store.read("r1"))
    with pytest.raises(StateTooLargeError) as caught:
        verbs.run(graph, Count(10**9), store=store, run_id="r2", max_state_size=9)
    assert ("r2", Count(10**9)) == (caught.value.run_id, caught.value.state)


def test_errors_of_the_store_name_the_run(verbs, medium, line):
    class Broken:
        is_broken = False

        def latest(self, *args, **options):
            if self.is_broken:
                raise OSError("unplugged")
            return super().latest(*args, **options)

    store, graph = medium.open(Broken), line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    store.is_broken = True
    for verb in ("resume", "plan", "resume_stream"):
        with pytest.raises(StoreError) as caught:
            getattr(verbs, verb)(graph, store, "r1")
        assert "r1" == caught.value.run_id
    store.close()
    with pytest.raises(StoreClosedError) as closed:
        verbs.run(graph, Count(), store=store, run_id="r2")
    assert "r2" == closed.value.run_id


@pytest.mark.parametrize("place", [None, "runs.db"])
def test_what_is_no_store_is_refused(verbs, line, place):
    graph = line(Count, "ab")
    for verb, args in (("resume", ()), ("retry", ()), ("resume_from", ("a",)), ("plan", ()), ("resume_stream", ())):
        with pytest.raises(OptionError, match=r"SQLiteStore|sqlite:///runs\.db"):
            getattr(verbs, verb)(graph, place, "r1", *args)
    with pytest.raises(OptionError, match="store"):
        verbs.run(graph, Count(), store=place, if_exists="resume")
