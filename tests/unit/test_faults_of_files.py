"""What a SQLite store does when its file, its disk or its neighbours do what they should not."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milepost.errors import MilepostError, StoreError
from milepost.model.record import make_record
from milepost.store import Append, NewRun, Release, Store, Token
from milepost.stores.sqlite import schema as sqlite_schema
from milepost.stores.sqlite import store as sqlite_store
from milepost.stores.sqlite.store import SQLiteStore

TIME = "2025-12-20T15:30:00.000000Z"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def begin(store: Store, run_id: str) -> Token:
    start = make_record(run_id, 0, TIME, "start", state=b"{}", fields={"flow": "flow", "entry": "a"})
    return store.create(NewRun(run_id, "flow", f"nonce of {run_id}", start, 30.0, {}))


def write(store: Store, token: Token, sequence: int, state: bytes = b'{"n":10,"text":"total 10"}') -> str:
    fields = {"next_node": "b"}
    record = make_record(token.run_id, sequence, TIME, "checkpoint", f"n{sequence}", 1, state, fields)
    return store.append([Append(token, (record,))])[0].outcome


def fill(store: Store) -> None:
    """Two runs of an engine, the first of them finished, and one that was saved from outside."""
    for run_id in ("r", "sound"):
        token = begin(store, run_id)
        for sequence in range(1, 7):
            write(store, token, sequence)
        if run_id == "r":
            finish = make_record(run_id, 7, TIME, "finish", fields={"status": "finished"})
            store.append([Append(token, (finish,), Release("finished"))])
    for data in (b'{"node_id":"n","state":1}', b"no json", b"third"):
        store.save("out", "n", data)


@pytest.fixture
def filled(path: Path) -> Path:
    with SQLiteStore(path) as store:
        fill(store)
    return path


def tamper(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def use(store: Store) -> Iterator[Callable[[], Any]]:
    """Every verb that reads, and some that write."""
    for run_id, node_id in (("r", "n1"), ("sound", "n2"), ("out", "n")):
        yield from (
            lambda r=run_id: store.latest(r),
            lambda r=run_id: store.read(r),
            lambda r=run_id, n=node_id: store.load(r, n),
            lambda r=run_id: store.list(r),
            lambda r=run_id: store.history(r),
            lambda r=run_id: store.export(r),
            lambda r=run_id: store.verify(r),
            lambda r=run_id: store.get_run(r),
        )
    yield from (
        lambda: store.list_runs(),
        lambda: store.claim_due(["flow"], 5),
        lambda: store.save("new", "n", b"1"),
        lambda: store.put_signal("out", "s", b"1"),
        lambda: store.delete("r", "n1"),
        lambda: store.delete_run("out"),
    )


# -- damage in the tables ------------------------------------------------------------------------------

OF_R = "run = (SELECT id FROM runs WHERE run_id = 'r')"
OF_OUT = "run = (SELECT id FROM runs WHERE run_id = 'out')"
SWAPPED = [
    f"UPDATE records SET sequence = -sequence WHERE {OF_R} AND sequence IN (2, 3)",
    f"UPDATE records SET sequence = 5 + sequence WHERE {OF_R} AND sequence < 0",
]


@pytest.mark.parametrize(
    ("run_id", "damage"),
    [
        ("r", [f"UPDATE records SET header = replace(header, '\"n1\"', '\"n9\"') WHERE {OF_R} AND sequence = 1"]),
        ("r", [f"UPDATE records SET header = substr(header, 1, 60) WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET header = '' WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET header = NULL WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET header = NULL WHERE {OF_R} AND sequence = 0"]),
        ("r", [f"UPDATE records SET header = CAST(x'7bff' AS TEXT) WHERE {OF_R} AND sequence = 2"]),
        (
            "r",
            [f"UPDATE records SET payload = CAST(replace(payload, '10', '90') AS BLOB) WHERE {OF_R} AND sequence = 3"],
        ),
        ("r", [f"UPDATE records SET payload = substr(payload, 1, 5) WHERE {OF_R} AND sequence = 3"]),
        ("r", [f"UPDATE records SET payload = NULL WHERE {OF_R} AND sequence = 3"]),
        ("r", [f"UPDATE records SET node_id = 'other' WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET node_id = CAST(x'ff' AS TEXT) WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET visit = 9 WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET kind = 'route' WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET size = 9 WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET packing = 'zstd' WHERE {OF_R} AND sequence = 2"]),
        ("r", [f"UPDATE records SET sequence = 20 WHERE {OF_R} AND sequence = 6"]),
        ("r", [f"DELETE FROM records WHERE {OF_R} AND sequence = 0"]),
        ("r", [f"DELETE FROM records WHERE {OF_R} AND sequence = 3"]),
        ("r", [f"DELETE FROM records WHERE {OF_R} AND sequence = 7"]),
        ("r", [f"DELETE FROM records WHERE {OF_R}"]),
        ("r", SWAPPED),
        ("r", ["UPDATE runs SET tags = '[1]' WHERE run_id = 'r'"]),
        ("r", ["UPDATE runs SET live = '{' WHERE run_id = 'r'"]),
        ("r", ["UPDATE runs SET status = 'odd' WHERE run_id = 'r'"]),
        ("r", ["UPDATE runs SET created_at = 1e300 WHERE run_id = 'r'"]),
        ("r", ["UPDATE runs SET flow = CAST(x'ff' AS TEXT) WHERE run_id = 'r'"]),
        ("out", [f"UPDATE records SET payload = CAST('no jsoN' AS BLOB) WHERE {OF_OUT} AND sequence = 2"]),
        ("out", [f"UPDATE records SET payload = x'00' WHERE {OF_OUT} AND sequence = 2"]),
        ("out", [f"UPDATE records SET node_id = 'other' WHERE {OF_OUT} AND sequence = 2"]),
        ("out", [f"UPDATE records SET visit = 9 WHERE {OF_OUT} AND sequence = 2"]),
        ("out", [f"UPDATE records SET header = '{{' WHERE {OF_OUT} AND sequence = 2"]),
        ("out", [f"UPDATE records SET header = NULL WHERE {OF_OUT} AND sequence = 2"]),
        ("out", [f"UPDATE records SET header = NULL, packing = '' WHERE {OF_OUT} AND sequence = 2"]),
        ("out", [f"DELETE FROM records WHERE {OF_OUT} AND sequence = 3"]),
    ],
)
def test_verify_finds_what_was_done_to_the_tables_and_other_runs_go_on(
    filled: Path, run_id: str, damage: list[str]
) -> None:
    with SQLiteStore(filled) as store:
        assert store.verify("r").ok
        assert store.verify("out").ok
    tamper(filled, *damage)
    with SQLiteStore(filled) as store:
        assert not store.verify(run_id).ok
        assert store.verify("sound").ok
        assert b'"total 10"' in store.load("sound", "n6")
        assert ["out", "sound", "r"] == [info.run_id for info in store.list_runs()]
        for verb in use(store):
            with suppress(MilepostError):
                verb()


def test_records_that_were_swapped_between_two_runs_are_found_in_both(filled: Path) -> None:
    tamper(
        filled,
        "UPDATE records SET run = -run WHERE sequence = 2 AND packing <> 'verbatim'",
        "UPDATE records SET run = (SELECT sum(id) FROM runs WHERE run_id IN ('r', 'sound')) + run WHERE run < 0",
    )
    with SQLiteStore(filled) as store:
        assert [1, 1] == [len(store.verify(run_id).problems) for run_id in ("r", "sound")]
        assert store.verify("out").ok


def test_a_damaged_row_is_named_by_the_verbs_of_its_run_and_by_the_listing(filled: Path) -> None:
    tamper(filled, "UPDATE runs SET missed = '7' WHERE run_id = 'r'")
    with SQLiteStore(filled) as store:
        with pytest.raises(StoreError, match=r"row of run 'r' is damaged"):
            store.latest("r")
        shown = {info.run_id: info.reason for info in store.list_runs()}
        assert "damaged" in shown["r"]
        assert "" == shown["out"]
        assert store.claim_due(["flow"], 5) == []


@pytest.mark.parametrize("status", ["'odd' || hex(zeroblob(1000000))", "CAST(x'ff' AS TEXT) || hex(zeroblob(1000000))"])
def test_the_error_of_a_damaged_row_quotes_no_more_than_a_line_of_it(filled: Path, status: str) -> None:
    tamper(filled, f"UPDATE runs SET status = {status} WHERE run_id = 'r'")
    with SQLiteStore(filled) as store, pytest.raises(StoreError, match=r"row of run 'r' is damaged") as caught:
        store.latest("r")
    assert 200 < len(str(caught.value)) < 500


# -- damage in the file --------------------------------------------------------------------------------


def damaged(data: bytes, kind: str, source: random.Random) -> bytes:
    if kind == "cut":
        return data[: source.choice([source.randrange(200), source.randrange(len(data))])]
    flipped = bytearray(data)
    for _ in range(source.choice((1, 1, 5, 50))):
        flipped[source.randrange(len(flipped))] ^= 1 << source.randrange(8)
    return bytes(flipped)


@pytest.mark.parametrize("kind", ["cut", "flip"])
def test_a_file_damaged_anywhere_gives_typed_errors_only(filled: Path, tmp_path: Path, kind: str) -> None:
    data, source = filled.read_bytes(), random.Random(kind)
    for n in range(60):
        copy = tmp_path / f"{n}.db"
        copy.write_bytes(damaged(data, kind, source))
        with suppress(StoreError), SQLiteStore(copy) as store:
            for verb in use(store):
                with suppress(MilepostError):
                    verb()


def test_what_was_written_is_a_prefix_after_the_loss_of_power_at_any_moment(path: Path, tmp_path: Path) -> None:
    states = []
    with SQLiteStore(path) as store:
        token = begin(store, "r")
        for sequence in range(1, 31):
            write(store, token, sequence, b'"%s"' % (b"x" * 3000))
            if sequence % 5 == 0:
                states.append((sequence, path.read_bytes(), Path(f"{path}-wal").read_bytes()))
    copy = tmp_path / "copy.db"
    for acknowledged, database, log in states:
        for lost in (0, 1, 5000, 11_000):
            copy.write_bytes(database)
            Path(f"{copy}-wal").write_bytes(log[: len(log) - lost])
            with SQLiteStore(copy) as store:
                there = [record.sequence for record in store.read("r")]
                assert [*range(len(there))] == there
                assert acknowledged + 1 == len(there) or lost
                assert store.verify("r").ok
            for leftover in tmp_path.glob("copy.db*"):
                leftover.unlink()


def remove(path: Path) -> None:
    for beside in path.parent.iterdir():
        beside.unlink()


def replace_by_a_copy(path: Path) -> None:
    path.with_suffix(".copy").write_bytes(path.read_bytes())
    path.with_suffix(".copy").replace(path)


@pytest.mark.parametrize("meanwhile", [remove, replace_by_a_copy])
@pytest.mark.parametrize("verb", ["append", "append together", "write", "read", "read with a new connection"])
def test_a_file_that_was_removed_or_replaced_while_it_was_open_is_a_store_error(
    path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Path], None], verb: str
) -> None:
    """Nobody else ever reads what is written to the file that is gone."""
    monkeypatch.setattr(sqlite_store, "_SECONDS_UNSEEN", -1.0)
    with SQLiteStore(path) as store:
        token = begin(store, "r")
        assert "written" == write(store, token, 1)
        if verb == "read":
            assert 1 == store.latest("r").newest
        meanwhile(path)
        deeds: dict[str, Callable[[], object]] = {
            "append": lambda: write(store, token, 2),
            "append together": lambda: store.append(
                [
                    Append(
                        token,
                        (make_record("r", 2, TIME, "finish", fields={"status": "finished"}),),
                        Release("finished"),
                    )
                ]
            ),
            "write": lambda: store.save("s", "n", b"1"),
        }
        with pytest.raises(StoreError, match=f"the file {path} was removed or replaced while it was open"):
            deeds.get(verb, lambda: store.latest("r"))()
    with SQLiteStore(path) as store:
        begin(store, "another")
        assert store.verify("another").ok


def test_appends_in_quick_succession_look_for_the_file_only_now_and_then(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    now = [100.0]
    original = sqlite_schema.identity_of
    monkeypatch.setattr(sqlite_store, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sqlite_schema, "identity_of", lambda place: looks.append(place) or original(place))
    with SQLiteStore(path) as store:
        token = begin(store, "r")
        looks.clear()
        for sequence in range(1, 11):
            write(store, token, sequence)
        assert [] == looks
        now[0] += 0.2
        write(store, token, 11)
        assert [str(path)] == looks
        remove(path)
        now[0] += 0.2
        for _ in range(2):  # a failed look does not count
            with pytest.raises(StoreError, match="was removed or replaced"):
                write(store, token, 12)


# -- neighbours ----------------------------------------------------------------------------------------


def test_a_lock_held_for_longer_than_the_busy_timeout_is_a_store_error_and_hurts_no_reader(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_schema, "BUSY_SECONDS", 0.05)
    with SQLiteStore(path) as store:
        token = begin(store, "r")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for verb in (lambda: write(store, token, 1), lambda: store.save("s", "n", b"1"), lambda: store.renew([token])):
            with pytest.raises(StoreError, match="locked") as refused:
                verb()
            assert isinstance(refused.value.__cause__, sqlite3.OperationalError)
        assert 0 == store.latest("r").newest
        other.execute("ROLLBACK")
        other.close()
        assert "written" == write(store, token, 1)


def test_a_process_that_waits_for_the_lock_asks_for_it_every_few_milliseconds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 50:
            other.execute("ROLLBACK")

    with SQLiteStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        token = begin(store, "r")
        monkeypatch.setattr(sqlite_schema, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
        for sequence, verb in enumerate((lambda: write(store, token, 1), lambda: store.renew([token]))):
            other.execute("BEGIN IMMEDIATE")
            verb()
            assert 50 == len(pauses), sequence
            assert max(pauses) <= 0.004
            pauses.clear()


def test_a_log_that_grew_while_a_reader_was_in_the_way_gives_its_space_back(path: Path) -> None:
    with SQLiteStore(path, durability="normal") as store:
        token = begin(store, "r")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM records").fetchone()
        for sequence in range(1, 401):
            write(store, token, sequence, b'"%s"' % (b"%c" % (97 + sequence % 26) * 60_000))
        assert os.path.getsize(f"{path}-wal") > 24_000_000
        reader.execute("ROLLBACK")
        for sequence in range(401, 601):
            write(store, token, sequence, b'"%s"' % (b"%c" % (97 + sequence % 26) * 60_000))
        assert os.path.getsize(f"{path}-wal") < 16_000_000
        reader.close()
        assert 600 == store.latest("r").newest


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("CREATE TABLE runs (x)", "another program"),
        ("CREATE TABLE checkpoints (thread_id TEXT, checkpoint BLOB)", "another program"),
        ("PRAGMA user_version = 1", "another program"),
        ("PRAGMA encoding = 'UTF-16'", "UTF-16"),
    ],
)
def test_a_database_of_another_program_is_refused_and_left_as_it_was(path: Path, statement: str, why: str) -> None:
    tamper(path, statement, "CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match=why):
        SQLiteStore(path)
    assert before == path.read_bytes()


def test_tables_of_others_may_stand_beside_those_of_a_store(path: Path) -> None:
    tamper(path, "CREATE TABLE theirs (x)")
    with SQLiteStore(path) as store:
        fill(store)
        assert store.verify("r").ok


# -- the disk ------------------------------------------------------------------------------------------


def in_child(work: Callable[[], None]) -> int:
    """The exit status of a forked child that does `work`: 0 unless it raised."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as exc:
            print(repr(exc), file=sys.__stderr__, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_a_full_disk_loses_nothing_and_the_store_goes_on_when_there_is_room(path: Path) -> None:
    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        store = SQLiteStore(path)
        token = begin(store, "r")
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        written = 0
        with pytest.raises(StoreError):
            while written < 500:
                write(store, token, written + 1, b'"%s"' % (b"x" * 3000))
                written += 1
        with pytest.raises(StoreError):
            store.save("s", "n", b"x" * 5000)
        assert store.latest("r").newest == written
        assert len(store.list_runs()) == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert write(store, token, written + 1) == "written"
        assert store.verify("r").ok
        store.close()

    assert 0 == in_child(work)
    with SQLiteStore(path) as store:
        assert store.verify("r").ok


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a file to a user who may not write it")
@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o555), (0o000, 0o777), (0o666, 0o555), (0o444, 0o777)])
def test_a_file_or_a_folder_that_may_not_be_written_is_a_store_error(
    filled: Path, file_mode: int, folder_mode: int
) -> None:
    folder = Path(tempfile.gettempdir()) / f"milepost-{os.getpid()}-{file_mode}-{folder_mode}"  # others may enter it
    folder.mkdir()
    try:
        place = Path(shutil.copy(filled, folder))
        place.chmod(file_mode)
        folder.chmod(folder_mode)

        def work() -> None:
            os.setuid(65534)
            with pytest.raises(StoreError, match=r"readonly|unable to open"), SQLiteStore(place) as store:
                assert len(store.list_runs()) == 3
                store.save("s", "n", b"1")

        assert 0 == in_child(work)
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_the_files_are_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        with SQLiteStore(path) as store:
            fill(store)
            store.list_runs()
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600} == modes


@pytest.mark.parametrize(
    "name", ["a b.db", "ü€.db", "q?mode=ro.db", "h#x.db", "p%20x.db", "d'\"q.db", ":memory:x", "\udcff.db"]
)
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        with SQLiteStore(tmp_path / name) as store:
            store.save("r", "n", b"1")
    assert [name] == os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["a\0b.db", "\ud800.db"], ids=ascii)
def test_a_name_that_no_file_can_have_is_a_store_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="can't make the store"):
        SQLiteStore(tmp_path / name)
