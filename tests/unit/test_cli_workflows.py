"""Workflows of steps on the command line: run, resume, retry, signal, cancel, show, watch, and what workers do with them."""

from __future__ import annotations

import json
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest
from cli_calls import Answer, Shop, shop

from milepost.testing.tables import for_each
from milepost.views.text import utc

__all__ = ["shop"]

SOURCE = """
import asyncio
import atexit
from decimal import Decimal
from pathlib import Path

from milepost import END, Engine, Graph, Steps, WorkflowContext, branch, parallel, step, workflow


def price(order: str, rate: Decimal) -> Decimal:
    print("a step prints this")
    return rate * len(order)


async def charge(amount: Decimal) -> str:
    return f"paid {amount}"


def refuse(order: str) -> str:
    raise ConnectionError("the bank\\nis closed")


def take_back(ctx, output):
    print(f"taken back: {output}")


def fail_to_take_back(ctx):
    raise TimeoutError("no answer")


@workflow("orders")
def orders(ctx: WorkflowContext, order: str, rate: Decimal = Decimal("2.50"), ratio: float = 1.0) -> Steps[dict]:
    amount = yield step("price").python(price, args=(order, rate)).checkpoint()
    paid = yield step("charge").python(charge, args=(amount,))
    return {"order": order, "paid": paid}


@workflow("nothing")
def nothing() -> Steps[None]:
    yield step("price").python(price, args=("x", Decimal(1)))


@workflow("undone")
def undone() -> Steps[None]:
    yield step("reserve").python(price, args=("ab", Decimal(1))).with_rollback(take_back)
    yield step("book").python(price, args=("a", Decimal(1))).with_rollback(fail_to_take_back)
    yield step("notify").python(price, args=("abc", Decimal(1)))
    yield step("pay").python(refuse, args=("a",)).retry(2, 0)


@workflow("approved")
def approved(order: str = "o") -> Steps[str]:
    yield step("reserve").python(price, args=(order, Decimal(1))).with_rollback(take_back)
    reply = yield step("approve").wait_for("approval", prompt="is it good?", payload=bool)
    return "sent" if reply.payload else "dropped"


@workflow("both approved")
def both_approved() -> Steps[list]:
    both = yield parallel("both", step("one").wait_for("approval", prompt={"of": 1}), step("two").wait_for("approval"))
    return [child.output.payload for child in both]


@workflow("napping")
def napping() -> Steps[str]:
    yield step("nap").sleep(days := 86400)
    return "awake"


async def add_slowly(x: int) -> int:
    for _ in range(100):
        await asyncio.sleep(0)
    return x + 1


def add(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x + 1


@workflow("inner")
def inner(a: int) -> Steps[int]:
    b = yield step("first").python(add, args=(a,))
    return (yield step("second").python(add, args=(b,)))


graph = (
    Graph(dict).add_node("n1", lambda s: {**s, "n1": 1}).add_edge("n1", END).set_entry("n1").compile("inside")
)


@workflow("everything")
def everything() -> Steps[int]:
    yield step("skipped").when(lambda ctx: False).python(add, args=(1,))
    yield branch("chosen", (lambda ctx: False, step("left").python(add, args=(1,))),
                 (lambda ctx: True, step("right").python(add, args=(1,))))
    yield step("mapped").map(add, [1, 2])
    yield step("sub").subworkflow(inner, {"a": 5})
    yield step("walked").subworkflow(graph, {"s": 0})
    yield step("recovered").python(add, args=(3,)).on_error(lambda ctx, failed: step("fallback").python(add, args=(7,)))
    yield step("left out").python(add, args=(3,)).skip_on_error()
    yield step("failed").python(add, args=(3,)).as_result()
    yield parallel("at once", step("good").python(add_slowly, args=(1,)), step("bad").python(add, args=(3,)))
    reply = yield step("asked").wait_for("answer", prompt="how many?", payload=int, timeout=3600)
    return reply.payload


@workflow("holds")
def holds() -> Steps[None]:
    yield step("first").python(add, args=(1,))
    yield step("long").python(sleep_long)


async def sleep_long() -> None:
    print("held\\n", end="", flush=True)  # in one piece, whoever else prints
    try:
        await asyncio.sleep(0 if Path("go").exists() else 60)
    finally:
        while not Path("go").exists():  # a clean-up that takes its time
            await asyncio.sleep(0.01)


def plain():
    yield step("x").python(add, args=(1,))


engine = Engine("sqlite:///.milepost/runs.db", flows=[orders, approved, napping])
atexit.register(engine.close)
"""


