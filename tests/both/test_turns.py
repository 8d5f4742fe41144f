"""Turns: a run that has finished goes on with a new state, under the same id and in the same journal."""

from __future__ import annotations

import asyncio
import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest

from milepost import END, Engine, Graph, NodeError, Retry, RunLockedError, RunNotResumableError, step, workflow
from milepost.errors import (
    CheckpointCorruptError,
    MaxIterationsError,
    NotAuthorizedError,
    OptionError,
    ResumeNodeCompletedError,
    RunStopped,
    RunSuspended,
    StateTypeError,
    StateValidationError,
    WrongFlowError,
)
from milepost.events import RunCompleted, RunStarted
from milepost.model.info import Wait
from milepost.model.record import CHECKPOINT, OWNER
from milepost.store import Release
from milepost.testing.journals import take, write

TURN = {"if_exists": "continue"}


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


class Chat(TypedDict):
    messages: Annotated[list[str], operator.add]
    turns: int


def answer(chat: Chat) -> dict[str, Any]:
    return {"messages": [f"re: {chat['messages'][-1]}"], "turns": chat["turns"] + 1}


@pytest.fixture
def chat(verbs):
    graph = Graph(Chat, partial=True).add_node("answer", verbs.node(answer)).add_edge("answer", END)
    return graph.set_entry("answer").compile("chat")


def untouched(store):
    row = store.get_run("r1")
    return store.read("r1"), row.info.status, row.epoch


@pytest.mark.every_store
def test_an_unknown_run_starts_and_a_finished_one_begins_a_new_turn(verbs, store, line, log):
    graph = line(Count)
    assert Count(3) == verbs.run(graph, Count(), store=store, run_id="r1", **TURN)
    assert Count(13) == verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
    assert Count(103) == verbs.run(graph, Count(100), store=store, run_id="r1", **TURN)
    assert [*"abc"] * 3 == log
    visits = [(info.node_id, info.visit, info.superseded) for info in store.history("r1")]
    assert [(name, visit, False) for visit in (1, 2, 3) for name in "abc"] == visits
    assert store.verify("r1").ok


def test_a_turn_is_an_owner_record_with_the_verb_and_the_state_that_it_begins_with(verbs, store, line):
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1")
    verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
    (owner,) = store.read("r1", kinds=(OWNER,))
    fields = owner.fields()
    assert ("continue", 3, "a", 2) == (fields["verb"], fields["from"], fields["entry"], fields["epoch"])
    assert b'{"n":10}' == owner.state()


def test_a_resume_after_several_turns_gives_the_result_of_the_last_one(verbs, store, line, log):
    graph = line(Count)
    for n in (0, 10, 20):
        verbs.run(graph, Count(n), store=store, run_id="r1", **TURN)
    before, ran = untouched(store), list(log)
    result = verbs.resume(graph, store, "r1", full=True)
    assert (Count(23), True, 3) == (result.state, result.resumed.already_completed, result.iterations)
    assert Count(23) == verbs.run(graph, Count(0), store=store, run_id="r1", if_exists="return")
    assert Count(23) == verbs.run(graph, Count(0), store=store, run_id="r1", if_exists="retry")
    assert "finished" == verbs.plan(graph, store, "r1").verdict
    assert (before, ran) == (untouched(store), log)


def test_a_part_of_a_state_is_reduced_into_the_final_one(verbs, store, chat):
    verbs.run(chat, {"messages": ["hi"], "turns": 0}, store=store, run_id="r1", **TURN)
    said = verbs.run(chat, {"messages": ["and?"]}, store=store, run_id="r1", **TURN)
    assert {"messages": ["hi", "re: hi", "and?", "re: and?"], "turns": 2} == said
    said = verbs.run(chat, {"messages": ["bye"], "turns": 7}, store=store, run_id="r1", **TURN)
    assert (["bye", "re: bye"], 8) == (said["messages"][-2:], said["turns"])
    before = untouched(store)
    with pytest.raises(StateTypeError, match="run 'r1' is to be continued with") as caught:
        verbs.run(chat, {"mesages": ["typo"]}, store=store, run_id="r1", **TURN)
    assert ("r1", 8) == (caught.value.run_id, caught.value.state["turns"])
    with pytest.raises(StateTypeError):
        verbs.run(chat, "hello", store=store, run_id="r1", **TURN)
    assert before == untouched(store)


