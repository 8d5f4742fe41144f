"""Waits and timers in graphs: a run that waits is put away whole, and goes on when its signal or its time has come."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pydantic
import pytest
from dying import crash

from milepost import (
    END,
    BranchError,
    Engine,
    Graph,
    GraphError,
    MemoryStore,
    NodeError,
    Reply,
    Retry,
    RunCancelled,
    RunNotResumableError,
    RunSuspended,
    SerializeStateError,
    StoreError,
    step,
    workflow,
)
from milepost.drivers.heartbeat import heartbeat
from milepost.errors import MaxIterationsError, OptionError, RunStopped, SignalRefusedError, StateTypeError
from milepost.events import RunWaiting
from milepost.executor.context import Context
from milepost.testing import FakeClock, arun_flow, run_flow


@dataclass
class Approval:
    by: str
    amount: Decimal


class Payment(pydantic.BaseModel):
    amount: int = pydantic.Field(gt=0)


@dataclass
class Desk:
    told: list[Any] = field(default_factory=list)
    turns: int = 0
    payload: Any = None


def noted(state: Desk, reply: Reply[Any]) -> Desk:
    told = "timeout" if reply.timed_out else reply.payload
    return Desk([*state.told, told], state.turns, reply.payload)


def asking(name="asking", signal="go", **options):
    """A graph of one wait."""
    options.setdefault("apply", noted)
    graph = Graph(Desk, types=[Approval, Payment]).add_wait("ask", signal, **options)
    return graph.add_edge("ask", END).set_entry("ask").compile(name)


def looped(turns, name="loop", before=None, **options):
    """Waits `turns` times in a loop."""
    graph = Graph(Desk).add_node("turn", before or (lambda state: Desk(state.told, state.turns + 1)))
    graph.add_wait("poll", "paid", apply=noted, **options).add_edge("turn", "poll")
    graph.add_conditional_edge("poll", lambda state: "turn" if state.turns < turns else END, ["turn", END])
    return graph.set_entry("turn").compile(name)


def joined(base: Desk, branches: dict[str, Desk]) -> Desk:
    return Desk([told for state in branches.values() for told in state.told[len(base.told) :]], base.turns)


def side_by_side(verbs, waits, name="beside", nodes=None, **options):
    """A fork with a wait in each branch (id: signal), and with further `nodes` (id: function)."""
    graph = Graph(Desk).add_node("f", verbs.node(lambda state: state))
    for wait, signal in waits.items():
        graph.add_wait(wait, signal, apply=noted, **options)
    for node, fn in (nodes or {}).items():
        graph.add_node(node, verbs.node(fn))
    graph.add_node("j", verbs.node(lambda state: state), merge=joined)
    for branch in (*waits, *(nodes or {})):
        graph.add_edge("f", branch).add_edge(branch, "j")
    return graph.add_edge("j", END).set_entry("f").compile(name)


def status_of(store, run_id="r"):
    return store.get_run(run_id).info.status


def kinds(store, run_id="r"):
    return [record.kind for record in store.read(run_id) if record.kind != "owner"]


def held():
    return {token.run_id for token in heartbeat._held}


def ids(waits):
    return [wait.wait_id for wait in waits]


@pytest.fixture
def engine(timed, clock):
    return Engine(timed, clock=clock)


@pytest.fixture
def park(verbs, engine):
    """Run a graph until it waits; what it waits for."""

    def run(flow: Any, state: Any = None, run_id: str = "r", **options: Any):
        with pytest.raises(RunSuspended) as caught:
            verbs.run(engine, flow, state or Desk(), run_id=run_id, **options)
        return caught.value.waiting_for

    return run


@pytest.fixture
def waits_on(verbs, engine):
    """Resume a run that has to wait on; what it waits for."""

    def resume(flow: Any, run_id: str = "r", **options: Any):
        with pytest.raises(RunSuspended) as caught:
            verbs.resume(engine, flow, run_id, **options)
        return caught.value.waiting_for

    return resume


# -- parking ---------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_run_that_waits_is_put_away_and_goes_on_with_its_signal(verbs, engine, timed, park):
    graph = asking(prompt="sure?")
    (wait,) = park(graph)
    assert ("ask#1", "go", "sure?", None) == (wait.wait_id, wait.signal, wait.prompt, wait.wake_at)
    row = timed.get_run("r")
    assert ("waiting", "free", (wait,)) == (row.info.status, row.lease, row.info.waiting_for)
    assert "r" not in held()
    assert "taken" == verbs.call(engine, "signal", "r", "go", "yes")
    assert "ready" == status_of(timed)
    assert ["yes"] == verbs.resume(engine, graph, "r").told
    assert ["start", "wait", "reply", "checkpoint", "finish"] == kinds(timed)


def test_the_error_of_a_run_that_waits_tells_what_for_and_until_when(engine, clock, timed, park):
    (wait,) = park(asking(timeout=60))
    until = clock.now() + timedelta(seconds=60)
    assert (until, until) == (wait.wake_at, timed.get_run("r").info.wake_at)


def test_a_waiting_run_is_a_result_where_a_full_one_is_asked_for(verbs, engine):
    result = verbs.run(engine, asking(), Desk(), run_id="r", full=True)
    assert ("waiting", "r") == (result.status, result.run_id)


def test_a_resume_of_a_run_that_waits_runs_nothing(verbs, engine, timed, log, park, waits_on):
    graph = looped(1, before=verbs.node(lambda state: log.append("turn") or state))
    park(graph)
    before = timed.read("r")
    assert ["poll#1"] == ids(waits_on(graph))
    assert (["turn"], before) == (log, timed.read("r"))
    assert "waiting" == verbs.plan(engine, graph, "r").verdict


def test_what_was_done_before_a_wait_is_done_once_over_processes(verbs, medium, clock, log):
    graph = looped(1, before=verbs.node(lambda state: log.append("book") or Desk(["12A"], 1)))
    store = medium.open(clock=clock)
    with pytest.raises(RunSuspended):
        verbs.run(graph, Desk(), store=store, run_id="r", clock=clock)
    store.put_signal("r", "paid", b"100")
    elsewhere = medium.open(clock=clock)
    assert ["12A", 100] == verbs.resume(graph, elsewhere, "r", clock=clock).told
    assert ["book"] == log


def test_a_worker_goes_on_with_the_runs_whose_signal_or_time_has_come(timed, clock):
    graph = asking(timeout=60)
    engine = Engine(timed, flows=[graph], clock=clock)
    for number in range(3):
        engine.run(graph, Desk(), run_id=f"r{number}", full=True)
    engine.signal("r1", "go", "yes")
    engine.worker().run(until_idle=True)
    assert ["waiting", "finished", "waiting"] == [status_of(timed, f"r{number}") for number in range(3)]
    clock.advance(61)
    engine.worker().run(until_idle=True)
    told = [engine.handle(f"r{number}").result().told for number in range(3)]
    assert [["timeout"], ["yes"], ["timeout"]] == told


@pytest.mark.wide
@pytest.mark.stores("memory", "sqlite")
def test_thousands_of_runs_that_wait_cost_neither_thread_nor_lease_nor_connection(medium, clock):
    graph = asking(timeout=3600)
    store = medium.open(clock=clock)
    engine = Engine(store, flows=[graph], clock=clock)
    for number in range(20):
        engine.run(graph, Desk(), run_id=f"warm{number}", full=True)
    before, files = threading.active_count(), open_files()
    for number in range(2000):
        engine.run(graph, Desk(), run_id=f"run{number}", full=True)
    assert threading.active_count() <= before
    assert open_files() <= files + 10  # of 2000
    assert set() == {run_id for run_id in held() if run_id.startswith(("run", "warm"))}
    engine.signal("run7", "go", "yes")
    engine.worker(concurrency=50).run(until_idle=True)
    assert ("finished", "waiting") == (status_of(store, "run7"), status_of(store, "run8"))
    clock.advance(3601)
    engine.worker(concurrency=50).run(until_idle=True)
    assert [] == store.list_runs(status="waiting")
    assert ["timeout"] == engine.handle("run1999").result().told


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.stores("memory", "sqlite")
def test_a_turn_of_a_long_chat_reads_no_more_than_a_turn_of_a_short_one(medium, clock):
    """How much is read is counted: how long that takes depends on what else the machine does."""

    class Counting:
        read_back = 0

        def read(self, *args, **options):
            found = super().read(*args, **options)
            self.read_back += len(found)
            return found

        def signals(self, *args, **options):
            found = super().signals(*args, **options)
            self.read_back += len(found)
            return found

    graph = looped(62)
    store = medium.open(Counting, clock=clock)
    engine = Engine(store, clock=clock)
    engine.run(graph, Desk(), run_id="r", full=True)
    engine.signal("r", "paid", "before")
    engine.resume(graph, "r", full=True)
    costs = []
    for turn in range(60):
        store.read_back = 0
        engine.signal("r", "paid", turn)
        assert "waiting" == engine.resume(graph, "r", full=True).status
        costs.append(store.read_back)
    assert max(costs[40:]) <= max(costs[:3])
    engine.signal("r", "paid", "end")
    assert ["before", *range(60), "end"] == engine.resume(graph, "r").told


def test_a_signal_that_nobody_waits_for_is_kept_through_a_long_chat(verbs, engine, timed, waits_on):
    graph = Graph(Desk).add_node("turn", verbs.node(lambda state: Desk(state.told, state.turns + 1)))
    graph.add_wait("poll", "paid", apply=noted).add_edge("turn", "poll").add_wait("last", "another", apply=noted)
    graph.add_conditional_edge("poll", lambda state: "turn" if state.turns < 8 else "last", ["turn", "last"])
    graph = graph.add_edge("last", END).set_entry("turn").compile("chat")
    engine.start(graph.bind(Desk()), run_id="r")
    engine.signal("r", "paid", 1, signal_id="first")
    engine.signal("r", "another", "kept")
    for number in range(2, 9):
        assert [f"poll#{number}"] == ids(waits_on(graph))
        assert "duplicate" == engine.signal("r", "paid", "again", signal_id="first")
        assert "taken" == engine.signal("r", "paid", number)
    assert [*range(1, 9), "kept"] == verbs.resume(engine, graph, "r").told
    used = [record.fields()["signal"] for record in timed.read("r", kinds=("reply",))]
    assert [*range(1, 10)] == sorted(used)


# -- prompts and payloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("sure?", "sure?"),
        ({"choices": ["a", "b"]}, {"choices": ["a", "b"]}),
        (None, None),
        (Approval("anna", Decimal("1.50")), {"by": "anna", "amount": "1.50"}),
        ({"all": [Approval("anna", Decimal(1)), None]}, {"all": [{"by": "anna", "amount": "1"}, None]}),
        (lambda state: f"turn {state.turns}", "turn 3"),
        (lambda state: Approval("anna", Decimal(state.turns)), {"by": "anna", "amount": "3"}),
    ],
    ids=["text", "dict", "none", "dataclass", "dataclasses", "function", "object"],
)
def test_a_prompt_is_recorded_with_the_wait(timed, park, prompt, shown):
    (wait,) = park(asking(prompt=prompt), Desk(turns=3))
    assert [shown, shown] == [wait.prompt, timed.get_run("r").info.waiting_for[0].prompt]


def test_a_prompt_is_asked_once(verbs, engine, log, waits_on):
    def prompt(state: Desk) -> str:
        log.append("prompt")
        state.told.append("spoilt")
        return "sure?"

    graph = asking(prompt=verbs.node(prompt), payload=int)
    engine.start(graph, Desk(), run_id="r")
    engine.signal("r", "go", "no number")
    waits_on(graph)
    engine.signal("r", "go", 1)
    assert ([1], ["prompt"]) == (verbs.resume(engine, graph, "r").told, log)


def test_a_prompt_that_fails_is_a_failure_of_its_node(verbs, engine, timed, log):
    broken = [True]

    def prompt(state: Desk) -> str:
        log.append("prompt")
        if broken[0]:
            raise OSError("gone")
        return "sure?"

    graph = asking(prompt=prompt)
    with pytest.raises(NodeError, match="node 'ask' of run 'r' failed after 2 failed attempts: OSError: gone"):
        verbs.run(engine, graph, Desk(), run_id="r", retry=Retry(max_attempts=2, backoff=0))
    broken[0] = False
    with pytest.raises(RunSuspended):
        verbs.retry(engine, graph, "r")
    assert (["prompt"] * 3, "sure?") == (log, timed.get_run("r").info.waiting_for[0].prompt)


def test_a_prompt_that_cannot_be_recorded_is_refused(verbs, engine, timed):
    with pytest.raises(SerializeStateError, match="the prompt of node 'ask' of run 'r' cannot be recorded"):
        verbs.run(engine, asking(prompt=lambda state: object()), Desk(), run_id="r")
    assert "failed" == status_of(timed)


@pytest.mark.parametrize(
    ("payload", "sent", "given"),
    [
        (Approval, {"by": "anna", "amount": "1.50"}, Approval("anna", Decimal("1.50"))),
        (Decimal, Decimal("1.50"), Decimal("1.50")),
        (Payment, {"amount": 3}, Payment(amount=3)),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        (set[int], [1, 2], {1, 2}),
        (float, 3, 3),
        (None, {"a": [1, None]}, {"a": [1, None]}),
    ],
)
def test_a_payload_comes_as_its_type(verbs, engine, park, payload, sent, given):
    graph = asking(payload=payload)
    park(graph)
    verbs.call(engine, "signal", "r", "go", sent)
    answer = verbs.resume(engine, graph, "r").payload
    assert (type(given), given) == (type(answer), answer)


MISFITS = pytest.mark.parametrize(
    ("payload", "wrong", "right"),
    [
        (int, "five", 5),
        (Approval, {"by": "anna"}, {"by": "anna", "amount": "2"}),
        (Payment, {"amount": -1}, {"amount": 1}),
        (str, None, "text"),
    ],
)


@MISFITS
def test_a_payload_that_an_open_wait_does_not_take_is_refused_at_once(verbs, timed, park, payload, wrong, right):
    graph = asking(payload=payload)
    park(graph)
    handle = Engine(timed).handle("r", graph)
    with pytest.raises(SignalRefusedError, match=r"the payload of signal 'go' is refused.*at 'ask#1'"):
        verbs.call(handle, "signal", "go", wrong)
    assert [] == timed.signals("r")
    assert "taken" == verbs.call(handle, "signal", "go", right)


@pytest.mark.wide
def test_a_payload_for_a_wait_inside_a_graph_of_a_workflow_is_refused_at_once(verbs, timed):
    @workflow("outer")
    def outer():
        yield step("inner").subworkflow(asking(payload=Payment), Desk())

    engine = Engine(timed, flows=[outer])
    verbs.run(engine, outer, run_id="r", full=True)
    with pytest.raises(SignalRefusedError, match="at 'inner/ask#1'"):
        verbs.call(engine, "signal", "r", "go", {"amount": -1})


@MISFITS
def test_an_early_payload_of_another_type_is_refused_and_told_and_the_run_waits_on(
    verbs, engine, timed, waits_on, payload, wrong, right
):
    graph = asking(payload=payload)
    engine.start(graph, Desk(), run_id="r")
    assert "kept" == verbs.call(engine, "signal", "r", "go", wrong)
    told: list[Any] = []
    assert ["ask#1"] == ids(waits_on(graph, hooks=[told.append]))
    info = timed.get_run("r").info
    assert ("waiting", ["ask#1"]) == (info.status, ids(info.waiting_for))
    assert "the payload of signal 'go' is refused" in info.reason
    (waiting,) = [event for event in told if isinstance(event, RunWaiting)]
    assert ("ask", "ask#1", True) == (waiting.node_id, waiting.wait.wait_id, waiting.reason in info.reason)
    assert "the payload of signal 'go' is refused" in waiting.reason
    assert ["start", "wait", "reply"] == kinds(timed)
    assert "taken" == verbs.call(engine, "signal", "r", "go", right)
    verbs.resume(engine, graph, "r")
    assert ["start", "wait", "reply", "reply", "checkpoint", "finish"] == kinds(timed)


# -- apply -----------------------------------------------------------------------------------------------------


def test_an_apply_that_fails_is_tried_again_with_the_same_reply(verbs, engine, timed, log, park):
    broken = [True]

    def apply(state: Desk, reply: Reply[Any]) -> Desk:
        log.append(reply.payload)
        state.told.append("spoilt")
        if broken[0]:
            raise OSError("gone")
        return noted(state, reply)

    graph = asking(apply=verbs.node(apply))
    park(graph)
    engine.signal("r", "go", "yes")
    policy = Retry(max_attempts=2, backoff=0)
    with pytest.raises(NodeError, match="node 'ask' of run 'r' failed after 2 failed attempts"):
        verbs.resume(engine, graph, "r", retry=policy)
    with pytest.raises(RunNotResumableError, match="used up its 2 attempts"):
        verbs.resume(engine, graph, "r", retry=policy)
    broken[0] = False
    assert ["spoilt", "yes"] == verbs.retry(engine, graph, "r").told
    assert (["yes"] * 3, 1) == (log, kinds(timed).count("reply"))


def test_an_apply_that_gives_no_state_is_refused(verbs, engine, park):
    graph = asking(apply=lambda state, reply: reply)
    park(graph)
    engine.signal("r", "go")
    with pytest.raises(StateTypeError, match="node 'ask' of run 'r'"):
        verbs.resume(engine, graph, "r")


def test_a_crash_after_the_reply_neither_waits_nor_answers_again(verbs, timed, clock, park):
    deadly = [True]

    def apply(state: Desk, reply: Reply[Any]) -> Desk:
        if deadly[0]:
            raise verbs.Killed
        return noted(state, reply)

    graph = asking(apply=verbs.node(apply))
    park(graph)
    timed.put_signal("r", "go", b'"yes"')
    crash(verbs, graph, timed, "r", clock=clock)
    timed.put_signal("r", "go", b'"another"')
    deadly[0] = False
    assert ["yes"] == verbs.resume(graph, timed, "r", clock=clock).told
    assert 1 == kinds(timed).count("reply")


# -- signals -------------------------------------------------------------------------------------------------


def test_a_signal_that_comes_early_is_kept_for_the_wait(verbs, engine, timed):
    graph = asking()
    engine.start(graph.bind(Desk()), run_id="r")
    assert "kept" == verbs.call(engine, "signal", "r", "go", "early")
    assert ["early"] == verbs.resume(engine, graph, "r").told


def test_an_early_signal_does_not_count_where_it_must_not(verbs, engine, waits_on):
    graph = asking(early=False)
    engine.start(graph.bind(Desk()), run_id="r")
    assert "kept" == engine.signal("r", "go", "early")
    waits_on(graph)
    waits_on(graph)
    assert "taken" == engine.signal("r", "go", "in time")
    assert ["in time"] == verbs.resume(engine, graph, "r").told


def test_each_signal_is_used_once_by_the_visits_in_turn(verbs, engine, timed, park, waits_on):
    graph = looped(3)
    park(graph)
    told = [verbs.call(engine, "signal", "r", "paid", n, signal_id=f"s{n}") for n in (1, 2, 1)]
    assert ["taken", "kept", "duplicate"] == told
    assert ["poll#3"] == ids(waits_on(graph))
    assert ["poll#3"] == ids(waits_on(graph))
    assert "duplicate" == engine.signal("r", "paid", 2, signal_id="s2")
    assert "waiting" == status_of(timed)
    engine.signal("r", "paid", 3)
    assert [1, 2, 3] == verbs.resume(engine, graph, "r").told


def test_a_signal_that_nobody_waits_for_is_kept_and_wakes_nobody(verbs, engine, timed, park, waits_on):
    graph = asking()
    park(graph)
    before = kinds(timed)
    assert "kept" == verbs.call(engine, "signal", "r", "another", 1)
    assert ["r"] == [info.run_id for info in engine.list_runs(status="waiting")]
    engine.worker([graph]).run(until_idle=True)
    assert ["ask#1"] == ids(waits_on(graph))
    assert ("waiting", ["another"]) == (status_of(timed), [signal.name for signal in timed.signals("r")])
    assert before == kinds(timed)


def test_a_signal_to_a_run_that_is_over_is_refused(verbs, engine, park):
    graph = asking()
    park(graph)
    engine.signal("r", "go")
    verbs.resume(engine, graph, "r")
    with pytest.raises(RunNotResumableError, match="takes no signal"):
        verbs.call(engine, "signal", "r", "go")


def test_an_answer_without_a_payload_is_no_timeout(verbs, engine, park, log):
    def apply(state: Desk, reply: Reply[Any]) -> Desk:
        log.append((reply.payload, reply.timed_out, reply.sent_at is not None))
        return state

    graph = asking(apply=apply, timeout=10)
    park(graph)
    engine.signal("r", "go")
    verbs.resume(engine, graph, "r")
    assert [(None, False, True)] == log


# -- several waits at once ----------------------------------------------------------------------------------


def test_branches_that_wait_get_their_answers_in_any_order(verbs, engine, waits_on):
    graph = side_by_side(verbs, {"q1": "q1", "q2": "q2", "q3": "q3"})
    engine.start(graph.bind(Desk()), run_id="r")
    assert "kept" == engine.signal("r", "q3", "c")
    assert ["q1#1", "q2#1"] == ids(waits_on(graph))
    assert "taken" == engine.signal("r", "q2", "b")
    assert ["q1#1"] == ids(waits_on(graph))
    assert "kept" == engine.signal("r", "q4", "nobody asked")
    assert "taken" == engine.signal("r", "q1", "a")
    assert ["a", "b", "c"] == verbs.resume(engine, graph, "r").told


def test_the_oldest_wait_of_a_name_gets_the_signal(verbs, engine, park, waits_on):
    graph = side_by_side(verbs, dict.fromkeys("abc", "go"))
    assert ["a#1", "b#1", "c#1"] == ids(park(graph))
    engine.signal("r", "go", 1)
    assert ["b#1", "c#1"] == ids(waits_on(graph))
    assert ["taken", "taken", "kept"] == [engine.signal("r", "go", n) for n in (2, 3, 4)]
    assert [1, 2, 3] == verbs.resume(engine, graph, "r").told


def test_a_signal_may_name_the_wait_that_it_is_for(verbs, engine, timed, park):
    graph = side_by_side(verbs, dict.fromkeys("abc", "go"))
    park(graph)
    assert "taken" == verbs.call(engine, "signal", "r", "go", "for b", to="b#1")
    with pytest.raises(SignalRefusedError, match="'b#1'") as caught:
        verbs.call(engine, "signal", "r", "go", "again", to="b#1")
    assert ("r", "b#1") == (caught.value.run_id, caught.value.wait_id)
    engine.signal("r", "go", "first")
    engine.signal("r", "go", "second")
    assert ["first", "for b", "second"] == verbs.resume(engine, graph, "r").told
    assert 3 == len(timed.signals("r"))


def test_nodes_beside_a_wait_come_to_their_ends_and_are_done_once(verbs, engine, log, park):
    graph = side_by_side(verbs, {"w": "go"}, nodes={"n": lambda state: log.append("n") or Desk([*state.told, "n"])})
    assert ["w#1"] == ids(park(graph))
    assert ["n"] == log
    engine.signal("r", "go", "yes")
    assert ["yes", "n"] == verbs.resume(engine, graph, "r").told
    assert ["n"] == log


@pytest.mark.parametrize("verb", ["resume", "retry"])
@pytest.mark.parametrize("to", [None, "w#1"])
def test_a_wait_beside_a_failure_stays_open_and_takes_its_signal(verbs, engine, timed, log, verb, to):
    broken = [True]

    def fails(state: Desk) -> Desk:
        log.append("n")
        if broken[0]:
            raise ValueError("no")
        return Desk([*state.told, "n"])

    graph = side_by_side(verbs, {"v": "other", "w": "go"}, nodes={"n": fails})
    with pytest.raises(BranchError):
        verbs.run(engine, graph, Desk(), run_id="r")
    info = timed.get_run("r").info
    assert ("failed", ["v#1", "w#1"]) == (info.status, ids(info.waiting_for))
    assert "taken" == verbs.call(engine, "signal", "r", "go", "yes", to=to)
    assert "failed" == status_of(timed)
    with pytest.raises(SignalRefusedError):
        engine.signal("r", "go", "again", to="w#1")
    broken[0] = False
    with pytest.raises(RunSuspended) as caught:
        verbs.call(engine, verb, graph, "r")
    assert ["v#1"] == ids(caught.value.waiting_for)
    engine.signal("r", "other", "too")
    assert ["too", "yes", "n"] == verbs.resume(engine, graph, "r").told
    assert (["n", "n"], 2) == (log, kinds(timed).count("wait"))


def test_a_failure_beside_a_wait_that_was_answered_leaves_nothing_open(verbs, engine, timed, park):
    """A signal that came for a wait is its answer, though the run failed before it was taken."""
    broken = [True]

    def fails(state: Desk) -> Desk:
        if broken[0]:
            raise ValueError("no")
        return state

    graph = side_by_side(verbs, {"w": "go"}, nodes={"n": fails})
    with pytest.raises(BranchError):
        verbs.run(engine, graph, Desk(), run_id="r")
    engine.signal("r", "go", "yes")
    with pytest.raises(BranchError):
        verbs.resume(engine, graph, "r")
    assert () == timed.get_run("r").info.waiting_for
    broken[0] = False
    assert ["yes"] == verbs.resume(engine, graph, "r").told


def test_a_wait_beside_a_node_that_is_stopped_stays_open(verbs, engine, timed):
    graph = side_by_side(verbs, {"w": "go"}, nodes={"n": lambda state: state})
    with pytest.raises(RunStopped):
        verbs.run(engine, graph, Desk(), run_id="r", stop_before=["n"])
    assert ("interrupted", ["w#1"]) == (status_of(timed), ids(timed.get_run("r").info.waiting_for))
    assert "taken" == engine.signal("r", "go", "yes", to="w#1")
    assert ["yes"] == verbs.resume(engine, graph, "r").told


def test_each_wait_has_its_own_end(verbs, engine, clock, park, waits_on):
    graph = Graph(Desk).add_node("f", verbs.node(lambda state: state))
    graph.add_wait("soon", "go", apply=noted, timeout=10).add_wait("late", "go", apply=noted, timeout=100)
    graph.add_node("j", verbs.node(lambda state: state), merge=joined)
    for branch in ("soon", "late"):
        graph.add_edge("f", branch).add_edge(branch, "j")
    graph = graph.add_edge("j", END).set_entry("f").compile("ends")
    park(graph)
    clock.advance(11)
    assert ["late#1"] == ids(waits_on(graph))
    assert "taken" == engine.signal("r", "go", "here")
    assert ["timeout", "here"] == verbs.resume(engine, graph, "r").told


def test_a_wait_in_a_graph_in_a_branch_parks_the_whole_run(verbs, engine, log, park):
    inner = Graph(Desk).add_node("x", verbs.node(lambda state: log.append("x") or state))
    inner.add_wait("w", "go", apply=noted).add_edge("x", "w").add_edge("w", END)
    graph = Graph(Desk).add_node("f", verbs.node(lambda state: state)).add_node("b", verbs.node(lambda state: state))
    graph.add_subgraph("sub", inner.set_entry("x").compile("inner"))
    graph.add_node("j", verbs.node(lambda state: state), merge=joined)
    for branch in ("sub", "b"):
        graph.add_edge("f", branch).add_edge(branch, "j")
    graph = graph.add_edge("j", END).set_entry("f").compile("deep")
    assert ["sub/w#1"] == ids(park(graph))
    engine.signal("r", "go", 7, to="sub/w#1")
    assert ([7], ["x"]) == (verbs.resume(engine, graph, "r").told, log)


def test_code_that_swallows_every_exception_does_not_swallow_the_suspension(verbs, engine, timed, clock, log):
    """A node that runs another run inside, and swallows what that raises, is done; its own wait parks all the same."""

    def greedy(state: Desk) -> Desk:
        try:
            asking("nested").run(Desk(), store=engine.store, run_id="nested", clock=clock)
        except Exception as exc:
            log.append(type(exc).__name__)
        return Desk(state.told, 1)

    graph = looped(1, before=greedy, timeout=10)
    with pytest.raises(RunSuspended, match="poll#1"):
        verbs.run(engine, graph, Desk(), run_id="r")
    assert (["RunSuspended"], "waiting", "waiting") == (log, status_of(timed), status_of(timed, "nested"))
    clock.advance(11)
    assert ["timeout"] == verbs.resume(engine, graph, "r").told
    (info,) = [info for info in timed.history("r") if info.node_id == "poll"]
    assert (["RunSuspended"], 1, 1) == (log, info.visit, info.attempt)


# -- time ----------------------------------------------------------------------------------------------------


def test_a_loop_of_timed_waits_neither_waits_again_nor_invents_an_answer(verbs, engine, timed, clock, park, waits_on):
    graph = looped(3, timeout=60)
    park(graph)
    for number in (2, 3):
        clock.advance(61)
        assert [f"poll#{number}"] == ids(waits_on(graph))
        assert [f"poll#{number}"] == ids(waits_on(graph))
    clock.advance(61)
    assert ["timeout"] * 3 == verbs.resume(engine, graph, "r").told
    assert (3, 3, []) == (kinds(timed).count("wait"), kinds(timed).count("reply"), timed.signals("r"))


def test_an_answer_after_a_timeout_goes_to_the_wait_that_is_open(verbs, engine, clock, park, waits_on):
    graph = looped(3, timeout=60)
    park(graph)
    clock.advance(61)
    assert ["poll#2"] == ids(waits_on(graph))
    with pytest.raises(SignalRefusedError):
        engine.signal("r", "paid", "late", to="poll#1")
    assert "taken" == engine.signal("r", "paid", None)
    assert ["poll#3"] == ids(waits_on(graph))
    engine.signal("r", "paid", "at last")
    assert ["timeout", None, "at last"] == verbs.resume(engine, graph, "r").told


def test_an_answer_that_comes_too_late_is_for_the_next_wait_though_nobody_has_looked_yet(verbs, engine, clock, park):
    graph = looped(2, timeout=60)
    park(graph)
    clock.advance(61)
    assert "kept" == engine.signal("r", "paid", "late")
    assert ["timeout", "late"] == verbs.resume(engine, graph, "r").told


def test_an_answer_in_time_counts_however_late_the_run_goes_on(verbs, engine, clock, park):
    graph = looped(1, timeout=60)
    park(graph)
    clock.advance(59)
    assert "taken" == engine.signal("r", "paid", "in time")
    clock.advance(1000)
    assert ["in time"] == verbs.resume(engine, graph, "r").told


def timer(name="timer", **options):
    graph = Graph(Desk).add_timer("nap", **options).add_node("n", lambda state: Desk([*state.told, "awake"]))
    return graph.add_edge("nap", "n").add_edge("n", END).set_entry("nap").compile(name)


def test_a_timer_parks_the_run_until_its_time(verbs, engine, timed, clock, park, waits_on):
    graph = timer(duration=timedelta(days=1))
    (wait,) = park(graph)
    assert ("nap#1", None, clock.now() + timedelta(days=1)) == (wait.wait_id, wait.signal, wait.wake_at)
    waits_on(graph)
    assert "kept" == engine.signal("r", "nap")
    with pytest.raises(SignalRefusedError):
        engine.signal("r", "nap", to="nap#1")
    waits_on(graph)
    clock.advance(days=1)
    assert ["awake"] == verbs.resume(engine, graph, "r").told


def test_the_time_of_a_timer_is_asked_once(verbs, engine, clock, log, park, waits_on):
    def until(state: Desk) -> datetime:
        log.append("until")
        return clock.now() + timedelta(days=2)

    graph = timer(until=verbs.node(until))
    park(graph)
    clock.advance(days=1)
    waits_on(graph)
    clock.advance(days=1)
    assert (["awake"], ["until"]) == (verbs.resume(engine, graph, "r").told, log)


@pytest.mark.parametrize("given", [None, 5, datetime(2026, 1, 1)])
def test_a_time_that_is_none_is_refused(verbs, engine, timed, given):
    with pytest.raises(
        StateTypeError, match=r"node 'nap' of run 'r': until= gave .*: it must give a datetime with a zone"
    ):
        verbs.run(engine, timer(until=lambda state: given), Desk(), run_id="r")
    assert ("failed", ["start", "failure", "finish"]) == (status_of(timed), kinds(timed))


def test_a_timer_whose_time_has_passed_does_not_park(verbs, engine, clock):
    assert ["awake"] == verbs.run(engine, timer(until=lambda state: clock.now() - timedelta(days=1)), Desk()).told
    assert ["awake"] == verbs.run(engine, timer(duration=0), Desk()).told


def test_wrong_waits_are_refused_when_the_graph_is_built():
    with pytest.raises(GraphError, match="needs one of duration= and until="):
        Graph(Desk).add_timer("nap")
    with pytest.raises(GraphError, match="needs one of duration= and until="):
        Graph(Desk).add_timer("nap", duration=1, until=lambda state: datetime.now(UTC))
    with pytest.raises(GraphError, match="give its name"):
        Graph(Desk).add_wait("ask", "", apply=noted)


def test_the_limit_of_nodes_begins_anew_when_a_run_was_woken(verbs, engine, timed, clock, park, waits_on):
    graph = looped(5, timeout=60)
    park(graph, max_iterations=3)
    for number in range(2, 6):
        if number % 2:
            clock.advance(61)
        else:
            engine.signal("r", "paid", number)
        assert [f"poll#{number}"] == ids(waits_on(graph, max_iterations=3))
    engine.signal("r", "paid", "end")
    assert 5 == len(verbs.resume(engine, graph, "r", max_iterations=3).told)


def test_a_loop_that_need_not_wait_has_its_limit(verbs, engine, clock):
    graph = Graph(Desk).add_timer("nap", duration=0)
    graph = graph.add_conditional_edge("nap", lambda state: "nap", ["nap", END]).set_entry("nap").compile("endless")
    with pytest.raises(MaxIterationsError):
        verbs.run(engine, graph, Desk(), run_id="r", max_iterations=5)


def test_a_verb_may_block_until_the_time_is_over(verbs, medium, jumping):
    graph = Graph(Desk).add_timer("nap", duration=60).add_wait("ask", "go", apply=noted, timeout=30)
    graph = graph.add_edge("nap", "ask").add_edge("ask", END).set_entry("nap").compile("blocking")
    engine = Engine(medium.open(clock=jumping), clock=jumping)
    began = jumping.time()
    assert ["timeout"] == verbs.run(engine, graph, Desk(), run_id="r", on_wait="block").told
    assert 90 <= jumping.time() - began


# -- cancels -----------------------------------------------------------------------------------------------------


def test_a_run_that_waits_is_cancelled_at_once(verbs, engine, timed, park):
    graph = asking()
    park(graph)
    assert "cancelled" == verbs.call(engine, "cancel", "r", "enough")
    info = timed.get_run("r").info
    assert ("cancelled", "enough", ()) == (info.status, info.reason, info.waiting_for)
    with pytest.raises(RunNotResumableError, match="takes no signal"):
        engine.signal("r", "go")
    with pytest.raises(RunNotResumableError):
        verbs.resume(engine, graph, "r")


class Meeting:
    """Calls `meet` once, just before the run is parked."""

    meet: Any = None

    def append(self, batch):
        for append in batch:
            if append.release is not None and append.release.status == "waiting" and self.meet is not None:
                meet, self.meet = self.meet, None
                meet()
        return super().append(batch)


def test_a_cancel_that_meets_the_parking_ends_the_run(verbs, medium, clock):
    store, graph = medium.open(Meeting, clock=clock), asking()
    engine = Engine(store, clock=clock)
    store.meet = lambda: store.request_cancel("r", "enough", None)
    with pytest.raises(RunSuspended):
        verbs.run(engine, graph, Desk(), run_id="r")
    with pytest.raises(RunCancelled, match="enough"):
        verbs.resume(engine, graph, "r")
    assert ("cancelled", "enough") == (status_of(store), store.get_run("r").info.reason)


@pytest.mark.parametrize("name", ["paid", "another"])
def test_a_signal_that_comes_while_the_run_is_being_parked_is_not_lost(verbs, medium, clock, name, log):
    store = medium.open(Meeting, clock=clock)
    engine = Engine(store, clock=clock)
    graph = looped(1, before=verbs.node(lambda state: log.append("turn") or Desk([], 1)))
    store.meet = lambda: store.put_signal("r", name, b'"yes"')
    if name == "paid":
        assert ["yes"] == verbs.run(engine, graph, Desk(), run_id="r").told
    else:
        with pytest.raises(RunSuspended, match="poll#1"):
            verbs.run(engine, graph, Desk(), run_id="r")
        assert "taken" == engine.signal("r", "paid", "yes")
        assert ["yes"] == verbs.resume(engine, graph, "r").told
    expected = ["start", "checkpoint", "wait", "reply", "checkpoint", "finish"]
    assert (["turn"], expected) == (log, kinds(store))


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_store_that_fails_at_the_parking_loses_nothing(verbs, medium, clock, how):
    class Parting:
        is_away = True

        def append(self, batch):
            is_parking = any(a.release is not None and a.release.status == "waiting" for a in batch)
            if is_parking and self.is_away and how == "before":
                self.is_away = False
                raise StoreError("the disk is away", op="append")
            told = super().append(batch)
            if is_parking and self.is_away:
                self.is_away = False
                raise StoreError("the answer was lost", op="append")
            return told

    store, graph = medium.open(Parting, clock=clock), asking()
    engine = Engine(store, clock=clock)
    with pytest.raises(StoreError if how == "before" else RunSuspended):
        verbs.run(engine, graph, Desk(), run_id="r")
    with pytest.raises(RunSuspended, match="ask#1"):
        verbs.resume(engine, graph, "r")
    engine.signal("r", "go", "yes")
    assert ["yes"] == verbs.resume(engine, graph, "r").told
    assert 1 == kinds(store).count("wait")


def test_a_wait_that_is_run_again_waits_again(verbs, engine, timed, park):
    graph = looped(1)
    park(graph)
    engine.signal("r", "paid", 1)
    verbs.resume(engine, graph, "r")
    with pytest.raises(RunSuspended, match="poll#2"):
        verbs.resume_from(engine, graph, "r", "poll", rerun=True)
    engine.signal("r", "paid", 2)
    assert [2] == verbs.resume(engine, graph, "r").told


@pytest.mark.parametrize(
    ("how", "node_id"), [("plain", "ask"), ("graph", "w/ask"), ("map", "w/0/ask"), ("fork", "ask")]
)
def test_the_answer_to_a_superseded_question_is_not_taken_for_the_new_one(verbs, engine, park, how, node_id):
    def prompt(state: Desk) -> str:
        return f"pay {state.turns}?"

    graph, inner = Graph(Desk).add_node("a", lambda state: state).set_entry("a"), asking(prompt=prompt)
    if how == "graph":
        graph.add_subgraph("w", inner).add_edge("a", "w").add_edge("w", END)
    elif how == "map":
        graph.add_map("w", lambda state: [state], inner, merge=lambda state, found: found[0])
        graph.add_edge("a", "w").add_edge("w", END)
    else:
        graph.add_wait("ask", "go", apply=noted, prompt=prompt).add_edge("a", "ask")
        graph.add_node("j", lambda state: state, merge=joined if how == "fork" else None).add_edge("ask", "j")
        graph.add_edge("j", END)
    if how == "fork":
        graph.add_node("b", lambda state: state).add_edge("a", "b").add_edge("b", "j")
    flow = graph.compile("corrected")
    assert [(f"{node_id}#1", "pay 1?")] == [(wait.wait_id, wait.prompt) for wait in park(flow, Desk(turns=1))]
    engine.signal("r", "go", "yes to 1", to=f"{node_id}#1")
    with pytest.raises(RunSuspended) as caught:
        verbs.resume_from(engine, flow, "r", "a", state_override=lambda state: Desk(turns=1000))
    assert [(f"{node_id}#2", "pay 1000?")] == [(wait.wait_id, wait.prompt) for wait in caught.value.waiting_for]
    with pytest.raises(SignalRefusedError):
        engine.signal("r", "go", "yes to 1", to=f"{node_id}#1")
    engine.signal("r", "go", "yes to 1000")
    assert ["yes to 1000"] == verbs.resume(engine, flow, "r").told


# -- other stores, and none ------------------------------------------------------------------------------------


class Shelf:
    """A store that keeps checkpoints, and nothing that waits."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}

    def save(self, run_id: str, node_id: str, data: bytes) -> None:
        self.kept[run_id, node_id] = data

    def load(self, run_id: str, node_id: str) -> bytes:
        return self.kept[run_id, node_id]

    def list(self, run_id: str) -> list[Any]:
        return []

    def delete(self, run_id: str, node_id: str) -> None:
        self.kept.pop((run_id, node_id), None)

    def delete_run(self, run_id: str) -> None:
        self.kept.clear()

    def close(self) -> None:
        self.kept.clear()


