"""Forks of runs: a run up to one of its records goes on as a run of its own, and the run itself is not touched."""

from __future__ import annotations

import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milepost import (
    END,
    Engine,
    FileStore,
    Graph,
    MemoryStore,
    NoCheckpointFoundError,
    NodeError,
    Retry,
    RunExistsError,
    RunNotFoundError,
    RunSuspended,
    SQLiteStore,
    Store,
    WorkflowContext,
    current,
    step,
    workflow,
)
from milepost.errors import (
    AsyncNodeError,
    CheckpointIntegrityError,
    InvalidResumeNodeError,
    NotAuthorizedError,
    OptionError,
    RouterError,
    RunStopped,
    StateTypeError,
    WrongFlowError,
)
from milepost.events import RunStarted
from milepost.model.record import OWNER, START
from milepost.stores.postgres.store import PostgresStore

SIGNED = {"signing_key": {"s": b"signing key, 24 bytes..."}}
OTHER = {"signing_key": {"t": b"another key, of 24 bytes"}}
ROTATED = {"signing_key": {**OTHER["signing_key"], **SIGNED["signing_key"]}}
ENCRYPTED = {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}, **SIGNED}


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


def visits(store: Store, run_id: str) -> list[tuple[str, int, bool]]:
    return [(info.node_id, info.visit, info.superseded) for info in store.history(run_id)]


def is_whole(store: Store, run_id: str) -> bool:
    return (True, ()) == (store.verify(run_id).ok, store.verify(run_id).problems)


@pytest.fixture
def finished(verbs, store, line):
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1", tags={"team": "billing"})
    return graph


@pytest.mark.every_store
def test_a_fork_after_a_node_runs_what_followed_it_and_ends_as_the_original_did(verbs, store, finished, log):
    before = store.export("r1")
    assert "f1" == verbs.call(finished, "fork_run", store, "r1", "a", new_run_id="f1")
    info = store.get_run("f1").info
    assert ("interrupted", "line", 1, "b") == (info.status, info.flow, info.sequence, info.next_node)
    assert {"team": "billing", "milepost.forked_from": "r1#1"} == info.tags
    assert "forked from run 'r1' at record 1" in info.reason
    assert ["f1"] == [found.run_id for found in store.list_runs(tags={"milepost.forked_from": "r1#1"})]
    assert [("a", 1, False)] == visits(store, "f1")
    assert is_whole(store, "f1")
    del log[:]
    assert Count(3) == verbs.resume(finished, store, "f1")
    assert ["b", "c"] == log
    assert before == store.export("r1")
    assert is_whole(store, "f1")
    (start,) = store.read("f1", kinds=(START,))
    origin = {"run_id": "r1", "sequence": 1, "entropy": store.read("r1", limit=1)[0].fields()["entropy"]}
    assert origin == start.fields()["origin"]


def test_without_a_node_a_fork_goes_on_where_the_run_would(verbs, store, line, log):
    is_broken = [True]

    def b(state: Count) -> Count:
        if is_broken[0]:
            raise OSError("no")
        return plus(state)

    graph = line(Count, "abc", {"b": b}, {"b": {"retry": Retry(2, backoff=0)}})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    before = store.export("r1")
    fork = verbs.call(graph, "fork_run", store, "r1")
    assert fork not in {"r1", ""}
    with pytest.raises(NodeError) as caught:
        verbs.resume(graph, store, fork)
    assert 2 == caught.value.attempt  # its visit is a new run's, and has attempts of its own
    is_broken[0] = False
    assert Count(3) == verbs.retry(graph, store, fork)
    assert before == store.export("r1")
    assert "failed" == store.get_run("r1").info.status
    again = verbs.call(graph, "fork_run", store, fork)
    assert Count(3) == verbs.resume(graph, store, again)
    assert "finished" == store.get_run(again).info.status


