"""Workers of the command line as real processes: stopped gently, at once and by SIGKILL, and others that go on for them.

The workers import this file. Its nodes append a line to a log when they begin and when they end, and hold still while there
is a file `hold`, so that a test knows what is in the middle of what.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from milepost import END, CompiledGraph, Context, Engine, Graph

APP = f"{Path(__file__).resolve()}:make"
LEGS = 6
EXPECTED = {"by-road": ["drive", "fly"] * 3, "by-air": ["fly", "drive"] * 3}


# -- what the workers run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trip:
    legs: list[str] = field(default_factory=list)


def note(what: str, ctx: Context[Any]) -> None:
    line = json.dumps([what, ctx.run_id, ctx.node_id, ctx.visit, ctx.attempt])
    descriptor = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)


def drive(ctx: Context[Any], trip: Trip) -> Trip:
    note("in", ctx)
    while os.path.exists("hold"):
        time.sleep(0.002)
    note("out", ctx)
    return Trip([*trip.legs, "drive"])


async def fly(ctx: Context[Any], trip: Trip) -> Trip:
    note("in", ctx)
    while os.path.exists("hold"):
        await asyncio.sleep(0.002)
    note("out", ctx)
    return Trip([*trip.legs, "fly"])


def flow(name: str, entry: str) -> CompiledGraph[Trip]:
    def onwards(other: str) -> Callable[[Trip], str]:
        return lambda trip: END if len(trip.legs) >= LEGS else other

    graph = Graph(Trip).add_node("drive", drive).add_node("fly", fly)
    graph.add_conditional_edge("drive", onwards("fly"), ["fly", END])
    graph.add_conditional_edge("fly", onwards("drive"), ["drive", END])
    return graph.set_entry(entry).compile(name)


def make() -> Engine:
    flows = [flow("by-road", "drive"), flow("by-air", "fly")]
    return Engine("sqlite:///runs.db", flows=flows, max_crashes=int(os.environ.get("MAX_CRASHES", "5")))


# -- the tests -------------------------------------------------------------------------------------------------


class Depot:
    """A working directory with a store and a log, and the processes that work there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hold = folder / "hold"
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, count: int) -> list[str]:
        """Have that many runs of each flow recorded for a worker."""
        with make() as engine:
            return [
                engine.start(flow.bind(Trip()), run_id=f"{name}-{number}").run_id
                for number in range(count)
                for name, flow in engine.flows.items()
            ]

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "milepost", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell's background jobs ignore Ctrl-C, and so would children of tests that run in one.
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        self.processes.append(process)
        return process

    def call(self, *arguments: str) -> tuple[int, str]:
        """Let a command run to its end: its exit code and what it printed."""
        process = self.spawn(*arguments)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    def notes(self, what: str) -> list[tuple[str, str, int]]:
        """Run, node and visit of each line of the log of that kind."""
        log = self.folder / "log"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [(run, node, visit) for kind, run, node, visit, _ in map(json.loads, lines) if kind == what]

    def await_notes(self, what: str, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.notes(what)) < count:
            assert time.monotonic() < deadline, f"the log has {len(self.notes(what))} lines, not {count}"
            time.sleep(0.005)

    def statuses(self, runs: list[str]) -> Counter[tuple[str, int]]:
        """How many runs there are of each status and count of crashes."""
        with make() as engine:
            found = [engine.handle(run_id).info() for run_id in runs]
        return Counter((info.status, info.crash_count) for info in found)

    def check_results(self, runs: list[str]) -> None:
        """Every run came to its end, by the right way."""
        with make() as engine:
            for run_id in runs:
                assert Trip(EXPECTED[run_id.rpartition("-")[0]]) == engine.handle(run_id).result(timeout=1)
        # All visits that count have ended, and a visit that has ended and was recorded never began again.
        assert LEGS * len(runs) == len(set(self.notes("out")))


@pytest.fixture
def depot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Depot]:
    monkeypatch.chdir(tmp_path)
    depot = Depot(tmp_path)
    yield depot
    for process in depot.processes:
        process.kill()
        process.communicate()


def held_worker(depot: Depot, *options: str, count: int = 3) -> tuple[list[str], subprocess.Popen[str]]:
    """Runs of both flows, and a worker that is in the middle of the first node of each."""
    depot.hold.touch()
    runs = depot.start(count)
    process = depot.spawn("worker", "--app", APP, "--poll", "0.05s", *options)
    depot.await_notes("in", len(runs))
    return runs, process


