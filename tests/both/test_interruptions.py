"""What is no error of a node: Ctrl-C, the end of the interpreter, a cancelled task. Nothing of it counts as done."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from milepost import END, Graph, LeaseLost, Retry, RunCancelled, RunSuspended, StoreError
from milepost.drivers.heartbeat import heartbeat
from milepost.errors import RunStopped


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


class Interrupting:
    """A body that raises `error` while there is one."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
        self.__code__ = plus.__code__  # tells that it takes the state alone

    def __call__(self, state: Count) -> Count:
        if self.error is not None:
            raise self.error
        return plus(state)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("options", [{}, {"timeout": 60}])
def test_an_interrupted_node_is_not_done_and_runs_again_on_resume(verbs, store, line, log, error, options):
    b = Interrupting(error())
    graph = line(Count, "abc", {"b": b}, {"b": {"retry": Retry(3, backoff=0)}})
    with pytest.raises(error):
        verbs.run(graph, Count(), store=store, run_id="r1", **options)
    info = store.get_run("r1").info
    assert ("interrupted", True) == (info.status, bool(info.reason))
    assert ["r1"] == [info.run_id for info in store.list_runs(status="interrupted")]
    assert ["start", "checkpoint"] == [record.kind for record in store.read("r1")]
    b.error = None
    assert Count(3) == verbs.resume(graph, store, "r1")
    assert ["a", "b", "b", "c"] == log
    assert 1 == store.list("r1")[1].attempt


@pytest.mark.every_store
def test_an_awaited_run_that_is_cancelled_by_a_timeout_is_interrupted(store, log):
    entered, is_patient = [], [False]

    async def b(state: Count) -> Count:
        log.append("b")
        entered.append(state)
        if not is_patient[0]:
            await asyncio.Event().wait()
        return plus(state)

    def logged(name):
        async def body(state: Count) -> Count:
            log.append(name)
            return plus(state)

        return body

    graph = Graph(Count).add_node("a", logged("a")).add_node("b", b).add_node("c", logged("c"))
    compiled = graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile()

    async def main() -> None:
        running = asyncio.ensure_future(compiled.arun(Count(), store=store, run_id="r1"))
        while not entered:
            await asyncio.sleep(0)
        await asyncio.wait_for(running, 0)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert "interrupted" == store.get_run("r1").info.status
    is_patient[0] = True
    assert Count(3) == asyncio.run(compiled.aresume(store, "r1"))
    assert ["a", "b", "b", "c"] == log


def test_a_cancelled_run_does_not_wait_for_a_plain_node_that_goes_on(store, log):
    gate, entered = threading.Event(), threading.Event()

    def stubborn(state: Count) -> Count:
        log.append("stubborn")
        entered.set()
        gate.wait(10)
        return plus(state)

    graph = Graph(Count).add_node("a", stubborn).add_edge("a", END).set_entry("a").compile()

    async def main() -> None:
        running = asyncio.ensure_future(graph.arun(Count(), store=store, run_id="r1"))
        while not entered.is_set():
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert "interrupted" == store.get_run("r1").info.status
    gate.set()
    assert Count(1) == graph.resume(store, "r1")
    assert ["stubborn", "stubborn"] == log


def test_a_write_that_has_begun_is_awaited_before_a_cancel_goes_on(medium, log):
    started, gate = threading.Event(), threading.Event()

    class Slow:
        is_blocking = True

        def append(self, batch):
            if any(record.node_id == "a" for append in batch for record in append.records):
                started.set()
                assert gate.wait(10)
            return super().append(batch)

    store = medium.open(Slow)

    async def a(state: Count) -> Count:
        log.append("a")
        return plus(state)

    async def b(state: Count) -> Count:
        log.append("b")
        return plus(state)

    graph = Graph(Count).add_node("a", a).add_node("b", b).add_edge("a", "b").add_edge("b", END)
    compiled = graph.set_entry("a").compile()

    async def main() -> None:
        running = asyncio.ensure_future(compiled.arun(Count(), store=store, run_id="r1"))
        while not started.is_set():
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert "interrupted" == store.get_run("r1").info.status
    assert ["a"] == [info.node_id for info in store.list("r1")]
    assert Count(2) == asyncio.run(compiled.aresume(store, "r1"))
    assert ["a", "b"] == log


