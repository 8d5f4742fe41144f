"""The face of an engine for workflows: executions to iterate, failures as results, and what is kept of them."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost import (
    CheckpointNotFoundError,
    FileCheckpointStore,
    InputMismatchError,
    LeaseLost,
    MemoryCheckpointStore,
    MemoryStore,
    RunCancelled,
    RunExistsError,
    SQLiteStore,
    StepError,
    Steps,
    Workflow,
    WorkflowContext,
    WorkflowEngine,
    WorkflowError,
    step,
    workflow,
)
from milepost.adapters.user_stores import adapted
from milepost.errors import OptionError, ResultNotReadyError, StoreClosedError
from milepost.events import RunBlocked, StepCompleted, WorkflowCompleted, WorkflowStarted

Log = list[str]


@pytest.fixture(params=["memory", "sqlite", "files", "points"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    made: dict[str, Callable[[], Any]] = {
        "memory": MemoryStore,
        "sqlite": lambda: SQLiteStore(tmp_path / "runs.db"),
        "files": lambda: FileCheckpointStore(tmp_path / "kept"),
        "points": MemoryCheckpointStore,
    }
    store = made[request.param]()
    yield store
    store.close()


@pytest.fixture
def engine(store: Any) -> WorkflowEngine:
    return WorkflowEngine(store)


@pytest.fixture
def log() -> Log:
    return []


@pytest.fixture
def failing() -> set[str]:
    """The steps that fail."""
    return set()


@pytest.fixture
def flow(log: Log, failing: set[str]) -> Workflow[[int], int]:
    def work(name: str, n: int) -> int:
        log.append(name)
        if name in failing:
            raise ValueError(f"no {name} today")
        return n + 1

    @workflow("counting")
    def counting(n: int) -> Steps[int]:
        for name in "abc":
            n = yield step(name).python(work, args=(name, n)).checkpoint()
        return n

    return counting


async def events_of(execution: Any) -> list[Any]:
    return [event async for event in execution]


async def test_an_execution_tells_the_runs_id_with_its_first_event_and_ends_with_the_result(
    engine: WorkflowEngine, flow: Workflow[[int], int]
) -> None:
    execution = engine.execute(flow, n=1)
    events = await events_of(execution)
    assert isinstance(events[0], WorkflowStarted)
    assert {execution.run_id} == {event.run_id for event in events}
    assert ["a", "b", "c"] == [event.step_name for event in events if isinstance(event, StepCompleted)]
    assert isinstance(events[-1], WorkflowCompleted)
    result = engine.get_result()
    assert (4, True, "finished", execution.run_id) == (
        result.final_output,
        result.success,
        result.status,
        result.run_id,
    )
    assert result is engine.get_result(execution.run_id) is events[-1].result


async def test_a_workflow_that_fails_is_a_result_and_a_resume_goes_on(
    engine: WorkflowEngine, flow: Workflow[[int], int], failing: set[str], log: Log
) -> None:
    failing.add("b")
    events = await events_of(engine.execute(flow, n=1, run_id="r"))
    assert not events[-1].success
    result = engine.get_result("r")
    assert (False, "failed", None) == (result.success, result.status, result.output)
    assert isinstance(result.error, StepError)
    assert result.failed_step is not None
    assert "b" == result.failed_step.name
    with pytest.raises(StepError, match="no b today"):
        result.unwrap()
    failing.clear()
    await events_of(engine.resume(flow, workflow_id="r", n=1))
    assert 4 == engine.get_result("r").unwrap()
    assert ["a", "b", "b", "c"] == log


@pytest.mark.parametrize("verb", ["run", "arun"])
async def test_run_and_its_twin_give_a_result_whatever_becomes_of_the_workflow(
    engine: WorkflowEngine, flow: Workflow[[int], int], failing: set[str], verb: str
) -> None:
    async def call(**given: Any) -> Any:
        if verb == "arun":
            return await engine.arun(flow, **given)
        return await asyncio.to_thread(lambda: engine.run(flow, **given))

    assert 4 == (await call(n=1)).final_output
    failing.add("c")
    failed = await call(inputs={"n": 1}, workflow_id="r")
    assert (False, "failed", "r") == (failed.success, failed.status, failed.run_id)
    assert isinstance(failed.error, StepError)
    assert failed is engine.get_result()
    with pytest.raises(RunExistsError):
        await call(n=1, run_id="r")
    assert "failed" == (await call(n=1, run_id="r", if_exists="resume")).status
    failing.clear()
    assert 4 == (await call(n=1, run_id="r", if_exists="resume")).unwrap()
    with pytest.raises(InputMismatchError):
        await call(n=2, run_id="r", if_exists="resume")
    with pytest.raises(TypeError, match="its inputs are: n"):
        await call(m=1)


@pytest.mark.parametrize("verb", ["run", "arun", "execute", "execute up to its last event"])
async def test_a_workflow_that_a_bug_holds_is_a_result(engine: WorkflowEngine, verb: str) -> None:
    @workflow("buggy")
    def buggy() -> Steps[int]:
        done = yield step("a").python(int)
        return [][done] if bugs else done

    bugs = ["here"]
    if verb == "run":
        await asyncio.to_thread(engine.run, buggy, run_id="r")
    elif verb == "arun":
        await engine.arun(buggy, run_id="r")
    else:
        execution = engine.execute(buggy, run_id="r")
        async for event in execution:
            if verb != "execute" and isinstance(event, RunBlocked):
                break
        await execution.aclose()
    result = engine.get_result()
    assert ("r", False, "blocked", 1) == (result.run_id, result.success, result.status, len(result.step_results))
    with pytest.raises(WorkflowError, match="list index out of range"):
        result.unwrap()
    bugs.clear()
    await events_of(engine.resume(buggy, "r"))
    assert 0 == engine.get_result("r").unwrap()


@pytest.mark.parametrize("verb", ["run", "arun", "execute"])
async def test_a_workflow_that_waits_is_a_result(engine: WorkflowEngine, verb: str) -> None:
    @workflow("waiting")
    def waiting() -> Steps[Any]:
        reply = yield step("w").wait_for("go")
        return reply.payload

    if verb == "execute":
        await events_of(engine.execute(waiting, run_id="r"))
    elif verb == "arun":
        await engine.arun(waiting, run_id="r")
    else:
        await asyncio.to_thread(engine.run, waiting, run_id="r")
    result = engine.get_result("r")
    assert (False, "waiting", ["go"], None) == (
        result.success,
        result.status,
        [wait.signal for wait in result.waiting_for],
        result.error,
    )
    with pytest.raises(RuntimeError, match="waiting and has no output yet"):
        result.unwrap()
    assert "taken" == await engine.engine.asignal("r", "go", {"paid": 5})
    await events_of(engine.resume(waiting, "r"))
    assert {"paid": 5} == engine.get_result("r").unwrap()


async def test_a_result_is_not_ready_before_an_execution_has_ended(
    engine: WorkflowEngine, flow: Workflow[[int], int]
) -> None:
    with pytest.raises(ResultNotReadyError, match="no execution has ended"):
        engine.get_result()
    execution = engine.execute(flow, n=1, run_id="r")
    async for _ in execution:
        break
    with pytest.raises(ResultNotReadyError, match="'r'"):
        engine.get_result("r")
    await execution.aclose()
    with pytest.raises(ResultNotReadyError):
        engine.get_result("r")


async def test_breaking_off_leaves_the_run_interrupted_and_resumable(
    engine: WorkflowEngine, flow: Workflow[[int], int], log: Log
) -> None:
    execution = engine.execute(flow, n=1, run_id="r")
    async for event in execution:
        if isinstance(event, StepCompleted):
            break
    await execution.aclose()
    assert "interrupted" == engine.engine.list_runs()[0].status
    await events_of(engine.resume(flow, "r"))
    assert (4, ["a", "b", "c"]) == (engine.get_result("r").unwrap(), log)


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_execution_that_nobody_keeps_is_broken_off_too(
    engine: WorkflowEngine, flow: Workflow[[int], int]
) -> None:
    async for event in engine.execute(flow, n=1, run_id="r"):
        if isinstance(event, StepCompleted):
            break
    gc.collect()
    await events_of(engine.resume(flow, "r", on_locked="wait", run_timeout=10))
    assert 4 == engine.get_result("r").unwrap()


@pytest.mark.parametrize("store", ["memory"], indirect=True)
async def test_an_execution_that_nobody_iterates_warns_and_makes_no_run(
    engine: WorkflowEngine, flow: Workflow[[int], int], log: Log
) -> None:
    with pytest.warns(RuntimeWarning, match="run 'r' was never iterated, so nothing ran"):
        engine.execute(flow, n=1, run_id="r")  # nobody has it, so that it goes at once
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await engine.execute(flow, n=1, run_id="s").aclose()
        gc.collect()
    assert ([], []) == (log, engine.engine.list_runs())


async def test_a_second_iteration_gives_nothing_more(engine: WorkflowEngine, flow: Workflow[[int], int]) -> None:
    execution = engine.execute(flow, n=1)
    assert await events_of(execution)
    assert [] == await events_of(execution)


async def test_an_unknown_run_and_other_inputs_are_raised(
    engine: WorkflowEngine, flow: Workflow[[int], int], failing: set[str], log: Log
) -> None:
    with pytest.raises(CheckpointNotFoundError):
        await events_of(engine.resume(flow, "nobody", n=1))
    failing.add("b")
    await events_of(engine.execute(flow, n=1, run_id="r"))
    log.clear()
    with pytest.raises(InputMismatchError, match="recorded 1, given 2"):
        await events_of(engine.resume(flow, "r", n=2))
    with pytest.raises(RunExistsError):
        await events_of(engine.execute(flow, n=1, run_id="r"))
    assert ([], "failed") == (log, engine.get_result("r").status)
    failing.clear()
    await events_of(engine.resume(flow, run_id="r", workflow_id="r"))
    await events_of(engine.resume(flow.bind(1), "r"))
    assert 4 == engine.get_result("r").unwrap()


async def test_ids_by_two_names_must_agree(engine: WorkflowEngine, flow: Workflow[[int], int]) -> None:
    with pytest.raises(TypeError, match="are one thing"):
        engine.execute(flow, run_id="r", workflow_id="s", n=1)
    with pytest.raises(TypeError, match="needs the id"):
        engine.resume(flow)
    with pytest.raises(TypeError):
        engine.execute(flow)


@pytest.mark.parametrize("verb", ["execute", "arun"])
async def test_a_cancel_is_raised(engine: WorkflowEngine, verb: str) -> None:
    @workflow("cancelled")
    def cancelled() -> Steps[None]:
        yield step("a").python(engine.engine.cancel, args=("r", "no more")).compare_args(False)
        yield step("b").python(lambda: None)

    with pytest.raises(RunCancelled, match="no more"):
        await (
            events_of(engine.execute(cancelled, run_id="r"))
            if verb == "execute"
            else engine.arun(cancelled, run_id="r")
        )
    assert "cancelled" == engine.engine.list_runs()[0].status


@pytest.mark.parametrize("verb", ["execute", "arun"])
async def test_a_lost_lease_is_raised(engine: WorkflowEngine, verb: str) -> None:
    @workflow("taken")
    def other() -> Steps[None]:
        yield step("a").python(int, args=("no number",)).compare_args(False)

    async def take_over() -> None:
        with pytest.raises(StepError):
            await engine.engine.aresume(other, "r", takeover=True)

    @workflow("taken")
    async def taken() -> None:
        await step("a").python(take_over)
        await step("b").python(take_over)

    with pytest.raises(LeaseLost):
        await (events_of(engine.execute(taken, run_id="r")) if verb == "execute" else engine.arun(taken, run_id="r"))
    with pytest.raises(ResultNotReadyError):
        engine.get_result("r")


async def test_workflows_find_the_config(store: Any) -> None:
    @workflow("configured")
    def configured(ctx: WorkflowContext[Any]) -> Steps[Any]:
        yield step("a").python(lambda: None)
        return ctx.config["limit"]

    assert 5 == (await WorkflowEngine(store, config={"limit": 5}).arun(configured)).unwrap()


async def test_a_resume_may_name_another_store(
    store: Any, flow: Workflow[[int], int], failing: set[str], log: Log, tmp_path: Path
) -> None:
    failing.add("c")
    await WorkflowEngine(store).arun(flow, n=1, run_id="r")
    failing.clear()
    other = WorkflowEngine(MemoryStore())
    await events_of(other.resume(flow, "r", n=1, checkpoint_store=store))
    assert 4 == other.get_result("r").unwrap()
    assert ["a", "b", "c", "c"] == log
    url = f"sqlite:///{tmp_path / 'another.db'}"
    with WorkflowEngine(url) as first:
        await first.arun(flow, n=1, run_id="s")
    await events_of(other.resume(flow, "s", checkpoint_store=url))
    assert 4 == other.get_result("s").unwrap()


async def test_names_that_are_options_go_as_inputs(engine: WorkflowEngine) -> None:
    @workflow("colliding")
    def colliding(run_id: str, workflow_id: str, timeout: int) -> Steps[list[Any]]:
        yield step("a").python(lambda: None)
        return [run_id, workflow_id, timeout]

    given = {"run_id": "x", "workflow_id": "y", "timeout": 3}
    await events_of(engine.execute(colliding, inputs=given, run_id="r"))
    await events_of(engine.resume(colliding, "r", inputs=given))
    assert ["x", "y", 3] == engine.get_result("r").unwrap()


# -- the default store, and closing --------------------------------------------------------------------------------


async def test_no_file_is_touched_before_the_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Workflow[[int], int]
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = WorkflowEngine()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert [elsewhere] == list(tmp_path.iterdir())
    await engine.arun(flow, n=1, run_id="r")
    assert (tmp_path / ".milepost" / "checkpoints" / "r" / "c.json").is_file()
    assert [] == list(elsewhere.iterdir())
    engine.close()


async def test_an_engine_closes_what_it_opened_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Any, flow: Workflow[[int], int]
) -> None:
    monkeypatch.chdir(tmp_path)
    async with WorkflowEngine() as by_default, WorkflowEngine("memory://") as by_url:
        await by_default.arun(flow, n=1, run_id="r")
        await by_url.arun(flow, n=1, run_id="r")
    for closed in (by_default, by_url):
        with pytest.raises(StoreClosedError):
            await closed.arun(flow, n=1)
    with WorkflowEngine(store) as given:
        pass
    assert 4 == (await given.arun(flow, n=1)).unwrap()
    with WorkflowEngine() as unused:
        pass
    with pytest.raises(StoreClosedError):
        await unused.arun(flow, n=1)


async def test_results_are_kept_of_the_newest_executions(flow: Workflow[[int], int]) -> None:
    engine = WorkflowEngine(MemoryStore())
    for n in range(3):
        await engine.arun(flow, n=n, run_id=f"r{n}")
    await events_of(engine.resume(flow, "r0"))
    assert ("r0", 5) == (engine.get_result().run_id, engine.get_result("r2").unwrap())


def test_what_is_no_store_is_refused_once_it_is_used(flow: Workflow[[int], int]) -> None:
    with pytest.raises(OptionError, match="store must be a store"):
        WorkflowEngine(5).run(flow, n=1)  # type: ignore[arg-type]


def test_a_views_runs_are_those_of_its_store(store: Any, flow: Workflow[[int], int]) -> None:
    WorkflowEngine(store).run(flow, n=1, run_id="r")
    assert "finished" == adapted(store).get_run("r").info.status
