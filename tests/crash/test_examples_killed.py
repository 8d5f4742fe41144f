"""Examples are killed with SIGKILL in the middle and started again: what was recorded does not run again."""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from milepost import SQLiteStore

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@contextmanager
def begun(folder: Path, name: str, *arguments: str, pace: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """A process of an example; it is killed on the way out."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        cwd=folder,
        # Buffered, whatever the surroundings say: two threads print, and each line is to stay in one piece.
        env={**os.environ, "PACE": str(pace), "PYTHONUNBUFFERED": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def killed(folder: Path, name: str, *arguments: str, at: str, pace: float = 0.0) -> list[str]:
    """Start an example and kill it as soon as it says `at`; what it said."""
    said: list[str] = []
    with begun(folder, name, *arguments, pace=pace) as process:
        for line in process.stdout:
            said.append(line.rstrip())
            if said[-1] == at:
                process.kill()
                break
        assert said[-1:] == [at]
        said += [line.rstrip() for line in process.stdout]
    return said


def ended(folder: Path, name: str, *arguments: str) -> list[str]:
    """Let an example run to its end; what it said."""
    with begun(folder, name, *arguments) as process:
        said = process.stdout.read().splitlines()
        assert 0 == process.wait(30)
    return said


def calls(said: list[str]) -> list[str]:
    """The functions that were called: each says so on a line of its own, indented."""
    return [line.strip() for line in said if line.startswith("  ")]


def test_long_running_is_killed_in_its_second_step_and_goes_on_with_it(tmp_path: Path) -> None:
    first = killed(tmp_path, "long_running.py", at="  transform", pace=1.0)
    assert ["expensive_compute", "transform"] == calls(first)
    run_id = re.search(r"run_id='([^']+)'", first[0])[1]
    point = json.loads((tmp_path / ".milepost" / "checkpoints" / run_id / "expensive.json").read_bytes())
    assert [{"i": 1, "n": 1, "p": 1, "t": 1, "u": 1}] == [result["output"] for result in point["step_results"]]
    second = ended(tmp_path, "long_running.py", run_id)
    assert ["transform"] == calls(second)
    assert "i1 n1 p1 t1 u1" in second
    assert [] == calls(ended(tmp_path, "long_running.py", run_id))


def recorded(folder: Path) -> set[str]:
    """What the killed pipeline had recorded, as its functions call themselves."""
    with SQLiteStore(folder / "airports.db") as store:
        ids = [info.node_id for info in store.history("airports-1")]
    return {step_id.rpartition("/")[2] for step_id in ids}


@pytest.mark.parametrize("at", ["read", "farthest", "describe ND", "write"])
def test_the_pipeline_is_killed_anywhere_and_gives_the_same_summary(tmp_path: Path, at: str) -> None:
    undisturbed, folder = tmp_path / "undisturbed", tmp_path / "killed"
    undisturbed.mkdir()
    folder.mkdir()
    whole = ended(undisturbed, "airports.py")
    first = killed(folder, "airports.py", "--pause", "0.2", at=f"  {at}")
    kept = recorded(folder)
    second = ended(folder, "airports.py")

    again = calls(second)
    assert set() == {name.removeprefix("describe ") for name in again} & kept
    assert [line for line in whole if not line.startswith("  ")] == [
        line for line in second if not line.startswith("  ")
    ]
    assert (undisturbed / "airports.txt").read_bytes() == (folder / "airports.txt").read_bytes()
    twice = {name for name, count in Counter([*calls(first), *again]).items() if count > 1}
    assert at in twice  # it was in flight
    assert sorted(set(calls(whole))) == sorted({*calls(first), *again})


def recorded_of(folder: Path, database: str, run_id: str) -> list[str]:
    with SQLiteStore(folder / database) as store:
        return [info.node_id for info in store.history(run_id)]


@pytest.mark.parametrize("at", ["read", "1000 of 8759", "collect", "draw"])
def test_the_map_of_temperatures_is_killed_anywhere_and_goes_on_with_what_is_missing(tmp_path: Path, at: str) -> None:
    first = killed(tmp_path, "temperatures.py", "--pause", "0.05", at=f"  {at}")
    kept = recorded_of(tmp_path, "temperatures.db", "seattle-2010")
    assert len(kept) == len(set(kept))
    readings = {node_id for node_id in kept if node_id.startswith("hours/")}
    assert ("of 8759" in at) == (0 < len(readings) < 8759)
    second = ended(tmp_path, "temperatures.py")

    assert f"8759 readings of 365 days; {8759 - len(readings)} converted by this process" in second
    assert "spans: 10.3 C between night and day on 2010-07-28" in second
    again = {"collect" if name == "hours" else name for name in kept} & set(calls(second))
    assert set() == again
    assert at in calls(second) or "of 8759" in at  # it was in flight
    assert "read" not in calls(second) or at == "read"  # the items were recorded before the first was converted
    assert {"averages", "extremes", "spans", "widest", "draw"} <= {*calls(first), *calls(second)}
    assert sorted([*kept, *(set(undisturbed_nodes()) - set(kept))]) == sorted(
        recorded_of(tmp_path, "temperatures.db", "seattle-2010")
    )


def undisturbed_nodes() -> list[str]:
    """All that a whole run of the temperatures records."""
    return [*(f"hours/{number}" for number in range(8759)), "hours", "averages", "extremes", "spans", "widest", "draw"]


@pytest.mark.parametrize(
    "at",
    [
        "model reads 1 messages",
        "weather Portland",
        "find_order o-17",
        "refund o-17",
        "model reads 10 messages",
    ],
)
def test_the_agent_is_killed_anywhere_and_pays_for_nothing_twice_that_is_recorded(tmp_path: Path, at: str) -> None:
    first = killed(tmp_path, "agent_graph.py", "--pause", "0.2", at=f"  {at}")
    second = ended(tmp_path, "agent_graph.py")
    assert "assistant: I asked for it: o-17 is refunded." == second[-1]
    # What began last was in flight and runs again, and beside one call of a tool perhaps the other one.
    twice = set(calls(first)) & set(calls(second))
    assert {at} <= twice <= ({"weather Seattle", "weather Portland"} if at.startswith("weather") else {at})
    everything = {f"model reads {count} messages" for count in (1, 4, 6, 8, 10)}
    everything |= {"weather Seattle", "weather Portland", "find_order o-17", "refund o-17"}
    assert everything == {*calls(first), *calls(second)}


def balances(folder: Path) -> tuple[int, list[int]]:
    """How many transfers are recorded, and what is in the accounts, as of one moment."""
    with closing(sqlite3.connect(folder / "transfers.db", timeout=30)) as bank:
        counted = "(SELECT count(*) FROM records WHERE kind = 'checkpoint')"
        rows = bank.execute(f"SELECT {counted}, balance FROM accounts ORDER BY owner").fetchall()
    return rows[0][0], [balance for _, balance in rows]


def after(transfers: int) -> list[int]:
    """What is in the accounts after so many transfers."""
    accounts = [100, 100, 100]
    for number in range(transfers):
        amount = 10 + number if number < 18 else 5
        source = number % 3 if number < 18 else 1
        accounts[source] -= amount
        accounts[(source + 1) % 3] += amount
    return accounts


@pytest.mark.parametrize("number", [1, 9, 18])
def test_a_transfer_that_is_killed_in_the_middle_moves_nothing_and_then_once(tmp_path: Path, number: int) -> None:
    source, target = [("ada", "ben"), ("ben", "eve"), ("eve", "ada")][(number - 1) % 3]
    at = f"  transfer {number}: {9 + number} from {source} to {target}"
    first = killed(tmp_path, "transfer.py", at=at, pace=0.05)
    assert number == len(calls(first))
    done, accounts = balances(tmp_path)
    assert (number - 1, after(number - 1)) == (done, accounts)
    second = ended(tmp_path, "transfer.py")
    assert at.strip() == calls(second)[0]
    assert (19, after(19)) == balances(tmp_path)


def test_transfers_that_are_killed_again_and_again_keep_the_sum(tmp_path: Path) -> None:
    draw = random.Random(7)
    for _ in range(12):
        with begun(tmp_path, "transfer.py", pace=0.002) as process:
            for _ in range(draw.randint(1, 5)):
                process.stdout.readline()
            process.kill()
            process.wait(30)
        done, accounts = balances(tmp_path)
        assert (300, after(done)) == (sum(accounts), accounts)
    ended(tmp_path, "transfer.py")
    assert (19, after(19)) == balances(tmp_path)
