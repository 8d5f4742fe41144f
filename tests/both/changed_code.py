"""Changes of code that runs are open for: a flow as it was, the flow as it is now, and what is to become of its run.

Each flow has a name of its own, so that one store has a run of each. `begin` makes these runs with the code as it was.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, NamedTuple

from milepost import END, CompiledGraph, Graph, Retry, RunSuspended, Store, WorkflowContext, step, workflow
from milepost.errors import RunStopped, StepError
from milepost.reducers import append


class Change(NamedTuple):
    """A change of code. `verdict` is what a resume of the run would do with the code as it is now."""

    name: str
    before: Any
    now: Any
    verdict: str


def same(state: Any) -> Any:
    return state


def other(state: Any) -> Any:
    return dict(state)


def line(ids: str, state: Any = dict[str, Any], fn: Callable[[Any], Any] = same, **options: Any) -> Graph[Any]:
    """Nodes in a row."""
    graph: Graph[Any] = Graph(state)
    for node_id in ids:
        graph.add_node(node_id, fn, **options)
    for one, next_one in itertools.pairwise(ids):
        graph.add_edge(one, next_one)
    return graph.add_edge(ids[-1], END).set_entry(ids[0])


def record(name: str, **fields: Any) -> Any:
    """A state with these fields; those that are given as a pair have a default."""
    parts = [
        (key, kind) if isinstance(kind, type) else (key, kind[0], field(default=kind[1]))
        for key, kind in fields.items()
    ]
    return make_dataclass(name, parts)


def waiting(signal: str | None = "go", first: str = "a") -> Graph[Any]:
    graph: Graph[Any] = Graph(dict[str, Any]).add_node(first, same)
    if signal is None:
        return graph.add_edge(first, END).set_entry(first)
    graph.add_wait("b", signal, apply=lambda state, reply: state)
    return graph.add_edge(first, "b").add_edge("b", END).set_entry(first)


@dataclass
class Parts:
    told: Annotated[list[str], append] = field(default_factory=list)


def fork(*branches: str) -> Graph[Any]:
    """Branches of two nodes each; the runs stop after the first of them."""
    graph = Graph(Parts).add_node("a", same).add_node("z", same).add_edge("z", END).set_entry("a")
    for name in branches:
        graph.add_node(name, same).add_wait(f"{name}2", "go", apply=lambda state, reply: state)
        graph.add_edge("a", name).add_edge(name, f"{name}2").add_edge(f"{name}2", "z")
    return graph


def routed(*targets: str) -> Graph[Any]:
    graph: Graph[Any] = Graph(dict[str, Any]).add_node("a", same)
    for target in targets:
        graph.add_node(target, same).add_edge(target, END)
    return graph.add_conditional_edge("a", lambda state: "b", [*targets]).set_entry("a")


Count, Counts, Total = record("Count", n=int), record("Counts", n=int, m=int), record("Total", n=str)
More, Fewer = record("More", n=int, m=(int, 0)), record("Fewer", m=(int, 0))

GRAPHS: tuple[tuple[str, Graph[Any], Graph[Any], str], ...] = (
    ("the body of a node", line("abcd"), line("abcd", fn=other), "continue"),
    ("the retries of a node", line("abcd"), line("abcd", retry=Retry(3)), "continue"),
    ("a new node at the end", line("abcd"), line("abcde"), "continue"),
    ("a new node further on", line("abcd"), line("abcxd"), "continue"),
    ("a new node at once", line("abcd"), line("abxcd"), "continue"),
    ("a node that is done is gone", line("abcd"), line("bcd"), "continue"),
    ("the next node is renamed", line("abcd"), line("abxd"), "refuse"),
    ("the next node is gone", line("abcd"), line("abd"), "refuse"),
    ("the nodes that follow are swapped", line("abcd"), line("abdc"), "continue"),
    ("a new field with a default", line("abcd", Count), line("abcd", More), "continue"),
    ("a new field without a default", line("abcd", Count), line("abcd", Counts), "refuse"),
    ("another type of a field", line("abcd", Count), line("abcd", Total), "refuse"),
    ("a field is gone", line("abcd", Count), line("abcd", Fewer), "refuse"),
    ("another target of a router", routed("b", "c"), routed("b", "d"), "continue"),
    ("the target of a router is gone", routed("b", "c"), routed("c", "d"), "refuse"),
    ("a wait is gone", waiting(), waiting(None), "refuse"),
    ("a node before a wait is renamed", waiting(), waiting(first="x"), "waiting"),
    ("a branch that is open is gone", fork("b", "c"), fork("b", "d"), "refuse"),
    ("a new branch of a fork that is open", fork("b", "c"), fork("b", "c", "d"), "waiting"),
)


def fetch(region: str) -> str:
    return f"rows of {region}"


def get(place: str) -> str:
    return "others"


def fetch_list(region: str) -> list[str]:
    return [region]


def load(rows: Any) -> int:
    return len(rows)


def undo(ctx: Any, output: Any) -> None:
    pass


Rows, MoreRows = record("Rows", n=int), record("Rows", n=int, m=(int, 0))


def rows_of(region: str) -> Any:
    return Rows(1)


def more_rows_of(region: str) -> Any:
    return MoreRows(1)


rows_of.__annotations__["return"], more_rows_of.__annotations__["return"] = Rows, MoreRows


def steps(*asked: Any) -> Callable[..., Any]:
    """The code of a workflow that asks for these steps in order, then waits."""

    def ingest(region: str) -> Iterator[Any]:
        for one in (*asked, step("release").wait_for("release")):  # noqa: UP028 - a tuple takes no results
            yield one

    return ingest


FETCH = step("fetch").python(fetch, args=("eu",))
LOAD = step("load").python(load, args=("x",))
WAS = steps(FETCH, LOAD)


def with_default(region: str, retries: int = 3) -> Iterator[Any]:
    yield from WAS(region)


def without_default(region: str, retries: int) -> Iterator[Any]:
    yield from WAS(region)


def by_version(ctx: WorkflowContext, region: str) -> Iterator[Any]:
    if ctx.version >= 2:
        yield step("check").python(fetch, args=("eu",))
    yield from WAS(region)


def with_bug(region: str) -> Iterator[Any]:
    yield FETCH
    yield LOAD
    yield None.step  # type: ignore[attr-defined]


async def awaited(region: str) -> None:
    await FETCH
    await LOAD
    await step("release").wait_for("release")


def later(*asked: Any) -> Callable[..., Any]:
    def ingest(region: str) -> Iterator[Any]:
        yield from WAS(region)
        yield from asked

    return ingest


def waits(*args: Any, **options: Any) -> Callable[..., Any]:
    def ingest(region: str) -> Iterator[Any]:
        yield FETCH
        yield LOAD
        yield step("release").wait_for(*args, **options)

    return ingest


def caught(region: str) -> Iterator[Any]:
    with contextlib.suppress(StepError):
        yield from WAS(region)


WORKFLOWS: tuple[tuple[str, Callable[..., Any], Callable[..., Any], str], ...] = (
    ("nothing but the kind of function", WAS, awaited, "waiting"),
    ("the body of a step", WAS, steps(step("fetch").python(get, args=("eu",)), LOAD), "waiting"),
    ("the retries of a step", WAS, steps(FETCH.retry(3), LOAD), "waiting"),
    ("a new step after what is recorded", WAS, later(step("more").python(load, args=("x",))), "waiting"),
    ("code between steps", WAS, caught, "waiting"),
    ("a new input with a default", WAS, with_default, "waiting"),
    ("a new input without a default", WAS, without_default, "refuse"),
    ("a branch on the version", WAS, by_version, "waiting"),
    ("another argument", WAS, steps(step("fetch").python(fetch, args=("us",)), LOAD), "refuse"),
    ("another argument that is not compared", WAS,
     steps(step("fetch").python(fetch, args=("us",)).compare_args(False), LOAD), "waiting"),
    ("a new step before a recorded one", WAS, steps(step("check").python(get, args=("x",)), FETCH, LOAD), "refuse"),
    ("a recorded step is gone", WAS, steps(LOAD), "refuse"),
    ("recorded steps are swapped", WAS, steps(LOAD, FETCH), "refuse"),
    ("a recorded step is renamed", WAS, steps(step("download").python(fetch, args=("eu",)), LOAD), "refuse"),
    ("another kind of step", WAS, steps(step("fetch").sleep(1), LOAD), "refuse"),
    ("another type of an output", WAS, steps(step("fetch").python(fetch_list, args=("eu",)), LOAD), "refuse"),
    ("a new field with a default in an output", steps(step("fetch").python(rows_of, args=("eu",))),
     steps(step("fetch").python(more_rows_of, args=("eu",))), "waiting"),
    ("another signal", WAS, waits("confirm"), "refuse"),
    ("another timeout of a wait", WAS, waits("release", timeout=60), "waiting"),
    ("a rollback is taken away", steps(FETCH.with_rollback(undo), LOAD), WAS, "waiting"),
    ("a bug", WAS, with_bug, "refuse"),
)  # fmt: skip


def changes() -> list[Change]:
    """All changes; the names of flows are those of the changes."""
    made = [Change(name, before.compile(name), now.compile(name), verdict) for name, before, now, verdict in GRAPHS]
    for name, before, now, verdict in WORKFLOWS:
        version = 2 if now is by_version else 1
        made.append(Change(name, workflow(name)(before), workflow(name, version=version)(now), verdict))
    return made


def begin(store: Store, found: list[Change]) -> None:
    """Make a run of each change with the code as it was, called by the change's name."""
    for change in found:
        with contextlib.suppress(RunSuspended, RunStopped):
            if not isinstance(change.before, CompiledGraph):
                change.before.run(store=store, run_id=change.name, region="eu")
                continue
            stop = "b" if change.before.has_node("d") else "a"
            state = change.before._definition.codec.type
            start = {} if state == dict[str, Any] else state() if state is Parts else state(1)
            options = {} if change.before.forks or "wait" in change.name else {"stop_after": [stop]}
            change.before.run(start, store=store, run_id=change.name, **options)
