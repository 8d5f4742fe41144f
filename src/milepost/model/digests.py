"""Digests of successive states. The part that a large state has in common with the last one is not digested again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from milepost.model.record import digest_of

# The number of bytes in which two texts agree, found by comparing whole blocks of memory with hardly any
# copying.


_FIRST = 64
_FINEST = 1024
"""Size of the largest block in bytes in which the place of a difference is computed and not searched for."""
_LARGEST_BLOCK = 256 * 1024
"""Bytes that are compared at once, at most."""


def agreeing(old: bytes, i: int, old_end: int, new: bytes, j: int, new_end: int) -> int:
    """Count the equal bytes of `old` from `i` on and of `new` from `j` on."""
    view = memoryview(old)
    return _extent(
        min(old_end - i, new_end - j),
        lambda same, step: new.startswith(view[i + same : i + same + step], j + same),
        lambda same, step: (
            int.from_bytes(old[i + same : i + same + step]) ^ int.from_bytes(new[j + same : j + same + step])
        ),
    )


def agreeing_back(old: bytes, old_end: int, new: bytes, new_end: int, most: int) -> int:
    """Count the equal bytes before `old_end` and before `new_end`, up to `most`, which both texts must have there."""
    view = memoryview(old)
    return _extent(
        most,
        lambda same, step: new.endswith(view[old_end - same - step : old_end - same], 0, new_end - same),
        lambda same, step: (
            int.from_bytes(old[old_end - same - step : old_end - same], "little")
            ^ int.from_bytes(new[new_end - same - step : new_end - same], "little")
        ),
    )


def _extent(most: int, agrees: Callable[[int, int], bool], differing: Callable[[int, int], int]) -> int:
    """Return the length of the equal part, at most `most`.

    `agrees(n, k)` returns whether the `k` bytes after the first `n` are equal. `differing(n, k)` combines these bytes
    of both texts by exclusive or, into a number whose highest bytes are the nearest ones.
    """
    same, step = 0, _FIRST
    while same < most:
        step = min(step, most - same)
        if agrees(same, step):
            same += step
            step = min(4 * step, _LARGEST_BLOCK)
        elif step > _FINEST:
            step //= 4
        else:
            return same + step - (differing(same, step).bit_length() + 7) // 8
    return most


# Digests of successive states. The part that a large state has in common with the last one is not digested
# again.


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