@pytest.mark.parametrize("how", ["fork", "map", "graph"])
def test_a_run_that_stands_inside_a_node_is_forked_without_naming_one(verbs, store, log, how):
    def seen(state: Count) -> Count:
        log.append("x")
        return plus(state)

    def asking(graph: Graph[Any]) -> Graph[Any]:
        graph.add_node("x", verbs.node(seen)).add_wait("ask", "go", apply=lambda state, reply: Count(reply.payload))
        return graph.add_edge("x", "ask")

    inner = asking(Graph(Count)).add_edge("ask", END).set_entry("x").compile("inner")
    graph = Graph(Count).add_node("f", verbs.node(lambda state: state)).set_entry("f")
    if how == "fork":
        asking(graph).add_node("b", verbs.node(plus)).add_node(
            "j", verbs.node(plus), merge=lambda base, ends: ends["x"]
        )
        graph.add_edge("f", "x").add_edge("f", "b").add_edge("ask", "j").add_edge("b", "j").add_edge("j", END)
    elif how == "map":
        graph.add_map("m", lambda state: [state], inner, merge=lambda state, found: plus(found[0]))
        graph.add_edge("f", "m").add_edge("m", END)
    else:
        graph.add_subgraph("s", inner).add_node("j", verbs.node(plus)).add_edge("f", "s").add_edge("s", "j").add_edge(
            "j", END
        )
    flow = graph.compile("g")
    with pytest.raises(RunSuspended):
        verbs.run(flow, Count(), store=store, run_id="r1")
    before = store.export("r1")
    verbs.call(flow, "fork_run", store, "r1", new_run_id="f1")
    with pytest.raises(RunSuspended):
        verbs.resume(flow, store, "f1")
    flow.signal(store, "f1", "go", 7)
    assert (Count(8), ["x"], before) == (verbs.resume(flow, store, "f1"), log, store.export("r1"))
    for option, given in (("state_override", plus), ("update", {"n": 1}), ("reroute", True)):
        with pytest.raises(OptionError, match=f"{option} does not say which is meant") as caught:
            verbs.call(flow, "fork_run", store, "r1", new_run_id="f2", **{option: given})
        assert option == caught.value.option


def test_a_run_that_has_only_begun_can_be_forked(verbs, store, line, log):
    graph = line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(5), store=store, run_id="r1", stop_before="a")
    fork = verbs.call(graph, "fork_run", store, "r1")
    assert 0 == store.get_run(fork).info.sequence
    assert Count(8) == verbs.resume(graph, store, fork)


def test_a_run_that_somebody_executes_can_be_forked(verbs, store, line):
    entered, gate = threading.Event(), threading.Event()
    is_first = [True]

    def b(state: Count) -> Count:
        if is_first[0]:
            entered.set()
            assert gate.wait(20)
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(verbs.run, graph, Count(), store=store, run_id="r1")
        assert entered.wait(10)
        is_first[0] = False
        fork = verbs.call(graph, "fork_run", store, "r1")
        assert Count(3) == verbs.resume(graph, store, fork)
        gate.set()
        assert Count(3) == running.result(20)


def test_superseded_visits_are_copied_and_none_is_used_again(verbs, store, finished):
    verbs.resume_from(finished, store, "r1", "a")
    before = store.export("r1")
    newest = verbs.call(finished, "fork_run", store, "r1", "b", new_run_id="f1")
    assert visits(store, "r1")[:4] == visits(store, newest)
    assert Count(3) == verbs.resume(finished, store, newest)
    assert ("c", 2, False) == visits(store, newest)[-1]
    old = verbs.call(finished, "fork_run", store, "r1", "b", 1, new_run_id="f2")
    assert [("a", 1, False), ("b", 1, False)] == visits(store, old)
    assert Count(3) == verbs.resume(finished, store, old)
    assert Count(3) == verbs.resume_from(finished, store, newest, "a", rerun=True)
    for run_id in (newest, old):
        found = [visit[:2] for visit in visits(store, run_id)]
        assert len(found) == len(set(found))
        assert is_whole(store, run_id)
    assert before == store.export("r1")


