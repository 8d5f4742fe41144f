"""Graphs inside graphs: their nodes are recorded in the run's own journal, and a resume goes into them."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from dying import crash

from milepost import (
    END,
    BranchError,
    FlowChangedError,
    Graph,
    GraphError,
    NodeError,
    Retry,
    RunNotResumableError,
    SerializeStateError,
)
from milepost.errors import (
    AsyncNodeError,
    InvalidResumeNodeError,
    MaxIterationsError,
    OptionError,
    RouterError,
    RunStopped,
    StateTypeError,
)
from milepost.executor.context import Context


@dataclass
class Trip:
    n: int = 0
    seen: list[str] = field(default_factory=list)
    turns: int = 0
    extra: Any = None


@dataclass
class Other:
    value: int = 0
    notes: list[str] = field(default_factory=list)


@pytest.fixture
def node(verbs, log) -> Callable[..., Any]:
    """A node that adds 1, notes its whole id in the state and in the log, and dies or fails where it is told to."""

    def make(deadly: set[str] = frozenset(), broken: set[str] = frozenset()) -> Callable[..., Any]:
        def body(ctx: Context, state: Any) -> Any:
            log.append(ctx.node_id)
            if ctx.node_id in deadly:
                raise verbs.Killed
            if ctx.node_id in broken:
                raise ValueError(f"no {ctx.node_id}")
            if isinstance(state, Other):
                return Other(state.value + 1, [*state.notes, ctx.node_id])
            return Trip(state.n + 1, [*state.seen, ctx.node_id], state.turns)

        return verbs.node(body)

    return make


def chain(state_type: Any, fn: Any, ids: str = "xyz", name: str = "inner", **more: Any) -> Any:
    graph = Graph(state_type)
    for node_id in ids:
        graph.add_node(node_id, more.get(node_id, fn))
    for source, target in zip(ids, [*ids[1:], END], strict=True):
        graph.add_edge(source, target)
    return graph.set_entry(ids[0]).compile(name)


def around(fn: Any, inner: Any, name: str = "outer", **options: Any) -> Any:
    """a, the sub-graph `sub`, b."""
    graph = Graph(Trip).add_node("a", fn).add_subgraph("sub", inner, **options).add_node("b", fn)
    return graph.add_edge("a", "sub").add_edge("sub", "b").add_edge("b", END).set_entry("a").compile(name)


def into(state: Trip) -> Other:
    return Other(state.n, ["into"])


def out(state: Trip, sub: Other) -> Trip:
    return Trip(sub.value, [*state.seen, *sub.notes, "out"], state.turns)


def history(store, run_id="r"):
    return [(info.node_id, info.visit) for info in store.history(run_id)]


# -- what comes of it ----------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_graph_over_the_same_state_is_a_node_of_another(verbs, store, node):
    graph = around(node(), chain(Trip, node()))
    state = verbs.run(graph, Trip(), store=store, run_id="r")
    assert (5, ["a", "sub/x", "sub/y", "sub/z", "b"]) == (state.n, state.seen)
    assert [(name, 1) for name in ("a", "sub/x", "sub/y", "sub/z", "sub", "b")] == history(store)


def test_a_graph_over_another_state_is_given_one_and_gives_one_back(verbs, store, node):
    given: list[Trip] = []

    def spoil(state: Trip) -> Other:
        given.append(dataclasses.replace(state))
        made = Other(state.n, ["into"])
        state.n = 100
        return made

    graph = around(node(), chain(Other, node()), into=verbs.node(spoil), out=verbs.node(out))
    state = verbs.run(graph, Trip(), store=store, run_id="r")
    assert (5, ["a", "into", "sub/x", "sub/y", "sub/z", "out", "b"]) == (state.n, state.seen)
    assert 1 == len(given)


@pytest.mark.parametrize("is_kept", [True, False], ids=["store", "bare"])
def test_it_may_be_two_deep(verbs, store, node, is_kept):
    innermost = chain(Other, node(), "pq", "innermost")
    middle = Graph(Trip).add_node("x", node()).add_subgraph("deep", innermost, into=into, out=out)
    middle = middle.add_edge("x", "deep").add_edge("deep", END).set_entry("x").compile("middle")
    graph = around(node(), middle)
    state = verbs.run(graph, Trip(), **({"store": store, "run_id": "r"} if is_kept else {}))
    assert ["a", "sub/x", "into", "sub/deep/p", "sub/deep/q", "out", "b"] == state.seen
    if is_kept:
        expected = ["a", "sub/x", "sub/deep/p", "sub/deep/q", "sub/deep", "sub", "b"]
        assert [(name, 1) for name in expected] == history(store)


def test_wrong_conversions_are_refused_when_the_graph_is_built():
    inner = chain(Other, lambda state: state)
    with pytest.raises(GraphError, match="give into= and out="):
        Graph(Trip).add_subgraph("sub", inner)
    with pytest.raises(GraphError, match="only one of into= and out="):
        Graph(Trip).add_subgraph("sub", inner, into=into)
    with pytest.raises(GraphError, match="give a compiled graph"):
        Graph(Trip).add_subgraph("sub", Graph(Trip))


def test_coroutine_functions_inside_are_refused_by_name_under_a_sync_verb(store):
    async def later(state: Trip) -> Trip:
        return state

    graph = around(lambda state: state, chain(Trip, later, "x"))
    with pytest.raises(AsyncNodeError, match="'sub/x'"):
        graph.run(Trip(), store=store, run_id="r")
    assert [] == store.list_runs()


# -- going on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["a", "sub/x", "sub/y", "sub/deep/p", "sub/deep/q", "sub/z", "b"])
@pytest.mark.parametrize("is_other", [False, True], ids=["same", "other"])
def test_a_resume_goes_into_it_and_runs_nothing_again(verbs, timed, clock, node, log, where, is_other):
    deadly = {where}
    fn = node(deadly)
    innermost = chain(Other if is_other else Trip, fn, "pq", "innermost")
    middle = Graph(Trip).add_node("x", fn).add_node("y", fn).add_node("z", fn)
    middle.add_subgraph("deep", innermost, **({"into": into, "out": out} if is_other else {}))
    for source, target in (("x", "y"), ("y", "deep"), ("deep", "z"), ("z", END)):
        middle.add_edge(source, target)
    graph = around(fn, middle.set_entry("x").compile("middle"))
    expected = ["a", "sub/x", "sub/y", "sub/deep/p", "sub/deep/q", "sub/z", "b"]
    crash(verbs, graph, timed, "r", Trip(), clock=clock)
    assert expected[: expected.index(where) + 1] == log
    deadly.clear()
    log.clear()
    state = verbs.resume(graph, timed, "r", clock=clock)
    assert (expected[expected.index(where) :], 7) == (log, state.n)
    assert len(history(timed)) == len(set(history(timed))) == 9


@pytest.mark.parametrize("where", ["into", "out"])
@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_conversion_that_fails_runs_again_alone(verbs, store, node, log, where, verb):
    broken = [True]

    def note(name: str) -> None:
        log.append(name)
        if broken[0] and name == where:
            raise ValueError(f"no {name}")

    def give(state: Trip) -> Other:
        note("into")
        return into(state)

    def take(state: Trip, sub: Other) -> Trip:
        note("out")
        return out(state, sub)

    graph = around(node(), chain(Other, node()), into=verbs.node(give), out=verbs.node(take))
    with pytest.raises(NodeError, match=f"node 'sub' of run 'r' failed: ValueError: no {where}"):
        verbs.run(graph, Trip(), store=store, run_id="r")
    whole = ["a", "into", "sub/x", "sub/y", "sub/z", "out", "b"]
    assert whole[: whole.index(where) + 1] == log
    broken[0] = False
    log.clear()
    assert 5 == verbs.call(graph, verb, store, "r").n
    assert whole[whole.index(where) :] == log


def test_into_and_out_have_the_attempts_of_the_run_s_policy(verbs, store, node, log):
    def convert(state: Trip) -> Other:
        log.append("into")
        raise OSError("gone")

    graph = around(node(), chain(Other, node()), into=convert, out=out)
    policy = Retry(max_attempts=2, backoff=0)
    with pytest.raises(NodeError, match="failed after 2 failed attempts"):
        verbs.run(graph, Trip(), store=store, run_id="r", retry=policy)
    with pytest.raises(RunNotResumableError, match="'sub' has used up its 2 attempts"):
        verbs.resume(graph, store, "r", retry=policy)
    assert ["a", "into", "into"] == log


@pytest.mark.parametrize(("name", "value"), [("into", 5), ("out", 5)])
def test_a_conversion_that_gives_no_state_is_refused(verbs, store, node, name, value):
    given = {"into": into, "out": out, name: (lambda state: value) if name == "into" else (lambda state, sub: value)}
    graph = around(node(), chain(Other, node()), **given)
    with pytest.raises(StateTypeError, match="node 'sub' of run 'r'") as caught:
        verbs.run(graph, Trip(), store=store, run_id="r")
    assert ("r", "sub") == (caught.value.run_id, caught.value.node_id)
    assert "failed" == store.get_run("r").info.status


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_node_inside_that_fails_is_run_again_and_nothing_else(verbs, store, node, log, verb):
    broken = {"sub/y"}
    graph = around(node(broken=broken), chain(Trip, node(broken=broken)))
    with pytest.raises(NodeError, match="node 'sub/y' of run 'r' failed: ValueError: no sub/y") as caught:
        verbs.run(graph, Trip(), store=store, run_id="r")
    assert ("sub/y", 1, 1, 2) == (caught.value.node_id, caught.value.visit, caught.value.attempt, caught.value.state.n)
    assert "failed" == store.get_run("r").info.status
    with pytest.raises(NodeError, match="'sub/y'"):
        verbs.call(graph, verb, store, "r")
    broken.clear()
    log.clear()
    assert 5 == verbs.call(graph, verb, store, "r").n
    assert ["sub/y", "sub/z", "b"] == log
    assert (("sub/y", 1) in history(store), 6) == (True, len(history(store)))


def test_the_attempts_of_a_node_inside_are_used_up_over_processes(verbs, store, node, log):
    fn = node(broken={"sub/y"})
    inner = Graph(Trip).add_node("x", fn).add_node("y", fn, retry=Retry(max_attempts=2, backoff=0))
    inner = inner.add_edge("x", "y").add_edge("y", END).set_entry("x").compile("inner")
    graph = around(fn, inner)
    with pytest.raises(NodeError, match="after 2 failed attempts"):
        verbs.run(graph, Trip(), store=store, run_id="r")
    with pytest.raises(RunNotResumableError, match="'sub/y' has used up its 2 attempts"):
        verbs.resume(graph, store, "r")
    with pytest.raises(NodeError, match="after 2 failed attempts"):
        verbs.retry(graph, store, "r")
    assert ["a", "sub/x", *["sub/y"] * 4] == log


def test_a_router_inside_that_fails_is_asked_again_and_its_node_is_kept(verbs, store, node, log):
    broken = [True]

    def route(state: Trip) -> str:
        if broken[0]:
            raise ValueError("no way")
        return "y"

    inner = Graph(Trip).add_node("x", node()).add_node("y", node())
    inner.add_conditional_edge("x", route, ["y", END]).add_edge("y", END)
    graph = around(node(), inner.set_entry("x").compile("inner"))
    with pytest.raises(RouterError, match="the router after node 'sub/x' of run 'r' failed"):
        verbs.run(graph, Trip(), store=store, run_id="r")
    with pytest.raises(RouterError, match="'sub/x'"):
        verbs.resume(graph, store, "r")
    broken[0] = False
    assert 4 == verbs.resume(graph, store, "r").n
    assert ["a", "sub/x", "sub/y", "b"] == log


def test_a_state_inside_that_cannot_be_recorded_ends_the_run_and_is_mended(verbs, store, node, log):
    broken = [True]

    def bad(state: Trip) -> Trip:
        log.append("bad")
        return Trip(state.n, extra=object() if broken[0] else None)

    graph = around(node(), chain(Trip, node(), y=verbs.node(bad)))
    with pytest.raises(SerializeStateError, match="node 'sub/y' of run 'r'"):
        verbs.run(graph, Trip(), store=store, run_id="r")
    broken[0] = False
    verbs.resume(graph, store, "r")
    assert ["a", "sub/x", "bad", "bad", "sub/z", "b"] == log


def test_a_resume_with_an_override_begins_a_sub_graph_in_which_nothing_was_recorded_with_it(verbs, store, node):
    broken = {"sub/x"}
    graph = around(node(broken=broken), chain(Trip, node(broken=broken)))
    with pytest.raises(NodeError):
        verbs.run(graph, Trip(), store=store, run_id="r")
    broken.clear()
    state = verbs.resume(graph, store, "r", state_override=lambda state: Trip(10))
    assert 14 == state.n


def test_an_override_of_a_run_that_is_inside_a_sub_graph_is_refused(verbs, store, node):
    """It would be lost: what runs next follows from states inside."""
    broken = {"sub/y"}
    graph = around(node(broken=broken), chain(Trip, node(broken=broken)))
    with pytest.raises(NodeError):
        verbs.run(graph, Trip(), store=store, run_id="r")
    broken.clear()
    with pytest.raises(OptionError, match=r"inside node 'sub'.*use resume_from"):
        verbs.resume(graph, store, "r", state_override=lambda state: Trip(10))
    assert 14 == verbs.resume_from(graph, store, "r", "a", state_override=lambda state: Trip(10)).n


# -- loops and branches ----------------------------------------------------------------------------------------


def test_a_sub_graph_in_a_loop_begins_anew_each_time(verbs, timed, clock, node, log):
    deadly: set[str] = set()
    inner = chain(Trip, node(deadly), "xy")

    def turn(state: Trip) -> Trip:
        if state.turns == 1:
            deadly.add("sub/y")
        return Trip(state.n, state.seen, state.turns + 1)

    graph = Graph(Trip).add_node("s", verbs.node(turn)).add_subgraph("sub", inner).add_edge("s", "sub")
    graph.add_conditional_edge("sub", lambda state: "s" if state.turns < 3 else END, ["s", END])
    graph = graph.set_entry("s").compile("loop")
    crash(verbs, graph, timed, "r", Trip(), clock=clock)
    deadly.clear()
    state = verbs.resume(graph, timed, "r", clock=clock)
    assert (6, 3) == (state.n, state.turns)
    assert ["sub/x", "sub/y", "sub/x", "sub/y", "sub/y", "sub/x", "sub/y"] == log
    assert [(name, visit) for visit in (1, 2, 3) for name in ("s", "sub/x", "sub/y", "sub")] == history(timed)


def test_a_sub_graph_in_a_branch(verbs, timed, clock, node, log):
    deadly = {"sub/y"}
    fn = node(deadly)

    def merge(base: Trip, branches: dict[str, Trip]) -> Trip:
        return Trip(branches["sub"].n, [*branches["sub"].seen, *branches["b"].seen[len(base.seen) :]])

    graph = Graph(Trip).add_node("f", fn).add_node("b", fn).add_subgraph("sub", chain(Trip, fn))
    graph.add_node("j", fn, merge=merge)
    for source, target in (("f", "sub"), ("f", "b"), ("sub", "j"), ("b", "j"), ("j", END)):
        graph.add_edge(source, target)
    graph = graph.set_entry("f").compile("branch")
    crash(verbs, graph, timed, "r", Trip(), clock=clock)
    deadly.clear()
    state = verbs.resume(graph, timed, "r", clock=clock)
    assert ["f", "sub/x", "sub/y", "sub/z", "b", "j"] == state.seen
    assert [1, 1, 2, 1, 1] == [log.count(name) for name in ("f", "sub/x", "sub/y", "sub/z", "j")]
    assert len(history(timed)) == len(set(history(timed))) == 7


def test_a_fork_in_a_sub_graph_fails_as_one(verbs, store, node, log):
    broken = {"sub/a", "sub/b"}
    fn = node(broken=broken)
    inner = Graph(Trip)
    for node_id in "fabc":
        inner.add_node(node_id, fn)
    inner.add_node("j", fn, merge=lambda base, branches: Trip(len(branches), base.seen))
    for branch in "abc":
        inner.add_edge("f", branch).add_edge(branch, "j")
    graph = around(fn, inner.add_edge("j", END).set_entry("f").compile("inner"))
    with pytest.raises(BranchError, match="2 branches of the fork after node 'sub/f'") as caught:
        verbs.run(graph, Trip(), store=store, run_id="r")
    assert ["sub/a", "sub/b"] == sorted(error.node_id for error in caught.value.errors.values())
    broken.clear()
    log.clear()
    assert 5 == verbs.resume(graph, store, "r").n
    assert (["sub/a", "sub/b"], ["sub/j", "b"]) == (sorted(log[:2]), log[2:])


# -- limits, breakpoints, changes ----------------------------------------------------------------------------


def test_the_limit_counts_the_nodes_inside(verbs, store, node, log):
    graph = around(node(), chain(Trip, node()))
    with pytest.raises(MaxIterationsError, match="executed 3 nodes, the last 'sub/y', and its limit is 3"):
        verbs.run(graph, Trip(), store=store, run_id="r", max_iterations=3)
    assert ["a", "sub/x", "sub/y"] == log
    with pytest.raises(MaxIterationsError, match="its limit is 3"):
        verbs.resume(graph, store, "r", max_iterations=3)
    result = verbs.resume(graph, store, "r", max_iterations=6, full=True)
    assert (5, 6) == (result.state.n, result.iterations)


@pytest.mark.parametrize("where", ["sub/x", "sub/y", "sub/deep/p", "sub/deep", "sub"])
def test_a_run_stops_before_and_after_a_node_inside(verbs, store, node, log, where):
    fn = node()
    middle = Graph(Trip).add_node("x", fn).add_node("y", fn).add_subgraph("deep", chain(Trip, fn, "pq"))
    middle = middle.add_edge("x", "y").add_edge("y", "deep").add_edge("deep", END).set_entry("x").compile("middle")
    graph = around(fn, middle)
    whole = ["a", "sub/x", "sub/y", "sub/deep/p", "sub/deep/q", "b"]
    first = next(place for place, name in enumerate(whole) if name == where or name.startswith(f"{where}/"))
    with pytest.raises(RunStopped, match=f"before node '{where}'"):
        verbs.run(graph, Trip(), store=store, run_id="r", stop_before=[where])
    assert whole[:first] == log
    with pytest.raises(RunStopped, match=f"after node '{where}'") as caught:
        verbs.resume(graph, store, "r", stop_before=[where], stop_after=[where])
    last = max(place for place, name in enumerate(whole) if name == where or name.startswith(f"{where}/"))
    assert (whole[: last + 1], where) == (log, caught.value.node_id)
    assert 6 == verbs.resume(graph, store, "r").n
    assert whole == log


def test_a_breakpoint_that_names_no_node_inside_is_refused(store, node):
    graph = around(node(), chain(Trip, node()))
    with pytest.raises(OptionError, match="'sub/nowhere'"):
        graph.run(Trip(), store=store, run_id="r", stop_before=["sub/nowhere"])


def test_a_node_inside_that_is_gone_is_told(verbs, timed, clock, node, log):
    deadly = {"sub/y"}
    fn = node(deadly)
    crash(verbs, around(fn, chain(Trip, fn)), timed, "r", Trip(), clock=clock)
    deadly.clear()
    with pytest.raises(FlowChangedError, match="'y'"):
        verbs.resume(around(fn, chain(Trip, fn, "xz")), timed, "r", clock=clock)
    with pytest.raises(FlowChangedError, match="'sub/x'"):
        verbs.resume(around(fn, chain(Trip, fn, "yz")), timed, "r", clock=clock)
    assert 5 == verbs.resume(around(fn, chain(Trip, fn)), timed, "r", clock=clock).n


def test_a_sub_graph_that_is_a_plain_node_now_is_told(verbs, timed, clock, node):
    deadly = {"sub/y"}
    fn = node(deadly)
    crash(verbs, around(fn, chain(Trip, fn)), timed, "r", Trip(), clock=clock)
    plain = Graph(Trip)
    for source, target in (("a", "sub"), ("sub", "b"), ("b", END)):
        plain.add_node(source, fn).add_edge(source, target)
    with pytest.raises(FlowChangedError, match="'sub/x'"):
        verbs.resume(plain.set_entry("a").compile("outer"), timed, "r", clock=clock)


# -- from a point of one's own -------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["own", "branch"])
def test_a_sub_graph_that_is_run_again_runs_its_nodes_again(verbs, store, node, log, where):
    fn = node()
    if where == "own":
        graph = around(fn, chain(Trip, fn))
        rest = ["b"]
    else:
        built = Graph(Trip).add_node("f", fn).add_node("b", fn).add_subgraph("sub", chain(Trip, fn))
        built.add_node("j", fn, merge=lambda base, branches: branches["sub"])
        for source, target in (("f", "sub"), ("f", "b"), ("sub", "j"), ("b", "j"), ("j", END)):
            built.add_edge(source, target)
        graph = built.set_entry("f").compile("branch")
        rest = ["j"]
    before = verbs.run(graph, Trip(), store=store, run_id="r")
    log.clear()
    assert before == verbs.resume_from(graph, store, "r", "sub", rerun=True)
    assert ["sub/x", "sub/y", "sub/z", *rest] == log
    visits = history(store)
    assert len(set(visits)) == len(visits)


def test_a_run_goes_on_after_a_sub_graph(verbs, store, node, log):
    graph = around(node(), chain(Trip, node()))
    verbs.run(graph, Trip(), store=store, run_id="r")
    log.clear()
    state = verbs.resume_from(graph, store, "r", "sub", state_override=lambda state: Trip(state.n + 100))
    assert (105, ["b"]) == (state.n, log)


def test_what_is_inside_is_no_point_to_resume_from(verbs, store, node):
    graph = around(node(), chain(Trip, node()))
    verbs.run(graph, Trip(), store=store, run_id="r")
    with pytest.raises(InvalidResumeNodeError, match="'sub/x'"):
        verbs.resume_from(graph, store, "r", "sub/x")


# -- graphs whose nodes return parts -------------------------------------------------------------------------


class Talk(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


def talking(verbs: Any, name: str) -> Callable[[Talk], Talk]:
    return verbs.node(lambda talk: {"said": [name]})


def test_what_a_graph_of_parts_ends_with_is_a_whole_state(verbs, store):
    inner = Graph(Talk, partial=True).add_node("x", talking(verbs, "x")).add_edge("x", END).set_entry("x").compile("in")
    graph = Graph(Talk, partial=True).add_node("a", talking(verbs, "a")).add_subgraph("sub", inner)
    graph.add_edge("a", "sub").add_edge("sub", END).set_entry("a")
    assert {"said": ["hello", "a", "x"]} == verbs.run(
        graph.compile("out"), {"said": ["hello"]}, store=store, run_id="r"
    )
    assert {"said": ["hello", "a", "x"]} == verbs.run(graph.compile("out"), {"said": ["hello"]})


def test_what_a_graph_of_parts_adds_in_a_branch_is_merged_once(verbs, store):
    inner = Graph(Talk, partial=True).add_node("x", talking(verbs, "x")).add_edge("x", END).set_entry("x").compile("in")
    graph = Graph(Talk, partial=True).add_subgraph("sub", inner)
    for name in "fbj":
        graph.add_node(name, talking(verbs, name))
    graph.add_edge("f", "sub").add_edge("f", "b").add_edge("sub", "j").add_edge("b", "j").add_edge("j", END).set_entry(
        "f"
    )
    expected = {"said": ["f", "x", "b", "j"]}
    assert expected == verbs.run(graph.compile("out"), {"said": []}, store=store, run_id="r")
    assert expected == verbs.run(graph.compile("out"), {"said": []})
