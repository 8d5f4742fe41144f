"""What the builder refuses at the call that is wrong, and how it reads functions, ids and targets."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from milepost.errors import GraphError, OptionError
from milepost.executor.context import Context
from milepost.executor.flow import END, START
from milepost.graph.builder import CompiledGraph, Graph
from milepost.model.retry import Retry
from milepost.testing.tables import for_each


@dataclass
class Order:
    total: int = 0


def keep(state: Order) -> Order:
    return state


def keep_with_context(ctx: Context[Any], state: Order) -> Order:
    return state


async def keep_async(ctx: Context[Any], state: Order) -> Order:
    return state


class Callables:
    def method(self, ctx: Any, order: Order) -> Order:
        return order

    async def async_method(self, order: Order) -> Order:
        return order

    @staticmethod
    def static(order: Order) -> Order:
        return order

    @classmethod
    async def of_class(cls, ctx: Any, order: Order) -> Order:
        return order


class SyncObject:
    def __call__(self, ctx: Any, order: Order) -> Order:
        return order


class AsyncObject:
    async def __call__(self, order: Order) -> Order:
        return order


class GeneratorObject:
    def __call__(self, order: Order) -> Any:
        yield order


def with_defaults(order: Order, factor: int = 2, *, rate: float = 1.0) -> Order:
    return order


def with_rate(ctx: Any, rate: float, order: Order) -> Order:
    return order


def wrapping(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


def hiding(fn: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


def refused(call: Callable[[], object]) -> tuple[str, str]:
    """The code and place of the one problem that `call` raises."""
    with pytest.raises(GraphError) as caught:
        call()
    (problem,) = caught.value.problems
    assert str(caught.value) == problem.text
    return problem.code, problem.where


def single(fn: Any) -> CompiledGraph[Order]:
    return Graph(Order).add_node("a", fn).add_edge("a", END).set_entry("a").compile()


def test_every_builder_method_returns_the_builder() -> None:
    graph = Graph(Order)
    assert graph is graph.add_node("a", keep)
    assert graph is graph.add_edge("a", END)
    assert graph is graph.add_conditional_edge("a", lambda order: END)
    assert graph is graph.set_entry("a")


@for_each(
    "takes_context, is_async, fn",
    [
        (False, False, keep),
        (True, False, keep_with_context),
        (True, True, keep_async),
        (True, False, Callables().method),
        (False, True, Callables().async_method),
        (False, False, Callables.static),
        (True, True, Callables.of_class),
        (True, False, SyncObject()),
        (False, True, AsyncObject()),
        (False, False, with_defaults),
        (True, False, lambda ctx, order: order),
        (False, False, functools.partial(keep_with_context, None)),
        (True, True, functools.partial(keep_async)),
        (False, True, functools.partial(functools.partial(keep_async), None)),
        (False, True, functools.partial(AsyncObject())),
        (True, False, wrapping(keep_with_context)),
        (False, False, operator.attrgetter("total")),
        (False, False, dict),
    ],
)
def test_a_function_tells_by_its_signature_how_it_is_called(takes_context: bool, is_async: bool, fn: Any) -> None:
    unit = single(fn)._definition.units["a"]
    assert (takes_context, is_async) == (unit.takes_context, unit.is_async)
    assert fn is unit.fn


@for_each("value", ["", " ", "a b", "a\tb", "a\x00", "a/b", ".", "..", "\ud800", "x" * 513, 7, None, b"a"])
def test_a_bad_node_id_is_refused_at_the_call(value: Any) -> None:
    where = value if isinstance(value, str) else ""
    assert ("bad_id", where) == refused(lambda: Graph(Order).add_node(value, keep))


@for_each("value", ["end", "END", "End", "__end__", "__START__", START, END])
def test_reserved_node_ids_are_refused_in_any_case(value: str) -> None:
    assert ("reserved_id", value) == refused(lambda: Graph(Order).add_node(value, keep))


def test_a_second_node_of_one_id_is_refused_at_the_call() -> None:
    graph = Graph(Order).add_node("a", keep)
    assert ("duplicate_id", "a") == refused(lambda: graph.add_node("a", keep))


def test_node_ids_are_compared_exactly() -> None:
    graph = Graph(Order).add_node("a", keep).add_node("A", keep).add_node("starter", keep).add_node("ende", keep)
    graph.add_edge("a", "A").add_edge("A", "starter").add_edge("starter", "ende").add_edge("ende", END).set_entry("a")
    assert ("a", "A", "starter", "ende") == graph.compile().node_ids


def test_members_of_a_str_enum_are_ids() -> None:
    class Step(enum.StrEnum):
        PRICE = "price"
        CHARGE = "charge"

    graph = Graph(Order).add_node(Step.PRICE, keep).add_node(Step.CHARGE, keep)
    graph.add_edge(Step.PRICE, Step.CHARGE).add_conditional_edge(Step.CHARGE, keep, [Step.PRICE, END])
    compiled = graph.set_entry(Step.PRICE).compile()
    assert ["price", "charge"] == list(compiled._definition.units)
    assert {str} == {
        type(node) for node in (*compiled._definition.units, *compiled.successors("charge"), compiled._definition.entry)
    }


@pytest.mark.parametrize("fn", [None, "keep", 7, Order()])
def test_what_cannot_be_called_is_refused_at_the_call(fn: Any) -> None:
    assert ("not_callable", "a") == refused(lambda: Graph(Order).add_node("a", fn))
    assert ("not_callable", "a") == refused(lambda: Graph(Order).add_conditional_edge("a", fn))


@for_each(
    "fn",
    [
        lambda: None,
        lambda a, b, c: a,
        lambda *args: args,
        lambda **kwargs: kwargs,
        lambda order=None: order,
        lambda order, *, rate: order,
        lambda state, ctx: state,
        Callables.method,
        with_rate,
        hiding(keep),
    ],
)
def test_a_wrong_signature_is_refused_at_the_call(fn: Any) -> None:
    assert ("wrong_signature", "a") == refused(lambda: Graph(Order).add_node("a", fn))
    assert ("wrong_signature", "a") == refused(lambda: Graph(Order).add_conditional_edge("a", fn))


def test_two_parameters_of_which_the_first_is_annotated_with_the_state_are_refused() -> None:
    def as_text(order: Order, ctx: Any) -> Order:
        return order

    def as_type(order: Any, ctx: Any) -> Any:
        return order

    as_type.__annotations__["order"] = Order
    assert ("wrong_signature", "a") == refused(lambda: Graph(Order).add_node("a", as_text))
    assert ("wrong_signature", "a") == refused(lambda: Graph(Order).add_node("a", as_type))


def test_a_decorator_that_hides_the_signature_is_told_of_wraps() -> None:
    with pytest.raises(GraphError, match=r"functools\.wraps"):
        Graph(Order).add_node("a", hiding(keep))


def test_generator_functions_are_refused_as_nodes() -> None:
    def generator(order: Order) -> Any:
        yield order

    async def async_generator(order: Order) -> Any:
        yield order

    for fn in (generator, async_generator, functools.partial(generator), GeneratorObject()):
        assert ("generator_function", "a") == refused(lambda fn=fn: Graph(Order).add_node("a", fn))  # type: ignore[misc]


@for_each("targets", ["b", b"b", 7, [], {}, ()])
def test_bad_targets_are_refused_at_the_call(targets: Any) -> None:
    assert ("bad_targets", "a") == refused(lambda: Graph(Order).add_conditional_edge("a", keep, targets))


@pytest.mark.parametrize("targets", [["b", 7], {"yes": None}])
def test_a_target_that_is_no_str_is_refused_at_the_call(targets: Any) -> None:
    assert ("bad_id", "") == refused(lambda: Graph(Order).add_conditional_edge("a", keep, targets))


def test_edges_between_what_is_no_str_are_refused_at_the_call() -> None:
    assert ("bad_id", "") == refused(lambda: Graph(Order).add_edge("a", None))  # type: ignore[arg-type]
    assert ("bad_id", "") == refused(lambda: Graph(Order).add_edge(7, "a"))  # type: ignore[arg-type]
    assert ("bad_id", "") == refused(lambda: Graph(Order).set_entry(None))  # type: ignore[arg-type]


def test_a_state_that_is_no_class_is_refused_at_the_call() -> None:
    assert ("bad_state_type", "") == refused(lambda: Graph(Order()))  # type: ignore[arg-type]
    assert ("bad_state_type", "") == refused(lambda: Graph(int | None))  # type: ignore[arg-type]


def test_a_reducer_that_cannot_be_called_is_refused_at_the_call() -> None:
    assert ("bad_reducer", "total") == refused(lambda: Graph(Order, reducers={"total": "sum"}))  # type: ignore[dict-item]


@pytest.mark.parametrize(("seconds", "given"), [(30.0, 30), (0.5, 0.5), (90.0, timedelta(minutes=1.5)), (None, None)])
def test_a_timeout_is_kept_as_seconds(seconds: float | None, given: Any) -> None:
    graph = Graph(Order).add_node("a", keep, timeout=given).add_edge("a", END).set_entry("a")
    assert seconds == graph.compile()._definition.units["a"].timeout


@for_each("timeout", [0, -1, True, "30", float("nan"), float("inf"), timedelta(0)])
def test_a_timeout_that_is_no_time_is_refused_at_the_call(timeout: Any) -> None:
    with pytest.raises(OptionError) as caught:
        Graph(Order).add_node("a", keep, timeout=timeout)
    assert "timeout" == caught.value.option


def test_retry_must_be_a_policy() -> None:
    policy = Retry(max_attempts=2)
    graph = Graph(Order).add_node("a", keep, retry=policy).add_edge("a", END).set_entry("a")
    assert policy is graph.compile()._definition.units["a"].retry
    with pytest.raises(OptionError) as caught:
        Graph(Order).add_node("b", keep, retry=3)  # type: ignore[call-overload]
    assert "retry" == caught.value.option


def test_the_last_entry_counts() -> None:
    graph = Graph(Order).add_node("a", keep).add_node("b", keep).add_edge("a", "b").add_edge("b", END)
    assert "a" == graph.set_entry("b").add_edge(START, "a").compile().entry_point
    assert "b" == graph.add_edge(START, "a").set_entry("b").compile().entry_point


def test_a_graph_without_a_name_is_called_like_its_state() -> None:
    graph = Graph(Order).add_node("a", keep).add_edge("a", END).set_entry("a")
    assert ("Order", False) == (graph.compile().name, graph.compile()._definition.is_named)
    assert ("orders", True) == (graph.compile("orders").name, graph.compile("orders")._definition.is_named)


@for_each("name", ["", "  ", "..", "a\nb", 7])
def test_a_name_that_no_store_accepts_is_refused(name: Any) -> None:
    with pytest.raises(OptionError) as caught:
        Graph(Order).add_node("a", keep).add_edge("a", END).set_entry("a").compile(name)
    assert "name" == caught.value.option


def test_a_compiled_graph_is_independent_of_later_builder_calls() -> None:
    graph = Graph(Order).add_node("a", keep).add_edge("a", END).set_entry("a")
    first = graph.compile()
    before = first.to_dict()
    graph.add_node("b", keep).add_edge("b", "a").set_entry("b")
    second = graph.compile()
    assert before == first.to_dict()
    assert ("a", "b") == second.node_ids
    assert "b" == second.entry_point
    with pytest.raises(TypeError):
        first._definition.units["b"] = second._definition.units["b"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        first._definition.entry = "b"  # type: ignore[misc]


def test_a_shape_that_was_handed_out_is_the_callers_own() -> None:
    compiled = single(keep)
    compiled._definition.shape["nodes"].append("b")
    assert ["a"] == compiled._definition.shape["nodes"]


def test_all_coroutine_functions_are_named() -> None:
    async def route(order: Order) -> str:
        return END

    graph = Graph(Order).add_node("a", keep_async).add_node("b", keep).add_node("c", AsyncObject())
    graph.add_edge("a", "b").add_conditional_edge("b", route, ["c", END]).add_edge("c", END).set_entry("a")
    assert ("a", "c", "router of 'b'") == graph.compile()._definition.async_names
    assert () == single(keep)._definition.async_names
