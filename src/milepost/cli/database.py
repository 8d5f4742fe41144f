"""The commands that look after a database, and the facts about a place of runs."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import quote

import click

from milepost.cli.commands import FAILED, OK, USAGE, Invocation, NotFound, command, shared_options
from milepost.cli.places import (
    file_of,
    folder_of,
    is_file_store,
    is_postgres,
    open_existing,
    open_to_look,
    source_of_url,
    url_of,
)
from milepost.cli.text import to_json
from milepost.errors import MilepostError
from milepost.stores.sqlite import schema as sqlite_schema
from milepost.stores.url import shown_url
from milepost.views.findings import (
    Diagnosis,
    disk_findings,
    file_findings,
    folder_findings,
    server_findings,
    unreadable,
)

# What there is to know of the place where runs are kept: a SQLite file, a folder, or a PostgreSQL server. `views.findings`
# looks at what is there.
#
# Nothing is made where there is no store yet, and no password is ever shown.


PATIENCE = 10.0
"""Seconds for a server to answer."""


def store_findings(invocation: Invocation) -> list[Diagnosis]:
    """Return the findings about the store that was named, or about the default."""
    url = url_of(invocation)
    source = source_of_url(invocation)
    path, folder = file_of(url), folder_of(url)
    if is_postgres(url):
        return list(_server(invocation, url, source))
    if path is not None:
        return list(_file(invocation, path.absolute(), source))
    if folder is not None:
        return list(_folder(invocation, folder.absolute(), source))
    try:
        with open_to_look(invocation) as store:
            return [Diagnosis("store", store.place, "ok", f"named by {source}")]
    except MilepostError as exc:
        return [Diagnosis("store", shown_url(url), "problem", str(exc))]


# -- a file, a folder -----------------------------------------------------------------------------------------


def _file(invocation: Invocation, path: Path, source: str) -> Iterator[Diagnosis]:
    yield Diagnosis("store", str(path), "ok", f"named by {source}")
    if not path.exists():
        yield _not_yet(path)
        return
    yield from _unreadable(invocation)
    yield from file_findings(path)


def _folder(invocation: Invocation, folder: Path, source: str) -> Iterator[Diagnosis]:
    yield Diagnosis("store", str(folder), "ok", f"named by {source}")
    if not is_file_store(folder):
        yield _not_yet(folder)
        return
    problems = list(_unreadable(invocation))  # to open it tries links and locks
    yield from problems
    if not problems:
        yield Diagnosis("links and locks", "yes")
        yield from disk_findings(folder)
    yield from folder_findings(folder)


def _not_yet(path: Path) -> Diagnosis:
    """Return whether a store that is not there can be made."""
    folder = next(parent for parent in path.parents if parent.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        return Diagnosis("writable", "no", "problem", f"{folder} can't be written to")
    return Diagnosis("writable", "yes", "ok", "it is not there yet; the first run makes it")


def _unreadable(invocation: Invocation) -> Iterator[Diagnosis]:
    """Return the problem that keeps the store from being opened and listed, if there is one."""
    try:
        with open_to_look(invocation) as store:
            yield from unreadable(store)
    except (MilepostError, click.ClickException) as exc:
        yield Diagnosis("readable", "no", "problem", str(exc))


# -- a server -------------------------------------------------------------------------------------------------


def _server(invocation: Invocation, url: str, source: str) -> Iterator[Diagnosis]:
    place = Diagnosis("store", shown_url(url), "problem")
    try:
        from milepost.stores.postgres.driver import psycopg
    except MilepostError as exc:
        yield Diagnosis(place.name, place.value, "problem", str(exc))
        return
    from milepost.stores.postgres.pool import open_connection, place_of
    from milepost.stores.postgres.schema import SCHEMA
    from milepost.stores.postgres.timing import CallTimer

    try:
        connection = open_connection(url, PATIENCE)
    except (MilepostError, psycopg.Error) as exc:
        yield Diagnosis(place.name, place.value, "problem", " ".join(str(exc).split()))
        return
    with connection, CallTimer(connection.pgconn.socket, PATIENCE):
        yield Diagnosis("store", place_of(connection, SCHEMA, SCHEMA), "ok", f"named by {source}")
        try:
            yield from server_findings(connection)
            tables = _found_tables(url)
        except (MilepostError, psycopg.Error) as exc:
            yield Diagnosis("readable", "no", "problem", " ".join(str(exc).split()))
            return
        yield tables
    if tables.verdict == "ok" and tables.value != "none":
        yield from _unreadable(invocation)


def _found_tables(url: str) -> Diagnosis:
    from milepost.stores.postgres.schema import status

    found, needed = status(url)
    if found > needed:
        return Diagnosis(
            "tables", f"version {found}", "problem", f"this library knows up to {needed}: upgrade milepost"
        )
    if not found:
        return Diagnosis(
            "tables", "none", "ok", "they are not there yet; the first run makes them, or milepost db migrate"
        )
    if found < needed:
        return Diagnosis(
            "tables", f"version {found}", "note", f"{needed} is needed: the next run, or milepost db migrate"
        )
    return Diagnosis("tables", f"version {found}")


# -- The commands that look after a database's tables: db status, db migrate, db sql ---------------


@click.group("db", invoke_without_command=True)
@shared_options
@click.pass_context
def db(context: click.Context) -> None:
    """Look at the tables of a database, and bring them up to date."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(USAGE)


