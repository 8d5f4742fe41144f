"""Sync functions that an executor runs: threads, processes, loky, Dask."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any

import executed
import pytest
from executed import Job

from milepost import (
    END,
    BranchError,
    Engine,
    Graph,
    NodeError,
    Retry,
    RunCancelled,
    SQLiteStore,
    StepError,
    Steps,
    current,
    step,
    workflow,
)
from milepost.drivers.executors import ExecutorCall, Pools, pools
from milepost.errors import NodeTimeoutError, OptionError
from milepost.events import NodeOverdue
from milepost.testing import FakeClock

# What loky and Dask have opened they leave to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


PATIENCE = 200.0
"""Seconds after which an event counts as one that never comes: a machine under load needs many for a new process."""


def processes() -> Executor:
    return ProcessPoolExecutor(1, mp_context=get_context("forkserver"))


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client.get_executor(pure=False)


def loky() -> Executor:
    from loky import get_reusable_executor

    # Without a time after which idle processes end: loky 3.7 does not notice the death of one that it starts after that.
    return get_reusable_executor(max_workers=1, timeout=None)


@pytest.fixture(autouse=True, scope="module")
def no_pools_left() -> Iterator[None]:
    get_context("forkserver").set_forkserver_preload(["executed"])  # imported once, and not by each pool
    forkserver.ensure_running()
    yield
    pools.close()
    gc.collect()


@pytest.fixture(params=["processes", *(pytest.param(kind, marks=pytest.mark.wide) for kind in ("loky", "dask"))])
def far(request: pytest.FixtureRequest) -> Any:
    """An executor of other processes, or a factory of one."""
    if request.param == "dask":
        return request.getfixturevalue("dask")
    return {"processes": processes, "loky": loky}[request.param]


both = pytest.mark.ways("sync", "threads")
"""Verbs over plain functions: no other have executors."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(str(tmp_path))


def one(fn: Any, **options: Any) -> Any:
    """A graph of one node."""
    return Graph(Job).add_node("heavy", fn, **options).add_edge("heavy", END).set_entry("heavy").compile("jobs")


def calls(job: Job) -> list[str]:
    """The idempotency keys of the calls that were noted."""
    return Path(job.folder, "calls").read_text().splitlines()


class Counting:
    """A factory of pools of one process; it knows those that it made."""

    def __init__(self) -> None:
        self.made: list[Executor] = []

    def __call__(self) -> Executor:
        self.made.append(processes())
        return self.made[-1]


AT_ONCE = Retry(3, backoff=0)


# -- where it runs ---------------------------------------------------------------------------------


@both
def test_a_node_runs_where_its_executor_is(verbs, far, job):
    told = verbs.run(one(executed.here, executor=far), job)
    assert os.getpid() not in told.pids
    assert len(told.pids) == 1


@both
def test_an_executor_of_a_call_serves_nodes_without_their_own(verbs, job):
    with ThreadPoolExecutor(1, "near") as near:
        graph = one(executed.needs_everything)
        assert "near_0" == verbs.run(graph, job, executor=near).ids[-1]
        graph = one(executed.here, executor=processes)
        assert os.getpid() not in verbs.run(graph, job, executor=near).pids, "the nearest wins"


@both
def test_streams_tell_what_happens_meanwhile(verbs, far, job):
    told = [type(event).__name__ for event in verbs.stream(one(executed.here, executor=far), job)]
    assert ["RunStarted", "NodeStarted", "NodeCompleted", "RunCompleted"] == told


@pytest.mark.every_store
@both
def test_items_of_a_map_run_there_and_equal_ones_each_for_itself(verbs, far, job, store):
    @workflow("squares")
    def squares(folder: str) -> Steps[list[Any]]:
        mapped = yield from step("squares").map(executed.squared, [3, 1, 2], executor=far)
        equal = yield from step("equal").map(executed.counted, [folder, folder, folder], executor=far)
        keys = yield from step("keys").map(executed.key_of, [1, 1], executor=far)
        return [mapped, sorted(equal), len(set(keys))]

    told = verbs.run(squares, folder=job.folder, store=store, run_id="r1")
    assert [[9, 1, 4], [1, 2, 3], 2] == told


