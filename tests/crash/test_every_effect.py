"""Runs that die at every moment at which they can die, and end as if nothing had happened."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

from milepost import (
    END,
    CompiledGraph,
    Context,
    Graph,
    MemoryStore,
    NodeError,
    Retry,
    SQLiteStore,
)
from milepost.errors import OptionError
from milepost.executor.effects import Ask, Call, Drop, Hold, Write
from milepost.graph.fork_run import fork
from milepost.store import Store, Token
from milepost.testing import Crash, FakeClock, Stepper, crashtest
from milepost.verbs import Job, flow_of


@dataclass
class Tally:
    n: int = 0
    seen: list[str] = field(default_factory=list)


def adding(name: str, amount: int = 1) -> Callable[[Tally], Tally]:
    """A node that changes its state in place, which must not reach any record but its own."""

    def add(state: Tally) -> Tally:
        state.n += amount
        state.seen.append(name)
        return state

    return add


async def add_later(state: Tally) -> Tally:
    state.n += 10
    state.seen.append("later")
    return state


@dataclass
class Subject:
    """A graph, and how it is crashed."""

    graph: CompiledGraph[Any]
    input: Any
    options: dict[str, Any] = field(default_factory=dict)


def line() -> Subject:
    graph = Graph(Tally).add_node("a", adding("a")).add_node("b", adding("b", 2)).add_node("c", adding("c", 3))
    return Subject(
        graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile("line"), Tally()
    )


def awaited() -> Subject:
    graph = Graph(Tally).add_node("a", adding("a")).add_node("b", add_later).add_node("c", add_later)
    return Subject(
        graph.add_edge("a", "b").add_edge("b", "c").add_edge("c", END).set_entry("a").compile("awaited"), Tally()
    )


def loop() -> Subject:
    graph = Graph(Tally).add_node("a", adding("a")).add_node("b", adding("b")).add_edge("a", "b")
    graph.add_conditional_edge("b", lambda state: "a" if state.n < 4 else END, ["a", END])
    return Subject(graph.set_entry("a").compile("loop"), Tally())


def conditional() -> Subject:
    graph = Graph(Tally)
    for name in ("a", "odd", "even", "last"):
        graph.add_node(name, adding(name, 3))
    graph.add_conditional_edge("a", lambda state: state.n % 2, {0: "even", 1: "odd"})
    graph.add_edge("odd", "even").add_edge("even", "last").add_edge("last", END)
    return Subject(graph.set_entry("a").compile("conditional"), Tally())


def retried() -> Subject:
    """A node that fails twice, after it has changed its state in place."""
    failed: list[str] = []

    def fail_twice(state: Tally) -> Tally:
        state.n += 100
        if len(failed) < 2:
            failed.append("b")
            raise OSError("not yet")
        return state

    graph = Graph(Tally).add_node("a", adding("a")).add_node("b", fail_twice, retry=Retry(max_attempts=3, backoff=2.0))
    graph.add_node("c", adding("c")).add_edge("a", "b").add_edge("b", "c").add_edge("c", END)
    return Subject(graph.set_entry("a").compile("retried"), Tally(), {"before": failed.clear})


def failing_node() -> Subject:
    """A node without a policy that fails its run once; the run is resumed."""
    failed: list[str] = []

    def fail_once(state: Tally) -> Tally:
        state.n += 100
        if not failed:
            failed.append("b")
            raise OSError("not yet")
        return state

    graph = Graph(Tally).add_node("a", adding("a")).add_node("b", fail_once).add_edge("a", "b").add_edge("b", END)
    return Subject(graph.set_entry("a").compile("failing"), Tally(), {"before": failed.clear, "resumes": 1})


def failing_router() -> Subject:
    """A router that fails when it is first asked; the run is resumed and asks it again."""
    failed: list[str] = []

    def decide(state: Tally) -> str:
        if not failed:
            failed.append("a")
            raise OSError("not yet")
        return "sink"

    graph = Graph(Tally).add_node("a", adding("a")).add_node("sink", adding("sink"))
    graph.add_conditional_edge("a", decide, ["sink"]).add_edge("sink", END)
    return Subject(graph.set_entry("a").compile("routed"), Tally(), {"before": failed.clear, "resumes": 1})


class Chat(TypedDict):
    messages: Annotated[list[str], operator.add]
    turns: int


def partial() -> Subject:
    graph = Graph(Chat, partial=True)
    graph.add_node("ask", lambda state: {"messages": [f"question {state['turns']}"]})
    graph.add_node("tell", lambda state: {"messages": ["answer"], "turns": state["turns"] + 1})
    graph.add_edge("ask", "tell").add_conditional_edge(
        "tell", lambda state: END if state["turns"] == 2 else "ask", ["ask", END]
    )
    return Subject(graph.set_entry("ask").compile("chat"), Chat(messages=[], turns=0))


def timed_out() -> Subject:
    """A node that takes too long the first time: it lets the time pass itself."""
    late: list[str] = []

    def be_late(ctx: Context[Any], state: Tally) -> Tally:
        state.n += 100
        if not late:
            late.append("b")
            ctx.store.clock.advance(60)  # type: ignore[union-attr]
        return state

    graph = Graph(Tally).add_node("a", adding("a")).add_node("b", be_late, timeout=5, retry=Retry(backoff=0))
    graph.add_edge("a", "b").add_edge("b", END)
    return Subject(graph.set_entry("a").compile("late"), Tally(), {"before": late.clear})


def breakpoint_before() -> Subject:
    return Subject(line().graph, Tally(), {"stop_before": ["b", "c"], "resumes": 2})


def breakpoint_after() -> Subject:
    return Subject(loop().graph, Tally(), {"stop_after": "a", "resumes": 2})


def resumed_from() -> Subject:
    return Subject(line().graph, Tally(), {"resume_from": "a"})


def resumed_from_a_loop() -> Subject:
    return Subject(loop().graph, Tally(), {"resume_from": "a"})


def turns() -> Subject:
    graph = Graph(Tally).add_node("a", adding("a")).add_node("b", adding("b", 2)).add_edge("a", "b").add_edge("b", END)
    return Subject(graph.set_entry("a").compile("turns"), Tally(), {"turns": [Tally(1, ["hello"])]})


def partial_turns() -> Subject:
    """A turn that is reduced into the final state; it fails once and is resumed."""
    failed: list[str] = []

    def tell(state: Chat) -> dict[str, Any]:
        if state["turns"] == 1 and not failed:
            failed.append("tell")
            raise OSError("not yet")
        return {"messages": [f"answer to {state['messages'][-1]}"], "turns": state["turns"] + 1}

    graph = Graph(Chat, partial=True).add_node("tell", tell).add_edge("tell", END).set_entry("tell")
    options = {"turns": [{"messages": ["and?"]}], "before": failed.clear, "resumes": 1}
    return Subject(graph.compile("chat"), Chat(messages=["hi"], turns=0), options)


SUBJECTS = [
    line, awaited, loop, conditional, retried, failing_node, failing_router, partial, timed_out, breakpoint_before,
    breakpoint_after, resumed_from, resumed_from_a_loop, turns, partial_turns,
]  # fmt: skip

DYING_TWICE = [line, loop, retried, failing_router, resumed_from]
"""What is killed at each pair of effects, which takes the square of the time."""


IN_FILES = [loop, retried, partial_turns]
"""What is also killed on SQLite in every run of the tests."""


@pytest.mark.parametrize(
    ("make", "medium"),
    [
        *((make, "memory") for make in SUBJECTS),
        *(pytest.param(make, "sqlite", marks=[] if make in IN_FILES else [pytest.mark.wide]) for make in SUBJECTS),
    ],
    ids=lambda param: param if isinstance(param, str) else param.__name__,
)
def test_a_run_that_dies_at_any_effect_ends_as_if_undisturbed(make: Callable[[], Subject], medium: str, tmp_path: Path):
    subject = make()
    place = None if medium == "memory" else lambda clock: SQLiteStore(tmp_path / "runs.db", clock=clock)
    report = crashtest(subject.graph, subject.input, store=place, **subject.options)
    assert 2 * len(report.effects) == report.scenarios == report.crashes


@pytest.mark.wide
@pytest.mark.parametrize("make", DYING_TWICE, ids=lambda make: make.__name__)
def test_a_run_that_dies_again_while_it_is_resumed_ends_as_if_undisturbed(make: Callable[[], Subject]):
    subject = make()
    report = crashtest(subject.graph, subject.input, crashes=2, **subject.options)
    assert report.crashes > report.scenarios > len(report.effects)


# -- what crashtest itself is worth: it must find what is wrong -----------------------------------------------


def test_crashtest_reports_what_it_tried():
    report = crashtest(line().graph, Tally())
    assert ("a#1", "b#1", "c#1") == report.calls
    assert ("Ask", "Hold", "Emit", "Call") == report.effects[:4]


def test_crashtest_finds_a_result_that_depends_on_the_attempt(tmp_path: Path):
    def tell_attempt(ctx: Context[Any], state: Tally) -> Tally:
        return Tally(ctx.attempt)

    graph = Graph(Tally).add_node("a", tell_attempt).add_edge("a", END).set_entry("a").compile("attempts")
    with pytest.raises(AssertionError, match=r"crashed after effect \d+ \(Ask create\), the run ended finished with"):
        crashtest(graph, Tally(), store=lambda clock: SQLiteStore(tmp_path / "runs.db", clock=clock))


def test_crashtest_finds_what_lives_outside_the_state():
    kept: list[int] = []

    def count_outside(state: Tally) -> Tally:
        kept.append(1)
        return Tally(len(kept))

    graph = Graph(Tally).add_node("a", count_outside).add_edge("a", END).set_entry("a").compile("outside")
    with pytest.raises(AssertionError, match=r"undisturbed it ends finished with"):
        crashtest(graph, Tally(), before=kept.clear)


def test_crashtest_finds_a_store_that_forgets_what_it_reported():
    class Forgetful(MemoryStore):
        """Loses the newest record when its process dies."""

        def abandon(self, token: Token) -> None:
            run = self._runs[token.run_id]
            if run.row.status == "running" and len(run.records) > 2:
                lost = run.records.pop()
                run.by_node[lost.node_id].remove(lost)
            super().abandon(token)

    with pytest.raises(AssertionError, match="was called again, though what came of it was recorded"):
        crashtest(line().graph, Tally(), store=lambda clock: Forgetful(clock=clock))


def test_crashtest_refuses_a_number_of_crashes_that_is_none():
    with pytest.raises(OptionError, match="1 or more"):
        crashtest(line().graph, Tally(), crashes=0)


def test_a_run_that_fails_for_good_is_raised_with_where_it_was_crashed():
    def fail(state: Tally) -> Tally:
        raise OSError("never")

    graph = Graph(Tally).add_node("a", fail).add_edge("a", END).set_entry("a").compile("failing")
    with pytest.raises(NodeError) as caught:
        crashtest(graph, Tally())
    assert ["crashtest crashed nowhere"] == caught.value.__notes__


# -- effects one by one ----------------------------------------------------------------------------------------


def stepper(graph: CompiledGraph[Tally], store: Store, **options: Any) -> Stepper[Any]:
    clock = FakeClock()
    job = Job(flow_of(graph), store, "r-1", options, {"clock": clock}, None)
    return Stepper(job.routine(Tally()), clock=clock)


def test_a_run_asks_for_one_write_a_node():
    store = MemoryStore()
    process = stepper(line().graph, store)
    assert 6 == process.run().state.n
    assert [Ask, Hold, Call, Write, Call, Write, Call, Write, Drop] == [type(effect) for effect in process.effects]


def test_a_dropped_routine_performs_nothing_more():
    store = MemoryStore()
    process = stepper(line().graph, store)
    process.run_until(Write)
    records = store.read("r-1")
    process.kill()
    assert process.is_done
    assert records == store.read("r-1")
    assert "running" == store.get_run("r-1").info.status
    with pytest.raises(RuntimeError, match="nothing is left to perform"):
        process.step()


def test_a_fork_that_dies_at_any_effect_is_whole_or_not_there_and_its_origin_is_as_it_was():
    graph, seen = line().graph, set()
    for number in range(20):
        store = MemoryStore()
        result = graph.run(Tally(), store=store, run_id="r-1")
        before = store.export("r-1")
        process: Stepper[str] = Stepper(fork(store, "r-1", "f-1", into=store, node_id="b"))
        for _ in range(number):
            if not process.is_done:
                process.step()
        is_over = process.is_done
        if not is_over:
            process.perform()
        assert before == store.export("r-1")
        is_there = [info.run_id for info in store.list_runs()] == ["f-1", "r-1"]
        seen.add((is_over, is_there))
        if is_there:
            assert store.verify("f-1").ok
            assert result == graph.resume(store, "f-1")
    assert {(False, False), (False, True), (True, True)} == seen


def test_a_run_can_be_crashed_at_given_effects_alone():
    report = crashtest(line().graph, Tally(), crashes=[Crash(3, is_after=True), Crash(2), Crash(1000)])
    assert (1, 2) == (report.scenarios, report.crashes)


@pytest.mark.parametrize("second", range(12))
def test_crashes_of_one_visit_use_up_no_attempt_of_its_policy(second: int, tmp_path: Path):
    subject = retried()
    # The first attempt of the node that fails twice and has three attempts.
    crashes = [Crash(7), Crash(second), Crash(second)]
    crashtest(
        subject.graph,
        subject.input,
        store=lambda clock: SQLiteStore(tmp_path / "runs.db", clock=clock),
        crashes=crashes,
        **subject.options,
    )
