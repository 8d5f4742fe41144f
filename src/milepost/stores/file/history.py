"""The records of a run in order, as of one commit of its log, even if single files are damaged.

A commit that can't be read hides only itself, and is not passed over in silence: records that no check lets pass take
its place, so that nobody takes an older record for the newest.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterator
from typing import NamedTuple

from milepost.model.record import CHECKPOINT, Record
from milepost.store import Signal
from milepost.stores.base.transaction import RecordEntry
from milepost.stores.file.commit import Commit, Damaged, Depth, Header, Placed, RowText
from milepost.stores.file.log import Log, Sought, Tail

_MOST_READ = 32

CHECKPOINTS = Sought(kinds=(CHECKPOINT,))


class RecordLocation(NamedTuple):
    """A record and its commit. Without a commit it stands for a record that can't be read."""

    number: int
    placed: Placed
    commit: Commit | None = None
    at: int = 0

    def entry(self) -> RecordEntry:
        """Return the record without its payload."""
        if self.commit is None:
            return RecordEntry(self._damaged())
        return self.commit.entry(self.at, self.placed)

    def _damaged(self) -> Record:
        return Record(self.placed.sequence, CHECKPOINT, "", 0, 0, b"", None)


class History:
    """The content of a log up to its tail. All methods raise FileNotFoundError if the log is removed meanwhile."""

    def __init__(self, log: Log, tail: Tail) -> None:
        self._log = log
        self._tail = tail
        self._read: dict[int, Commit] = {}
        """The commits that were read last."""
        self._gaps: tuple[tuple[int, int], ...] | None = None
        number, header = tail.number, tail.header
        while header is None and number > 0:
            number -= 1
            header = self._header(number)
        self._base = header
        """The header of the newest commit that can be read; None if there is none."""
        self._base_number = -1 if header is None else number

    @property
    def row(self) -> RowText | None:
        """The newest row that can be read. It is the run's row only if its newest commit can be read."""
        return None if self._base is None else self._base.row

    @property
    def last(self) -> int:
        """The newest sequence that was used, as far as is known; 0 if there is none."""
        return self._last(self._tail.number)

    def search(
        self, sought: Sought, *, after: int = -1, before: int | None = None, newest: bool = False
    ) -> Iterator[RecordLocation]:
        """Yield the records between `after` and `before`, both excluded, in order or from the newest back."""
        end = self.last + 1 if before is None else min(before, self.last + 1)
        if end <= after + 1:
            return
        low, high = self._commit_of(after + 1), self._commit_of(end - 1)
        # A commit that can't be read counts up to the end of the next one, which may be the right one.
        while high < self._tail.number and self._header(high) is None:
            high += 1
        if newest and sought == CHECKPOINTS:
            numbers = self._chain(low, high)
        else:
            numbers = self._log.index.numbers(low, high, sought, newest=newest)
        for number in numbers:
            found = self._in_commit(number, sought)
            for item in reversed(found) if newest else found:
                if after < item.placed.sequence < end:
                    yield item

    def record(self, found: RecordLocation) -> Record | None:
        """Return the record with its payload; None if it was removed meanwhile."""
        number, placed, commit, at = found
        if commit is None:
            return found._damaged()
        if commit.is_whole:
            return commit.record(at, placed)
        try:
            commit = self._load(number, "whole")
        except Damaged:
            return found._damaged()
        for at, again in commit.places():
            if again.sequence == placed.sequence:
                return commit.record(at, again)
        return None

    def nodes(self) -> set[str]:
        """Return the nodes of which the journal has or had records."""
        return self._log.index.nodes(self._base_number)

    def signals(self, after: int) -> list[Signal]:
        """List the signals with a number above `after`, in order."""
        found: list[Signal] = []
        for commit in self._with_signals("whole"):
            for signal in reversed([*commit.signals()]):
                if signal.number <= after:
                    return found[::-1]
                found.append(signal)
        return found[::-1]

    def places_of_signals(self) -> dict[int, int]:
        """Return the number of each signal's commit, by the number of the signal."""
        commits = self._with_signals("line")
        return {placed.number: commit.header.commit for commit in commits for placed in commit.header.signals}

    def signal_ids(self) -> Collection[str]:
        """Return the ids of all signals. The log remembers them, so that only new ones are read."""
        known, after = self._log.signal_ids, self._log.newest_signal
        for commit in self._with_signals("line"):
            for placed in reversed(commit.header.signals):
                if placed.number <= after:
                    return known
                self._log.newest_signal = max(placed.number, self._log.newest_signal)
                if placed.signal_id is not None:
                    known.add(placed.signal_id)
        return known

    def _with_signals(self, depth: Depth) -> Iterator[Commit]:
        """Yield the newest commit, then those with signals, from the newest back."""
        number: int | None = self._base_number
        while number is not None and number >= 0:
            try:
                commit = self._load(number, depth)
            except Damaged:
                number -= 1
                continue
            yield commit
            number = _below(commit.header.signalled, number)

    # -- commits -----------------------------------------------------------------------------------

    def _load(self, number: int, depth: Depth) -> Commit:
        # A search asks for what a commit has, then for where to look next. The next search does the same again.
        commit = self._read.get(number)
        if commit is None or not (commit.is_whole or depth == "line"):
            if len(self._read) >= _MOST_READ:
                self._read.clear()
            commit = self._read[number] = self._log.load(number, depth)
        return commit

    def _header(self, number: int) -> Header | None:
        try:
            return self._load(number, "line").header
        except Damaged:
            return None

    def _last(self, number: int) -> int:
        """Return the newest sequence up to a commit. One that can't be read counts as if it had all
        up to the next readable one."""
        base = self._base
        if base is None:
            return number
        while number < self._base_number:
            header = self._header(number)
            if header is not None:
                return header.last
            number += 1
        return base.last + number - self._base_number

    def _commit_of(self, sequence: int) -> int:
        """Return the first commit up to which `sequence` has been used. The search begins at the end."""
        high = self._tail.number
        if sequence <= 0:
            return 0
        step = 1
        while high >= step and self._last(high - step) >= sequence:
            high -= step
            step *= 2
        low = max(high - step, -1)
        while high - low > 1:
            middle = (low + high) // 2
            if self._last(middle) >= sequence:
                high = middle
            else:
                low = middle
        return high

    def _chain(self, low: int, high: int) -> Iterator[int]:
        """Yield the commits with checkpoints, from the newest back: each names the one before."""
        number: int | None = high
        while number is not None and number >= low:
            yield number
            header = self._header(number)
            number = number - 1 if header is None else _below(header.checkpoint, number)

    def _in_commit(self, number: int, sought: Sought) -> list[RecordLocation]:
        node_id, kinds, visit = sought
        try:
            commit = self._load(number, "headers")
        except Damaged:
            is_sought = node_id is None and (kinds is None or CHECKPOINT in kinds)
            return self._instead_of(number) if is_sought else []
        return [
            RecordLocation(number, placed, commit, at)
            for at, placed in commit.places()
            if (node_id is None or placed.node_id == node_id)
            and (kinds is None or placed.kind in kinds)
            and (visit is None or placed.visit == visit)
            and not self._is_removed(number, placed.sequence)
        ]

    def _instead_of(self, number: int) -> list[RecordLocation]:
        """Return replacements for the records of a commit that can't be read. The first of
        several in a row stands for all."""
        base = self._base
        first = 1 if base is not None and not base.row.flow else 0
        if number:
            before = self._header(number - 1)
            if before is None:
                return []
            first = before.last + 1
        end = first + self._tail.number - number + 1
        for following in range(number + 1, self._base_number + 1):
            header = self._header(following)
            if header is not None:
                end = header.first
                break
        return [
            RecordLocation(number, Placed(sequence, CHECKPOINT, visit=0))
            for sequence in range(first, end)
            if not self._is_removed(number, sequence)
        ]

    def _is_removed(self, number: int, sequence: int) -> bool:
        """Return whether a record was removed, even if its file still has it."""
        base = self._base
        if base is None or base.removal is None or number > base.removal:
            return False
        if self._gaps is None:
            self._gaps = self.gaps()
        at = bisect.bisect_right(self._gaps, sequence, key=lambda gap: gap[0])
        return at > 0 and sequence <= self._gaps[at - 1][1]

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Return the gaps of removed records: first and last sequence of each, in order."""
        base = self._base
        if base is None or base.removal is None:
            return ()
        header = base if base.removal == base.commit else self._header(base.removal)
        # If that commit can't be read any more, the emptied files show the same.
        return () if header is None else header.removed


def _below(number: int | None, than: int) -> int | None:
    """Return the number that a commit names, but always below `than`: a damaged commit may name a wrong one."""
    return number if number is None or number < than else than - 1
