"""Digests of successive states. The part that a large state has in common with the last one is not digested again."""

from __future__ import annotations

import hashlib

from milepost.model.agreement import agreeing
from milepost.model.record import digest_of

__all__ = ["Digests"]

_LARGE = 32 * 1024
"""Size in bytes from which on a state is compared with the one before."""
_APART = 8 * 1024
"""Least distance in bytes between two places from which a digest can go on."""
_MOST = 32
"""Largest number of such places."""


class Digests:
    """The digests of one walk's states, asked for in order. It keeps the newest large state until `forget`."""

    __slots__ = ("_begun", "_digest", "_state")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the last state and its digests."""
        self._state = b""
        self._digest = ""
        self._begun: list[tuple[int, hashlib._Hash]] = []
        """Digests of prefixes of the newest state, each with the prefix's length in bytes, the shortest first."""

    def of(self, state: bytes) -> tuple[bytes, str]:
        """Return the state, or the last one if it has the same bytes, and its digest."""
        if len(state) < _LARGE:
            return state, digest_of(state)
        last = self._state
        if state is not last:
            same = agreeing(last, 0, len(last), state, 0, len(state))
            if same < len(state) or same < len(last):
                self._state, self._digest = state, self._go_on(state, same)
        return self._state, self._digest

    def _go_on(self, state: bytes, same: int) -> str:
        """Digest a state whose first `same` bytes are those of the last state."""
        begun = self._begun
        while begun and begun[-1][0] > same:
            begun.pop()
        at, digest = begun[-1] if begun else (0, hashlib.sha256())
        view, digest = memoryview(state), digest.copy()
        if same - at >= _APART:
            digest.update(view[at:same])
            at = same
            begun.append((same, digest.copy()))
            if len(begun) > _MOST:
                del begun[::2]
        digest.update(view[at:])
        return f"sha256:{digest.hexdigest()}"
