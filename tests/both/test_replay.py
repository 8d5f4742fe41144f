"""A workflow is resumed by playing its code again: what that makes of every way in which a run may have stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from dying import crash

from milepost import (
    Engine,
    FlowChangedError,
    NoCheckpointFoundError,
    Retry,
    RunCancelled,
    RunNotResumableError,
    RunSuspended,
    StepError,
    Steps,
    WorkflowContext,
    WorkflowError,
    branch,
    current,
    parallel,
    step,
    workflow,
)
from milepost.errors import NonDeterminismError, RunStopped


def plus(n: int) -> int:
    return n + 1


class Failing:
    """A body that raises while `is_broken`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error or ValueError("no")
        self.is_broken = True

    def __call__(self, n: int) -> int:
        if self.is_broken:
            raise self.error
        return n + 1


@pytest.fixture
def row(verbs, log) -> Callable[..., Any]:
    """Build a workflow of steps in a row, each one letter long: each logs its name and adds 1 to what it is given.

    `bodies` by step are called instead; `modify` by step makes another step of it.
    """

    def build(
        ids: str = "abc",
        bodies: dict[str, Callable[[int], int]] | None = None,
        modify: dict[str, Callable[[Any], Any]] | None = None,
        name: str = "row",
        version: int = 1,
    ) -> Any:
        def body(letter: str) -> Callable[[int], int]:
            def work(n: int) -> int:
                log.append(letter)
                return (bodies or {}).get(letter, plus)(n)

            return verbs.node(work)

        @workflow(name, version=version)
        def flow(n: int = 0) -> Steps[int]:
            for letter in ids:
                asked = step(letter).python(body(letter), args=(n,))
                n = yield (modify or {}).get(letter, lambda asked: asked)(asked)
            return n

        return flow

    return build


@pytest.fixture
def halted(verbs, store, row) -> Any:
    """A run of a, b, c, d that stopped after b."""
    flow = row("abcd")
    with pytest.raises(RunStopped):
        verbs.run(flow, store=store, run_id="r1", n=0, stop_after="b")
    return flow


def untouched(store: Any, run_id: str = "r1") -> tuple[bytes, Any]:
    """Everything that a refusal must leave as it is."""
    return store.export(run_id), store.get_run(run_id).info


# -- what there is to resume -------------------------------------------------------------------------------


def test_a_crash_in_the_first_step_starts_again_with_the_recorded_inputs(verbs, timed, row, log):
    dying = Failing(verbs.Killed())
    flow = row("ab", {"a": dying})
    verbs.crash(flow, timed, "r1", {"n": 5})
    dying.is_broken = False
    result = verbs.resume(flow, timed, "r1", full=True)
    assert (7, ["a", "a", "b"]) == (result.output, log)
    assert ("start", None, "a", ("a",)) == (
        result.resumed.source, result.resumed.from_node, result.resumed.next_node, result.resumed.repeated,
    )  # fmt: skip


def test_a_crash_after_b_does_only_what_was_in_flight_again(verbs, timed, row, log):
    dying = Failing(verbs.Killed())
    flow = row("abcd", {"c": dying})
    verbs.crash(flow, timed, "r1", {"n": 0})
    dying.is_broken = False
    result = verbs.resume(flow, timed, "r1", full=True)
    assert (4, ["a", "b", "c", "c", "d"]) == (result.output, log)
    assert ("latest", "b", "c", ("a", "b")) == (
        result.resumed.source, result.resumed.from_node, result.resumed.next_node, result.resumed.skipped,
    )  # fmt: skip
    assert [1, 1, 1, 1] == [info.visit for info in timed.history("r1")]


