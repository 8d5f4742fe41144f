"""What user code raises by itself and ends more than a call: it fails an attempt or counts as a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from milepost import (
    END,
    START,
    Engine,
    Graph,
    MemoryStore,
    NodeError,
    Retry,
    RunNotResumableError,
    StepError,
    WorkflowError,
    parallel,
    step,
    workflow,
)

ENDS = [asyncio.CancelledError, GeneratorExit, StopIteration]
"""What nobody has asked for is an error of the code that raises it."""


class Ending:
    """A function that raises `end` so many times, then gives `value`."""

    def __init__(self, end: type[BaseException], times: int = 10**9, value: Any = None) -> None:
        self.end = end
        self.times = times
        self.value = value
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        if self.calls <= self.times:
            raise self.end
        return self.value


def plain(ending: Ending, verbs: Any) -> Any:
    """It as a node of these verbs, which takes the state alone."""
    return verbs.node(lambda state: ending(state))


@pytest.mark.parametrize("options", [{}, {"timeout": 60}])
@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_nobody_asked_for_fails_an_attempt_and_is_tried_again(verbs, store, end, options):
    ending = Ending(end, 2, {"n": 1})
    graph = Graph(dict).add_node("a", plain(ending, verbs), retry=Retry(3, backoff=0), **options)
    assert {"n": 1} == verbs.run(graph.add_edge("a", END).set_entry("a").compile("g"), {}, store=store, run_id="r1")
    assert (3, 3) == (ending.calls, store.list("r1")[0].attempt)
    failures = [record.fields() for record in store.read("r1") if record.kind == "failure"]
    assert ["RuntimeError"] * 2 == [failure["error_type"].rpartition(".")[2] for failure in failures]


def graph_that_ends_in(place: str, ending: Ending, verbs: Any) -> Any:
    """A graph of which one piece of user code is `ending`."""
    own = plain(ending, verbs)
    node = verbs.node(lambda state: {**state, "n": 1})

    def given(name: str, otherwise: Any) -> Any:
        return own if place == name else otherwise

    if place in ("over", "item", "map merge"):
        merge = verbs.node(lambda state, results: ending()) if place == "map merge" else (lambda state, results: state)
        graph = Graph(dict).add_map(
            "m", given("over", lambda state: [1]), given("item", lambda item: item), merge=merge
        )
        return graph.add_edge(START, "m").add_edge("m", END).compile(place)
    if place == "router":
        graph = Graph(dict).add_node("a", node).add_conditional_edge("a", own, [END])
        return graph.set_entry("a").compile(place)
    if place == "reducer":
        parts = Graph(dict, partial=True, reducers={"n": ending}).add_node("a", node)
        return parts.add_edge("a", END).set_entry("a").compile(place)
    graph = Graph(dict).add_node("a", lambda state: state).add_node("b", given("branch", node)).add_node("c", node)
    graph.add_edge("a", "b").add_edge("a", "c").add_edge("b", "d").add_edge("c", "d")
    merge = verbs.node(lambda state, states: ending()) if place == "join merge" else (lambda state, states: state)
    graph.add_node("d", lambda state: state, merge=merge)
    return graph.add_edge("d", END).set_entry("a").compile(place.replace(" ", "-"))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", ["over", "item", "map merge", "router", "reducer", "branch", "join merge"])
def test_an_end_that_nobody_asked_for_fails_the_run_wherever_a_graph_calls_user_code(verbs, place, end):
    store, ending = MemoryStore(), Ending(end)
    with pytest.raises(NodeError, match=end.__name__):
        verbs.run(graph_that_ends_in(place, ending, verbs), {"n": 0}, store=store, run_id="r1")
    assert ("failed", "free") == (store.get_run("r1").info.status, store.get_run("r1").lease)


def workflow_that_ends_in(place: str, ending: Ending, verbs: Any) -> Any:
    """A workflow of which one piece of user code is `ending`."""

    async def awaited(*args: Any) -> Any:
        return ending(*args)

    own = awaited if verbs.has_coroutines else lambda *args: ending(*args)

    def fails(*args: Any) -> None:
        raise ValueError("as it does")

    @workflow("w")
    def wf(n: int) -> Any:
        if place == "own code":
            ending()
        if place == "step":
            yield step("s").python(own, args=(n,))
        if place == "group":
            found = yield parallel("g", step("s").python(own, args=(n,)), step("t").python(abs, args=(n,)))
            assert not found.success
            fails()
        if place == "key":
            yield step("s").map(abs, [n], key=ending)
        if place == "predicate":
            chosen = yield step("s").branch((own, step("t").python(abs, args=(n,))))
            return chosen
        if place == "handler":
            yield step("s").on_error(own).python(fails)
        if place == "rollback":
            yield step("s").python(abs, args=(n,)).with_rollback(own)
            fails()

    return wf


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", ["own code", "step", "group", "key", "predicate", "handler", "rollback"])
def test_an_end_that_nobody_asked_for_fails_the_run_wherever_a_workflow_calls_user_code(verbs, place, end):
    store, ending = MemoryStore(), Ending(end)
    engine = Engine(store)
    with pytest.raises((StepError, WorkflowError)):
        verbs.run(engine, workflow_that_ends_in(place, ending, verbs).bind(1), run_id="r1")
    assert 1 == ending.calls
    assert ("failed", "free") == (store.get_run("r1").info.status, store.get_run("r1").lease)
    if place == "rollback":
        assert ["rollback"] == [record.kind for record in store.read("r1") if record.kind == "rollback"]


@pytest.mark.parametrize("end", ENDS)
def test_an_end_of_a_hook_is_logged_and_changes_no_run(verbs, line, end, caplog):
    hook = Ending(end)
    assert {"n": 1} == verbs.run(line(dict, "a", {"a": lambda state: {"n": 1}}), {}, store=MemoryStore(), hooks=[hook])
    assert hook.calls > 1
    assert hook.calls == sum("hook" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("options", [{}, {"timeout": 60}])
def test_a_task_that_cancels_itself_in_a_branch_fails_that_branch(options):
    async def b(state: dict[str, Any]) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return state

    graph = (
        Graph(dict).add_node("a", lambda state: state).add_node("b", b, **options).add_node("c", lambda state: state)
    )
    graph.add_edge("a", "b").add_edge("a", "c").add_edge("b", "d").add_edge("c", "d").add_edge("d", END)
    compiled = graph.add_node("d", lambda state: state, merge=lambda state, states: state).set_entry("a").compile("g")
    store = MemoryStore()
    with pytest.raises(NodeError, match="CancelledError"):
        asyncio.run(compiled.arun({}, store=store, run_id="r1"))
    assert "failed" == store.get_run("r1").info.status


# -- what would end the worker ------------------------------------------------------------------------------


class Stop(BaseException):
    """An end of somebody's own."""


