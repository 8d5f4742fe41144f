"""Waits as steps: a run that waits is put away whole, and goes on when its signal or its time has come."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple

import pydantic
import pytest

from milepost import (
    END,
    Engine,
    Graph,
    Reply,
    RunCancelled,
    RunNotFoundError,
    RunNotResumableError,
    RunSuspended,
    SerializeStateError,
    StoreError,
    parallel,
    step,
    workflow,
)
from milepost.drivers.heartbeat import heartbeat
from milepost.errors import DeserializeStateError, GraphError, OptionError, SignalRefusedError, WorkflowHeldError
from milepost.events import RunWaiting
from milepost.testing import FakeClock


@dataclass
class Approval:
    by: str
    amount: Decimal


class Payment(pydantic.BaseModel):
    amount: int = pydantic.Field(gt=0)
    note: str = ""


class Point(NamedTuple):
    x: int
    y: int


class Colour(Enum):
    RED = "red"


@workflow("approve")
def approve(amount: int):
    reply = yield from step("ask").wait_for("approval", prompt=f"pay {amount}?")
    return [reply.payload, reply.timed_out]


def typed(payload: Any, name: str = "typed", signal: str = "go", **options: Any):
    @workflow(name, types=[Approval, Payment, Point, Colour])
    def wf():
        reply = yield from step("ask").wait_for(signal, payload=payload, **options)
        return reply.payload

    return wf


def asking(front: str, payload: Any = None) -> Any:
    if front == "workflow" and payload is None:
        return approve.bind(amount=7)
    if front == "workflow":
        return typed(payload, signal="approval").bind()
    graph = Graph(dict).add_wait("ask", "approval", apply=lambda state, reply: {"by": reply.payload}, payload=payload)
    return graph.add_edge("ask", END).set_entry("ask").compile("asks").bind({})


@pytest.mark.parametrize("front", ["graph", "workflow"])
def test_a_stream_ends_in_peace_when_its_run_is_parked(verbs, store, front):
    bound = asking(front)
    engine = Engine(store, flows=[bound.flow])
    told = verbs.stream(engine, bound, run_id="r")
    assert ["ask#1"] == [event.wait.wait_id for event in told if isinstance(event, RunWaiting)]
    assert "waiting" == status_of(store)
    with pytest.raises(RunSuspended):  # this stream has nothing to tell
        verbs.resume_stream(engine, bound.flow, "r")
    verbs.call(engine, "signal", "r", "approval", "ann")
    assert not any(isinstance(event, RunWaiting) for event in verbs.resume_stream(engine, bound.flow, "r"))
    assert "finished" == status_of(store)


def status_of(store, run_id="r"):
    return store.get_run(run_id).info.status


def kinds(store, run_id="r"):
    return [record.kind for record in store.read(run_id) if record.kind != "owner"]


def held():
    return {token.run_id for token in heartbeat._held}


@pytest.fixture
def engine(timed, clock):
    return Engine(timed, clock=clock)


@pytest.fixture
def park(verbs, engine):
    """Run a workflow until it waits; what it waits for."""

    def run(flow: Any, run_id: str = "r", **inputs: Any):
        with pytest.raises(RunSuspended) as caught:
            verbs.run(engine, flow, run_id=run_id, inputs=inputs)
        return caught.value.waiting_for

    return run


# -- parking ---------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_run_that_waits_is_put_away_and_goes_on_with_its_signal(verbs, engine, timed, park):
    (wait,) = park(approve, amount=5)
    assert ("ask#1", "approval", "pay 5?", None) == (wait.wait_id, wait.signal, wait.prompt, wait.wake_at)
    row = timed.get_run("r")
    assert ("waiting", "free", (wait,)) == (row.info.status, row.lease, row.info.waiting_for)
    assert "r" not in held()
    assert "taken" == verbs.call(engine, "signal", "r", "approval", "yes")
    assert "ready" == status_of(timed)
    assert ["yes", False] == verbs.resume(engine, approve, "r")
    assert ["start", "wait", "reply", "checkpoint", "finish"] == kinds(timed)


def test_the_error_of_a_run_that_waits_tells_what_for_and_until_when(verbs, engine, clock, timed):
    with pytest.raises(RunSuspended, match="'r' waits for ask#1") as caught:
        verbs.run(engine, typed(None, timeout=60), run_id="r")
    until = clock.now() + timedelta(seconds=60)
    assert ("r", until, until) == (caught.value.run_id, caught.value.wake_at, caught.value.waiting_for[0].wake_at)
    assert until == timed.get_run("r").info.wake_at


def test_a_waiting_run_is_a_result_where_a_full_one_is_asked_for(verbs, engine, park):
    result = verbs.run(engine, approve, run_id="r", inputs={"amount": 1}, full=True)
    assert (False, "waiting", ["ask#1"]) == (result.success, result.status, [w.wait_id for w in result.waiting_for])


def test_a_resume_of_a_run_that_waits_runs_nothing(verbs, engine, timed, log):
    @workflow("quiet")
    def quiet():
        log.append("code")
        yield step("ask").wait_for("go")

    with pytest.raises(RunSuspended):
        verbs.run(engine, quiet, run_id="r")
    before = timed.read("r")
    with pytest.raises(RunSuspended, match="ask#1"):
        verbs.resume(engine, quiet, "r")
    assert (["code"], before) == (log, timed.read("r"))
    assert "waiting" == verbs.plan(engine, quiet, "r").verdict


def test_what_was_done_before_a_wait_is_done_once(verbs, medium, clock, log):
    @workflow("booking")
    def booking():
        seat = yield from step("book").python(verbs.node(lambda: log.append("book") or "12A"))
        paid = yield from step("payment").wait_for("payment")
        return [seat, paid.payload]

    store = medium.open(clock=clock)
    with pytest.raises(RunSuspended):
        verbs.run(booking, store=store, run_id="r", clock=clock)
    store.put_signal("r", "payment", b"100")
    elsewhere = medium.open(clock=clock)
    assert ["12A", 100] == verbs.resume(booking, elsewhere, "r", clock=clock)
    assert ["book"] == log


def test_hundreds_of_runs_that_wait_cost_neither_thread_nor_lease(engine, timed):
    for number in range(20):
        engine.run(approve, amount=number, run_id=f"warm{number}", full=True)
    before = threading.active_count()
    for number in range(200):
        engine.run(approve, amount=number, run_id=f"run{number}", full=True)
    assert threading.active_count() <= before
    assert set() == {run_id for run_id in held() if run_id.startswith(("run", "warm"))}
    assert 220 == len(timed.list_runs(status="waiting", limit=500))


# -- prompts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("sure?", "sure?"),
        ({"choices": ["a", "b"]}, {"choices": ["a", "b"]}),
        (None, None),
        (Approval("anna", Decimal("1.50")), {"by": "anna", "amount": "1.50"}),
        ({"all": [Approval("anna", Decimal(1)), None]}, {"all": [{"by": "anna", "amount": "1"}, None]}),
    ],
    ids=["text", "dict", "none", "dataclass", "dataclasses"],
)
def test_a_prompt_is_recorded_with_the_wait(verbs, engine, timed, prompt, shown):
    @workflow("asking")
    def asking():
        yield step("ask").wait_for("go", prompt=prompt)

    result = verbs.run(engine, asking, run_id="r", full=True)
    assert [shown, shown] == [result.waiting_for[0].prompt, timed.get_run("r").info.waiting_for[0].prompt]


def test_objects_in_a_list_can_be_sent_to_a_wait_of_their_type(verbs, store):
    flow, sent = typed(list[Approval]), [Approval("anna", Decimal("1.50"))]
    engine = Engine(store, flows=[flow])
    verbs.run(engine, flow, run_id="r", full=True)
    verbs.call(engine, "signal", "r", "go", sent)
    assert sent == verbs.resume(engine, flow, "r")


ENDLESS: list[Any] = [Colour.RED]
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("prompt", "place"), [({"a": [Colour.RED, {2: object()}]}, r'prompt\["a"\]\[1\]'), (ENDLESS, "prompt")]
)
def test_the_refusal_of_a_prompt_says_where_in_it(verbs, engine, prompt, place):
    @workflow("asking")
    def asking():
        yield step("ask").wait_for("go", prompt=prompt)

    with pytest.raises(SerializeStateError, match=f"the prompt of step 'ask'.*{place}"):
        verbs.run(engine, asking, run_id="r")


def test_a_prompt_that_cannot_be_recorded_is_refused(verbs, engine, timed):
    @workflow("asking")
    def asking():
        yield step("ask").wait_for("go", prompt=object())

    with pytest.raises(SerializeStateError, match="the prompt of step 'ask'"):
        verbs.run(engine, asking, run_id="r")
    assert "failed" == status_of(timed)


@pytest.mark.parametrize("front", ["graph", "workflow"])
def test_a_prompt_of_more_than_16_kb_is_refused(verbs, engine, front):
    def asking(prompt: str) -> Any:
        if front == "workflow":
            return typed(None, prompt=prompt).bind()
        graph = Graph(dict).add_wait("ask", "go", apply=lambda state, reply: state, prompt=lambda state: prompt)
        return graph.add_edge("ask", END).set_entry("ask").compile("asks").bind({})

    with pytest.raises(RunSuspended):
        verbs.run(engine, asking("p" * (16 * 1024 - 2)), run_id="fits")
    with pytest.raises(SerializeStateError, match=r"the prompt of .* has 16385 bytes as JSON"):
        verbs.run(engine, asking("p" * (16 * 1024 - 1)), run_id="r")


@pytest.mark.parametrize(
    ("prompt", "match"), [("p" * 16 * 1024, "has 16386 bytes as JSON"), (object(), "cannot be recorded")]
)
def test_a_graph_is_not_built_with_a_prompt_that_no_wait_can_have(prompt, match):
    graph = Graph(dict)
    with pytest.raises(GraphError, match=f"the prompt of wait 'ask' {match}"):
        graph.add_wait("ask", "go", apply=lambda state, reply: state, prompt=prompt)


def test_a_reason_of_more_than_2_kb_is_cut(engine, timed):
    engine.start(asking("workflow"), run_id="r")
    engine.cancel("r", "\u00e9" * 5000)
    assert "\u00e9" * 1024 == timed.get_run("r").info.reason


def test_an_answer_that_is_nested_too_deep_is_damage(engine, timed):
    @workflow("asking")
    def ask():
        yield step("ask").wait_for("go")

    engine.start(ask, run_id="r")
    timed.put_signal("r", "go", b"[" * 100_000 + b"]" * 100_000)
    with pytest.raises(DeserializeStateError, match="the reply of a wait is damaged"):
        engine.resume(ask, "r")


def test_what_is_told_of_an_answer_that_was_refused_is_cut(engine, timed):
    @dataclass
    class Answer:
        n: int

    @workflow("asking")
    def ask():
        yield step("ask").wait_for("go", payload=Answer)

    engine.start(ask, run_id="r")
    engine.signal("r", "go", {"n": 1, "k" * 100_000: 2})
    with pytest.raises(RunSuspended):
        engine.resume(ask, "r")
    (wait,) = timed.get_run("r").info.waiting_for
    assert 2048 == len(wait.refused.text)
    assert all(len(record.header) < 10_000 for record in timed.read("r"))


@pytest.mark.parametrize("tags", [{"k" * 513: "v"}, {"k": "\u00e9" * 257}])
def test_a_tag_of_more_than_512_bytes_is_refused(engine, tags):
    with pytest.raises(OptionError, match="is longer than 512 bytes"):
        engine.start(asking("workflow"), run_id="r", tags=tags)


# -- typed payloads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "sent", "given"),
    [
        (Approval, {"by": "anna", "amount": "1.50"}, Approval("anna", Decimal("1.50"))),
        (Approval, Approval("anna", Decimal("1.50")), Approval("anna", Decimal("1.50"))),
        (Decimal, "1.50", Decimal("1.50")),
        (Decimal, Decimal("1.50"), Decimal("1.50")),
        (Payment, {"amount": 3}, Payment(amount=3)),
        (Payment, Payment(amount=3, note="x"), Payment(amount=3, note="x")),
        (Point, Point(1, 2), Point(1, 2)),
        (Colour, Colour.RED, Colour.RED),
        (int, 5, 5),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (list[int], [1, 2], [1, 2]),
        (set[int], [1, 2], {1, 2}),
        (float, 3, 3),
        (list[Approval], [{"by": "b", "amount": "2"}], [Approval("b", Decimal(2))]),
        (None, Approval("anna", Decimal("1.50")), {"by": "anna", "amount": "1.50"}),
        (None, Decimal("1.50"), Decimal("1.50")),
        (None, {"a": [1, None]}, {"a": [1, None]}),
        (None, None, None),
    ],
)
def test_a_payload_comes_as_its_type(verbs, engine, park, payload, sent, given):
    flow = typed(payload)
    park(flow)
    verbs.call(engine, "signal", "r", "go", sent)
    answer = verbs.resume(engine, flow, "r")
    assert (type(given), given) == (type(answer), answer)


MISFITS = pytest.mark.parametrize(
    ("payload", "wrong", "right"),
    [
        (int, "five", 5),
        (int, True, 5),
        (Approval, {"by": "anna"}, {"by": "anna", "amount": "2"}),
        (Decimal, "much", "2"),
        (Decimal, 1.5, "2"),
        (Payment, {"amount": -1}, {"amount": 1}),
        (Payment, Payment.model_construct(amount=-1), {"amount": 1}),
        (Approval, Payment(amount=1), {"by": "anna", "amount": "2"}),
        (str, None, "text"),
    ],
)


@MISFITS
def test_a_payload_that_an_open_wait_does_not_take_is_refused_at_once(verbs, timed, park, payload, wrong, right):
    flow = typed(payload)
    park(flow)
    engine = Engine(timed, flows=[flow])
    with pytest.raises(SignalRefusedError, match=r"the payload of signal 'go' is refused.*at 'ask#1'") as caught:
        verbs.call(engine, "signal", "r", "go", wrong, signal_id="1")
    assert ("r", "ask#1", []) == (caught.value.run_id, caught.value.wait_id, timed.signals("r"))
    assert "taken" == verbs.call(engine, "signal", "r", "go", right, signal_id="1")
    assert "duplicate" == verbs.call(engine, "signal", "r", "go", wrong, signal_id="1")
    assert "kept" == verbs.call(engine, "signal", "r", "go", wrong), "no wait is open for it"


@pytest.mark.parametrize(("payload", "wrong"), [(int, "five"), (list[Approval], [{"by": "anna"}]), (dict, 1)])
def test_a_payload_is_checked_without_the_flow_as_far_as_its_form_goes(verbs, engine, timed, park, payload, wrong):
    park(typed(payload))
    with pytest.raises(SignalRefusedError, match=r"must be of type|lacks 'amount'"):
        verbs.call(engine, "signal", "r", "go", wrong)
    with pytest.raises(SignalRefusedError):
        timed.put_signal("r", "go", b'"five"')
    assert ([], "waiting") == (timed.signals("r"), status_of(timed))


def test_a_run_whose_cancel_is_requested_takes_no_signal(verbs, engine, timed, park):
    @workflow("paying")
    def paying():
        yield step("pay").python(lambda: 1).with_rollback(lambda ctx: None)
        yield step("ask").wait_for("go")

    park(paying)
    assert "requested" == engine.cancel("r", "no money")
    with pytest.raises(SignalRefusedError, match=r"its cancel is requested \(no money\)"):
        verbs.call(engine, "signal", "r", "go", 1)
    assert [] == timed.signals("r")


@MISFITS
def test_an_early_payload_of_another_type_is_refused_and_the_run_waits_on(verbs, engine, timed, payload, wrong, right):
    flow = typed(payload)
    engine.start(flow, run_id="r")
    assert "kept" == verbs.call(engine, "signal", "r", "go", wrong)
    told: list[Any] = []
    with pytest.raises(RunSuspended):
        verbs.resume(engine, flow, "r", hooks=[told.append])
    info = timed.get_run("r").info
    assert ("waiting", ["ask#1"]) == (info.status, [wait.wait_id for wait in info.waiting_for])
    assert "the payload of signal 'go' is refused" in info.reason
    (waiting,) = [event for event in told if isinstance(event, RunWaiting)]
    assert ("ask", "ask#1") == (waiting.node_id, waiting.wait.wait_id)
    assert waiting.reason in info.reason
    assert "the payload of signal 'go' is refused" in waiting.reason
    assert ["start", "wait", "reply"] == kinds(timed)
    assert "taken" == verbs.call(engine, "signal", "r", "go", right)
    verbs.resume(engine, flow, "r")
    assert ["start", "wait", "reply", "reply", "checkpoint", "finish"] == kinds(timed)


@pytest.mark.every_store
@pytest.mark.parametrize("front", ["graph", "workflow"])
def test_a_wait_and_its_record_tell_the_schema_the_beginning_and_the_answer_that_was_refused(
    verbs, engine, timed, clock, front
):
    bound = asking(front, payload=int)
    engine.start(bound, run_id="r")
    assert "kept" == engine.signal("r", "approval", "seven")
    begun = clock.now()
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(engine, bound.flow, "r")
    (record,) = timed.read("r", kinds=("wait",))
    assert {"type": "integer"} == record.fields()["schema"]
    (shown,) = timed.get_run("r").info.waiting_for
    (raised,) = caught.value.waiting_for
    clock.advance(60)
    with pytest.raises(RunSuspended) as again:
        verbs.resume(engine, bound.flow, "r")
    for wait in (shown, raised, *again.value.waiting_for):
        assert ({"type": "integer"}, begun) == (wait.schema, wait.since)
        assert "the payload of signal 'approval' is refused" in wait.refused.text
        assert (begun, None) == (wait.refused.time, wait.refused.by)


def test_a_schema_of_more_than_16_kb_is_not_kept_and_its_type_still_checks(verbs, timed, park):
    flow = typed(Literal[tuple(f"choice {n:06}" for n in range(2000))])
    (wait,) = park(flow)
    assert wait.schema is None
    assert all("schema" not in record.fields() for record in timed.read("r"))
    with pytest.raises(SignalRefusedError):
        verbs.call(Engine(timed, flows=[flow]), "signal", "r", "go", "choice")


def test_a_refused_answer_stays_refused_and_the_next_one_counts(verbs, engine):
    flow = typed(int)
    engine.start(flow, run_id="r")
    for payload in ("one", "two", 3, 4):
        engine.signal("r", "go", payload)
    assert 3 == verbs.resume(engine, flow, "r")


def test_an_object_that_the_codec_does_not_carry_is_not_sent(verbs, engine, timed, park):
    park(approve, amount=1)
    with pytest.raises(SerializeStateError, match="signal 'approval' of run 'r' cannot be sent"):
        verbs.call(engine, "signal", "r", "approval", object())
    assert ([], "waiting") == (timed.signals("r"), status_of(timed))


# -- signals -------------------------------------------------------------------------------------------------


@workflow("twice")
def twice():
    first = yield from step("one").wait_for("go")
    second = yield from step("two").wait_for("go")
    return [first.payload, second.payload]


def test_a_signal_that_comes_early_is_kept_for_the_wait(verbs, engine, timed):
    engine.start(approve, amount=1, run_id="r")
    assert "kept" == verbs.call(engine, "signal", "r", "approval", "early")
    assert ["early", False] == verbs.resume(engine, approve, "r")


def test_an_early_signal_does_not_count_where_it_must_not(verbs, engine, park):
    flow = typed(None, early=False)
    engine.start(flow, run_id="r")
    assert "kept" == engine.signal("r", "go", "early")
    with pytest.raises(RunSuspended):
        verbs.resume(engine, flow, "r")
    with pytest.raises(RunSuspended):
        verbs.resume(engine, flow, "r")
    assert "taken" == engine.signal("r", "go", "in time")
    assert "in time" == verbs.resume(engine, flow, "r")


def test_a_second_signal_is_kept_for_the_next_wait_of_its_name(verbs, engine, park):
    park(twice)
    assert ["taken", "kept"] == [verbs.call(engine, "signal", "r", "go", n) for n in (1, 2)]
    assert [1, 2] == verbs.resume(engine, twice, "r")


def test_a_signal_is_used_once(verbs, engine, timed, park):
    park(twice)
    engine.signal("r", "go", 1)
    with pytest.raises(RunSuspended, match="two#1"):
        verbs.resume(engine, twice, "r")
    with pytest.raises(RunSuspended, match="two#1"):
        verbs.resume(engine, twice, "r")
    engine.signal("r", "go", 2)
    assert [1, 2] == verbs.resume(engine, twice, "r")


def test_a_signal_that_was_seen_before_is_dropped(verbs, engine, timed, park):
    park(twice)
    told = [verbs.call(engine, "signal", "r", "go", 1, signal_id="webhook-7") for _ in range(2)]
    assert ["taken", "duplicate"] == told
    with pytest.raises(RunSuspended, match="two#1"):
        verbs.resume(engine, twice, "r")
    assert "duplicate" == verbs.call(engine, "signal", "r", "go", 1, signal_id="webhook-7")
    assert "waiting" == status_of(timed)


def test_a_signal_that_nobody_waits_for_is_kept_and_wakes_nobody(verbs, engine, timed, park):
    park(approve, amount=1)
    before = kinds(timed)
    assert "kept" == verbs.call(engine, "signal", "r", "another", 1)
    assert ["r"] == [info.run_id for info in engine.list_runs(status="waiting")]
    engine.worker([approve]).run(until_idle=True)
    with pytest.raises(RunSuspended, match="ask#1"):
        verbs.resume(engine, approve, "r")
    assert ("waiting", ["another"]) == (status_of(timed), [signal.name for signal in timed.signals("r")])
    assert before == kinds(timed)


def test_a_signal_to_a_run_that_is_over_or_unknown_is_refused(verbs, engine, park):
    with pytest.raises(RunNotFoundError):
        verbs.call(engine, "signal", "nobody", "go")
    park(approve, amount=1)
    engine.signal("r", "approval")
    verbs.resume(engine, approve, "r")
    with pytest.raises(RunNotResumableError, match="takes no signal"):
        verbs.call(engine, "signal", "r", "approval")


def test_an_answer_without_a_payload_is_no_timeout(verbs, engine, park):
    flow = typed(None, timeout=10)
    park(flow)
    engine.signal("r", "go")

    @workflow("typed")
    def whole():
        return (yield from step("ask").wait_for("go", timeout=10))

    reply = verbs.resume(engine, whole, "r")
    assert isinstance(reply, Reply)
    assert (None, False, True) == (reply.payload, reply.timed_out, reply.sent_at is not None)


# -- several waits at once ----------------------------------------------------------------------------------


@workflow("survey")
def survey(names: list[str]):
    answers = yield from parallel("all", *(step(name).wait_for(name) for name in names))
    return [result.output.payload for result in answers]


@workflow("queue")
def queue(timeout: float | None = None):
    answers = yield from parallel("all", *(step(name).wait_for("go", timeout=timeout) for name in "abc"))
    return [(result.output.payload, result.output.timed_out) for result in answers]


def test_parallel_waits_get_their_answers_in_any_order(verbs, engine, park):
    engine.start(survey, names=["q1", "q2", "q3"], run_id="r")
    assert "kept" == engine.signal("r", "q3", "c")
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(engine, survey, "r")
    assert ["all/q1#1", "all/q2#1"] == [wait.wait_id for wait in caught.value.waiting_for]
    assert "taken" == engine.signal("r", "q2", "b")
    with pytest.raises(RunSuspended, match=r"all/q1#1"):
        verbs.resume(engine, survey, "r")
    assert "kept" == engine.signal("r", "q4", "nobody asked")
    assert "taken" == engine.signal("r", "q1", "a")
    assert ["a", "b", "c"] == verbs.resume(engine, survey, "r")


def test_the_oldest_wait_of_a_name_gets_the_signal(verbs, engine, park):
    waits = park(queue)
    assert ["all/a#1", "all/b#1", "all/c#1"] == [wait.wait_id for wait in waits]
    engine.signal("r", "go", 1)
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(engine, queue, "r")
    assert ["all/b#1", "all/c#1"] == [wait.wait_id for wait in caught.value.waiting_for]
    assert ["taken", "taken", "kept"] == [engine.signal("r", "go", n) for n in (2, 3, 4)]
    assert [(1, False), (2, False), (3, False)] == verbs.resume(engine, queue, "r")


def test_a_signal_may_name_the_wait_that_it_is_for(verbs, engine, timed, park):
    park(queue)
    assert "taken" == verbs.call(engine, "signal", "r", "go", "for b", to="all/b#1")
    with pytest.raises(SignalRefusedError, match="'all/b#1'") as caught:
        verbs.call(engine, "signal", "r", "go", "again", to="all/b#1")
    assert ("r", "all/b#1") == (caught.value.run_id, caught.value.wait_id)
    engine.signal("r", "go", "first")
    engine.signal("r", "go", "second")
    expected = [("first", False), ("for b", False), ("second", False)]
    assert expected == verbs.resume(engine, queue, "r")
    assert 3 == len(timed.signals("r"))


def test_each_of_parallel_waits_has_its_own_end(verbs, engine, clock, park):
    @workflow("ends")
    def ends():
        both = yield from parallel(
            "both", step("soon").wait_for("go", timeout=10), step("late").wait_for("go", timeout=100)
        )
        return [(result.output.payload, result.output.timed_out) for result in both]

    park(ends)
    clock.advance(11)
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(engine, ends, "r")
    assert ["both/late#1"] == [wait.wait_id for wait in caught.value.waiting_for]
    assert "taken" == engine.signal("r", "go", "here")
    assert [(None, True), ("here", False)] == verbs.resume(engine, ends, "r")


def test_steps_beside_a_wait_come_to_their_ends_and_are_done_once(verbs, engine, timed, log, park):
    def fails():
        log.append("bad")
        raise ValueError("no")

    @workflow("mixed")
    def mixed():
        group = yield from parallel(
            "all",
            step("wait").wait_for("go"),
            step("good").python(verbs.node(lambda: log.append("good") or 1)),
            step("bad").python(verbs.node(fails)),
        )
        return [result.success for result in group]

    (wait,) = park(mixed)
    assert ("all/wait#1", ["bad", "good"]) == (wait.wait_id, sorted(log))
    engine.signal("r", "go")
    assert [True, True, False] == verbs.resume(engine, mixed, "r")
    assert ["bad", "good"] == sorted(log)


def test_a_group_that_must_succeed_fails_once_its_wait_is_over(verbs, engine, timed, park):
    from milepost import StepError

    def fails():
        raise ValueError("no")

    @workflow("must")
    def must():
        yield parallel("all", step("wait").wait_for("go"), step("bad").python(verbs.node(fails))).must_succeed()

    park(must)
    engine.signal("r", "go")
    with pytest.raises(StepError, match="1 of its 2 steps failed"):
        verbs.resume(engine, must, "r")
    assert "failed" == status_of(timed)


@pytest.mark.parametrize("limit", [1, 2])
def test_a_group_with_a_limit_waits_for_all_of_its_steps(verbs, engine, limit, park):
    @workflow("limited")
    def limited():
        names = ("a", "b", "c")
        group = yield from parallel("all", *(step(name).wait_for(name) for name in names), max_parallel=limit)
        return [result.output.payload for result in group]

    assert 3 == len(park(limited))
    for name in "cba":
        engine.signal("r", name, name)
    assert ["a", "b", "c"] == verbs.resume(engine, limited, "r")


# -- inside of other things ------------------------------------------------------------------------------------


def test_a_wait_two_workflows_deep_parks_the_whole_run(verbs, engine, log, park):
    @workflow("innermost")
    def innermost(name: str):
        yield step("before").python(verbs.node(lambda: log.append("before")))
        reply = yield from step("ask").wait_for("go", payload=int)
        return [name, reply.payload]

    @workflow("inner")
    def inner(name: str):
        return (yield from step("sub").subworkflow(innermost, {"name": name})).final_output

    @workflow("outer")
    def outer():
        return (yield from step("in").subworkflow(inner, {"name": "x"})).final_output

    (wait,) = park(outer)
    assert "in/sub/ask#1" == wait.wait_id
    engine.signal("r", "go", 7, to="in/sub/ask#1")
    assert ["x", 7] == verbs.resume(engine, outer, "r")
    assert ["before"] == log


def test_a_chosen_branch_may_wait(verbs, engine, park):
    from milepost import branch

    @workflow("choice")
    def choice(big: bool):
        chosen = yield from branch(
            "how", (lambda ctx: ctx.inputs["big"], step("ask").wait_for("go")), (lambda ctx: True, step("nap").sleep(1))
        )
        return [chosen.selected_index, chosen.inner_output.payload]

    (wait,) = park(choice, big=True)
    assert "how/ask#1" == wait.wait_id
    engine.signal("r", "go", "ok")
    assert [0, "ok"] == verbs.resume(engine, choice, "r")


def test_what_an_on_error_gives_may_wait(verbs, engine, log, park):
    def fails():
        log.append("fails")
        raise ValueError("card declined")

    @workflow("fallback")
    def fallback():
        paid = yield (
            step("pay").python(verbs.node(fails)).on_error(lambda ctx, failed: step("by_hand").wait_for("paid"))
        )
        return paid.payload

    (wait,) = park(fallback)
    assert "pay/by_hand#1" == wait.wait_id
    engine.signal("r", "paid", "cash")
    assert "cash" == verbs.resume(engine, fallback, "r")
    assert ["fails"] == log


def test_a_wait_whose_predicate_says_no_is_skipped(verbs, engine):
    @workflow("skips")
    def skips():
        return bool((yield from step("ask").wait_for("go").when(lambda ctx: False)))

    assert False is verbs.run(engine, skips, run_id="r")


def test_a_wait_gives_its_result_where_that_is_asked_for(verbs, engine, park):
    @workflow("result")
    def result():
        told = yield from step("ask").wait_for("go").as_result()
        return [told.success, told.step_type.value, told.output.payload]

    park(result)
    engine.signal("r", "go", 1)
    assert [True, "wait", 1] == verbs.resume(engine, result, "r")


@pytest.mark.parametrize("kind", ["generator", "coroutine"])
@pytest.mark.parametrize("what", ["wait", "sleep"])
def test_code_that_swallows_every_exception_does_not_swallow_the_suspension(
    verbs, engine, timed, clock, log, kind, what
):
    def waits():
        return step("ask").wait_for("go", timeout=10) if what == "wait" else step("ask").sleep(10)

    def after():
        return step("after").python(verbs.node(lambda: log.append("after")))

    if kind == "generator":

        @workflow("greedy")
        def greedy():
            try:
                yield waits()
            except Exception:
                log.append("swallowed")
            yield after()
            return "end"
    else:

        @workflow("greedy")
        async def greedy():
            try:
                await waits()
            except Exception:
                log.append("swallowed")
            await after()
            return "end"

    with pytest.raises(RunSuspended):
        verbs.run(engine, greedy, run_id="r")
    assert (["start", "wait"], []) == (kinds(timed), log)
    clock.advance(11)
    assert "end" == verbs.resume(engine, greedy, "r")
    assert ["after"] == log
    assert 1 == engine.resume(greedy, "r", full=True).step_results[0].attempts


# -- time ----------------------------------------------------------------------------------------------------


@workflow("reminders")
def reminders(times: int):
    told = []
    for number in range(times):
        reply = yield from step(f"poll-{number}").wait_for("paid", timeout=60)
        told.append("timeout" if reply.timed_out else reply.payload)
    return told


def test_a_wait_that_nobody_answers_times_out_for_good(verbs, engine, timed, clock, park):
    park(reminders, times=1)
    clock.advance(59)
    with pytest.raises(RunSuspended):
        verbs.resume(engine, reminders, "r")
    clock.advance(1)
    assert ["timeout"] == verbs.resume(engine, reminders, "r")
    assert ["timeout"] == verbs.resume(engine, reminders, "r")
    assert ["start", "wait", "reply", "checkpoint", "finish"] == kinds(timed)


def test_a_loop_of_timed_waits_neither_waits_again_nor_invents_an_answer(verbs, engine, timed, clock, park):
    park(reminders, times=3)
    for number in (1, 2):
        clock.advance(61)
        with pytest.raises(RunSuspended) as caught:
            verbs.resume(engine, reminders, "r")
        assert [f"poll-{number}#1"] == [wait.wait_id for wait in caught.value.waiting_for]
        with pytest.raises(RunSuspended, match=f"poll-{number}#1"):
            verbs.resume(engine, reminders, "r")
    clock.advance(61)
    assert ["timeout"] * 3 == verbs.resume(engine, reminders, "r")
    assert (3, 3) == (kinds(timed).count("wait"), kinds(timed).count("reply"))
    assert [] == timed.signals("r")


def test_an_answer_after_a_timeout_goes_to_the_wait_that_is_open(verbs, engine, clock, park):
    park(reminders, times=3)
    clock.advance(61)
    with pytest.raises(RunSuspended, match="poll-1#1"):
        verbs.resume(engine, reminders, "r")
    assert "taken" == engine.signal("r", "paid", None)
    with pytest.raises(RunSuspended, match="poll-2#1"):
        verbs.resume(engine, reminders, "r")
    engine.signal("r", "paid", "at last")
    assert ["timeout", None, "at last"] == verbs.resume(engine, reminders, "r")


def test_an_answer_that_comes_too_late_is_for_the_next_wait_though_nobody_has_looked_yet(verbs, engine, clock, park):
    park(reminders, times=2)
    clock.advance(61)
    assert "kept" == engine.signal("r", "paid", "late")
    assert ["timeout", "late"] == verbs.resume(engine, reminders, "r")


def test_an_answer_in_time_counts_however_late_the_run_goes_on(verbs, engine, clock, park):
    park(reminders, times=1)
    clock.advance(59)
    assert "taken" == engine.signal("r", "paid", "in time")
    clock.advance(1000)
    assert ["in time"] == verbs.resume(engine, reminders, "r")


def test_a_wait_keeps_its_end_through_a_refused_answer(verbs, engine, timed, clock):
    flow = typed(int, timeout=60)
    engine.start(flow, run_id="r")
    engine.signal("r", "go", "wrong")
    ends = clock.now() + timedelta(seconds=60)
    for _ in range(2):
        with pytest.raises(RunSuspended) as caught:
            verbs.resume(engine, flow, "r")
        assert (ends, ends) == (caught.value.wake_at, timed.get_run("r").info.wake_at)
        clock.advance(31)
    assert None is verbs.resume(engine, flow, "r")


def test_a_sleep_parks_the_run_until_its_time(verbs, engine, timed, clock, park):
    until = clock.now() + timedelta(days=2)

    @workflow("sleeper")
    def sleeper():
        first = yield from step("nap").sleep(timedelta(days=1))
        second = yield from step("night").sleep_until(until)
        return [first, second]

    (wait,) = park(sleeper)
    assert ("nap#1", None, clock.now() + timedelta(days=1)) == (wait.wait_id, wait.signal, wait.wake_at)
    with pytest.raises(RunSuspended):
        verbs.resume(engine, sleeper, "r")
    clock.advance(days=1)
    with pytest.raises(RunSuspended, match="night#1"):
        verbs.resume(engine, sleeper, "r")
    assert until == timed.get_run("r").info.wake_at
    clock.advance(days=1)
    assert [Reply(None, None), Reply(None, None)] == verbs.resume(engine, sleeper, "r")


def test_a_sleep_until_a_time_that_has_passed_does_not_park(verbs, engine, clock):
    @workflow("sleeper")
    def sleeper():
        yield step("nap").sleep_until(clock.now() - timedelta(days=1))
        yield step("none").sleep(0)
        return "awake"

    assert "awake" == verbs.run(engine, sleeper, run_id="r")


def test_a_sleep_until_the_last_of_all_times_leaves_the_run_readable(verbs, engine, timed, park):
    @workflow("sleeper")
    def sleeper():
        yield step("nap").sleep_until(datetime.max.replace(tzinfo=UTC))

    (wait,) = park(sleeper)
    (info,) = timed.list_runs()
    assert (9999, wait.wake_at) == (wait.wake_at.year, info.wake_at)
    with pytest.raises(RunSuspended):
        verbs.resume(engine, sleeper, "r")


def test_no_signal_ends_a_sleep(verbs, engine, clock, park):
    @workflow("sleeper")
    def sleeper():
        yield step("nap").sleep(60)

    park(sleeper)
    assert "kept" == engine.signal("r", "nap")
    with pytest.raises(RunSuspended):
        verbs.resume(engine, sleeper, "r")
    with pytest.raises(SignalRefusedError):
        engine.signal("r", "nap", to="nap#1")


def test_a_verb_may_block_until_the_time_is_over(verbs, medium, jumping, log):
    store = medium.open(clock=jumping)
    engine = Engine(store, clock=jumping)

    @workflow("sleeper")
    def sleeper():
        yield step("before").python(verbs.node(lambda: log.append("before")))
        yield step("nap").sleep(60)
        reply = yield from step("ask").wait_for("go", timeout=30)
        return reply.timed_out

    began = jumping.time()
    assert True is verbs.run(engine, sleeper, run_id="r", on_wait="block")
    assert (True, ["before"]) == (jumping.time() - began >= 90, log)


def test_a_verb_that_blocks_goes_on_with_the_signal(verbs, medium):
    class Answering(FakeClock):
        """Time in which somebody answers while the verb waits."""

        def wait(self, wake: Any, seconds: float) -> bool:
            self.answer()
            return super().wait(wake, 0)

        async def sleep(self, seconds: float) -> None:
            self.answer()
            await super().sleep(0)

        def answer(self) -> None:
            if status_of(store) == "waiting":
                engine.signal("r", "approval", "yes")
            self.advance(1)

    clock = Answering()
    store = medium.open(clock=clock)
    engine = Engine(store, clock=clock)
    assert ["yes", False] == verbs.run(engine, approve, run_id="r", inputs={"amount": 1}, on_wait="block")


# -- without a store ------------------------------------------------------------------------------------------


def test_without_a_store_a_sleep_is_slept_out(verbs, jumping):
    @workflow("sleeper")
    def sleeper():
        return (yield from step("nap").sleep(60))

    began = jumping.time()
    assert Reply(None, None) == verbs.run(sleeper, clock=jumping)
    assert 60 <= jumping.time() - began


def test_without_a_store_a_wait_for_a_signal_is_refused(verbs, log):
    @workflow("asking")
    def asking():
        yield step("before").python(verbs.node(lambda: log.append("before")))
        yield step("ask").wait_for("go", timeout=5)

    with pytest.raises(OptionError, match=r"step 'ask' waits for signal 'go', which nobody can send.*give store="):
        verbs.run(asking)
    assert ["before"] == log


# -- over a store that a user wrote ----------------------------------------------------------------------------


class Shelf:
    """A store that keeps checkpoints, and nothing that waits."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        self.kept[run_id, node_id] = data

    def load(self, run_id: str, node_id: str) -> bytes:
        return self.kept[run_id, node_id]

    def list(self, run_id: str) -> list[Any]:
        return []

    def delete(self, run_id: str, node_id: str) -> None:
        self.kept.pop((run_id, node_id), None)

    def delete_run(self, run_id: str) -> None:
        self.kept.clear()

    def close(self) -> None:
        self.kept.clear()


