"""Steps as values: names, kinds, modifiers; nothing runs here."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta

import pytest

from milepost import END, Graph, Retry, Steps, branch, parallel, step, workflow
from milepost.errors import DuplicateStepNameError, InvalidIDError, OptionError
from milepost.model.results import StepType
from milepost.testing.tables import for_each


def f(x: int = 0) -> int:
    return x


def yes(ctx: object) -> bool:
    return True


@workflow("inner")
def inner(n: int = 1) -> Steps[int]:
    return (yield from step("i").python(f, args=(n,)))


graph = Graph(dict).add_node("n", lambda state: state).add_edge("n", END).set_entry("n").compile("graph")

KINDS = {
    "python": lambda named: named.python(f, args=(1,)),
    "map": lambda named: named.map(f, [1, 2]),
    "subworkflow": lambda named: named.subworkflow(inner, {"n": 2}),
    "branch": lambda named: named.branch((yes, step("child").python(f))),
    "parallel": lambda named: named.parallel([step("child").python(f)]),
    "wait": lambda named: named.wait_for("signal"),
    "timer": lambda named: named.sleep(1),
}
MODIFIERS = {
    "when": lambda one: one.when(yes),
    "retry": lambda one: one.retry(3, backoff=2),
    "timeout": lambda one: one.timeout(5),
    "on_error": lambda one: one.on_error(lambda ctx, failed: step("other").python(f)),
    "skip_on_error": lambda one: one.skip_on_error(),
    "as_result": lambda one: one.as_result(),
    "with_rollback": lambda one: one.with_rollback(f),
    "checkpoint": lambda one: one.checkpoint(),
    "compare_args": lambda one: one.compare_args(False),
    "must_succeed": lambda one: one.must_succeed(),
}


@for_each("name", ["", " ", "a/b", "/", None, 1, b"a"])
def test_a_step_needs_a_name_without_a_slash(name):
    with pytest.raises(ValueError, match="needs a name"):
        step(name)


@for_each("name", [".", "..", "a\nb", "\ud800", "x" * 513])
def test_a_name_that_no_store_takes_is_refused_as_an_id(name):
    with pytest.raises(InvalidIDError):
        step(name)


@for_each("kind", KINDS)
def test_a_step_has_a_name_and_a_kind(kind):
    made = KINDS[kind](step("x"))
    assert ("x", kind) == (made.name, made.step_type)
    assert StepType(kind) is made.step_type


def test_a_timer_takes_no_timeout_before_or_after_the_kind():
    for make in (
        lambda: step("x").timeout(5).sleep(60),
        lambda: step("x").sleep(60).timeout(5),
        lambda: step("x").timeout(5).sleep_until(datetime.now(UTC)),
    ):
        with pytest.raises(ValueError, match=r"step 'x' sleeps, and \.timeout\(\) does not end that"):
            make()


@pytest.mark.parametrize(
    ("kind", "modifier"), [pair for pair in itertools.product(KINDS, MODIFIERS) if pair != ("timer", "timeout")]
)
def test_a_modifier_before_and_after_the_kind_means_the_same(kind, modifier):
    before = KINDS[kind](MODIFIERS[modifier](step("x")))
    after = MODIFIERS[modifier](KINDS[kind](step("x")))
    assert before.to_dict() == after.to_dict() != KINDS[kind](step("x")).to_dict()


def test_the_order_of_modifiers_means_nothing():
    one = other = step("x")
    for modifier in MODIFIERS.values():
        one = modifier(one)
    for modifier in reversed(MODIFIERS.values()):
        other = modifier(other)
    assert one.python(f).to_dict() == other.python(f).to_dict()


@for_each("modifier", sorted(set(MODIFIERS) - {"compare_args"}))
@for_each("is_before", [True, False])
def test_a_modifier_that_is_said_twice_is_refused_by_its_name(modifier, is_before):
    once = MODIFIERS[modifier](step("x"))
    with pytest.raises(ValueError, match=rf"\.{modifier}\(\) already"):
        MODIFIERS[modifier](once if is_before else once.python(f))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_compare_args_is_said_once_too(first, second):
    with pytest.raises(ValueError, match=r"\.compare_args\(\) already"):
        step("x").compare_args(first).compare_args(second)


@for_each("modifier", MODIFIERS)
def test_a_definition_never_changes(modifier):
    named, complete = step("x"), step("x").python(f)
    told = complete.to_dict()
    MODIFIERS[modifier](named)
    MODIFIERS[modifier](complete)
    assert told == complete.to_dict() == named.python(f).to_dict()
    with pytest.raises(AttributeError):
        complete.name = "y"
    with pytest.raises(AttributeError):
        named.name = "y"


def test_the_items_of_a_map_and_the_arguments_of_a_call_are_those_of_the_definition():
    items, args, kwargs = [1, 2], [1], {"x": 1}
    mapped, called = step("m").map(f, items), step("c").python(f, args=args, kwargs=kwargs)
    items.append(3)
    args.append(2)
    kwargs["x"] = 2
    assert ((1, 2), (1,), {"x": 1}) == (mapped.work.items, called.work.args, dict(called.work.kwargs))


@for_each("kind", KINDS)
def test_a_definition_as_a_dict_is_json(kind):
    made = KINDS[kind](step("x"))
    for name, modifier in MODIFIERS.items():
        if (kind, name) != ("timer", "timeout"):
            made = modifier(made)
    told = made.to_dict()
    assert told == json.loads(json.dumps(told))
    assert ("x", kind) == (told["name"], told["step_type"])


def test_branch_and_parallel_are_short_for_steps():
    child = step("a").python(f)
    assert step("b").branch((yes, child)).to_dict() == branch("b", (yes, child)).to_dict()
    spread = step("p").parallel([child], max_parallel=2)
    assert spread.to_dict() == parallel("p", child, max_parallel=2).to_dict()
    assert spread.work.max_parallel == parallel("p", child, max_parallel=2).work.max_parallel == 2


def test_two_children_of_one_name_are_refused_before_anything_runs():
    with pytest.raises(DuplicateStepNameError, match="two steps called 'a'") as caught:
        parallel("p", step("a").python(f), step("b").python(f), step("a").python(f))
    assert "a" == caught.value.step_name


@for_each(
    "make",
    [
        lambda: step("x").python(None),
        lambda: step("x").python("f"),
        lambda: step("x").python(f, args=1),
        lambda: step("x").python(f, args="abc"),
        lambda: step("x").map(None, []),
        lambda: step("x").map(f, 3),
        lambda: step("x").map(f, [1], key="name"),
        lambda: step("x").subworkflow(f),
        lambda: step("x").subworkflow(inner, {"m": 1}),
        lambda: step("x").subworkflow(graph),
        lambda: step("x").subworkflow(graph.bind({}), {}),
        lambda: branch("b", (yes, f)),
        lambda: branch("b", step("a").python(f)),
        lambda: branch("b", ("yes", step("a").python(f))),
        lambda: branch("b", (yes, step("a"))),
        lambda: parallel("p", f),
        lambda: parallel("p", step("a")),
        lambda: step("x").when(True),
        lambda: step("x").on_error(step("y").python(f)),
        lambda: step("x").with_rollback("undo"),
    ],
)
def test_what_is_no_function_step_or_flow_is_a_type_error_that_names_the_step(make):
    with pytest.raises(TypeError, match=r"'[xbp]'|inputs are"):
        make()


@for_each("value", [0, -1, 1.5, True, "2"])
def test_max_parallel_is_a_whole_number_of_at_least_1(value):
    with pytest.raises(ValueError, match="max_parallel of step 'm'"):
        step("m").map(f, [], max_parallel=value)
    with pytest.raises(ValueError, match="max_parallel of step 'p'"):
        parallel("p", max_parallel=value)


@for_each("seconds", [0, -1, "1", None, float("nan"), timedelta(0)])
def test_a_timeout_is_more_than_0_seconds(seconds):
    with pytest.raises((ValueError, TypeError)):
        step("x").timeout(seconds)


def test_durations_are_seconds_or_timedeltas():
    assert 90 == step("x").timeout(timedelta(minutes=1.5)).modifiers.timeout
    assert 90 == step("x").sleep(timedelta(minutes=1.5)).work.seconds
    assert 90 == step("x").wait_for("s", timeout=timedelta(minutes=1.5)).work.seconds
    assert 90 == step("x").retry(2, backoff=timedelta(minutes=1.5)).modifiers.retry.backoff


def test_retry_takes_a_number_or_a_policy():
    assert Retry(3, backoff=1.0) == step("x").retry(3).modifiers.retry
    assert Retry(3, backoff=0.5) == step("x").retry(3, backoff=0.5).modifiers.retry
    policy = Retry(5, factor=3)
    assert policy is step("x").retry(policy).modifiers.retry
    with pytest.raises(ValueError, match="own backoff"):
        step("x").retry(policy, backoff=1)
    with pytest.raises(OptionError):
        step("x").retry(0)
    with pytest.raises(
        OptionError, match=r"\.retry\(\) of step 'x' was given 'max_tries': it takes max_attempts"
    ) as caught:
        step("x").retry(max_tries=3)  # type: ignore[call-overload]
    assert "max_tries" == caught.value.option


def test_a_branch_needs_an_option():
    with pytest.raises(ValueError, match="at least one"):
        branch("b")


@pytest.mark.parametrize("signal", ["", None, 1])
def test_a_wait_needs_a_signal(signal):
    with pytest.raises(ValueError, match="signal"):
        step("w").wait_for(signal)


def test_a_timer_needs_a_time_with_a_zone():
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert when == step("t").sleep_until(when).work.until
    with pytest.raises(ValueError, match="zone"):
        step("t").sleep_until(when.replace(tzinfo=None))


def test_a_bound_flow_brings_its_inputs():
    assert {"n": 7} == step("s").subworkflow(inner.bind(7)).work.given
    assert {"n": 1} == step("s").subworkflow(inner).work.given
    assert {"a": 1} == step("s").subworkflow(graph.bind({"a": 1})).work.given


def test_a_step_without_a_kind_is_no_step_yet():
    assert "step('x')" == repr(step("x"))
    assert "<Step 'x': python>" == repr(step("x").python(f))
    with pytest.raises(TypeError):
        list(step("x"))
