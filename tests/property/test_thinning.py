"""Thinned runs beside whole ones: whatever is done with what was kept gives the same in both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from milepost import END, CompiledGraph, Graph, MemoryStore, MilepostError
from milepost.model.info import CheckpointInfo
from thoroughness import examples

STATUSES = ("finished", "failed", "interrupted")
NODES = "abc"


@dataclass
class Walk:
    trail: list[str] = field(default_factory=list)


class Step(NamedTuple):
    """Something that is done with a run."""

    verb: str
    node_id: str
    visit: int
    stop_after: str
    is_overridden: bool


class Faults:
    """Which calls of nodes fail, counted from now on."""

    def __init__(self, calls: set[int]) -> None:
        self.calls = calls
        self.count = 0

    def meet(self) -> None:
        self.count += 1
        if self.count in self.calls:
            raise RuntimeError("as was drawn")


def walk(plan: str, faults: Faults) -> CompiledGraph[Walk]:
    """A graph that visits the nodes of `plan` one after the other, wherever it is resumed."""
    graph = Graph(Walk)

    def body(node_id: str) -> Callable[[Walk], Walk]:
        def visit(state: Walk) -> Walk:
            faults.meet()
            return Walk([*state.trail, node_id])

        return visit

    def onwards(state: Walk) -> str:
        faults.meet()
        done = len(state.trail)
        return plan[done] if done < len(plan) else END

    for node_id in NODES:
        graph.add_node(node_id, body(node_id)).add_conditional_edge(node_id, onwards, [*NODES, END])
    return graph.set_entry(plan[0]).compile("walk")


def copy_of(data: bytes) -> MemoryStore:
    """A store with that run and no other."""
    store = MemoryStore()
    store.import_run(data)
    return store


def outcome(act: Callable[[], Any]) -> object:
    """What a verb gives, or how it refuses."""
    try:
        return act()
    except MilepostError as error:
        return type(error)


def after(store: MemoryStore, sequence: int) -> list[tuple[int, str, str, int, bytes | None]]:
    """What was recorded after that number."""
    return [(r.sequence, r.kind, r.node_id, r.visit, r.payload) for r in store.read("r", after=sequence)]


def key(info: CheckpointInfo) -> tuple[int, str, int, bool]:
    return info.sequence, info.node_id, info.visit, info.superseded


steps = st.builds(
    Step,
    verb=st.sampled_from(["resume", "retry", "resume_from", "resume_from"]),
    node_id=st.sampled_from(NODES),
    visit=st.integers(1, 5),
    stop_after=st.sampled_from(["", *NODES]),
    is_overridden=st.booleans(),
)


@settings(max_examples=examples(60), deadline=None)
@given(
    plan=st.text(NODES, min_size=3, max_size=12),
    done=st.lists(steps, max_size=5),
    faults=st.sets(st.integers(1, 60), max_size=4),
    keep_last=st.integers(1, 3),
)
def test_what_was_kept_is_as_good_as_in_a_whole_run(
    plan: str, done: list[Step], faults: set[int], keep_last: int
) -> None:
    """Each node keeps its newest visits; a visit that stays can be resumed from as before."""
    store, met = MemoryStore(), Faults(faults)
    graph = walk(plan, met)
    with suppress(MilepostError):
        graph.run(Walk(), store=store, run_id="r")
    for step in done:
        options: dict[str, Any] = {"stop_after": step.stop_after} if step.stop_after else {}
        if step.is_overridden:
            options["state_override"] = lambda state: Walk([*state.trail[:-1], "x"])
        with suppress(MilepostError):
            if step.verb == "resume_from":
                graph.resume_from(store, "r", step.node_id, visit=step.visit, **options)
            else:
                getattr(graph, step.verb)(store, "r", **options)
    met.calls.clear()
    data = store.export("r")
    whole_history = store.history("r")
    store.prune(keep_last=keep_last, statuses=STATUSES)
    thinned = store.export("r")
    kept = store.history("r")

    assert store.verify("r").ok
    assert {key(info) for info in kept} <= {key(info) for info in whole_history}
    for node_id in NODES:
        live = [info for info in whole_history if info.node_id == node_id and not info.superseded]
        assert {key(info) for info in live[-keep_last:]} <= {key(info) for info in kept}
    newest = store.get_run("r").info.sequence
    verbs: list[Callable[[MemoryStore], Any]] = [
        lambda s: graph.resume(s, "r"),
        lambda s: graph.retry(s, "r"),
        lambda s: graph.resume(s, "r", on_corrupt="previous"),
        lambda s: (graph.plan_resume(s, "r").verdict, graph.plan_resume(s, "r").next_node),
        *(
            lambda s, i=info: graph.resume_from(s, "r", i.node_id, visit=i.visit)  # type: ignore[misc]
            for info in kept
        ),
    ]
    for verb in verbs:
        before, then = copy_of(data), copy_of(thinned)
        assert outcome(lambda: verb(before)) == outcome(lambda: verb(then))  # noqa: B023
        assert [row[:4] for row in after(before, newest)] == [row[:4] for row in after(then, newest)]
        assert after(before, newest)[-1:] == after(then, newest)[-1:]
        assert then.verify("r").ok
        assert before.get_run("r").info.status == then.get_run("r").info.status