def test_calls_of_a_map_are_let_go_of_as_they_end(store):
    """A map over many items holds no more of them than are under way."""
    alive = []

    def counted(n: int) -> int:
        if n == 60:
            gc.collect()
            alive.append(sum(isinstance(found, ExecutorCall) for found in gc.get_objects()))
        return n

    @workflow("many")
    def many() -> Steps[list[int]]:
        return (yield from step("many").map(counted, range(64), executor=lambda: ThreadPoolExecutor(2), max_parallel=2))

    assert [*range(64)] == Engine(store).run(many, run_id="r1")
    assert alive[0] < 16


@workflow("plain")
def plain(n: int) -> Steps[list[int]]:
    first = yield from step("one").python(executed.in_process, kwargs={"n": n})
    many = yield from step("many").map(executed.in_process, [1, 2], max_parallel=1)
    return [first, *many]


@both
def test_items_of_a_graphs_map_run_there_and_what_decides_about_them_here(verbs, far, job, store):
    def over(state: Job) -> list[str]:
        assert threading.current_thread().name  # no function of another process: it is a closure
        return [job.folder] * 3

    def merge(state: Job, results: list[int]) -> Job:
        return Job(job.folder, len(results), sorted(results))

    graph = Graph(Job).add_map("items", over, executed.counted, merge=merge, executor=far)
    compiled = graph.add_edge("items", END).set_entry("items").compile("maps")
    told = verbs.run(compiled, job, store=store, run_id="r1")
    assert (3, [1, 2, 3]) == (told.n, told.pids)
    by_default = Graph(Job).add_map("items", lambda state: [0, 1], executed.in_process, merge=merge)
    compiled = by_default.add_edge("items", END).set_entry("items").compile("pids")
    assert os.getpid() not in verbs.run(compiled, job, executor=far).pids


@both
@pytest.mark.wide
def test_a_worker_that_dies_under_an_item_of_a_graphs_map_is_a_failed_attempt(verbs, job, store):
    graph = Graph(Job).add_map(
        "items",
        lambda state: [job],
        executed.exits_at_first,
        merge=lambda state, results: results[0],
        executor=processes,
    )
    compiled = graph.add_edge("items", END).set_entry("items").compile("maps")
    verbs.run(compiled, job, store=store, run_id="r1", retry=AT_ONCE)
    assert 2 == len(calls(job))
    assert 1 == len(set(calls(job)))


def test_an_executor_of_a_map_of_a_graph_is_refused(job):
    inner = one(executed.here)
    with pytest.raises(OptionError, match="give them the executor"):
        Graph(Job).add_map(
            "items", lambda state: [state], inner, merge=lambda state, results: state, executor=processes
        )


@both
def test_steps_run_by_the_executor_of_their_engine(verbs, far):
    with Engine("memory://", executor=far) as engine:
        assert os.getpid() not in verbs.run(engine, plain, n=1, run_id="r1")
        assert "finished" == engine.handle("r1").info().status


@both
def test_more_calls_than_there_are_threads_are_with_an_executor_at_once(verbs):
    """Of an executor's calls none waits for another one of ours."""
    together = threading.Barrier(40)

    def meets(n: int) -> int:
        together.wait(PATIENCE)
        return n

    @workflow("meeting")
    def meeting() -> Steps[list[int]]:
        return (yield from step("meet").map(meets, range(40)))

    with ThreadPoolExecutor(40) as near:
        assert [*range(40)] == verbs.run(meeting, executor=near)


def test_coroutine_functions_run_here_whatever_the_executor_of_the_call(job):
    graph = one(executed.awaited)
    assert [os.getpid()] == asyncio.run(graph.arun(job, executor=processes)).pids