def test_the_state_of_a_fork_can_be_overridden(verbs, store, finished, log):
    fork = verbs.call(finished, "fork_run", store, "r1", "b", state_override=lambda s: replace(s, n=s.n + 40))
    (owner,) = store.read(fork, kinds=(OWNER,))
    assert ("fork", 2, b'{"n":42}') == (owner.fields()["verb"], owner.fields()["from"], owner.state())
    assert is_whole(store, fork)
    again = verbs.call(finished, "fork_run", store, fork)  # what was overridden is copied too
    assert Count(43) == verbs.resume(finished, store, fork)
    assert Count(43) == verbs.resume(finished, store, again)
    assert Count(3) == verbs.resume(finished, store, "r1")
    with pytest.raises(StateTypeError, match="state_override gave for a fork of run 'r1'"):
        verbs.call(finished, "fork_run", store, "r1", "b", new_run_id="f9", state_override=lambda s: "no")
    with pytest.raises(ZeroDivisionError):
        verbs.call(finished, "fork_run", store, "r1", "b", new_run_id="f9", state_override=lambda s: 1 / 0)
    with pytest.raises(RunNotFoundError):
        store.get_run("f9")


def test_a_coroutine_function_overrides_where_it_is_awaited(verbs, store, finished):
    async def override(state: Count) -> Count:
        return Count(70)

    if verbs.is_async:
        fork = verbs.call(finished, "fork_run", store, "r1", "b", state_override=override)
        assert Count(71) == verbs.resume(finished, store, fork)
    else:
        with pytest.raises(AsyncNodeError, match="state_override"):
            verbs.call(finished, "fork_run", store, "r1", "b", state_override=override)


def test_what_cannot_be_forked_is_refused_and_nothing_is_made(verbs, store, line, finished):
    def fork(*args: Any, **options: Any) -> Any:
        return verbs.call(finished, "fork_run", store, *args, **options)

    with pytest.raises(RunNotFoundError):
        fork("nobody")
    with pytest.raises(InvalidResumeNodeError, match="has no node 'z' to fork at") as invalid:
        fork("r1", "z")
    assert ("r1", "z", ("a", "b", "c")) == (invalid.value.run_id, invalid.value.node_id, invalid.value.known)
    with pytest.raises(NoCheckpointFoundError, match="no visit 2"):
        fork("r1", "a", 2)
    with pytest.raises(RunExistsError, match="choose another new_run_id") as exists:
        fork("r1", "a", new_run_id="r1")
    assert ("r1", "finished") == (exists.value.run_id, exists.value.status)
    for wrong in ({"visit": 1}, {"node_id": "a", "visit": 0}, {"state_override": 5}):
        with pytest.raises(OptionError):
            fork("r1", **wrong)
    with pytest.raises(WrongFlowError):
        verbs.call(line(Count, name="other"), "fork_run", store, "r1")
    assert ["r1"] == [info.run_id for info in store.list_runs()]


def test_a_node_inside_another_is_known_where_it_has_no_checkpoint(verbs, store):
    each = Graph(int).add_node("p", lambda n: n).add_edge("p", END).set_entry("p").compile("each")
    flow = Graph(list[int]).add_node("a", lambda state: state).add_edge("a", "m").set_entry("a").add_edge("m", END)
    flow.add_map("m", lambda state: state, each, merge=lambda state, found: found)
    graph = flow.compile("g")
    with pytest.raises(RunStopped):
        verbs.run(graph, [1], store=store, run_id="r1", stop_after="a")
    with pytest.raises(NoCheckpointFoundError, match="none of this node"):
        verbs.call(graph, "fork_run", store, "r1", "m/0/p")
    verbs.resume(graph, store, "r1")
    with pytest.raises(NoCheckpointFoundError, match="no visit 2 of it"):
        verbs.call(graph, "fork_run", store, "r1", "m/0/p", 2)
    with pytest.raises(InvalidResumeNodeError, match="has no node 'm/0/q' to fork at"):
        verbs.call(graph, "fork_run", store, "r1", "m/0/q")


