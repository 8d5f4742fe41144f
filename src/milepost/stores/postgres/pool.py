"""The source of a PostgreSQL store's connections: its own, or those of a caller's pool.

A store opens its own connections when they are needed, in the thread that needs one, so that this thread gets
the error. An idle one that the server has dropped is noticed before it is used. When one turns out to be
useless, it is closed together with all idle ones, because they lead the same way. No lock is held while a
connection is opened or used.
"""

from __future__ import annotations

import abc
import inspect
import math
import os
import queue
import re
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from milepost.errors import OptionError, StoreClosedError, StoreError
from milepost.stores.postgres.connection import ConnectionLost, Link, Preparing, Session
from milepost.stores.postgres.driver import conninfo, psycopg

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

_MOST = 8
"""Number of a store's own connections, besides the one that renews leases. Threads that append at once share them."""
_UNLIMITED = 64
"""Number of connections that are used at once from a pool without a limit."""
_FRESH = 0.5
"""Seconds after its last use within which a connection is used again unchecked: a check lets other threads run first."""
_SPLIT_WRONGLY = re.compile(r"\w+://([^/?@]*@[^/?]*@|[^/?@]*/[^?]*@)")
"""The form of a URL whose password has `@` or `/` unescaped: libpq takes what follows for a host or a
database, and errors show it."""
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 0.5
_LAST_CALLS = 1.0
"""Seconds that a call may still take after its store was closed."""


