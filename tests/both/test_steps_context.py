"""What a workflow's code, its predicates and its steps see of their run, on the first time through and on a replay."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from milepost import (
    END,
    Context,
    Graph,
    Retry,
    RunSuspended,
    SkipMarker,
    StepError,
    WorkflowContext,
    WorkflowEngine,
    WorkflowError,
    branch,
    current,
    step,
    workflow,
)
from milepost.events import Emitted, Progress


def fail() -> None:
    raise ValueError("no")


class Switch:
    """Fails until it is turned."""

    is_on = False

    def __call__(self) -> int:
        if not self.is_on:
            raise ValueError("off")
        return 1


@pytest.fixture
def switch() -> Switch:
    return Switch()


def replayed(verbs: Any, store: Any, wf: Any, switch: Switch, **options: Any) -> Any:
    """Run until the switch stops the run, then go on with what is recorded."""
    with pytest.raises(StepError, match="off"):
        verbs.run(wf, store=store, run_id="r", **options)
    switch.is_on = True
    return verbs.resume(wf, store, "r", **options)


@pytest.mark.every_store
def test_time_and_chance_are_the_same_again_on_a_replay(verbs, medium, clock, switch):
    store, seen = medium.open(clock=clock), []

    @workflow("w")
    def wf(ctx: WorkflowContext):
        told = [ctx.now(), ctx.random(), ctx.uuid4()]
        for name in "ab":
            yield step(name).python(clock.advance, args=(10,))
            told += [ctx.now(), ctx.random(), ctx.uuid4()]
        seen.append(told)
        yield step("switch").python(switch)
        seen.append([ctx.now(), ctx.random(), ctx.uuid4()])

    with pytest.raises(StepError):
        verbs.run(wf, store=store, run_id="r", clock=clock)
    clock.advance(1000)
    switch.is_on = True
    verbs.resume(wf, store, "r", clock=clock)
    first, again, after = seen
    assert first == again
    assert 9 == len(set(first))
    assert after[0] > first[6] > first[3] > first[0]
    assert not set(first) & set(after)


def test_other_runs_draw_other_chances(verbs, store):
    @workflow("w")
    def wf(ctx: WorkflowContext):
        yield step("a").python(int)
        return [ctx.random(), str(ctx.uuid4())]

    told = [verbs.run(wf, store=store, run_id=run_id) for run_id in ("r1", "r2")]
    assert 4 == len({*told[0], *told[1]})
    assert told[0] == verbs.resume(wf, store, "r1")


def test_time_and_chance_inside_a_sub_workflow_are_the_same_again(verbs, medium, clock, switch):
    store, seen = medium.open(clock=clock), []

    @workflow("inner")
    def inner(ctx: WorkflowContext):
        told = [ctx.now(), ctx.random()]
        yield step("a").python(clock.advance, args=(10,))
        seen.append([*told, ctx.now(), ctx.random()])
        yield step("switch").python(switch)

    @workflow("w")
    def wf(ctx: WorkflowContext):
        yield step("before").python(clock.advance, args=(10,))
        ctx.random()
        yield step("s").subworkflow(inner)

    replayed(verbs, store, wf, switch, clock=clock)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("where", ["when", "a false when", "branch", "on_error"])
def test_what_predicates_and_handlers_draw_changes_nothing_that_the_code_draws(verbs, store, switch, where):
    def draw(answer: Any) -> Any:
        return lambda ctx, *rest: (drawn.append((ctx.random(), ctx.uuid4())), answer)[1]

    asked = {
        "when": lambda: step("s").when(draw(True)).python(int),
        "a false when": lambda: step("s").when(draw(False)).python(int),
        "branch": lambda: branch("s", (draw(False), step("no").python(int)), (draw(True), step("yes").python(int))),
        "on_error": lambda: step("s").on_error(draw(step("other").python(int))).python(lambda: 1 / 0),
    }[where]
    drawn: list[Any] = []
    seen: list[Any] = []

    @workflow("w")
    def wf(ctx: WorkflowContext):
        told = [ctx.random()]
        yield asked()
        seen.append([*told, ctx.random(), ctx.uuid4()])
        yield step("switch").python(switch)

    replayed(verbs, store, wf, switch)
    assert seen[0] == seen[1]
    # What is called again on a replay draws the same again, and each predicate draws its own.
    assert len(set(drawn)) == {"branch": 2}.get(where, 1)
    assert not {number for number, _ in drawn} & {*seen[0]}


def test_each_attempt_of_a_rollback_draws_the_same_and_each_rollback_its_own(verbs, store):
    drawn: list[float] = []

    def undo(ctx: WorkflowContext) -> None:
        drawn.append(ctx.random())
        if len(drawn) == 1:
            raise ValueError("not yet")

    @workflow("w")
    def wf(ctx: WorkflowContext):
        ctx.random()
        for name in "ab":
            yield step(name).python(int).with_rollback(undo, retry=Retry(2, backoff=0))
        raise WorkflowError("enough")

    with pytest.raises(WorkflowError):
        verbs.run(wf, store=store, run_id="r")
    first, again, other = drawn
    assert first == again != other


def test_what_has_the_context_of_the_code_around_it_draws_none_of_its_numbers(verbs, store):
    drawn: list[float] = []
    undone: list[float] = []

    @workflow("w")
    def wf(ctx: WorkflowContext):
        yield (
            step("a").python(verbs.node(lambda: ctx.random())).with_rollback(lambda other: undone.append(ctx.random()))
        )
        yield step("b").when(lambda other: ctx.random() < 2).python(int)
        yield branch("c", (lambda other: ctx.random() < 2, step("yes").python(int)))
        yield step("d").python(failing).on_error(lambda other, failed: step("e").python(abs, args=(ctx.random(),)))
        drawn.append(ctx.random())
        yield step("wait").wait_for("go")
        raise WorkflowError("enough")

    with pytest.raises(RunSuspended):
        verbs.run(wf, store=store, run_id="r")
    wf.signal(store, "r", "go")
    with pytest.raises(WorkflowError, match="enough"):
        verbs.resume(wf, store, "r")
    live, again = drawn
    assert live == again
    assert 1 == len(undone)


def failing() -> None:
    raise ValueError("no")


def test_the_code_knows_that_it_is_replayed_until_it_has_asked_for_all_that_it_asked_for_before(verbs, store, switch):
    seen: list[Any] = []

    @workflow("w")
    def wf(ctx: WorkflowContext):
        told = [ctx.is_replaying]
        for name in "ab":
            yield step(name).python(int)
            told.append(ctx.is_replaying)
        seen.append(told)
        yield step("switch").python(switch)
        return ctx.is_replaying

    assert False is replayed(verbs, store, wf, switch)
    assert [[False, False, False], [True, True, True]] == seen


def test_the_logger_is_silent_while_the_code_is_replayed(verbs, store, switch, caplog):
    @workflow("w")
    def wf(ctx: WorkflowContext):
        logger = ctx.logger
        logger.warning("begin")
        yield step("a").python(int)
        logger.warning("after a")
        yield step("b").python(int)
        ctx.logger.warning("after b")
        yield step("switch").python(switch)
        logger.warning("end")

    with caplog.at_level(logging.INFO, "mine"):
        replayed(verbs, store, wf, switch, logger=logging.getLogger("mine"))
    mine = [record for record in caplog.records if record.name == "mine"]
    assert ["begin", "after a", "after b", "end"] == [record.message for record in mine]
    assert {"r"} == {record.run_id for record in mine}


def test_what_is_told_live_is_not_told_again(verbs, store, switch):
    @workflow("w")
    def wf(ctx: WorkflowContext):
        ctx.progress(1, 2, "begun")
        ctx.emit("hello", {"n": 1})
        yield step("a").python(int)
        yield step("switch").python(switch)
        ctx.emit("end")

    seen: list[Any] = []
    replayed(verbs, store, wf, switch, hooks=[seen.append])
    told = [event for event in seen if isinstance(event, (Progress, Emitted))]
    assert ["begun", "hello", "end"] == [getattr(event, "name", None) or event.message for event in told]


def test_tags_of_the_code_and_of_steps_are_written_with_the_next_record(verbs, store, work):
    def tagged() -> None:
        current().tag("step", "1")

    @workflow("inner")
    def inner(ctx: WorkflowContext):
        ctx.tag("inner", "3")
        yield step("a").python(int)

    @workflow("w")
    def wf(ctx: WorkflowContext):
        ctx.tag("code", "2")
        yield step("a").python(work(tagged))
        yield step("s").subworkflow(inner)
        yield step("look").python(lambda: seen.append(dict(store.get_run("r").info.tags)))

    seen: list[Any] = []
    verbs.run(wf, store=store, run_id="r", tags={"call": "0"})
    assert {"call": "0", "code": "2", "step": "1", "inner": "3"} == seen[0]


@workflow("waits")
def waits(ctx: WorkflowContext):
    ctx.tag("inside", "1")
    yield step("wait").wait_for("go")


@workflow("fails")
def fails(ctx: WorkflowContext):
    ctx.tag("inside", "1")
    yield step("bad").python(fail)


@workflow("ends")
def ends(ctx: WorkflowContext):
    yield step("a").python(int)
    ctx.tag("inside", "1")


@workflow("does nothing")
def does_nothing(ctx: WorkflowContext):
    ctx.tag("inside", "1")
    return
    yield


@pytest.mark.parametrize("inner", [waits, fails, ends, does_nothing], ids=lambda flow: flow.name)
def test_tags_of_a_sub_workflow_are_written_with_the_next_record_whatever_that_is(verbs, store, inner):
    @workflow("w")
    def wf():
        yield step("s").subworkflow(inner)
        raise WorkflowError("enough")

    with pytest.raises((RunSuspended, StepError, WorkflowError)):
        verbs.run(wf, store=store, run_id="r")
    assert {"inside": "1"} == dict(store.get_run("r").info.tags)


def test_tags_of_the_code_are_written_with_the_first_record_of_a_graph_inside(verbs, store):
    graph = Graph(dict).add_node("a", dict).add_node("b", lambda state: seen.append(store.get_run("r").info.tags) or {})
    graph = graph.add_edge("a", "b").add_edge("b", END).set_entry("a").compile("g")

    @workflow("w")
    def wf(ctx: WorkflowContext):
        ctx.tag("code", "1")
        yield step("s").subworkflow(graph, {})

    seen: list[Any] = []
    verbs.run(wf, store=store, run_id="r")
    assert [{"code": "1"}] == seen


def test_tags_of_a_rollback_are_written_with_its_record(verbs, store):
    @workflow("w")
    def wf():
        yield step("a").python(int).with_rollback(lambda ctx: (ctx.tag("ctx", "1"), current().tag("current", "2")))
        raise WorkflowError("enough")

    with pytest.raises(WorkflowError):
        verbs.run(wf, store=store, run_id="r")
    assert {"ctx": "1", "current": "2"} == dict(store.get_run("r").info.tags)


def test_the_tags_of_a_failed_attempt_are_not_written(verbs, store, work):
    def tagged() -> None:
        current().tag(f"attempt-{current().attempt}", "1")
        if current().attempt == 1:
            raise ValueError("no")

    @workflow("w")
    def wf():
        yield step("a").python(work(tagged)).retry(2, backoff=0)

    verbs.run(wf, store=store, run_id="r")
    assert {"attempt-2": "1"} == dict(store.get_run("r").info.tags)


def test_a_tag_that_is_no_text_is_refused_by_the_code(verbs, store):
    @workflow("w")
    def wf(ctx: WorkflowContext):
        with pytest.raises(TypeError):
            ctx.tag("n", 1)
        yield step("a").python(int)
        return "end"

    assert "end" == verbs.run(wf, store=store)


def test_deps_are_given_to_the_code_and_to_steps_and_never_stored(verbs, store, switch):
    class Service:
        name = "service"

    seen: list[str] = []

    def use() -> None:
        seen.append(current(Service).deps.name)

    @workflow("w")
    def wf(ctx: WorkflowContext[Service]):
        seen.append(ctx.deps.name)
        yield step("a").python(use)
        yield step("switch").python(switch)

    replayed(verbs, store, wf, switch, deps=Service())
    assert ["service"] * 3 == seen


def test_the_version_is_that_with_which_the_run_began(verbs, store, switch, log):
    def flow(version: int) -> Any:
        @workflow("w", version=version)
        def wf(ctx: WorkflowContext):
            yield step("a").python(int)
            yield step("switch").python(switch)
            if ctx.version >= 2:
                yield step("new").python(log.append, args=("new",))
            return ctx.version

        return wf

    with pytest.raises(StepError):
        verbs.run(flow(1), store=store, run_id="r")
    switch.is_on = True
    assert (1, []) == (verbs.resume(flow(2), store, "r"), log)
    assert (2, ["new"]) == (verbs.run(flow(2), store=store, run_id="r2"), log)


def test_config_is_what_the_workflow_engine_was_given_and_else_empty(verbs, store):
    @workflow("w")
    def wf(ctx: WorkflowContext):
        yield step("a").python(int)
        return dict(ctx.config)

    engine = WorkflowEngine(store, config={"region": "eu"})
    assert {"region": "eu"} == verbs.run(engine, wf).output
    assert {} == verbs.run(wf, store=store)


def test_inputs_and_results_are_read_only(verbs, store):
    @workflow("w")
    def wf(ctx: WorkflowContext, n: int = 3):
        yield step("a").python(int)
        for view in (ctx.inputs, ctx.results):
            with pytest.raises(TypeError):
                view["x"] = 1
        return dict(ctx.inputs)

    assert {"n": 3} == verbs.run(wf, store=store)


def test_results_so_far_are_there_by_name_and_missing_ones_are_none(verbs, store, switch):
    seen: list[Any] = []

    @workflow("w")
    def wf(ctx: WorkflowContext):
        before = [ctx.results.get("a"), ctx.get_step_output("a"), ctx.get_step_output("a", 7), ctx.is_step_skipped("a")]
        yield step("a").python(lambda: None)
        yield step("b").python(int).when(lambda ctx: False)
        yield step("c").python(fail).as_result()
        after = [ctx.results["a"].success, ctx.get_step_output("a", 7), ctx.results["c"].error, list(ctx.results)]
        seen.append([before, after, ctx.is_step_skipped("a"), ctx.is_step_skipped("b"), ctx.get_step_output("b")])
        yield step("switch").python(switch)

    replayed(verbs, store, wf, switch)
    told = [[None, None, 7, False], [True, None, "no", ["a", "b", "c"]], False, True, SkipMarker("predicate_false")]
    assert [told, told] == seen


def test_the_code_sees_which_run_it_is(verbs, store):
    @workflow("w")
    def wf(ctx: WorkflowContext):
        yield step("a").python(int)
        assert isinstance(ctx, Context)
        return [ctx.run_id, ctx.store is store, ctx.visit, ctx.attempt]

    assert ["r", True, 1, 1] == verbs.run(wf, store=store, run_id="r")


def test_a_function_finds_its_own_context_below_a_step(verbs, store, work):
    def told() -> list[Any]:
        ctx = current()
        return [ctx.run_id, ctx.node_id, ctx.attempt, ctx.visit, isinstance(ctx, WorkflowContext)]

    @workflow("w")
    def wf():
        return [(yield step("a").python(work(told))), (yield step("m").map(lambda n: told(), [1]))[0]]

    assert [["r", "a", 1, 1, False], ["r", "m/0", 1, 1, False]] == verbs.run(wf, store=store, run_id="r")
