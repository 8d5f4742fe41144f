"""Users' statements in a transaction of a SQLite store, which they may neither end nor leave.

SQLite itself reports what a statement does while it compiles it. Refused are control of the transaction, other
databases, pragmas, and changes of the store's own tables, through triggers too. Nothing is parsed but the conflict
clause ROLLBACK, which SQLite does not report.
Source: https://www.sqlite.org/c3ref/set_authorizer.html
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from milepost.errors import OptionError, StoreError
from milepost.store import Statement
from milepost.stores.base.transaction import failed_statement

__all__ = ["perform"]

_OWN = frozenset({"runs", "records", "signals", "journal", "checkpoints", "checkpoints_v0"})
_READING = frozenset({sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_REFUSED = {
    sqlite3.SQLITE_TRANSACTION: "it controls the transaction, which is the checkpoint's",
    sqlite3.SQLITE_SAVEPOINT: "it controls the transaction, which is the checkpoint's",
    sqlite3.SQLITE_ATTACH: "it opens another database, which one transaction can't be durable with",
    sqlite3.SQLITE_DETACH: "it closes another database",
    sqlite3.SQLITE_PRAGMA: "a pragma changes the store's connection",
}

# Texts, quoted names and comments. A comment without an end ends with the statement.
_QUOTED = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)""",
    re.DOTALL,
)
_ROLLBACK = re.compile(r"\b(?:(?:INSERT|UPDATE)\s+OR|ON\s+CONFLICT)\s+ROLLBACK\b", re.IGNORECASE)

# Primary result codes for a fault of the backend, not of the statement. NOMEM, BUSY, LOCKED, READONLY, INTERRUPT, IOERR,
# CORRUPT, FULL, CANTOPEN, PROTOCOL, NOTADB; see https://www.sqlite.org/rescode.html
_MEDIUM = frozenset({7, 5, 6, 8, 9, 10, 11, 13, 14, 15, 26})


def perform(connection: sqlite3.Connection, statements: Sequence[Statement]) -> None:
    """Execute statements in the open transaction, in order, each to its end.

    Raise `StatementError` if one fails or is refused, and sqlite3's errors if the backend fails.
    """
    guard = _Guard()
    # Setting it makes SQLite compile all statements again, so that no cached one escapes the check.
    connection.set_authorizer(guard)
    try:
        for statement in statements:
            _perform(connection, statement, guard)
    finally:
        connection.set_authorizer(None)


def _perform(connection: sqlite3.Connection, statement: Statement, guard: _Guard) -> None:
    sql, params = statement
    guard.reason = ""
    try:
        if _ROLLBACK.search(_QUOTED.sub(" ", sql)):
            guard.reason = "its conflict clause ROLLBACK ends the transaction, which is the checkpoint's: use ABORT"
            raise _refusal(guard.reason)
        if not _QUOTED.sub(_without_comments, sql).strip("; \t\r\n\f"):
            raise OptionError("there is no statement in it", option="sql")
        cursor = connection.execute(sql, params)
        try:
            for _ in cursor:  # a statement with rows is complete only once they are read
                pass
        finally:
            cursor.close()
    except Exception as exc:
        if (getattr(exc, "sqlite_errorcode", 0) or 0) & 0xFF in _MEDIUM:
            raise
        cause = _refusal(guard.reason) if guard.reason and not isinstance(exc, OptionError) else exc
        raise failed_statement(sql, cause) from cause
    if not connection.in_transaction:
        raise StoreError(f"the transaction ended within the statement {sql!r}", op="append")


def _refusal(reason: str) -> OptionError:
    return OptionError(f"the statement is refused: {reason}", option="sql")


def _without_comments(quoted: re.Match[str]) -> str:
    return " " if quoted[0].startswith(("--", "/*")) else "x"


class _Guard:
    """An authorizer of what a statement does. `reason` says why the last refused action is not allowed."""

    def __init__(self) -> None:
        self.reason = ""

    def __call__(
        self, action: int, first: str | None, second: str | None, database: str | None, trigger: str | None
    ) -> int:
        if action in _READING:
            return sqlite3.SQLITE_OK
        if action in _REFUSED:
            self.reason = _REFUSED[action]
        elif _OWN & {(first or "").lower(), (second or "").lower()}:
            self.reason = "it changes the store's own tables"
        else:
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY
