"""One connection to PostgreSQL, and statements that run so often that each microsecond counts.

Transactions begin and end, and frequent statements run, by direct calls of libpq. psycopg's own way costs more than the
statement does in the server. It also lets a Ctrl-C cancel a statement that has begun, and then nobody knows its
outcome: here the call ends first, and Python raises after it. The server limits how long that takes, and a `CallTimer`
does so where the server does not answer.

Statements are prepared if the connection is a direct one. Behind a pooler, which may give each transaction another
connection of the server, a name may mean nothing there, or somebody else's statement. A pooler is recognised by the
process that answers: it is not the one that the connection was opened to. If a pooler is overlooked, the loss of a
prepared statement reveals it before anything has run.
"""

from __future__ import annotations

import hashlib
import logging
import select
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from milepost.store import Token
from milepost.stores.postgres.driver import pq, psycopg
from milepost.stores.postgres.timing import CallTimer

_logger = logging.getLogger("milepost")

Encoder = Callable[[Any], bytes | None]

_OK = (
    pq.ExecStatus.COMMAND_OK,
    pq.ExecStatus.TUPLES_OK,
)  # a set would compute hashes, which are slow for an enumeration
_POLLED = select.POLLIN | select.POLLERR | select.POLLHUP if hasattr(select, "poll") else 0
_NO_MORE_USE = (b"25006", b"25P", b"08", b"57P")
"""The first characters of error codes that make a session useless.

It takes no writes, because its server was a standby or read-only when it began; its transaction was ended from outside;
or the server, or what stands before it, ends the session.
"""
_ENDS = (b"FATAL", b"PANIC")
_LOOKS = 8
_TIMEOUTS = ("statement_timeout", "idle_in_transaction_session_timeout")
"""The timeouts of a session. The second ends the transaction, and so its locks, of a frozen process or a lost machine."""
_OIDS: dict[str, tuple[int, int]] = {
    name: (psycopg.postgres.types[name].oid, psycopg.postgres.types[name].array_oid)
    for name in ("bool", "bytea", "float8", "int8", "text")
}
_pack_int = struct.Struct("!q").pack
_pack_float = struct.Struct("!d").pack
_pack_array = struct.Struct("!iiIii").pack
_pack_no_items = struct.Struct("!iiI").pack
_pack_length = struct.Struct("!i").pack
_NULL = _pack_length(-1)
_EIGHT = _pack_length(8)


class Preparing:
    """A switch for the preparing of a store's statements. Its connections share it, so all learn
    at once when preparing fails."""

    __slots__ = ("is_on",)

    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on

    def give_up(self, why: str, level: int = logging.WARNING) -> None:
        """Prepare nothing from now on. Log that the first time."""
        if self.is_on:
            self.is_on = False
            _logger.log(level, "statements for PostgreSQL are no longer prepared, which costs some time: %s", why)


class Frequent:
    """A statement with the types of its parameters `$1`, `$2`, ...; `text[]` is an array of texts."""

    __slots__ = ("_encoders", "formats", "name", "oids", "text")

    def __init__(self, text: bytes, types: str) -> None:
        """Build a statement. `types` names the parameters' types, in order, separated by blanks."""
        names = types.split()
        self.text = text
        # The name is a digest of the text, so whoever has prepared this name has prepared this text.
        self.name = b"milepost_" + hashlib.sha256(text).hexdigest()[:16].encode()
        self._encoders: list[Encoder] = [
            partial(_encode_array, name[:-2]) if name.endswith("[]") else _ENCODERS[name] for name in names
        ]
        self.oids = [_OIDS[name[:-2]][1] if name.endswith("[]") else _OIDS[name][0] for name in names]
        self.formats = [pq.Format.BINARY] * len(names)

    def encode(self, values: Sequence[Any]) -> list[bytes | None]:
        """Encode `values` for the server. Raise OverflowError for a number of more than 64 bits, or UnicodeEncodeError."""
        return [encode(value) for encode, value in zip(self._encoders, values, strict=True)]


def pack_int(value: int) -> bytes:
    """Encode a number as `int8`. Raise OverflowError if it is too large."""
    try:
        return _pack_int(value)
    except struct.error as exc:
        raise OverflowError(f"{value} has more than 64 bits") from exc


def _encode_bool(value: bool | None) -> bytes | None:
    return None if value is None else b"\1" if value else b"\0"


def _encode_bytes(value: bytes | None) -> bytes | None:
    return value


def _encode_float(value: float | None) -> bytes | None:
    return None if value is None else _pack_float(value)


def _encode_int(value: int | None) -> bytes | None:
    return None if value is None else pack_int(value)


def _encode_text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


_ENCODERS: dict[str, Encoder] = {
    "bool": _encode_bool,
    "bytea": _encode_bytes,
    "float8": _encode_float,
    "int8": _encode_int,
    "text": _encode_text,
}


