"""Random graphs with loops, turns, random failures and random crashes: the end is always that of the undisturbed run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st

from milepost import END, CompiledGraph, Context, Graph, Retry, SQLiteStore
from milepost.testing import Crash, crashtest
from thoroughness import examples

LIMIT = 10
"""After so many nodes every router leads forwards, so that each graph ends."""


@dataclass
class State:
    steps: int = 0
    trail: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class NodePlan:
    """A node of a random graph: it leads to the next one, or where its router says."""

    has_policy: bool
    is_async: bool
    changes_in_place: bool
    targets: tuple[int, ...]
    """Further nodes that its router may choose, by number; () for a simple edge to the next node."""


@dataclass(frozen=True)
class Plan:
    """A random graph and what goes wrong in it. Failures are by the number of the step in which they happen."""

    nodes: tuple[NodePlan, ...]
    answers: tuple[int, ...]
    """What routers draw from."""
    node_failures: dict[int, int]
    """How often the node of that step fails, as far as its policy allows."""
    router_failures: frozenset[int]
    """The steps whose router fails when it is first asked."""
    turns: tuple[int, ...] = ()
    """The step at which each further turn of the run begins."""

    @property
    def resumes(self) -> int:
        """How often a run of it may stop by itself."""
        return len(self.node_failures) + len(self.router_failures)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 4))
    node = st.builds(
        NodePlan,
        has_policy=st.booleans(),
        is_async=st.booleans(),
        changes_in_place=st.booleans(),
        targets=st.lists(st.integers(0, count), max_size=3, unique=True).map(tuple),
    )
    return Plan(
        nodes=tuple(draw(st.lists(node, min_size=count, max_size=count))),
        answers=tuple(draw(st.lists(st.integers(0, 7), min_size=1, max_size=5))),
        node_failures=draw(st.dictionaries(st.integers(0, LIMIT), st.integers(1, 2), max_size=3)),
        router_failures=draw(st.frozensets(st.integers(0, LIMIT), max_size=2)),
        turns=tuple(draw(st.lists(st.integers(0, LIMIT), max_size=2))),
    )


CRASHES = st.lists(st.builds(Crash, st.integers(0, 30), st.booleans()), min_size=1, max_size=4)


class World:
    """What nodes and routers meet outside their state: it fails as planned, and knows nothing of crashes."""

    def __init__(self) -> None:
        self.failed: Counter[tuple[str, int]] = Counter()

    def clear(self) -> None:
        self.failed.clear()

    def fail(self, what: str, step: int, times: int) -> None:
        if self.failed[what, step] < times:
            self.failed[what, step] += 1
            raise OSError(f"{what} of step {step} fails for the {self.failed[what, step]}. time")


def build(plan: Plan, world: World) -> CompiledGraph[State]:
    graph = Graph(State)
    for number, node in enumerate(plan.nodes):
        following = name_of(number + 1, plan)
        policy = Retry(max_attempts=3, backoff=1.0) if node.has_policy else None
        graph.add_node(f"n{number}", node_of(number, node, plan, world), retry=policy)
        if node.targets:
            known = {following, *(name_of(target, plan) for target in node.targets)}
            graph.add_conditional_edge(f"n{number}", router_of(number, node, plan, world), sorted(known))
        else:
            graph.add_edge(f"n{number}", following)
    return graph.set_entry("n0").compile("random")


def name_of(number: int, plan: Plan) -> str:
    return f"n{number}" if number < len(plan.nodes) else END


def node_of(number: int, node: NodePlan, plan: Plan, world: World) -> Callable[..., Any]:
    def run(ctx: Context[Any], state: State) -> State:
        step = state.steps
        mark = f"n{number}#{ctx.visit}"
        after = state if node.changes_in_place else State(state.steps, list(state.trail))
        after.steps += 1
        after.trail.append(mark)
        # Only now, so that an attempt that fails has changed its state already.
        allowed = 2 if node.has_policy else 1
        world.fail("node", step, min(allowed, plan.node_failures.get(step, 0)))
        return after

    async def run_later(ctx: Context[Any], state: State) -> State:
        return run(ctx, state)

    return run_later if node.is_async else run


def router_of(number: int, node: NodePlan, plan: Plan, world: World) -> Callable[..., Any]:
    def route(state: State) -> str:
        if state.steps in plan.router_failures:
            world.fail("router", state.steps, 1)
        following = number + 1
        if state.steps < LIMIT:
            choices = (following, *node.targets)
            following = choices[plan.answers[state.steps % len(plan.answers)] % len(choices)]
        return name_of(following, plan)

    return route


def check(plan: Plan, crashes: list[Crash], **options: Any) -> None:
    world = World()
    graph = build(plan, world)
    turns = [State(step) for step in plan.turns]
    report = crashtest(
        graph,
        State(),
        crashes=crashes,
        turns=turns,
        before=world.clear,
        resumes=plan.resumes,
        max_crashes=None,
        **options,
    )
    note(f"undisturbed: {', '.join(report.calls)}")
    event(f"{report.crashes} crashes")
    event(f"a loop was taken: {any(not call.endswith('#1') for call in report.calls)}")


@settings(deadline=None, max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow])
@given(plans(), CRASHES)
def test_a_random_run_ends_as_if_undisturbed_wherever_it_dies(plan: Plan, crashes: list[Crash]):
    check(plan, crashes)


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(plans(), CRASHES)
def test_a_random_run_in_a_file_ends_as_if_undisturbed_wherever_it_dies(plan: Plan, crashes: list[Crash]):
    with TemporaryDirectory() as folder:
        check(plan, crashes, store=lambda clock: SQLiteStore(Path(folder) / "runs.db", clock=clock))


@pytest.mark.wide
@settings(deadline=None, max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow])
@given(plans())
def test_a_random_run_ends_as_if_undisturbed_after_each_single_crash(plan: Plan):
    world = World()
    crashtest(build(plan, world), State(), before=world.clear, resumes=plan.resumes)
