"""The digests of states that follow each other: what a large one has in common with the one before is not digested again."""

from __future__ import annotations

import hashlib

from milepost.model.agreement import agreeing
from milepost.model.record import digest_of

__all__ = ["Digests"]

_LARGE = 32 * 1024
"""Bytes of a state from which on it is compared with the one before."""
_APART = 8 * 1024
"""Bytes between two places from which a digest can go on."""
_MOST = 32
"""Of such places."""


class Digests:
    """Digests the states of one walk in their order. Keeps the newest large one; `forget` lets go of it."""

    __slots__ = ("_begun", "_digest", "_state")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Keep nothing."""
        self._state = b""
        self._digest = ""
        self._begun: list[tuple[int, hashlib._Hash]] = []
        """How many bytes of the newest state were digested, and the digest begun there, the shortest first."""

    def of(self, state: bytes) -> tuple[bytes, str]:
        """The state, or the one before if that has the same bytes; and its digest."""
        if len(state) < _LARGE:
            return state, digest_of(state)
        last = self._state
        if state is not last:
            same = agreeing(last, 0, len(last), state, 0, len(state))
            if same < len(state) or same < len(last):
                self._state, self._digest = state, self._go_on(state, same)
        return self._state, self._digest

    def _go_on(self, state: bytes, same: int) -> str:
        """The digest of a state of which so many bytes are those of the one before."""
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
