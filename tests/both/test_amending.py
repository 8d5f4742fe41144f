"""What amends a recorded run: it reaches whatever reads the run afterwards, and counts as if it had been recorded first."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from forking import Basket, builder, few

from milepost import (
    END,
    BranchError,
    Engine,
    FlowChangedError,
    Graph,
    NodeError,
    RunNotResumableError,
    RunSuspended,
    SerializeStateError,
    step,
    workflow,
)
from milepost.errors import CheckpointMigrationError, OptionError, RunStopped, StateTypeError, StateValidationError
from milepost.model.record import CHECKPOINT, FINISH, OWNER, START, WAIT
from milepost.reducers import append, total


@dataclass
class Order:
    amount: int = 0
    paid: int = 0
    by: str = ""


def discount(order: Order) -> Order:
    return dataclasses.replace(order, amount=7)


@pytest.fixture
def orders(verbs, log):
    """A graph that prices an order, waits for approval and charges it."""

    def price(order: Order) -> Order:
        log.append("price")
        return dataclasses.replace(order, amount=10)

    def charge(order: Order) -> Order:
        log.append("charge")
        return dataclasses.replace(order, paid=order.amount)

    graph = Graph(Order).add_node("price", verbs.node(price)).add_node("charge", verbs.node(charge))
    graph.add_wait("ok", "approval", apply=lambda order, reply: dataclasses.replace(order, by=reply.payload))
    graph.add_edge("price", "ok").add_edge("ok", "charge").add_edge("charge", END)
    return graph.set_entry("price").compile("orders")


@pytest.fixture
def waiting(verbs, store, orders, log):
    with pytest.raises(RunSuspended):
        verbs.run(orders, Order(), store=store, run_id="r")
    log.clear()
    return orders


# -- runs that wait ------------------------------------------------------------------------------------------


def test_an_override_of_a_run_that_waits_is_recorded_and_the_run_waits_on_with_it(verbs, medium, waiting, log):
    store = medium.open()
    before = store.get_run("r").info.waiting_for
    with pytest.raises(RunSuspended) as caught:
        verbs.resume(waiting, store, "r", state_override=discount)
    assert (before, before) == (caught.value.waiting_for, store.get_run("r").info.waiting_for)
    assert ([START, CHECKPOINT, WAIT, OWNER], []) == ([record.kind for record in store.read("r")], log)
    assert Order(7) == verbs.call(Engine(store).handle("r", waiting), "state")
    again = medium.open()
    verbs.call(waiting, "signal", again, "r", "approval", "ann")
    assert Order(7, 7, "ann") == verbs.resume(waiting, again, "r")


@few
def test_a_worker_goes_on_with_what_a_run_was_given_while_it_waited(verbs, store, waiting):
    with pytest.raises(RunSuspended):
        verbs.resume(waiting, store, "r", state_override=discount)
    verbs.call(waiting, "signal", store, "r", "approval", "ann")
    engine = Engine(store, flows=[waiting])
    engine.worker().run(until_idle=True)
    assert Order(7, 7, "ann") == verbs.call(engine.handle("r"), "result", timeout=0)


@few
def test_a_run_that_died_right_after_it_was_overridden_waits_on_with_the_override(verbs, medium, clock, orders):
    store = medium.open(Dying, clock=clock)
    with pytest.raises(RunSuspended):
        verbs.run(orders, Order(), store=store, run_id="r")
    store.killed = verbs.Killed
    verbs.crash(orders, store, "r", state_override=discount)
    store.killed = None
    with pytest.raises(RunSuspended):
        verbs.resume(orders, store, "r")
    verbs.call(orders, "signal", store, "r", "approval", "ann")
    assert Order(7, 7, "ann") == verbs.resume(orders, store, "r")


class Dying:
    """A store whose user dies when it would write its first append."""

    killed: type[BaseException] | None = None

    def append(self, batch: Any) -> Any:
        if self.killed is not None:
            raise self.killed
        return super().append(batch)  # type: ignore[misc]


def test_revalidate_is_asked_about_a_run_that_waits_and_about_what_it_is_overridden_with(verbs, store, waiting):
    asked: list[Order] = []

    def check(order: Order) -> bool:
        asked.append(order)
        return order.amount < 10

    with pytest.raises(StateValidationError):
        verbs.resume(waiting, store, "r", revalidate=check)
    with pytest.raises(RunSuspended):
        verbs.resume(waiting, store, "r", state_override=discount, revalidate=check)
    with pytest.raises(RunSuspended):
        verbs.resume(waiting, store, "r", revalidate=check)
    assert [Order(10), Order(7), Order(7)] == asked
    with pytest.raises(StateTypeError):
        verbs.resume(waiting, store, "r", state_override=lambda order: 42)
    assert [START, CHECKPOINT, WAIT, OWNER] == [record.kind for record in store.read("r")]


@few
def test_an_override_counts_once_where_the_verb_blocks_until_the_answer_comes(verbs, store, waiting):
    def one_less(order: Order) -> Order:
        # The answer comes while the override is recorded.
        waiting.signal(store, "r", "approval", "ann")
        return dataclasses.replace(order, amount=order.amount - 1)

    assert Order(9, 9, "ann") == verbs.resume(
        waiting, store, "r", state_override=one_less, on_wait="block", run_timeout=10
    )


@pytest.mark.parametrize("status", ["waiting", "interrupted", "finished"])
@few
def test_a_run_that_is_made_ready_with_an_override_goes_on_with_it(verbs, store, orders, status):
    engine = Engine(store, flows=[orders])
    if status == "interrupted":
        with pytest.raises(RunStopped):
            verbs.run(orders, Order(), store=store, run_id="r", stop_after="price")
    else:
        with pytest.raises(RunSuspended):
            verbs.run(orders, Order(), store=store, run_id="r")
    if status == "finished":
        orders.signal(store, "r", "approval", "ann")
        verbs.resume(orders, store, "r")
    handle = verbs.call(
        engine, "start", orders, Order(), run_id="r", if_exists="resume", state_override=discount, revalidate=bool
    )
    expected = {"interrupted": "ready"}.get(status, status)
    assert (expected, 7) == (handle.info().status, handle.state().amount)
    if status != "finished":
        handle.signal("approval", "ann")
        engine.worker().run(until_idle=True)
        assert Order(7, 7, "ann") == handle.result(timeout=0)


def test_a_run_that_sleeps_and_is_made_ready_with_an_override_wakes_when_it_would_have(timed, clock):
    graph = Graph(Order).add_node("price", discount).add_timer("pause", duration=10)
    graph = graph.add_edge("price", "pause").add_edge("pause", END).set_entry("price").compile("orders")
    with pytest.raises(RunSuspended) as caught:
        graph.run(Order(), store=timed, run_id="r", clock=clock)
    clock.advance(4)
    Engine(timed, clock=clock).start(graph, Order(), run_id="r", if_exists="resume", state_override=discount)
    info = timed.get_run("r").info
    assert ("waiting", caught.value.wake_at) == (info.status, info.wake_at)


@few
def test_a_worker_asks_whether_the_state_is_still_good_and_gives_the_run_back(verbs, store, orders, log):
    with pytest.raises(RunStopped):
        verbs.run(orders, Order(), store=store, run_id="r", stop_after="price")
    engine = Engine(store, flows=[orders], revalidate=lambda order: "too dear" if order.amount > 9 else None)
    engine.start(orders, Order(3), run_id="new")
    verbs.call(Engine(store, flows=[orders]), "start", orders, Order(), run_id="r", if_exists="resume")
    engine.worker().run(until_idle=True)
    assert ("ready", True) == (store.get_run("r").info.status, "too dear" in store.get_run("r").info.reason)
    assert ("waiting", ["price", "price"]) == (store.get_run("new").info.status, log)


def same(state: Any) -> Any:
    return state


@pytest.mark.parametrize("override", [None, same])
@pytest.mark.parametrize("node", [None, "f", "a"])
def test_what_revalidate_changes_in_place_is_no_part_of_the_run(verbs, store, log, node, override):
    graph = builder(verbs, log)("fa fb aj bj jk")
    with pytest.raises(RunStopped):
        verbs.run(graph, Basket(), store=store, run_id="r", stop_before="k")
    options = {"revalidate": lambda state: state.seen.append("spoiled"), "state_override": override}
    call = verbs.resume if node is None else functools.partial(verbs.resume_from, node_id=node)
    assert list("fabjk") == call(graph, store, "r", **options).seen == verbs.resume(graph, store, "r").seen


def test_what_revalidate_changes_in_place_is_no_part_of_a_turn(verbs, store, log):
    graph = builder(verbs, log)("ak")
    verbs.run(graph, Basket(), store=store, run_id="r")
    turn = {"if_exists": "continue", "revalidate": lambda state: state.seen.append("spoiled")}
    assert ["a", "k"] == verbs.run(graph, Basket(), store=store, run_id="r", **turn).seen


@few
@pytest.mark.parametrize("status", ["waiting", "finished"])
@pytest.mark.parametrize("option", ["state_override", "update", "revalidate"])
def test_a_workflow_that_waits_or_has_finished_refuses_by_name_what_is_for_graphs(verbs, store, status, option):
    @workflow("answers")
    def code():
        yield step("ok").wait_for("go")

    with pytest.raises(RunSuspended):
        verbs.run(code, store=store, run_id="r")
    if status == "finished":
        verbs.call(code, "signal", store, "r", "go")
        verbs.resume(code, store, "r")
    before = [record.kind for record in store.read("r")]
    with pytest.raises(RunNotResumableError, match=f"{option} is for graphs"):
        verbs.resume(code, store, "r", **{option: {"a": 1} if option == "update" else bool})
    assert (status, before) == (store.get_run("r").info.status, [record.kind for record in store.read("r")])


# -- runs that have finished -----------------------------------------------------------------------------------


def test_an_override_of_a_finished_run_is_its_result_from_then_on(verbs, medium, line, log, tmp_path):
    graph, store = line(Basket, "ab", {name: lambda state: state for name in "ab"}), medium.open()
    verbs.run(graph, Basket(10), store=store, run_id="r")
    log.clear()
    told = verbs.resume(graph, store, "r", state_override=lambda state: Basket(999), full=True)
    assert (Basket(999), "finished", True) == (told.state, told.status, told.resumed.already_completed)
    kinds = [START, CHECKPOINT, CHECKPOINT, FINISH, OWNER, FINISH]
    assert (kinds, []) == ([record.kind for record in store.read("r")], log)
    again = medium.open()
    handle = Engine(again, flows=[graph]).handle("r")
    assert Basket(999) == verbs.call(handle, "result", timeout=0) == verbs.call(handle, "state")
    assert Basket(999) == verbs.resume(graph, again, "r")
    assert Basket(999) == verbs.run(graph, Basket(10), store=again, run_id="r", if_exists="return")
    assert "finished" == verbs.plan(graph, again, "r").verdict
    assert ("finished", True) == (again.get_run("r").info.status, again.verify("r").ok)
    assert "copy" == again.import_run(again.export("r"), run_id="copy")
    fork = verbs.call(graph, "fork_run", again, "r", new_run_id="fork")
    assert Basket(999) == verbs.resume(graph, again, "copy") == verbs.resume(graph, again, fork)
    assert Basket(1000) == verbs.resume(
        graph, again, "r", state_override=lambda state: dataclasses.replace(state, n=state.n + 1)
    )


def test_a_finished_run_whose_override_is_refused_stays_as_it_was(verbs, store, line):
    graph = line(Basket, "a", {"a": lambda state: state})
    verbs.run(graph, Basket(10), store=store, run_id="r")
    with pytest.raises(StateTypeError):
        verbs.resume(graph, store, "r", state_override=lambda state: 5)
    with pytest.raises(StateValidationError, match="too large"):
        verbs.resume(
            graph, store, "r", state_override=lambda state: Basket(999), revalidate=lambda s: "too large" * (s.n > 100)
        )
    assert ([START, CHECKPOINT, FINISH], Basket(10)) == (
        [record.kind for record in store.read("r")],
        verbs.resume(graph, store, "r"),
    )


@few
def test_a_turn_begins_with_what_the_run_was_overridden_with_at_its_end(verbs, store, line):
    graph = line(Basket, "a", {"a": lambda state: {"n": state.n + 1}}, partial=True)
    verbs.run(graph, Basket(1), store=store, run_id="r")
    verbs.resume(graph, store, "r", state_override=lambda state: Basket(100, note="fixed"))
    options = {"store": store, "run_id": "r", "if_exists": "continue"}
    assert Basket(101, note="fixed") == verbs.run(graph, {"who": ""}, **options)
    assert Basket(5, note="fixed") == verbs.resume(
        graph, store, "r", state_override=lambda state: dataclasses.replace(state, n=5)
    )
    store.prune(keep_last=1)
    assert Basket(5, note="fixed") == verbs.resume(graph, store, "r")


# -- in a branch of a graph of parts ---------------------------------------------------------------------------


@dataclass
class Sums:
    cost: Annotated[int, total] = 0
    notes: Annotated[list[str], append] = dataclasses.field(default_factory=list)
    peak: int = 0
    plain: str = ""


def parts(verbs, peak: Any = max, **bodies: Any) -> Any:
    """f, then p, p2 beside q, then j; the nodes give parts."""
    usual: dict[str, Mapping[str, Any]] = {
        "p": {"cost": 100, "notes": ["p"], "plain": "p", "peak": 4},
        "q": {"cost": 1, "notes": ["q"], "peak": 2},
    }
    graph = Graph(Sums, partial=True, reducers={"peak": peak})
    for name in ("f", "p", "p2", "q", "j"):
        body = bodies.get(name, lambda state, name=name: dict(usual.get(name, {})))
        graph.add_node(name, verbs.node(body))
    for edge in ("f p", "f q", "p p2", "p2 j", "q j"):
        graph.add_edge(*edge.split())
    return graph.add_edge("j", END).set_entry("f").compile("parts")


def corrected(state: Sums) -> Sums:
    return dataclasses.replace(state, cost=70, notes=["corrected"], plain="corrected")


def test_an_override_in_a_branch_of_a_graph_of_parts_stands_for_the_branch_at_the_join(verbs, store):
    graph = parts(verbs, p2=lambda state: {"cost": 5, "notes": ["p2"]})
    assert Sums(106, ["p", "p2", "q"], 4, "p") == verbs.run(graph, Sums(), store=store, run_id="r")
    expected = Sums(76, ["corrected", "p2", "q"], 4, "corrected")
    assert expected == verbs.resume_from(graph, store, "r", "p", state_override=corrected)
    assert expected == verbs.resume_from(graph, store, "r", "q")
    reset = verbs.resume_from(graph, store, "r", "p2", state_override=lambda state: Sums(peak=state.peak))
    assert Sums(1, ["q"], 4, "") == reset


@few
def test_an_override_in_a_branch_reaches_the_join_after_a_crash_right_behind_it(verbs, timed):
    def die(state: Any) -> Any:
        raise verbs.Killed

    verbs.run(parts(verbs), Sums(), store=timed, run_id="r")
    with pytest.raises(BranchError):
        verbs.resume_from(parts(verbs, p2=lambda state: 1 / 0), timed, "r", "p", state_override=corrected)
    verbs.crash(parts(verbs, p2=die), timed, "r")
    assert Sums(71, ["corrected", "q"], 4, "corrected") == verbs.resume(parts(verbs), timed, "r")


@few
def test_an_override_in_a_fork_inside_a_branch_reaches_the_outer_join(verbs, store):
    graph = Graph(Sums, partial=True)
    for name in ("f", "p", "x", "y", "k", "q", "j"):
        graph.add_node(name, verbs.node(lambda state, name=name: {"cost": 10, "notes": [name]}))
    for edge in ("f p", "f q", "p x", "p y", "x k", "y k", "k j", "q j"):
        graph.add_edge(*edge.split())
    flow = graph.add_edge("j", END).set_entry("f").compile("nested")
    assert Sums(70, ["f", "p", "x", "y", "k", "q", "j"]) == verbs.run(flow, Sums(), store=store, run_id="r")
    fix = {"state_override": lambda state: dataclasses.replace(state, cost=state.cost + 1)}
    assert 71 == verbs.resume_from(flow, store, "r", "x", **fix).cost
    assert (72, 72) == (verbs.resume_from(flow, store, "r", "k", **fix).cost, verbs.resume(flow, store, "r").cost)
    verbs.call(flow, "fork_run", store, "r", "k", new_run_id="again")
    assert 71 == verbs.resume(flow, store, "again").cost


@few
def test_an_override_in_a_branch_is_refused_where_the_join_cannot_tell_what_it_adds(verbs, store):
    graph = parts(verbs, peak=lambda value, update: value * 10 + update)
    verbs.run(graph, Sums(), store=store, run_id="r")
    before = [record.kind for record in store.read("r")]
    for wrong in ({"peak": 9}, {"notes": ["other"]}):
        base = parts(verbs, peak=max, f=lambda state: {"notes": ["f"]})
        flow, run_id = (graph, "r") if "peak" in wrong else (base, "s")
        if run_id == "s":
            verbs.run(base, Sums(), store=store, run_id="s")
        with pytest.raises(OptionError, match="update="):
            override = {"state_override": lambda state, wrong=wrong: dataclasses.replace(state, **wrong)}
            verbs.resume_from(flow, store, run_id, "p", **override)
    assert before == [record.kind for record in store.read("r")]
    # What it leaves alone stays as the nodes gave it.
    fixed = verbs.resume_from(graph, store, "r", "p", state_override=lambda s: dataclasses.replace(s, cost=7))
    assert (8, 42) == (fixed.cost, fixed.peak)


@few
def test_an_override_where_a_node_of_a_branch_runs_again_is_of_what_that_node_is_given(verbs, store):
    seen: list[int] = []

    def p2(state: Sums) -> dict[str, Any]:
        seen.append(state.cost)
        return {"cost": 5}

    graph = parts(verbs, p2=p2)
    verbs.run(graph, Sums(), store=store, run_id="r")
    fix = {"state_override": lambda state: dataclasses.replace(state, cost=50)}
    assert 56 == verbs.resume_from(graph, store, "r", "p2", rerun=True, **fix).cost
    assert [100, 50] == seen
    with pytest.raises(OptionError, match=r"before the fork, .f."):
        verbs.resume_from(graph, store, "r", "p", rerun=True, **fix)
    assert 156 == verbs.resume_from(graph, store, "r", "f", **fix).cost


# -- saved from outside, where a run forks ---------------------------------------------------------------------


def saved(store: Any, node_id: str, **fields: Any) -> None:
    envelope = {"version": 1, "run_id": "r", "node_id": node_id, "sequence": 1, "timestamp": "2026-01-01T00:00:00Z"}
    state = {"cost": 1000, "notes": [], "peak": 0, "plain": ""}
    store.save("r", node_id, json.dumps({**envelope, "state": state, **fields}).encode())


@pytest.mark.parametrize("fields", [{}, {"next_node": None}, {"next_node": "j"}])
@few
def test_all_branches_run_after_a_checkpoint_that_was_saved_at_their_fork(verbs, store, fields):
    graph = parts(verbs)
    saved(store, "f", **fields)
    with pytest.raises(RunStopped):
        verbs.resume(graph, store, "r", stop_before="p2")
    expected = Sums(1101, ["p", "q"], 4, "p")
    assert (expected, True) == (verbs.resume(graph, store, "r"), store.verify("r").ok)
    saved(store, "f", **fields)
    assert expected == verbs.resume(graph, store, "r")
    assert expected == verbs.resume_from(graph, store, "r", "f")


@few
def test_a_checkpoint_that_was_saved_inside_a_fork_is_refused_and_says_where_to_save_one(verbs, store):
    graph = parts(verbs)
    verbs.run(graph, Sums(), store=store, run_id="r")
    for node_id, fields in (("p", {"next_node": "p2"}), ("p", {}), ("p2", {"next_node": "j"}), ("q", {})):
        saved(store, node_id, **fields)
        for verb, more in (("resume", {}), ("resume_from", {}), ("resume_from", {"rerun": True})):
            arguments = ("r",) if verb == "resume" else ("r", node_id)
            with pytest.raises((CheckpointMigrationError, FlowChangedError), match="fork"):
                verbs.call(graph, verb, store, *arguments, **more)
        assert "refuse" == verbs.plan(graph, store, "r").verdict
    saved(store, "j")
    assert 1000 == verbs.resume(graph, store, "r").cost
    saved(store, "f")
    assert 1101 == verbs.resume(graph, store, "r").cost


@few
def test_a_checkpoint_that_was_saved_inside_a_sub_graph_is_refused(verbs, store):
    inner = Graph(Sums).add_node("a", verbs.node(lambda state: state)).add_node("b", verbs.node(lambda state: state))
    inner = inner.add_edge("a", "b").add_edge("b", END).set_entry("a").compile("inner")
    graph = Graph(Sums).add_subgraph("sub", inner).add_node("b", verbs.node(lambda state: state))
    flow = graph.add_edge("sub", "b").add_edge("b", END).set_entry("sub").compile("outer")
    saved(store, "sub/a", next_node="b")
    with pytest.raises(CheckpointMigrationError, match="save one at node 'sub'"):
        verbs.resume(flow, store, "r")
    saved(store, "sub")
    assert 1000 == verbs.resume(flow, store, "r").cost


@few
def test_the_hint_for_an_override_with_a_fork_open_can_be_followed(verbs, store):
    graph = parts(verbs)
    with pytest.raises(RunStopped):
        verbs.run(graph, Sums(), store=store, run_id="r", stop_after="f")
    fix = {"state_override": lambda state: dataclasses.replace(state, cost=5)}
    with pytest.raises(OptionError, match="or with node 'f'"):
        verbs.resume(graph, store, "r", **fix)
    assert 106 == verbs.resume_from(graph, store, "r", "f", **fix).cost


# -- the checks that a run makes ---------------------------------------------------------------------------------


def carrying(verbs, kind: Any, is_nested: bool) -> Any:
    """A node that succeeds and one that fails, over a state with a field of that type, inside another graph where asked."""
    Holder: Any = dataclasses.make_dataclass("Holder", [("item", kind)])
    graph = Graph(Holder).add_node("a", verbs.node(lambda state: state)).add_node("b", verbs.node(lambda state: 1 / 0))
    graph = graph.add_edge("a", "b").add_edge("b", END).set_entry("a")
    if not is_nested:
        return Holder, graph.compile("holder")
    outer = Graph(dict).add_subgraph(
        "sub", graph.compile(), into=lambda state: Holder({}), out=lambda state, inner: state
    )
    return dict, outer.add_edge("sub", END).set_entry("sub").compile("holder")


def factory(sku: str = "", quantity: int = 0) -> Any:
    """What is no type, and was one once."""


@pytest.mark.parametrize("is_nested", [False, True])
@few
def test_no_verb_goes_on_with_a_state_that_run_would_refuse(verbs, store, is_nested):
    state, graph = carrying(verbs, dict, is_nested)
    with pytest.raises(NodeError):
        verbs.run(graph, {} if is_nested else state({}), store=store, run_id="r")
    before = [record.kind for record in store.read("r")]
    state, graph = carrying(verbs, factory, is_nested)
    engine, given = Engine(store, flows=[graph]), {} if is_nested else state({})
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("run", (graph, given), {"run_id": "new"}),
        ("run", (graph, given), {"run_id": "r", "if_exists": "resume"}),
        ("start", (graph, given), {"run_id": "new"}),
        ("start", (graph, given), {"run_id": "r", "if_exists": "resume"}),
        ("resume", (graph, "r"), {}),
        ("retry", (graph, "r"), {}),
        ("fork_run", (graph, "r"), {}),
    ]
    if not is_nested:
        calls.append(("resume_from", (graph, "r", "a"), {}))
    for verb, arguments, options in calls:
        with pytest.raises(SerializeStateError, match="cannot be recorded"):
            verbs.call(engine, verb, *arguments, **options)
    with pytest.raises(SerializeStateError):
        verbs.resume_stream(graph, store, "r")
    plan = verbs.plan(graph, store, "r")
    assert ("refuse", SerializeStateError) == (plan.verdict, type(plan.error))
    assert (["r"], before) == ([i.run_id for i in store.list_runs()], [record.kind for record in store.read("r")])


@few
def test_a_worker_gives_back_a_run_with_a_state_that_run_would_refuse(verbs, store):
    state, graph = carrying(verbs, dict, False)
    Engine(store, flows=[graph]).start(graph, state({}), run_id="r")
    _, changed = carrying(verbs, factory, False)
    Engine(store, flows=[changed]).worker().run(until_idle=True)
    info = store.get_run("r").info
    assert ("ready", True) == (info.status, "cannot be recorded" in info.reason)


# -- where an amended state leads ---------------------------------------------------------------------------------


class Chat(TypedDict):
    messages: Annotated[list[str], operator.add]


def chat(verbs, log: list[str], router: Any = None) -> Any:
    """A model that calls a tool as long as it is greeted."""

    def model(state: Chat) -> dict[str, Any]:
        log.append("model")
        return {"messages": ["CALL" if state["messages"][-1] == "hi" else "done"]}

    def route(state: Chat) -> str:
        log.append("asked")
        return "tool" if state["messages"][-1] == "CALL" else END

    graph = Graph(Chat, partial=True).add_node("model", verbs.node(model))
    graph.add_node("tool", verbs.node(lambda state: {"messages": ["tool ran"]}))
    graph.add_conditional_edge("model", verbs.node(router or route), ["tool", END])
    return graph.add_edge("tool", "model").set_entry("model").compile("chat")


PLAIN = {"state_override": lambda state: {"messages": ["hi", "plain"]}}
MORE = {"update": {"messages": ["plain"]}}
TOOL = ["tool ran", "done"]


@pytest.mark.parametrize("verb", ["resume", "resume_from", "fork_run"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (PLAIN, ["hi", "plain"]),
        (MORE, ["hi", "CALL", "plain"]),
        ({**PLAIN, "reroute": False}, ["hi", "plain", *TOOL]),
        ({"reroute": True}, ["hi", "CALL", *TOOL]),
    ],
)
@few
def test_an_amended_state_leads_where_the_router_says_unless_the_way_is_to_stay(
    verbs, store, log, verb, options, expected
):
    graph, run_id = chat(verbs, log), "r"
    if verb == "resume":
        with pytest.raises(RunStopped):
            verbs.run(graph, {"messages": ["hi"]}, store=store, run_id="r", stop_after="model")
        log.clear()
        done = verbs.resume(graph, store, "r", **options)
    else:
        verbs.run(graph, {"messages": ["hi"]}, store=store, run_id="r")
        log.clear()
        if verb == "resume_from":
            done = verbs.resume_from(graph, store, "r", "model", visit=1, **options)
        else:
            run_id = verbs.call(graph, "fork_run", store, "r", "model", visit=1, **options)
            done = verbs.resume(graph, store, run_id)
    assert (expected, options.get("reroute") is not False) == (done["messages"], log[:1] == ["asked"])
    assert (expected, True) == (verbs.resume(graph, store, run_id)["messages"], store.verify(run_id).ok)


@few
def test_a_run_that_died_before_its_router_answered_anew_has_it_asked(verbs, timed, log):
    def die(state: Chat) -> str:
        raise verbs.Killed

    with pytest.raises(RunStopped):
        verbs.run(chat(verbs, log), {"messages": ["hi"]}, store=timed, run_id="r", stop_after="model")
    verbs.crash(chat(verbs, log, die), timed, "r", **MORE)
    fork = verbs.call(chat(verbs, log), "fork_run", timed, "r")
    assert {"messages": ["hi", "CALL", "plain"]} == verbs.resume(chat(verbs, log), timed, fork)
    assert {"messages": ["hi", "CALL", "plain", *TOOL]} == verbs.resume(chat(verbs, log), timed, "r", reroute=False)


@few
def test_a_node_that_failed_keeps_its_visit_and_attempts_where_the_router_leads_to_it_again(verbs, store, log):
    seen: list[tuple[int, int]] = []

    def work(ctx: Any, state: Basket) -> Basket:
        seen.append((ctx.visit, ctx.attempt))
        if not state.n:
            raise ValueError("no")
        return state

    graph = Graph(Basket).add_node("a", verbs.node(lambda state: state)).add_node("b", verbs.node(work))
    graph.add_conditional_edge("a", verbs.node(lambda state: "b"), ["b", END]).add_edge("b", END)
    flow = graph.set_entry("a").compile("again")
    with pytest.raises(NodeError):
        verbs.run(flow, Basket(), store=store, run_id="r")
    assert Basket(1) == verbs.resume(flow, store, "r", state_override=lambda state: Basket(1))
    assert [(1, 1), (1, 2)] == seen


@few
def test_the_way_of_a_run_that_waits_or_has_finished_stays(verbs, store):
    asked: list[int] = []

    def route(order: Order) -> str:
        asked.append(order.amount)
        return "ok" if order.amount > 5 else END

    graph = Graph(Order).add_node("price", verbs.node(lambda order: dataclasses.replace(order, amount=10)))
    graph.add_wait("ok", "approval", apply=lambda order, reply: dataclasses.replace(order, by=reply.payload))
    graph.add_conditional_edge("price", verbs.node(route), ["ok", END])
    graph.add_conditional_edge("ok", verbs.node(route), ["ok", END])
    flow = graph.set_entry("price").compile("stays")
    cheap = {"state_override": lambda order: dataclasses.replace(order, amount=1)}
    with pytest.raises(RunSuspended):
        verbs.run(flow, Order(), store=store, run_id="r")
    with pytest.raises(RunSuspended):
        verbs.resume(flow, store, "r", **cheap)
    verbs.call(flow, "signal", store, "r", "approval", "ann")
    assert Order(1, by="ann") == verbs.resume(flow, store, "r", **cheap)
    dear = {"state_override": lambda order: dataclasses.replace(order, amount=99)}
    assert Order(99, by="ann") == verbs.resume(flow, store, "r", **dear)
    assert [10, 1] == asked


# -- a part of a state ----------------------------------------------------------------------------------------------


def test_an_update_is_reduced_as_if_the_node_had_returned_it(verbs, store):
    graph = parts(verbs, peak=lambda value, update: value * 10 + update)
    assert 42 == verbs.run(graph, Sums(), store=store, run_id="r").peak
    done = verbs.resume(graph, store, "r", update={"cost": 1, "plain": "late"})
    assert (102, ["p", "q"], "late") == (done.cost, done.notes, done.plain)
    inside = verbs.resume_from(graph, store, "r", "p", update={"notes": ["more"], "peak": 3, "plain": "new"})
    assert Sums(101, ["p", "more", "q"], 432, "new") == inside == verbs.resume_from(graph, store, "r", "q")
    fork = verbs.call(graph, "fork_run", store, "r", "p", update={"notes": ["fork"]})
    assert ["p", "fork", "q"] == verbs.resume(graph, store, fork).notes
    assert store.verify(fork).ok


@few
def test_an_update_is_refused_where_no_part_can_be_taken_up(verbs, store, line):
    graph = parts(verbs)
    verbs.run(graph, Sums(), store=store, run_id="r")
    whole = line(Basket, "ab", {name: lambda state: state for name in "ab"})
    verbs.run(whole, Basket(), store=store, run_id="w")
    for flow, run_id, options in (
        (whole, "w", {"update": {"n": 1}}),
        (graph, "r", {"update": {"cost": 1}, "state_override": corrected}),
        (graph, "r", {"update": 5}),
    ):
        for verb, more in (("resume", ()), ("fork_run", ())):
            with pytest.raises(OptionError, match="update"):
                verbs.call(flow, verb, store, run_id, *more, **options)
    for wrong in ({"plain": 5}, {"unknown": 1}):
        with pytest.raises(StateTypeError, match="what update= makes of the state for run 'r'"):
            verbs.resume(graph, store, "r", update=wrong)
    assert FINISH == store.read("r", newest=True, limit=1)[0].kind
    assert ["r", "w"] == sorted(info.run_id for info in store.list_runs())


@few
def test_a_fork_of_a_run_amends_the_state_of_a_sub_graph_an_item_and_a_branch(verbs, store):
    inner = Graph(Sums, partial=True).add_node("x", verbs.node(lambda s: {"cost": 1, "notes": ["x"]}))
    inner.add_node("y", verbs.node(lambda s: {"cost": s.cost * 10}))
    small = inner.add_edge("x", "y").add_edge("y", END).set_entry("x").compile("small")
    graph = Graph(dict).add_map(
        "m", lambda s: [Sums(), Sums()], small, merge=lambda s, got: {**s, "m": sum(g.cost for g in got)}
    )
    graph.add_map("f", lambda s: [1, 2], verbs.node(lambda item: item), merge=lambda s, got: {**s, "f": got})
    graph.add_subgraph(
        "sub", small, into=lambda s: Sums(5), out=lambda s, sub: {**s, "sub": sub.cost, "notes": sub.notes}
    )
    graph.add_edge("m", "f").add_edge("f", "sub").add_edge("sub", END)
    flow = graph.set_entry("m").compile("outer")
    usual = {"m": 22, "f": [1, 2], "sub": 66, "notes": ["x"]}
    assert usual == verbs.run(flow, {}, store=store, run_id="r")
    for node_id, options, expected in (
        ("sub/x", {"update": {"cost": 1, "notes": ["more"]}}, {"sub": 77, "notes": ["x", "more"]}),
        ("sub/x", {"state_override": lambda s: Sums(1)}, {"sub": 11, "notes": []}),
        ("m/0/x", {"update": {"cost": 2}}, {"m": 44}),
        ("f/1", {"state_override": lambda item: 7}, {"f": [1, 7]}),
    ):
        fork = verbs.call(flow, "fork_run", store, "r", node_id, **options)
        assert {**usual, **expected} == verbs.resume(flow, store, fork)
        assert (usual, True) == (verbs.resume(flow, store, "r"), store.verify(fork).ok)
    with pytest.raises(OptionError, match="give state_override="):
        verbs.call(flow, "fork_run", store, "r", "f/1", update={"cost": 1})
    with pytest.raises(RunStopped):
        verbs.run(flow, {}, store=store, run_id="s", stop_after="sub/x")
    with pytest.raises(OptionError, match="such as 'sub/x'"):
        verbs.call(flow, "fork_run", store, "s", update={"cost": 1})
    assert 77 == verbs.resume(flow, store, verbs.call(flow, "fork_run", store, "s", "sub/x", update={"cost": 1}))["sub"]
