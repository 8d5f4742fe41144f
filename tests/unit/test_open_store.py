"""Stores from URLs."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from milepost import Store, step, workflow
from milepost.engine.engine import Engine
from milepost.errors import OptionError, StoreClosedError, StoreError
from milepost.stores.file.store import FileStore
from milepost.stores.memory import MemoryStore
from milepost.stores.sqlite.store import SQLiteStore
from milepost.stores.url import open_store
from milepost.testing.tables import for_each


def test_three_slashes_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///x.db") as store:
        assert isinstance(store, SQLiteStore)
        assert str(tmp_path / "x.db") == store.place


def test_four_slashes_are_absolute(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        assert str(tmp_path / "x.db") == store.place


def test_percent_escapes_stand_for_their_characters(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/a%20b%23.db") as store:
        assert str(tmp_path / "a b#.db") == store.place


def test_a_file_url_names_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("file:a%20b", f"file://{tmp_path}/a%20b", f"FILE:{tmp_path}/a%20b/"):
        with open_store(url) as store:
            assert isinstance(store, FileStore)
            assert str(tmp_path / "a b") == store.place


@pytest.mark.parametrize("url", ["sqlite:///.milepost/deep/runs.db", "file:.milepost/deep/runs"])
def test_missing_folders_are_made_for_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        with Engine(url) as engine:
            assert [] == engine.list_runs()
    finally:
        os.umask(before)
    made = [tmp_path / ".milepost", tmp_path / ".milepost" / "deep"]
    assert [0o700, 0o700] == [stat.S_IMODE(folder.stat().st_mode) for folder in made]
    open_store(url).close()


@pytest.mark.parametrize("url", ["sqlite:///runs.db", "file:runs", "postgresql://127.0.0.1:1/none", "memory://"])
def test_an_engine_opens_its_url_at_its_first_use_and_in_the_folder_of_its_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    engine, unused = Engine(url), Engine(url)
    monkeypatch.chdir(tmp_path / "later")
    assert ["later"] == [path.name for path in tmp_path.iterdir()]
    if not url.startswith("postgresql"):
        assert ([], engine.store) == (engine.list_runs(), engine.store)
    assert [] == [*(tmp_path / "later").iterdir()]
    for each in (engine, unused):
        each.close()
        with pytest.raises(StoreClosedError):
            each.list_runs()


def test_an_engine_refuses_what_is_no_url_at_once() -> None:
    with pytest.raises(OptionError, match="it is no URL of a store"):
        Engine("redis://here")


def test_threads_that_use_an_engine_at_once_open_one_store() -> None:
    engine, both = Engine("memory://"), threading.Barrier(4)

    def used(_: int) -> object:
        both.wait(10)
        return engine.store

    with ThreadPoolExecutor(4) as pool:
        assert 1 == len(set(pool.map(used, range(4))))


def test_memory_is_a_new_store_each_time() -> None:
    first, second = open_store("memory://"), open_store("memory://")
    assert isinstance(first, MemoryStore)
    assert first is not second


def test_sqlite_may_be_in_memory_too() -> None:
    with open_store("sqlite:///:memory:") as store:
        assert ":memory:" == store.place


NO_URLS = r"""
runs.db  /srv/runs.db  ./runs.db  C:\runs.db  sqlite//x  memory  :  memory://x  http://x  redis://x  sqlite:  sqlite://
sqlite://runs.db  sqlite:///  sqlite:x.db  sqlite:///folder/  sqlite:///x.db?mode=ro  sqlite:///a%00b
postgresql:  postgres:h/d  file  file:  file:///  file://host/runs  file:///srv/runs?x=1  file:a%00b
"""


@for_each("url", ["", "\0", *NO_URLS.split()])
def test_what_is_no_url_of_a_store_is_refused_with_the_forms(url: str) -> None:
    with pytest.raises(OptionError, match=r"sqlite:///runs\.db") as caught:
        open_store(url)
    assert "store" == caught.value.option


def test_a_url_of_a_database_goes_to_it_as_it_is(postgres: str) -> None:
    for scheme in ("postgresql", "postgres", "POSTGRESQL"):
        with open_store(scheme + postgres.removeprefix("postgresql")) as store:
            store.save("r", "a", b"1")
            assert ["r"] == [info.run_id for info in store.list_runs()]


@for_each(
    "url",
    [
        "postgresql://user:secret@host/db",
        "postgres://host/db?password=secret",
        "mysql://user:secret@host/db",
        "sqlite://user:secret@host/x.db",
        "postgresql://user:secret@[host/db",
        "postgresql://user:secret@host:x/db",
        "postgresql://user@host/db?secret",
        "postgresql://user@host/db?secret=1",
        "postgresql://user:se%cret@host/db",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    with pytest.raises((OptionError, StoreError)) as caught:
        open_store(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", [None, 7, Path("runs.db")])
def test_a_url_is_a_str(url: Any) -> None:
    with pytest.raises(TypeError):
        open_store(url)


def test_a_store_that_cannot_be_opened_says_where(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    with pytest.raises(StoreError, match=str(tmp_path / "no" / "runs")):
        open_store(f"file://{tmp_path}/no/runs")
    with pytest.raises(StoreError, match=str(tmp_path / "no" / "x.db")):
        open_store(f"sqlite:///{tmp_path}/no/x.db")


def test_a_url_that_no_file_can_have_is_a_store_error(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/\ud800.db", f"file://{tmp_path}/\ud800"):
        with pytest.raises(StoreError):
            open_store(url)


def _files(folder: Path) -> dict[str, bytes]:
    """The files below a folder, without those by which SQLite shares the log of a database."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
    return {str(path): path.read_bytes() for path in files}