def test_over_a_class_a_whole_state_replaces_and_a_mapping_is_a_part(verbs, store):
    @dataclass
    class Talk:
        said: Annotated[list[str], operator.add] = field(default_factory=list)
        turns: int = 0

    def reply(talk: Talk) -> dict[str, Any]:
        return {"said": [f"re: {talk.said[-1]}"], "turns": talk.turns + 1}

    partial = Graph(Talk, partial=True).add_node("a", verbs.node(reply)).add_edge("a", END).set_entry("a").compile("t")
    verbs.run(partial, Talk(["hi"]), store=store, run_id="r1")
    assert Talk(["hi", "re: hi", "so", "re: so"], 2) == verbs.run(
        partial, {"said": ["so"]}, store=store, run_id="r1", **TURN
    )
    assert Talk(["new", "re: new"], 1) == verbs.run(partial, Talk(["new"]), store=store, run_id="r1", **TURN)
    whole = Graph(Talk).add_node("a", verbs.node(lambda t: t)).add_edge("a", END).set_entry("a").compile("w")
    verbs.run(whole, Talk(), store=store, run_id="r2")
    with pytest.raises(StateTypeError):
        verbs.run(whole, {"said": ["so"]}, store=store, run_id="r2", **TURN)


def test_what_a_reducer_raises_comes_through_and_changes_nothing(verbs, store):
    def refuse(value, update):
        raise ValueError("not that")

    graph = Graph(Chat, partial=True, reducers={"turns": refuse}).add_node("a", verbs.node(lambda c: {}))
    graph = graph.add_edge("a", END).set_entry("a").compile("chat")
    verbs.run(graph, {"messages": [], "turns": 0}, store=store, run_id="r1")
    before = untouched(store)
    with pytest.raises(ValueError, match="not that"):
        verbs.run(graph, {"turns": 1}, store=store, run_id="r1", **TURN)
    assert before == untouched(store)


def test_inputs_are_not_compared(verbs, store, line):
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1")
    assert Count(8) == verbs.run(graph, Count(5), store=store, run_id="r1", compare_inputs=True, **TURN)


def test_iterations_count_anew_in_each_turn_and_go_on_after_a_crash_in_it(verbs, timed, line):
    is_dying = [False]

    def b(state: Count) -> Count:
        if is_dying[0]:
            raise verbs.Killed
        return plus(state)

    graph = line(Count, "abc", {"b": b})
    limited = {"store": timed, "run_id": "r1", "max_iterations": 3}
    verbs.run(graph, Count(), **limited)
    assert 3 == verbs.run(graph, Count(10), full=True, **limited, **TURN).iterations
    is_dying[0] = True
    verbs.crash(graph, timed, "r1", Count(20), **TURN)
    is_dying[0] = False
    result = verbs.resume(graph, timed, "r1", max_iterations=3, full=True)
    assert (Count(23), 3) == (result.state, result.iterations)
    with pytest.raises(MaxIterationsError):
        verbs.run(graph, Count(30), store=timed, run_id="r1", max_iterations=2, **TURN)
    assert Count(33) == verbs.resume(graph, timed, "r1")


def test_a_turn_that_crashes_before_its_first_checkpoint_goes_on_with_its_state(verbs, timed, line, log):
    is_dying, seen = [False], []

    def a(ctx, state: Count) -> Count:
        seen.append((ctx.visit, ctx.attempt, ctx.now(), ctx.random()))
        if is_dying[0]:
            raise verbs.Killed
        return plus(state)

    graph = line(Count, "ab", {"a": a})
    verbs.run(graph, Count(), store=timed, run_id="r1")
    is_dying[0] = True
    verbs.crash(graph, timed, "r1", Count(10), **TURN)
    is_dying[0] = False
    plan = verbs.plan(graph, timed, "r1")
    assert ("continue", "a", "b") == (plan.verdict, plan.next_node, plan.from_node)
    assert Count(12) == verbs.resume(graph, timed, "r1")
    first, crashed, again = seen
    assert (2, 1) == crashed[:2]
    assert 2 == again[0]
    assert crashed[2:] == again[2:]
    assert first[2:] != again[2:]
    assert [("a", 1), ("b", 1), ("a", 2), ("b", 2)] == [(i.node_id, i.visit) for i in timed.history("r1")]


def test_a_turn_that_failed_is_retried_with_its_own_attempts(verbs, store, line):
    is_broken = [False]

    def a(state: Count) -> Count:
        if is_broken[0]:
            raise OSError("no")
        return plus(state)

    graph = line(Count, "a", {"a": a}, {"a": {"retry": Retry(2, backoff=0)}})
    verbs.run(graph, Count(), store=store, run_id="r1")
    is_broken[0] = True
    with pytest.raises(NodeError) as caught:
        verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
    assert (2, 2, Count(10)) == (caught.value.visit, caught.value.attempt, caught.value.state)
    with pytest.raises(RunNotResumableError, match="is failed"):
        verbs.run(graph, Count(20), store=store, run_id="r1", unfinished="refuse", **TURN)
    is_broken[0] = False
    assert Count(11) == verbs.retry(graph, store, "r1")
    assert Count(21) == verbs.run(graph, Count(20), store=store, run_id="r1", **TURN)


