"""Bytes that changed after they were written, each of them: no other value comes out, and no error that is not ours.

What a run would go on with is asked by a `revalidate` that refuses it, so that no damaged store is written to.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from media import MEDIA, Count, add_bystanders, line

from milepost import MilepostError, NodeError, SQLiteStore, Store
from milepost.errors import RunStopped, StateValidationError

GRAPH = line([])
OTHERS = {"done", "parked", "outside"}


def fail() -> None:
    raise OSError("not this time")


def die() -> None:
    raise KeyboardInterrupt


def build(store: Store) -> None:
    """Runs that nobody may touch, and `r`: it has failed at b, and goes on there with the state that it was then given."""
    add_bystanders(store)
    with suppress(NodeError):
        line([], b=fail).run(Count(), store=store, run_id="r", tags={"customer": "17"})
    with suppress(KeyboardInterrupt):
        line([], b=die).resume(store, "r", state_override=lambda state: Count(50))


def state_of(store: Store, **options: Any) -> int | None:
    """What `r` would go on with; None if an error of ours says that it can't."""
    try:
        GRAPH.resume(store, "r", revalidate=lambda state: "no further", **options)
    except StateValidationError as exc:
        return int(exc.state.n)
    except MilepostError:
        return None
    raise AssertionError("the run went on")


def check(store: Store, damage: object, *older: int) -> None:
    """Assert that `r` goes on as if it were whole, or not at all, or from an older point where that is asked for.

    Whatever is read of it may raise an error of ours and no other. `older` are states that may come of it all the same.
    """
    for verb in (store.history, store.export, store.verify):
        with suppress(MilepostError):
            verb("r")
    for node_id in "ab":
        with suppress(MilepostError):
            store.load("r", node_id)
    assert state_of(store) in {50, None, *older}, damage
    assert state_of(store, on_corrupt="previous") in {50, 1, 0, None}, damage


# -- the columns of a database -----------------------------------------------------------------------------


def variants(value: Any, step: int) -> Iterator[Any]:
    """`value` with one bit of every `step`-th byte changed, and cut at some places."""
    if isinstance(value, int):
        yield from (value ^ 1 << bit for bit in (0, 1, 3, 8, 17, 33, 62)[::step])
    elif isinstance(value, float):
        yield from (struct.unpack("<d", data)[0] for data in variants(struct.pack("<d", value), step) if len(data) == 8)
    elif value is not None:
        data = value.encode() if isinstance(value, str) else value
        yield from (data[:place] for place in range(0, len(data), step * 8))
        for place in range(0, len(data), step):
            yield data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]


def damage_columns(path: Path, step: int) -> Iterator[tuple[str, str, Any]]:
    """Damage each value of `r` in each way, one after the other: table, column and what stands there now."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    number = connection.execute("SELECT id FROM runs WHERE run_id = 'r'").fetchone()[0]
    for table, key in (("runs", "id"), ("records", "run")):
        columns = {column for _, column, *_ in connection.execute(f"PRAGMA table_info({table})")}
        # Where a record counts for another run it is gone from its own, which is another fault.
        for column in sorted(columns - {"id", "run"}):
            query = f"SELECT id, {column}, typeof({column}) FROM {table} WHERE {key} = ?"
            for row, value, kind in connection.execute(query, (number,)).fetchall():
                change = f"UPDATE {table} SET {column} = CAST(? AS {kind}) WHERE id = ?"
                for damaged in variants(value, step):
                    with suppress(sqlite3.IntegrityError):
                        connection.execute(change, (damaged, row))
                        yield table, column, damaged
                        connection.execute(change, (value, row))
    connection.close()


@pytest.mark.parametrize("step", [16, pytest.param(3, marks=pytest.mark.slow)])
def test_no_changed_byte_in_a_column_gives_another_value_or_hides_another_run(tmp_path: Path, step: int) -> None:
    path, count = tmp_path / "runs.db", 0
    with SQLiteStore(path, durability="normal") as store:
        build(store)
        whole = [info for info in store.list_runs() if info.run_id in OTHERS]
        assert (3, 50) == (len(whole), state_of(store))
        for damage in damage_columns(path, step):
            count += 1
            check(store, damage)
            assert whole == [info for info in store.list_runs() if info.run_id in OTHERS], damage
            assert b"anything" == store.load("outside", "a")
        assert 50 == state_of(store)
        assert all(store.verify(run_id).ok for run_id in ("r", *OTHERS))
    assert count > 2000 // step


# -- the files ---------------------------------------------------------------------------------------------


def damage_files(folder: Path, most: int) -> Iterator[tuple[str, int, str]]:
    """Change a bit at `most` places of the files, or of each byte; cut them at some: file, place and damage."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and OTHERS.isdisjoint(path.parts)]
    files = {path: path.read_bytes() for path in paths}
    step = max(1, sum(map(len, files.values())) // most)
    for path, data in files.items():
        for place in range(0, len(data), step):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
            yield path.name, place, "flip"
        for place in range(0, len(data), step * 8):
            path.write_bytes(data[:place])
            yield path.name, place, "cut"
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("medium", "most"),
    [
        *[(medium, 50) for medium in MEDIA],
        pytest.param("sqlite", 500, marks=pytest.mark.slow),
        pytest.param("file", 500, marks=pytest.mark.slow),
    ],
)
def test_no_changed_byte_in_a_file_gives_another_value(medium: str, most: int, tmp_path: Path) -> None:
    with MEDIA[medium](tmp_path) as store:
        build(store)
    # Pages of SQLite have no checksums: an index that was damaged may hide records, and the run is as it was before.
    older = (1, 0) if medium == "sqlite" else ()
    count = 0
    for damage in damage_files(tmp_path, most):
        count += 1
        with suppress(MilepostError), MEDIA[medium](tmp_path) as store:
            with suppress(MilepostError):
                store.list_runs()
            check(store, damage, *older)
    with MEDIA[medium](tmp_path) as store:
        assert 50 == state_of(store)
        assert all(store.verify(run_id).ok for run_id in ("r", *OTHERS))
    assert count >= most


