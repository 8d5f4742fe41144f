"""Recorded runs as regression tests: nothing is executed, and each change of the code's decisions is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from milepost import (
    END,
    Context,
    Engine,
    Graph,
    MemoryStore,
    NodeError,
    Retry,
    StepError,
    Steps,
    WorkflowContext,
    current,
    step,
    workflow,
)
from milepost.errors import MaxIterationsError, OptionError
from milepost.model.failure import bases_of
from milepost.testing import ReplayDifference, UnrecordedCall, replay, run_flow
from milepost.testing.recorded_errors import raised_again
from milepost.testing.tables import for_each

pytest_plugins = ["milepost.testing.plugin"]
wide = pytest.mark.wide

CALLS: list[str] = []
"""What was executed: the nodes and steps are not pure, and count."""


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


class Declined(Exception):
    """An error that is made of two values."""

    def __init__(self, bank: str, code: int) -> None:
        super().__init__(f"{bank} says {code}")


@dataclass
class Order:
    id: str
    items: list[str] = field(default_factory=lambda: ["pen", "ink", "cap"])
    prices: list[int] = field(default_factory=list)
    stock: str = ""
    risk: float = 0.0
    notes: list[str] = field(default_factory=list)
    by: str = ""


def note(name: str, **changes: Any) -> Callable[[Order], Order]:
    def node(order: Order) -> Order:
        CALLS.append(name)
        return replace(order, **{key: value() if callable(value) else value for key, value in changes.items()})

    return node


def items_of(order: Order) -> list[str]:
    CALLS.append("items")  # they may be read from a file, and are recorded
    return order.items


def merged(order: Order, ends: dict[str, Order]) -> Order:
    return replace(order, stock=ends["stock"].stock, risk=ends["score"].risk)


def priced(ctx: Context[Any], item: str) -> int:
    CALLS.append(f"price {item}")
    if item == "ink" and ctx.attempt < 3:
        raise Declined("the shop", ctx.attempt)
    return random.randint(1, 10**9)


def charge(ctx: Context[Any], order: Order) -> Order:
    CALLS.append("charge")
    if ctx.attempt == 1:
        raise ConnectionError("the bank is closed")
    return replace(order, notes=[*order.notes, str(datetime.now(UTC))])


def after_charge(ctx: Context[Any], order: Order) -> str:
    """A router that draws: the recorded bits give the same number again."""
    return "ship" if order.by and ctx.random() >= 0 and ctx.now() else "review"


def orders(**changed: Any) -> Any:
    """A graph with a map, a fork, a wait, retries and a router. `changed` are other decisions than the recorded ones."""
    retried = Retry(max_attempts=3, backoff=0.01, retry_on=(Declined, ConnectionError))
    prompt = changed.get("prompt", lambda order: f"{order.id}: {len(order.prices)} items")
    return (
        Graph(Order)
        .add_map("price", items_of, priced, merge=lambda order, prices: replace(order, prices=prices), retry=retried)
        .add_node("begin", note("begin"))
        .add_node("stock", note("stock", stock=lambda: f"shelf {random.random()}"))
        .add_node("score", note("score", risk=random.random))
        .add_node("join", note("join"), merge=changed.get("merge", merged))
        .add_wait(
            "approve",
            "approval",
            payload=str,
            prompt=prompt,
            apply=changed.get("apply", lambda order, reply: replace(order, by=f"{reply.payload} {reply.sent_at}")),
        )
        .add_node("charge", charge, retry=changed.get("retry", retried))
        .add_node("ship", changed.get("ship", note("ship")))
        .add_node("review", note("review"))
        .add_edge("price", "begin")
        .add_edge("begin", "stock")
        .add_edge("begin", "score")
        .add_edge("stock", "join")
        .add_edge("score", "join")
        .add_edge("join", "approve")
        .add_edge("approve", "charge")
        .add_conditional_edge("charge", changed.get("route", after_charge), ["ship", "review"])
        .add_edge("ship", END)
        .add_edge("review", END)
        .set_entry("price")
        .compile("orders")
    )


def exported(flow: Any, given: Any, **options: Any) -> bytes:
    """Run a flow and export it."""
    with MemoryStore() as store:
        run_flow(flow, given, store=store, run_id="o-17", **options)
        CALLS.clear()
        return store.export("o-17")


@pytest.fixture(scope="module")
def recorded() -> bytes:
    return exported(orders(), Order("o-17"), signals={"approval": "ada"})


def test_a_graph_is_replayed_without_a_call(recorded: bytes):
    again = replay(recorded, orders())
    again.check()
    assert "finished" == again.result.status
    assert ({"price/0", "price/2"}, ("price/1", "price")) == (
        {*again.path[:2]},
        again.path[2:4],
    )  # the ink's price came at its third attempt
    assert ("approve", "charge", "ship") == again.path[-3:]
    assert [] == CALLS


@for_each(
    "changed, at, line",
    [
        ({"route": lambda order: "review"}, "visit 1 of 'charge'", '~ next_node  "ship" -> "review"'),
        ({"prompt": "well?"}, "visit 1 of 'approve', before it began", '~ prompt  "o-17: 3 items" -> "well?"'),
        ({"apply": lambda order, reply: replace(order, by="me")}, "visit 1 of 'approve'", "~ state.by"),
        ({"merge": lambda order, ends: ends["other"]}, "visit 1 of 'join'", "KeyError: 'other'"),
        ({"retry": Retry(max_attempts=3, retry_on=(Declined,))}, "visit 1 of 'charge'", "did not come there"),
        ({"retry": Retry(max_attempts=1)}, "visit 1 of 'charge'", "ConnectionError: the bank is closed"),
    ],
)
def test_a_change_of_a_graphs_decisions_is_the_first_difference(recorded: bytes, changed: Any, at: str, line: str):
    with pytest.raises(ReplayDifference) as refused:
        replay(recorded, orders(**changed)).check()
    assert f" at {at}" in str(refused.value)
    assert line in str(refused.value)
    assert [] == CALLS


@wide
def test_a_call_that_is_not_recorded_is_never_made(recorded: bytes):
    again = replay(recorded, orders(route=lambda order: "review"))
    with pytest.raises(UnrecordedCall, match="'review' was called for visit 1, which is not recorded"):
        again.check()
    with pytest.raises(UnrecordedCall):
        again.result  # noqa: B018
    assert [] == CALLS


@wide
def test_named_nodes_run_for_real_on_the_recorded_state(recorded: bytes):
    def ship(order: Order) -> Order:
        CALLS.append(order.by.partition(" ")[0])
        return replace(order, notes=["shipped"])

    again = replay(recorded, orders(ship=ship), run=["ship"])
    assert ["ada"] == CALLS
    assert ["shipped"] == again.result.state.notes
    with pytest.raises(ReplayDifference, match="visit 1 of 'ship'"):
        again.check()
    again.check(state=False, output=False)
    CALLS.clear()
    with pytest.raises(OptionError, match="calls no 'shpi', which run= names"):
        replay(recorded, orders(), run=["shpi"])


@wide
def test_a_run_of_another_flow_is_refused(recorded: bytes):
    other = Graph(Order).add_node("a", note("a")).add_edge("a", END).set_entry("a").compile("other")
    with pytest.raises(OptionError, match="is one of flow 'orders', not of 'other'"):
        replay(recorded, other)


def test_the_fixture_looks_beside_the_test(recorded: bytes, replay: Any, request: pytest.FixtureRequest):
    file = Path(__file__).with_name("orders-o-17.jsonl")
    file.write_bytes(recorded)
    try:
        replay(file.name, orders()).check()
    finally:
        file.unlink()


# -- workflows ---------------------------------------------------------------------------------------------------


def quote(item: str) -> int:
    CALLS.append("quote")
    return random.randint(1, 10**9)


def pay(total: int) -> str:
    CALLS.append("pay")
    if current().attempt == 1:
        raise Declined("the bank", 1)
    return f"paid {total}"


def fail(total: int) -> str:
    CALLS.append("fail")
    raise Declined("the post", 2)


def unpay(ctx: Any, paid: str) -> None:
    CALLS.append(f"undo {paid}")


def purchases(*, ends: str = "well", **changed: Any) -> Any:
    @workflow("purchases")
    def purchases(ctx: WorkflowContext[Any], item: str) -> Steps[str]:
        total = yield from step("quote").python(quote, args=(changed.get("item", item),))
        if changed.get("swap"):
            yield from step("ask").wait_for("approval", payload=bool)
        paid = (
            yield from step("pay")
            .with_rollback(unpay)
            .retry(changed.get("attempts", 2), 0.01)
            .python(pay, args=(total + changed.get("more", 0),))
        )
        each = yield from step("each").map(quote, items=[item, "ink"])
        gift = yield from step("gift").when(changed.get("when", lambda ctx: False)).python(quote, args=("gift",))
        if not changed.get("swap"):
            yield from step("ask").wait_for("approval", payload=bool)
        try:
            yield from step("post").python(fail, args=(total,))
        except StepError as error:
            if ends == "badly" or not error.matches(Declined):
                raise
        return changed.get("answer", f"{paid} {len(each)} {bool(gift)} {ctx.now() > datetime(2020, 1, 1, tzinfo=UTC)}")

    return purchases


@pytest.fixture(scope="module")
def purchased() -> bytes:
    return exported(purchases(), {"item": "pen"}, signals={"approval": True})


def test_a_workflow_is_replayed_without_a_call(purchased: bytes):
    again = replay(purchased, purchases())
    again.check()
    assert again.result.output.endswith("2 False True")
    assert [] == CALLS


@wide
@for_each(
    "changed, at, line",
    [
        ({"item": "book"}, "visit 1 of 'quote'", '~ args.text  "[\\"pen\\"]" -> "[\\"book\\"]"'),
        ({"more": 1}, "visit 1 of 'pay'", "~ args.text"),
        ({"swap": True}, "visit 1 of 'pay'", "visit 1 of 'ask' came instead"),
        ({"attempts": 1}, "visit 1 of 'pay'", "Declined: the bank says 1"),
        ({"when": lambda ctx: True}, "visit 1 of 'gift'", "'gift' was called for visit 1, which is not recorded"),
    ],
)
def test_a_change_of_a_workflows_code_is_the_first_difference(purchased: bytes, changed: Any, at: str, line: str):
    with pytest.raises(ReplayDifference) as refused:
        replay(purchased, purchases(**changed)).check()
    assert f" at {at}" in str(refused.value)
    assert line in str(refused.value)
    assert [] == CALLS


@wide
def test_another_return_value_is_a_difference_of_the_output(purchased: bytes):
    again = replay(purchased, purchases(answer="other"))
    with pytest.raises(ReplayDifference, match=r'~ output  "paid .* -> "other"'):
        again.check()
    again.check(output=False)


@wide
def test_a_failed_run_fails_again_and_its_rollbacks_are_answered():
    with MemoryStore() as store:
        with pytest.raises(StepError):
            run_flow(purchases(ends="badly"), {"item": "pen"}, signals={"approval": True}, store=store, run_id="o-17")
        data = store.export("o-17")
    CALLS.clear()
    again = replay(data, purchases(ends="badly"))
    again.check()
    with pytest.raises(StepError, match="Declined: the post says 2"):
        again.result  # noqa: B018
    with pytest.raises(ReplayDifference, match="Declined: the post says 2, and now it finishes"):
        replay(data, purchases()).check()
    assert [] == CALLS


@wide
def test_a_run_that_waits_is_replayed_up_to_where_it_stands():
    with MemoryStore() as store:
        with pytest.raises(Exception, match="waits for ask"):
            run_flow(purchases(), {"item": "pen"}, store=store, run_id="o-17")
        data = store.export("o-17")
    CALLS.clear()
    replay(data, purchases()).check()
    with pytest.raises(ReplayDifference, match="at visit 1 of 'quote'"):
        replay(data, purchases(item="ink")).check()
    assert [] == CALLS


@wide
def test_a_graph_that_failed_fails_again():
    def node(order: Order) -> Order:
        raise Declined("the bank", 3)

    graph = Graph(Order).add_node("a", note("a")).add_node("b", node).add_edge("a", "b").add_edge("b", END)
    flow = graph.set_entry("a").compile("short")
    with MemoryStore() as store:
        with pytest.raises(NodeError):
            flow.run(Order("o-17"), store=store, run_id="o-17")
        data = store.export("o-17")
    CALLS.clear()
    again = replay(data, flow)
    again.check()
    with pytest.raises(NodeError, match="Declined: the bank says 3"):
        again.result  # noqa: B018
    assert [] == CALLS


# -- runs that somebody took up again ------------------------------------------------------------------------------


@dataclass
class Tally:
    n: int = 0
    log: list[str] = field(default_factory=list)


def adding(name: str) -> Callable[[Tally], Tally]:
    def node(tally: Tally) -> Tally:
        CALLS.append(name)
        return Tally(tally.n + 1, [*tally.log, name])

    return node


async def drawn(ctx: Context[Any], tally: Tally) -> str:
    return "b" if str(ctx.random()) and ctx.now() and tally.n else END


def tallies(first: str = "a", second: Any = None) -> Any:
    graph = Graph(Tally).add_node(first, adding(first)).add_node("b", second or adding("b"))
    graph = graph.add_conditional_edge(first, drawn, ["b", END]).add_edge("b", END)
    return graph.set_entry(first).compile("tallies")


@wide
async def test_a_run_that_was_amended_continued_and_forked_goes_again():
    flow = tallies()
    with MemoryStore() as store:
        await flow.arun(Tally(), store=store, run_id="t")
        flow.fork_run(store, "t", "a", new_run_id="fork")
        await flow.aresume(store, "fork")
        await flow.aresume_from(store, "t", "a", state_override=lambda tally: Tally(100, tally.log))
        replay(store.export("t"), flow).check()
        for n in (5, 7):
            await flow.arun(Tally(n), store=store, run_id="t", if_exists="continue")
        data, fork = store.export("t"), store.export("fork")
    CALLS.clear()
    again = replay(data, flow)
    again.check()
    assert (("a", "b") * 3, Tally(9, ["a", "b"])) == (again.path, again.result.state)
    replay(fork, flow).check()
    assert [] == CALLS


@wide
def test_a_renamed_node_has_its_new_name():
    def refuse(tally: Tally) -> Tally:
        raise ValueError("not yet")

    with MemoryStore() as store:
        before = Graph(Tally).add_node("a", adding("a")).add_node("b", refuse).add_edge("a", "b").add_edge("b", END)
        with pytest.raises(NodeError):
            before.set_entry("a").compile("tallies").run(Tally(), store=store, run_id="t")
        after = Graph(Tally).add_node("z", adding("z")).add_node("b", adding("b")).add_edge("z", "b").add_edge("b", END)
        flow = after.set_entry("z").compile("tallies")
        with pytest.raises(UnrecordedCall, match="since the run began: node 'z' is new"):
            replay(store.export("t"), flow).check()
        flow.resume(store, "t", rename={"a": "z"})
        data = store.export("t")
    again = replay(data, flow)
    again.check()
    assert ("z", "b") == again.path


@wide
def test_ends_without_a_recorded_outcome_stand_there():
    flow = Graph(Tally).add_node("a", adding("a")).add_conditional_edge("a", lambda tally: "a", ["a", END])
    endless = flow.set_entry("a").compile("endless")
    with MemoryStore() as store:
        with pytest.raises(MaxIterationsError):
            endless.run(Tally(), store=store, run_id="t", max_iterations=5)
        Engine(store, flows=[endless]).start("endless", {"n": 3}, run_id="named")
        data, named = store.export("t"), store.export("named")
    again = replay(data, endless)
    again.check()
    assert ("a",) * 5 == again.path
    replay(named, endless).check()


@wide
def test_a_retry_that_was_the_runs_own_is_made_again_as_often():
    def flaky(ctx: Context[Any], tally: Tally) -> Tally:
        if ctx.attempt < 3:
            raise KeyError("not yet")
        return tally

    flow = Graph(Tally).add_node("a", flaky).add_edge("a", END).set_entry("a").compile("flaky")
    with MemoryStore() as store:
        flow.run(Tally(), store=store, run_id="t", retry=Retry(max_attempts=5, backoff=0))
        data = store.export("t")
    replay(data, flow).check()


@wide
def test_statements_of_a_node_that_runs_for_real_are_not_executed():
    def pay(ctx: Context[Any], tally: Tally) -> Tally:
        ctx.with_checkpoint("this is no SQL")
        return Tally(7)

    data = exported_tally(tallies())
    assert 7 == replay(data, tallies(second=pay), run=["b"]).result.state.n


def exported_tally(flow: Any) -> bytes:
    return exported(flow, Tally())


# -- errors --------------------------------------------------------------------------------------------------------


@wide
def test_a_recorded_error_is_of_the_class_that_is_known():
    fields = {"error_type": "KeyError", "message": "'pen'"}
    error = raised_again(fields, None)
    assert (True, "'pen'", "KeyError") == (isinstance(error, KeyError), str(error), type(error).__name__)
    named = f"{Declined.__module__}.Declined"
    policy = Retry(retry_on=(Declined,))
    for known in (named, "elsewhere.Declined"):
        error = raised_again({"error_type": known, "message": "no"}, policy)
        assert (True, "no") == (isinstance(error, Declined), str(error))
    assert not isinstance(raised_again({"error_type": named, "message": "no"}, None), Declined)


@wide
def test_a_stand_in_is_tried_again_where_it_was_and_has_the_names_of_its_bases():
    policy = Retry(retry_on=(OSError,))
    gone = {"error_type": "bank.Timeout", "message": "no", "error_bases": ["bank.Timeout", "bank.BankError", "OSError"]}
    again = raised_again({**gone, "retry_at": "2026-01-01T00:00:00.000000Z"}, policy)
    assert policy.allows(1, again)
    error = StepError("", error_bases=bases_of(raised_again(gone, None)))
    assert all(error.matches(name) for name in ("bank.Timeout", "bank.BankError", "OSError"))


# -- time, chance and types ----------------------------------------------------------------------------------------


def told(*values: object) -> str:
    return f"{random.random()} {values}"


@workflow("inner")
def inner(ctx: WorkflowContext[Any]) -> Steps[str]:
    first = yield from step("x").python(told, args=(str(ctx.now()), ctx.random()))
    return (yield from step("y").python(told, args=(first, str(ctx.now()), str(ctx.uuid4()))))


@workflow("outer")
def outer(ctx: WorkflowContext[Any]) -> Steps[list[str]]:
    seen = [str(ctx.now()), str(ctx.random())]
    yield from step("p").parallel(
        [step("a").python(told), step("b").subworkflow(inner), step("c").sleep(0.001), step("d").python(told)]
    )
    seen.append((yield from step("q").python(told, args=(str(ctx.now()),))))
    reply = yield from step("w").wait_for("go", payload=int)
    seen.append((yield from step("r").python(told, args=(str(reply.sent_at), str(ctx.now())))))
    return seen


def asked(tally: Tally) -> list[str]:
    return [str(current().now()), str(current().random())]


def joined(tally: Tally, ends: dict[str, Tally]) -> Tally:
    return Tally(tally.n, [*tally.log, *asked(tally)])


@wide
def test_time_and_random_numbers_are_those_of_the_record():
    graph = Graph(Tally)
    for name in "fabc":
        graph.add_node(name, adding(name))
    graph.add_wait("j", "go", prompt=asked, merge=joined, apply=lambda tally, reply: Tally(7, [*tally.log, str(reply)]))
    for source, target in ("fa", "ab", "bj", "fc", "cj"):
        graph.add_edge(source, target)
    forked = graph.add_edge("j", END).set_entry("f").compile("forked")
    with MemoryStore() as store:
        engine = Engine(store, flows=[outer, forked])
        engine.start(outer, run_id="o")
        engine.start(forked, Tally(), run_id="f")
        for run_id in "of":
            engine.handle(run_id).signal("go", 3)
        while any(info.status != "finished" for info in engine.list_runs()):
            engine.worker().run(until_idle=True)
        data = {run_id: store.export(run_id) for run_id in "of"}
    replay(data["o"], outer).check()
    again = replay(data["f"], forked)
    again.check()
    assert 7 == again.result.state.n


@wide
def test_a_state_that_the_flow_cannot_read_any_more_is_no_failure_of_the_node():
    data = exported_tally(tallies())

    @dataclass
    class Tally:
        n: int
        log: dict[str, int]

    graph = Graph(Tally).add_node("a", lambda tally: tally, retry=Retry()).add_edge("a", END)
    with pytest.raises(ReplayDifference, match="log"):
        replay(data, graph.set_entry("a").compile("tallies")).check()
