"""A flow that runs as a step and is half done goes on only if the code asks for it with the arguments that it began with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dying import crash

from milepost import END, Graph, MemoryStore, NodeError, StepError, branch, parallel, step, workflow
from milepost.errors import NonDeterminismError
from milepost.events import Progress
from milepost.views.journal import read_entries
from milepost.views.tree import tree_of


class Bodies:
    """The work of the flows inside; what is in `deadly` dies, what is in `broken` fails."""

    def __init__(self, verbs: Any) -> None:
        self.verbs = verbs
        self.deadly: set[str] = set()
        self.broken: set[str] = set()
        self.calls: list[str] = []

    def of(self, name: str) -> Any:
        """A function that returns what it is given."""

        def work(given: Any) -> Any:
            self.calls.append(name)
            if name in self.deadly:
                raise self.verbs.Killed
            if name in self.broken:
                raise ValueError(name)
            return given

        return self.verbs.node(work)

    def workflow(self) -> Any:
        """A workflow whose steps are always asked for with the same arguments."""

        @workflow("inner")
        def inner(n: int = 0) -> Any:
            yield step("first").python(self.of("first"), args=(0,))
            yield step("last").python(self.of("last"), args=(0,))
            return n

        return inner

    def graph(self) -> Any:
        graph = Graph(dict[str, int]).add_node("first", self.of("first")).add_node("last", self.of("last"))
        return graph.add_edge("first", "last").add_edge("last", END).set_entry("first").compile("inner")

    def outer(self, kind: str, n: int, modify: Callable[[Any], Any] = lambda asked: asked) -> Any:
        """A workflow that has the flow inside done with `n`."""
        flow = self.graph() if kind == "graph" else self.workflow()
        asked = modify(step("s").subworkflow(flow, {"n": n}))

        @workflow("middle")
        def middle(n: int = 0) -> Any:
            yield asked
            return 0

        whole = {
            "parallel": lambda: parallel("p", step("beside").python(self.of("beside"), args=(0,)), asked),
            "branch": lambda: branch("p", (lambda ctx: True, asked)),
            "nested": lambda: step("p").subworkflow(middle),
            "deep": lambda: step("p").subworkflow(middle, {"n": n}),
        }.get(kind, lambda: asked)

        @workflow("outer")
        def outer() -> Any:
            yield whole()
            return "done"

        return outer


@pytest.fixture
def store(medium, clock) -> Any:
    """A store whose leases are over when a process has died."""
    return medium.open(clock=clock)


@pytest.fixture
def bodies(verbs) -> Bodies:
    return Bodies(verbs)


KINDS = ("workflow", "graph", "nested", "parallel", "branch")
"""What runs inside, or where a workflow runs inside."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_half_done_flow_is_refused_with_other_arguments_after_a_crash(verbs, store, bodies, kind):
    bodies.deadly = {"last"}
    crash(verbs, bodies.outer(kind, 1), store, "r1", {})
    bodies.deadly = set()
    before = store.export("r1"), store.get_run("r1").info
    with pytest.raises(NonDeterminismError, match=r'/?s\'.*"n":1.*"n":2.*compare_args'):
        verbs.resume(bodies.outer(kind, 2), store, "r1")
    assert before == (store.export("r1"), store.get_run("r1").info)
    assert "done" == verbs.resume(bodies.outer(kind, 1), store, "r1")
    assert 1 == bodies.calls.count("first")


@pytest.mark.parametrize("kind", ["workflow", "graph"])
def test_a_half_done_flow_whose_arguments_are_not_compared_goes_on_with_others(verbs, store, bodies, kind):
    def lenient(asked: Any) -> Any:
        return asked.compare_args(False)

    bodies.deadly = {"last"}
    crash(verbs, bodies.outer(kind, 1, lenient), store, "r1", {})
    bodies.deadly = set()
    assert "done" == verbs.resume(bodies.outer(kind, 2, lenient), store, "r1")
    assert ["first", "last", "last"] == bodies.calls


