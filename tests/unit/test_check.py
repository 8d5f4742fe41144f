"""`check`: which runs of a store would go on with the code as it is now."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost import (
    END,
    CompiledGraph,
    Engine,
    Graph,
    MemoryStore,
    RunSuspended,
    Workflow,
    WorkflowContext,
    step,
    workflow,
)
from milepost.checking import CheckReport, check, versions
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


def test_a_run_of_a_flow_that_the_engine_does_not_have_is_not_checked(store: MemoryStore) -> None:
    halted(store, "x-1", flow=line("abcd", "other"))
    report = checked(store, line("abcd"))
    assert (True, 2, {"other": 1}) == (report.ok, report.of, report.unknown)
    assert str(report).endswith("not checked: 1 run of flow 'other', which the app does not have")


def test_a_check_may_be_of_some_runs_only(store: MemoryStore) -> None:
    halted(store, "x-1", flow=line("abcd", "other"))
    line("abcd").run({"n": 1}, store=store, run_id="o-3", stop_after=["b"], full=True, tags={"team": "a"})
    flows = line("abcd"), line("abcd", "other")
    for options, expected in (
        ({"flow": "other"}, ["x-1"]),
        ({"tags": {"team": "a"}}, ["o-3"]),
        ({"status": "failed"}, []),
        ({"status": ["interrupted", "failed"], "flow": "orders"}, ["o-3", "o-2", "o-1"]),
    ):
        report = checked(store, *flows, **options)
        assert expected == [run_id for group in report.groups for run_id in group.examples]


def test_of_many_runs_a_sample_is_taken_in_which_each_kind_is_seen(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.checking.runs.MOST", 20)
    halted(store, *(f"m-{number}" for number in range(40)))
    for run_id in ("rare-1", "rare-2"):
        line("abxd").run({"n": 1}, store=store, run_id=run_id, stop_after=["b"], full=True)
    report = checked(store, line("abcd"), sample=10, seed=7)
    assert (False, 44, 2, 7) == (report.ok, report.of, report.kinds, report.seed)
    groups = {group.verdict: group for group in report.groups}
    assert ("rare-2", "rare-1") == groups["refuse"].examples
    assert (42, 10, 2) == (groups["continue"].runs, groups["continue"].checked, groups["refuse"].checked)
    assert {"m-39", "o-1"} < {*groups["continue"].examples}
    assert "about 42 runs" not in str(report)
    assert "a sample of 2 kinds of runs, all seen; --seed 7 takes the same one" in str(report)
    assert report == checked(store, line("abcd"), sample=10, seed=7)
    assert report.groups != checked(store, line("abcd"), sample=10, seed=8).groups


def test_a_finished_run_is_cut_before_its_end(store: MemoryStore) -> None:
    for run_id in ("f-1", "f-2", "f-3"):
        line("abcd").run({"n": 1}, store=store, run_id=run_id)
    same = checked(store, line("abcd"), finished=2, status="waiting")
    assert [("continue", ("f-3", "f-2"))] == [(group.verdict, group.examples) for group in same.groups]
    report = checked(store, line("abcx"), finished=2, flow="orders", status="waiting")
    assert [("refuse", ("f-3", "f-2"))] == [(group.verdict, group.examples) for group in report.groups]
    assert "2 of 2 runs of 1 flow" in str(report)


def routed(*targets: str) -> CompiledGraph[dict[str, Any]]:
    """A graph that goes on at the first of these targets after its first node."""
    graph = Graph(dict[str, Any]).add_node("a", plus).set_entry("a")
    for node_id in targets:
        graph.add_node(node_id, plus).add_edge(node_id, END)
    return graph.add_conditional_edge("a", lambda state: targets[0], targets).compile("orders")


def around(ids: str, *, outer: str = "in") -> CompiledGraph[dict[str, Any]]:
    """A graph with a fork, one inside a node, and a map of one."""
    graph = Graph(dict[str, Any]).add_node("a", plus).add_node("b", plus).add_node("c", plus)
    graph.add_node("d", plus, merge=lambda before, states: before).add_subgraph(outer, line(ids, "inner"))
    graph.add_map("map", lambda state: [state], line(ids, "inner"), merge=lambda state, results: state)
    graph.add_node("z", plus)
    for before, after in ("ab", "ac", "bd", "cd", ("d", outer), (outer, "map"), ("map", "z"), ("z", END)):
        graph.add_edge(before, after)
    return graph.set_entry("a").compile("orders")


TAKEN = "the path took the edge {} -> {}, which is gone"


@pytest.mark.parametrize(
    ("was", "now", "verdict", "told"),
    [
        (line("abcd"), line("abcd"), "continue", ""),
        (line("abcd"), line("axcd"), "refuse", "was at node 'b', which flow 'orders' does not have (node 'b' is gone"),
        (line("abcd"), line("xbcd"), "refuse", "was at node 'a', which"),
        (line("abcd"), line("acd"), "refuse", "was at node 'b', which"),
        (line("abcd"), line("abxcd"), "continue", TAKEN.format("b", "c")),
        (line("abcd"), line("abcde"), "continue", TAKEN.format("d", "END")),
        (routed("b", "c"), routed("c", "b"), "continue", ""),
        (routed("b", "c"), routed("b"), "continue", "node 'c' is gone"),
        (routed("b", "c"), routed("c"), "refuse", "node 'b', which"),
        (around("xy"), around("xy"), "continue", ""),
        (around("xy"), around("xz"), "refuse", "was at node 'in/y', which"),
        (around("xy"), around("xy", outer="out"), "refuse", "was at node 'in', which"),
        (around("xy"), around("xzy"), "continue", TAKEN.format("map/*/x", "y")),
    ],
)
def test_each_node_of_the_path_of_a_finished_run_is_compared(was: Any, now: Any, verdict: str, told: str) -> None:
    store = MemoryStore()
    was.run({"n": 1}, store=store, run_id="f-1")
    (group,) = checked(store, now, finished=1).groups
    assert (verdict, verdict == "continue") == (group.verdict, checked(store, now, finished=1).ok)
    assert told in (group.reason if verdict == "refuse" else "; ".join(group.differences))
    assert (verdict == "refuse") == group.remedy.startswith("if it was renamed, pass rename=")


def test_what_a_superseded_visit_was_at_is_not_on_the_path() -> None:
    store = MemoryStore()
    line("axd").run({"n": 1}, store=store, run_id="f-1")
    line("acd").resume_from(store, "f-1", "a", reroute=True, rename={"x": "c"})
    assert ["x", "d", "c", "d"] == [visit.node_id for visit in store.history("f-1")][1:]
    assert checked(store, line("acd"), finished=1).ok


def test_a_finished_run_of_a_workflow_is_compared_with_all_its_steps() -> None:
    def asking(*names: str) -> Workflow[..., Any]:
        def code() -> Iterator[Any]:
            for name in names:
                yield step(name).python(len, args=(name,))

        return workflow("w")(code)

    store = MemoryStore()
    asking("a", "b").run(store=store, run_id="w-1")
    verdicts = [
        [group.verdict for group in checked(store, asking(*names), finished=1).groups]
        for names in (("a", "b", "c"), ("a", "c"))
    ]
    assert [["continue"], ["refuse"]] == verdicts


def test_exported_runs_are_checked_instead_of_those_in_the_store(store: MemoryStore, tmp_path: Path) -> None:
    line("abcd").run({"n": 1}, store=store, run_id="f-1")
    for run_id in ("o-1", "f-1"):
        (tmp_path / f"{run_id}.jsonl").write_bytes(store.export(run_id))
    (tmp_path / "old-o-1.jsonl").write_bytes(store.export("o-1"))
    (tmp_path / "bad.jsonl").write_text("no export", encoding="utf-8")
    files = [tmp_path / f"{name}.jsonl" for name in ("o-1", "f-1", "old-o-1")]
    report = checked(MemoryStore(), line("abcd"), files=files)
    assert (True, 3, {"o-1", "f-1", str(files[2])}) == (report.ok, report.checked, {*report.groups[0].examples})
    assert not checked(MemoryStore(), line("abcx"), files=[files[1]]).ok
    report = checked(MemoryStore(), line("abcd"), files=[*files, tmp_path / "bad.jsonl"])
    assert (False, ["not read", "continue"]) == (report.ok, [group.verdict for group in report.groups])
    assert (str(tmp_path / "bad.jsonl"),) == report.groups[0].examples


def test_files_are_read_with_the_keys_of_the_engine_and_without(tmp_path: Path) -> None:
    keys: Any = {"signing_key": {"k": b"s" * 32}}
    for name, given in (("keyed", keys), ("plain", {})):
        (tmp_path / name).write_bytes(halted(MemoryStore(**given), name).export(name))
    files = [tmp_path / "keyed", tmp_path / "plain"]
    assert checked(MemoryStore(**keys), line("abcd"), files=files).ok


def test_a_run_that_cannot_be_read_is_a_group_and_hides_no_other() -> None:
    store = halted(MemoryStore(signing_key={"k": b"s" * 32}), "o-1", "o-2")
    record = store.read("o-2", newest=True, kinds=("checkpoint",), limit=1)[0]
    run, changed = store._runs["o-2"], record._replace(payload=b'{"n":7}')
    run.records[run.records.index(record)] = run.by_node["b"][-1] = changed
    report = checked(store, line("abcd"))
    assert [("not read", ("o-2",)), ("continue", ("o-1",))] == [
        (group.verdict, group.examples) for group in report.groups
    ]
    assert not report.ok


def test_the_versions_that_open_runs_began_with_say_which_code_may_go() -> None:
    def code(ctx: WorkflowContext[Any]) -> Iterator[Any]:
        yield step("ask").wait_for("go")

    first, second = workflow("w")(code), workflow("w", version=2)(code)
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    for run_id, flow in (("w-1", first), ("w-2", first), ("w-3", second)):
        clock.advance(60)
        with contextlib.suppress(RunSuspended):
            flow.run(store=store, run_id=run_id, clock=clock)
    Engine(store, clock=clock).start("w", run_id="w-4")
    found = versions(Engine(store, flows=[second], clock=clock))
    assert [(None, None, 1, "w-4"), (1, False, 2, "w-1"), (2, True, 1, "w-3")] == [
        (one.version, one.is_current, one.runs, one.example) for one in found
    ]
    assert store.get_run("w-1").info.created_at == found[1].oldest


@pytest.mark.wide
def test_code_that_ends_the_process_is_a_refusal_and_ends_no_check() -> None:
    def code(is_over: bool) -> Workflow[..., Any]:
        def waiting() -> Iterator[Any]:
            yield step("a").python(len, args=("x",))
            if is_over:
                raise SystemExit(3)
            yield step("ask").wait_for("go")

        return workflow("w")(waiting)

    store = halted(MemoryStore(), "o-1")
    with contextlib.suppress(RunSuspended):
        code(False).run(store=store, run_id="w-1")
    report = checked(store, code(True), line("abcd"))
    assert [("orders", "continue"), ("w", "refuse")] == [(group.flow, group.verdict) for group in report.groups]
    assert "its code raised SystemExit: 3" == report.groups[1].reason
