"""Search for numbers that are missing in a journal and that no recorded deletion explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from milepost.model.record import OWNER

__all__ = ["Gaps"]


class Gaps:
    """A counter of a journal's records, which it is shown in order. `has_start`: the journal begins with a start record."""

    def __init__(self, *, has_start: bool) -> None:
        self.next = 0 if has_start else 1
        """The number that should come next: one more than the number that was shown last."""
        self._missing: list[tuple[int, int]] = []
        self._removed = 0

    def pass_over(self, sequence: int) -> None:
        """Note that a record with this number exists. Numbers must ascend."""
        if sequence > self.next:
            self._missing.append((self.next, sequence - 1))
        self.next = sequence + 1

    def note_deletion(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Add the number of deleted records that a record reports."""
        removed = fields.get("removed") if kind == OWNER and fields.get("verb") == "delete" else None
        self._removed += removed if isinstance(removed, int) else 0

    def problems(self, *, pruned: int, newest: int, status: str) -> list[str]:
        """Return one sentence for each problem. `pruned` records were removed; the run had
        `newest` when it became `status`."""
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