@pytest.mark.parametrize("kind", ["wait", "sleep"])
def test_a_wait_over_a_store_that_cannot_keep_it_is_refused_when_it_is_yielded(verbs, log, kind):
    @workflow("asking")
    def asking():
        yield step("before").python(verbs.node(lambda: log.append("before")))
        yield step("ask").wait_for("go") if kind == "wait" else step("ask").sleep(60)

    with pytest.raises(OptionError, match=r"step 'ask' has to wait, and .*Shelf can't keep a run that waits"):
        verbs.run(asking, store=Shelf(), run_id="r")
    assert ["before"] == log


# -- when parking meets something else --------------------------------------------------------------------------


class Meeting:
    """Calls `meet` once, just before the run is parked."""

    meet: Any = None

    def append(self, batch):
        for append in batch:
            if append.release is not None and append.release.status == "waiting" and self.meet is not None:
                meet, self.meet = self.meet, None
                meet()
        return super().append(batch)


@pytest.mark.parametrize("name", ["approval", "another"])
def test_a_signal_that_comes_while_the_run_is_being_parked_is_not_lost(verbs, medium, clock, name, log):
    store = medium.open(Meeting, clock=clock)
    engine = Engine(store, clock=clock)

    @workflow("booking")
    def booking():
        yield step("book").python(verbs.node(lambda: log.append("book")))
        return (yield from step("ask").wait_for("approval")).payload

    store.meet = lambda: store.put_signal("r", name, b'"yes"')
    if name == "approval":
        assert "yes" == verbs.run(engine, booking, run_id="r")
    else:
        with pytest.raises(RunSuspended, match="ask#1"):
            verbs.run(engine, booking, run_id="r")
        assert "taken" == engine.signal("r", "approval", "yes")
        assert "yes" == verbs.resume(engine, booking, "r")
    assert (["book"], ["start", "checkpoint", "wait", "reply", "checkpoint", "finish"]) == (log, kinds(store))


