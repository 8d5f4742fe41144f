"""What is special to the PostgreSQL store: its tables, its connections, its clock. The rest is in the contract."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from ctypes.util import find_library
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from milepost import open_store
from milepost.errors import OptionError, StoreClosedError, StoreError, StoreVersionError
from milepost.model.record import make_record
from milepost.store import Claim, Release
from milepost.stores.postgres import schema as postgres_schema
from milepost.stores.postgres.schema import VERSION
from milepost.stores.postgres.store import PostgresStore
from milepost.testing.children import Child, forked
from milepost.testing.journals import begin, checkpoint, take, work, write
from postgres_server import Database


@pytest.fixture
def store(postgres: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres) as store:
        yield store


# -- tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ['quo"ted', "Große Läufe", "a.b; DROP TABLE x --", "ä" * 31])
def test_a_schema_has_any_name_and_its_runs_alone(postgres: str, database: Database, name: str) -> None:
    try:
        with PostgresStore(postgres, schema=name) as store, PostgresStore(postgres) as other:
            work(store, begin(store, "r"), "a")
            assert (["r"], []) == ([info.run_id for info in store.list_runs()], other.list_runs())
            assert repr(name) in store.place
    finally:
        database.query(psycopg.sql.SQL("DROP SCHEMA {} CASCADE").format(psycopg.sql.Identifier(name)).as_string())


@pytest.mark.parametrize("name", ["", "ä" * 32, "a\0b", 5, None])
def test_a_name_that_no_schema_keeps_is_refused(postgres: str, name: Any) -> None:
    with pytest.raises(OptionError, match="schema"):
        PostgresStore(postgres, schema=name)


@pytest.mark.wide
def test_8_processes_make_the_tables_at_once(postgres: str, schema: str) -> None:
    source = (
        f"from milepost.stores.postgres.store import PostgresStore as S; store = S({postgres!r}, schema={schema!r})"
    )
    children = [Child() for _ in range(8)]
    try:
        for child in children:
            child.tell("import milepost.stores.postgres.store")
        for n, child in enumerate(children):
            child.begin(f"{source}; answer = work(store, begin(store, f'r{{n}}'), 'a').outcome", n=n)
        assert ["written"] * 8 == [child.answer() for child in children]
    finally:
        for child in children:
            child.kill()
    assert postgres_schema.status(postgres, schema=schema) == (VERSION, VERSION)


def test_the_statements_of_all_versions_can_be_run_by_another_tool(
    postgres: str, database: Database, schema: str
) -> None:
    assert (0, VERSION) == postgres_schema.status(postgres, schema=schema)
    database.query(postgres_schema.statements(schema=schema))
    now = (VERSION, VERSION)
    assert now == postgres_schema.status(postgres, schema=schema) == postgres_schema.migrate(postgres, schema=schema)
    assert "" == postgres_schema.statements(VERSION)
    with PostgresStore(postgres, schema=schema) as store:
        store.save("r", "a", b"1")
    with pytest.raises(OptionError):
        postgres_schema.statements(VERSION + 1)


def test_migrating_says_what_was_there(postgres: str, schema: str) -> None:
    assert [0, VERSION, VERSION] == [postgres_schema.migrate(postgres, schema=schema).found for _ in range(3)]


def test_to_read_only_makes_no_tables_and_takes_those_that_are_there(
    postgres: str, database: Database, schema: str
) -> None:
    with pytest.raises(StoreError, match="no tables, and is opened to read only"):
        PostgresStore(postgres, schema=schema, read_only=True)
    assert 0 == postgres_schema.status(postgres, schema=schema).found
    with PostgresStore(postgres, schema=schema) as store:
        store.save("r", "a", b"1")
    with PostgresStore(postgres, schema=schema, read_only=True) as store:
        assert b"1" == store.load("r", "a")
        for write in (lambda: store.save("r", "a", b"2"), lambda: store.append([]), lambda: store.renew([])):
            with pytest.raises(StoreError, match="opened to read only"):
                write()


def test_tables_of_a_newer_release_are_refused(postgres: str, database: Database, schema: str) -> None:
    PostgresStore(postgres, schema=schema).close()
    database.query(f'INSERT INTO "{schema}".migrations (version) VALUES (99)')
    for act in (
        lambda: PostgresStore(postgres, schema=schema),
        lambda: postgres_schema.migrate(postgres, schema=schema),
    ):
        with pytest.raises(StoreVersionError, match="upgrade") as caught:
            act()
        assert (99, VERSION) == (caught.value.found, caught.value.supported)
    assert 99 == postgres_schema.status(postgres, schema=schema).found


def test_tables_of_another_program_are_left_alone(postgres: str, database: Database, schema: str) -> None:
    database.query(f'CREATE SCHEMA "{schema}"')
    database.query(f'CREATE TABLE "{schema}".runs (mine int)')
    with pytest.raises(StoreError, match="another schema"):
        PostgresStore(postgres, schema=schema)
    tables = database.query(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace", f'"{schema}"'
    )
    assert [("runs",)] == tables


@pytest.fixture
def limited(postgres: str, database: Database, schema: str) -> Iterator[str]:
    """The URL of a user who may make nothing, in a database where `schema` is there and empty."""
    name = schema.replace(" ", "_")
    database.query(f'CREATE SCHEMA "{schema}"')
    database.query(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    database.query(f'GRANT USAGE ON SCHEMA "{schema}" TO {name}')
    yield psycopg.conninfo.make_conninfo(postgres, user=name, password="secret")
    database.query(f"DROP OWNED BY {name}")
    database.query(f"DROP ROLE {name}")


def test_a_user_who_may_not_make_tables_uses_those_that_are_there(
    limited: str, postgres: str, database: Database, schema: str
) -> None:
    with pytest.raises(StoreError, match="milepost db sql"):
        PostgresStore(limited, schema=schema)
    PostgresStore(postgres, schema=schema).close()
    user = schema.replace(" ", "_")
    database.query(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO {user}')
    with PostgresStore(limited, schema=schema) as store:
        work(store, begin(store, "r"), "a", release=Release("interrupted"))
        store.put_signal("r", "go", None)
        store.delete_run("r")


def test_a_schema_that_was_made_for_a_user_is_filled_by_that_user(
    limited: str, database: Database, schema: str
) -> None:
    database.query(f'GRANT CREATE ON SCHEMA "{schema}" TO {schema.replace(" ", "_")}')
    with PostgresStore(limited, schema=schema) as store:
        store.save("r", "a", b"1")


@pytest.fixture
def mallory(database: Database, schema: str) -> Iterator[str]:
    """A role that made `schema`, with our tables in it."""
    name = f"mallory of {schema}"
    database.query(f'CREATE ROLE "{name}"')
    database.query(f'GRANT CREATE ON DATABASE postgres TO "{name}"')
    database.query(f'SET ROLE "{name}"')
    try:
        database.query(postgres_schema.statements(schema=schema))
    finally:
        database.query("ROLLBACK")
        database.query("RESET ROLE")
    yield name
    database.query(f'DROP OWNED BY "{name}" CASCADE')
    database.query(f'DROP ROLE "{name}"')


@pytest.mark.parametrize("is_read_only", [False, True])
def test_what_another_role_made_is_trusted_only_if_it_is_named(
    postgres: str, database: Database, schema: str, mallory: str, is_read_only: bool
) -> None:
    with pytest.raises(StoreError, match="somebody else made the schema, as role"):
        PostgresStore(postgres, schema=schema, read_only=is_read_only)
    PostgresStore(postgres, schema=schema, read_only=is_read_only, owner=mallory).close()
    database.query(f'ALTER SCHEMA "{schema}" OWNER TO CURRENT_USER')
    with pytest.raises(StoreError, match=r"somebody else made the (table|function)"):
        PostgresStore(postgres, schema=schema, read_only=is_read_only)
    database.query(f'GRANT "{mallory}" TO CURRENT_USER')
    PostgresStore(postgres, schema=schema, read_only=is_read_only).close()


def test_an_empty_schema_of_another_role_gets_no_tables(postgres: str, database: Database, schema: str) -> None:
    database.query(f'CREATE ROLE "{schema}"')
    database.query(f'CREATE SCHEMA "{schema}" AUTHORIZATION "{schema}"')
    try:
        with pytest.raises(StoreError, match="somebody else made the schema"):
            PostgresStore(postgres, schema=schema)
        assert 0 == postgres_schema.status(postgres, schema=schema).found
    finally:
        database.query(f'DROP OWNED BY "{schema}"')
        database.query(f'DROP ROLE "{schema}"')


@pytest.mark.parametrize("kind", ["trigger", "rule"])
def test_a_trigger_or_rule_of_others_is_refused(postgres: str, database: Database, schema: str, kind: str) -> None:
    PostgresStore(postgres, schema=schema).close()
    tables = database.query(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = %s::regnamespace", f'"{schema}"'
    )
    assert {name for (name,) in tables} == {*postgres_schema._OWN_TABLES}
    database.query(
        f'CREATE TRIGGER "{kind}" BEFORE INSERT ON "{schema}".runs FOR EACH ROW EXECUTE FUNCTION "{schema}".note_tags()'
        if kind == "trigger"
        else f'CREATE RULE "{kind}" AS ON INSERT TO "{schema}".runs DO ALSO SELECT 1'
    )
    with pytest.raises(StoreError, match=f"somebody else made the {kind} {kind} of the table runs"):
        PostgresStore(postgres, schema=schema)


@pytest.mark.parametrize("table", ["runs", "signals"])
def test_a_trigger_of_others_is_refused_under_the_name_of_ours(
    postgres: str, database: Database, schema: str, table: str
) -> None:
    PostgresStore(postgres, schema=schema).close()
    database.query(
        f'CREATE FUNCTION "{schema}".evil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;'
        f'DROP TRIGGER run_tags_begin ON "{schema}".runs;'
        f'CREATE TRIGGER run_tags_begin BEFORE INSERT ON "{schema}".{table} FOR EACH ROW EXECUTE FUNCTION "{schema}".evil()'
    )
    with pytest.raises(StoreError, match=f"somebody else made the trigger run_tags_begin of the table {table}"):
        PostgresStore(postgres, schema=schema)


def test_a_database_that_keeps_text_in_another_encoding_is_refused(postgres: str, database: Database) -> None:
    database.query("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreError, match="LATIN1"):
            PostgresStore(psycopg.conninfo.make_conninfo(postgres, dbname="latin"))
    finally:
        database.query("DROP DATABASE latin")


# -- what is kept --------------------------------------------------------------------------------------


def test_a_large_state_is_kept_packed_and_does_not_show_it(store: PostgresStore, database: Database) -> None:
    states = {1: b'"%s"' % (b"x" * 4000), 2: b'"%s"' % (b"x" * 6000), 3: b'"%s"' % os.urandom(4000).hex().encode()}
    token = begin(store, "r")
    for sequence, state in states.items():
        assert "written" == write(store, token, checkpoint("r", sequence, f"n{sequence}", state=state)).outcome
    kept = database.query("SELECT packing, length(payload) FROM milepost.records WHERE sequence > 0 ORDER BY sequence")
    assert [("", 4002), "zstd", "zstd"] == [kept[0], kept[1][0], kept[2][0]]
    assert kept[1][1] < 200 < 4000 < kept[2][1] < 5000
    assert list(states.values()) == [record.state() for record in store.read("r")[1:]]
    for sequence, state in states.items():
        assert store.load("r", f"n{sequence}").endswith(b'"state":' + state + b"}")
        assert b'"compressed"' not in store.load("r", f"n{sequence}")
    assert all(state in store.export("r") for state in states.values())
    assert [len(state) for state in states.values()] == [info.size for info in store.list("r")]
    assert store.verify("r").ok


def test_a_large_state_that_does_not_get_smaller_is_kept_as_it_is(store: PostgresStore, database: Database) -> None:
    noise = os.urandom(6000)
    record = checkpoint("r", 1)._replace(payload=noise, size=len(noise))
    write(store, begin(store, "r"), record)
    assert [("", noise)] == database.query("SELECT packing, payload FROM milepost.records WHERE sequence = 1")


def test_texts_come_back_as_far_as_the_database_can_keep_them(store: PostgresStore) -> None:
    state = b'{"nul":"\\u0000","surrogate":"\\ud800","order":{"b":1,"a":1.0,"a":1e400}}'
    fields = {"reason": "\0 \ud7ff", "next_node": "b"}
    token = begin(store, "r")
    write(store, token, make_record("r", 1, "2026-01-01T00:00:00Z", "checkpoint", "a", 1, state, fields))
    record = store.read("r")[1]
    assert (state, "\0 \ud7ff") == (record.state(), record.fields()["reason"])
    assert "requested" == store.request_cancel("r", "a\0b\ud800")
    assert "a\ufffdb\\ud800" == store.get_run("r").cancel == store.cancels(["r", "s"])["r"]
    assert "a\ufffdb\\ud800" == store.renew([token])[0].cancel
    write(store, token, release=Release("failed", "it said \0 and \ud800"))
    assert "it said \ufffd and ?" == store.get_run("r").info.reason


def test_text_that_no_database_keeps_matches_nothing(store: PostgresStore) -> None:
    begin(store, "r", status="ready")
    for odd in ("\0", "\ud800"):
        assert [] == store.list_runs(flow=odd) == store.list_runs(tags={odd: "x"}) == store.read("r", node_id=odd)
        assert [] == store.claim_due([odd], 1)


@pytest.mark.parametrize(
    ("column", "value"),
    [("status", "lost"), ("waiting", "{"), ("missed", "[1]"), ("live", "no"), ("created_at", 1e300), ("lease", "NaN")],
)
def test_a_damaged_row_hides_no_other(store: PostgresStore, database: Database, column: str, value: Any) -> None:
    for name in ("a", "b", "c"):
        begin(store, name, status="ready")
    database.query(f"UPDATE milepost.runs SET {column} = %s WHERE run_id = 'b'", value)
    infos = store.list_runs()
    assert ["c", "b", "a"] == [info.run_id for info in infos]
    if column != "lease":
        assert "damaged" in infos[1].reason
        with pytest.raises(StoreError, match="'b' is damaged"):
            store.get_run("b")
        assert {"a", "c"} == {token.run_id for token, _ in store.claim_due(["orders"], 5)}


def test_a_damaged_record_hides_no_other(store: PostgresStore, database: Database) -> None:
    work(store, begin(store, "r"), *"abcd")
    store.save("s", "z", b"outside")
    for damage in (
        "header = '{\"a\"' WHERE sequence = 1 AND node_id = 'a'",
        "header = NULL WHERE sequence = 2",
        "payload = NULL WHERE sequence = 3",
        "packing = 'zstd' WHERE sequence = 4",
        "header = 'x' WHERE packing = 'verbatim'",
    ):
        database.query(f"UPDATE milepost.records SET {damage}")
    assert list("abcd") == [info.node_id for info in store.list("r")]
    assert 5 == len(store.read("r"))
    assert 4 == len(store.verify("r").problems)
    assert 1 == len(store.verify("s").problems)
    assert ["z"] == [info.node_id for info in store.list("s")]
    assert 2 == len(store.list_runs())


# -- connections -----------------------------------------------------------------------------------------


def test_a_callers_pool_is_used_and_left_open_as_it_was(postgres: str) -> None:
    with ConnectionPool(postgres, min_size=1, max_size=3, open=True) as pool:
        with PostgresStore(pool) as store:
            tokens = [begin(store, f"r{n}") for n in range(12)]
            threads = [threading.Thread(target=work, args=(store, token, *"abc")) for token in tokens]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert ["kept"] * 12 == [renewal.outcome for renewal in store.renew(tokens)]
            assert [3] * 12 == [info.sequence for info in store.list_runs()]
        with pytest.raises(StoreClosedError):
            store.list_runs()
        assert not pool.closed
        for _ in range(3):
            with pool.connection() as connection:
                assert not connection.autocommit
                connection.execute("SELECT 1")


def test_a_callers_pool_of_one_connection_is_enough(postgres: str) -> None:
    with ConnectionPool(postgres, min_size=1, max_size=1, kwargs={"autocommit": True}, open=True) as pool:
        store = PostgresStore(pool)
        token = begin(store, "r")
        assert ("written", "kept") == (work(store, token, "a").outcome, store.renew([token])[0].outcome)
        store.close()
        with pool.connection(timeout=5) as connection:
            assert connection.autocommit


def test_a_callers_connection_may_have_its_own_ways(postgres: str) -> None:
    def configure(connection: psycopg.Connection[Any]) -> None:
        connection.execute("SET search_path = pg_catalog")
        connection.execute("SET default_transaction_isolation = 'serializable'")
        connection.commit()

    ways = {"row_factory": psycopg.rows.dict_row, "cursor_factory": psycopg.ClientCursor, "prepare_threshold": None}
    with ConnectionPool(postgres, min_size=1, max_size=4, kwargs=ways, configure=configure, open=True) as pool:
        store = PostgresStore(pool)
        tokens = [begin(store, f"r{n}") for n in range(4)]
        for _ in range(6):  # often enough for statements to be prepared
            assert {"written"} == {work(store, token, "a").outcome for token in tokens}
        with pool.connection() as connection:
            connection.execute("DEALLOCATE ALL")
        assert {"written"} == {work(store, token, "a").outcome for token in tokens}
        assert store._preparing.is_on
        store.close()


def test_a_pool_does_not_outlive_a_fork(postgres: str) -> None:
    with ConnectionPool(postgres, min_size=1, max_size=2, open=True) as pool, PostgresStore(pool) as store:
        begin(store, "r")
        with pytest.raises(RuntimeError, match="after a fork: make a store"):
            forked(lambda: store.get_run("r"))
        assert "running" == store.get_run("r").info.status


@pytest.mark.parametrize("given", [None, 5, b"postgresql://", object()])
def test_what_is_neither_url_nor_pool_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match="ConnectionPool"):
        PostgresStore(given)


def test_a_pool_for_coroutines_is_a_type_error(postgres: str) -> None:
    with pytest.raises(TypeError, match="AsyncConnectionPool"):
        PostgresStore(AsyncConnectionPool(postgres, open=False))  # type: ignore[arg-type]


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(StoreError, match=r"127\.0\.0\.1") as caught:
        PostgresStore("postgresql://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    with pytest.raises(StoreError, match=r"127\.0\.0\.1"):
        postgres_schema.status("postgresql://user:secret@127.0.0.1:1/db")


def test_the_place_tells_no_user_and_no_password(postgres: str) -> None:
    with PostgresStore(psycopg.conninfo.make_conninfo(postgres, password="secret")) as store:
        assert store.place.startswith("postgresql://")
        assert "secret" not in store.place + repr(store)


def test_connections_are_few_and_come_back(store: PostgresStore, database: Database) -> None:
    tokens = [begin(store, f"r{n}") for n in range(40)]
    threads = [threading.Thread(target=work, args=(store, token, *"abcdef")) for token in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (count,) = database.query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'milepost'")[0]
    assert 1 <= count <= 9
    assert [6] * 40 == [info.sequence for info in store.list_runs()]


def test_who_waits_for_a_connection_in_vain_is_told(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    token = begin(store, "r")
    links = [store._connections.take(1.0) for _ in range(8)]
    monkeypatch.setattr(store, "_patience", 0.05)
    for act in (lambda: store.get_run("r"), lambda: work(store, token, "a"), lambda: store.cancels(["r"])):
        with pytest.raises(StoreError, match="all 8 connections were in use"):
            act()
    assert "kept" == store.renew([token])[0].outcome
    for link in links:
        store._connections.give(link)
    assert "written" == work(store, token, "a").outcome


def test_a_store_that_is_closed_while_somebody_waits_for_a_connection_says_so(store: PostgresStore) -> None:
    links = [store._connections.take(1.0) for _ in range(8)]
    told: list[str] = []

    def wait() -> None:
        try:
            store.get_run("r")
        except StoreClosedError as exc:
            told.append(str(exc))

    waiting = threading.Thread(target=wait)
    closing = threading.Thread(target=store.close)
    for thread in (waiting, closing):
        thread.start()
        thread.join(0.05)
    for link in links:
        store._connections.give(link)
    waiting.join()
    closing.join()
    assert 1 == len(told)


def test_a_dead_server_is_given_up_after_a_third_of_the_shortest_lease(store: PostgresStore) -> None:
    link = store._connections.take(1.0)
    try:
        assert "10s" == link.connection.execute("SHOW statement_timeout").fetchone()[0]  # type: ignore[index]
        parameters = link.connection.info.get_parameters()
        assert ("10", "10000") == (parameters["connect_timeout"], parameters["tcp_user_timeout"])
    finally:
        store._connections.give(link)
    begin(store, "short", lease=6.0)
    with store._read("look") as tx:
        assert [("2s",)] == tx._fetch("SHOW statement_timeout", ())  # type: ignore[attr-defined]
    begin(store, "shorter", lease=0.1)
    with store._write("look") as tx:
        assert [("1s",)] == tx._fetch("SHOW statement_timeout", ())  # type: ignore[attr-defined]


def test_the_url_may_set_timeouts_of_its_own(postgres: str) -> None:
    with PostgresStore(psycopg.conninfo.make_conninfo(postgres, connect_timeout=3, application_name="mine")) as store:
        link = store._connections.take(1.0)
        store._connections.give(link)
        assert "3" == link.connection.info.get_parameters()["connect_timeout"]
        assert "mine" == link.connection.info.parameter_status("application_name")


def test_leases_go_by_the_clock_of_the_server(store: PostgresStore, database: Database) -> None:
    clock = store._server_clock
    assert clock is not None
    clock._ahead -= 3600.0  # as if this machine's clock were slow
    clock._stale_at = 0.0
    token = begin(store, "r", lease=30.0)
    left = "SELECT lease_until - extract(epoch FROM now()) FROM milepost.runs"
    assert 25 < database.query(left)[0][0] <= 30
    store.renew([token])
    assert 25 < database.query(left)[0][0] <= 30
    with PostgresStore(store._connections._dsn) as other:  # type: ignore[attr-defined]
        assert "live" == other.get_run("r").lease


def test_close_waits_for_a_write_that_has_begun(store: PostgresStore) -> None:
    begin(store, "r")
    has_begun, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        with store._write("save") as tx:
            row = tx.row("r")
            assert row is not None
            has_begun.set()
            may_end.wait(30)
            tx.put_row(replace(row, reason="written in time"))

    writer = threading.Thread(target=slow)
    writer.start()
    has_begun.wait(30)
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    may_end.set()
    writer.join()
    closer.join()
    with open_store(store._connections._dsn) as again:  # type: ignore[attr-defined]
        assert "written in time" in again.get_run("r").info.reason


def test_other_drivers_of_psycopg_do_as_well(postgres: str) -> None:
    if find_library("pq") is None:
        pytest.skip("the pure Python form of psycopg needs the libpq of the system")
    source = f"""