def test_a_record_that_was_changed_is_not_copied(verbs, medium, store, finished):
    if medium.kind != "memory":
        pytest.skip("damage is put into what memory holds")
    records = store._runs["r1"].records
    records[2] = records[2]._replace(payload=b'{"n":5}')
    with pytest.raises(CheckpointIntegrityError):
        verbs.call(finished, "fork_run", store, "r1", "c")
    with pytest.raises(CheckpointIntegrityError):
        verbs.call(finished, "fork_run", store, "r1", "b")
    fork = verbs.call(finished, "fork_run", store, "r1", "a")  # what is before the damage is whole
    assert Count(3) == verbs.resume(finished, store, fork)
    del records[3:]
    store._runs["r1"].by_node["c"].clear()
    with pytest.raises(CheckpointIntegrityError.__base__, match="not whole up to record 4"):
        verbs.call(finished, "fork_run", store, "r1")


def test_what_was_pruned_is_no_gap_in_a_fork_and_what_was_lost_is(verbs, medium, store):
    graph = (
        Graph(Count)
        .add_node("a", verbs.node(plus))
        .add_conditional_edge("a", lambda s: END if s.n % 5 == 0 else "a", ["a", END])
    )
    graph = graph.set_entry("a").compile("loop")
    verbs.run(graph, Count(), store=store, run_id="r1")
    store.prune(keep_last=2)
    fork = verbs.call(graph, "fork_run", store, "r1", "a", 4)
    assert [("a", 4, False)] == visits(store, fork)
    assert is_whole(store, fork)
    assert Count(5) == verbs.resume(graph, store, fork)
    assert "a" == store.import_run(store.export(fork), run_id="a")
    if medium.kind == "memory":
        del store._runs["r1"].records[1]
        with pytest.raises(CheckpointIntegrityError.__base__, match="missing"):
            verbs.call(graph, "fork_run", store, "r1")


def test_runs_that_were_saved_from_outside_can_be_forked(verbs, store, finished):
    store.save("r1", "b", b'{"node_id":"b","next_node":"c","state":{"n":20}}')
    fork = verbs.call(finished, "fork_run", store, "r1")
    assert store.load("r1", "b") == store.load(fork, "b")
    assert [info.timestamp for info in store.history("r1")] == [info.timestamp for info in store.history(fork)]
    assert is_whole(store, fork)
    assert Count(21) == verbs.resume(finished, store, fork)


# -- what visits draw ------------------------------------------------------------------------------------------


def test_copied_visits_keep_what_they_drew_and_those_after_them_draw_anew(verbs, store):
    drawn: dict[str, list[Any]] = {"a": [], "router": [], "b": []}
    is_broken = [True]

    def draw(ctx):
        return ctx.random(), ctx.uuid4(), ctx.idempotency_key

    def node(name):
        def body(ctx, state: Count) -> Count:
            drawn[name].append(draw(ctx))
            return plus(state)

        return verbs.node(body)

    def router(ctx, state: Count) -> str:
        drawn["router"].append(draw(ctx))
        if is_broken[0]:
            raise OSError("not yet")
        return "b"

    graph = Graph(Count).add_node("a", node("a")).add_node("b", node("b")).add_conditional_edge("a", router, ["b"])
    graph = graph.add_edge("b", END).set_entry("a").compile("drawing")
    with pytest.raises(RouterError):
        verbs.run(graph, Count(), store=store, run_id="r1")
    first = verbs.call(graph, "fork_run", store, "r1", "a", new_run_id="f1")
    second = verbs.call(graph, "fork_run", store, first, new_run_id="f2")
    is_broken[0] = False
    for run_id in ("r1", first, second):
        assert Count(2) == verbs.resume(graph, store, run_id)
    assert drawn["a"] * 3 == drawn["router"][1:]  # asked at once, it goes on with what its node has begun to draw
    assert 3 == len(set(drawn["b"]))
    later = verbs.call(graph, "fork_run", store, first, "b", new_run_id="f3")
    verbs.resume_from(graph, store, later, "b", visit=1, rerun=True)
    assert 4 == len(set(drawn["b"]))