@pytest.mark.every_store
def test_what_was_in_flight_at_a_crash_is_done_again_as_the_next_attempt(verbs, medium, timed):
    if not medium.has_lease_end:
        pytest.skip("a lease without an end is never over by a crash")
    seen, dying = [], Failing(verbs.Killed())

    def work(n: int) -> int:
        ctx = current()
        seen.append((ctx.node_id, ctx.visit, ctx.attempt, ctx.idempotency_key))
        return n if ctx.node_id == "a" else dying(n)

    @workflow("row")
    def flow() -> Steps[int]:
        yield step("a").python(verbs.node(work), args=(1,))
        return (yield from step("b").python(verbs.node(work), args=(1,)))

    verbs.crash(flow, timed, "r1", {})
    verbs.crash(flow, timed, "r1")
    dying.is_broken = False
    assert 2 == verbs.resume(flow, timed, "r1")
    assert [("a", 1, 1), ("b", 1, 1), ("b", 1, 2), ("b", 1, 3)] == [told[:3] for told in seen]
    assert 2 == len({told[3] for told in seen})


def test_a_step_that_failed_is_done_again(verbs, store, row, log):
    c = Failing()
    flow = row("abcd", {"c": c})
    with pytest.raises(StepError, match="'c'") as caught:
        verbs.run(flow, store=store, run_id="r1", n=0)
    assert ("r1", "c", c.error) == (caught.value.run_id, caught.value.step_name, caught.value.__cause__)
    c.is_broken = False
    assert 4 == verbs.resume(flow, store, "r1")
    assert ["a", "b", "c", "c", "d"] == log


def test_a_step_whose_attempts_are_spent_is_refused_with_the_hint_to_retry(verbs, store, row, log):
    flow = row("ab", {"b": Failing()}, {"b": lambda asked: asked.retry(2, 0)})
    with pytest.raises(StepError):
        verbs.run(flow, store=store, run_id="r1", n=0)
    before = untouched(store)
    with pytest.raises(RunNotResumableError, match="retry") as caught:
        verbs.resume(flow, store, "r1")
    assert ("failed", before, ["a", "b", "b"]) == (caught.value.status, untouched(store), log)
    assert "refuse" == verbs.plan(flow, store, "r1").verdict


def test_retry_gives_a_failed_step_fresh_attempts(verbs, store, row, log):
    b = Failing()
    flow = row("abc", {"b": b}, {"b": lambda asked: asked.retry(2, 0)})
    with pytest.raises(StepError):
        verbs.run(flow, store=store, run_id="r1", n=0)
    with pytest.raises(StepError) as caught:
        verbs.retry(flow, store, "r1")
    assert 4 == caught.value.attempt
    b.is_broken = False
    assert 3 == verbs.retry(flow, store, "r1")
    assert ["a", *"bb", *"bb", "b", "c"] == log


def test_failures_before_and_after_a_crash_add_up(verbs, timed, row, log):
    errors = iter([ValueError("1"), ValueError("2"), verbs.Killed(), ValueError("3")])

    def next_error(n: int) -> int:
        raise next(errors)

    flow = row("ab", {"b": next_error}, {"b": lambda asked: asked.retry(Retry(3, backoff=0))})
    verbs.crash(flow, timed, "r1", {"n": 0})
    with pytest.raises(StepError):
        verbs.resume(flow, timed, "r1")
    assert ["a", *"bbbb"] == log
    assert 3 == len(timed.read("r1", kinds=("failure",)))


# -- runs that have ended, that wait, or that somebody has ---------------------------------------------------


def test_a_finished_run_gives_its_stored_output_and_writes_nothing(verbs, store, row, log):
    flow = row()
    verbs.run(flow, store=store, run_id="r1", n=0)
    before = untouched(store)
    result = verbs.resume(flow, store, "r1", full=True)
    assert (3, "finished", True) == (result.output, result.status, result.success)
    assert ("finished", True) == (result.resumed.source, result.resumed.already_completed)
    assert (["a", "b", "c"], before) == (log, untouched(store))


