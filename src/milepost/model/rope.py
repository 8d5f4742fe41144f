"""Bytes in pieces that are shared with the bytes before them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_


class Rope:
    """The encoded bytes of a value in pieces. Successive values have the same objects as pieces where nothing changed.

    `bytes` joins the pieces. Each piece begins and ends between two characters of the JSON.
    """

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[bytes], size: int) -> None:
        self.pieces = pieces
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def changes_from(self, old: Rope) -> Iterator[tuple[int, bytes, bytes]]:
        """Give for each row of pieces that are not those of `old` its place there, the old text and the new one.

        Pieces are compared by their number, so that a piece too many makes all later ones differ.
        """
        mine, others = self.pieces, old.pieces
        are_same = bytes(map(is_, mine, others))
        first = place = 0
        while True:
            begin = are_same.find(False, first)
            end = are_same.find(True, begin) if begin >= 0 else -1
            if end < 0:
                break
            place += sum(map(len, others[first:begin]))
            before = b"".join(others[begin:end])
            yield place, before, b"".join(mine[begin:end])
            place += len(before)
            first = end
        begin = begin if begin >= 0 else len(are_same)
        before = b"".join(others[begin:])
        yield len(old) - len(before), before, b"".join(mine[begin:])
