"""The places where stores keep live events: who may read them, and what happens when they are damaged."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from milepost import FileStore, SQLiteStore, Store
from milepost.errors import StoreError
from milepost.model.live import LiveBatch, LiveEvent
from milepost.model.workers import WorkerInfo
from milepost.stores.file.live import LiveFolder
from milepost.stores.sqlite.live import LiveFile
from milepost.testing import FakeClock

KEYS = {"signing_key": {"s": b"signing key, 24 bytes..."}, "encryption_key": {"e": b"encryption key, exactly 32 bytes"}}


def live(number: int, body: bytes = b'{"secret":"plan"}') -> LiveEvent:
    return LiveEvent(1, number, 0, FakeClock().time(), "a", 1, 1, body)


def put(store: Store, *events: LiveEvent, forgotten: tuple[int, int] = (0, 0)) -> None:
    store.write_live([LiveBatch("r", events, forgotten)])


def open_at(kind: type[Store], path: Path, **options: object) -> Store:
    return kind(path, clock=FakeClock(), **options)  # type: ignore[call-arg]


def files(path: Path) -> list[Path]:
    live_files = [path.with_name(f"{path.name}-live{end}") for end in ("", "-wal")]
    return [file for file in [*live_files, *(path / ".milepost" / "live").glob("*")] if file.exists()]


@pytest.mark.parametrize("kind", [SQLiteStore, FileStore])
def test_live_events_of_an_encrypted_store_can_be_read_by_nobody_else(kind: type[Store], tmp_path: Path) -> None:
    path = tmp_path / "runs"
    with open_at(kind, path, **KEYS) as store:
        put(store, live(1), live(2))
        assert [live(1), live(2)] == store.read_live("r")
        assert files(path)
        for file in files(path):
            assert 0o600 == stat.S_IMODE(os.stat(file).st_mode)
            assert b"plan" not in file.read_bytes()
        with open_at(kind, path) as plain:
            put(plain, live(3))
        assert [live(1), live(2)] == store.read_live("r")


@pytest.mark.parametrize("kind", [SQLiteStore, FileStore])
def test_what_workers_tell_an_encrypted_store_can_be_read_and_changed_by_nobody_else(
    kind: type[Store], tmp_path: Path
) -> None:
    path, now = tmp_path / "runs", FakeClock().now()
    info = WorkerInfo("secret worker", "host", 1, now, now, {"plan": "sha256:1"}, 10, 0)
    with open_at(kind, path, **KEYS) as store, open_at(kind, path) as plain:
        store.beat(info)
        store.pause_schedule("nightly", by="the planner")
        assert ((info,), ["nightly"]) == (store.workers(), [*store.paused_schedules()])
        # That a schedule is paused counts for whoever reads it, but not what somebody without the keys says of it.
        assert ((), [None]) == (plain.workers(), [pause.by for pause in plain.paused_schedules().values()])
        kept = [file.read_bytes() for file in (path, *tmp_path.rglob("*")) if file.is_file()]
        assert not [data for data in kept if b"sha256:1" in data or b"planner" in data]
        plain.beat(replace(info, name="forged"))
        plain.pause_schedule("forged", by="the forger")
        assert (info,) == store.workers()
        assert {"forged": None, "nightly": "the planner"} == {
            name: pause.by for name, pause in store.paused_schedules().items()
        }
    with open_at(kind, path, read_only=True, **KEYS) as looking:
        assert (info,) == looking.workers()
        for change in (lambda: looking.beat(info), lambda: looking.resume_schedule("nightly")):
            with pytest.raises(StoreError, match="read only"):
                change()


@pytest.mark.parametrize("kind", [SQLiteStore, FileStore])
def test_nobody_can_tell_who_works_on_a_store_that_is_only_looked_at(kind: type[Store], tmp_path: Path) -> None:
    open_at(kind, tmp_path / "runs").close()
    with open_at(kind, tmp_path / "runs", read_only=True) as looking:
        assert (None, {}) == (looking.workers(), looking.paused_schedules())


def test_a_damaged_file_of_live_events_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_at(SQLiteStore, path) as store:
        put(store, *[live(number, b"x" * 1000) for number in range(1, 100)])
    beside = tmp_path / "runs.db-live"
    whole = beside.read_bytes()
    beside.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    with open_at(SQLiteStore, path) as store:
        assert [] == store.read_live("r")
        put(store, live(1))
        assert [live(1)] == store.read_live("r")


def test_events_go_to_the_file_that_is_there_when_another_process_has_deleted_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_at(SQLiteStore, path) as store, open_at(SQLiteStore, path) as other:
        put(store, live(1))
        assert [live(1)] == other.read_live("r")
        (tmp_path / "runs.db-live").unlink()
        put(store, live(2))
        assert [live(2)] == other.read_live("r")


def test_a_new_file_is_made_by_all_at_the_same_time(tmp_path: Path) -> None:
    for attempt in range(10):
        shelves = [LiveFile(str(tmp_path / f"{attempt}.db-live"), is_read_only=False) for _ in range(6)]

        def use(number: int, shelves: list[LiveFile] = shelves) -> None:
            shelves[number].get("r", (0, 0), 10)
            if number % 2:
                shelves[number].put([LiveBatch("r", (live(number),))])

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(use, range(6)))
        assert [1, 3, 5] == [event.number for event in shelves[0].get("r", (0, 0), 10)]
        for shelf in shelves:
            shelf.close()


def test_what_is_no_file_of_live_events_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "runs.db-live").symlink_to(other)
    with open_at(SQLiteStore, tmp_path / "runs.db") as store:
        assert [] == store.read_live("r")
        with pytest.raises(StoreError, match="no regular file"):
            put(store, live(1))
    assert "mine" == other.read_text()


ENDLESS = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT max(n) FROM n"


@pytest.mark.parametrize(
    "script",
    [
        f"CREATE TRIGGER t BEFORE INSERT ON live_events BEGIN {ENDLESS}; END",
        f"DROP TABLE live_events; CREATE VIEW live_events AS SELECT '' run_id, 1 epoch, 1 number, ({ENDLESS}) body",
        f"CREATE VIEW workers AS SELECT 'w' name, 1.0 time, ({ENDLESS}) body",
        "CREATE INDEX more ON live_events (zeroblob(1000))",
    ],
)
def test_nothing_is_executed_that_somebody_defined_in_the_file_of_live_events(tmp_path: Path, script: str) -> None:
    path = tmp_path / "runs"
    with open_at(SQLiteStore, path) as store:
        put(store, live(1))
    with closing(sqlite3.connect(f"{path}-live")) as connection:
        connection.executescript(script)
    for is_read_only in (True, False):
        with open_at(SQLiteStore, path, read_only=is_read_only) as store:
            assert [] == store.read_live("r")
            assert not store.workers()
    with open_at(SQLiteStore, path) as store:
        put(store, live(2))
        assert [live(2)] == store.read_live("r")


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_no_live_event_is_written_through_a_link(tmp_path: Path, suffix: str, link: Callable[..., None]) -> None:
    path, victim = tmp_path / "runs", tmp_path / "victim"
    victim.write_text("it is mine")
    link(victim, f"{path}-live{suffix}")
    with open_at(SQLiteStore, path) as store:
        with pytest.raises(StoreError, match="link"):
            put(store, live(1))
        assert [] == store.read_live("r")
    assert "it is mine" == victim.read_text()


def test_a_line_that_was_left_half_written_hides_no_other(tmp_path: Path) -> None:
    folder = LiveFolder(str(tmp_path / "live"))
    folder.put([LiveBatch("r", (live(1), live(2)))])
    with open(tmp_path / "live" / "r", "ab") as file:
        file.write(b"[1,3,0,")
    assert [live(1), live(2)] == folder.get("r", (0, 0), 10)
    large = live(4, b"x" * 100_000)
    folder.put([LiveBatch("r", (large, live(5)))])
    assert [live(1), live(2), large, live(5)] == folder.get("r", (0, 0), 10)
    assert [live(5)] == folder.get("r", (1, 4), 10)


def test_a_long_file_is_written_anew_without_what_is_forgotten(tmp_path: Path) -> None:
    folder = LiveFolder(str(tmp_path / "live"))
    for number in range(1, 101):
        folder.put([LiveBatch("r", (live(number, b"x" * 100_000),), (1, max(0, number - 10)))])
    assert [*range(91, 101)] == [event.number for event in folder.get("r", (0, 0), 1000)]
    assert 6_000_000 > os.stat(tmp_path / "live" / "r").st_size
    assert ["r"] == os.listdir(tmp_path / "live")


def test_a_late_event_of_an_earlier_owner_hides_no_other(tmp_path: Path) -> None:
    folder = LiveFolder(str(tmp_path / "live"))
    events = [LiveEvent(2, number, 0, 1.0, "a", 1, 1, b"{}") for number in range(1, 7)]
    folder.put([LiveBatch("r", tuple(events))])
    folder.put([LiveBatch("r", (live(9),))])
    assert events[5:] == folder.get("r", (2, 5), 10)
