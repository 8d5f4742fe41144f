"""The number of the attempt after a crash: a crash counts only against what may have begun before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dying import crash

from milepost import END, Graph, NodeError, Retry, branch, current, step, workflow

pytestmark = pytest.mark.stores("sqlite")  # what is abandoned on a memory store has not crashed


class Notes:
    """What was called, with its attempt; who is in `deadly` dies once."""

    def __init__(self, verbs: Any) -> None:
        self.verbs = verbs
        self.deadly: set[str] = set()
        self.calls: list[str] = []

    def node(self, name: str) -> Any:
        """A node, or the function for an item, that returns what it is given."""

        def noting(given: Any) -> Any:
            self.attempt(name)
            return given

        return self.verbs.node(noting)

    def step(self, name: str, gives: Callable[[], Any] = int) -> Any:
        """The function of a step without arguments."""

        def noting() -> Any:
            self.attempt(name)
            return gives()

        return self.verbs.node(noting)

    def asked(self, name: str, answer: Any = True) -> Any:
        """A function that decides something and is no attempt."""

        def noting(given: Any) -> Any:
            self.note(name, name)
            return answer

        return noting

    def attempt(self, name: str) -> None:
        self.note(f"{current().node_id} {current().attempt}", name)

    def note(self, text: str, name: str) -> None:
        self.calls.append(text)
        if name in self.deadly:
            raise self.verbs.Killed

    def after_a_crash(self, flow: Any, store: Any, clock: Any, given: Any, *deadly: str) -> list[str]:
        """What is called after the process has died in each of `deadly`, one after the other."""
        for number, name in enumerate(deadly):
            self.deadly, self.calls = {name}, []
            crash(self.verbs, flow, store, "r", None if number else given, clock=clock)
        self.deadly, self.calls = set(), []
        self.verbs.resume(flow, store, "r", clock=clock)
        return self.calls


@pytest.fixture
def notes(verbs):
    return Notes(verbs)


def first(state: dict[str, Any], states: dict[str, Any]) -> dict[str, Any]:
    return state


def beside(given: Any) -> Any:
    """A node that runs while another one dies, and so may be recorded by then or not."""
    return given


def forked(notes: Notes, join: Callable[[Any], Any] | None = None) -> Any:
    graph = Graph(dict)
    for name in "fb":
        graph.add_node(name, notes.node(name))
    graph.add_node("a", notes.verbs.node(beside))
    (join or (lambda graph: graph.add_node("j", notes.node("j"), merge=first)))(graph)
    for source, target in ("fa", "fb", "aj", "bj"):
        graph.add_edge(source, target)
    return graph.add_edge("j", END).set_entry("f").compile("forked")


def test_a_join_that_had_not_begun_is_at_its_first_attempt(notes, timed, clock):
    assert ["b 2", "j 1"] == notes.after_a_crash(forked(notes), timed, clock, {}, "b")


def test_a_join_that_had_begun_is_at_its_second_attempt(notes, timed, clock):
    assert ["j 2"] == notes.after_a_crash(forked(notes), timed, clock, {}, "b", "j")


def test_a_graph_that_is_a_join_begins_with_a_first_attempt(notes, timed, clock):
    inner = Graph(dict).add_node("x", notes.node("x")).add_edge("x", END).set_entry("x").compile("inner")
    graph = forked(notes, lambda graph: graph.add_subgraph("j", inner, merge=first))
    assert ["b 2", "j/x 1"] == notes.after_a_crash(graph, timed, clock, {}, "b")


@pytest.mark.wide
def test_a_join_inside_a_graph_and_a_branch_counts_alike(notes, timed, clock):
    inner = forked(notes)
    graph = (
        Graph(dict)
        .add_node("p", notes.node("p"))
        .add_node("q", notes.verbs.node(beside))
        .add_node("r", notes.node("r"))
    )
    graph.add_subgraph("s", inner).add_node("e", notes.node("e"), merge=first)
    for source, target in ("pq", "ps", "qe", "sr", "re"):
        graph.add_edge(source, target)
    graph = graph.add_edge("e", END).set_entry("p").compile("outer")
    assert ["s/b 2", "s/j 1", "r 1", "e 1"] == notes.after_a_crash(graph, timed, clock, {}, "b")


def test_items_begin_after_the_function_that_gave_them(notes, timed, clock):
    graph = Graph(dict).add_map("m", notes.asked("over", [1, 2]), notes.node("i"), merge=lambda s, r: s)
    graph = graph.add_edge("m", END).set_entry("m").compile("maps")
    before, *items = notes.after_a_crash(graph, timed, clock, {}, "over")
    assert ("over", ["m/0 1", "m/1 1"]) == (before, sorted(items))  # items run at the same time


def test_a_crash_before_a_late_answer_of_a_router_does_not_count(verbs, notes, timed, clock):
    errors = [ValueError("no answer")]

    def route(state: Any) -> str:
        if errors:
            raise errors.pop()
        return str(notes.asked("route", "b")(state))

    def b(state: Any) -> Any:
        notes.attempt("b")
        raise ValueError("no")

    graph = Graph(dict).add_node("a", notes.node("a")).add_node("b", verbs.node(b))
    graph = graph.add_conditional_edge("a", route, ["b", END]).add_edge("b", END).set_entry("a").compile("routed")
    with pytest.raises(NodeError):
        verbs.run(graph, {}, store=timed, run_id="r", clock=clock)
    notes.deadly = {"route"}
    crash(verbs, graph, timed, "r", clock=clock)
    notes.deadly, notes.calls = set(), []
    for _ in range(2):
        with pytest.raises(NodeError):
            verbs.resume(graph, timed, "r", clock=clock)
    assert ["route", "b 1", "b 2"] == notes.calls


# -- workflows ---------------------------------------------------------------------------------------------------


def test_a_step_of_a_workflow_inside_does_not_count_earlier_crashes(notes, timed, clock):
    @workflow("inner")
    def inner() -> Any:
        return (yield step("x").python(notes.step("x")))

    @workflow("outer")
    def outer() -> Any:
        yield step("a").python(notes.step("a"))
        return (yield step("s").subworkflow(inner, {}))

    assert ["a 2", "s/x 1"] == notes.after_a_crash(outer, timed, clock, {}, "a")


@pytest.mark.parametrize(("deadly", "after"), [("chooses", "chooses|c/o 1|when|w 1"), ("when", "when|w 1")])
def test_what_a_predicate_chose_begins_after_the_predicate(notes, timed, clock, deadly, after):
    @workflow("chooses")
    def flow() -> Any:
        option = step("o").python(notes.step("o"))
        yield branch("c", (notes.asked("chooses"), option))
        yield step("w").python(notes.step("w")).when(notes.asked("when"))

    assert after.split("|") == notes.after_a_crash(flow, timed, clock, {}, deadly)


def test_the_step_of_an_on_error_does_not_count_crashes_of_the_failed_one(notes, timed, clock):
    def fails() -> int:
        raise ValueError("no")

    @workflow("recovers")
    def flow() -> Any:
        other = step("other").python(notes.step("other"))
        yield step("a").python(notes.step("a", fails)).retry(Retry(5, backoff=0)).on_error(lambda ctx, failed: other)

    assert ["a 2", "a 3", "a 4", "a 5", "a 6", "a/other 1"] == notes.after_a_crash(flow, timed, clock, {}, "a")


def test_a_graph_in_a_workflow_does_not_count_crashes_before_it(notes, timed, clock):
    inner = (
        Graph(dict).add_node("x", notes.node("x")).add_node("y", notes.node("y")).add_edge("x", "y").add_edge("y", END)
    )
    graph = inner.set_entry("x").compile("inner")

    @workflow("around")
    def flow() -> Any:
        yield step("a").python(notes.step("a"))
        yield step("g").subworkflow(graph, {})

    assert ["a 2", "g/x 1", "g/y 1"] == notes.after_a_crash(flow, timed, clock, {}, "a")
