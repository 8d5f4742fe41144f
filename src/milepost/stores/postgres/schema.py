"""The tables of a PostgreSQL store: the version that a database has, and the upgrade to this one.

Each version is a file of plain SQL in the folder `sql`, which a team may run with a tool of its own: `statements`
returns their text. They name no schema; the search path of their transaction does.

An upgrade is one transaction under an advisory lock that ends with it, so any number of processes may
set up one database at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, NamedTuple

from milepost.errors import OptionError, StoreError, StoreVersionError, shown
from milepost.stores.postgres.driver import psycopg, sql
from milepost.stores.postgres.pool import open_connection
from milepost.stores.postgres.timing import CallTimer

VERSION = 10
SCHEMA = "milepost"

_OLDEST_SERVER = 13
_PATIENCE = 10.0
"""Seconds for which an answer is waited for."""
_UPGRADE = 600.0
"""Seconds that the upgrade of a large database may take, and the wait for another process that upgrades it."""
_NAME_BYTES = 63
"""Longest name in bytes. A longer one would be cut off, and two schemas could become one."""


class Status(NamedTuple):
    """The version of a database's tables, 0 for none, and the version that this library needs."""

    found: int
    needed: int = VERSION


def check_schema(schema: Any) -> str:
    """Return the name of a schema. Raise `OptionError` if PostgreSQL would not store it unchanged."""
    if not isinstance(schema, str) or not 0 < len(schema.encode("utf-8", "replace")) <= _NAME_BYTES or "\0" in schema:
        raise OptionError(f"schema must be a name of 1 to {_NAME_BYTES} bytes, not {shown(schema)}", option="schema")
    return schema


def status(dsn: str, *, schema: str = SCHEMA) -> Status:
    """Return the version of a database's tables. This changes nothing. Raise StoreError if it can't be read."""
    with (
        _connected(dsn, schema) as connection,
        _as_our_errors(schema, "look at the tables"),
        CallTimer(connection.pgconn.socket, _PATIENCE),
    ):
        return Status(_version(connection, schema))


def migrate(dsn: str, *, schema: str = SCHEMA) -> Status:
    """Upgrade a database to this version. Return the version that it had.

    Raise `StoreVersionError` for tables of a newer release, StoreError for tables of another
    program and for missing rights.
    """
    place = f"in schema {shown(schema)}"
    with _connected(dsn, schema) as connection:
        timer = CallTimer(connection.pgconn.socket, _PATIENCE)
        with _as_our_errors(place, "open"), timer:
            _version(
                connection, schema
            )  # a server that does not answer is noticed before the upgrade, which may take long
        timer.allow(_UPGRADE)
        with timer:
            found = prepare(connection, schema, place)
    return Status(found)


def statements(from_version: int = 0, *, schema: str = SCHEMA) -> str:
    """Return the SQL that `migrate` would run in a database of `from_version`, for another tool;
    "" if there is nothing to do."""
    check_schema(schema)
    if not 0 <= from_version <= VERSION:
        raise OptionError(f"there is no version {from_version} of the tables: 0 to {VERSION}", option="from_version")
    if from_version == VERSION:
        return ""
    return "\n".join(["BEGIN;", *_steps(from_version, schema), "COMMIT;", ""])


def prepare(connection: psycopg.Connection[Any], schema: str, place: str, owner: str | None = None) -> int:
    """Upgrade the tables to this version, even if others do so at the same time. Return the version that they had.

    `connection` is in autocommit mode. If there is nothing to do, it needs only the right to read the tables. Raise
    StoreError for what was made by somebody whom `_refuse_foreign` does not trust.
    """
    _check_server(connection, place)
    with _as_our_errors(place, "open"):
        _refuse_foreign(connection, schema, place, owner)
        found = _known_version(connection, schema, place)
        if found == VERSION:
            return found
        with connection.transaction():
            connection.execute(_lock(schema))
            found = _known_version(connection, schema, place)  # another process may have been faster
            if found < VERSION:
                connection.execute("\n".join(_steps(found, schema, _has_schema(connection, schema))).encode())
                _refuse_foreign(connection, schema, place, owner)  # somebody may have made the schema meanwhile
        return found