def test_a_workflow_is_forked_after_a_step_and_its_code_goes_on_with_what_it_drew(verbs, store, work):
    seen: list[Any] = []

    def use(value):
        return value

    def last(value):
        seen.append((current().idempotency_key, value))
        return value

    @workflow("drawing")
    def drawing(ctx: WorkflowContext, n: int):
        one = yield step("one").python(work(use), args=(str(ctx.uuid4()),))
        two = yield step("two").python(work(use), args=(n,))
        three = yield step("three").python(work(last), args=(two,))
        return [one, three]

    result = verbs.run(drawing, n=7, store=store, run_id="r1")
    before = store.export("r1")
    fork = verbs.call(drawing, "fork_run", store, "r1", "two")
    assert "interrupted" == store.get_run(fork).info.status
    assert result == verbs.resume(drawing, store, fork)
    assert result == verbs.resume(drawing, store, fork)
    assert 2 == len({key for key, _ in seen})
    whole = verbs.call(drawing, "fork_run", store, "r1")
    assert result == verbs.resume(drawing, store, whole)
    assert before == store.export("r1")
    assert is_whole(store, fork)
    with pytest.raises(NoCheckpointFoundError):
        verbs.call(drawing, "fork_run", store, "r1", "four")
    with pytest.raises(OptionError, match="for graphs"):
        verbs.call(drawing, "fork_run", store, "r1", "two", state_override=lambda s: s)


def test_a_workflow_inside_that_was_under_way_goes_on_with_what_it_drew(verbs, store, work):
    drawn: list[tuple[str, str]] = []

    def use(value):
        return value

    @workflow("inner")
    def inner(ctx: WorkflowContext, name: str):
        one = yield step("one").python(work(use), args=(str(ctx.uuid4()),))
        two = yield step("two").python(work(use), args=(str(ctx.uuid4()),))
        drawn.append((name, one + two))
        return two

    @workflow("outer")
    def outer():
        yield step("first").subworkflow(inner.bind("first"))
        return (yield step("second").subworkflow(inner.bind("second")))

    verbs.run(outer, store=store, run_id="r1")
    fork = verbs.call(outer, "fork_run", store, "r1", "first/one")
    del drawn[2:]
    verbs.resume(outer, store, fork)
    verbs.resume(outer, store, fork, full=True)
    told = [dict(drawn[:2]), *(dict([pair]) for pair in drawn[2:])]
    assert {told[0]["first"]} == {found["first"] for found in told if "first" in found}
    seconds = [found["second"] for found in told if "second" in found]
    assert 2 == len(set(seconds))
    assert 1 == len(set(seconds[1:]))


def test_a_rollback_of_a_copied_step_has_the_key_that_it_would_have_had(verbs, store, work):
    keys: list[str] = []
    is_broken = [True]

    def charge():
        return 1

    def refund(ctx, output):
        keys.append(current().idempotency_key)

    def ship():
        if is_broken[0]:
            raise OSError("no")
        return 2

    @workflow("order")
    def order():
        yield step("charge").python(work(charge)).with_rollback(refund)
        return (yield step("ship").python(work(ship)))

    with pytest.raises(Exception, match="no"):
        verbs.run(order, store=store, run_id="r1")
    fork = verbs.call(order, "fork_run", store, "r1", "charge")
    with pytest.raises(Exception, match="no"):
        verbs.resume(order, store, fork)
    assert 2 == len(keys)
    assert 1 == len(set(keys))


# -- signals ---------------------------------------------------------------------------------------------------


