"""Graphs with forks of any shape, in any interleaving, killed anywhere: they end like undisturbed ones."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from hypothesis import given, settings
from hypothesis import strategies as st

from milepost import END, CompiledGraph, Graph, MemoryStore
from milepost.executor.checks import ResumeRequest
from milepost.executor.effects import Effect
from milepost.model.record import CHECKPOINT
from milepost.reducers import append, largest, total
from milepost.testing import FakeClock, Stepper
from milepost.verbs import Job, flow_of
from thoroughness import examples

Shape = Any
"""A row of parts, each a node (None) or a fork: a list of branches."""


@dataclass
class Basket:
    seen: Annotated[list[str], append] = field(default_factory=list)
    sums: Annotated[int, total] = 0
    peak: Annotated[int, largest] = 0
    turns: int = 0


class Chat(TypedDict, total=False):
    seen: Annotated[list[str], operator.add]
    turns: int


def changing(name: str, number: int) -> Callable[[Basket], Basket]:
    def change(state: Basket) -> Basket:
        state.seen.append(f"{name}{state.turns}")
        state.sums += number
        state.peak = max(state.peak, state.sums)
        return state

    return change


def saying(name: str, number: int) -> Callable[[Chat], Chat]:
    return lambda state: {"seen": [f"{name}{state.get('turns', 0)}"]}


class Builder:
    """Makes a graph of a shape, in a loop that is gone through twice."""

    def __init__(self, is_partial: bool, shares_joins: bool) -> None:
        self.graph: Graph[Any] = Graph(Chat, partial=True) if is_partial else Graph(Basket)
        self.body: Any = saying if is_partial else changing
        self.is_partial = is_partial
        self.shares_joins = shares_joins
        self.count = 0

    def node(self) -> str:
        name = f"n{self.count}"
        self.graph.add_node(name, self.body(name, self.count))
        self.count += 1
        return name

    def row(self, shape: Shape, at: str, *, is_branch: bool = False) -> list[str]:
        """Add the parts of a row after the node `at`; where it ends, in several places where the outer join is its own."""
        for number, part in enumerate(shape):
            ends = [at] if part is None else self.fork(part, at)
            if is_branch and part is not None and self.shares_joins and number == len(shape) - 1:
                return ends
            after = self.node()
            for end in ends:
                self.graph.add_edge(end, after)
            at = after
        return [at]

    def fork(self, branches: Sequence[Shape], at: str) -> list[str]:
        """Add the branches of a fork; where they end. Of those without parts one is an edge to the join."""
        ends: list[str] = []
        for branch in branches:
            if not branch and at not in ends:
                ends.append(at)
                continue
            first = self.node()
            self.graph.add_edge(at, first)
            ends += self.row(branch, first, is_branch=True)
        return ends

    def build(self, shape: Shape) -> CompiledGraph[Any]:
        def turn(state: Any) -> Any:
            if self.is_partial:
                return {"turns": state.get("turns", 0) + 1}
            state.turns += 1
            return state

        self.graph.add_node("top", turn)
        (last,) = self.row(shape, "top")
        again = (lambda state: "top" if state["turns"] < 2 else END) if self.is_partial else _again
        return self.graph.add_conditional_edge(last, again, ["top", END]).set_entry("top").compile("shape")


def _again(state: Basket) -> str:
    return "top" if state.turns < 2 else END


def rows(parts: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.one_of(st.none(), parts), max_size=most)


inner = st.lists(rows(st.none(), 2), min_size=2, max_size=3)
shapes = st.tuples(st.lists(rows(inner, 2), min_size=2, max_size=3)).map(list)


def process(
    flow: CompiledGraph[Any], store: MemoryStore, choose: Callable[[Sequence[Effect]], int], state: Any
) -> Stepper[Any]:
    """A process that begins the run with a state or, without one, resumes it."""
    clock = FakeClock()
    job = Job(flow_of(flow), store, "r", {}, {"clock": clock}, ResumeRequest() if state is None else None)
    return Stepper(job.routine(state), clock=clock, choose=choose)


@settings(max_examples=examples(100), deadline=None)
@given(
    shape=shapes,
    is_partial=st.booleans(),
    shares_joins=st.booleans(),
    choices=st.randoms(use_true_random=False),
    deaths=st.lists(st.integers(0, 40), max_size=4),
)
def test_any_fork_in_any_order_with_any_deaths_ends_as_if_undisturbed(
    shape: Shape, is_partial: bool, shares_joins: bool, choices: Any, deaths: list[int]
) -> None:
    flow = Builder(is_partial, shares_joins).build(shape)
    undisturbed = flow.run({} if is_partial else Basket())
    store, state = MemoryStore(), {} if is_partial else Basket()
    for death in [*deaths, None]:
        stepper = process(flow, store, lambda asked: choices.randrange(len(asked)), state)
        steps = 0
        while not stepper.is_done and (death is None or steps < death):
            stepper.step()
            steps += 1
        if not stepper.is_done:
            stepper.kill()
            for token in stepper.tokens:
                store.abandon(token)
            if store.list_runs():
                state = None
            continue
        assert undisturbed == stepper.result.state
        state = None
    visits = [(record.node_id, record.visit) for record in store.read("r", kinds=(CHECKPOINT,))]
    assert len(visits) == len(set(visits))
    assert {(node, visit) for node in flow.node_ids for visit in (1, 2)} == set(visits)
    assert store.verify("r").ok
    assert undisturbed == flow.resume(store, "r")
