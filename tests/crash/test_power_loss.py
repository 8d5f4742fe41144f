"""The power fails at any moment: what a disk may hold then has all that was reported saved, and nothing else.

A process writes and reports. It is frozen at random moments, and its files are copied as they are then: all of them as
of one moment, for a copy that takes them one after the other while they change is none that a loss of power leaves.
From that follows what else the disk may hold, for what was not yet synchronised may be there, or in part, or not.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from media import BESIDE, MEDIA, Count, every_medium, line

from milepost import END, CompiledGraph, Graph, Store
from milepost.errors import RunStopped
from milepost.events import CheckpointSaved

PADDING = 60_000
"""Bytes of a state: so the log of a database is moved into it every now and then."""


@dataclass
class Pages:
    n: int = 0
    text: str = ""


def numbered(n: int) -> Pages:
    """The state after the `n`-th visit."""
    return Pages(n, f"{n} ".ljust(8) * (PADDING // 8))


def growing_graph() -> CompiledGraph[Pages]:
    """A node that goes on for ever, with a state that tells its own number all over."""

    def grow(state: Pages) -> Pages:
        return numbered(state.n + 1)

    graph = Graph(Pages).add_node("grow", grow).add_conditional_edge("grow", lambda state: "grow", ["grow", END])
    return graph.set_entry("grow").compile("growing")


# -- the process under test --------------------------------------------------------------------------------


def write_for_ever(medium: str, place: str) -> None:
    """Run a graph, and report the number of each checkpoint when it is saved."""

    def report(event: Any) -> None:
        if isinstance(event, CheckpointSaved):
            os.write(1, b"%d\n" % event.sequence)

    with MEDIA[medium](place) as store:
        growing_graph().run(Pages(), store=store, run_id="r", max_iterations=100_000, hooks=[report])


class Writer:
    """A process that writes for ever, and how far it says that it is."""

    def __init__(self, medium: str, place: Path) -> None:
        source = "import sys; from test_power_loss import write_for_ever; write_for_ever(*sys.argv[1:])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", source, medium, place], cwd=BESIDE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdout is not None
        self._told = self._process.stdout
        self._rest = b""
        self.saved = 0

    def hear(self, seconds: float | None) -> None:
        """Take in what it says within `seconds` (None: wait for it)."""
        if select.select([self._told], [], [], seconds)[0]:
            assert self._take(os.read(self._told.fileno(), 1 << 16)), "the writer has ended"

    def _take(self, said: bytes) -> bool:
        *lines, self._rest = (self._rest + said).split(b"\n")
        if lines:
            self.saved = int(lines[-1])
        return bool(said)

    def freeze(self) -> None:
        """Stop it in its tracks, and take in all that it has said."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        self.hear(0)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, and take in all that it has said: it went on after it was heard last."""
        self._process.kill()
        self._process.wait()
        self._take(self._told.read())
        self._told.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def moments(writer: Writer, count: int, draw: random.Random) -> Iterator[int]:
    """Freeze the writer at random moments; what it has reported by then."""
    for _ in range(count):
        goal = writer.saved + draw.randrange(1, 12)
        while writer.saved < goal:
            writer.hear(None)
        writer.hear(draw.random() * 0.003)
        writer.freeze()
        yield writer.saved
        writer.thaw()


# -- what a disk may hold ----------------------------------------------------------------------------------

Files = dict[str, bytes]


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(folder: Path, files: Files) -> None:
    """Have these files in `folder`, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def what_sqlite_leaves(now: Files, scratch: Path, draw: random.Random) -> Iterator[Files]:
    """Ways in which SQLite's files may look after a loss of power.

    The log is synchronised at each commit: only what follows the last one is in doubt. Its index, `-shm`, never is.
    While a log is moved into the database any of the pages may be the old one, for the log is there to the end.
    """
    database, log = now["runs.db"], now.get("runs.db-wal", b"")
    yield now
    end = _end_of_commits(log)
    for tail in (b"", log[end : end + draw.randrange(9000)], bytes(len(log) - end), draw.randbytes(9000)):
        yield {"runs.db": database, "runs.db-wal": log[:end] + tail, "runs.db-shm": draw.randbytes(32768)}
    put(scratch, {"runs.db": database, "runs.db-wal": log})
    connection = sqlite3.connect(scratch / "runs.db")
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    moved = (scratch / "runs.db").read_bytes()
    connection.close()
    yield {"runs.db": _mixed(database, moved, draw), "runs.db-wal": log}


def _end_of_commits(log: bytes) -> int:
    """Where the last commit of a log ends. Source: https://www.sqlite.org/fileformat2.html, on the WAL file format"""
    if len(log) < 32:
        return len(log)
    (page,) = struct.unpack_from(">8xI", log)
    salts, end = log[16:24], 32
    for place in range(32, len(log) - page - 23, page + 24):
        _, size_after, found = struct.unpack_from(">II8s", log, place)
        if found != salts:
            break
        if size_after:
            end = place + page + 24
    return end


