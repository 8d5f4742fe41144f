"""The command record-test: which files it writes, what it hides in them, and which runs it refuses."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from cli_calls import Answer, Shop, shop

from milepost import END, Graph, MemoryStore, SQLiteStore, Steps, step, workflow
from milepost.errors import CheckpointIntegrityError, OptionError, RunSuspended
from milepost.testing import replay
from milepost.testing.recording import NoTestError, record_test
from milepost.verbs import flow_of

__all__ = ["shop"]

wide = pytest.mark.wide

SOURCE = """
from dataclasses import dataclass, field

from milepost import END, Engine, Graph, Retry, SQLiteStore, Steps, step, workflow

CARD = "4111 1111 1111 1111"


@dataclass
class Order:
    id: str
    card: str = CARD
    total: int = 0
    log: list[str] = field(default_factory=list)


def price(order):
    order.total += 4200
    return order


def charge(ctx, order):
    if ctx.attempt == 1:
        raise ConnectionError(f"the bank refuses {order.card}")
    order.log.append(f"charged {order.card}")
    return order


def route(order):
    print("a router prints this")
    return "price" if order.total < 10_000 else END


def by_card(order):
    return "price" if order.card.startswith("4") and order.total < 9_000 else END


def make(name, router):
    graph = Graph(Order).add_node("price", price).add_node("charge", charge, retry=Retry(backoff=0))
    graph = graph.add_edge("price", "charge").add_conditional_edge("charge", router, ["price", END])
    return graph.set_entry("price").compile(name)


def pay(card, note):
    return f"paid by {card}: {note}"


@workflow("buys")
def buys(card: str, note: str) -> Steps[str]:
    paid = yield from step("pay").python(pay, args=(card, note))
    yield from step("wait").wait_for("go", prompt=f"is {card} yours?")
    return paid


