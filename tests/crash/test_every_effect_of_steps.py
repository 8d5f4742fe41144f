"""Workflows that die at every moment at which they can die, and end as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crashes_of_steps import Outside, Subject, World, crash_everywhere, play, refused_after_crashes

from milepost import (
    END,
    Graph,
    Retry,
    SQLiteStore,
    Steps,
    Store,
    WorkflowContext,
    WorkflowError,
    branch,
    current,
    parallel,
    step,
    workflow,
)
from milepost.model.ids import Clock


class Bodies:
    """What the steps of one run do: each tells the world of itself."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside

    def double(self, value: int) -> int:
        self.outside.note(f"do {current().node_id}")
        return 2 * value

    async def double_later(self, value: int) -> int:
        return self.double(value)

    def fail(self, value: int) -> int:
        self.outside.note(f"do {current().node_id}")
        raise ValueError(f"not with {value}")

    def fail_twice(self, value: int) -> int:
        ctx = current()
        self.outside.note(f"do {ctx.node_id}")
        self.outside.note(f"do {ctx.node_id} attempt {ctx.attempt}", is_counted=False)
        told = f"do {ctx.node_id} attempt"
        if sum(settled.startswith(told) for settled in self.outside.world.settled) < 2:
            raise OSError("not yet")
        return value

    def add(self, state: dict[str, int]) -> dict[str, int]:
        local = current().node_id
        self.outside.note(f"do {local}")
        return {**state, local.rpartition("/")[2]: len(state)}

    def answer(self, name: str, verdict: bool) -> Callable[[Any], bool]:
        def predicate(ctx: Any) -> bool:
            self.outside.note(f"ask {name}")
            return verdict

        return predicate

    def undo(self, ctx: Any, output: Any) -> None:
        self.outside.note(f"undo {current().node_id}")

    def fail_to_undo(self, ctx: Any, output: Any) -> None:
        self.outside.note(f"undo {current().node_id}")
        raise ValueError("it stays")


def make_everything(outside: Outside) -> Any:
    """A workflow that uses every construct."""
    do = Bodies(outside)
    graph = Graph(dict[str, int]).add_node("n", do.add).add_node("m", do.add)
    compiled = graph.add_edge("n", "m").add_edge("m", END).set_entry("n").compile("graph")

    @workflow("innermost")
    def innermost(ctx: WorkflowContext[Any], a: int) -> Steps[int]:
        x = yield from step("leaf").python(do.double, args=(a,)).with_rollback(do.undo)
        yield from step("pause").sleep(60)
        return x + int(10 * ctx.random())

    @workflow("inner")
    def inner(a: int) -> Steps[int]:
        x = yield from step("first").python(do.double, args=(a,))
        y = yield from step("deep").subworkflow(innermost, {"a": x})
        z = yield from step("last").python(do.double, args=(y.final_output,))
        return z

    @workflow("everything")
    def everything(ctx: WorkflowContext[Any], n: int) -> Steps[list[Any]]:
        told: list[Any] = [ctx.random(), str(ctx.uuid4())]
        told.append((yield step("at").python(do.double, args=(n,))))
        # What the clock says is an argument, so that a replay would find another.
        now = ctx.now().isoformat()
        told.append((yield step("timed").checkpoint().python(lambda text: len(text), args=(now,))))
        told.append((yield step("guarded").when(do.answer("guarded", True)).python(do.double, args=(n,))))
        told.append(bool((yield step("skipped").when(do.answer("skipped", False)).python(do.double, args=(n,)))))
        chosen = yield branch(
            "chosen",
            (do.answer("never", False), step("one").python(do.double, args=(1,))),
            (do.answer("chosen", True), step("two").python(do.double_later, args=(2,))),
        )
        told.append(chosen.inner_output)
        group = yield parallel(
            "group",
            step("good").python(do.double, args=(5,)).with_rollback(do.undo),
            step("bad").python(do.fail, args=(6,)),
            step("asked").wait_for("go", payload=int),
            step("stubborn").retry(Retry(3, backoff=2.0)).python(do.fail_twice, args=(7,)),
        )
        told.append([(r.name, r.success, r.output) for r in group if r.name != "asked"])
        told.append(group.get_output("asked").payload)
        told.append((yield step("items").map(do.double, [1, 2, 3, 4], max_parallel=2)))
        told.append((yield step("sub").subworkflow(inner, {"a": n})).final_output)
        told.append((yield step("graph").subworkflow(compiled, {"s": 0})).final_output)
        told.append(
            (yield step("mended").python(do.fail, args=(1,)).on_error(
                lambda ctx, failed: step("instead").python(do.double, args=(9,))
            ).with_rollback(do.undo))
        )  # fmt: skip
        told.append(bool((yield step("forgiven").python(do.fail, args=(1,)).skip_on_error())))
        told.append((yield step("seen").python(do.fail, args=(1,)).as_result()).error)
        told.append((yield step("again").retry(3, 1.0).python(do.fail_twice, args=(8,))))
        told.append((yield step("late").wait_for("never", timeout=3600)).timed_out)
        told.append((yield step("approved").wait_for("ok", payload=str)).payload)
        told.append(ctx.random())
        return told

    return everything


