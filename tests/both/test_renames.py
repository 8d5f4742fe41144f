"""A run goes on in a graph whose nodes have other names now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from milepost import END, Engine, Graph, NodeError, Retry, RunSuspended, Steps, parallel, step, workflow
from milepost.errors import MaxIterationsError, OptionError, RunStopped


@dataclass
class Count:
    n: int = 0


@pytest.fixture
def seen() -> list[tuple[str, int, int]]:
    """Node, visit and attempt of each call."""
    return []


@pytest.fixture
def row(verbs, seen):
    """Build nodes in a row; those in `broken` fail."""

    def build(ids: str, broken: str = "", **options):
        graph = Graph(Count)
        for node_id in ids:

            def body(ctx, state: Count) -> Count:
                seen.append((ctx.node_id, ctx.visit, ctx.attempt))
                if ctx.node_id in broken:
                    raise ValueError("no")
                return Count(state.n + 1)

            graph.add_node(node_id, verbs.node(body), **options)
        for source, target in zip(ids, [*ids[1:], END], strict=True):
            graph.add_edge(source, target)
        return graph.set_entry(ids[0]).compile("row")

    return build


@pytest.fixture
def loop(verbs, seen):
    """Build one node that runs until its state is 5."""

    def build(node_id: str):
        def body(ctx, state: Count) -> Count:
            seen.append((ctx.node_id, ctx.visit, ctx.attempt))
            return Count(state.n + 1)

        graph = Graph(Count).add_node(node_id, verbs.node(body))
        graph.add_conditional_edge(node_id, lambda state: node_id if state.n < 5 else END, [node_id, END])
        return graph.set_entry(node_id).compile("loop")

    return build


@pytest.mark.every_store
def test_point_and_next_node_may_both_have_other_names(verbs, store, row, seen):
    names = {"a": "x", "b": "y", "c": "z"}
    with pytest.raises(NodeError):
        verbs.run(row("abc", "b"), Count(), store=store, run_id="r1")
    with pytest.raises(NodeError):
        verbs.resume(row("xyz", "y"), store, "r1", rename=names)
    result = verbs.resume(row("xyz"), store, "r1", rename=names, full=True)
    assert (Count(3), ("x",), "y") == (result.state, result.resumed.skipped, result.resumed.next_node)
    assert [("a", 1, 1), ("b", 1, 1), ("y", 1, 2), ("y", 1, 3), ("z", 1, 1)] == seen
    assert Count(3) == verbs.resume_from(row("xyz"), store, "r1", "x", rename=names)
    assert [("y", 2, 1), ("z", 2, 1)] == seen[5:]
    assert store.verify("r1").ok


def test_visits_of_a_loop_go_on_counting_under_the_new_name(verbs, store, loop, seen):
    with pytest.raises(MaxIterationsError):
        verbs.run(loop("b"), Count(), store=store, run_id="r1", max_iterations=3)
    assert Count(5) == verbs.resume(loop("c"), store, "r1", rename={"b": "c"})
    assert [("b", 1, 1), ("b", 2, 1), ("b", 3, 1), ("c", 4, 1), ("c", 5, 1)] == seen
    seen.clear()
    assert Count(5) == verbs.resume_from(loop("c"), store, "r1", "c", visit=2, rename={"b": "c"})
    assert [6, 7, 8] == [visit for _, visit, _ in seen]
    seen.clear()
    assert Count(5) == verbs.resume_from(loop("c"), store, "r1", "c", visit=7, rename={"b": "c"})
    assert [9] == [visit for _, visit, _ in seen]


def test_resume_from_takes_the_newest_visit_under_either_name(verbs, store, loop, seen):
    with pytest.raises(RunStopped):
        verbs.run(loop("b"), Count(), store=store, run_id="r1", stop_after="b")
    with pytest.raises(RunStopped):
        verbs.resume(loop("c"), store, "r1", rename={"b": "c"}, stop_after="c")
    plan = verbs.plan(loop("c"), store, "r1", "c", rename={"b": "c"})
    assert ("c", 2) == (plan.from_node, plan.visit)


def test_a_node_that_took_over_another_one_s_name_is_not_taken_for_it(verbs, store, row, seen):
    with pytest.raises(RunStopped):
        verbs.run(row("ab"), Count(), store=store, run_id="r1", stop_after="a")
    swapped = {"a": "b", "b": "a"}
    assert Count(2) == verbs.resume(row("ba"), store, "r1", rename=swapped)
    assert [("a", 1, 1), ("a", 2, 1)] == seen


def test_override_reroute_and_rename_work_together(verbs, store):
    def build(middle: str):
        graph = Graph(Count)
        graph.add_node("a", verbs.node(lambda state: Count(state.n + 1)))
        graph.add_node(middle, verbs.node(lambda state: Count(state.n + 10)))
        graph.add_node("z", verbs.node(lambda state: Count(state.n + 100)))
        graph.add_conditional_edge("a", lambda state: middle if state.n < 50 else "z", [middle, "z"])
        return graph.add_edge(middle, END).add_edge("z", END).set_entry("a").compile("ways")

    for run_id, options, expected in (
        ("r1", {}, 11),
        ("r2", {"state_override": lambda state: Count(60), "reroute": False}, 70),
        ("r3", {"state_override": lambda state: Count(60)}, 160),
    ):
        with pytest.raises(RunStopped):
            verbs.run(build("b"), Count(), store=store, run_id=run_id, stop_after="a")
        assert Count(expected) == verbs.resume(build("c"), store, run_id, rename={"b": "c"}, **options)


def test_a_policy_counts_failures_under_the_old_name(verbs, store, row, seen):
    with pytest.raises(NodeError):
        verbs.run(row("ab", "b", retry=Retry(2, backoff=0)), Count(), store=store, run_id="r1")
    with pytest.raises(ValueError, match="2 attempts"):
        verbs.resume(row("ac", retry=Retry(2, backoff=0)), store, "r1", rename={"b": "c"})
    assert Count(2) == verbs.retry(row("ac", retry=Retry(2, backoff=0)), store, "r1", rename={"b": "c"})
    assert ("c", 1, 3) == seen[-1]


@pytest.mark.parametrize("names", ["ab", ["a"], {"a": 5}, {5: "a"}])
def test_a_mapping_of_names_is_asked_for(verbs, store, row, names):
    with pytest.raises(OptionError, match="rename"):
        verbs.resume(row("ab"), store, "r1", rename=names)


def untouched(store):
    return store.read("r1"), store.get_run("r1").info


def test_later_resumes_know_a_mapping_by_themselves_and_it_may_be_given_again(verbs, store, loop, seen):
    with pytest.raises(RunStopped):
        verbs.run(loop("a"), Count(), store=store, run_id="r1", stop_after="a")
    for options in ({"rename": {"a": "b"}}, {}, {"rename": {"a": "b"}}):
        with pytest.raises(RunStopped):
            verbs.resume(loop("b"), store, "r1", stop_after="b", **options)
    assert Count(5) == verbs.resume_from(loop("b"), store, "r1", "b", visit=1)
    assert [("a", 1, 1), *[("b", visit, 1) for visit in (2, 3, 4, 6, 7, 8, 9)]] == seen
    assert Count(5) == verbs.resume(loop("c"), store, "r1", rename={"b": "c"})


def test_two_nodes_may_swap_their_names(verbs, store, row, seen):
    with pytest.raises(RunStopped):
        verbs.run(row("abcd"), Count(), store=store, run_id="r1", stop_after="b")
    with pytest.raises(RunStopped):
        verbs.resume(row("bacd"), store, "r1", rename={"a": "b", "b": "a"}, stop_after="c")
    seen.clear()
    for options in ({}, {"rename": {"a": "b", "b": "a"}}):
        with pytest.raises(RunStopped):
            verbs.resume_from(row("bacd"), store, "r1", "b", stop_after="c", **options)
        assert ["a", "c"] == [node_id for node_id, _, _ in seen]
        seen.clear()
    assert Count(4) == verbs.resume(row("bacd"), store, "r1")


@pytest.mark.parametrize("rename", [{"a": "b"}, {"a": "x", "b": "x"}, {"c": "b"}])
def test_two_recorded_nodes_are_never_made_one(verbs, store, row, rename):
    with pytest.raises(RunStopped):
        verbs.run(row("abc"), Count(), store=store, run_id="r1", stop_after="b")
    before = untouched(store)
    with pytest.raises(OptionError, match="rename would make") as caught:
        verbs.resume(row("xbc"), store, "r1", rename=rename)
    assert "refuse" == verbs.plan(row("xbc"), store, "r1", rename=rename).verdict
    assert ("r1", before) == (caught.value.run_id, untouched(store))


def steps_row(names: str) -> Any:
    """A workflow of a group of two steps, then two waits."""

    @workflow("row")
    def flow() -> Steps[list[str]]:
        group, *inside = names
        found = yield parallel(group, *(step(name).python(str, args=(n,)) for n, name in enumerate(inside)))
        for wait in "12":
            yield step(f"wait-{wait}").wait_for(wait)
        return [result.output for result in found]

    return flow


def test_later_resumes_of_a_workflow_know_a_mapping_by_themselves(verbs, store):
    names = {"p": "q", "p/a": "q/b", "p/b": "q/a"}
    with pytest.raises(RunSuspended):
        verbs.run(steps_row("pab"), store=store, run_id="r1")
    steps_row("pab").signal(store, "r1", "1")
    before = untouched(store)
    for clash in ({"p/a": "p/b"}, {"p/a": "p/c", "p/b": "p/c"}):
        with pytest.raises(OptionError, match="'p/a' and 'p/b'"):
            verbs.resume(steps_row("pcb"), store, "r1", rename=clash)
        assert before == untouched(store)
    with pytest.raises(RunSuspended):
        verbs.resume(steps_row("qba"), store, "r1", rename=names)
    steps_row("qba").signal(store, "r1", "2")
    assert ["continue"] * 2 == [
        verbs.plan(steps_row("qba"), store, "r1", **more).verdict for more in ({}, {"rename": names})
    ]
    assert ["0", "1"] == verbs.resume(steps_row("qba"), store, "r1")


def test_a_worker_records_the_mapping_of_its_engine(verbs, store):
    with pytest.raises(RunSuspended):
        verbs.run(steps_row("pab"), store=store, run_id="r1")
    with Engine(store, flows=[steps_row("qab")], rename={"p": "q"}) as engine:
        for signal in "12":
            engine.signal("r1", signal)
            engine.worker().run(until_idle=True)
        assert ["0", "1"] == engine.handle("r1").result()
    assert ["0", "1"] == verbs.resume(steps_row("qab"), store, "r1")


@pytest.mark.every_store
def test_a_rename_of_a_run_that_waits_is_recorded(verbs, store):
    def waiting(name: str):
        graph = Graph(dict).add_wait(name, "go", apply=lambda state, reply: {"got": reply.payload})
        return graph.add_edge(name, END).set_entry(name).compile("waiting")

    with pytest.raises(RunSuspended):
        verbs.run(waiting("old"), {}, store=store, run_id="r")
    for _ in range(2):
        with pytest.raises(RunSuspended):
            verbs.resume(waiting("new"), store, "r", rename={"old": "new"})
    owners = [record.fields() for record in store.read("r", kinds=("owner",))]
    assert [True] == ["renames" in fields for fields in owners]
    verbs.call(waiting("new"), "signal", store, "r", "go", 5)
    assert {"got": 5} == verbs.resume(waiting("new"), store, "r")
