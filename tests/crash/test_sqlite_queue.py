"""Processes that write to one SQLite file, and wait in its queue for one that is killed or frozen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing.children import Child

pytest.importorskip("fcntl")

OPEN = """
import time
from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing.journals import begin, write, checkpoint
store = SQLiteStore(path)
token = begin(store, run_id)
sequence = 0
"""
WRITE = """
began, longest = time.monotonic(), 0.0
before = sequence
while time.monotonic() < began + seconds:
    at = time.monotonic()
    assert write(store, token, checkpoint(run_id, sequence + 1, "a")).outcome == "written"
    sequence += 1
    longest = max(longest, time.monotonic() - at)
answer = [sequence, sequence - before, longest]
"""
IN_QUEUE = "store._queue.enter()"
IN_COMMIT = f"{IN_QUEUE}; store._writer.execute('BEGIN IMMEDIATE')"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def children(path: Path) -> Iterator[list[Child]]:
    SQLiteStore(path).close()
    with ExitStack() as stack:
        children = [stack.enter_context(Child()) for _ in range(4)]
        for number, child in enumerate(children):
            child.tell(OPEN, path=str(path), run_id=f"r{number}")
        yield children


def nothing_is_lost(path: Path, counts: dict[str, int]) -> None:
    with SQLiteStore(path) as store:
        for run_id, count in counts.items():
            assert store.latest(run_id).newest >= count
            assert store.verify(run_id).ok


@pytest.mark.parametrize("place", [IN_QUEUE, IN_COMMIT], ids=["in the queue", "in a commit"])
def test_a_process_that_is_killed_holds_up_nobody(children: list[Child], path: Path, place: str) -> None:
    holder, *others = children
    holder.tell(place)
    for child in others:
        child.begin(WRITE, seconds=1.5)
    time.sleep(0.5)
    holder.kill()
    answers = [child.answer() for child in others]
    assert all(count > 1 and longest < 1.4 for count, _, longest in answers), answers
    nothing_is_lost(path, {f"r{number}": answer[0] for number, answer in enumerate(answers, start=1)})


def test_a_process_that_is_killed_at_any_time_loses_nothing(children: list[Child], path: Path) -> None:
    for child in children[:3]:
        child.begin(WRITE, seconds=2.5)
    counts: dict[str, int] = {}
    for number in range(5):
        run_id = f"killed{number}"
        with Child() as child:
            counts[run_id] = child.tell(OPEN + WRITE, path=str(path), run_id=run_id, seconds=0.05)[0]
            child.begin(WRITE, seconds=60)
            time.sleep(0.1)
            child.kill()
    counts |= {f"r{number}": child.answer()[0] for number, child in enumerate(children[:3])}
    nothing_is_lost(path, counts)


def test_a_process_that_is_frozen_when_it_is_its_turn_holds_up_nobody_for_long(
    children: list[Child], path: Path
) -> None:
    holder, *others = children
    holder.tell(IN_QUEUE)
    holder.freeze()
    for child in others:
        child.begin(WRITE, seconds=2)
    answers = [child.answer() for child in others]
    assert all(written > 1 for _, written, _ in answers), answers  # each has waited for a second, once
    holder.thaw()
    holder.tell("store._queue.leave()")
    for child in children:
        child.begin(WRITE, seconds=0.3)
    again = [child.answer() for child in children]
    nothing_is_lost(path, {f"r{number}": answer[0] for number, answer in enumerate(again)})


def test_each_process_gets_a_fair_share(children: list[Child], path: Path) -> None:
    for _ in range(3):  # a machine that does other things may stop one of them for as long as this takes
        for child in children:
            child.begin(WRITE, seconds=1.5)
        answers = [child.answer() for child in children]
        shares = [written for _, written, _ in answers]
        if min(shares) >= max(shares) / 2:
            break
    else:
        pytest.fail(f"{shares} writes each")
    nothing_is_lost(path, {f"r{number}": answer[0] for number, answer in enumerate(answers)})
