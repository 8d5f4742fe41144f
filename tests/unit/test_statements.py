"""Statements with a checkpoint on their way: from the context through lanes and branches, and what databases do beside them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from milepost import END, Context, Graph, NodeError, Retry, SQLiteStore
from milepost.drivers.branches import Branches, merged
from milepost.executor.effects import Alone, Gather, Routine, Write
from milepost.store import Append, Statement, Token
from milepost.stores.postgres.store import PostgresStore
from milepost.testing import context, run_flow
from milepost.testing.journals import begin, checkpoint
from postgres_server import Database


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    """A database with a table of the user's, in which number 7 is taken."""
    path = tmp_path / "bank.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE entries (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO entries VALUES (7)")
        connection.commit()
    return path


def entries(path: Path) -> list[int]:
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM entries ORDER BY id")]


def entering(**options: Any) -> Any:
    def enter(ctx: Context[Any], number: int) -> int:
        for own in {abs(number), 7} if number < 0 and ctx.attempt == 1 else {abs(number)}:
            ctx.with_checkpoint("INSERT INTO entries VALUES (?)", (own,))
        return number

    return Graph(int).add_node("enter", enter, **options).add_edge("enter", END).set_entry("enter").compile("entering")


# -- alone on the way ------------------------------------------------------------------------------------------


def test_a_lane_hands_each_append_with_statements_over_alone(bank: Path) -> None:
    """One that fails takes no run with it that was handed over at the same time."""
    batches: list[list[Append]] = []

    class Watched(SQLiteStore):
        def append(self, batch: Any) -> Any:
            batches.append([*batch])
            return super().append(batch)

    async def main(store: SQLiteStore) -> list[Any]:
        plain = Graph(int).add_node("a", lambda n: n).add_edge("a", END).set_entry("a").compile("plain")
        runs = [entering().arun(number, store=store) for number in range(10, 30)]
        runs += [entering(retry=Retry(backoff=0)).arun(-number, store=store) for number in range(30, 40)]
        runs += [plain.arun(number, store=store) for number in range(20)]
        return await asyncio.gather(*runs)

    with Watched(bank) as store:
        told = asyncio.run(main(store))
        assert [*range(10, 30), *(-number for number in range(30, 40)), *range(20)] == told
        assert 50 == len(store.list_runs(status="finished"))
    assert [7, *range(10, 40)] == entries(bank)
    alone = [batch for batch in batches if any(append.statements for append in batch)]
    assert {1} == {len(batch) for batch in alone}
    assert 40 == len(alone)
    assert max(map(len, batches)) > 1


def test_a_branch_that_asks_to_be_alone_is_stepped_alone() -> None:
    stepped: list[str] = []

    def branch(name: str) -> Routine[None]:
        stepped.append(f"{name} asks")
        yield Alone()
        stepped.append(f"{name} writes")
        yield Write(None, None)  # type: ignore[arg-type]

    branches = Branches(Gather({"a": branch("a"), "b": branch("b")}))
    asked = []
    while (item := branches.step()) is not None:
        asked.append(item[0])
    branches.answer(asked[0], None)
    item = branches.step()
    assert item is not None
    assert ("a", Write) == (item[0].name, type(item[1]))
    assert branches.step() is None
    assert ["a asks", "b asks", "a writes"] == stepped


def test_an_append_with_statements_is_never_joined_with_others() -> None:
    token = Token("r", 1, "nonce", "process")
    plain = Append(token, (checkpoint("r", 1),))
    asked = Append(token, (checkpoint("r", 2),), statements=(Statement("SELECT 1"),))
    branches: Any = [type("Named", (), {"name": name}) for name in "ab"]
    for writes in ([plain, asked], [asked, plain]):
        with pytest.raises(RuntimeError, match="without being alone"):
            merged([(one, Write(None, write)) for one, write in zip(branches, writes, strict=True)])  # type: ignore[arg-type]


