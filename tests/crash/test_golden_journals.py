"""Journals of whole runs, byte for byte as they were when they were frozen, on every store.

The runs are those of the crash tests, which use every feature of both front ends: each is lived undisturbed and with a
death at its first, its middle and its last append. Time is a fake clock's, so that nothing in a journal is left to chance
but the names of owners, tracebacks, and the seals of records that hold one of these.

Where the wire format changes on purpose, `pytest tests/crash/test_golden_journals.py --all --freeze` writes the files again;
the commit that does so shows which fields moved.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
import test_every_effect
import test_every_effect_of_forks
import test_every_effect_of_steps
from crashes_of_steps import play

from milepost import FileStore, MemoryStore, PostgresStore, SQLiteStore, Store
from milepost.model.ids import Clock
from milepost.stores.base.deltas import SMALLEST
from milepost.testing import Crash, FakeClock, crashtest
from milepost.testing.clock import fake_entropy

wide = pytest.mark.wide
FOLDER = Path(__file__).parents[1] / "golden" / "journals"

GRAPHS = {f"graph_{make.__name__}": make for make in test_every_effect.SUBJECTS} | {
    f"fork_{make.__name__}": make for make in test_every_effect_of_forks.SUBJECTS
}
STEPS = test_every_effect_of_steps
WORKFLOWS = {
    f"workflow_{name.replace(' ', '_')}": subject
    for name, subject in {**STEPS.SMALL, **STEPS.ENDING, "everything": STEPS.EVERYTHING}.items()
}
UNDISTURBED = "undisturbed"
TRACEBACK = "Traceback (most recent call last):"
CHANCE = "..."


class LastingMemoryStore(MemoryStore):
    """A memory store that can be read after the run's last process has closed it."""

    def close(self) -> None:
        """Stay open."""


class Place:
    """The place where the runs of one test are kept."""

    def __init__(self, kind: str, path: Path, dsn: str | None) -> None:
        self.kind = kind
        self.path = path
        self.dsn = dsn
        self.newest: Store | None = None

    def open(self, clock: Clock) -> Store:
        """Open the place as another process would; in memory begin a new one."""
        if self.kind == "memory":
            self.newest = LastingMemoryStore(clock=clock)
        elif self.kind == "sqlite":
            self.newest = SQLiteStore(self.path / "runs.db", clock=clock, durability="normal")
        elif self.kind == "file":
            self.newest = FileStore(self.path / "runs", clock=clock)
        else:
            self.newest = PostgresStore(cast("str", self.dsn), clock=clock)
        self.newest.entropy = fake_entropy
        return self.newest

    def journal(self) -> list[str]:
        """The lines of the only run that is here, as it is exported, without what is left to chance."""
        store = self.newest if self.kind == "memory" else self.open(FakeClock())
        assert store is not None
        with store:
            [run] = store.list_runs()
            return [*_without_chance(store.export(run.run_id).decode().splitlines())]

    def payloads(self) -> list[list[object]]:
        """Packing, size and digest of the bytes that a SQLite file keeps of each state: differences among them."""
        with closing(sqlite3.connect(self.path / "runs.db")) as connection:
            rows = connection.execute("SELECT sequence, packing, payload FROM records ORDER BY sequence")
            return [
                [*row[:2], len(row[2]), hashlib.sha256(row[2]).hexdigest()[:16]] for row in rows if row[2] is not None
            ]


def _without_chance(lines: Iterable[str]) -> Iterator[str]:
    """The lines; a seal is left out after a record that is left to chance, or that stores may keep in different forms."""
    is_linked = True
    for line in lines:
        fields = json.loads(line)
        fixed = _fixed(fields)
        if fields.get("owner"):
            fixed["owner"] = CHANCE
        if fixed != fields and "seal" in fields:
            fixed["digest"] = CHANCE
            is_linked = False
        if not is_linked and "sequence" in fields:
            fixed |= dict.fromkeys(("prev", "seal"), CHANCE)
        fixed = {name: value for name, value in fixed.items() if name in fields}
        yield line if fixed == fields else json.dumps(fixed, ensure_ascii=False, separators=(",", ":"))
        is_linked = is_linked and len(line) < SMALLEST


def _fixed(value: Any) -> Any:
    """The value without the tracebacks in its texts, which name files and lines."""
    if isinstance(value, str):
        before, is_there, _ = value.partition(TRACEBACK)
        return f"{before}{CHANCE}" if is_there else value
    if isinstance(value, list):
        return [_fixed(item) for item in value]
    return {name: _fixed(item) for name, item in value.items()} if isinstance(value, dict) else value


def _live(name: str, place: Place, crash: Crash | None) -> list[int]:
    """Live one run to its end; the numbers of the effects that were appends."""
    crashes = () if crash is None else (crash,)
    if name in GRAPHS:
        subject = GRAPHS[name]()
        report = crashtest(subject.graph, subject.input, store=place.open, crashes=crashes, **subject.options)
        effects = report.effects
    else:
        effects = play(WORKFLOWS[name], crashes, place.open).effects
    return [number for number, effect in enumerate(effects) if effect == "Write"]


def lives(name: str, place: Place) -> dict[str, list[str]]:
    """The journal of each life of a run, by how its first process died."""
    appends = _live(name, place, None)
    journals = {UNDISTURBED: place.journal()}
    if place.kind == "sqlite":
        journals["payloads in SQLite"] = [json.dumps(payload) for payload in place.payloads()]
    if place.kind != "memory":  # where a process that dies leaves no lease behind
        first, middle, last = appends[0], appends[len(appends) // 2], appends[-1]
        for words, crash in {
            "died before its first append": Crash(first),
            "died after its middle append": Crash(middle, is_after=True),
            "died before its last append": Crash(last),
        }.items():
            _live(name, place, crash)
            journals[words] = place.journal()
    return journals


IN_FILES = {"graph_retried", "graph_partial_turns", "fork_nested", "workflow_everything"}
"""What is also lived on SQLite in every run of the tests."""


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    dsn: Any = request.getfixturevalue("postgres") if request.param == "postgres" else None
    return Place(request.param, tmp_path, dsn)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, kind, marks=[] if kind == "memory" or (kind == "sqlite" and name in IN_FILES) else [wide])
        for kind in ("memory", "sqlite", "file", "postgres")
        for name in (*GRAPHS, *WORKFLOWS)
    ],
    indirect=["place"],
)
def test_a_run_leaves_the_journal_that_was_frozen(name: str, place: Place, request: pytest.FixtureRequest) -> None:
    found = lives(name, place)
    file = FOLDER / f"{name}.txt"
    if place.kind == "sqlite" and request.config.getoption("--freeze"):
        text = "".join(f"== {life}\n" + "".join(f"{line}\n" for line in lines) for life, lines in found.items())
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    frozen: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            lines = frozen[line[3:]] = []
        else:
            lines.append(line)
    assert found.keys() <= frozen.keys()
    for life, lines in found.items():
        assert frozen[life] == lines, life