class RetryWindow:
    """The time for which a call is tried again, and the pauses in it. The first new try is immediate."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._pause = 0.0

    def goes_on(self) -> bool:
        """Pause before the next try. Return False if the time is over."""
        if time.monotonic() + self._pause > self._end:
            return False
        time.sleep(self._pause)
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        return True


class Connections(abc.ABC):
    """A limited number of connections. Each that is taken must be given back."""

    def __init__(self, most: int, place: str) -> None:
        self.place = place
        self._most = most
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        """One item for each connection that may be taken. A semaphore costs ten times as much."""
        for _ in range(most):
            self._free.put(None)
        self._closing = threading.Lock()
        self._is_closed = False
        self._in_use: set[Link] = set()

    def take(self, patience: float) -> Link:
        """Take a connection without a transaction. Wait for one at most `patience` seconds.

        Raise psycopg's OperationalError if there is none, `StoreClosedError` after `close`.
        """
        try:
            self._free.get(timeout=patience)
        except queue.Empty:
            raise psycopg.OperationalError(
                f"all {self._most} connections were in use for {patience:.0f} seconds"
            ) from None
        try:
            if self._is_closed:
                raise StoreClosedError(f"the store {self.place} is closed: open it again to use it")
            link = self._take(patience)
        except BaseException:
            self._free.put(None)
            raise
        link.timer.allow(patience)
        self._in_use.add(link)
        if self._is_closed:  # it was closed meanwhile
            link.timer.hurry(_LAST_CALLS)
        return link

    def give(self, link: Link) -> None:
        """Give a connection back. One that is lost, or still in a transaction, is not used again."""
        try:
            self._in_use.discard(link)
            self._give(link)
            if self._is_closed:
                self._let_go()
        finally:
            self._free.put(None)

    def close(self) -> None:
        """Wait until all connections are given back, and close them. Repeated calls are no error.

        Calls that are under way get one second more. A thread that is opening a connection now, or still has one after
        two seconds, closes it itself.
        """
        with self._closing:
            self._is_closed = True
            for link in [*self._in_use]:
                link.timer.hurry(_LAST_CALLS)
            end = time.monotonic() + 2 * _LAST_CALLS
            waited = 0
            try:
                with suppress(queue.Empty):
                    while waited < self._most:
                        self._free.get(timeout=max(end - time.monotonic(), 0))
                        waited += 1
                self._let_go()
            finally:
                # Threads that have waited for a connection meanwhile get an error.
                for _ in range(waited):
                    self._free.put(None)

    @abc.abstractmethod
    def again(self, most: int | None = None) -> Connections:
        """Return as many new connections from the same place, or at most `most`. A child after a fork needs its own."""

    @abc.abstractmethod
    def _take(self, patience: float) -> Link:
        """Return a connection that is not in use."""

    @abc.abstractmethod
    def _give(self, link: Link) -> None:
        """Take a connection back."""

    @abc.abstractmethod
    def _let_go(self) -> None:
        """Close all idle connections."""


class _Own(Connections):
    """Connections that are opened by their data source name, and stay open for the next user."""

    def __init__(self, dsn: str, preparing: Preparing, most: int, place: str, *, read_only: bool = False) -> None:
        super().__init__(most, place)
        self._dsn = dsn
        self._read_only = read_only
        self._preparing = preparing
        self._idle: list[Link] = []
        self._was_reached = False
        """True if the server was ever reached. The store does not wait for one that never was."""

    def again(self, most: int | None = None) -> Connections:
        again = _Own(self._dsn, self._preparing, most or self._most, self.place, read_only=self._read_only)
        again._was_reached = self._was_reached
        return again

    def _take(self, patience: float) -> Link:
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._open(patience)
            if time.monotonic() - link.used_at < _FRESH or not link.is_stale():
                return link
            link.connection.close()

    def _open(self, patience: float) -> Link:
        """Open a connection. Wait for a server that is being restarted."""
        waiting = RetryWindow(patience)
        while True:
            try:
                link = self._connect(patience)
            except psycopg.OperationalError:
                if not self._was_reached or self._is_closed or not waiting.goes_on():
                    raise
            else:
                self._was_reached = True
                return link

    def _connect(self, patience: float) -> Link:
        connection = open_connection(self._dsn, patience, read_only=self._read_only)
        try:
            return Link(connection, Session(connection, patience, patience), self._preparing, patience)
        except BaseException:
            connection.close()
            raise

    def _give(self, link: Link) -> None:
        if link.is_lost:
            link.connection.close()
            self._let_go()
        elif not link.is_idle:
            link.connection.close()
        else:
            link.used_at = time.monotonic()
            self._idle.append(link)

    def _let_go(self) -> None:
        with suppress(IndexError):  # others take them too
            while True:
                self._idle.pop().connection.close()


class _Callers(Connections):
    """Connections of a caller's pool, borrowed for one use each. `keeps`: one stays borrowed until the end."""

    def __init__(
        self, pool: ConnectionPool[Any], preparing: Preparing, most: int, place: str, *, keeps: bool = False
    ) -> None:
        super().__init__(most, place)
        self._pool = pool
        self._preparing = preparing
        self._keeps = keeps
        self._kept: list[Link] = []
        self._process = os.getpid()
        self._sessions: weakref.WeakKeyDictionary[psycopg.Connection[Any], Session] = weakref.WeakKeyDictionary()
        self._transactional: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()
        """The connections that the caller uses in transactions, and gets back in that mode."""

    def again(self, most: int | None = None) -> Connections:
        again = _Callers(
            self._pool, self._preparing, most or self._most, self.place, keeps=most is not None and self._most > most
        )
        again._process = self._process
        return again

    def _take(self, patience: float) -> Link:
        if os.getpid() != self._process:
            raise StoreError(
                f"the store {self.place} has its connections from a pool, which can't be used after a fork: make a store "
                f"in the child, with a pool of its own or with a URL",
                store=self.place,
                op="connect",
            )
        while True:
            link = self._kept.pop() if self._kept else self._lent(patience)
            if not link.is_stale():
                return link
            self._return(link)

    def _lent(self, patience: float) -> Link:
        """Borrow a connection. Replace one that turns out to be lost, once: the pool does not notice it by itself."""
        has_lost_one = False
        while True:
            connection = self._pool.getconn(timeout=patience)
            try:
                if not connection.autocommit:
                    connection.autocommit = True
                    self._transactional.add(connection)
                session = self._sessions.get(connection)
                if session is None:
                    session = self._sessions[connection] = Session(connection, patience)
                return Link(connection, session, self._preparing)
            except ConnectionLost:
                self._discard(connection)
                if has_lost_one:
                    raise
                has_lost_one = True
            except BaseException:
                self._pool.putconn(connection)
                raise

    def _give(self, link: Link) -> None:
        if self._keeps and not link.is_lost and link.is_idle:
            self._kept.append(link)
        else:
            self._return(link)

    def _return(self, link: Link) -> None:
        connection = link.connection
        if link.is_lost and link.timer.is_over:
            self._discard(connection)
            return
        if link.is_lost:
            connection.close()  # the pool checks only whether it is closed
        elif connection in self._transactional and link.is_idle:
            connection.autocommit = False
        self._transactional.discard(connection)
        self._pool.putconn(connection)

    def _discard(self, connection: psycopg.Connection[Any]) -> None:
        """Give back a connection that leads nowhere, and have the pool replace its idle ones: they lead the same way."""
        connection.close()
        if hasattr(self._pool, "drain"):  # psycopg_pool 3.3
            self._pool.drain()
        self._transactional.discard(connection)
        self._pool.putconn(connection)

    def _let_go(self) -> None:
        with suppress(IndexError):  # others take them too
            while True:
                self._return(self._kept.pop())


