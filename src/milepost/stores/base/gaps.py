"""Which numbers of a journal are missing, and whether something says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.model.record import OWNER

__all__ = ["Gaps"]


class Gaps:
    """Counts the records of a journal as they are shown to it, in order. `has_start`: it begins with a start record."""

    def __init__(self, *, has_start: bool) -> None:
        self.next = 0 if has_start else 1
        """One more than the number that was shown last."""
        self._missing: list[tuple[int, int]] = []
        self._removed = 0

    def pass_over(self, sequence: int) -> None:
        """Note that there is a record with that number, above all others so far."""
        if sequence > self.next:
            self._missing.append((self.next, sequence - 1))
        self.next = sequence + 1

    def note_deletion(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Count what a record says was deleted."""
        removed = fields.get("removed") if kind == OWNER and fields.get("verb") == "delete" else None
        self._removed += removed if isinstance(removed, int) else 0

    def problems(self, *, pruned: int, newest: int, status: str) -> list[str]:
        """What is wrong, where `pruned` records were taken out and `newest` was the last when the run became `status`."""
        problems = []
        if sum(last - first + 1 for first, last in self._missing) > pruned + self._removed:
            problems += [
                f"record {first} is missing, without a deletion that says so"
                if first == last
                else f"records {first} to {last} are missing, without a deletion that says so"
                for first, last in self._missing
            ]
        if self.next <= newest:
            problems.append(
                f"the journal ends at record {self.next - 1}, but the run had record {newest} when it became {status}"
            )
        return problems
