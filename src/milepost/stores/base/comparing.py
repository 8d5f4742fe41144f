"""The extent to which two texts agree, found by comparing whole blocks of memory, with hardly any copying."""

from __future__ import annotations

from collections.abc import Callable

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
