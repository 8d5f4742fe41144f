"""A run of a workflow by its id: started for a worker, looked at, waited for, signalled and cancelled from outside."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from milepost import (
    END,
    CheckpointNotFoundError,
    Engine,
    Graph,
    Reply,
    RunCancelled,
    RunSuspended,
    SkipMarker,
    StepError,
    WorkflowContext,
    WorkflowError,
    branch,
    parallel,
    step,
    workflow,
)
from milepost.errors import NonDeterminismError, OptionError
from milepost.events import (
    AttemptFailed,
    NodeCompleted,
    RollbackCompleted,
    RunWaiting,
    StepCompleted,
    WorkflowCompleted,
    WorkflowStarted,
)


@dataclass
class Order:
    id: int
    total: int = 0


def work(engine: Engine) -> None:
    """Have everything done that is due now."""
    engine.worker().run(until_idle=True)


def price(order: Order) -> Order:
    return dataclasses.replace(order, total=order.id * 10)


def fails(order: Order) -> Order:
    raise ValueError("no such card")


@dataclass
class Count:
    n: int = 0


def counted() -> Any:
    graph = Graph(Count).add_node("a", lambda s: Count(s.n + 1)).add_node("b", lambda s: Count(s.n + 1))
    return graph.add_edge("a", "b").add_edge("b", END).set_entry("a").compile("counted")


@workflow("inner", types=[Order])
def inner(order: Order):
    return (yield from step("price").python(price, args=(order,)))


@workflow("everything", types=[Order])
def everything(ctx: WorkflowContext, number: int = 1):
    order = yield from step("price").python(price, args=(Order(number),))
    yield step("skipped").python(price, args=(order,)).when(lambda ctx: False)
    yield branch("choice", (lambda ctx: True, step("chosen").python(price, args=(order,))))
    yield step("each").map(price, [Order(1), Order(2)])
    yield step("keyed").map(price, [Order(3)], key=lambda order: f"order-{order.id}")
    yield step("sub").subworkflow(inner, {"order": order})
    yield step("graph").subworkflow(counted(), Count())
    yield (
        step("saved")
        .python(fails, args=(order,))
        .on_error(lambda ctx, failed: step("instead").python(price, args=(Order(9),)))
    )
    yield step("told").python(fails, args=(order,)).as_result()
    yield parallel("both", step("ask").wait_for("go"), step("beside").python(price, args=(order,)))
    return order


@workflow("simple")
def simple(n: int, m: int = 2):
    return (yield from step("add").python(lambda a, b: a + b, args=(n, m)))


@workflow("undone", types=[Order])
def undone(bad: bool = False):
    order = yield from step("pay").python(price, args=(Order(1),)).with_rollback(lambda ctx, order: None)
    yield step("ask").wait_for("go")
    if bad:
        raise WorkflowError("out of stock")
    yield step("ship").python(fails, args=(order,))


FLOWS = [everything, simple, undone, counted()]


@pytest.fixture
def engine(timed, clock):
    return Engine(timed, flows=FLOWS, clock=clock)


# -- start -----------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_workflow_is_started_with_its_inputs_by_name_or_bound(verbs, engine, timed):
    by_name = verbs.call(engine, "start", simple, n=1)
    bound = verbs.call(engine, "start", simple.bind(1, m=5))
    mapped = verbs.call(engine, "start", simple, inputs={"n": 7})
    assert ["ready"] * 3 == [handle.info().status for handle in (by_name, bound, mapped)]
    assert [{"n": 1, "m": 2}, {"n": 1, "m": 5}, {"n": 7, "m": 2}] == [
        verbs.call(handle, "state") for handle in (by_name, bound, mapped)
    ]
    work(engine)
    assert [3, 6, 9] == [verbs.call(handle, "result", timeout=5) for handle in (by_name, bound, mapped)]


def test_start_refuses_inputs_that_the_workflow_does_not_have(verbs, engine, timed):
    for wrong in ({"k": 1}, {}):
        with pytest.raises(TypeError, match="simple"):
            verbs.call(engine, "start", simple, inputs=wrong, run_id="r")
    assert [] == timed.list_runs()


@pytest.mark.parametrize("mode", ["resume", "retry"])
def test_start_makes_a_failed_workflow_ready(verbs, engine, log, mode):
    def fails_once() -> str:
        log.append("try")
        if len(log) == 1:
            raise ValueError("no")
        return "done"

    @workflow("once")
    def once():
        return (yield from step("a").python(verbs.node(fails_once)))

    with pytest.raises(StepError):
        verbs.run(engine, once, run_id="r")
    handle = verbs.call(engine, "start", once, run_id="r", if_exists=mode)
    assert "ready" == handle.info().status
    engine.worker([once]).run(until_idle=True)
    assert ("done", 2) == (handle.result(timeout=5), len(log))


def test_a_run_that_waits_is_not_made_ready_before_its_time(verbs, engine):
    engine.run(everything, run_id="r", full=True)
    with pytest.raises(RunSuspended):
        verbs.call(engine, "start", everything, run_id="r", if_exists="resume")
    assert "waiting" == verbs.call(engine, "start", everything, run_id="r", if_exists="return").info().status


# -- outputs and state -----------------------------------------------------------------------------------


@pytest.fixture(params=["waiting", "finished"])
def looked_at(request, verbs, engine):
    """A run that waits in a group, or has finished."""
    verbs.run(engine, everything, run_id="r", full=True)
    if request.param == "finished":
        engine.signal("r", "go", {"by": "anna"})
        verbs.resume(engine, everything, "r")
    return engine.handle("r")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("price", Order(1, 10)),
        ("skipped", SkipMarker("predicate_false")),
        ("choice/chosen", Order(1, 10)),
        ("each", [Order(1, 10), Order(2, 20)]),
        ("each/1", Order(2, 20)),
        ("keyed/order-3", Order(3, 30)),
        ("sub/price", Order(1, 10)),
        ("graph/a", Count(1)),
        ("graph/b", Count(2)),
        ("saved", Order(9, 90)),
        ("saved/instead", Order(9, 90)),
        ("both/beside", Order(1, 10)),
    ],
)
def test_the_output_of_a_step_has_its_type(verbs, looked_at, name, given):
    assert given == verbs.call(looked_at, "output", name, timeout=5)
    assert given == verbs.call(looked_at, "state", name)


def test_the_output_of_what_is_made_of_steps_is_what_the_workflow_got(verbs, looked_at):
    chosen = verbs.call(looked_at, "output", "choice")
    assert (0, "chosen", Order(1, 10)) == (chosen.selected_index, chosen.selected_step_name, chosen.inner_output)
    sub = verbs.call(looked_at, "output", "sub")
    assert (Order(1, 10), ["price"]) == (sub.final_output, [r.name for r in sub.workflow_result.step_results])
    assert Count(2) == verbs.call(looked_at, "output", "graph").final_output
    told = verbs.call(looked_at, "output", "told")
    assert (False, "ValueError", "no such card") == (told.success, told.error_type, told.error)


def test_the_state_of_a_workflow_is_its_inputs_and_then_what_it_returned(verbs, engine):
    verbs.run(engine, everything, run_id="r", inputs={"number": 4}, full=True)
    handle = engine.handle("r")
    assert {"number": 4} == verbs.call(handle, "state")
    engine.signal("r", "go")
    verbs.resume(engine, everything, "r")
    assert Order(4, 40) == verbs.call(handle, "state")
    with pytest.raises(CheckpointNotFoundError):
        verbs.call(handle, "state", "nothing")


def test_an_output_is_waited_for(verbs, store):
    engine = Engine(store, flows=FLOWS)
    handle = engine.start(everything, run_id="r")
    with engine.worker(poll=0.01):
        assert Order(1, 10) == verbs.call(handle, "output", "both/beside", timeout=10)
        engine.signal("r", "go", 5)
        assert 5 == verbs.call(handle, "output", "both/ask", timeout=10).payload


def test_an_output_is_there_also_after_it_was_rolled_back(verbs, engine):
    verbs.run(engine, undone, run_id="r", full=True)
    engine.signal("r", "go")
    with pytest.raises(StepError):
        verbs.resume(engine, undone, "r")
    assert Order(1, 10) == verbs.call(engine.handle("r"), "output", "pay")
    assert isinstance(verbs.call(engine.handle("r"), "output", "ask"), Reply)


def test_an_output_whose_code_has_changed_is_told_with_both_sides(verbs, engine, timed):
    verbs.run(engine, simple, run_id="r", inputs={"n": 1})

    @workflow("simple")
    def other(n: int, m: int = 2):
        yield step("multiply").python(lambda a, b: a * b, args=(n, m))

    with pytest.raises(NonDeterminismError, match=r"'add'.*'multiply'"):
        verbs.call(Engine(timed).handle("r", other), "output", "add")


def test_a_handle_needs_the_code_to_read_an_output(verbs, engine, timed):
    verbs.run(engine, simple, run_id="r", inputs={"n": 1})
    handle = Engine(timed).handle("r")
    assert "finished" == verbs.call(handle, "info").status
    with pytest.raises(OptionError, match="'simple'"):
        verbs.call(handle, "output", "add")


# -- result ----------------------------------------------------------------------------------------------


def test_result_raises_the_step_that_a_workflow_failed_at(verbs, engine):
    handle = engine.start(undone, run_id="r")
    engine.signal("r", "go")
    work(engine)
    with pytest.raises(StepError, match=r"step 'ship' .*no such card") as caught:
        verbs.call(handle, "result", timeout=5)
    assert ("r", "ship", "ship", None) == (
        caught.value.run_id,
        caught.value.node_id,
        caught.value.step_name,
        caught.value.__cause__,
    )


def test_result_raises_the_reason_for_which_the_code_ended_it(verbs, engine):
    handle = engine.start(undone, bad=True, run_id="r")
    engine.signal("r", "go")
    work(engine)
    with pytest.raises(WorkflowError, match="out of stock"):
        verbs.call(handle, "result", timeout=5)


def test_result_gives_exactly_what_the_workflow_returned(verbs, engine):
    @workflow("none")
    def none():
        yield step("a").python(lambda: 5)

    verbs.run(engine, none, run_id="r")
    assert None is verbs.call(engine.handle("r", none), "result", timeout=5)


# -- events ----------------------------------------------------------------------------------------------


def test_events_of_a_workflow_follow_its_journal(verbs, engine, timed):
    engine.start(everything, run_id="r")
    work(engine)
    engine.signal("r", "go", 1)
    work(engine)
    events = verbs.events(engine.handle("r"), "events", -1)
    assert [WorkflowStarted, WorkflowCompleted] == [type(event) for event in (events[0], events[-1])]
    assert ({"number": 1}, None) == (events[0].inputs, events[0].resumed)
    done = {event.step_name: event for event in events if isinstance(event, StepCompleted)}
    assert ["price", "skipped", "choice/chosen", "choice"] == [*done][:4]
    assert (Order(1, 10), "skipped") == (done["price"].result.output, done["skipped"].outcome)
    assert [Order(2, 20), Order(1, 10), Order(9, 90)] == [
        done[name].result.output for name in ("each/1", "sub/price", "saved/instead")
    ]
    assert (False, "failed", "no such card") == (
        done["told"].success,
        done["told"].outcome,
        done["told"].result.error,
    )
    assert [("graph/a", Count(1)), ("graph/b", Count(2))] == [
        (event.node_id, event.state) for event in events if isinstance(event, NodeCompleted)
    ]
    assert ["saved", "told"] == [event.node_id for event in events if isinstance(event, AttemptFailed)]
    (waiting,) = [event for event in events if isinstance(event, RunWaiting)]
    assert ("both/ask", "both/ask#1", "go", "") == (
        waiting.node_id,
        waiting.wait.wait_id,
        waiting.wait.signal,
        waiting.reason,
    )
    ended = events[-1]
    assert (True, Order(1, 10), "finished") == (ended.success, ended.result.output, ended.result.status)
    assert "both" == ended.result.step_results[-1].name
    numbers = [event.sequence for event in events]
    assert sorted(numbers) == numbers
    assert [type(event) for event in events[-3:]] == [
        type(event) for event in verbs.events(engine.handle("r"), "events", after=events[-4].sequence)
    ]


def test_events_tell_of_refused_answers_and_of_rollbacks(verbs, engine):
    def no_refund(ctx: Any) -> None:
        raise OSError("the bank is closed")

    @workflow("failing")
    def failing():
        yield step("pay").python(lambda: 1).with_rollback(lambda ctx: None)
        yield step("book").python(lambda: 1).with_rollback(no_refund)
        yield step("ask").wait_for("go", payload=int)
        raise WorkflowError("out of stock")

    handle = engine.start(failing, run_id="r")
    for payload in ("wrong", 1):
        engine.signal("r", "go", payload)
    engine.worker([failing]).run(until_idle=True)
    events = verbs.events(handle, "events", -1)
    reasons = [event.reason for event in events if isinstance(event, RunWaiting)]
    assert (2, "", True) == (len(reasons), reasons[0], "is refused" in reasons[1])
    undone = [(event.step_name, event.error) for event in events if isinstance(event, RollbackCompleted)]
    assert (["book", "pay"], None) == ([name for name, _ in undone], undone[1][1])
    assert "the bank is closed" in str(undone[0][1])
    ended = events[-1]
    assert isinstance(ended, WorkflowCompleted)
    assert (False, "failed", ["book"]) == (
        ended.success,
        ended.result.status,
        [error.step_name for error in ended.result.rollback_errors],
    )
    assert (WorkflowError, True) == (type(ended.error), "out of stock" in str(ended.error))
    assert [] == [event for event in events if isinstance(event, AttemptFailed)]


def test_events_of_a_workflow_that_fails_at_a_step_name_it_and_its_kind_of_error(verbs, engine):
    @workflow("failing")
    def failing():
        yield step("pay").python(lambda: 1 / 0)

    handle = engine.start(failing, run_id="r")
    engine.worker([failing]).run(until_idle=True)
    *_, failed, done, ended = verbs.events(handle, "events", -1)
    assert (AttemptFailed, StepCompleted, WorkflowCompleted) == (type(failed), type(done), type(ended))
    assert failed.sequence == done.sequence
    for error in (failed.error, ended.error):
        assert (StepError, "pay") == (type(error), error.step_name)
        assert "division by zero" in str(error)


def _within(*steps: Any) -> Any:
    """Return a workflow that asks for these steps."""

    @workflow("within")
    def within():
        for asked in steps:  # noqa: UP028  # a tuple takes no answers
            yield asked

    return within


def _bad(name: str) -> Any:
    return step(name).python(lambda: 1 / 0)


FAILING = {
    "a step": lambda: [_bad("a")],
    "its attempts": lambda: [step("a").retry(2, 0).python(lambda: 1 / 0)],
    "its on_error": lambda: [_bad("a").on_error(lambda ctx, result: _bad("b"))],
    "saved by its on_error": lambda: [_bad("a").on_error(lambda ctx, result: step("b").python(lambda: 1)), _bad("c")],
    "skipped": lambda: [_bad("a").skip_on_error(), _bad("c").as_result(), _bad("d")],
    "in a branch": lambda: [branch("choice", (lambda ctx: True, _bad("a")))],
    "in a group": lambda: [step("both").must_succeed().parallel([_bad("a"), step("b").python(lambda: 1)])],
    "in a map": lambda: [step("each").map(lambda n: 1 // n, [0, 1])],
    "in a workflow": lambda: [step("sub").retry(2, 0).subworkflow(_within(_bad("a")))],
    "in a graph": lambda: [step("graph").subworkflow(counted(), Count("no"))],  # type: ignore[arg-type]
    "with rollbacks": lambda: [
        step("a").python(lambda: 1).with_rollback(lambda ctx: None),
        step("sub").subworkflow(_within(step("b").python(lambda: 1).with_rollback(lambda ctx: None), _bad("c"))),
    ],
}


@pytest.mark.parametrize("case", FAILING)
def test_records_tell_the_end_of_each_step_as_the_process_did_that_ran_it(verbs, engine, case):
    flow = _within(*FAILING[case]())
    live: list[Any] = []
    with suppress(StepError):
        verbs.run(engine, flow, run_id="r", hooks=[live.append])
    kinds = (StepCompleted, RollbackCompleted)
    recorded = verbs.events(engine.handle("r", flow), "events", -1)
    expected, found = (
        [
            (e.step_name, *((e.step_type, e.outcome, e.result.attempts) if isinstance(e, StepCompleted) else ()))
            for e in events
            if isinstance(e, kinds)
        ]
        for events in (live, recorded)
    )
    assert expected == found
    numbers = [event.sequence for event in recorded]
    assert sorted(numbers) == numbers


# -- signals and cancels ---------------------------------------------------------------------------------


def test_a_waiting_workflow_without_rollbacks_is_cancelled_at_once(verbs, engine):
    verbs.run(engine, everything, run_id="r", full=True)
    handle = engine.handle("r")
    assert "cancelled" == verbs.call(handle, "cancel", "not needed")
    assert ("cancelled", "not needed", ()) == (handle.info().status, handle.info().reason, handle.info().waiting_for)
    with pytest.raises(RunCancelled, match="'r'"):
        verbs.call(handle, "result", timeout=5)


@pytest.mark.parametrize("by", ["worker", "resume"])
def test_a_workflow_with_rollbacks_is_rolled_back_by_whoever_takes_it_next(verbs, engine, timed, clock, log, by):
    @workflow("paying")
    def paying():
        for name in ("a", "b"):
            yield step(name).python(str, args=(name,)).with_rollback(verbs.node(lambda ctx, out: log.append(out)))
        yield step("skipped").python(lambda: 1).when(lambda ctx: False).with_rollback(lambda ctx: log.append("no"))
        yield step("nap").sleep(10)

    verbs.run(engine, paying, run_id="r", full=True)
    clock.advance(11)
    handle = engine.handle("r", paying)
    assert "requested" == verbs.call(handle, "cancel", "enough")
    assert ([], "waiting") == (log, handle.info().status)
    if by == "worker":
        engine.worker([paying]).run(until_idle=True)
    else:
        with pytest.raises(RunCancelled, match="enough"):
            verbs.resume(engine, paying, "r")
    assert (["b", "a"], "cancelled", "enough") == (log, handle.info().status, handle.info().reason)
    assert ["rollback", "rollback", "finish"] == [record.kind for record in timed.read("r")][-3:]
    assert "ended" == verbs.call(handle, "cancel")


def test_a_workflow_that_was_rolled_back_already_is_cancelled_at_once(verbs, engine, log):
    @workflow("paying")
    def paying():
        yield step("pay").python(lambda: 1).with_rollback(lambda ctx: log.append("refund"))
        raise WorkflowError("out of stock")

    with pytest.raises(WorkflowError):
        verbs.run(engine, paying, run_id="r")
    assert "cancelled" == verbs.call(engine, "cancel", "r")
    assert ["refund"] == log


def test_a_worker_takes_a_cancel_at_once_that_comes_in_this_process(store, log):
    engine = Engine(store)

    @workflow("paying")
    def paying():
        yield step("pay").python(lambda: 1).with_rollback(lambda ctx: log.append("refund"))
        yield step("ask").wait_for("go")

    engine.run(paying, run_id="r", full=True)
    with engine.worker([paying], poll=600):
        assert "requested" == engine.cancel("r")
        with pytest.raises(RunCancelled):
            engine.handle("r", paying).result(timeout=20)
    assert ["refund"] == log