# -- what no record tells by itself --------------------------------------------------------------------------


def finished(store: Store) -> None:
    GRAPH.run(Count(), store=store, run_id="r")


def overridden(store: Store) -> None:
    with suppress(RunStopped):
        GRAPH.run(Count(), store=store, run_id="r", stop_after="a")
    with suppress(KeyboardInterrupt):
        line([], b=die).resume(store, "r", state_override=lambda state: Count(50))


def superseded(store: Store) -> None:
    GRAPH.run(Count(), store=store, run_id="r")
    with suppress(KeyboardInterrupt):
        line([], b=die).resume_from(store, "r", "a", state_override=lambda state: Count(50))


def from_outside(store: Store) -> None:
    store.save("r", "a", b'{"node_id":"a","next_node":"b","state":{"n":1}}')


def tamper(statement: str) -> Callable[[Path], None]:
    """Change one row of a database."""

    def change(folder: Path) -> None:
        connection = sqlite3.connect(folder / "runs.db", isolation_level=None)
        assert connection.execute(statement).rowcount == 1
        connection.close()

    return change


def edit(old: bytes, new: bytes) -> Callable[[Path], None]:
    """Change the newest file of a run that has `old` in it; with nothing, take the file away."""

    def change(folder: Path) -> None:
        path = max(path for path in folder.rglob("0*") if old in path.read_bytes())
        if new:
            path.write_bytes(path.read_bytes().replace(old, new, 1))
        else:
            path.unlink()

    return change


@pytest.mark.parametrize(
    ("medium", "build", "damage"),
    [
        pytest.param("sqlite", finished, tamper("DELETE FROM records WHERE sequence = 4")),
        pytest.param("sqlite", overridden, tamper("DELETE FROM records WHERE kind = 'owner'")),
        pytest.param("sqlite", superseded, tamper("UPDATE runs SET live = replace(live, '0,1]', '0,3]')")),
        pytest.param(
            "sqlite",
            from_outside,
            tamper("UPDATE records SET payload = CAST(replace(payload, '1}', '9}') AS BLOB)"),
        ),
        pytest.param("file", finished, edit(b'"sequence":4,', b""), id="file-finished"),
        pytest.param("file", overridden, edit(b'"records":', b'"recordr":'), id="file-overridden"),
        pytest.param("file", superseded, edit(b'["",0,1]', b'["",0,3]'), id="file-superseded"),
        pytest.param("file", from_outside, edit(b'{"n":1}', b'{"n":9}'), id="file-from-outside"),
    ],
)
def test_a_run_does_not_go_on_from_what_was_changed_beside_its_records(
    medium: str, build: Callable[[Store], None], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    with MEDIA[medium](tmp_path) as store:
        build(store)
    damage(tmp_path)
    with MEDIA[medium](tmp_path) as store:
        assert state_of(store) is None


def test_an_index_that_was_changed_hides_no_record(tmp_path: Path) -> None:
    with MEDIA["file"](tmp_path) as store:
        for number in range(20):
            store.save("r", "ab"[number % 2], b"%d" % number)
        whole = store.history("r")
    (index,) = tmp_path.rglob("block-*")
    data = index.read_bytes()
    for place in range(len(data)):
        index.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with MEDIA["file"](tmp_path) as store:
            assert whole == store.history("r")
            assert [b"18", b"19"] == [store.load("r", node_id) for node_id in "ab"]
            assert b"0" == store.load("r", "a", 1)