def test_a_run_that_has_not_finished_is_refused_with_its_status(verbs, store, line, log):
    graph = line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    before, ran = untouched(store), list(log)
    with pytest.raises(RunNotResumableError, match="run 'r1' is interrupted") as caught:
        verbs.run(graph, Count(), store=store, run_id="r1", unfinished="refuse", **TURN)
    assert ("r1", "interrupted") == (caught.value.run_id, caught.value.status)
    assert (before, ran) == (untouched(store), log)
    verbs.call(graph, "cancel", store, "r1", "enough")
    for unfinished in ("finish", "drop", "refuse"):
        with pytest.raises(RunNotResumableError, match="cancelled") as caught:
            verbs.run(graph, Count(), store=store, run_id="r1", unfinished=unfinished, **TURN)
        assert ("cancelled", "enough") == (caught.value.status, caught.value.reason)


def test_a_run_that_waits_is_refused_with_what_it_waits_for(verbs, store, line):
    graph = line(Count)
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="a")
    token = take(store, "r1").token
    write(store, token, release=Release("waiting", "", None, (Wait("ask#1", "go"), Wait("nap#1", None))))
    with pytest.raises(RunNotResumableError, match=r"run 'r1' waits for ask#1, nap#1") as caught:
        verbs.run(graph, Count(), store=store, run_id="r1", **TURN)
    assert "waiting" == caught.value.status
    assert Count(13) == verbs.run(graph, Count(10), store=store, run_id="r1", unfinished="drop", **TURN)
    assert ("finished", ()) == (store.get_run("r1").info.status, store.get_run("r1").info.waiting_for)


def test_old_turns_are_thinned_like_other_visits(verbs, store, line):
    graph = line(Count, "ab")
    for n in range(0, 60, 10):
        verbs.run(graph, Count(n), store=store, run_id="r1", **TURN)
    store.prune(keep_last=2)
    assert [("a", 5), ("b", 5), ("a", 6), ("b", 6)] == [(info.node_id, info.visit) for info in store.history("r1")]
    assert store.verify("r1").ok
    assert Count(52) == verbs.resume(graph, store, "r1")
    assert Count(72) == verbs.run(graph, Count(70), store=store, run_id="r1", **TURN)
    assert Count(42) == verbs.resume_from(graph, store, "r1", "a", visit=5)


def test_a_run_that_somebody_executes_is_locked_unless_it_is_waited_for(verbs, store, line):
    entered, gate = threading.Event(), threading.Event()

    def a(state: Count) -> Count:
        entered.set()
        assert gate.wait(20)
        return plus(state)

    graph = line(Count, "a", {"a": a})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(verbs.run, graph, Count(), store=store, run_id="r1")
        assert entered.wait(10)
        with pytest.raises(RunLockedError):
            verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
        second = pool.submit(verbs.run, graph, Count(10), store=store, run_id="r1", on_locked="wait", **TURN)
        gate.set()
        assert (Count(1), Count(11)) == (first.result(20), second.result(20))


def test_of_many_continues_at_once_each_is_a_turn_or_a_typed_error(verbs, medium, line, log):
    store = medium.open()
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1")
    barrier = threading.Barrier(6)

    def begin(n: int):
        barrier.wait(20)
        try:
            return verbs.run(graph, Count(n), store=store, run_id="r1", **TURN)
        except (RunLockedError, RunNotResumableError) as exc:
            return exc

    with ThreadPoolExecutor(6) as pool:
        outcomes = list(pool.map(begin, range(10, 70, 10)))
    results = [outcome for outcome in outcomes if isinstance(outcome, Count)]
    begun = [owner.state() for owner in store.read("r1", kinds=(OWNER,))]
    assert 1 <= len(results) == len(begun)
    assert sorted(begun) == sorted(b'{"n":%d}' % (result.n - 3) for result in results)
    assert 3 * (1 + len(results)) == len(log)
    assert store.verify("r1").ok


