"""Interleaved rounds: each side once a round, so that whatever else the machine does hits all sides alike.

Absolute times move with the machine's load; what is compared are values of one round, and then the median over the
rounds. No process is pinned and no priority is changed.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

__all__ = ["Rounds", "Spread", "busy_seconds", "interleave", "seconds", "spread_of"]

Side = Callable[[], float]
"""Does the work once and gives what is measured, such as seconds per node."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The median over all rounds, with the smallest and the largest value."""

    median: float
    low: float
    high: float


def spread_of(values: Sequence[float]) -> Spread:
    """The spread of one value a round."""
    return Spread(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Rounds:
    """What each side measured: one value a round, in the order of the rounds."""

    sides: Mapping[str, tuple[float, ...]]

    def spread(self, side: str) -> Spread:
        """The spread of one side."""
        return spread_of(self.sides[side])

    def combine(self, by: Callable[..., float], *sides: str) -> Spread:
        """The spread of `by`, called with the values that `sides` have in one round."""
        return spread_of([by(*values) for values in zip(*(self.sides[side] for side in sides), strict=True)])

    def fastest(self, *sides: str) -> str:
        """The side with the smallest median."""
        return min(sides, key=lambda side: self.spread(side).median)


def interleave(rounds: int, sides: Mapping[str, Side]) -> Rounds:
    """Take `sides` in turn, A B A B ..., after one turn that does not count."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            gc.collect()  # nobody pays for what another side left behind
            value = side()
            if number:
                values[name].append(value)
    return Rounds({name: tuple(found) for name, found in values.items()})


def seconds(work: Callable[..., Any], *args: Any, times: int = 1) -> float:
    """Seconds that one call of `work(*args)` takes, on average over `times` calls."""
    began = perf_counter()
    for _ in range(times):
        work(*args)
    return (perf_counter() - began) / times


def busy_seconds(work: Callable[..., Any], *args: Any, times: int = 1) -> float:
    """`seconds` of this process's own work, for what waits for nothing: what else the machine does counts less."""
    began = process_time()
    for _ in range(times):
        work(*args)
    return (process_time() - began) / times