orders = make("orders", route)
store = SQLiteStore("runs.db", **OPTIONS)
engine = Engine(store, flows=[orders, make("strict", by_card), buys])
"""
CARD = b"4111 1111"


def leave_till() -> None:
    """Forget the module, and close its store, which a command that was given another one leaves open."""
    module = sys.modules.pop("till", None)
    if module is not None:
        module.store.close()


@pytest.fixture
def till(shop: Shop) -> Callable[..., Shop]:
    """Write `till.py` with an engine and runs of its flows."""

    def make(**options: Any) -> Shop:
        (shop.folder / "till.py").write_text(f"OPTIONS = {options!r}\n{SOURCE}", encoding="utf-8")
        leave_till()
        sys.path.insert(0, str(shop.folder))
        import till  # type: ignore[import-not-found]

        engine = till.engine
        for run_id in ("o-17", "o_17"):
            engine.run(till.orders, till.Order(run_id), run_id=run_id)
        engine.run(engine.flows["strict"], till.Order("s-1"), run_id="s-1")
        with pytest.raises(RunSuspended):
            engine.run(till.buys, card=till.CARD, note="n" * 300, run_id="b-1", on_wait="suspend")
        engine.close()
        leave_till()
        return shop

    return make


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    leave_till()


def record(shop: Shop, run_id: str, *arguments: str, app: str = "till:engine") -> Answer:
    leave_till()
    return shop.call("record-test", run_id, "--app", app, "--store", "sqlite:///runs.db", *arguments)


def play(path: Path, flow_name: str) -> Any:
    import till

    return replay(path, till.engine.flows[flow_name])


def test_a_run_becomes_two_files(till: Any):
    shop = till()
    answer = record(shop, "o-17")
    assert (0, "wrote tests/runs/orders-o-17.jsonl (11 records, ") == (answer.code, answer.out[:48])
    test = (shop.folder / "tests/runs/test_orders_o_17.py").read_text(encoding="utf-8")
    assert "from till import orders\n" in test
    assert 'def test_orders_o_17(replay):\n    replay("orders-o-17.jsonl", orders).check()\n' in test
    assert 0o600 == stat.S_IMODE((shop.folder / "tests/runs/orders-o-17.jsonl").stat().st_mode)
    header, run = map(json.loads, (shop.folder / "tests/runs/orders-o-17.jsonl").read_text().splitlines()[:2])
    assert {"flow", "fingerprint", "milepost", "recorded", "run"} == header["test"].keys()
    assert {"milepost.written_anew": "plain digests, no seal"} == run["run"]["tags"]
    play(shop.folder / "tests/runs/orders-o-17.jsonl", "orders").check()


@wide
def test_the_store_is_opened_to_read_only_or_has_to_be_named(till: Any, monkeypatch: pytest.MonkeyPatch):
    opened = []

    def look(store: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(store.is_read_only)
        return record_test(store, *arguments, **options)

    monkeypatch.setattr("milepost.cli.recording.record_test", look)
    shop = till()
    for app in ("till:engine", "till:orders"):
        assert 0 == record(shop, "o-17", "--force", app=app).code
    leave_till()
    refused = shop.call("record-test", "o-17", "--app", "till:engine", "--force")
    assert (2, True) == (refused.code, "makes its store itself, to write: give the store's URL" in refused.err)
    (shop.folder / "named.py").write_text(SOURCE.replace('SQLiteStore("runs.db", **OPTIONS)', '"sqlite:///runs.db"'))
    assert 0 == shop.call("record-test", "o-17", "--app", "named:engine", "--force").code
    assert [True, True, True] == opened


@wide
def test_two_ids_that_give_one_name_get_digits(till: Any):
    shop = till()
    assert 0 == record(shop, "o-17").code
    again = record(shop, "o-17")
    assert (2, True) == (again.code, "exist: pass --force to write over them" in again.err)
    assert 0 == record(shop, "o-17", "--force").code
    other = record(shop, "o_17", "--json").json["files"]  # and what the router prints stands beside it
    assert ["tests/runs/orders-o_17-1224b42d.jsonl", "tests/runs/test_orders_o_17_1224b42d.py"] == other


@wide
def test_a_flow_that_the_module_does_not_hold_is_the_engines(till: Any):
    shop = till()
    assert 0 == record(shop, "s-1").code
    test = (shop.folder / "tests/runs/test_strict_s_1.py").read_text(encoding="utf-8")
    assert "from till import engine\n" in test
    assert "replay(\"strict-s-1.jsonl\", engine.flows['strict']).check()" in test


@wide
def test_a_function_that_makes_the_flow_is_called_in_the_test(till: Any):
    shop = till()
    with (shop.folder / "till.py").open("a", encoding="utf-8") as file:
        file.write('def made():\n    return make("strict", by_card)\n\ndef service():\n    return engine\n')
    assert 0 == record(shop, "s-1", "--store", "sqlite:///runs.db", app="till:made").code
    test = shop.folder / "tests/runs/test_strict_s_1.py"
    assert "from till import made\n" in test.read_text(encoding="utf-8")
    assert 'replay("strict-s-1.jsonl", made()).check()' in test.read_text(encoding="utf-8")
    assert 0 == record(shop, "s-1", "--force", app="till:service").code
    assert "service().flows['strict']).check()" in test.read_text(encoding="utf-8")
    (shop.folder / "the-till.py").write_text((shop.folder / "till.py").read_text(encoding="utf-8"), encoding="utf-8")
    answer = record(shop, "o-17", app="the-till.py:engine")
    assert (2, True) == (answer.code, "a test can't import 'the-till.py'" in answer.err)


@wide
def test_a_hidden_value_is_nowhere_in_the_files(till: Any):
    shop = till()
    for run_id, flow, path in (
        ("o-17", "orders", "state.card"),
        ("b-1", "buys", "inputs.card"),
        ("o-17", "orders", "*.card"),
    ):
        answer = record(shop, run_id, "--hide", path, "--rename-run", "--force")
        assert 0 == answer.code, answer.err
        file = shop.folder / f"tests/runs/{flow}-{run_id}.jsonl"
        assert CARD not in file.read_bytes()
        assert b"1111 1111 1111 1111" in file.read_bytes()
        again = play(file, flow)
        again.check()
        assert f"test-{flow}-{run_id}" == again.recorded.row.info.run_id


@wide
def test_hiding_what_the_path_depends_on_is_refused_and_nothing_is_written(till: Any):
    shop = till()
    answer = record(shop, "s-1", "--hide", "state.card")
    assert 1 == answer.code
    assert "hiding state.card changes the path of run 's-1'" in answer.err
    assert '~ next_node  "price" -> "__end__"' in answer.err
    missing = record(shop, "s-1", "--hide", "state.crad")
    assert (1, True) == (missing.code, "no text and no number at 'state.crad'" in missing.err)
    assert not (shop.folder / "tests").exists()


@wide
def test_a_run_that_waits_is_a_test_up_to_there(till: Any):
    shop = till()
    answer = record(shop, "b-1")
    assert (0, True) == (answer.code, "the run is waiting: the test plays it up to where it stands" in answer.out)
    again = play(shop.folder / "tests/runs/buys-b-1.jsonl", "buys")
    again.check()
    assert ("pay",) == again.path


@wide
def test_a_thinned_run_is_refused_with_the_visits_that_are_gone(till: Any):
    shop = till()
    with SQLiteStore("runs.db") as store:
        store.prune(keep_last=1)
    answer = record(shop, "o-17")
    assert 1 == answer.code
    assert "of run 'o-17' are gone, and with them visits price#1, price#2, charge#1, charge#2" in answer.err
    assert not (shop.folder / "tests").exists()


@wide
def test_changed_code_is_told_when_the_test_is_written(till: Any):
    shop = till()
    file = shop.folder / "till.py"
    file.write_text(file.read_text(encoding="utf-8").replace("10_000", "1_000"), encoding="utf-8")
    answer = record(shop, "o-17")
    assert 1 == answer.code
    assert "the test fails with the code as it is" in answer.err
    assert "\n  ~ next_node" in answer.err
    with pytest.raises(
        AssertionError, match=r"visit 1 of 'charge' \(record 3\):\n  ~ next_node  \"price\" -> \"__end__\""
    ):
        play(shop.folder / "tests/runs/orders-o-17.jsonl", "orders").check()


@wide
@pytest.mark.parametrize("options", [{"encryption_key": {"k": bytes(32)}}, {"signing_key": {"k": bytes(32)}}])
def test_an_export_of_a_keyed_store_is_written_anew_without_keys(till: Any, options: dict[str, Any]):
    shop = till(**options)
    refused = record(shop, "o-17")
    if "encryption_key" in options:
        assert (2, True) == (refused.code, "pass --yes-plain-text" in refused.err)
        assert 0 == record(shop, "o-17", "--yes-plain-text").code
    else:
        assert 0 == refused.code
    path = shop.folder / "tests/runs/orders-o-17.jsonl"
    assert b"hmac" not in path.read_bytes()
    play(path, "orders").check()
    with MemoryStore() as store:
        assert "o-17" == store.import_run(path.read_bytes())
    with MemoryStore(signing_key={"k": bytes(32)}) as keyed, pytest.raises(CheckpointIntegrityError):
        keyed.import_run(path.read_bytes())


@wide
def test_pytest_runs_the_test_where_the_app_is_importable(till: Any):
    import subprocess

    shop = till()
    assert 0 == record(shop, "o-17", "--hide", "state.card").code
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "pythonpath=.", "tests/runs"]
    plugin = ["-p", "milepost.testing.plugin"]  # the installed package names it itself
    done = subprocess.run(
        [*command, *plugin],
        cwd=shop.folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "1 passed" in done.stdout, done.stdout


# -- values of all kinds -------------------------------------------------------------------------------------------


@dataclass
class Card:
    number: str
    code: int


@dataclass
class Person:
    name: str


@dataclass
class Order:
    who: str = 'ada "the first" lovelace'
    total: Decimal = Decimal("12.50")
    at: datetime = datetime(2025, 5, 6, 7, 8, 9, tzinfo=UTC)
    day: date = date(2025, 5, 6)
    key: UUID = field(default_factory=lambda: UUID("51c3d66e-786b-4727-92d8-8dbfa0b26ed7"))
    photo: bytes = b"a secret picture"
    by: Card | Person = field(default_factory=lambda: Card("4111", 123))
    cards: list[Card] = field(default_factory=lambda: [Card("4111 2", 1), Card("4111 3", 22)])
    rate: float = 3.25
    by_name: dict[str, int] = field(default_factory=lambda: {'ada "the first" lovelace': 7})
    nobody: int | None = None


def same(order: Order) -> Order:
    return order


@wide
def test_a_hidden_value_of_any_kind_is_one_of_the_same_kind():
    graph = Graph(Order).add_node("lovelace", same).add_edge("lovelace", END).set_entry("lovelace").compile("orders")
    with MemoryStore() as store:
        graph.run(Order(), store=store, run_id="r")
        made = record_test(store, "r", flow_of(graph), hide=["state.*"])
        assert (None, 0) == (made.difference, made.left)
        for secret in (b"ada", b"12.5", b"2025-05", b"51c3", b"c2Vj", b"4111", b"123,", b"3.25"):
            assert secret not in re.sub(rb'[0-9a-f]{32,64}|"life":"[^"]*"', b"", made.data)  # chance is no secret
        one = record_test(store, "r", flow_of(graph), hide=["state.cards.number", "state.by.number"])
        state = replay(one.data, graph).result.state
        assert [("1111 1", 1), ("1111 2", 22)] == [(card.number, card.code) for card in state.cards]
        assert ("ada", 4) == (state.who[:3], len(state.by.number))
        for nothing in ("state.nobody", "state.cards.name"):
            with pytest.raises(NoTestError, match=f"no text and no number at '{nothing}'"):
                record_test(store, "r", flow_of(graph), hide=[nothing])
        graph.run(Order(who="lovelace"), store=store, run_id="named")
        assert 1 == record_test(store, "named", flow_of(graph), hide=["state.who"]).left  # a node has that name too


@pytest.mark.parametrize(
    ("path", "numbers"),
    [
        ("state.cards.number", ["1111 1", "1111 2"]),
        ("state.cards.*.number", ["1111 1", "1111 2"]),
        ("state.cards.1.number", ["4111 2", "1111 1"]),
    ],
)
def test_a_part_of_a_path_takes_an_item_of_a_list_or_leads_to_each(path: str, numbers: list[str]):
    graph = Graph(Order).add_node("pay", same).add_edge("pay", END).set_entry("pay").compile("orders")
    with MemoryStore() as store:
        graph.run(Order(), store=store, run_id="r")
        made = record_test(store, "r", flow_of(graph), hide=[path])
        assert numbers == [card.number for card in replay(made.data, graph).result.state.cards]
        with pytest.raises(OptionError, match=r"a hidden path begins with state, inputs, .*, unlike 'cards.number'"):
            record_test(store, "r", flow_of(graph), hide=["cards.number"])


@workflow("tries")
def tries(value: Any, quantity: int, note: str) -> Steps[Any]:
    yield from step("try").python(told, args=(value, quantity))
    return "done"


def told(value: Any, quantity: int) -> str:
    return "tried"


@wide
@pytest.mark.parametrize(
    "value", ["1111", "aaaa", 1000, "1", "x", -1, 1.0, 7, ["2222", "1111"], ["1", "2", "1"], [10, 11, 1]]
)
def test_each_hidden_value_is_another_afterwards(value: Any):
    with MemoryStore() as store:
        tries.run(value=value, quantity=7, note="", store=store, run_id="r")
        made = record_test(store, "r", flow_of(tries), hide=["inputs.value", "inputs.note"])
    again = replay(made.data, tries)
    again.check()
    new = json.loads(again.recorded.start.record.state() or b"")
    before, after = (found if isinstance(found, list) else [found] for found in (value, new["value"]))
    assert not any(one == other for one, other in zip(before, after, strict=True))
    assert [before.index(one) for one in before] == [after.index(one) for one in after]
    assert (7, type(before[0])) == (new["quantity"], type(after[0]))
    assert (value == 7) == made.left


@wide
def test_a_value_without_another_is_refused_and_one_beside_it_counted():
    with MemoryStore() as store:
        tries.run(value="!!!!", quantity=7, note="", store=store, run_id="r")
        with pytest.raises(NoTestError, match=r"same length is left for one at 'inputs.value'"):
            record_test(store, "r", flow_of(tries), hide=["inputs.value"])
        tries.run(value=1234, quantity=7, note="card 1234, pin ab", store=store, run_id="s")
        assert 1 == record_test(store, "s", flow_of(tries), hide=["inputs.value"]).left


@wide
def test_hiding_what_the_flow_cannot_read_then_is_refused():
    graph = Graph(Kind).add_node("a", lambda kind: kind).add_edge("a", END).set_entry("a").compile("kinds")
    with MemoryStore() as store:
        graph.run(Kind("red", [3]), store=store, run_id="r")
        with pytest.raises(NoTestError, match=r"hiding state.colour leaves what flow 'kinds' can't read"):
            record_test(store, "r", flow_of(graph), hide=["state.colour"])


@dataclass
class Kind:
    colour: Literal["red", "blue"]
    numbers: list[int]