WRITES: list[Callable[[Store], object]] = [
    lambda store: store.save("s", "a", b"1"),
    lambda store: store.put_signal("r", "go", b"1"),
    lambda store: store.request_cancel("r"),
    lambda store: store.delete("r", "a"),
    lambda store: store.delete_run("r"),
    lambda store: store.import_run(store.export("r"), run_id="copy"),
    lambda store: store.prune(older_than=0, statuses="waiting"),
    lambda store: store.claim_due(["asking"], 1),
    lambda store: store.append([]),
    lambda store: store.renew([]),
    lambda store: Engine(store).start(asking, run_id="s"),
]


@workflow("asking")
def asking():  # type: ignore[no-untyped-def]
    yield step("a").python(lambda: 1)
    yield step("ask").wait_for("go")


@pytest.mark.parametrize("url", ["sqlite:///kept/runs.db", "file:kept/runs"])
def test_a_store_that_is_opened_to_read_only_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError) as caught:
        open_store(url, read_only=True)
    assert ("open", []) == (caught.value.op, [*tmp_path.iterdir()])
    with Engine(url) as engine:
        engine.run(asking, run_id="r", full=True)
        expected = engine.history("r")
    before = _files(tmp_path)
    with open_store(url, read_only=True) as store:
        for write in WRITES:
            with pytest.raises(StoreError, match="opened to read only"):
                write(store)
        assert (["r"], expected) == ([info.run_id for info in store.list_runs()], store.history("r"))
        assert (1, True) == (Engine(store).handle("r", asking).output("a"), store.verify("r").ok)
        assert store.stats().records
        store.tidy()
    assert before == _files(tmp_path)


def test_a_database_whose_folder_cannot_be_written_is_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine(f"sqlite:///{tmp_path}/runs.db") as engine:
        engine.run(asking, run_id="r", full=True)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with open_store(f"sqlite:///{tmp_path}/runs.db", read_only=True) as store:
        assert ["r"] == [info.run_id for info in store.list_runs()]
        assert "can't be written" in caplog.text
        assert not [*tmp_path.glob("runs.db-*al")]


def test_a_database_that_is_read_as_it_is_may_be_replaced_even_across_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, other = tmp_path / "runs.db", tmp_path / "other.db"
    for path in (place, other):
        with Engine(f"sqlite:///{path}") as engine:
            engine.run(asking, run_id=path.stem, full=True)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with open_store(f"sqlite:///{place}", read_only=True) as store:
        assert ["runs"] == [info.run_id for info in store.list_runs()]
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        os.replace(other, place)
        assert ["other"] == [info.run_id for info in store.list_runs()]


def test_a_database_of_an_older_release_is_not_migrated_to_be_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"
    open_store(url).close()
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(StoreError, match="tables of version 2, and is opened to read only"):
        open_store(url, read_only=True)
    with closing(sqlite3.connect(tmp_path / "empty.db")) as connection:
        connection.execute("VACUUM")
    with pytest.raises(StoreError, match="no tables"):
        open_store(f"sqlite:///{tmp_path}/empty.db", read_only=True)
