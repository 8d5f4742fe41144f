"""A run by its id: started for a worker, looked at, waited for, signalled and cancelled from outside."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest

from milepost import (
    END,
    BranchError,
    CheckpointNotFoundError,
    Engine,
    Graph,
    InputMismatchError,
    MilepostError,
    NodeError,
    RunCancelled,
    RunExistsError,
    RunLockedError,
    RunNotFoundError,
    RunNotResumableError,
    SerializeStateError,
    StoreError,
    step,
    workflow,
)
from milepost.drivers.heartbeat import heartbeat
from milepost.errors import (
    InvalidIDError,
    MaxIterationsError,
    NotAuthorizedError,
    OptionError,
    RunStopped,
    StoreClosedError,
    WrongFlowError,
)
from milepost.events import NodeCompleted, RunCompleted, RunStarted
from milepost.model.info import RunFailure


@dataclass
class Count:
    n: int = 0


def work(engine, **options):
    """Have everything done that is due now."""
    engine.worker(**options).run(until_idle=True)


@pytest.fixture
def abc(line):
    return line(Count, "abc", name="abc")


@pytest.fixture
def engine(store, abc):
    return Engine(store, flows=[abc])


# -- start -----------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_start_records_a_run_and_runs_nothing(verbs, engine, store, abc, log):
    handle = verbs.call(engine, "start", abc, Count(5), run_id="r1", tags={"team": "blue"})
    info = store.get_run("r1").info
    assert ("r1", "ready", "abc", "free", {"team": "blue"}, []) == (
        handle.run_id,
        info.status,
        info.flow,
        store.get_run("r1").lease,
        dict(info.tags),
        log,
    )
    assert ["start"] == [record.kind for record in store.read("r1")]


def test_a_worker_takes_up_what_was_started(verbs, engine, abc, log):
    handle = verbs.call(engine, "start", abc.bind(Count(5)))
    work(engine)
    assert Count(8) == verbs.call(handle, "result", timeout=5)
    assert ["a", "b", "c"] == log
    assert "finished" == verbs.call(handle, "info").status


def test_a_resume_takes_up_what_was_started(verbs, engine, store, abc, log):
    engine.start(abc, Count(5), run_id="r1")
    assert Count(8) == verbs.resume(abc, store, "r1")
    assert ["a", "b", "c"] == log


def test_a_run_that_was_started_for_later_is_not_taken_before_its_time(verbs, medium, abc, clock, log):
    store = medium.open(clock=clock)
    engine = Engine(store, flows=[abc], clock=clock)
    at = datetime.fromtimestamp(clock.time() + 3600, UTC)
    handle = verbs.call(engine, "start", abc, Count(), run_id="r1", at=at)
    work(engine)
    info = handle.info()
    assert ([], "ready", at) == (log, info.status, info.wake_at)
    assert "starts at" in info.reason
    clock.advance(3601)
    work(engine)
    assert Count(3) == handle.result(timeout=5)


@pytest.mark.parametrize("at", [datetime(2026, 1, 1), "tomorrow", 17])
def test_a_time_to_start_at_needs_a_zone(engine, store, abc, at):
    with pytest.raises(OptionError, match="zone"):
        engine.start(abc, Count(), run_id="r1", at=at)
    assert [] == store.list_runs()


@pytest.mark.every_store
@pytest.mark.parametrize(
    ("at", "year"),
    [
        (datetime.max.replace(tzinfo=UTC), 9999),
        (datetime.max.replace(tzinfo=timezone(-timedelta(hours=12))), 9999),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=14))), 1),
    ],
)
def test_a_run_that_starts_at_the_last_or_first_of_all_times_can_be_read(engine, store, abc, at, year):
    engine.start(abc, Count(), run_id="r1", at=at)
    (info,) = store.list_runs()
    assert ("ready", year) == (info.status, info.wake_at.year)
    work(engine)
    assert ("finished" if year == 1 else "ready") == engine.handle("r1").info().status


def test_start_refuses_a_run_that_exists(verbs, engine, abc):
    engine.start(abc, Count(5), run_id="r1")
    with pytest.raises(RunExistsError) as caught:
        verbs.call(engine, "start", abc, Count(5), run_id="r1")
    assert ("r1", "ready") == (caught.value.run_id, caught.value.status)


def test_start_returns_the_handle_of_a_run_that_exists(verbs, engine, abc, log):
    engine.start(abc, Count(5), run_id="r1")
    work(engine)
    handle = verbs.call(engine, "start", abc, Count(5), run_id="r1", if_exists="return")
    assert Count(8) == verbs.call(handle, "result", timeout=5)
    assert ["a", "b", "c"] == log


def test_start_compares_inputs(verbs, engine, abc):
    engine.start(abc, Count(5), run_id="r1")
    for mode in ("return", "resume", "retry"):
        with pytest.raises(InputMismatchError):
            verbs.call(engine, "start", abc, Count(6), run_id="r1", if_exists=mode)
    assert (
        "r1" == verbs.call(engine, "start", abc, Count(6), run_id="r1", if_exists="return", compare_inputs=False).run_id
    )


def test_start_makes_an_interrupted_run_ready(verbs, engine, store, line, log):
    graph = line(Count, "abc", name="abc")
    with pytest.raises(MilepostError):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    handle = verbs.call(engine, "start", graph, Count(), run_id="r1", if_exists="resume")
    assert ("ready", ["a"]) == (handle.info().status, log)
    work(engine)
    assert (Count(3), ["a", "b", "c"]) == (handle.result(timeout=5), log)


def test_start_gives_a_failed_run_fresh_attempts_with_retry(verbs, store, line, log):
    is_broken = True

    def fails(state: Count) -> Count:
        if is_broken:
            raise ValueError("not yet")
        return Count(state.n + 1)

    from milepost import Retry

    graph = line(Count, "ab", {"b": fails}, {"b": {"retry": Retry(2, backoff=0)}}, name="ab")
    engine = Engine(store, flows=[graph])
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    with pytest.raises(RunNotResumableError, match="retry"):
        verbs.call(engine, "start", graph, Count(), run_id="r1", if_exists="resume")
    handle = verbs.call(engine, "start", graph, Count(), run_id="r1", if_exists="retry")
    is_broken = False
    work(engine)
    assert (Count(2), ["a", "b", "b", "b"]) == (handle.result(timeout=5), log)


def test_start_leaves_a_finished_run_alone(verbs, engine, store, abc, log):
    verbs.run(abc, Count(), store=store, run_id="r1")
    before = store.read("r1")
    handle = verbs.call(engine, "start", abc, Count(), run_id="r1", if_exists="resume")
    assert (Count(3), before) == (handle.result(timeout=5), store.read("r1"))


def test_start_refuses_a_run_that_somebody_executes(verbs, engine, store, line):
    seen = []

    def nested(state: Count) -> Count:
        with pytest.raises(RunLockedError):
            engine.start(graph, Count(), run_id="r1", if_exists="resume")
        seen.append("refused")
        return state

    graph = line(Count, "a", {"a": nested}, name="abc")
    verbs.run(graph, Count(), store=store, run_id="r1")
    assert ["refused"] == seen


def test_a_state_that_cannot_be_recorded_is_refused_before_anything_is_written(verbs, store):
    @dataclass
    class Opaque:
        thing: object = None

    graph = Graph(Opaque).add_node("a", lambda s: s).add_edge("a", END).set_entry("a").compile("opaque")
    with pytest.raises(SerializeStateError):
        verbs.call(Engine(store, flows=[graph]), "start", graph, Opaque(object()), run_id="r1")
    assert [] == store.list_runs()


# -- handles ---------------------------------------------------------------------------------------------


def test_a_handle_of_an_unknown_run_is_an_error_of_each_verb(verbs, engine, abc):
    for verb, args in (("info", ()), ("state", ()), ("result", (1,)), ("output", ("a", 1)), ("cancel", ())):
        with pytest.raises(RunNotFoundError):
            verbs.call(engine.handle("nope", abc), verb, *args)
    with pytest.raises(RunNotFoundError):
        verbs.call(engine.handle("nope"), "signal", "go")
    with pytest.raises(RunNotFoundError):
        verbs.events(engine.handle("nope", abc), "events")


def test_a_handle_needs_an_id(engine):
    for bad in ("", " ", "a\nb"):
        with pytest.raises(InvalidIDError):
            engine.handle(bad)
    with pytest.raises(TypeError):
        engine.handle(1)


def test_a_handle_finds_its_flow_by_name(verbs, engine, store, abc, line):
    verbs.run(abc, Count(), store=store, run_id="r1")
    assert Count(3) == verbs.call(engine.handle("r1"), "result", timeout=5)
    other = line(Count, "a", name="other")
    verbs.run(other, Count(), store=store, run_id="r2")
    with pytest.raises(OptionError, match="'other'"):
        verbs.call(engine.handle("r2"), "result", timeout=5)
    assert "finished" == verbs.call(engine.handle("r2"), "info").status
    with pytest.raises(WrongFlowError):
        verbs.call(engine.handle("r2", abc), "state")


def test_state_is_the_newest_or_that_of_a_visit(verbs, engine, store):
    def again(state: Count) -> str:
        return "a" if state.n < 3 else END

    graph = (
        Graph(Count)
        .add_node("a", verbs.node(lambda s: Count(s.n + 1)))
        .add_conditional_edge("a", again, ["a", END])
        .set_entry("a")
        .compile("abc")
    )
    verbs.run(graph, Count(), store=store, run_id="r1")
    handle = engine.handle("r1", graph)
    assert [Count(3), Count(3), Count(1), Count(2)] == [
        verbs.call(handle, "state"),
        verbs.call(handle, "state", "a"),
        verbs.call(handle, "state", "a", 1),
        verbs.call(handle, "state", "a", visit=2),
    ]
    for missing in (("b",), ("a", 4)):
        with pytest.raises(CheckpointNotFoundError):
            verbs.call(handle, "state", *missing)


def test_the_state_of_a_run_that_has_not_begun_is_its_input(verbs, engine, abc):
    assert Count(7) == verbs.call(engine.start(abc, Count(7)), "state")


def test_result_raises_what_the_run_ended_with(verbs, store, line):
    def fails(state: Count) -> Count:
        raise ValueError("no such order")

    graph = line(Count, "ab", {"b": fails}, name="ab")
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count())
    work(engine)
    with pytest.raises(NodeError, match="no such order") as caught:
        verbs.call(handle, "result", timeout=5)
    assert ("b", Count(1)) == (caught.value.node_id, caught.value.state)


def test_time_over_is_a_timeout_error_and_touches_nothing(verbs, medium, abc, jumping):
    store = medium.open(clock=jumping)
    engine = Engine(store, flows=[abc], clock=jumping)
    handle = engine.start(abc, Count(), run_id="r1")
    before = store.get_run("r1").info
    with pytest.raises(TimeoutError, match="goes on"):
        verbs.call(handle, "result", timeout=timedelta(seconds=3))
    with pytest.raises(TimeoutError, match="3 s"):
        verbs.call(handle, "output", "b", timeout=3)
    after = store.get_run("r1").info
    assert (before.status, before.updated_at, before.sequence) == (after.status, after.updated_at, after.sequence)


def test_output_is_there_as_soon_as_the_node_is_recorded(verbs, medium, line):
    store, gate = medium.open(), threading.Event()

    def waits(state: Count) -> Count:
        gate.wait(10)
        return Count(state.n + 10)

    graph = line(Count, "ab", {"b": waits}, name="ab")
    engine = Engine(store, flows=[graph])
    handle = engine.start(graph, Count())
    with engine.worker():
        try:
            assert Count(1) == verbs.call(handle, "output", "a", timeout=5)
        finally:
            gate.set()
        assert Count(11) == verbs.call(handle, "output", "b", timeout=5)


def test_output_of_a_node_that_never_came_is_not_found(verbs, engine, store, abc):
    verbs.run(abc, Count(), store=store, run_id="r1")
    with pytest.raises(CheckpointNotFoundError, match="finished"):
        verbs.call(engine.handle("r1"), "output", "z", timeout=5)


def test_events_follow_the_journal_to_the_end(verbs, engine, abc):
    handle = engine.start(abc, Count(5), run_id="r1")
    work(engine)
    events = verbs.events(handle, "events", -1)
    assert [RunStarted, RunStarted, NodeCompleted, NodeCompleted, NodeCompleted, RunCompleted] == [
        type(event) for event in events
    ]
    assert [0, 1, 2, 3, 4, 5] == [event.sequence for event in events]
    assert (Count(5), [Count(6), Count(7), Count(8)], "finished") == (
        events[0].input,
        [event.state for event in events if isinstance(event, NodeCompleted)],
        events[-1].status,
    )
    assert [4, 5] == [event.sequence for event in verbs.events(handle, "events", after=3)]


@pytest.mark.parametrize("after", [-1, 3])
def test_the_event_of_the_end_has_the_error_of_each_branch(verbs, engine, after):
    def fails(state: Count) -> Count:
        raise ValueError("no such card")

    graph = Graph(Count).add_node("start", lambda state: state).set_entry("start")
    for name in ("left", "right"):
        graph.add_node(name, fails).add_edge("start", name).add_edge(name, "join")
    graph.add_node("join", lambda state: state, merge=lambda base, states: base).add_edge("join", END)
    flow = graph.compile("branches")
    with pytest.raises(BranchError) as raised:
        verbs.run(engine, flow, Count(), run_id="r1")
    handle = engine.handle("r1", flow)
    *_, ended = verbs.events(handle, "events", after)
    assert isinstance(ended.error, BranchError)
    assert set(raised.value.errors) == set(ended.error.errors) == {"left", "right"}
    assert (raised.value.fork, raised.value.visit) == (ended.error.fork, ended.error.visit)
    with pytest.raises(BranchError) as again:
        verbs.call(handle, "result")
    assert str(again.value) == str(ended.error)


@pytest.mark.parametrize("after", [None, "3", True, 1.5])
def test_events_are_asked_for_after_a_number(verbs, engine, abc, after):
    handle = engine.start(abc, Count(), run_id="r1")
    with pytest.raises(TypeError, match="after must be an int, not"):
        verbs.events(handle, "events", after)


def test_events_are_told_while_the_run_goes_on(verbs, engine, line):
    gate = threading.Event()

    def waits(state: Count) -> Count:
        gate.wait(10)
        return Count(state.n + 1)

    graph = line(Count, "ab", {"b": waits}, name="abc")
    with engine.worker([graph]):
        handle = engine.start(graph, Count())

        def is_first_node(event: object) -> bool:
            if isinstance(event, NodeCompleted) and event.node_id == "a":
                gate.set()
            return False

        events = verbs.events(handle, "events", until=is_first_node)
    assert ["a", "b"] == [event.node_id for event in events if isinstance(event, NodeCompleted)]


def test_a_handle_of_a_closed_store_says_so(engine, store, abc):
    handle = engine.start(abc, Count())
    store.close()
    with pytest.raises(StoreClosedError):
        handle.info()


# -- signals and cancels ---------------------------------------------------------------------------------


def test_a_signal_is_kept_once(verbs, engine, store, abc):
    handle = engine.start(abc, Count(), run_id="r1")
    assert "kept" == verbs.call(
        handle, "signal", "go", {"by": "anna", "at": datetime(2026, 1, 1, tzinfo=UTC)}, signal_id="s1"
    )
    assert "duplicate" == verbs.call(engine, "signal", "r1", "go", {"by": "ben"}, signal_id="s1")
    assert "kept" == verbs.call(abc, "signal", store, "r1", "go")
    assert ["go", "go"] == [signal.name for signal in store.signals("r1")]


def test_a_payload_that_cannot_be_carried_is_refused_by_path(verbs, engine, store, abc):
    handle = engine.start(abc, Count(), run_id="r1")
    with pytest.raises(SerializeStateError, match=r"payload\[.thing.\]"):
        verbs.call(handle, "signal", "go", {"thing": object()})
    assert [] == store.signals("r1")


def test_a_run_that_nobody_executes_is_cancelled_at_once(verbs, engine, store, abc, log):
    handle = engine.start(abc, Count(), run_id="r1")
    assert "cancelled" == verbs.call(handle, "cancel", "not needed")
    work(engine)
    assert ("cancelled", "not needed", []) == (handle.info().status, handle.info().reason, log)
    assert "ended" == verbs.call(engine, "cancel", "r1")
    with pytest.raises(RunCancelled) as caught:
        verbs.call(handle, "result", timeout=5)
    assert ("not needed", "run 'r1' was cancelled: not needed") == (caught.value.reason, str(caught.value))
    with pytest.raises(RunNotResumableError, match="takes no signal"):
        verbs.call(handle, "signal", "go")


def test_a_timeout_of_zero_is_one_look(verbs, engine, abc):
    handle = engine.start(abc, Count(), run_id="r1")
    for ask in (("result",), ("output", "a")):
        with pytest.raises(TimeoutError, match="within 0 s"):
            verbs.call(handle, *ask, timeout=0)
    work(engine)
    assert Count(3) == verbs.call(handle, "result", timeout=0)
    assert Count(1) == verbs.call(handle, "output", "a", timeout=0)


@pytest.mark.parametrize("wrong", [-1, float("nan"), "5", True])
def test_a_timeout_that_is_none_is_refused_by_its_name(verbs, engine, abc, wrong):
    handle = engine.start(abc, Count(), run_id="r1")
    with pytest.raises(OptionError, match=r"^timeout must be seconds"):
        verbs.call(handle, "result", timeout=wrong)


@pytest.mark.parametrize("reason", [None, 5, ["late"]])
def test_a_cancel_whose_reason_is_no_text_touches_nothing(verbs, engine, store, abc, reason):
    with pytest.raises(TypeError, match="reason of a cancel must be a str"):
        verbs.call(engine, "cancel_matching", reason=reason)
    handle = engine.start(abc, Count(), run_id="r1")
    for verb, options in (("cancel", {}), ("cancel_matching", {"flow": abc.name})):
        with pytest.raises(TypeError, match=r"reason of a cancel must be a str, .*: leave it out"):
            verbs.call(handle if verb == "cancel" else engine, verb, reason=reason, **options)
    assert "ready" == store.get_run("r1").status


def test_cancelling_a_finished_run_changes_nothing(verbs, store, abc):
    verbs.run(abc, Count(), store=store, run_id="r1")
    assert ("ended", "finished") == (verbs.call(abc, "cancel", store, "r1"), store.get_run("r1").info.status)


def test_an_async_node_in_flight_is_cancelled(medium):
    store, log = medium.open(), []

    async def endless(ctx, state: Count) -> Count:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            log.append(ctx.cancelled)
            raise
        return state

    graph = Graph(Count).add_node("a", endless).add_edge("a", END).set_entry("a").compile("endless")

    async def main() -> str:
        run = asyncio.ensure_future(graph.arun(Count(), store=store, run_id="r1"))
        while not store.list_runs():
            await asyncio.sleep(0.005)
        told = await graph.acancel(store, "r1", "enough")
        with pytest.raises(RunCancelled, match="enough"):
            await asyncio.wait_for(run, 10)
        assert 0 == run.cancelling()
        return told

    assert "requested" == asyncio.run(main())
    assert ("cancelled", [True]) == (store.get_run("r1").info.status, log)
    assert "finish" == store.read("r1")[-1].kind


def test_a_cancel_does_not_hide_the_cancellation_of_the_task(medium):
    store = medium.open()

    async def endless(state: Count) -> Count:
        await asyncio.sleep(60)
        return state

    graph = Graph(Count).add_node("a", endless).add_edge("a", END).set_entry("a").compile("endless")

    async def main() -> None:
        run = asyncio.ensure_future(graph.arun(Count(), store=store, run_id="r1"))
        while not store.list_runs():
            await asyncio.sleep(0.005)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())
    assert "interrupted" == store.get_run("r1").info.status


def test_a_plain_node_is_told_and_ends_by_itself(verbs, medium):
    if verbs.has_coroutines:
        pytest.skip("a coroutine is cancelled")
    store, began = medium.open(), threading.Event()

    def patient(ctx, state: Count) -> Count:
        began.set()
        for _ in range(2000):
            ctx.check_cancelled()
            threading.Event().wait(0.005)
        return state

    graph = Graph(Count).add_node("a", patient).add_edge("a", END).set_entry("a").compile("patient")
    asked = []

    def cancel() -> None:
        began.wait(10)
        asked.append(graph.cancel(store, "r1", "enough"))

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(RunCancelled, match="enough"):
        verbs.run(graph, Count(), store=store, run_id="r1")
    thread.join()
    assert (["requested"], "cancelled") == (asked, store.get_run("r1").info.status)


def test_a_cancel_that_comes_before_the_last_checkpoint_wins(verbs, store, line):
    def last(state: Count) -> Count:
        assert "requested" == graph.cancel(store, "r1", "late")
        return Count(state.n + 1)

    graph = line(Count, "ab", {"b": last}, name="ab")
    with pytest.raises(RunCancelled):
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert ("cancelled", ["a", "b"]) == (
        store.get_run("r1").info.status,
        [info.node_id for info in store.list("r1")],
    )
    assert 1 == sum(record.kind == "finish" for record in store.read("r1"))


def test_cancel_all_reaches_every_run_of_the_engine_and_no_other(verbs, store, line):
    asked = []

    def cancel(state: Count) -> Count:
        asked.extend(engine.cancel_all("shutting down"))
        return state

    graph = line(Count, "ab", {"a": cancel}, name="ab")
    engine = Engine(store, flows=[graph])
    engine.start(graph, Count(), run_id="waiting")
    with pytest.raises(RunCancelled, match="shutting down"):
        verbs.run(engine, graph, Count(), run_id="r1")
    assert (["r1"], "ready") == (asked, store.get_run("waiting").info.status)
    assert [] == verbs.call(engine, "cancel_all")


def test_the_engine_asks_whether_a_signal_or_cancel_is_allowed(verbs, store, abc):
    asked = []

    def authorize(action: str, run_id: str, flow: str) -> bool:
        asked.append((action, run_id, flow))
        return False

    engine = Engine(store, flows=[abc], authorize=authorize)
    handle = engine.start(abc, Count(), run_id="r1")
    for verb, args in (("signal", ("go",)), ("cancel", ())):
        with pytest.raises(NotAuthorizedError):
            verbs.call(handle, verb, *args)
    assert [("signal", "r1", "abc"), ("cancel", "r1", "abc")] == asked
    assert (None, []) == (store.get_run("r1").cancel, store.signals("r1"))


def test_a_run_that_could_not_be_released_to_workers_is_not_kept(verbs, medium, line):
    class Kind:
        fails = 0

        def append(self, batch):
            if type(self).fails:
                type(self).fails -= 1
                raise StoreError("the disk is away", op="append")
            return super().append(batch)

    store, graph = medium.open(Kind), line(Count, "ab", name="ab")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    type(store).fails = 1
    Engine(store, flows=[graph]).start(graph, Count(), run_id="r1", if_exists="resume")
    assert "abandoned" == store.get_run("r1").lease
    heartbeat.beat()
    assert ("ready", "free") == (store.get_run("r1").info.status, store.get_run("r1").lease)


# -- what a run failed with --------------------------------------------------------------------------------


def deny(state: object) -> None:
    raise ConnectionError("the bank is closed\nuntil Monday")


@pytest.mark.parametrize("is_graph", [True, False])
def test_a_failed_run_tells_its_error_with_the_users_code_first(verbs, store, caplog, is_graph):
    @workflow("payments")
    def payments():
        yield step("pay").python(verbs.node(deny), args=(1,))

    graph = Graph(dict).add_node("pay", verbs.node(deny)).add_edge("pay", END).set_entry("pay").compile("payments")
    engine = Engine(store, flows=[graph if is_graph else payments])
    handle = engine.start(graph, {}, run_id="r1") if is_graph else engine.start(payments, run_id="r1")
    before = verbs.call(handle, "info")
    assert (None, None, None, None) == (before.error, before.error_type, before.error_node, before.fingerprint)
    work(engine)
    error = verbs.call(handle, "info").error
    assert ("ConnectionError", "the bank is closed\nuntil Monday", "pay") == (
        error.error_type,
        error.message,
        error.node_id,
    )
    first = next(line for line in error.traceback.splitlines() if line.lstrip().startswith("File "))
    assert "/milepost/" not in first
    assert "in deny" in error.traceback
    assert error == store.get_run("r1").info.error
    (listed,) = store.list_runs()
    assert RunFailure("ConnectionError", "the bank is closed", "pay", "") == listed.error
    info = store.get_run("r1").info
    assert ("ConnectionError", "pay", store.read("r1", limit=1)[0].fields()["fingerprint"]) == (
        info.error_type,
        info.error_node,
        info.fingerprint,
    )
    assert ("ConnectionError", "pay", None) == (listed.error_type, listed.error_node, listed.fingerprint)
    ended = [record.getMessage() for record in caplog.records if "is failed" in record.getMessage()]
    assert [True] == [message.endswith(error.traceback.rstrip()) for message in ended]


def test_a_run_that_failed_again_tells_its_last_error(verbs, store):
    broken = [True]

    def breaks(state: dict[str, int]) -> dict[str, int]:
        if broken:
            deny(state)
        return state

    graph = Graph(dict).add_node("pay", verbs.node(breaks)).set_entry("pay")
    graph = graph.add_conditional_edge("pay", verbs.node(lambda state: "pay"), ["pay", END]).compile("payments")
    with pytest.raises(NodeError):
        verbs.run(graph, {}, store=store, run_id="r1")
    broken.clear()
    with pytest.raises(MaxIterationsError) as caught:
        verbs.resume(graph, store, "r1", max_iterations=3)
    error = store.get_run("r1").info.error
    assert ("milepost.errors.MaxIterationsError", str(caught.value)) == (error.error_type, error.message)
    assert (error.error_type, error.node_id) == (
        store.list_runs()[0].error.error_type,
        store.list_runs()[0].error.node_id,
    )


def test_a_flow_that_no_worker_of_the_engine_takes_is_warned_of_once(verbs, store, line, caplog):
    known, other = line(Count, "a", name="known"), line(Count, "a", name="other")
    engine = Engine(store, flows=[known])
    for flow, run_id in ((known, "r1"), (other, "r2"), (other, "r3")):
        verbs.call(engine, "start", flow, Count(), run_id=run_id)
    verbs.call(Engine(store), "start", other, Count(), run_id="r4")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "flow 'other' is started" in warning
    assert "no worker of that engine takes run 'r2'; give it to Engine(flows=[...])" in warning