def test_a_refused_signal_that_meets_the_parking_leaves_the_run_waiting(verbs, medium, clock):
    store = medium.open(Meeting, clock=clock)
    engine = Engine(store, clock=clock)
    store.meet = lambda: store.put_signal("r", "go", b'"no number"')
    with pytest.raises(RunSuspended, match="ask#1"):
        verbs.run(engine, typed(int), run_id="r")
    assert "is refused" in store.get_run("r").info.reason
    engine.signal("r", "go", 1)
    assert 1 == verbs.resume(engine, typed(int), "r")


def test_a_wait_that_is_over_while_the_run_is_being_parked_is_over(verbs, medium, clock):
    class Slow:
        """The time of the wait passes while the run looks whether anything has come."""

        def signals(self, run_id, **options):
            clock.advance(61)
            return super().signals(run_id, **options)

    store = medium.open(Slow, clock=clock)
    assert ["timeout"] == verbs.run(Engine(store, clock=clock), reminders, run_id="r", inputs={"times": 1})


def test_a_cancel_that_meets_the_parking_ends_the_run(verbs, medium, clock):
    store = medium.open(Meeting, clock=clock)
    engine = Engine(store, clock=clock)
    store.meet = lambda: store.request_cancel("r", "enough", None)
    with pytest.raises(RunSuspended):
        verbs.run(engine, approve, run_id="r", inputs={"amount": 1})
    engine.worker([approve]).run(until_idle=True)
    info = store.get_run("r").info
    assert ("cancelled", "enough") == (info.status, info.reason)


