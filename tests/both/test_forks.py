"""Forks and joins: branches at once, merged in the order of the edges, and gone on with branch by branch.

The graphs are written as edges of two letters each (`"fa fb aj bj"`). A node without a body of its own adds its name to
`seen`. Branches that have to meet do so at a barrier with a timeout: nothing here sleeps.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import operator
import threading
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pydantic
import pytest
from forking import Basket, Once, builder, few, noting, visits

from milepost import (
    END,
    BranchError,
    Graph,
    LeaseLost,
    MemoryStore,
    NodeError,
    Retry,
    RunCancelled,
    RunNotResumableError,
    SerializeStateError,
    current,
)
from milepost.errors import (
    CheckpointWriteError,
    MaxIterationsError,
    MergeConflictError,
    RouterError,
    RunStopped,
    StateTypeError,
)
from milepost.model.record import CHECKPOINT, FAILURE
from milepost.reducers import append, total

SECONDS = 20


def meeting(parties: int) -> Callable[[str], Callable[[Basket], Basket]]:
    """Bodies that go on once all are there, which they are only if they run at once."""
    barrier = threading.Barrier(parties)

    def body(name: str) -> Callable[[Basket], Basket]:
        def meet(state: Basket) -> Basket:
            barrier.wait(SECONDS)
            return noting(name)(state)

        return meet

    return body


@pytest.fixture
def graph(verbs, log):
    return builder(verbs, log)


# -- at once, in order, apart ------------------------------------------------------------------------------


@few
def test_branches_run_at_once(verbs, store, graph):
    if verbs.has_coroutines:
        met = asyncio.Event()
        arrived: list[str] = []

        def meeting_(name: str) -> Any:
            async def meet(state: Basket) -> Basket:
                arrived.append(name)
                if len(arrived) == 3:
                    met.set()
                await asyncio.wait_for(met.wait(), SECONDS)
                return noting(name)(state)

            return meet

        built = Graph(Basket).add_node("f", noting("f")).add_node("j", noting("j"))
        for name in "abc":
            built.add_node(name, meeting_(name)).add_edge("f", name).add_edge(name, "j")
        flow = built.add_edge("j", END).set_entry("f").compile()
    else:
        body = meeting(3)
        flow = graph("fa fb fc aj bj cj", {name: body(name) for name in "abc"})
    assert list("fabcj") == verbs.run(flow, Basket(), store=store).seen


@few
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_results_merge_in_the_order_of_the_edges_whatever_ends_first(verbs, store, graph, order):
    turns = {name: threading.Event() for name in order}
    turns[order[0]].set()

    def body(name: str) -> Callable[[Basket], Basket]:
        def wait(state: Basket) -> Basket:
            if not verbs.has_coroutines:
                assert turns[name].wait(SECONDS)
                for after in order[order.index(name) + 1 : order.index(name) + 2]:
                    turns[after].set()
            state.who = name
            return noting(name)(state)

        return wait

    flow = graph("fa fb fc aj bj cj", {name: body(name) for name in "abc"})
    result = verbs.run(flow, Basket(), store=store, run_id="r")
    assert (list("fabcj"), "c") == (result.seen, result.who)


@few
@pytest.mark.parametrize("isolate", [False, True])
def test_each_branch_has_its_own_copy(verbs, store, graph, isolate):
    given: list[int] = []

    def body(name: str) -> Callable[[Basket], Basket]:
        def change(state: Basket) -> Basket:
            given.append(id(state.seen))
            assert ["f"] == state.seen
            return noting(name)(state)

        return change

    flow = graph("fa fb fc aj bj cj", {name: body(name) for name in "abc"})
    result = verbs.run(flow, Basket(), store=store, run_id="r", isolate=isolate)
    assert list("fabcj") == result.seen
    assert 3 == len(set(given))
    decode = flow._definition.codec.decode
    kept = {record.node_id: decode(record.state()).seen for record in store.read("r", kinds=(CHECKPOINT,))}
    assert {"f": ["f"], "a": ["f", "a"], "b": ["f", "b"], "c": ["f", "c"], "j": list("fabcj")} == kept


def test_branches_without_a_store_have_copies_too(verbs, graph):
    result = verbs.run(graph("fa fb aj bj"), Basket())
    assert list("fabj") == result.seen


def test_branches_of_a_state_that_cannot_be_encoded_are_merged_too(verbs, graph):
    class Opaque:
        def __init__(self) -> None:
            self.tally = [0]

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Opaque) and self.tally == other.tally

        __hash__ = None  # type: ignore[assignment]

    def body(name: str) -> Callable[[Basket], Basket]:
        def change(state: Basket) -> Basket:
            assert isinstance(state.any, Opaque)
            if name == "b":
                state.any.tally.append(1)
            return noting(name)(state)

        return change

    flow = graph("fa fb aj bj", {"a": body("a"), "b": body("b")})
    result = verbs.run(flow, Basket(any=Opaque()))
    assert (list("fabj"), [0, 1]) == (result.seen, result.any.tally)


@few
def test_what_a_fork_node_keeps_of_its_state_reaches_no_branch(verbs, store, graph):
    kept: list[Basket] = []

    def keep(state: Basket) -> Basket:
        kept.append(state)
        return state

    def spoil(state: Basket) -> Basket:
        kept[0].n = 99
        return state

    flow = graph("fa fb aj bj", {"f": keep, "a": spoil})
    for options in ({}, {"store": store}):
        kept.clear()
        assert 0 == verbs.run(flow, Basket(), **options).n


def test_a_context_variable_reaches_calls_with_a_timeout_in_branches(verbs, graph):
    from contextvars import ContextVar

    who: ContextVar[str] = ContextVar("who")
    found: list[str] = []

    def look(state: Basket) -> Basket:
        found.append(who.get("nobody"))
        return state

    flow = graph("fa fb aj bj", {"a": look, "b": look}, {"a": {"timeout": 30}})
    who.set("me")
    verbs.run(flow, Basket())
    assert ["me", "me"] == found


# -- merging -----------------------------------------------------------------------------------------------


@few
def test_a_function_merges(verbs, store, graph):
    def merge(base: Basket, branches: Mapping[str, Basket]) -> Basket:
        assert ["a", "b"] == list(branches)
        return Basket(len(branches), [*base.seen, *branches["b"].seen[1:], *branches["a"].seen[1:]])

    flow = graph("fa fb aj bj", options={"j": {"merge": verbs.node(merge)}})
    result = verbs.run(flow, Basket(), store=store)
    assert (2, list("fbaj")) == (result.n, result.seen)


@few
def test_a_function_of_a_partial_graph_may_give_what_changed(verbs, store, graph):
    def merge(base: Basket, branches: Mapping[str, Basket]) -> dict[str, Any]:
        base.note = "changed in place"
        return {"seen": ["merged"], "n": 7}

    flow = graph("fa fb aj bj", options={"j": {"merge": merge}}, partial=True)
    result = verbs.run(flow, Basket(), store=store)
    assert (7, ["f", "merged", "j"], "") == (result.n, result.seen, result.note)


@few
def test_every_ready_made_reducer_merges_whole_states(verbs, store, graph):
    def body(amount: int, name: str) -> Callable[[Basket], Basket]:
        def change(state: Basket) -> Basket:
            return dataclasses.replace(
                noting(name)(state),
                sums=state.sums + amount,
                peak=amount,
                low=-amount,
                who=name,
                tags={*state.tags, amount},
            )

        return change

    flow = graph("fa fb fc aj bj cj", {"a": body(3, "a"), "b": body(5, "b")})
    result = verbs.run(flow, Basket(sums=10, tags={1}), store=store)
    assert (18, 5, -5, "b", {1, 3, 5}, list("fabcj")) == (
        result.sums,
        result.peak,
        result.low,
        result.who,
        result.tags,
        result.seen,
    )


@few
def test_reducers_of_the_graph_and_of_the_join_merge(verbs, store, graph):
    def adding(state: Basket) -> Basket:
        return dataclasses.replace(state, n=state.n + 2)

    for given in ({"reducers": {"n": total}}, {"options": {"j": {"merge": {"n": total}}}}):
        flow = graph("fa fb aj bj", {"a": adding, "b": adding}, **given)
        assert 4 == verbs.run(flow, Basket(), store=store).n


class Chat(TypedDict, total=False):
    messages: Annotated[list[str], operator.add]
    count: int


def saying(*texts: str) -> Callable[[Chat], Chat]:
    return lambda state: {"messages": list(texts)}


class Tags(TypedDict, total=False):
    names: Annotated[list[str], lambda value, update: [*value, str(update)]]


@few
@pytest.mark.parametrize("routes", ["edge", "router", "failing"])
def test_an_update_that_cannot_be_recorded_is_refused_before_anything_follows(verbs, store, routes):
    """The state that a reducer made of it could be, but its join would have nothing to reduce after a crash."""
    asked: list[str] = []

    def route(state: Tags) -> str:
        asked.append("b")
        if routes == "failing":
            raise ValueError("no way")
        return "j"

    graph = Graph(Tags, partial=True).add_node("f", verbs.node(lambda state: {}))
    graph.add_node("a", verbs.node(lambda state: {"names": "a"})).add_node("j", verbs.node(lambda state: {}))
    graph.add_node("b", verbs.node(lambda state: {"names": threading.Lock()}))
    graph.add_edge("f", "a").add_edge("f", "b").add_edge("a", "j").add_edge("j", END).set_entry("f")
    if routes == "edge":
        graph.add_edge("b", "j")
    else:
        graph.add_conditional_edge("b", route, ["j"])
    with pytest.raises(SerializeStateError, match="the state after node 'b'"):
        verbs.run(graph.compile("tags"), Tags(names=[]), store=store, run_id="r")
    assert [] == asked
    assert "b#1" not in visits(store)


@few
def test_a_partial_graph_merges_each_update_in_the_order_of_the_edges(verbs, store, graph):
    flow = graph(
        "fa ab bj fc cd ce di ei ij",
        {name: saying(name) for name in "fabcdeij"},
        state=Chat,
        partial=True,
    )
    assert list("fabcdeij") == verbs.run(flow, {}, store=store)["messages"]


@few
def test_an_update_that_is_changed_in_place_later_counts_as_it_was_returned(verbs, store, graph):
    class Bag(TypedDict, total=False):
        items: list[int]
        n: int

    def extend(state: Bag) -> Bag:
        state["items"].append(2)
        return {"n": 1}

    flow = graph(
        "fa ab bj fc cj",
        {
            "f": lambda state: {"n": 0},
            "a": lambda state: {"items": [1]},
            "b": extend,
            "c": lambda state: {"items": [3]},
            "j": lambda state: {},
        },
        {"j": {"merge": {"items": append}}},
        state=Bag,
        partial=True,
    )
    # What is changed in place is no update: the same as where b begins after a crash.
    assert [1, 3] == verbs.run(flow, {"items": []}, store=store)["items"]


@few
def test_a_field_that_one_branch_changed_takes_its_value_whatever_the_reducer(verbs, store, graph):
    bodies = {
        "f": lambda state: {},
        "a": lambda state: {"n": 5},
        "b": lambda state: {"note": "b"},
        "j": lambda state: {},
    }
    flow = graph("fa fb aj bj", bodies, {"j": {"merge": {"n": total}}}, partial=True)
    assert 5 == verbs.run(flow, Basket(n=1), store=store).n


@few
def test_a_whole_state_beside_an_update_is_not_lost(verbs, store, graph):
    bodies = {
        "a": lambda state: {"seen": ["a"]},
        "b": noting("b"),
        "c": lambda state: dataclasses.replace(state, note="c"),
    }
    flow = graph("fa fb ac cj bj", bodies, partial=True)
    result = verbs.run(flow, Basket(), store=store)
    assert (list("fabj"), "c") == (result.seen, result.note)


@few
def test_a_whole_state_of_which_no_reducer_tells_the_update_is_a_conflict(verbs, store, graph):
    bodies = {"a": lambda state: {"n": 2}, "b": lambda state: dataclasses.replace(state, n=state.n + 3)}
    flow = graph("fa fb aj bj", bodies, partial=True, reducers={"n": lambda value, update: value + update})
    with pytest.raises(MergeConflictError, match="whole state") as caught:
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert ("n", ("b",)) == (caught.value.field, caught.value.branches)


@few
@pytest.mark.parametrize("crashing", [False, True])
def test_what_an_inner_merge_made_counts_outside_of_it(verbs, timed, graph, crashing):
    """Not what the nodes returned that it made it of."""
    dying = Once(verbs.Killed(), lambda state: {"messages": ["k"]}) if crashing else saying("k")
    bodies = {name: saying(name) for name in "fabcdij"} | {"k": dying}
    flow = graph(
        "fa ab ac bi ci ik kj fd dj",
        bodies,
        {"i": {"merge": lambda base, branches: {"messages": ["inner"]}}},
        state=Chat,
        partial=True,
    )
    if crashing:
        verbs.crash(flow, timed, "r", {})
        found = verbs.resume(flow, timed, "r")
    else:
        found = verbs.run(flow, {}, store=timed, run_id="r")
    assert ["f", "a", "inner", "i", "k", "d", "j"] == found["messages"]


@few
def test_updates_of_numbers_and_of_what_json_lacks_come_back_exactly(verbs, timed, graph):
    values: list[Any] = [2**70, -0.0, 1e22, math.inf, (1, [2]), {3}, b"4", "5", True]
    dying = Once(verbs.Killed(), lambda state: {"messages": ["b"]})
    bodies = {
        "f": lambda state: {"messages": []},
        "a": lambda state: {"messages": values},
        "b": dying,
        "c": saying("c"),
        "j": lambda state: {},
    }

    class Mixed(TypedDict, total=False):
        messages: Annotated[list[Any], operator.add]

    flow = graph("fa ab bj fc cj", bodies, state=Mixed, partial=True)
    verbs.crash(flow, timed, "r", {})
    found = verbs.resume(flow, timed, "r")["messages"]
    assert repr([*values, "b", "c"]) == repr(found)


@few
def test_a_conflict_names_the_field_and_the_branches(verbs, store, graph):
    def setting(state: Basket) -> Basket:
        return dataclasses.replace(state, note=f"{state.note}!", n=state.n + 1)

    flow = graph("fa fb fc aj bj cj", {"a": setting, "c": setting})
    with pytest.raises(MergeConflictError, match=r"'n'.*'a', 'c'") as caught:
        verbs.run(flow, Basket(), store=store, run_id="r")
    error = caught.value
    assert ("n", ("a", "c"), "j", "merge", "r") == (error.field, error.branches, error.node_id, error.op, error.run_id)
    assert "failed" == store.get_run("r").info.status
    assert ["j#1"] == visits(store, kinds=(FAILURE,))


@few
@pytest.mark.parametrize("same", [math.nan, True, 1.0, (1, 2), {"x": [1.0]}], ids=repr)
def test_a_field_that_no_branch_changed_keeps_its_value(verbs, store, graph, same):
    result = verbs.run(graph("fa fb aj bj"), Basket(any=same), store=store)
    assert (type(same), repr(same)) == (type(result.any), repr(result.any))


@few
@pytest.mark.parametrize(("before", "after"), [(1, True), (True, 1), (1, 1.0), (0.0, -0.0), ([1], [True])], ids=repr)
def test_an_equal_value_of_another_type_is_a_change(verbs, store, graph, before, after):
    flow = graph("fa fb aj bj", {"b": lambda state: dataclasses.replace(state, any=after)})
    result = verbs.run(flow, Basket(any=before), store=store)
    assert repr(after) == repr(result.any)


@few
def test_a_key_that_was_missing_is_merged_from_what_the_branches_gave(verbs, store, graph):
    class Sums(TypedDict, total=False):
        sums: Annotated[int, total]
        names: Annotated[list[str], append]

    def adding(name: str) -> Callable[[Sums], Sums]:
        return lambda state: {**state, "sums": 2, "names": [name]}

    same = {"f": lambda state: state, "j": lambda state: state}
    flow = graph("fa fb aj bj", {**same, "a": adding("a"), "b": adding("b")}, state=Sums)
    assert {"sums": 4, "names": ["a", "b"]} == verbs.run(flow, {}, store=store)


@few
@pytest.mark.parametrize("partial", [False, True])
def test_a_key_that_a_branch_took_out_of_its_dict_is_gone_after_the_join(verbs, store, graph, partial):
    def take_out(state: dict[str, Any]) -> dict[str, Any]:
        del state["old"]
        return {} if partial else state

    bodies = {name: lambda state: {} if partial else state for name in "fbj"}
    flow = graph("fa fb aj bj", bodies | {"a": take_out}, {"j": {"merge": {"n": total}}}, state=dict, partial=partial)
    assert {"n": 1} == verbs.run(flow, {"old": 1, "n": 1}, store=store)
    assert {"n": 1} == verbs.run(flow, {"old": 1, "n": 1})


@dataclasses.dataclass
class Hamper(Basket):
    lid: str = ""


@dataclasses.dataclass
class Crate(Basket):
    nails: int = 0


def covered(state: Basket) -> Basket:
    return Hamper(n=state.n, seen=state.seen, lid="new")


@few
@pytest.mark.parametrize("before", [Basket(n=1), Hamper(n=1, lid="old"), Crate(n=1, nails=7)], ids=repr)
def test_the_subclass_that_a_branch_made_of_the_state_is_there_after_the_join(verbs, store, graph, before):
    bodies = {"a": covered, "b": lambda state: dataclasses.replace(state, note="b")}
    flow = graph("fa fb aj bj", bodies, types=[Hamper, Crate])
    for keeping in ({"store": store}, {}):
        expected = Hamper(n=1, seen=["f", "j"], lid="new", note="b")
        assert repr(expected) == repr(verbs.run(flow, copy.deepcopy(before), **keeping))


@few
@pytest.mark.parametrize(
    ("before", "other", "told", "field_name"),
    [
        (Basket(), lambda state: Hamper(lid="other"), "field 'lid' was changed by branches 'a', 'b'", "lid"),
        (Hamper(), lambda state: dataclasses.replace(state, lid="other"), "field 'lid' was changed", "lid"),
        (Crate(), lambda state: dataclasses.replace(state, nails=8), "field 'nails' was changed", "nails"),
        (
            Basket(),
            lambda state: Crate(),
            "branches 'a', 'b'.* made the state of different classes .Hamper, Crate.",
            "",
        ),
    ],
    ids=["both made it", "both changed it", "one took it away", "two classes"],
)
def test_what_branches_made_of_a_subclass_is_never_dropped(verbs, store, graph, before, other, told, field_name):
    flow = graph("fa fb aj bj", {"a": covered, "b": other}, types=[Hamper, Crate])
    with pytest.raises(MergeConflictError, match=f"{told}.*a function as merge= to node 'j'") as caught:
        verbs.run(flow, before, store=store)
    assert (field_name, ("a", "b")) == (caught.value.field, caught.value.branches)


class Label(pydantic.BaseModel):
    model_config = {"extra": "allow"}
    x: int = 0
    y: int = 0
    _mark: int = pydantic.PrivateAttr(default=0)


def printed(_mark: int | None = None, **values: Any) -> Callable[[Any], Any]:
    """Return a node that sets these attributes of a label; None: it takes the attribute away."""

    def change(state: Label) -> Label:
        for name, value in values.items():
            delattr(state, name) if value is None else setattr(state, name, value)
        if _mark is not None:
            state._mark = _mark
        return state

    return change


@few
def test_what_branches_set_beside_the_fields_of_a_model_is_merged(verbs, store, graph):
    same = {"f": printed(), "j": printed()}
    bodies = {"a": printed(_mark=5, new="a", old=2), "b": printed(x=0, gone=None, also="b"), **same}
    flow = graph("fa fb aj bj", bodies, {"j": {"merge": {"y": total}}}, state=Label)
    for keeping in ({"store": store}, {}):
        found = verbs.run(flow, Label(old=1, gone=1), **keeping)
        assert {"old": 2, "new": "a", "also": "b"} == found.model_extra
        assert (5, {"x", "old", "new", "also", "gone"}) == (found._mark, found.model_fields_set)


@few
@pytest.mark.parametrize("change", [{"new": 1}, {"old": 1}], ids=repr)
def test_what_two_branches_set_beside_the_fields_of_a_model_is_a_conflict(verbs, store, graph, change):
    (name,) = change
    bodies = {"a": printed(**change), "b": printed(**{name: 2}), "f": printed(), "j": printed()}
    flow = graph("fa fb aj bj", bodies, {"j": {"merge": {"y": total}}}, state=Label)
    with pytest.raises(MergeConflictError, match=f"'{name}'.*'a', 'b'.*a function as merge=") as caught:
        verbs.run(flow, Label(old=0), store=store)
    assert name == caught.value.field


class Served(pydantic.BaseModel):
    x: int = 0
    y: int = 0
    _id: str = pydantic.PrivateAttr(default_factory=lambda: str(uuid4()))
    _client: object = pydantic.PrivateAttr(default_factory=object)


@few
def test_a_private_attribute_that_is_made_anew_in_each_branch_stays_as_it_was(verbs, graph):
    bodies = {"a": lambda state: Served(x=1, y=state.y), "b": lambda state: Served(x=state.x, y=2)}
    same = {"f": lambda state: state, "j": lambda state: state}
    flow = graph("fa fb aj bj", bodies | same, {"j": {"merge": {"x": total}}}, state=Served)
    begin = Served()
    found = verbs.run(flow, begin)
    assert (1, 2, begin._id) == (found.x, found.y, found._id)


@few
def test_a_field_that_branches_reduced_is_set_in_the_model(verbs, store, graph):
    bodies = {"a": printed(y=1), "b": printed(y=2), "f": printed(), "j": printed()}
    flow = graph("fa fb aj bj", bodies, {"j": {"merge": {"y": total}}}, state=Label)
    found = verbs.run(flow, Label(), store=store)
    assert (3, {"y"}) == (found.y, found.model_fields_set)


@few
def test_an_edge_from_the_fork_to_the_join_is_a_branch_that_changes_nothing(verbs, store, graph):
    def merge(base: Basket, branches: Mapping[str, Basket]) -> Basket:
        assert base == branches["j"]
        return branches["a"]

    for options in ({}, {"j": {"merge": merge}}):
        flow = graph("fa fj aj", options=options)
        assert list("faj") == verbs.run(flow, Basket(), store=store).seen


@few
def test_inner_and_outer_branches_may_meet_at_the_same_node(verbs, timed, graph, log):
    dying = Once(verbs.Killed(), noting("c"))

    def die_after_a(state: Basket) -> Basket:
        if not verbs.is_async:  # there it has its turn before
            deadline = time.monotonic() + 20
            while "a#1" not in visits(timed):
                assert time.monotonic() < deadline, "a was not recorded"
                time.sleep(0.002)
        return dying(state)

    flow = graph("fa aj fb bc bd cj dj", {"c": die_after_a})
    verbs.crash(flow, timed, "r", Basket())
    assert list("fabcdj") == verbs.resume(flow, timed, "r").seen
    assert [1, 1, 1, 2] == [log.count(name) for name in "fabc"]


@few
def test_a_loop_over_a_fork_gives_new_visits(verbs, store, graph):
    def turning(state: Basket) -> Basket:
        return noting(f"f{state.n}")(dataclasses.replace(state, n=state.n + 1))

    def body(name: str) -> Callable[[Basket], Basket]:
        return lambda state: noting(f"{name}{state.n}")(state)

    flow = graph(
        "fa fb aj bj",
        {"f": turning, "a": body("a"), "b": body("b")},
        routes={"j": (lambda state: "f" if state.n < 3 else END, ["f", END])},
    )
    result = verbs.run(flow, Basket(), store=store, run_id="r")
    assert ["f0", "a1", "b1", "j", "f1", "a2", "b2", "j", "f2", "a3", "b3", "j"] == result.seen
    assert sorted(f"{name}#{turn}" for name in "fabj" for turn in (1, 2, 3)) == visits(store)
    fields = [record.fields() for record in store.read("r", kinds=(CHECKPOINT,)) if record.node_id == "a"]
    assert ["f#1/a", "f#2/a", "f#3/a"] == [told["branch"] for told in fields]


# -- failures ----------------------------------------------------------------------------------------------


def broken(text: str = "no") -> Callable[[Basket], Basket]:
    def fail(state: Basket) -> Basket:
        raise ValueError(text)

    return fail


@few
def test_siblings_run_on_and_are_recorded_and_all_errors_are_told(verbs, store, graph, log):
    flow = graph("fa ax xj fb bj fc cy yj", {"a": broken("one"), "b": broken("two")})
    with pytest.raises(BranchError, match=r"(?s)'a'.*one.*'b'.*two") as caught:
        verbs.run(flow, Basket(), store=store, run_id="r")
    error = caught.value
    assert ("f", "f", "r", 1, ["f"]) == (error.fork, error.node_id, error.run_id, error.visit, error.state.seen)
    assert {"a": "one", "b": "two"} == {name: str(found.__cause__) for name, found in error.errors.items()}
    assert ["c#1", "f#1", "y#1"] == visits(store)
    assert list("abcfy") == sorted(log)
    assert "failed" == store.get_run("r").info.status


@few
@pytest.mark.parametrize("limit", [None, 1])
def test_fail_fast_stops_siblings_at_their_boundary(verbs, store, graph, log, limit):
    flow = graph("fa aj fb bx xj fc cy yj", {"a": broken()}, {"f": {"fail_fast": True, "max_parallel": limit}})
    with pytest.raises(BranchError) as caught:
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert ["a"] == [*caught.value.errors]
    assert not {"x", "y"} & set(log) or limit is None
    if limit == 1:
        assert list("fa") == log
    flow = graph("fa aj fb bx xj fc cy yj")
    assert list("fabxcyj") == verbs.resume(flow, store, "r").seen


@few
def test_resume_runs_only_what_failed(verbs, store, graph, log):
    flow = graph("fa aj fb bx xj", {"x": Once(ValueError("once"), noting("x"))})
    with pytest.raises(BranchError):
        verbs.run(flow, Basket(), store=store, run_id="r")
    log.clear()
    plan = verbs.plan(flow, store, "r")
    assert ("continue", ("x",)) == (plan.verdict, plan.repeated)
    assert list("fabxj") == verbs.resume(flow, store, "r").seen
    assert list("xj") == log
    assert 1 == [str(record.node_id) for record in store.read("r", kinds=(CHECKPOINT,))].count("a")


@few
def test_attempts_count_over_processes_and_then_only_retry_goes_on(verbs, store, graph, log):
    policy = Retry(max_attempts=2, backoff=0)
    is_broken = [True]

    def fail(state: Basket) -> Basket:
        if is_broken:
            raise ValueError("no")
        return noting("b")(state)

    flow = graph("fa aj fb bj", {"b": fail}, {"b": {"retry": policy}})
    with pytest.raises(BranchError) as caught:
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert 2 == caught.value.errors["b"].attempt
    with pytest.raises(RunNotResumableError, match=r"'b' has used up its 2 attempts.*retry"):
        verbs.resume(flow, store, "r")
    assert "refuse" == verbs.plan(flow, store, "r").verdict
    log.clear()
    with pytest.raises(BranchError):
        verbs.retry(flow, store, "r")
    assert list("bb") == log
    is_broken.clear()
    log.clear()
    assert list("fabj") == verbs.retry(flow, store, "r").seen
    assert (list("bj"), ["b#1"] * 4) == (log, visits(store, kinds=(FAILURE,)))


@few
def test_an_attempt_that_a_crash_cut_short_uses_up_none_of_the_policy(verbs, timed, graph):
    attempts: list[int] = []
    errors: list[BaseException] = [ValueError("first"), verbs.Killed()]

    def body(state: Basket) -> Basket:
        attempts.append(current().attempt)
        if errors:
            raise errors.pop(0)
        return noting("b")(state)

    flow = graph("fa aj fb bj", {"b": body}, {"b": {"retry": Retry(max_attempts=2, backoff=0)}})
    verbs.crash(flow, timed, "r", Basket())
    assert list("fabj") == verbs.resume(flow, timed, "r").seen
    # A lease without an end was not over: nothing crashed.
    assert [1, 2, 2 if isinstance(timed, MemoryStore) else 3] == attempts


@few
def test_a_branch_is_gone_on_with_by_its_name_whatever_was_first(verbs, timed, graph, log):
    """Only c is recorded when the process dies; afterwards c is the slow one."""
    dead = [True]

    def dying(name: str) -> Callable[[Basket], Basket]:
        def body(state: Basket) -> Basket:
            if dead:
                assert verbs.has_coroutines or ended.wait(SECONDS)
                raise verbs.Killed
            return noting(name)(state)

        return body

    ended = threading.Event()

    def last_of_c(state: Basket) -> Basket:
        ended.set()
        return noting("d")(state)

    flow = graph("fc fa fb aj bj cd dj", {"a": dying("a"), "b": dying("b"), "d": last_of_c})
    verbs.crash(flow, timed, "r", Basket())
    before = visits(timed)
    assert "c#1" in before or verbs.has_coroutines
    dead.clear()
    log.clear()
    assert ["f", "c", "d", "a", "b", "j"] == verbs.resume(flow, timed, "r").seen
    assert not set(log) & {name[0] for name in before}


@few
def test_a_failing_router_inside_a_branch_is_all_that_is_asked_again(verbs, store, graph, log):
    is_broken = [True]

    def route(state: Basket) -> str:
        log.append("route")
        if is_broken:
            raise ValueError("lost")
        return "x"

    flow = graph("fb fa bj xj", routes={"a": (route, ["x", "j"])})
    with pytest.raises(BranchError) as caught:
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert isinstance(caught.value.errors["a"], RouterError)
    assert ["a#1", "b#1", "f#1"] == visits(store)
    is_broken.clear()
    log.clear()
    assert ["f", "b", "a", "x", "j"] == verbs.resume(flow, store, "r").seen
    assert ["route", "x", "j"] == log


@few
def test_a_failing_merge_is_resumed_without_a_branch_running_again(verbs, store, graph, log):
    contexts: list[tuple[int, str]] = []
    failures = [ValueError("once"), ValueError("twice")]

    def merge(base: Basket, branches: Mapping[str, Basket]) -> Basket:
        contexts.append((current().visit, current().idempotency_key))
        if failures:
            raise failures.pop(0)
        return branches["b"]

    flow = graph("fa fb aj bj", options={"j": {"merge": verbs.node(merge)}})
    for text in ("once", "twice"):
        verb = verbs.run if text == "once" else verbs.resume
        args = (Basket(),) if text == "once" else (store, "r")
        options = {"store": store, "run_id": "r"} if text == "once" else {}
        with pytest.raises(NodeError, match=text) as caught:
            verb(flow, *args, **options)
        assert ("merge", "j", 1) == (caught.value.op, caught.value.node_id, caught.value.visit)
        assert list("abf") == sorted(log)
    assert list("fbj") == verbs.resume(flow, store, "r").seen
    assert 1 == len(set(contexts))
    assert (["j#1", "j#1"], ["a#1", "b#1", "f#1", "j#1"]) == (visits(store, kinds=(FAILURE,)), visits(store))


@few
def test_a_merge_that_gives_no_state_is_refused_by_name(verbs, store, graph):
    flow = graph("fa fb aj bj", options={"j": {"merge": lambda base, branches: None}})
    with pytest.raises(StateTypeError, match=r"merge= of node 'j'.*None") as caught:
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert "merge" == caught.value.op


@few
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_in_a_branch_starts_no_further_call(verbs, store, graph, log, kind):
    flow = graph("fa aj fb bx xj fc cj", {"a": Once(kind(), noting("a"))}, {"f": {"max_parallel": 1}})
    with pytest.raises(kind):
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert list("fa") == log
    assert "interrupted" == store.get_run("r").info.status
    assert list("fabxcj") == verbs.resume(flow, store, "r").seen


@few
def test_a_failed_save_in_a_branch_lets_no_later_node_begin(verbs, medium, graph, log):
    class Failing:
        is_broken = True

        def append(self, batch: Any) -> Any:
            if self.is_broken and any(record.node_id == "a" for append in batch for record in append.records):
                raise OSError("disk full")
            return super().append(batch)  # type: ignore[misc]

    store = medium.open(Failing)
    flow = graph("fa aj fb bx xj", {}, {"f": {"max_parallel": 1}})
    with pytest.raises(CheckpointWriteError, match="'a'"):
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert list("fa") == log
    store.is_broken = False
    assert list("fabxj") == verbs.resume(flow, store, "r").seen


@few
def test_a_state_that_cannot_be_saved_in_a_branch_ends_the_run(verbs, store, graph, log):
    flow = graph(
        "fa aj fb bj", {"a": lambda state: dataclasses.replace(state, any=object())}, {"f": {"max_parallel": 1}}
    )
    with pytest.raises(SerializeStateError, match=r"'a'.*state\.any|state\.any.*"):
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert list("fa") == log
    assert "failed" == store.get_run("r").info.status


@few
@pytest.mark.parametrize("lost", ["a", "x"])
def test_a_degraded_run_loses_nothing_of_what_its_branches_returned(verbs, medium, clock, graph, log, lost):
    class Failing:
        is_broken = True

        def append(self, batch: Any) -> Any:
            if self.is_broken and any(record.node_id == lost for append in batch for record in append.records):
                raise OSError("disk full")
            return super().append(batch)  # type: ignore[misc]

    store = medium.open(Failing, clock=clock)
    dying = Once(verbs.Killed(), lambda state: {"messages": ["k"]})
    bodies = {name: saying(name) for name in "fabcxyij"} | {"k": dying}
    flow = graph("fa ax xy yi xb bi ik kj fc cj", bodies, state=Chat, partial=True)
    verbs.crash(flow, store, "r", {}, checkpoint_failure_fatal=False)
    store.is_broken = False
    log.clear()
    result = verbs.resume(flow, store, "r", checkpoint_failure_fatal=False, full=True)
    assert list("faxybikcj") == result.state["messages"]
    assert "a" not in log


@few
def test_a_cancel_with_branches_open_ends_the_run(verbs, store, graph, log):
    def cancelling(state: Basket) -> Basket:
        other.cancel(store, "r", "enough")
        return state

    other = graph("fa aj fb bx xj fc cj")

    flow = graph("fa aj fb bx xj fc cj", {"a": cancelling}, {"f": {"max_parallel": 1}})
    with pytest.raises(RunCancelled, match="enough"):
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert ("cancelled", list("fa")) == (store.get_run("r").info.status, log)


@few
def test_an_owner_that_was_overtaken_in_a_branch_starts_nothing_more(verbs, medium, graph, log):
    store = medium.open()
    other = graph("fa aj fb bx xj fc cj", {"a": noting("a")})
    newer: list[Basket] = []

    def overtaken(state: Basket) -> Basket:
        other_run = threading.Thread(target=lambda: newer.append(verbs.resume(other, store, "r", takeover=True)))
        other_run.start()
        other_run.join(SECONDS)
        log.append("overtaken")
        return state

    flow = graph("fa aj fb bx xj fc cj", {"a": overtaken}, {"f": {"max_parallel": 1}})
    with pytest.raises(LeaseLost):
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert [list("fabxcj")] == [state.seen for state in newer]
    assert "overtaken" == log[-1]
    assert ("finished", 1) == (store.get_run("r").info.status, visits(store).count("b#1"))


# -- limits and breakpoints --------------------------------------------------------------------------------


class Gauge:
    """How many calls run at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.lock = threading.Lock()

    def body(self, name: str) -> Callable[[Basket], Basket]:
        def work(state: Basket) -> Basket:
            with self.lock:
                self.running += 1
                self.most = max(self.most, self.running)
            threading.Event().wait(0.005)
            with self.lock:
                self.running -= 1
            return noting(name)(state)

        return work