@pytest.mark.parametrize(
    "wrong",
    [{"state_override": plus}, {"reroute": True}, {"reopen": True}, {"takeover": True}, {"on_corrupt": "previous"}],
)
def test_options_that_say_nothing_about_a_turn_are_refused(verbs, store, line, wrong):
    (name,) = wrong
    with pytest.raises(OptionError, match=f"{name} does not go with if_exists='continue'") as caught:
        verbs.run(line(Count), Count(), store=store, run_id="r1", **wrong, **TURN)
    assert name == caught.value.option
    assert [] == store.list_runs()


def test_a_workflow_has_no_turns(verbs, store):
    @workflow("w")
    def flow(n: int):
        return (yield step("a").python(abs, args=(n,)))

    with pytest.raises(OptionError, match="for graphs"):
        verbs.run(flow, n=1, store=store, run_id="r1", **TURN)
    with pytest.raises(OptionError, match="for graphs"):
        verbs.call(Engine(store, flows=[flow]), "start", flow, n=1, run_id="r1", **TURN)


def test_revalidate_sees_the_state_that_the_turn_begins_with(verbs, store, chat):
    verbs.run(chat, {"messages": ["hi"], "turns": 0}, store=store, run_id="r1")
    before, seen = untouched(store), []
    with pytest.raises(StateValidationError, match="too long"):
        verbs.run(
            chat,
            {"messages": ["x" * 100]},
            store=store,
            run_id="r1",
            revalidate=lambda c: seen.append(c) or "too long",
            **TURN,
        )
    assert (["hi", "re: hi", "x" * 100], 1) == (seen[0]["messages"], seen[0]["turns"])
    assert before == untouched(store)


def test_another_flows_run_is_refused(verbs, store, line):
    verbs.run(line(Count), Count(), store=store, run_id="r1")
    with pytest.raises(WrongFlowError):
        verbs.run(line(Count, name="other"), Count(), store=store, run_id="r1", **TURN)


def test_a_breakpoint_before_the_entry_stops_a_turn_too(verbs, store, line):
    graph = line(Count, "ab")
    verbs.run(graph, Count(), store=store, run_id="r1")
    with pytest.raises(RunStopped, match="before node 'a'"):
        verbs.run(graph, Count(10), store=store, run_id="r1", stop_before="a", **TURN)
    assert Count(12) == verbs.resume(graph, store, "r1", stop_before="a")


def test_a_stream_tells_a_turn_as_a_run_that_goes_on(verbs, store, line):
    graph = line(Count, "ab")
    verbs.run(graph, Count(), store=store, run_id="r1")
    told = verbs.stream(graph, Count(10), store=store, run_id="r1", **TURN)
    started, ended = told[0], told[-1]
    assert isinstance(started, RunStarted)
    assert isinstance(ended, RunCompleted)
    assert (Count(10), "a", False) == (started.input, started.resumed.next_node, started.resumed.already_completed)
    assert ("finished", Count(12)) == (ended.status, ended.result.state)


def test_resume_from_reaches_into_earlier_turns_and_never_uses_a_visit_again(verbs, store, line):
    graph = line(Count)
    verbs.run(graph, Count(), store=store, run_id="r1")
    verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
    assert Count(13) == verbs.resume_from(graph, store, "r1", "a")
    assert Count(13) == verbs.resume_from(graph, store, "r1", "a", rerun=True)
    assert Count(3) == verbs.resume_from(graph, store, "r1", "a", visit=1)
    with pytest.raises(ResumeNodeCompletedError):
        verbs.resume_from(graph, store, "r1", "c")
    visits = [(info.node_id, info.visit) for info in store.history("r1")]
    assert len(visits) == len(set(visits))
    assert Count(103) == verbs.run(graph, Count(100), store=store, run_id="r1", **TURN)
    assert store.verify("r1").ok


def test_a_visit_in_flight_in_a_turn_is_not_used_again_when_it_is_superseded(verbs, timed, line):
    is_dying, visits = [False], []

    def a(ctx, state: Count) -> Count:
        visits.append(ctx.visit)
        if is_dying[0]:
            raise verbs.Killed
        return plus(state)

    graph = line(Count, "ab", {"a": a})
    verbs.run(graph, Count(), store=timed, run_id="r1")
    is_dying[0] = True
    verbs.crash(graph, timed, "r1", Count(10), **TURN)
    is_dying[0] = False
    assert Count(2) == verbs.resume_from(graph, timed, "r1", "a")
    assert Count(22) == verbs.run(graph, Count(20), store=timed, run_id="r1", **TURN)
    assert [1, 2, 3] == visits