def test_an_interrupted_owner_that_was_overtaken_raises_what_interrupted_it(verbs, medium, line, log):
    store, other = medium.open(), medium.open()
    plain = line(Count, "abc") if not verbs.has_coroutines else None
    is_first = [True]

    def b(state: Count) -> Count:
        if not is_first[0]:
            return plus(state)
        is_first[0] = False
        if plain is None:
            take_over(other)
        else:
            plain.resume(other, "r1", takeover=True)
        raise KeyboardInterrupt

    graph = line(Count, "abc", {"b": b})
    with pytest.raises(KeyboardInterrupt) as caught:
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert LeaseLost is type(caught.value.__context__)
    if plain is not None:
        assert "finished" == store.get_run("r1").info.status


def take_over(store) -> None:
    async def add(state: Count) -> Count:
        return plus(state)

    graph = Graph(Count)
    for node in "abc":
        graph.add_node(node, add)
    graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a")
    compiled = graph.compile("line")
    thread = threading.Thread(target=lambda: asyncio.run(compiled.aresume(store, "r1", takeover=True)))
    thread.start()
    thread.join()


def test_a_node_that_stops_because_the_run_was_cancelled_ends_it_as_cancelled(verbs, medium, line, log):
    store = medium.open()

    def b(ctx, state: Count) -> Count:
        assert False is ctx.cancelled
        assert "requested" == store.request_cancel("r1", "not needed")
        heartbeat.beat()
        assert True is ctx.cancelled
        try:
            ctx.check_cancelled()
        except Exception:
            log.append("swallowed")
        return plus(state)

    with pytest.raises(RunCancelled, match="not needed") as caught:
        verbs.run(line(Count, "abc", {"b": b}), Count(), store=store, run_id="r1")
    assert ("r1", "not needed", Count(1)) == (caught.value.run_id, caught.value.reason, caught.value.state)
    assert ["a", "b"] == log
    info = store.get_run("r1").info
    assert ("cancelled", "not needed") == (info.status, info.reason)
    assert "finish" == store.read("r1")[-1].kind


def test_a_cancel_before_the_last_checkpoint_keeps_the_work_and_has_one_outcome(verbs, store, line, log):
    def b(ctx, state: Count) -> Count:
        ctx.tag("late", "yes")
        store.request_cancel("r1", "not needed")
        return plus(state)

    with pytest.raises(RunCancelled):
        verbs.run(line(Count, "ab", {"b": b}), Count(), store=store, run_id="r1")
    info = store.get_run("r1").info
    assert ("cancelled", {"late": "yes"}) == (info.status, info.tags)
    assert ["start", "checkpoint", "checkpoint", "finish"] == [record.kind for record in store.read("r1")]


def test_a_cancel_is_seen_at_the_next_checkpoint(verbs, store, line, log):
    def a(state: Count) -> Count:
        store.request_cancel("r1", "not needed")
        return plus(state)

    with pytest.raises(RunCancelled):
        verbs.run(line(Count, "abc", {"a": a}), Count(), store=store, run_id="r1")
    assert (["a"], ["a"]) == (log, [info.node_id for info in store.list("r1")])


class TakenMeanwhile:
    """Interrupts the verb that calls `method`, before the store does what it is asked, or after that."""

    method = ""
    is_before = False
    interrupt: Any = None

    def _perform(self, name: str, wish: Any) -> Any:
        perform = getattr(super(), name)
        if name != type(self).method:
            return perform(wish)
        type(self).method = ""
        if type(self).is_before:
            type(self).interrupt()
        given = perform(wish)
        type(self).interrupt()
        return given

    def create(self, new: Any) -> Any:
        return self._perform("create", new)

    def claim(self, claim: Any) -> Any:
        return self._perform("claim", claim)