class Bookings(Shop):
    """A working directory with `bookings.py` in it."""

    def call(self, *arguments: str) -> Answer:
        found = sys.modules.pop("bookings", None)
        try:
            return super().call(*arguments)
        finally:
            for module in (found, sys.modules.pop("bookings", None)):
                if module is not None:
                    module.engine.close()

    def change(self, old: str, new: str) -> None:
        """Change the code of the workflows."""
        path = self.folder / "bookings.py"
        source = path.read_text(encoding="utf-8")
        assert old in source
        path.write_text(source.replace(old, new), encoding="utf-8")

    def show(self, run_id: str) -> Any:
        """What show tells of a run."""
        return self.call("show", run_id, "--json").json

    def rows(self, run_id: str) -> list[list[str]]:
        """The table of steps that show prints: name as it stands, kind, status, and what is told."""
        parts = self.call("show", run_id).out.split("\n\n")
        header, *rows = next(part for part in parts if " kind " in part).splitlines()
        at = [header.index(column) for column in ("kind", "status", "attempts", "detail")]
        return [
            [row[: at[0]].rstrip(), row[at[0] : at[1]].strip(), row[at[1] : at[2]].strip(), row[at[3] :]]
            for row in rows
        ]


@pytest.fixture
def bookings(shop: Shop) -> Iterator[Bookings]:
    (shop.folder / ".milepost").mkdir()
    (shop.folder / "bookings.py").write_text(SOURCE, encoding="utf-8")
    yield Bookings(shop.folder, shop.capsys)
    sys.modules.pop("bookings", None)


def names(answer: Answer, event: str) -> list[str]:
    return [found["step_name"] for found in answer.events if found["event"] == event]


# -- run -----------------------------------------------------------------------------------------------------


def test_run_tells_each_step_and_prints_what_the_workflow_returned(bookings: Bookings) -> None:
    answer = bookings.call("run", "bookings:orders", "--input", "order=abcd", "--run-id", "a")
    assert (0, "") == (answer.code, answer.err)
    lines = answer.out.splitlines()
    assert "run 'a' of flow 'orders' starts" == lines[0]
    assert "a step prints this" in lines
    assert [["done", "price"], ["done", "charge"]] == [line.split()[:2] for line in lines if line.startswith("  done")]
    assert {"order": "abcd", "paid": "paid 10.00"} == json.loads("\n".join(lines[lines.index("{") : -1]))


def test_run_with_json_prints_a_line_for_each_event_and_the_output_last(bookings: Bookings) -> None:
    answer = bookings.call("run", "bookings.py:orders", "-i", "order=ab", "--run-id", "a", "--json")
    first, *_, ended, result = answer.events
    assert (0, "WorkflowStarted") == (answer.code, first["event"])
    assert {"order": "ab", "rate": "2.50", "ratio": 1.0} == first["inputs"]
    assert ["price", "charge"] == names(answer, "StepStarted") == names(answer, "StepCompleted")
    assert ("WorkflowCompleted", "finished") == (ended["event"], ended["status"])
    assert ("Result", "finished", "a") == (result["event"], result["status"], result["run_id"])
    assert {"order": "ab", "paid": "paid 5.00"} == result["output"]
    assert "a step prints this" in answer.err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("-i", "order=007", "-i", "ratio=3"), {"order": "007", "rate": "2.50", "ratio": 3}),
        (("-i", 'order="7"', "-i", 'rate="1.5"'), {"order": "7", "rate": "1.5", "ratio": 1.0}),
        (('{"order": "x", "rate": "3"}',), {"order": "x", "rate": "3", "ratio": 1.0}),
    ],
)
def test_inputs_are_json_where_they_parse_and_have_their_defaults(
    bookings: Bookings, given: tuple[str, ...], expected: dict[str, Any]
) -> None:
    answer = bookings.call("run", "bookings:orders", *given, "--run-id", "a", "--json")
    assert (0, expected) == (answer.code, answer.events[0]["inputs"])


