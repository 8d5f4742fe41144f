"""Stores that users write against one of two small protocols, taken as stores of runs."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from user_stores import IN_FILES, Line, Notes, NotesInFiles, Shelf, Work

from milepost import (
    END,
    CheckpointData,
    CheckpointNotFoundError,
    Context,
    Engine,
    FileCheckpointStore,
    Graph,
    MemoryCheckpointStore,
    MemoryStore,
    NodeError,
    Retry,
    RunExistsError,
    RunLockedError,
    RunNotFoundError,
    SQLiteStore,
    Store,
    StoreError,
)
from milepost.adapters.user_stores import adapted
from milepost.errors import (
    CheckpointCorruptError,
    CheckpointWriteError,
    OptionError,
    StoreClosedError,
    WrongFlowError,
)
from milepost.events import CheckpointFailed
from milepost.model.ids import Clock
from milepost.testing import StoreContract
from milepost.testing.children import Child, forked
from milepost.testing.contract.views import SeedContract


class Verbs:
    """Calls a verb, or its a-twin in an event loop."""

    def __init__(self, is_async: bool) -> None:
        self.is_async = is_async

    def __call__(self, owner: Any, verb: str, *args: Any, **options: Any) -> Any:
        if self.is_async:
            return asyncio.run(getattr(owner, f"a{verb}")(*args, **options))
        return getattr(owner, verb)(*args, **options)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Verbs:
    return Verbs(request.param)


@pytest.fixture(params=[Shelf, Notes], ids=["by node", "by point"])
def user(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
def line() -> Line:
    return Line()


# -- the contract ----------------------------------------------------------------------------------------------


class TestRowsOfTheSeeds(SeedContract):
    is_shared_between_processes = False
    lease_has_end = False

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return adapted(Shelf(), clock=clock)


@pytest.mark.slow
class TestWholeContract(StoreContract):
    """All that every store promises, but for what other processes see of it."""

    is_shared_between_processes = False
    lease_has_end = False

    # What is damaged before it is appended can't be handed to the user's store.
    test_a_damaged_newest_record_leaves_the_rest_readable = None  # type: ignore[assignment]

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return adapted(Shelf(), clock=clock)


# -- running and going on --------------------------------------------------------------------------------------


def test_every_node_that_completed_is_in_the_users_store(user: Any, call: Verbs, line: Line) -> None:
    engine = Engine(adapted(user))
    assert Work(3, ["a1", "b1", "c1"]) == call(engine, "run", line.graph(), Work(), run_id="run-1")
    assert ["a", "b", "c"] == user.nodes("run-1")
    assert ["a", "b", "c"] == [info.node_id for info in call(engine, "history", "run-1")]
    assert Work(3, ["a1", "b1", "c1"]) == call(engine, "resume", line.graph(), "run-1")
    assert ["a", "b", "c"] == line.log
    call(engine, "delete_run", "run-1")
    assert [] == user.nodes("run-1")
    with pytest.raises(RunNotFoundError):
        call(engine, "resume", line.graph(), "run-1")


def test_a_run_that_failed_goes_on_after_what_was_saved(user: Any, call: Verbs, line: Line) -> None:
    graph, store = line.graph(), adapted(user)
    line.fail_once("c")
    with pytest.raises(NodeError, match="no c today"):
        call(graph, "run", Work(), store=store, run_id="run-1")
    assert ["a", "b"] == user.nodes("run-1")
    with pytest.raises(RunExistsError):
        call(graph, "run", Work(), store=store, run_id="run-1")
    assert Work(3, ["a1", "b1", "c1"]) == call(graph, "resume", store, "run-1")
    assert ["a", "b", "c", "c"] == line.log


@pytest.mark.parametrize("call", [False], indirect=True)
def test_a_run_that_failed_in_its_first_node_goes_on_in_the_same_process(user: Any, call: Verbs, line: Line) -> None:
    line.fail_once("a")
    with pytest.raises(NodeError):
        call(line.graph(), "run", Work(5), store=adapted(user), run_id="run-1")
    assert [] == user.nodes("run-1")
    # Nobody has the store meanwhile but the user: the journal lives as long as the user's object.
    gc.collect()
    assert 8 == call(line.graph(), "resume", adapted(user), "run-1").n


def test_a_save_that_fails_stops_the_run_and_a_resume_goes_on_from_what_was_saved(
    user: Any, call: Verbs, line: Line
) -> None:
    graph, store, broken = line.graph(), adapted(user), RuntimeError("no space left")

    def break_it(ctx: Context[Any], work: Work) -> None:
        user.broken = broken

    line.at["b"] = break_it
    with pytest.raises(CheckpointWriteError, match=r"node 'b' of run 'run-1'.*no space left") as caught:
        call(graph, "run", Work(), store=store, run_id="run-1")
    assert isinstance(caught.value, OSError)
    cause = caught.value.__cause__
    assert isinstance(cause, StoreError)
    assert (broken, "save") == (cause.__cause__, cause.op)
    assert (["a", "b"], ["a"]) == (line.log, user.nodes("run-1"))
    user.broken = None
    line.at.clear()
    assert Work(3, ["a1", "b1", "c1"]) == call(graph, "resume", store, "run-1")
    assert ["a", "b", "b", "c"] == line.log


def test_a_run_that_may_go_on_without_checkpoints_says_what_it_missed(user: Any, call: Verbs, line: Line) -> None:
    told: list[Any] = []

    def break_it(ctx: Context[Any], work: Work) -> None:
        user.broken = RuntimeError("no space left")

    def mend_it(ctx: Context[Any], work: Work) -> None:
        user.broken = None

    line.at = {"b": break_it, "c": mend_it}
    result = call(
        line.graph(),
        "run",
        Work(),
        store=adapted(user),
        run_id="run-1",
        checkpoint_failure_fatal=False,
        hooks=[told.append],
        full=True,
    )
    assert (True, ("b#1",)) == (result.degraded, result.missed)
    assert ["b"] == [event.node_id for event in told if isinstance(event, CheckpointFailed)]
    assert ["a", "c"] == user.nodes("run-1")


def test_a_save_that_fails_stops_no_other_run(line: Line) -> None:
    class Picky(Shelf):
        def save(self, run_id: str, node_id: str, data: bytes) -> None:
            if run_id == "run-3" and node_id == "b":
                raise RuntimeError("too large for its column")
            super().save(run_id, node_id, data)

    store, graph = adapted(Picky()), line.graph()

    async def main() -> list[Any]:
        runs = (graph.arun(Work(), store=store, run_id=f"run-{n}") for n in range(8))
        return await asyncio.gather(*runs, return_exceptions=True)

    ended = asyncio.run(main())
    assert isinstance(ended.pop(3), CheckpointWriteError)
    assert [3] * 7 == [work.n for work in ended]


def test_what_a_resume_supersedes_is_gone_from_the_users_store_before_anything_runs(call: Verbs, line: Line) -> None:
    user, graph = Shelf(), line.graph()
    call(graph, "run", Work(), store=adapted(user), run_id="run-1")
    seen: list[list[str]] = []
    line.at["b"] = lambda ctx, work: seen.append(user.nodes("run-1"))
    fixed = call(graph, "resume_from", adapted(user), "run-1", "a", state_override=lambda work: Work(100, work.seen))
    assert [["a"]] == seen
    assert Work(102, ["a1", "b2", "c2"]) == fixed
    assert ["a", "b", "c"] == user.nodes("run-1")


def test_what_a_resume_supersedes_does_not_come_back_from_a_store_that_takes_nothing_away(line: Line) -> None:
    user, graph = Notes(), line.graph()
    graph.run(Work(), store=adapted(user), run_id="run-1")
    line.fail_once("b")
    with pytest.raises(NodeError):
        graph.resume_from(adapted(user), "run-1", "a")
    assert "a" == asyncio.run(user.load_latest("run-1")).checkpoint_id  # type: ignore[union-attr]
    elsewhere = Notes()
    elsewhere.kept = user.kept
    line.log.clear()
    assert Work(3, ["a1", "b1", "c1"]) == graph.resume(adapted(elsewhere), "run-1")
    assert ["b", "c"] == line.log
    adapted(elsewhere).delete("run-1", "c")
    again = Notes()
    again.kept = user.kept
    assert ["a", "b"] == [info.node_id for info in adapted(again).list("run-1")]


def test_two_verbs_in_one_process_never_execute_one_run(user: Any, line: Line) -> None:
    graph, store = line.graph(), adapted(user)
    ended: list[Any] = []

    def begin() -> None:
        try:
            ended.append(graph.run(Work(), store=store, run_id="run-1"))
        except (RunExistsError, RunLockedError) as exc:
            ended.append(type(exc))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ["a", "b", "c"] == line.log
    assert [RunExistsError] * 7 == [outcome for outcome in ended if not isinstance(outcome, Work)]


def test_an_async_store_serves_an_async_run_while_its_event_loop_goes_on(line: Line) -> None:
    class Gate(Notes):
        def __init__(self) -> None:
            super().__init__()
            self.opened = threading.Event()

        async def save(self, workflow_id: str, data: CheckpointData) -> None:
            while not self.opened.is_set():
                await asyncio.sleep(0.001)
            await super().save(workflow_id, data)

    user = Gate()

    async def main() -> Work:
        running = asyncio.create_task(line.graph().arun(Work(), store=adapted(user), run_id="run-1"))
        while line.log != ["a"]:
            await asyncio.sleep(0.001)
        assert [] == user.nodes("run-1")
        user.opened.set()  # whom a blocked loop would never reach
        return await running

    assert 3 == asyncio.run(main()).n


# -- other processes -------------------------------------------------------------------------------------------

CHILD = """
import asyncio, os, signal, sys
sys.path.insert(0, here)
from milepost import END, Graph
from milepost.errors import MaxIterationsError
from milepost.adapters.user_stores import adapted
from user_stores import IN_FILES, Line, Work

