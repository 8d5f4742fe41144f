"""`milepost crashtest`: each planted fault is found, the flow without it passes, and bad input is told as such."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_calls import SHOP

from milepost.cli import main
from milepost.model.ids import _start_time

BANK = """
import json
from pathlib import Path

BOOK = Path("bank.json")


def charge(what, key=None):
    book = snapshot()
    if key is None or key not in book["keys"]:
        book["charges"].append(what)
    if key is not None:
        book["keys"].append(key)
    BOOK.write_text(json.dumps(book))


def snapshot():
    return json.loads(BOOK.read_text()) if BOOK.exists() else {"charges": [], "keys": []}


def seen():
    return snapshot()["charges"]


def clear():
    BOOK.unlink(missing_ok=True)


def broken():
    raise LookupError("no such table")


memory = []


def in_memory():
    return memory
"""
CRASHES = """
import os
import random
import signal
import subprocess
from pathlib import Path

import bank
from milepost import StepError, current, step, workflow

WORDS = {"apple", "pear", "plum", "fig", "kiwi", "lime", "nut"}
cache = {}


def made():
    return Order("o-2", Decimal("7.5"))


def price_and_remember(order):
    order = price(order)
    cache["price"] = order.total
    return order


def line(name, fn):
    graph = Graph(Order).add_node("price", price_and_remember).add_node(name, fn)
    return graph.add_edge("price", name).add_edge(name, END).set_entry("price").compile("orders")


def charge(order):
    bank.charge(order.id)
    return order


def charge_once(order):
    bank.charge(order.id, current().idempotency_key)
    return order


def words(order):
    order.id = " ".join(WORDS)
    return order


def sorted_words(order):
    order.id = " ".join(sorted(WORDS))
    return order


def remember(order):
    order.total = cache["price"] * 2
    return order


def remember_charge(order):
    bank.memory.append(order.id)
    return order


def start(order):
    child = subprocess.Popen(["sleep", "600"])
    bank.charge(child.pid)
    return order


def hang(order):
    Path("hanging.txt").write_text(str(os.getpid()))
    while True:
        signal.pause()


def leave(order):
    os._exit(7)


double, once = line("charge", charge), line("charge", charge_once)
unsorted, in_order = line("words", words), line("words", sorted_words)
forgetful, starting = line("remember", remember), line("start", start)
inside, hanging, leaving = line("charge", remember_charge), line("hang", hang), line("leave", leave)


def no_van():
    raise ConnectionError("no van")


def card():
    bank.charge("card", current().idempotency_key if mended else None)
    raise ConnectionError("no answer")


mended = False


@workflow("paying")
def paying(id: str):
    try:
        yield step("card").python(card)
    except StepError:
        yield step("nap").sleep(3600)
    answer = yield from step("ask").wait_for("approval")
    return answer.payload


@workflow("refunding")
def refunding(id: str):
    yield step("charge").python(lambda: 1).with_rollback(lambda ctx: bank.charge("refund"))
    yield step("ship").python(no_van)


def guess():
    return random.random()


@workflow("guessing")
def guessing(id: str):
    yield step("guess").python(guess)
