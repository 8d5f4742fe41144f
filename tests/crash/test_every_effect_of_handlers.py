"""Workflows that catch the failures of their steps, made at random, and killed at every effect and at pairs of effects."""

from __future__ import annotations

import random
from typing import Any

import pytest
from crashes_of_steps import Outside, Subject, crash_everywhere, crash_twice, play

from milepost import StepError, Steps, WorkflowError, current, parallel, step, workflow

KINDS = (ValueError, ConnectionError, KeyError)


def make_handled(outside: Outside, seed: int) -> Any:
    """Make a workflow of nested try statements, sub-workflows and groups; which steps fail, and how, is drawn."""
    draw = random.Random(seed)
    numbers = iter(range(1000))

    def do(value: int) -> int:
        outside.note(f"do {current().node_id}")
        return value

    def fail(kind: type[Exception], value: int) -> int:
        outside.note(f"do {current().node_id}")
        raise kind(f"not with {value}")

    def undo(ctx: Any) -> None:
        outside.note(f"undo {current().node_id}")

    def make_step(failing: float) -> Any:
        number = next(numbers)
        if draw.random() < failing:
            failing = step(f"s{number}").python(fail, args=(draw.choice(KINDS), number))
            return failing.retry(2, backoff=1.0) if draw.random() < 0.3 else failing
        done = step(f"s{number}").python(do, args=(number,))
        return done.with_rollback(undo) if draw.random() < 0.3 else done

    def make_block(depth: int, failing: float) -> list[Any]:
        return [make_statement(depth, failing) for _ in range(draw.randint(1, 2))]

    def make_statement(depth: int, failing: float) -> Any:
        what = draw.random() if depth < 3 else 0.5
        if depth == 0 or what < 0.3:
            return make_step(failing)
        number = next(numbers)
        if what < 0.75:
            end = draw.choice(["go on", "go on", "tell", "tell", "raise", "own"])
            caught, handler = draw.choice((*KINDS, Exception, Exception, Exception)), make_block(depth - 1, 0.1)
            last = make_block(depth - 1, 0.1) if draw.random() < 0.5 else []
            return (make_block(depth - 1, 0.7), caught, handler, end, last, f"t{number}")
        if what < 0.9:
            body = make_block(depth - 1, failing)

            @workflow(f"inner{number}")
            def inner() -> Steps[list[Any]]:
                told: list[Any] = []
                yield from play_block(body, told)
                return told

            return step(f"w{number}").subworkflow(inner, {})
        group = parallel(f"g{number}", make_step(0.5), make_step(0.5))
        return group.must_succeed() if draw.random() < failing else group

    def play_block(block: list[Any], told: list[Any]) -> Steps[None]:
        for statement in block:
            if not isinstance(statement, tuple):
                told.append(repr((yield statement))[:60])
                continue
            body, kind, handler, end, last, name = statement
            try:
                yield from play_block(body, told)
            except StepError as exc:
                told.append([type(exc).__name__, str(exc), exc.error_type, exc.message, exc.attempt, exc.step_name])
                if not exc.matches(kind):
                    raise
                yield from play_block(handler, told)
                if end == "tell":
                    told.append((yield step(name).python(do, args=(len(str(exc)),))))
                elif end == "own":
                    raise WorkflowError("not like this") from exc
                elif end == "raise":
                    raise
            finally:
                yield from play_block(last, told)

    body = [*make_block(3, 0.0), make_step(0.2)]

    @workflow("handled")
    def handled() -> Steps[list[Any]]:
        told: list[Any] = []
        yield from play_block(body, told)
        return told

    return handled


def subject(seed: int) -> Subject:
    return Subject(lambda outside: make_handled(outside, seed), at_once=2)


def test_workflows_made_at_random_catch_failures_and_end_in_all_ways() -> None:
    endings = [play(subject(seed), (), None) for seed in range(60)]
    assert {"finished", "failed"} == {ending.status for ending in endings}
    assert {"StepError", "WorkflowError"} < {ending.told for ending in endings if ending.status == "failed"} | {""}
    caught = [ending for ending in endings if ending.status == "finished" and "StepError" in ending.told]
    assert 8 < len(caught)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(1, 6))])
def test_a_workflow_with_handlers_that_dies_at_any_effect_ends_as_if_undisturbed(seed: int) -> None:
    assert 2 < crash_everywhere(subject(seed))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seeds", [range(start, start + 10) for start in range(6, 26, 10)], ids=lambda seeds: str(seeds[0])
)
def test_more_workflows_with_handlers_that_die_once_or_twice_end_as_if_undisturbed(seeds: range) -> None:
    for seed in seeds:
        effects = len(play(subject(seed), (), None).effects)
        if seed % 2:
            crash_everywhere(subject(seed))
        else:
            crash_twice(subject(seed), random.Random(seed).randrange(effects // 2))