def _mixed(old: bytes, new: bytes, draw: random.Random) -> bytes:
    """A file whose pages were partly written when the power failed."""
    length = draw.choice((len(old), len(new)))
    pages = [draw.choice((old, new))[place : place + 4096] for place in range(0, length, 4096)]
    return b"".join(page or new[n * 4096 : n * 4096 + 4096] for n, page in enumerate(pages))


def what_files_leave(now: Files, scratch: Path, draw: random.Random) -> Iterator[Files]:
    """What there is. What else there may be where names and files were not synchronised is tried step by step."""
    yield now


LOSSES: dict[str, Callable[[Files, Path, random.Random], Iterator[Files]]] = {"sqlite": what_sqlite_leaves}
"""What a disk may hold where it holds these files at the moment, by medium; a folder is lent for that."""


# -- what must hold ----------------------------------------------------------------------------------------


def check(store: Store, saved: int) -> None:
    """Assert that all that was saved is there, with one more at most, and that the run goes on from it."""
    records = store.read("r")
    assert len(records) - 1 in {saved, saved + 1}
    assert list(range(len(records))) == [record.sequence for record in records]
    assert [numbered(n) for n in range(1, len(records))] == [
        Pages(**json.loads(record.state() or b"")) for record in records[1:]
    ]
    assert store.verify("r").ok
    with pytest.raises(RunStopped) as stopped:
        growing_graph().resume(store, "r", takeover=True, stop_after="grow", max_iterations=100_000)
    assert len(records) == stopped.value.state.n


@every_medium
@pytest.mark.parametrize("count", [5, pytest.param(15, marks=pytest.mark.slow)])
def test_after_a_loss_of_power_at_any_moment_all_is_there_that_was_reported_saved(
    medium: str, place: Path, tmp_path: Path, count: int
) -> None:
    draw, copy = random.Random(count), tmp_path / "copy"
    writer = Writer(medium, place)
    try:
        for saved in moments(writer, count, draw):
            for left in LOSSES.get(medium, what_files_leave)(files_in(place), tmp_path / "scratch", draw):
                put(copy, left)
                with MEDIA[medium](copy) as store:
                    check(store, saved)
    finally:
        writer.kill()
    with MEDIA[medium](place) as store:
        check(store, writer.saved)


# -- a log that ends anywhere ------------------------------------------------------------------------------


def test_a_log_that_ends_at_any_byte_leaves_a_prefix_from_which_the_run_goes_on(place: Path, tmp_path: Path) -> None:
    kept: list[Files] = []
    with MEDIA["sqlite"](place) as store:
        line([], d=lambda: kept.append(files_in(place))).run(Count(), store=store, run_id="r")
    database, log = kept[0]["runs.db"], kept[0]["runs.db-wal"]
    frames = range(32, len(log), 4096 + 24)
    around = {place + near for place in frames for near in (-1, 0, 24)}
    lengths = sorted(around | set(range(0, 33, 4)) | set(random.Random(0).sample(range(len(log)), 20)) | {len(log)})
    found = [0]
    for length in lengths:
        put(tmp_path / "copy", {"runs.db": database, "runs.db-wal": log[:length]})
        with MEDIA["sqlite"](tmp_path / "copy") as store:
            records = store.read("r")
            assert list(range(len(records))) == [record.sequence for record in records]
            found.append(len(records))
            if records:
                assert store.verify("r").ok
                assert Count(4) == line([]).resume(store, "r", takeover=True)
    assert sorted(found) == found
    assert {0, 1, 2, 3, 4} == set(found)