def test_an_open_cancel_ends_the_run_and_no_step_starts(verbs, store, halted, log):
    assert "requested" == store.request_cancel("r1", "not needed", None)
    assert "roll_back" == verbs.plan(halted, store, "r1").verdict
    with pytest.raises(RunCancelled, match="not needed"):
        verbs.resume(halted, store, "r1")
    assert (["a", "b"], "cancelled") == (log, store.get_run("r1").info.status)


def test_a_run_that_waits_for_what_has_not_come_is_suspended_again(verbs, store, log):
    @workflow("waiting")
    def flow() -> Steps[Any]:
        log.append("played")
        told = yield from step("w").wait_for("go")
        return told.payload

    with pytest.raises(RunSuspended):
        verbs.run(flow, store=store, run_id="r1")
    before = untouched(store)
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(flow, store, "r1")
    assert (["w#1"], before, ["played"]) == (
        [wait.wait_id for wait in caught.value.waiting_for], untouched(store), log,
    )  # fmt: skip
    assert "waiting" == verbs.plan(flow, store, "r1").verdict
    store.put_signal("r1", "go", b"5")
    assert 5 == verbs.resume(flow, store, "r1")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_step_is_not_done_and_is_done_again_on_resume(verbs, store, row, log, error):
    b = Failing(error())
    flow = row("abc", {"b": b}, {"b": lambda asked: asked.retry(Retry(3, backoff=0)).skip_on_error()})
    with pytest.raises(error):
        verbs.run(flow, store=store, run_id="r1", n=0)
    assert "interrupted" == store.get_run("r1").info.status
    assert ["start", "checkpoint"] == [record.kind for record in store.read("r1")]
    b.is_broken = False
    assert (3, ["a", "b", "b", "c"]) == (verbs.resume(flow, store, "r1"), log)


def test_an_interrupted_child_of_a_group_keeps_what_its_siblings_did(verbs, store, log):
    b = Failing(KeyboardInterrupt())

    def work(n: int) -> int:
        log.append(current().node_id)
        return b(n) if current().node_id == "p/b" else n

    @workflow("group")
    def flow() -> Steps[list[int]]:
        told = yield parallel(
            "p", *(step(letter).python(verbs.node(work), args=(1,)) for letter in "abc"), max_parallel=1
        )
        return [result.output for result in told]

    with pytest.raises(KeyboardInterrupt):
        verbs.run(flow, store=store, run_id="r1")
    done = [info.node_id for info in store.history("r1")]
    assert ("interrupted", True, False) == (store.get_run("r1").info.status, "p/a" in done, "p/b" in done)
    b.is_broken = False
    assert [1, 2, 1] == verbs.resume(flow, store, "r1")
    assert 1 == log.count("p/a")


# -- code that has changed -----------------------------------------------------------------------------------


