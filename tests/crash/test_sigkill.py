"""Real processes, killed by SIGKILL and frozen by SIGSTOP while they run, and others that go on with their runs.

A process under test runs this file. It appends a line to a log for each call of a node, and writes a line to its
standard output for each checkpoint that was reported saved. Everything random is seeded.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost import END, CheckpointSaved, CompiledGraph, Context, Graph, MilepostError, Retry, SQLiteStore, Store

ROUNDS = 14
NODES = 3
"""In each round of the graph."""


# -- the process under test ------------------------------------------------------------------------------------


@dataclass
class Work:
    round: int = 0
    total: int = 0


def say(kind: str, *told: Any) -> None:
    """Tell the test something, in one write."""
    os.write(1, json.dumps([kind, *told]).encode() + b"\n")


def heard() -> None:
    """Block until the test says something; end with the test."""
    if not sys.stdin.readline():
        os._exit(0)


class Log:
    """A file of lines that several processes append to."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, ctx: Context[Any]) -> None:
        line = json.dumps([os.getpid(), ctx.run_id, ctx.node_id, ctx.visit, ctx.attempt])
        os.write(self._fd, line.encode() + b"\n")


def working_graph(log: Log, is_async: bool) -> CompiledGraph[Work]:
    """A loop of a node that adds, a node whose first attempt fails, and a node that counts the round."""

    def add(ctx: Context[Any], state: Work) -> Work:
        log.add(ctx)
        state.total += state.round
        return state

    def stumble(ctx: Context[Any], state: Work) -> Work:
        log.add(ctx)
        state.total += 1000
        if ctx.attempt == 1 and state.round % 3 == 0:
            raise OSError("not at the first attempt")
        return state

    def count(ctx: Context[Any], state: Work) -> Work:
        log.add(ctx)
        state.round += 1
        return state

    def later(fn: Callable[..., Work]) -> Callable[..., Any]:
        async def awaited(ctx: Context[Any], state: Work) -> Work:
            await asyncio.sleep(0)
            return fn(ctx, state)

        return awaited if is_async else fn

    return (
        Graph(Work)
        .add_node("add", later(add))
        .add_node("stumble", later(stumble), retry=Retry(max_attempts=3, backoff=0))
        .add_node("count", later(count))
        .add_edge("add", "stumble")
        .add_edge("stumble", "count")
        .add_conditional_edge("count", lambda state: "add" if state.round < ROUNDS else END, ["add", END])
        .set_entry("add")
        .compile("working")
    )


def waiting_graph(log: Log) -> CompiledGraph[Work]:
    """Two nodes; the first says that it is there and goes on when it is told to."""

    def wait(ctx: Context[Any], state: Work) -> Work:
        log.add(ctx)
        say("in")
        heard()
        return Work(state.round, state.total + 1)

    def last(ctx: Context[Any], state: Work) -> Work:
        log.add(ctx)
        return Work(state.round, state.total + 10)

    graph = Graph(Work).add_node("wait", wait).add_node("last", last).add_edge("wait", "last").add_edge("last", END)
    return graph.set_entry("wait").compile("waiting")


def work(place: str, log: Log, run_id: str, is_async: bool) -> None:
    """Begin a run, or go on with it at once, and report each checkpoint."""

    def report(event: Any) -> None:
        if type(event) is CheckpointSaved:
            say("saved", event.node_id, event.sequence)

    graph = working_graph(log, is_async)
    with SQLiteStore(place) as store:
        if is_async:
            state = asyncio.run(graph.arun(Work(), store=store, run_id=run_id, if_exists="resume", hooks=[report]))
        else:
            state = graph.run(Work(), store=store, run_id=run_id, if_exists="resume", hooks=[report])
    say("done", state.round, state.total)


def obey(place: str, log: Log) -> None:
    """Run a verb for each line of standard input."""
    graph = waiting_graph(log)
    with SQLiteStore(place) as store:
        say("up")
        for line in sys.stdin:
            verb, run_id, options = json.loads(line)
            try:
                if verb == "run":
                    state = graph.run(Work(), store=store, run_id=run_id, **options)
                else:
                    state = graph.resume(store, run_id, **options)
            except MilepostError as exc:
                say(type(exc).__name__)
            else:
                say("done", state.total)


def main() -> None:
    kind, place, log, *more = sys.argv[1:]
    if kind == "work":
        work(place, Log(log), more[0], more[1] == "async")
    else:
        obey(place, Log(log))


if __name__ == "__main__":
    main()
    sys.exit()