def _encode_array(name: str, values: Sequence[Any]) -> bytes:
    """Encode an array of one dimension in its binary form; see array_send in the server's sources."""
    element, item = _OIDS[name][0], _ITEMS[name]
    begin = _pack_array(1, 1, element, len(values), 1) if values else _pack_no_items(0, 0, element)
    return b"".join([begin, *[_NULL if value is None else item(value) for value in values]])


def _int_item(value: int) -> bytes:
    return _EIGHT + pack_int(value)


def _text_item(value: str) -> bytes:
    data = value.encode()
    return _pack_length(len(data)) + data


def _bytes_item(value: bytes) -> bytes:
    return _pack_length(len(value)) + value


# The encoding of a value in an array: its length, then the value.
_ITEMS: dict[str, Callable[[Any], bytes]] = {
    "bool": lambda value: _bytes_item(b"\1" if value else b"\0"),
    "bytea": _bytes_item,
    "float8": lambda value: _EIGHT + _pack_float(value),
    "int8": _int_item,
    "text": _text_item,
}


class Session:
    """The facts about a connection while it lives: whether it is direct, which statements it has
    prepared, and its last record.

    A record that this connection wrote is there, and while the token is current only this process can have written
    after it. Another connection may lead to a replica that took over and lacks the record.
    """

    __slots__ = ("is_direct", "newest", "prepared", "timer")

    def __init__(self, connection: psycopg.Connection[Any], patience: float, timeout: float | None = None) -> None:
        """Ask the server over an idle connection. `timeout` is the time in seconds that a
        direct one gives each statement."""
        self.timer = CallTimer(connection.pgconn.socket, patience)
        process = connection.pgconn.backend_pid
        # A setting of a session must not reach a pooler, which would pass it on to its next client.
        setting = "true"
        if timeout is not None:
            setting = " AND ".join(f"set_config('{name}', '{timeout * 1000:.0f}', false) <> ''" for name in _TIMEOUTS)
        with self.timer:
            result = connection.pgconn.exec_(
                f"SELECT CASE WHEN pg_backend_pid() = {process:d} THEN {setting} ELSE false END".encode()
            )
        self.is_direct: bool = _check(connection.pgconn, result, self.timer).get_value(0, 0) == b"t"
        self.prepared: set[bytes] = set()
        self.newest: tuple[Token, int] | None = None
        """The record that was last appended to a run: its owner's token and its number."""