@pytest.mark.parametrize("kind", ["workflow", "graph", "deep"])
def test_a_flow_of_which_nothing_is_recorded_but_a_failure_takes_other_arguments(verbs, store, bodies, kind):
    bodies.broken = {"first"}
    with pytest.raises((StepError, NodeError)):
        verbs.run(bodies.outer(kind, 1), store=store, run_id="r1")
    bodies.broken, bodies.deadly = set(), {"last"}
    crash(verbs, bodies.outer(kind, 2), store, "r1")
    bodies.deadly = set()
    # From now on there is a result that was got with the second arguments.
    for other in (1, 3):
        with pytest.raises(NonDeterminismError, match=f'"n":2.*"n":{other}'):
            verbs.resume(bodies.outer(kind, other), store, "r1")
    assert "done" == verbs.resume(bodies.outer(kind, 2), store, "r1")


@pytest.mark.parametrize("kind", ["workflow", "graph"])
def test_a_half_done_flow_that_failed_is_refused_with_other_arguments(verbs, store, bodies, kind):
    bodies.broken = {"last"}
    with pytest.raises((StepError, NodeError)):
        verbs.run(bodies.outer(kind, 1), store=store, run_id="r1")
    bodies.broken = set()
    with pytest.raises(NonDeterminismError, match=r'"n":1.*"n":2'):
        verbs.retry(bodies.outer(kind, 2), store, "r1")
    assert "done" == verbs.retry(bodies.outer(kind, 1), store, "r1")


def test_a_half_done_flow_is_refused_as_a_step_of_another_kind(verbs, store, bodies):
    bodies.deadly = {"last"}
    crash(verbs, bodies.outer("workflow", 1), store, "r1", {})

    @workflow("outer")
    def other() -> Any:
        return (yield step("s").map(int, [1]))

    with pytest.raises(NonDeterminismError, match=r"subworkflow step 's'.*\"n\":1.*map step 's'"):
        verbs.resume(other, store, "r1")


@pytest.mark.parametrize("kind", ["workflow", "graph", "nested"])
def test_the_arguments_of_a_flow_are_recorded_in_the_first_write_inside_it(verbs, bodies, kind):
    written: list[list[tuple[str, str]]] = []

    class Watched(MemoryStore):
        def append(self, batch: Any) -> Any:
            written.extend([(record.kind, record.node_id) for record in append.records] for append in batch)
            return super().append(batch)

    with Watched() as store:
        verbs.run(bodies.outer(kind, 1), store=store, run_id="r1")
    around, s = ([("items", "p")], "p/s") if kind == "nested" else ([], "s")
    first, second = written[:2]
    assert [*around, ("items", s), ("checkpoint", f"{s}/first")] == first
    assert [("checkpoint", f"{s}/last")] == second
    assert not any(kind == "items" for batch in written[1:] for kind, _ in batch)


def test_arguments_that_could_not_be_written_are_written_with_the_next_record_inside(verbs, bodies):
    class Failing(MemoryStore):
        trouble = 1

        def append(self, batch: Any) -> Any:
            if self.trouble and any(record.kind == "items" for append in batch for record in append.records):
                self.trouble -= 1
                raise OSError("full")
            return super().append(batch)

    for kind in ("workflow", "graph"):
        with Failing() as store:
            bodies.broken = {"last"}
            with pytest.raises((StepError, NodeError)):
                verbs.run(bodies.outer(kind, 1), store=store, run_id="r1", checkpoint_failure_fatal=False)
            missed = ("s/first#1",) if kind == "graph" else ()  # a step's record is written with the next one
            assert (1, missed) == (len(store.read("r1", kinds=("items",))), store.get_run("r1").info.missed)
            bodies.broken = set()
            assert "done" == verbs.retry(bodies.outer(kind, 1), store, "r1")


def test_a_half_done_flow_is_shown_as_one_and_not_as_a_map(verbs, store, bodies):
    bodies.deadly = {"last"}
    crash(verbs, bodies.outer("workflow", 1), store, "r1", {})
    [shown] = tree_of(store.read("r1"), store.latest("r1")).steps
    assert ("s", "subworkflow", "in flight") == (shown.step_id, shown.step_type, shown.status)
    assert ["a flow begins as this step"] == [line.note for line in read_entries(store, "r1") if line.kind == "items"]
    bodies.deadly = set()
    told = verbs.resume_stream(bodies.outer("workflow", 1), store, "r1")
    assert not any(isinstance(event, Progress) for event in told)
