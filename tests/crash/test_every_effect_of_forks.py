"""Graphs with forks, maps, sub-graphs and waits that die at every moment, and end as if nothing had happened."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milepost import END, CompiledGraph, Graph, MemoryStore, Reply, Retention, Retry, SQLiteStore
from milepost.model.ids import Clock
from milepost.reducers import append, largest, total
from milepost.store import Store
from milepost.testing import crashtest


@dataclass
class Basket:
    n: int = 0
    turns: int = 0
    seen: Annotated[list[str], append] = field(default_factory=list)
    sums: Annotated[int, total] = 0
    peak: Annotated[int, largest] = 0


def adding(name: str, amount: int = 1) -> Callable[[Basket], Basket]:
    """A node that changes its state in place, which must reach no record and no branch but its own."""

    def add(state: Basket) -> Basket:
        state.sums += amount
        state.peak = max(state.peak, state.sums)
        state.seen.append(f"{name}{state.turns}")
        return state

    return add


async def add_later(state: Basket) -> Basket:
    return adding("later", 7)(state)


def turning(state: Basket) -> Basket:
    state.turns += 1
    return state


@dataclass
class Subject:
    """A graph, and how it is crashed."""

    graph: CompiledGraph[Any]
    input: Any
    options: dict[str, Any] = field(default_factory=dict)


def fork() -> Subject:
    """Two branches of two nodes and one of one."""
    graph = Graph(Basket)
    for number, name in enumerate("fabcdej"):
        graph.add_node(name, adding(name, number))
    for source, target in ("fa", "ab", "bj", "fc", "cd", "dj", "fe", "ej"):
        graph.add_edge(source, target)
    return Subject(graph.add_edge("j", END).set_entry("f").compile("fork"), Basket())


def merged() -> Subject:
    """An edge from the fork straight to the join, which a function merges; some nodes are async."""
    graph = Graph(Basket).add_node("f", adding("f")).add_node("a", add_later).add_node("b", adding("b"))

    def merge(base: Basket, branches: dict[str, Basket]) -> Basket:
        seen = [name for state in branches.values() for name in state.seen[len(base.seen) :]]
        return Basket(len(branches), base.turns, [*base.seen, *seen], sum(s.sums for s in branches.values()))

    graph.add_node("j", adding("j"), merge=merge)
    graph.add_edge("f", "a").add_edge("a", "b").add_edge("b", "j").add_edge("f", "j").add_edge("j", END)
    return Subject(graph.set_entry("f").compile("merged"), Basket())


def nested() -> Subject:
    """A fork with a fork inside, inside a loop."""
    graph = Graph(Basket).add_node("f", turning)
    for number, name in enumerate("agbcij", 1):
        graph.add_node(name, adding(name, number))
    for source, target in ("fa", "aj", "fg", "gb", "gc", "bi", "ci", "ij"):
        graph.add_edge(source, target)
    graph.add_conditional_edge("j", lambda state: "f" if state.turns < 2 else END, ["f", END])
    return Subject(graph.set_entry("f").compile("nested"), Basket())


def routed() -> Subject:
    """Branches with routers and loops of their own; both inner branches meet where the outer ones do."""
    graph = Graph(Basket).add_node("f", turning)
    for number, name in enumerate("abcdj", 1):
        graph.add_node(name, adding(name, number))
    graph.add_edge("f", "a").add_edge("f", "b").add_edge("b", "c").add_edge("b", "d").add_edge("c", "j").add_edge(
        "d", "j"
    )
    graph.add_conditional_edge("a", lambda state: "a" if len(state.seen) < 3 else "j", ["a", "j"])
    return Subject(graph.add_edge("j", END).set_entry("f").compile("routed"), Basket())


class Chat(TypedDict, total=False):
    messages: Annotated[list[str], operator.add]
    turns: int


def partial() -> Subject:
    """Updates of several nodes of a branch, those of a fork inside it included, in the order of the edges."""
    graph = Graph(Chat, partial=True)
    graph.add_node("f", lambda state: {"turns": state.get("turns", 0) + 1})
    for name in "abcdeij":
        graph.add_node(name, lambda state, name=name: {"messages": [f"{name}{state['turns']}"]})
    for source, target in ("fa", "ab", "bj", "fc", "cd", "ce", "di", "ei", "ij"):
        graph.add_edge(source, target)
    graph.add_conditional_edge("j", lambda state: "f" if state["turns"] < 2 else END, ["f", END])
    return Subject(graph.set_entry("f").compile("partial"), Chat(messages=["hello"]))


def retried() -> Subject:
    """A node of a branch that fails twice, after it has changed its state in place."""
    failed: list[str] = []

    def fail_twice(state: Basket) -> Basket:
        state.sums += 100
        if len(failed) < 2:
            failed.append("b")
            raise OSError("not yet")
        return state

    graph = Graph(Basket).add_node("f", turning).add_node("a", adding("a")).add_node("j", adding("j"))
    graph.add_node("b", fail_twice, retry=Retry(max_attempts=3, backoff=2.0))
    graph.add_edge("f", "a").add_edge("f", "b").add_edge("a", "j").add_edge("b", "j").add_edge("j", END)
    return Subject(graph.set_entry("f").compile("retried"), Basket(), {"before": failed.clear})


def failing() -> Subject:
    """A node of a branch, and the router of another one, fail once each; the run is resumed."""
    failed: set[str] = set()

    def once(name: str) -> None:
        if name not in failed:
            failed.add(name)
            raise OSError("not yet")

    def fail(state: Basket) -> Basket:
        state.sums += 100
        once("b")
        return state

    def decide(state: Basket) -> str:
        once("a")
        return "c"

    graph = Graph(Basket).add_node("f", turning).add_node("b", fail)
    for name in "acdj":
        graph.add_node(name, adding(name))
    graph.add_edge("f", "a").add_edge("f", "b").add_edge("f", "d").add_edge("b", "j").add_edge("c", "j").add_edge(
        "d", "j"
    )
    graph.add_conditional_edge("a", decide, ["c", "j"]).add_edge("j", END)
    options = {"before": failed.clear, "resumes": 1}
    return Subject(graph.set_entry("f").compile("failing"), Basket(), options)


def failing_merge() -> Subject:
    """A merge that fails once; the run is resumed, and no branch runs again."""
    failed: list[str] = []

    def merge(base: Basket, branches: dict[str, Basket]) -> Basket:
        if not failed:
            failed.append("j")
            raise OSError("not yet")
        return branches["b"]

    graph = Graph(Basket).add_node("f", turning).add_node("a", adding("a")).add_node("b", adding("b"))
    graph.add_node("j", adding("j"), merge=merge)
    graph.add_edge("f", "a").add_edge("f", "b").add_edge("a", "j").add_edge("b", "j").add_edge("j", END)
    return Subject(graph.set_entry("f").compile("merging"), Basket(), {"before": failed.clear, "resumes": 1})


def double(item: int) -> int:
    return 2 * item


def mapped(items: int = 3) -> Subject:
    """A map in a loop, whose second pass has other items under the same names."""
    graph = Graph(Basket).add_node("s", turning)
    graph.add_map(
        "m",
        lambda state: [10 * state.turns + k for k in range(items)],
        double,
        merge=lambda state, results: Basket(0, state.turns, [*state.seen, str(results)], state.sums + sum(results)),
    )
    graph.add_edge("s", "m").add_conditional_edge("m", lambda state: "s" if state.turns < 2 else END, ["s", END])
    return Subject(graph.set_entry("s").compile("mapped"), Basket())


def mapped_pairs() -> Subject:
    """The same with fewer items: two deaths in one run take the square of the time."""
    return mapped(2)


def item_graph() -> CompiledGraph[Basket]:
    graph = Graph(Basket).add_node("x", adding("x")).add_node("y", adding("y")).add_node("z", adding("z"))
    graph.add_node("w", adding("w")).add_edge("x", "y").add_edge("x", "z").add_edge("y", "w").add_edge("z", "w")
    return graph.add_edge("w", END).set_entry("x").compile("item")


def mapped_graph() -> Subject:
    """A map of a graph that forks, inside a branch."""

    def merge(state: Basket, results: list[Basket]) -> Basket:
        state.sums += sum(result.sums for result in results)
        return state

    graph = Graph(Basket).add_node("f", turning).add_node("a", adding("a")).add_node("j", adding("j"))
    graph.add_map("m", lambda state: [Basket(k) for k in range(2)], item_graph(), merge=merge)
    graph.add_edge("f", "a").add_edge("f", "m").add_edge("a", "j").add_edge("m", "j").add_edge("j", END)
    return Subject(graph.set_entry("f").compile("maps"), Basket())


def sub_graph() -> Subject:
    """A graph inside a graph, once as it is and once with a state of its own; it is gone through twice."""
    inner = item_graph()

    def out(state: Basket, sub: Basket) -> Basket:
        return Basket(sub.n, state.turns, [*state.seen, "out"], state.sums + sub.sums)

    graph = Graph(Basket).add_node("s", turning).add_subgraph("one", inner)
    graph.add_subgraph("two", inner, into=lambda state: Basket(state.turns), out=out)
    graph.add_edge("s", "one").add_edge("one", "two")
    graph.add_conditional_edge("two", lambda state: "s" if state.turns < 2 else END, ["s", END])
    return Subject(graph.set_entry("s").compile("subs"), Basket())


def waiting() -> Subject:
    """Waits side by side, one of them in a sub-graph, a timer, and a node beside them."""
    inner = Graph(Basket).add_node("x", adding("x"))
    inner.add_wait("w", "inner", apply=lambda state, reply: Basket(reply.payload, state.turns, state.seen, state.sums))
    sub = inner.add_edge("x", "w").add_edge("w", END).set_entry("x").compile("sub")

    def taken(state: Basket, reply: Reply[int]) -> Basket:
        state.seen.append(f"{reply.payload} {reply.timed_out}")
        return state

    graph = Graph(Basket).add_node("f", turning).add_node("a", adding("a")).add_node("j", adding("j"))
    graph.add_wait("w", "go", apply=taken, payload=int, prompt=lambda state: f"turn {state.turns}")
    graph.add_subgraph("sub", sub).add_timer("t", duration=60)
    graph.add_edge("f", "a").add_edge("f", "w").add_edge("f", "sub").add_edge("f", "t")
    for name in ("a", "w", "sub", "t"):
        graph.add_edge(name, "j")
    options = {"signals": {"go": 5, "inner": 8}}
    return Subject(graph.add_edge("j", END).set_entry("f").compile("waits"), Basket(), options)


def united(base: Basket, branches: dict[str, Basket]) -> Basket:
    """What the nodes of all branches have seen, after what was seen before."""
    seen = [name for state in branches.values() for name in state.seen[len(base.seen) :]]
    return Basket(base.n, base.turns, [*base.seen, *seen], base.sums + len(seen))


def branching(join: str) -> Graph[Basket]:
    """A loop over two branches that meet at a node which is yet to be added."""
    graph = Graph(Basket).add_node("f", turning).add_node("a", adding("a")).add_node("b", adding("b"))
    graph.add_edge("f", "a").add_edge("f", "b").add_edge("a", join).add_edge("b", join)
    graph.add_conditional_edge(join, lambda state: "f" if state.turns < 2 else END, ["f", END])
    return graph.set_entry("f")


def joined_at_a_map() -> Subject:
    def merge(state: Basket, results: list[int]) -> Basket:
        return Basket(sum(results), state.turns, state.seen, state.sums)

    graph = branching("m").add_map(
        "m", lambda state: [len(state.seen), state.turns], double, merge=merge, merge_branches=united
    )
    return Subject(graph.compile("at a map"), Basket())


def joined_at_a_graph() -> Subject:
    graph = branching("g").add_subgraph("g", item_graph(), merge=united)
    return Subject(graph.compile("at a graph"), Basket())


def joined_at_a_wait() -> Subject:
    def taken(state: Basket, reply: Reply[int]) -> Basket:
        state.seen.append(f"{reply.payload} {reply.timed_out}")
        return state

    graph = branching("w").add_wait(
        "w", "go", apply=taken, payload=int, prompt=lambda state: state.seen, timeout=60, merge=united
    )
    return Subject(graph.compile("at a wait"), Basket(), {"signals": {"go": 5}})


def joined_at_a_timer() -> Subject:
    graph = branching("t").add_timer("t", duration=60, merge={"sums": total})
    return Subject(graph.compile("at a timer"), Basket())


def tried_items() -> Subject:
    """Items that fail, each at its first attempt, and are tried again by the policy of the map."""
    failed: set[int] = set()

    def once(item: int) -> int:
        if item not in failed:
            failed.add(item)
            raise OSError("not yet")
        return 2 * item

    graph = Graph(Basket).add_map(
        "m",
        lambda state: [1, 2],
        once,
        merge=lambda state, results: Basket(sum(results)),
        retry=Retry(max_attempts=2, backoff=2.0),
        timeout=60,
    )
    options = {"before": failed.clear}
    return Subject(graph.add_edge("m", END).set_entry("m").compile("tried"), Basket(), options)


def timed_out() -> Subject:
    """A wait with a timeout in a loop: nothing ever comes."""
    graph = Graph(Basket).add_node("s", turning)

    def noted(state: Basket, reply: Reply[Any]) -> Basket:
        state.seen.append(str(reply.timed_out))
        return state

    graph.add_wait("w", "never", apply=noted, timeout=30).add_edge("s", "w")
    graph.add_conditional_edge("w", lambda state: "s" if state.turns < 3 else END, ["s", END])
    return Subject(graph.set_entry("s").compile("timeouts"), Basket())


def resumed_in_a_branch() -> Subject:
    return Subject(nested().graph, Basket(), {"resume_from": "b"})


def resumed_from_a_fork() -> Subject:
    return Subject(nested().graph, Basket(), {"resume_from": "f"})


def stopped_before() -> Subject:
    return Subject(fork().graph, Basket(), {"stop_before": ["b", "j"], "resumes": 2})


wide = pytest.mark.wide

SUBJECTS = [
    fork, merged, nested, routed, partial, retried, failing, failing_merge, mapped, mapped_graph, sub_graph, waiting, timed_out,
    joined_at_a_map, joined_at_a_graph, joined_at_a_wait, joined_at_a_timer, tried_items, resumed_in_a_branch,
    resumed_from_a_fork, stopped_before,
]  # fmt: skip


LONG = {
    merged, routed, mapped, retried, partial, sub_graph, timed_out, joined_at_a_graph, joined_at_a_wait, joined_at_a_timer,
    resumed_from_a_fork, stopped_before,
}  # fmt: skip
"""Those that have many effects, and what is like them in those of a few."""
IN_FILES = [nested, failing, mapped_graph, waiting]
"""Those that are tried on SQLite too: what an effect does is the store's business, which comes next is not."""