@for_each(
    "arguments, told",
    [
        (["run", "bookings:orders"], "workflow 'orders': missing input 'order'; its inputs are: order, rate, ratio"),
        (["run", "bookings:orders", "-i", "order=a", "-i", "b=1"], "workflow 'orders': unknown input 'b'; its inputs"),
        (["run", "bookings:orders", '{"b": 1}'], "unknown input 'b', missing input 'order'"),
        (["run", "bookings:orders", "-i", "order=a", "-i", "rate=x"], 'input["rate"] should be decimal.Decimal'),
        (["run", "bookings:orders", "-i", "order=1"], "the input does not fit workflow 'orders': input[\"order\"]"),
        (["run", "bookings:orders", "[1]"], "takes a JSON object of its inputs: order, rate, ratio"),
        (["run", "bookings:orders", "{"], "the input of workflow 'orders' is no JSON"),
        (["run", "bookings:plain"], "is a function and no workflow yet: put @workflow(name) above it"),
        (["run", "bookings:lost"], "it has approved, both_approved, everything, graph, "),
        (["start", "bookings:orders"], "missing input 'order'"),
        (["start", "orders", "--app", "bookings:engine"], "missing input 'order'"),
        (["graph", "bookings:orders"], "workflow 'orders', whose steps are known only while it runs"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(bookings: Bookings, arguments: list[str], told: str) -> None:
    answer = bookings.call(*arguments)
    assert (2, "") == (answer.code, answer.out)
    assert 1 == len([line for line in answer.err.splitlines() if ": app " not in line])
    assert told in answer.err


def test_a_run_id_that_is_taken_is_refused_resumed_or_compared(bookings: Bookings) -> None:
    run = ("run", "bookings:orders", "--run-id", "a")
    assert 0 == bookings.call(*run, "-i", "order=a").code
    assert 1 == bookings.call(*run, "-i", "order=a").code
    again = bookings.call(*run, "-i", "order=a", "--if-exists", "resume", "--json")
    assert (0, {"order": "a", "paid": "paid 2.50"}) == (again.code, again.events[-1]["output"])
    other = bookings.call(*run, "-i", "order=b", "--if-exists", "resume")
    assert 1 == other.code
    assert "'order'" in other.err


# -- what fails ----------------------------------------------------------------------------------------------


def test_a_failed_run_tells_its_attempts_and_what_was_undone(bookings: Bookings) -> None:
    answer = bookings.call("run", "bookings:undone", "--run-id", "u")
    assert 1 == answer.code
    assert (
        "  failed  pay#1                attempt 1: ConnectionError: the bank\\nis closed; again in 0.0 ms" in answer.out
    )
    assert "  failed  book                 could not be undone: TimeoutError: no answer" in answer.out
    assert "  undone  reserve" in answer.out.splitlines()
    assert "taken back: 2" in answer.out
    assert "milepost: step 'pay' of run 'u' failed after 2 failed attempts: ConnectionError: the bank" in answer.err
    assert "Traceback" not in answer.err + answer.out


def test_show_tells_what_was_rolled_back_and_what_could_not_be(bookings: Bookings) -> None:
    bookings.call("run", "bookings:undone", "--run-id", "u")
    assert [
        ["reserve", "python", "rolled back", "2"],
        ["book", "python", "rollback failed", "TimeoutError: no answer"],
        ["notify", "python", "done", "3"],
        ["pay", "-", "failed", "ConnectionError: the bank\\nis closed"],
    ] == [[*row[:3], row[3].strip('"')] for row in bookings.rows("u")]
    shown = bookings.show("u")
    assert ("failed", "pay") == (shown["run"]["status"], shown["next_node"])
    assert (2, 2) == (shown["steps"][3]["attempts"], shown["steps"][3]["failures"])


def test_retry_does_again_what_failed_and_keeps_superseded_results_apart(bookings: Bookings) -> None:
    bookings.call("run", "bookings:undone", "--run-id", "u")
    bookings.change('(refuse, args=("a",))', "(add, args=(1,))")
    answer = bookings.call("retry", "u", "bookings:undone", "--json")
    assert (0, "finished") == (answer.code, answer.events[-1]["status"])
    assert ["reserve", "book", "notify", "pay"] == names(answer, "StepStarted")
    shown = bookings.show("u")
    assert ["done"] * 4 == [step["status"] for step in shown["steps"]]
    assert [("reserve", 1), ("book", 1), ("notify", 1)] == [(s["step_id"], s["visit"]) for s in shown["superseded"]]
    assert "3 results: reserve#1, book#1, notify#1" in bookings.call("show", "u").out


def test_resume_of_a_workflow_that_changed_names_both_steps_and_runs_nothing(bookings: Bookings) -> None:
    bookings.call("run", "bookings:approved", "--run-id", "a")
    bookings.call("signal", "a", "approval", "true")
    before = bookings.call("export", "a").out
    bookings.change('step("reserve")', 'step("hold")')
    answer = bookings.call("resume", "a", "bookings:approved")
    assert (1, "") == (answer.code, answer.out)
    assert "step 1 of run 'a' was recorded as python step 'reserve'" in answer.err
    assert "and the code now asks for python step 'hold'" in answer.err
    assert "with --rename OLD=NEW" in answer.err
    told = bookings.call("resume", "a", "bookings:approved", "--json").json["error"]
    assert "NonDeterminismError" == told["type"]
    (difference,) = told["differences"]
    assert difference.startswith("step 1 is python step 'hold' instead of python step 'reserve'")
    planned = bookings.call("resume", "a", "bookings:approved", "--plan")
    assert (1, True) == (planned.code, planned.out.startswith("run 'a': refuse: step 1 of run 'a' was recorded as"))
    assert before == bookings.call("export", "a").out
    assert 0 == bookings.call("resume", "a", "bookings:approved", "--rename", "reserve=hold").code


# -- waits ---------------------------------------------------------------------------------------------------


def test_a_run_that_waits_has_exit_code_4_and_names_the_commands_that_go_on(bookings: Bookings) -> None:
    answer = bookings.call("run", "bookings:approved", "--run-id", "a")
    assert (4, "") == (answer.code, answer.err)
    told = answer.out.splitlines()[-4:]
    assert told[0].startswith("run 'a' waiting after ")
    assert [
        "approve#1 waits for signal 'approval': is it good?",
        "  milepost signal a approval [JSON]",
        "then a worker, or: milepost resume a bookings:approved",
    ] == told[1:]
    send, resume = (shlex.split(line.partition("milepost ")[2].replace("[JSON]", "true")) for line in told[2:])
    assert "signal 'approval' of run 'a': taken: the run waits for it\n" == bookings.call(*send).out
    answer = bookings.call(*resume)
    assert (0, '"sent"') == (answer.code, answer.out.splitlines()[-2])


def test_the_commands_that_go_on_name_store_and_wait_where_they_have_to(bookings: Bookings) -> None:
    url = "sqlite:///other.db"
    answer = bookings.call("run", "bookings:both_approved", "--run-id", "a b", "--store", url)
    assert 4 == answer.code
    *waits, last = answer.out.splitlines()[-5:]
    assert f"then a worker, or: milepost resume 'a b' bookings:both_approved --store {url}" == last
    # Which of the two began to wait first is not said.
    assert [
        (
            "both/one#1 waits for signal 'approval': {\"of\": 1}",
            f"  milepost signal 'a b' approval [JSON] --to 'both/one#1' --store {url}",
        ),
        (
            "both/two#1 waits for signal 'approval'",
            f"  milepost signal 'a b' approval [JSON] --to 'both/two#1' --store {url}",
        ),
    ] == sorted(zip(waits[::2], waits[1::2], strict=True))
    for number, wait in enumerate(("both/two#1", "both/one#1")):
        sent = bookings.call("signal", "a b", "approval", str(number), "--to", wait, "--id", wait, "--store", url)
        assert 0 == sent.code
    answer = bookings.call("resume", "a b", "bookings:both_approved", "--store", url, "--json")
    assert (0, [1, 0]) == (answer.code, answer.events[-1]["output"])


def test_a_signal_with_an_id_that_was_seen_is_a_duplicate(bookings: Bookings) -> None:
    bookings.call("run", "bookings:approved", "--run-id", "a")
    sends = ("signal", "a", "approval", "true", "--json")
    told = [bookings.call(*sends, option, "s-1").json["outcome"] for option in ("--id", "--signal-id")]
    assert ["taken", "duplicate"] == told


def test_resume_of_a_run_that_still_waits_says_for_what(bookings: Bookings) -> None:
    bookings.call("run", "bookings:approved", "--run-id", "a")
    answer = bookings.call("resume", "a", "bookings:approved")
    assert (4, "") == (answer.code, answer.err)
    assert "approve#1 waits for signal 'approval': is it good?" == answer.out.splitlines()[0]
    document = bookings.call("resume", "a", "bookings:approved", "--json").json
    assert ("Result", "waiting") == (document["event"], document["status"])
    wait = {"wait_id": "approve#1", "signal": "approval", "prompt": "is it good?", "wake_at": None}
    assert [wait] == document["waiting_for"]


def test_a_payload_of_the_wrong_type_is_refused_and_show_says_so(bookings: Bookings) -> None:
    bookings.call("start", "bookings:approved", "--run-id", "a")
    bookings.call("signal", "a", "approval", '"perhaps"')
    assert 4 == bookings.call("resume", "a", "bookings:approved").code
    (row,) = [row for row in bookings.rows("a") if row[0] == "approve"]
    assert "waiting" == row[2]
    assert "the payload of signal 'approval' is refused" in row[3]
    assert "the payload of signal 'approval' is refused" in bookings.show("a")["why"]
    answer = bookings.call("signal", "a", "approval", '"perhaps"')
    assert (True, "") == (answer.code > 0, answer.out)
    assert "the payload of signal 'approval' is refused" in answer.err


def test_show_of_a_run_that_sleeps_says_until_when(bookings: Bookings) -> None:
    answer = bookings.call("run", "bookings:napping", "--run-id", "n", "--json")
    wake_at = answer.events[-1]["wake_at"]
    assert (4, True) == (answer.code, wake_at.endswith("Z"))
    shown = bookings.show("n")
    assert ("timer", "waiting", wake_at) == (
        shown["steps"][0]["step_type"],
        shown["steps"][0]["status"],
        shown["steps"][0]["wait"]["wake_at"],
    )


def test_cancel_of_a_run_that_waits_is_carried_out_with_its_rollbacks(bookings: Bookings) -> None:
    bookings.call("run", "bookings:approved", "--run-id", "a")
    assert 0 == bookings.call("cancel", "a", "--reason", "no money").code
    answer = bookings.call("worker", "--app", "bookings:engine", "--until-idle")
    assert 0 == answer.code
    assert "taken back: 1" in answer.out
    assert "cancelled" == bookings.show("a")["run"]["status"]
    assert [["reserve", "rolled back"], ["approve", "unfinished"]] == [[row[0], row[2]] for row in bookings.rows("a")]


# -- show, history and the rest look at the journal alone ----------------------------------------------------


@pytest.fixture
def waiting(bookings: Bookings) -> Bookings:
    """A run of every construct, which waits; its code is gone."""
    assert 4 == bookings.call("run", "bookings:everything", "--run-id", "e").code
    (bookings.folder / "bookings.py").unlink()
    return bookings


def test_show_has_the_tree_of_steps_without_the_users_code(waiting: Bookings) -> None:
    rows = waiting.rows("e")
    assert [
        ["skipped", "python", "skipped", "predicate_false"],
        ["chosen", "branch", "done", "took right"],
        ["  right", "python", "done", "2"],
        ["mapped", "map", "done", "2 items"],
        ["  0", "python", "done", "2"],
        ["  1", "python", "done", "3"],
        ["sub", "subworkflow", "done", "7"],
        ["  first", "python", "done", "6"],
        ["  second", "python", "done", "7"],
        ["walked", "subworkflow", "done", '{"s": 0, "n1": 1}'],
        ["  n1", "node", "done", '{"s": 0, "n1": 1}'],
        ["recovered", "python", "recovered", "by its on_error"],
        ["  fallback", "python", "done", "8"],
        ["left out", "python", "skipped", "error_skipped: ValueError: three"],
        ["failed", "python", "failed", "ValueError: three"],
        ["at once", "parallel", "done", "2 steps, 1 failed"],
        ["  good", "python", "done", "2"],
        ["  bad", "python", "failed", "ValueError: three"],
    ] == rows[:18]
    (wait,) = waiting.show("e")["run"]["waiting_for"]
    until = utc(datetime.fromisoformat(wait["wake_at"]))
    assert ["asked", "wait", "waiting", f"for signal 'answer' until {until}: how many?"] == rows[18]


def test_show_with_json_nests_the_steps_and_has_their_outputs(waiting: Bookings) -> None:
    shown = waiting.show("e")
    steps = {step["step_id"]: step for step in shown["steps"]}
    assert ["sub/first", "sub/second"] == [step["step_id"] for step in steps["sub"]["steps"]]
    assert ({"final_output": 7}, "succeeded") == (steps["sub"]["output"], steps["sub"]["outcome"])
    assert {"s": 0, "n1": 1} == steps["walked"]["steps"][0]["output"]
    assert ("error_skipped", "ValueError: three") == (steps["left out"]["reason"], steps["left out"]["error"])
    assert ("answer", "how many?") == (steps["asked"]["wait"]["signal"], steps["asked"]["wait"]["prompt"])
    assert ({}, None, [], "asked") == (shown["inputs"], shown["output"], shown["superseded"], shown["next_node"])


def test_show_tells_inputs_output_and_marked_points(bookings: Bookings) -> None:
    bookings.call("run", "bookings:orders", "-i", "order=ab", "--run-id", "a")
    (bookings.folder / "bookings.py").unlink()
    out = bookings.call("show", "a").out
    facts = dict(line.split(None, 1) for line in out.partition("\n\n")[0].splitlines())
    assert 'order="ab" rate="2.50" ratio=1.0' == facts["inputs"]
    assert '{"order": "ab", "paid": "paid 5.00"}' == facts["output"]
    header, priced, charged = out.partition("\n\n")[2].splitlines()
    assert ["step", "kind", "status", "attempts", "took", "point", "detail"] == header.split()
    assert ("marked", False) == (priced.split()[6], "marked" in charged)
    shown = bookings.show("a")
    assert [True, False] == [step["is_marked"] for step in shown["steps"]]
    assert ({"order": "ab", "paid": "paid 5.00"}, None) == (shown["output"], shown["next_node"])


def test_the_many_items_of_a_map_are_counted_by_run_and_folded_by_show(bookings: Bookings) -> None:
    bookings.change("add, [1, 2]", "add, [*range(10, 60)]")
    told = bookings.call("run", "bookings:everything", "--run-id", "e").out.splitlines()
    assert ["  mapped: 5/50", "  mapped: 50/50"] == [line for line in told if line.startswith("  mapped: ")][::9]
    rows = bookings.rows("e")
    (place,) = [number for number, row in enumerate(rows) if row[0] == "mapped"]
    assert ["mapped", "  (50 done)", "sub"] == [row[0] for row in rows[place : place + 3]]
    assert 50 == len(bookings.show("e")["steps"][2]["steps"])


def test_show_of_a_damaged_record_says_so_and_shows_the_rest(waiting: Bookings) -> None:
    with closing(sqlite3.connect(".milepost/runs.db")) as connection, connection:
        connection.execute("UPDATE records SET header = 'no header' WHERE node_id = 'sub' AND kind = 'checkpoint'")
        connection.execute("UPDATE records SET payload = x'7b7d' WHERE node_id = 'failed' AND kind = 'checkpoint'")
    answer = waiting.call("show", "e")
    assert 0 == answer.code
    assert "1 record: see milepost verify e" in answer.out
    assert 1 == waiting.call("verify", "e").code
    assert [["sub", "in flight"], ["failed", "failed"]] == [
        [row[0], row[2]] for row in waiting.rows("e") if row[0] in {"sub", "failed"}
    ]


def test_history_has_a_note_for_every_kind_of_record(waiting: Bookings) -> None:
    waiting.call("signal", "e", "answer", '"many"')
    records = waiting.call("history", "e", "--json").json["records"]
    notes = {(record["kind"], record["node_id"]): record["note"] for record in records}
    assert "flow 'everything' begins" == notes["start", ""]
    assert "option 1 was chosen" == notes["route", "chosen"]
    assert "2 items" == notes["items", "mapped"]
    assert "recovered" == notes["checkpoint", "recovered"]
    assert notes["wait", "asked"].startswith("waits for signal 'answer' until 2")
    assert 0 == waiting.call("history", "e").code


def test_history_tells_of_replies_predicates_and_rollbacks(bookings: Bookings) -> None:
    bookings.call("run", "bookings:undone", "--run-id", "u")
    bookings.change('step("approve")', 'step("approve").when(lambda ctx: True)')
    bookings.call("start", "bookings:approved", "--run-id", "a")
    for payload in ('"perhaps"', "true"):
        bookings.call("signal", "a", "approval", payload)
        bookings.call("resume", "a", "bookings:approved")
    notes = {run_id: [r["note"] for r in bookings.call("history", run_id, "--json").json["records"]] for run_id in "ua"}
    assert ["rollback failed: TimeoutError: no answer", "rolled back"] == notes["u"][-3:-1]
    assert "its predicate was true" in notes["a"]
    assert "waits for signal 'approval'" in notes["a"]
    assert "signal number 2 came" in notes["a"]
    assert any(note.startswith("the payload of signal 'approval' is refused") for note in notes["a"])


def test_the_commands_that_keep_runs_in_order_take_workflows(waiting: Bookings) -> None:
    assert "run 'e' is whole\n" == waiting.call("verify", "e").out
    assert 0 == waiting.call("export", "e", "-o", "e.jsonl").code
    assert 0 == waiting.call("import", "e.jsonl", "--run-id", "copy").code
    assert [s["step_id"] for s in waiting.show("e")["steps"]] == [s["step_id"] for s in waiting.show("copy")["steps"]]
    assert {"waiting": 2} == waiting.call("stats", "--json").json["runs"]
    listed = waiting.call("runs", "--json").json["runs"]
    assert [("copy", "everything", "waiting"), ("e", "everything", "waiting")] == [
        (run["run_id"], run["flow"], run["status"]) for run in listed
    ]
    assert 0 == waiting.call("runs").code
    assert 0 == waiting.call("state", "e").code
    assert 7 == waiting.call("state", "e", "sub/second", "--json").json["state"]["output"]
    assert 0 == waiting.call("diff", "e", "sub/first", "sub/second").code
    assert 0 == waiting.call("delete", "copy", "--yes").code


# -- watch, start, worker, recover ---------------------------------------------------------------------------


def untimed(line: str) -> str:
    """A line without its duration."""
    return " ".join(word for word in line.split() if word not in {"ms", "s", "ms:"} and not word[0].isdigit())


@pytest.mark.parametrize("target", ["orders", "undone"])
def test_watch_tells_what_run_told(bookings: Bookings, target: str) -> None:
    inputs = ("-i", "order=a") if target == "orders" else ()
    told = bookings.call("run", f"bookings:{target}", *inputs, "--run-id", "a").out.splitlines()
    (bookings.folder / "bookings.py").unlink()
    answer = bookings.call("watch", "a")
    assert (0 if target == "orders" else 1) == answer.code
    expected = [untimed(line) for line in told if line.startswith(("run ", "  "))]
    assert [line for line in expected if "{" not in line and '"' not in line] == [
        untimed(line) for line in answer.out.splitlines()
    ]


def test_watch_with_json_tells_of_steps_waits_and_replies(bookings: Bookings) -> None:
    bookings.call("run", "bookings:approved", "--run-id", "a")
    bookings.call("signal", "a", "approval", "true")
    bookings.call("resume", "a", "bookings:approved")
    (bookings.folder / "bookings.py").unlink()
    answer = bookings.call("watch", "a", "--json")
    assert [
        "WorkflowStarted", "StepCompleted", "RunWaiting", "WorkflowStarted", "StepCompleted", "WorkflowCompleted",
    ] == [event["event"] for event in answer.events]  # fmt: skip
    first, _, wait, *_, last = answer.events
    assert ({"order": "o"}, "approve#1", "finished") == (first["inputs"], wait["wait"]["wait_id"], last["status"])
    later = bookings.call("watch", "a", "--json", "--after", str(wait["sequence"]))
    assert ["WorkflowStarted", "StepCompleted", "WorkflowCompleted"] == [event["event"] for event in later.events]


def test_a_worker_runs_what_was_started_and_parks_what_waits(bookings: Bookings) -> None:
    app = ("--app", "bookings:engine")
    assert "a\n" == bookings.call("start", "orders", "-i", "order=ab", "--run-id", "a", *app).out
    assert 0 == bookings.call("start", "approved", "--run-id", "w", *app).code
    answer = bookings.call("worker", "--until-idle", *app)
    assert 0 == answer.code
    for line in (
        "info: run 'a' of flow 'orders' goes on at step 'price'",
        "info: run 'a' of flow 'orders' is finished after ",
        "info: run 'w': waits at 'approve#1' for signal 'approval'",
        "info: run 'w' of flow 'approved' is waiting after ",
    ):
        assert 1 == answer.err.count(line)
    assert ["finished", "waiting"] == [bookings.show(run_id)["run"]["status"] for run_id in "aw"]
    bookings.call("signal", "w", "approval", "false", *app)
    bookings.call("worker", "--until-idle", "--app", "bookings:approved")
    assert '"dropped"' == json.dumps(bookings.show("w")["output"])


def held(bookings: Bookings) -> subprocess.Popen[str]:
    """A process that is in the middle of a step."""
    process = bookings.spawn("run", "bookings:holds", "--run-id", "a")
    assert process.stdout is not None
    next(line for line in process.stdout if line == "held\n")
    return process


def test_a_second_control_c_ends_the_process_at_once_and_loses_nothing(bookings: Bookings) -> None:
    with held(bookings) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (130, "milepost: ended at once: what ran is done again by a resume\n") == (process.returncode, err)
    assert ["done"] == [step["status"] for step in bookings.show("a")["steps"]]
    (bookings.folder / "go").touch()
    answer = bookings.call("resume", "a", "bookings:holds", "--json")
    assert (0, ["long"]) == (answer.code, names(answer, "StepStarted"))