def make_failing(outside: Outside) -> Any:
    """A workflow that undoes everything at its end: steps, children, a sub-workflow's step, and one that cannot be."""
    do = Bodies(outside)

    @workflow("inner")
    def inner(a: int) -> Steps[int]:
        x = yield from step("leaf").python(do.double, args=(a,)).with_rollback(do.undo)
        y = yield from step("other").python(do.double, args=(x,)).with_rollback(do.undo, retry=Retry(2, backoff=1.0))
        return y

    @workflow("failing")
    def failing(n: int) -> Steps[int]:
        yield step("a").python(do.double, args=(n,)).with_rollback(do.undo)
        yield step("skipped").when(do.answer("skipped", False)).python(do.double, args=(1,)).with_rollback(do.undo)
        yield step("b").python(do.double, args=(n,)).with_rollback(do.fail_to_undo)
        yield step("sub").subworkflow(inner, {"a": 1}).with_rollback(do.undo)
        yield parallel(
            "group",
            step("x").python(do.double, args=(1,)).with_rollback(do.undo),
            step("y").python(do.double, args=(2,)).with_rollback(do.undo),
        )
        yield step("z").python(do.fail, args=(1,)).with_rollback(do.undo)
        return 1

    return failing


def make_ended_by_its_code(outside: Outside) -> Any:
    do = Bodies(outside)

    @workflow("ended")
    def ended() -> Steps[int]:
        yield step("a").python(do.double, args=(1,)).with_rollback(do.undo)
        yield step("b").python(do.double, args=(1,)).with_rollback(do.undo)
        raise WorkflowError("enough")

    return ended


def make_inner_failing(outside: Outside) -> Any:
    """A sub-workflow that fails, is undone by itself, and whose failure the outer one survives."""
    do = Bodies(outside)

    @workflow("inner")
    def inner() -> Steps[int]:
        yield step("a").python(do.double, args=(1,)).with_rollback(do.undo)
        yield step("b").python(do.fail, args=(1,))
        return 1

    @workflow("outer")
    def outer() -> Steps[list[Any]]:
        yield step("before").python(do.double, args=(1,)).with_rollback(do.undo)
        told = yield step("sub").subworkflow(inner, {}).as_result()
        after = yield step("after").python(do.double, args=(2,))
        return [told.success, after]

    return outer


