"""What a page of runs, a poll and a prune read does not grow with the store: by the plans of SQLite, by the rows that
PostgreSQL counts. And the tables of older versions come to the same."""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from milepost.model.ids import this_process
from milepost.model.record import format_time, make_record
from milepost.store import Append
from milepost.stores.base.fence import Row
from milepost.stores.base.transaction import Transaction, WriteConflict, matches
from milepost.stores.postgres import schema as postgres_schema
from milepost.stores.postgres.store import PostgresStore
from milepost.stores.sqlite import schema as sqlite_schema
from milepost.stores.sqlite.store import SQLiteStore
from milepost.stores.sqlite.transaction import SQLiteTransaction
from milepost.testing.journals import begin, checkpoint
from postgres_server import Database

NOW = 1_767_225_600.0
STATUSES = ("finished",) * 90 + ("failed", "waiting", "ready", "interrupted", "cancelled") * 2
NO_FILTER: dict[str, Any] = {
    "flow": None, "statuses": None, "tags": {}, "updated_before": None, "updated_after": None, "limit": 20, "after": None,
}  # fmt: skip


def row(number: int, **changes: Any) -> Row:
    given = {
        "run_id": f"r-{number}",
        "flow": "rare" if number % 97 == 5 else "common",
        "status": STATUSES[number % 100],
        "created_at": NOW + number,
        "updated_at": NOW + number,
        "epoch": 1,
        "tags": {"customer": f"c-{number % 150}", "half": str(number % 2)},
    }
    return Row(**(given | changes))


def fill(tx: Transaction, count: int) -> None:
    for number in range(count):
        tx.add_row(row(number))
    for number in range(3):
        tx.add_row(
            row(number, run_id=f"runs-{number}", status="running", owner=this_process().name, lease_until=NOW * 2)
        )


WORK: dict[str, Callable[[Transaction], Any]] = {
    "first page": lambda tx: tx.page(**NO_FILTER),
    "page behind a run": lambda tx: tx.page(**NO_FILTER | {"after": "r-50"}),
    "page of a flow": lambda tx: tx.page(**NO_FILTER | {"flow": "rare"}),
    "page of a flow without runs": lambda tx: tx.page(**NO_FILTER | {"flow": "none"}),
    "page of a status": lambda tx: tx.page(**NO_FILTER | {"statuses": ("failed",)}),
    "page of two statuses": lambda tx: tx.page(**NO_FILTER | {"statuses": ("failed", "finished")}),
    "page of a status without runs": lambda tx: tx.page(**NO_FILTER | {"statuses": ("blocked",)}),
    "page of a status of a flow": lambda tx: tx.page(**NO_FILTER | {"flow": "rare", "statuses": ("failed",)}),
    "page of a tag": lambda tx: tx.page(**NO_FILTER | {"tags": {"customer": "c-7"}, "limit": 5}),
    "page of a common tag": lambda tx: tx.page(**NO_FILTER | {"tags": {"half": "0"}}),
    "page of a tag without runs": lambda tx: tx.page(**NO_FILTER | {"tags": {"customer": "none"}}),
    "count of a status": lambda tx: tx.count(20, statuses=("failed",)),
    "count of two statuses of a flow": lambda tx: tx.count(20, flow="rare", statuses=("failed", "finished")),
    "count of a tag": lambda tx: tx.count(20, tags={"half": "0"}),
    "flows": lambda tx: tx.flows(20),
    "walk of a prefix": lambda tx: tx.walk(None, 10, run_id_prefix="r-77"),
    "page of a prefix": lambda tx: tx.page(**NO_FILTER | {"run_id_prefix": "r-77", "flow": "common"}),
    "page of those that failed since": lambda tx: tx.page(
        **NO_FILTER | {"statuses": ("failed",), "updated_after": NOW + 280}
    ),
    "walk of a time": lambda tx: tx.walk(None, 10, created_after=NOW + 20, created_before=NOW + 100),
    "walk that is bounded": lambda tx: tx.walk(None, 10, statuses=("failed", "finished"), updated_before=NOW + 10),
    "poll": lambda tx: tx.candidates("common", NOW, 5),
    "poll that finds nothing": lambda tx: tx.candidates("none", NOW, 5),
    "prune": lambda tx: tx.rested("finished", after=(0.0, ""), until=NOW + 10, limit=256),
    "prune of running ones": lambda tx: tx.rested("running", after=(0.0, ""), until=NOW + 10, limit=256),
    "tidy": lambda tx: tx.rested("finished", after=(NOW + 1e6, ""), until=2 * NOW, limit=256),
}