def test_a_damaged_turn_is_refused_and_may_be_passed_over(verbs, line, store, medium):
    if medium.kind != "memory":
        pytest.skip("damage is put into what memory holds")
    graph = line(Count, "ab", {"a": lambda state: plus(state) if state.n < 10 else 1 / 0})
    verbs.run(graph, Count(), store=store, run_id="r1")
    with pytest.raises(NodeError):
        verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
    records = store._runs["r1"].records
    at = next(n for n, record in enumerate(records) if record.kind == OWNER)
    records[at] = records[at]._replace(payload=b'{"n":5}')
    with pytest.raises(Exception, match="was changed after it was written"):
        verbs.resume(graph, store, "r1")
    result = verbs.resume(graph, store, "r1", on_corrupt="previous", full=True)
    assert Count(2) == result.state
    assert "passed over" in result.resumed.differences[0]


def test_a_turn_whose_result_is_gone_has_not_that_of_the_turn_before(verbs, line, store, medium):
    if medium.kind != "memory":
        pytest.skip("damage is put into what memory holds")
    graph = line(Count, "a")
    verbs.run(graph, Count(), store=store, run_id="r1")
    verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
    run = store._runs["r1"]
    lost = next(record for record in reversed(run.records) if record.kind == CHECKPOINT)
    run.records.remove(lost)
    run.by_node["a"].remove(lost)
    with pytest.raises(CheckpointCorruptError, match="record 4, which has its result, is not there"):
        verbs.resume(graph, store, "r1")
    with pytest.raises(CheckpointCorruptError, match="record 4, which has its result, is not there"):
        verbs.run(graph, Count(20), store=store, run_id="r1", **TURN)
    assert Count(11) == verbs.resume(graph, store, "r1", on_corrupt="previous")


# -- a turn that has not finished -----------------------------------------------------------------------------------


def talk(verbs, store, chat, text: str, **options: Any):
    """Say something in the chat, by the one call that there is for all messages."""
    given = {"messages": [text], "turns": 0}
    return verbs.run(chat, given, store=store, run_id="r1", full=True, **options, **TURN)


@pytest.fixture
def mood():
    """What the next answers do: `die` or `fail`."""
    return set()


@pytest.fixture
def moody(verbs, mood):
    """A chat of two nodes; the second one does what the mood is."""

    def reply(chat: Chat) -> dict[str, Any]:
        if "die" in mood:
            raise verbs.Killed
        if "fail" in mood:
            raise OSError("no")
        return answer(chat)

    graph = Graph(Chat, partial=True).add_node("think", verbs.node(lambda chat: {}))
    graph.add_node("answer", verbs.node(reply)).add_edge("think", "answer").add_edge("answer", END)
    return graph.set_entry("think").compile("chat")


def said(*texts: str) -> list[str]:
    return [line for text in texts for line in (text, f"re: {text}")]


def visits_of(store) -> list[tuple[str, int]]:
    """The visits that count."""
    return [(info.node_id, info.visit) for info in store.history("r1") if not info.superseded]


@pytest.mark.every_store
def test_a_turn_whose_process_died_is_finished_by_the_call_of_the_next_message(verbs, timed, moody, mood):
    talk(verbs, timed, moody, "one")
    mood.add("die")
    verbs.crash(moody, timed, "r1", {"messages": ["two"], "turns": 0}, **TURN)
    mood.clear()
    result = talk(verbs, timed, moody, "three")
    assert (said("one", "two", "three"), "") == (result.state["messages"], result.resumed.superseded)
    assert [(name, visit) for visit in (1, 2, 3) for name in ("think", "answer")] == visits_of(timed)
    assert timed.verify("r1").ok


def test_an_interrupted_first_turn_and_one_that_a_worker_was_left_are_finished_first(verbs, store, moody):
    with pytest.raises(RunStopped):
        verbs.run(moody, {"messages": ["one"], "turns": 0}, store=store, run_id="r1", stop_after="think", **TURN)
    verbs.call(Engine(store), "start", moody, {"messages": ["one"], "turns": 0}, run_id="r2", **TURN)
    assert said("one", "two") == talk(verbs, store, moody, "two").state["messages"]
    told = verbs.run(moody, {"messages": ["two"], "turns": 0}, store=store, run_id="r2", **TURN)
    assert said("one", "two") == told["messages"]


def test_a_stream_tells_of_the_turn_that_is_finished_first_too(verbs, store, moody):
    talk(verbs, store, moody, "one", stop_after="think")
    told = verbs.stream(moody, {"messages": ["two"], "turns": 0}, store=store, run_id="r1", **TURN)
    ends = [(type(event), event.status) for event in told if isinstance(event, RunCompleted)]
    assert ([RunStarted, RunCompleted], [(RunCompleted, "finished")] * 2) == ([type(told[0]), type(told[-1])], ends)
    assert said("one", "two") == told[-1].result.state["messages"]