def test_what_decides_runs_here(job):
    seen = []

    def route(state: Job) -> str:
        seen.append(os.getpid())
        return END

    graph = Graph(Job).add_node("heavy", executed.here).add_conditional_edge("heavy", route, [END])
    graph.set_entry("heavy").compile("jobs").run(job, executor=processes)
    assert [os.getpid()] == seen


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [7, "threads", executed.awaited], ids=["7", "text", "async"])
def test_what_is_no_executor_is_refused_where_it_is_told(given):
    for tell in (
        lambda: one(executed.here, executor=given),
        lambda: step("x").map(executed.squared, [1], executor=given),
        lambda: Engine("memory://", executor=given),
    ):
        with pytest.raises(OptionError, match=r"must be a concurrent\.futures\.Executor or a function that makes one"):
            tell()


def test_an_executor_of_a_coroutine_function_is_refused_where_it_is_told():
    with pytest.raises(OptionError, match="node 'heavy' is a coroutine function, which runs in the event loop"):
        one(executed.awaited, executor=processes)
    with pytest.raises(OptionError, match="map 'x' is a coroutine function"):
        step("x").map(executed.awaited, [1], executor=processes)


@both
def test_a_factory_that_gives_no_executor_fails_the_attempt(verbs, job):
    with pytest.raises(NodeError, match=r"must give a concurrent\.futures\.Executor") as caught:
        verbs.run(one(executed.here, executor=lambda: 7), job)
    assert isinstance(caught.value.__cause__, TypeError)


@both
def test_a_function_that_cannot_be_found_there_fails_its_attempt_by_name(verbs, job, store):
    def local(state: Job) -> Job:
        return state

    with pytest.raises(NodeError, match=r"local' cannot be sent to another process.*define it at module level"):
        verbs.run(one(local, executor=processes), job, store=store, run_id="r1")
    assert ["execute"] == [record.fields()["op"] for record in store.read("r1", kinds=("failure",))]


@both
def test_a_value_that_cannot_be_sent_fails_its_attempt_by_name(verbs, far, job):
    with pytest.raises(NodeError, match=r"what 'gives_a_lock' is given or gives cannot be sent.*let it be data"):
        verbs.run(one(executed.gives_a_lock, executor=far), job)

    @workflow("locks")
    def locks() -> Steps[list[int]]:
        return (yield from step("locks").map(executed.squared, [threading.Lock()], executor=far))

    with pytest.raises(StepError, match="what 'squared' is given or gives cannot be sent"):
        verbs.run(locks)


# -- what a function sees there --------------------------------------------------------------------


@both
def test_the_ids_go_with_a_call(verbs, far, job):
    told = verbs.run(one(executed.with_ids, executor=far), job, run_id="r1")
    here = verbs.run(one(executed.with_ids), job, run_id="r1")
    assert ["r1", "heavy", "1", "1"] == told.ids[:4]
    assert here.ids == told.ids


@both
def test_the_key_is_the_same_in_every_attempt(verbs, far, job):
    verbs.run(one(executed.fails_at_first, executor=far, retry=AT_ONCE), job)
    assert 2 == len(calls(job))
    assert 1 == len(set(calls(job)))


@both
def test_asking_for_more_than_the_ids_is_an_error_that_says_what_to_do(verbs, far, job):
    with pytest.raises(
        NodeError, match=r"no 'deps' here: node 'heavy' of run 'r1' runs in another process.*argument"
    ) as caught:
        verbs.run(one(executed.asks_for_deps, executor=far), job, run_id="r1", deps="clients")
    assert isinstance(caught.value.__cause__, LookupError)


@both
def test_in_this_process_everything_is_there(verbs, job, store):
    token = executed.colour.set("red")
    with ThreadPoolExecutor(1, "near") as near:
        graph = one(executed.needs_everything, executor=near)
        told = verbs.run(graph, job, store=store, run_id="r1", deps="clients", hooks=[lambda event: None])
    executed.colour.reset(token)
    assert ["Context", "clients", "near_0"] == told.ids
    assert {"colour": "red"} == store.get_run("r1").info.tags


