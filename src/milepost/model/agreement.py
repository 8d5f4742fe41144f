"""How far two texts agree, in steps that compare as memory does and copy next to nothing."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["agreeing", "agreeing_back"]

_FIRST = 64
_FINEST = 1024
"""Bytes within which the place of a difference is computed."""
_MOST = 256 * 1024
"""Bytes that are compared at once."""


def agreeing(old: bytes, i: int, old_end: int, new: bytes, j: int, new_end: int) -> int:
    """How many bytes agree from two places on."""
    view = memoryview(old)
    return _extent(
        min(old_end - i, new_end - j),
        lambda same, step: new.startswith(view[i + same : i + same + step], j + same),
        lambda same, step: (
            int.from_bytes(old[i + same : i + same + step]) ^ int.from_bytes(new[j + same : j + same + step])
        ),
    )


def agreeing_back(old: bytes, old_end: int, new: bytes, new_end: int, most: int) -> int:
    """How many bytes agree before two places, at most so many, which both have."""
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
    """The largest number up to `most` for which all agrees.

    `agrees(n, k)`: whether the `k` bytes after the first `n` do. `differing(n, k)`: those of both combined by exclusive or,
    as a number whose highest bytes are the nearest.
    """
    same, step = 0, _FIRST
    while same < most:
        step = min(step, most - same)
        if agrees(same, step):
            same += step
            step = min(4 * step, _MOST)
        elif step > _FINEST:
            step //= 4
        else:
            return same + step - (differing(same, step).bit_length() + 7) // 8
    return most