def test_a_breakpoint_in_the_turn_that_is_finished_first_stops_the_call(verbs, store, moody):
    talk(verbs, store, moody, "one", stop_before="think")
    result = talk(verbs, store, moody, "two", stop_before="answer")
    assert ("interrupted", ["one"]) == (result.status, result.state["messages"])
    assert said("one", "two") == talk(verbs, store, moody, "two").state["messages"]


@pytest.mark.every_store
def test_a_failed_turn_is_superseded_with_its_message_and_told(verbs, store, moody, mood):
    mood.add("fail")
    with pytest.raises(NodeError):
        talk(verbs, store, moody, "zero")
    mood.clear()
    first = talk(verbs, store, moody, "one")
    assert ("start", said("one")) == (first.resumed.source, first.state["messages"])
    assert "OSError: no" in first.resumed.superseded
    mood.add("fail")
    with pytest.raises(NodeError):
        talk(verbs, store, moody, "two")
    mood.clear()
    third = talk(verbs, store, moody, "three")
    assert ("latest", said("one", "three")) == (third.resumed.source, third.state["messages"])
    assert "OSError: no" in third.resumed.superseded
    # A superseded visit's number, and so its key, is never used for another message.
    assert [("think", 2), ("answer", 2), ("think", 4), ("answer", 4)] == visits_of(store)
    assert "OSError: no" in [event for event in verbs.events(Engine(store, flows=[moody]).handle("r1"), "events", after=-1)
                             if isinstance(event, RunStarted)][-1].resumed.superseded  # fmt: skip
    assert said("one", "three") == verbs.resume(moody, store, "r1")["messages"]
    assert store.verify("r1").ok


def test_a_turn_that_fails_while_it_is_finished_is_superseded(verbs, timed, moody, mood):
    talk(verbs, timed, moody, "one")
    mood.add("die")
    verbs.crash(moody, timed, "r1", {"messages": ["two"], "turns": 0}, **TURN)
    mood.clear()
    mood.add("fail")
    with pytest.raises(NodeError):
        talk(verbs, timed, moody, "three")
    mood.clear()
    assert said("one", "four") == talk(verbs, timed, moody, "four").state["messages"]


def test_a_turn_after_a_failed_one_goes_on_after_a_crash_of_its_own(verbs, timed, moody, mood):
    mood.add("fail")
    with pytest.raises(NodeError):
        talk(verbs, timed, moody, "one")
    mood.clear()
    mood.add("die")
    verbs.crash(moody, timed, "r1", {"messages": ["two"], "turns": 0}, **TURN)
    mood.clear()
    assert said("two") == verbs.resume(moody, timed, "r1")["messages"]
    assert said("two", "three") == talk(verbs, timed, moody, "three").state["messages"]


def test_what_begins_a_first_turn_anew_must_be_a_whole_state(verbs, store, line):
    graph = line(Count, "a", {"a": lambda state: plus(state) if state.n else 1 / 0}, partial=True)
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1", **TURN)
    before = untouched(store)
    with pytest.raises(StateTypeError, match="run 'r1' is to be continued with") as caught:
        verbs.run(graph, {"n": 1}, store=store, run_id="r1", **TURN)
    assert (None, before) == (caught.value.state, untouched(store))
    assert Count(2) == verbs.run(graph, Count(1), store=store, run_id="r1", **TURN)


def test_a_dropped_turn_is_superseded_and_its_crashes_do_not_count(verbs, timed, moody, mood):
    talk(verbs, timed, moody, "one")
    mood.add("die")
    verbs.crash(moody, timed, "r1", {"messages": ["two"], "turns": 0}, **TURN)
    mood.clear()
    result = talk(verbs, timed, moody, "three", unfinished="drop", max_crashes=1)
    assert said("one", "three") == result.state["messages"]
    assert result.resumed.superseded.startswith("the turn before is ")
    assert [("think", 1), ("answer", 1), ("think", 3), ("answer", 3)] == visits_of(timed)


def test_a_turn_blocked_by_crashes_is_refused_with_the_reason_or_dropped(verbs, store, moody):
    talk(verbs, store, moody, "one")
    talk(verbs, store, moody, "two", stop_after="think")
    write(store, take(store, "r1").token, release=Release("blocked", "it crashed", blocked_by="crashes"))
    with pytest.raises(RunNotResumableError, match="is blocked") as caught:
        talk(verbs, store, moody, "three")
    assert ("blocked", "it crashed") == (caught.value.status, caught.value.reason)
    assert said("one", "three") == talk(verbs, store, moody, "three", unfinished="drop").state["messages"]