@both
def test_hooks_surround_a_call_elsewhere(verbs, job):
    seen: list[Any] = []

    @contextlib.contextmanager
    def span() -> Iterator[None]:
        token = executed.colour.set("blue")
        seen.append(current().node_id)
        try:
            yield
        except ValueError as exc:
            seen.append(str(exc))
            raise
        finally:
            executed.colour.reset(token)
            seen.append("left")

    def hook(event: Any) -> Any:
        return span() if type(event).__name__ == "NodeStarted" else None

    with ThreadPoolExecutor(1) as near:
        told = verbs.run(one(executed.fails_at_first, executor=near, retry=AT_ONCE), job, hooks=[hook])
    assert job == told
    assert ["heavy", "not yet", "left", "heavy", "left"] == seen


# -- errors ----------------------------------------------------------------------------------------


@both
def test_an_error_comes_with_its_traceback(verbs, far, job):
    with pytest.raises(NodeError) as caught:
        verbs.run(one(executed.fails_at_first, executor=far), job)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "in fails_at_first" in str(caught.value.__cause__.__cause__)


@both
def test_an_error_that_cannot_be_made_again_comes_as_text_and_breaks_nothing(verbs, job):
    factory = Counting()
    graph = one(executed.is_odd, executor=factory)
    for _ in range(2):
        with pytest.raises(NodeError, match="Odd: as it comes"):
            verbs.run(graph, job)
    assert 1 == len(factory.made)


WRONG = {
    "error": "Odd: as it comes",
    "in a group": "ExceptionGroup: as a group",
    "in arguments": r"Holder: \('as it holds'",
    "in attributes": "Holder: as it holds",
    "homesick error": r"Holder: \('as it holds'",
    "value": "what 'wrong' is given or gives cannot be sent",
    "homesick value": "what 'wrong' is given or gives cannot be sent",
}


@pytest.mark.ways("sync")
def test_what_cannot_be_made_again_fails_its_own_call_and_no_other_one(verbs, far):
    @workflow("pair")
    def pair(fn: str, items: list[Any]) -> Steps[list[Any]]:
        return (yield from step("pair").map(getattr(executed, fn), items, executor=far))

    for what, text in WRONG.items():
        with pytest.raises(StepError, match=f"1 of its 3 items failed .'0': [^ ]*{text}"):
            verbs.run(pair, fn="wrong", items=[what, "right", "right"])
    for value in (executed.Unloadable(), executed.Homesick()):
        with pytest.raises(StepError, match=r"1 of its 3 items failed .'1': what 'given' is given or gives cannot"):
            verbs.run(pair, fn="given", items=[1, value, 2])


def test_an_error_of_the_library_comes_with_all_its_facts_that_can_be_sent(job):
    with pytest.raises(NodeError) as caught:
        one(executed.raises_ours, executor=processes).run(job)
    error = caught.value.__cause__
    assert isinstance(error, BranchError)
    assert ("ours", "f", None) == (str(error), error.fork, error.state)
    assert [("b", "its own", 2)] == [(name, str(inner), inner.attempt) for name, inner in error.errors.items()]


@both
def test_a_system_exit_there_interrupts_the_run_like_one_here(verbs, job, store):
    with pytest.raises(SystemExit):
        verbs.run(one(executed.exits_politely, executor=processes), job, store=store, run_id="r1")
    assert "interrupted" == store.get_run("r1").info.status


# -- processes that die ----------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "body",
    [executed.is_killed_at_first, pytest.param(executed.exits_at_first, marks=pytest.mark.wide)],
    ids=lambda body: body.__name__,
)
def test_a_worker_that_dies_is_a_failed_attempt_and_the_next_one_has_a_new_pool(verbs, job, store, body):
    factory = Counting()
    told = verbs.run(one(body, executor=factory, retry=AT_ONCE), job, store=store, run_id="r1")
    assert os.getpid() not in told.pids
    assert (2, 2) == (len(calls(job)), len(factory.made))
    failures = [record.fields() for record in store.read("r1", kinds=("failure",))]
    assert [1] == [fields["attempt"] for fields in failures]
    assert "BrokenProcessPool" in failures[0]["error_type"]


