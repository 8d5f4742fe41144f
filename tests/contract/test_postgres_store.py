"""The PostgreSQL store under the contract that all stores keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.model.ids import Clock
from milepost.store import Store
from milepost.stores.postgres.store import PostgresStore
from milepost.testing import StoreContract
from postgres_server import Database


class TestPostgresStore(StoreContract):
    runs_statements = True
    keeps_live = True
    keeps_beats = True
    placeholder = "%s"

    @pytest.fixture(autouse=True)
    def _find_database(self, postgres: str, database: Database) -> None:
        self.dsn, self.database = postgres, database

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return PostgresStore(self.dsn, clock=clock)

    def child_source(self, tmp_path: Path) -> str:
        return f"from milepost.stores.postgres.store import PostgresStore; store = PostgresStore({self.dsn!r})"

    def query(self, tmp_path: Path, sql: str) -> list[Any]:
        return self.database.query(sql)


def test_a_store_that_is_opened_to_read_only_has_sessions_that_cannot_write(postgres: str) -> None:
    PostgresStore(postgres).close()
    with PostgresStore(postgres, read_only=True) as store:
        assert [] == store.list_runs()
        for connections in (store._connections, store._renewing):
            link = store._take("read", connections)
            assert ("on",) == link.connection.execute("SHOW default_transaction_read_only").fetchone()
            connections.give(link)