def test_signals_that_were_used_are_not_used_again_and_others_are_not_copied(verbs, store):
    @workflow("two-waits")
    def waits():
        one = yield step("one").wait_for("go")
        two = yield step("two").wait_for("go")
        return [one.payload, two.payload]

    with pytest.raises(RunSuspended):
        verbs.run(waits, store=store, run_id="r1")
    verbs.call(waits, "signal", store, "r1", "other", "early", signal_id="o")
    verbs.call(waits, "signal", store, "r1", "go", "first", signal_id="1")
    with pytest.raises(RunSuspended):
        verbs.resume(waits, store, "r1")
    verbs.call(waits, "signal", store, "r1", "go", "second", signal_id="2")
    before = store.export("r1")
    fork = verbs.call(waits, "fork_run", store, "r1", "one")
    assert is_whole(store, fork)
    assert before == store.export("r1")
    with pytest.raises(RunSuspended) as waiting:
        verbs.resume(waits, store, fork)
    assert ["two#1"] == [wait.wait_id for wait in waiting.value.waiting_for]
    kept = [("milepost.not-copied", None), ("go", b'"first"')]
    assert kept == [(signal.name, signal.payload) for signal in store.signals(fork)]
    assert "duplicate" == verbs.call(waits, "signal", store, fork, "go", "again", signal_id="1")
    assert "taken" == verbs.call(waits, "signal", store, fork, "go", "mine", signal_id="2")
    assert ["first", "mine"] == verbs.resume(waits, store, fork)
    assert ["first", "second"] == verbs.resume(waits, store, "r1")
    assert "again" == store.import_run(store.export(fork), run_id="again")


# -- turns and engines -----------------------------------------------------------------------------------------


class Chat(TypedDict):
    messages: Annotated[list[str], operator.add]


def test_a_turn_can_be_forked_before_and_after_its_first_checkpoint(verbs, store):
    def answer(chat: Chat) -> dict[str, Any]:
        return {"messages": [f"re: {chat['messages'][-1]}"]}

    graph = (
        Graph(Chat, partial=True).add_node("a", verbs.node(answer)).add_edge("a", END).set_entry("a").compile("chat")
    )
    verbs.run(graph, {"messages": ["hi"]}, store=store, run_id="r1")
    engine = Engine(store, flows=[graph])
    verbs.call(engine, "start", graph, {"messages": ["and?"]}, run_id="r1", if_exists="continue")
    fork = verbs.call(engine, "fork_run", graph, "r1")
    before = verbs.call(engine, "fork_run", graph, "r1", "a", 1, new_run_id="before")
    said = ["hi", "re: hi", "and?", "re: and?"]
    assert {"messages": said} == verbs.resume(graph, store, fork)
    assert {"messages": said[:2]} == verbs.resume(graph, store, before)
    continued = {"if_exists": "continue"}
    assert "re: oh" == verbs.run(engine, graph, {"messages": ["oh"]}, run_id=before, **continued)["messages"][-1]
    engine.worker().run(until_idle=True)
    assert {"messages": said} == verbs.call(engine.handle("r1"), "result", timeout=20)


def test_an_engine_forks_asks_and_can_leave_the_fork_to_a_worker(verbs, store, finished):
    asked: list[Any] = []
    engine = Engine(store, flows=[finished], authorize=lambda *told: asked.append(told) or True)
    fork = verbs.call(engine, "fork_run", finished, "r1", "a", state_override=lambda s: Count(10))
    assert [("resume", "r1", "line"), ("override", "r1", "line")] == asked
    engine.worker().run(until_idle=True)
    assert "interrupted" == store.get_run(fork).info.status
    verbs.call(engine, "start", finished, Count(), run_id=fork, if_exists="resume")
    engine.worker().run(until_idle=True)
    assert Count(12) == verbs.call(engine.handle(fork), "result", timeout=20)
    told = verbs.events(engine.handle(fork), "events", after=-1)
    assert Count(0) == next(event.input for event in told if isinstance(event, RunStarted))
    refusing = Engine(store, authorize=lambda *told: False)
    with pytest.raises(NotAuthorizedError):
        verbs.call(refusing, "fork_run", finished, "r1", "a")


# -- from store to store ---------------------------------------------------------------------------------------

KINDS = ("memory", "sqlite", "file", "postgres")


def open_one(kind: str, path: Path, request: pytest.FixtureRequest, **keys: Any) -> Store:
    if kind == "memory":
        return MemoryStore(**keys)
    if kind == "postgres":
        return PostgresStore(request.getfixturevalue("postgres"), **keys)
    path.mkdir(exist_ok=True)
    return SQLiteStore(path / "runs.db", **keys) if kind == "sqlite" else FileStore(path / "runs", **keys)