@few
@pytest.mark.parametrize("inner", [None, 1])
def test_max_parallel_bounds_calls_of_inner_forks_too(verbs, store, graph, inner):
    gauge = Gauge()
    bodies = {name: gauge.body(name) for name in "acdexyz"}
    options = {"f": {"max_parallel": 2}, "b": {"max_parallel": inner}}
    flow = graph("fa aj fe ej fb bc bd bx by bz ci di xi yi zi ij", bodies, options)
    assert list("faebcdxyzij") == verbs.run(flow, Basket(), store=store).seen
    assert gauge.most <= 2
    gauge.most = 0
    flow = graph("fa aj fe ej fb bc bd bx by bz ci di xi yi zi ij", bodies)
    assert list("faebcdxyzij") == verbs.run(flow, Basket(), store=store, max_parallel=1).seen
    assert 1 == gauge.most


@few
def test_the_limit_of_iterations_counts_branches_and_goes_on_over_resumes(verbs, store, graph, log):
    flow = graph("fa ax xj fb by yj")
    with pytest.raises(MaxIterationsError) as caught:
        verbs.run(flow, Basket(), store=store, run_id="r", max_iterations=3)
    assert (3, 3) == (caught.value.max, len(log))
    with pytest.raises(MaxIterationsError):
        verbs.resume(flow, store, "r", max_iterations=3)
    assert 3 == len(log)
    with pytest.raises(MaxIterationsError):
        verbs.resume(flow, store, "r", max_iterations=5)
    assert 5 == len(log)
    result = verbs.resume(flow, store, "r", max_iterations=6, full=True)
    assert (6, 6, list("faxbyj")) == (result.iterations, len(log), result.state.seen)


