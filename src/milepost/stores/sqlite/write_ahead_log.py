"""The write-ahead log of a database, as a file that is open beside SQLite.

SQLite has no locks on this file, so that closing a descriptor of it drops none. Whoever opens it has a connection, and
closes it before that one: SQLite deletes the log with the last connection of all processes.
"""

from __future__ import annotations

import os
import sqlite3

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_SALT = slice(16, 24)


def open_log(place: str) -> int:
    """Open the log of the database `place` to read it, and return the descriptor. Raise what SQLite raises if it can't."""
    try:
        return os.open(f"{place}-wal", os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0))
    except OSError as exc:
        raise sqlite3.OperationalError(f"unable to open the log: {exc.strerror}") from exc


class WriteAheadLog:
    """The log of the database `place`."""

    def __init__(self, place: str) -> None:
        self._descriptor = open_log(place)

    def close(self) -> None:
        os.close(self._descriptor)

    def has(self, size: int) -> bool:
        """Return whether at least `size` bytes were written to the log since it last started anew, by all processes.

        The file does not shrink when the log starts anew. Only the frames that were written since then have the salt of
        the file's header.
        Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
        """
        header = self._read(0, _HEADER_BYTES)
        frame_bytes = _FRAME_HEADER_BYTES + int.from_bytes(header[8:12], "big")
        frame = self._read(_HEADER_BYTES + size // frame_bytes * frame_bytes, _FRAME_HEADER_BYTES)
        return len(frame) == _FRAME_HEADER_BYTES and frame[8:16] == header[_SALT]

    def _read(self, offset: int, size: int) -> bytes:
        os.lseek(self._descriptor, offset, os.SEEK_SET)  # Windows has no pread
        return os.read(self._descriptor, size)
