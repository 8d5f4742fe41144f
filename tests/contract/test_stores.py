"""Our own stores under the contract that all stores keep: a store is one class here."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from milepost.model.ids import Clock
from milepost.store import Store
from milepost.stores.memory import MemoryStore
from milepost.stores.sqlite.store import SQLiteStore
from milepost.testing import StoreContract


class TestMemoryStore(StoreContract):
    is_shared_between_processes = False
    lease_has_end = False
    keeps_live = True
    keeps_beats = True

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return MemoryStore(clock=clock)


class TestSQLiteStore(StoreContract):
    runs_statements = True
    keeps_live = True
    keeps_beats = True

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return SQLiteStore(tmp_path / "runs.db", clock=clock)

    def child_source(self, tmp_path: Path) -> str:
        place = str(tmp_path / "runs.db")
        return f"from milepost.stores.sqlite.store import SQLiteStore; store = SQLiteStore({place!r})"

    def query(self, tmp_path: Path, sql: str) -> list[Any]:
        with closing(sqlite3.connect(tmp_path / "runs.db", timeout=30)) as connection, connection:
            return connection.execute(sql).fetchall()


def test_a_promise_that_does_not_apply_is_no_test():
    assert callable(TestSQLiteStore.test_a_killed_owner_is_noticed_at_once)
    assert TestMemoryStore.test_a_killed_owner_is_noticed_at_once is None
    assert callable(TestMemoryStore.test_a_lease_without_end_lasts_until_it_is_let_go)
    assert TestSQLiteStore.test_a_lease_without_end_lasts_until_it_is_let_go is None