class _Tables(NamedTuple):
    """The version that a database's tables have, and the one that this library needs."""

    found: int
    needed: int


_schema = click.option(
    "--schema",
    default="milepost",
    show_default=True,
    metavar="NAME",
    help="The schema of PostgreSQL that has the tables.",
)


@command("status", _schema)
def status(invocation: Invocation, schema: str) -> int:
    """Tell the version of the tables.

    Exit code 1 if it is not the one that this library needs.
    """
    tables = _tables(url_of(invocation), schema)
    is_current = tables.found == tables.needed
    if invocation.is_json:
        print(to_json({**tables._asdict(), "is_current": is_current}))
    else:
        print(f"the tables have version {tables.found}, {_verdict(tables)}")
    return OK if is_current else FAILED


@command("migrate", _schema)
def migrate(invocation: Invocation, schema: str) -> int:
    """Bring the tables to the version that this library needs.

    Any number of processes may do so at once, and every store that is opened does so by itself.
    """
    url = url_of(invocation)
    if is_postgres(url):
        found = _postgres(url).migrate(url, schema=schema).found
    else:
        found = _tables(url, schema).found
        open_existing(invocation).close()
    tables = _tables(url, schema)
    if invocation.is_json:
        print(to_json({"before": found, "after": tables.found}))
    elif found == tables.found:
        print(f"the tables had version {found} already")
    else:
        print(f"brought the tables from version {found} to {tables.found}")
    return OK


@command(
    "sql",
    click.option("--from", "version", type=click.IntRange(0), default=0, metavar="VERSION",
                 help="Of tables that have this version. Default: of none."),
    _schema,
)  # fmt: skip
def sql(invocation: Invocation, version: int, schema: str) -> int:
    """Print the statements of `migrate`, for a tool of your own.

    Connects to nothing.
    """
    url = url_of(invocation)
    if is_postgres(url):
        statements = _postgres(url).statements(version, schema=schema)
    else:
        _sqlite_file(url)
        if version:
            raise click.UsageError("--from is for PostgreSQL: a SQLite store is brought up to date when it is opened")
        statements = _sqlite_statements()
    print(to_json({"from": version, "sql": statements}) if invocation.is_json else statements.rstrip("\n"))
    return OK


for _command in (status, migrate, sql):
    db.add_command(_command)


def _verdict(tables: _Tables) -> str:
    if tables.found == tables.needed:
        return "as this library needs"
    if tables.found > tables.needed:
        return f"which is newer than {tables.needed}, the newest that this library knows: upgrade milepost"
    return f"this library needs {tables.needed}: milepost db migrate"


def _tables(url: str, schema: str) -> _Tables:
    """Return the version of a database's tables, of which nothing is changed."""
    if is_postgres(url):
        return _Tables(*_postgres(url).status(url, schema=schema))
    path = _sqlite_file(url)
    if not path.exists():
        raise NotFound(f"there is no store at {path.absolute()}: run something first, or give --store")
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            return _Tables(connection.execute("PRAGMA user_version").fetchone()[0], sqlite_schema.VERSION)
    except sqlite3.Error as exc:
        raise NotFound(f"{path.absolute()} is no SQLite database: {exc}: give the store's file with --store") from exc


def _postgres(url: str) -> ModuleType:
    """Return the module for the tables of PostgreSQL. Raise `MissingExtraError` without the driver."""
    from milepost.stores.postgres import schema as postgres_schema
    from milepost.stores.postgres.pool import fields_of

    fields_of(url)
    return postgres_schema


def _sqlite_file(url: str) -> Path:
    path = file_of(url)
    if path is None:
        raise click.UsageError(f"{shown_url(url)!r} is no store with tables: db is for SQLite and PostgreSQL")
    return path


def _sqlite_statements() -> str:
    """Return the statements that make the tables of a SQLite store, as SQLite itself tells them."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        sqlite_schema.prepare(connection, ":memory:", lambda _: None)
        # Tables first, then what is made of them; SQLite's own come without a text.
        found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    return ";\n\n".join([*(text for (text,) in found), f"PRAGMA user_version = {version}"]) + ";\n"