@few
@pytest.mark.parametrize("option", ["stop_before", "stop_after"])
def test_a_run_stops_at_a_breakpoint_in_a_branch(verbs, store, graph, log, option):
    flow = graph("fa ax xj fb by yj")
    node = "x" if option == "stop_before" else "a"
    with pytest.raises(RunStopped) as caught:
        verbs.run(flow, Basket(), store=store, run_id="r", **{option: node})
    assert (node, "interrupted") == (caught.value.node_id, store.get_run("r").info.status)
    assert list("abfy") == sorted(log)
    log.clear()
    assert list("faxbyj") == verbs.resume(flow, store, "r", **{option: node}).seen
    assert list("xj") == log


@few
def test_a_run_stops_before_the_join(verbs, store, graph, log):
    flow = graph("fa aj fb bj")
    with pytest.raises(RunStopped):
        verbs.run(flow, Basket(), store=store, run_id="r", stop_before="j")
    assert list("abf") == sorted(log)
    assert ("j",) == verbs.plan(flow, store, "r").repeated
    assert list("fabj") == verbs.resume(flow, store, "r", stop_before="j").seen


def shape_of(error: NodeError) -> Any:
    """What an error of a graph says without its words, its branches' errors included."""
    inner = {name: shape_of(found) for name, found in error.errors.items()} if isinstance(error, BranchError) else {}
    return type(error), error.run_id, error.node_id, error.visit, error.op, getattr(error, "fork", ""), inner


@few
@pytest.mark.parametrize(
    ("edges", "wrong"),
    [("fa fb fc aj bj cj", "a"), ("fa fb fc aj bj cj", "ac"), ("fa fb ac ad ck dk kj bj", "dcb")],
    ids=["one", "several", "of a fork in a branch"],
)
def test_whoever_waits_for_a_run_of_another_process_hears_which_branches_failed(verbs, store, graph, edges, wrong):
    def fail(state: Basket) -> Basket:
        raise ValueError("no")

    flow = graph(edges, dict.fromkeys(wrong, fail))
    with pytest.raises(BranchError) as first:
        verbs.run(flow, Basket(), store=store, run_id="r")
    with pytest.raises(BranchError):
        verbs.resume(flow, store, "r")
    with pytest.raises(BranchError, match="mend the cause, then resume or retry it") as told:
        verbs.run(flow, Basket(), store=store, run_id="r", if_exists="return")
    assert shape_of(first.value) == shape_of(told.value)
    assert first.value.state == told.value.state
