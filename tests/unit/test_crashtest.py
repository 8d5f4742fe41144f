"""`crashtest` must find what is wrong with a flow, name the node, and pass the flow once that is mended."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from milepost import END, Context, Graph, SQLiteStore, StepError, current, step, workflow
from milepost.errors import OptionError, RunSuspended
from milepost.testing import NonDeterministicNode, crashtest


@dataclass
class Order:
    id: str = "o-1"
    total: float = 0
    at: str = ""
    paid: bool = False
    log: list[str] = field(default_factory=list)


class Bank:
    """The world: what a fake bank was asked for."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.keys: set[str] = set()

    def clear(self) -> None:
        self.charges.clear()
        self.keys.clear()

    def snapshot(self) -> dict[str, Any]:
        return {"charges": list(self.charges)}

    def charge(self, what: str, key: str | None = None) -> None:
        if key is None or key not in self.keys:
            self.charges.append(what)
        if key is not None:
            self.keys.add(key)


def line(*nodes: tuple[str, Callable[..., Any]]) -> Any:
    """A graph of nodes in a row."""
    graph = Graph(Order)
    for node_id, fn in nodes:
        graph.add_node(node_id, fn)
    names = [node_id for node_id, _ in nodes]
    for source, target in zip(names, [*names[1:], END], strict=True):
        graph.add_edge(source, target)
    return graph.set_entry(names[0]).compile("orders")


def price(order: Order) -> Order:
    order.total = 12.5
    return order


def charging(bank: Bank, *, is_mended: bool) -> Any:
    def charge(ctx: Context[Any], order: Order) -> Order:
        bank.charge(order.id, ctx.idempotency_key if is_mended else None)
        order.paid = True
        return order

    return line(("price", price), ("charge", charge))


def guessing(bank: Bank, *, is_mended: bool) -> Any:
    def guess(ctx: Context[Any], order: Order) -> Order:
        order.total = ctx.random() if is_mended else random.random()
        return order

    return line(("price", guess), ("pay", lambda order: order))


def stamping(bank: Bank, *, is_mended: bool) -> Any:
    def stamp(ctx: Context[Any], order: Order) -> Order:
        order.at = (ctx.now() if is_mended else datetime.now()).isoformat()
        return order

    return line(("price", price), ("stamp", stamp))


def counting(bank: Bank, *, is_mended: bool) -> Any:
    seen: list[int] = []

    def count(order: Order) -> Order:
        seen.append(1)
        order.total = 1 if is_mended else len(seen)
        return order

    return line(("price", price), ("count", count))


def rolling_back(bank: Bank, *, is_mended: bool) -> Any:
    def refund(ctx: Context[Any]) -> None:
        bank.charge("refund", ctx.idempotency_key if is_mended else None)

    def ship() -> None:
        raise ConnectionError("no van")

    @workflow("refunding")
    def refunding():
        yield step("charge").python(lambda: 1).with_rollback(refund)
        yield step("ship").python(ship)

    return refunding


def catching(bank: Bank, *, is_mended: bool) -> Any:
    def by_card() -> None:
        ctx = current()
        bank.charge("card", ctx.idempotency_key if is_mended else None)
        raise ConnectionError("no answer")

    @workflow("paying")
    def paying():
        try:
            yield step("card").python(by_card)
        except StepError:
            return (yield from step("invoice").python(lambda: "invoice"))
        return "card"

    return paying


def picking(bank: Bank, *, is_mended: bool) -> Any:
    @workflow("picking")
    def pick():
        name = "b" if not is_mended and random.random() < 0.5 else "a"
        if not is_mended:
            name += str(random.random())
        return (yield from step(f"pick-{name}").python(lambda: 1))

    return pick


def shouting(bank: Bank, *, is_mended: bool) -> Any:
    @workflow("shouting")
    def shout():
        if not is_mended:
            bank.charge("the code of a workflow runs again in each process")
        return (yield from step("say").python(lambda: 1))

    return shout


