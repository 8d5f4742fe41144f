"""Workflows as objects: what the decorator takes, what the parameters are, how inputs are given."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

import milepost
from milepost import MemoryStore, Retry, Steps, WorkflowContext, step, workflow
from milepost.errors import OptionError
from milepost.testing.tables import for_each


@dataclass
class Order:
    total: Decimal


def nothing() -> None:
    return None


@workflow("pay", "Pays an order.", version=3)
def pay(ctx: WorkflowContext, order: Order, run_id: str = "none", *, tries: int = 2) -> Steps[Any]:
    """Something else."""
    yield step("s").python(nothing)
    return order, run_id, tries, ctx.run_id, ctx.version


@workflow("awaits")
async def awaits(n: int) -> int:
    """Doubles a number."""
    return n * 2


def test_a_workflow_has_what_it_was_made_of():
    assert ("pay", "Pays an order.", 3) == (pay.name, pay.description, pay.version)
    assert ("awaits", "Doubles a number.", 1) == (awaits.name, awaits.description, awaits.version)
    assert inspect.isgeneratorfunction(pay.fn)


def test_parameters_tell_name_annotation_default_and_kind():
    empty = inspect.Parameter.empty
    told = [(p.name, p.annotation, p.default, p.kind) for p in pay.parameters]
    assert [
        ("order", Order, empty, "positional or keyword"),
        ("run_id", str, "none", "positional or keyword"),
        ("tries", int, 2, "keyword-only"),
    ] == told


@pytest.mark.parametrize("name", ["", "  ", None, 1])
def test_a_workflow_needs_a_name(name):
    with pytest.raises(ValueError, match="needs a name"):
        workflow(name)


@for_each("version", [0, -1, 1.5, "2", True])
def test_a_version_is_a_whole_number_of_at_least_1(version):
    with pytest.raises(ValueError, match="version of workflow 'w'"):
        workflow("w", version=version)


def test_a_plain_function_and_an_async_generator_are_no_workflows():
    async def generates():
        yield 1

    with pytest.raises(TypeError, match="a function without a step"):
        workflow("w")(lambda: 1)
    with pytest.raises(TypeError, match="an async generator"):
        workflow("w")(generates)
    with pytest.raises(TypeError, match="'w'"):
        workflow("w")(3)


def test_the_context_is_the_first_parameter_or_none():
    def second(n: int, ctx: WorkflowContext):
        yield n

    def twice(ctx: WorkflowContext, other: WorkflowContext):
        yield ctx

    def only_by_name(*, ctx: WorkflowContext):
        yield ctx

    for wrong in (second, twice, only_by_name):
        with pytest.raises(TypeError, match="must be the first parameter"):
            workflow("w")(wrong)


@pytest.mark.parametrize("annotation", ["WorkflowContext", "milepost.WorkflowContext", "WorkflowContext[Order]"])
def test_the_context_is_known_by_its_annotation_also_where_that_is_text(annotation):
    def body(ctx, n):
        yield n

    body.__annotations__ = {"ctx": annotation, "n": "Unknown"}
    assert ["n"] == [p.name for p in workflow("w")(body).parameters]


def test_an_annotation_that_is_not_there_at_run_time_hides_no_other():
    def body(ctx: WorkflowContext, order: Order, n: Missing):  # noqa: F821
        yield n

    told = {p.name: p.annotation for p in workflow("w")(body).parameters}
    assert ["order", "n"] == list(told)
    assert Order is told["order"]


def test_inputs_have_names():
    def many(*args: int):
        yield args

    def any_of(**kwargs: int):
        yield kwargs

    for wrong in (many, any_of):
        with pytest.raises(TypeError, match="needs a name of its own"):
            workflow("w")(wrong)


ORDER = Order(Decimal("2.50"))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "missing a required argument: 'order'"),
        ({"order": ORDER, "colour": 1}, "colour"),
        ({"order": ORDER, "inputs": {"order": ORDER}}, "given twice"),
        ({"inputs": {"order": ORDER, "colour": 1}}, "colour"),
    ],
)
def test_missing_and_unknown_inputs_are_refused_before_anything_runs(given, named):
    store = MemoryStore()
    with pytest.raises(TypeError, match=named) as caught:
        pay.run(store=store, run_id="r", **given)
    assert "'pay'" in str(caught.value)
    assert 0 == len(store.list_runs())


def test_an_input_called_like_an_option_goes_in_inputs():
    assert (ORDER, "mine", 2, "r", 3) == pay.run(run_id="r", inputs={"order": ORDER, "run_id": "mine"})
    assert (ORDER, "none", 5, "r", 3) == pay.run(order=ORDER, run_id="r", tries=5)


def test_a_workflow_that_is_called_takes_every_name_as_an_input():
    assert (ORDER, "mine", 7) == pay(ORDER, run_id="mine", tries=7)[:3]
    assert (ORDER, "mine", 2) == pay(ORDER, "mine")[:3]


def test_bind_checks_the_inputs_and_is_taken_by_the_verbs():
    with pytest.raises(TypeError, match="missing a required argument"):
        pay.bind()
    with pytest.raises(TypeError, match="colour"):
        pay.bind(ORDER, colour=1)
    engine = milepost.Engine(MemoryStore())
    assert (ORDER, "mine", 2, "r", 3) == engine.run(pay.bind(ORDER, run_id="mine"), run_id="r")


def test_a_workflow_is_one_object_for_many_runs():
    assert [2, 4] == [awaits.run(n=n) for n in (1, 2)]


def named(kind: str):
    """A decorator as users write them: all that it makes share one body."""

    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    return decorate


@named("a")
def price() -> Decimal:
    return Decimal("1.50")


@named("b")
def day() -> date:
    return date(2026, 1, 2)


def test_functions_under_one_decorator_keep_their_own_types():
    assert b'"1.50"' == pay._definition.codec_of(price).encode(price())
    assert b'"2026-01-02"' == pay._definition.codec_of(day).encode(day())


def test_the_types_of_a_partial_and_of_a_method_are_those_of_what_is_called():
    class Shop:
        def sum_of(self, order: Order, of: date = date(2026, 1, 1)) -> Decimal:
            return order.total

        def __call__(self, order: Order) -> Decimal:
            return order.total

    def dated(of: date, order: Order) -> Decimal:
        return order.total

    for fn in (Shop().sum_of, Shop(), functools.partial(dated, date(2026, 1, 1))):
        assert b'"2.50"' == pay._definition.codec_of(fn).encode(fn(ORDER))
        assert [ORDER] == pay._definition.items_codec_of(fn).decode(pay._definition.items_codec_of(fn).encode([ORDER]))


def test_the_items_of_a_function_are_its_first_parameter_whatever_else_is_annotated():
    def either(item, order: Order | None = None):
        return item

    codec = pay._definition.items_codec_of(either)
    assert [1, "a"] == codec.decode(codec.encode([1, "a"]))


def test_classes_inside_the_annotations_of_parameters_are_known_to_what_is_returned():
    def first(orders: list[Order]):
        return orders[0]

    codec = pay._definition.codec_of(first)
    assert ORDER == codec.decode(codec.encode(ORDER))


def test_a_class_as_a_steps_function_gives_values_of_that_class():
    codec = pay._definition.codec_of(Order)
    assert ORDER == codec.decode(codec.encode(ORDER))


def test_the_retry_policy_is_an_option_and_no_input():
    assert (ORDER, "none", 2) == pay.run(order=ORDER, retry=Retry(2))[:3]
    with pytest.raises(OptionError):
        pay.run(order=ORDER, max_iterations=0)