def test_threads_whose_statements_fail_take_no_others_with_them(bank: Path) -> None:
    with SQLiteStore(bank) as store:
        threads = [
            threading.Thread(target=entering(retry=Retry(backoff=0)).run, args=(number,), kwargs={"store": store})
            for number in [*range(-30, -20), *range(40, 60)]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 30 == len(store.list_runs(status="finished"))
    assert [7, *range(21, 31), *range(40, 60)] == entries(bank)


# -- in tests of users -----------------------------------------------------------------------------------------


def test_a_context_for_tests_tells_what_was_asked_for() -> None:
    asked: list[Statement] = []
    with context(statements=asked) as ctx:
        ctx.with_checkpoint("UPDATE t SET a = ?", [1])
    with context() as ctx:
        ctx.with_checkpoint("UPDATE t SET a = 2")
    assert [("UPDATE t SET a = ?", (1,))] == asked


def test_a_flow_with_statements_is_tested_on_sqlite(bank: Path) -> None:
    with SQLiteStore(bank) as store:
        assert 5 == run_flow(entering(), 5, store=store).state
    assert [5, 7] == entries(bank)


# -- SQLite ----------------------------------------------------------------------------------------------------


def test_a_database_in_memory_has_the_users_tables_too() -> None:
    def make(ctx: Context[Any], number: int) -> int:
        ctx.with_checkpoint("CREATE TABLE entries (id INTEGER PRIMARY KEY)")
        ctx.with_checkpoint("INSERT INTO entries VALUES (1)")
        return number

    graph = Graph(int).add_node("make", make).add_edge("make", END).set_entry("make").compile("make")
    with SQLiteStore(":memory:") as store:
        graph.run(1, store=store, run_id="r")
        with pytest.raises(NodeError, match="already exists"):
            graph.run(1, store=store, run_id="again")
        assert store.verify("r").ok


def test_rows_that_a_statement_returns_are_read_to_their_end(bank: Path) -> None:
    with SQLiteStore(bank) as store:
        token = begin(store, "r")
        several = Statement("INSERT INTO entries VALUES (1), (2), (3) RETURNING id")
        store.append([Append(token, (checkpoint("r", 1),), statements=(several, Statement("SELECT * FROM entries")))])
    assert [1, 2, 3, 7] == entries(bank)


# -- PostgreSQL ------------------------------------------------------------------------------------------------


def test_statements_find_tables_by_the_users_search_path(postgres: str, schema: str, database: Database) -> None:
    database.query(f'CREATE SCHEMA "{schema}"')
    database.query(f'CREATE TABLE "{schema}".runs (id integer)')
    given = psycopg.conninfo.make_conninfo(postgres, options=f'-c search_path="{schema.replace(" ", chr(92) + " ")}"')
    with PostgresStore(given) as store:
        token = begin(store, "r")
        mine = Statement("INSERT INTO runs VALUES (%(id)s)", {"id": 5})
        assert [("written", None)] == store.append([Append(token, (checkpoint("r", 1),), statements=(mine,))])
        assert store.verify("r").ok
    assert [(5,)] == database.query(f'SELECT id FROM "{schema}".runs')


def test_a_deadlock_of_statements_has_the_whole_append_tried_again(postgres: str, database: Database) -> None:
    database.query("DROP TABLE IF EXISTS pairs")
    database.query("CREATE TABLE pairs (id integer, n integer)")
    database.query("INSERT INTO pairs VALUES (1, 0), (2, 0)")
    one, two = (Statement("UPDATE pairs SET n = n + 1 WHERE id = %s", (number,)) for number in (1, 2))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE pairs%'"
    told: list[Any] = []
    with PostgresStore(postgres) as store, psycopg.connect(postgres) as rival:
        token = begin(store, "r")
        rival.execute("SET deadlock_timeout = '60s'")
        rival.execute("UPDATE pairs SET n = n + 10 WHERE id = 2")
        append = Append(token, (checkpoint("r", 1),), statements=(one, two))
        thread = threading.Thread(target=lambda: told.extend(store.append([append])))
        thread.start()
        while database.query(waiting) != [(1,)]:
            pass
        rival.execute("UPDATE pairs SET n = n + 10 WHERE id = 1")  # the other one is undone for this
        rival.commit()
        thread.join()
    assert [("written", None)] == told
    assert [(1, 11), (2, 11)] == database.query("SELECT id, n FROM pairs ORDER BY id")
    database.query("DROP TABLE pairs")
