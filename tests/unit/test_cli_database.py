"""db status, migrate and sql, and what doctor finds out about folders and servers."""

from __future__ import annotations

import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cli_calls import Shop, shop

from milepost import SQLiteStore
from milepost.stores.postgres import schema as postgres_schema
from milepost.stores.sqlite import schema as sqlite_schema

__all__ = ["shop"]

SECRET = "postgresql://me:top secret@host/db"


BACK_TO_VERSION_1 = """
DROP INDEX runs_by_flow; DROP INDEX runs_by_status; DROP INDEX runs_by_flow_and_status; DROP INDEX runs_rested;
DROP INDEX runs_ready; DROP INDEX runs_timed; DROP INDEX runs_drained;
DROP TRIGGER run_tags_begin; DROP TRIGGER run_tags_change; DROP TRIGGER run_tags_end; DROP TABLE run_tags;
CREATE INDEX runs_due ON runs (flow, status, wake_at);
ALTER TABLE runs DROP COLUMN blocked_by;
ALTER TABLE signals DROP COLUMN sent_by;
ALTER TABLE runs DROP COLUMN seal;
ALTER TABLE runs DROP COLUMN life;
ALTER TABLE records ADD COLUMN note TEXT;
PRAGMA user_version = 1;
"""


def execute(script: str) -> None:
    with closing(sqlite3.connect("s.db", isolation_level=None)) as connection:
        connection.executescript(script)


def findings(shop: Shop, url: str) -> dict[str, Any]:
    document = shop.call("doctor", "--json", "--store", url).json
    return {finding["name"]: finding for finding in document["findings"]}


# -- SQLite ------------------------------------------------------------------------------------------------


def test_the_statements_that_are_printed_make_a_store(shop: Shop) -> None:
    answer = shop.call("db", "sql")
    assert 0 == answer.code
    execute(answer.out)
    url = ("--store", "sqlite:///s.db")
    assert 0 == shop.call("db", "status", *url).code
    assert 0 == shop.call("run", "shop:graph", "-i", "id=a", *url).code
    with closing(sqlite3.connect("s.db")) as connection, closing(sqlite3.connect(":memory:")) as made:
        sqlite_schema.prepare(made, ":memory:", lambda _: None)
        query = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        assert made.execute(query).fetchall() == connection.execute(query).fetchall()


def test_older_tables_are_told_and_brought_up_to_date(shop: Shop) -> None:
    SQLiteStore("s.db").close()
    execute(BACK_TO_VERSION_1)
    url = ("--store", "sqlite:///s.db")
    version = sqlite_schema.VERSION
    answer = shop.call("db", "status", *url)
    assert 1 == answer.code
    assert f"the tables have version 1, this library needs {version}: milepost db migrate\n" == answer.out
    assert f"brought the tables from version 1 to {version}\n" == shop.call("db", "migrate", *url).out
    assert {"found": version, "needed": version, "is_current": True} == shop.call("db", "status", "--json", *url).json
    assert {"before": version, "after": version} == shop.call("db", "migrate", "--json", *url).json
    assert f"the tables had version {version} already\n" == shop.call("db", "migrate", *url).out


def test_tables_of_a_newer_release_are_told_and_left_alone(shop: Shop) -> None:
    SQLiteStore("s.db").close()
    execute("PRAGMA user_version = 99")
    answer = shop.call("db", "status", "--store", "sqlite:///s.db")
    assert (1, True) == (answer.code, "which is newer than" in answer.out)
    answer = shop.call("db", "migrate", "--store", "sqlite:///s.db")
    assert (2, "", True) == (answer.code, answer.out, "upgrade milepost" in answer.err)


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (2, ["db"]),
        (2, ["db", "sql", "--store", "memory://"]),
        (2, ["db", "sql", "--from", "1"]),
        (2, ["db", "sql", "--from", "99", "--store", "postgresql://host/db"]),
        (2, ["db", "status", "--store", "file:runs"]),
        (2, ["db", "status", "--store", SECRET]),
        (2, ["db", "migrate", "--store", SECRET]),
        (3, ["db", "status"]),
        (3, ["db", "migrate"]),
        (3, ["db", "status", "--store", "sqlite:///text.db"]),
    ],
)
def test_what_has_no_tables_is_told(shop: Shop, code: int, arguments: list[str]) -> None:
    (shop.folder / "text.db").write_text("no database, but long enough to be looked at" * 30, encoding="utf-8")
    answer = shop.call(*arguments)
    assert code == answer.code
    assert "secret" not in answer.out + answer.err
    assert ["shop.py", "text.db"] == sorted(path.name for path in shop.folder.iterdir())


# -- a folder ----------------------------------------------------------------------------------------------