PAGES_BELOW: dict[str, Callable[[Transaction], Any]] = {
    "page of those that ended": lambda tx: tx.page(**NO_FILTER | {"statuses": ("finished",)}),
    "page of those of a flow that ended": lambda tx: tx.page(
        **NO_FILTER | {"flow": "common", "statuses": ("finished",)}
    ),
    "page behind a run of a flow": lambda tx: tx.page(**NO_FILTER | {"flow": "common", "after": "r-2000"}),
}

# -- SQLite ----------------------------------------------------------------------------------------


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        sqlite_schema.prepare(connection, ":memory:", lambda _: None)
        yield connection


@pytest.mark.parametrize("name", WORK)
def test_sqlite_reads_by_index_and_sorts_nothing_that_grows(connection: sqlite3.Connection, name: str) -> None:
    tx = SQLiteTransaction(connection)
    fill(tx, 300)
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    WORK[name](tx)
    connection.set_trace_callback(None)
    assert asked
    for query in asked:
        plan = [told for *_, told in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
        is_page_of_all = name in {"first page", "page behind a run"}
        assert is_page_of_all or not [line for line in plan if re.match(r"SCAN (TABLE )?run", line)], plan
        is_bounded = "running" in name or "prefix" in name or "since" in name or "walk" in name
        assert is_bounded or not [line for line in plan if "TEMP B-TREE" in line], plan


def test_sqlite_gives_the_pages_that_a_look_at_every_row_gives(connection: sqlite3.Connection) -> None:
    check_pages(SQLiteTransaction(connection))


def test_sqlite_finds_the_newest_visits_that_a_look_at_every_record_finds(connection: sqlite3.Connection) -> None:
    check_live_entries(SQLiteTransaction(connection))


def test_sqlite_reads_the_ends_of_many_runs_at_once(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ends(SQLiteTransaction(connection), monkeypatch)


def test_tags_that_change_and_runs_that_go_are_found_by_what_they_say_now(connection: sqlite3.Connection) -> None:
    check_tags(SQLiteTransaction(connection))
    assert [("a", "2")] == connection.execute("SELECT name, value FROM run_tags").fetchall()


def test_sqlite_tables_of_version_2_come_to_the_same(tmp_path: Path) -> None:
    path, new = tmp_path / "old.db", tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        older = sqlite_schema._TABLES.replace("    header TEXT,", "    note TEXT,\n    header TEXT,")
        older = older.replace("    blocked_by", "    pruned INTEGER NOT NULL DEFAULT 0,\n    blocked_by")
        sqlite_schema._execute(connection, older + sqlite_schema._VIEWS.replace("(header)", "(coalesce(header, note))"))
        connection.execute("CREATE INDEX runs_due ON runs (flow, status, wake_at)")
        SQLiteTransaction(connection).add_row(row(1))
        connection.execute("ALTER TABLE runs DROP COLUMN blocked_by")
        connection.execute("ALTER TABLE signals DROP COLUMN sent_by")
        connection.execute("ALTER TABLE runs DROP COLUMN seal")
        connection.execute("ALTER TABLE runs DROP COLUMN life")
        connection.execute("PRAGMA user_version = 2")
    tables = []
    for place in (path, new):
        with SQLiteStore(place) as store:
            found = [info.run_id for info in store.list_runs(tags={"customer": "c-1"}, flow="common")]
            assert (["r-1"] if place is path else []) == found
        with closing(sqlite3.connect(place)) as connection:
            found = connection.execute("SELECT type, name, sql FROM sqlite_master")
            tables.append({(kind, name, re.sub(r"\s+", "", sql or "")) for kind, name, sql in found})
    assert tables[0] == tables[1]


# -- PostgreSQL ------------------------------------------------------------------------------------


@pytest.fixture
def large(postgres: str, database: Database) -> Iterator[PostgresStore]:
    with PostgresStore(postgres) as store:
        with store._write("fill") as tx:
            fill(tx, 3000)
        vacuum(database)
        yield store


def vacuum(database: Database) -> None:
    for table in ("runs", "run_tags"):
        database.query(f"VACUUM ANALYZE milepost.{table}")


def test_postgres_reads_as_many_rows_as_it_gives(large: PostgresStore, database: Database) -> None:
    until = time.monotonic() + 60
    while too_many := read_by(large, more_than=120):
        # Indexes alone do not tell what is there if the server had a snapshot from before the rows, as it takes one to
        # analyze a table.
        assert time.monotonic() < until, too_many
        vacuum(database)


def read_by(large: PostgresStore, *, more_than: int) -> dict[str, int]:
    """For each work that reads more rows than that the number of them."""
    read = {}
    for name, work in WORK.items():
        with large._write("look") as tx:  # a poll locks what it may take
            before = rows_read(tx)
            work(tx)
            read[name] = rows_read(tx) - before
    return {name: count for name, count in read.items() if count > more_than}


@pytest.fixture
def misleading(postgres: str, database: Database) -> Iterator[PostgresStore]:
    """Of 3000 runs that all waited when the server counted them, those that are at the head have ended meanwhile."""
    with PostgresStore(postgres) as store:
        with store._write("fill") as tx:
            for number in range(3000):
                tx.add_row(row(number, flow="common", status="ready", tags={}))
        database.query("VACUUM ANALYZE milepost.runs")
        database.query(
            "UPDATE milepost.runs SET status = 'finished' WHERE id IN (SELECT id FROM milepost.runs ORDER BY id LIMIT 2500)"
        )
        yield store


MORE = ["poll that finds nothing", "poll for what is over", *PAGES_BELOW]


@pytest.mark.parametrize("name", ["poll", *(pytest.param(name, marks=pytest.mark.wide) for name in MORE)])
def test_what_postgres_reads_does_not_depend_on_what_it_believes(
    misleading: PostgresStore, database: Database, name: str
) -> None:
    if name == "poll for what is over":
        database.query(f"UPDATE milepost.runs SET status = 'waiting', wake_at = {NOW} - id WHERE status = 'finished'")
    if "page" in name:
        database.query("ANALYZE milepost.runs")
    for _ in range(12):  # until the server has made up its mind
        with misleading._write("look") as tx:
            before = rows_read(tx)
            found = (PAGES_BELOW | WORK | {"poll for what is over": WORK["poll"]})[name](tx)
            assert (0 if "nothing" in name else 5) <= len(found) <= 20
            assert 60 > rows_read(tx) - before


def test_postgres_makes_no_plan_for_each_poll(misleading: PostgresStore, database: Database) -> None:
    with misleading._write("look") as tx:
        for limit in range(1, 40):
            tx.candidates("common", NOW, limit, [f"r-{number}" for number in range(2500 + 2 * limit)])
        counted = tx._fetch(  # type: ignore[attr-defined]
            "SELECT sum(custom_plans)::bigint, sum(generic_plans)::bigint FROM pg_prepared_statements WHERE statement LIKE %s",
            ("%queued%",),
        )
    assert counted[0][0] <= 5 < 25 <= counted[0][1]


def test_postgres_gives_the_pages_that_a_look_at_every_row_gives(postgres: str) -> None:
    with PostgresStore(postgres) as store, store._write("look") as tx:
        check_pages(tx)


def test_postgres_finds_the_newest_visits_that_a_look_at_every_record_finds(postgres: str) -> None:
    with PostgresStore(postgres) as store, store._write("look") as tx:
        check_live_entries(tx)


def test_postgres_reads_the_ends_of_many_runs_at_once(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresStore(postgres) as store, store._write("look") as tx:
        check_ends(tx, monkeypatch)


def test_postgres_finds_tags_by_what_they_say_now(postgres: str) -> None:
    with PostgresStore(postgres) as store, store._write("look") as tx:
        check_tags(tx)


def test_a_poll_of_postgres_locks_what_it_may_take_and_nothing_that_it_leaves_out(large: PostgresStore) -> None:
    with large._write("look") as tx:
        ready = [row.run_id for row in tx.candidates("common", NOW, 6) if row.status == "ready"]
        assert 6 == len(ready)
        skip = [*ready[:4], "no\0run", "no\ud800run"]
        assert ready[4:] == [row.run_id for row in tx.candidates("common", NOW, 2, skip) if row.status == "ready"]


@pytest.mark.parametrize("sequence", [1, 3])
def test_a_claim_from_a_stale_look_at_the_journal_writes_nothing(postgres: str, sequence: int) -> None:
    with PostgresStore(postgres) as store:
        store.append([Append(begin(store, "r"), (checkpoint("r", 1),))])
        with store._write("look") as tx:
            found = tx.row("r")
            assert found is not None
            with pytest.raises(WriteConflict):
                tx.take(replace(found, status="waiting"), checkpoint("r", sequence))
            assert ([0, 1], found) == ([record.sequence for record in tx.records("r")], tx.row("r"))
            tx.take(replace(found, status="waiting"), checkpoint("r", 2))
            assert (2, replace(found, status="waiting")) == (tx.newest("r"), tx.row("r"))


def test_a_renewal_touches_no_index_of_postgres(postgres: str, database: Database) -> None:
    with PostgresStore(postgres) as store:
        with store._write("fill") as tx:
            fill(tx, 10)
        with store._write("renew") as tx:
            found = tx.row("runs-1")
            assert found is not None
            tx.put_row(Row(**{name: getattr(found, name) for name in found.__slots__} | {"updated_at": NOW + 5e6}))
            (counted,) = tx._fetch(  # type: ignore[attr-defined]
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = '{runs}'::regclass", ()
            )
            assert (1, 1) == counted


@pytest.mark.parametrize("version", range(1, postgres_schema.VERSION))
def test_postgres_tables_of_older_versions_come_to_the_same(
    postgres: str, database: Database, schema: str, version: int
) -> None:
    both = (schema, f"{schema} made new")
    try:
        folder = files("milepost.stores.postgres") / "sql"
        tables = "".join((folder / f"{number:04}.sql").read_text() for number in range(1, version + 1))
        database.query(
            f'BEGIN; CREATE SCHEMA "{schema}"; SET LOCAL search_path TO "{schema}"; {tables} '
            f"INSERT INTO migrations (version) VALUES ({version}); COMMIT"
        )
        database.query(
            f'INSERT INTO "{schema}".runs (run_id, flow, status, reason, created_at, updated_at, epoch, nonce, owner, lease, '
            "waiting, crash_count, crashed_at, signals, degraded, missed, tags, live, worked, sequence, pruned) VALUES "
            "('old', 'f', 'finished', '', 1, 2, 1, '', '', 0, '[]', 0, -1, 0, false, '[]', '{\"a\":\"1\"}', '[]', false, 0, 0)"
        )
        for name in both:
            postgres_schema.migrate(postgres, schema=name)
        with PostgresStore(postgres, schema=schema) as store:
            assert ["old"] == [info.run_id for info in store.list_runs(tags={"a": "1"}, status="finished")]
            begin(store, "new", status="ready")
            assert ["new"] == [token.run_id for token, _ in store.claim_due(["orders"], 5)]
            assert ("old",) == store.prune(older_than=0).deleted
        indexes = [
            {
                text.replace(f'"{name}"', "")
                for (text,) in database.query("SELECT indexdef FROM pg_indexes WHERE schemaname = %s", name)
            }
            for name in both
        ]
        assert indexes[0] == indexes[1]
    finally:
        database.query(f'DROP SCHEMA IF EXISTS "{both[1]}" CASCADE')


def rows_read(tx: Any) -> int:
    (counted,) = tx._fetch(
        "SELECT (seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables "
        "WHERE relid = '{runs}'::regclass",
        (),
    )
    return int(counted[0])


# -- both ------------------------------------------------------------------------------------------


def check_ends(tx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, kinds in enumerate(["failure finish", "finish failure owner wait", "wait", "", "owner failure finish"]):
        tx.add_row(row(number))
        for sequence, kind in enumerate(kinds.split()):
            tx.insert(f"r-{number}", [make_record(f"r-{number}", sequence, format_time(NOW), kind)])
    runs = {"r-0": -1, "r-1": -1, "r-2": -1, "r-3": -1, "r-4": 1}
    expected = Transaction.ends_of(tx, runs)
    assert [2, 2, 0, 0, 1] == [len(ends) for ends in expected.values()]
    asked = list[str]()
    fetch = type(tx)._fetch
    monkeypatch.setattr(type(tx), "_fetch", lambda *given: asked.append(given[1]) or fetch(*given))
    assert (expected, 1) == (tx.ends_of(runs), len(asked))


def check_live_entries(tx: Any) -> None:
    tx.add_row(row(1))
    tx.add_row(row(2))
    nodes = ["a", "b/c", "a", "ключ", "", "b/c", "a", "d", "b/c"]
    for run_id in ("r-1", "r-2"):
        for sequence, node_id in enumerate(nodes):
            kind = "failure" if sequence in {4, 6, 7} else "checkpoint"
            tx.insert(run_id, [make_record(run_id, sequence, format_time(NOW), kind, node_id, 1 if node_id else 0)])
    spans: list[Any] = [
        (),
        (("", 0, 3),),
        (("", 0, 1), ("", 5, None)),
        (("", 0, 5), ("a", 2, 6)),
        (("", 7, None), ("", 1, 1)),
    ]
    for live in spans:
        expected = Transaction.live_entries(tx, "r-1", live)
        assert 1 <= len(expected) <= 3
        assert expected == tx.live_entries("r-1", live), live
    assert [] == tx.live_entries("nobody", ())


def check_pages(tx: Transaction) -> None:
    fill(tx, 400)
    rows = tx.page(**NO_FILTER | {"limit": 1000})
    assert [f"runs-{n}" for n in (2, 1, 0)] + [f"r-{n}" for n in reversed(range(400))] == [row.run_id for row in rows]
    for flow in (None, "common", "rare", "none"):
        for statuses in (None, (), ("failed",), ("failed", "running", "finished"), ("none",)):
            for tags in ({}, {"customer": "c-7"}, {"customer": "c-7", "other": "x"}):
                for after in (None, "r-300", "nobody"):
                    asked = {"flow": flow, "statuses": statuses, "tags": tags, "after": after, "limit": 7}
                    below = [row.run_id for row in rows]
                    first = 0 if after is None else below.index(after) + 1 if after in below else len(below)
                    expected = [
                        row
                        for row in rows[first:]
                        if (flow is None or row.flow == flow)
                        and (statuses is None or row.status in statuses)
                        and tags.items() <= row.tags.items()
                    ]
                    assert expected[:7] == tx.page(**NO_FILTER | asked), asked
    others: list[dict[str, Any]] = [
        {"run_id_prefix": "r-1"},
        {"run_id_prefix": "r-1", "flow": "common", "statuses": ("failed", "running")},
        {"run_id_prefix": "r-1", "tags": {"half": "1"}},
        {"updated_after": NOW + 350},
        {"updated_after": NOW + 350, "statuses": ("failed", "running", "finished")},
        {"updated_before": NOW + 50, "statuses": ("failed",)},
        {"created_after": NOW + 20, "created_before": NOW + 31},
        {"above": tx.position("r-396")},
        {"above": tx.position("r-396"), "tags": {"half": "1"}},
    ]
    for asked in others:
        expected = [row for row in rows[: 6 if "above" in asked else None] if matches(row, asked)]  # type: ignore[arg-type]
        for walked in (10_000, 2):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("milepost.stores.base.sql._FEW", walked)
                assert expected[:7] == tx.page(limit=7, **asked), asked
                assert min(7, len(expected)) == tx.count(7, **asked), asked
    check_walks(tx)
    finished = sorted((row.updated_at, row.run_id) for row in rows if row.status == "finished")
    assert finished == tx.rested("finished", after=(-math.inf, ""), until=math.inf, limit=1000)
    assert finished[11:15] == tx.rested("finished", after=finished[10], until=math.inf, limit=4)
    assert finished[:5] == tx.rested("finished", after=(-math.inf, ""), until=finished[4][0], limit=1000)
    assert 3 == len(tx.rested("running", after=(-math.inf, ""), until=math.inf, limit=1000))


def check_walks(tx: Transaction) -> None:
    """Rows: the runs 0 to 399, and behind them three that run and were created at 0 to 2."""

    def walked(**asked: Any) -> list[str | None]:
        walk = tx.walk(None, 100, **asked)
        ends = [row.run_id for row in tx.page(limit=1000, after=walk.below, above=walk.above)]
        assert walk.end in {None, ends[-1]}
        return [ends[0], ends[-1], walk.end]

    everything = ["runs-2", "r-0", None]
    assert everything == walked() == walked(flow="rare", statuses=("failed",)) == walked(tags={"half": "0"})
    assert everything == walked(run_id_prefix="r-1") == walked(statuses=("failed", "running"), updated_after=NOW)
    assert ["runs-2", "r-303", "r-303"] == walked(updated_before=NOW) == walked(updated_after=NOW)
    assert (
        ["runs-2", "r-204", "r-204"] == walked(tags={"half": "0", "other": "x"}) == walked(tags={"half": "0"}, flow="x")
    )
    assert everything == walked(statuses=("failed",), updated_before=NOW) == walked(flow="none", updated_before=NOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milepost.stores.base.sql._FEW", 2)
        assert ["runs-2", "r-303", "r-303"] == walked(run_id_prefix="r-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milepost.stores.base.sql._DISORDER", 2)
        assert ["r-49", "r-21", None] == walked(created_after=NOW + 20, created_before=NOW + 50)
        assert ["r-49", "r-0", None] == walked(created_before=NOW + 50)
    assert ["runs-2", "r-2", None] == walked(created_after=NOW + 1)
    assert (0, None) == (len(tx.page(limit=9, above=tx.walk(None, 9, created_after=NOW * 2).above)), tx.walk(0, 9).end)


def check_tags(tx: Transaction) -> None:
    def found(**tags: str) -> list[str]:
        return [row.run_id for row in tx.page(**NO_FILTER | {"tags": tags})]

    tx.add_row(row(1, tags={"a": "1", "b": "1"}))
    tx.add_row(row(2, tags={"a": "1"}))
    tx.add_row(row(3, tags={}))
    assert (["r-2", "r-1"], ["r-1"]) == (found(a="1"), found(a="1", b="1"))
    tx.put_row(row(3, tags={"a": "1"}))
    tx.put_row(row(2, tags={"a": "2"}))
    assert (["r-3", "r-1"], ["r-2"]) == (found(a="1"), found(a="2"))
    long = {"k" * 3000: "ä" * 5000}
    tx.put_row(row(3, tags=long))
    assert ["r-3"] == found(**long)
    tx.put_row(row(3, tags={}))
    tx.remove_run("r-1")
    assert ([], ["r-2"]) == (found(a="1"), found(a="2"))