def inside(graph, how, log):
    """A graph with a node before what waits, which may be inside of something."""
    built = Graph(Desk).add_node("before", lambda state: log.append("before") or state)
    if how == "own":
        built.add_subgraph("w", graph)
    else:
        built.add_map("w", lambda state: [Desk()], graph, merge=lambda state, results: results[0])
    return built.add_edge("before", "w").add_edge("w", END).set_entry("before").compile("around")


@pytest.mark.parametrize("how", ["own", "map"])
@pytest.mark.parametrize("what", ["wait", "timer"])
def test_a_graph_that_waits_is_refused_before_anything_runs_where_it_cannot_be_kept(verbs, log, how, what):
    graph = inside(asking() if what == "wait" else timer(duration=60), how, log)
    with pytest.raises(OptionError, match=r"flow 'around' has to wait, and .*Shelf can't keep a run that waits"):
        verbs.run(graph, Desk(), store=Shelf(), run_id="r")
    assert [] == log


@pytest.mark.parametrize("how", ["own", "map"])
def test_without_a_store_a_graph_that_waits_for_a_signal_is_refused_before_anything_runs(verbs, log, how):
    with pytest.raises(OptionError, match=r"flow 'around' waits for signals, .*: give store="):
        verbs.run(inside(asking(timeout=5), how, log), Desk())
    assert [] == log


