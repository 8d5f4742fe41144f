"""How the next state comes from what a node returned: whole states, parts, reducers; and the walk over it."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, NotRequired, Required, TypedDict

import pytest

from milepost import MemoryStore
from milepost.errors import StateTypeError
from milepost.executor.flow import END, Unit
from milepost.graph.builder import CompiledGraph, Graph
from milepost.reducers import append, largest, last, smallest, total, union
from milepost.testing.tables import for_each


@dataclass
class Order:
    total: int = 0
    items: list[str] = field(default_factory=list)


class Point(NamedTuple):
    x: int = 0
    y: int = 0


class Message(TypedDict):
    role: str
    text: str


class Chat(TypedDict):
    messages: Annotated[list[Message], operator.add]
    turn: int


class Sums(TypedDict, total=False):
    items: Annotated[list[str], append]
    names: Required[Annotated[set[str], union]]
    totals: Annotated[NotRequired[dict[str, int]], operator.or_]
    count: Annotated[int, total]
    text: Annotated[str, operator.add]
    best: Annotated[int | None, largest]
    plain: int


HELLO: Message = {"role": "user", "text": "hello"}
REPLY: Message = {"role": "model", "text": "hi"}


def unused(state: Any) -> Any:
    raise AssertionError("only what it returned is looked at")


def compiled(state_type: type[Any], **options: Any) -> CompiledGraph[Any]:
    return Graph(state_type, **options).add_node("a", unused).add_edge("a", END).set_entry("a").compile()


def accepted(graph: CompiledGraph[Any], before: Any, returned: Any) -> Any:
    return graph._definition.accept(graph._definition.units["a"], before, graph._definition.read(before, returned))


def refused(graph: CompiledGraph[Any], before: Any, returned: Any) -> StateTypeError:
    with pytest.raises(StateTypeError) as caught:
        accepted(graph, before, returned)
    return caught.value


# -- whole states ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partial", [False, True])
def test_the_object_that_a_node_returned_is_the_state(partial: bool) -> None:
    state = Order(7)
    assert state is accepted(compiled(Order, partial=partial), Order(), state)


def test_a_whole_dict_is_the_state() -> None:
    before = {"turn": 1, "messages": []}
    state = {"turn": 2, "messages": [], "more": 1}
    assert state is accepted(compiled(dict), before, state)
    assert before is accepted(compiled(Chat), before, before)


def test_an_instance_of_a_subclass_is_looked_at_by_the_codec() -> None:
    class Rush(Order):
        pass

    rush, ordered = Rush(1), OrderedDict(turn=1)
    assert rush is accepted(compiled(Order), Order(), rush)
    assert ordered is accepted(compiled(dict), {"turn": 0}, ordered)


@for_each("partial", [False, True])
@for_each("state_type", [Order, Point, Chat, dict])
def test_none_is_refused_with_the_hint_that_the_state_must_be_returned(state_type: type, partial: bool) -> None:
    error = refused(compiled(state_type, partial=partial), {}, None)
    assert "it returned None: a node must return the state, changed or not" == str(error)
    assert ("state", "NoneType") == (error.path, error.found)


@for_each("partial", [False, True])
@for_each("state_type, expected", [(Order, "Order"), (Point, "Point"), (Chat, "dict"), (dict, "dict")])
@for_each("returned", [7, "state", (1, 2), [("turn", 1)], object])
def test_another_type_is_refused(state_type: type, expected: str, partial: bool, returned: Any) -> None:
    error = refused(compiled(state_type, partial=partial), {}, returned)
    assert (expected, type(returned).__name__) == (error.expected, error.found)
    assert None is error.run_id
    assert None is error.node_id


def test_a_part_without_partial_is_refused_with_a_hint() -> None:
    assert "partial=True" in str(refused(compiled(Order), Order(), {"total": 1}))


@pytest.mark.parametrize("state_type", [Chat, dict])
def test_a_dict_that_lacks_a_key_which_the_node_was_given_is_refused_with_a_hint(state_type: type) -> None:
    error = refused(compiled(state_type), {"messages": [], "turn": 1}, {"turn": 2})
    assert "without 'messages'" in str(error)
    assert "partial=True" in str(error)


def test_the_coroutine_of_a_function_that_is_none_is_refused_with_a_hint() -> None:
    async def fn() -> Order:
        return Order()

    coroutine = fn()
    assert "async def" in str(refused(compiled(Order), Order(), coroutine))
    coroutine.close()


# -- parts -------------------------------------------------------------------------------------------------


def test_a_part_replaces_the_fields_that_it_names() -> None:
    before = Order(1, ["a"])
    assert Order(2, ["a"]) == accepted(compiled(Order, partial=True), before, {"total": 2})
    assert Order(1, ["a"]) == before
    assert Point(1, 5) == accepted(compiled(Point, partial=True), Point(1, 2), {"y": 5})


def test_any_mapping_is_a_part() -> None:
    for part in (OrderedDict(total=2), MappingProxyType({"total": 2})):
        assert Order(2) == accepted(compiled(Order, partial=True), Order(), part)
        assert {"total": 2, "x": 1} == accepted(compiled(dict, partial=True), {"total": 1, "x": 1}, part)


def test_an_empty_part_changes_nothing() -> None:
    assert Order(1) == accepted(compiled(Order, partial=True), Order(1), {})
    assert {"x": 1} == accepted(compiled(dict, partial=True), {"x": 1}, {})


@pytest.mark.parametrize("state_type", [Order, Point, Chat])
def test_an_unknown_field_of_a_part_is_refused(state_type: type) -> None:
    before = {"messages": [], "turn": 1} if state_type is Chat else state_type()
    assert isinstance(refused(compiled(state_type, partial=True), before, {"none": 1}), StateTypeError)


def test_a_state_of_langgraph_works_unchanged() -> None:
    graph = compiled(Chat, partial=True)
    before: Chat = {"messages": [HELLO], "turn": 1}
    assert {"messages": [HELLO, REPLY], "turn": 1} == accepted(graph, before, {"messages": [REPLY]})
    assert {"messages": [HELLO, REPLY], "turn": 2} == accepted(graph, before, {"messages": [REPLY], "turn": 2})
    assert {"messages": [HELLO], "turn": 1} == before


def test_in_a_graph_over_dicts_every_returned_mapping_is_a_part() -> None:
    graph = compiled(Chat, partial=True)
    before: Chat = {"messages": [HELLO], "turn": 1}
    assert {"messages": [HELLO, HELLO], "turn": 2} == accepted(graph, before, {"messages": [HELLO], "turn": 2})


def test_an_instance_of_the_state_is_whole_where_parts_are_allowed() -> None:
    graph = compiled(Order, partial=True, reducers={"total": total})
    assert Order(5) == accepted(graph, Order(2), Order(5))
    assert Order(7) == accepted(graph, Order(2), {"total": 5})


def test_reducers_of_the_graph_beat_those_of_the_type() -> None:
    graph = compiled(Chat, partial=True, reducers={"messages": last, "turn": largest})
    before: Chat = {"messages": [HELLO], "turn": 3}
    assert {"messages": [REPLY], "turn": 3} == accepted(graph, before, {"messages": [REPLY], "turn": 2})


@for_each(
    "expected, part",
    [
        ({"items": ["a"]}, {"items": ["a"]}),
        ({"names": {"a"}}, {"names": {"a"}}),
        ({"totals": {"a": 1}}, {"totals": {"a": 1}}),
        ({"count": 3}, {"count": 3}),
        ({"text": "a"}, {"text": "a"}),
        ({"best": -2}, {"best": -2}),
        ({"plain": 1}, {"plain": 1}),
    ],
)
def test_a_missing_field_begins_with_the_empty_value_of_its_type(
    expected: dict[str, Any], part: dict[str, Any]
) -> None:
    assert expected == accepted(compiled(Sums, partial=True), {}, part)


def test_a_missing_field_of_a_dict_without_declared_fields_takes_the_update() -> None:
    graph = compiled(dict, partial=True, reducers={"items": append})
    assert {"items": ["a"]} == accepted(graph, {}, {"items": ["a"]})
    assert {"items": ["a", "b"]} == accepted(graph, {"items": ["a"]}, {"items": ["b"]})


def test_a_state_that_is_declared_inside_a_function_has_reducers_too() -> None:
    class Item:
        pass

    class Local(TypedDict):
        items: Annotated[list[Item], append]
        unknown: Annotated[Nowhere, append]  # type: ignore[name-defined]  # noqa: F821

    item = Item()
    assert {"items": [item]} == accepted(compiled(Local, partial=True), {}, {"items": [item]})


def test_a_subclass_of_a_dict_keeps_its_type() -> None:
    before = OrderedDict(x=1, y=2)
    after = accepted(compiled(OrderedDict, partial=True), before, {"y": 3})
    assert OrderedDict(x=1, y=3) == after
    assert OrderedDict is type(after)
    assert "OrderedDict" == refused(compiled(OrderedDict), before, {"x": 1, "y": 3}).expected


def test_the_reducer_is_called_for_a_missing_field_too() -> None:
    seen: list[tuple[Any, Any]] = []

    def reducer(value: Any, update: Any) -> Any:
        seen.append((value, update))
        return update

    graph = compiled(Sums, partial=True, reducers={"items": reducer, "best": reducer})
    accepted(graph, {}, {"items": ["a"], "best": 1})
    assert [([], ["a"])] == seen


def test_an_empty_value_is_made_anew_each_time() -> None:
    def extend(value: list[str], update: list[str]) -> list[str]:
        value.extend(update)
        return value

    graph = compiled(Sums, partial=True, reducers={"items": extend})
    assert {"items": ["a"]} == accepted(graph, {}, {"items": ["a"]})
    assert {"items": ["b"]} == accepted(graph, {}, {"items": ["b"]})


def test_what_a_reducer_raises_comes_through() -> None:
    def broken(value: Any, update: Any) -> Any:
        raise ZeroDivisionError("reducer")

    with pytest.raises(ZeroDivisionError, match="reducer"):
        accepted(compiled(Order, partial=True, reducers={"total": broken}), Order(), {"total": 1})


@for_each(
    "expected, reducer, value, update",
    [
        ([1, 2], append, [1], [2]),
        ({1, 2}, union, {1}, {2}),
        (frozenset({1, 2}), union, frozenset({1}), {2}),
        (3, total, 1, 2),
        (2, largest, 1, 2),
        (1, smallest, 1, 2),
        (2, last, 1, 2),
    ],
)
def test_the_ready_made_reducers(expected: Any, reducer: Callable[[Any, Any], Any], value: Any, update: Any) -> None:
    before = repr(value)
    result = reducer(value, update)
    assert expected == result
    assert type(expected) is type(result)
    assert before == repr(value)


@pytest.mark.parametrize(("value", "update"), [([1], 2), ([1], "ab"), ([1], (2,)), (None, [1])])
def test_append_takes_lists_only(value: Any, update: Any) -> None:
    with pytest.raises(TypeError, match="append joins two lists"):
        append(value, update)


# -- the walk ----------------------------------------------------------------------------------------------


def walked(graph: CompiledGraph[Any], answers: Mapping[str, list[str]], start: str) -> list[str]:
    """The nodes that a walk comes to."""
    ids: list[str] = []
    walk = graph._definition.walk(start)
    try:
        unit = next(walk)
        while True:
            assert isinstance(unit, Unit)
            ids.append(unit.id)
            target = unit.next_node if unit.router is None else answers[unit.id].pop(0)
            assert target is not None
            unit = walk.send(target)
    except StopIteration:
        return ids


def test_a_walk_goes_from_node_to_node_to_the_end() -> None:
    graph = Graph(dict).add_node("a", unused).add_node("b", unused).add_edge("a", "b").set_entry("a")
    compiled = graph.add_conditional_edge("b", unused, ["a", END]).compile()
    assert ["a", "b", "a", "b"] == walked(compiled, {"b": ["a", END]}, "a")
    assert ["b"] == walked(compiled, {"b": [END]}, "b")
    assert [] == walked(compiled, {}, END)


def test_units_know_where_they_go_on() -> None:
    graph = Graph(dict).add_node("a", unused).add_node("b", unused).add_edge("a", "b").set_entry("a")
    compiled = graph.add_conditional_edge("b", unused, {True: "a", False: END}).compile()
    assert ("b", None) == (compiled._definition.units["a"].next_node, compiled._definition.units["a"].router)
    router = compiled._definition.units["b"].router
    assert router is not None
    assert None is compiled._definition.units["b"].next_node
    assert ("b", {True: "a", False: END}, {"a", "b"}) == (router.node_id, router.targets, router.known)
    assert ("b", None, None) == tuple(map(compiled._definition.only_successor, ["a", "b", "none"]))


@pytest.mark.parametrize(("declared", "given"), [(float, 3), (complex, 3), (complex, 0.5), (float, 0.5)])
def test_a_state_that_is_a_number_may_be_of_a_narrower_class(declared: type, given: complex):
    graph = Graph(declared).add_node("a", lambda state: given).add_edge("a", END).set_entry("a").compile("number")
    for options in ({}, {"store": MemoryStore(), "run_id": "r"}):
        state = graph.run(given, **options)
        assert (type(given), given) == (type(state), state)


def test_a_state_that_is_a_number_is_no_bool():
    graph = Graph(float).add_node("a", lambda state: True).add_edge("a", END).set_entry("a").compile("number")
    with pytest.raises(StateTypeError):
        graph.run(0.5, store=MemoryStore(), run_id="r")