class Parting:
    """Fails to park, before the write or after it."""

    how = ""

    def append(self, batch):
        is_parking = any(a.release is not None and a.release.status == "waiting" for a in batch)
        if is_parking and self.how == "before":
            self.how = ""
            raise StoreError("the disk is away", op="append")
        told = super().append(batch)
        if is_parking and self.how == "after":
            self.how = ""
            raise StoreError("the answer was lost", op="append")
        return told


def test_a_run_whose_store_fails_at_the_parking_stops_and_waits_on_later(verbs, medium, clock):
    store = medium.open(Parting, clock=clock)
    store.how = "before"
    engine = Engine(store, clock=clock)
    with pytest.raises(StoreError, match="could not be released"):
        verbs.run(engine, approve, run_id="r", inputs={"amount": 1})
    with pytest.raises(RunSuspended, match="ask#1"):
        verbs.resume(engine, approve, "r")
    engine.signal("r", "approval", "yes")
    assert ["yes", False] == verbs.resume(engine, approve, "r")
    assert 1 == kinds(store).count("wait")


def test_a_parking_whose_answer_was_lost_has_parked_the_run(verbs, medium, clock):
    store = medium.open(Parting, clock=clock)
    store.how = "after"
    engine = Engine(store, clock=clock)
    with pytest.raises(RunSuspended, match="ask#1"):
        verbs.run(engine, approve, run_id="r", inputs={"amount": 1})
    assert ("waiting", "free") == (status_of(store), store.get_run("r").lease)


