"""Faults that users of other libraries met with workflows of steps, as reported in public: none of them may be here."""

from __future__ import annotations

from typing import Any

import pytest

from milepost import (
    RunSuspended,
    Steps,
    parallel,
    step,
    workflow,
)
from milepost.errors import NonDeterminismError, RunStopped


class Broken:
    """Raises `error` where it is called with `at`, until it is mended."""

    def __init__(self, log: list[Any], at: Any = None, error: BaseException | None = None) -> None:
        self.log = log
        self.at = at
        self.error = error or ValueError("no")

    def __call__(self, value: Any) -> Any:
        self.log.append(value)
        if value == self.at:
            raise self.error
        return value


def untouched(store: Any, run_id: str = "r1") -> tuple[bytes, Any]:
    return store.export(run_id), store.get_run(run_id).info


# -- what is interrupted is not done -------------------------------------------------------------------------


# -- a run id that is there ----------------------------------------------------------------------------------


# -- attempts over several processes -------------------------------------------------------------------------


# -- code that has changed -----------------------------------------------------------------------------------


SLEEPERS = {
    "the same": (["a", "sleep", "b", "c"], "continue"),
    "inserted before the sleep": (["a", "x", "sleep", "b", "c"], "refuse"),
    "inserted after it": (["a", "sleep", "x", "b", "c"], "continue"),
    "removed before it": (["sleep", "b", "c"], "refuse"),
    "removed after it": (["a", "sleep", "c"], "continue"),
    "renamed before it": (["z", "sleep", "b", "c"], "refuse"),
    "swapped after it": (["a", "sleep", "c", "b"], "continue"),
    "the sleep removed": (["a", "b", "c"], "refuse"),
}


@pytest.mark.parametrize("change", SLEEPERS)
def test_a_run_that_sleeps_gets_one_verdict_on_new_code_which_its_plan_says_beforehand(
    verbs, timed, clock, log, change
):
    def made(ids: list[str]) -> Any:
        @workflow("sleeping")
        def flow() -> Steps[list[str]]:
            for name in ids:
                if name == "sleep":
                    yield step(name).sleep(3600)
                else:
                    yield step(name).python(verbs.node(log.append), args=(name,))
            return ids

        return flow

    with pytest.raises(RunSuspended):
        verbs.run(made(["a", "sleep", "b", "c"]), store=timed, run_id="r1", clock=clock)
    clock.advance(hours=2)
    ids, verdict = SLEEPERS[change]
    before = untouched(timed)
    plan = verbs.plan(made(ids), timed, "r1", clock=clock)
    assert (verdict, before) == (plan.verdict, untouched(timed))
    if verdict == "continue":
        assert ids == verbs.resume(made(ids), timed, "r1", clock=clock)
        assert [name for name in ids if name != "sleep"] == log
        return
    for _ in range(2):
        with pytest.raises(NonDeterminismError) as caught:
            verbs.resume(made(ids), timed, "r1", clock=clock)
        assert plan.reason == str(caught.value)
    assert (["a"], before) == (log, untouched(timed))


def test_a_result_whose_type_has_changed_is_refused_with_its_place(verbs, store, log):
    def made(kind: type) -> Any:
        def work(value: str) -> Any:
            log.append(value)
            return {"n": 1}

        work.__annotations__["return"] = kind

        @workflow("shaped")
        def flow() -> Steps[Any]:
            told = yield step("a").python(work, args=("a",))
            yield step("b").python(work, args=("b",))
            return told

        return flow

    with pytest.raises(RunStopped):
        verbs.run(made(dict[str, int]), store=store, run_id="r1", stop_after="a")
    before = untouched(store)
    with pytest.raises(ValueError, match="recorded output of step 'a'"):
        verbs.resume(made(list[int]), store, "r1")
    assert "refuse" == verbs.plan(made(list[int]), store, "r1").verdict
    assert (["a"], before) == (log, untouched(store))


# -- inputs --------------------------------------------------------------------------------------------------


# -- what runs at once ---------------------------------------------------------------------------------------


def test_a_second_pass_over_a_map_never_gets_the_results_of_the_first(verbs, store, log):
    broken = Broken(log, 4, KeyboardInterrupt())

    @workflow("passes")
    def flow() -> Steps[list[list[int]]]:
        told = []
        for number, items in enumerate(([1, 2], [3, 4])):
            told.append((yield step(f"pass-{number}").map(verbs.node(lambda i: broken(i)), items, max_parallel=1)))
        return told

    with pytest.raises(KeyboardInterrupt):
        verbs.run(flow, store=store, run_id="r1")
    broken.at = None
    assert [[1, 2], [3, 4]] == verbs.resume(flow, store, "r1")
    assert [1, 2, 3, 4, 4] == log


def test_a_group_one_of_whose_steps_is_skipped_ends_once_with_those_that_ran(verbs, store, log):
    @workflow("group")
    def flow() -> Steps[list[Any]]:
        told = yield parallel(
            "p",
            step("a").python(verbs.node(log.append), args=("a",)),
            step("b").when(lambda ctx: False).python(verbs.node(log.append), args=("b",)),
        )
        yield step("after").python(verbs.node(log.append), args=("after",))
        return [(result.name, result.outcome) for result in told]

    assert [("a", "succeeded"), ("b", "skipped")] == verbs.run(flow, store=store, run_id="r1")
    assert ["a", "after"] == log


# -- what code between steps sees ----------------------------------------------------------------------------