line = Line()
user = IN_FILES[kind](place)

def die(ctx, work):
    print(line.log, file=open(log, "a"), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(
    params=[next(iter(IN_FILES)), *(pytest.param(kind, marks=pytest.mark.wide) for kind in [*IN_FILES][1:])]
)
def spawn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def spawn() -> Child:
        children.append(Child())
        here, place, log = str(Path(__file__).parent), str(tmp_path / "kept"), str(tmp_path / "log")
        children[-1].tell(CHILD, here=here, kind=request.param, place=place, log=log)
        return children[-1]

    yield spawn
    for child in children:
        child.kill()


def test_a_run_goes_on_in_another_process_after_a_kill(spawn: Callable[[], Child], tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with -9"):
        spawn().tell("line.at['c'] = die; line.graph().run(Work(), store=adapted(user), run_id='run-1')")
    assert "['a', 'b', 'c']\n" == (tmp_path / "log").read_text()
    source = "answer = [line.graph().resume(adapted(user), 'run-1').seen, line.log]"
    assert [["a1", "b1", "c1"], ["c"]] == spawn().tell(source)
    assert [["a1", "b1", "c1"], []] == spawn().tell(source), "finished: its state is given, and nothing runs"
    source = "answer = [asyncio.run(line.graph().aresume_from(adapted(user), 'run-1', 'a')).seen, line.log]"
    assert [["a1", "b2", "c2"], ["b", "c"]] == spawn().tell(source)


def test_visits_and_iterations_go_on_in_another_process(spawn: Callable[[], Child]) -> None:
    loop = """
def loop(until):
    def step(ctx, work):
        if work.n == until:
            os.kill(os.getpid(), signal.SIGKILL)
        return Work(work.n + 1, [*work.seen, f"{ctx.visit}:{ctx.idempotency_key}"])
    def after(ctx, work):
        return END if work.n == 7 else "rest"
    rest = lambda work: work
    graph = Graph(Work).add_node("step", step).add_node("rest", rest)
    graph.add_conditional_edge("step", after, ["rest", END]).add_edge("rest", "step").set_entry("step")
    return graph.compile("loop")
"""
    whole = spawn()
    whole.tell(loop)
    expected = whole.tell("answer = loop(-1).run(Work(), run_id='run-1').seen")
    for begin in ("run(Work(), store=adapted(user), run_id='run-1')", "resume(adapted(user), 'run-1')"):
        child = spawn()
        child.tell(loop)
        with pytest.raises(RuntimeError, match="ended with -9"):
            child.tell(f"loop({3 if begin.startswith('run') else 5}).{begin}")
    last = spawn()
    last.tell(loop)
    assert 12 == last.tell(
        "try:\n"
        "    loop(-1).resume(adapted(user), 'run-1', max_iterations=12)\n"
        "except MaxIterationsError as exc:\n"
        "    answer = exc.max"
    )
    assert expected == last.tell("answer = loop(-1).resume(adapted(user), 'run-1').seen")


def test_a_fork_uses_the_store_too(tmp_path: Path, line: Line) -> None:
    user = NotesInFiles(str(tmp_path))
    line.graph().run(Work(), store=adapted(user), run_id="run-1")

    def in_child() -> list[Any]:
        Line().graph().run(Work(), store=adapted(user), run_id="run-2")
        return [Line().graph().resume(adapted(user), "run-1").n, user.nodes("run-2")]

    assert [3, ["a", "b", "c"]] == forked(in_child)
    assert 3 == Line().graph().resume(adapted(user), "run-2").n


# -- what the user's store has, counts ---------------------------------------------------------------------------


def test_what_the_user_changes_in_the_store_is_seen_by_the_next_verb(user: Any, call: Verbs, line: Line) -> None:
    graph, store = line.graph(), adapted(user)
    call(graph, "run", Work(), store=store, run_id="run-1")
    del user.kept["run-1"]["c"]
    line.log.clear()
    assert Work(3, ["a1", "b1", "c1"]) == call(graph, "resume", store, "run-1")
    assert ["c"] == line.log
    user.kept.clear()
    with pytest.raises(RunNotFoundError):
        call(graph, "resume", store, "run-1")
    assert 3 == call(graph, "run", Work(), store=store, run_id="run-1").n


def test_the_newest_is_told_by_the_records_and_not_by_the_order_of_a_list(user: Any, line: Line) -> None:
    graph = line.graph()
    line.fail_once("c")
    with pytest.raises(NodeError):
        graph.run(Work(), store=adapted(user), run_id="run-1")
    elsewhere = type(user)()
    elsewhere.kept["run-1"] = dict(reversed(user.kept["run-1"].items()))
    line.log.clear()
    assert 3 == graph.resume(adapted(elsewhere), "run-1").n
    assert ["c"] == line.log


def test_checkpoints_that_tell_no_place_count_in_the_order_of_the_list(line: Line) -> None:
    user = Shelf()
    for node_id, next_node, n in (("b", "c", 20), ("a", "b", 10)):
        state = {"n": n, "seen": []}
        data = json.dumps({"version": "1.0", "sequence": 0, "node_id": node_id, "next_node": next_node, "state": state})
        user.save("run-1", node_id, data.encode())
    assert Work(12, ["b2", "c1"]) == line.graph().resume(adapted(user), "run-1")


def test_a_damaged_checkpoint_is_refused_before_anything_runs(line: Line) -> None:
    user = Shelf()
    line.fail_once("c")
    with pytest.raises(NodeError):
        line.graph().run(Work(), store=adapted(user), run_id="run-1")
    line.log.clear()
    whole = user.kept["run-1"]["b"]
    for damaged in (whole.replace(b'"n":2', b'"n":9'), whole[:-9], b""):
        user.kept["run-1"]["b"] = damaged
        with pytest.raises(CheckpointCorruptError):
            line.graph().resume(adapted(user), "run-1")
    assert [] == line.log


def test_points_tell_what_flow_they_are_of_in_another_process_too(line: Line) -> None:
    user, elsewhere = Notes(), Notes()
    line.fail_once("c")
    with pytest.raises(NodeError):
        line.graph().run(Work(), store=adapted(user), run_id="run-1")
    elsewhere.kept = user.kept
    with pytest.raises(WrongFlowError):
        line.graph("another").resume(adapted(elsewhere), "run-1")
    line.graph().resume(adapted(elsewhere), "run-1")
    hashes = {point.inputs_hash for point in user.kept["run-1"].values()}
    assert (1, {"line"}) == (len(hashes), {point.workflow_name for point in user.kept["run-1"].values()})
    assert "0" * 16 not in hashes


def test_points_that_a_release_left_in_a_users_store_are_read_for_ever(tmp_path: Path, line: Line) -> None:
    shutil.copytree(Path(__file__).parent.parent / "golden" / "points", tmp_path / "kept")
    store = adapted(NotesInFiles(str(tmp_path / "kept")))
    assert ["a"] == [info.node_id for info in store.list("run-1")], "b and c were superseded"
    assert Work(3, ["a1", "b1", "c1"]) == line.graph().resume(store, "run-1")
    assert ["b", "c"] == line.log


def test_a_run_moves_between_a_users_store_and_ours(user: Any, line: Line) -> None:
    line.fail_once("c")
    with SQLiteStore(":memory:") as ours:
        with pytest.raises(NodeError):
            line.graph().run(Work(), store=ours, run_id="run-1")
        adapted(user).import_run(ours.export("run-1"))
        with pytest.raises(RunExistsError):
            adapted(user).import_run(ours.export("run-1"))
    assert ["a", "b"] == user.nodes("run-1")
    elsewhere = type(user)()
    elsewhere.kept = user.kept
    assert 3 == line.graph().resume(adapted(elsewhere), "run-1").n
    assert adapted(elsewhere).verify("run-1").ok
    lines, unknowing, full = adapted(elsewhere).export("run-1"), type(user)(), type(user)()
    unknowing.kept, full.broken = user.kept, RuntimeError("no space left")
    with pytest.raises(RunExistsError):
        adapted(unknowing).import_run(lines)
    with pytest.raises(StoreError, match="no space left"):
        adapted(full).import_run(lines)
    assert [] == adapted(full).list_runs()
    assert "again" == adapted(unknowing).import_run(lines, run_id="again")
    assert ["a", "b", "c"] == user.nodes("again")


def test_pruned_runs_leave_the_users_store(user: Any, line: Line) -> None:
    store = adapted(user)
    line.graph().run(Work(), store=store, run_id="run-1")
    assert ("run-1",) == store.prune(older_than=0, dry_run=True).deleted
    assert ["a", "b", "c"] == user.nodes("run-1")
    assert ("run-1",) == store.prune(older_than=0).deleted
    assert [] == user.nodes("run-1")


# -- which objects are taken, and what is said of them ---------------------------------------------------------


def test_our_own_stores_are_taken_as_they_are(tmp_path: Path) -> None:
    store = MemoryStore()
    assert store is adapted(store)
    for view in (MemoryCheckpointStore(), FileCheckpointStore(tmp_path)):
        assert view.store is adapted(view)
        view.close()


def test_one_object_has_one_journal_which_goes_with_it(user: Any, line: Line) -> None:
    first = adapted(user)
    assert first is adapted(user)
    assert first is not adapted(type(user)())
    line.graph().run(Work(), store=first, run_id="run-1")
    gone = weakref.ref(first), weakref.ref(user)
    begun = first.get_run("run-1").info.created_at
    del first
    gc.collect()
    assert gone[0]() is None
    assert (begun, "finished") == (
        adapted(user).get_run("run-1").info.created_at,
        adapted(user).get_run("run-1").info.status,
    )
    line.graph().run(Work(), store=adapted(user), run_id="run-2")
    # What a user's coroutines keep open may be bound to their event loop.
    assert len(getattr(user, "loops", ())) <= 1


@pytest.mark.parametrize("kind", [Shelf, Notes])
def test_an_object_that_nobody_has_is_let_go_with_its_thread(kind: type, line: Line) -> None:
    user = kind()
    line.graph().run(Work(), store=adapted(user), run_id="run-1")
    threads = [thread for thread in threading.enumerate() if thread.name == "milepost-loop"]
    gone = weakref.ref(user)
    del user
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_an_object_without_references_has_one_journal_all_the_same() -> None:
    class Bare:
        __slots__ = ("shelf",)

        def __init__(self) -> None:
            self.shelf = Shelf()

        def __getattr__(self, name: str) -> Any:
            return getattr(object.__getattribute__(self, "shelf"), name)

    bare = Bare()
    assert adapted(bare) is adapted(bare)
    adapted(bare).close()


@pytest.mark.parametrize("user", [Shelf], indirect=True)
def test_it_is_told_once_what_cannot_be_promised(user: Any, line: Line, caplog: pytest.LogCaptureFixture) -> None:
    for run_id in ("run-1", "run-2"):
        line.graph().run(Work(), store=adapted(user), run_id=run_id)
        gc.collect()
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    for promise in (type(user).__qualname__, "start record", "fence", "history"):
        assert promise in told.getMessage()


def test_what_is_no_store_is_refused_with_the_methods_that_it_lacks() -> None:
    class Half:
        def save(self) -> None: ...
        def load(self) -> None: ...
        def list(self) -> None: ...
        def delete(self) -> None: ...

        close = None

    class HalfAsync:
        async def save(self) -> None: ...
        async def load(self) -> None: ...
        async def load_latest(self) -> None: ...
        async def clear(self) -> None: ...

    for thing, told in [
        (Half(), "which lacks delete_run and close$"),
        (HalfAsync(), "load_latest, clear and list_checkpoints, not .* which lacks list_checkpoints$"),
        (5, "not 5, which lacks save, load, list, delete, delete_run and close$"),
        (None, "store must be a store, such as SQLiteStore"),
        ("runs.db", "not 'runs.db'"),
        (Shelf, "which is a class$"),
    ]:
        with pytest.raises(OptionError, match=told) as caught:
            adapted(thing)
        assert "store" == caught.value.option


def test_whatever_a_users_store_raises_is_a_store_error_with_it_as_the_cause(user: Any, line: Line) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even its text")

    user.broken = Odd()
    with pytest.raises(StoreError, match=r"failed at save: .*Odd") as caught:
        adapted(user).save("run-1", "a", b'{"node_id": "a", "next_node": "b", "state": {"n": 1, "seen": []}}')
    assert user.broken is caught.value.__cause__
    user.broken = None
    with pytest.raises(CheckpointNotFoundError):
        adapted(user).load("run-1", "a")
    user.broken = StoreError("its own", store="elsewhere", op="put")
    with pytest.raises(StoreError, match=r"^its own$"):
        adapted(user).save("run-1", "a", b'{"node_id": "a", "next_node": "b", "state": {}}')


def test_answers_that_are_none_of_the_protocol_are_told() -> None:
    class Names(Shelf):
        def list(self, run_id: str) -> Any:
            return ["a"]

    class Texts(Shelf):
        def load(self, run_id: str, node_id: str) -> Any:
            return "text"

    class Lost(Notes):
        async def load(self, workflow_id: str, checkpoint_id: str) -> Any:
            return 5

    for user, told in ((Names(), "gave str at list"), (Texts(), "gave str at load"), (Lost(), "gave int at load")):
        if isinstance(user, Shelf):
            user.save("run-1", "a", b"1")
        else:
            user.kept["run-1"] = {"a": None}  # type: ignore[dict-item]
        with pytest.raises(StoreError, match=told):
            adapted(user).get_run("run-1")


def test_points_may_be_handed_back_as_dicts_or_other_classes(line: Line) -> None:
    class Own:
        def __init__(self, fields: dict[str, Any]) -> None:
            self.fields = fields

        def to_dict(self) -> dict[str, Any]:
            return self.fields

    for as_kept in (dict, Own):

        class Plain(Notes):
            async def save(self, workflow_id: str, data: CheckpointData) -> None:
                self.kept.setdefault(workflow_id, {})[data.checkpoint_id] = as_kept(data.to_dict())  # noqa: B023

        user, elsewhere = Plain(), Plain()
        line.fail_once("c")
        with pytest.raises(NodeError):
            line.graph().run(Work(), store=adapted(user), run_id="run-1")
        elsewhere.kept = user.kept
        assert 3 == line.graph().resume(adapted(elsewhere), "run-1").n


def test_methods_that_are_coroutines_in_the_older_protocol_are_awaited(line: Line) -> None:
    class Awaited(Shelf):
        async def save(self, run_id: str, node_id: str, data: bytes) -> None:  # type: ignore[override]
            super().save(run_id, node_id, data)

    user = Awaited()
    line.graph().run(Work(), store=adapted(user), run_id="run-1")
    assert ["a", "b", "c"] == user.nodes("run-1")


def test_a_closed_store_closes_the_users_own_and_is_used_no_more() -> None:
    user = Shelf()
    with adapted(user) as store:
        store.save("run-1", "a", b"1")
    store.close()
    assert user.is_closed
    for use in (lambda: store.load("run-1", "a"), lambda: store.read("run-1"), lambda: store.save("run-1", "a", b"")):
        with pytest.raises(StoreClosedError):
            use()
    assert b"1" == adapted(user).load("run-1", "a"), "the object itself may be used anew"


def test_retries_and_attempts_are_counted_as_on_any_store(user: Any, call: Verbs) -> None:
    attempts: list[int] = []

    def flaky(ctx: Context[Any], work: Work) -> Work:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ConnectionError
        return work

    graph = (
        Graph(Work)
        .add_node("flaky", flaky, retry=Retry(max_attempts=3, backoff=0.0))
        .add_edge("flaky", END)
        .set_entry("flaky")
        .compile("flaky")
    )
    call(graph, "run", Work(), store=adapted(user), run_id="run-1")
    assert [1, 2, 3] == attempts
    data = adapted(user).load("run-1", "flaky")
    assert 3 == json.loads(data)["attempt"]
