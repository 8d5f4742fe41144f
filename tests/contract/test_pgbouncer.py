"""The PostgreSQL store behind a pooler in transaction mode, which hands each transaction to any connection of the server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from milepost.errors import StoreError
from milepost.model.ids import Clock
from milepost.store import Store
from milepost.stores.postgres.connection import Session
from milepost.stores.postgres.store import PostgresStore
from milepost.testing.contract.listing import StatementContract
from milepost.testing.contract.live import LiveContract
from milepost.testing.contract.ownership import ClaimContract, FenceContract, LeaseContract
from milepost.testing.contract.processes import ProcessContract, ThreadContract
from milepost.testing.contract.records import JournalContract, LargeContract, LatestContract
from milepost.testing.contract.retention import ThinningContract
from milepost.testing.contract.waiting import CancelContract, DueContract, SignalContract
from milepost.testing.journals import begin, checkpoint, work, write
from pgbouncer import PROGRAM, PgBouncer
from postgres_server import Database, Server, given_dsn

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed"),
    pytest.mark.skipif(given_dsn() is not None, reason="the pooler needs a server of these tests alone"),
]


@pytest.fixture(scope="module")
def pooler(own_server: Server) -> Iterator[PgBouncer]:
    with PgBouncer(own_server.dsn, own_server.user) as pooler:
        yield pooler


@pytest.fixture
def pooled(pooler: PgBouncer, postgres: str) -> str:
    """A URL that leads through the pooler, to a database without runs."""
    return pooler.dsn


class Pooled:
    runs_statements = True
    keeps_live = True
    keeps_beats = True
    placeholder = "%s"

    @pytest.fixture(autouse=True)
    def _find_database(self, pooled: str, database: Database) -> None:
        self.dsn, self.database = pooled, database

    def query(self, tmp_path: Path, sql: str) -> list[Any]:
        return self.database.query(sql)

    def make_store(self, tmp_path: Path, clock: Clock) -> Store:
        return PostgresStore(self.dsn, clock=clock)

    def child_source(self, tmp_path: Path) -> str:
        return f"from milepost.stores.postgres.store import PostgresStore; store = PostgresStore({self.dsn!r})"


class TestBehindPgBouncer(
    Pooled, FenceContract, ClaimContract, DueContract, ThreadContract, ProcessContract, LiveContract
):
    """What has to do with locks, with who is who, and with polls."""


@pytest.mark.slow
class TestAllBehindPgBouncer(
    Pooled,
    LeaseContract,
    JournalContract,
    LatestContract,
    SignalContract,
    CancelContract,
    StatementContract,
    LargeContract,
    ThinningContract,
):
    """All else whose statements belong together, in a transaction or from one to the next."""


def test_a_pooler_is_recognised_and_nothing_is_prepared(
    pooled: str, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="milepost"), PostgresStore(pooled) as store:
        token = begin(store, "r")
        for _ in range(10):
            work(store, token, "a")
        assert not store._preparing.is_on
        with store._read("look") as tx:
            assert [] == tx._fetch("SELECT name FROM pg_prepared_statements", ())  # type: ignore[attr-defined]
            timeout = tx._fetch("SELECT source FROM pg_settings WHERE name = 'statement_timeout'", ())  # type: ignore[attr-defined]
    assert 1 == len(caplog.records)
    assert "pooler" in caplog.text
    assert [("session",)] == timeout  # of this transaction alone, as the next test shows


def test_nothing_is_left_behind_for_whoever_comes_next(pooled: str) -> None:
    with PostgresStore(pooled) as store:
        tokens = [begin(store, f"r{n}") for n in range(12)]
        threads = [threading.Thread(target=work, args=(store, token, *"abc")) for token in tokens]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.renew(tokens)
        query = """
            SELECT name, setting FROM pg_settings
            WHERE source = 'session' AND name NOT IN ('client_encoding', 'application_name')
        """
        links = [store._connections.take(1.0) for _ in range(6)]
        for link in links:
            link.connection.execute("BEGIN")  # each holds a connection of the server
        assert [[]] * 6 == [link.connection.execute(query).fetchall() for link in links]
        for link in links:
            link.connection.execute("COMMIT")
            store._connections.give(link)


def test_a_store_that_is_opened_to_read_only_leaves_nothing_behind_either(pooled: str) -> None:
    PostgresStore(pooled).close()
    with PostgresStore(pooled, read_only=True) as store:
        assert [] == store.list_runs()
    with PostgresStore(pooled) as store:
        store.save("r", "a", b"1")


def test_a_pooler_that_is_not_recognised_is_noticed_before_anything_is_done(
    pooler: PgBouncer, pooled: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look = Session.__init__

    def overlook(self: Session, *args: object) -> None:
        look(self, *args)  # type: ignore[arg-type]
        self.is_direct = True

    monkeypatch.setattr(Session, "__init__", overlook)
    outcomes: list[str] = []
    with PostgresStore(pooled) as store:
        assert store._preparing.is_on
        tokens = [begin(store, f"r{n}") for n in range(6)]

        def append(run: int) -> None:
            outcomes.extend(
                write(store, tokens[run], checkpoint(f"r{run}", sequence)).outcome for sequence in range(1, 21)
            )

        threads = [threading.Thread(target=append, args=(run,)) for run in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with caplog.at_level(logging.WARNING, logger="milepost"):
            for n in range(40):
                pooler.reconnect()
                outcomes.append(write(store, tokens[0], checkpoint("r0", 21 + n)).outcome)
        assert not store._preparing.is_on
        assert {"written"} == set(outcomes)
        assert [60, *[20] * 5] == [len(store.history(f"r{run}")) for run in range(6)]
        assert all(store.verify(f"r{run}").ok for run in range(6))


def test_a_pooler_without_a_free_connection_is_waited_for_and_then_named(own_server: Server, postgres: str) -> None:
    settings = {"default_pool_size": 1, "query_wait_timeout": 1}
    with PgBouncer(own_server.dsn, own_server.user, **settings) as pooler, PostgresStore(pooler.dsn) as store:
        token = begin(store, "r", lease=6.0)
        with psycopg.connect(pooler.dsn) as connection:
            connection.execute("SELECT 1")
            with pytest.raises(StoreError, match="query_wait_timeout"):
                store.get_run("r")
        assert "written" == work(store, token, "a").outcome