def test_a_turn_blocked_by_a_value_is_finished_first(verbs, store, moody):
    talk(verbs, store, moody, "one", stop_after="think")
    write(store, take(store, "r1").token, release=Release("blocked", "no value", blocked_by="value"))
    assert said("one", "two") == talk(verbs, store, moody, "two").state["messages"]


def test_a_turn_that_waits_while_it_is_finished_refuses_the_next_one_with_the_wait(verbs, store):
    graph = Graph(Count).add_node("a", verbs.node(plus)).add_wait("ask", "go", apply=lambda state, reply: plus(state))
    graph = graph.add_edge("a", "ask").add_edge("ask", END).set_entry("a").compile("asking")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_before="ask", **TURN)
    with pytest.raises(RunNotResumableError, match="waits for ask#1") as caught:
        verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
    assert "waiting" == caught.value.status
    store.put_signal("r1", "go", b"null")
    with pytest.raises(RunSuspended, match="ask#2"):
        verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)


def test_an_open_cancel_of_the_turn_before_is_carried_out_first(verbs, timed, moody, mood):
    mood.add("die")
    verbs.crash(moody, timed, "r1", {"messages": ["one"], "turns": 0}, **TURN)
    mood.clear()
    timed.request_cancel("r1", "enough")
    with pytest.raises(RunNotResumableError, match="is cancelled"):
        talk(verbs, timed, moody, "two", unfinished="drop")


def test_a_start_supersedes_a_failed_turn_and_leaves_an_unfinished_one(verbs, store, moody, mood):
    engine = Engine(store, flows=[moody])
    talk(verbs, store, moody, "one")
    mood.add("fail")
    with pytest.raises(NodeError):
        talk(verbs, store, moody, "two")
    mood.clear()
    verbs.call(engine, "start", moody, {"messages": ["three"], "turns": 0}, run_id="r1", **TURN)
    with pytest.raises(RunNotResumableError, match="is ready"):
        verbs.call(engine, "start", moody, {"messages": ["four"], "turns": 0}, run_id="r1", **TURN)
    verbs.call(engine, "start", moody, {"messages": ["five"], "turns": 0}, run_id="r1", unfinished="drop", **TURN)
    engine.worker().run(until_idle=True)
    assert said("one", "five") == verbs.call(engine.handle("r1"), "result", timeout=20)["messages"]


def test_the_state_before_a_failed_turn_is_not_pruned(verbs, store):
    def lap(state: Count) -> Count:
        if state.n == 13:
            raise OSError("no")
        return plus(state)

    graph = Graph(Count).add_node("a", verbs.node(lap)).add_conditional_edge("a", lambda s: END if s.n == 3 else "a")
    graph = graph.set_entry("a").compile("laps")
    verbs.run(graph, Count(), store=store, run_id="r1", **TURN)
    with pytest.raises(NodeError):
        verbs.run(graph, Count(10), store=store, run_id="r1", **TURN)
    store.prune(keep_last=1)
    assert Count(3) == verbs.run(graph, Count(1), store=store, run_id="r1", **TURN)


# -- ids of turns ---------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_turn_recorded_under_its_id_is_not_begun_again(verbs, store, moody, mood):
    for text in ("one", "two", "three"):
        for _ in range(2):
            result = talk(verbs, store, moody, text, turn_id=text)
    assert said("one", "two", "three") == result.state["messages"]
    before = untouched(store)
    for text, count in (("one", 2), ("two", 4), ("three", 6)):
        again = talk(verbs, store, moody, "something else", turn_id=text)
        assert (count, "finished", True) == (
            len(again.state["messages"]),
            again.status,
            again.resumed.already_completed,
        )
    assert before == untouched(store)


def test_a_turn_recorded_under_its_id_is_finished_whatever_is_done_with_unfinished_ones(verbs, timed, moody, mood):
    for number, unfinished in enumerate(("finish", "drop", "refuse")):
        mood.add("die")
        given = {"messages": [unfinished], "turns": 0}
        verbs.crash(moody, timed, "r1", given, turn_id=unfinished, **TURN)
        mood.clear()
        result = talk(verbs, timed, moody, unfinished, turn_id=unfinished, unfinished=unfinished)
        assert 2 * (number + 1) == len(result.state["messages"])


