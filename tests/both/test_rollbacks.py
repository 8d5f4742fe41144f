"""What a workflow undoes when it fails or is cancelled, and what a resume makes of that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milepost import (
    Engine,
    Retry,
    RunCancelled,
    RunSuspended,
    StepError,
    Steps,
    WorkflowEngine,
    WorkflowError,
    branch,
    current,
    parallel,
    step,
    workflow,
)
from milepost.drivers.heartbeat import heartbeat
from milepost.errors import AsyncNodeError, RunStopped, StateTypeError
from milepost.events import RollbackCompleted


class Undoing:
    """Bodies and rollbacks that log; the names in `broken` fail, and with `killed` the process dies."""

    def __init__(self, verbs: Any, log: list[str]) -> None:
        self.verbs = verbs
        self.log = log
        self.broken: set[str] = set()
        self.killed: set[str] = set()

    def note(self, what: str) -> None:
        self.log.append(what)
        if what in self.killed:
            raise self.verbs.Killed
        if what in self.broken:
            raise ValueError(f"{what} is broken")

    def step(self, letter: str, *, retry: Retry | None = None) -> Any:
        """A step that gives its name, and logs; its rollback logs it with a minus."""

        def work() -> str:
            self.note(current().node_id)
            return letter

        def undo(ctx: Any, output: str) -> None:
            self.note(f"-{current().node_id}")

        return step(letter).python(self.verbs.node(work)).with_rollback(self.verbs.node(undo), retry=retry)

    def row(self, ids: str = "abc", name: str = "row", error: Exception | None = None) -> Any:
        @workflow(name)
        def flow() -> Steps[str]:
            told = ""
            for letter in ids:
                told += yield from self.step(letter)
            if error is not None:
                raise error
            return told

        return flow


@pytest.fixture
def undoing(verbs, log) -> Undoing:
    return Undoing(verbs, log)


def undone(store: Any, run_id: str = "r1") -> list[str]:
    return [record.node_id for record in store.read(run_id, kinds=("rollback",))]


@pytest.mark.every_store
def test_a_run_that_fails_is_undone_in_reverse_order(verbs, store, undoing, log):
    undoing.broken = {"c"}
    with pytest.raises(StepError, match="'c'"):
        verbs.run(undoing.row(), store=store, run_id="r1")
    assert (["a", "b", "c", "-b", "-a"], ["b", "a"]) == (log, undone(store))
    assert "failed" == store.get_run("r1").info.status


def test_a_run_that_fails_without_a_store_is_undone_too(verbs, undoing, log):
    undoing.broken = {"c"}
    with pytest.raises(StepError, match="'c'"):
        verbs.run(undoing.row())
    assert ["a", "b", "c", "-b", "-a"] == log


def test_a_run_that_its_code_ends_is_undone(verbs, store, undoing, log):
    with pytest.raises(WorkflowError, match="enough"):
        verbs.run(undoing.row("ab", error=WorkflowError("enough")), store=store, run_id="r1")
    assert ["a", "b", "-b", "-a"] == log


def test_a_rollback_takes_the_context_alone_or_with_the_output(verbs, store, log):
    @workflow("flow")
    def flow() -> Steps[int]:
        yield step("a").python(lambda: 5).with_rollback(lambda ctx, output: log.append((ctx.run_id, output)))
        yield step("b").python(lambda: 6).with_rollback(lambda ctx: log.append(ctx.results["a"].output))
        raise WorkflowError("enough")

    with pytest.raises(WorkflowError):
        verbs.run(flow, store=store, run_id="r1")
    assert [5, ("r1", 5)] == log


def test_errors_of_rollbacks_stop_no_other_and_are_all_told(verbs, store, undoing, log):
    undoing.broken = {"d", "-b", "-c"}
    flow = undoing.row("abcd")
    told: list[Any] = []
    with pytest.raises(StepError, match="'d'"):
        verbs.run(flow, store=store, run_id="r1", hooks=[told.append])
    assert ["a", "b", "c", "d", "-c", "-b", "-a"] == log
    result = told[-1].result
    assert (False, ["c", "b"], True) == (
        result.success, [error.step_name for error in result.rollback_errors], result.had_rollback_failures,
    )  # fmt: skip
    completed = [(event.step_name, event.error is None) for event in told if isinstance(event, RollbackCompleted)]
    assert [("c", False), ("b", False), ("a", True)] == completed


def test_a_rollback_has_a_retry_of_its_own(verbs, store, log):
    left = [1, 1]

    def undo(ctx: Any) -> None:
        log.append("-a")
        if left:
            left.pop()
            raise OSError("not yet")

    @workflow("flow")
    def flow() -> Steps[int]:
        yield step("a").python(lambda: 5).with_rollback(verbs.node(undo), retry=Retry(3, backoff=0))
        raise WorkflowError("enough")

    told: list[Any] = []
    with pytest.raises(WorkflowError):
        verbs.run(flow, store=store, run_id="r1", hooks=[told.append])
    assert (["-a", "-a", "-a"], ()) == (log, told[-1].result.rollback_errors)


@pytest.mark.parametrize("at", ["-c", "-b", "-a"])
def test_a_crash_while_rolling_back_does_the_rest_and_ends_as_it_was_to_end(verbs, timed, undoing, log, at):
    undoing.broken, undoing.killed = {"d"}, {at}
    flow = undoing.row("abcd")
    verbs.crash(flow, timed, "r1", {})
    undoing.killed = set()
    with pytest.raises(StepError, match="d is broken") as caught:
        verbs.resume(flow, timed, "r1")
    assert ("r1", "d") == (caught.value.run_id, caught.value.step_name)
    assert ("failed", ["c", "b", "a"]) == (timed.get_run("r1").info.status, undone(timed))
    assert ["a", "b", "c", "d"] == log[:4]
    assert sorted(["-a", "-b", "-c", at]) == sorted(log[4:])


def test_what_rollbacks_failed_with_before_a_crash_is_told_after_it(verbs, timed, undoing):
    undoing.broken, undoing.killed = {"d", "-c", "-a"}, {"-b"}
    flow = undoing.row("abcd")
    verbs.crash(flow, timed, "r1", {})
    undoing.killed = set()
    told: list[Any] = []
    with pytest.raises(StepError):
        verbs.resume(flow, timed, "r1", hooks=[told.append])
    assert ["c", "a"] == [error.step_name for error in told[-1].result.rollback_errors]


def test_a_rollback_that_the_code_no_longer_has_is_an_error_of_it(verbs, timed, undoing, log):
    undoing.broken, undoing.killed = {"c"}, {"-b"}
    verbs.crash(undoing.row("abc"), timed, "r1", {})
    undoing.killed = set()

    @workflow("row")
    def changed() -> Steps[str]:
        yield step("a").python(lambda: "a")
        yield from undoing.step("b")
        return (yield from undoing.step("c"))

    told: list[Any] = []
    with pytest.raises(StepError):
        verbs.resume(changed, timed, "r1", hooks=[told.append])
    assert (["a"], ["a", "b"]) == (
        [error.step_name for error in told[-1].result.rollback_errors], sorted(undone(timed)),
    )  # fmt: skip
    assert 2 == log.count("-b")


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_run_that_was_rolled_back_goes_on_from_the_first_step_that_was_undone(verbs, store, log, undoing, verb):
    def plain() -> str:
        log.append("kept")
        return "kept"

    @workflow("row")
    def flow() -> Steps[str]:
        told = yield from step("kept").python(verbs.node(plain))
        for letter in "abc":
            told += yield from undoing.step(letter)
        return told

    undoing.broken = {"c"}
    with pytest.raises(StepError):
        verbs.run(flow, store=store, run_id="r1")
    assert "a" == verbs.plan(flow, store, "r1").next_node
    undoing.broken = set()
    assert "keptabc" == getattr(verbs, verb)(flow, store, "r1")
    assert ["kept", "a", "b", "c", "-b", "-a", "a", "b", "c"] == log
    assert [("kept", 1), ("a", 2), ("b", 2), ("c", 1)] == [(info.node_id, info.visit) for info in store.list("r1")]


def test_a_run_that_is_undone_twice_undoes_what_was_done_last(verbs, timed, undoing, log):
    undoing.broken = {"c"}
    flow = undoing.row()
    with pytest.raises(StepError):
        verbs.run(flow, store=timed, run_id="r1")
    log.clear()
    undoing.killed = {"-a"}
    verbs.crash(flow, timed, "r1")
    undoing.killed = set()
    with pytest.raises(StepError):
        verbs.resume(flow, timed, "r1")
    assert ["a", "b", "c", "-b", "-a", "-a"] == log
    assert ["b", "a", "b", "a"] == undone(timed)


# -- cancelled runs ------------------------------------------------------------------------------------------


def test_a_cancelled_run_is_undone_and_then_ended(verbs, store, undoing, log):
    flow = undoing.row()
    with pytest.raises(RunStopped):
        verbs.run(flow, store=store, run_id="r1", stop_after="b")
    assert "requested" == store.request_cancel("r1", "not wanted", None)
    with pytest.raises(RunCancelled, match="not wanted"):
        verbs.resume(flow, store, "r1")
    assert (["a", "b", "-b", "-a"], "cancelled") == (log, store.get_run("r1").info.status)


def test_a_cancel_that_meets_the_record_of_a_step_undoes_that_step_too(verbs, store, undoing, log):
    @workflow("row")
    def flow() -> Steps[str]:
        yield from undoing.step("a")
        yield from step("b").python(verbs.node(cancel)).with_rollback(verbs.node(undo))
        return (yield from undoing.step("c"))

    def cancel() -> int:
        store.request_cancel("r1", "not wanted", None)
        return 1

    def undo(ctx: Any, output: int) -> None:
        log.append("-b")

    with pytest.raises(RunCancelled, match="not wanted"):
        verbs.run(flow, store=store, run_id="r1")
    assert (["a", "-b", "-a"], ["b", "a"]) == (log, undone(store))


def test_a_cancel_that_meets_the_end_undoes_all_that_was_done(verbs, store, undoing, log):
    @workflow("row")
    def flow() -> Steps[str]:
        told = yield from undoing.step("a")
        store.request_cancel("r1", "not wanted", None)
        return told

    with pytest.raises(RunCancelled, match="not wanted"):
        verbs.run(flow, store=store, run_id="r1")
    assert (["a", "-a"], ["a"]) == (log, undone(store))
    assert "cancelled" == store.get_run("r1").info.status


def test_a_run_that_returns_something_else_than_it_declares_is_undone_and_told_of(verbs, store, undoing, log):
    @workflow("row")
    def flow() -> Steps[int]:
        told = yield from undoing.step("a")
        return told  # type: ignore[return-value]

    with pytest.raises(StateTypeError, match=r"workflow 'row' of run 'r1' returned.*output is str where int.*Steps"):
        verbs.run(flow, store=store, run_id="r1")
    assert (["a", "-a"], ["a"]) == (log, undone(store))
    assert "failed" == store.get_run("r1").info.status


def test_a_workflow_inside_that_returns_something_else_than_it_declares_is_a_failed_step(verbs, store, undoing, log):
    @workflow("inner")
    def inner() -> Steps[int]:
        told = yield from undoing.step("x")
        return told  # type: ignore[return-value]

    @workflow("outer")
    def outer() -> Steps[str]:
        yield from undoing.step("a")
        result = yield from step("sub").as_result().subworkflow(inner)
        return f"{result.success} {result.error_type}"

    assert "False milepost.errors.StateTypeError" == verbs.run(outer, store=store, run_id="r1")
    assert ["a", "sub/x", "-sub/x"] == log


def test_a_worker_undoes_a_cancelled_run(verbs, store, undoing, log):
    flow = undoing.row()
    with pytest.raises(RunStopped):
        verbs.run(flow, store=store, run_id="r1", stop_after="b")
    store.request_cancel("r1", "not wanted", None)
    Engine(store, flows=[flow]).worker().run(until_idle=True)
    assert (["a", "b", "-b", "-a"], "cancelled") == (log, store.get_run("r1").info.status)


class Slow:
    """Steps whose rollbacks take so long that whoever looks for cancels looks meanwhile; each logs when it has ended."""

    def __init__(self, store: Any, log: list[str]) -> None:
        self.store = store
        self.log = log
        self.cancel_in: str | None = None
        self.began: list[str] = []

    def step(self, name: str) -> Any:
        async def undo(ctx: Any) -> None:
            at = current().node_id
            self.began.append(at)
            if at == self.cancel_in and self.began.count(at) == 1:
                self.store.request_cancel("r1", "not wanted", None)
            await asyncio.to_thread(heartbeat.look)
            for _ in range(9):
                await asyncio.sleep(0)
            current().check_cancelled()
            self.log.append(at)

        return step(name).python(int).with_rollback(undo)


@pytest.fixture
def slow(store, log) -> Slow:
    return Slow(store, log)


def test_no_rollback_of_a_cancelled_run_is_cut_short_by_the_cancel(store, slow, log):
    @workflow("row")
    async def flow() -> None:
        for name in "abc":
            await slow.step(name)
        await step("last").wait_for("never")

    with pytest.raises(RunSuspended):
        asyncio.run(flow.arun(store=store, run_id="r1"))
    store.request_cancel("r1", "not wanted", None)
    with pytest.raises(RunCancelled):
        asyncio.run(flow.aresume(store, "r1"))
    assert (["c", "b", "a"], ["c", "b", "a"], "cancelled") == (log, undone(store), store.get_run("r1").info.status)


def test_no_rollback_of_a_failed_run_is_cut_short_by_a_cancel(store, slow, log):
    slow.cancel_in = "b"

    @workflow("row")
    async def flow() -> None:
        for name in "abc":
            await slow.step(name)
        raise WorkflowError("it ended")

    with pytest.raises(WorkflowError, match="it ended"):
        asyncio.run(flow.arun(store=store, run_id="r1"))
    assert (["c", "b", "a"], "failed") == (log, store.get_run("r1").info.status)


def test_a_rollback_inside_that_a_cancel_cuts_short_is_done_with_the_others(store, slow, log):
    slow.cancel_in = "sub/c"

    @workflow("inner")
    async def inner() -> None:
        for name in "bc":
            await slow.step(name)
        raise WorkflowError("it ended")

    @workflow("row")
    async def flow() -> None:
        await slow.step("a")
        await step("sub").subworkflow(inner)

    with pytest.raises(RunCancelled, match="not wanted"):
        asyncio.run(flow.arun(store=store, run_id="r1"))
    assert ["sub/c", "sub/c", "sub/b", "a"] == slow.began
    assert (["sub/c", "sub/b", "a"], "cancelled") == (log, store.get_run("r1").info.status)
    assert ["sub/c", "sub/b", "a"] == undone(store)


@pytest.mark.parametrize("at", ["-b", "-a"])
def test_a_crash_while_a_cancelled_run_is_undone_does_the_rest(verbs, timed, undoing, log, at):
    flow = undoing.row()
    with pytest.raises(RunStopped):
        verbs.run(flow, store=timed, run_id="r1", stop_after="b")
    timed.request_cancel("r1", "not wanted", None)
    undoing.killed = {at}
    verbs.crash(flow, timed, "r1")
    undoing.killed = set()
    with pytest.raises(RunCancelled, match="not wanted"):
        verbs.resume(flow, timed, "r1")
    assert ("cancelled", ["b", "a"]) == (timed.get_run("r1").info.status, undone(timed))


def test_a_cancel_that_was_half_undone_and_is_dropped_does_again_what_was_undone(verbs, timed, undoing, log):
    flow = undoing.row()
    with pytest.raises(RunStopped):
        verbs.run(flow, store=timed, run_id="r1", stop_after="b")
    timed.request_cancel("r1", "not wanted", None)
    undoing.killed = {"-a"}
    verbs.crash(flow, timed, "r1")
    undoing.killed = set()
    assert "abc" == verbs.resume(flow, timed, "r1", reopen=True)
    assert ["a", "b", "-b", "-a", "b", "c"] == log


@pytest.mark.parametrize("how", ["suspended", "interrupted", "stopped"])
def test_a_run_that_only_stops_is_not_undone(verbs, store, undoing, log, how):
    def interrupt() -> None:
        raise KeyboardInterrupt

    @workflow("row")
    def flow() -> Steps[str]:
        yield from undoing.step("a")
        if how == "suspended":
            yield from step("w").wait_for("go")
        if how == "interrupted":
            yield from step("i").python(verbs.node(interrupt))
        return (yield from undoing.step("b"))

    errors = {"suspended": RunSuspended, "interrupted": KeyboardInterrupt, "stopped": RunStopped}
    with pytest.raises(errors[how]):
        verbs.run(flow, store=store, run_id="r1", stop_after="a" if how == "stopped" else ())
    assert (["a"], []) == (log, undone(store))


# -- groups and workflows inside -----------------------------------------------------------------------------


def nested(undoing: Undoing, verbs: Any, outer_fails: bool = True, is_survived: bool = False) -> Any:
    inner = undoing.row("xyz", "inner")

    @workflow("outer")
    def outer() -> Steps[str]:
        told = yield from undoing.step("a")
        asked = step("sub").subworkflow(inner, {})
        if is_survived:
            result = yield asked.as_result()
            told += str(result.success)
        else:
            told += (yield from asked).final_output
        return told + (yield from undoing.step("b"))

    return outer


def test_what_a_sub_workflow_did_is_undone_before_what_came_before_it(verbs, store, undoing, log):
    undoing.broken = {"b"}
    with pytest.raises(StepError, match="'b'"):
        verbs.run(nested(undoing, verbs), store=store, run_id="r1")
    assert ["-sub/z", "-sub/y", "-sub/x", "-a"] == log[5:]


def test_a_sub_workflow_that_fails_is_undone_by_itself(verbs, store, undoing, log):
    undoing.broken = {"sub/z"}
    assert "aFalseb" == verbs.run(nested(undoing, verbs, is_survived=True), store=store, run_id="r1")
    assert ["a", "sub/x", "sub/y", "sub/z", "-sub/y", "-sub/x", "b"] == log


def test_a_sub_workflow_that_was_undone_by_itself_stays_so_when_the_run_goes_on(verbs, store, undoing, log):
    undoing.broken = {"sub/z", "b"}
    flow = nested(undoing, verbs, is_survived=True)
    with pytest.raises(StepError, match="'b'"):
        verbs.run(flow, store=store, run_id="r1")
    assert ["-sub/y", "-sub/x", "b", "-a"] == log[4:]


def test_a_run_without_rollbacks_of_its_own_goes_on_after_the_failure_of_a_sub_workflow(verbs, store, undoing, log):
    inner = undoing.row("xy", "inner")

    def plain() -> int:
        undoing.note("b")
        return 1

    @workflow("outer")
    def outer() -> Steps[int]:
        yield step("sub").subworkflow(inner, {}).as_result()
        return (yield from step("b").python(verbs.node(plain)))

    undoing.broken = {"sub/y", "b"}
    with pytest.raises(StepError, match="'b'"):
        verbs.run(outer, store=store, run_id="r1")
    undoing.broken = set()
    assert 1 == verbs.resume(outer, store, "r1")
    assert ["sub/x", "sub/y", "-sub/x", "b", "b"] == log


@pytest.mark.parametrize("at", ["-sub/y", "-sub/x"])
def test_a_crash_while_a_sub_workflow_is_undone_does_not_try_it_again(verbs, timed, undoing, log, at):
    undoing.broken, undoing.killed = {"sub/z"}, {at}
    flow = nested(undoing, verbs, is_survived=True)
    verbs.crash(flow, timed, "r1", {})
    # Though it could now: what it did is undone in part.
    undoing.broken = undoing.killed = set()
    assert "aFalseb" == verbs.resume(flow, timed, "r1")
    assert (1, ["sub/y", "sub/x"]) == (log.count("sub/z"), undone(timed))


def test_a_retry_does_again_what_a_failed_child_undid_of_its_own(verbs, store, undoing, log):
    inner = undoing.row("xyz", "inner")

    def plain() -> int:
        log.append("good")
        return 1

    @workflow("outer")
    def outer() -> Steps[int]:
        told = yield parallel("p", step("sub").subworkflow(inner, {}), step("good").python(verbs.node(plain)))
        if not told.success:
            raise WorkflowError("a child failed")
        return told.get_output("good")

    undoing.broken = {"p/sub/y"}
    with pytest.raises(WorkflowError):
        verbs.run(outer, store=store, run_id="r1")
    assert ["p/sub/x", "p/sub/y", "-p/sub/x"] == [name for name in log if name != "good"]
    log.clear()
    undoing.broken = set()
    assert 1 == verbs.retry(outer, store, "r1")
    assert ["p/sub/x", "p/sub/y", "p/sub/z"] == log


def test_steps_of_a_group_are_undone(verbs, store, undoing, log):
    @workflow("group")
    def flow() -> Steps[str]:
        yield parallel("p", undoing.step("x"), undoing.step("y"), max_parallel=1)
        return (yield from undoing.step("z"))

    undoing.broken = {"z", "p/y"}
    with pytest.raises(StepError, match="'z'"):
        verbs.run(flow, store=store, run_id="r1")
    assert ["p/x", "p/y", "z", "-p/x"] == log


def recovered(undoing: Undoing, kind: str) -> Any:
    """A workflow whose group fails, is made up for by another step, and is undone with it in the end."""

    @workflow("recovered")
    def flow() -> Steps[str]:
        group = parallel("p", undoing.step("x"), undoing.step("y"), max_parallel=1).must_succeed()
        if kind == "branch":
            group = branch("b", (lambda ctx: True, group))
        yield group.on_error(lambda ctx, failed: undoing.step("other"))
        raise WorkflowError("enough")

    return flow


@pytest.mark.parametrize("kind", ["group", "branch"])
def test_a_failed_group_is_undone_after_a_crash_in_what_its_on_error_gave(verbs, timed, undoing, log, kind):
    flow, at = recovered(undoing, kind), {"group": "p", "branch": "b"}[kind]
    undoing.broken, undoing.killed = {"p/y", "b/p/y"}, {f"{at}/other"}
    verbs.crash(flow, timed, "r1", {})
    undoing.killed = set()
    log.clear()
    told: list[Any] = []
    with pytest.raises(WorkflowError, match="enough"):
        verbs.resume(flow, timed, "r1", hooks=[told.append])
    x = {"group": "p/x", "branch": "b/p/x"}[kind]
    assert [f"{at}/other", f"-{at}/other", f"-{x}"] == log
    assert () == told[-1].result.rollback_errors


@pytest.mark.parametrize("kind", ["group", "branch"])
def test_a_failed_group_is_undone_by_a_cancel_before_what_its_on_error_gave(verbs, timed, undoing, log, kind):
    flow, at = recovered(undoing, kind), {"group": "p", "branch": "b"}[kind]
    undoing.broken, undoing.killed = {"p/y", "b/p/y"}, {f"{at}/other"}
    verbs.crash(flow, timed, "r1", {})
    timed.request_cancel("r1", "not wanted", None)
    log.clear()
    with pytest.raises(RunCancelled, match="not wanted"):
        verbs.resume(flow, timed, "r1")
    assert [{"group": "-p/x", "branch": "-b/p/x"}[kind]] == log


def test_a_rollback_that_no_code_has_any_more_is_an_error_of_the_run_though_there_is_no_other(verbs, store, undoing):
    with pytest.raises(RunStopped):
        verbs.run(undoing.row("a", error=WorkflowError("enough")), store=store, run_id="r1", stop_after="a")

    @workflow("row")
    def changed() -> Steps[str]:
        yield step("a").python(lambda: "a")
        raise WorkflowError("enough")

    told: list[Any] = []
    with pytest.raises(WorkflowError, match="enough"):
        verbs.resume(changed, store, "r1", hooks=[told.append])
    assert ["a"] == [error.step_name for error in told[-1].result.rollback_errors]
    assert ["a"] == undone(store)


def test_a_step_that_was_skipped_has_nothing_to_undo(verbs, store, undoing, log):
    @workflow("flow")
    def flow() -> Steps[str]:
        yield undoing.step("a").when(lambda ctx: False)
        yield undoing.step("b").skip_on_error()
        raise WorkflowError("enough")

    undoing.broken = {"b"}
    with pytest.raises(WorkflowError):
        verbs.run(flow, store=store, run_id="r1")
    assert (["b"], []) == (log, undone(store))


def test_a_workflow_inside_that_takes_too_long_is_undone(store):
    undone = []

    async def slow() -> None:
        await asyncio.sleep(60)

    @workflow("inner")
    def inner() -> Steps[None]:
        yield step("a").python(int).with_rollback(lambda ctx: undone.append("a"))
        yield step("b").python(slow)

    @workflow("outer")
    def outer() -> Steps[bool]:
        told = yield from step("sub").timeout(1.0).subworkflow(inner).as_result()
        return told.success

    assert False is asyncio.run(outer.arun(store=store, run_id="r"))
    assert ["a"] == undone


def test_a_rollback_has_a_key_of_its_own(verbs, store):
    keys = []

    def undo(ctx: Any) -> None:
        keys.append(current().idempotency_key)

    @workflow("w")
    def wf() -> Steps[None]:
        yield step("a").python(lambda: keys.append(current().idempotency_key)).with_rollback(undo)
        raise WorkflowError("no")

    with pytest.raises(WorkflowError):
        verbs.run(wf, store=store, run_id="r")
    assert 2 == len(set(keys))


# -- rollbacks that have to be awaited -----------------------------------------------------------------------


def awaited(log: list[str], is_failing: bool) -> Any:
    def work() -> str:
        log.append("a")
        return "a"

    async def undo(ctx: Any, output: str) -> None:
        await asyncio.sleep(0)
        log.append("-a")

    @workflow("row")
    def flow() -> Steps[str]:
        told = yield step("a").python(work).with_rollback(undo)
        if is_failing:
            raise WorkflowError("enough")
        return told

    return flow


def test_a_sync_verb_does_no_step_whose_rollback_has_to_be_awaited(store, log):
    with pytest.raises(AsyncNodeError, match=r"undo.*step 'a' of run 'r1' is a coroutine function"):
        awaited(log, is_failing=False).run(store=store, run_id="r1")
    assert ([], "interrupted") == (log, store.get_run("r1").info.status)
    assert "a" == asyncio.run(awaited(log, is_failing=False).aresume(store, "r1"))


def test_a_rollback_that_gives_a_coroutine_is_none_that_was_done(verbs, store, log):
    async def undo(output: str) -> None:
        log.append("-a")

    @workflow("row")
    def flow() -> Steps[str]:
        yield step("a").python(lambda: "a").with_rollback(lambda ctx, output: undo(output))
        raise WorkflowError("enough")

    told = verbs.run(WorkflowEngine(store), flow, run_id="r1")
    assert [("a", True)] == [(error.step_name, "gave a coroutine" in error.error) for error in told.rollback_errors]
    assert [] == log


def test_a_sync_verb_undoes_nothing_where_one_of_the_rollbacks_has_to_be_awaited(store, log):
    flow = awaited(log, is_failing=True)
    with pytest.raises(RunStopped):
        asyncio.run(flow.arun(store=store, run_id="r1", stop_after="a"))
    with pytest.raises(AsyncNodeError, match="undo"):
        flow.resume(store, "r1")
    assert (["a"], []) == (log, undone(store))
    with pytest.raises(WorkflowError, match="enough"):
        asyncio.run(flow.aresume(store, "r1"))
    assert (["a", "-a"], ["a"], "failed") == (log, undone(store), store.get_run("r1").info.status)
