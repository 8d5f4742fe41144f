"""How much is measured and where: the sizes of all benchmarks, and the folders that files are made in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FULL", "QUICK", "TINY", "Setting", "Size"]


@dataclass(frozen=True, slots=True)
class Size:
    """How often and how much. Figures are told per node, save or checkpoint, whatever the size."""

    rounds: int
    """Rounds of what takes milliseconds."""
    long_rounds: int
    """Rounds of what takes seconds."""
    nodes: int
    """Nodes of a run."""
    growth: int
    """Nodes of the run whose state grows."""
    big: int
    """Nodes of the run whose state has a megabyte."""
    big_rows: int
    """Records in that state; 9500 make a megabyte."""
    journals: tuple[int, ...]
    """Checkpoints in the journals that are resumed, the shortest first."""
    compiled: tuple[int, ...]
    """Nodes of the graphs that are compiled."""
    runs: int
    """Runs at once."""
    run_nodes: int
    """Nodes of each of them."""
    processes: int
    process_nodes: int
    """Nodes that each process runs on the one file."""


FULL = Size(11, 7, 1000, 500, 12, 9500, (10, 1_000, 100_000), (10, 100, 1000), 64, 50, 4, 400)
QUICK = Size(5, 3, 300, 150, 4, 9500, (10, 1_000, 10_000), (10, 100, 1000), 32, 20, 2, 100)
TINY = Size(2, 2, 5, 5, 2, 40, (2, 6), (3, 5), 3, 3, 2, 4)
"""For tests of the benchmarks: says nothing about speed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """`places` maps what the report calls a place ("disk", "tmpfs") to a folder there."""

    size: Size
    places: Mapping[str, Path]

    @contextmanager
    def folder(self, place: str) -> Iterator[Path]:
        """A new folder at `place`, gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="milepost-benchmark-", dir=self.places[place]) as name:
            yield Path(name)