@pytest.mark.wide
@both
def test_a_worker_of_loky_that_dies_is_a_failed_attempt(verbs, job):
    told = verbs.run(one(executed.exits_at_first, executor=loky, retry=AT_ONCE), job)
    assert os.getpid() not in told.pids


@both
@pytest.mark.wide
def test_a_worker_of_dask_that_dies_is_a_failed_attempt(verbs, job, dask):
    told = verbs.run(one(executed.is_killed_at_first, executor=dask, retry=AT_ONCE), job)
    assert os.getpid() not in told.pids
    assert 2 == len(calls(job))


@both
def test_an_executor_that_broke_fails_each_attempt(verbs, job, store):
    with processes() as pool:
        graph = one(executed.always_exits, executor=pool, retry=AT_ONCE)
        with pytest.raises(NodeError, match="BrokenProcessPool"):
            verbs.run(graph, job, store=store, run_id="r1")
    assert 3 == len(list(store.read("r1", kinds=("failure",))))
    assert 1 == len(calls(job))


@both
@pytest.mark.wide
def test_a_pool_that_refuses_a_call_is_replaced_and_the_call_has_not_begun(verbs, job):
    factory = Counting()
    graph = one(executed.here, executor=factory)
    first = verbs.run(graph, job)
    factory.made[0].shutdown()
    second = verbs.run(graph, job)
    assert first.pids != second.pids
    assert 2 == len(factory.made)


@both
def test_the_runs_of_a_process_share_the_pool_of_a_factory(verbs, job):
    factory = Counting()
    pids = {pid for _ in range(3) for pid in verbs.run(one(executed.here, executor=factory), job).pids}
    assert (1, 1) == (len(pids), len(factory.made))


@both
def test_a_resume_goes_on_after_what_was_done_there(verbs, job, store):
    graph = (
        Graph(Job)
        .add_node("first", executed.here, executor=processes)
        .add_node("second", executed.fails_at_first, executor=processes)
        .add_edge("first", "second")
        .add_edge("second", END)
        .set_entry("first")
        .compile("jobs")
    )
    with pytest.raises(NodeError):
        verbs.run(graph, job, store=store, run_id="r1")
    told = verbs.resume(graph, store, "r1")
    assert 1 == len(told.pids)


# -- time, cancels, interruptions ------------------------------------------------------------------


@pytest.fixture
def waiting(job: Job) -> Job:
    for name in ("begun", "words"):
        os.mkfifo(Path(job.folder, name))
    return job


def begun(job: Job) -> int:
    """Block until the call has begun: the pid of where it runs."""
    return int(Path(job.folder, "begun").read_text())


def speak(job: Job) -> None:
    """Let a call go on that waits for a word."""
    Path(job.folder, "words").write_text("go on")


class Busy(ThreadPoolExecutor):
    """One thread, which is busy until `free` is called; `taken` is set once a call waits behind."""

    def __init__(self) -> None:
        super().__init__(1)
        self.taken = threading.Event()
        self._gate = threading.Event()
        super().submit(self._gate.wait)

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        future = super().submit(*args, **kwargs)
        add = future.add_done_callback

        def add_and_tell(fn: Any) -> None:
            add(fn)
            self.taken.set()

        future.add_done_callback = add_and_tell
        return future

    def free(self) -> None:
        self._gate.set()
        self.shutdown()


@pytest.fixture
def busy() -> Iterator[Busy]:
    pool = Busy()
    yield pool
    pool.free()


@contextmanager
def meanwhile(fn: Callable[[], Any]) -> Iterator[None]:
    """Have `fn` done in another thread; its error is raised at the end."""
    with ThreadPoolExecutor(1) as other:
        done = other.submit(fn)
        yield
        done.result(PATIENCE)