def test_doctor_tries_the_folder_of_a_file_store(shop: Shop) -> None:
    assert "it is not there yet" in findings(shop, "file:runs")["writable"]["note"]
    assert 0 == shop.call("run", "shop:graph", "-i", "id=a", "--store", "file:runs").code
    before = sorted(shop.folder.rglob("*"))
    found = findings(shop, "file:runs")
    assert before == sorted(shop.folder.rglob("*"))
    assert {"ok"} == {found[name]["verdict"] for name in ("links and locks", "fsync", "clock", "folder mode")}
    assert found["fsync"]["value"].endswith(" ms for a new file")
    assert found["free space"]["value"].endswith("B")
    (shop.folder / "runs").chmod(0o755)
    assert "chmod 700" in findings(shop, "file:runs")["folder mode"]["note"]


@pytest.mark.parametrize("url", ["file:no/such/runs", "sqlite:///no/such/runs.db"])
def test_doctor_finds_no_fault_with_a_store_whose_folders_the_first_run_makes(shop: Shop, url: str) -> None:
    assert "ok" == findings(shop, url)["writable"]["verdict"]
    assert not (shop.folder / "no").exists()


def test_doctor_finds_a_file_store_of_a_newer_release(shop: Shop) -> None:
    shop.call("run", "shop:graph", "-i", "id=a", "--store", "file:runs")
    (shop.folder / "runs" / ".milepost" / "version.json").write_text('{"version": 99}\n', encoding="utf-8")
    assert "upgrade milepost" in findings(shop, "file:runs")["readable"]["note"]


# -- PostgreSQL --------------------------------------------------------------------------------------------


def test_the_tables_of_a_server_are_made_and_told(shop: Shop, postgres: str, schema: str) -> None:
    options = ("--store", postgres, "--schema", schema)
    version = postgres_schema.VERSION
    assert {"found": 0, "needed": version, "is_current": False} == shop.call("db", "status", "--json", *options).json
    assert {"before": 0, "after": version} == shop.call("db", "migrate", "--json", *options).json
    assert 0 == shop.call("db", "status", *options).code


def test_the_statements_for_a_server_make_its_tables(shop: Shop, postgres: str, schema: str) -> None:
    options = ("--store", postgres, "--schema", schema)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(shop.call("db", "sql", *options).out)  # type: ignore[call-overload]
    assert 0 == shop.call("db", "status", *options).code
    current = shop.call("db", "sql", "--from", str(postgres_schema.VERSION), *options)
    assert (0, "\n") == (current.code, current.out)


def test_doctor_asks_a_server(shop: Shop, postgres: str) -> None:
    shop.call("db", "migrate", "--store", postgres)
    found = findings(shop, postgres)
    assert found["server"]["value"].startswith("PostgreSQL ")
    assert f"version {postgres_schema.VERSION}" == found["tables"]["value"]
    assert "direct" == found["connection"]["value"]
    assert ("ok", " s from here") == (found["clock"]["verdict"], found["clock"]["value"][5:])
    # The server of these tests does not wait for its disk, which is what doctor is there to tell.
    assert ("problem", True) == (found["durable"]["verdict"], "fsync = off" in found["durable"]["note"])
    assert "psycopg" not in found["store"]["value"]


POOLER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


@pytest.fixture
def pooler(postgres: str) -> Iterator[str]:
    """The URL of a pooler before the server, with a password in it."""
    if POOLER is None:
        pytest.skip("needs pgbouncer")
    parts = psycopg.conninfo.conninfo_to_dict(postgres)
    target = " ".join(f"{name}={parts[name]}" for name in ("host", "port", "dbname") if name in parts)
    # Not below the tests' own folder: as root it runs as another user, who may not look in there.
    with tempfile.TemporaryDirectory(prefix="milepost-pooler-") as room:
        Path(room).chmod(0o777)
        Path(room, "users.txt").write_text(f'"{parts["user"]}" "secret"\n', encoding="utf-8")
        settings = {
            "listen_addr": "",
            "unix_socket_dir": room,
            "listen_port": 6432,
            "auth_type": "plain",
            "auth_file": f"{room}/users.txt",
            "pool_mode": "transaction",
        }
        lines = ["[databases]", f"runs = {target}", "[pgbouncer]", *(f"{key} = {settings[key]}" for key in settings)]
        Path(room, "pooler.ini").write_text("\n".join(lines) + "\n", encoding="utf-8")
        owner = pwd.getpwuid(os.stat(parts["host"]).st_uid).pw_name if os.path.isdir(parts["host"]) else "nobody"
        user = ["-u", owner] if os.geteuid() == 0 else []
        command = [POOLER, *user, f"{room}/pooler.ini"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                assert any("process up" in line for line in process.stderr)
                yield f"postgresql://{parts['user']}:secret@/runs?host={room}&port=6432"
            finally:
                process.kill()


def test_doctor_notices_a_pooler_and_shows_no_password(shop: Shop, pooler: str) -> None:
    answer = shop.call("doctor", "--store", pooler)
    assert "through a pooler" in answer.out
    assert "secret" not in answer.out + answer.err