class Link:
    """A connection that one thread uses. `timeout` is the time in seconds that its session gives
    each statement; None: unknown.

    Failures raise psycopg's errors. `is_lost` says whether the connection can still be used.
    """

    __slots__ = (
        "_has_failed",
        "_pgconn",
        "_poll",
        "_preparing",
        "_session",
        "_timeout",
        "connection",
        "cursor",
        "timer",
        "used_at",
    )

    def __init__(
        self, connection: psycopg.Connection[Any], session: Session, preparing: Preparing, timeout: float | None = None
    ) -> None:
        self.connection = connection
        self.cursor = psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row)
        self._pgconn = connection.pgconn
        self._session = session
        self.timer = session.timer
        self._preparing = preparing
        self._timeout = timeout if session.is_direct else None
        self._has_failed = False
        self.used_at = 0.0
        """When its pool got it back, on the monotonic clock."""
        self._poll: Any = None
        if _POLLED:
            self._poll = select.poll()
            self._poll.register(self._pgconn.socket, _POLLED)
        if not session.is_direct:
            preparing.give_up("a pooler stands before the server", logging.INFO)

    @property
    def is_lost(self) -> bool:
        """True if the connection is known to be useless."""
        # libpq itself does not notice that what it sent never arrived.
        return self._has_failed or self._pgconn.status == pq.ConnStatus.BAD

    def _checked(self, result: pq.abc.PGresult) -> pq.abc.PGresult:
        """Return `result` if it is a success. Raise psycopg's error for it otherwise."""
        try:
            return _check(self._pgconn, result, self.timer)
        except ConnectionLost:
            self._has_failed = True
            raise

    def note_error(self, error: psycopg.Error) -> None:
        """Note an error that `cursor` raised."""
        severity = (error.diag.severity_nonlocalized or "").encode()
        if _is_of_no_more_use(severity, (error.sqlstate or "").encode()):
            self._has_failed = True

    @property
    def is_idle(self) -> bool:
        """True if no transaction is open."""
        return self._pgconn.transaction_status == pq.TransactionStatus.IDLE

    @property
    def is_in_order(self) -> bool:
        """True if a transaction is open in which nothing has failed."""
        return self._pgconn.transaction_status == pq.TransactionStatus.INTRANS

    def is_stale(self) -> bool:
        """Return whether the connection was lost while nobody used it. This looks at its socket,
        which costs next to nothing."""
        if self._poll is None:
            return self.is_lost
        for _ in range(_LOOKS):
            if not self._poll.poll(0):
                return self.is_lost
            try:
                self._pgconn.consume_input()
            except psycopg.OperationalError:
                return True
        return True  # it ended, or sends more than an idle connection would

    def server_time(self) -> float:
        """Return the server's time in POSIX seconds."""
        found = self._command(b"SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(found.get_value(0, 0))

    def begin(self, mode: bytes, patience: float) -> None:
        """Begin a transaction in which a statement, and the time between two, may take `patience` seconds."""
        if self._timeout is None or patience < self._timeout:
            mode += b"".join(b"; SET LOCAL %s = %d" % (name.encode(), patience * 1000) for name in _TIMEOUTS)
        self._command(b"BEGIN " + mode)

    def wait_for_locks(self, seconds: float) -> None:
        """Let this transaction wait up to `seconds` for a lock that somebody else holds."""
        self._command(b"SET LOCAL lock_timeout = %d" % (seconds * 1000))

    def check_constraints(self) -> None:
        """Check the constraints now that this transaction has deferred to its end."""
        self._command(b"SET CONSTRAINTS ALL IMMEDIATE")

    def commit(self) -> None:
        """Commit the transaction. If that fails and the connection is lost, nobody knows the outcome."""
        if self._command(b"COMMIT").command_status != b"COMMIT":
            raise psycopg.errors.InFailedSqlTransaction("the transaction had failed, and was undone")

    def roll_back(self) -> None:
        """Undo the transaction, if there is one. This never fails: the loss of the connection undoes it too."""
        # psycopg would deallocate all prepared statements after a ROLLBACK of which it knows.
        if not self.is_lost and not self.is_idle:
            with self.timer:
                self._pgconn.exec_(b"ROLLBACK")

    def _command(self, text: bytes) -> Any:
        with self.timer:
            result = self._pgconn.exec_(text)
        return self._checked(result)

    def run(self, statement: Frequent, values: Sequence[Any]) -> list[tuple[bytes | None, ...]]:
        """Run a statement by itself, durable on return. Return its rows in their binary form."""
        result = self.execute(statement, statement.encode(values))
        columns = range(result.nfields)
        return [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]

    def wrote(self, token: Token, sequence: int) -> bool:
        """Return whether the last record written over this connection has this number, and the run and owner of `token`."""
        return self._session.newest == (token, sequence) and self._session.is_direct

    def note_written(self, token: Token, sequence: int) -> None:
        """Note that a record was written."""
        self._session.newest = (token, sequence)

    def execute(self, statement: Frequent, encoded: list[Any]) -> pq.abc.PGresult:
        """Run a statement with encoded values. Return the result as libpq has it."""
        pgconn, session, timer = self._pgconn, self._session, self.timer
        if self._preparing.is_on and session.is_direct:
            if statement.name in session.prepared:
                timer.start()
                result = pgconn.exec_prepared(statement.name, encoded, statement.formats, pq.Format.BINARY)
                timer.stop()
                if result.status in _OK:
                    return result
                prepared = self._execute_prepared(statement, encoded, result)
            else:
                prepared = self._execute_prepared(statement, encoded, None)
            if prepared is not None:
                return prepared
        with timer:
            result = pgconn.exec_params(statement.text, encoded, statement.oids, statement.formats, pq.Format.BINARY)
        return self._checked(result)

    def _execute_prepared(
        self, statement: Frequent, encoded: list[Any], failed: pq.abc.PGresult | None
    ) -> pq.abc.PGresult | None:
        """Prepare and execute a statement. `failed` is the result of a first try.

        Return None if it can't be prepared; then nothing has run.
        """
        pgconn, prepared = self._pgconn, self._session.prepared
        lost: Exception | None = None
        for _ in range(2):  # others may have deallocated its statements; but not twice in a row
            try:
                if failed is not None:
                    self._checked(failed)
                if statement.name not in prepared:
                    with self.timer:
                        result = pgconn.prepare(statement.name, statement.text, statement.oids)
                    self._checked(result)
                    prepared.add(statement.name)
                with self.timer:
                    result = pgconn.exec_prepared(statement.name, encoded, statement.formats, pq.Format.BINARY)
                return self._checked(result)
            except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement) as exc:
                prepared.clear()
                failed, lost = None, exc
        self._preparing.give_up(f"they get lost between here and the server ({lost})")
        return None


class ConnectionLost(psycopg.OperationalError):
    """No answer came, or the server said that the session can't be used any more."""


def is_lost_statement(exc: BaseException) -> bool:
    """Return whether `exc` says that a prepared statement is not where it was prepared."""
    return isinstance(exc, psycopg.errors.InvalidSqlStatementName | psycopg.errors.DuplicatePreparedStatement)


def _check(pgconn: pq.abc.PGconn, result: pq.abc.PGresult, timer: CallTimer) -> pq.abc.PGresult:
    if result.status in _OK:
        return result
    if timer.is_over:
        raise ConnectionLost("the server did not answer in time")
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b""
    # An error without a state does not come from the server.
    if pgconn.status == pq.ConnStatus.BAD or not state or _is_of_no_more_use(severity, state):
        raise ConnectionLost(f"the connection is of no more use: {pgconn.get_error_message()}")
    raise psycopg.errors.error_from_result(result)


def _is_of_no_more_use(severity: bytes, state: bytes) -> bool:
    return severity in _ENDS or state.startswith(_NO_MORE_USE)
