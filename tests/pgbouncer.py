"""PgBouncer in transaction mode before the tests' server: each transaction may meet another connection of the server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


class PgBouncer:
    """A pooler of one's own; use it as a context manager. `dsn` leads through it. Extra `settings` go into its file."""

    def __init__(self, dsn: str, user: str | None, **settings: object) -> None:
        assert PROGRAM is not None
        self._room = tempfile.TemporaryDirectory(prefix="milepost-pgbouncer-")
        folder = Path(self._room.name)
        folder.chmod(0o755)
        fields = psycopg.conninfo.conninfo_to_dict(dsn)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        server = " ".join(f"{name}={fields[name]}" for name in ("host", "port", "dbname", "user") if name in fields)
        given = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "admin_users": fields.get("user", ""),
            "pool_mode": "transaction",
            "default_pool_size": 6,
            "max_client_conn": 500,
            **settings,
        }
        lines = ["[databases]", f"* = {server}", "[pgbouncer]", *(f"{name} = {value}" for name, value in given.items())]
        (folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.dsn = psycopg.conninfo.make_conninfo(**{**fields, "host": "127.0.0.1", "port": port})
        self._process = subprocess.Popen(
            [PROGRAM, "-q", str(folder / "pgbouncer.ini")],
            user=user if os.geteuid() == 0 else None,  # it refuses to run as root, and must reach the server's socket
            stderr=subprocess.DEVNULL,
        )
        self._wait()

    def reconnect(self) -> None:
        """Give the next transactions connections of the server that nobody has prepared a statement on."""
        with psycopg.connect(psycopg.conninfo.make_conninfo(self.dsn, dbname="pgbouncer"), autocommit=True) as console:
            console.execute("RECONNECT")

    def _wait(self) -> None:
        end = time.monotonic() + 20
        while True:
            try:
                psycopg.connect(self.dsn).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.02)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._room.cleanup()