def signalled(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal and wait until the worker has said that it came."""
    assert process.stderr is not None
    process.send_signal(number)
    assert any(line.startswith(f"milepost: {number.name}: ") for line in process.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_lets_nodes_end_and_nothing_is_lost_or_doubled(depot: Depot, number: signal.Signals) -> None:
    runs, process = held_worker(depot)
    signalled(process, number)
    depot.hold.unlink()
    out, err = process.communicate(timeout=30)
    assert (0, "") == (process.returncode, out)
    assert "has ended" in err
    assert (len(runs), len(runs)) == (len(depot.notes("in")), len(depot.notes("out")))
    assert {("ready", 0): len(runs)} == depot.statuses(runs)
    assert 0 == depot.call("worker", "--app", APP, "--until-idle")[0]
    depot.check_results(runs)
    assert [] == [visit for visit, times in Counter(depot.notes("in")).items() if times > 1]
    assert {("finished", 0): len(runs)} == depot.statuses(runs)


def test_nodes_that_do_not_end_in_time_are_left_and_run_again(depot: Depot) -> None:
    runs, process = held_worker(depot, "--grace", "0.1s")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert 0 == process.returncode
    assert {("ready", 0): len(runs)} == depot.statuses(runs)
    depot.hold.unlink()
    assert 0 == depot.call("worker", "--app", APP, "--until-idle")[0]
    depot.check_results(runs)
    again = [visit for visit, times in Counter(depot.notes("in")).items() if times > 1]
    assert sorted(runs) == sorted(run for run, _, visit in again)
    assert {1} == {visit for *_, visit in again}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        (signal.SIGKILL, -9),
    ],
)
def test_a_worker_that_ends_at_once_loses_nothing(depot: Depot, number: signal.Signals, code: int) -> None:
    runs, process = held_worker(depot)
    if number != signal.SIGKILL:
        signalled(process, number)
    process.send_signal(number)
    assert code == process.wait(timeout=30)
    assert {("dead", 0): len(runs)} == depot.statuses(runs)
    depot.hold.unlink()
    exit_code, out = depot.call("recover", "--app", APP, "--json")
    told = json.loads(out)
    assert (0, {"finished": len(runs)}) == (exit_code, told["counts"])
    assert sorted(runs) == sorted(run["run_id"] for run in told["runs"])
    depot.check_results(runs)
    # Only what was in the middle of something when the process ended has begun twice.
    again = [visit for visit, times in Counter(depot.notes("in")).items() if times > 1]
    assert sorted(runs) == sorted(run for run, _, visit in again if visit == 1)
    assert len(runs) == len(again)


def test_recover_tells_of_runs_that_are_blocked_and_show_tells_why(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAX_CRASHES", "1")
    runs, process = held_worker(depot, count=1)
    process.kill()
    process.wait(timeout=30)
    depot.hold.unlink()
    exit_code, out = depot.call("recover", "--app", APP, "--json")
    assert (1, {"blocked": len(runs)}) == (exit_code, json.loads(out)["counts"])
    exit_code, out = depot.call("show", runs[0], "--store", "sqlite:///runs.db", "--json")
    why = json.loads(out)["why"]
    assert why.startswith("it is blocked (1 owner died")
    assert "--reopen" in why


def test_recover_that_is_stopped_tells_so(depot: Depot) -> None:
    depot.hold.touch()
    runs = depot.start(1)
    process = depot.spawn("recover", "--app", APP)
    depot.await_notes("in", len(runs))
    signalled(process, signal.SIGTERM)
    depot.hold.unlink()
    out, _ = process.communicate(timeout=30)
    assert (143, True) == (process.returncode, "2 runs: 2 ready" in out)


@pytest.mark.slow
def test_workers_that_come_and_go_share_the_work(depot: Depot) -> None:
    def worker() -> subprocess.Popen[str]:
        process = depot.spawn("worker", "--app", APP, "--poll", "0.05s", "--concurrency", "4")
        assert process.stderr is not None
        assert any(" takes up runs of " in line for line in process.stderr)  # from now on it heeds signals
        return process

    runs = depot.start(20)
    workers = [worker(), worker()]
    for lines in (50, 100, 150):
        depot.await_notes("in", lines)
        workers[0].terminate()
        workers.append(worker())
        leaving = workers.pop(0)
        leaving.communicate(timeout=30)
        assert 0 == leaving.returncode
    depot.await_notes("out", LEGS * len(runs))
    for leaving in workers:
        leaving.terminate()
        leaving.communicate(timeout=30)
    depot.call("worker", "--app", APP, "--until-idle")
    depot.check_results(runs)
    assert LEGS * len(runs) == len(depot.notes("in")) == len(depot.notes("out"))
    assert {("finished", 0): len(runs)} == depot.statuses(runs)