FAULTS: dict[str, tuple[Callable[..., Any], Any, dict[str, Any]]] = {
    "a double charge": (charging, "charge", {}),
    "randomness": (guessing, NonDeterministicNode, {}),
    "the time": (stamping, NonDeterministicNode, {}),
    "a global counter": (counting, NonDeterministicNode, {}),
    "a rollback that is done twice": (rolling_back, "rollback of charge", {"fails": True}),
    "a step that does half and fails, and whose failure is caught": (catching, "card", {}),
    "a workflow that draws lots": (picking, NonDeterministicNode, {}),
    "a workflow that does more than asking for steps": (shouting, "code of shouting", {}),
}


@pytest.fixture
def bank() -> Bank:
    return Bank()


MORE = {"a workflow that draws lots", "a workflow that does more than asking for steps"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.wide] if name in MORE else []) for name in FAULTS]
)
def test_crashtest_finds_a_fault_and_passes_the_flow_without_it(name: str, bank: Bank):
    make, found, options = FAULTS[name]

    def crashed(is_mended: bool) -> Any:
        flow = make(bank, is_mended=is_mended)
        given = Order() if isinstance(flow, type(line(("price", price)))) else None
        return crashtest(flow, given, before=bank.clear, world=bank.snapshot, **options)

    if isinstance(found, str):
        assert (found,) == crashed(False).not_idempotent
    else:
        with pytest.raises(found):
            crashed(False)
    mended = crashed(True)
    assert () == mended.not_idempotent == mended.disagreements
    assert {"safe"} == {node.verdict for node in mended.nodes}


def test_a_report_says_of_each_node_how_often_it_ran_again_and_what_that_changed(bank: Bank):
    report = crashtest(charging(bank, is_mended=False), Order(), before=bank.clear, world=bank.snapshot)
    first, charge = report.nodes
    assert ("price", (), "safe") == (first.node, first.world_difference, first.verdict)
    assert 0 < charge.ran_again <= report.scenarios
    assert ({"op": "add", "path": "/charges/1", "value": "o-1"},) == charge.world_difference


@pytest.mark.wide
@pytest.mark.parametrize("is_mended", [False, True])
def test_a_node_is_blamed_beside_code_that_changes_the_world_too(bank: Bank, is_mended: bool):
    @workflow("paying")
    def paying():
        bank.charge("by the code")
        yield from step("charge").python(charge)
        yield from step("ship").python(lambda: 1)

    def charge() -> int:
        bank.charge("by the step", current().idempotency_key if is_mended else None)
        return 1

    report = crashtest(paying, None, before=bank.clear, world=bank.snapshot)
    assert {"code of paying", *([] if is_mended else ["charge"])} == set(report.not_idempotent)
    assert {"charge": "safe" if is_mended else "not idempotent", "ship": "safe"}.items() <= {
        node.node: node.verdict for node in report.nodes
    }.items()


def test_without_a_probe_no_node_is_called_safe(bank: Bank):
    report = crashtest(charging(bank, is_mended=False), Order())
    assert {"not looked at"} == {node.verdict for node in report.nodes}
    assert () == report.not_idempotent


def test_a_node_that_is_not_deterministic_is_named_with_both_values(bank: Bank):
    with pytest.raises(
        NonDeterministicNode, match=r"^node 'price' is not deterministic: total 0\.\d+ / 0\.\d+;"
    ) as caught:
        crashtest(guessing(bank, is_mended=False), Order())
    one, other = caught.value.values
    assert ("price", 1) == (caught.value.node, caught.value.visit)
    assert one["id"] == other["id"]
    assert one["total"] != other["total"]


def test_a_counter_that_is_reset_between_runs_is_found_where_it_counts_twice():
    seen: list[int] = []

    def count(order: Order) -> Order:
        seen.append(1)
        order.total = len(seen)
        return order

    flow = line(("price", price), ("count", count), ("ship", lambda order: order))
    with pytest.raises(AssertionError, match="first seen at node 'count'"):
        crashtest(flow, Order(), before=seen.clear)


