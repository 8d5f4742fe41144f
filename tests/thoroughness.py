"""How many examples a property is tried with: few in every run of the tests, all with `--all`."""

from __future__ import annotations

from hypothesis import settings

FEW = 25


def examples(number: int) -> int:
    """`number` with `--all`, else a quarter of it and at most `FEW`."""
    return number if settings.default.max_examples > FEW else min(number // 4, FEW)