def deadly(place: str, end: type[BaseException], log: list[str]) -> Any:
    """A flow whose own code raises `end` each time that it comes to `place`."""

    def raises(given: Any) -> Any:
        log.append("bad")
        raise end

    async def awaited(given: Any) -> Any:
        raises(given)

    if place == "workflow":

        @workflow("bad")
        def bad(n: int) -> Any:
            yield step("s").python(raises, args=(n,))

        return bad.bind(1)
    if place == "own code":

        @workflow("bad")
        async def own(n: int) -> Any:
            raises(n)

        return own.bind(1)
    graph = Graph(dict)
    if place == "branch":
        graph.add_node("a", lambda state: state).add_node("b", awaited).add_node("c", raises)
        graph.add_node("d", lambda state: state, merge=lambda state, states: state)
        graph.add_edge("a", "b").add_edge("a", "c").add_edge("b", "d").add_edge("c", "d").add_edge("d", END)
    elif place == "router":
        graph.add_node("a", lambda state: state).add_conditional_edge("a", raises, [END])
    else:
        graph.add_node("a", {"plain": raises}.get(place, awaited), **({"timeout": 60} if place == "timeout" else {}))
        graph.add_edge("a", END)
    return graph.set_entry("a").compile("bad").bind({})


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, Stop])
@pytest.mark.parametrize("place", ["plain", "async", "timeout", "branch", "router", "workflow", "own code"])
def test_a_run_whose_code_would_end_its_worker_is_blocked_and_the_others_go_on(place, end, caplog):
    log: list[str] = []
    good = Graph(dict).add_node("a", lambda state: {"n": 1}).add_edge("a", END).set_entry("a").compile("good")
    bad = deadly(place, end, log)
    engine = Engine(MemoryStore(), flows=[bad.flow, good], max_crashes=3)
    engine.start(bad, run_id="bad")
    engine.start(good.bind({}), run_id="good")
    engine.worker().run(until_idle=True)
    assert {"n": 1} == engine.handle("good").result(timeout=5)
    info = engine.handle("bad").info()
    assert ("blocked", 3) == (info.status, info.crash_count)
    assert end.__name__ in info.reason
    assert 3 == sum("its code raised" in record.getMessage() for record in caplog.records)
    engine.worker().run(until_idle=True)
    assert info == engine.handle("bad").info()  # nobody took it; a thread of the other branch may still begin its node