@both
def test_no_attempt_begins_while_one_that_is_overdue_still_runs(verbs, waiting):
    clock, told = FakeClock(), []

    def hook(event: Any) -> None:
        if isinstance(event, NodeOverdue):
            told.append(calls(waiting))
            speak(waiting)

    def pass_time() -> None:
        begun(waiting)
        clock.wait_for_sleepers(1, PATIENCE)
        clock.advance(5)

    graph = one(executed.waits_at_first, executor=processes, retry=AT_ONCE, timeout=5)
    with meanwhile(pass_time):
        verbs.run(graph, waiting, clock=clock, hooks=[hook])
    assert [1] == [len(noted) for noted in told]
    assert 2 == len(calls(waiting))


@both
def test_a_call_that_cannot_be_stopped_fails_the_run_after_a_while(verbs, waiting):
    clock, overdue = FakeClock(), threading.Event()

    def pass_time() -> None:
        begun(waiting)
        clock.wait_for_sleepers(1, PATIENCE)
        clock.advance(5)
        assert overdue.wait(PATIENCE)
        clock.wait_for_sleepers(1, PATIENCE)
        clock.advance(30)

    graph = one(executed.waits_at_first, executor=processes, retry=AT_ONCE, timeout=5)
    with meanwhile(pass_time), pytest.raises(NodeTimeoutError, match="still runs 30 s later"):
        verbs.run(graph, waiting, clock=clock, hooks=[lambda event: isinstance(event, NodeOverdue) and overdue.set()])
    speak(waiting)


@both
def test_a_call_that_has_not_begun_is_taken_back_when_its_time_is_over(verbs, busy, job):
    clock, told = FakeClock(), []

    def pass_time() -> None:
        assert busy.taken.wait(PATIENCE)
        clock.wait_for_sleepers(1, PATIENCE)
        clock.advance(5)

    graph = one(executed.fails_at_first, executor=busy, timeout=5)
    with meanwhile(pass_time), pytest.raises(NodeTimeoutError, match="took longer than its timeout of 5 s: give"):
        verbs.run(graph, job, clock=clock, hooks=[told.append])
    assert not [event for event in told if isinstance(event, NodeOverdue)]
    busy.free()
    assert not Path(job.folder, "calls").exists()


@both
def test_a_call_of_a_run_that_is_cancelled_is_taken_back(verbs, busy, job):
    with Engine("memory://") as engine:

        def cancel() -> None:
            assert busy.taken.wait(PATIENCE)
            engine.cancel("r1", "not needed")

        with meanwhile(cancel), pytest.raises(RunCancelled):
            verbs.run(engine, one(executed.fails_at_first, executor=busy), job, run_id="r1")
    busy.free()
    assert not Path(job.folder, "calls").exists()


@both
def test_items_of_a_run_that_is_cancelled_are_taken_back(verbs, busy, job):
    @workflow("items")
    def items() -> Steps[list[int]]:
        return (yield step("items").map(executed.counted, [job.folder, job.folder], executor=busy))

    with Engine("memory://") as engine:

        def cancel() -> None:
            assert busy.taken.wait(PATIENCE)
            engine.cancel("r1", "not needed")

        with meanwhile(cancel), pytest.raises(RunCancelled):
            verbs.run(engine, items, run_id="r1")
    busy.free()
    assert not Path(job.folder, "count").exists()