def check(connection: psycopg.Connection[Any], schema: str, place: str, owner: str | None = None) -> None:
    """Raise StoreError unless the schema has the tables of this version. Change nothing."""
    _check_server(connection, place)
    with _as_our_errors(place, "open"):
        _refuse_foreign(connection, schema, place, owner)
        found = _known_version(connection, schema, place)
    if found != VERSION:
        raise StoreError(
            f"the store {place} has {f'tables of version {found}' if found else 'no tables'}, and is opened to read only: "
            f"open it without read_only, or run `milepost db migrate`, to bring it to version {VERSION}",
            store=place,
            op="open",
        )


_FOREIGN = """
WITH RECURSIVE mine AS (
    SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user OR rolname = %(owner)s
    UNION SELECT roleid FROM pg_catalog.pg_auth_members JOIN mine ON member = mine.oid
), trusted AS (
    SELECT oid FROM mine UNION SELECT oid FROM pg_catalog.pg_roles WHERE rolsuper OR (
        rolname = 'pg_database_owner' AND EXISTS (
            SELECT FROM pg_catalog.pg_database JOIN mine ON datdba = mine.oid WHERE datname = current_database()
        )
    )
), space AS (
    SELECT oid, nspowner FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s
), ours AS (
    SELECT c.oid, relname, relowner FROM pg_catalog.pg_class c JOIN space ON relnamespace = space.oid
    WHERE relname = ANY(%(tables)s)
)
SELECT 'the schema, as role ' || quote_ident(pg_get_userbyid(nspowner)) FROM space
WHERE nspowner NOT IN (SELECT oid FROM trusted)
UNION ALL
SELECT 'the table ' || relname || ', as role ' || quote_ident(pg_get_userbyid(relowner)) FROM ours
WHERE relowner NOT IN (SELECT oid FROM trusted)
UNION ALL
SELECT 'the function note_tags, as role ' || quote_ident(pg_get_userbyid(proowner))
FROM pg_catalog.pg_proc JOIN space ON pronamespace = space.oid
WHERE proname = 'note_tags' AND proowner NOT IN (SELECT oid FROM trusted)
UNION ALL
SELECT 'the trigger ' || quote_ident(tgname) || ' of the table ' || relname FROM pg_catalog.pg_trigger
JOIN ours ON tgrelid = ours.oid WHERE NOT tgisinternal AND (
    tgname <> ALL(%(triggers)s) OR tgfoid NOT IN (
        SELECT p.oid FROM pg_catalog.pg_proc p JOIN space ON pronamespace = space.oid WHERE proname = 'note_tags'
    )
)
UNION ALL
SELECT 'the rule ' || quote_ident(rulename) || ' of the table ' || relname FROM pg_catalog.pg_rewrite
JOIN ours ON ev_class = ours.oid
"""
"""Name what is not to be trusted: who owns the schema, a table or the function of our triggers, or what acts on a table."""
_OWN_TABLES = ["migrations", "runs", "records", "signals", "run_tags", "live_events", "workers", "paused_schedules"]
_OWN_TRIGGERS = ["run_tags_begin", "run_tags_change", "run_tags_end"]


def _refuse_foreign(connection: psycopg.Connection[Any], schema: str, place: str, owner: str | None) -> None:
    """Raise StoreError for a schema or tables of a role that is not to be trusted, and for triggers and rules of others.

    Functions in them would be executed with our rights. Trusted are the current user, the roles that it is a member of,
    `owner`, and superusers, who may do anything anyway.
    """
    values = {"owner": owner, "schema": schema, "tables": _OWN_TABLES, "triggers": _OWN_TRIGGERS}
    cursor = psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row)
    found = cursor.execute(_FOREIGN, values, prepare=False).fetchone()
    if found is not None:
        raise StoreError(
            f"the store {place} is not to be trusted, for somebody else made {found[0]}: choose another schema, drop what "
            f"you did not make, or name a role that you trust with PostgresStore(owner=...)",
            store=place,
            op="open",
        )


