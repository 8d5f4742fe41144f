"""Our own stores under the contract of all stores, while they seal with a key, encrypt, or both.

Between a medium and the contract stands the same code whatever the medium: so memory has the whole contract with both
keys, and of each key alone, as the other media of both, the chapters on what a key changes.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from milepost.model.ids import Clock
from milepost.store import Store
from milepost.stores.file.store import FileStore
from milepost.stores.memory import MemoryStore
from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing import StoreContract
from milepost.testing.contract.listing import StatementContract
from milepost.testing.contract.live import LiveContract
from milepost.testing.contract.moving import MovingContract
from milepost.testing.contract.records import JournalContract, LargeContract, LatestContract
from milepost.testing.contract.retention import ThinningContract
from milepost.testing.contract.views import ViewContract
from milepost.testing.contract.waiting import SignalContract
from postgres_server import Database

SIGNED = {"signing_key": {"s": b"signing key, 24 bytes..."}}
ENCRYPTED = {"encryption_key": {"e": b"encryption key, exactly 32 bytes"}}
BOTH = {**SIGNED, **ENCRYPTED}


class InMemory:
    is_shared_between_processes = False
    lease_has_end = False
    keeps_live = True
    keeps_beats = True
    keys: Any

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return MemoryStore(clock=clock, **self.keys)


class KeyedContract(ViewContract, JournalContract, SignalContract, LiveContract):
    """The chapters on what a key changes: records, the views of them, signals, live events."""

    keeps_live = True
    keeps_beats = True


class TestRecordsAndSignalsOfAKeyedStore(InMemory, KeyedContract):
    keys = BOTH


@pytest.mark.wide
class TestSignedMemoryStore(InMemory, KeyedContract, MovingContract):
    keys = SIGNED


@pytest.mark.wide
class TestEncryptedMemoryStore(InMemory, KeyedContract, MovingContract):
    keys = ENCRYPTED


@pytest.mark.wide
class TestSignedAndEncryptedMemoryStore(InMemory, StoreContract):
    keys = BOTH


class KeptContract(KeyedContract, LatestContract, StatementContract, LargeContract, ThinningContract, MovingContract):
    """What a medium keeps in its own form. Who may write, and when, is not the key's business."""


@pytest.mark.slow
class TestSignedAndEncryptedSQLiteStore(KeptContract):
    runs_statements = True

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return SQLiteStore(tmp_path / "runs.db", clock=clock, **BOTH)

    def child_source(self, tmp_path: Path) -> str:
        place = str(tmp_path / "runs.db")
        return f"from milepost.stores.sqlite.store import SQLiteStore; store = SQLiteStore({place!r}, **{BOTH!r})"

    def query(self, tmp_path: Path, sql: str) -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "runs.db", timeout=30)) as connection, connection:
            return connection.execute(sql).fetchall()


@pytest.mark.slow
class TestSignedAndEncryptedFileStore(KeptContract):
    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return FileStore(tmp_path / "runs", clock=clock, **BOTH)

    def child_source(self, tmp_path: Path) -> str:
        return f"from milepost.stores.file.store import FileStore; store = FileStore({str(tmp_path / 'runs')!r}, **{BOTH!r})"


@pytest.mark.slow
class TestSignedAndEncryptedPostgresStore(KeptContract):
    runs_statements = True
    placeholder = "%s"

    @pytest.fixture(autouse=True)
    def _find_database(self, postgres: str, database: Database) -> None:
        self.dsn, self.database = postgres, database

    def query(self, tmp_path: Path, sql: str) -> list[Any]:
        return self.database.query(sql)

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        from milepost.stores.postgres.store import PostgresStore

        return PostgresStore(self.dsn, clock=clock, **BOTH)

    def child_source(self, tmp_path: Path) -> str:
        return (
            f"from milepost.stores.postgres.store import PostgresStore; store = PostgresStore({self.dsn!r}, **{BOTH!r})"
        )
