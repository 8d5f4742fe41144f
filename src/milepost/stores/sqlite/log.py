"""The write-ahead log of a database, as a file that is open beside SQLite.

SQLite has no locks on this file, so that closing a descriptor of it drops none.
"""

from __future__ import annotations

import os

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_SALT = slice(16, 24)


class Log:
    """The log of the database `place`. Open it while a connection is open, and close it before that one: SQLite deletes
    the log with the last connection of all processes."""

    def __init__(self, place: str) -> None:
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(f"{place}-wal", flags)

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
