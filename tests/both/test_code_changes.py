"""A run meets code that is not the code it began with: it goes on, or says what differs; it never guesses."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from milepost import (
    END,
    FlowChangedError,
    Graph,
    NodeError,
    Retry,
    RunNotResumableError,
    RunSuspended,
    StepError,
    Steps,
    Workflow,
    parallel,
    step,
    workflow,
)
from milepost.errors import DeserializeStateError, RunStopped, WrongFlowError


@dataclass
class Count:
    n: int = 0


def plus(state: Count) -> Count:
    return Count(state.n + 1)


@pytest.fixture
def halted(verbs, store, line):
    """A run of a, b, c, d that stopped after b."""
    graph = line(Count, "abcd")
    with pytest.raises(RunStopped):
        verbs.run(graph, Count(), store=store, run_id="r1", stop_after="b")
    return graph


def untouched(store):
    row = store.get_run("r1")
    return store.read("r1"), row.info.status, row.info.reason, row.epoch


@pytest.mark.every_store
def test_a_renamed_node_is_refused_by_name_and_goes_on_with_a_mapping(verbs, store, halted, line, log):
    changed, before = line(Count, "abxd"), untouched(store)
    plan = verbs.plan(changed, store, "r1")
    with pytest.raises(FlowChangedError, match="rename") as caught:
        verbs.resume(changed, store, "r1")
    told = " ".join(caught.value.differences)
    assert (True, True) == ("'c'" in told, "'x'" in told)
    assert ("refuse", FlowChangedError, str(caught.value)) == (plan.verdict, type(plan.error), plan.reason)
    assert (["a", "b"], before) == (log, untouched(store))
    assert "continue" == verbs.plan(changed, store, "r1", rename={"c": "x"}).verdict
    result = verbs.resume(changed, store, "r1", rename={"c": "x"}, full=True)
    assert (Count(4), ["a", "b", "x", "d"], "x") == (result.state, log, result.resumed.next_node)


def test_resume_from_finds_a_renamed_node_under_its_old_name(verbs, store, halted, line, log):
    changed = line(Count, "axcd")
    with pytest.raises(LookupError):
        verbs.resume_from(changed, store, "r1", "x")
    assert Count(4) == verbs.resume_from(changed, store, "r1", "x", rename={"b": "x"})
    assert ["a", "b", "c", "d"] == log


def test_a_renamed_entry_is_found_by_a_run_that_crashed_in_it(verbs, timed, line, log):
    dying = [True]

    def body(state: Count) -> Count:
        if dying[0]:
            raise verbs.Killed
        return plus(state)

    verbs.crash(line(Count, "ab", {"a": body}), timed, "r1", Count())
    dying[0] = False
    with pytest.raises(FlowChangedError):
        verbs.resume(line(Count, "xb"), timed, "r1")
    assert Count(2) == verbs.resume(line(Count, "xb"), timed, "r1", rename={"a": "x"})


def test_a_renamed_node_keeps_its_spent_attempts(verbs, store, line):
    policy = {"retry": Retry(2, backoff=0)}
    with pytest.raises(NodeError):
        verbs.run(line(Count, "ab", {"b": lambda s: 1 / 0}, {"b": policy}), Count(), store=store, run_id="r1")
    changed = line(Count, "ax", None, {"x": policy})
    with pytest.raises(RunNotResumableError):
        verbs.resume(changed, store, "r1", rename={"b": "x"})
    assert Count(2) == verbs.retry(changed, store, "r1", rename={"b": "x"})


@pytest.mark.parametrize("ids", ["abc", "abce", "acbd"])
def test_a_change_elsewhere_goes_on_and_is_told_unless_strict(verbs, store, halted, line, log, ids):
    changed, before = line(Count, ids), untouched(store)
    assert "refuse" == verbs.plan(changed, store, "r1", strict=True).verdict
    with pytest.raises(FlowChangedError) as caught:
        verbs.resume(changed, store, "r1", strict=True)
    assert (["a", "b"], before) == (log, untouched(store))
    plan = verbs.plan(changed, store, "r1")
    assert ("continue", caught.value.differences) == (plan.verdict, plan.differences)
    result = verbs.resume(changed, store, "r1", full=True)
    assert (plan.differences, ["a", "b", *ids[ids.index("c") :]]) == (result.resumed.differences, log)
    assert () != plan.differences


def test_an_unchanged_graph_passes_strict(verbs, store, halted, line):
    assert Count(4) == verbs.resume(line(Count, "abcd"), store, "r1", strict=True)


def test_other_functions_under_the_same_names_are_no_difference(verbs, store, halted, line):
    changed = line(Count, "abcd", {"c": lambda state: Count(state.n + 10)})
    result = verbs.resume(changed, store, "r1", strict=True, full=True)
    assert (Count(13), ()) == (result.state, result.resumed.differences)


def test_another_graph_is_refused_whatever_its_nodes_are_called(verbs, store, halted, line, log):
    before = untouched(store)
    other = line(Count, "abcd", name="other")
    plan = verbs.plan(other, store, "r1")
    assert ("refuse", WrongFlowError) == (plan.verdict, type(plan.error))
    for verb, more in ((verbs.resume, ()), (verbs.retry, ()), (verbs.resume_from, ("a",))):
        with pytest.raises(Exception, match="r1") as caught:
            verb(other, store, "r1", *more)
        assert isinstance(caught.value, (WrongFlowError, ValueError))
    assert (["a", "b"], before) == (log, untouched(store))


def test_a_graph_that_lost_what_was_left_is_never_a_silent_success(verbs, store, halted, line, log):
    with pytest.raises(FlowChangedError):
        verbs.resume(line(Count, "ab"), store, "r1")
    assert ("interrupted", ["a", "b"]) == (store.get_run("r1").info.status, log)


def test_a_changed_graph_of_a_finished_run_still_gives_its_result(verbs, store, line):
    verbs.run(line(Count, "abc"), Count(), store=store, run_id="r1")
    assert Count(3) == verbs.resume(line(Count, "xyz"), store, "r1")


def test_a_node_whose_router_is_to_be_asked_must_be_there(verbs, store):
    graph = Graph(Count).add_node("a", verbs.node(plus)).add_conditional_edge("a", lambda state: 1 / 0, [END])
    with pytest.raises(Exception, match="router"):
        verbs.run(graph.set_entry("a").compile("g"), Count(), store=store, run_id="r1")
    renamed = Graph(Count).add_node("x", verbs.node(plus)).add_conditional_edge("x", lambda state: END, [END])
    compiled = renamed.set_entry("x").compile("g")
    with pytest.raises(FlowChangedError):
        verbs.resume(compiled, store, "r1")
    assert Count(1) == verbs.resume(compiled, store, "r1", rename={"a": "x"})


def test_a_new_field_takes_its_default_and_a_lost_one_is_refused_unless_dropped(verbs, store):
    @dataclass
    class Before:
        n: int = 0
        old: str = "x"

    @dataclass
    class After:
        n: int = 0
        fresh: list[int] = field(default_factory=list)
        more: int = 7

    def same(state):
        return state

    def graph(kind, **options):
        built = Graph(kind, **options).add_node("a", verbs.node(same)).add_node("b", verbs.node(same))
        return built.add_edge("a", "b").add_edge("b", END).set_entry("a").compile("g")

    with pytest.raises(RunStopped):
        verbs.run(graph(Before), Before(5), store=store, run_id="r1", stop_after="a")
    with pytest.raises(DeserializeStateError, match="old"):
        verbs.resume(graph(After), store, "r1")
    assert "refuse" == verbs.plan(graph(After), store, "r1").verdict
    lifted = graph(After, upgrade=lambda raw: {"n": raw["n"] * 2})
    assert After(10) == verbs.resume(lifted, store, "r1", stop_after=())
    with pytest.raises(RunStopped):
        verbs.run(graph(Before), Before(5), store=store, run_id="r2", stop_after="a")
    assert After(5) == verbs.resume(graph(After, unknown_fields="drop"), store, "r2")


def test_a_default_of_another_type_is_told_before_any_node_runs(verbs, store, line, log):
    @dataclass
    class Before:
        n: int = 0

    @dataclass
    class After:
        n: int = 0
        more: int = "7"

    bodies = dict.fromkeys("ab", lambda state: state)
    with pytest.raises(RunStopped):
        verbs.run(line(Before, "ab", bodies, name="g"), Before(5), store=store, run_id="r1", stop_after="a")
    changed, before = line(After, "ab", bodies, name="g"), untouched(store)
    with pytest.raises(DeserializeStateError, match=r"state\.more.*default") as caught:
        verbs.resume(changed, store, "r1")
    assert ("state.more", "refuse") == (caught.value.path, verbs.plan(changed, store, "r1").verdict)
    assert (["a"], before) == (log, untouched(store))


def test_the_default_of_a_new_input_is_a_copy_of_the_declared_type(verbs, store):
    def flow(names: Any) -> Any:
        @workflow("w")
        def wf(n: int, names: list[str] = names):
            names.append("seen")
            yield step("a").python(lambda: 1)
            return names

        return wf

    @workflow("w")
    def first(n: int):
        yield step("a").python(lambda: 1 // 0)

    for run_id in ("r1", "r2", "r3"):
        with pytest.raises(StepError):
            verbs.run(first, store=store, run_id=run_id, n=1)
    changed = flow(["new"])
    assert [["new", "seen"]] * 2 == [verbs.resume(changed, store, run_id) for run_id in ("r1", "r2")]
    with pytest.raises(DeserializeStateError, match="default") as caught:
        verbs.resume(flow("new"), store, "r3")
    assert "input.names" == caught.value.path


def test_a_renamed_field_is_refused_and_never_dropped_in_silence(verbs, store):
    @dataclass
    class Before:
        old: str = "x"

    @dataclass
    class After:
        new: str = "x"

    def graph(kind):
        built = Graph(kind).add_node("a", verbs.node(lambda s: s)).add_node("b", verbs.node(lambda s: s))
        return built.add_edge("a", "b").add_edge("b", END).set_entry("a").compile("g")

    with pytest.raises(RunStopped):
        verbs.run(graph(Before), Before("precious"), store=store, run_id="r1", stop_after="a")
    with pytest.raises(DeserializeStateError, match="old"):
        verbs.resume(graph(After), store, "r1")


def test_a_limit_or_a_policy_given_now_counts_and_not_the_one_of_then(verbs, store, line):
    graph = line(Count, "ab", {"b": lambda state: 1 / 0})
    with pytest.raises(NodeError):
        verbs.run(graph, Count(), store=store, run_id="r1", retry=Retry(2, backoff=0))
    assert "refuse" == verbs.plan(graph, store, "r1", retry=Retry(2)).verdict
    assert "continue" == verbs.plan(graph, store, "r1", retry=Retry(3)).verdict
    assert "continue" == verbs.plan(graph, store, "r1").verdict


@dataclass
class Part:
    a: int


def changed_part() -> Any:
    """The class `Part` as it is later: with one field more, which has no default."""

    @dataclass
    class Part:
        a: int
        b: float

    return Part


class Parts:
    """Flows in which things of a class are recorded and something fails after that: `broken` until it is mended."""

    def __init__(self, verbs: Any) -> None:
        self.verbs = verbs
        self.broken = True

    def each(self, kind: Any) -> Any:
        """A function of an item; that of number 1 fails."""

        def make(n: int) -> Any:
            self.check(n)
            return kind(n)

        make.__annotations__ = {"n": int, "return": kind}
        return self.verbs.node(make)

    def check(self, n: int) -> None:
        if self.broken and n == 1:
            raise ValueError("broken")

    def results(self, kind: Any) -> Any:
        graph = Graph(dict).add_map("m", lambda state: [1, 0], self.each(kind), merge=lambda state, found: state)
        return graph.add_edge("m", END).set_entry("m").compile("parts")

    def inputs(self, kind: Any) -> Any:
        def take(part: Any) -> int:
            self.check(part.a)
            return int(part.a)

        take.__annotations__ = {"part": kind, "return": int}
        graph = Graph(dict).add_map("m", lambda s: [Part(1), Part(0)], self.verbs.node(take), merge=lambda s, found: s)
        return graph.add_edge("m", END).set_entry("m").compile("parts")

    def branch(self, kind: Any) -> Any:
        inner = Graph(dict).add_subgraph("sub", self.results(kind)).add_edge("sub", "j")
        for node_id, merge in (("f", None), ("a", None), ("j", lambda before, ends: before)):
            inner.add_node(node_id, self.verbs.node(lambda state: state), merge=merge)
        inner.add_edge("f", "a").add_edge("f", "sub").add_edge("a", "j").add_edge("j", END)
        return inner.set_entry("f").compile("branch")

    def reply(self, kind: Any) -> Any:
        def apply(state: dict[str, Any], reply: Any) -> dict[str, Any]:
            self.check(1)
            return state

        graph = Graph(dict).add_wait("m", "go", apply=apply, payload=kind)
        return graph.add_edge("m", END).set_entry("m").compile("reply")

    def reply_below(self, kind: Any) -> Any:
        """A wait in a branch, in a graph inside and in an item: what is answered there."""
        each = Graph(dict).add_subgraph("sub", self.reply(kind)).add_edge("sub", END).set_entry("sub").compile("each")
        inner = Graph(dict).add_map("each", lambda state: [{}], each, merge=lambda state, found: state)
        for node_id, merge in (("f", None), ("a", None), ("j", lambda before, ends: before)):
            inner.add_node(node_id, self.verbs.node(lambda state: state), merge=merge)
        inner.add_edge("f", "a").add_edge("f", "each").add_edge("a", "j").add_edge("each", "j").add_edge("j", END)
        return inner.set_entry("f").compile("reply_below")

    def step_of_reply(self, kind: Any) -> Any:
        def fail() -> int:
            self.check(1)
            return 1

        @workflow("replies")
        def inner() -> Steps[Any]:
            yield parallel("p", step("m").wait_for("go", payload=kind))
            yield step("x").python(self.verbs.node(fail))

        @workflow("reply_of_steps")
        def flow() -> Steps[Any]:
            yield step("sub").subworkflow(inner, {})

        return flow

    def step_of_reply_below(self, kind: Any) -> Any:
        @workflow("step_of_reply")
        def flow() -> Steps[Any]:
            yield step("g").subworkflow(self.reply_below(kind), {})

        return flow

    def step_of_items(self, kind: Any) -> Any:
        @workflow("items")
        def flow() -> Steps[Any]:
            yield step("m").map(self.each(kind), [1, 0], max_parallel=1)

        return flow

    def step_of_graph(self, kind: Any) -> Any:
        @workflow("graphs")
        def flow() -> Steps[Any]:
            yield step("g").subworkflow(self.results(kind), {})

        return flow


@pytest.mark.parametrize(
    ("kind", "node_id", "field_name"),
    [
        ("results", "m/1", "output.b"),
        ("inputs", "m/0", "item.b"),
        ("branch", "sub/m/1", "output.b"),
        ("reply", "m", "payload.b"),
        ("reply_below", "each/0/sub/m", "payload.b"),
        ("step_of_reply", "sub/p/m", "payload.b"),
        ("step_of_reply_below", "g/each/0/sub/m", "payload.b"),
        ("step_of_items", "m/1", "output.b"),
        ("step_of_graph", "g/m/1", "output.b"),
    ],
)
def test_what_a_resume_could_not_decode_is_refused_by_its_plan_and_leaves_the_run_alone(
    verbs, store, kind, node_id, field_name
):
    parts = Parts(verbs)
    build = getattr(parts, kind)
    began, changed = build(Part), build(changed_part())
    arguments = () if isinstance(began, Workflow) else ({},)
    if "reply" in kind:
        with pytest.raises(RunSuspended):
            verbs.run(began, *arguments, store=store, run_id="r1")
        began.signal(store, "r1", "go", Part(1))
        with pytest.raises((NodeError, StepError)):
            verbs.resume(began, store, "r1")
    else:
        with pytest.raises((NodeError, StepError)):
            verbs.run(began, *arguments, store=store, run_id="r1")
    before = untouched(store)
    parts.broken = False
    plan = verbs.plan(changed, store, "r1")
    assert ("refuse", DeserializeStateError) == (plan.verdict, type(plan.error))
    with pytest.raises(DeserializeStateError, match=f"'{node_id}'.*{field_name}") as caught:
        verbs.resume(changed, store, "r1")
    assert ("r1", node_id, before) == (caught.value.run_id, caught.value.node_id, untouched(store))
    verbs.retry(began, store, "r1")
    assert "finished" == store.get_run("r1").info.status


def waiting(kind: str, wait: str = "ask", before: tuple[str, ...] = ()) -> Any:
    """A flow that waits for 'go' in node `wait` of the graph 'sub', after waits for `before`; or what became of it."""
    if kind == "timer":
        return line_of(Graph(list).add_timer("ask", duration=60), "ask")
    if kind == "function":
        return line_of(Graph(list).add_node("ask", lambda state: state), "ask")
    graph = Graph(list)
    for name in (*before, wait):
        signal = "go" if name == wait else name
        graph.add_wait(name, signal, apply=lambda state, reply: [*state, reply.payload])
    sub = line_of(graph, *before, wait, name="sub" if kind != "wait" else "g")
    if kind == "wait":
        return sub
    if kind == "graph":
        return line_of(Graph(list).add_subgraph("ask", sub), "ask")
    if kind == "map":
        return line_of(Graph(list).add_map("m", lambda state: [[]], sub, merge=lambda state, found: found[0]), "m")
    if kind == "step":

        @workflow("g")
        def flow() -> Steps[list[Any]]:
            return (yield from step("s").subworkflow(sub, [])).final_output

        return flow
    branches = Graph(list).add_node("f", lambda state: state).add_node("b", lambda state: state)
    branches.add_subgraph("sub", sub).add_node("j", lambda state: state, merge=lambda base, ends: ends["sub"])
    branches.add_edge("f", "b").add_edge("f", "sub").add_edge("b", "j").add_edge("sub", "j")
    return branches.set_entry("f").add_edge("j", END).compile("g")


def line_of(graph: Graph[Any], *nodes: str, name: str = "g") -> Any:
    for source, target in pairwise((*nodes, END)):
        graph.add_edge(source, target)
    return graph.set_entry(nodes[0]).compile(name)


def answered(verbs, store, flow: Any) -> Any:
    """Run a flow until it waits, and answer it."""
    with pytest.raises(RunSuspended):
        verbs.run(flow, *(() if isinstance(flow, Workflow) else ([],)), store=store, run_id="r1")
    assert "taken" == flow.signal(store, "r1", "go", "yes")


@pytest.mark.parametrize(
    ("began", "changed", "node_id"),
    [
        (waiting("graph", "w"), waiting("graph", "w2"), "ask/w"),
        (waiting("map", "w"), waiting("map", "w2"), "m/0/w"),
        (waiting("branch", "w"), waiting("branch", "w2"), "sub/w"),
        (waiting("step", "w"), waiting("step", "w2"), "s/w"),
        (waiting("wait"), waiting("graph"), "ask"),
        (waiting("wait"), waiting("function"), "ask"),
        (waiting("wait"), waiting("timer"), "ask"),
    ],
    ids=["graph", "map", "branch", "step", "into a graph", "into a function", "into a timer"],
)
def test_an_answer_is_never_lost_with_its_wait(verbs, store, began, changed, node_id):
    answered(verbs, store, began)
    before = untouched(store)
    plan = verbs.plan(changed, store, "r1")
    with pytest.raises(FlowChangedError, match=f"'{node_id}'.*rename") as caught:
        verbs.resume(changed, store, "r1")
    assert ("refuse", str(caught.value), before) == (plan.verdict, plan.reason, untouched(store))
    assert ["yes"] == verbs.resume(began, store, "r1")


@pytest.mark.parametrize("kind", ["graph", "map", "branch", "step"])
def test_a_wait_that_was_renamed_keeps_its_answer(verbs, store, kind):
    node_id = {"graph": "ask/w", "map": "m/0/w", "branch": "sub/w", "step": "s/w"}[kind]
    answered(verbs, store, waiting(kind, "w"))
    assert ["yes"] == verbs.resume(waiting(kind, "w2"), store, "r1", rename={node_id: f"{node_id}2"})


def test_a_node_that_is_gone_in_the_graph_of_a_step_is_refused_by_name(verbs, store):
    def stepping(node_id: str) -> Any:
        graph = Graph(list).add_node("x", lambda state: [*state, "x"]).add_node(node_id, lambda state: [*state, "y"])
        sub = line_of(graph, "x", node_id, name="sub")

        @workflow("g")
        def flow() -> Steps[list[Any]]:
            return (yield from step("s").subworkflow(sub, [])).final_output

        return flow

    with pytest.raises(RunStopped):
        verbs.run(stepping("y"), store=store, run_id="r1", stop_before="s/y")
    changed, before = stepping("y2"), untouched(store)
    plan = verbs.plan(changed, store, "r1")
    with pytest.raises(FlowChangedError, match=r"'s/y'.*rename") as caught:
        verbs.resume(changed, store, "r1")
    assert ("refuse", str(caught.value), before) == (plan.verdict, plan.reason, untouched(store))
    assert ["x", "y"] == verbs.resume(changed, store, "r1", rename={"s/y": "s/y2"})


def test_an_answered_wait_behind_a_new_one_keeps_its_answer(verbs, store):
    changed = waiting("graph", "w", before=("first",))
    answered(verbs, store, waiting("graph", "w"))
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(changed, store, "r1")
    assert ["ask/first#1"] == [wait.wait_id for wait in caught.value.waiting_for]
    changed.signal(store, "r1", "first", "no")
    assert ["no", "yes"] == verbs.resume(changed, store, "r1")


@pytest.mark.parametrize("by", ["a function instead of a graph", "a graph instead of a function"])
def test_the_items_of_a_map_may_be_done_by_a_function_or_a_graph(verbs, store, by):
    def doubling(each: Any) -> Any:
        graph = Graph(list[int]).add_node("a", lambda state: state)
        return line_of(graph.add_map("m", lambda state: state, each, merge=lambda state, found: found), "a", "m")

    function = lambda n: 2 * n  # noqa: E731
    graph = line_of(Graph(int).add_node("double", function), "double", name="each")
    began, changed = map(doubling, (graph, function) if by.startswith("a function") else (function, graph))
    with pytest.raises(RunStopped):
        verbs.run(began, [1, 2], store=store, run_id="r1", stop_before="m")
    plan = verbs.plan(changed, store, "r1")
    assert ("continue", (f"the items of m are now done by {by}",)) == (plan.verdict, plan.differences)
    assert [2, 4] == verbs.resume(changed, store, "r1")
    assert [2, 4] == verbs.resume(began, store, "r1")


def test_a_plan_may_ignore_the_owner_of_a_run(verbs, store, line):
    plans = []

    def look(state):
        plans.extend(line(Count, ids).plan_resume(store, "r1", ignore_owner=True) for ids in ("abc", "bxd"))
        plans.append(line(Count, "abc").plan_resume(store, "r1"))
        return state

    verbs.run(line(Count, "abc", {"b": look}), Count(), store=store, run_id="r1")
    assert ["continue", "continue", "refuse"] == [plan.verdict for plan in plans]
    assert ("goes on at node 'b', attempt 2", "RunLockedError") == (plans[0].reason, type(plans[2].error).__name__)