def test_the_outputs_of_a_named_node_may_differ_but_not_the_way_of_the_run(bank: Bank):
    flow = guessing(bank, is_mended=False)
    assert crashtest(flow, Order(), nondeterministic=("price",)).scenarios > 10
    graph = (
        Graph(Order)
        .add_node("model", lambda order: Order(total=random.random()))
        .add_node("a", price)
        .add_conditional_edge("model", lambda order: "a" if next(turns) else END, ["a", END])
        .add_edge("a", END)
        .set_entry("model")
        .compile("routed")
    )
    turns = iter([True, False])
    with pytest.raises(NonDeterministicNode, match="the way after node 'model'"):
        crashtest(graph, Order(), nondeterministic=["model"])
    with pytest.raises(OptionError, match="names 'modle', which did not run: price, pay did"):
        crashtest(flow, Order(), nondeterministic=["price", "modle"])


def test_the_items_of_a_named_map_may_differ():
    @workflow("mapping")
    def mapping():
        return (yield from step("ask").map(lambda item: random.random(), [1, 2]))

    with pytest.raises(NonDeterministicNode, match=r"^step 'ask"):
        crashtest(mapping)
    assert crashtest(mapping, nondeterministic=["ask"], places=2).scenarios


def test_a_world_that_nobody_resets_is_refused(bank: Bank):
    with pytest.raises(OptionError, match=r"two undisturbed runs leave different worlds.*reset it with before="):
        crashtest(charging(bank, is_mended=False), Order(), world=bank.snapshot)
    with pytest.raises(OptionError, match="is no JSON"):
        crashtest(charging(bank, is_mended=False), Order(), world=lambda: bank)


@pytest.mark.wide
def test_a_sample_says_which_nodes_it_has_not_tried(bank: Bank):
    flow = charging(bank, is_mended=True)
    everything = crashtest(flow, Order(), before=bank.clear, world=bank.snapshot)
    report = crashtest(flow, Order(), before=bank.clear, world=bank.snapshot, places=2)
    assert 2 == report.scenarios < everything.scenarios
    assert {"not tried"} == {node.verdict for node in report.nodes}
    assert everything.scenarios == crashtest(flow, Order(), places=1000).scenarios
    with pytest.raises(OptionError, match="places must be 1 or more"):
        crashtest(flow, Order(), places=0)


def test_a_run_that_has_to_fail_is_refused_when_it_does_not(bank: Bank):
    with pytest.raises(OptionError, match="the run ended finished, and fails=True"):
        crashtest(charging(bank, is_mended=True), Order(), fails=True)
    with pytest.raises(StepError):
        crashtest(rolling_back(bank, is_mended=True))


def test_an_error_that_only_crashed_runs_meet_is_told_with_its_node():
    opened: list[str] = []

    def create(order: Order) -> Order:
        if opened:
            raise FileExistsError("there already")
        opened.append(order.id)
        return order

    with pytest.raises(AssertionError, match=r"the run ended with .*FileExistsError") as caught:
        crashtest(line(("create", create)), Order(), before=opened.clear)
    assert caught.value.__cause__ is not None


def test_a_flow_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.testing.scenarios.MOST_EFFECTS", 50)

    @workflow("endless")
    def endless():
        number = 0
        while True:
            number += 1
            yield step(f"nap-{number}").sleep(3600)

    with pytest.raises(OptionError, match="the flow has not ended after 50 effects; it was at"):
        crashtest(endless)


def test_a_signal_that_is_not_given_is_named():
    @workflow("asking")
    def asking():
        return (yield from step("ask").wait_for("approval")).payload

    with pytest.raises(RunSuspended, match="'approval'"):
        crashtest(asking)
    assert "ask" in {node.node for node in crashtest(asking, signals={"approval": True}, places=2).nodes}
    with pytest.raises(OptionError, match="names 'other', for which the run did not wait: it waited for approval"):
        crashtest(asking, signals={"approval": True, "other": 1})


def test_a_crash_takes_no_time_on_any_store(tmp_path: Path):
    flow = stamping(Bank(), is_mended=True)
    report = crashtest(flow, Order(), store=lambda clock: SQLiteStore(tmp_path / "runs.db", clock=clock))
    assert () == report.disagreements