def make_inner_doubly_failing(outside: Outside) -> Any:
    """A sub-workflow that ends with a step whose on_error fails too; the outer workflow fails with it."""
    do = Bodies(outside)

    @workflow("inner")
    def inner() -> Steps[int]:
        yield step("a").python(do.double, args=(1,)).with_rollback(do.undo)
        yield step("b").python(do.fail, args=(1,)).on_error(lambda ctx, f: step("c").python(do.fail, args=(2,)))
        return 1

    @workflow("outer")
    def outer() -> Steps[int]:
        yield step("before").python(do.double, args=(1,)).with_rollback(do.undo)
        return (yield step("sub").subworkflow(inner, {})).final_output

    return outer


def make_row(outside: Outside) -> Any:
    do = Bodies(outside)

    @workflow("row")
    def row() -> Steps[int]:
        x = yield from step("a").python(do.double, args=(1,)).with_rollback(do.undo)
        y = yield from step("b").python(do.double, args=(x,)).with_rollback(do.undo)
        return (yield from step("c").python(do.double, args=(y,)))

    return row


def make_retried(outside: Outside) -> Any:
    do = Bodies(outside)

    @workflow("retried")
    def retried() -> Steps[int]:
        return (yield from step("a").retry(3, 1.0).python(do.fail_twice, args=(1,)))

    return retried


def make_wait(outside: Outside) -> Any:
    do = Bodies(outside)

    @workflow("wait")
    def wait() -> Steps[list[Any]]:
        x = yield from step("a").python(do.double, args=(1,))
        told = yield from step("w").wait_for("go", payload=int)
        late = yield from step("l").wait_for("never", timeout=100)
        yield from step("t").sleep(500)
        y = yield from step("b").python(do.double, args=(x,))
        return [told.payload, late.timed_out, y]

    return wait


def make_group(outside: Outside) -> Any:
    do = Bodies(outside)

    @workflow("group")
    def group() -> Steps[list[Any]]:
        told = yield parallel(
            "p",
            step("x").python(do.double, args=(1,)),
            step("y").python(do.fail, args=(2,)),
            step("w").wait_for("go"),
            step("z").map(do.double, [1, 2], key=lambda item: f"k{item}"),
        )
        return [(result.name, result.success) for result in told]

    return group


def make_sub(outside: Outside) -> Any:
    do = Bodies(outside)
    graph = Graph(dict[str, int]).add_node("n", do.add).add_node("m", do.add)
    graph.add_conditional_edge("n", lambda state: "m", ["m"])
    compiled = graph.add_edge("m", END).set_entry("n").compile("graph")

    @workflow("inner")
    def inner() -> Steps[int]:
        x = yield from step("i").python(do.double, args=(1,))
        told = yield from step("g").subworkflow(compiled, {})
        return x + len(told.final_output)

    @workflow("sub")
    def sub() -> Steps[int]:
        return (yield from step("s").subworkflow(inner, {})).final_output

    return sub


GIVEN = [1]


def make_given(outside: Outside) -> Any:
    """A workflow and a graph inside whose steps do not depend on what is `GIVEN`."""
    do = Bodies(outside)
    graph = Graph(dict[str, int]).add_node("n", do.add).add_node("m", do.add)
    compiled = graph.add_edge("n", "m").add_edge("m", END).set_entry("n").compile("graph")

    @workflow("inner")
    def inner(n: int) -> Steps[int]:
        x = yield from step("i").python(do.double, args=(1,))
        told = yield from step("g").subworkflow(compiled, {"s": n})
        return x + len(told.final_output)

    @workflow("given")
    def given() -> Steps[int]:
        return (yield from step("s").subworkflow(inner, {"n": GIVEN[0]})).final_output

    return given


def make_awaited(outside: Outside) -> Any:
    do = Bodies(outside)

    @workflow("awaited")
    async def awaited(n: int) -> int:
        x = await step("a").python(do.double_later, args=(n,))
        told = await parallel("p", step("b").python(do.double_later, args=(x,)), step("c").python(do.double, args=(x,)))
        return sum(result.output for result in told)

    return awaited


EVERYTHING = Subject(make_everything, {"n": 3}, {"go": b"7", "ok": b'"yes"'}, at_once=4)