def test_a_crash_before_the_parking_waits_on_with_the_same_wait(verbs, medium, clock, log):
    store = medium.open(Meeting, clock=clock)

    def dies():
        raise verbs.Killed

    @workflow("booking")
    def booking():
        yield step("book").python(verbs.node(lambda: log.append("book")))
        return (yield from step("ask").wait_for("approval", timeout=1000)).payload

    store.meet = dies
    verbs.crash(booking, store, "r", {}, clock=clock)
    engine = Engine(store, clock=clock)
    ends = {record.fields()["wake_at"] for record in store.read("r", kinds=("wait",))}
    with pytest.raises(RunSuspended):
        verbs.resume(engine, booking, "r")
    assert (1, 1, ["book"]) == (kinds(store).count("wait"), len(ends), log)
    engine.signal("r", "approval", 1)
    assert 1 == verbs.resume(engine, booking, "r")


def test_the_timeout_of_a_step_is_that_of_its_wait(verbs, engine, clock):
    @workflow("asking")
    def asking():
        reply = yield from step("ask").wait_for("go", timeout=60).timeout(5)
        return reply.timed_out

    assert "waiting" == verbs.run(engine, asking, run_id="r", full=True).status
    clock.advance(6)
    assert verbs.resume(engine, asking, "r") is True