# -- the test's side -------------------------------------------------------------------------------------------

import pytest  # noqa: E402 - a process under test is started often, and need not pay for it


class Process:
    """A process under test."""

    def __init__(self, kind: str, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, kind, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self.pid = self._process.pid

    def tell(self, verb: str = "", run_id: str = "", **options: Any) -> None:
        self._stdin.write(json.dumps([verb, run_id, options]).encode() + b"\n")
        self._stdin.flush()

    def hear(self) -> list[Any]:
        """What it says next; [] when it has ended."""
        line = self._stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else []

    def rest(self) -> Iterator[list[Any]]:
        """What it says until it ends."""
        while told := self.hear():
            yield told

    def says_nothing_for(self, seconds: float) -> None:
        """Let time pass, until it ends or says something at the latest."""
        select.select([self._stdout], [], [], seconds)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> bool:
        """Kill it; whether it was still alive then."""
        self._process.kill()
        return self._process.wait() == -signal.SIGKILL

    def end(self) -> None:
        self.kill()
        self._stdin.close()
        self._stdout.close()


@contextmanager
def process(kind: str, *args: str) -> Iterator[Process]:
    started = Process(kind, *args)
    try:
        yield started
    finally:
        started.end()


@dataclass
class Story:
    """What became of one run, over all its processes."""

    run_id: str
    kills: int
    told: list[Any]
    reported: list[tuple[int, int]]
    """Process and sequence of each checkpoint that was reported."""
    pids: list[int]
    is_async: bool


def undisturbed() -> Work:
    return Work(ROUNDS, sum(range(ROUNDS)) + 1000 * ROUNDS)


def kill_until_done(place: str, log: str, run_id: str, kills: int, draw: random.Random, is_async: bool) -> Story:
    """Let one process after the other work on a run; the first `kills` of them are killed at random moments."""
    story = Story(run_id, 0, [], [], [], is_async)
    left = kills
    while not story.told:
        with process("work", place, log, run_id, "async" if is_async else "sync") as one:
            story.pids.append(one.pid)
            # So few that the run does not end before all of them were killed.
            patience = draw.randint(0, max(0, 2 * ROUNDS * NODES // (kills + 1) - 1)) if left else None
            heard: list[list[Any]] = []
            while patience is None or len(heard) < patience:
                told = one.hear()
                if not told:
                    break
                heard.append(told)
            if left:
                # The moment within a node, a write, or the start of the process.
                one.says_nothing_for(draw.uniform(0, 0.004 if patience else 0.25))
                was_alive = one.kill()
                left -= 1
                story.kills += was_alive
            # What it had written to the pipe before it died was reported too.
            heard += one.rest()
            for kind, *told in heard:
                if kind == "saved":
                    story.reported.append((one.pid, told[1]))
                else:
                    story.told = told
    return story


def calls_of(log: str, run_id: str) -> list[tuple[int, str, int]]:
    """The process, node and visit of each call that the log tells of, in order."""
    lines = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    return [(pid, node_id, visit) for pid, run, node_id, visit, _ in lines if run == run_id]


def check(story: Story, store: Store, log: str) -> None:
    """What must be true of a run, however often its processes were killed."""
    want = undisturbed()
    assert [want.round, want.total] == story.told
    assert "finished" == store.get_run(story.run_id).info.status
    report = store.verify(story.run_id)
    assert () == report.problems
    history = store.history(story.run_id)
    for node_id in ("add", "stumble", "count"):
        assert list(range(1, ROUNDS + 1)) == [info.visit for info in history if info.node_id == node_id]
    calls = calls_of(log, story.run_id)
    order = {pid: number for number, pid in enumerate(story.pids)}
    visit_at = {info.sequence: (info.node_id, info.visit) for info in history}
    for pid, sequence in story.reported:
        visit = visit_at[sequence]
        again = [call for call in calls if call[1:] == visit and order[call[0]] > order[pid]]
        assert not again, f"{visit} ran again in {again}, though its checkpoint was reported by process {pid}"
    stumbles = {("stumble", visit): 2 for visit in range(1, ROUNDS + 1, 3)}
    extra = Counter((node_id, visit) for _, node_id, visit in calls)
    extra.subtract({(info.node_id, info.visit): stumbles.get((info.node_id, info.visit), 1) for info in history})
    assert sum(max(0, more) for more in extra.values()) <= story.kills


def kill_runs(tmp_path: Path, *, seed: int, runs: int, kills: int, is_async: bool) -> int:
    """Kill the processes of several runs in one file at random moments; how many were killed."""
    place, log = str(tmp_path / "runs.db"), str(tmp_path / "log")

    def one(number: int) -> list[Story]:
        draw = random.Random(f"{seed}/{number}")
        told: list[Story] = []
        # Where the disk is fast a run may end before all kills are spent: the next run gets the others.
        while (left := kills - sum(story.kills for story in told)) > 0:
            told.append(kill_until_done(place, log, f"r-{number}-{len(told)}", left, draw, is_async))
        return told

    with ThreadPoolExecutor(runs) as pool:
        stories = [story for told in pool.map(one, range(runs)) for story in told]
    with SQLiteStore(place) as store:
        for story in stories:
            check(story, store, log)
    return sum(story.kills for story in stories)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_runs_whose_processes_are_killed_at_random_end_right(is_async: bool, tmp_path: Path):
    assert 30 == kill_runs(tmp_path, seed=17, runs=3, kills=10, is_async=is_async)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_runs_that_are_killed_very_often_end_right(is_async: bool, seed: int, tmp_path: Path):
    assert 80 == kill_runs(tmp_path, seed=seed, runs=4, kills=20, is_async=is_async)


# -- who goes on ------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> tuple[str, str]:
    """Where the store is, and the log."""
    return str(tmp_path / "runs.db"), str(tmp_path / "log")


def test_a_process_that_was_up_before_the_kill_goes_on_at_once(place: tuple[str, str]):
    with process("obey", *place) as owner, process("obey", *place) as other:
        assert (["up"], ["up"]) == (owner.hear(), other.hear())
        owner.tell("run", "r-1")
        assert ["in"] == owner.hear()
        other.tell("resume", "r-1")
        assert ["RunLockedError"] == other.hear()
        owner.kill()
        other.tell("resume", "r-1")
        assert ["in"] == other.hear()
        other.tell()
        assert ["done", 11] == other.hear()
        assert [
            (owner.pid, "wait", 1),
            (other.pid, "wait", 1),
            (other.pid, "last", 1),
        ] == calls_of(place[1], "r-1")


def test_of_two_that_resume_a_dead_run_at_once_exactly_one_wins(place: tuple[str, str]):
    with process("obey", *place) as one, process("obey", *place) as two:
        assert (["up"], ["up"]) == (one.hear(), two.hear())
        for number in range(8):
            run_id = f"r-{number}"
            with process("obey", *place) as owner:
                owner.hear()
                owner.tell("run", run_id)
                assert ["in"] == owner.hear()
                owner.kill()
            one.tell("resume", run_id)
            two.tell("resume", run_id)
            said = [one.hear(), two.hear()]
            assert [["RunLockedError"], ["in"]] == sorted(said, key=str)
            winner = (one, two)[said.index(["in"])]
            winner.tell()
            assert ["done", 11] == winner.hear()
            assert 3 == len(calls_of(place[1], run_id))
    with SQLiteStore(place[0]) as store:
        for number in range(8):
            assert store.verify(f"r-{number}").ok
            owners = store.read(f"r-{number}", kinds=("owner",))
            assert [True] == [record.fields().get("crashed") for record in owners]


def test_a_frozen_owner_that_was_overtaken_starts_no_further_node(place: tuple[str, str]):
    with process("obey", *place) as owner, process("obey", *place) as other:
        assert (["up"], ["up"]) == (owner.hear(), other.hear())
        owner.tell("run", "r-1", lease=0.6)
        assert ["in"] == owner.hear()
        owner.freeze()
        other.tell("resume", "r-1", on_locked="wait")
        assert ["in"] == other.hear()
        other.tell()
        assert ["done", 11] == other.hear()
        with SQLiteStore(place[0]) as store:
            journal = store.read("r-1")
            owner.thaw()
            owner.tell()
            assert ["LeaseLost"] == owner.hear()
            assert journal == store.read("r-1")
            assert "finished" == store.get_run("r-1").info.status
        assert [
            (owner.pid, "wait", 1),
            (other.pid, "wait", 1),
            (other.pid, "last", 1),
        ] == calls_of(place[1], "r-1")


def test_a_run_of_a_killed_process_is_listed_as_dead(place: tuple[str, str]):
    with process("obey", *place) as owner:
        owner.hear()
        owner.tell("run", "r-1", tags={"customer": "17"})
        assert ["in"] == owner.hear()
        owner.kill()
    with SQLiteStore(place[0]) as store:
        (info,) = store.list_runs(status="dead")
        assert ("r-1", "waiting", {"customer": "17"}) == (info.run_id, info.flow, dict(info.tags))
