"""A proxy before a PostgreSQL server, which cuts a connection at the moment that a test is about, or has bytes vanish."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Literal, Self

import psycopg

COMMIT = b"COMMIT\0"
APPEND = b"milepost_"
"""How the name of a prepared statement begins that a store runs by itself."""


class Proxy:
    """Listens on a port of this machine and hands everything on to the server of `dsn`; `dsn` leads through it."""

    def __init__(self, dsn: str) -> None:
        fields = psycopg.conninfo.conninfo_to_dict(dsn)
        self._server = (str(fields.get("host") or "localhost"), int(fields.get("port") or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.dsn = psycopg.conninfo.make_conninfo(**{**fields, "host": "127.0.0.1", "port": port})
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._swallowing: set[threading.Event] = set()
        self._trap: tuple[bytes, str] | None = None
        self._takes_no_more = False
        self._lock = threading.Lock()
        self.cuts = 0
        """How many connections were cut."""
        self._start(self._accept)

    @contextmanager
    def cutting(self, pattern: bytes, what: Literal["question", "answer"]) -> Iterator[None]:
        """Cut the first connection whose client sends `pattern`: before that reaches the server, or before the answer to it
        reaches the client."""
        self._trap, before = (pattern, what), self.cuts
        yield
        assert self.cuts == before + 1, "nothing was cut"

    def swallow(self, *, all_to_come: bool = False) -> None:
        """From now on swallow what goes over the connections that are open, and with `all_to_come` over all."""
        self._takes_no_more = all_to_come
        for swallows in [*self._swallowing]:
            swallows.set()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            host, port = self._server
            if host.startswith("/"):
                server = socket.socket(socket.AF_UNIX)
                server.connect(f"{host}/.s.PGSQL.{port}")
            else:
                server = socket.create_connection(self._server)
            self._sockets += [client, server]
            ends, vanish = threading.Event(), threading.Event()
            self._swallowing.add(vanish)
            if self._takes_no_more:
                vanish.set()
            self._start(self._pump, client, server, ends, vanish, True)
            self._start(self._pump, server, client, ends, vanish, False)

    def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        swallows: threading.Event,
        vanish: threading.Event,
        is_client: bool,
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if vanish.is_set():
                    continue
                if is_client:
                    with self._lock:
                        what = self._sprung(data)
                        if what == "answer":
                            swallows.set()
                    if what == "question":
                        break
                elif swallows.is_set():
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _sprung(self, data: bytes) -> str | None:
        if self._trap is None or self._trap[0] not in data:
            return None
        what = self._trap[1]
        self._trap = None
        self.cuts += 1
        return what

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for end in self._sockets:
            end.close()
