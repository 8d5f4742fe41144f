"""What is recorded is bytes: what one attempt does to a state in place reaches nobody else."""

from __future__ import annotations

import operator
import threading
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pytest

from milepost import END, Checkpoint, Graph, NodeError, Retry
from milepost.errors import RunStopped


@dataclass
class Items:
    items: list[int] = field(default_factory=list)


class Message(TypedDict):
    role: str
    content: str


class Chat(TypedDict, total=False):
    """A state as it is written for LangGraph."""

    messages: Annotated[list[Message], operator.add]
    topic: str
    turns: Annotated[int, operator.add]


class Pair(NamedTuple):
    left: int = 0
    right: int = 0


class Struct(msgspec.Struct):
    n: int = 0


def recorded(store, node: str, run_id: str = "r1") -> Any:
    return Checkpoint.decode(store.load(run_id, node)).state


@pytest.mark.every_store
def test_an_attempt_that_changes_its_state_in_place_and_fails_changes_nothing(verbs, store, line):
    seen = []

    def b(state: Items) -> Items:
        seen.append(list(state.items))
        state.items.append(2)
        if len(seen) == 1:
            raise ValueError("no")
        return state

    graph = line(
        Items, "abc", {"a": lambda state: Items([1]), "b": b, "c": lambda state: state}, {"b": {"retry": Retry(2, 0)}}
    )
    assert Items([1, 2]) == verbs.run(graph, Items(), store=store, run_id="r1")
    assert [[1], [1]] == seen
    assert ({"items": [1]}, {"items": [1, 2]}) == (recorded(store, "a"), recorded(store, "b"))


def test_every_way_to_run_and_every_store_leave_the_same_history(verbs, medium, line):
    store, left = medium.open(), [1]

    def b(state: Items) -> Items:
        state.items.append(2)
        if left[0]:
            left[0] = 0
            raise ValueError("no")
        return state

    graph = line(
        Items, "abc", {"a": lambda state: Items([1]), "b": b, "c": lambda state: state}, {"b": {"retry": Retry(2, 0)}}
    )
    verbs.run(graph, Items(), store=store, run_id="r1")
    records = [(r.sequence, r.kind, r.node_id, r.visit, r.state()) for r in store.read("r1")]
    assert [
        (0, "start", "", 1, b'{"items":[]}'),
        (1, "checkpoint", "a", 1, b'{"items":[1]}'),
        (2, "failure", "b", 1, None),
        (3, "checkpoint", "b", 1, b'{"items":[1,2]}'),
        (4, "checkpoint", "c", 1, b'{"items":[1,2]}'),
        (5, "finish", "", 1, None),
    ] == records


def test_the_recorded_input_is_that_from_before_the_first_node(verbs, store, line):
    given = Items([1])

    def a(state: Items) -> Items:
        assert state is given
        state.items.append(2)
        raise ValueError("no")

    graph = line(Items, "a", {"a": a})
    with pytest.raises(NodeError) as caught:
        verbs.run(graph, given, store=store, run_id="r1")
    assert b'{"items":[1]}' == store.read("r1")[0].state()
    assert Items([1]) == caught.value.state


def adding(state: Items) -> Items:
    state.items.append(1)
    return state


@pytest.mark.parametrize("verb", ["run", "stream"])
def test_a_run_leaves_the_callers_object_as_it_is_so_that_the_same_call_goes_on(verbs, store, line, verb):
    is_down = [True]

    def failing(state: Items) -> Items:
        if is_down:
            raise ConnectionError("down")
        return state

    graph, given = line(Items, "ab", {"a": adding, "b": failing}), Items()
    call = getattr(verbs, verb)
    with pytest.raises(NodeError):
        call(graph, given, store=store, run_id="r1")
    assert Items() == given
    is_down.clear()
    call(graph, given, store=store, run_id="r1", if_exists="resume")
    assert (Items(), {"items": [1]}) == (given, recorded(store, "b"))


def test_what_a_run_goes_on_with_stays_as_it_is(verbs, store, line):
    graph = line(Items, "ab", {"a": adding, "b": adding})
    verbs.run(graph, Items(), store=store, run_id="r1")
    given = Items([7])
    assert Items([7, 1, 1]) == verbs.run(graph, given, store=store, run_id="r1", if_exists="continue")
    assert Items([7, 1]) == verbs.resume_from(graph, store, "r1", "a", state_override=lambda state: given)
    assert Items([7]) == given


def test_what_into_gives_stays_as_it_is(verbs, store):
    inner = Graph(Items).add_node("x", verbs.node(adding)).add_edge("x", END).set_entry("x").compile("in")
    shared = Items([7])
    graph = Graph(Items).add_subgraph("sub", inner, into=lambda state: shared, out=lambda state, other: other)
    flow = graph.add_edge("sub", END).set_entry("sub").compile("out")
    for keeping in ({"store": store}, {}):
        assert Items([7, 1]) == verbs.run(flow, Items(), **keeping)
        assert Items([7]) == shared


