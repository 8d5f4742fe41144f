"""What a step gives comes back equal and of its type; what cannot be recorded or written stops the run, or is told of."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pydantic
import pytest

from milepost import (
    END,
    Graph,
    SerializeStateError,
    StepError,
    Steps,
    StoreError,
    WorkflowContext,
    branch,
    parallel,
    step,
    workflow,
)
from milepost.errors import CheckpointWriteError, DeserializeStateError
from milepost.events import CheckpointFailed


class Colour(Enum):
    RED = "red"


class Pair(NamedTuple):
    left: int
    right: Decimal


@dataclass(frozen=True)
class Order:
    id: UUID
    total: Decimal
    due: datetime
    lines: tuple[Pair, ...] = ()
    colour: Colour = Colour.RED
    meta: dict[str, Any] = field(default_factory=dict)


class Payment(pydantic.BaseModel):
    amount: Decimal
    at: datetime


DUE = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
ORDER = Order(UUID(int=7), Decimal("2.50"), DUE, (Pair(1, Decimal("0.10")),), Colour.RED, {"at": date(2026, 1, 1)})
PAYMENT = Payment(amount=Decimal("2.50"), at=DUE)


def an_order() -> Order:
    return ORDER


def a_payment(order: Order) -> Payment:
    return PAYMENT


def orders() -> list[Order]:
    return [ORDER]


def by_day() -> dict[date, Decimal]:
    return {date(2026, 1, 1): Decimal("1.10")}


def anything():
    return (1, {2}, b"3", Decimal(4), timedelta(5), 6j, None)


def a_float() -> float:
    return 3


def rates() -> dict[str, list[float | None]]:
    return {"eur": [1, 1.5, 2.0, None], "large": [2**65]}


class Failing:
    """A store that fails at appends which have a record that `trouble` is true of."""

    trouble: Any = None
    error: Any = StoreError("no space left on device")

    def append(self, batch):
        for append in batch:
            if self.trouble is not None and any(self.trouble(record) for record in append.records):
                raise self.error
        return super().append(batch)


@pytest.fixture
def failing(medium, clock):
    return medium.open(Failing, clock=clock)


def result_of(step_id: str) -> Any:
    return lambda record: record.kind == "checkpoint" and record.node_id == step_id


def kinds(store: Any) -> list[str]:
    return [f"{record.kind} {record.node_id}".strip() for record in store.read("r")]


# -- values


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (an_order, (), ORDER),
        (a_payment, (ORDER,), PAYMENT),
        (orders, (), [ORDER]),
        (by_day, (), {date(2026, 1, 1): Decimal("1.10")}),
        (anything, (), anything()),
        (a_float, (), 3),
        (rates, (), rates()),
    ],
)
def test_an_output_comes_back_equal_and_of_the_same_type(verbs, store, work, log, fn, args, expected):
    seen: list[Any] = []
    cut = [True]

    def stop() -> None:
        if cut:
            raise ValueError("cut")

    @workflow("w")
    def wf():
        seen.append((yield step("a").python(work(fn), args=args)))
        yield step("stop").python(stop)

    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r")
    cut.clear()
    verbs.resume(wf, store, "r")
    assert [expected, expected] == seen
    assert repr(seen[0]) == repr(seen[1])
    assert (type(expected), 1) == (type(seen[1]), len(log))


@pytest.mark.parametrize("kind", ["map", "parallel", "branch", "fallback", "subworkflow", "as_result"])
def test_outputs_inside_other_steps_come_back_of_their_types(verbs, store, kind):
    def of(day: date) -> Order:
        return ORDER

    @workflow("inner")
    def inner(day: date) -> Steps[Order]:
        return (yield from step("a").python(of, args=(day,)))

    day = date(2026, 1, 1)
    one = step("a").python(of, args=(day,))
    fallback = step("e").python(lambda: 1 / 0).on_error(lambda ctx, failed: one)
    asked, read = {
        "map": (step("m").map(of, [day]), lambda told: told[0]),
        "parallel": (parallel("p", one), lambda told: told.get_output("a")),
        "branch": (branch("b", (lambda ctx: True, one)), lambda told: told.inner_output),
        "fallback": (fallback, lambda told: told),
        "subworkflow": (step("s").subworkflow(inner, {"day": day}), lambda told: told.final_output),
        "as_result": (one.as_result(), lambda told: told.output),
    }[kind]
    seen: list[Any] = []
    cut = [True]

    @workflow("w")
    def wf():
        seen.append(read((yield asked)))
        yield step("stop").python(lambda: 1 // (not cut))

    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r")
    cut.clear()
    verbs.resume(wf, store, "r")
    assert [ORDER, ORDER] == seen


@pytest.mark.every_store
def test_inputs_and_the_output_of_a_workflow_come_back_of_their_types(verbs, store):
    @workflow("w", types=[Payment])
    def wf(ctx: WorkflowContext, order: Order, rates: list[float], day: date = date(2026, 1, 1)):
        yield step("a").python(a_payment, args=(order,))
        return {"order": order, "payment": PAYMENT, "rates": rates, "day": day}

    expected = {"order": ORDER, "payment": PAYMENT, "rates": [1, 2.0], "day": date(2026, 1, 1)}
    assert repr(expected) == repr(verbs.run(wf, store=store, run_id="r", order=ORDER, rates=[1, 2.0]))
    assert repr(expected) == repr(verbs.resume(wf, store, "r"))


def test_arguments_that_a_step_changes_are_recorded_as_they_were_given(verbs, store, work, log):
    def add(items: list[int]) -> int:
        items.append(9)
        return len(items)

    cut = [True]

    @workflow("w")
    def wf(items: list[int]):
        told = yield step("a").python(work(add), args=(items,))
        yield step("stop").python(lambda: 1 // (not cut))
        return told

    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r", items=[1])
    cut.clear()
    assert (2, ["add"]) == (verbs.resume(wf, store, "r"), log)


@dataclass
class Cart:
    items: list[int]


def test_inputs_stay_as_they_are_whatever_the_workflow_and_a_graph_inside_do(verbs, store):
    def add(cart: Cart) -> Cart:
        cart.items.append(9)
        return cart

    graph = Graph(Cart).add_node("add", verbs.node(add)).add_edge("add", END).set_entry("add").compile("cart")
    cut = [True]

    @workflow("w")
    def wf(cart: Cart, names: list[str]):
        names.append("mine")
        told = yield step("g").subworkflow(graph, cart)
        seen = yield step("a").python(list, args=([*names, *cart.items],))
        yield step("stop").python(lambda: 1 // (not cut))
        return [*told.final_output.items, *seen]

    cart, names = Cart([1]), ["yours"]
    given: dict[str, Any] = {"cart": cart, "names": names}
    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r", **given)
    cut.clear()
    expected = [1, 9, "yours", "mine", 1]
    assert expected == verbs.run(wf, store=store, run_id="r", if_exists="resume", **given)
    assert (Cart([1]), ["yours"]) == (cart, names)


# -- what cannot be recorded


@pytest.mark.parametrize(
    ("make", "step_id"),
    [
        (lambda: step("a").python(threading.Lock), "a"),
        (lambda: step("a").python(lambda: {"x": [1, object()]}), "a"),
        (lambda: step("a").subworkflow(hands_on), "a"),
        (lambda: branch("b", (lambda ctx: True, step("a").python(object))), "b/a"),
        (lambda: step("m").map(lambda n: object(), [1]), "m/0"),
        (lambda: parallel("p", step("a").python(object)), "p/a"),
    ],
)
def test_an_output_that_cannot_be_recorded_stops_the_run(verbs, store, log, make, step_id):
    @workflow("w")
    def wf():
        yield step("before").python(log.append, args=("before",))
        yield make()
        yield step("after").python(log.append, args=("after",))

    with pytest.raises(SerializeStateError, match=r"run 'r'.*mend the step, then resume|'r'") as caught:
        verbs.run(wf, store=store, run_id="r")
    assert ("output", step_id) == (caught.value.path[:6], caught.value.node_id)
    assert (["before"], "failed") == (log, store.get_run("r").info.status)


@workflow("hands on")
def hands_on():
    yield step("a").python(int)
    return object()


def test_the_refusal_of_an_output_names_step_run_path_and_what_to_do(verbs, store):
    def body() -> Any:
        return {"rows": [1, object()]}

    @workflow("w")
    def wf():
        yield step("a").python(body)

    with pytest.raises(SerializeStateError) as caught:
        verbs.run(wf, store=store, run_id="r")
    text = str(caught.value)
    assert text.startswith("the output of step 'a' of run 'r' cannot be recorded: output[\"rows\"][1] is")
    assert text.endswith("mend the step, then resume")
    assert ("r", "a", 'output["rows"][1]') == (caught.value.run_id, caught.value.node_id, caught.value.path)


@pytest.mark.parametrize("modify", ["skip_on_error", "as_result", "retry", "on_error"])
def test_an_output_that_cannot_be_recorded_is_no_failure_of_the_step_to_be_made_good(verbs, store, log, modify):
    asked = step("a").python(lambda: [log.append("a"), object()])
    asked = {
        "skip_on_error": asked.skip_on_error,
        "as_result": asked.as_result,
        "retry": lambda: asked.retry(3, backoff=0),
        "on_error": lambda: asked.on_error(lambda ctx, failed: step("other").python(int)),
    }[modify]()

    @workflow("w")
    def wf():
        yield asked

    with pytest.raises(SerializeStateError):
        verbs.run(wf, store=store, run_id="r")
    assert ["a"] == log


def test_a_run_that_could_not_record_an_output_goes_on_once_the_step_is_mended(verbs, store, log):
    outputs = [object(), 5]

    @workflow("w")
    def wf():
        yield step("before").python(log.append, args=("before",))
        return (yield step("a").python(lambda: outputs.pop(0)))

    with pytest.raises(SerializeStateError):
        verbs.run(wf, store=store, run_id="r")
    assert (5, ["before"]) == (verbs.resume(wf, store, "r"), log)


@pytest.mark.parametrize(("given", "path"), [({"n": object()}, "input.n"), ({"n": [1, object()]}, "input.n[1]")])
def test_an_input_that_cannot_be_recorded_is_refused_at_the_start(verbs, store, log, given, path):
    @workflow("w")
    def wf(n: Any):
        yield step("a").python(log.append, args=("a",))

    with pytest.raises(SerializeStateError) as caught:
        verbs.run(wf, store=store, run_id="r", **given)
    assert (path, [], 0) == (caught.value.path, log, len(store.list_runs()))


def test_the_output_of_a_workflow_that_cannot_be_recorded_fails_the_run(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(int)
        return object()

    with pytest.raises(SerializeStateError, match="what workflow 'w' of run 'r' returned"):
        verbs.run(wf, store=store, run_id="r")
    assert "failed" == store.get_run("r").info.status


def test_a_recorded_output_that_does_not_fit_any_more_is_refused_with_its_step(verbs, store):
    cut = [True]

    def before() -> str:
        return "text"

    def after() -> Decimal:
        return Decimal(1)

    def flow(fn: Any) -> Any:
        @workflow("w")
        def wf():
            yield step("a").python(fn)
            yield step("stop").python(lambda: 1 // (not cut))

        return wf

    with pytest.raises(StepError):
        verbs.run(flow(before), store=store, run_id="r")
    records = kinds(store)
    with pytest.raises(DeserializeStateError, match="recorded output of step 'a' of run 'r'") as caught:
        verbs.resume(flow(after), store, "r")
    assert ("a", records) == (caught.value.node_id, kinds(store))


# -- what cannot be written


def test_a_failed_write_of_any_step_is_fatal_and_a_resume_goes_on(verbs, failing, log):
    @workflow("w")
    def wf():
        for name in "abc":
            yield step(name).python(log.append, args=(name,))
        return "end"

    failing.trouble = result_of("b")
    with pytest.raises(CheckpointWriteError, match="no space left") as caught:
        verbs.run(wf, store=failing, run_id="r")
    assert ("r", "b", ["a", "b"]) == (caught.value.run_id, caught.value.node_id, log)
    failing.trouble = None
    assert ("end", ["a", "b", "b", "c"]) == (verbs.resume(wf, failing, "r"), log)


@pytest.mark.parametrize("modify", ["skip_on_error", "as_result", "retry"])
def test_a_failed_write_is_no_failure_of_the_step_to_be_made_good(verbs, failing, log, modify):
    asked = step("a").python(log.append, args=("a",))
    asked = asked.retry(3, backoff=0) if modify == "retry" else getattr(asked, modify)()

    @workflow("w")
    def wf():
        yield asked

    failing.trouble = result_of("a")
    with pytest.raises(CheckpointWriteError):
        verbs.run(wf, store=failing, run_id="r")
    assert ["a"] == log


def test_what_could_not_be_written_goes_with_the_next_append_if_the_user_chose_to_go_on(verbs, failing, log):
    @workflow("w")
    def wf():
        for name in "abcd":
            if name == "c":
                failing.trouble = None
            yield step(name).python(log.append, args=(name,))
        return "end"

    failing.trouble = result_of("b")
    told = verbs.run(wf, store=failing, run_id="r", checkpoint_failure_fatal=False, full=True)
    assert ("end", "finished", True) == (told.output, told.status, told.degraded)
    assert ["start", *(f"checkpoint {name}" for name in "abcd"), "finish"] == kinds(failing)
    assert "end" == verbs.resume(wf, failing, "r")
    assert list("abcd") == log


def test_a_failure_that_is_not_fatal_is_told(verbs, failing, log, caplog):
    @workflow("w")
    def wf():
        yield step("a").python(log.append, args=("a",))
        failing.trouble = None
        yield step("b").python(log.append, args=("b",))

    failing.trouble = result_of("a")
    events = verbs.stream(wf, store=failing, run_id="r", checkpoint_failure_fatal=False)
    assert [("a", "append")] == [(e.node_id, e.op) for e in events if isinstance(e, CheckpointFailed)]
    assert events[-1].degraded
    assert any(r.levelname == "WARNING" and "'a'" in r.message for r in caplog.records)


def test_a_crash_before_the_next_append_repeats_only_what_was_not_written(verbs, failing, log):
    @workflow("w")
    def wf():
        yield step("a").python(log.append, args=("a",))
        yield step("b").python(log.append, args=("b",))
        yield step("c").python(dying)
        return "end"

    deaths = [verbs.Killed]

    def dying() -> None:
        failing.trouble = None
        if deaths:
            raise deaths.pop()

    failing.trouble = result_of("b")
    verbs.crash(wf, failing, "r", {}, checkpoint_failure_fatal=False)
    assert ("end", ["a", "b", "b"]) == (verbs.resume(wf, failing, "r"), log)


def test_a_failed_checkpoint_is_fatal_all_the_same(verbs, failing, log):
    @workflow("w")
    def wf():
        yield step("a").python(log.append, args=("a",))
        yield step("b").checkpoint().python(log.append, args=("b",))
        yield step("c").python(log.append, args=("c",))
        return "end"

    failing.trouble = lambda record: record.kind == "checkpoint"
    with pytest.raises(CheckpointWriteError) as caught:
        verbs.run(wf, store=failing, run_id="r", checkpoint_failure_fatal=False)
    assert ("r", ["a", "b"]) == (caught.value.run_id, log)
    failing.trouble = None
    assert ("end", ["a", "b", "a", "b", "c"]) == (verbs.resume(wf, failing, "r"), log)


def test_an_unwritten_result_is_written_before_a_checkpoint_goes_on(verbs, failing, log):
    @workflow("w")
    def wf():
        yield step("a").python(log.append, args=("a",))
        failing.trouble = None
        yield step("b").checkpoint().python(log.append, args=("b",))
        log.append(kinds(failing))
        return "end"

    failing.trouble = result_of("a")
    assert "end" == verbs.run(wf, store=failing, run_id="r", checkpoint_failure_fatal=False)
    assert ["start", "checkpoint a", "checkpoint b"] == log[-1]


def test_a_rollback_is_registered_with_the_result_in_one_record(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(int).with_rollback(lambda ctx: None)
        yield step("b").python(int).with_rollback(lambda ctx: None).when(lambda ctx: False)

    verbs.run(wf, store=store, run_id="r")
    a, b = (record.fields() for record in store.read("r", kinds=("checkpoint",)))
    assert (True, None) == (a.get("rollback"), b.get("rollback"))


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        (lambda: step("a").python(int), "succeeded"),
        (lambda: step("a").python(int).when(lambda ctx: False), "skipped"),
        (lambda: step("a").python(lambda: 1 / 0).skip_on_error(), "skipped"),
        (lambda: step("a").python(lambda: 1 / 0).on_error(lambda c, f: step("o").python(int)), "recovered"),
        (lambda: step("a").python(lambda: 1 / 0).as_result(), "failed"),
    ],
)
def test_the_outcome_of_a_step_is_in_its_record(verbs, store, asked, outcome):
    @workflow("w")
    def wf():
        yield asked()

    verbs.run(wf, store=store, run_id="r")
    (fields,) = [r.fields() for r in store.read("r", kinds=("checkpoint",)) if r.node_id == "a"]
    assert (outcome, "python") == (fields["outcome"], fields["step_type"])