def make_inner_retried(outside: Outside) -> Any:
    """A sub-workflow whose step fails for good after three attempts, in each of two attempts of its own."""
    do = Bodies(outside)

    @workflow("inner")
    def inner() -> Steps[int]:
        yield step("a").python(do.double, args=(1,)).with_rollback(do.undo)
        yield step("b").retry(3, 1.0).python(do.fail, args=(1,))
        return 1

    @workflow("outer")
    def outer() -> Steps[bool]:
        told = yield step("sub").retry(2, 5.0).subworkflow(inner, {}).as_result()
        return bool(told.success)

    return outer


def make_given_up_inside(outside: Outside) -> Any:
    """Steps that are parts of others and use up their attempts: with one attempt more each would succeed."""
    do = Bodies(outside)

    @workflow("outer")
    def outer() -> Steps[list[Any]]:
        option = step("x").retry(2, 1.0).python(do.fail_twice, args=(1,))
        one = yield branch("b", (do.answer("b", True), option)).as_result()
        told = step("e").on_error(lambda ctx, f: step("c").retry(2, 1.0).python(do.fail_twice, args=(2,)))
        two = yield told.as_result().python(do.fail, args=(1,))
        three = yield step("z").python(do.double, args=(2,))
        return [one.success, two.success, three]

    return outer


def make_graph_that_fails_inside(outside: Outside) -> Any:
    """Graphs that fail inside a workflow that goes on: with one more attempt, of node or router, they would not."""
    do = Bodies(outside)

    def fail_twice(state: dict[str, int]) -> dict[str, int]:
        return {"n": do.fail_twice(1)}

    def router(ctx: Any, state: dict[str, int]) -> str:
        outside.note("ask routed/m", is_counted=False)  # done with its node, and recorded with it
        if "do routed/m attempt 1" not in outside.world.settled:
            raise OSError("not yet")
        return END

    failing = Graph(dict[str, int]).add_node("m", do.add).add_node("n", fail_twice, retry=Retry(2, 1.0))
    graph = failing.add_edge("m", "n").add_edge("n", END).set_entry("m").compile("failing")
    lost = Graph(dict[str, int]).add_node("m", do.add).add_conditional_edge("m", router, [END]).set_entry("m")
    routed = lost.compile("lost")

    @workflow("outer")
    def outer() -> Steps[list[Any]]:
        one = yield step("graph").subworkflow(graph, {}).as_result()
        two = yield step("routed").subworkflow(routed, {}).as_result()
        three = yield step("z").python(do.double, args=(2,))
        return [one.success, two.success, three]

    return outer


def make_group_that_must_succeed(outside: Outside) -> Any:
    """A group that fails as a whole, is survived, and whose steps are undone when the run fails later."""
    do = Bodies(outside)

    @workflow("outer")
    def outer() -> Steps[int]:
        yield (
            parallel(
                "group",
                step("x").python(do.double, args=(1,)).with_rollback(do.undo),
                step("y").python(do.fail, args=(2,)),
            )
            .must_succeed()
            .as_result()
        )
        yield step("z").python(do.fail, args=(1,))
        return 1

    return outer


SMALL = {
    "row": Subject(make_row),
    "retried": Subject(make_retried),
    "wait": Subject(make_wait, answers={"go": b"7"}),
    "group": Subject(make_group, answers={"go": b"7"}, at_once=4),
    "sub": Subject(make_sub),
    "inner retried": Subject(make_inner_retried),
    "awaited": Subject(make_awaited, {"n": 3}, at_once=2),
    "inner failing": Subject(make_inner_failing),
    "given up inside": Subject(make_given_up_inside),
    "graph that fails inside": Subject(make_graph_that_fails_inside),
    "ended": Subject(make_ended_by_its_code),
}
ENDING = {
    "group that must succeed": Subject(make_group_that_must_succeed, at_once=2),
    "failing": Subject(make_failing, {"n": 3}, at_once=2),
    "inner doubly failing": Subject(make_inner_doubly_failing),
    "cancelled by worker": Subject(make_row, cancel_at="do b", by_worker=True),
    "cancelled": Subject(make_row, cancel_at="do b"),
    "cancelled everywhere": Subject(make_failing, {"n": 3}, cancel_at="do group/x", at_once=2),
}


