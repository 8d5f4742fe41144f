"""What must hold of forks and joins before a graph runs: each problem by its code and place, and what is proved by them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost import END, Graph, GraphError
from milepost.executor.flow import BranchEnd, Fork
from milepost.graph.topology import Forks, Topology
from milepost.reducers import append, total
from milepost.testing.tables import for_each
from thoroughness import examples


@dataclass
class State:
    seen: Annotated[list[str], append] = field(default_factory=list)
    n: int = 0


def same(state: State) -> State:
    return state


def to(*targets: str) -> tuple[Callable[[State], str], list[str]]:
    return (lambda state: targets[0]), list(targets)


def build(edges: str, routes: dict[str, Any] | None = None, entry: str = "f", **of_graph: Any) -> Graph[State]:
    """A graph of one-letter nodes; `.` stands for END, and a node of `routes` has a router."""
    graph = Graph(State, **of_graph)
    for node in dict.fromkeys(("".join(edges.split()) + "".join(routes or {})).replace(".", "")):
        graph.add_node(node, same)
    for source, target in edges.split():
        graph.add_edge(source, END if target == "." else target)
    for source, (router, targets) in (routes or {}).items():
        graph.add_conditional_edge(source, router, targets)
    return graph.set_entry(entry)


def problems(graph: Graph[State]) -> list[tuple[str, str]]:
    with pytest.raises(GraphError) as caught:
        graph.compile()
    assert all(problem.text for problem in caught.value.problems)
    return [(problem.code, problem.where) for problem in caught.value.problems]


# -- each problem ------------------------------------------------------------------------------------------


@for_each(
    "expected, edges, routes",
    [
        ([("fork_without_join", "f")], "fa fb a. b.", {}),
        ([("fork_without_join", "f")], "fa f. a.", {}),
        ([("fork_without_join", "a")], "fa fb bj j.", {"a": to("j", END)}),
        ([("fork_without_join", "a")], "fa fb bj j.", {"a": to(END, "j")}),
        ([("undeclared_targets_in_branch", "a")], "fa fb bj j.", {"a": (lambda state: "j", None)}),
        ([("branches_overlap", "x")], "fa fb fc cj xj j.", {"a": to("x", "j"), "b": to("x", "j")}),
        ([("branch_entered_from_outside", "a")], "fa fb aj bj", {"j": to("a", END)}),
        ([("branch_entered_from_outside", "x")], "fa ax xj fb bj j. ox", {}),
    ],
)
def test_a_fork_that_cannot_run_is_refused_by_its_place(
    expected: list[tuple[str, str]], edges: str, routes: dict[str, Any]
) -> None:
    assert expected == problems(build(edges, routes))


def test_an_entry_inside_a_branch_is_refused() -> None:
    assert ("branch_entered_from_outside", "a") in problems(build("fa fb aj bj", {"j": to("f", END)}, entry="a"))


def test_a_branch_that_leads_back_to_its_fork_is_refused() -> None:
    assert ("fork_without_join", "f") in problems(build("fa fb bj j.", {"a": to("f", "j")}))


def test_a_skipped_branch_cannot_pass_the_join() -> None:
    """A join behind two branches, one of which a condition skips: no run may end without it."""
    assert [("fork_without_join", "a")] == problems(build("fa fb bj xj j.", {"a": to("x", END)}))
    build("fa fb bj xj j.", {"a": to("x", "j")}).compile()


def test_an_inner_fork_may_not_meet_behind_the_join_of_the_outer_one() -> None:
    found = problems(build("fa fb bj ax ay xj yk jk k."))
    assert {"fork_without_join", "branches_overlap"} & {code for code, _ in found}


def test_a_join_needs_a_merge() -> None:
    graph = Graph(dict)
    for node in "fabj":
        graph.add_node(node, lambda state: state)
    graph.add_edge("f", "a").add_edge("f", "b").add_edge("a", "j").add_edge("b", "j").add_edge("j", END).set_entry("f")
    assert [("join_without_merge", "j")] == problems(graph)


def test_a_join_of_any_kind_is_told_what_to_be_given() -> None:
    def told(graph: Graph[dict[str, Any]]) -> str:
        for node in "fab":
            graph.add_node(node, lambda state: state)
        for source, target in ("fa", "fb", "aj", "bj"):
            graph.add_edge(source, target)
        with pytest.raises(GraphError, match="branches meet at 'j'") as caught:
            graph.add_edge("j", END).set_entry("f").compile()
        return str(caught.value)

    assert "give it merge=, " in told(Graph(dict).add_timer("j", duration=1))
    mapped = Graph(dict).add_map("j", lambda state: [1], str, merge=lambda state, results: state)
    assert "give it merge_branches=, " in told(mapped)


def test_a_merge_at_a_node_where_no_branches_meet_is_refused() -> None:
    graph = Graph(State).add_node("a", same, merge=lambda base, branches: base).add_edge("a", END).set_entry("a")
    assert [("merge_without_join", "a")] == problems(graph)
    graph = Graph(State).add_timer("t", duration=1, merge={"n": total}).add_edge("t", END).set_entry("t")
    assert [("merge_without_join", "t")] == problems(graph)


def test_a_merge_that_cannot_be_called_so_is_refused_by_the_name_of_its_argument() -> None:
    with pytest.raises(GraphError, match="merge= of node 't' cannot be called with 2 arguments"):
        Graph(State).add_timer("t", duration=1, merge=lambda base: base)  # type: ignore[arg-type, misc]
    with pytest.raises(GraphError, match="merge_branches= of node 'm' cannot be called with 2 arguments"):
        Graph(State).add_map(
            "m",
            lambda state: [1],
            str,
            merge=lambda state, results: state,
            merge_branches=lambda base: base,  # type: ignore[arg-type, misc]
        )


def test_a_reducer_that_tells_no_difference_is_refused_for_whole_states() -> None:
    edges = "fa fb aj bj j."
    assert [("reducer_unusable", "j")] == problems(build(edges, reducers={"n": operator.add}))
    build(edges, reducers={"n": operator.add}, partial=True).compile()
    build(edges, reducers={"n": total}).compile()
    build("fa aj j.", reducers={"n": operator.add}).compile()


def test_a_reducer_that_cannot_be_hashed_is_told_apart_too() -> None:
    @dataclass
    class Adding:
        times: int = 1

        def __call__(self, value: int, update: int) -> int:
            return value + self.times * update

    assert [("reducer_unusable", "j")] == problems(build("fa fb aj bj j.", reducers={"n": Adding()}))
    build("fa fb aj bj j.", reducers={"n": Adding()}, partial=True).compile()


def test_a_merge_for_a_field_that_the_state_lacks_is_refused() -> None:
    graph = build("fa fb aj bj").add_node("m", same, merge={"missing": total}).add_edge("j", "m").add_edge("m", END)
    assert ("reducer_field_unknown", "missing") in problems(graph)


def test_all_problems_of_several_forks_are_told_at_once() -> None:
    found = problems(build("fa fb a. bj jx jy x. yz z."))
    assert {"f", "j"} <= {where for code, where in found if code == "fork_without_join"}


# -- what is found -----------------------------------------------------------------------------------------


def fork_of(edges: str, routes: dict[str, Any] | None = None, node: str = "f") -> Fork:
    return build(edges, routes).compile()._definition.splits[node]


def test_the_join_is_the_nearest_node_that_every_branch_reaches() -> None:
    fork = fork_of("fa fb aj bj jk k.")
    assert (("a", "b"), "j", {"a": {"a"}, "b": {"b"}}) == (fork.branches, fork.join, dict(fork.inside))


def test_an_edge_to_the_join_is_a_branch_without_nodes() -> None:
    fork = fork_of("fa fj aj j.")
    assert (("a", "j"), "j", {"a": {"a"}, "j": set()}) == (fork.branches, fork.join, dict(fork.inside))


def test_inner_and_outer_fork_may_share_a_join() -> None:
    outer = fork_of("fa aj fb bc bd cj dj j.")
    assert {"a": {"a"}, "b": {"b", "c", "d"}} == dict(outer.inside)
    assert "j" == fork_of("fa aj fb bc bd cj dj j.", node="b").join


def test_a_loop_inside_a_branch_belongs_to_it() -> None:
    assert {"a": {"a", "x"}, "b": {"b"}} == dict(fork_of("fa fb bj ax j.", {"x": to("a", "j")}).inside)


def test_a_router_outside_may_not_answer_with_a_node_of_a_branch() -> None:
    compiled = build("fa fb aj bj", {"j": (lambda state: END, None)}).compile()
    router = compiled._definition.units["j"].router
    assert router is not None
    assert {"f", "j"} == router.known


def test_a_branch_end_tells_its_updates_by_default_nothing() -> None:
    assert ((), False) == (BranchEnd(1).updates, BranchEnd(1).is_untold)


# -- what that proves --------------------------------------------------------------------------------------

NODES = "abcdefgh"


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Graphs with some forks and some routers, right or wrong; those that lead forwards are often right."""
    edges: dict[str, tuple[str, ...]] = {}
    routes: dict[str, tuple[dict[str, str], ...]] = {}
    for number, node in enumerate(NODES):
        onwards = st.sampled_from([*NODES[number + 1 : number + 4], END]) if number < 7 else st.just(END)
        anywhere = st.sampled_from([*NODES, END])
        targets = draw(st.lists(st.one_of(onwards, onwards, onwards, anywhere), min_size=1, max_size=3, unique=True))
        if len(targets) > 1 and draw(st.integers(0, 2)) == 0:
            routes[node] = ({target: target for target in targets},)
        else:
            edges[node] = tuple(targets)
    return Topology(tuple(NODES), edges, routes, "a")