@pytest.mark.parametrize("keeps", [True, False], ids=["store", "no store"])
@pytest.mark.parametrize("how", ["function", "graph"])
def test_items_of_a_map_share_nothing_though_they_are_one_object(verbs, store, how, keeps):
    def add(item: list[str]) -> list[str]:
        item.append("x")
        return item

    each: Any = verbs.node(add)
    if how == "graph":
        each = Graph(list[str]).add_node("add", each).add_edge("add", END).set_entry("add").compile("each")
    built = Graph(list).add_map("m", lambda state: [state, state], each, merge=lambda state, found: [state, *found])
    flow = built.add_edge("m", END).set_entry("m").compile("g")
    assert [[], ["x"], ["x"]] == verbs.run(flow, [], **({"store": store} if keeps else {}))


def test_an_item_that_cannot_be_copied_is_given_as_it_is_without_a_store(verbs):
    lock = threading.Lock()
    built = Graph(list).add_map(
        "m", lambda state: [lock], verbs.node(lambda item: item is lock), merge=lambda state, found: found
    )
    assert [True] == verbs.run(built.add_edge("m", END).set_entry("m").compile("g"), [])


def test_a_later_node_that_changes_the_state_does_not_change_what_is_recorded(verbs, store, line):
    def append(state: Items) -> Items:
        state.items.append(len(state.items))
        return state

    verbs.run(line(Items, "abc", dict.fromkeys("abc", append)), Items(), store=store, run_id="r1")
    assert [[0], [0, 1], [0, 1, 2]] == [recorded(store, node)["items"] for node in "abc"]


def test_a_stored_result_is_a_copy_each_time(verbs, store, line):
    graph = line(Items, "a", {"a": lambda state: Items([1])})
    verbs.run(graph, Items(), store=store, run_id="r1").items.append(9)
    verbs.resume(graph, store, "r1").items.append(9)
    assert Items([1]) == verbs.resume(graph, store, "r1")


def test_two_names_for_one_object_are_two_after_a_resume(verbs, store):
    @dataclass
    class Shared:
        left: list[int] = field(default_factory=list)
        right: list[int] = field(default_factory=list)

    seen = []

    def a(state: Shared) -> Shared:
        both: list[int] = [1]
        return Shared(both, both)

    def b(state: Shared) -> Shared:
        seen.append(state.left is state.right)
        return state

    graph = Graph(Shared).add_node("a", verbs.node(a)).add_node("b", verbs.node(b)).add_edge("a", "b")
    compiled = graph.add_edge("b", END).set_entry("a").compile()
    verbs.run(compiled, Shared(), store=store)
    with pytest.raises(RunStopped):
        verbs.run(compiled, Shared(), store=store, run_id="r1", stop_after="a")
    verbs.resume(compiled, store, "r1")
    verbs.run(compiled, Shared(), isolate=True, store=store)
    assert [True, False, False] == seen


# -- kinds of states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "given", "after", "step"),
    [
        (dict, {"n": 1}, {"n": 3}, lambda state: {**state, "n": state["n"] + 1}),
        (Pair, Pair(1), Pair(3), lambda state: state._replace(left=state.left + 1)),
        (Struct, Struct(1), Struct(3), lambda state: Struct(state.n + 1)),
    ],
)
def test_every_kind_of_state_runs_and_resumes(verbs, store, line, kind, given, after, step):
    graph = line(kind, "ab", {"a": step, "b": step})
    with pytest.raises(RunStopped):
        verbs.run(graph, given, store=store, run_id="r1", stop_after="a")
    result = verbs.resume(graph, store, "r1")
    assert (type(after), after) == (type(result), result)


# -- partial graphs ----------------------------------------------------------------------------------------


def test_a_retry_of_a_partial_node_reduces_once(verbs, store, line):
    left = [1]

    def a(state: Chat) -> Chat:
        state.setdefault("messages", []).append({"role": "x", "content": "in place"})
        if left[0]:
            left[0] = 0
            raise ValueError("no")
        state["messages"].pop()
        return {"turns": 1}

    graph = line(Chat, "a", {"a": a}, {"a": {"retry": Retry(2, 0)}}, partial=True)
    final = verbs.run(graph, {"messages": [], "turns": 0}, store=store, run_id="r1")
    assert {"messages": [], "turns": 1} == final


def test_a_reducer_that_raises_is_an_error_of_its_node(verbs, store, line):
    def refuse(value: int, update: int) -> int:
        raise ValueError("no")

    graph = line(Chat, "a", {"a": lambda state: {"turns": 1}}, partial=True, reducers={"turns": refuse})
    with pytest.raises(NodeError) as caught:
        verbs.run(graph, {"turns": 0}, store=store, run_id="r1")
    assert ("a", "no") == (caught.value.node_id, str(caught.value.__cause__))