CHANGES = {
    "another name": ("axcd", "step 2 of run 'r1' was recorded as python step 'b'", "python step 'x'"),
    "a step before": ("xabcd", "step 1 of run 'r1' was recorded as python step 'a'", "python step 'x'"),
    "swapped": ("bacd", "step 1 of run 'r1' was recorded as python step 'a'", "python step 'b'"),
    "ended early": ("a", "step 2 of run 'r1' was recorded as python step 'b'", "its end"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_first_difference_is_told_with_both_sides_and_nothing_runs(verbs, store, halted, row, log, change):
    ids, recorded, found = CHANGES[change]
    before = untouched(store)
    with pytest.raises(NonDeterminismError) as caught:
        verbs.resume(row(ids), store, "r1")
    assert (True, True) == (recorded in str(caught.value), found in str(caught.value))
    assert ("r1", 1 if change in {"another name", "ended early"} else 0) == (caught.value.run_id, caught.value.index)
    assert (["a", "b"], before) == (log, untouched(store))
    plan = verbs.plan(row(ids), store, "r1")
    assert ("refuse", str(caught.value), before) == (plan.verdict, plan.reason, untouched(store))


def test_a_change_after_what_is_recorded_goes_on(verbs, store, halted, row, log):
    assert 5 == verbs.resume(row("abxyz"), store, "r1")
    assert ["a", "b", "x", "y", "z"] == log


def test_another_kind_of_step_is_refused(verbs, store, halted):
    def work(n: int) -> int:
        raise AssertionError

    @workflow("row")
    def flow(n: int = 0) -> Steps[Any]:
        return (yield step("a").map(work, [n]))

    before = untouched(store)
    with pytest.raises(NonDeterminismError, match=r"python step 'a'.*map step 'a'") as caught:
        verbs.resume(flow, store, "r1")
    assert ("python step 'a'", before) == (caught.value.recorded, untouched(store))


@pytest.mark.parametrize("is_group", [False, True])
def test_after_a_crash_a_part_that_had_not_begun_is_at_its_first_attempt(verbs, medium, timed, log, is_group):
    deadly = {"1"}

    def work(item: str) -> str:
        log.append(f"{item} {current().attempt}")
        if item in deadly:
            raise verbs.Killed
        return item

    fn = verbs.node(work)

    @workflow("row")
    def flow() -> Steps[Any]:
        if not is_group:
            yield step("m").map(fn, [*"0123"], max_parallel=1)
        else:
            yield parallel("m", *(step(item).python(fn, args=(item,)) for item in "0123"), max_parallel=1)

    crash(verbs, flow, timed, "r1", {})
    deadly.clear()
    verbs.resume(flow, timed, "r1")
    second = 2 if medium.has_lease_end else 1  # what was abandoned has not crashed
    assert ["0 1", "1 1", f"1 {second}", "2 1", "3 1"] == log


@pytest.mark.parametrize(
    ("args", "kwargs"), [(("us",), {}), (("eu", 1), {}), (("eu",), {"many": True}), ((b"eu",), {})]
)
def test_other_arguments_than_recorded_are_refused(verbs, store, log, args, kwargs):
    def fetch(region: Any, count: int = 0, many: bool = False) -> str:
        log.append(region)
        return str(region)

    def made(*args: Any, **kwargs: Any) -> Any:
        @workflow("fetching")
        def flow() -> Steps[Any]:
            found = yield step("fetch").python(fetch, args=args, kwargs=kwargs)
            yield step("next").python(fetch, args=("next",))
            return found

        return flow

    with pytest.raises(RunStopped):
        verbs.run(made("eu"), store=store, run_id="r1", stop_after="fetch")
    before = untouched(store)
    with pytest.raises(NonDeterminismError, match="'fetch'") as caught:
        verbs.resume(made(*args, **kwargs), store, "r1")
    assert (True, False) == ('"eu"' in caught.value.recorded, caught.value.recorded == caught.value.found)
    assert (["eu"], before) == (log, untouched(store))
    assert "eu" == verbs.resume(made("eu"), store, "r1")


def test_another_argument_is_refused_beside_one_that_cannot_be_compared(verbs, store, log):
    def fetch(client: Any, region: str) -> str:
        log.append(region)
        return region

    def made(region: str) -> Any:
        @workflow("fetching")
        def flow() -> Steps[Any]:
            found = yield step("fetch").python(fetch, args=(object(), region))
            yield step("next").python(plus, args=(1,))
            return found

        return flow

    with pytest.raises(RunStopped):
        verbs.run(made("eu"), store=store, run_id="r1", stop_after="fetch")
    before = untouched(store)
    with pytest.raises(NonDeterminismError, match="'fetch'") as caught:
        verbs.resume(made("us"), store, "r1")
    assert ("python step 'fetch' with […object,\"eu\"]", before) == (caught.value.recorded, untouched(store))
    assert "eu" == verbs.resume(made("eu"), store, "r1")
    assert ["eu"] == log


def test_every_step_that_is_made_of_others_and_a_partial_function_compare_what_stands_beside_a_client(verbs, store):
    def fetch(*given: Any) -> str:
        return "done"

    def asked(kind: str, given: Any) -> Any:
        if kind == "partial":
            return step("s").python(partial(fetch, given))
        if kind == "parallel":
            return parallel("s", step("fetch").python(fetch, args=(given,)))
        if kind == "branch":
            return branch("s", (lambda ctx: True, step("fetch").python(fetch, args=({1: given},))))
        return step("s").map(partial(fetch, given), [1, 2])

    def made(kind: str, region: str) -> Any:
        @workflow("fetching")
        def flow() -> Steps[Any]:
            yield asked(kind, (object(), region))
            yield step("next").python(plus, args=(1,))

        return flow

    for kind in ("partial", "parallel", "branch", "map"):
        with pytest.raises(RunStopped):
            verbs.run(made(kind, "eu"), store=store, run_id=kind, stop_after="s")
        with pytest.raises(NonDeterminismError, match="us"):
            verbs.resume(made(kind, "us"), store, kind)
        verbs.resume(made(kind, "eu"), store, kind)


@pytest.mark.parametrize("is_compared", [None, False])
def test_a_map_without_a_key_goes_on_over_the_items_that_it_began_with(verbs, store, log, is_compared):
    broken = {"b"}

    def work(item: str) -> str:
        log.append(item)
        if item in broken:
            raise ValueError(item)
        return f"done {item}"

    def made(*items: str) -> Any:
        @workflow("row")
        def flow() -> Steps[Any]:
            asked = step("m").map(work, items)
            return (yield from asked if is_compared is None else asked.compare_args(is_compared))

        return flow

    with pytest.raises(StepError):
        verbs.run(made(*"abc"), store=store, run_id="r1")
    broken.clear()
    for other in ("zabc", "bac", "ab"):
        before = untouched(store)
        hint = "key=" if is_compared is False else "compare_args"
        with pytest.raises(NonDeterminismError, match=f"of 3 items.*of {len(other)} items.*{hint}"):
            verbs.retry(made(*other), store, "r1")
        assert before == untouched(store)
    assert ["done a", "done b", "done c"] == verbs.retry(made(*"abc"), store, "r1")
    assert ["a", "b", "b", "c"] == sorted(log)


def test_a_map_that_is_done_has_neither_more_nor_fewer_items_than_recorded(verbs, store):
    def made(*items: str, **key: Any) -> Any:
        @workflow("row")
        def flow() -> Steps[Any]:
            found = yield step("m").map(str.upper, items, **key).compare_args(False)
            yield step("next").python(plus, args=(1,))
            return found

        return flow

    for run_id, key in (("r1", {}), ("r2", {"key": str})):
        with pytest.raises(RunStopped):
            verbs.run(made(*"abc", **key), store=store, run_id=run_id, stop_after="m")
        with pytest.raises(
            NonDeterminismError, match=r"map step 'm' of 3 items, .* of 4 items \('m/[d3]' among them\)"
        ):
            verbs.resume(made(*"abcd", **key), store, run_id)
    with pytest.raises(NonDeterminismError, match=r"map step 'm' of 3 items, .* of 2 items"):
        verbs.resume(made(*"bc"), store, "r1")
    assert ["C", "B"] == verbs.resume(made(*"cb", key=str), store, "r2")
    assert ["A", "B", "C"] == verbs.resume(made(*"xyz"), store, "r1")


def test_arguments_are_not_compared_where_a_step_says_so(verbs, store, row, log):
    def lenient(asked: Any) -> Any:
        return asked.compare_args(False)

    flow = row("ab", modify={"a": lenient})
    with pytest.raises(RunStopped):
        verbs.run(flow, store=store, run_id="r1", n=0, stop_after="a")
    assert 2 == verbs.resume(flow, store, "r1")

    @workflow("row")
    def changed(n: int = 0) -> Steps[int]:
        return (yield from step("a").compare_args(False).python(plus, args=(99,)))

    with pytest.raises(RunStopped):
        verbs.run(flow, store=store, run_id="r2", n=0, stop_after="a")
    assert 1 == verbs.resume(changed, store, "r2")


@pytest.mark.parametrize(
    ("began", "now"),
    [
        (step("a").wait_for("x"), step("a").wait_for("y")),
        (step("a").wait_for("x"), step("a").sleep(5)),
        (step("a").sleep(5), step("a").wait_for("x")),
        (step("a").wait_for("x"), step("a").python(plus, args=(1,))),
        (step("a").map(lambda n: 1 // n, [0]), step("a").python(plus, args=(1,))),
        (branch("a", (lambda ctx: True, step("b").python(plus))), step("a").python(plus, args=(1,))),
    ],
)
def test_a_step_that_began_as_another_one_is_refused(verbs, timed, clock, began, now):
    def made(asked: Any) -> Any:
        @workflow("row")
        def flow() -> Steps[Any]:
            return (yield asked)

        return flow

    engine = Engine(timed, clock=clock)
    with pytest.raises((RunSuspended, StepError)):
        verbs.run(engine, made(began), run_id="r1")
    if timed.get_run("r1").info.status == "waiting":
        verbs.call(engine, "signal", "r1", "x", 1)
        clock.advance(9)
    before = untouched(timed)
    with pytest.raises(NonDeterminismError, match="step 'a'"):
        verbs.resume(engine, made(now), "r1")
    assert before == untouched(timed)


def test_the_signal_of_a_wait_is_not_compared_where_its_step_says_so(verbs, store):
    def made(name: str) -> Any:
        @workflow("row")
        def flow() -> Steps[Any]:
            return (yield from step("a").compare_args(False).wait_for(name)).payload

        return flow

    with pytest.raises(RunSuspended):
        verbs.run(made("x"), store=store, run_id="r1")
    made("x").signal(store, "r1", "x", 1)
    assert 1 == verbs.resume(made("y"), store, "r1")


@pytest.mark.parametrize("place", ["alone", "chosen", "fallback"])
def test_a_failure_that_was_an_outcome_is_no_output_of_code_that_does_not_expect_it(verbs, store, place):
    def fails(n: int) -> int:
        raise ValueError(f"no {n}")

    def made(asked: Any) -> Any:
        @workflow("row")
        def flow() -> Steps[Any]:
            if place == "chosen":
                asked_for = branch("x", (lambda ctx: True, asked))
            else:
                asked_for = asked if place == "alone" else step("x").python(fails, args=(1,)).on_error(lambda *_: asked)
            told = yield asked_for
            yield step("next").python(plus, args=(1,))
            return told

        return flow

    plain = step("a").python(fails, args=(1,))
    flow = made(plain.as_result())
    with pytest.raises(RunStopped):
        verbs.run(flow, store=store, run_id="r1", stop_before="next")
    before = untouched(store)
    with pytest.raises(NonDeterminismError, match="as_result"):
        verbs.resume(made(plain), store, "r1")
    assert before == untouched(store)
    told = verbs.resume(flow, store, "r1")
    told = told.inner_output if place == "chosen" else told
    assert (False, "no 1", "a") == (told.success, told.error, told.name)


def test_a_renamed_step_keeps_its_result(verbs, store, halted, row, log):
    assert 4 == verbs.resume(row("axcd"), store, "r1", rename={"b": "x"})
    assert ["a", "b", "c", "d"] == log


@pytest.mark.parametrize(("rerun", "expected"), [(False, ["c", "d"]), (True, ["x", "c", "d"])])
def test_a_run_goes_on_from_a_renamed_step_by_its_new_name(verbs, store, row, log, rerun, expected):
    verbs.run(row("abcd"), store=store, run_id="r1", n=0)
    log.clear()
    assert 4 == verbs.resume_from(row("axcd"), store, "r1", "x", rerun=rerun, rename={"b": "x"})
    assert expected == log


def test_what_a_renamed_group_did_is_found_under_its_new_name(verbs, store, log):
    dying = Failing(KeyboardInterrupt())

    def work(n: int) -> int:
        log.append(current().node_id)
        return dying(n) if current().node_id.endswith("/b") else n

    def made(name: str) -> Any:
        @workflow("group")
        def flow() -> Steps[list[int]]:
            told = yield parallel(
                name, *(step(letter).python(verbs.node(work), args=(1,)) for letter in "ab"), max_parallel=1
            )
            return [result.output for result in told]

        return flow

    with pytest.raises(KeyboardInterrupt):
        verbs.run(made("old"), store=store, run_id="r1")
    dying.is_broken = False
    assert [1, 2] == verbs.resume(made("new"), store, "r1", rename={"old": "new"})
    assert ["old/a", "old/b", "new/b"] == log


def test_code_branches_on_the_version_that_the_run_began_with(verbs, store, row, log):
    flow = row("ab")
    with pytest.raises(RunStopped):
        verbs.run(flow, store=store, run_id="r1", n=0, stop_after="a")

    @workflow("row", version=2)
    def newer(ctx: WorkflowContext[Any], n: int = 0) -> Steps[list[int]]:
        if ctx.version > 1:
            yield step("new").python(plus, args=(n,))
        n = yield step("a").python(plus, args=(n,))
        return [ctx.version, n]

    assert [1, 1] == verbs.resume(newer, store, "r1")
    assert [2, 1] == verbs.run(newer, store=store, run_id="r2", n=0)


def test_a_strict_resume_refuses_another_version_of_the_inputs(verbs, store, halted, row):
    before = untouched(store)
    with pytest.raises(FlowChangedError):
        verbs.resume(row("abcd", version=2), store, "r1", strict=True)
    assert before == untouched(store)
    assert 4 == verbs.resume(row("abcd", version=2), store, "r1")


def test_code_that_fails_in_a_replay_before_its_recorded_steps_is_a_difference(verbs, store, halted, log):
    @workflow("row")
    def flow(n: int = 0) -> Steps[int]:
        n = yield step("a").python(plus, args=(n,))
        raise WorkflowError("no more")

    before = untouched(store)
    with pytest.raises(NonDeterminismError, match="no more"):
        verbs.resume(flow, store, "r1")
    assert before == untouched(store)


def test_a_workflow_that_its_code_ended_replays_and_ends_so_again(verbs, store, log):
    def a() -> int:
        log.append("a")
        return 1

    @workflow("ended")
    def flow() -> Steps[int]:
        yield step("a").python(verbs.node(a))
        raise WorkflowError("enough")

    with pytest.raises(WorkflowError, match="enough"):
        verbs.run(flow, store=store, run_id="r1")
    for verb in ("resume", "retry"):
        with pytest.raises(WorkflowError, match="enough"):
            getattr(verbs, verb)(flow, store, "r1")
    assert (["a"], "failed") == (log, store.get_run("r1").info.status)


# -- resume_from, delete -------------------------------------------------------------------------------------


def test_resume_from_goes_on_after_a_step_and_supersedes_what_came_later(verbs, store, row, log):
    flow = row("abcd")
    verbs.run(flow, store=store, run_id="r1", n=0)
    result = verbs.resume_from(flow, store, "r1", "b", full=True)
    assert (4, ["a", "b", "c", "d", "c", "d"]) == (result.output, log)
    told = [(info.node_id, info.visit, info.superseded) for info in store.history("r1")]
    assert [("c", 1, True), ("d", 1, True), ("c", 2, False), ("d", 2, False)] == told[2:]
    assert ["a", "b", "c", "d"] == [info.node_id for info in store.list("r1")]
    assert (4, 6) == (verbs.resume(flow, store, "r1"), len(log))


def test_rerun_does_the_step_itself_again(verbs, store, row, log):
    flow = row("abc")
    verbs.run(flow, store=store, run_id="r1", n=0)
    assert 3 == verbs.resume_from(flow, store, "r1", "b", rerun=True)
    assert ["a", "b", "c", "b", "c"] == log
    assert [("a", 1), ("b", 2), ("c", 2)] == [(info.node_id, info.visit) for info in store.list("r1")]


def test_resume_from_a_step_without_a_result_is_refused(verbs, store, halted, row):
    before = untouched(store)
    for step_id in ("c", "nope"):
        with pytest.raises(NoCheckpointFoundError):
            verbs.resume_from(halted, store, "r1", step_id)
    with pytest.raises(NoCheckpointFoundError):
        verbs.resume_from(halted, store, "r1", "a", visit=2)
    assert before == untouched(store)


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_deleted_step_is_done_again_with_all_that_followed(verbs, store, row, log, is_finished):
    flow = row("abcd")
    if is_finished:
        verbs.run(flow, store=store, run_id="r1", n=0)
    else:
        with pytest.raises(RunStopped):
            verbs.run(flow, store=store, run_id="r1", n=0, stop_after="d")
    store.delete("r1", "b")
    assert ("interrupted", True) == (store.get_run("r1").info.status, store.verify("r1").ok)
    assert ["a"] == [info.node_id for info in store.list("r1")]
    assert "delete" == store.read("r1", kinds=("owner",), newest=True, limit=1)[0].fields()["verb"]
    assert 4 == verbs.resume(flow, store, "r1")
    assert ["a", "b", "c", "d", "b", "c", "d"] == log
    assert [("a", 1), ("b", 2), ("c", 2), ("d", 2)] == [(info.node_id, info.visit) for info in store.list("r1")]


def test_a_deleted_group_is_done_again_with_its_steps(verbs, store, log):
    def work(n: int) -> int:
        log.append(current().node_id)
        return n

    @workflow("group")
    def flow() -> Steps[int]:
        yield step("a").python(verbs.node(work), args=(1,))
        yield parallel("p", step("x").python(verbs.node(work), args=(1,)))
        return (yield from step("z").python(verbs.node(work), args=(1,)))

    verbs.run(flow, store=store, run_id="r1")
    store.delete("r1", "p")
    assert 1 == verbs.resume(flow, store, "r1")
    assert ["a", "p/x", "z", "p/x", "z"] == log


def test_a_deleted_wait_is_waited_for_again(verbs, store):
    @workflow("waiting")
    def flow() -> Steps[Any]:
        told = yield from step("w").wait_for("go")
        return told.payload

    with pytest.raises(RunSuspended):
        verbs.run(flow, store=store, run_id="r1")
    store.put_signal("r1", "go", b"5")
    assert 5 == verbs.resume(flow, store, "r1")
    store.delete("r1", "w")
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(flow, store, "r1")
    assert ["w#2"] == [wait.wait_id for wait in caught.value.waiting_for]
    store.put_signal("r1", "go", b"6")
    assert 6 == verbs.resume(flow, store, "r1")


# -- workers -------------------------------------------------------------------------------------------------


def test_a_worker_that_cannot_go_on_gives_the_run_back_as_it_was_with_the_reason(verbs, store, row, log):
    older, newer = row("ab"), row("xy")
    with pytest.raises(RunStopped):
        verbs.run(older, store=store, run_id="r1", n=0, stop_after="a")
    Engine(store, flows=[older]).start(older, run_id="r1", n=0, if_exists="resume")
    assert "ready" == store.get_run("r1").info.status
    records = store.read("r1")
    Engine(store, flows=[newer]).worker().run(until_idle=True)
    info = store.get_run("r1").info
    assert ("ready", True, True) == (info.status, "refused" in info.reason, "python step 'a'" in info.reason)
    assert (["a"], records) == (log, store.read("r1")[:-1])
    Engine(store, flows=[older]).worker().run(until_idle=True)
    assert ("finished", ["a", "b"]) == (store.get_run("r1").info.status, log)