def ways(topology: Topology, node: str, until: str, steps: int = 60) -> Iterator[tuple[str, ...]]:
    """Where a walk may come: the label of the branch that each visited node is in, for any answers of routers."""
    waiting: list[tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]] = [(node, (), (until,))]
    seen = set()
    while waiting:
        here, label, joins = waiting.pop()
        if (here, label, joins) in seen or len(seen) > 5000:
            continue
        seen.add((here, label, joins))
        if here == joins[-1]:
            continue
        yield here, label
        fork = topology.forks.get(here)
        if fork is None:
            waiting += [(target, label, joins) for target in topology.successors(here)]
            continue
        for branch in fork.branches:
            waiting.append((branch, (*label, (here, branch)), (*joins, fork.join)))
        waiting.append((fork.join, label, joins))


@settings(max_examples=examples(300), deadline=None)
@given(topologies())
def test_a_graph_without_problems_visits_no_node_in_two_branches(topology: Topology) -> None:
    """Whatever routers answer, a node inside a fork is always in the same branch, and no branch ends the run."""
    if topology.problems():
        return
    found: dict[str, set[tuple[tuple[str, str], ...]]] = {}
    for node, label in ways(topology, "a", END):
        if label:
            assert node != END
        found.setdefault(node, set()).add(label)
    for node, labels in found.items():
        if node != END:
            assert 1 == len(labels), (node, labels)


@settings(max_examples=examples(200), deadline=None)
@given(topologies())
def test_every_branch_of_a_fork_that_is_found_comes_to_its_join(topology: Topology) -> None:
    if topology.problems():
        return
    for fork in topology.forks.values():
        for branch, nodes in fork.inside.items():
            leaving = {target for node in nodes for target in topology.successors(node)} - nodes
            assert leaving <= {fork.join}
            assert branch in nodes or branch == fork.join
        inside = [node for nodes in fork.inside.values() for node in nodes]
        assert len(inside) == len(set(inside))


def test_forks_know_ids_and_arrows_only() -> None:
    edges = {"f": ("a", "b"), "a": ("j",), "b": ("j",), "j": (END,)}
    forks = Forks(tuple(edges), edges, lambda node: edges[node], "f")
    assert ([], ["f"], {"f", "j"}) == (forks.problems, [*forks.found], forks.allowed("j"))
    assert {"f", "a", "j"} == forks.allowed("a")