@pytest.fixture
def looped():
    graph = Graph(Count).add_node("a", plus).add_node("b", plus).add_edge("a", "b")
    graph.add_conditional_edge("b", lambda s: END if s.n >= 6 else "a", ["a", END])
    return graph.set_entry("a").compile("loop")


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_a_run_is_forked_from_any_store_into_any_other(source, target, looped, tmp_path, request):
    if source == target == "postgres":
        pytest.skip("there is one database")
    with (
        open_one(source, tmp_path / "source", request) as store,
        open_one(target, tmp_path / "target", request) as into,
    ):
        result = looped.run(Count(), store=store, run_id="r1")
        before = store.export("r1")
        assert "r1" == looped.fork_run(store, "r1", "b", 2, new_run_id="r1", into=into)
        assert before == store.export("r1")
        assert visits(store, "r1")[:4] == visits(into, "r1")
        assert result == looped.resume(into, "r1")
        assert visits(store, "r1") == visits(into, "r1")
        assert is_whole(into, "r1")
        assert looped.fork_run(into, "r1", into=store) in {info.run_id for info in store.list_runs()}


@pytest.mark.parametrize("kind", ["memory", "sqlite", "file"])
@pytest.mark.parametrize(
    ("source", "target"), [(SIGNED, ROTATED), (ENCRYPTED, {}), (ENCRYPTED, ENCRYPTED), (SIGNED, {})]
)
def test_a_fork_is_sealed_and_encrypted_with_the_keys_of_its_store(kind, source, target, looped, tmp_path, request):
    with (
        open_one(kind, tmp_path / "source", request, **source) as store,
        open_one(kind, tmp_path / "target", request, **target) as into,
    ):
        result = looped.run(Count(), store=store, run_id="r1")
        before = store.export("r1")
        fork = looped.fork_run(store, "r1", "b", 2, into=into, state_override=lambda s: s)
        assert before == store.export("r1")
        assert is_whole(into, fork)
        assert result == looped.resume(into, fork)
        here = looped.fork_run(store, "r1", "b", 2, state_override=lambda s: s)
        assert is_whole(store, here)
        assert result == looped.resume(store, here)
        key = b"hmac-sha256:" + next(iter(target["signing_key"])).encode() if "signing_key" in target else b"sha256:"
        assert all(b'"seal":"' + key in (record.header or b"") for record in into.read(fork))


@pytest.mark.parametrize("source", [{}, OTHER], ids=["no key", "another key"])
def test_a_fork_that_no_key_proves_needs_leave_and_is_never_verified(source, looped, tmp_path, request):
    with (
        open_one("sqlite", tmp_path / "source", request, **source) as store,
        open_one("sqlite", tmp_path / "target", request, **SIGNED) as into,
        open_one("sqlite", tmp_path / "target", request, **SIGNED, allow_unsealed=True) as lenient,
    ):
        looped.run(Count(), store=store, run_id="r1")
        with pytest.raises(CheckpointIntegrityError, match=r"allow_unsealed=True|'t', which this store does not have"):
            looped.fork_run(store, "r1", "b", 2, into=into)
        fork = looped.fork_run(store, "r1", "b", 2, into=lenient)
        assert not looped.plan_resume(lenient, fork).verified
        with pytest.raises(CheckpointIntegrityError, match="without a key"):
            looped.resume(into, fork)


def test_a_store_without_journals_is_refused(looped):
    class Shelf:
        def __init__(self):
            self.kept = {}

        def save(self, run_id, node_id, data):
            self.kept[run_id, node_id] = data

        def load(self, run_id, node_id):
            return self.kept[run_id, node_id]

        def list(self, run_id):
            return []

        def delete(self, run_id, node_id):
            pass

        def delete_run(self, run_id):
            pass

        def close(self):
            pass

    shelf = Shelf()
    store = MemoryStore()
    looped.run(Count(), store=store, run_id="r1")
    with pytest.raises(OptionError, match="no journals"):
        looped.fork_run(shelf, "r1")
    with pytest.raises(OptionError, match="no journals"):
        looped.fork_run(store, "r1", into=shelf)