@workflow("waits inside")
def waits_inside():
    yield step("w").wait_for("go", timeout=5)


waiting_graph = Graph(dict).add_timer("w", duration=5).add_edge("w", END).set_entry("w").compile("waits")


@pytest.mark.parametrize(
    "around",
    [
        lambda x: x.parallel([step("w").wait_for("go")]),
        lambda x: x.branch((lambda ctx: True, step("w").sleep(5))),
        lambda x: x.subworkflow(waits_inside),
        lambda x: x.subworkflow(waiting_graph, {}),
        lambda x: x.parallel([step("y").parallel([step("w").wait_for("go")])]).as_result(),
    ],
    ids=["parallel", "branch", "workflow", "graph", "deeper"],
)
def test_a_wait_inside_a_step_with_a_timeout_holds_the_run_before_it_waits(verbs, engine, around):
    @workflow("limited")
    def limited():
        yield around(step("x").timeout(50) if limits else step("x"))

    limits = [True]
    with pytest.raises(
        WorkflowHeldError, match=r"waits inside a step with \.timeout\(\).* wait_for\(\.\.\., timeout=\)"
    ):
        verbs.run(engine, limited, run_id="r")
    assert ("blocked", 0) == (status_of(engine.store), kinds(engine.store).count("wait"))
    limits.clear()
    assert "waiting" == verbs.resume(engine, limited, "r", full=True).status