import psycopg
from milepost.stores.postgres.store import PostgresStore
from milepost.testing.journals import begin, work
store = PostgresStore({postgres!r})
token = begin(store, "r")
outcomes = [work(store, token, *nodes).outcome for nodes in ("abc", "d")]
print(psycopg.pq.__impl__, *outcomes, store.get_run("r").info.sequence)
store.close()
"""
    environment = {**os.environ, "PSYCOPG_IMPL": "python"}
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert ("python written written 4\n", "") == (told.stdout, told.stderr)


def test_without_psycopg_the_extra_is_named() -> None:
    source = """
import sys
sys.modules["psycopg"] = None
import milepost
try:
    milepost.open_store("postgresql://user:secret@host/db")
except milepost.MissingExtraError as exc:
    print(exc.extra, "milepost[postgres]" in str(exc), "secret" in str(exc))
"""
    told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "postgres True False\n" == told.stdout


def test_a_claim_waits_for_an_append_that_has_begun(store: PostgresStore, postgres: str) -> None:
    token = begin(store, "r")
    work(store, token, "a")
    wish = Claim("r", 1, 2, "m", make_record("r", 2, "2026-01-01T00:00:00Z", "owner"), 30.0, takeover=True)
    told: list[str] = []
    with psycopg.connect(postgres) as connection:
        statement = store._tables("SELECT FROM {runs} WHERE run_id = 'r' AND epoch = 1 FOR SHARE")
        connection.execute(statement)
        connection.execute(
            "INSERT INTO milepost.records SELECT id, 2, 'route', '', 1, 0, '', NULL, '{}' FROM milepost.runs"
        )
        claimer = threading.Thread(target=lambda: told.append(store.claim(wish).outcome))
        claimer.start()
        claimer.join(0.1)
        assert claimer.is_alive()
    claimer.join()
    assert ["moved"] == told
    assert "claimed" == take(store, "r", takeover=True).outcome