@pytest.fixture
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Clock], Store] | None:
    if request.param == "memory":
        return None
    return lambda clock: SQLiteStore(tmp_path / "runs.db", clock=clock)


@pytest.mark.parametrize(
    ("make", "open_store"),
    [
        *(pytest.param(make, "memory", marks=[wide] if make in LONG else []) for make in SUBJECTS),
        *(pytest.param(make, "sqlite", marks=wide) for make in IN_FILES),
    ],
    indirect=["open_store"],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_run_that_dies_at_any_effect_ends_as_if_undisturbed(
    make: Callable[[], Subject], open_store: Callable[[Clock], Store] | None
) -> None:
    subject = make()
    report = crashtest(subject.graph, subject.input, store=open_store, **subject.options)
    assert 2 * len(report.effects) == report.scenarios == report.crashes


@pytest.mark.parametrize(
    "make",
    [nested, *(pytest.param(make, marks=wide) for make in (mapped, sub_graph, timed_out))],
    ids=lambda make: make.__name__,
)
def test_a_run_that_is_thinned_while_it_is_live_ends_as_if_undisturbed(make: Callable[[], Subject]) -> None:
    """At each append all goes but the newest visit of each node, and what that can't do without."""
    subject = make()
    report = crashtest(
        subject.graph,
        subject.input,
        store=lambda clock: MemoryStore(clock=clock, retention=Retention(keep_last=1)),
        **subject.options,
    )
    assert 2 * len(report.effects) == report.scenarios


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("make", [retried, mapped_pairs], ids=lambda make: make.__name__)
def test_a_run_that_dies_again_while_it_is_resumed_ends_as_if_undisturbed(make: Callable[[], Subject]) -> None:
    subject = make()
    report = crashtest(subject.graph, subject.input, crashes=2, **subject.options)
    assert report.crashes > report.scenarios > len(report.effects)