def connections_of(dsn_or_pool: Any, preparing: Preparing, *, read_only: bool = False) -> Connections:
    """Return the connections of a store that was given a URL or a pool. Raise TypeError for anything else."""
    if isinstance(dsn_or_pool, str):
        fields_of(dsn_or_pool)
        return _Own(dsn_or_pool, preparing, _MOST, "PostgreSQL", read_only=read_only)
    take = getattr(dsn_or_pool, "getconn", None)
    if not callable(take) or inspect.iscoroutinefunction(take) or not hasattr(dsn_or_pool, "putconn"):
        raise TypeError(
            f"a PostgreSQL store takes a URL or a psycopg_pool.ConnectionPool, not {type(dsn_or_pool).__name__}"
        )
    return _Callers(dsn_or_pool, preparing, getattr(dsn_or_pool, "max_size", 0) or _UNLIMITED, "PostgreSQL")


def open_connection(dsn: str, patience: float, *, read_only: bool = False) -> psycopg.Connection[Any]:
    """Open a connection in autocommit mode. Add settings that `dsn` leaves out, so that a dead server is noticed in
    time. With `read_only` the server refuses to write."""
    seconds = max(math.ceil(patience), 2)
    settings: dict[str, Any] = {
        "connect_timeout": seconds,
        "tcp_user_timeout": 1000 * seconds,
        "keepalives_idle": max(seconds // 3, 1),
        "keepalives_interval": max(seconds // 3, 1),
        "keepalives_count": 2,
        "client_encoding": "UTF8",
        "fallback_application_name": "milepost",
    }
    given = fields_of(dsn)
    settings = {name: value for name, value in settings.items() if name not in given}
    if read_only:
        options = (
            f"{given.get('options') or os.environ.get('PGOPTIONS', '')} -c default_transaction_read_only=on".strip()
        )
        try:
            return psycopg.connect(dsn, autocommit=True, **settings, options=options)
        except psycopg.OperationalError as exc:
            # A pooler may take no options. The store's own transactions say that they only read anyway.
            if not re.search("startup parameter|command-line options", str(exc)):
                raise
    return psycopg.connect(dsn, autocommit=True, **settings)


def fields_of(dsn: str) -> dict[str, Any]:
    """Return the settings of a URL or connection string, by name. Raise `OptionError`, which
    quotes nothing, if it is invalid."""
    try:
        fields = dict(conninfo.conninfo_to_dict(dsn))
        if _SPLIT_WRONGLY.match(dsn):
            raise ValueError
        return fields
    except (psycopg.Error, ValueError):  # the latter: text that is no UTF-8, or has NUL
        # The driver's message quotes parts of it, and one of them may be a password.
        raise OptionError(
            "the URL of the PostgreSQL store can't be read: give postgresql://user:password@host:port/database, with special "
            "characters as percent escapes, or a connection string of libpq",
            option="dsn_or_pool",
        ) from None


def place_of(connection: psycopg.Connection[Any], schema: str, usual: str) -> str:
    """Return where a connection leads, for messages: a URL without user and password, and the
    schema if it is not the usual one."""
    info = connection.info
    place = (
        f"postgresql:///{info.dbname}?host={info.host}"
        if info.host.startswith(("/", "@"))
        else f"postgresql://{info.host}:{info.port}/{info.dbname}"
    )
    return place if schema == usual else f"{place} (schema {schema!r})"