"""


@pytest.fixture
def crashtest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """A call of the command on a flow of the shop: its exit code, its output and its errors."""
    (tmp_path / "bank.py").write_text(BANK)
    (tmp_path / "shop.py").write_text(SHOP + CRASHES)
    monkeypatch.chdir(tmp_path)
    before = {*sys.modules}

    def call(flow: str, *words: str, given: tuple[str, ...] = ("-i", "id=o-1")) -> tuple[int, str, str]:
        code = main(["crashtest", f"shop.py:{flow}", *given, *words])
        out, err = capsys.readouterr()
        return code, out, err

    yield call
    for name in {*sys.modules} - before:
        if getattr(sys.modules[name], "__file__", None) in {str(tmp_path / "bank.py"), str(tmp_path / "shop.py")}:
            del sys.modules[name]


WORLD = ("--world", "bank.py:seen", "--before", "bank.py:clear")
APPROVED = ("--signal", 'approval={"ok": true}')


def test_the_command_finds_a_double_charge_and_passes_the_one_with_a_key(crashtest):
    code, out, err = crashtest("double", *WORLD)
    lines = out.splitlines()
    assert (1, "") == (code, err)
    assert "2 undisturbed runs: equal" == lines[0]
    assert "26 places, 26 processes died" in lines[1]
    assert ["price", "2x", "no", "safe"] == lines[3].split()
    assert 'charge  2x         1: + "o-1"             NOT IDEMPOTENT: use ctx.idempotency_key' in lines[4]
    code, out, _ = crashtest("once", *WORLD)
    assert 0 == code
    assert out.count("safe") == 2


def test_the_order_of_a_set_is_found_by_two_hash_seeds(crashtest):
    code, out, _ = crashtest("unsorted")
    assert 1 == code
    assert "node 'words' is not deterministic: id " in out
    assert 0 == crashtest("in_order")[0]


def test_randomness_is_found_and_may_be_declared(crashtest):
    code, out, _ = crashtest("guessing", "--json")
    found = json.loads(out)["nondeterministic"]
    one, other = found["values"]
    assert (1, "guess", 1) == (code, found["node"], found["visit"])
    assert one != other
    assert 0 == crashtest("guessing", "--nondeterministic", "guess", "--places", "2")[0]


def test_killed_children_show_what_a_process_only_remembers(crashtest):
    assert 0 == crashtest("forgetful")[0]
    code, out, _ = crashtest("forgetful", "--process", "--verbose")
    assert 1 == code
    assert "remember: at 2 places the run ended with milepost.errors.NodeError" in out
    assert "crashed after effect 1 (Write checkpoint)" in out


def test_killed_children_find_a_double_charge_and_pass_the_one_with_a_key(crashtest):
    code, out, _ = crashtest("double", *WORLD, "--process", "--json")
    document = json.loads(out)
    assert (1, 6, 6) == (code, document["places"], document["crashes"])
    assert ["safe", "not idempotent"] == [node["verdict"] for node in document["nodes"]]
    assert [{"op": "add", "path": "/1", "value": "o-1"}] == document["nodes"][1]["world_difference"]
    assert 0 == crashtest("once", *WORLD, "--process", "--files")[0]


def test_a_step_whose_failure_is_caught_is_found(crashtest):
    code, out, _ = crashtest("paying", *WORLD, *APPROVED)
    assert 1 == code
    assert [line.split()[0] for line in out.splitlines() if "NOT IDEMPOTENT" in line] == ["card"]


def test_a_rollback_that_is_done_twice_is_found(crashtest):
    code, out, _ = crashtest("refunding", *WORLD, "--fails", "--process")
    assert 1 == code
    assert [line[:18] for line in out.splitlines() if "NOT IDEMPOTENT" in line] == ["rollback of charge"]


def test_the_input_may_come_from_a_function(crashtest):
    assert 0 == crashtest("once", "--input-from", "shop.py:made", "--places", "2", given=())[0]
    code, _, err = crashtest("once", "--input-from", "shop.py:made")
    assert (2, True) == (code, "either by --input-from or as JSON" in err)


def test_a_node_may_start_processes_which_end_with_the_child(crashtest):
    assert 0 == crashtest("starting", "--process", "--places", "2")[0]
    pids = json.loads(Path("bank.json").read_text())["charges"]
    assert 4 <= len(pids)
    for pid in pids:
        while _start_time(pid):
            time.sleep(0.01)


def test_a_command_that_is_interrupted_leaves_no_process(crashtest):
    words = [sys.executable, "-m", "milepost", "crashtest", "shop.py:hanging", "-i", "id=o-1"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True) as command:
        while not Path("hanging.txt").exists() or not Path("hanging.txt").read_text():
            time.sleep(0.01)
        command.send_signal(signal.SIGINT)
        assert command.stderr is not None
        assert "milepost: interrupted\n" == command.stderr.read()
    assert 130 == command.returncode
    while _start_time(int(Path("hanging.txt").read_text())):
        time.sleep(0.01)


def test_a_slow_test_is_told_beforehand(crashtest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("milepost.cli.crashing.SLOW", 0.0)
    assert "26 places take about" in crashtest("once")[2]


BAD = {
    "a signal that is not given": (
        "paying",
        (),
        "it waits for signal 'approval' at 'ask#1', which nobody sends: give --signal",
    ),
    "a flow that never ends": (
        "hanging",
        ("--timeout", "4"),
        "the run has not ended within --timeout: 'hang' was called last",
    ),
    "a process that ends": ("leaving", (), "the process ended by itself with exit code 7"),
    "a run that fails": ("refunding", (), "undisturbed the run ended with milepost.errors.StepError: step 'ship'"),
    "a run that has to fail": ("once", ("--fails",), "and --fails says that it has to fail"),
    "a probe that raises": ("once", ("--world", "bank.py:broken"), "raised LookupError: no such table"),
    "a probe that is not there": ("once", ("--world", "bank.py:nobody"), "'bank.py:nobody' names no function"),
    "a probe in memory": ("inside", ("--world", "bank.py:in_memory", "--process"), "has to be outside of memory"),
    "a world that nobody resets": ("double", ("--world", "bank.py:seen"), "reset it with --before"),
    "an unknown node": ("once", ("--nondeterministic", "modle"), "names 'modle', which did not run"),
    "an unknown signal": (
        "once",
        ("--signal", "approvel=1"),
        "--signal names 'approvel', for which the run did not wait",
    ),
    "an unknown signal in processes": ("once", ("--signal", "a=1", "--process"), "it waited for nothing"),
    "a signal without JSON": ("once", ("--signal", "approval=yes"), "--signal approval is no JSON"),
    "files without processes": ("once", ("--files",), "--files goes with --process"),
    "a store": ("once", ("--store", "sqlite:///runs.db"), "leave out --store"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_with_exit_code_2(crashtest, name: str):
    flow, words, text = BAD[name]
    code, _, err = crashtest(flow, *words)
    assert text in err, err
    assert 2 == code