def test_a_failed_turn_is_begun_again_under_its_id(verbs, store, moody, mood):
    mood.add("fail")
    with pytest.raises(NodeError):
        talk(verbs, store, moody, "one", turn_id="t1")
    mood.clear()
    result = talk(verbs, store, moody, "one", turn_id="t1")
    assert said("one") == result.state["messages"]
    assert "OSError: no" in result.resumed.superseded


def test_a_turn_started_again_under_its_id_is_left_to_the_worker(verbs, store, moody):
    engine = Engine(store, flows=[moody])
    for _ in range(2):
        verbs.call(engine, "start", moody, {"messages": ["one"], "turns": 0}, run_id="r1", turn_id="t1", **TURN)
    engine.worker().run(until_idle=True)
    handle = verbs.call(engine, "start", moody, {"messages": ["one"], "turns": 0}, run_id="r1", turn_id="t1", **TURN)
    assert said("one") == verbs.call(handle, "result", timeout=20)["messages"]


def test_of_equal_calls_at_once_one_begins_the_turn(verbs, medium, moody):
    store, barrier = medium.open(), threading.Barrier(4)
    talk(verbs, store, moody, "one")

    def begin(_: int):
        barrier.wait(20)
        return talk(verbs, store, moody, "two", turn_id="t2", on_locked="wait").state["messages"]

    with ThreadPoolExecutor(4) as pool:
        assert [said("one", "two")] * 4 == list(pool.map(begin, range(4)))


@pytest.mark.parametrize("wrong", [{"unfinished": "drop"}, {"turn_id": "t1"}])
def test_options_of_turns_are_refused_where_no_turn_begins(verbs, store, chat, wrong):
    (name,) = wrong
    with pytest.raises(OptionError, match=f"{name} needs if_exists='continue'"):
        verbs.run(chat, {"messages": [], "turns": 0}, store=store, run_id="r1", **wrong)
    with pytest.raises(OptionError, match=f"{name} needs if_exists='continue'"):
        verbs.resume(chat, store, "r1", **wrong)


# -- engines and workers ---------------------------------------------------------------------------------------


def test_an_engine_begins_turns_and_leaves_them_to_workers(verbs, store, line):
    graph = line(Count)
    engine = Engine(store, flows=[graph])
    worker = engine.worker()
    assert Count(3) == verbs.run(engine, graph, Count(), run_id="r1", **TURN)
    assert Count(13) == verbs.run(engine, graph.bind(Count(10)), run_id="r1", **TURN)
    handle = verbs.call(engine, "start", graph, Count(20), run_id="r1", **TURN)
    assert ("ready", Count(20)) == (store.get_run("r1").info.status, verbs.call(handle, "state"))
    with pytest.raises(RunNotResumableError, match="is ready"):
        verbs.call(engine, "start", graph, Count(30), run_id="r1", **TURN)
    worker.run(until_idle=True)
    assert Count(23) == verbs.call(handle, "result", timeout=20)
    verbs.call(engine, "start", graph, Count(40), run_id="r2", **TURN)
    engine.worker().run(until_idle=True)
    assert Count(43) == verbs.call(engine.handle("r2"), "result", timeout=20)
    told = verbs.events(handle, "events", after=-1)
    starts = [event.input for event in told if isinstance(event, RunStarted)]
    assert ([Count(0), Count(10), Count(20)], 3) == (
        [given for given in starts if given is not None],
        sum(isinstance(event, RunCompleted) for event in told),
    )


def test_authorize_is_asked_before_a_turn(verbs, store, line):
    graph, asked = line(Count), []
    verbs.run(graph, Count(), store=store, run_id="r1")
    engine = Engine(store, authorize=lambda *args: asked.append(args) or False)
    before = untouched(store)
    with pytest.raises(NotAuthorizedError):
        verbs.run(engine, graph, Count(), run_id="r1", **TURN)
    assert ([("resume", "r1", "line")], before) == (asked, untouched(store))


def test_one_event_loop_may_continue_one_run_many_times_at_once(store):
    ran = []

    async def a(state: Count) -> Count:
        ran.append(state.n)
        await asyncio.sleep(0)
        return plus(state)

    graph = Graph(Count).add_node("a", a).add_edge("a", END).set_entry("a").compile()

    async def main():
        await graph.arun(Count(), store=store, run_id="r1")
        turns = (graph.arun(Count(n), store=store, run_id="r1", **TURN) for n in range(1, 11))
        return await asyncio.gather(*turns, return_exceptions=True)

    outcomes = asyncio.run(main())
    results = [outcome for outcome in outcomes if isinstance(outcome, Count)]
    assert len(ran) == 1 + len(results) >= 2
    assert {RunLockedError} >= {type(outcome) for outcome in outcomes} - {Count}
