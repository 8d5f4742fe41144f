"""Users' statements in a transaction of a PostgreSQL store, which they may neither end nor leave.

A statement that controls the transaction or the session is recognised by its first word and is not sent. The server
takes one statement at a time here, and lets no function or block end the transaction around it. If one ends all the
same, that is noticed. Statements see what the connection's user sees, by the search path of the user, database or URL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from milepost.errors import OptionError, StoreError
from milepost.store import Statement
from milepost.stores.base.transaction import failed_statement
from milepost.stores.postgres.connection import Link
from milepost.stores.postgres.driver import psycopg

_BLANKS = " \t\r\n\f\v;"
_WORD = re.compile(r"[A-Za-z]+")
_REFUSED = {
    **dict.fromkeys(
        ("ABORT", "BEGIN", "COMMIT", "END", "RELEASE", "ROLLBACK", "SAVEPOINT", "START"),
        "it controls the transaction, which is the checkpoint's",
    ),
    **dict.fromkeys(
        ("CLOSE", "DEALLOCATE", "DECLARE", "DISCARD", "EXECUTE", "FETCH", "LISTEN", "LOAD", "MOVE", "PREPARE", "RESET", "SET",
         "UNLISTEN"),
        "it controls the transaction or its session, which are the store's",
    ),
    "COPY": "its data would have to be sent after it",
}  # fmt: skip
_ANEW = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""Errors that mean that others wrote at the same moment. The whole transaction is undone and tried again."""


def perform(link: Link, statements: Sequence[Statement]) -> None:
    """Execute statements in the open transaction, in order, and check the constraints that were deferred to its end.

    Raise `StatementError` if one fails or is refused, psycopg's errors if the connection is lost or others were faster.
    """
    sql = ""
    try:
        for sql, params in statements:
            _refuse(sql)
            # Binary, because on that path the server takes only one statement.
            with link.timer:
                link.cursor.execute(cast("Any", sql), params or None, prepare=False, binary=True)
            if not link.is_in_order:
                raise StoreError(f"the transaction ended within the statement {sql!r}", op="append")
        link.check_constraints()
    except StoreError:
        raise
    except Exception as exc:
        if isinstance(exc, _ANEW) or (isinstance(exc, psycopg.Error) and link.is_stale()):
            raise
        raise failed_statement(sql, exc) from exc


def _refuse(sql: str) -> None:
    """Raise `OptionError` unless the statement may be part of the store's transaction."""
    word = _first_word(sql)
    if word is None:
        raise OptionError("there is no statement in it", option="sql")
    reason = _REFUSED.get(word)
    if reason is not None:
        raise OptionError(f"the statement is refused: {reason}", option="sql")


def _first_word(sql: str) -> str | None:
    """Return the first word in capitals; "" if something else comes first; None if there are only blanks and comments."""
    place = 0
    while place < len(sql):
        if sql[place] in _BLANKS:
            place += 1
        elif sql.startswith("--", place):
            ends = [end for mark in "\r\n" if (end := sql.find(mark, place)) >= 0]
            place = min(ends, default=len(sql))
        elif sql.startswith("/*", place):
            place = _after_comment(sql, place)
        else:
            found = _WORD.match(sql, place)
            return "" if found is None else found[0].upper()
    return None


def _after_comment(sql: str, place: int) -> int:
    """Return the place at which the comment that begins at `place` ends. Comments nest."""
    depth = 0
    while place < len(sql):
        if sql.startswith("/*", place):
            depth, place = depth + 1, place + 2
        elif sql.startswith("*/", place):
            depth, place = depth - 1, place + 2
            if not depth:
                break
        else:
            place += 1
    return place