def _raise() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["create", "claim"])
def test_ctrl_c_while_a_run_is_taken_leaves_it_to_the_next_verb(medium, method):
    kind = type("Kind", (TakenMeanwhile,), {"interrupt": staticmethod(_raise)})
    store, graph = medium.open(kind), one_node()
    if method == "claim":
        with pytest.raises(RunStopped):
            graph.run(Count(), store=store, run_id="r1", stop_before="a")
    kind.method = method
    with pytest.raises(KeyboardInterrupt):
        if method == "create":
            graph.run(Count(), store=store, run_id="r1")
        else:
            graph.resume(store, "r1")
    assert ("interrupted", "free") == (store.get_run("r1").info.status, store.get_run("r1").lease)
    assert Count(1) == graph.resume(store, "r1")


@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize("method", ["create", "claim"])
def test_a_task_that_is_cancelled_while_a_run_is_taken_leaves_it_to_the_next_verb(medium, method, is_before):
    kind = type("Kind", (TakenMeanwhile,), {"is_before": is_before})
    store, graph = medium.open(kind), one_node()
    if method == "claim":
        with pytest.raises(RunStopped):
            graph.run(Count(), store=store, run_id="r1", stop_before="a")

    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        verb = graph.arun(Count(), store=store, run_id="r1") if method == "create" else graph.aresume(store, "r1")
        working = asyncio.ensure_future(verb)
        kind.interrupt = staticmethod(lambda: loop.call_soon_threadsafe(working.cancel))
        kind.method = method
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(main())
    assert ("interrupted", "free") == (store.get_run("r1").info.status, store.get_run("r1").lease)
    assert Count(1) == graph.resume(store, "r1")


def one_node() -> Any:
    graph = Graph(Count).add_node("a", lambda state: Count(state.n + 1)).add_edge("a", END).set_entry("a")
    return graph.compile("one")


class FailingOnce(TakenMeanwhile):
    """Fails once it has done what it is asked."""

    @staticmethod
    def interrupt() -> None:
        raise StoreError("the connection is gone")


@pytest.mark.parametrize("method", ["create", "claim"])
def test_a_run_that_was_taken_as_its_store_failed_is_given_back_as_it_was(medium, method):
    kind = type("Kind", (FailingOnce,), {})
    store, graph = medium.open(kind), one_node()
    if method == "claim":
        with pytest.raises(RunStopped):
            graph.run(Count(), store=store, run_id="r1", stop_before="a")
    kind.method = method
    with pytest.raises(StoreError, match="connection is gone"):
        if method == "create":
            graph.run(Count(), store=store, run_id="r1")
        else:
            graph.resume(store, "r1")
    heartbeat.beat()
    info = store.get_run("r1").info
    assert ("interrupted", "free") == (info.status, store.get_run("r1").lease)
    assert "connection is gone" in info.reason
    assert Count(1) == graph.resume(store, "r1")


class InterruptedTwice:
    """Interrupts whoever gives a run up, as often as it is told."""

    times = 0
    interrupt: Any = None

    def append(self, batch: Any) -> Any:
        if type(self).times and any(append.release is not None for append in batch):
            type(self).times -= 1
            type(self).interrupt()
        return super().append(batch)  # type: ignore[misc]


@pytest.mark.parametrize("end", ["interrupted", "failed", "finished", "waiting"])
def test_ctrl_c_while_a_run_is_given_up_leaves_it_to_anybody(medium, end):
    kind = type("Kind", (InterruptedTwice,), {"times": 1, "interrupt": staticmethod(_raise)})
    store, is_first = medium.open(kind), [True]

    def a(state: Count) -> Count:
        if is_first.pop() if is_first else False:
            if end == "interrupted":
                raise KeyboardInterrupt
            if end == "failed":
                raise ValueError("as it does")
        return plus(state)

    graph = Graph(Count).add_node("a", a).add_timer("t", duration=0 if end != "waiting" else 1000).add_edge("a", "t")
    compiled = graph.add_edge("t", END).set_entry("a").compile("g")
    with pytest.raises(KeyboardInterrupt):
        compiled.run(Count(), store=store, run_id="r1")
    heartbeat.beat()
    assert "free" == store.get_run("r1").lease
    assert "interrupted" == store.get_run("r1").info.status
    if end == "waiting":
        with pytest.raises(RunSuspended):
            compiled.resume(store, "r1")
    else:
        assert Count(1) == compiled.resume(store, "r1")


