"""Resuming and retrying steps that are made of others, and journals that are damaged, lost or contended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from milepost import LeaseLost, Retry, StepError, Steps, WorkflowError, branch, current, parallel, step, workflow
from milepost.errors import (
    CheckpointCorruptError,
    DuplicateStepNameError,
    NonDeterminismError,
    RunStopped,
    WorkflowHeldError,
)


class Work:
    """One body for all steps: it logs the id and the attempt, and fails where the id is in `broken`."""

    def __init__(self, verbs: Any) -> None:
        self.calls: list[str] = []
        self.attempts: list[int] = []
        self.broken: set[str] = set()
        self.fn: Callable[[int], int] = verbs.node(self.do)

    def do(self, n: int) -> int:
        ctx = current()
        self.calls.append(ctx.node_id)
        self.attempts.append(ctx.attempt)
        if ctx.node_id in self.broken:
            raise ValueError(f"{ctx.node_id} is broken")
        return n + 1

    def step(self, name: str, n: int = 1) -> Any:
        return step(name).python(self.fn, args=(n,))


@pytest.fixture
def work(verbs) -> Work:
    return Work(verbs)


def untouched(store: Any) -> tuple[bytes, Any]:
    return store.export("r1"), store.get_run("r1").info


def group(work: Work, policy: Retry | None = None) -> Any:
    """A group that its workflow ends for, where a step of it failed."""

    @workflow("group")
    def flow() -> Steps[list[int]]:
        steps = [work.step(name) for name in "xyz"]
        told = yield parallel("p", *(asked.retry(policy) if policy else asked for asked in steps))
        if not told.success:
            raise WorkflowError("a step of the group failed")
        return [result.output for result in told]

    return flow


@pytest.mark.parametrize("kind", ["group", "map", "row", "inside"])
def test_a_step_that_failed_keeps_its_visit_and_key_and_one_that_was_undone_counts_on(verbs, store, kind):
    seen: dict[str, list[tuple[int, int, str]]] = {}
    broken = {1}

    def do(n: int) -> int:
        ctx = current()
        seen.setdefault(ctx.node_id, []).append((ctx.visit, ctx.attempt, ctx.idempotency_key))
        if n in broken:
            raise ValueError("broken")
        return n

    fn = verbs.node(do)

    @workflow("row")
    def row() -> Steps[None]:
        for n in range(2):
            yield step(str(n)).python(fn, args=(n,)).with_rollback(lambda ctx: None)

    @workflow("kinds")
    def flow() -> Steps[None]:
        if kind == "group":
            yield parallel("p", *(step(str(n)).python(fn, args=(n,)) for n in range(2))).must_succeed()
        elif kind == "map":
            yield step("p").map(fn, [0, 1])
        else:
            yield step("p").subworkflow(row.bind())

    used, prefix = (row, "") if kind == "row" else (flow, "p/")
    with pytest.raises(StepError):
        verbs.run(used, store=store, run_id="r1")
    broken.clear()
    verbs.retry(used, store, "r1")
    first, second = seen[f"{prefix}1"]
    assert [(1, 1), (1, 2), first[2]] == [first[:2], second[:2], second[2]]
    visits = [visit for visit, _, _ in seen[f"{prefix}0"]]
    assert ([1, 2] if kind in {"row", "inside"} else [1]) == visits


@pytest.mark.every_store
def test_retry_does_only_the_failed_steps_of_a_group_again(verbs, store, work):
    flow = group(work)
    work.broken = {"p/y"}
    with pytest.raises(WorkflowError):
        verbs.run(flow, store=store, run_id="r1")
    work.broken, work.calls[:] = set(), []
    assert [2, 2, 2] == verbs.retry(flow, store, "r1")
    assert ["p/y"] == work.calls


def test_retry_gives_a_failed_step_of_a_group_fresh_attempts(verbs, store, work):
    flow = group(work, Retry(2, backoff=0))
    work.broken = {"p/y"}
    with pytest.raises(WorkflowError):
        verbs.run(flow, store=store, run_id="r1")
    with pytest.raises(WorkflowError):
        verbs.retry(flow, store, "r1")
    assert (4, 1, 1) == tuple(work.calls.count(f"p/{name}") for name in "yxz")


def test_resume_keeps_the_recorded_failure_of_a_step_of_a_group(verbs, store, work):
    @workflow("group")
    def flow() -> Steps[list[bool]]:
        told = yield parallel("p", *(work.step(name) for name in "xyz"))
        yield work.step("after")
        return [result.success for result in told]

    work.broken = {"p/y", "after"}
    with pytest.raises(StepError):
        verbs.run(flow, store=store, run_id="r1")
    work.broken, work.calls[:] = set(), []
    assert [True, False, True] == verbs.resume(flow, store, "r1")
    assert ["after"] == work.calls


def test_a_crash_in_a_retry_does_not_bring_the_failures_back(verbs, store, work):
    flow = group(work)
    work.broken = {"p/y"}
    with pytest.raises(WorkflowError):
        verbs.run(flow, store=store, run_id="r1")
    work.broken, work.calls[:] = set(), []
    with pytest.raises(RunStopped):
        verbs.retry(flow, store, "r1", stop_after="p/y")
    assert [2, 2, 2] == verbs.resume(flow, store, "r1")
    assert ["p/y"] == work.calls


def test_retry_does_only_the_failed_items_of_a_map_again(verbs, store, work):
    @workflow("mapping")
    def flow() -> Steps[list[int]]:
        return (yield step("m").retry(2, 0).map(work.fn, [1, 2, 3], key=lambda item: f"k{item}"))

    work.broken = {"m/k2"}
    with pytest.raises(StepError, match="'m'"):
        verbs.run(flow, store=store, run_id="r1")
    assert 2 == work.calls.count("m/k2")
    work.calls.clear()
    with pytest.raises(StepError, match="'m'"):
        verbs.retry(flow, store, "r1")
    assert ["m/k2", "m/k2"] == work.calls
    work.broken, work.calls[:] = set(), []
    assert [2, 3, 4] == verbs.retry(flow, store, "r1")
    assert ["m/k2"] == work.calls


@pytest.mark.parametrize(
    "made_up_for",
    [
        lambda work, asked: asked.when(lambda ctx: False),
        lambda work, asked: asked.skip_on_error(),
        lambda work, asked: asked.on_error(lambda ctx, failed: work.step("other")),
    ],
    ids=["when", "skip_on_error", "on_error"],
)
def test_a_map_that_was_skipped_or_recovered_is_answered_from_the_record(verbs, store, work, made_up_for):
    @workflow("mapping")
    def flow() -> Steps[int]:
        yield made_up_for(work, step("m").map(work.fn, [1, 2, 3]))
        return (yield from work.step("z"))

    work.broken = {"m/1", "z"}
    with pytest.raises(StepError, match="'z'"):
        verbs.run(flow, store=store, run_id="r1")
    work.broken, work.calls[:] = set(), []
    assert 2 == verbs.resume(flow, store, "r1")
    assert ["z"] == work.calls


def test_a_chosen_option_that_failed_is_done_again_without_asking(verbs, store, work):
    def ask(ctx: Any) -> bool:
        work.calls.append("asked")
        return True

    @workflow("branching")
    def flow() -> Steps[int]:
        return (yield from branch("b", (verbs.node(ask), work.step("one")))).inner_output

    work.broken = {"b/one"}
    with pytest.raises(StepError):
        verbs.run(flow, store=store, run_id="r1")
    work.broken = set()
    assert 2 == verbs.resume(flow, store, "r1")
    assert ["asked", "b/one", "b/one"] == work.calls


@pytest.mark.parametrize("broken", ["s/before", "s/deep/leaf", "after"])
def test_a_resume_goes_into_workflows_two_deep(verbs, store, work, broken):
    @workflow("deep")
    def deep() -> Steps[int]:
        n = yield from work.step("first")
        return (yield from work.step("leaf", n))

    @workflow("middle")
    def middle() -> Steps[int]:
        n = yield from work.step("before")
        told = yield from step("deep").subworkflow(deep, {})
        return n + told.final_output

    @workflow("outer")
    def outer() -> Steps[int]:
        told = yield from step("s").subworkflow(middle, {})
        return (yield from work.step("after", told.final_output))

    work.broken = {broken}
    with pytest.raises(StepError):
        verbs.run(outer, store=store, run_id="r1")
    work.broken, work.calls[:] = set(), []
    assert 6 == verbs.resume(outer, store, "r1")
    every = ["s/before", "s/deep/first", "s/deep/leaf", "after"]
    assert every[every.index(broken) :] == work.calls


def test_a_difference_inside_a_workflow_inside_is_told_before_anything_runs(verbs, store, work):
    def made(name: str) -> Any:
        @workflow("inner")
        def inner() -> Steps[int]:
            yield work.step(name)
            return (yield from work.step("last"))

        @workflow("outer")
        def outer() -> Steps[int]:
            return (yield from step("s").subworkflow(inner, {})).final_output

        return outer

    work.broken = {"s/last"}
    with pytest.raises(StepError):
        verbs.run(made("one"), store=store, run_id="r1")
    before = untouched(store)
    with pytest.raises(NonDeterminismError, match=r"'s/one'.*'s/other'"):
        verbs.resume(made("other"), store, "r1")
    assert (["s/one", "s/last"], before) == (work.calls, untouched(store))


@pytest.mark.parametrize("is_outer", [True, False])
def test_a_step_of_a_name_that_was_used_ends_the_run_and_says_how_to_name_it(verbs, store, work, is_outer):
    @workflow("twice")
    def twice() -> Steps[int]:
        yield work.step("a")
        return (yield from work.step("a"))

    @workflow("outer")
    def outer() -> Steps[int]:
        yield work.step("a")
        return (yield from step("s").subworkflow(twice, {})).final_output

    if is_outer:
        with pytest.raises(WorkflowHeldError, match=r'f"a-\{i\}"') as caught:
            verbs.run(twice, store=store, run_id="r1")
    else:
        with pytest.raises(WorkflowHeldError) as caught:
            verbs.run(outer, store=store, run_id="r1")
    assert isinstance(caught.value.__cause__, DuplicateStepNameError)
    assert ("r1", "a") == (caught.value.__cause__.run_id, caught.value.__cause__.step_name)
    assert "blocked" == store.get_run("r1").info.status


# -- journals that are damaged, or somebody else's ------------------------------------------------------------


def damaged(tampered: dict[int, Any]) -> type:
    """A store that gives records otherwise than they were written; by sequence, what to do to them."""

    class Damaged:
        def _seen(self, record: Any) -> Any:
            known = record is not None and record.sequence in tampered
            return tampered[record.sequence](record) if known else record

        def latest(self, *args: Any, **options: Any) -> Any:
            found = super().latest(*args, **options)  # type: ignore[misc]
            return found._replace(point=self._seen(found.point), tail=tuple(map(self._seen, found.tail)))

        def read(self, *args: Any, **options: Any) -> Any:
            return [self._seen(record) for record in super().read(*args, **options)]  # type: ignore[misc]

    return Damaged


def row(work: Work) -> Any:
    @workflow("row")
    def flow() -> Steps[int]:
        n = 0
        for name in "abcd":
            n = yield from work.step(name, n)
        return n

    return flow


def emptied(record: Any) -> Any:
    return record._replace(header=b"", payload=b"")


def other_output(record: Any) -> Any:
    return record._replace(payload=record.payload.replace(b"2", b"9"))


@pytest.mark.parametrize("tamper", [emptied, other_output])
def test_a_damaged_record_is_refused_unless_what_is_whole_is_to_do(verbs, medium, work, tamper):
    tampered: dict[int, Any] = {}
    store, flow = medium.open(damaged(tampered)), row(work)
    with pytest.raises(RunStopped):
        verbs.run(flow, store=store, run_id="r1", stop_after="c")
    tampered[2] = tamper
    with pytest.raises(CheckpointCorruptError) as caught:
        verbs.resume(flow, store, "r1")
    assert (2, ["a", "b", "c"]) == (caught.value.sequence, work.calls)
    assert "refuse" == verbs.plan(flow, store, "r1").verdict
    result = verbs.resume(flow, store, "r1", on_corrupt="previous", full=True)
    assert (4, ["a", "b", "c", "b", "c", "d"]) == (result.output, work.calls)
    assert any("damaged" in text for text in result.resumed.differences)
    # The damaged record is still there, and is nobody's concern any more.
    assert 4 == verbs.resume(flow, store, "r1")
    assert [("a", 1), ("b", 2), ("c", 2), ("d", 1)] == [(info.node_id, info.visit) for info in store.list("r1")]


def test_a_run_whose_lease_is_lost_in_the_middle_starts_no_further_step(verbs, medium, log):
    store, other = medium.open(), medium.open()

    def take_away(n: int) -> int:
        log.append("b")
        # By force, which fences the owner off.
        other.delete("r1", "a", force=True)
        return n

    def plain(n: int) -> int:
        log.append("plain")
        return n

    @workflow("row")
    def flow() -> Steps[int]:
        yield step("a").python(verbs.node(plain), args=(1,))
        yield step("b").python(verbs.node(take_away), args=(1,)).with_rollback(lambda ctx: log.append("undone"))
        return (yield from step("c").python(verbs.node(plain), args=(1,)))

    with pytest.raises(LeaseLost):
        verbs.run(flow, store=store, run_id="r1")
    assert (["plain", "b"], []) == (log, [info.node_id for info in store.list("r1")])
    assert "interrupted" == store.get_run("r1").info.status


def test_a_workflow_inside_tells_the_same_result_live_and_on_replay(verbs, store):
    told: list[Any] = []

    @workflow("inner")
    def inner() -> Steps[int]:
        return (yield from step("a").python(verbs.node(lambda: 1)))

    @workflow("outer")
    def outer() -> Steps[int]:
        given = yield from step("s").subworkflow(inner, {})
        both = yield from parallel("p", step("t").subworkflow(inner, {}))
        told.append([given.workflow_result.to_dict(), both.to_dict()])
        return given.final_output

    assert 1 == verbs.run(outer, store=store, run_id="r1")
    assert verbs.resume(outer, store, "r1", full=True).step_results
    live, replayed = told
    assert live == replayed
    assert live[0]["total_duration_ms"] > 0


def test_two_steps_of_one_name_in_a_group_are_named_as_such(verbs, store):
    @workflow("twins")
    def twins() -> Steps[Any]:
        return (yield from parallel("p", step("a").python(int), step("a").python(int)))

    with pytest.raises(WorkflowHeldError, match="two steps called 'a'") as caught:
        verbs.run(twins, store=store, run_id="r1")
    assert isinstance(caught.value.__cause__, DuplicateStepNameError)
    assert "blocked" == store.get_run("r1").info.status
