"""The commands that look after a database's tables: db status, db migrate, db sql."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.parse import quote

import click

from milepost.cli.places import (
    FAILED,
    OK,
    USAGE,
    Invocation,
    NotFound,
    command,
    file_of,
    is_postgres,
    open_existing,
    shared_options,
    url_of,
)
from milepost.cli.text import to_json
from milepost.stores.sqlite import schema as sqlite_schema
from milepost.stores.url import shown_url

__all__ = ["db"]


@click.group("db", invoke_without_command=True)
@shared_options
@click.pass_context
def db(context: click.Context) -> None:
    """Look at the tables of a database, and bring them up to date."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(USAGE)


class _Tables(NamedTuple):
    """What version a database's tables have, and which one this library needs."""

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
    """The version of a database's tables, of which nothing is changed."""
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
    """What knows the tables of PostgreSQL. `MissingExtraError` without the driver."""
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
    """The tables of a SQLite store, as SQLite itself tells them."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        sqlite_schema.prepare(connection, ":memory:", lambda _: None)
        # Tables first, then what is made of them; SQLite's own come without a text.
        found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    return ";\n\n".join([*(text for (text,) in found), f"PRAGMA user_version = {version}"]) + ";\n"