def test_a_task_that_is_cancelled_again_while_its_run_is_given_up_leaves_it_to_anybody(medium):
    kind = type("Kind", (InterruptedTwice,), {"times": 1})
    store = medium.open(kind)

    async def a(state: Count) -> Count:
        await asyncio.Event().wait()
        return plus(state)

    graph = Graph(Count).add_node("a", a).add_edge("a", END).set_entry("a").compile("g")

    async def main() -> None:
        loop, working = asyncio.get_running_loop(), asyncio.ensure_future(graph.arun(Count(), store=store, run_id="r1"))
        kind.interrupt = staticmethod(lambda: loop.call_soon_threadsafe(working.cancel))
        while not store.list_runs() or "running" != store.get_run("r1").info.status:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(main())
    heartbeat.beat()
    assert ("interrupted", "free") == (store.get_run("r1").info.status, store.get_run("r1").lease)


def routed(verbs: Any, where: str, log: list[str], router: Any) -> Any:
    """A graph in which `router` follows node `work`, which logs its name: in a row, in a branch, or in a graph inside."""

    def named(name: str) -> Any:
        def node(state: Count) -> Count:
            log.append(name)
            return plus(state)

        return verbs.node(node)

    def way(graph: Any, end: Any) -> Any:
        return graph.add_node("work", named("work")).add_conditional_edge("work", router, [end])

    if where == "row":
        return way(Graph(Count), END).set_entry("work").compile("g")
    if where == "inside":
        inner = way(Graph(Count), END).set_entry("work").compile("inner")
        graph = Graph(Count).add_node("before", named("before")).add_subgraph("in", inner).add_edge("before", "in")
        return graph.add_edge("in", END).set_entry("before").compile("g")
    graph = Graph(Count).add_node("before", named("before")).add_node("other", named("other"))
    graph.add_node("join", named("join"), merge=lambda state, states: states["work"])
    graph.add_edge("before", "work").add_edge("before", "other").add_edge("other", "join").add_edge("join", END)
    return way(graph, "join").set_entry("before").compile("g")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["row", "branch", "inside"])
def test_the_work_of_a_node_whose_router_is_interrupted_is_kept(verbs, medium, where, error, log):
    is_first = [True]

    def router(state: Count) -> str:
        if is_first:
            is_first.clear()
            raise error
        return "join" if where == "branch" else END

    store, graph = medium.open(), routed(verbs, where, log, router)
    with pytest.raises(error):
        verbs.run(graph, Count(), store=store, run_id="r1")
    assert ("interrupted", "free") == (store.get_run("r1").info.status, store.get_run("r1").lease)
    verbs.resume(graph, store, "r1")
    assert 1 == log.count("work")
    assert 1 == len([info for info in store.history("r1") if info.node_id.endswith("work")])


@pytest.mark.parametrize("where", ["row", "branch", "inside"])
@pytest.mark.parametrize("ending", ["task", "run"])
def test_the_work_of_a_node_whose_router_is_cancelled_is_kept(medium, where, ending, log):
    entered: list[Count] = []

    async def router(state: Count) -> str:
        entered.append(state)
        if len(entered) == 1:
            await asyncio.Event().wait()
        return "join" if where == "branch" else END

    class Sync:
        node = staticmethod(lambda fn: fn)

    store, graph = medium.open(), routed(Sync, where, log, router)

    async def main() -> None:
        working = asyncio.ensure_future(graph.arun(Count(), store=store, run_id="r1"))
        while not entered:
            await asyncio.sleep(0)
        if ending == "task":
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
        else:
            store.request_cancel("r1", "not needed")
            with pytest.raises(RunCancelled):
                await working

    asyncio.run(main())
    if ending == "task":
        asyncio.run(graph.aresume(store, "r1"))
        assert 1 == log.count("work")
    assert 1 == len([info for info in store.history("r1") if info.node_id.endswith("work")])