def test_a_resume_of_a_run_that_waits_carries_out_the_cancel_that_is_open(verbs, engine):
    log = []

    @workflow("undone")
    def undone():
        yield step("pay").python(lambda: 1).with_rollback(lambda ctx: log.append("refund"))
        yield step("ask").wait_for("go")

    verbs.run(engine, undone, run_id="r", full=True)
    assert "requested" == engine.cancel("r", "enough")
    with pytest.raises(RunCancelled, match="enough"):
        verbs.resume(engine, undone, "r")
    assert (["refund"], "cancelled") == (log, status_of(engine.store))


def test_a_wait_that_is_run_again_waits_again(verbs, engine):
    @workflow("asking")
    def asking():
        reply = yield from step("ask").wait_for("go")
        return reply.payload

    verbs.run(engine, asking, run_id="r", full=True)
    engine.signal("r", "go", 1)
    assert 1 == verbs.resume(engine, asking, "r")
    with pytest.raises(RunSuspended, match="ask#2"):
        verbs.resume_from(engine, asking, "r", "ask", rerun=True)


def test_a_group_that_is_run_again_runs_its_steps_again(verbs, engine):
    log = []

    @workflow("group")
    def group():
        yield parallel("both", *(step(name).python(log.append, args=(name,)) for name in "ab"))

    verbs.run(engine, group, run_id="r")
    verbs.resume_from(engine, group, "r", "both", rerun=True)
    assert ["a", "a", "b", "b"] == sorted(log)


def test_a_signal_by_a_flow_s_own_verb_wakes_a_worker_at_once(medium):
    store = medium.open()

    @workflow("asking")
    def asking():
        return (yield from step("ask").wait_for("go")).payload

    engine = Engine(store, flows=[asking])
    engine.run(asking, run_id="r", full=True)
    with engine.worker(poll=600):
        asking.signal(store, "r", "go", 5)
        assert 5 == engine.handle("r").result(timeout=20)
