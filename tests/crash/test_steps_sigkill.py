"""Workflows of steps whose processes are killed by SIGKILL at random moments, and that are resumed until they end.

A process under test appends a line to a log for each call of a step or rollback, and says so of each result that was
reported saved. Everything random is seeded.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from processes import Log, calls_of, process, say

from milepost import Retry, Steps, Store, WorkflowError, current, parallel, step, workflow
from milepost.errors import MilepostError
from milepost.events import CheckpointSaved
from milepost.stores.url import open_store

ROUNDS = 6
PARTS = 8
"""The steps of one round, with those inside others: see `working`."""
EXPECTED = [7 * number + 1 for number in range(ROUNDS)]


# -- the processes under test ----------------------------------------------------------------------------------


def working(log: Log, is_async: bool, fails: bool) -> Any:
    """Rounds of a step whose first attempt may fail, a group, a map and a sub-workflow; `fails`: at its end."""

    def add(one: int, other: int) -> int:
        log.add(current())
        return one + other

    def stumble(number: int) -> int:
        ctx = current()
        log.add(ctx)
        if ctx.attempt == 1 and number % 3 == 0:
            raise OSError("not at the first attempt")
        return number

    async def add_later(one: int, other: int) -> int:
        await asyncio.sleep(0)
        return add(one, other)

    def undo(ctx: Any, output: Any) -> None:
        log.add(current())

    adding: Any = add_later if is_async else add

    @workflow("inner")
    def inner(number: int) -> Steps[int]:
        return (yield from step("deep").python(adding, args=(number, number)))

    @workflow("working")
    def flow() -> Steps[list[int]]:
        told: list[int] = []
        for number in range(ROUNDS):
            one: int = yield step(f"stumble-{number}").retry(Retry(3, backoff=0)).python(stumble, args=(number,))
            group = yield parallel(
                f"group-{number}",
                step("x").python(adding, args=(one, number)).with_rollback(undo),
                step("y").python(adding, args=(one, 1)),
            )
            mapped: list[int] = yield step(f"map-{number}").map(lambda item: add(item, 0), [number])
            sub = yield step(f"sub-{number}").subworkflow(inner, {"number": number})
            told.append(sum(result.output for result in group) + mapped[0] + sub.final_output + number)
        if fails:
            raise WorkflowError("everything is undone")
        return told

    return flow


def run(url: str, log: str, run_id: str, is_async: bool, fails: bool) -> None:
    """Begin a run, or go on with it at once."""

    def report(event: Any) -> None:
        if type(event) is CheckpointSaved:
            say("saved", event.node_id, event.sequence)

    flow = working(Log(log), is_async, fails)
    options: dict[str, Any] = {"run_id": run_id, "if_exists": "resume", "hooks": [report], "max_crashes": None}
    with open_store(url) as store:
        try:
            if fails and [info for info in store.list_runs(status="failed") if info.run_id == run_id]:
                # A process died when all was written, but before it could say so.
                say("done", "WorkflowError")
            elif is_async:
                say("done", asyncio.run(flow.arun(store=store, **options)))
            else:
                say("done", flow.run(store=store, **options))
        except MilepostError as exc:
            say("done", type(exc).__name__)


if __name__ == "__main__":
    url, log, run_id, way, end = sys.argv[1:]
    run(url, log, run_id, way == "async", end == "fails")
    sys.exit()


# -- in the test -----------------------------------------------------------------------------------------------


@dataclass
class Story:
    """What became of one run, over all its processes."""

    run_id: str
    kills: int
    told: Any
    reported: list[tuple[int, str]]
    """Process and step of each result that was reported."""
    pids: list[int]


def kill_until_done(url: str, log: str, run_id: str, kills: int, draw: random.Random, way: str, end: str) -> Story:
    """Let one process after the other work on a run; the first `kills` of them are killed at random moments."""
    story, left = Story(run_id, 0, None, [], []), kills
    while story.told is None:
        with process(url, log, run_id, way, end, file=__file__) as one:
            story.pids.append(one.pid)
            patience = draw.randint(0, max(1, 2 * ROUNDS * PARTS // (kills + 1) - 1)) if left else None
            heard: list[list[Any]] = []
            while patience is None or len(heard) < patience:
                told = one.hear()
                if not told:
                    break
                heard.append(told)
            if left:
                # The moment within a step, a write, a rollback, or the start of the process.
                one.says_nothing_for(draw.uniform(0, 0.004 if patience else 0.25))
                story.kills += one.kill()
                left -= 1
            # What it had written to the pipe before it died was reported too.
            heard += one.rest()
            for kind, *told in heard:
                if kind == "saved":
                    story.reported.append((one.pid, told[0]))
                else:
                    story.told = told[0]
    return story


def check(story: Story, store: Store, log: str, end: str) -> None:
    """What must be true of a run, however often its processes were killed."""
    fails = end == "fails"
    assert ("WorkflowError" if fails else EXPECTED) == story.told
    assert ("failed" if fails else "finished") == store.get_run(story.run_id).info.status
    assert () == store.verify(story.run_id).problems
    history = store.history(story.run_id)
    assert ROUNDS * PARTS == len(history) == len({info.node_id for info in history})
    assert {1} == {info.visit for info in history}
    undone = [record.node_id for record in store.read(story.run_id, kinds=("rollback",))]
    undoable = [info.node_id for info in history if info.node_id.endswith("/x")]
    assert (undoable[::-1] if fails else []) == undone
    calls = calls_of(log, story.run_id)
    order = {pid: number for number, pid in enumerate(story.pids)}
    for pid, step_id in story.reported:
        again = [call for call in calls if call.node_id == step_id and order[call.pid] > order[pid]]
        # What was undone was called for that.
        assert (fails and step_id.endswith("/x")) or not again, f"{step_id} was done again in {again}"
    expected = Counter(
        {
            info.node_id: 2 if info.node_id in {"stumble-0", "stumble-3"} or info.node_id in undone else 1
            for info in history
            if info.node_id.partition("-")[0] not in {"group", "map", "sub"} or "/" in info.node_id
        }
    )
    extra = Counter(call.node_id for call in calls)
    # A process that was killed before it called a step has used up the attempt that would have failed.
    fewest = expected - Counter(step_id for step_id in expected if step_id.startswith("stumble"))
    assert not fewest - extra
    # Of a group a kill may cut two steps short.
    assert (extra - expected).total() <= 2 * story.kills


def kill_runs(url: str, log: str, *, seed: int, runs: int, kills: int, way: str, end: str) -> int:
    """Kill the processes of several runs in one store at random moments; how many were killed."""

    def one(number: int) -> Story:
        draw = random.Random(f"{seed}/{number}")
        return kill_until_done(url, log, f"r-{number}", kills, draw, way, end)

    with ThreadPoolExecutor(runs) as pool:
        stories = list(pool.map(one, range(runs)))
    with open_store(url) as store:
        for story in stories:
            check(story, store, log, end)
    return sum(story.kills for story in stories)


@pytest.mark.parametrize(("way", "end"), [("sync", "finishes"), ("async", "fails")])
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_workflows_whose_processes_are_killed_at_random_end_right(url: str, log: str, way: str, end: str) -> None:
    assert 5 <= kill_runs(url, log, seed=17, runs=2, kills=5, way=way, end=end)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("end", ["finishes", "fails"])
@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("url", ["sqlite", "file"], indirect=True)
def test_workflows_that_are_killed_very_often_end_right(url: str, log: str, seed: int, way: str, end: str) -> None:
    assert 14 <= kill_runs(url, log, seed=seed, runs=2, kills=12, way=way, end=end)