async def test_a_task_that_is_cancelled_takes_its_call_back(busy, job):
    task = asyncio.ensure_future(one(executed.fails_at_first, executor=busy).arun(job))
    assert await asyncio.to_thread(busy.taken.wait, PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(busy.free)
    assert not Path(job.folder, "calls").exists()


@pytest.mark.parametrize("timeout", [None, 60])
@pytest.mark.ways("sync")
def test_ctrl_c_takes_back_what_has_not_begun(verbs, busy, job, timeout):
    named = step("items") if timeout is None else step("items").timeout(timeout)

    @workflow("items")
    def items() -> Steps[list[int]]:
        return (yield named.map(executed.counted, [job.folder, job.folder], executor=busy))

    def interrupt() -> None:
        assert busy.taken.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with meanwhile(interrupt), pytest.raises(KeyboardInterrupt):
        verbs.run(items)
    busy.free()
    assert not Path(job.folder, "count").exists()


@both
def test_what_an_executor_drops_is_a_failed_attempt(verbs, busy, job):
    def drop() -> None:
        assert busy.taken.wait(PATIENCE)
        busy.shutdown(wait=False, cancel_futures=True)

    with meanwhile(drop), pytest.raises(NodeError, match="Busy dropped the call of 'fails_at_first'"):
        verbs.run(one(executed.fails_at_first, executor=busy), job)


# -- the life of a pool ----------------------------------------------------------------------------


def ends(pid: int) -> bool:
    """Whether a process ends, or has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(descriptor):
        return bool(select.select([descriptor], [], [], PATIENCE)[0])


def test_ctrl_c_interrupts_the_run_and_neither_waits_for_the_call_nor_leaves_it(waiting):
    path = os.pathsep.join([str(Path(executed.__file__).parent), os.environ.get("PYTHONPATH", "")])
    program = subprocess.Popen(
        [sys.executable, executed.__file__, waiting.folder],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
    )
    pid = begun(waiting)
    program.send_signal(signal.SIGINT)
    _, told = program.communicate(timeout=PATIENCE)
    assert b"KeyboardInterrupt" in told
    assert ends(pid)
    with SQLiteStore(Path(waiting.folder, "runs.db")) as store:
        assert "interrupted" == store.get_run("r1").info.status


def test_a_pool_that_cannot_be_shut_down_keeps_no_other_one_open(caplog):
    class Gone(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            raise OSError("the cluster has gone")

    own, made = Pools(), [Gone(1), ThreadPoolExecutor(1), Gone(1)]
    for pool in made:
        assert 3 == own.submit(lambda pool=pool: pool, lambda: 3).future.result(PATIENCE)
    with caplog.at_level("INFO", logger="milepost"):
        own.close()
    assert 2 == caplog.text.count("a pool (Gone) could not be shut down: OSError: the cluster has gone")
    with pytest.raises(RuntimeError, match="after shutdown"):
        made[1].submit(int)
    for pool in made:
        ThreadPoolExecutor.shutdown(pool)


def test_the_thread_that_called_a_factory_stays_for_what_it_has_started(monkeypatch):
    monkeypatch.setattr("milepost.drivers.threads.IDLE", 0.01)
    made: list[threading.Thread] = []

    def factory() -> Executor:
        made.append(threading.current_thread())
        return ThreadPoolExecutor(1)

    own = Pools()
    assert 3 == own.submit(factory, lambda: 3).future.result(PATIENCE)
    made[0].join(0.3)
    assert made[0].is_alive()
    own.close()


def test_the_last_engine_that_binds_a_factory_shuts_its_pool_down(job):
    factory = Counting()
    graph = one(executed.here)
    with Engine("memory://", executor=factory) as engine:
        with Engine("memory://", executor=factory) as other:
            pid = other.run(graph, job).pids[0]
        assert [pid] == engine.run(graph, job).pids
    assert ends(pid)
    assert 1 == len(factory.made)


def test_an_executor_that_was_given_as_such_stays_its_owners(job):
    with ThreadPoolExecutor(1) as near:
        with Engine("memory://", executor=near) as engine:
            engine.run(one(executed.here), job)
        assert 9 == near.submit(executed.squared, 3).result()


def test_a_factory_is_asked_once_by_many_threads(job):
    made = []

    def slow() -> Executor:
        made.append(processes())
        return made[-1]

    own = Pools()
    with ThreadPoolExecutor(8) as near:
        told = [*near.map(lambda n: own.submit(slow, partial(executed.squared, n)).future.result(PATIENCE), range(8))]
    own.close()
    assert [n * n for n in range(8)] == told
    assert 1 == len(made)


@dataclass
class Unhashable:
    """A factory that equals others like it, and so has no hash."""

    def __call__(self) -> Executor:
        return ThreadPoolExecutor(1)


def test_a_factory_without_a_hash_is_known_again(job):
    own, factory = Pools(), Unhashable()
    assert [1, 1] == [own.submit(factory, os.getpid).number for _ in range(2)]
    own.close()
