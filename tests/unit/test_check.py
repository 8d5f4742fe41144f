"""`check`: which runs of a store would go on with the code as it is now."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from milepost import END, CompiledGraph, Engine, Graph, MemoryStore
from milepost.checking import CheckReport, check
from milepost.testing import FakeClock


def plus(state: dict[str, int]) -> dict[str, int]:
    return {**state, "n": state["n"] + 1}


def line(ids: str, name: str = "orders") -> CompiledGraph[dict[str, Any]]:
    """A graph of nodes in a row, called by single letters."""
    graph = Graph(dict[str, Any])
    for node_id in ids:
        graph.add_node(node_id, plus)
    for before, after in itertools.pairwise(ids):
        graph.add_edge(before, after)
    return graph.add_edge(ids[-1], END).set_entry(ids[0]).compile(name)


def halted(store: MemoryStore, *run_ids: str, flow: CompiledGraph[Any] | None = None) -> MemoryStore:
    """The store, with runs that stopped after node b."""
    for run_id in run_ids:
        (flow or line("abcd")).run({"n": 1}, store=store, run_id=run_id, stop_after=["b"], full=True)
    return store


def checked(store: MemoryStore, *flows: Any, **options: Any) -> CheckReport:
    return check(Engine(store, flows=flows, clock=FakeClock()), **options)


@pytest.fixture
def store() -> MemoryStore:
    return halted(MemoryStore(), "o-1", "o-2")


def test_runs_of_code_that_has_not_changed_go_on(store: MemoryStore) -> None:
    report = checked(store, line("abcd"))
    assert "2 of 2 open runs of 1 flow, 0.0 ms\n  orders  2  go on: 2" == str(report)
    assert (True, 2, 2, None) == (report.ok, report.checked, report.of, report.seed)


def test_runs_that_would_be_refused_are_one_group_with_its_reason_and_remedy(store: MemoryStore) -> None:
    report = checked(store, line("abxd"))
    (group,) = report.groups
    assert (False, "refuse", "FlowChangedError", 2, ("o-2", "o-1")) == (
        report.ok, group.verdict, group.error_type, group.runs, group.examples,
    )  # fmt: skip
    assert "if it was renamed, pass rename={'c': new name}; else resume_from a node before it" == group.remedy
    assert group.reason.startswith("would go on at node 'c', which flow 'orders' does not have (node 'c' is gone; ")
    assert group.source is not None
    assert ("test_check.py", plus.__code__.co_firstlineno) == (group.source.file[-13:], group.source.line)


def test_a_run_that_is_executed_is_planned_as_if_its_owner_had_gone() -> None:
    store, plans = MemoryStore(), []

    def look(state: dict[str, Any]) -> dict[str, Any]:
        plans.append(checked(store, line("ab")))
        plans.append(checked(store, line("bc")))
        return state

    graph = Graph(dict[str, Any]).add_node("a", plus).add_node("b", look).add_edge("a", "b").add_edge("b", END)
    graph.set_entry("a").compile("orders").run({"n": 1}, store=store, run_id="o-1")
    assert [True, True] == [report.ok for report in plans]
    assert [("continue", 1)] == [(group.verdict, group.runs) for group in plans[0].groups]