wide = pytest.mark.wide
LONG = {
    "inner retried",
    "given up inside",
    "graph that fails inside",
    "failing",
    "retried",
    "sub",
    "inner doubly failing",
}
"""Those that have many effects, and what is like them in those of a few."""
IN_FILES = ["wait", "group", "inner failing", "failing", "cancelled"]
"""Those that are tried on SQLite too: what an effect does is the store's business, which comes next is not."""


@pytest.fixture
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Clock], Store] | None:
    if request.param == "memory":
        return None
    return lambda clock: SQLiteStore(tmp_path / "runs.db", clock=clock, durability="normal")


def test_a_workflow_of_every_construct_ends_as_it_should_undisturbed() -> None:
    ending = play(EVERYTHING, (), None)
    assert ("finished", ()) == (ending.status, ending.crashes)
    assert "[('good', True, 10), ('bad', False, None), ('stubborn', True, 7)], 7, [2, 4, 6, 8]" in ending.told
    assert "{'s': 0, 'n': 1, 'm': 2}, 18, False, 'not with 1', 8, True, 'yes'" in ending.told
    assert 3 == ending.calls.count("do group/stubborn") == ending.calls.count("do again")


def test_a_crash_is_tried_also_between_the_effects_of_steps_that_run_at_once() -> None:
    ending = play(SMALL["group"], ((9, False),), None)
    assert ("finished", 1) == (ending.status, len(ending.crashes))
    assert 1 < sum(call.startswith("do p/") for call in ending.calls)


def test_the_harness_finds_what_is_done_again_though_it_was_recorded() -> None:
    world = World(None)
    world.settled.add("do a")
    world.note("do a")
    assert ["do a"] == world.again


@pytest.mark.wide
def test_a_workflow_of_every_construct_that_dies_at_any_effect_ends_as_if_undisturbed() -> None:
    assert 200 < crash_everywhere(EVERYTHING)


@pytest.mark.parametrize(
    ("name", "open_store"),
    [
        *(pytest.param(name, "memory", marks=[wide] if name in LONG else []) for name in (*SMALL, *ENDING)),
        *(pytest.param(name, "sqlite", marks=wide) for name in IN_FILES),
    ],
    indirect=["open_store"],
)
def test_a_workflow_that_dies_at_any_effect_ends_as_if_undisturbed(
    name: str, open_store: Callable[[Clock], Store] | None
) -> None:
    assert 20 < crash_everywhere({**SMALL, **ENDING}[name], open_store)


def test_a_flow_inside_that_began_is_refused_with_other_arguments_wherever_its_process_died() -> None:
    def change(n: int) -> None:
        GIVEN[0] = n

    assert 3 < refused_after_crashes(Subject(make_given), change)


@pytest.mark.wide
@pytest.mark.parametrize("name", ["retried", "cancelled"])
def test_a_workflow_that_dies_again_while_it_is_resumed_ends_as_if_undisturbed(name: str) -> None:
    assert 80 < crash_everywhere({**SMALL, **ENDING}[name], depth=2)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "stride"), [("wait", 23), ("group", 13), ("failing", 7)])
def test_a_longer_workflow_that_dies_again_while_it_is_resumed_ends_as_if_undisturbed(name: str, stride: int) -> None:
    assert 80 < crash_everywhere({**SMALL, **ENDING}[name], depth=2, stride=stride)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_workflow_of_every_construct_that_dies_twice_ends_as_if_undisturbed() -> None:
    assert 250 < crash_everywhere(EVERYTHING, depth=2, stride=397)