def test_without_a_store_a_timer_is_slept_out(verbs, jumping):
    began = jumping.time()
    assert ["awake"] == verbs.run(timer(duration=60), Desk(), clock=jumping).told
    assert 60 <= jumping.time() - began


# -- in tests ------------------------------------------------------------------------------------------------


def test_a_graph_that_waits_runs_in_a_test_with_its_signals(log):
    asked: list[str] = []

    def answer(wait):
        asked.append(wait.prompt)
        return wait.prompt.upper()

    graph = Graph(Desk).add_node("n", lambda state: log.append("n") or state)
    graph.add_wait("ask", "go", apply=noted, prompt=lambda state: "sure?").add_timer("nap", duration=86400 * 30)
    graph.add_wait("late", "never", apply=noted, timeout=60)
    for source, target in (("n", "ask"), ("ask", "nap"), ("nap", "late"), ("late", END)):
        graph.add_edge(source, target)
    result = run_flow(graph.set_entry("n").compile("tested"), Desk(), signals={"go": answer})
    assert (["SURE?", "timeout"], ["sure?"], ["n"]) == (result.state.told, asked, log)


def test_a_coroutine_graph_that_waits_runs_in_a_test_with_its_signals():
    async def later(state: Desk, reply: Reply[Any]) -> Desk:
        return noted(state, reply)

    async def outside():
        return await arun_flow(asking(apply=later), Desk(), signals={"go": 6})

    assert [5] == run_flow(asking(apply=later), Desk(), signals={"go": 5}).state.told
    assert [6] == asyncio.run(outside()).state.told


def test_a_test_that_has_no_answer_is_told_so():
    with pytest.raises(SignalRefusedError, match="is refused"):
        run_flow(asking(payload=int), Desk(), signals={"go": "no number"})


def test_a_stub_may_stand_in_for_a_wait():
    assert ["stub"] == run_flow(asking(), Desk(), stubs={"ask": lambda state: Desk(["stub"])}).state.told


def test_a_pause_passes_at_once_in_a_test():
    failed: list[int] = []

    def fails(ctx: Context, state: Desk) -> Desk:
        failed.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("not yet")
        return state

    graph = Graph(Desk).add_node("n", fails, retry=Retry(max_attempts=3, backoff=3600)).add_edge("n", END)
    run_flow(graph.set_entry("n").compile("pausing"), Desk())
    assert [1, 2, 3] == failed


def test_days_pass_on_a_fake_clock():
    clock = FakeClock()
    store, graph = MemoryStore(clock=clock), timer(duration=timedelta(days=30))
    engine = Engine(store, flows=[graph], clock=clock)
    engine.run(graph, Desk(), run_id="r", full=True)
    clock.advance(days=30)
    engine.worker().run(until_idle=True)
    assert ["awake"] == engine.handle("r").result().told
