"""The connections, the transactions and the clock of a PostgreSQL store.

If a connection is lost before a commit was sent, nothing was written, and the write begins again on another
connection. If it is lost while the commit is on its way, nobody knows the outcome: that is `OutcomeUnknown`. A
session that takes no writes, because its server was read-only when it began, counts as lost: the store waits for the
server as it does through a restart.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TypeVar, Unpack

from milepost.errors import StoreError
from milepost.model.ids import SYSTEM
from milepost.store import StoreOptions
from milepost.stores.base.decoding_transaction import DecodingTransaction
from milepost.stores.base.store import Runs
from milepost.stores.base.transaction import Transaction, WriteConflict
from milepost.stores.base.workers import WorkerTables
from milepost.stores.postgres import schema as postgres_schema
from milepost.stores.postgres.clock import ServerClock
from milepost.stores.postgres.connection import Link, Preparing, is_lost_statement
from milepost.stores.postgres.driver import psycopg
from milepost.stores.postgres.live import LiveTable
from milepost.stores.postgres.pool import Connections, RetryWindow, connections_of, place_of
from milepost.stores.postgres.statements import Tables
from milepost.stores.postgres.transaction import PostgresTransaction

T = TypeVar("T")

_LEASE = 30.0
"""The lease in seconds that counts until somebody asks for a shorter one."""
_SHORTEST_PATIENCE = 1.0
_MARGIN = 0.5
_LOCK_SECONDS = 0.25
"""Seconds that the renewal of one lease waits for its row, which each append locks for a moment."""

_READING = b"ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITING = b"ISOLATION LEVEL READ COMMITTED"
"""The mode of writes. It leaves out READ WRITE, so that a database or server that takes no
writes reports it alike for all."""
_OPENING = 6
"""Factor by which the check of the tables may take longer than a call."""
UNDONE = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation)
"""Errors that mean only that somebody else wrote at the same moment."""


class OutcomeUnknown(StoreError):
    """The connection was lost, or the thread interrupted, while a write was on its way."""

    interrupted: int | None = None
    """The id of the thread whose interrupt is the cause."""


class _WriteLost(StoreError):
    """The connection was lost before a write was committed: nothing was written."""


class PostgresBackend(Runs):
    """A complete store, except for its fast ways to append and to renew."""

    runs_statements = True
    keeps_differences = True
    compresses_differences = True
    errors_of_one_run = (*Runs.errors_of_one_run, psycopg.DataError)
    has_one_writer = False

    def __init__(
        self,
        dsn_or_pool: Any,
        schema: str,
        *,
        is_prepared: bool,
        owner: str | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        self.place = "PostgreSQL"
        self._patience = _LEASE / 3
        self._preparing = Preparing(is_prepared)
        self._tables = Tables(postgres_schema.check_schema(schema))
        self._server_clock = ServerClock() if options.get("clock", SYSTEM) is SYSTEM else None
        if self._server_clock is not None:
            options["clock"] = self._server_clock
        connections = connections_of(dsn_or_pool, self._preparing, read_only=bool(options.get("read_only")))
        self._connections, self._renewing = connections, connections.again(1)
        super().__init__(**options)
        try:
            link = self._take("open", connections)
            try:
                self.place = place_of(link.connection, schema, postgres_schema.SCHEMA)
                link.timer.allow(_OPENING * self._patience)
                with link.timer:
                    prepare = postgres_schema.check if self.is_read_only else postgres_schema.prepare
                    prepare(link.connection, schema, self.place, owner)
            finally:
                connections.give(link)
        except BaseException:
            self.close()
            raise
        connections.place = self._renewing.place = self.place
        live = LiveTable(lambda op, question: self._ask(op, self._connections, question), self._tables)
        self._keep_live_in(live)
        self._worker_shelf = WorkerTables(live.execute, live.execute, "{workers}", "{paused_schedules}")

    def close(self) -> None:
        self.flush_live()
        self._is_closed = True
        self._connections.close()
        self._renewing.close()

    def _after_fork(self, is_child: bool) -> None:
        if is_child:
            # Closing a connection here would end the parent's session.
            _inherited.append((self._connections, self._renewing))
            self._connections, self._renewing = self._connections.again(), self._renewing.again()

    @property
    def _margin(self) -> float:
        """Seconds by which a lease ends early, limited to a tenth of the lease.

        A process that read the time and then waited for a lock, or that has it from a slower connection, must not think
        that a lease ends too far ahead and that the clock was set back.
        """
        return 0.0 if self._server_clock is None else _MARGIN

    def _lease_end(self, now: float, lease: float) -> float | None:
        return now + lease - min(self._margin, lease / 10)

    def _heed(self, lease: float) -> None:
        """Shorten the patience for the server: it must be given up before a lease ends that
        nobody could renew meanwhile."""
        if lease / 3 < self._patience:
            self._patience = max(lease / 3, _SHORTEST_PATIENCE)

    # -- connections -------------------------------------------------------------------------------

    def _waiting(self) -> RetryWindow:
        """Return the time for which a call is tried again while the server is away: enough for
        one call, and then an opening."""
        return RetryWindow(2 * self._patience)

    def _take(self, op: str, connections: Connections) -> Link:
        waiting = self._waiting()
        while True:
            self._check_open()
            try:
                link = connections.take(self._patience)
            except psycopg.Error as exc:
                raise self._failure(op, exc) from exc
            if self._server_clock is None:
                return link
            try:
                self._server_clock.set_by(link)
            except psycopg.Error as exc:
                is_lost = link.is_lost
                connections.give(link)
                if not is_lost or not waiting.goes_on():
                    raise self._failure(op, exc) from exc
            else:
                return link

    def _failure(self, op: str, exc: BaseException) -> StoreError:
        return StoreError(self._message(op, exc), store=self.place, op=op)

    def _message(self, op: str, exc: BaseException) -> str:
        what = " ".join(str(exc).split()) or type(exc).__name__
        return (
            f"the store {self.place} failed to {op.replace('_', ' ')}: {what}: look at the server and the way to it, then "
            f"try again"
        )

    def _unknown(self, op: str, exc: BaseException) -> OutcomeUnknown:
        unknown = OutcomeUnknown(self._message(op, exc), store=self.place, op=op)
        unknown.interrupted = None if isinstance(exc, Exception) else get_ident()
        return unknown

    def _ask(self, op: str, connections: Connections, question: Callable[[Link], T]) -> T:
        """Run one statement that may be run twice, and return its result. Run it again if the connection
        is lost or others were faster."""
        waiting = self._waiting()
        while True:
            link = self._take(op, connections)
            try:
                return question(link)
            except psycopg.Error as exc:
                error, may_succeed = exc, link.is_lost or isinstance(exc, UNDONE)
            finally:
                connections.give(link)
            if not may_succeed or not waiting.goes_on():
                raise self._failure(op, error) from error

    def ask_server(self, question: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Ask the server about itself, over one of the connections and in the time of one call."""

        def ask(link: Link) -> T:
            with link.timer:
                return question(link.connection)

        return self._ask("look_at", self._connections, ask)

    # -- transactions ------------------------------------------------------------------------------

    def _begin(self, op: str, connections: Connections, mode: bytes) -> Link:
        """Return a connection with an open transaction. Replace one that turns out to be lost:
        nothing has happened on it yet."""
        waiting = self._waiting()
        while True:
            link = self._take(op, connections)
            try:
                link.begin(mode, self._patience)
            except BaseException as exc:
                link.roll_back()
                is_lost = link.is_lost
                connections.give(link)
                if not isinstance(exc, psycopg.Error):
                    raise
                if not is_lost or not waiting.goes_on():
                    raise self._failure(op, exc) from exc
            else:
                return link

    def _transaction(self, link: Link, mode: bytes, *, is_write: bool) -> PostgresTransaction:
        def restart() -> None:
            link.roll_back()
            link.begin(mode, self._patience)

        def abandoned() -> builtins.list[str]:
            return [run_id for run_id, held in builtins.list(self._held.items()) if held.is_abandoned]

        return PostgresTransaction(link, self._tables, self._preparing, restart, abandoned, is_write=is_write)

    def _change(self, op: str, body: Callable[[DecodingTransaction], T]) -> T:
        waiting = self._waiting()
        while True:
            try:
                return super()._change(op, body)
            except _WriteLost as exc:
                if not waiting.goes_on():
                    raise self._failure(op, exc.__cause__ or exc) from exc.__cause__

    @contextmanager
    def _write(self, op: str) -> Iterator[Transaction]:
        connections = self._renewing if op == "renew" else self._connections
        link = self._begin(op, connections, _WRITING)
        try:
            if op == "renew":
                link.wait_for_locks(_LOCK_SECONDS)
            yield self._transaction(link, _WRITING, is_write=True)
            self._commit(link, op)
        except psycopg.Error as exc:
            if link.is_lost or link.is_stale():
                raise _WriteLost(self._message(op, exc), store=self.place, op=op) from exc
            if is_lost_statement(exc) or isinstance(exc, UNDONE):
                raise WriteConflict from exc
            raise self._failure(op, exc) from exc
        finally:
            link.roll_back()
            connections.give(link)

    def _commit(self, link: Link, op: str) -> None:
        if link.is_stale():
            raise psycopg.OperationalError("the connection was lost before the commit was sent")
        try:
            link.commit()
        except psycopg.Error as exc:
            if link.is_lost:
                raise self._unknown(op, exc) from exc
            raise

    @contextmanager
    def _read(self, op: str) -> Iterator[Transaction]:
        link = self._begin(op, self._connections, _READING)
        try:
            try:
                yield self._transaction(link, _READING, is_write=False)
            finally:
                if link.is_in_order:
                    link.commit()
        except (psycopg.Error, WriteConflict) as exc:
            raise self._failure(op, exc) from exc
        finally:
            link.roll_back()
            self._connections.give(link)


_inherited: list[object] = []