def test_an_end_that_is_counted_as_a_crash_is_counted_on_every_store(medium, clock):
    store, log = medium.open(clock=clock), []
    bad = deadly("plain", SystemExit, log)
    engine = Engine(store, flows=[bad.flow], clock=clock, max_crashes=2)
    handle = engine.start(bad, run_id="bad")
    engine.worker().run(until_idle=True)
    assert ("blocked", 2, "free") == (handle.info().status, handle.info().crash_count, store.get_run("bad").lease)
    with pytest.raises(RunNotResumableError, match="reopen=True"):
        engine.resume(bad.flow, "bad")
    with pytest.raises(SystemExit):
        engine.resume(bad.flow, "bad", reopen=True)
    assert ["bad"] * 3 == log
    assert "interrupted" == handle.info().status


def test_a_run_that_makes_progress_between_its_crashes_is_not_blocked():
    log: list[str] = []

    def once(name: str) -> Any:
        def node(state: dict[str, Any]) -> dict[str, Any]:
            log.append(name)
            if log.count(name) == 1:
                raise SystemExit
            return state

        return node

    graph = Graph(dict)
    for name, following in zip("abc", ["b", "c", END], strict=True):
        graph.add_node(name, once(name)).add_edge(name, following)
    engine = Engine(MemoryStore(), flows=[compiled := graph.set_entry("a").compile("g")], max_crashes=2)
    handle = engine.start(compiled.bind({}))
    engine.worker().run(until_idle=True)
    assert ("finished", [*"aabbcc"]) == (handle.info().status, log)


def test_without_a_limit_a_run_that_crashes_is_taken_with_growing_pauses(clock):
    log: list[str] = []
    bad = deadly("plain", SystemExit, log)
    engine = Engine(MemoryStore(clock=clock), flows=[bad.flow], clock=clock, max_crashes=None)
    handle = engine.start(bad)
    engine.worker().run(until_idle=True)
    first = len(log)
    engine.worker().run(until_idle=True)
    assert ("ready", first) == (handle.info().status, len(log))
    clock.advance(3)
    engine.worker().run(until_idle=True)
    assert first + 1 == len(log)


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_an_end_in_a_task_that_a_node_began_ends_no_worker_in_the_background(end):
    async def node(state: dict[str, Any]) -> dict[str, Any]:
        async def inner() -> None:
            raise end

        await asyncio.create_task(inner())
        return state

    bad = Graph(dict).add_node("a", node).add_edge("a", END).set_entry("a").compile("bad")
    good = Graph(dict).add_node("a", lambda state: {"n": 1}).add_edge("a", END).set_entry("a").compile("good")
    engine = Engine(MemoryStore(), flows=[bad, good], max_crashes=2)
    handle = engine.start(bad.bind({}))
    with engine.worker(poll=0.01):
        with pytest.raises(RunNotResumableError, match=end.__name__):
            handle.result(timeout=10)
        assert {"n": 1} == engine.start(good.bind({})).result(timeout=10)
