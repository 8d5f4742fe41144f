"""Graphs of parts: each update is reduced once, whatever kind of node hands a whole state on."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from forking import few

from milepost import END, Graph
from milepost.errors import MergeConflictError
from milepost.testing import run_flow


class Talk(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    turns: int


@dataclass
class Speech:
    said: Annotated[list[str], operator.add] = field(default_factory=list)
    turns: int = 0


STATES: dict[type, Any] = {Talk: {}, dict: {"said": []}, Speech: Speech()}
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def parts(state: type) -> Graph[Any]:
    return Graph(state, partial=True, reducers={"said": operator.add} if state is dict else {})


def saying(verbs: Any, name: str) -> Any:
    return verbs.node(lambda state: {"said": [name]})


def paused(state: type, verbs: Any) -> Any:
    """A graph that says x and lets a timer pass."""
    graph = parts(state).add_node("x", saying(verbs, "x")).add_timer("y", duration=0.0)
    return graph.add_edge("x", "y").add_edge("y", END).set_entry("x").compile("paused")


def through_all(state: type, verbs: Any, last: Any) -> Any:
    """Timers in a row, in a branch, in a sub-graph that is a branch, and in the items of a map."""
    graph = parts(state).add_timer("past", until=lambda state: LONG_AGO).add_timer("short", duration=0.0)
    graph.add_subgraph("sub", paused(state, verbs))
    begins = STATES[state]
    merge = verbs.node(lambda state, talks: {"said": ["m"]})
    graph.add_map("map", lambda state: [begins, begins], paused(state, verbs), merge=merge)
    for name in "fb":
        graph.add_node(name, saying(verbs, name))
    graph.add_node("z", verbs.node(last))
    for edge in ("f past", "past short", "f sub", "f b", "short map", "sub map", "b map", "map z"):
        graph.add_edge(*edge.split())
    return graph.add_edge("z", END).set_entry("f").compile("parts")


def said(state: Any) -> list[str]:
    return state["said"] if isinstance(state, dict) else state.said


@pytest.mark.parametrize("state", STATES)
def test_what_hands_a_whole_state_on_reduces_nothing_again(verbs, timed, state):
    def dying(state: Any) -> Any:
        if not alive:
            raise verbs.Killed
        return {"said": ["z"]}

    alive: list[bool] = []
    flow, began = through_all(state, verbs, dying), STATES[state]
    verbs.crash(flow, timed, "r", began)
    alive.append(True)
    expected = ["f", "x", "b", "m", "z"]
    assert expected == said(verbs.resume(flow, timed, "r"))
    assert expected == said(verbs.run(flow, began))
    assert expected == said(run_flow(flow, began).state)


def joined(before: list[str], more: list[str]) -> list[str]:
    return before + more


class Log(TypedDict):
    log: Annotated[list[str], joined]


@pytest.mark.parametrize("advice", ["none", "out", "merge"])
def test_a_sub_graph_in_a_branch_with_a_reducer_of_ones_own_needs_out_or_merge(verbs, store, advice):
    def node(name: str) -> Any:
        return verbs.node(lambda state: {"log": [name]})

    inner = Graph(Log, partial=True).add_node("x", node("x")).add_edge("x", END).set_entry("x").compile("inner")
    given = {"into": lambda state: {"log": []}, "out": lambda state, end: {"log": end["log"]}}
    graph = Graph(Log, partial=True).add_node("f", node("f")).add_node("a", node("a"))
    graph.add_subgraph("sub", inner, **(given if advice == "out" else {}))
    merge = {"merge": lambda state, ends: {"log": ["a", "x"]}} if advice == "merge" else {}
    graph.add_node("j", node("j"), **merge)
    graph.add_edge("f", "a").add_edge("f", "sub").add_edge("a", "j").add_edge("sub", "j")
    flow = graph.add_edge("j", END).set_entry("f").compile("outer")
    if advice == "none":
        with pytest.raises(MergeConflictError, match=r"sub-graph by into= and out=.*or give merge= to node 'j'"):
            verbs.run(flow, {"log": []}, store=store)
    else:
        assert ["f", "a", "x", "j"] == verbs.run(flow, {"log": []}, store=store)["log"]


@few
@pytest.mark.parametrize("state", [Talk, dict])
def test_a_branch_of_a_sub_graph_may_leave_a_field_out_that_has_a_reducer(verbs, store, state):
    inner = parts(state).add_node("x", verbs.node(lambda state: {"turns": 1})).add_edge("x", END).set_entry("x")
    graph = parts(state).add_node("f", verbs.node(lambda state: {})).add_subgraph("sub", inner.compile("in"))
    graph.add_node("b", verbs.node(lambda state: {})).add_node("j", saying(verbs, "j"))
    for edge in ("f sub", "f b", "sub j", "b j"):
        graph.add_edge(*edge.split())
    flow = graph.add_edge("j", END).set_entry("f").compile("out")
    expected = {"turns": 1, "said": ["j"]}
    assert expected == verbs.run(flow, {}, store=store, run_id="r")
    assert expected == verbs.run(flow, {})