def _check_server(connection: psycopg.Connection[Any], place: str) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    version = connection.info.server_version // 10_000
    problem = ""
    if version < _OLDEST_SERVER:
        problem = f"is PostgreSQL {version}, which is too old: use {_OLDEST_SERVER} or newer"
    elif encoding != "UTF8":
        problem = f"keeps text as {encoding}: make a database with encoding 'UTF8'"
    if problem:
        raise StoreError(f"the database {place} {problem}", store=place, op="open")


def _has_schema(connection: psycopg.Connection[Any], schema: str) -> bool:
    query = "SELECT FROM pg_namespace WHERE nspname = %s"
    return psycopg.Cursor(connection).execute(query, (schema,), prepare=False).rowcount > 0


def _steps(found: int, schema: str, has_schema: bool = False) -> Iterator[str]:
    """Yield the statements that upgrade tables of version `found` to this one, in the order in which they run."""
    name = sql.Identifier(schema)
    yield _lock(schema).decode() + ";"
    if not found and not has_schema:  # the statement needs a right, even if the schema exists, that its owner may lack
        yield sql.SQL("CREATE SCHEMA IF NOT EXISTS {};").format(name).as_string()
    yield sql.SQL("SET LOCAL search_path TO {};").format(name).as_string()
    for version in range(found + 1, VERSION + 1):
        yield (files("milepost.stores.postgres") / "sql" / f"{version:04}.sql").read_text(encoding="utf-8")
        yield f"INSERT INTO migrations (version) VALUES ({version:d});"  # noqa: S608


def _lock(schema: str) -> bytes:
    key = sql.Literal(f"milepost {schema}")
    return sql.SQL("SELECT pg_advisory_xact_lock(hashtextextended({}, 0))").format(key).as_bytes()


def _known_version(connection: psycopg.Connection[Any], schema: str, place: str) -> int:
    found = _version(connection, schema)
    if found > VERSION:
        raise StoreVersionError(
            f"the store {place} has tables of version {found}; this library knows up to {VERSION}: upgrade milepost",
            store=place,
            op="open",
            found=found,
            supported=VERSION,
        )
    return found


def _version(connection: psycopg.Connection[Any], schema: str) -> int:
    # Look at the catalogue itself: to_regclass may answer from a cache that doesn't know yet what others just created.
    there = """
        SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE nspname = %s AND relname = 'migrations'
    """
    cursor = psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row)
    if not cursor.execute(there, (schema,), prepare=False).rowcount:
        return 0
    query = sql.SQL("SELECT coalesce(max(version), 0) FROM {}").format(sql.Identifier(schema, "migrations"))
    found = cursor.execute(query, prepare=False).fetchone()
    return 0 if found is None else int(found[0])


@contextmanager
def _connected(dsn: str, schema: str) -> Iterator[psycopg.Connection[Any]]:
    check_schema(schema)
    with _as_our_errors("PostgreSQL", "open"):
        connection = open_connection(dsn, _PATIENCE)
    with connection:
        yield connection


@contextmanager
def _as_our_errors(place: str, deed: str) -> Iterator[None]:
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as exc:
        raise StoreError(
            f"{place}: the user may not {deed} or make the library's tables ({exc}): have them made by one who may, "
            f"with the statements that `milepost db sql` prints",
            store=place,
            op="open",
        ) from exc
    except (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateObject) as exc:
        raise StoreError(
            f"{place}: the schema has tables of another program ({exc}): choose another schema",
            store=place,
            op="open",
        ) from exc
    except psycopg.Error as exc:
        what = " ".join(str(exc).split())
        raise StoreError(
            f"the store {place} failed to {deed}: {what}: look at the server and the way to it, then try again",
            store=place,
            op="open",
        ) from exc
