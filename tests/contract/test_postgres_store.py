"""The PostgreSQL store under the contract that all stores keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from milepost.clock import Clock
from milepost.store import Store
from milepost.stores.postgres import PostgresStore
from milepost.testing import StoreContract
from postgres_server import Database


class OnPostgres(StoreContract):
    runs_statements = True
    placeholder = "%s"
    keys: ClassVar[dict[str, dict[str, bytes]]] = {}

    @pytest.fixture(autouse=True)
    def _find_database(self, postgres: str, database: Database) -> None:
        self.dsn, self.database = postgres, database

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return PostgresStore(self.dsn, clock=clock, **self.keys)  # type: ignore[arg-type]

    def child_source(self, tmp_path: Path) -> str:
        arguments = f"{self.dsn!r}, **{self.keys!r}"
        return f"from milepost.stores.postgres import PostgresStore; store = PostgresStore({arguments})"

    def query(self, tmp_path: Path, sql: str) -> list[Any]:
        return self.database.query(sql)


class TestPostgresStore(OnPostgres):
    """As it comes."""


@pytest.mark.slow
class TestSignedAndEncryptedPostgresStore(OnPostgres):
    """With keys, which are between the verbs and the medium."""

    keys: ClassVar[dict[str, dict[str, bytes]]] = {
        "signing_key": {"s": b"signing key, 24 bytes..."},
        "encryption_key": {"e": b"encryption key, exactly 32 bytes"},
    }
